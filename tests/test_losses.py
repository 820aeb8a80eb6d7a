"""Losses against tables worked by hand, and against `vmap` of themselves at one member."""

import math

import pytest
import torch
from torch.distributions import Bernoulli, Categorical, Normal, kl_divergence

from models.losses import (
    bit_nll,
    categorical_kl,
    cross_entropy,
    entropy_loss,
    exponential_weights,
    gaussian_kl,
    gaussian_nll,
    max_entropy,
    mean,
    policy_gradient,
    squared_error,
    value_loss,
)

ONE_MEMBER = {
    "cross_entropy": (
        cross_entropy,
        lambda g: (torch.randn(3, 7, 4, generator=g), torch.randint(4, (3, 7), generator=g)),
    ),
    "squared_error": (squared_error, lambda g: (torch.randn(3, 7, 2, generator=g), torch.randn(3, 7, 2, generator=g))),
    "exponential_weights": (lambda v: exponential_weights(v, 0.7, 3.0), lambda g: (torch.randn(3, 7, generator=g),)),
    "policy_gradient": (
        policy_gradient,
        lambda g: (torch.randn(3, 7, 4, generator=g), torch.randint(4, (3, 7), generator=g),
                   torch.randn(3, 7, generator=g)),
    ),
    "entropy_loss": (lambda s: entropy_loss(s, 0.7), lambda g: (torch.randn(3, 7, 4, generator=g),)),
    "value_loss": (
        lambda v, r: value_loss(v, r, 2.0),
        lambda g: (torch.randn(3, 7, generator=g), torch.randn(3, 7, generator=g)),
    ),
    "bit_nll": (bit_nll, lambda g: (torch.randn(3, 7, generator=g), torch.rand(3, 7, generator=g).round())),
    "gaussian_nll": (
        gaussian_nll,
        lambda g: (torch.randn(3, 7, generator=g), torch.randn(3, 7, generator=g), torch.rand(3, 7, generator=g) + 0.1),
    ),
    "categorical_kl": (
        lambda p, q: categorical_kl(p.log_softmax(-1), q.log_softmax(-1), -1),
        lambda g: (torch.randn(3, 7, 4, generator=g), torch.randn(3, 7, 4, generator=g)),
    ),
    "gaussian_kl": (
        gaussian_kl,
        lambda g: (torch.randn(3, 7, generator=g), torch.rand(3, 7, generator=g) + 0.1,
                   torch.randn(3, 7, generator=g), torch.rand(3, 7, generator=g) + 0.1),
    ),
}  # fmt: skip


def test_cross_entropy_by_hand() -> None:
    logits = torch.tensor([[[0.0, 0.0], [math.log(3.0), 0.0]], [[0.0, math.log(4.0)], [100.0, -100.0]]])
    actions = torch.tensor([[0, 0], [0, 1]])
    table = torch.tensor([[math.log(2), math.log(4 / 3)], [math.log(5), 200.0]])
    torch.testing.assert_close(cross_entropy(logits, actions), table)


def test_squared_error_by_hand() -> None:
    prediction = torch.tensor([[[1.0, 2.0], [0.0, 0.0]]])
    target = torch.tensor([[[0.0, 4.0], [0.0, -3.0]]])
    assert squared_error(prediction, target).tolist() == [[5.0, 9.0]]


@pytest.mark.parametrize("loss", [cross_entropy, squared_error])
def test_shapes_that_do_not_fit_are_refused(loss) -> None:
    with pytest.raises(ValueError, match="fit"):
        loss(torch.zeros(2, 5, 3), torch.zeros(2, 4, dtype=torch.int64))


def test_exponential_weights_by_hand() -> None:
    # deviations (n - 1) 1 and 10, so that z is -1, 0, 1 in both rows
    weights = exponential_weights(torch.tensor([[1.0, 2.0, 3.0], [-10.0, 0.0, 10.0]]), temperature=0.5, cap=5.0)
    row = [math.exp(-2), 1.0, 5.0]  # exp(2) = 7.39 is capped
    torch.testing.assert_close(weights, torch.tensor([row, row]))
    uncapped = exponential_weights(torch.tensor([[1.0, 2.0, 3.0]]), temperature=0.5, cap=100.0)
    torch.testing.assert_close(uncapped, torch.tensor([[math.exp(-2), 1.0, math.exp(2)]]))


@pytest.mark.parametrize("values", [[[3.0, 3.0, 3.0]], [[-250.0]], [[0.0, 0.0]]])
def test_equal_values_weigh_one(values: list[list[float]]) -> None:
    values = torch.tensor(values)
    assert torch.equal(exponential_weights(values, 1.0, 20.0), torch.ones_like(values))


def test_a_member_without_deviation_leaves_the_others_alone() -> None:
    values = torch.tensor([[5.0, 5.0, 5.0], [1.0, 2.0, 3.0]])
    weights = exponential_weights(values, 1.0, 20.0)
    assert torch.equal(weights[0], torch.ones(3))
    torch.testing.assert_close(weights[1], torch.tensor([-1.0, 0.0, 1.0]).exp())


@pytest.mark.parametrize("name", ONE_MEMBER)
def test_batched_equals_vmap_of_one_member(name: str) -> None:
    function, draw = ONE_MEMBER[name]
    given = draw(torch.Generator().manual_seed(0))
    mapped = torch.func.vmap(lambda *one: function(*(x.unsqueeze(0) for x in one)).squeeze(0))(*given)
    torch.testing.assert_close(function(*given), mapped, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ONE_MEMBER)
def test_gradients_do_not_cross_members(name: str) -> None:
    function, draw = ONE_MEMBER[name]
    first, *rest = draw(torch.Generator().manual_seed(1))
    first.requires_grad_()
    function(first, *rest)[0].square().sum().backward()
    assert first.grad is not None
    assert first.grad[0].abs().sum() > 0 and first.grad[1:].abs().sum() == 0


# -- policy gradients ------------------------------------------------------------------------------------------------

# Probabilities of the actions: 1/2 and 1/4 | 1/5 and 1/2.
SCORES = torch.tensor([[[0.0, 0.0], [math.log(3.0), 0.0]], [[0.0, math.log(4.0)], [0.0, 0.0]]])
ACTIONS = torch.tensor([[0, 1], [0, 1]])


def test_policy_gradient_by_hand() -> None:
    """-(3 ln 1/2 - ln 1/4) / 2 and -(ln 1/5 + 4 ln 1/2) / 2."""
    weights = torch.tensor([[3.0, -1.0], [1.0, 4.0]])
    table = torch.tensor([math.log(2) / 2, (math.log(5) + 4 * math.log(2)) / 2])
    torch.testing.assert_close(policy_gradient(SCORES, ACTIONS, weights), table)


def test_policy_gradient_moves_probability_to_actions_of_positive_weight() -> None:
    """The gradient of -w log p(a) is w (p - 1) at the action's score and w p at the others, over two experiences."""
    scores = SCORES.clone().requires_grad_()
    policy_gradient(scores, ACTIONS, torch.tensor([[3.0, -1.0], [1.0, 4.0]])).sum().backward()
    table = [[[3 * -0.5, 3 * 0.5], [-0.75, 0.75]], [[-0.8, 0.8], [4 * 0.5, 4 * -0.5]]]
    torch.testing.assert_close(scores.grad, torch.tensor(table) / 2)


def test_no_gradient_flows_from_the_policy_to_the_values_nor_from_the_values_to_the_returns() -> None:
    values, returns = torch.randn(2, 2, requires_grad=True), torch.randn(2, 2, requires_grad=True)
    scores = SCORES.clone().requires_grad_()
    policy_gradient(scores, ACTIONS, returns - values).sum().backward()
    assert values.grad is None and returns.grad is None and scores.grad is not None
    value_loss(values, returns, 1.0).sum().backward()
    assert returns.grad is None
    torch.testing.assert_close(values.grad, (values - returns).detach())  # 2 (V - G) / 2


@pytest.mark.parametrize("more", [(2, 2, 1), (2, 1), (1, 2)])
def test_what_would_broadcast_is_refused(more: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="weights .* do not fit"):
        policy_gradient(SCORES, ACTIONS, torch.zeros(more))
    with pytest.raises(ValueError, match="values .* do not fit"):
        value_loss(torch.zeros(more), torch.zeros(2, 2), 1.0)


def test_entropy_loss_by_hand() -> None:
    """The entropies are ln 2 and, of 3/4 and 1/4, ln 4 - 3/4 ln 3 = 0.562; of 4/5 and 1/5, ln 5 - 4/5 ln 4 = 0.500."""
    first, second = math.log(4) - 0.75 * math.log(3), math.log(5) - 0.8 * math.log(4)
    table = -0.7 * torch.tensor([1 + first / math.log(2), second / math.log(2) + 1]) / 2
    torch.testing.assert_close(entropy_loss(SCORES, 0.7), table)
    assert max_entropy(4) == pytest.approx(1.3862944, abs=1e-7)
    certain = torch.tensor([[[1000.0, 0.0, -1000.0]]])
    assert entropy_loss(certain, 0.7).item() == 0
    assert entropy_loss(torch.zeros(1, 2, 7), 0.7).item() == pytest.approx(-0.7)
    assert entropy_loss(torch.zeros(1, 2, 1), 0.7).item() == 0  # one action: nothing to be unsure of


def test_descending_the_entropy_loss_evens_the_scores_out() -> None:
    scores = torch.tensor([[[2.0, 0.0, -1.0]]], requires_grad=True)
    entropy_loss(scores, 1.0).sum().backward()
    assert scores.grad is not None
    assert scores.grad[0, 0, 0] > 0 and scores.grad[0, 0, 2] < 0
    even = torch.zeros(1, 1, 3, requires_grad=True)
    entropy_loss(even, 1.0).sum().backward()
    torch.testing.assert_close(even.grad, torch.zeros(1, 1, 3))


def test_value_loss_by_hand() -> None:
    values, returns = torch.tensor([[1.0, 2.0], [0.0, -1.0]]), torch.tensor([[3.0, 2.0], [1.0, 2.0]])
    assert value_loss(values, returns, 0.5).tolist() == [0.5 * 4 / 2, 0.5 * (1 + 9) / 2]


def test_parts_of_a_mean_add_up_and_padding_has_none() -> None:
    values, share = torch.tensor([[1.0, 2.0, 6.0, 99.0]]), torch.tensor([[1.0, 1.0, 1.0, 0.0]]) / 3
    assert mean(values[:, :3]).item() == 3.0
    parts = [mean(values[:, part], share[:, part]) for part in (slice(0, 2), slice(2, 4))]
    torch.testing.assert_close(parts, [torch.tensor([1.0]), torch.tensor([2.0])])


@pytest.mark.parametrize("shape", [(2, 3, 1), (2, 1), (3,)])
def test_shares_that_do_not_fit_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="share"):
        value_loss(torch.zeros(2, 3), torch.zeros(2, 3), 1.0, torch.ones(shape))


# -- models ------------------------------------------------------------------------------------------------------------


def test_bit_nll_by_hand() -> None:
    """A logit of ln 3 is a probability of 3/4. Large logits lose what their exponential would overflow."""
    logits = torch.tensor([[0.0, math.log(3), math.log(3), -math.log(3)], [200.0, 200.0, -200.0, -200.0]])
    bits = torch.tensor([[1.0, 1, 0, 0], [1, 0, 1, 0]])
    table = torch.tensor([[math.log(2), math.log(4 / 3), math.log(4), math.log(4 / 3)], [0, 200, 200, 0]])
    torch.testing.assert_close(bit_nll(logits, bits), table)


def test_bit_nll_and_its_gradient_are_those_of_torch() -> None:
    """The gradient is the probability less the bit, at a logit of 0 too."""
    logits = torch.cat((torch.zeros(2), 5 * torch.randn(98))).requires_grad_()
    bits = (torch.arange(100) % 2).float()
    nll = bit_nll(logits, bits)
    torch.testing.assert_close(nll, -Bernoulli(logits=logits).log_prob(bits))
    (gradient,) = torch.autograd.grad(nll.sum(), logits)
    torch.testing.assert_close(gradient, logits.detach().sigmoid() - bits)


def test_gaussian_nll_by_hand() -> None:
    """ln(2 pi) / 2 = 0.9189385 and half of the squared distance; with a deviation, in deviations, and its logarithm."""
    values, mean = torch.tensor([[1.0, 3.0, -2.0]]), torch.tensor([[1.0, 1.0, 1.0]])
    table = torch.tensor([[0.9189385, 2.9189385, 5.4189385]])
    torch.testing.assert_close(gaussian_nll(values, mean), table)
    deviation = torch.tensor([[1.0, 2.0, 0.5]])
    table = torch.tensor([[0.9189385, 0.9189385 + math.log(2) + 0.5, 0.9189385 - math.log(2) + 18.0]])
    torch.testing.assert_close(gaussian_nll(values, mean, deviation), table)
    torch.testing.assert_close(gaussian_nll(values, mean, deviation), -Normal(mean, deviation).log_prob(values))


def test_categorical_kl_by_hand() -> None:
    """Of (1/2, 1/2) to (1/4, 3/4): ln(2) / 2 + ln(2/3) / 2 = ln(4/3) / 2; the other way 3/4 ln(3/2) - 1/4 ln 2."""
    p, q = torch.tensor([[[0.5, 0.5]]]).log(), torch.tensor([[[0.25, 0.75]]]).log()
    assert categorical_kl(p, q, 2).item() == pytest.approx(math.log(4 / 3) / 2)
    assert categorical_kl(q, p, 2).item() == pytest.approx(0.75 * math.log(1.5) - 0.25 * math.log(2))
    assert categorical_kl(p, p, 2).item() == 0


@pytest.mark.parametrize("axis", [1, 2])
def test_categorical_kl_is_that_of_torch(axis: int) -> None:
    p, q = (3 * torch.randn(2, 5, 6)).log_softmax(axis), (3 * torch.randn(2, 5, 6)).log_softmax(axis)
    theirs = kl_divergence(Categorical(logits=p.movedim(axis, -1)), Categorical(logits=q.movedim(axis, -1)))
    torch.testing.assert_close(categorical_kl(p, q, axis), theirs)


def test_gaussian_kl_by_hand_and_that_of_torch() -> None:
    """Of N(1, 1) to N(0, 1): 1/2. Of N(0, 2) to N(0, 1): -ln 2 + (4 - 1) / 2."""
    one, zero = torch.ones(1, 1), torch.zeros(1, 1)
    assert gaussian_kl(one, one, zero, one).item() == pytest.approx(0.5)
    assert gaussian_kl(zero, 2 * one, zero, one).item() == pytest.approx(1.5 - math.log(2))
    assert gaussian_kl(one, 2 * one, one, 2 * one).item() == 0
    p, q = [(torch.randn(3, 8), torch.rand(3, 8) + 0.05) for _ in range(2)]
    torch.testing.assert_close(gaussian_kl(*p, *q), kl_divergence(Normal(*p), Normal(*q)))
