"""The fully connected network of M members, with its forward and backward pass by hand.

Small networks spend their time in thin matrix products and in autograd's bookkeeping, so the gradient is worked out
here; autograd is the oracle in the tests. There are two layouts of activations, and each is several times faster than
the other where it is used:

- ``columns``, ``[M, features, B]``: the batch is the wide, contiguous axis of every product. At two outputs that is
  five times faster than rows (DDQN, synthetic environments).
- ``rows``, ``[M, B, features]``: at batches of 8 to 32 products ``[B, in] x [in, out]`` take a quarter of the time of
  their transposes (imagined rollouts), and other networks speak it (policy gradients, state values).

The layouts share everything but their products. Those are written twice because a single row, column or output is a
matrix-vector product to the library, which then rounds by the number of members: each layout goes around that in
the way that is cheap for it.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.layers import Dense, dense, in_blocks, sigmoid
from models.streams import Streams

LEAK = 0.01  # slope of leakyrelu below zero
PRELU_SLOPE = 0.25  # where prelu's learned slope starts
_LARGE = 4096  # weights of a layer; above, a matrix product beats a sum of products even for one column
_MINUS_ONE = torch.tensor(-1.0)

Layer = tuple[Tensor, Tensor]
"""Weight and bias: ``[M, out, in]`` and ``[M, out, 1]`` in columns, ``[M, in, out]`` and ``[M, out]`` in rows."""


class Mlp:
    """An architecture: ``sizes`` are inputs, hidden widths and outputs. Parameters are passed in, flat ``[M, size]``.

    ``activation`` of the hidden layers is relu, tanh or identity, in columns also leakyrelu (``leak`` is its slope) and
    prelu (one learned slope, shared by all layers), in rows also elu and silu.

    A layer is stored as its weight, then its bias; prelu's slope comes last. Rows store a weight ``[in, out]``. Columns
    store its shorter side first, which thin products like best. ``size`` is rounded up to a multiple of ``block`` with
    zeros, which get no gradient. ``layer`` says how a layer starts.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str,
        leak: float = LEAK,
        layout: str = "columns",
        layer: type[Dense] = Dense,
        block: int = 1,
    ):
        self.sizes, self.activation, self.leak = tuple(sizes), activation, leak
        self.products: type[Columns | Rows] = Columns if layout == "columns" else Rows
        self.dense = [layer("", inputs, outputs) for inputs, outputs in pairwise(self.sizes)]
        self.depth = len(self.dense)
        self._slope = activation == "prelu"
        self._from_input = activation in ("prelu", "silu")  # their output does not tell their derivative
        self.shapes = [self.products.shapes(one.inputs, one.outputs) for one in self.dense]
        # Whether a weight is stored the other way around than it is used.
        self._turned = [layout == "columns" and one.inputs < one.outputs for one in self.dense]
        self._stored: list[tuple[int, ...]] = []
        for (weight, bias), turned in zip(self.shapes, self._turned, strict=True):
            self._stored += [weight[::-1] if turned else weight, bias]
        self._stored += [(1, 1)] * self._slope
        self._counts = [prod(shape) for shape in self._stored]
        self.padding = -sum(self._counts) % block
        self.size = sum(self._counts) + self.padding

    def initial(self, streams: Streams) -> Tensor:
        """First parameters ``[M, size]``, each member's drawn from its own stream."""
        return torch.stack([self._one(generator) for generator in streams.generators])

    def _one(self, generator: torch.Generator) -> Tensor:
        parts: list[Tensor] = []
        for layer, turned in zip(self.dense, self._turned, strict=True):
            weight, bias = layer.initial(generator)  # [in, out]
            parts += [(weight if turned or self.products is Rows else weight.T).reshape(-1), bias]
        return F.pad(torch.cat([*parts, *([torch.tensor([PRELU_SLOPE])] if self._slope else [])]), (0, self.padding))

    def layers(self, flat: Tensor) -> list[Layer]:
        """Views of ``flat [M, size]``; they stay valid while its memory does. A prelu slope is a last, lone layer."""
        parts = flat.split([*self._counts, self.padding] if self.padding else self._counts, 1)
        views = [part.unflatten(1, shape) for part, shape in zip(parts, self._stored, strict=False)]
        pairs = zip(views[0 : 2 * self.depth : 2], views[1::2], self._turned, strict=False)
        found = [(weight.transpose(1, 2) if turned else weight, bias) for weight, bias, turned in pairs]
        return found + [(views[-1], views[-1])] * self._slope

    def forward(self, layers: list[Layer], x: Tensor) -> list[Tensor]:
        """The trace of ``x [M, in, B]`` (rows: ``[M, B, in]``), which `backward` needs: what each hidden layer gives,
        before the activation where that is prelu or silu, then the network's own output without activation."""
        trace: list[Tensor] = []
        affine, activation = self.products.affine, self.activation
        for weight, bias in layers[: self.depth - 1]:
            x = affine(weight, bias, x, activation, self.leak)
            trace.append(x)
            if self._from_input:
                x = self._activated(layers, x)
        weight, bias = layers[self.depth - 1]
        trace.append(affine(weight, bias, x))
        return trace

    def backward(
        self, layers: list[Layer], x: Tensor, trace: list[Tensor], gradient: Tensor, inputs: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """From d loss / d output, shaped as the output, to d loss / d parameters ``[M, size]``, summed over the batch;
        with ``inputs`` also d loss / d x. ``trace`` is what `forward` gave for ``x``."""
        parts: list[Tensor] = []
        slopes: list[Tensor] = []
        for i in reversed(range(self.depth)):
            kept = trace[i - 1] if i else x
            below = self._activated(layers, kept) if i and self._from_input else kept
            outer = self.products.outer(below, gradient, self._turned[i])
            parts += [gradient.sum(self.products.batch), outer.flatten(1)]
            if i == 0 and not inputs:
                break
            gradient = self.products.down(layers[i][0], gradient)
            if i and self._slope:
                slopes.append((gradient * kept.clamp(max=0)).flatten(1).sum(1, keepdim=True))
                gradient = gradient * ((kept > 0) + layers[-1][0] * (kept <= 0))
            elif i:
                gradient = derivative(gradient, kept, self.activation, self.leak)
        parts = parts[::-1]
        if self._slope:
            parts.append(torch.stack(slopes).sum(0) if slopes else gradient.new_zeros(len(gradient), 1))
        if self.padding:
            parts.append(gradient.new_zeros(len(gradient), self.padding))
        return torch.cat(parts, 1), gradient if inputs else None

    def _activated(self, layers: list[Layer], x: Tensor) -> Tensor:
        """prelu or silu."""
        if self._slope:
            return x.clamp(min=0).addcmul_(x.clamp(max=0), layers[-1][0])
        return x * sigmoid(x)


class Columns:
    """Products where activations are ``[M, features, B]``."""

    batch = 2  # the axis

    @staticmethod
    def shapes(inputs: int, outputs: int) -> tuple[tuple[int, int], tuple[int, ...]]:
        """Of a weight and a bias as `affine` takes them."""
        return (outputs, inputs), (outputs, 1)

    @staticmethod
    def affine(
        weight: Tensor, bias: Tensor, x: Tensor, activation: str | None = None, slope: float = LEAK
    ) -> Tensor:  # fmt: skip
        """``activation(weight @ x + bias)``: ``[M, out, in], [M, out, 1], [M, in, B] -> [M, out, B]``.

        One column or one output is a product and a sum, or two equal columns where the layer is large. The result lies
        in whole vector blocks, for `torch.sigmoid` (see `in_blocks`).
        """
        one_column, one_output = x.shape[2] == 1, weight.shape[1] == 1
        if one_column and weight.shape[1] * weight.shape[2] > _LARGE:
            return Columns.affine(weight, bias, x.repeat(1, 1, 2), activation, slope)[:, :, :1]
        memory, out = in_blocks((weight.shape[0], weight.shape[1], x.shape[2]), x)
        # 2 sigmoid(2 x) - 1 is tanh within 2e-7, in a quarter of the time of torch.tanh
        double = 2 if activation == "tanh" else 1
        if one_column and weight.stride(2) > 1:  # stored [in, out]
            torch.add((weight.transpose(1, 2) * x).sum(1).unsqueeze(2), bias, out=out).mul_(double)
        elif one_column:
            torch.add((weight * x.transpose(1, 2)).sum(2, keepdim=True), bias, out=out).mul_(double)
        elif one_output:
            torch.add((weight.transpose(1, 2) * x).sum(1, keepdim=True), bias, out=out).mul_(double)
        else:
            torch.baddbmm(bias, weight, x, beta=double, alpha=double, out=out)
        if activation == "relu":
            out.relu_()
        elif activation == "tanh":
            torch.add(_MINUS_ONE, memory.sigmoid_(), alpha=2, out=memory)
        elif activation == "leakyrelu":
            F.leaky_relu_(out, slope)
        return out

    @staticmethod
    def outer(below: Tensor, gradient: Tensor, turned: bool) -> Tensor:
        """The gradient of a weight as it is stored, its shorter side first."""
        short, long = (below, gradient) if turned else (gradient, below)
        if short.shape[1] == 1:
            return (short * long).sum(2).unsqueeze(1)
        return torch.bmm(short, long.transpose(1, 2))

    @staticmethod
    def down(weight: Tensor, gradient: Tensor) -> Tensor:
        """``[M, out, in], [M, out, B] -> [M, in, B]``."""
        if weight.shape[1] == 1:
            return weight.transpose(1, 2) * gradient
        if gradient.shape[2] == 1:
            return torch.bmm(weight.transpose(1, 2), gradient.repeat(1, 1, 2))[:, :, :1]
        return torch.bmm(weight.transpose(1, 2), gradient)


class Rows:
    """Products where activations are ``[M, B, features]``."""

    batch = 1  # the axis

    @staticmethod
    def shapes(inputs: int, outputs: int) -> tuple[tuple[int, int], tuple[int, ...]]:
        """Of a weight and a bias as `affine` takes them."""
        return (inputs, outputs), (outputs,)

    @staticmethod
    def affine(
        weight: Tensor, bias: Tensor, x: Tensor, activation: str | None = None, slope: float = LEAK
    ) -> Tensor:  # fmt: skip
        """``activation(x @ weight + bias)``: ``[M, in, out], [M, out], [M, B, in] -> [M, B, out]``."""
        if activation == "elu":
            return Rows._elu(weight, bias, x)
        out = dense(x, weight, bias)
        if activation == "relu":
            out.relu_()
        elif activation == "tanh":
            out.tanh_()
        return out

    @staticmethod
    def _elu(weight: Tensor, bias: Tensor, x: Tensor) -> Tensor:
        if x.shape[1] == 1:
            return Rows._elu(weight, bias, x.expand(-1, 2, -1))[:, :1]
        memory, out = in_blocks((x.shape[0], x.shape[1], weight.shape[2]), x)
        dense(x, weight, bias, out)
        F.elu_(memory)
        return out

    @staticmethod
    def outer(below: Tensor, gradient: Tensor, turned: bool) -> Tensor:
        """The gradient of a weight, ``[M, in, out]``."""
        return _product(below.transpose(1, 2), gradient)

    @staticmethod
    def down(weight: Tensor, gradient: Tensor) -> Tensor:
        """``[M, in, out], [M, B, out] -> [M, B, in]``."""
        return _product(gradient, weight.transpose(1, 2))


def _product(a: Tensor, b: Tensor) -> Tensor:
    """``[M, i, j] x [M, j, k] -> [M, i, k]``, without what the library does otherwise for one row or column."""
    if a.shape[2] == 1:
        return a * b
    if b.shape[2] == 1:
        return (a * b.transpose(1, 2)).sum(2, keepdim=True)
    if a.shape[1] == 1:
        return torch.bmm(a.expand(-1, 2, -1), b)[:, :1]
    return torch.bmm(a, b)


def derivative(gradient: Tensor, kept: Tensor, activation: str, leak: float = LEAK) -> Tensor:
    """``gradient`` times the derivative of an activation, by what the trace keeps; may be written into ``gradient``."""
    aten = torch.ops.aten
    if activation == "relu":
        return aten.threshold_backward(gradient, kept, 0)
    if activation == "tanh":
        return aten.tanh_backward(gradient, kept)
    if activation == "leakyrelu":
        return aten.leaky_relu_backward(gradient, kept, leak, True)
    if activation == "elu":
        return aten.elu_backward.grad_input(gradient, 1.0, 1.0, 1.0, True, kept, grad_input=gradient)
    if activation == "silu":
        share = sigmoid(kept)
        return gradient * share * (1 + kept * (1 - share))
    return gradient


class MlpNetwork(nn.Module):
    """An `Mlp` in rows with weights of its own: ``[M, B, inputs] -> [M, B, outputs]``.

    It is open to autograd, which goes through the backward pass by hand. `trace` and `gradient` are the two
    passes without autograd.
    """

    def __init__(
        self, sizes: Sequence[int], activation: str, streams: Streams, layer: type[Dense] = Dense, block: int = 1
    ):
        super().__init__()
        self.mlp = Mlp(sizes, activation, layout="rows", layer=layer, block=block)
        self.members = len(streams)
        self.flat = nn.Parameter(self.mlp.initial(streams))
        self._views: tuple[int, list[Layer]] | None = None

    def layers(self) -> list[Layer]:
        """Views of its weights, without autograd."""
        if torch.compiler.is_compiling():  # which would not look into the memory of a tensor
            return self.mlp.layers(self.flat)
        if self._views is None or self._views[0] != self.flat.data_ptr():
            self._views = (self.flat.data_ptr(), self.mlp.layers(self.flat.detach()))
        return self._views[1]

    def forward(self, x: Tensor) -> Tensor:
        return _ByHand.apply(x, self.flat, self) if torch.is_grad_enabled() else self.trace(x)[-1]

    def trace(self, x: Tensor, flat: Tensor | None = None) -> list[Tensor]:
        """As `Mlp.forward`, by its own weights or by others ``flat [M, D]``."""
        return self.mlp.forward(self.layers() if flat is None else self.mlp.layers(flat), x)

    def gradient(
        self, x: Tensor, trace: list[Tensor], of_outputs: Tensor, inputs: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """As `Mlp.backward`."""
        return self.mlp.backward(self.layers(), x, trace, of_outputs, inputs)


class ValueNetwork(MlpNetwork):
    """State values, ``[M, B, inputs] -> [M, B]``."""

    def __init__(self, inputs: int, hidden: Sequence[int], streams: Streams, activation: str = "relu"):
        super().__init__((inputs, *hidden, 1), activation, streams)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).squeeze(-1)


class _ByHand(torch.autograd.Function):
    """A network with its backward pass by hand as one operation of autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, flat: Tensor, network: MlpNetwork) -> Tensor:
        ctx.network, ctx.x, ctx.trace = network, x, network.trace(x)
        return ctx.trace[-1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None]:
        of_parameters, of_inputs = ctx.network.gradient(ctx.x, ctx.trace, gradients[0], ctx.needs_input_grad[0])
        return of_inputs, of_parameters, None
