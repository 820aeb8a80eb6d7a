"""Objectives of a search: the fitness of proxies (learned environments or rewards) from the results of N agents that
trained on them (`Outcome`), by the settings ``config`` of the search."""

import math
from typing import Any

import torch
from torch import Tensor

from control.evolution.inner_loop import Outcome


def final(outcome: Outcome, config: Any) -> Tensor:
    """Return the mean return of each agent in its test episodes after training, ``[N]``, minus ``survival_bonus`` times
    the mean length of these episodes, which removes a reward for survival (Mania et al. 2018, arXiv 1803.07055)."""
    mean_lengths = outcome.lengths.to(outcome.scores.dtype).mean(1)
    return outcome.scores - config.survival_bonus * mean_lengths


def average(outcome: Outcome, config: Any) -> Tensor:
    """Return the mean return of each agent in its tests during training, ``[N]``. It is high if agents solve a task
    early and continue to solve it. Tests before ``average_from`` training steps do not count, and ``solved_bonus`` is
    added to the return of a solved test."""
    # Test i is after (i + 1) * test_every steps.
    first_test = max(0, math.ceil(config.average_from / config.test_every) - 1)
    scores = outcome.curve[:, first_test:]
    if config.solved_bonus:
        is_solved = scores >= config.solved_reward
        scores = scores + config.solved_bonus * is_solved
    return scores.mean(1)


def auc(outcome: Outcome, config: Any) -> Tensor:
    """Return the area under the curve of test returns over training steps, ``[N]``, in return times steps (Ferreira et
    al. 2022, arXiv 2202.02790). Between two tests, the return of the later test counts."""
    return outcome.curve.sum(1) * config.test_every


def threshold(outcome: Outcome, config: Any) -> Tensor:
    """Return minus the number of training steps of each agent, ``[N]``, minus ``unsolved_weight`` times the difference
    by which its mean return after training is below ``solved_reward`` (Ferreira et al. 2022, arXiv 2202.02790)."""
    shortfall = (config.solved_reward - outcome.scores).clamp(min=0)
    return -outcome.steps.to(shortfall.dtype) - config.unsolved_weight * shortfall


def objective(outcome: Outcome, config: Any) -> Tensor:
    """Compute the fitness ``[N]`` of the proxies of N agents from the agents' results, by the function of this module
    with the name ``config.objective``, such as "average"."""
    fitness: Tensor = globals()[config.objective](outcome, config)
    return fitness


def first_stable_test(curve: Tensor, solved: float) -> Tensor:
    """Return the index of the first test from which on an agent solves all tests, for each of N agents, ``[N]`` int64.
    ``curve [N, T]`` has the returns of T tests; a test is solved by a return of at least ``solved``. The index is T if
    the agent does not solve the last test."""
    is_unsolved = ~(curve >= solved)  # NaN too
    next_index = torch.arange(1, curve.shape[1] + 1)
    return torch.where(is_unsolved, next_index, 0).amax(1)  # index of the test after the last unsolved test


def stays_solved(curve: Tensor, solved: float) -> Tensor:
    """Return whether an agent solves every test in the second half of its tests, for each of N agents, ``[N]`` bool.
    ``curve [N, T]`` has the returns of T tests; a test is solved by a return of at least ``solved``."""
    return (curve[:, curve.shape[1] // 2 :] >= solved).all(1)


def first_solved_test(curve: Tensor, solved: float) -> Tensor:
    """Return the index of the first test with a return of at least ``solved``, for each of N agents, ``[N]`` int64.
    ``curve [N, T]`` has the returns of T tests. The index is T if there is no such test."""
    is_solved = curve >= solved
    first = is_solved.int().argmax(1)  # 0 also if there is none
    return torch.where(is_solved.any(1), first, curve.shape[1])
