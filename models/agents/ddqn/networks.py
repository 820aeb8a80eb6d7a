"""The dueling Q-network of M members (independent agents)."""

import torch
from torch import Tensor

from models.agents.ddqn.config import Config
from models.mlp import MLP, Layer
from models.streams import Streams


class DuelingQNetwork:
    """Dueling network, ``Q = V + A - mean(A)``.

    A network without activation after its last layer computes features, from which two networks with one hidden layer
    each compute V and A. ``sizes`` are the size of an observation, the hidden widths and the number of actions.

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

    def advantage_of_member(self, flat: Tensor, member: int) -> tuple[list[Layer], list[str | float]]:
        """Return the network that computes the advantages of one member, without autograd: for each layer its weight
        ``[out, in]`` and bias ``[out]``, then the activation of each hidden layer. The best action has the largest
        advantage, so a greedy policy needs no value."""
        feature_weights, _, advantage_weights = flat.split([part.size for part in self.parts], 1)
        features, first_activations = self.features.of_member(feature_weights, member)
        advantages, last_activations = self.advantage.of_member(advantage_weights, member)
        identity = 1.0  # slope below 0: the layer of features has no activation
        return [*features, *advantages], [*first_activations, identity, *last_activations]

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
