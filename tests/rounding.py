"""How far two float32 results of one formula may lie apart: tolerances from rounding error analysis.

A float32 operation has a relative error of at most u = 2^-24. A sum of n products, in any order and with or without
fused operations, has an error of at most gamma_n times the sum of the absolute products, gamma_n = n u / (1 - n u)
(Higham 2002, Accuracy and Stability of Numerical Algorithms, lemma 3.1 and equation 3.5; chapter 4 for sums).
Processors and libraries differ in the order of sums alone, so two results differ by at most twice that.

`affine` and `stack` carry this bound through layers: an error of inputs goes on through absolute weights, an activation
multiplies it by its largest slope (Higham 2002, section 3.3, running error analysis).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

UNIT = torch.finfo(torch.float32).eps / 2
FUNCTION = 8  # roundings that an elementary function may cost: libraries promise 1 to 4 units in the last place
STEEPEST = 1.1  # slope of an activation: 1.0999 of SiLU

Layers = Sequence[tuple[Tensor, Tensor]]  # weights [out, in] and biases [out]


def gamma(length: float) -> float:
    """Largest relative error of ``length`` roundings one after another."""
    assert 0 <= length * UNIT < 0.5, "the bound says nothing of so many roundings"
    return length * UNIT / (1 - length * UNIT)


def assert_near(actual: Any, expected: Any, error: Any) -> None:
    """Assert that two float32 results differ by rounding alone: by at most twice ``error``, the error bound of one
    result, a number or broadcast. The usual bound is ``gamma(n)`` times the sum of the absolute terms. NaN equals NaN.
    """
    actual, expected, error = (torch.as_tensor(x).detach().double() for x in (actual, expected, error))
    assert actual.shape == expected.shape, f"shapes {list(actual.shape)} and {list(expected.shape)}"
    off, allowed = (actual - expected).abs(), 2 * error.expand(expected.shape)
    wrong = ~((off <= allowed) | (actual == expected) | (actual.isnan() & expected.isnan()))
    assert not wrong.any(), (
        f"{int(wrong.sum())} of {wrong.numel()} differ by more than rounding, by up to {off[wrong].max():.3g} "
        f"and {(off / allowed)[wrong].max():.3g} times what is allowed"
    )


def steps(*widths: int) -> int:
    """Roundings of a chain of layers with these numbers of inputs: products, sums, bias, activation."""
    return sum(width + 1 + FUNCTION for width in widths)


def backpropagated(widths: Sequence[int], batch: int) -> float:
    """Relative error bound of gradients through a chain of layers with these numbers of inputs and outputs, whose terms
    are summed over a batch: forth, back, and the last sum."""
    return gamma(2 * steps(*widths) + batch)


def affine(x: Tensor, weight: Tensor, bias: Tensor, error: Tensor | float = 0.0) -> Tensor:
    """Error bound of ``x [B, in] @ weight.T + bias``, float64 ``[B, out]``; ``error`` is that of ``x``."""
    x, weight, bias = (tensor.detach().double().abs() for tensor in (x, weight, bias))
    carried = torch.as_tensor(error).double().expand_as(x) @ weight.T
    return carried + gamma(weight.shape[1] + 1) * (x @ weight.T + bias)


def stack(layers: Layers, activation: Any, x: Tensor, error: Tensor | float = 0.0) -> tuple[Tensor, Tensor]:
    """Outputs ``[B, out]`` of linear layers with an activation between them, in float64, and the error bound of float32
    outputs. Slopes of the ``activation`` are at most `STEEPEST`. Inputs ``x [B, in]`` have an error of at most
    ``error``."""
    x, error = x.detach().double(), torch.as_tensor(error).double().expand(x.shape)
    for i, (weight, bias) in enumerate(layers):
        weight, bias = weight.detach().double(), bias.detach().double()
        x, error = x @ weight.T + bias, affine(x, weight, bias, error)
        if i < len(layers) - 1:
            x = activation(x)
            error = STEEPEST * error + FUNCTION * UNIT * x.abs()
    return x, error
