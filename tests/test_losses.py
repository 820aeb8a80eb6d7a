"""Losses and returns against hand-computed tables, torch's distributions and their limits."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Bernoulli, Categorical, Normal, kl_divergence

from models import losses
from models.trajectory import discounted_returns, lambda_returns

LOG_2, LOG_3, LOG_4, LOG_5 = (math.log(number) for number in (2, 3, 4, 5))
QUANTILES, LEVELS = torch.tensor([[[1.0, 0.0], [2.0, 1.0], [5.0, 7.0]]]), torch.tensor([0.1, 0.75])
RATIO = torch.tensor([[1.0, 2.0], [0.5, 1.0]])
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
    (losses.standardized, (torch.tensor([[1.0, 1.0, 4.0]]),), [[-1 / 3**0.5, -1 / 3**0.5, 2 / 3**0.5]]),
    (losses.standardized, (torch.tensor([[5.0]]),), [[5.0]]),
    (losses.value_loss, (torch.tensor([[1.0, 2.0], [0.0, -1.0]]), torch.tensor([[3.0, 2.0], [1.0, 2.0]]), 0.5),
     [0.5 * 4 / 2, 0.5 * (1 + 9) / 2]),
]  # fmt: skip


@pytest.mark.parametrize(("function", "arguments", "expected"), BY_HAND)
def test_results_by_hand(function: Callable[..., Tensor], arguments: tuple[Any, ...], expected: list[Any]) -> None:
    torch.testing.assert_close(function(*arguments), torch.tensor(expected, dtype=torch.float32))


def test_td_target_and_loss_by_hand() -> None:
    """Targets 1 + 0.5 * 4 = 3 and, after termination, 2. Values 5 and 1 have errors 2 and -1; the gradient of the mean
    of their squares by the values is 2 and -1."""
    reward, discount = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, 0.0]])
    next_value, q = torch.tensor([[4.0, 7.0]], requires_grad=True), torch.tensor([[5.0, 1.0]], requires_grad=True)
    target = losses.td_target(reward, discount, next_value)
    assert target.tolist() == [[3.0, 2.0]]
    loss = losses.td_loss(q, target)
    assert loss.tolist() == [2.5]
    loss.sum().backward()
    assert q.grad is not None and q.grad.tolist() == [[2.0, -1.0]] and next_value.grad is None
    with pytest.raises(ValueError, match="next values"):
        losses.td_target(reward, discount, next_value.unsqueeze(2))


def test_temperature_loss_by_hand() -> None:
    """Mean log-probabilities -1 and 3, target entropy 2: -0.5 * 1 and 1 * 5, with slopes -1 (the entropy 1 is below its
    target, so alpha rises) and -5."""
    log_alpha = torch.tensor([0.5, -1.0], requires_grad=True)
    log_prob = torch.tensor([[0.0, -2.0], [2.0, 4.0]], requires_grad=True)
    loss = losses.temperature_loss(log_alpha, log_prob, 2.0)
    assert loss.tolist() == [-0.5, 5.0]
    loss.sum().backward()
    assert log_alpha.grad is not None and log_alpha.grad.tolist() == [-1.0, -5.0] and log_prob.grad is None


def test_explained_variance_by_hand() -> None:
    """Goals 0, 2, 4 have variance 8/3, errors 0, 0, 3 variance 2. With weights 1, 1, 0 the third does not count; with
    2, 1, 1 the variance of goals is 11/4 and of errors 27/16."""
    goal, values = torch.tensor([[0.0, 2.0, 4.0]] * 2), torch.tensor([[0.0, 2.0, 1.0], [7.0, 9.0, 11.0]])
    assert losses.explained_variance(values, goal).tolist() == pytest.approx([1 / 4, 1])
    assert losses.explained_variance(values, goal, torch.tensor([[1.0, 1.0, 0.0]] * 2)).tolist() == pytest.approx(
        [1, 1]
    )
    by_weight = losses.explained_variance(values, goal, torch.tensor([[2.0, 1.0, 1.0]] * 2))
    assert by_weight.tolist() == pytest.approx([1 - 27 / 44, 1])
    same = torch.full((1, 7), 0.1)
    for weight in (None, torch.linspace(0.1, 1, 7).expand(1, 7)):
        assert losses.explained_variance(torch.zeros(1, 7), same, weight).isnan().all()


# Probabilities of the actions: 1/2 and 1/4 | 1/5 and 1/2.
SCORES = torch.tensor([[[0.0, 0.0], [math.log(3.0), 0.0]], [[0.0, math.log(4.0)], [0.0, 0.0]]])
ACTIONS = torch.tensor([[0, 1], [0, 1]])


def test_policy_gradient_by_hand() -> None:
    """-(3 ln 1/2 - ln 1/4) / 2 and -(ln 1/5 + 4 ln 1/2) / 2. The gradient of -w log p(a) is w (p - 1) at the action's
    score and w p at the others, over two experiences."""
    scores = SCORES.clone().requires_grad_()
    loss = losses.policy_gradient(scores, ACTIONS, torch.tensor([[3.0, -1.0], [1.0, 4.0]]))
    torch.testing.assert_close(loss, torch.tensor([math.log(2) / 2, (math.log(5) + 4 * math.log(2)) / 2]))
    loss.sum().backward()
    table = [[[3 * -0.5, 3 * 0.5], [-0.75, 0.75]], [[-0.8, 0.8], [4 * 0.5, 4 * -0.5]]]
    torch.testing.assert_close(scores.grad, torch.tensor(table) / 2)


def test_no_gradient_of_weights_and_returns() -> None:
    values, returns = torch.randn(2, 2, requires_grad=True), torch.randn(2, 2, requires_grad=True)
    scores = SCORES.clone().requires_grad_()
    losses.policy_gradient(scores, ACTIONS, returns - values).sum().backward()
    assert values.grad is None and returns.grad is None and scores.grad is not None
    losses.value_loss(values, returns, 1.0).sum().backward()
    assert returns.grad is None
    torch.testing.assert_close(values.grad, (values - returns).detach())  # 2 (V - G) / 2


def test_entropy_loss_by_hand() -> None:
    """The entropies are ln 2 and, of 3/4 and 1/4, ln 4 - 3/4 ln 3 = 0.562; of 4/5 and 1/5, ln 5 - 4/5 ln 4 = 0.500."""
    first, second = math.log(4) - 0.75 * math.log(3), math.log(5) - 0.8 * math.log(4)
    table = -0.7 * torch.tensor([1 + first / math.log(2), second / math.log(2) + 1]) / 2
    torch.testing.assert_close(losses.entropy_loss(SCORES, 0.7), table)
    certain = torch.tensor([[[1000.0, 0.0, -1000.0]]])
    assert losses.entropy_loss(certain, 0.7).item() == 0
    assert losses.entropy_loss(torch.zeros(1, 2, 7), 0.7).item() == pytest.approx(-0.7)
    assert losses.entropy_loss(torch.zeros(1, 2, 1), 0.7).item() == 0  # one action


NUMBERS = torch.zeros(2, 2)
UNFIT: list[tuple[Callable[..., Any], str]] = [
    (lambda tensor: losses.pinball_loss(QUANTILES, tensor, LEVELS), "targets"),
    (lambda tensor: losses.cross_entropy(torch.zeros(2, 5, 3), tensor.long()), "fit"),
    (lambda tensor: losses.squared_error(torch.zeros(2, 5, 3), tensor), "fit"),
    (lambda tensor: losses.policy_gradient(SCORES, ACTIONS, tensor), "weights .* do not fit"),
    (lambda tensor: losses.value_loss(tensor, NUMBERS, 1.0), "values .* do not fit"),
    (lambda tensor: losses.value_loss(NUMBERS, NUMBERS, 1.0, tensor), "mean_weight"),
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
    logits = torch.cat((torch.zeros(2), 5 * torch.randn(98))).requires_grad_()
    bits = (torch.arange(100) % 2).float()
    nll = losses.bit_nll(logits, bits)
    torch.testing.assert_close(nll, -Bernoulli(logits=logits).log_prob(bits))
    (gradient,) = torch.autograd.grad(nll.sum(), logits)
    torch.testing.assert_close(gradient, logits.detach().sigmoid() - bits)
    large = losses.bit_nll(torch.tensor([200.0, 200.0, -200.0, -200.0]), torch.tensor([1.0, 0, 1, 0]))
    assert large.tolist() == [0, 200, 200, 0]


def test_gaussian_losses_equal_torch() -> None:
    """The default deviation is 1."""
    p, q = [(torch.randn(3, 8), torch.rand(3, 8) + 0.05) for _ in range(2)]
    torch.testing.assert_close(losses.gaussian_nll(q[0], *p), -Normal(*p).log_prob(q[0]))
    torch.testing.assert_close(losses.gaussian_nll(q[0], p[0]), -Normal(p[0], 1.0).log_prob(q[0]))
    torch.testing.assert_close(losses.gaussian_kl(*p, *q), kl_divergence(Normal(*p), Normal(*q)))
    assert not losses.gaussian_kl(*p, *p).any()


@pytest.mark.parametrize("axis", [1, 2])
def test_categorical_kl_equals_torch(axis: int) -> None:
    p, q = (3 * torch.randn(2, 5, 6)).log_softmax(axis), (3 * torch.randn(2, 5, 6)).log_softmax(axis)
    expected = kl_divergence(Categorical(logits=p.movedim(axis, -1)), Categorical(logits=q.movedim(axis, -1)))
    torch.testing.assert_close(losses.categorical_kl(p, q, axis), expected)
    assert not losses.categorical_kl(p, p, axis).any()


def test_transition_losses_by_hand() -> None:
    state, next_state = torch.tensor([[1.0, 0.0], [2.0, 3.0]]), torch.tensor([[0.0, 0.0], [2.0, 1.0]])
    reward, reward_target = torch.tensor([[1.0], [0.5]]), torch.tensor([[0.0], [1.0]])
    logit, terminated = torch.tensor([[0.0], [math.log(3)]]), torch.tensor([[1.0], [0.0]])
    results = losses.transition_losses(state, reward, logit, next_state, reward_target, terminated)
    # (1 + 0 + 0 + 4) / 4; (1 + 0.25) / 2; p is 1/2 and 3/4, so (-log 1/2 - log 1/4) / 2
    expected = [5 / 4, 5 / 8, 1.5 * math.log(2)]
    assert [float(loss) for loss in results] == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ValueError, match="ends"):
        losses.transition_losses(state, reward, logit, next_state, reward_target, terminated[:, 0])


# -- returns -----------------------------------------------------------------------------------------------------------


REWARD = torch.tensor([[1.0, 5.0], [2.0, 7.0], [4.0, 100.0]])  # [T, E]; the second episode has two steps
VALID = torch.tensor([[True, True], [True, True], [True, False]])


def ragged(seed: int, steps: int = 6, episodes: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Rewards, next values and validity of episodes of 1 to ``steps`` steps."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, steps + 1, (episodes,), generator=g)
    valid = torch.arange(steps).unsqueeze(1) < lengths
    return torch.randn(steps, episodes, generator=g), torch.randn(steps, episodes, generator=g), valid


def test_discounted_returns_by_hand() -> None:
    """Of ended episodes, of truncated ones with the values 16 and 8, and of two members with discounts 0.5 and 1."""
    ended = torch.tensor([[1 + 0.5 * (2 + 0.5 * 4), 5 + 0.5 * 7], [2 + 0.5 * 4, 7.0], [4.0, 0.0]])
    assert torch.equal(discounted_returns(REWARD, VALID, 0.5), ended)
    cut = torch.tensor([[1 + 0.5 * (2 + 0.5 * (4 + 8)), 5 + 0.5 * (7 + 4)], [2 + 0.5 * 12, 7 + 4.0], [12.0, 0.0]])
    assert torch.equal(discounted_returns(REWARD, VALID, 0.5, bootstrap=torch.tensor([16.0, 8.0])), cut)
    reward, valid = REWARD.unsqueeze(1).repeat(1, 2, 1), VALID.unsqueeze(1).repeat(1, 2, 1)
    returns = discounted_returns(reward, valid, torch.tensor([[0.5], [1.0]]))
    assert torch.equal(returns[:, 0], ended)
    assert returns[:, 1].tolist() == [[7, 12], [6, 7], [4, 0]]


def test_lambda_returns_by_hand() -> None:
    next_value = torch.tensor([[10.0, 20.0], [30.0, 6.0], [0.0, 99.0]])  # first episode terminated, second truncated
    # discount 0.5, lambda 0.25: G_t = r_t + 0.5 (0.75 V_{t+1} + 0.25 G_{t+1})
    last, cut = 4.0, 7 + 0.5 * 6
    middle = 2 + 0.5 * (0.75 * 30 + 0.25 * last)
    table = torch.tensor(
        [[1 + 0.5 * (0.75 * 10 + 0.25 * middle), 5 + 0.5 * (0.75 * 20 + 0.25 * cut)], [middle, cut], [last, 0.0]]
    )
    torch.testing.assert_close(lambda_returns(REWARD, next_value, VALID, 0.5, 0.25), table)


def test_padding_is_ignored() -> None:
    reward, next_value, valid = ragged(4)
    padding = torch.full((3, reward.shape[1]), float("nan"))
    longer = torch.cat([reward, padding]), torch.cat([next_value, padding]), torch.cat([valid, padding > 0])
    padded = lambda_returns(longer[0], longer[1], longer[2], 0.9, 0.95)
    assert torch.equal(padded[:6], lambda_returns(reward, next_value, valid, 0.9, 0.95))
    assert torch.equal(discounted_returns(longer[0], longer[2], 0.9)[:6], discounted_returns(reward, valid, 0.9))
