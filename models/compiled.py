"""Compiled pieces of small agents: fully connected networks of one member, and Adam.

A step of a tiny agent is about a hundred operations on a few thousand numbers. On tensors of all members, each
operation costs a call of torch. Compiled code runs one member after another and costs only the arithmetic. Every
function mirrors a method that its docstring names; tests/test_compiled.py compares the two. Importing this module
requires Numba.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from models.machine import compiled, exact
from models.mlp import MLP
from models.optim import MemberAdam
from models.replay import NUMBERS
from models.tiles import ACTIVATIONS, PRELU, RELU, TANH, ZERO, fraction, input_gradient, layer_forward, outer, slope_of
from models.vectors import LANES, line, number, spread, store

Array = np.ndarray[Any, Any]


class Net(NamedTuple):
    """An `MLP` in columns with L layers, and the positions of its parameters in a member's flat parameters ``[D]``."""

    sizes: Array  # [L + 1] int64: inputs, hidden widths, outputs
    weights: Array  # [L] int64, position of the first number of each layer's weight
    biases: Array  # [L] int64, the same for biases
    turned: Array  # [L] bool, whether a weight is stored [in, out]
    activation: int  # a value of `ACTIVATIONS`
    leak: np.float32
    slope: int  # position of prelu's slope
    widest: int  # the largest of sizes


@functools.lru_cache(64)  # results can be shared, because nobody writes into their arrays
def net(mlp: MLP, begin: int = 0) -> Net:
    """Return the `Net` of ``mlp``, with parameters from position ``begin`` on."""
    weights, biases, at = [], [], begin
    for count, size in zip(mlp._counts[: 2 * mlp.depth : 2], mlp.sizes[1:], strict=True):
        weights.append(at)
        biases.append(at + count)
        at += count + size
    ints = [np.array(values, np.int64) for values in (mlp.sizes, weights, biases)]
    kind = ACTIVATIONS[mlp.activation]
    return Net._make((*ints, np.array(mlp._transposed), kind, np.float32(mlp.leak), at, max(mlp.sizes)))


NO_NET = net(MLP([1, 1], "identity"))  # placeholder for a network that an agent does not have


def layers_of(net: Net, batch: int) -> Array:
    """Return zeroed memory ``[L + 1, widest, columns]`` for `forward` and `backward` of ``batch`` columns.

    ``columns`` is ``batch`` rounded up to whole vectors, and the memory begins at a line of the processor's cache. The
    additional columns must be 0 in inputs and in gradients.
    """
    shape = len(net.sizes), net.widest, -(-batch // LANES) * LANES
    padded = np.zeros(shape[0] * shape[1] * shape[2] + LANES, np.float32)
    first = -padded.ctypes.data % (4 * LANES) // 4
    return padded[first : first + len(padded) - LANES].reshape(shape)


@exact
def better(x, y):
    """Return whether an argmax prefers x to y. NaN counts as the largest number, as in torch."""
    return x > y or (x != x and y == y)


@compiled
def forward(net, flat, acts, preactivations):
    """Run `MLP.forward` for one member with parameters ``flat [D]``: from inputs ``acts[0]`` to outputs ``acts[L]``,
    with memory from `layers_of`. ``preactivations`` has the same shape; only prelu uses it."""
    depth, columns = len(net.sizes) - 1, acts.shape[2]
    leak = flat[net.slope] if net.activation == PRELU else net.leak
    for j in range(0, columns, 2 * LANES):  # through all layers, while the columns are in the cache
        k = min(j + LANES, columns - LANES)
        for layer in range(depth):
            count, rows, kind = net.sizes[layer], net.sizes[layer + 1], net.activation if layer < depth - 1 else 0
            inner_stride, across = (rows, 1) if net.turned[layer] else (1, count)
            x, y, next_preactivations, weight, bias = (
                acts[layer],
                acts[layer + 1],
                preactivations[layer + 1],
                net.weights[layer],
                net.biases[layer],
            )
            layer_forward(
                x, y, next_preactivations, flat, weight, bias, count, inner_stride, across, rows, j, k, kind, leak
            )


@compiled
def backward(net, flat, acts, preactivations, gradients, grad, parameters, inputs):
    """Run `MLP.backward` for one member, from ``gradients[L]``, d loss / d output.

    If ``parameters``, write d loss / d parameters to ``grad [D]``. If ``inputs``, write d loss / d x to
    ``gradients[0]``. ``gradients`` has the shape of ``acts``; ``acts`` and ``preactivations`` are from `forward`.
    """
    depth, slope = len(net.sizes) - 1, ZERO
    leak = flat[net.slope] if net.activation == PRELU else net.leak
    for layer in range(depth, -1 if inputs else 0, -1):
        rows, gradient, kind = net.sizes[layer], gradients[layer], net.activation if layer else 0
        for n in range(0, rows, 4):  # down to the weights, while the rows are in the cache
            last = min(n + 4, rows)
            if layer < depth:
                count, weight = net.sizes[layer + 1], net.weights[layer]
                inner_stride, across = (1, count) if net.turned[layer] else (rows, 1)
                input_gradient(
                    gradients[layer + 1],
                    gradient,
                    acts[layer],
                    flat,
                    weight,
                    count,
                    inner_stride,
                    across,
                    n,
                    last,
                    kind,
                    leak,
                )
                if kind == PRELU:
                    slope += slope_of(gradient, preactivations[layer], n, last, leak)
            if parameters and layer:
                previous, count = layer - 1, net.sizes[layer - 1]
                inner_stride, across = (rows, 1) if net.turned[previous] else (1, count)
                weight, bias = net.weights[previous], net.biases[previous]
                outer(acts[previous], gradient, grad, weight, bias, count, inner_stride, across, n, last)
    if parameters and net.activation == PRELU:
        grad[net.slope] = slope


@compiled
def single(net, flat, rows, at):
    """Run `MLP.forward` for one member and one input, ``rows[at]``. Return the index of the output row.

    ``rows`` is ``[., widest]``. Layers alternate between the rows ``at`` and ``at ^ 1`` and overwrite both.
    """
    depth = len(net.sizes) - 1
    leak = flat[net.slope] if net.activation == PRELU else net.leak
    for layer in range(depth):
        inputs, outputs, to = net.sizes[layer], net.sizes[layer + 1], at ^ 1
        weight, bias = net.weights[layer], net.biases[layer]
        x = rows[at]
        if net.turned[layer]:
            whole_blocks = outputs - outputs % LANES
            for o in range(0, whole_blocks, LANES):
                sums = line(flat, bias + o)
                for i in range(inputs):
                    sums += spread(x, i) * line(flat, weight + i * outputs + o)
                store(rows, to, o, sums)
            for o in range(whole_blocks, outputs):
                total = number(flat, bias + o)
                for i in range(inputs):
                    total += x[i] * number(flat, weight + i * outputs + o)
                rows[to, o] = total
        else:
            for o in range(outputs):
                total = ZERO
                for i in range(inputs):
                    total += number(flat, weight + o * inputs + i) * x[i]
                rows[to, o] = total + number(flat, bias + o)
        if layer < depth - 1:
            if net.activation == RELU:
                for o in range(outputs):
                    rows[to, o] = ZERO if rows[to, o] < ZERO else rows[to, o]
            elif net.activation == TANH:
                for o in range(outputs):
                    p, q = fraction(rows[to, o])
                    rows[to, o] = p / q
            elif net.activation:
                for o in range(outputs):
                    rows[to, o] = rows[to, o] if rows[to, o] > ZERO else leak * rows[to, o]
        at = to
    return at


class Learner(NamedTuple):
    """Weights and target weights ``[M, D]`` of M members, and the state of their `MemberAdam`."""

    flat_parameters: Array
    target_parameters: Array
    mean: Array  # [M, D]
    square: Array  # [M, D]
    counts: Array  # [M]
    lr: Array  # [M]


def learner(flat_parameters: Tensor, target_parameters: Tensor, optimizer: MemberAdam) -> Learner:
    """Return the `Learner` whose arrays share the memory of these tensors."""
    tensors = flat_parameters, target_parameters, optimizer.mean, optimizer.square, optimizer.count, optimizer.lr
    return Learner._make(tensor.numpy() for tensor in tensors)


@compiled
def adam(learner_state, m, grad):
    """Run `MemberAdam.update` for member m, with gradient ``grad [D]`` and the default betas and eps."""
    learner_state.counts[m] += 1
    count, lr, param, mean, square = (
        learner_state.counts[m],
        learner_state.lr[m],
        learner_state.flat_parameters[m],
        learner_state.mean[m],
        learner_state.square[m],
    )
    first, root2 = np.float32(1 / (1 - 0.9**count)), np.float32((1 - 0.999**count) ** 0.5)
    size, b1, b2, eps = lr * first, np.float32(0.9), np.float32(0.999), np.float32(1e-8)
    rate1, two = np.float32(1 - 0.9), np.float32(1 - 0.999)
    for k in range(len(grad)):
        mean[k] = mean[k] * b1 + grad[k] * rate1
        square[k] = square[k] * b2 + grad[k] * grad[k] * two
        param[k] -= mean[k] / (np.sqrt(square[k]) / root2 + eps) * size


@compiled
def follow(learner_state, m, tau):
    """Move the target weights of member m towards the online weights by the share ``tau`` (`Tensor.lerp_`)."""
    target_parameters, flat_parameters = learner_state.target_parameters[m], learner_state.flat_parameters[m]
    for k in range(len(target_parameters)):
        target_parameters[k] += tau * (flat_parameters[k] - target_parameters[k])


@exact
def epsilon(a, m, t):
    """Return epsilon of member m at step t of the block, from the arrays of `Epsilon.ahead`."""
    return a.by_step[t] if len(a.by_step) else a.by_episode[a.episodes[m]]


@compiled
def row_of(uniform, previous_uniform, filled_rows):
    """Return the row of a replay buffer that ``uniform`` in [0, 1) chooses (`ReplayBuffer.sample`).

    ``previous_uniform`` is the number before it in the batch (`rows_of_two`); only buffers of more than ``NUMBERS``
    rows use it.
    """
    if filled_rows > NUMBERS:
        first, second = np.int64(uniform * np.float32(NUMBERS)), np.int64(previous_uniform * np.float32(NUMBERS))
        return min((first * filled_rows + (second * filled_rows >> 24)) >> 24, filled_rows - 1)
    return min(np.int64(uniform * np.float32(filled_rows)), filled_rows - 1)
