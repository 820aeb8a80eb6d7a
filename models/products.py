"""The products of fully connected layers in the two layouts of `models.mlp`, and derivatives of activations.

With a single row, column or output, the library would compute a matrix-vector product, whose rounding depends on the
number of members. Each layout has a different cheap way to avoid this, so there are two versions of the products.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from models.layers import LEAK, allocate_blocks, dense, sigmoid

_LARGE = 4096  # weights of a layer; above this, a matrix product is faster than a sum of products even for one column
_MINUS_ONE = torch.tensor(-1.0)


class Columns:
    """Matrix products of a fully connected layer, with the batch last: activations are ``[M, features, B]``."""

    batch = 2  # the batch axis

    @staticmethod
    def affine(weight: Tensor, bias: Tensor, x: Tensor, activation: str | None = None, slope: float = LEAK) -> Tensor:
        """Return ``activation(weight @ x + bias)`` for each of M members: ``[M, out, in], [M, out, 1], [M, in, B] ->
        [M, out, B]``. ``slope`` is the slope of leakyrelu below 0. None and "identity" apply no activation; elu and
        silu are not supported here. A layer of one input is computed as an elementwise product, one column (B = 1) or
        a layer of one output as a product and a sum, but one column of a large layer as two equal columns.
        """
        one_column, one_input, one_output = x.shape[2] == 1, weight.shape[2] == 1, weight.shape[1] == 1
        if one_column and weight.shape[1] * weight.shape[2] > _LARGE:
            return Columns.affine(weight, bias, x.repeat(1, 1, 2), activation, slope)[:, :, :1]
        # ``out`` is a view of ``memory`` without its padding.
        memory, out = allocate_blocks((weight.shape[0], weight.shape[1], x.shape[2]), x)
        # tanh(x) is computed as 2 sigmoid(2 x) - 1, which equals it within 2e-7, in a quarter of the time of
        # torch.tanh. So the products are multiplied by 2 here.
        factor = 2 if activation == "tanh" else 1
        if one_column and weight.stride(2) > 1:  # stored [in, out]
            torch.add((weight.transpose(1, 2) * x).sum(1).unsqueeze(2), bias, out=out).mul_(factor)
        elif one_column:
            torch.add((weight * x.transpose(1, 2)).sum(2, keepdim=True), bias, out=out).mul_(factor)
        elif one_input:
            torch.addcmul(bias, weight, x, out=out).mul_(factor)
        elif one_output:
            torch.add((weight.transpose(1, 2) * x).sum(1, keepdim=True), bias, out=out).mul_(factor)
        else:
            torch.baddbmm(bias, weight, x, beta=factor, alpha=factor, out=out)
        if activation == "relu":
            out.relu_()
        elif activation == "tanh":  # on ``memory``, because `torch.sigmoid` rounds the last elements differently
            torch.add(_MINUS_ONE, memory.sigmoid_(), alpha=2, out=memory)
        elif activation == "leakyrelu":
            F.leaky_relu_(out, slope)
        return out

    @staticmethod
    def weight_gradient(layer_input: Tensor, gradient: Tensor, transposed: bool) -> Tensor:
        """Return d loss / d weight, summed over the batch: ``[M, in, out]`` if the weight is stored ``transposed``,
        else ``[M, out, in]``. ``layer_input`` is ``[M, in, B]``; ``gradient [M, out, B]`` is d loss / d output."""
        left, right = (layer_input, gradient) if transposed else (gradient, layer_input)
        if left.shape[1] == 1:  # a product and a sum: a matrix-vector product would round depending on M
            return (left * right).sum(2).unsqueeze(1)
        return torch.bmm(left, right.transpose(1, 2))

    @staticmethod
    def input_gradient(weight: Tensor, gradient: Tensor) -> Tensor:
        """Return d loss / d input from ``gradient``, d loss / d output: ``[M, out, in], [M, out, B] -> [M, in, B]``."""
        if weight.shape[1] == 1:
            return weight.transpose(1, 2) * gradient
        if gradient.shape[2] == 1:  # two equal columns: a matrix-vector product would round depending on M
            return torch.bmm(weight.transpose(1, 2), gradient.repeat(1, 1, 2))[:, :, :1]
        return torch.bmm(weight.transpose(1, 2), gradient)


class Rows:
    """Matrix products of a fully connected layer, with features last: activations are ``[M, B, features]``."""

    batch = 1  # the batch axis

    @staticmethod
    def affine(weight: Tensor, bias: Tensor, x: Tensor, activation: str | None = None, slope: float = LEAK) -> Tensor:
        """Return ``activation(x @ weight + bias)``: ``[M, in, out], [M, out], [M, B, in] -> [M, B, out]``. ``slope`` is
        leakyrelu's. None, "identity", "prelu" and "silu" apply no activation; `MLP` applies the last two itself."""
        if activation == "elu":
            if x.shape[1] == 1:  # `dense` can write only two or more rows to ``out``
                return Rows.affine(weight, bias, x.expand(-1, 2, -1), activation)[:, :1]
            memory, out = allocate_blocks((x.shape[0], x.shape[1], weight.shape[2]), x)
            dense(x, weight, bias, out)
            F.elu_(memory)  # ``out`` and padding, so that all elements of ``out`` are rounded alike
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
    def weight_gradient(layer_input: Tensor, gradient: Tensor, transposed: bool) -> Tensor:
        """Return d loss / d weight, summed over the batch: ``[M, B, in], [M, B, out] -> [M, in, out]``."""
        return _batch_matmul(layer_input.transpose(1, 2), gradient)

    @staticmethod
    def input_gradient(weight: Tensor, gradient: Tensor) -> Tensor:
        """Return d loss / d input from ``gradient``, d loss / d output: ``[M, in, out], [M, B, out] -> [M, B, in]``."""
        return _batch_matmul(gradient, weight.transpose(1, 2))


def _batch_matmul(left: Tensor, right: Tensor) -> Tensor:
    """Return the matrix products of M members, ``[M, i, j] x [M, j, k] -> [M, i, k]``. The case j = 1 is computed as an
    elementwise product, k = 1 as a product and a sum, and i = 1 as two equal rows."""
    if left.shape[2] == 1:
        return left * right
    if right.shape[2] == 1:
        return (left * right.transpose(1, 2)).sum(2, keepdim=True)
    if left.shape[1] == 1:
        return torch.bmm(left.expand(-1, 2, -1), right)[:, :1]
    return torch.bmm(left, right)


def activation_gradient(gradient: Tensor, output: Tensor, activation: str, leak: float = LEAK) -> Tensor:
    """Return ``gradient`` times the derivative of an activation, elementwise. ``output`` is the activation's output
    (silu: its input). May overwrite ``gradient``. For identity, return ``gradient``. Prelu is not supported."""
    aten = torch.ops.aten
    if activation == "relu":
        return aten.threshold_backward(gradient, output, threshold=0)
    if activation == "tanh":
        return aten.tanh_backward(gradient, output)
    if activation == "leakyrelu":
        return aten.leaky_relu_backward(gradient, output, leak, self_is_result=True)
    if activation == "elu":  # overwrites ``gradient``
        return aten.elu_backward.grad_input(
            gradient, alpha=1.0, scale=1.0, input_scale=1.0, is_result=True, self_or_result=output, grad_input=gradient
        )
    if activation == "silu":
        silu_input, gate = output, sigmoid(output)
        return gradient * gate * (1 + silu_input * (1 - gate))
    return gradient
