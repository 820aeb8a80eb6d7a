"""Aggregates over runs: mean, interquartile mean, bootstrap intervals.

The interquartile mean (IQM) drops the best and the worst quarter of the runs, so one lucky or dead seed moves it
little; the percentile bootstrap over runs says how far it can be trusted. Both as in Agarwal et al. 2021, "Deep
reinforcement learning at the edge of the statistical precipice", arXiv:2108.13264, and so are performance profiles and
the probability of improvement. Their scores are a list with an array ``[N]`` of runs for each task; tasks may have
different numbers of runs. Bootstraps of those are stratified: runs are drawn anew within each task.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
RESAMPLES, CONFIDENCE = 2000, 0.95
LEAST = 3  # runs that an interval needs: of two it would be the two


def mean(values: ArrayLike, axis: int = 0) -> Array:
    """Mean over runs: `[N, ...] -> [...]`."""
    return np.asarray(np.asarray(values, dtype=np.float64).mean(axis))


def iqm(values: ArrayLike, axis: int = 0) -> Array:
    """Interquartile mean over runs: `[N, ...] -> [...]`, the mean for N < 4 since there is no whole run to drop."""
    runs = np.asarray(values, dtype=np.float64)
    cut, last = runs.shape[axis] // 4, runs.shape[axis] - runs.shape[axis] // 4 - 1
    middle = np.moveaxis(np.partition(runs, (cut, last), axis), axis, 0)[cut : last + 1]
    return np.asarray(middle.mean(0))


def interval(values: ArrayLike, statistic: Callable[[ArrayLike, int], Array] = mean) -> tuple[Array, Array] | None:
    """95 % percentile bootstrap interval of `mean` or `iqm` over runs `[N, ...]`: `(low [...], high [...])`.

    Runs are drawn with replacement, whole curves at a time. Equal arguments give equal intervals. None for fewer than
    three runs, which say too little about their spread.
    """
    runs = np.asarray(values, dtype=np.float64)
    if len(runs) < LEAST:
        return None
    indices = np.random.default_rng(0).integers(len(runs), size=(RESAMPLES, len(runs)))
    return _bounds(statistic(runs[indices], 1))


Scores = Sequence[ArrayLike]
"""Of one algorithm: for each task the scores ``[N]`` of its runs."""


def profile(scores: Scores, levels: ArrayLike) -> tuple[Array, tuple[Array, Array] | None]:
    """The performance profile at ``levels [L]``: the share of all runs on all tasks that score above each, ``[L]``, and
    its 95 % interval. The authors' run-score distribution. No interval where a task has fewer than three runs."""
    exceeds = [np.asarray(task, dtype=np.float64)[:, None] > np.asarray(levels) for task in scores]  # [N, L] each
    share = np.concatenate(exceeds).mean(0)
    if min(map(len, exceeds)) < LEAST:
        return share, None
    estimates = np.concatenate(
        [task[indices] for task, indices in zip(exceeds, _resample_indices(scores), strict=True)], 1
    ).mean(1)
    return share, _bounds(estimates)


def improvement(x: Scores, y: Scores) -> tuple[float, tuple[float, float] | None]:
    """The probability that a run of ``x`` scores higher than one of ``y`` on a task drawn at random, and its 95 %
    interval. Equal scores count half, as in the Mann-Whitney statistic. None as in `profile`."""
    pairs = [_better(np.asarray(a, float)[None], np.asarray(b, float)[None]) for a, b in zip(x, y, strict=True)]
    probability = float(np.mean(pairs))
    if min(len(np.asarray(task)) for task in (*x, *y)) < LEAST:
        return probability, None
    resampled = zip(x, _resample_indices(x), y, _resample_indices(y, seed=1), strict=True)
    better = [_better(np.asarray(a, float)[i], np.asarray(b, float)[j]) for a, i, b, j in resampled]
    low, high = _bounds(np.mean(better, 0))
    return probability, (float(low), float(high))


def _better(a: Array, b: Array) -> Array:
    """Share of pairs of ``a [R, N]`` and ``b [R, K]`` in which a is larger, ``[R]``."""
    difference = np.sign(a[:, :, None] - b[:, None, :])
    return np.asarray((difference.mean((1, 2)) + 1) / 2)


def _resample_indices(scores: Scores, seed: int = 0) -> list[NDArray[np.int64]]:
    """For each task the places ``[RESAMPLES, N]`` of runs drawn with replacement."""
    random = np.random.default_rng(seed)
    return [random.integers(len(np.asarray(task)), size=(RESAMPLES, len(np.asarray(task)))) for task in scores]


def _bounds(estimates: Array) -> tuple[Array, Array]:
    low, high = np.quantile(estimates, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return low, high
