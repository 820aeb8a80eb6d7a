"""Fully connected networks of M members, with autograd: hidden layers and an affine output."""

from itertools import pairwise

import torch
from torch import Tensor

from models.layers import Dense, Network, dense
from models.streams import Streams

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}


class Perceptron(Network):
    """``[M, B, inputs] -> [M, B, outputs]``; torch's default initialisation, as `torch.nn.Linear`. Layers are called
    ``<name>.0``, ``<name>.1``, ..."""

    def __init__(
        self, inputs: int, hidden: tuple[int, ...], outputs: int, activation: str, streams: Streams, name: str = "fc"
    ):
        widths = (inputs, *hidden, outputs)
        super().__init__([Dense(f"{name}.{i}", a, b) for i, (a, b) in enumerate(pairwise(widths))], streams)
        self.activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        weights = self.weights()
        for weight, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
            x = self.activation(dense(x, weight, bias))
        return dense(x, weights[-2], weights[-1])


class ValueNetwork(Perceptron):
    """State values, ``[M, B, inputs] -> [M, B]``."""

    def __init__(
        self,
        inputs: int,
        hidden: tuple[int, ...],
        streams: Streams,
        activation: str = "relu",
        name: str = "value_fc",
    ):
        super().__init__(inputs, hidden, 1, activation, streams, name)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze(-1)
