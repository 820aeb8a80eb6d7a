"""Statistics over runs: means, bootstrap intervals, performance profiles and probability of improvement.

All follow Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice",
arXiv:2108.13264. The interquartile mean (IQM) drops the best and the worst quarter of the runs. Intervals are
percentile bootstraps over runs. Profiles and probabilities take a list of scores, an array ``[N]`` for each task. Their
bootstraps are stratified: runs are resampled within each task.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
RESAMPLES, CONFIDENCE = 2000, 0.95
LEAST = 3  # runs that an interval needs


def mean(values: ArrayLike, axis: int = 0) -> Array:
    """Return the mean over runs, ``[N, ...] -> [...]``."""
    return np.asarray(np.asarray(values, dtype=np.float64).mean(axis))


def iqm(values: ArrayLike, axis: int = 0) -> Array:
    """Return the interquartile mean over runs, ``[N, ...] -> [...]``. For N < 4 it is the mean."""
    runs = np.asarray(values, dtype=np.float64)
    count = runs.shape[axis]
    first, last = count // 4, count - count // 4 - 1  # of the sorted runs
    middle = np.moveaxis(np.partition(runs, (first, last), axis), axis, 0)[first : last + 1]
    return np.asarray(middle.mean(0))


def interval(values: ArrayLike, statistic: Callable[[ArrayLike, int], Array] = mean) -> tuple[Array, Array] | None:
    """Return the 95 % bootstrap interval ``(low [...], high [...])`` of `mean` or `iqm` over runs ``[N, ...]``. Whole
    curves are resampled. Equal arguments give equal intervals. Returns None for fewer than three runs."""
    runs = np.asarray(values, dtype=np.float64)
    if len(runs) < LEAST:
        return None
    indices = np.random.default_rng(0).integers(len(runs), size=(RESAMPLES, len(runs)))
    return _bounds(statistic(runs[indices], 1))


Scores = Sequence[ArrayLike]
"""Scores of one algorithm: an array ``[N]`` of its runs for each task."""


def profile(scores: Scores, levels: ArrayLike) -> tuple[Array, tuple[Array, Array] | None]:
    """Return the performance profile and its 95 % interval. The profile ``[L]`` is the share of all runs on all tasks
    with a score above each of the ``levels [L]``. The interval is None if a task has fewer than three runs."""
    exceeds = [np.asarray(task, dtype=np.float64)[:, None] > np.asarray(levels) for task in scores]  # [N, L] each
    share = np.concatenate(exceeds).mean(0)
    if min(map(len, exceeds)) < LEAST:
        return share, None
    resampled = [task[indices] for task, indices in zip(exceeds, _resample_indices(scores), strict=True)]
    return share, _bounds(np.concatenate(resampled, 1).mean(1))


def improvement(x: Scores, y: Scores) -> tuple[float, tuple[float, float] | None]:
    """Return the probability that a run of ``x`` has a higher score than a run of ``y``, and its 95 % interval. The
    probability is the mean over tasks. Equal scores count half, as in the Mann-Whitney statistic. The interval is None
    if a task has fewer than three runs."""
    pairs = [_better(np.asarray(a, float)[None], np.asarray(b, float)[None]) for a, b in zip(x, y, strict=True)]
    probability = float(np.mean(pairs))
    if min(len(np.asarray(task)) for task in (*x, *y)) < LEAST:
        return probability, None
    resampled = zip(x, _resample_indices(x), y, _resample_indices(y, seed=1), strict=True)
    better = [_better(np.asarray(a, float)[i], np.asarray(b, float)[j]) for a, i, b, j in resampled]
    low, high = _bounds(np.mean(better, 0))
    return probability, (float(low), float(high))


def _better(a: Array, b: Array) -> Array:
    """Return the share ``[R]`` of pairs of ``a [R, N]`` and ``b [R, K]`` in which a is larger."""
    difference = np.sign(a[:, :, None] - b[:, None, :])
    return np.asarray((difference.mean((1, 2)) + 1) / 2)


def _resample_indices(scores: Scores, seed: int = 0) -> list[NDArray[np.int64]]:
    """Return indices of runs ``[RESAMPLES, N]`` for each task, sampled with replacement."""
    random = np.random.default_rng(seed)
    return [random.integers(len(np.asarray(task)), size=(RESAMPLES, len(np.asarray(task)))) for task in scores]


def _bounds(estimates: Array) -> tuple[Array, Array]:
    """Return the bounds of the 95 % interval of ``estimates [RESAMPLES, ...]``."""
    low, high = np.quantile(estimates, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return low, high
