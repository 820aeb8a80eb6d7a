"""Aggregates over runs: mean, interquartile mean, bootstrap intervals.

The interquartile mean (IQM) drops the best and the worst quarter of the runs, so one lucky or dead seed moves it
little; the percentile bootstrap over runs says how far it can be trusted. Both as in Agarwal et al. 2021, "Deep
reinforcement learning at the edge of the statistical precipice", arXiv:2108.13264, for a single task.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
RESAMPLES, CONFIDENCE = 2000, 0.95


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

    Runs are drawn with replacement, whole curves at a time. Equal arguments give equal intervals. None for a single
    run, which says nothing about its spread.
    """
    runs = np.asarray(values, dtype=np.float64)
    if len(runs) == 1:
        return None
    drawn = np.random.default_rng(0).integers(len(runs), size=(RESAMPLES, len(runs)))
    estimates = statistic(runs[drawn], 1)  # [RESAMPLES, ...]
    low, high = np.quantile(estimates, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return low, high
