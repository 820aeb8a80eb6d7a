"""The fully connected network of M members (independent agents), with all D weights of a member in a row ``[M, D]``.

For autograd, a whole network is one operation with the backward pass `MLP.backward`, whose rounding does not depend on
the number of members. There are two layouts of activations, which differ only in their products (`Columns`, `Rows`):

- ``columns``, ``[M, features, B]``: the batch is the last, contiguous axis of every product. This is five times faster
  for a network with two outputs. Used by DDQN and synthetic environments.
- ``rows``, ``[M, B, features]``: products ``[B, in] x [in, out]`` take a quarter of the time of their transposes if B
  is 8 to 32. Used by imagined rollouts, policy gradients and state values.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.layers import LEAK, Dense, activation_in_file, allocate_blocks, dense, sigmoid
from models.streams import Streams

_LARGE = 4096  # weights of a layer above which a matrix product is faster than a sum of products even for one column
_MINUS_ONE = torch.tensor(-1.0)


class Columns:
    """Matrix products of a fully connected layer, with the batch last: activations are ``[M, features, B]``."""

    batch = 2  # the batch axis

    @staticmethod
    def affine(weight: Tensor, bias: Tensor, x: Tensor, activation: str | None = None, slope: float = LEAK) -> Tensor:
        """Return ``activation(weight @ x + bias)`` for each of M members: ``[M, out, in], [M, out, 1], [M, in, B] ->
        [M, out, B]``. ``slope`` is the slope of leakyrelu below 0. None and "identity" apply no activation; elu and
        silu are not supported here.

        The rounding must not depend on M, but the rounding of a matrix-vector product does. So one column (B = 1) or
        one output is computed as an elementwise product and a sum, and one input as an elementwise product."""
        members, num_outputs, num_inputs = weight.shape
        batch = x.shape[2]
        if batch == 1 and num_outputs * num_inputs > _LARGE:  # a matrix product for two equal columns is faster
            return Columns.affine(weight, bias, x.repeat(1, 1, 2), activation, slope)[:, :, :1]
        # ``out`` is a view of ``memory`` without its padding.
        memory, out = allocate_blocks((members, num_outputs, batch), x)
        # tanh(x) is computed as 2 sigmoid(2 x) - 1, in a quarter of the time of torch.tanh. They differ by less than
        # 2e-7. The factor 2 of x is applied together with the products below.
        factor = 2 if activation == "tanh" else 1
        if batch == 1 and weight.stride(2) > 1:  # the weight is stored as [in, out]
            product = (weight.transpose(1, 2) * x).sum(1).unsqueeze(2)
            torch.add(product, bias, out=out).mul_(factor)
        elif batch == 1:
            product = (weight * x.transpose(1, 2)).sum(2, keepdim=True)
            torch.add(product, bias, out=out).mul_(factor)
        elif num_inputs == 1:
            torch.addcmul(bias, weight, x, out=out).mul_(factor)
        elif num_outputs == 1:
            product = (weight.transpose(1, 2) * x).sum(1, keepdim=True)
            torch.add(product, bias, out=out).mul_(factor)
        else:
            torch.baddbmm(bias, weight, x, beta=factor, alpha=factor, out=out)
        if activation == "relu":
            out.relu_()
        elif activation == "tanh":  # changes all ``memory``: `torch.sigmoid` rounds the last elements differently
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
        """Return ``activation(x @ weight + bias)`` for each of M members: ``[M, in, out], [M, out], [M, B, in] -> [M,
        B, out]``. ``slope`` is the slope of leakyrelu below 0. None, "identity", "prelu" and "silu" apply no
        activation; `MLP` applies prelu and silu itself."""
        if activation == "elu":
            if x.shape[1] == 1:  # computed as two equal rows, because `dense` cannot write a single row to ``out``
                return Rows.affine(weight, bias, x.expand(-1, 2, -1), activation)[:, :1]
            memory, out = allocate_blocks((x.shape[0], x.shape[1], weight.shape[2]), x)
            dense(x, weight, bias, out)
            F.elu_(memory)  # ``out`` and its padding, so that all elements of ``out`` are rounded alike
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
    """Return the matrix products of M members, ``[M, i, j] x [M, j, k] -> [M, i, k]``. A matrix-vector product would
    round depending on M. So j = 1 is an elementwise product, k = 1 a product and a sum, and i = 1 uses two equal rows.
    """
    if left.shape[2] == 1:
        return left * right
    if right.shape[2] == 1:
        return (left * right.transpose(1, 2)).sum(2, keepdim=True)
    if left.shape[1] == 1:
        return torch.bmm(left.expand(-1, 2, -1), right)[:, :1]
    return torch.bmm(left, right)


PRELU_SLOPE = 0.25  # initial value of prelu's learned slope

Layer = tuple[Tensor, Tensor]
"""Weight and bias: ``[M, out, in]`` and ``[M, out, 1]`` in columns, ``[M, in, out]`` and ``[M, out]`` in rows."""


class MLP:
    """The architecture of a fully connected network. ``sizes`` are the number of inputs, the widths of the hidden
    layers and the number of outputs. An `MLP` holds no parameters: ``mlp(flat, x)`` receives them as ``flat [M,
    size]``, other methods as the result of `layers`.

    ``activation`` of the hidden layers is relu, leakyrelu (``leak`` is its slope), tanh, identity or prelu (one learned
    slope, shared by all layers), in rows also elu and silu.

    In ``flat``, each layer has its weight, then its bias; prelu's slope is last. In rows a weight is stored as ``[in,
    out]``. In columns its shorter axis is first, which is fastest for thin products. ``size`` is padded with zeros to a
    multiple of ``block``, and the padding gets no gradient. ``layer`` is the class that initialises each layer.
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
        # Layers need no names, because parameters are addressed by position.
        self.dense = [layer("", inputs, outputs) for inputs, outputs in pairwise(self.sizes)]
        self.depth = len(self.dense)
        self._is_prelu = activation == "prelu"
        # The derivatives of these activations cannot be computed from their outputs, so `forward` returns their inputs.
        self._traces_input = activation in ("prelu", "silu")
        # Whether the weight of each layer, in columns, is stored as [in, out].
        self._transposed = [layout == "columns" and dense.inputs < dense.outputs for dense in self.dense]
        self._shapes: list[tuple[int, ...]] = []  # stored shapes of weight and bias of each layer, of prelu's slope
        for dense_layer, transposed in zip(self.dense, self._transposed, strict=True):
            inputs, outputs = dense_layer.inputs, dense_layer.outputs
            if layout == "columns":
                weight_shape = (inputs, outputs) if transposed else (outputs, inputs)
                self._shapes += [weight_shape, (outputs, 1)]
            else:
                self._shapes += dense_layer.shapes
        if self._is_prelu:
            self._shapes.append((1, 1))
        self._counts = [prod(shape) for shape in self._shapes]
        self.padding = -sum(self._counts) % block
        self.size = sum(self._counts) + self.padding

    def __call__(self, flat: Tensor, x: Tensor) -> Tensor:
        """Run the network with parameters ``flat [M, size]``: ``[M, B, inputs] -> [M, B, outputs]`` in both layouts.
        Autograd can differentiate it."""
        layers = self.layers(flat.detach())
        is_columns = self.products is Columns
        if is_columns:
            x = x.transpose(1, 2)  # [M, inputs, B]
        if torch.is_grad_enabled():
            outputs: Tensor = _Differentiable.apply(x, flat, self, layers)
        else:
            outputs = self.forward(layers, x)[-1]
        return outputs.transpose(1, 2).contiguous() if is_columns else outputs

    def initial(self, streams: Streams) -> Tensor:
        """Sample initial parameters ``[M, size]`` from each member's stream."""
        return streams.map_generators(self._sample_member)

    def _sample_member(self, generator: torch.Generator) -> Tensor:
        """Sample the parameters of a member, ``[size]``: weight and bias of each layer, prelu's slope, padding."""
        tensors: list[Tensor] = []
        for layer, transposed in zip(self.dense, self._transposed, strict=True):
            weight, bias = layer.initial(generator)  # [in, out], [out]
            stored_weight = weight if transposed or self.products is Rows else weight.T
            tensors += [stored_weight.reshape(-1), bias]
        if self._is_prelu:
            tensors.append(torch.tensor([PRELU_SLOPE]))
        return torch.cat([*tensors, torch.zeros(self.padding)])

    def layers(self, flat: Tensor) -> list[Layer]:
        """Return weight and bias (`Layer`) of each layer as views of the parameters ``flat [M, size]``. With prelu, an
        additional last pair holds the slope ``[M, 1, 1]`` twice."""
        *pieces, _padding = flat.split([*self._counts, self.padding], dim=1)
        views = [piece.unflatten(1, shape) for piece, shape in zip(pieces, self._shapes, strict=True)]
        layers = []
        for i, transposed in enumerate(self._transposed):
            weight, bias = views[2 * i], views[2 * i + 1]
            layers.append((weight.transpose(1, 2) if transposed else weight, bias))
        if self._is_prelu:
            layers.append((views[-1], views[-1]))
        return layers

    def member_network(self, flat: Tensor, member: int) -> tuple[list[Layer], list[str | float]]:
        """Return the network of one ``member`` for an `understudy.policy` file, from the parameters ``flat [M, size]``:
        weight ``[out, in]`` and bias ``[out]`` of each layer, and the activation of each hidden layer. This is a name
        or, for a form of leaky ReLU, its slope below 0."""
        layers = self.layers(flat.detach()[member : member + 1])
        activation = activation_in_file(self.activation, self.leak)
        if self._is_prelu:
            slope, _ = layers.pop()
            activation = float(slope)
        member_layers = []
        for weight, bias in layers:
            member_weight = weight[0].T if self.products is Rows else weight[0]  # [out, in]
            member_layers.append((member_weight, bias.flatten()))
        return member_layers, [activation] * (self.depth - 1)

    def forward(self, layers: list[Layer], x: Tensor) -> list[Tensor]:
        """Run the network with the parameters ``layers`` (`layers`) on ``x [M, in, B]`` (in rows: ``[M, B, in]``).
        Return the trace that `backward` needs: the output of each hidden layer, then the output of the network. With
        prelu and silu, the trace has the input of each hidden layer's activation, not its output."""
        trace: list[Tensor] = []
        affine = self.products.affine
        for weight, bias in layers[: self.depth - 1]:  # the hidden layers
            x = affine(weight, bias, x, self.activation, self.leak)
            trace.append(x)
            if self._traces_input:  # `affine` applied no activation
                x = self._activate(layers, x)
        weight, bias = layers[self.depth - 1]  # the output layer; prelu's slope may follow in ``layers``
        trace.append(affine(weight, bias, x))
        return trace

    def backward(
        self,
        layers: list[Layer],
        x: Tensor,
        trace: list[Tensor],
        gradient: Tensor,
        need_input_gradient: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Backpropagate ``gradient``, d loss / d output, through the network that `forward` ran on ``x`` with the
        parameters ``layers``. ``trace`` is the result of `forward`. Return d loss / d parameters ``[M, size]``, summed
        over the batch, and d loss / d x (None without ``need_input_gradient``)."""
        gradients: list[Tensor] = []  # of bias and weight, beginning with the last layer
        slope_gradients: list[Tensor] = []
        for i in reversed(range(self.depth)):
            layer_input = trace[i - 1] if i > 0 else x  # the entry of the hidden layer before layer i
            if i > 0 and self._traces_input:
                layer_input = self._activate(layers, trace[i - 1])
            weight_gradient = self.products.weight_gradient(layer_input, gradient, self._transposed[i])
            gradients += [gradient.sum(self.products.batch), weight_gradient.flatten(1)]
            if i == 0 and not need_input_gradient:
                break
            weight, _ = layers[i]
            gradient = self.products.input_gradient(weight, gradient)
            if i > 0:  # backpropagate through the activation before layer i
                if self._is_prelu:
                    # The slope multiplies the inputs below 0.
                    slope_gradients.append((gradient * trace[i - 1].clamp(max=0)).flatten(1).sum(1, keepdim=True))
                gradient = self._activation_gradient(layers, gradient, trace[i - 1])
        gradients.reverse()  # weight and bias, beginning with the first layer
        if slope_gradients:
            gradients.append(torch.stack(slope_gradients).sum(0))
        elif self._is_prelu:  # a network without hidden layers
            gradients.append(gradient.new_zeros(len(gradient), 1))
        if self.padding:
            gradients.append(gradient.new_zeros(len(gradient), self.padding))
        return torch.cat(gradients, 1), gradient if need_input_gradient else None

    def _activation_gradient(self, layers: list[Layer], gradient: Tensor, trace_entry: Tensor) -> Tensor:
        """Backpropagate through the activation of a hidden layer: return ``gradient``, d loss / d output, times the
        derivative, elementwise. ``trace_entry`` is the layer's tensor in the trace of `forward`: the activation's
        output, or its input for prelu and silu. May overwrite ``gradient``."""
        aten, name = torch.ops.aten, self.activation
        if name == "prelu":
            slope, _ = layers[-1]
            derivative = (trace_entry > 0) + slope * (trace_entry <= 0)  # 1 above 0, else the slope
            return gradient * derivative
        if name == "relu":
            return aten.threshold_backward(gradient, trace_entry, threshold=0)
        if name == "tanh":
            return aten.tanh_backward(gradient, trace_entry)
        if name == "leakyrelu":
            return aten.leaky_relu_backward(gradient, trace_entry, self.leak, self_is_result=True)
        if name == "elu":  # overwrites ``gradient``
            return aten.elu_backward.grad_input(
                gradient, alpha=1.0, scale=1.0, input_scale=1.0, is_result=True, self_or_result=trace_entry,
                grad_input=gradient,
            )  # fmt: skip
        if name == "silu":
            gate = sigmoid(trace_entry)
            return gradient * gate * (1 + trace_entry * (1 - gate))
        return gradient  # identity

    def _activate(self, layers: list[Layer], x: Tensor) -> Tensor:
        """Apply prelu, whose slope is in ``layers``, or silu. `Rows.affine` and `Columns.affine` do not apply them."""
        if self._is_prelu:
            slope, _ = layers[-1]
            return x.clamp(min=0).addcmul_(x.clamp(max=0), slope)  # max(x, 0) + slope * min(x, 0)
        return x * sigmoid(x)


class MlpNetwork(nn.Module):
    """An `MLP` in rows as a module with weights ``flat [M, size]``: ``[M, B, inputs] -> [M, B, outputs]``."""

    def __init__(
        self,
        sizes: Sequence[int],
        activation: str,
        streams: Streams,
        layer: type[Dense] = Dense,
        block: int = 1,
    ):
        super().__init__()
        self.mlp = MLP(sizes, activation, layout="rows", layer=layer, block=block)
        self.flat = nn.Parameter(self.mlp.initial(streams))

    def layers(self) -> list[Layer]:
        """Return weight ``[M, in, out]`` and bias ``[M, out]`` of each layer, views of the weights without autograd."""
        return self.mlp.layers(self.flat.detach())

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.flat, x)

    def activations(self, x: Tensor, flat: Tensor | None = None) -> list[Tensor]:
        """Run the network on ``x [M, B, inputs]`` without autograd. Return the output of each hidden layer, then of the
        network (`MLP.forward`). ``flat [M, size]`` are weights in place of the module's."""
        layers = self.layers() if flat is None else self.mlp.layers(flat)
        return self.mlp.forward(layers, x)


class _Differentiable(torch.autograd.Function):
    """The forward pass of an `MLP` as one operation of autograd, with `MLP.backward` as its backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, flat: Tensor, mlp: MLP, layers: list[Layer]) -> Tensor:
        *trace, outputs = mlp.forward(layers, x)  # `MLP.backward` does not need the outputs
        ctx.mlp, ctx.layers, ctx.x, ctx.trace = mlp, layers, x, trace
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        """Return the gradients of the arguments of `forward` from the gradient of its result."""
        (gradient,) = gradients
        needs_x_gradient, *_ = ctx.needs_input_grad
        parameter_gradient, x_gradient = ctx.mlp.backward(ctx.layers, ctx.x, ctx.trace, gradient, needs_x_gradient)
        return x_gradient, parameter_gradient, None, None  # ``mlp`` and ``layers`` have no gradient
