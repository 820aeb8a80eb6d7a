"""The products of fully connected layers in the two layouts of `models.mlp`, and derivatives of activations.

With a single row, column or output, the library would compute a matrix-vector product, and its rounding depends on the
number of members. Each layout avoids this in a different cheap way, so the products are written twice.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from models.layers import LEAK, dense, in_blocks, sigmoid

_LARGE = 4096  # weights of a layer; above this, a matrix product is faster than a sum of products even for one column
_MINUS_ONE = torch.tensor(-1.0)


class Columns:
    """Products for activations ``[M, features, B]``."""

    batch = 2  # the batch axis

    @staticmethod
    def affine(weight: Tensor, bias: Tensor, x: Tensor, activation: str | None = None, slope: float = LEAK) -> Tensor:
        """Return ``activation(weight @ x + bias)``: ``[M, out, in], [M, out, 1], [M, in, B] -> [M, out, B]``. ``slope``
        is leakyrelu's.

        One column or one output is computed as a product and a sum. One column of a large layer is computed as two
        equal columns. The result is in whole blocks of memory, for `torch.sigmoid` (see `in_blocks`).
        """
        one_column, one_output = x.shape[2] == 1, weight.shape[1] == 1
        if one_column and weight.shape[1] * weight.shape[2] > _LARGE:
            return Columns.affine(weight, bias, x.repeat(1, 1, 2), activation, slope)[:, :, :1]
        memory, out = in_blocks((weight.shape[0], weight.shape[1], x.shape[2]), x)
        # 2 sigmoid(2 x) - 1 equals tanh within 2e-7, in a quarter of the time of torch.tanh.
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
    def outer(layer_input: Tensor, gradient: Tensor, turned: bool) -> Tensor:
        """Return the gradient of a weight as it is stored, with the shorter side first: ``[M, in, out]`` if ``turned``,
        else ``[M, out, in]``. ``gradient [M, out, B]`` is d loss / d output of the layer."""
        short, long = (layer_input, gradient) if turned else (gradient, layer_input)
        if short.shape[1] == 1:
            return (short * long).sum(2).unsqueeze(1)
        return torch.bmm(short, long.transpose(1, 2))

    @staticmethod
    def input_gradient(weight: Tensor, gradient: Tensor) -> Tensor:
        """Return d loss / d input of a layer: ``[M, out, in], [M, out, B] -> [M, in, B]``."""
        if weight.shape[1] == 1:
            return weight.transpose(1, 2) * gradient
        if gradient.shape[2] == 1:
            return torch.bmm(weight.transpose(1, 2), gradient.repeat(1, 1, 2))[:, :, :1]
        return torch.bmm(weight.transpose(1, 2), gradient)


class Rows:
    """Products for activations ``[M, B, features]``."""

    batch = 1  # the batch axis

    @staticmethod
    def affine(weight: Tensor, bias: Tensor, x: Tensor, activation: str | None = None, slope: float = LEAK) -> Tensor:
        """Return ``activation(x @ weight + bias)``: ``[M, in, out], [M, out], [M, B, in] -> [M, B, out]``."""
        if activation == "elu":
            if x.shape[1] == 1:
                return Rows.affine(weight, bias, x.expand(-1, 2, -1), activation)[:, :1]
            memory, out = in_blocks((x.shape[0], x.shape[1], weight.shape[2]), x)
            dense(x, weight, bias, out)
            F.elu_(memory)
            return out
        out = dense(x, weight, bias)
        if activation == "relu":
            out.relu_()
        elif activation == "tanh":
            out.tanh_()
        elif activation == "leakyrelu":
            F.leaky_relu_(out, slope)
        return out

    @staticmethod
    def outer(layer_input: Tensor, gradient: Tensor, turned: bool) -> Tensor:
        """Return the gradient of a weight, ``[M, in, out]``. ``turned`` is not used."""
        return _product(layer_input.transpose(1, 2), gradient)

    @staticmethod
    def input_gradient(weight: Tensor, gradient: Tensor) -> Tensor:
        """Return d loss / d input of a layer: ``[M, in, out], [M, B, out] -> [M, B, in]``."""
        return _product(gradient, weight.transpose(1, 2))


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return the matrix product ``[M, i, j] x [M, j, k] -> [M, i, k]``, without the library's special case for one row
    or column."""
    if a.shape[2] == 1:
        return a * b
    if b.shape[2] == 1:
        return (a * b.transpose(1, 2)).sum(2, keepdim=True)
    if a.shape[1] == 1:
        return torch.bmm(a.expand(-1, 2, -1), b)[:, :1]
    return torch.bmm(a, b)


def derivative(gradient: Tensor, output: Tensor, activation: str, leak: float = LEAK) -> Tensor:
    """Return ``gradient`` times the derivative of an activation. ``output`` is the activation's output (silu: its
    input). May overwrite ``gradient``."""
    aten = torch.ops.aten
    if activation == "relu":
        return aten.threshold_backward(gradient, output, 0)
    if activation == "tanh":
        return aten.tanh_backward(gradient, output)
    if activation == "leakyrelu":
        return aten.leaky_relu_backward(gradient, output, leak, True)
    if activation == "elu":
        return aten.elu_backward.grad_input(gradient, 1.0, 1.0, 1.0, True, output, grad_input=gradient)
    if activation == "silu":
        share = sigmoid(output)
        return gradient * share * (1 + output * (1 - share))
    return gradient
