"""A layer of one member's network in compiled code, for activations ``[features, columns]``: products, activations.

Products are computed in tiles of four rows and ``TILE`` = 32 columns, with the sums of a tile in registers. Importing
this requires Numba. These names of arguments have one meaning:

    layer                  a `Layer`
    params [D]             parameters of one member
    x, y                   inputs ``[num_in, columns]`` and outputs ``[num_out, columns]`` of a layer
    preacts                outputs before the activation, only used with prelu
    x_grads, y_grads       gradients of inputs and outputs
    column                 the first of the 32 columns that a function computes
    activation, leak       a value of `ACTIVATIONS`, and the slope of leakyrelu or prelu below 0
"""

from typing import NamedTuple

import numpy as np

from models.machine import compiled, inlined
from models.vectors import (
    LANES,
    TILE,
    address,
    entry,
    load,
    read_number,
    read_tile,
    store,
    total,
    where_less,
    zero_tile,
    zeros,
)

IDENTITY, RELU, LEAKY, TANH, PRELU = range(5)
ACTIVATIONS = {"identity": IDENTITY, "relu": RELU, "leakyrelu": LEAKY, "tanh": TANH, "prelu": PRELU}
ZERO, ONE = np.float32(0), np.float32(1)
_TANH_LIMIT = np.float32(8.01773357391357422)  # tanh of larger numbers is 1


class Layer(NamedTuple):
    """A layer of a network, and the positions of its weights and biases in a member's parameters ``[D]``."""

    num_in: int
    num_out: int
    weight: int  # position of the first weight
    bias: int  # position of the first bias
    in_stride: int  # distance between the weights of adjacent inputs
    out_stride: int  # distance between the weights of adjacent outputs


@compiled
def tanh_fraction(x):
    """Return numerator p and denominator q of tanh(x), elementwise for a number or a vector x: two polynomials from
    Eigen's rational approximation, whose quotient equals `torch.tanh` up to some units in the last place."""
    # Clip x to [-_TANH_LIMIT, _TANH_LIMIT]; ``where_less(x, y, a, b)`` is a if x < y, else b.
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
    """Return the activation function ``activation`` of x, a number or a vector, elementwise."""
    if activation == RELU:
        return where_less(x, ZERO, ZERO, x)  # 0 if x < 0, else x
    if activation == TANH:
        numerator, denominator = tanh_fraction(x)
        return numerator / denominator
    if activation == IDENTITY:
        return x
    return where_less(ZERO, x, x, leak * x)  # leakyrelu or prelu


@inlined
def _four_rows(x, column, params, weight, row_offsets, num_terms, term_stride):
    """Return four rows of the matrix product ``W x``, in the 32 columns of ``x [num_terms, columns]`` from ``column``
    on. The first of these rows of W begins at position ``weight`` of a member's parameters ``params [D]``. The others
    begin ``row_offsets``, three distances, after it. Adjacent numbers of a row are ``term_stride`` apart."""
    sum1, sum2, sum3, sum4 = zero_tile(), zero_tile(), zero_tile(), zero_tile()
    # Addresses and distances in bytes: a float32 has four.
    weight_address, input_address = address(params, weight), address(x, 0, column)
    offset2, offset3, offset4 = 4 * row_offsets[0], 4 * row_offsets[1], 4 * row_offsets[2]
    for _ in range(num_terms):
        inputs = read_tile(input_address)
        sum1 += read_number(weight_address) * inputs
        sum2 += read_number(weight_address + offset2) * inputs
        sum3 += read_number(weight_address + offset3) * inputs
        sum4 += read_number(weight_address + offset4) * inputs
        weight_address, input_address = weight_address + 4 * term_stride, input_address + 4 * x.shape[1]
    return sum1, sum2, sum3, sum4


@inlined
def _two_rows(x, column, params, weight, row_offset, num_terms, term_stride):
    """Return two rows of the matrix product ``W x``, like `_four_rows`, which describes the arguments. The second row
    of W begins ``row_offset`` numbers after the first row."""
    # The sums of odd terms are separate, so that the processor can add to both at the same time.
    sum1, sum2, odd_sum1, odd_sum2 = zero_tile(), zero_tile(), zero_tile(), zero_tile()
    weight_address, input_address = address(params, weight), address(x, 0, column)
    weight_step, input_step, offset = 4 * term_stride, 4 * x.shape[1], 4 * row_offset
    for _ in range(num_terms // 2):
        inputs, odd_inputs = read_tile(input_address), read_tile(input_address + input_step)
        sum1 += read_number(weight_address) * inputs
        sum2 += read_number(weight_address + offset) * inputs
        weight_address += weight_step
        odd_sum1 += read_number(weight_address) * odd_inputs
        odd_sum2 += read_number(weight_address + offset) * odd_inputs
        weight_address, input_address = weight_address + weight_step, input_address + 2 * input_step
    if num_terms % 2:
        inputs = read_tile(input_address)
        sum1 += read_number(weight_address) * inputs
        sum2 += read_number(weight_address + offset) * inputs
    return sum1 + odd_sum1, sum2 + odd_sum2


@inlined
def layer_forward(layer, params, x, y, preacts, column, activation, leak):
    """Forward pass of a `Layer` with a member's parameters ``params [D]``, for 32 columns of ``x [num_in, columns]``
    from ``column`` on (mirrors `Columns.affine`). Write its outputs to ``y [num_out, columns]`` and, with prelu, the
    values before the activation to ``preacts``.

    Rows are computed four at a time, and the last one or two rows as a pair. If three rows or a single row are left,
    the last row is computed twice."""
    last = layer.num_out - 1
    num_in, in_stride, out_stride = layer.num_in, layer.in_stride, layer.out_stride
    for row in range(0, layer.num_out, 4):
        row2, row3, row4 = min(row + 1, last), min(row + 2, last), min(row + 3, last)
        first = layer.weight + row * out_stride  # position of the first weight of this row
        if last - row > 1:  # at least three rows are left
            offsets = out_stride, 2 * out_stride, (row4 - row) * out_stride  # row4 may be row3
            sum1, sum2, sum3, sum4 = _four_rows(x, column, params, first, offsets, num_in, in_stride)
            _write_outputs(sum3, layer, params, y, preacts, row3, column, activation, leak)
            _write_outputs(sum4, layer, params, y, preacts, row4, column, activation, leak)
        else:
            sum1, sum2 = _two_rows(x, column, params, first, (row2 - row) * out_stride, num_in, in_stride)
        _write_outputs(sum1, layer, params, y, preacts, row, column, activation, leak)
        _write_outputs(sum2, layer, params, y, preacts, row2, column, activation, leak)


@inlined
def _write_outputs(product, layer, params, y, preacts, row, column, activation, leak):
    """Write the activation of ``product`` plus bias, 32 outputs of a layer, to ``y[row]`` from ``column`` on. With
    prelu, also write the sum before the activation to ``preacts[row]``."""
    preact = product + entry(params, layer.bias + row)
    if activation == PRELU:
        store(preact, preacts, row, column)
    store(activate(preact, activation, leak), y, row, column)


@inlined
def copy(source, source_row, target, target_row, num_rows):
    """Copy ``num_rows`` rows of ``source``, beginning with ``source_row``, to the rows of ``target`` from
    ``target_row`` on. All columns of ``target`` are copied, a multiple of 16."""
    for i in range(num_rows):
        for column in range(0, target.shape[1], LANES):
            store(load(source, source_row + i, column), target, target_row + i, column)


@inlined
def input_gradient(layer, params, y_grads, x, x_grads, first, end, activation, leak):
    """Backpropagate through a `Layer` and then through the ``activation`` that computed its inputs ``x`` (mirrors
    `Columns.input_gradient`). From the gradient of its outputs, ``y_grads [num_out, columns]``, compute the rows
    ``first`` to ``end`` - 1 (at most four) of ``x_grads [num_in, columns]``. prelu is left to `slope_gradient`."""
    # With fewer than four rows, the last row is computed repeatedly.
    row2, row3, row4 = min(first + 1, end - 1), min(first + 2, end - 1), end - 1
    in_stride, position = layer.in_stride, layer.weight + first * layer.in_stride
    offsets = (row2 - first) * in_stride, (row3 - first) * in_stride, (row4 - first) * in_stride
    for column in range(0, x_grads.shape[1], TILE):
        grad1, grad2, grad3, grad4 = _four_rows(
            y_grads, column, params, position, offsets, layer.num_out, layer.out_stride
        )
        _write_input_gradient(grad1, x, x_grads, first, column, activation, leak)
        _write_input_gradient(grad2, x, x_grads, row2, column, activation, leak)
        _write_input_gradient(grad3, x, x_grads, row3, column, activation, leak)
        _write_input_gradient(grad4, x, x_grads, row4, column, activation, leak)


@inlined
def _write_input_gradient(gradient, x, x_grads, row, column, activation, leak):
    """Write ``gradient`` times the derivative of the activation to ``x_grads[row]``, in 32 columns from ``column`` on.
    The derivative is computed from the output ``x`` of the activation (`MLP.backward`)."""
    output = read_tile(address(x, row, column))
    if activation == RELU:
        gradient = where_less(ZERO, output, gradient, ZERO)
    elif activation == TANH:
        gradient = gradient * (ONE - output * output)
    elif activation == LEAKY:
        gradient = gradient * where_less(ZERO, output, ONE, leak)
    store(gradient, x_grads, row, column)


@inlined
def slope_gradient(grads, preacts, first, end, leak):
    """Backpropagate through prelu with slope ``leak``, in rows ``first`` to ``end`` - 1 (mirrors `MLP.backward`).
    ``grads [features, columns]`` is the gradient of its outputs, and ``preacts`` are its inputs. Multiply these rows
    of ``grads`` by prelu's derivative, in place. Return the gradient of the slope, summed over these rows."""
    slope_grad = zeros()
    for row in range(first, end):
        for column in range(0, grads.shape[1], LANES):
            gradient, preact = load(grads, row, column), load(preacts, row, column)
            slope_grad += gradient * where_less(preact, ZERO, preact, ZERO)  # the slope multiplies numbers below 0
            store(gradient * where_less(ZERO, preact, ONE, leak), grads, row, column)
    return total(slope_grad)


@inlined
def weight_gradient(layer, x, y_grads, grad, first, end):
    """Write the gradients of the weights and biases of a `Layer` to ``grad [D]``, for its outputs ``first`` to ``end``
    - 1, at most four (mirrors `Columns.weight_gradient`). ``x [num_in, columns]`` are its inputs, and ``y_grads
    [num_out, columns]`` is the gradient of its outputs.

    Weights are processed in tiles of two outputs and four inputs. At the end, a tile repeats the last output or input,
    and so stores the same gradient several times."""
    last = layer.num_in - 1
    for out in range(first, end):
        bias_grad = zeros()
        for column in range(0, y_grads.shape[1], LANES):
            bias_grad += load(y_grads, out, column)
        store(total(bias_grad), grad, layer.bias + out)
    for out1 in range(first, end, 2):
        out2 = min(out1 + 1, end - 1)
        for in1 in range(0, layer.num_in, 4):
            in2, in3, in4 = min(in1 + 1, last), min(in1 + 2, last), min(in1 + 3, last)
            a1, a2, a3, a4 = zeros(), zeros(), zeros(), zeros()  # products of out1 with in1 to in4
            b1, b2, b3, b4 = a1, a2, a3, a4  # products of out2
            for column in range(0, y_grads.shape[1], LANES):
                grad1, grad2 = load(y_grads, out1, column), load(y_grads, out2, column)
                x1, x2 = load(x, in1, column), load(x, in2, column)
                a1, b1, a2, b2 = a1 + grad1 * x1, b1 + grad2 * x1, a2 + grad1 * x2, b2 + grad2 * x2
                x3, x4 = load(x, in3, column), load(x, in4, column)
                a3, b3, a4, b4 = a3 + grad1 * x3, b3 + grad2 * x3, a4 + grad1 * x4, b4 + grad2 * x4
            inputs = in1, in2, in3, in4
            _store_totals(grad, layer.weight + out1 * layer.out_stride, layer.in_stride, inputs, a1, a2, a3, a4)
            _store_totals(grad, layer.weight + out2 * layer.out_stride, layer.in_stride, inputs, b1, b2, b3, b4)


@inlined
def _store_totals(grad, begin, stride, indices, a, b, c, d):
    """Store the sums of the four vectors a to d in ``grad [D]``: the sum of a at ``begin + stride * indices[0]``, the
    sum of b at ``begin + stride * indices[1]``, and so on."""
    store(total(a), grad, begin + stride * indices[0])
    store(total(b), grad, begin + stride * indices[1])
    store(total(c), grad, begin + stride * indices[2])
    store(total(d), grad, begin + stride * indices[3])
