"""Soft actor-critic for M members in lockstep."""

from collections.abc import Sequence

import torch
from torch import Tensor

from models.agents.sac.config import Config
from models.agents.sac.gaussian import output_gradient, sample
from models.layers import exp
from models.off_policy import TwinCriticAgent
from models.spaces import Spaces
from models.streams import Draw, Streams


class Agent(TwinCriticAgent):
    """SAC: the TD target is ``r + discount * (min Q_target(s', a') - alpha log pi(a'|s'))``, and the actor samples a'.

    The actor minimises ``alpha log pi(a|s) - min Q(s, a)``. Gradient steps on the temperature alpha move the entropy
    towards ``target_entropy``. Actions are tanh of normal numbers.

    Source: Haarnoja et al. 2018, arXiv 1812.05905, algorithm 1. The logarithm of alpha is an additional weight of the
    actor. As in common implementations, the gradient is with respect to this logarithm.
    """

    update_numbers = (*TwinCriticAgent.update_numbers, "now")  # "now" is for actions in the minibatch's observations

    def __init__(self, config: Config, spaces: Spaces, seeds: Sequence[int]):
        super().__init__(config, spaces, seeds)
        nan_values = torch.full((len(seeds),), torch.nan)
        self.logged |= {"train/entropy": nan_values, "train/entropy_temperature": nan_values}
        self.target_entropy = -float(self.action_size) if config.target_entropy is None else config.target_entropy

    def _outputs(self, action_size: int) -> int:
        """Return the number of outputs of the actor's network: a mean and a ``log_std`` for each number of actions."""
        return 2 * action_size

    def _initial(self, streams: Streams) -> Tensor:
        """Return initial weights of the actor, then log alpha: ``[M, D]``."""
        log_alpha = torch.tensor(self.config.entropy_temperature).log()
        return torch.cat([self.network.initial(streams), log_alpha.expand(len(streams), 1)], 1)

    def _noise_spec(self) -> list[Draw]:
        """Return the random numbers of the base class, and normal numbers ``now``, shaped like ``next``."""
        uniform_draw, (normal, normal_shapes) = super()._noise_spec()
        return [uniform_draw, (normal, {**normal_shapes, "now": normal_shapes["next"]})]

    def alpha(self) -> Tensor:
        """Return the temperature alpha, the reward per nat of entropy, ``[M, 1]``."""
        return exp(self.flat_parameters[:, -1:])

    def _explore(self, outputs: Tensor) -> Tensor:
        """Sample action vectors ``[M, E, A]`` from the actor's ``outputs [M, 2 A, E]``."""
        return sample(outputs, self.random_numbers["explore"].transpose(1, 2)).action.transpose(1, 2)

    def play(self, outputs: Tensor, streams: Streams | None) -> Tensor:
        """Return action vectors ``[M, E, A]`` for ``outputs [M, 2 A, E]``: tanh of means, or samples by ``streams``."""
        if streams is None:
            return outputs[:, : self.action_size].transpose(1, 2).tanh()
        return sample(outputs, streams.normal(self.action_size, outputs.shape[2])).action.transpose(1, 2)

    def next_q(self, next_obs: Tensor, random_numbers: dict[str, Tensor]) -> Tensor:
        """Return ``min Q_target(s', a') - alpha log pi(a'|s')`` for sampled a', ``next_obs [M, O, B] -> [M, B]``."""
        next_sample = sample(self.network.forward(self._actor, next_obs)[-1], random_numbers["next"])
        values = self.critics.target_values(torch.cat([next_obs, next_sample.action], 1))
        return torch.addcmul(values, self.alpha(), next_sample.log_prob, value=-1)

    def improve(self, obs: Tensor, random_numbers: dict[str, Tensor], learning: Tensor | None) -> None:
        """Update actor, temperature and target networks of the members ``learning [M]`` bool (None: all), on
        observations ``obs [M, O, B]``. Log the entropy and the temperature before the update."""
        alpha = self.alpha()
        activations = self.network.forward(self._actor, obs)
        action_sample = sample(activations[-1], random_numbers["now"])
        min_q, pair_gradient = self.critics.min_q_gradient(torch.cat([obs, action_sample.action], 1))
        self.critics.latest |= {"actor_values": min_q, "log_prob": action_sample.log_prob, "alpha": alpha}
        action_gradient = pair_gradient[:, self.obs_size :].neg()
        log_prob_gradient = (alpha / obs.shape[2]).unsqueeze(2)  # [M, 1, 1], equal for all rows of the minibatch
        outputs_gradient = output_gradient(action_sample, action_gradient, log_prob_gradient)
        network_gradient, _ = self.network.backward(self._actor, obs, activations, outputs_gradient)
        entropy = action_sample.log_prob.mean(1).neg()
        log_alpha_gradient = (entropy - self.target_entropy) * float(self.config.learn_temperature)  # 0 if not learned
        self.optimizer.update(torch.cat([network_gradient, log_alpha_gradient.unsqueeze(1)], 1), learning)
        self.critics.update_targets(self.config.tau, learning)
        self.logged |= {"train/entropy": entropy, "train/entropy_temperature": alpha[:, 0]}

    def policy_loss(self, latest: dict[str, Tensor]) -> Tensor:
        """Return the actor's loss ``[M]``, ``mean(alpha log pi(a|s) - min Q(s, a))``, in the ``latest`` update."""
        return (latest["alpha"] * latest["log_prob"] - latest["actor_values"]).mean(1)
