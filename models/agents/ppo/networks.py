"""Networks of PPO, with the parameters of M members in one flat tensor ``[M, D]``, and its evaluation policy."""

from typing import NamedTuple

import torch
from torch import Tensor

from models.agents.ppo.actions import actions_of, noise_of
from models.agents.ppo.config import Config
from models.contract import Policy
from models.layers import BLOCK, RELU_GAIN, Dense, Orthogonal
from models.mlp import MLP, Layer
from models.spaces import Spaces
from models.streams import NoiseBlocks, Streams

LIMIT = 10.0  # normalised observations and rewards are clipped to [-LIMIT, LIMIT]
POLICY_GAIN, VALUE_GAIN = 0.01, 1.0  # of the last layers' weights; Huang et al. 2022, detail 2


class Parts(NamedTuple):
    """Views of parameters ``[M, D]``. ``mean`` and ``scale`` of observations are empty if these are not normalised."""

    actor: list[Layer]
    critic: list[Layer]
    scales: Tensor
    mean: Tensor
    scale: Tensor

    def normalised(self, obs: Tensor) -> Tensor:
        """Return ``obs [M, B, O]``, normalised and clipped if there are moments."""
        if not self.mean.shape[1]:
            return obs
        return ((obs - self.mean.unsqueeze(1)) * self.scale.unsqueeze(1)).clamp(-LIMIT, LIMIT)


class ActorCritic:
    """Architecture with a policy network, a value network, the scales of actions, and mean and scale of observations.

    In a member's row of parameters, the first ``trained`` numbers are trained. A row is padded with zeros to whole
    blocks. ``member_config`` is ``config`` with sampled hyperparameters; its ``hidden_sizes`` are used.
    """

    def __init__(self, config: Config, member_config: Config, spaces: Spaces):
        self.actions = actions_of(config, spaces)
        inputs, hidden = spaces.obs_shape[0], member_config.hidden_sizes
        self.orthogonal = config.orthogonal
        layer = Orthogonal if config.orthogonal else Dense
        self.actor = MLP([inputs, *hidden, self.actions.outputs], config.activation, layer=layer)
        self.critic = MLP([inputs, *hidden, 1], config.activation, layer=layer)
        self.counts = [self.actor.size, self.critic.size, self.actions.scales, *[inputs * config.normalize_obs] * 2]
        self.trained = sum(self.counts[:3])
        self.rest = sum(self.counts[3:])
        self.padding = -(self.trained + self.rest) % BLOCK

    def initial(self, streams: Streams) -> Tensor:
        """Sample initial parameters ``[M, D]`` from each member's stream."""
        rows = []
        for network, gain in ((self.actor, POLICY_GAIN), (self.critic, VALUE_GAIN)):
            flat = network.initial(streams)
            if self.orthogonal:
                network.layers(flat)[network.depth - 1][0].mul_(gain / RELU_GAIN)
            rows.append(flat)
        shift, scale = self.counts[3:]
        fixed = torch.cat([self.actions.first(), torch.zeros(shift), torch.ones(scale), torch.zeros(self.padding)])
        return torch.cat([*rows, fixed.expand(len(streams), -1)], 1)

    def parts(self, flat: Tensor) -> Parts:
        actor, critic, *extra_parts, _ = flat.split([*self.counts, self.padding], 1)
        return Parts(self.actor.layers(actor), self.critic.layers(critic), *extra_parts)


class Play(Policy):
    """Evaluation policy of M members with weights ``flat_parameters [M, D]``. Actions are greedy, or sampled if there
    are ``streams``: one per member, or a single one for all members."""

    def __init__(self, network: ActorCritic, flat_parameters: Tensor, streams: Streams | None = None):
        self.network, self.flat_parameters, self.streams, self.members = (
            network,
            flat_parameters,
            streams,
            len(flat_parameters),
        )
        self.parts = network.parts(flat_parameters)
        self.noise: NoiseBlocks | None = None

    @torch.no_grad()
    def act(self, obs: Tensor) -> Tensor:
        actions = self.network.actions
        normalized = self.parts.normalised(obs).transpose(1, 2)
        outputs = self.network.actor.forward(self.parts.actor, normalized)[-1]
        if self.streams is None:
            return actions.clip(actions.best(outputs))
        if self.noise is None:
            self.noise = noise_of(actions, self.streams, obs.shape[1])
        return actions.clip(actions.sample(outputs, self.parts.scales, self.noise.next()["action"]))
