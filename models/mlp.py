"""Fully connected networks of M members with a hand-written backward pass, feature-major.

Small networks spend their time in thin matrix products and in autograd's bookkeeping. Here activations are
``[M, features, B]``: the batch is the wide, contiguous axis of every product, which at two outputs is five times
faster than ``[M, B, features]``. Autograd is the oracle in the tests.
"""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from models.layers import Dense, in_blocks
from models.streams import Streams

LEAK = 0.01  # slope of leakyrelu below zero
PRELU_SLOPE = 0.25  # where prelu's learned slope starts
_LARGE = 4096  # weights of a layer; above, a matrix product beats a sum of products even for one column
_MINUS_ONE = torch.tensor(-1.0)

Layer = tuple[Tensor, Tensor]
"""Weight ``[M, out, in]`` and bias ``[M, out, 1]``."""


class Mlp:
    """An architecture: ``sizes`` are inputs, hidden widths and outputs. Parameters are passed in, flat ``[M, size]``.
    ``activation`` of the hidden layers is relu, leakyrelu, tanh, prelu or identity.

    A layer is its weight, then its bias ``[out]``. The weight is stored with its shorter side first, ``[in, out]`` or
    ``[out, in]``, which thin products like best; views of it are ``[out, in]`` always. With ``prelu`` one slope,
    shared by all layers, comes last; ``leak`` is leakyrelu's.
    """

    def __init__(self, sizes: Sequence[int], activation: str, leak: float = LEAK):
        self.sizes, self.activation, self.leak = tuple(sizes), activation, leak
        pairs = list(zip(self.sizes[:-1], self.sizes[1:], strict=True))
        self.shapes = [((outputs, inputs), (outputs, 1)) for inputs, outputs in pairs]
        self._stored: list[tuple[int, int]] = []
        for i, ((outputs, inputs), bias) in enumerate(self.shapes):
            self._stored += [(inputs, outputs) if self._turned(i) else (outputs, inputs), bias]
        self._stored += [(1, 1)] if activation == "prelu" else []
        self._counts = [prod(shape) for shape in self._stored]
        self.size = sum(self._counts)

    def _turned(self, layer: int) -> bool:
        """Whether a weight is stored ``[in, out]``."""
        return self.sizes[layer] < self.sizes[layer + 1]

    def initial(self, streams: Streams) -> Tensor:
        """torch's default initialisation of `torch.nn.Linear`, ``[M, size]``."""
        return torch.stack([self._one(generator) for generator in streams.generators])

    def _one(self, generator: torch.Generator) -> Tensor:
        parts: list[Tensor] = []
        for i, ((outputs, inputs), _) in enumerate(self.shapes):
            weight, bias = Dense("", inputs, outputs).initial(generator)  # [in, out]
            parts += [(weight if self._turned(i) else weight.T).reshape(-1), bias]
        return torch.cat([*parts, *([torch.tensor([PRELU_SLOPE])] if self.activation == "prelu" else [])])

    def layers(self, flat: Tensor) -> list[Layer]:
        """Views of ``flat [M, size]``; they stay valid while its memory does. A prelu slope is a last, lone layer."""
        parts = flat.split(self._counts, 1)
        views = [part.unflatten(1, shape) for part, shape in zip(parts, self._stored, strict=True)]
        slope = views[-1:] if self.activation == "prelu" else []
        pairs = list(zip(views[0 : len(views) - len(slope) : 2], views[1::2], strict=False))
        turned = [(w.transpose(1, 2) if self._turned(i) else w, b) for i, (w, b) in enumerate(pairs)]
        return turned + [(one, one) for one in slope]

    def forward(self, layers: list[Layer], x: Tensor) -> list[Tensor]:
        """``x [M, in, B]`` -> what each layer gives, the last one ``[M, out, B]`` without activation. With ``prelu``
        what the hidden layers have before it comes first: a learned slope may turn negative, and then an output no
        longer tells its sign."""
        slope = layers[-1][0] if self.activation == "prelu" else None
        before: list[Tensor] = []
        outputs: list[Tensor] = []
        depth = len(self.sizes) - 1
        for i, (weight, bias) in enumerate(layers[:depth]):
            bare = i == depth - 1 or slope is not None
            x = affine(weight, bias, x, None if bare else self.activation, self.leak)
            if slope is not None and i < depth - 1:
                before.append(x)
                x = x.clamp(min=0).addcmul_(x.clamp(max=0), slope)
            outputs.append(x)
        return before + outputs

    def backward(
        self, layers: list[Layer], x: Tensor, outputs: list[Tensor], gradient: Tensor, inputs: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """From d loss / d output ``[M, out, B]`` to d loss / d parameters ``[M, size]``, summed over the batch; with
        ``inputs`` also d loss / d x ``[M, in, B]``. ``outputs`` is what `forward` gave for ``x``."""
        depth = len(self.sizes) - 1
        before, outputs = outputs[:-depth], outputs[-depth:]
        slope_gradient = []
        parts: list[Tensor] = []
        for i in reversed(range(depth)):
            below = outputs[i - 1] if i else x
            outer = _outer(below, gradient) if self._turned(i) else _outer(gradient, below)
            parts += [gradient.sum(2), outer.flatten(1)]
            if i == 0 and not inputs:
                break
            gradient = _down(layers[i][0], gradient)
            if i:
                if self.activation == "prelu":
                    bare, slope = before[i - 1], layers[-1][0]
                    slope_gradient.append((gradient * bare.clamp(max=0)).flatten(1).sum(1, keepdim=True))
                    gradient = gradient * ((bare > 0) + slope * (bare <= 0))
                else:
                    gradient = derivative(gradient, below, self.activation, self.leak)
        if slope_gradient:
            parts.insert(0, torch.stack(slope_gradient).sum(0))
        elif self.activation == "prelu":
            parts.insert(0, torch.zeros_like(layers[-1][0][:, 0]))
        return torch.cat(parts[::-1], 1), gradient if inputs else None


def affine(weight: Tensor, bias: Tensor, x: Tensor, activation: str | None, slope: float = LEAK) -> Tensor:
    """``activation(weight @ x + bias)``: ``[M, out, in], [M, out, 1], [M, in, B] -> [M, out, B]``.

    One column or one output is a matrix-vector product to the library, which then rounds by the number of members
    and is slow besides: such a layer is a product and a sum, or two equal columns where it is large. The result lies
    in whole vector blocks, for `torch.sigmoid` (see `in_blocks`).
    """
    one_column, one_output = x.shape[2] == 1, weight.shape[1] == 1
    large = weight.shape[1] * weight.shape[2] > _LARGE
    if one_column and large:
        return affine(weight, bias, x.repeat(1, 1, 2), activation, slope)[:, :, :1]
    shape = (weight.shape[0], weight.shape[1], x.shape[2])
    memory, out = in_blocks(shape, x)
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
        torch.nn.functional.leaky_relu_(out, slope)
    return out


def _outer(short: Tensor, long: Tensor) -> Tensor:
    """``[M, short, B], [M, long, B] -> [M, short, long]``, summed over the batch."""
    if short.shape[1] == 1:
        return (short * long).sum(2).unsqueeze(1)
    return torch.bmm(short, long.transpose(1, 2))


def _down(weight: Tensor, gradient: Tensor) -> Tensor:
    """``[M, out, in], [M, out, B] -> [M, in, B]``."""
    if weight.shape[1] == 1:
        return weight.transpose(1, 2) * gradient
    if gradient.shape[2] == 1:  # see `affine`
        return torch.bmm(weight.transpose(1, 2), gradient.repeat(1, 1, 2))[:, :, :1]
    return torch.bmm(weight.transpose(1, 2), gradient)


def derivative(gradient: Tensor, output: Tensor, activation: str, leak: float = LEAK) -> Tensor:
    """``gradient`` times the derivative of an activation, told from its ``output``."""
    if activation == "relu":
        return torch.ops.aten.threshold_backward(gradient, output, 0)
    if activation == "tanh":
        return torch.ops.aten.tanh_backward(gradient, output)
    if activation == "leakyrelu":
        return torch.ops.aten.leaky_relu_backward(gradient, output, leak, True)
    return gradient
