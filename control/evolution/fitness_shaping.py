"""Fitness shaping: weights of a generation's perturbations by their fitness.

The n members of a population are perturbed copies of a search's mean. All functions take their fitness ``[n]`` (higher
is better), and compute in float64. A member has **failed** if its fitness is NaN, infinite or beyond the range of
float32 (about 3.4e38), because differences of larger numbers overflow. Other members are **valid**. Every rule ranks
failed members below all valid members.

If a rule sorts members and two are equal, the lower index counts as better (a stable sort). Failed members are last, by
index. `centred_ranks` and `shared_utilities` give equal members equal numbers instead.
"""

import torch
from torch import Tensor

KINDS = range(8)
MARGIN = 1e-6  # a member counts as better than the mean if its fitness exceeds the mean's by more than this
LARGEST = torch.finfo(torch.float32).max


def replace_failures(fitness: Tensor) -> tuple[Tensor, Tensor]:
    """Return the fitness ``[n]`` in float64, and a mask ``[n]``, True for members that have not failed. Failed members
    (NaN, infinite or beyond float32) get the lowest fitness of the others; if all failed, the fitness is all zeros."""
    fitness = fitness.to(torch.float64)
    valid = fitness.abs() <= LARGEST  # false for NaN
    worst = fitness[valid].min() if valid.any() else fitness.new_zeros(())
    return torch.where(valid, fitness, worst), valid


def mask_failures(fitness: Tensor) -> Tensor:
    """Return the fitness ``[n]`` in float64 with every failed member set to -infinity, so that a sort puts it last."""
    valid_fitness, valid = replace_failures(fitness)
    return valid_fitness.masked_fill(~valid, -torch.inf)


def transform(kind: int, fitness: Tensor, mean_score: float | None = None) -> Tensor:
    """Return the weights ``[n]``, float64 and finite, of the n members of a population in the update of the mean, by
    their fitness ``[n]`` (F) and rule ``kind``:

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

    S is ``mean_score``, the fitness of the search's mean, which kinds 5, 6 and 7 need. If the mean failed, S is the
    fitness of the worst member that has not failed. If all members failed, all weights are 0.

    Source: synthetic environments, Ferreira et al. 2022, arXiv:2202.02790, setting ``score_transform_type``. In kinds 6
    and 7 the paper's code first divides by max F - S + 1e-9; this cancels and is left out here. Its sort is not stable.
    """
    valid_fitness, valid = replace_failures(fitness)
    weights = torch.zeros_like(valid_fitness)
    if not valid.any():
        return weights
    if kind == 0:
        low, high = valid_fitness.aminmax()
        return (valid_fitness - low) / (high - low + 1e-9)
    best_first = mask_failures(fitness).sort(descending=True, stable=True).indices
    if kind <= 3:
        weights[best_first] = _weights_by_rank(kind, len(fitness))
        return weights
    only_best = torch.zeros_like(weights)
    only_best[best_first[0]] = 1
    if kind == 4:
        return only_best
    assert mean_score is not None
    base = mean_score if abs(mean_score) <= LARGEST else float(valid_fitness.min())
    is_better = valid & (valid_fitness > base + MARGIN)
    if not is_better.any():
        return weights
    if kind == 5:
        return only_best
    gain = torch.where(is_better, valid_fitness - base, 0.0)
    return gain / (gain.max() if kind == 6 else gain.sum())


def _weights_by_rank(kind: int, n: int) -> Tensor:
    """Return the weights ``[n]``, best first, of kinds 1 to 3 (`transform`), which depend only on the rank."""
    if kind == 1:
        return torch.linspace(1, 0, n, dtype=torch.float64)
    weights = nes_utilities(n) if kind == 2 else _log_ranks(n)
    largest = weights[0]
    return weights / largest if largest > 0 else weights  # 0 only for kind 2 and n = 1


def _log_ranks(n: int) -> Tensor:
    """Return max(0, ln(n/2 + 1) - ln k) for the ranks k = 1 (best) to n, ``[n]``: above 0 only in the better half."""
    rank = torch.arange(1, n + 1, dtype=torch.float64)
    return (torch.tensor(n / 2 + 1, dtype=torch.float64).log() - rank.log()).clamp(min=0)


def nes_utilities(n: int) -> Tensor:
    """Return the utilities of NES, best first, ``[n]`` float64 with sum 0: `_log_ranks` divided by the sum, minus 1/n.

    Source: Wierstra et al. 2014, "Natural Evolution Strategies", JMLR 15, fitness shaping.
    """
    weights = _log_ranks(n)
    return weights / weights.sum() - 1 / n


def shared_utilities(fitness: Tensor) -> Tensor:
    """Return each member's utility by its rank (`nes_utilities`), ``[n]``. Members with equal fitness get the mean of
    their utilities, so that a plateau does not move the search."""
    return _weights_with_ties(fitness, nes_utilities(len(fitness)))


def _weights_with_ties(fitness: Tensor, weights: Tensor) -> Tensor:
    """Distribute ``weights [n]`` (float64, best first) among n members by their ``fitness [n]``. Members with equal
    fitness get the mean of their weights: for fitness (5, 7, 5) and weights (4, 2, 1), the result is (1.5, 4, 1.5)."""
    # Groups of members with equal fitness, best first: the group of each member [n], and the size of each group.
    _, group_of_member, sizes = (-mask_failures(fitness)).unique(return_inverse=True, return_counts=True)
    group_of_rank = torch.arange(len(sizes)).repeat_interleave(sizes)  # [n]
    sums = torch.zeros(len(sizes), dtype=torch.float64).index_add_(0, group_of_rank, weights)
    group_means = sums / sizes
    return group_means[group_of_member]


def centred_ranks(fitness: Tensor) -> Tensor:
    """Return ranks ``[n]`` float64 from -0.5 (worst) to 0.5 (best); 0 if n = 1. Members with equal fitness get the mean
    of their ranks, and so do failed members.

    Source: Salimans et al. 2017, "Evolution Strategies as a Scalable Alternative to Reinforcement Learning", section
    2.1 (fitness shaping). Their code breaks ties by index.
    """
    n = len(fitness)
    ranks = torch.arange(n - 1, -1, -1, dtype=torch.float64)  # 0 is the worst
    mean_rank, highest_rank = (n - 1) / 2, n - 1
    return (_weights_with_ties(fitness, ranks) - mean_rank) / max(highest_rank, 1)  # 1: no division by 0 if n = 1
