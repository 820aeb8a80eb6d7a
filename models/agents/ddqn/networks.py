"""The dueling Q-network of M members."""

import torch
from torch import Tensor

from models.agents.ddqn.config import Config
from models.mlp import MLP
from models.streams import Streams


class DuelingQNetwork:
    """Dueling network, ``Q = V + A - mean(A)``.

    A network without activation after its last layer computes features. Value and advantage networks have one hidden
    layer each. ``sizes`` are observation size, hidden widths and number of actions.

    Source: Wang et al. 2016, eq. 9, with the mean over the actions of each state. With ``dueling_mean="batch"``, the
    mean is over the whole batch too, as in the public code of Ferreira et al.
    """

    def __init__(self, config: Config, sizes: list[int]):
        width = config.feature_dim
        self.over_batch = config.dueling_mean == "batch"
        self.features = MLP([*sizes[:-1], width], config.activation)
        self.value = MLP([width, width, 1], config.activation)
        self.advantage = MLP([width, width, sizes[-1]], config.activation)
        self.parts = (self.features, self.value, self.advantage)
        self.size = sum(part.size for part in self.parts)

    def initial(self, streams: Streams) -> Tensor:
        """Sample initial parameters ``[M, size]`` from each member's stream: features, value, advantage."""
        return torch.cat([part.initial(streams) for part in self.parts], 1)

    def __call__(self, flat: Tensor, obs: Tensor) -> Tensor:
        """Return action values, ``obs [M, B, O] -> [M, B, A]``, with parameters ``flat [M, size]``."""
        feature_weights, value_weights, advantage_weights = flat.split([part.size for part in self.parts], 1)
        features = self.features(feature_weights, obs)
        value = self.value(value_weights, features)  # [M, B, 1]
        advantage = self.advantage(advantage_weights, features)
        mean = advantage.mean(2, keepdim=True)
        if self.over_batch:
            mean = mean.mean(1, keepdim=True)
        return value + advantage - mean
