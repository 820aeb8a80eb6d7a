"""A layer of one member's network in compiled code, for activations ``[features, B]``: products and activations.

Products are computed in tiles of four rows and two vectors of columns, with the sums of a tile in registers. In these
functions, ``across`` is the distance in ``flat`` between the weights of adjacent rows, ``inner_stride`` the distance
between the ``count`` weights of one row. Importing this requires Numba.
"""

import numpy as np

from models.machine import compiled, inlined
from models.vectors import (
    LANES,
    load,
    load_from,
    place,
    place_along,
    put,
    splat,
    spread,
    spread_from,
    store,
    total,
    totals,
    where_less,
)

ACTIVATIONS = {"identity": 0, "relu": 1, "leakyrelu": 2, "tanh": 3, "prelu": 4}
RELU, LEAKY, TANH, PRELU = 1, 2, 3, 4
ZERO, ONE = np.float32(0), np.float32(1)
_MOST = np.float32(8.01773357391357422)  # tanh of larger numbers is 1


@compiled
def fraction(x):
    """Return numerator and denominator of tanh of a number or a vector, from Eigen's rational approximation. Their
    quotient equals `torch.tanh` up to some units in the last place."""
    x = where_less(x, -_MOST, -_MOST, x)
    x = where_less(_MOST, x, _MOST, x)
    s = x * x
    p = s * np.float32(1.394553628e-8) + np.float32(2.102733560e-5)
    p = s * p + np.float32(3.520756727e-3)
    p = s * p + np.float32(1.340216100e-1)
    p = s * p + ONE
    q = s * np.float32(8.015776984e-7) + np.float32(3.326951409e-4)
    q = s * q + np.float32(2.597254514e-2)
    q = s * q + np.float32(4.673548340e-1)
    return x * p, s * q + ONE


@inlined
def _activated(x, y, kind, leak):
    """Return the activation of two vectors, as in `Columns.affine`."""
    if kind == RELU:
        x, y = where_less(x, ZERO, ZERO, x), where_less(y, ZERO, ZERO, y)
    elif kind == TANH:
        (a, b), (c, d) = fraction(x), fraction(y)
        inverse_product = ONE / (b * d)  # one division for both, because it is slowest
        x, y = a * d * inverse_product, c * b * inverse_product
    elif kind:
        x, y = where_less(ZERO, x, x, leak * x), where_less(ZERO, y, y, leak * y)
    return x, y


@inlined
def _derived(gradient, value, kind, leak):
    """Return a vector of the gradient times the activation's derivative (`products.derivative`). ``value`` is the
    activation's output."""
    if kind == RELU:
        gradient = where_less(ZERO, value, gradient, ZERO)
    elif kind == TANH:
        gradient = gradient * (ONE - value * value)
    elif kind == LEAKY:
        gradient = gradient * where_less(ZERO, value, ONE, leak)
    return gradient


@inlined
def _four(x, j, k, flat, weight, across, count, inner_stride):
    """Return ``W x`` (`Columns.affine`) for four rows and the vectors of columns at j and k: four vectors at j, then
    four at k. The first row's weights begin at position ``weight`` of ``flat``. Here ``across`` are three numbers, the
    offsets of the other rows."""
    a, b, c, d = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
    e, f, g, h = a, b, c, d
    weight_place, input_place, vector_offset, inner_stride, column_offset = (
        place_along(flat, weight),
        place(x, 0, j),
        4 * (k - j),
        4 * inner_stride,
        4 * x.shape[1],
    )
    second, third, fourth = 4 * across[0], 4 * across[1], 4 * across[2]
    for _ in range(count):
        first_vector, other = load_from(input_place), load_from(input_place + vector_offset)
        v, w = spread_from(weight_place), spread_from(weight_place + second)
        a, e, b, f = a + v * first_vector, e + v * other, b + w * first_vector, f + w * other
        v, w = spread_from(weight_place + third), spread_from(weight_place + fourth)
        c, g, d, h = c + v * first_vector, g + v * other, d + w * first_vector, h + w * other
        weight_place, input_place = weight_place + inner_stride, input_place + column_offset
    return a, b, c, d, e, f, g, h


@inlined
def _two(x, j, k, flat, weight, across, count, inner_stride):
    """Return ``W x`` for two rows, as `_four` does for four: two vectors at j, then two at k."""
    a, b, e, f = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
    c, d, g, h = a, b, e, f
    weight_place, input_place, vector_offset, inner_stride, column_offset = (
        place_along(flat, weight),
        place(x, 0, j),
        4 * (k - j),
        4 * inner_stride,
        4 * x.shape[1],
    )
    across = 4 * across
    for _ in range(count // 2):  # separate sums of even and odd inputs, so that fewer additions wait
        first_vector, other, v, w = (
            load_from(input_place),
            load_from(input_place + vector_offset),
            spread_from(weight_place),
            spread_from(weight_place + across),
        )
        a, e, b, f = a + v * first_vector, e + v * other, b + w * first_vector, f + w * other
        weight_place, input_place = weight_place + inner_stride, input_place + column_offset
        first_vector, other, v, w = (
            load_from(input_place),
            load_from(input_place + vector_offset),
            spread_from(weight_place),
            spread_from(weight_place + across),
        )
        c, g, d, h = c + v * first_vector, g + v * other, d + w * first_vector, h + w * other
        weight_place, input_place = weight_place + inner_stride, input_place + column_offset
    if count % 2:
        first_vector, other, v, w = (
            load_from(input_place),
            load_from(input_place + vector_offset),
            spread_from(weight_place),
            spread_from(weight_place + across),
        )
        a, e, b, f = a + v * first_vector, e + v * other, b + w * first_vector, f + w * other
    return a + c, b + d, e + g, f + h


@inlined
def layer_forward(x, y, preactivations, flat, weight, bias, count, inner_stride, across, rows, j, k, kind, leak):
    """Run a layer from inputs ``x`` to outputs ``y``, for all ``rows`` and the vectors of columns at j and k.

    With prelu, also store values before the activation in ``preactivations``. If ``rows`` is no multiple of the tile,
    the last row is computed repeatedly.
    """
    o = 0
    while o < rows:
        if rows - o > 2:
            p, q, r = o + 1, o + 2, min(o + 3, rows - 1)
            row_offsets = across, 2 * across, (r - o) * across
            a, b, c, d, e, f, g, h = _four(x, j, k, flat, weight + o * across, row_offsets, count, inner_stride)
            w = spread(flat, bias + o)
            a, e, w = a + w, e + w, spread(flat, bias + p)
            b, f, w = b + w, f + w, spread(flat, bias + q)
            c, g, w = c + w, g + w, spread(flat, bias + r)
            d, h = d + w, h + w
            if kind == PRELU:
                _put_two(preactivations, o, p, j, k, a, b, e, f)
                _put_two(preactivations, q, r, j, k, c, d, g, h)
            (c, g), (d, h) = _activated(c, g, kind, leak), _activated(d, h, kind, leak)
            _put_two(y, q, r, j, k, c, d, g, h)
        else:
            p = min(o + 1, rows - 1)
            a, b, e, f = _two(x, j, k, flat, weight + o * across, (p - o) * across, count, inner_stride)
            v, w = spread(flat, bias + o), spread(flat, bias + p)
            a, b, e, f = a + v, b + w, e + v, f + w
            if kind == PRELU:
                _put_two(preactivations, o, p, j, k, a, b, e, f)
        (a, e), (b, f) = _activated(a, e, kind, leak), _activated(b, f, kind, leak)
        _put_two(y, o, p, j, k, a, b, e, f)
        o += 4


@inlined
def _put_two(y, o, p, j, k, a, b, e, f):
    store(y, o, j, a)
    store(y, p, j, b)
    store(y, o, k, e)
    store(y, p, k, f)


@inlined
def copy(x, of, y, to, rows):
    """Copy ``rows`` rows of ``x``, beginning at row ``of``, to ``y``, beginning at row ``to``."""
    for k in range(rows):
        for j in range(0, y.shape[1], LANES):
            store(y, to + k, j, load(x, of + k, j))


@inlined
def input_gradient(x, y, value, flat, weight, count, inner_stride, across, n, last, kind, leak):
    """Backpropagate through a layer: write rows n to ``last`` - 1 of ``y`` (at most four), the gradient of its inputs.

    ``x`` is the gradient of the layer's outputs. ``value`` are the layer's inputs. The result includes the derivative
    of the activation ``kind`` that computed them.
    """
    p, q, r = min(n + 1, last - 1), min(n + 2, last - 1), last - 1
    row_offsets = (p - n) * across, (q - n) * across, (r - n) * across
    for j in range(0, y.shape[1], 2 * LANES):
        k = min(j + LANES, y.shape[1] - LANES)
        a, b, c, d, e, f, g, h = _four(x, j, k, flat, weight + n * across, row_offsets, count, inner_stride)
        if kind:
            a, e = _derived(a, load(value, n, j), kind, leak), _derived(e, load(value, n, k), kind, leak)
            b, f = _derived(b, load(value, p, j), kind, leak), _derived(f, load(value, p, k), kind, leak)
            c, g = _derived(c, load(value, q, j), kind, leak), _derived(g, load(value, q, k), kind, leak)
            d, h = _derived(d, load(value, r, j), kind, leak), _derived(h, load(value, r, k), kind, leak)
        _put_two(y, n, p, j, k, a, b, e, f)
        _put_two(y, q, r, j, k, c, d, g, h)


@inlined
def slope_of(gradient, preactivations, first, last, leak):
    """Return the share of rows ``first`` to ``last`` - 1 in the gradient of prelu's slope. Also multiply these rows of
    ``gradient`` by prelu's derivative. ``leak`` is the slope."""
    total_slope = splat(ZERO)
    for i in range(first, last):
        for j in range(0, gradient.shape[1], LANES):
            grad, value = load(gradient, i, j), load(preactivations, i, j)
            total_slope += grad * where_less(value, ZERO, value, ZERO)
            store(gradient, i, j, grad * where_less(ZERO, value, ONE, leak))
    return total(total_slope)


@inlined
def outer(layer_input, gradient, grad, weight, bias, inputs, inner_stride, across, n, last):
    """Write the gradient of a layer's weight and bias (`Columns.outer`) to ``grad``, for outputs n to ``last`` - 1 (at
    most four). ``gradient`` is the gradient of the layer's outputs."""
    p, q, r = min(n + 1, last - 1), min(n + 2, last - 1), last - 1
    a, b, c, d = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
    for j in range(0, gradient.shape[1], LANES):
        a, b = a + load(gradient, n, j), b + load(gradient, p, j)
        c, d = c + load(gradient, q, j), d + load(gradient, r, j)
    sums = totals(a, b, c, d)
    put(grad, bias + n, sums[0])
    put(grad, bias + p, sums[1])
    put(grad, bias + q, sums[2])
    put(grad, bias + r, sums[3])
    for o in range(n, last, 2):
        p = min(o + 1, last - 1)
        for i in range(0, inputs, 4):
            i1, i2, i3 = min(i + 1, inputs - 1), min(i + 2, inputs - 1), min(i + 3, inputs - 1)
            a, b, c, d = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
            e, f, g, h = a, b, c, d
            for j in range(0, gradient.shape[1], LANES):
                first_vector, other, v, w = (
                    load(gradient, o, j),
                    load(gradient, p, j),
                    load(layer_input, i, j),
                    load(layer_input, i1, j),
                )
                a, e, b, f = a + first_vector * v, e + other * v, b + first_vector * w, f + other * w
                v, w = load(layer_input, i2, j), load(layer_input, i3, j)
                c, g, d, h = c + first_vector * v, g + other * v, d + first_vector * w, h + other * w
            at, to = weight + o * across, weight + p * across
            sums, other_sums = totals(a, b, c, d), totals(e, f, g, h)
            put(grad, at + i * inner_stride, sums[0])
            put(grad, at + i1 * inner_stride, sums[1])
            put(grad, at + i2 * inner_stride, sums[2])
            put(grad, at + i3 * inner_stride, sums[3])
            put(grad, to + i * inner_stride, other_sums[0])
            put(grad, to + i1 * inner_stride, other_sums[1])
            put(grad, to + i2 * inner_stride, other_sums[2])
            put(grad, to + i3 * inner_stride, other_sums[3])
