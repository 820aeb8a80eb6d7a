"""Evolution strategies: updates by hand, and the weights of fitness by published values and by hand."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from control.evolution import fitness_shaping as shaping
from control.evolution.fitness_shaping import KINDS, mask_failures, transform
from control.evolution.strategies import ARS, NES, SNES, STRATEGIES, OpenAIES
from models.proxies.search import SearchConfig

NAN, INF = float("nan"), float("inf")
SETTINGS: dict[str, Any] = {
    "population": 4, "noise_std": 0.5, "step_size": 1.0, "score_transform": 3, "eval_every": 1,
}  # fmt: skip
MEAN, NOISE = torch.tensor([10.0, 20.0]), torch.tensor([[1.0, 2.0], [3.0, -1.0]])
FITNESS = torch.tensor([1.0, 3.0, 2.0, 0.0])  # plus and minus of the first row, then of the second


def make(name: str, mean: Tensor = MEAN, **changes: Any) -> Any:
    return STRATEGIES[name](SearchConfig(strategy=name, **{**SETTINGS, **changes}), mean)


def updated_mean(strategy: Any, fitness: Tensor = FITNESS, noise: Tensor = NOISE, score: float | None = None) -> Tensor:
    """The mean after one generation."""
    strategy.tell(noise, fitness, score)
    return strategy.mean


def test_order_of_the_population() -> None:
    assert [type(make(name)) for name in ("nes", "openai_es", "snes", "ars")] == [NES, OpenAIES, SNES, ARS]
    pairs = torch.tensor([[10.5, 21], [9.5, 19], [11.5, 19.5], [8.5, 20.5]])
    for name in STRATEGIES:
        strategy = make(name)
        assert strategy.rows == 2 and torch.equal(strategy.ask(NOISE), pairs)
        single = make(name, mirrored=False, population=2)
        assert single.rows == 2 and torch.equal(single.ask(NOISE), pairs[::2])
        assert make(name, population=5, mirrored=False).rows == 5


FLAT = [9.3, 9.3, 9.3, 9.3]
# strategy, settings, fitness, fitness of the mean, expected mean
BY_HAND: list[tuple[str, dict[str, Any], list[float], float | None, list[float]]] = [
    # Pair scores 3 (by the minus, so its noise turns round) and 2: weights 1 and -1 under transformation 2.
    ("nes", {"score_transform": 2, "step_size": 2.0, "weight_decay": 0.1}, [1, 3, 2, 0], None, [9 - 4, 18 - 1]),
    ("nes", {"score_transform": 2, "step_size": 2.0, "weight_decay": 0.1, "nes_step_size": True}, [1, 3, 2, 0], None,
     [9 - 0.5 * 4, 18 - 0.5 * 1]),
    ("nes", {"score_transform": 2, "mirrored": False, "population": 2}, [1, 3], None, [10 + 0.5 * 2, 20 - 0.5 * 3]),
    # A pair with equal fitness keeps its sign.
    ("nes", {"score_transform": 4}, [5, 5, 1, 1], None, [10.5, 21]),
    # The transformation sees the fitness of the mean.
    ("nes", {"score_transform": 7}, [1, 3, 2, 0], 3.0, [10, 20]),
    ("nes", {"score_transform": 7}, [1, 3, 2, 0], 2.0, [9.5, 19]),
    # The failed pair is the worst: transformation 2 weighs the other 1 and this one -1, with the sign of its plus.
    ("nes", {"score_transform": 2}, [NAN, INF, 0, -5], None, [10 + 0.5 * (3 - 1), 20 + 0.5 * (-1 - 2)]),
    ("openai_es", {"step_size": 0.25, "weight_decay": 0.01}, [1, 3, 2, 0], None, [10.25, 19.75]),
    # Equal members: only strategies that order them move.
    ("openai_es", {}, FLAT, None, [10, 20]),
    ("snes", {}, FLAT, None, [10, 20]),
    # The pair with the best member counts, with a standard deviation of 1.
    ("ars", {"step_size": 0.5, "weight_decay": 0.1}, [1, 3, 2, 0], None, [9 - 0.5 * 2, 18 - 0.5 * 4]),
    # The failed pair equals the worst member: the other one counts, with a deviation of 2.5.
    ("ars", {}, [NAN, INF, 0, -5], None, [10 + 5 / 2.5 * 3, 20 - 5 / 2.5]),
    ("ars", {}, FLAT, None, [10, 20]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "fitness", "score", "expected"), BY_HAND)
def test_updates_by_hand(name: str, changes: Any, fitness: list[float], score: float | None, expected: Any) -> None:
    mean = updated_mean(make(name, **changes), torch.tensor(fitness), score=score)
    expected_mean = torch.tensor(expected).float()
    torch.testing.assert_close(mean, expected_mean)
    assert torch.equal(mean, MEAN) == torch.equal(expected_mean, MEAN)


def test_ars_uses_the_better_half_of_the_pairs_rounded_up() -> None:
    """Two of three pairs, with the fitness 4, 2 and 2, 3."""
    noise, fitness = torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]]), torch.tensor([4.0, 2, 2, 3, 0, 1])
    std = torch.tensor([4.0, 2, 2, 3]).std(correction=0)
    expected = MEAN + torch.tensor([4.0 - 2, 2.0 - 3]) / (2 * std)
    torch.testing.assert_close(updated_mean(make("ars", population=6), fitness, noise), expected)


def test_openai_es_gradient_by_hand() -> None:
    """Ranks -1/6, 1/2, 1/6, -1/2, so the pairs weigh -2/3 and 2/3; two pairs times noise_std make 1."""
    strategy, single = make("openai_es", weight_decay=0.01), make("openai_es", mirrored=False, population=2)
    expected = torch.tensor([4 / 3 - 0.1, -2 - 0.2], dtype=torch.float64)
    torch.testing.assert_close(strategy.gradient(NOISE, FITNESS), expected, rtol=1e-6, atol=0)
    expected = torch.tensor([0.5 * 2, -0.5 * 3], dtype=torch.float64)
    torch.testing.assert_close(single.gradient(NOISE, torch.tensor([1.0, 3.0])), expected)


def test_openai_es_is_adam_on_its_gradient() -> None:
    strategy, generator = make("openai_es", step_size=0.1), torch.Generator().manual_seed(0)
    torch_mean = MEAN.double().requires_grad_()
    adam = torch.optim.Adam([torch_mean], lr=0.1)
    for _ in range(20):
        noise, fitness = torch.randn(2, 2, generator=generator), torch.randn(4, generator=generator)
        torch_mean.grad = -strategy.gradient(noise, fitness)
        adam.step()
        updated_mean(strategy, fitness, noise)
    assert float((strategy.mean - MEAN).abs().min()) > 0.1
    torch.testing.assert_close(strategy.mean.double(), torch_mean.detach(), rtol=0, atol=2e-5)


def test_snes_by_hand() -> None:
    """Utilities -1/2 and 1/2 for a population of two; squares of the noise minus 1 are (0, 3) and (8, 0)."""
    strategy = make("snes", mirrored=False, population=2, weight_decay=0.1)
    torch.testing.assert_close(updated_mean(strategy, torch.tensor([1.0, 3.0])), torch.tensor([9.5, 18 - 0.75]))
    rate = (3 + math.log(2)) / (5 * math.sqrt(2))
    expected = [0.5 * math.exp(rate / 2 * 4), 0.5 * math.exp(-rate / 2 * 1.5)]
    torch.testing.assert_close(strategy.noise_std, torch.tensor(expected, dtype=torch.float64))


def test_mirrored_snes_equals_plain_snes() -> None:
    """Four rows that are two and their negatives."""
    mirrored, plain = make("snes"), make("snes", mirrored=False)
    rows = torch.stack((NOISE, -NOISE), dim=1).flatten(0, 1)
    torch.testing.assert_close(updated_mean(mirrored), updated_mean(plain, noise=rows))
    torch.testing.assert_close(mirrored.noise_std, plain.noise_std)
    best, second = math.log(3) / math.log(4.5), math.log(1.5) / math.log(4.5)
    expected = [10 + 0.5 * (-best + second * 3), 20 + 0.5 * (-best * 2 - second)]
    torch.testing.assert_close(mirrored.mean, torch.tensor(expected))


@pytest.mark.parametrize("name", STRATEGIES)
def test_tell_returns_statistics(name: str) -> None:
    mean = MEAN.clone()
    strategy = make(name, mean, weight_decay=0.1)
    numbers = strategy.tell(NOISE, torch.tensor([NAN, 1.0, 2.0, INF]))
    assert torch.equal(mean, MEAN) and strategy.mean.dtype == torch.float32
    assert set(numbers) == {"update_norm", "noise_std", "failed"} and numbers["failed"] == 2
    assert numbers["update_norm"] == pytest.approx(float((strategy.mean - MEAN).norm()), rel=1e-5)
    assert numbers["noise_std"] == (pytest.approx(float(strategy.noise_std.mean())) if name == "snes" else 0.5)
    old_state = strategy.state_dict()
    numbers = strategy.tell(NOISE, torch.tensor([NAN, INF, -INF, NAN]))
    assert numbers["failed"] == 4 and numbers["update_norm"] == 0
    assert all(torch.equal(torch.as_tensor(v), torch.as_tensor(old_state[k])) for k, v in strategy.state_dict().items())


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
WEIGHTS_BY_HAND: dict[int, tuple[list[float], float, list[float] | None]] = {
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
    four, single, equal = WEIGHTS_BY_HAND[kind]
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
    out, rank = weights(kind, fitness, score), mask_failures(torch.tensor(fitness, dtype=torch.float64))
    assert out.isfinite().all()
    better = rank[:, None] > rank[None, :]
    assert not (better & (out[:, None] < out[None, :])).any()


def test_utilities_and_ranks_by_hand() -> None:
    best, second = math.log(3) / math.log(4.5) - 0.25, math.log(1.5) / math.log(4.5) - 0.25
    mean_utility = (best + second) / 2
    assert_near(
        shaping.shared_utilities(torch.tensor([NAN, 3.0, 3.0, -INF])), [-0.25, mean_utility, mean_utility, -0.25]
    )
    assert_near(shaping.shared_utilities(torch.tensor([2.0, 9.0, 1.0, NAN])), [second, best, -0.25, -0.25])
    assert_near(shaping.centred_ranks(torch.tensor([3.0, 1.0, 3.0, NAN, INF])), [0.375, 0, 0.375, -0.375, -0.375])


@given(mixed)
def test_ranks_and_utilities_keep_order_and_equality(fitness: list[float]) -> None:
    tensor = torch.tensor(fitness, dtype=torch.float64)
    rank = mask_failures(tensor)
    for out in (shaping.centred_ranks(tensor), shaping.shared_utilities(tensor)):
        assert float(out.sum()) == pytest.approx(0, abs=1e-9) and float(out.abs().max()) <= 1
        # Members of different ranks may share a number, up to the rounding of a mean of equal numbers.
        assert not ((rank[:, None] > rank[None, :]) & (out[:, None] < out[None, :] - 1e-12)).any()
        assert not ((rank[:, None] == rank[None, :]) & (out[:, None] != out[None, :])).any()
    assert float(shaping.centred_ranks(tensor).abs().max()) <= 0.5
