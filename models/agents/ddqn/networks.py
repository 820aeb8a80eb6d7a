"""Q-networks of M members: state ``[M, O, B]`` to action values ``[M, A, B]``, with gradients by hand."""

from typing import Any, Protocol

import torch
from torch import Tensor

from models.agents.ddqn.config import Config
from models.agents.ddqn.variation import Shape
from models.mlp import Layer, Mlp
from models.streams import Streams


class QNetwork(Protocol):
    """``views`` are the layers within flat parameters ``[M, size]``; ``trace`` is what `backward` needs of
    `forward`."""

    size: int

    def initial(self, streams: Streams) -> Tensor: ...

    def views(self, flat: Tensor) -> Any: ...

    def forward(self, views: Any, x: Tensor) -> tuple[Tensor, Any]: ...

    def backward(self, views: Any, x: Tensor, trace: Any, gradient: Tensor) -> Tensor: ...


def q_network(config: Config, shape: Shape, inputs: int, actions: int) -> QNetwork:
    """The network that ``config.head`` names."""
    if config.head == "dueling":
        return Dueling(config, shape, inputs, actions)
    return Plain(config, shape, inputs, actions)


class Plain:
    """One network from state to action values."""

    def __init__(self, config: Config, shape: Shape, inputs: int, actions: int):
        self.net = Mlp([inputs, *[shape.hidden_size] * shape.hidden_layer, actions], config.activation_fn)
        self.size = self.net.size

    def initial(self, streams: Streams) -> Tensor:
        return self.net.initial(streams)

    def views(self, flat: Tensor) -> list[Layer]:
        return self.net.layers(flat)

    def forward(self, views: list[Layer], x: Tensor) -> tuple[Tensor, list[Tensor]]:
        outputs = self.net.forward(views, x)
        return outputs[-1], outputs

    def backward(self, views: list[Layer], x: Tensor, trace: list[Tensor], gradient: Tensor) -> Tensor:
        return self.net.backward(views, x, trace, gradient)[0]


class Dueling:
    """Features (no activation on top), then a value and an advantage of one hidden layer each:
    ``Q = V + A - mean(A)``.

    Source: Wang et al. 2016, eq. 9, with the mean over the actions of each row. The public code of Ferreira et al.
    takes it over the whole batch: ``dueling_mean="batch"``.
    """

    def __init__(self, config: Config, shape: Shape, inputs: int, actions: int):
        width = config.feature_dim
        self.over_batch = config.dueling_mean == "batch"
        self.features = Mlp([inputs, *[shape.hidden_size] * shape.hidden_layer, width], config.activation_fn)
        self.value = Mlp([width, width, 1], config.activation_fn)
        self.advantage = Mlp([width, width, actions], config.activation_fn)
        self.parts = (self.features, self.value, self.advantage)
        self.size = sum(part.size for part in self.parts)

    def initial(self, streams: Streams) -> Tensor:
        features = self.features.initial(streams)
        return torch.cat([features, self.value.initial(streams), self.advantage.initial(streams)], 1)

    def views(self, flat: Tensor) -> list[list[Layer]]:
        split = flat.split([part.size for part in self.parts], 1)
        return [part.layers(own) for part, own in zip(self.parts, split, strict=True)]

    def forward(self, views: list[list[Layer]], x: Tensor) -> tuple[Tensor, list[list[Tensor]]]:
        below = self.features.forward(views[0], x)
        value = self.value.forward(views[1], below[-1])
        advantage = self.advantage.forward(views[2], below[-1])
        mean = advantage[-1].mean(1, keepdim=True)
        if self.over_batch:
            mean = mean.mean(2, keepdim=True)
        return value[-1] + advantage[-1] - mean, [below, value, advantage]

    def backward(
        self, views: list[list[Layer]], x: Tensor, trace: list[list[Tensor]], gradient: Tensor,
    ) -> Tensor:  # fmt: skip
        below, value, advantage = trace
        summed = gradient.sum(1, keepdim=True)
        of_value, down = self.value.backward(views[1], below[-1], value, summed, inputs=True)
        back = summed / gradient.shape[1]
        if self.over_batch:
            back = back.mean(2, keepdim=True)
        of_advantage, also = self.advantage.backward(views[2], below[-1], advantage, gradient - back, inputs=True)
        assert down is not None and also is not None
        of_features, _ = self.features.backward(views[0], x, below, down + also)
        return torch.cat([of_features, of_value, of_advantage], 1)
