"""Losses and returns against hand-computed tables and their limits; tests of the agents compare updates with torch."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli

from models import losses
from models.trajectory import discounted_returns

LOG_2, LOG_3, LOG_4, LOG_5 = (math.log(number) for number in (2, 3, 4, 5))
QUANTILES, LEVELS = torch.tensor([[[1.0, 0.0], [2.0, 1.0], [5.0, 7.0]]]), torch.tensor([0.1, 0.75])
RATIO = torch.tensor([[1.0, 2.0], [0.5, 1.0]])
# Goals 0, 2, 4 have variance 8/3, errors 0, 0, 3 variance 2.
GOALS, VALUES = torch.tensor([[0.0, 2.0, 4.0]] * 2), torch.tensor([[0.0, 2.0, 1.0], [7.0, 9.0, 11.0]])
REWARD = torch.tensor([[1.0, 5.0], [2.0, 7.0], [4.0, 100.0]])  # [T, E]; the second episode has two steps
VALID = torch.tensor([[True, True], [True, True], [True, False]])
# Arguments of a function, and its result.
BY_HAND: list[tuple[Callable[..., Tensor], tuple[Any, ...], list[Any]]] = [
    (losses.cross_entropy, (torch.tensor([[[0.0, 0.0], [LOG_3, 0.0]], [[0.0, LOG_4], [100.0, -100.0]]]),
                     torch.tensor([[0, 0], [0, 1]])), [[LOG_2, LOG_4 - LOG_3], [LOG_5, 200.0]]),
    # Errors 2, -1 and 0 of the quantile at level 0.1, and 3, 0 and -2 of the one at 0.75.
    (losses.pinball_loss, (QUANTILES, torch.tensor([[3.0, 1.0, 5.0]]), LEVELS),
     [[(0.1 * 2 + 0.75 * 3) / 2, 0.9 * 1 / 2, 0.25 * 2 / 2]]),
    (losses.approximate_kl, (RATIO, RATIO.log()), [(1 - LOG_2) / 2, (-0.5 + LOG_2) / 2]),
    # Probabilities 1/2, 1/2 and 3/4, 1/4.
    (losses.categorical_entropy, (torch.tensor([[[0.0, 0.0], [LOG_3, 0.0]]]),), [[LOG_2, LOG_4 - 0.75 * LOG_3]]),
    (losses.squared_error, (torch.tensor([[[1.0, 2.0], [0.0, 0.0]]]), torch.tensor([[[0.0, 4.0], [0.0, -3.0]]])),
     [[5, 9]]),
    # Deviations (n - 1) are 1 and 10, so z is -1, 0, 1 in both rows; exp(2) = 7.39 is capped. Equal values weigh 1.
    (losses.exponential_weights, (torch.tensor([[1.0, 2.0, 3.0], [-10.0, 0.0, 10.0], [5.0, 5.0, 5.0]]), 0.5, 5.0),
     [[math.exp(-2), 1.0, 5.0]] * 2 + [[1.0] * 3]),
    (losses.exponential_weights, (torch.tensor([[-250.0]]), 1.0, 20.0), [[1.0]]),
    # Mean 2, deviations -1, -1 and 2 with the sample variance 6 / 2 = 3; a single number keeps its value.
    (losses.standardize, (torch.tensor([[1.0, 1.0, 4.0]]),), [[-1 / 3**0.5, -1 / 3**0.5, 2 / 3**0.5]]),
    (losses.standardize, (torch.tensor([[5.0]]),), [[5.0]]),
    (losses.value_loss, (torch.tensor([[1.0, 2.0], [0.0, -1.0]]), torch.tensor([[3.0, 2.0], [1.0, 2.0]]), 0.5),
     [0.5 * 4 / 2, 0.5 * (1 + 9) / 2]),
    (losses.explained_variance, (VALUES, GOALS), [1 / 4, 1]),
    *((losses.explained_variance, (torch.zeros(1, 7), torch.full((1, 7), 0.1), weight), [math.nan])
      for weight in (None, torch.linspace(0.1, 1, 7).expand(1, 7))),
    # Certain, uniform, and of one action.
    *((losses.entropy_loss, (torch.tensor([[scores]]), 0.7), [loss])
      for scores, loss in (([1000.0, 0.0, -1000.0], 0.0), ([0.0] * 7, -0.7), ([0.0], 0.0))),
    # Truncated episodes with the values 16 and 8, and two members with discounts 0.5 and 1.
    (discounted_returns, (REWARD, VALID, 0.5, torch.tensor([16.0, 8.0])),
     [[1 + 0.5 * (2 + 0.5 * (4 + 8)), 5 + 0.5 * (7 + 4)], [2 + 0.5 * 12, 7 + 4.0], [12.0, 0.0]]),
    (discounted_returns, (REWARD[:, :1], VALID[:, :1], torch.tensor([0.5, 1.0])), [[3.0, 7.0], [4.0, 6.0], [4.0, 4.0]]),
]  # fmt: skip


@pytest.mark.parametrize(("function", "arguments", "expected"), BY_HAND)
def test_results_by_hand(function: Callable[..., Tensor], arguments: tuple[Any, ...], expected: list[Any]) -> None:
    torch.testing.assert_close(function(*arguments), torch.tensor(expected).float(), equal_nan=True)


NUMBERS, SCORES, ACTIONS = torch.zeros(2, 2), torch.zeros(2, 2, 2), torch.zeros(2, 2, dtype=torch.int64)


@pytest.mark.parametrize("loss", [
    lambda weights: losses.policy_gradient(SCORES, ACTIONS, weights),
    lambda returns: losses.value_loss(NUMBERS, returns, 1.0),
    lambda target: losses.td_loss(NUMBERS, target),
    lambda log_prob: losses.temperature_loss(torch.zeros(2), log_prob, 2.0),
])  # fmt: skip
def test_no_gradient_of_weights_and_targets(loss: Callable[[Tensor], Tensor]) -> None:
    assert not loss(torch.ones(2, 2, requires_grad=True)).requires_grad


UNFIT: list[tuple[Callable[..., Any], str]] = [
    (lambda tensor: losses.pinball_loss(QUANTILES, tensor, LEVELS), "targets"),
    (lambda tensor: losses.cross_entropy(torch.zeros(2, 5, 3), tensor.long()), "fit"),
    (lambda tensor: losses.squared_error(torch.zeros(2, 5, 3), tensor), "fit"),
    (lambda tensor: losses.policy_gradient(SCORES, ACTIONS, tensor), "weights .* do not fit"),
    (lambda tensor: losses.value_loss(tensor, NUMBERS, 1.0), "values .* do not fit"),
    (lambda tensor: losses.value_loss(NUMBERS, NUMBERS, 1.0, tensor), "mean_weight"),
    (lambda tensor: losses.td_target(NUMBERS, NUMBERS, tensor), "next values"),
    (lambda tensor: losses.transition_losses(*[NUMBERS] * 5, tensor), "ends"),
]


@pytest.mark.parametrize("shape", [(2, 2, 1), (2, 1), (3,)])
@pytest.mark.parametrize(("loss", "message"), UNFIT)
def test_shapes_that_would_broadcast_are_refused(
    loss: Callable[..., Any], message: str, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=message):
        loss(torch.ones(shape))


def test_bit_nll_equals_torch() -> None:
    """Large logits do not overflow."""
    logits = torch.cat((torch.tensor([0.0, 0, 200, 200, -200, -200]), 5 * torch.randn(94))).requires_grad_()
    bits = (torch.arange(100) % 2).float()
    nll = losses.bit_nll(logits, bits)
    torch.testing.assert_close(nll, -Bernoulli(logits=logits).log_prob(bits))
    (gradient,) = torch.autograd.grad(nll.sum(), logits)
    torch.testing.assert_close(gradient, logits.detach().sigmoid() - bits)
