"""The dueling Q-network of M members, ``[M, O, B] -> [M, A, B]``, with a backward pass written by hand."""

from typing import Any

import torch
from torch import Tensor

from models.agents.ddqn.config import Config
from models.mlp import MLP, Layer
from models.streams import Streams


class DuelingQNetwork:
    """Dueling network, ``Q = V + A - mean(A)``, with the methods of `MLP`.

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
        return torch.cat([part.initial(streams) for part in self.parts], 1)

    def layers(self, flat: Tensor) -> list[list[Layer]]:
        split = flat.split([part.size for part in self.parts], 1)
        return [part.layers(weights) for part, weights in zip(self.parts, split, strict=True)]

    def forward(self, layers: list[list[Layer]], x: Tensor) -> list[Any]:
        """Return the traces of features, value and advantage, then the action values ``[M, A, B]``."""
        feature_trace = self.features.forward(layers[0], x)
        value = self.value.forward(layers[1], feature_trace[-1])
        advantage = self.advantage.forward(layers[2], feature_trace[-1])
        mean = advantage[-1].mean(1, keepdim=True)
        if self.over_batch:
            mean = mean.mean(2, keepdim=True)
        return [feature_trace, value, advantage, value[-1] + advantage[-1] - mean]

    def backward(
        self, layers: list[list[Layer]], x: Tensor, activations: list[Any], gradient: Tensor
    ) -> tuple[Tensor, None]:
        feature_trace, value, advantage, _ = activations
        summed = gradient.sum(1, keepdim=True)
        of_value, value_input_grad = self.value.backward(layers[1], feature_trace[-1], value, summed, inputs=True)
        mean_gradient = summed / gradient.shape[1]
        if self.over_batch:
            mean_gradient = mean_gradient.mean(2, keepdim=True)
        of_advantage, also = self.advantage.backward(
            layers[2], feature_trace[-1], advantage, gradient - mean_gradient, inputs=True
        )
        assert value_input_grad is not None and also is not None
        of_features, _ = self.features.backward(layers[0], x, feature_trace, value_input_grad + also)
        return torch.cat([of_features, of_value, of_advantage], 1), None
