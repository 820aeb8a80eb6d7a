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
from numba.extending import overload
from torch import Tensor

from models.mlp import Mlp
from models.optim import MemberAdam
from models.vectors import LANES, line, load, number, put, splat, spread, store, total, totals, where_less

F = TypeVar("F", bound=Callable[..., Any])
Array = np.ndarray[Any, Any]
# Files that compiled functions, or constants in them, stand in; and how many states of them stay compiled.
_COMPILED, _KEPT = ("compiled.py", "vectors.py", "synthetic.py"), 8
ACTIVATIONS = {"identity": 0, "relu": 1, "leakyrelu": 2, "tanh": 3, "prelu": 4}
RELU, LEAKY, TANH, PRELU = 1, 2, 3, 4
# Counting references to arrays would take most of the time, so compiled functions neither count nor make any.
EXACT: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
INLINE: dict[str, Any] = {"forceinline": True}
# Sums may be reordered for the processor's vectors. NaN and infinities stay what they are: members are judged by them.
FAST: dict[str, Any] = EXACT | {"fastmath": {"reassoc", "contract", "arcp", "nsz"}}
ZERO, ONE = np.float32(0), np.float32(1)
_MOST = np.float32(7.9053111)  # whose tanh is 1


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


def known(kind: type) -> Any:
    """A function by which compiled code knows, before it runs, whether an argument is of this very class of tuples."""

    def asked(x: Any) -> None: ...

    options: Any = EXACT | INLINE
    overload(asked, jit_options=options)(lambda x: (lambda x: True) if x.instance_class is kind else lambda x: False)
    return asked


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
    ints = [np.array(each, np.int64) for each in (mlp.sizes, weights, biases)]
    kind = ACTIVATIONS[mlp.activation]
    return Net._make((*ints, np.array(mlp._turned), kind, np.float32(mlp.leak), at, max(mlp.sizes)))


NOTHING = net(Mlp([1, 1], "identity"))  # where there is none


def layers_of(net: Net, batch: int) -> Array:
    """Memory for `forward` and `backward` of so many columns: ``[L + 1, widest, columns]``, whole vectors in lines of
    the processor's cache. The columns that fill up the last vector are 0 in inputs and in gradients."""
    shape = len(net.sizes), net.widest, -(-batch // LANES) * LANES
    whole = np.zeros(shape[0] * shape[1] * shape[2] + LANES, np.float32)
    first = -whole.ctypes.data % (4 * LANES) // 4
    return whole[first : first + len(whole) - LANES].reshape(shape)


@compiled
def _tanh(x):
    """`torch.tanh` of a number or a vector within two units in the last place: the rational function of Eigen."""
    x = where_less(x, -_MOST, -_MOST, x)
    x = where_less(_MOST, x, _MOST, x)
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
    for n in range(width):
        if kind == RELU:
            for j in range(0, x.shape[1], LANES):
                value = load(x, n, j)
                store(x, n, j, where_less(value, ZERO, ZERO, value))
        elif kind == TANH:
            for j in range(0, x.shape[1], LANES):
                store(x, n, j, _tanh(load(x, n, j)))
        else:
            for j in range(0, x.shape[1], LANES):
                value = load(x, n, j)
                store(kept, n, j, value)
                store(x, n, j, where_less(ZERO, value, value, leak * value))


@compiled
def _affine(x, y, flat, weight, bias, count, stride_in, stride_out, outputs):
    """``y = W x + b`` of columns (`Columns.affine`): weight (o, i) lies at ``weight + o stride_out + i stride_in``; a
    negative ``bias`` is none."""
    for j in range(0, y.shape[1], LANES):
        o = 0
        while o + 4 <= outputs:  # four at once, for every pass over x costs its loads
            at = weight + o * stride_out
            a, b, c, d = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
            if bias >= 0:
                a, b = spread(flat, bias + o), spread(flat, bias + o + 1)
                c, d = spread(flat, bias + o + 2), spread(flat, bias + o + 3)
            for i in range(count):
                value = load(x, i, j)
                a += spread(flat, at) * value
                b += spread(flat, at + stride_out) * value
                c += spread(flat, at + 2 * stride_out) * value
                d += spread(flat, at + 3 * stride_out) * value
                at += stride_in
            store(y, o, j, a)
            store(y, o + 1, j, b)
            store(y, o + 2, j, c)
            store(y, o + 3, j, d)
            o += 4
        while o < outputs:
            at, i = weight + o * stride_out, 0
            a, b, c, d = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
            while i + 4 <= count:  # four sums, for each waits for its last
                a += spread(flat, at) * load(x, i, j)
                b += spread(flat, at + stride_in) * load(x, i + 1, j)
                c += spread(flat, at + 2 * stride_in) * load(x, i + 2, j)
                d += spread(flat, at + 3 * stride_in) * load(x, i + 3, j)
                at, i = at + 4 * stride_in, i + 4
            while i < count:
                a += spread(flat, at) * load(x, i, j)
                at, i = at + stride_in, i + 1
            store(y, o, j, ((a + b) + (c + d)) + (spread(flat, bias + o) if bias >= 0 else splat(ZERO)))
            o += 1


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
        a = splat(ZERO)
        for j in range(0, batch, LANES):
            a += load(gradient, o, j)
        put(grad, bias + o, total(a))
        at, i = weight + o * stride_out, 0
        while i + 4 <= inputs:
            a, b, c, d = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
            for j in range(0, batch, LANES):
                value = load(gradient, o, j)
                a += value * load(below, i, j)
                b += value * load(below, i + 1, j)
                c += value * load(below, i + 2, j)
                d += value * load(below, i + 3, j)
            sums = totals(a, b, c, d)
            put(grad, at, sums[0])
            put(grad, at + stride_in, sums[1])
            put(grad, at + 2 * stride_in, sums[2])
            put(grad, at + 3 * stride_in, sums[3])
            at, i = at + 4 * stride_in, i + 4
        while i < inputs:
            a = splat(ZERO)
            for j in range(0, batch, LANES):
                a += load(gradient, o, j) * load(below, i, j)
            put(grad, at, total(a))
            at, i = at + stride_in, i + 1


@compiled
def _derive(gradient, below, kept, width, kind, leak):
    """``gradient`` times the activation's derivative (`products.derivative`); gives what prelu's slope gets."""
    batch, slope = gradient.shape[1], splat(ZERO)
    for i in range(width):
        for j in range(0, batch, LANES):
            down, value = load(gradient, i, j), load(below, i, j)
            if kind == RELU:
                down = where_less(ZERO, value, down, ZERO)
            elif kind == TANH:
                down *= ONE - value * value
            elif kind == LEAKY:
                down *= where_less(ZERO, value, ONE, leak)
            elif kind == PRELU:
                value = load(kept, i, j)
                slope += down * where_less(value, ZERO, value, ZERO)
                down *= where_less(ZERO, value, ONE, leak)
            store(gradient, i, j, down)
    return total(slope)


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
        inputs, outputs, to = net.sizes[layer], net.sizes[layer + 1], at ^ 1
        weight, bias = net.weights[layer], net.biases[layer]
        x = rows[at]
        if net.turned[layer]:
            whole = outputs - outputs % LANES
            for o in range(0, whole, LANES):
                sums = line(flat, bias + o)
                for i in range(inputs):
                    sums += spread(x, i) * line(flat, weight + i * outputs + o)
                store(rows, to, o, sums)
            for o in range(whole, outputs):
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
                    rows[to, o] = _tanh(rows[to, o])
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
    own = online, target, optimizer.mean, optimizer.square, optimizer.count, optimizer.lr
    return Learner._make(each.numpy() for each in own)


@compiled
def adam(own, m, grad):
    """`MemberAdam.update` of member m."""
    own.counts[m] += 1
    count, lr, param, mean, square = own.counts[m], own.lr[m], own.online[m], own.mean[m], own.square[m]
    first, root2 = np.float32(1 / (1 - 0.9**count)), np.float32((1 - 0.999**count) ** 0.5)
    size, b1, b2, eps = lr * first, np.float32(0.9), np.float32(0.999), np.float32(1e-8)
    one, two = np.float32(1 - 0.9), np.float32(1 - 0.999)
    for k in range(len(grad)):
        mean[k] = mean[k] * b1 + grad[k] * one
        square[k] = square[k] * b2 + grad[k] * grad[k] * two
        param[k] -= mean[k] / (np.sqrt(square[k]) / root2 + eps) * size


@compiled
def follow(own, m, tau):
    """`Tensor.lerp_` of member m's target."""
    target, online = own.target[m], own.online[m]
    for k in range(len(target)):
        target[k] += tau * (online[k] - target[k])


@exact
def epsilon(a, m, t):
    """`Agent.epsilon` of member m at step t of the block."""
    return a.by_step[t] if len(a.by_step) else a.by_episode[a.episodes[m]]


@compiled
def row_of(uniform, filled):
    """The row of a replay buffer that a uniform number chooses (`ReplayBuffer.sample`)."""
    return min(np.int64(uniform * np.float32(filled)), filled - 1)
