"""Statistics over runs: means, bootstrap intervals, performance profiles and probability of improvement.

All follow Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice",
arXiv:2108.13264. The interquartile mean (IQM) drops the best and the worst quarter of the runs. Intervals are
percentile bootstraps over runs. Profiles and probabilities take a list of scores, an array ``[N]`` for each task. Their
bootstraps are stratified: runs are resampled within each task.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
RESAMPLES, CONFIDENCE = 2000, 0.95
MIN_RUNS = 3  # smallest number of runs with a bootstrap interval


def iqm(values: ArrayLike, axis: int = 0) -> Array:
    """Return the interquartile mean over the axis of N runs, ``[N, ...] -> [...]``. For N < 4 it is the mean."""
    runs = np.asarray(values, dtype=np.float64)
    count = runs.shape[axis]
    first, last = count // 4, count - count // 4 - 1  # indices of the middle half of the sorted runs
    # Places ``first`` to ``last`` of the partition have the same runs as in sorted order.
    middle = np.moveaxis(np.partition(runs, (first, last), axis), axis, 0)[first : last + 1]
    return np.asarray(middle.mean(0))


def interval(values: ArrayLike, statistic: Callable[..., Any] = np.mean) -> tuple[Array, Array] | None:
    """Return the 95 % bootstrap interval ``(low, high)`` of a statistic over N runs, None for fewer than three runs.
    ``values`` are ``[N, ...]``, and both bounds ``[...]``. ``statistic(values, axis)`` is a function such as the mean
    or `iqm`. A run is resampled with all its values. Equal arguments give equal intervals."""
    runs = np.asarray(values, dtype=np.float64)
    if len(runs) < MIN_RUNS:
        return None
    (resampled,) = _resample([runs])  # [RESAMPLES, N, ...]
    return _bounds(statistic(resampled, 1))


Scores = Sequence[ArrayLike]
"""Scores of an algorithm: for each task, an array ``[N]`` with the scores of its runs."""


def profile(scores: Scores, levels: ArrayLike) -> tuple[Array, tuple[Array, Array] | None]:
    """Return the performance profile and its 95 % interval. The profile ``[L]`` is, for each of the ``levels [L]``, the
    fraction of the runs on all tasks with a higher score. The interval is None if a task has fewer than three runs."""
    is_higher = [np.asarray(task, dtype=np.float64)[:, None] > np.asarray(levels) for task in scores]  # [N, L] each
    fractions = np.concatenate(is_higher).mean(0)
    if min(map(len, is_higher)) < MIN_RUNS:
        return fractions, None
    all_runs = np.concatenate(_resample(is_higher), axis=1)  # [RESAMPLES, runs of all tasks, L]
    return fractions, _bounds(all_runs.mean(1))


def improvement(x: Scores, y: Scores) -> tuple[float, tuple[float, float] | None]:
    """Return the probability that a run of ``x`` has a higher score than a run of ``y``, and its 95 % interval. The
    probability is the mean over tasks. Equal scores count half, as in the Mann-Whitney statistic. The interval is None
    if a task has fewer than three runs."""
    x_scores = [np.asarray(task, dtype=np.float64) for task in x]  # [N] each
    y_scores = [np.asarray(task, dtype=np.float64) for task in y]  # [K] each
    fractions = [_fraction_larger(a[None], b[None]) for a, b in zip(x_scores, y_scores, strict=True)]
    probability = float(np.mean(fractions))
    if min(map(len, x_scores + y_scores)) < MIN_RUNS:
        return probability, None
    x_samples, y_samples = _resample(x_scores), _resample(y_scores, seed=1)  # independent of each other
    resampled = [_fraction_larger(a, b) for a, b in zip(x_samples, y_samples, strict=True)]  # [RESAMPLES] each
    low, high = _bounds(np.mean(resampled, axis=0))  # bounds of the mean over tasks
    return probability, (float(low), float(high))


def _fraction_larger(a: Array, b: Array) -> Array:
    """Return the fraction ``[R]`` of pairs of ``a [R, N]`` and ``b [R, K]`` with a larger a. Equal pairs count half."""
    signs = np.sign(a[:, :, None] - b[:, None, :])  # [R, N, K]
    return np.asarray((signs.mean((1, 2)) + 1) / 2)


def _resample(tasks: Sequence[NDArray[Any]], seed: int = 0) -> list[NDArray[Any]]:
    """Sample the runs of each task with replacement. An array ``[N, ...]`` becomes ``[RESAMPLES, N, ...]``."""
    random = np.random.default_rng(seed)
    return [task[random.integers(len(task), size=(RESAMPLES, len(task)))] for task in tasks]


def _bounds(estimates: Array) -> tuple[Array, Array]:
    """Return the bounds of the 95 % interval of ``estimates [RESAMPLES, ...]``."""
    low, high = np.quantile(estimates, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return low, high
