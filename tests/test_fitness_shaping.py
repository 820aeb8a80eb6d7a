"""The eight rules against the published values and tables worked by hand, and what holds of each for any fitness."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from control.evolution import fitness_shaping as shaping
from control.evolution.fitness_shaping import KINDS, failures_last, transform

NAN, INF = float("nan"), float("inf")
TYPE_2 = [1, 0.606, 0.376, 0.213, 0.086, -0.017, -0.105, -0.181, *[-0.247] * 8]
TYPE_3 = [1, 0.685, 0.5, 0.369, 0.268, 0.185, 0.114, 0.054, *[0] * 8]

numbers = st.floats(-1e9, 1e9, width=32)
failures = st.sampled_from([NAN, INF, -INF, 1e39])
mixed = st.lists(numbers | failures, min_size=1, max_size=20)


def weights(kind: int, fitness: list[float], score: float | None = 0.0) -> Tensor:
    return transform(kind, torch.tensor(fitness, dtype=torch.float64), score)


def assert_near(actual: Tensor, expected: list[float], atol: float = 1e-8) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=atol)


@pytest.mark.parametrize("kind, table", [(2, TYPE_2), (3, TYPE_3)])
def test_published_values_for_sixteen(kind: int, table: list[float]) -> None:
    shuffled = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    assert_near(transform(kind, -shuffled.float()), [table[rank] for rank in shuffled], atol=5.1e-4)
    if kind == 3:
        assert float(weights(3, list(range(16))).sum()) == pytest.approx(3.174, abs=5e-4)


# Kind 2: the last two share -1/n, the second best has the rest.
BEST_OF_4 = 4 * math.log(3) / math.log(4.5) - 1
# kind -> weights of the fitness 1, 4, 0, 2 about a mean of fitness 1, of one member, and of three equal ones
BY_HAND: dict[int, tuple[list[float], float, list[float] | None]] = {
    0: ([0.25, 1, 0, 0.5], 0, [0, 0, 0]),
    1: ([1 / 3, 1, 0, 2 / 3], 1, [1, 0.5, 0]),
    2: ([-1 / BEST_OF_4, 1, -1 / BEST_OF_4, 2 / BEST_OF_4 - 1], 0, None),
    3: ([0, 1, 0, math.log(1.5) / math.log(3)], 1, [1, math.log(1.25) / math.log(2.5), 0]),
    4: ([0, 1, 0, 0], 1, [1, 0, 0]),
    5: ([0, 1, 0, 0], 1, [1, 0, 0]),
    6: ([0, 1, 0, 1 / 3], 1, [1, 1, 1]),
    7: ([0, 0.75, 0, 0.25], 1, [1 / 3, 1 / 3, 1 / 3]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_weights_by_hand(kind: int) -> None:
    four, single, equal = BY_HAND[kind]
    assert_near(weights(kind, [1, 4, 0, 2], 1.0), four)
    assert_near(weights(kind, [5.0], 1.0), [single])
    assert_near(weights(kind, [NAN, INF, -INF]), [0, 0, 0])
    if equal:  # they go by index
        assert_near(weights(kind, [7, 7, 7], 5.0), equal)
    if kind >= 5:  # no member is better than the mean
        assert_near(weights(kind, [1, 4, 0], 4.0), [0, 0, 0])
        assert_near(weights(kind, [1, 4, 0], 4.0 - 5e-7), [0, 0, 0])
        assert float(weights(kind, [1, 4, 0], 4.0 - 2e-6)[1]) == pytest.approx(1.0)


@pytest.mark.parametrize("kind", [5, 6, 7])
def test_a_failed_mean_counts_as_the_worst_member(kind: int) -> None:
    for failed in (NAN, INF, -INF):
        assert torch.equal(weights(kind, [1, 4, NAN, 2], failed), weights(kind, [1, 4, NAN, 2], 1.0))


@given(st.sampled_from(KINDS), mixed, numbers | failures)
def test_finite_and_in_order_with_the_failed_last(kind: int, fitness: list[float], score: float) -> None:
    out, rank = weights(kind, fitness, score), failures_last(torch.tensor(fitness, dtype=torch.float64))
    assert out.isfinite().all()
    better = rank[:, None] > rank[None, :]
    assert not (better & (out[:, None] < out[None, :])).any()


def test_utilities_and_ranks_by_hand() -> None:
    assert_near(shaping.nes_utilities(2), [0.5, -0.5])
    best, second = math.log(3) / math.log(4.5) - 0.25, math.log(1.5) / math.log(4.5) - 0.25
    assert_near(shaping.nes_utilities(4), [best, second, -0.25, -0.25])
    mean_utility = (best + second) / 2
    assert_near(
        shaping.shared_utilities(torch.tensor([NAN, 3.0, 3.0, -INF])), [-0.25, mean_utility, mean_utility, -0.25]
    )
    assert_near(shaping.shared_utilities(torch.tensor([2.0, 9.0, 1.0, NAN])), [second, best, -0.25, -0.25])
    assert_near(shaping.shared_utilities(torch.tensor([7.0, 7.0, 7.0])), [0, 0, 0])
    assert_near(shaping.centred_ranks(torch.tensor([3.0, 1.0, 2.0])), [0.5, -0.5, 0])
    assert_near(shaping.centred_ranks(torch.tensor([3.0, 1.0, 3.0, NAN, INF])), [0.375, 0, 0.375, -0.375, -0.375])
    assert_near(shaping.centred_ranks(torch.tensor([3.0])), [0])
    assert_near(shaping.centred_ranks(torch.tensor([4.0, 4.0])), [0, 0])


@given(mixed)
def test_ranks_and_utilities_keep_order_and_equality(fitness: list[float]) -> None:
    tensor = torch.tensor(fitness, dtype=torch.float64)
    rank = failures_last(tensor)
    for out in (shaping.centred_ranks(tensor), shaping.shared_utilities(tensor)):
        assert float(out.sum()) == pytest.approx(0, abs=1e-9) and float(out.abs().max()) <= 1
        assert not ((rank[:, None] > rank[None, :]) & (out[:, None] < out[None, :])).any()
        assert not ((rank[:, None] == rank[None, :]) & (out[:, None] != out[None, :])).any()
    assert float(shaping.centred_ranks(tensor).abs().max()) <= 0.5
