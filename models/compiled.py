"""Compiled pieces of small agents: fully connected networks of one member, and Adam.

A step of a tiny agent is some hundred operations on a few thousand numbers. As tensors of all members they cost a call
each; compiled, one member after another, they cost their arithmetic. Every function here mirrors one of torch's, which
it names, and a test holds the two together (tests/test_compiled.py). Importing this takes Numba.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from models.machine import compiled, exact
from models.mlp import Mlp
from models.optim import MemberAdam
from models.replay import NUMBERS
from models.tiles import ACTIVATIONS, PRELU, RELU, TANH, ZERO, fraction, input_gradient, outer, slope_of, up
from models.vectors import LANES, line, number, spread, store

Array = np.ndarray[Any, Any]


class Net(NamedTuple):
    """An `Mlp` in columns whose parameters begin at some number of a member's."""

    sizes: Array  # [L + 1] int64
    weights: Array  # [L] int64, where each layer's weight begins
    biases: Array  # [L] int64
    turned: Array  # [L] bool, whether a weight is stored [in, out]
    activation: int
    leak: np.float32
    slope: int  # where prelu's slope is
    widest: int


@functools.lru_cache(64)  # nobody writes into its arrays
def net(mlp: Mlp, begin: int = 0) -> Net:
    weights, biases, at = [], [], begin
    for count, size in zip(mlp._counts[: 2 * mlp.depth : 2], mlp.sizes[1:], strict=True):
        weights.append(at)
        biases.append(at + count)
        at += count + size
    ints = [np.array(values, np.int64) for values in (mlp.sizes, weights, biases)]
    kind = ACTIVATIONS[mlp.activation]
    return Net._make((*ints, np.array(mlp._turned), kind, np.float32(mlp.leak), at, max(mlp.sizes)))


NOTHING = net(Mlp([1, 1], "identity"))  # where there is none


def layers_of(net: Net, batch: int) -> Array:
    """Memory for `forward` and `backward` of so many columns: ``[L + 1, widest, columns]``, whole vectors in lines of
    the processor's cache. The columns that fill up the last vector are 0 in inputs and in gradients."""
    shape = len(net.sizes), net.widest, -(-batch // LANES) * LANES
    padded = np.zeros(shape[0] * shape[1] * shape[2] + LANES, np.float32)
    first = -padded.ctypes.data % (4 * LANES) // 4
    return padded[first : first + len(padded) - LANES].reshape(shape)


@exact
def better(x, y):
    """Whether x comes before y in an argmax, where NaN is the largest, as to torch."""
    return x > y or (x != x and y == y)


@compiled
def forward(net, flat, acts, preactivations):
    """`Mlp.forward` of one member with parameters ``flat [D]``: from ``acts[0]`` to ``acts[L]``. ``preactivations`` is
    memory of the same shape for prelu, and else not used."""
    depth, columns = len(net.sizes) - 1, acts.shape[2]
    leak = flat[net.slope] if net.activation == PRELU else net.leak
    for j in range(0, columns, 2 * LANES):  # through all layers, while they are near
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
            up(x, y, next_preactivations, flat, weight, bias, count, inner_stride, across, rows, j, k, kind, leak)


@compiled
def backward(net, flat, acts, preactivations, gradients, grad, parameters, inputs):
    """`Mlp.backward` of one member: from ``back[L]``, d loss / d output, to ``grad [D]`` (with ``parameters``) and,
    with ``inputs``, to d loss / d x in ``back[0]``. ``gradients`` is memory of the shape of ``acts``."""
    depth, slope = len(net.sizes) - 1, ZERO
    leak = flat[net.slope] if net.activation == PRELU else net.leak
    for layer in range(depth, -1 if inputs else 0, -1):
        rows, gradient, kind = net.sizes[layer], gradients[layer], net.activation if layer else 0
        for n in range(0, rows, 4):  # down to the weights, while they are near
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
    """`Mlp.forward` of one row, ``rows[at]``. Gives the number of the row where the outputs are: ``at`` or the one that
    makes a pair with it, 0 and 1, 2 and 3."""
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
    """The weights ``[M, D]`` of M members, those of their targets, and the memory of `MemberAdam`."""

    online: Array
    target: Array
    mean: Array
    square: Array
    counts: Array  # [M]
    lr: Array  # [M]


def learner(online: Tensor, target: Tensor, optimizer: MemberAdam) -> Learner:
    tensors = online, target, optimizer.mean, optimizer.square, optimizer.count, optimizer.lr
    return Learner._make(tensor.numpy() for tensor in tensors)


@compiled
def adam(learner_state, m, grad):
    """`MemberAdam.update` of member m."""
    learner_state.counts[m] += 1
    count, lr, param, mean, square = (
        learner_state.counts[m],
        learner_state.lr[m],
        learner_state.online[m],
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
    """`Tensor.lerp_` of member m's target."""
    target, online = learner_state.target[m], learner_state.online[m]
    for k in range(len(target)):
        target[k] += tau * (online[k] - target[k])


@exact
def epsilon(a, m, t):
    """`Agent.epsilon` of member m at step t of the block."""
    return a.by_step[t] if len(a.by_step) else a.by_episode[a.episodes[m]]


@compiled
def row_of(uniform, previous_uniform, filled_rows):
    """The row of a replay buffer that a uniform number and the one ``previous_uniform`` it choose
    (`ReplayBuffer.sample`)."""
    if filled_rows > NUMBERS:
        first, second = np.int64(uniform * np.float32(NUMBERS)), np.int64(previous_uniform * np.float32(NUMBERS))
        return min((first * filled_rows + (second * filled_rows >> 24)) >> 24, filled_rows - 1)
    return min(np.int64(uniform * np.float32(filled_rows)), filled_rows - 1)
