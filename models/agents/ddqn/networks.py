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
        """Sample initial parameters ``[M, size]`` from each member's stream: features, value, advantage."""
        return torch.cat([part.initial(streams) for part in self.parts], 1)

    def layers(self, flat: Tensor) -> list[list[Layer]]:
        """Return the layers of each of the three networks as views of ``flat [M, size]``."""
        part_weights = flat.split([part.size for part in self.parts], 1)
        return [part.layers(weights) for part, weights in zip(self.parts, part_weights, strict=True)]

    def forward(self, layers: list[list[Layer]], x: Tensor) -> list[Any]:
        """Run the network on ``x [M, O, B]``. Return a list of four items: the results of `MLP.forward` of the feature,
        value and advantage networks, then the action values ``[M, A, B]``."""
        feature_layers, value_layers, advantage_layers = layers
        feature_activations = self.features.forward(feature_layers, x)
        features = feature_activations[-1]
        value_activations = self.value.forward(value_layers, features)
        advantage_activations = self.advantage.forward(advantage_layers, features)
        value, advantage = value_activations[-1], advantage_activations[-1]  # [M, 1, B] and [M, A, B]
        mean = advantage.mean(1, keepdim=True)
        if self.over_batch:
            mean = mean.mean(2, keepdim=True)
        return [feature_activations, value_activations, advantage_activations, value + advantage - mean]

    def backward(
        self, layers: list[list[Layer]], x: Tensor, activations: list[Any], gradient: Tensor
    ) -> tuple[Tensor, None]:
        """Backpropagate ``gradient [M, A, B]``, d loss / d action values. Return d loss / d parameters ``[M, size]``,
        and None: d loss / d x, the second result of `MLP.backward`, is not computed. ``activations`` is the result of
        `forward` for ``x``."""
        feature_layers, value_layers, advantage_layers = layers
        feature_activations, value_activations, advantage_activations, _action_values = activations
        features, num_actions = feature_activations[-1], gradient.shape[1]
        # Q = V + A - mean(A), so d loss / d V is the sum over the actions, and the mean's part is subtracted from each.
        value_output_gradient = gradient.sum(1, keepdim=True)
        mean_gradient = value_output_gradient / num_actions
        if self.over_batch:
            mean_gradient = mean_gradient.mean(2, keepdim=True)
        value_gradient, features_gradient_by_value = self.value.backward(
            value_layers, features, value_activations, value_output_gradient, need_input_gradient=True
        )
        advantage_gradient, features_gradient_by_advantage = self.advantage.backward(
            advantage_layers, features, advantage_activations, gradient - mean_gradient, need_input_gradient=True
        )
        assert features_gradient_by_value is not None and features_gradient_by_advantage is not None
        features_gradient = features_gradient_by_value + features_gradient_by_advantage
        trunk_gradient, _ = self.features.backward(feature_layers, x, feature_activations, features_gradient)
        return torch.cat([trunk_gradient, value_gradient, advantage_gradient], 1), None
