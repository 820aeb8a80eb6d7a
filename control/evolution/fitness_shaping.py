"""Weights of a generation's perturbations by their fitness.

All functions compute in float64 and take any fitness ``[n]``, higher is better. A **failed** member is one whose
fitness is NaN, infinite or beyond the range of float32 (about 3.4e38, past which differences overflow); every rule
ranks it below all sound ones.

Equal fitness: if a rule orders members, the one of lower index counts as better (a stable sort), and failed
members come last, by index; `centred_ranks` and `shared_utilities` give equal members equal numbers instead.
"""

import torch
from torch import Tensor

KINDS = range(8)
MARGIN = 1e-6  # a member counts as better than the mean from here on
LARGEST = torch.finfo(torch.float32).max


def without_failures(fitness: Tensor) -> tuple[Tensor, Tensor]:
    """``[n]`` -> (fitness in float64 with every failed member set to the worst sound value, mask of the sound).

    With no sound member the fitness is all zeros.
    """
    value = fitness.to(torch.float64)
    valid = value.abs() <= LARGEST  # false for NaN
    worst = value[valid].min() if valid.any() else torch.zeros_like(value).sum()
    return torch.where(valid, value, worst), valid


def failures_last(fitness: Tensor) -> Tensor:
    """Fitness ``[n]`` in float64 with every failed member set to -infinity, so that comparing puts it last."""
    value, valid = without_failures(fitness)
    return value.masked_fill(~valid, -torch.inf)


def transform(kind: int, fitness: Tensor, mean_score: float | None = None) -> Tensor:
    """The eight rules of the paper's code: fitness ``[n]`` (F) -> weights ``[n]``, float64, always finite.

    | kind | weight |
    |---|---|
    | 0 | (F - min F) / (max F - min F + 1e-9) |
    | 1 | rank / (n - 1), the worst 0 and the best 1; 1 if n = 1 |
    | 2 | `nes_utilities`, divided by the largest: best 1, sum 0; 0 if n = 1 |
    | 3 | the same without subtracting 1/n: best 1, worse half 0 |
    | 4 | the best 1, others 0 |
    | 5 | as 4 if the best beats S by more than 1e-6, else all 0 |
    | 6 | F - S if it is more than 1e-6, divided by the largest; others 0 |
    | 7 | as 6, divided by the sum |

    S is ``mean_score``, the fitness of the mean, for 5, 6 and 7; if the mean failed, it counts as equal to the
    worst sound member. All members failed: all weights 0. In 6 and 7 the code first divides by max F - S + 1e-9, which
    cancels and is left out. It orders equal members by an unstable sort.
    Synthetic environments, Ferreira et al. 2022, arXiv:2202.02790, the setting ``score_transform_type``.

    Raises ValueError if a rule needs ``mean_score`` and it is None.
    """
    if kind >= 5 and mean_score is None:
        raise ValueError(f"score transformation {kind} needs the fitness of the mean")
    value, valid = without_failures(fitness)
    weights = torch.zeros_like(value)
    if not valid.any():
        return weights
    if kind == 0:
        low, high = value.aminmax()
        return (value - low) / (high - low + 1e-9)
    best_first = failures_last(fitness).sort(descending=True, stable=True).indices
    if kind <= 4:
        weights[best_first] = _by_rank(kind, len(value))
        return weights
    assert mean_score is not None
    base = mean_score if abs(mean_score) <= LARGEST else float(value.min())
    gain = torch.where(valid & (value > base + MARGIN), value - base, 0.0)  # of those that beat the mean
    if kind == 5:
        weights[best_first[0]] = (gain[best_first[0]] > 0).double()
        return weights
    scale = gain.max() if kind == 6 else gain.sum()
    return gain / scale if scale > 0 else weights


def _by_rank(kind: int, n: int) -> Tensor:
    """Weights of kinds 1 to 4, which depend on the rank alone, best first ``[n]``."""
    if kind == 1:
        return torch.linspace(1, 0, n, dtype=torch.float64)
    if kind == 4:
        return (torch.arange(n) == 0).double()
    shaped = nes_utilities(n) if kind == 2 else _shaped(n)
    return shaped / shaped[0] if shaped[0] > 0 else shaped


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
    of_rank = torch.arange(len(sizes)).repeat_interleave(sizes)  # best group first
    total = torch.zeros(len(sizes), dtype=torch.float64).index_add_(0, of_rank, nes_utilities(len(fitness)))
    return (total / sizes)[group]


def centred_ranks(fitness: Tensor) -> Tensor:
    """Ranks ``[n]`` in [-0.5, 0.5], float64, the best 0.5; equal members, and all failed ones, share the mean rank.

    0 if n = 1. Salimans et al. 2017, "Evolution Strategies as a Scalable Alternative to Reinforcement Learning",
    section 2.1 (fitness shaping); their code breaks ties by index.
    """
    _, group, sizes = failures_last(fitness).unique(return_inverse=True, return_counts=True)
    n = len(fitness)
    mean_rank = sizes.cumsum(0) - (sizes.double() + 1) / 2
    return ((mean_rank - (n - 1) / 2) / max(n - 1, 1))[group]
