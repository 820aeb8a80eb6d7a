"""Compiled pieces of small agents: fully connected networks of one member, and Adam.

A step of a tiny agent is some hundred operations on a few thousand numbers. As tensors of all members they cost a call
each; compiled, one member after another, they cost their arithmetic. Every function here mirrors one of torch's, which
it names, and a test holds the two together (tests/test_compiled.py). Importing this takes Numba.

Functions call each other across files, which Numba's cache does not notice. So the cache has a folder for each state of
the code.
"""

import functools
import hashlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numba
import numpy as np

from models.mlp import Mlp

F = TypeVar("F", bound=Callable[..., Any])
Array = np.ndarray[Any, Any]
# Files that compiled functions, or constants in them, stand in; and how many states of them stay compiled.
_COMPILED, _KEPT = ("compiled.py", "synthetic.py"), 8
ACTIVATIONS = {"identity": 0, "relu": 1, "leakyrelu": 2, "tanh": 3, "prelu": 4}
RELU, LEAKY, TANH, PRELU = 1, 2, 3, 4
# Counting references to arrays would take most of the time, so compiled functions neither count nor make any.
EXACT: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
INLINE: dict[str, Any] = {"forceinline": True}
# Sums may be reordered for the processor's vectors. NaN and infinities stay what they are: members are judged by them.
FAST: dict[str, Any] = EXACT | {"fastmath": {"reassoc", "contract", "arcp", "nsz"}}
ZERO, ONE = np.float32(0), np.float32(1)


@functools.cache
def cache_folder() -> Path:
    """Where compiled code of this state of the sources is kept: in the user's cache, or in a folder of this process
    alone where that cannot be written."""
    sources = []
    for room in ("models", "envs", "control"):  # each by itself, for Ray gives its workers a folder for each
        found = importlib.util.find_spec(room)
        for place in found.submodule_search_locations or () if found else ():
            sources += [path for path in sorted(Path(place).rglob("*.py")) if path.name in _COMPILED]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "understudy"
        folder = base / digest
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, RuntimeError):
        return Path(tempfile.mkdtemp(prefix="understudy-"))
    for old in sorted(base.iterdir(), key=lambda path: path.stat().st_mtime)[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def exact(function: F) -> F:
    """The function in machine code, which rounds as it is written; compiled at its first call, then kept on disk."""
    return _made(function, EXACT)


def within(function: F) -> F:
    """As `exact`, put into its caller: handing over a `World` or `Members` takes longer than a short function does."""
    return _made(function, EXACT | INLINE)


def compiled(function: F) -> F:
    """As `exact`, but sums may be reordered, and a product and a sum rounded once."""
    return _made(function, FAST)


def _made(function: F, options: dict[str, Any]) -> F:
    settings: Any = numba.core.config
    before, settings.CACHE_DIR = settings.CACHE_DIR, str(cache_folder())
    try:
        return numba.njit(cache=True, **options)(function)  # type: ignore[no-any-return]
    finally:
        settings.CACHE_DIR = before


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


def net(mlp: Mlp, begin: int = 0) -> Net:
    weights, biases, at = [], [], begin
    for count, size in zip(mlp._counts[: 2 * mlp.depth : 2], mlp.sizes[1:], strict=True):
        weights.append(at)
        biases.append(at + count)
        at += count + size
    ints = [np.array(each, np.int64) for each in (mlp.sizes, weights, biases)]
    kind = ACTIVATIONS[mlp.activation]
    return Net._make((*ints, np.array(mlp._turned), kind, np.float32(mlp.leak), at, max(mlp.sizes)))


NOTHING = net(Mlp([1, 1], "identity"))  # where there is none


def layers_of(net: Net, batch: int) -> Array:
    """Memory for `forward` and `backward` of so many columns: ``[L + 1, widest, batch]``."""
    return np.empty((len(net.sizes), net.widest, batch), np.float32)


@compiled
def _tanh(x):
    """`torch.tanh` within two units in the last place, as the rational function of Eigen, which vectorises."""
    x = np.float32(-7.9053111) if x < np.float32(-7.9053111) else x
    x = np.float32(7.9053111) if x > np.float32(7.9053111) else x
    s = x * x
    p = s * np.float32(-2.76076847742355e-16) + np.float32(2.00018790482477e-13)
    p = s * p + np.float32(-8.60467152213735e-11)
    p = s * p + np.float32(5.12229709037114e-08)
    p = s * p + np.float32(1.48572235717979e-05)
    p = s * p + np.float32(6.37261928875436e-04)
    p = s * p + np.float32(4.89352455891786e-03)
    q = s * np.float32(1.19825839466702e-06) + np.float32(1.18534705686654e-04)
    q = s * q + np.float32(2.26843463243900e-03)
    q = s * q + np.float32(4.89352518554385e-03)
    return x * p / q


@exact
def better(x, y):
    """Whether x comes before y in an argmax, where NaN is the largest, as to torch."""
    return x > y or (x != x and y == y)


@compiled
def _activate(x, kept, width, kind, leak):
    """The activation of ``x [., B]`` in place (`Columns.activated`); ``kept`` takes what prelu's derivative needs."""
    batch = x.shape[1]
    for n in range(width):
        if kind == RELU:
            for j in range(batch):
                x[n, j] = ZERO if x[n, j] < ZERO else x[n, j]
        elif kind == TANH:
            for j in range(batch):
                x[n, j] = _tanh(x[n, j])
        else:
            for j in range(batch):
                kept[n, j] = x[n, j]
            for j in range(batch):
                x[n, j] = x[n, j] if x[n, j] > ZERO else leak * x[n, j]


@compiled
def _affine(x, y, flat, weight, bias, count, stride_in, stride_out, outputs):
    """``y = W x + b`` of columns (`Columns.affine`): weight (o, i) lies at ``weight + o stride_out + i stride_in``; a
    negative ``bias`` is none."""
    batch = y.shape[1]
    for o in range(outputs):
        at, i, start = weight + o * stride_out, 0, flat[bias + o] if bias >= 0 else ZERO
        if count >= 4:
            a, b = flat[at], flat[at + stride_in]
            c, d = flat[at + 2 * stride_in], flat[at + 3 * stride_in]
            for j in range(batch):
                y[o, j] = (start + a * x[0, j] + b * x[1, j]) + (c * x[2, j] + d * x[3, j])
            i = 4
        elif count >= 2:
            a, b = flat[at], flat[at + stride_in]
            for j in range(batch):
                y[o, j] = start + a * x[0, j] + b * x[1, j]
            i = 2
        else:
            for j in range(batch):
                y[o, j] = start
        at += i * stride_in
        while i + 8 <= count:  # eight at once, for every pass over y costs a load and a store
            a, b = flat[at], flat[at + stride_in]
            c, d = flat[at + 2 * stride_in], flat[at + 3 * stride_in]
            e, f = flat[at + 4 * stride_in], flat[at + 5 * stride_in]
            g, h = flat[at + 6 * stride_in], flat[at + 7 * stride_in]
            for j in range(batch):
                first = (a * x[i, j] + b * x[i + 1, j]) + (c * x[i + 2, j] + d * x[i + 3, j])
                second = (e * x[i + 4, j] + f * x[i + 5, j]) + (g * x[i + 6, j] + h * x[i + 7, j])
                y[o, j] += first + second
            at, i = at + 8 * stride_in, i + 8
        while i < count:
            a = flat[at]
            for j in range(batch):
                y[o, j] += a * x[i, j]
            at, i = at + stride_in, i + 1


@compiled
def forward(net, flat, acts, kept):
    """`Mlp.forward` of one member with parameters ``flat [D]``: from ``acts[0]`` to ``acts[L]``. ``kept`` is memory of
    the same shape for prelu, and else not used."""
    depth = len(net.sizes) - 1
    leak = flat[net.slope] if net.activation == PRELU else net.leak
    for layer in range(depth):
        inputs, outputs = net.sizes[layer], net.sizes[layer + 1]
        across, along = (outputs, 1) if net.turned[layer] else (1, inputs)
        _affine(
            acts[layer], acts[layer + 1], flat, net.weights[layer], net.biases[layer], inputs, across, along, outputs
        )
        if layer < depth - 1 and net.activation:
            _activate(acts[layer + 1], kept[layer + 1], outputs, net.activation, leak)


@compiled
def _outer(below, gradient, grad, weight, bias, inputs, outputs, stride_in, stride_out):
    """The gradient of a layer's weight and bias (`Columns.outer`)."""
    batch = gradient.shape[1]
    for o in range(outputs):
        total = ZERO
        for j in range(batch):
            total += gradient[o, j]
        grad[bias + o] = total
        at, i = weight + o * stride_out, 0
        while i + 4 <= inputs:
            a, b, c, d = ZERO, ZERO, ZERO, ZERO
            for j in range(batch):
                g = gradient[o, j]
                a += g * below[i, j]
                b += g * below[i + 1, j]
                c += g * below[i + 2, j]
                d += g * below[i + 3, j]
            grad[at], grad[at + stride_in] = a, b
            grad[at + 2 * stride_in], grad[at + 3 * stride_in] = c, d
            at, i = at + 4 * stride_in, i + 4
        while i < inputs:
            a = ZERO
            for j in range(batch):
                a += gradient[o, j] * below[i, j]
            grad[at] = a
            at, i = at + stride_in, i + 1


@compiled
def _derive(gradient, below, kept, width, kind, leak):
    """``gradient`` times the activation's derivative (`products.derivative`); gives what prelu's slope gets."""
    batch, total = gradient.shape[1], ZERO
    for i in range(width):
        if kind == RELU:
            for j in range(batch):
                gradient[i, j] = gradient[i, j] if below[i, j] > ZERO else ZERO
        elif kind == TANH:
            for j in range(batch):
                gradient[i, j] *= ONE - below[i, j] * below[i, j]
        elif kind == LEAKY:
            for j in range(batch):
                gradient[i, j] *= ONE if below[i, j] > ZERO else leak
        elif kind == PRELU:
            for j in range(batch):
                total += gradient[i, j] * (kept[i, j] if kept[i, j] < ZERO else ZERO)
            for j in range(batch):
                gradient[i, j] *= ONE if kept[i, j] > ZERO else leak
    return total


@compiled
def backward(net, flat, acts, kept, back, grad, parameters, inputs):
    """`Mlp.backward` of one member: from ``back[L]``, d loss / d output, to ``grad [D]`` (with ``parameters``) and,
    with ``inputs``, to d loss / d x in ``back[0]``. ``back`` is memory of the shape of ``acts``."""
    depth, slope = len(net.sizes) - 1, ZERO
    leak = flat[net.slope] if net.activation == PRELU else net.leak
    for layer in range(depth - 1, -1, -1):
        count, outputs = net.sizes[layer], net.sizes[layer + 1]
        across, along = (outputs, 1) if net.turned[layer] else (1, count)
        if parameters:
            _outer(
                acts[layer], back[layer + 1], grad, net.weights[layer], net.biases[layer], count, outputs, across, along
            )
        if layer or inputs:
            _affine(back[layer + 1], back[layer], flat, net.weights[layer], -1, outputs, along, across, count)
        if layer:
            slope += _derive(back[layer], acts[layer], kept[layer], count, net.activation, leak)
    if parameters and net.activation == PRELU:
        grad[net.slope] = slope


@compiled
def single(net, flat, rows, at):
    """`Mlp.forward` of one row, ``rows[at]``. Gives the number of the row where the outputs are: ``at`` or the one that
    makes a pair with it, 0 and 1, 2 and 3."""
    depth = len(net.sizes) - 1
    leak = flat[net.slope] if net.activation == PRELU else net.leak
    for layer in range(depth):
        inputs, outputs, weight, bias, to = (
            net.sizes[layer],
            net.sizes[layer + 1],
            net.weights[layer],
            net.biases[layer],
            at ^ 1,
        )
        if net.turned[layer]:
            for o in range(outputs):
                rows[to, o] = flat[bias + o]
            for i in range(inputs):
                a = rows[at, i]
                for o in range(outputs):
                    rows[to, o] += a * flat[weight + i * outputs + o]
        else:
            for o in range(outputs):
                total = ZERO
                for i in range(inputs):
                    total += flat[weight + o * inputs + i] * rows[at, i]
                rows[to, o] = total + flat[bias + o]
        if layer < depth - 1:
            if net.activation == RELU:
                for o in range(outputs):
                    rows[to, o] = ZERO if rows[to, o] < ZERO else rows[to, o]
            elif net.activation == TANH:
                for o in range(outputs):
                    rows[to, o] = _tanh(rows[to, o])
            elif net.activation:
                for o in range(outputs):
                    rows[to, o] = rows[to, o] if rows[to, o] > ZERO else leak * rows[to, o]
        at = to
    return at


@compiled
def adam(param, grad, mean, square, lr, count):
    """`MemberAdam.update` of one member, whose ``count``-th update it is."""
    first = np.float32(1 / (1 - 0.9**count))
    root2 = np.float32((1 - 0.999**count) ** 0.5)
    size, one, two, eps = lr * first, np.float32(1 - 0.9), np.float32(1 - 0.999), np.float32(1e-8)
    b1, b2 = np.float32(0.9), np.float32(0.999)
    for k in range(len(grad)):
        mean[k] = mean[k] * b1 + grad[k] * one
        square[k] = square[k] * b2 + grad[k] * grad[k] * two
        param[k] -= mean[k] / (np.sqrt(square[k]) / root2 + eps) * size


@compiled
def follow(target, online, tau):
    """`Tensor.lerp_` of one member."""
    for k in range(len(target)):
        target[k] += tau * (online[k] - target[k])


@compiled
def row_of(uniform, filled):
    """The row of a replay buffer that a uniform number chooses (`ReplayBuffer.sample`)."""
    return min(np.int64(uniform * np.float32(filled)), filled - 1)
