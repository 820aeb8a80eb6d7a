"""The fully connected network of M members, with forward and backward passes written by hand.

Small networks spend their time in thin matrix products and in autograd's bookkeeping, so gradients are computed by
hand; tests compare them with autograd. There are two layouts of activations, each several times faster for
its users:

- ``columns``, ``[M, features, B]``: the batch is the wide, contiguous axis of every product. With two outputs this is
  five times faster than rows (DDQN, synthetic environments).
- ``rows``, ``[M, B, features]``: with batches of 8 to 32, products ``[B, in] x [in, out]`` take a quarter of the time
  of their transposes (imagined rollouts). Policy gradients and state values use it too.

The layouts differ only in their products (models/products.py).
"""

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from models.layers import Dense, sigmoid
from models.products import LEAK, Columns, Rows, derivative
from models.streams import Streams

PRELU_SLOPE = 0.25  # initial value of prelu's learned slope

Layer = tuple[Tensor, Tensor]
"""Weight and bias: ``[M, out, in]`` and ``[M, out, 1]`` in columns, ``[M, in, out]`` and ``[M, out]`` in rows."""


class MLP:
    """An architecture: ``sizes`` are inputs, hidden widths and outputs. It holds no parameters: methods receive them,
    flat ``[M, size]`` or as the result of `layers`.

    ``activation`` of the hidden layers is relu, leakyrelu (``leak`` is its slope), tanh, identity or prelu (one learned
    slope, shared by all layers), in rows also elu and silu.

    Each layer is stored as its weight, then its bias; prelu's slope is last. Rows store a weight ``[in, out]``. Columns
    store the shorter side first, which is fastest for thin products. ``size`` is padded with zeros to a multiple of
    ``block``; padding gets no gradient. ``layer`` is the class that initialises each layer.
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
        self._from_input = activation in ("prelu", "silu")  # their derivative cannot be computed from their output
        # Whether a weight is stored transposed.
        self._transposed = [layout == "columns" and dense.inputs < dense.outputs for dense in self.dense]
        self._stored: list[tuple[int, ...]] = []
        for dense in self.dense:
            if layout == "columns":
                self._stored += [tuple(sorted((dense.inputs, dense.outputs))), (dense.outputs, 1)]
            else:
                self._stored += dense.shapes
        self._stored += [(1, 1)] * self._slope
        self._counts = [prod(shape) for shape in self._stored]
        self.padding = -sum(self._counts) % block
        self.size = sum(self._counts) + self.padding

    def initial(self, streams: Streams) -> Tensor:
        """Sample initial parameters ``[M, size]`` from each member's stream."""
        return streams.map_generators(self._first)

    def _first(self, generator: torch.Generator) -> Tensor:
        parts: list[Tensor] = []
        for layer, turned in zip(self.dense, self._transposed, strict=True):
            weight, bias = layer.initial(generator)  # [in, out]
            parts += [(weight if turned or self.products is Rows else weight.T).reshape(-1), bias]
        return torch.cat([*parts, torch.tensor([PRELU_SLOPE] * self._slope), torch.zeros(self.padding)])

    def layers(self, flat: Tensor) -> list[Layer]:
        """Return the layers of ``flat [M, size]`` as views, valid as long as its memory. With prelu, an additional last
        pair holds the slope twice."""
        parts = flat.split([*self._counts, self.padding] if self.padding else self._counts, 1)
        views = [part.unflatten(1, shape) for part, shape in zip(parts, self._stored, strict=False)]
        pairs = zip(views[0 : 2 * self.depth : 2], views[1::2], self._transposed, strict=False)
        weights = [(weight.transpose(1, 2) if turned else weight, bias) for weight, bias, turned in pairs]
        return weights + [(views[-1], views[-1])] * self._slope

    def forward(self, layers: list[Layer], x: Tensor) -> list[Tensor]:
        """Run the network on ``x [M, in, B]`` (rows: ``[M, B, in]``). Return the trace for `backward`: the output of
        each hidden layer (for prelu and silu before the activation), then the output of the network."""
        activations: list[Tensor] = []
        affine, activation = self.products.affine, self.activation
        for weight, bias in layers[: self.depth - 1]:
            x = affine(weight, bias, x, activation, self.leak)
            activations.append(x)
            if self._from_input:
                x = self._activated(layers, x)
        weight, bias = layers[self.depth - 1]
        activations.append(affine(weight, bias, x))
        return activations

    def backward(
        self, layers: list[Layer], x: Tensor, activations: list[Tensor], gradient: Tensor, inputs: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Backpropagate ``gradient``, d loss / d output. Return d loss / d parameters ``[M, size]``, summed over the
        batch, and d loss / d x if ``inputs`` (else None). ``activations`` is the result of `forward` for ``x``."""
        parts: list[Tensor] = []
        slopes: list[Tensor] = []
        for i in reversed(range(self.depth)):
            activation = activations[i - 1] if i else x
            layer_input = self._activated(layers, activation) if i and self._from_input else activation
            outer = self.products.outer(layer_input, gradient, self._transposed[i])
            parts += [gradient.sum(self.products.batch), outer.flatten(1)]
            if i == 0 and not inputs:
                break
            gradient = self.products.input_gradient(layers[i][0], gradient)
            if i and self._slope:
                slopes.append((gradient * activation.clamp(max=0)).flatten(1).sum(1, keepdim=True))
            if i:
                gradient = self._derivative(layers, gradient, activation)
        parts = parts[::-1]
        if self._slope:
            parts.append(torch.stack(slopes).sum(0) if slopes else gradient.new_zeros(len(gradient), 1))
        if self.padding:
            parts.append(gradient.new_zeros(len(gradient), self.padding))
        return torch.cat(parts, 1), gradient if inputs else None

    def input_gradient(self, layers: list[Layer], activations: list[Tensor], gradient: Tensor) -> Tensor:
        """Backpropagate ``gradient``, d loss / d output, to d loss / d x alone: half the products of `backward`."""
        for i in reversed(range(self.depth)):
            gradient = self.products.input_gradient(layers[i][0], gradient)
            if i:
                gradient = self._derivative(layers, gradient, activations[i - 1])
        return gradient

    def _derivative(self, layers: list[Layer], gradient: Tensor, activation: Tensor) -> Tensor:
        """Return ``gradient`` times the activation's derivative; ``activation`` is an entry of the trace."""
        if self._slope:
            return gradient * ((activation > 0) + layers[-1][0] * (activation <= 0))
        return derivative(gradient, activation, self.activation, self.leak)

    def _activated(self, layers: list[Layer], x: Tensor) -> Tensor:
        """Apply prelu or silu."""
        if self._slope:
            return x.clamp(min=0).addcmul_(x.clamp(max=0), layers[-1][0])
        return x * sigmoid(x)


def parameters(sizes: Sequence[int]) -> int:
    """Return the number of weights and biases of an `MLP`."""
    return sum((inputs + 1) * outputs for inputs, outputs in pairwise(sizes))


class MlpNetwork(nn.Module):
    """An `MLP` in rows as a module with weights: ``[M, B, inputs] -> [M, B, outputs]``.

    Autograd can differentiate it; it then calls the manual backward pass. `trace` and `gradient` are the two passes
    without autograd.
    """

    def __init__(
        self, sizes: Sequence[int], activation: str, streams: Streams, layer: type[Dense] = Dense, block: int = 1
    ):
        super().__init__()
        self.mlp = MLP(sizes, activation, layout="rows", layer=layer, block=block)
        self.members = len(streams)
        self.flat = nn.Parameter(self.mlp.initial(streams))
        self._views: tuple[int, list[Layer]] | None = None

    def layers(self) -> list[Layer]:
        """Return views of the weights, without autograd."""
        if torch.compiler.is_compiling():  # the compiler cannot trace `data_ptr`
            return self.mlp.layers(self.flat)
        if self._views is None or self._views[0] != self.flat.data_ptr():
            self._views = (self.flat.data_ptr(), self.mlp.layers(self.flat.detach()))
        return self._views[1]

    def forward(self, x: Tensor) -> Tensor:
        return _ByHand.apply(x, self.flat, self) if torch.is_grad_enabled() else self.activations(x)[-1]

    def activations(self, x: Tensor, flat: Tensor | None = None) -> list[Tensor]:
        """Return the result of `MLP.forward`, with the module's weights or with ``flat [M, D]``."""
        return self.mlp.forward(self.layers() if flat is None else self.mlp.layers(flat), x)

    def gradient(
        self, x: Tensor, activations: list[Tensor], output_gradient: Tensor, inputs: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Return the result of `MLP.backward`. ``output_gradient`` is d loss / d output."""
        return self.mlp.backward(self.layers(), x, activations, output_gradient, inputs)


class _ByHand(torch.autograd.Function):
    """A network with its manual backward pass, as one operation of autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, flat: Tensor, network: MlpNetwork) -> Tensor:
        ctx.network, ctx.x, ctx.activations = network, x, network.activations(x)
        return ctx.activations[-1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None]:
        of_parameters, of_inputs = ctx.network.gradient(ctx.x, ctx.activations, gradients[0], ctx.needs_input_grad[0])
        return of_inputs, of_parameters, None
