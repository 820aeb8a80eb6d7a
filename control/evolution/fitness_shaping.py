"""Fitness of a generation -> weights of the noise that made it.

All work in float64 and on any fitness ``[n]``, higher is better. A **failed** member is one whose fitness is NaN,
infinite or beyond the range of float32 (about 3.4e38, past which differences overflow); it counts as worse than
every sound one, whatever the rule.

Equal fitness: where a rule orders members, the one of lower index counts as better (a stable sort), and failed
members come last, by index; `centred_ranks` and `shared_utilities` give equal members equal numbers instead.
"""

import torch
from torch import Tensor

KINDS = range(8)
COMPARES_WITH_MEAN = frozenset({5, 6, 7})  # rules that compare the members with the fitness of the mean itself
MARGIN = 1e-6  # a member counts as better than the mean from here on


def without_failures(fitness: Tensor) -> tuple[Tensor, Tensor]:
    """``[n]`` -> (fitness in float64 with every failed member set to the worst sound value, mask of the sound).

    With no sound member the fitness is all zeros.
    """
    value = fitness.to(torch.float64)
    sound = value.abs() <= torch.finfo(torch.float32).max  # false for NaN
    worst = value[sound].min() if sound.any() else torch.zeros_like(value).sum()
    return torch.where(sound, value, worst), sound


def failures_last(fitness: Tensor) -> Tensor:
    """Fitness ``[n]`` in float64 with every failed member set to -infinity, so that comparing puts it last."""
    value, sound = without_failures(fitness)
    return value.masked_fill(~sound, -torch.inf)


def transform(kind: int, fitness: Tensor, mean_score: float | None = None) -> Tensor:
    """The eight rules of the paper's code: fitness ``[n]`` (F) -> weights ``[n]``, float64, always finite.

    | kind | weight |
    |---|---|
    | 0 | (F - min F) / (max F - min F + 1e-9) |
    | 1 | rank / (n - 1), the worst 0 and the best 1; 1 where n = 1 |
    | 2 | `nes_utilities`, divided by the largest: best 1, sum 0; 0 where n = 1 |
    | 3 | the same before 1/n is taken off: best 1, worse half 0 |
    | 4 | the best 1, others 0 |
    | 5 | as 4 if the best beats S by more than 1e-6, else all 0 |
    | 6 | F - S of those that beat it by more than 1e-6, divided by the largest; others 0 |
    | 7 | as 6, divided by the sum |

    S is ``mean_score``, the fitness of the mean itself, needed by 5, 6 and 7; one that failed counts as equal to the
    worst sound member. All members failed: all weights 0. In 6 and 7 the code first divides by max F - S + 1e-9, which
    cancels and is left out. Its order of equal members is that of an unstable sort.
    Synthetic environments, Ferreira et al. 2022, arXiv:2202.02790, the setting ``score_transform_type``.

    Raises ValueError for an unknown kind, and where a rule needs ``mean_score`` and has none.
    """
    if kind not in KINDS:
        raise ValueError(f"score transformation is {kind}; expected 0 to 7")
    if kind in COMPARES_WITH_MEAN and mean_score is None:
        raise ValueError(f"score transformation {kind} needs the fitness of the mean")
    value, sound = without_failures(fitness)
    weights = torch.zeros_like(value)
    if not sound.any():
        return weights
    if kind == 0:
        low, high = value.aminmax()
        return (value - low) / (high - low + 1e-9)
    if kind <= 4:
        weights[_best_first(fitness)] = _by_rank(kind, len(value)).to(value.device)
        return weights
    gain = _gain(value, sound, float("nan") if mean_score is None else mean_score)
    if kind == 5:
        best = _best_first(fitness)[0]
        weights[best] = (gain[best] > 0).double()
        return weights
    scale = gain.max() if kind == 6 else gain.sum()
    return gain / scale if scale > 0 else weights


def _best_first(fitness: Tensor) -> Tensor:
    return failures_last(fitness).sort(descending=True, stable=True).indices


def _by_rank(kind: int, n: int) -> Tensor:
    """Weights of kinds 1 to 4, which depend on the rank alone, best first ``[n]``."""
    if kind == 1:
        return torch.linspace(1, 0, n, dtype=torch.float64)
    if kind == 2:
        utilities = nes_utilities(n)
        return utilities / utilities[0] if n > 1 else utilities
    if kind == 3:
        shaped = _shaped(n)
        return shaped / shaped[0]
    return (torch.arange(n) == 0).double()


def _gain(value: Tensor, sound: Tensor, mean_score: float) -> Tensor:
    """By how much each member beats the mean ``[n]``; 0 for those that do not and for the failed."""
    filled, has_score = without_failures(torch.tensor([mean_score], dtype=torch.float64))
    base = filled[0].to(value.device) if has_score[0] else value.min()
    return torch.where(sound & (value > base + MARGIN), value - base, 0.0)


def _shaped(n: int) -> Tensor:
    """max(0, ln(n/2 + 1) - ln k) for the ranks k = 1 (best) to n: the better half counts, the best most."""
    rank = torch.arange(1, n + 1, dtype=torch.float64)
    return (torch.tensor(n / 2 + 1, dtype=torch.float64).log() - rank.log()).clamp(min=0)


def nes_utilities(n: int) -> Tensor:
    """Utilities of NES, best first ``[n]``, float64, summing to 0: `_shaped` over its sum, minus 1/n.

    Wierstra et al. 2014, "Natural Evolution Strategies", JMLR 15, fitness shaping.
    """
    shaped = _shaped(n)
    return shaped / shaped.sum() - 1 / n


def shared_utilities(fitness: Tensor) -> Tensor:
    """`nes_utilities` by rank ``[n]``; equal members get the mean of theirs, so a plateau moves nothing."""
    _, group, sizes = (-failures_last(fitness)).unique(return_inverse=True, return_counts=True)
    by_rank = nes_utilities(len(fitness)).to(fitness.device)
    of_rank = torch.arange(len(sizes), device=fitness.device).repeat_interleave(sizes)  # best group first
    total = torch.zeros(len(sizes), dtype=torch.float64, device=fitness.device).index_add_(0, of_rank, by_rank)
    return (total / sizes)[group]


def centred_ranks(fitness: Tensor) -> Tensor:
    """Ranks ``[n]`` in [-0.5, 0.5], float64, the best 0.5; equal members, and all failed ones, share the mean rank.

    0 where n = 1. Salimans et al. 2017, "Evolution Strategies as a Scalable Alternative to Reinforcement Learning",
    section 2.1 (fitness shaping); their code breaks ties by index.
    """
    _, group, sizes = failures_last(fitness).unique(return_inverse=True, return_counts=True)
    n = len(fitness)
    mean_rank = sizes.cumsum(0) - (sizes.double() + 1) / 2
    return ((mean_rank - (n - 1) / 2) / max(n - 1, 1))[group]
