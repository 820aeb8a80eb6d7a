"""Two fully connected networks of one output each that every member has, on the same inputs."""

from collections.abc import Sequence

import torch
from torch import Tensor

from models.layers import in_blocks
from models.mlp import Layer, Mlp
from models.products import LEAK, Columns, derivative
from models.streams import Streams


class Twins:
    """2 M networks of one `Mlp` in columns. The parameters of a member's two lie side by side, ``[M, 2 D]``.

    With one hidden layer the first layers of both are one product, and so are their last ones, in a matrix with zeros
    between them. That spares the inputs twice, the slow product at one output, and, by a row of ones, the biases: at 48
    members of 64 units an update takes two thirds of the time.
    """

    def __init__(self, sizes: Sequence[int], activation: str):
        self.one = Mlp(sizes, activation)
        self.joint = len(sizes) == 3 and activation != "prelu"

    def initial(self, streams: Streams) -> Tensor:
        """First parameters ``[M, 2 D]``."""
        return torch.cat([self.one.initial(streams), self.one.initial(streams)], 1)

    def layers(self, flat: Tensor) -> list[Layer]:
        """Views of ``flat [M, 2 D]``."""
        return self.one.layers(flat.view(-1, self.one.size))

    def run(self, layers: list[Layer], x: Tensor) -> "Run":
        """Both on ``x [M, F, B]``."""
        return (JointRun if self.joint and x.shape[2] > 1 else Run)(self.one, layers, x)


class Run:
    """One forward pass: ``values [M, 2, B]``, and what leads from their gradient to others."""

    def __init__(self, network: Mlp, layers: list[Layer], x: Tensor):
        self.network, self.layers = network, layers
        self.x = x.repeat_interleave(2, 0)  # not a view of x, whatever M is
        self.trace = network.forward(layers, self.x)
        self.values = self.trace[-1].view(len(x), 2, -1)

    def parameters(self, gradient: Tensor) -> Tensor:
        """From d loss / d values to d loss / d parameters, ``[M, 2 D]``."""
        found, _ = self.network.backward(self.layers, self.x, self.trace, gradient.flatten(0, 1).unsqueeze(1))
        return found.view(len(gradient), -1)

    def inputs(self, gradient: Tensor) -> Tensor:
        """From d loss / d values to d loss / d x."""
        by_each = self.network.input_gradient(self.layers, self.trace, gradient.flatten(0, 1).unsqueeze(1))
        first, second = by_each.unflatten(0, (-1, 2)).unbind(1)
        return first + second


class JointRun(Run):
    """The same of networks with one hidden layer, by joint products."""

    def __init__(self, network: Mlp, layers: list[Layer], x: Tensor):
        self.network, (members, _, batch), width = network, x.shape, network.sizes[1]
        (weight, bias), (last, last_bias) = layers
        self.x = torch.cat([x, x.new_ones(members, 1, batch)], 1)
        self.first = torch.cat([weight, bias], 2).view(members, 2 * width, -1)
        self.last = x.new_zeros(members, 2, 2 * width)
        torch.diagonal(self.last.view(members, 2, 2, width), dim1=1, dim2=2).copy_(
            last.view(members, 2, width).transpose(1, 2)
        )
        memory, self.hidden = in_blocks((members, 2 * width, batch), x)
        doubled = 2 * self.first if network.activation == "tanh" else self.first
        torch.bmm(doubled, self.x, out=self.hidden)
        Columns.activated(memory, self.hidden, network.activation, network.leak)
        self.values = torch.baddbmm(last_bias.view(members, 2, 1), self.last, self.hidden)

    def _down(self, gradient: Tensor) -> Tensor:
        below = torch.bmm(self.last.transpose(1, 2), gradient)
        return derivative(below, self.hidden, self.network.activation, LEAK)

    def parameters(self, gradient: Tensor) -> Tensor:
        (inputs, width, _), twice = self.network.sizes, 2 * len(gradient)
        of_last = torch.bmm(gradient, self.hidden.transpose(1, 2)).view(-1, 2, 2, width)
        of_last = torch.diagonal(of_last, dim1=1, dim2=2).transpose(1, 2).reshape(twice, width)
        of_first = torch.bmm(self._down(gradient), self.x.transpose(1, 2)).view(twice, width, inputs + 1)
        weight = of_first[:, :, :inputs]
        if inputs < width:  # `Mlp` stores the shorter side first
            weight = weight.transpose(1, 2)
        parts = [weight.reshape(twice, -1), of_first[:, :, inputs], of_last, gradient.sum(2).view(twice, 1)]
        return torch.cat(parts, 1).view(len(gradient), -1)

    def inputs(self, gradient: Tensor) -> Tensor:
        return torch.bmm(self.first[:, :, :-1].transpose(1, 2), self._down(gradient))
