"""A layer of one member's network in compiled code, for activations ``[features, columns]``: products, activations.

Products are computed in tiles of four rows and two vectors of columns (``left`` and ``right`` are the first columns of
these vectors of 16), with the sums of a tile in registers. ``left3`` is the vector in row 3 of a tile at columns
``left``. A layer's weights begin at position ``weight`` of a member's parameters ``params [D]``, its biases at position
``bias``. ``in_stride`` is the distance between the weights of adjacent inputs, ``out_stride`` of adjacent outputs.
Importing this requires Numba.
"""

import numpy as np

from models.machine import compiled, inlined
from models.vectors import LANES, address, load, load_from, splat, spread, spread_from, store, total, totals, where_less

ACTIVATIONS = {"identity": 0, "relu": 1, "leakyrelu": 2, "tanh": 3, "prelu": 4}
RELU, LEAKY, TANH, PRELU = 1, 2, 3, 4
ZERO, ONE = np.float32(0), np.float32(1)
_TANH_LIMIT = np.float32(8.01773357391357422)  # tanh of larger numbers is 1


@compiled
def tanh_fraction(x):
    """Return numerator and denominator of tanh(x), elementwise for a number or a vector x. They are two polynomials
    from Eigen's rational approximation, whose quotient equals `torch.tanh` up to some units in the last place."""
    x = where_less(x, -_TANH_LIMIT, -_TANH_LIMIT, x)
    x = where_less(_TANH_LIMIT, x, _TANH_LIMIT, x)
    square = x * x
    p = square * np.float32(1.394553628e-8) + np.float32(2.102733560e-5)
    p = square * p + np.float32(3.520756727e-3)
    p = square * p + np.float32(1.340216100e-1)
    p = square * p + ONE
    q = square * np.float32(8.015776984e-7) + np.float32(3.326951409e-4)
    q = square * q + np.float32(2.597254514e-2)
    q = square * q + np.float32(4.673548340e-1)
    return x * p, square * q + ONE


@inlined
def activate(x, activation, leak):
    """Return ``activation`` (a number in `ACTIVATIONS`) of the number x. ``leak`` is the slope of leakyrelu or prelu
    below 0."""
    if activation == RELU:
        return where_less(x, ZERO, ZERO, x)
    if activation == TANH:
        numerator, denominator = tanh_fraction(x)
        return numerator / denominator
    return where_less(ZERO, x, x, leak * x) if activation else x  # leakyrelu or prelu


@inlined
def _apply_activation(x, y, activation, leak):
    """Return ``activation`` (a number in `ACTIVATIONS`) of two vectors x and y. ``leak`` is the slope of leakyrelu or
    prelu below 0."""
    if activation == RELU:
        x, y = where_less(x, ZERO, ZERO, x), where_less(y, ZERO, ZERO, y)
    elif activation == TANH:
        (x_numerator, x_denominator), (y_numerator, y_denominator) = tanh_fraction(x), tanh_fraction(y)
        inverse_product = ONE / (x_denominator * y_denominator)  # one division for both, because it is slowest
        x, y = x_numerator * y_denominator * inverse_product, y_numerator * x_denominator * inverse_product
    elif activation:  # leakyrelu or prelu
        x, y = where_less(ZERO, x, x, leak * x), where_less(ZERO, y, y, leak * y)
    return x, y


@inlined
def _times_derivative(gradient, output, activation, leak):
    """Return the vector ``gradient`` times the derivative of ``activation`` (a number in `ACTIVATIONS`). The derivative
    is computed from the ``output`` of the activation (`products.activation_gradient`). For prelu, return ``gradient``
    unchanged: `slope_gradient` multiplies it."""
    if activation == RELU:
        gradient = where_less(ZERO, output, gradient, ZERO)
    elif activation == TANH:
        gradient = gradient * (ONE - output * output)
    elif activation == LEAKY:
        gradient = gradient * where_less(ZERO, output, ONE, leak)
    return gradient


@inlined
def _four_rows(x, left, right, params, weight, row_offsets, num_terms, term_stride):
    """Return four rows of the product ``W x``, a tile: in the 16 columns of ``x [num_terms, columns]`` from ``left``
    on, and in the 16 from ``right`` on. The result is the four left vectors, then the four right ones. The first row of
    W begins at position ``weight`` of a member's parameters ``params [D]``, and the other three begin ``row_offsets``
    numbers after it. Adjacent numbers of a row are ``term_stride`` apart."""
    left1, left2, left3, left4 = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
    right1, right2, right3, right4 = left1, left2, left3, left4
    # Addresses and distances in bytes: a float32 has four.
    weight_address, input_address = address(params, weight), address(x, 0, left)
    right_offset, weight_step, input_step = 4 * (right - left), 4 * term_stride, 4 * x.shape[1]
    offset2, offset3, offset4 = 4 * row_offsets[0], 4 * row_offsets[1], 4 * row_offsets[2]
    for _ in range(num_terms):  # each term: a weight of every row, times one row of ``x``
        left_x, right_x = load_from(input_address), load_from(input_address + right_offset)
        w1, w2 = spread_from(weight_address), spread_from(weight_address + offset2)
        left1, right1 = left1 + w1 * left_x, right1 + w1 * right_x
        left2, right2 = left2 + w2 * left_x, right2 + w2 * right_x
        w3, w4 = spread_from(weight_address + offset3), spread_from(weight_address + offset4)
        left3, right3 = left3 + w3 * left_x, right3 + w3 * right_x
        left4, right4 = left4 + w4 * left_x, right4 + w4 * right_x
        weight_address, input_address = weight_address + weight_step, input_address + input_step
    return left1, left2, left3, left4, right1, right2, right3, right4


@inlined
def _two_rows(x, left, right, params, weight, row_offset, num_terms, term_stride):
    """Return two rows of the product ``W x``: in the 16 columns of ``x [num_terms, columns]`` from ``left`` on, and in
    the 16 from ``right`` on. The result is two left vectors, then two right ones. The first row of W begins at position
    ``weight`` of a member's parameters ``params [D]``, the second ``row_offset`` numbers later. Adjacent numbers of a
    row are ``term_stride`` apart."""
    left1, left2, right1, right2 = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
    # The sums of odd terms are separate, so that the processor can add to both at the same time.
    odd_left1, odd_left2, odd_right1, odd_right2 = left1, left2, right1, right2
    # Addresses and distances in bytes: a float32 has four.
    weight_address, input_address = address(params, weight), address(x, 0, left)
    right_offset, weight_step, input_step = 4 * (right - left), 4 * term_stride, 4 * x.shape[1]
    offset2 = 4 * row_offset
    for _ in range(num_terms // 2):
        left_x, right_x = load_from(input_address), load_from(input_address + right_offset)
        w1, w2 = spread_from(weight_address), spread_from(weight_address + offset2)
        left1, right1 = left1 + w1 * left_x, right1 + w1 * right_x
        left2, right2 = left2 + w2 * left_x, right2 + w2 * right_x
        weight_address, input_address = weight_address + weight_step, input_address + input_step
        left_x, right_x = load_from(input_address), load_from(input_address + right_offset)
        w1, w2 = spread_from(weight_address), spread_from(weight_address + offset2)
        odd_left1, odd_right1 = odd_left1 + w1 * left_x, odd_right1 + w1 * right_x
        odd_left2, odd_right2 = odd_left2 + w2 * left_x, odd_right2 + w2 * right_x
        weight_address, input_address = weight_address + weight_step, input_address + input_step
    if num_terms % 2:
        left_x, right_x = load_from(input_address), load_from(input_address + right_offset)
        w1, w2 = spread_from(weight_address), spread_from(weight_address + offset2)
        left1, right1 = left1 + w1 * left_x, right1 + w1 * right_x
        left2, right2 = left2 + w2 * left_x, right2 + w2 * right_x
    return left1 + odd_left1, left2 + odd_left2, right1 + odd_right1, right2 + odd_right2


@inlined
def layer_forward(x, y, z, params, weight, bias, num_in, in_stride, out_stride, num_out, left, right, activation, leak):
    """Run a layer on the inputs ``x [num_in, columns]``: write all ``num_out`` rows of its outputs to ``y``, in the 16
    columns from ``left`` on and the 16 from ``right`` on. With prelu, also write the values before the activation to
    ``z``. In a member's parameters ``params [D]``, the layer's weights begin at position ``weight`` and its biases at
    ``bias``. The weights of adjacent inputs are ``in_stride`` apart, and of adjacent outputs ``out_stride``.

    Rows are computed four at a time, and the last one or two rows as a pair. To fill a four or a pair, the last row is
    computed twice."""
    row1 = 0
    while row1 < num_out:
        if num_out - row1 > 2:  # at least three rows are left
            row2, row3, row4 = row1 + 1, row1 + 2, min(row1 + 3, num_out - 1)
            offsets = out_stride, 2 * out_stride, (row4 - row1) * out_stride
            left1, left2, left3, left4, right1, right2, right3, right4 = _four_rows(
                x, left, right, params, weight + row1 * out_stride, offsets, num_in, in_stride
            )
            b1, b2 = spread(params, bias + row1), spread(params, bias + row2)
            left1, right1, left2, right2 = left1 + b1, right1 + b1, left2 + b2, right2 + b2
            b3, b4 = spread(params, bias + row3), spread(params, bias + row4)
            left3, right3, left4, right4 = left3 + b3, right3 + b3, left4 + b4, right4 + b4
            if activation == PRELU:
                _store_tile(z, row1, row2, left, right, left1, left2, right1, right2)
                _store_tile(z, row3, row4, left, right, left3, left4, right3, right4)
            left3, right3 = _apply_activation(left3, right3, activation, leak)
            left4, right4 = _apply_activation(left4, right4, activation, leak)
            _store_tile(y, row3, row4, left, right, left3, left4, right3, right4)
        else:
            row2 = min(row1 + 1, num_out - 1)
            left1, left2, right1, right2 = _two_rows(
                x, left, right, params, weight + row1 * out_stride, (row2 - row1) * out_stride, num_in, in_stride
            )
            b1, b2 = spread(params, bias + row1), spread(params, bias + row2)
            left1, left2, right1, right2 = left1 + b1, left2 + b2, right1 + b1, right2 + b2
            if activation == PRELU:
                _store_tile(z, row1, row2, left, right, left1, left2, right1, right2)
        left1, right1 = _apply_activation(left1, right1, activation, leak)
        left2, right2 = _apply_activation(left2, right2, activation, leak)
        _store_tile(y, row1, row2, left, right, left1, left2, right1, right2)
        row1 += 4


@inlined
def _store_tile(array, row1, row2, left, right, left1, left2, right1, right2):
    """Store four vectors of 16 numbers in two rows of ``array``: ``left1`` and ``right1`` in ``row1``, from columns
    ``left`` and ``right`` on; ``left2`` and ``right2`` at the same columns of ``row2``."""
    store(left1, array, row1, left)
    store(left2, array, row2, left)
    store(right1, array, row1, right)
    store(right2, array, row2, right)


@inlined
def copy(source, source_row, target, target_row, num_rows):
    """Copy ``num_rows`` rows of ``source``, beginning with ``source_row``, to the rows of ``target`` from
    ``target_row`` on. All columns of ``target`` are copied, a multiple of 16."""
    for i in range(num_rows):
        for column in range(0, target.shape[1], LANES):
            store(load(source, source_row + i, column), target, target_row + i, column)


@inlined
def input_gradient(y_grads, x_grads, x, params, weight, num_out, out_stride, in_stride, first, end, activation, leak):
    """Backpropagate through a layer: from ``y_grads [num_out, columns]``, the gradient of its outputs, compute rows
    ``first`` to ``end`` - 1 (at most four) of ``x_grads``, the gradient of its inputs ``x``. Then multiply them by the
    derivative of the ``activation`` that computed ``x``; for prelu, `slope_gradient` does this. The layer's weights
    begin at position ``weight`` of a member's parameters ``params [D]``. The weights of adjacent inputs are
    ``in_stride`` apart, and of adjacent outputs ``out_stride``."""
    # With fewer than four rows, the last one is computed repeatedly.
    row2, row3, row4 = min(first + 1, end - 1), min(first + 2, end - 1), end - 1
    offsets = (row2 - first) * in_stride, (row3 - first) * in_stride, (row4 - first) * in_stride
    for left in range(0, x_grads.shape[1], 2 * LANES):
        right = min(left + LANES, x_grads.shape[1] - LANES)
        left1, left2, left3, left4, right1, right2, right3, right4 = _four_rows(
            y_grads, left, right, params, weight + first * in_stride, offsets, num_out, out_stride
        )
        if activation:
            left1 = _times_derivative(left1, load(x, first, left), activation, leak)
            right1 = _times_derivative(right1, load(x, first, right), activation, leak)
            left2 = _times_derivative(left2, load(x, row2, left), activation, leak)
            right2 = _times_derivative(right2, load(x, row2, right), activation, leak)
            left3 = _times_derivative(left3, load(x, row3, left), activation, leak)
            right3 = _times_derivative(right3, load(x, row3, right), activation, leak)
            left4 = _times_derivative(left4, load(x, row4, left), activation, leak)
            right4 = _times_derivative(right4, load(x, row4, right), activation, leak)
        _store_tile(x_grads, first, row2, left, right, left1, left2, right1, right2)
        _store_tile(x_grads, row3, row4, left, right, left3, left4, right3, right4)


@inlined
def slope_gradient(grads, preacts, first, end, leak):
    """Return what rows ``first`` to ``end`` - 1 contribute to the gradient of prelu's slope ``leak``. Also multiply
    these rows of ``grads [features, columns]`` by prelu's derivative at ``preacts``, in place."""
    slope_grad = splat(ZERO)
    for row in range(first, end):
        for column in range(0, grads.shape[1], LANES):
            gradient, preact = load(grads, row, column), load(preacts, row, column)
            slope_grad += gradient * where_less(preact, ZERO, preact, ZERO)  # the slope multiplies numbers below 0
            store(gradient * where_less(ZERO, preact, ONE, leak), grads, row, column)
    return total(slope_grad)


@inlined
def outer(x, y_grads, grad, weight, bias, num_in, in_stride, out_stride, first, end):
    """Write the gradients of a layer's weights (`Columns.weight_gradient`) and biases to ``grad [D]``, for outputs
    ``first`` to ``end`` - 1, at most four. ``x [num_in, columns]`` are the layer's inputs, ``y_grads`` is the gradient
    of its outputs. The weights begin at position ``weight`` of ``grad``, and the biases at ``bias``. The weights of
    adjacent inputs are ``in_stride`` apart, and of adjacent outputs ``out_stride``.

    The weights are processed in tiles of two outputs and four inputs. If a tile has fewer, the missing ones are the
    last output or input again, whose gradients are stored several times with the same value."""
    last = end - 1
    row2, row3, row4 = min(first + 1, last), min(first + 2, last), min(first + 3, last)  # of ``y_grads``
    sum1, sum2, sum3, sum4 = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)
    for column in range(0, y_grads.shape[1], LANES):
        sum1, sum2 = sum1 + load(y_grads, first, column), sum2 + load(y_grads, row2, column)
        sum3, sum4 = sum3 + load(y_grads, row3, column), sum4 + load(y_grads, row4, column)
    bias_grads = totals(sum1, sum2, sum3, sum4)  # each is a sum over all columns
    store(bias_grads[0], grad, bias + first)
    store(bias_grads[1], grad, bias + row2)
    store(bias_grads[2], grad, bias + row3)
    store(bias_grads[3], grad, bias + row4)
    for out1 in range(first, end, 2):
        out2 = min(out1 + 1, end - 1)
        for in1 in range(0, num_in, 4):
            in2, in3, in4 = min(in1 + 1, num_in - 1), min(in1 + 2, num_in - 1), min(in1 + 3, num_in - 1)
            a1, a2, a3, a4 = splat(ZERO), splat(ZERO), splat(ZERO), splat(ZERO)  # products of out1 with in1 to in4
            b1, b2, b3, b4 = a1, a2, a3, a4  # products of out2
            for column in range(0, y_grads.shape[1], LANES):
                grad1, grad2 = load(y_grads, out1, column), load(y_grads, out2, column)
                x1, x2 = load(x, in1, column), load(x, in2, column)
                a1, b1, a2, b2 = a1 + grad1 * x1, b1 + grad2 * x1, a2 + grad1 * x2, b2 + grad2 * x2
                x3, x4 = load(x, in3, column), load(x, in4, column)
                a3, b3, a4, b4 = a3 + grad1 * x3, b3 + grad2 * x3, a4 + grad1 * x4, b4 + grad2 * x4
            position1, position2 = weight + out1 * out_stride, weight + out2 * out_stride  # of the first weights
            grads1, grads2 = totals(a1, a2, a3, a4), totals(b1, b2, b3, b4)
            store(grads1[0], grad, position1 + in1 * in_stride)
            store(grads1[1], grad, position1 + in2 * in_stride)
            store(grads1[2], grad, position1 + in3 * in_stride)
            store(grads1[3], grad, position1 + in4 * in_stride)
            store(grads2[0], grad, position2 + in1 * in_stride)
            store(grads2[1], grad, position2 + in2 * in_stride)
            store(grads2[2], grad, position2 + in3 * in_stride)
            store(grads2[3], grad, position2 + in4 * in_stride)
