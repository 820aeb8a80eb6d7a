"""The networks of the family: perceptrons of M members on ``[M, B, features]``, with a hand-written backward pass.

Batches are narrow here (8 to 32 rows in imagination): products ``[B, in] x [in, out]`` take a quarter of the time of
their transposes then. Autograd is the oracle in the tests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from models.agents.model_generalisation.config import Config
from models.layers import BLOCK, Dense, Network, dense, in_blocks, sigmoid
from models.optim import DecayingAdam
from models.streams import Streams


@dataclass(frozen=True)
class Truncated(Dense):
    """Starts as haiku's Linear does: weights of a standard normal cut off at 2 deviations, divided by sqrt(inputs); no
    bias (haiku 0.0.17, `hk.Linear`)."""

    def initial(self, generator: torch.Generator) -> list[Tensor]:
        weight = torch.empty(self.inputs, self.outputs)
        torch.nn.init.trunc_normal_(weight, a=-2.0, b=2.0, generator=generator)
        return [weight / sqrt(self.inputs), torch.zeros(self.outputs)]


class Net(Network):
    """``[M, B, inputs] -> [M, B, outputs]`` with the family's hidden layers.

    Calling it is open to autograd, for inputs and parameters; `trace` and `gradient` are the same by hand. Rows of
    parameters are whole vector blocks: Adam's kernel rounds the tail of an array otherwise than its body, and a member
    has its tail elsewhere in company.
    """

    block = BLOCK

    def __init__(self, config: Config, inputs: int, outputs: int, streams: Streams, device: torch.device):
        widths = [inputs, *[config.num_hidden_units] * config.num_hidden_layers, outputs]
        super().__init__([Truncated(f"fc.{i}", a, b) for i, (a, b) in enumerate(pairwise(widths))], streams)
        self.activation = config.activation
        self.to(device)

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return self.trace(x)[-1]
        return _Perceptron.apply(x, self.flat, self)

    def trace(self, x: Tensor, weights: list[Tensor] | None = None) -> list[Tensor]:
        """What `gradient` needs: the outputs of the hidden layers, before the activation where that is silu, and the
        network's own last. ``weights`` are others than its own, as `weights` gives them."""
        weights = self.own() if weights is None else weights
        trace = []
        for weight, bias in zip(weights[:-2:2], weights[1:-2:2], strict=True):
            x = affine(x, weight, bias, self.activation)
            trace.append(x)
            if self.activation == "silu":
                x = x * sigmoid(x)
        return [*trace, affine(x, weights[-2], weights[-1])]

    def gradient(
        self, x: Tensor, trace: list[Tensor], of_outputs: Tensor, inputs: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """From d loss / d outputs ``[M, B, outputs]`` to d loss / d parameters ``[M, D]``, summed over the batch, and
        with ``inputs`` to d loss / d x."""
        weights, gradient, parts = self.own(), of_outputs, []
        for i in reversed(range(len(weights) // 2)):
            before = trace[i - 1] if i else x
            below = before * sigmoid(before) if i and self.activation == "silu" else before
            parts += [gradient.sum(1), product(below.transpose(1, 2), gradient).flatten(1)]
            if i or inputs:
                gradient = product(gradient, weights[2 * i].transpose(1, 2))
            if i:
                gradient = derivative(gradient, before, self.activation)
        nothing = gradient.new_zeros(len(gradient), self.padding)
        return torch.cat((*parts[::-1], nothing), 1), gradient if inputs else None

    def own(self) -> list[Tensor]:
        """`weights` without autograd."""
        if torch.compiler.is_compiling():  # which would not look into the memory of a tensor
            return self.views(self.flat)
        with torch.no_grad():
            return self.weights()


class _Perceptron(torch.autograd.Function):
    """A `Net` with its hand-written backward pass as one operation of autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, flat: Tensor, net: Net) -> Tensor:
        ctx.net, ctx.x, ctx.trace = net, x, net.trace(x)
        return ctx.trace[-1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None]:
        of_parameters, of_inputs = ctx.net.gradient(ctx.x, ctx.trace, gradients[0], inputs=ctx.needs_input_grad[0])
        return of_inputs, of_parameters, None


def affine(x: Tensor, weight: Tensor, bias: Tensor, activation: str | None = None) -> Tensor:
    """``activation(x @ weight + bias)``: ``[M, B, in], [M, in, out], [M, out] -> [M, B, out]``; silu is left out.

    One row is two equal ones, as in `dense`. The result lies in whole vector blocks, for elu (see `in_blocks`).
    """
    if x.shape[1] == 1:
        return affine(x.expand(-1, 2, -1), weight, bias, activation)[:, :1]
    memory, out = in_blocks((x.shape[0], x.shape[1], weight.shape[2]), x)
    dense(x, weight, bias, out)
    if activation == "elu":
        torch.nn.functional.elu_(memory)
    elif activation == "relu":
        memory.relu_()
    return out


def product(a: Tensor, b: Tensor) -> Tensor:
    """``[M, i, j] x [M, j, k] -> [M, i, k]``, without what the library does otherwise for one row or column."""
    if a.shape[2] == 1:
        return a * b
    if b.shape[2] == 1:
        return (a * b.transpose(1, 2)).sum(2, keepdim=True)
    if a.shape[1] == 1:
        return torch.bmm(a.expand(-1, 2, -1), b)[:, :1]
    return torch.bmm(a, b)


def derivative(gradient: Tensor, trace: Tensor, activation: str) -> Tensor:
    """``gradient`` times an activation's derivative, by what `Net.trace` keeps; may be written into ``gradient``."""
    if activation == "elu":
        return torch.ops.aten.elu_backward.grad_input(gradient, 1.0, 1.0, 1.0, True, trace, grad_input=gradient)
    if activation == "relu":
        return torch.ops.aten.threshold_backward(gradient, trace, 0)
    share = sigmoid(trace)
    return gradient * share * (1 + trace * (1 - share))


def adam(config: Config, params: Sequence[Tensor], step_size: float) -> DecayingAdam:
    """The family's optimiser of ``params``, whose settings but the step size are those of all."""
    return DecayingAdam(params, step_size, (config.b1_adam, config.b2_adam), config.eps_adam, config.wd_adam)


def with_action(x: Tensor, action: Tensor, actions: int) -> Tensor:
    """``x [M, B, X]`` with ``action [M, B]`` as one-hot numbers behind it, ``[M, B, X + A]``."""
    return torch.cat((x, one_hot(action, actions).to(x.dtype)), 2)


def one_hot(action: Tensor, actions: int) -> Tensor:
    """``[M, B]`` int64 to ``[M, B, A]`` bool."""
    return action.unsqueeze(2) == torch.arange(actions, device=action.device)


def pick(probability: Tensor, uniform: Tensor) -> Tensor:
    """Draws of classes: ``probability [..., C]``, ``uniform [...]`` in [0, 1) -> ``[...]`` int64. The inverse of the
    distribution function, so that a draw takes one number."""
    # The last class takes what rounding leaves over.
    return (probability.cumsum(-1)[..., :-1] <= uniform.unsqueeze(-1)).sum(-1)
