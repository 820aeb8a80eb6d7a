"""Losses against tables worked by hand, and against `vmap` of themselves at one member."""

import math

import pytest
import torch

from models.losses import cross_entropy, exponential_weights, squared_error

ONE_MEMBER = {
    "cross_entropy": (
        cross_entropy,
        lambda g: (torch.randn(3, 7, 4, generator=g), torch.randint(4, (3, 7), generator=g)),
    ),
    "squared_error": (squared_error, lambda g: (torch.randn(3, 7, 2, generator=g), torch.randn(3, 7, 2, generator=g))),
    "exponential_weights": (lambda v: exponential_weights(v, 0.7, 3.0), lambda g: (torch.randn(3, 7, generator=g),)),
}


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
