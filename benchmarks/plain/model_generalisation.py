"""Baselines of ../model_generalisation.py: the speed of the original (Young et al. 2023, arXiv 2211.02222), its
experience replay as a plain program, and the arithmetic of an update.

The plain program has no member axis: one agent, `nn.Module`, autograd, AdamW.
"""

import copy
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.agents.model_generalisation.config import Config
from models.agents.model_generalisation.imagination import LatentModel, SimpleModel

# Seed-steps per second of the original's public code (JAX) on two idle cores, by agent and number of seeds.
ORIGINAL: dict[str, dict[int, float]] = {
    "ER": {1: 529, 30: 501},
    "PerfectModel": {1: 299, 30: 329},
    "SimpleModel": {1: 100, 30: 166},
    "CategoricalLatent": {1: 36},
    "GaussianLatent": {1: 123, 30: 152},
}
ORIGINAL_CURVE = 40.0  # CPU seconds of the small fixture's 24,000 steps
ORIGINAL_MEMORY = 1.54  # growth in GB with 30 seeds and 100,000 transitions of 64 bits

_ACTIVATIONS: dict[str, type[nn.Module]] = {"elu": nn.ELU, "relu": nn.ReLU, "silu": nn.SiLU}


class PlainReplay:
    """One agent's Q-network, target network and replay buffer, with the settings of our agent."""

    def __init__(self, config: Config, obs_size: int, actions: int):
        self.config = config
        widths = [obs_size, *config.hidden_sizes]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Linear(inputs, outputs), _ACTIVATIONS[config.activation]()]
        self.values = nn.Sequential(*layers, nn.Linear(widths[-1], actions))
        self.target = copy.deepcopy(self.values)
        # AdamW's decay is a multiple of the step size, the original's is not.
        self.optimizer = torch.optim.AdamW(
            self.values.parameters(),
            config.lr,
            (config.adam_beta1, config.adam_beta2),
            config.adam_eps,
            weight_decay=config.weight_decay / config.lr,
        )
        self.columns: tuple[Tensor, ...] = ()  # of the replay buffer

    def remember(self, obs: Tensor, action: Tensor, reward: Tensor, next_obs: Tensor, continues: Tensor) -> None:
        """Replace the buffer. Observations are ``[N, O]`` of any dtype, ``action [N]`` is int64, the rest ``[N]``."""
        self.columns = (obs, action, reward, next_obs, continues)

    def step(self) -> None:
        """Make one update from a random batch of the buffer."""
        indices = torch.randint(len(self.columns[0]), (self.config.batch_size,))
        obs, action, reward, next_obs, continues = (column[indices] for column in self.columns)
        self.update(obs.float(), action, reward, next_obs.float(), continues)

    def update(self, obs: Tensor, action: Tensor, reward: Tensor, next_obs: Tensor, continues: Tensor) -> Tensor:
        """Make one update from a batch (shapes as in `remember`, observations float32). Return the loss."""
        with torch.no_grad():
            td_target = reward + self.config.discount * continues * self.target(next_obs).amax(1)
        value = self.values(obs).gather(1, action.unsqueeze(1)).squeeze(1)
        loss = F.mse_loss(value, td_target)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def plain_agents(agent: Any) -> list[PlainReplay]:
    """Return a plain agent for each member of ``agent``, with the transitions in the member's replay buffer."""
    plain_agents, columns = [], agent.replay_buffer.rows()  # name -> column [N, members, ...]
    for member in range(agent.members):
        names = ("obs", "action", "reward", "next_obs", "continues")
        obs, action, reward, next_obs, continues = (columns[name][:, member] for name in names)
        plain_agent = PlainReplay(agent.config, agent.obs_size, agent.num_actions)
        plain_agent.remember(obs, action.long(), reward, next_obs, continues.float())
        plain_agents.append(plain_agent)
    return plain_agents


def forward_flop(net: Any, rows: int) -> int:
    """Return the multiplications and additions, one of each per weight and row, in a forward pass of an
    `MlpNetwork`."""
    return 2 * rows * sum(layer.inputs * layer.outputs for layer in net.mlp.dense)


def backward_flop(net: Any, rows: int, with_inputs: bool = False) -> int:
    """Return the same number for a backward pass: the gradients of the weights and of the inputs of each layer. The
    gradient of the network's inputs counts only ``with_inputs``."""
    flop, first = 2 * forward_flop(net, rows), net.mlp.dense[0]
    return flop if with_inputs else flop - 2 * rows * first.inputs * first.outputs


def update_gflop(agent: Any) -> float:
    """Return the multiplications and additions in the matrix products of one seed's update, in 10^9.

    Assumes the shipped settings: the online network acts, the target network values the next state, rollouts start from
    the batch. The forward passes that choose a rollout's actions also serve the loss; the heads of reward and
    termination see every step of a rollout once.
    """
    config, model, batch = agent.config, agent.model, agent.config.batch_size
    steps = batch if config.model == "none" else agent.num_rollouts * config.rollout_length
    q_network = agent.values.q_network
    flop = forward_flop(q_network, steps) + backward_flop(q_network, steps)
    flop += forward_flop(q_network, steps)  # of the target network
    if isinstance(model, SimpleModel | LatentModel):
        is_latent = isinstance(model, LatentModel)
        nets: list[Any] = [model.following, model.reward, model.termination]
        flop += sum(forward_flop(net, steps) for net in nets)  # rollout
        if is_latent:
            flop += forward_flop(model.encoder, agent.num_rollouts)  # first latent states
            # Observations before and after a step.
            flop += forward_flop(model.encoder, 2 * batch) + backward_flop(model.encoder, 2 * batch)
            nets.append(model.decoder)
        flop += sum(forward_flop(net, batch) + backward_flop(net, batch, with_inputs=is_latent) for net in nets)
    return flop / 1e9
