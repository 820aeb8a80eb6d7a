"""How far two float32 results of one formula may lie apart: tolerances from rounding error analysis.

A float32 operation has a relative error of at most u = 2^-24. A sum of n products, in any order and with or without
fused operations, has an error of at most gamma_n times the sum of the absolute products, gamma_n = n u / (1 - n u)
(Higham 2002, Accuracy and Stability of Numerical Algorithms, lemma 3.1 and equation 3.5; chapter 4 for sums).
Processors and libraries differ in the order of sums alone, so two results differ by at most twice that.

`affine` and `Stack` carry this bound through layers: an error of inputs goes on through absolute weights, an activation
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


class Stack:
    """Error bounds of linear layers with an activation between them.

    Args:
        layers: weights ``[out, in]`` and biases ``[out]``.
        activation: as torch computes it. Its slopes are at most `STEEPEST`, and its slope changes by at most 1 where
            its argument does by 1, except at kinks.
        x: inputs ``[B, in]``, with an error of at most ``error``.
    """

    def __init__(self, layers: Layers, activation: Any, x: Tensor, error: Tensor | float = 0.0):
        self.layers = [(weight.detach().double(), bias.detach().double()) for weight, bias in layers]
        x, error = x.detach().double(), torch.as_tensor(error).double().expand(x.shape)
        self.inputs, self.arguments, self.slopes = [(x, error)], list[tuple[Tensor, Tensor]](), list[Tensor]()
        for i, (weight, bias) in enumerate(self.layers):
            x, error = x @ weight.T + bias, affine(x, weight, bias, error)
            if i < len(self.layers) - 1:
                self.arguments.append((x, error))
                z = x.clone().requires_grad_()
                with torch.enable_grad():
                    h = activation(z)
                    self.slopes.append(torch.autograd.grad(h.sum(), z)[0].abs())
                x, error = h.detach(), STEEPEST * error + FUNCTION * UNIT * h.detach().abs()
                self.inputs.append((x, error))
        self.outputs, self.error = x, error

    def backward(
        self, upstream: Tensor, error: Tensor | float = 0.0
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor]:
        """Error bounds of gradients, if the outputs have ``upstream [B, out]``.

        Returns:
            Those of all weights and biases; of the inputs ``[B, in]``; of a slope that all activations share.
        """
        gradient, wrong = upstream.detach().double().abs(), torch.as_tensor(error).double().expand(upstream.shape)
        layers, shared, batch = list[tuple[Tensor, Tensor]](), torch.zeros(()).double(), len(upstream)
        for i in reversed(range(len(self.layers))):
            weight, (x, input_error) = self.layers[i][0].abs(), self.inputs[i]
            of_weight = gradient.T @ input_error + wrong.T @ x.abs() + gamma(batch + 1) * (gradient.T @ x.abs())
            layers.insert(0, (of_weight, (wrong + gamma(batch + 1) * gradient).sum(0)))
            gradient, wrong = gradient @ weight, wrong @ weight + gamma(len(weight) + 1) * (gradient @ weight)
            if i:
                (z, moved), slope = self.arguments[i - 1], self.slopes[i - 1]
                terms = gradient * z.abs()
                shared = shared + (wrong * z.abs() + gradient * moved + gamma(terms.numel() + 1) * terms).sum()
                bent = torch.where(z.abs() <= moved, 1.0, moved + FUNCTION * UNIT)
                gradient, wrong = gradient * slope, wrong * slope + gradient * bent
        return layers, wrong, shared
