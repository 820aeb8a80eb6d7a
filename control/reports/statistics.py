"""Aggregates over runs: mean, interquartile mean, bootstrap intervals.

The interquartile mean (IQM) drops the best and the worst quarter of the runs, so one lucky or dead seed moves it
little; the percentile bootstrap over runs says how far it can be trusted. Both as in Agarwal et al. 2021, "Deep
reinforcement learning at the edge of the statistical precipice", arXiv:2108.13264, for a single task.

Every function takes `values [N, ...]`, runs first, and reduces that axis; what follows it (points of a curve) is kept.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000


def mean(values: ArrayLike) -> NDArray[np.float64]:
    """Mean over runs: `[N, ...] -> [...]`. Raises ValueError when there are no runs."""
    return _runs(values).mean(axis=0)


def iqm(values: ArrayLike) -> NDArray[np.float64]:
    """Interquartile mean over runs: `[N, ...] -> [...]`, the mean for N < 4 since there is no whole run to drop.
    Raises ValueError when there are no runs."""
    return _iqm(_runs(values), 0)


def interval(
    values: ArrayLike,
    statistic: Callable[[ArrayLike], NDArray[np.float64]] = mean,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Percentile bootstrap interval of `statistic` (`mean` or `iqm`): `(low [...], high [...])`.

    Runs are drawn with replacement, whole curves at a time. Equal arguments give equal intervals. None for a single
    run, which says nothing about its spread. `confidence` lies in (0, 1). Raises ValueError when there are no runs.
    """
    runs = _runs(values)
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; allowed: greater than 0, less than 1")
    if len(runs) == 1:
        return None
    drawn = np.random.default_rng(seed).integers(len(runs), size=(RESAMPLES, len(runs)))
    reduce = _iqm if statistic is iqm else np.mean
    estimates = reduce(runs[drawn], 1)  # [RESAMPLES, ...]
    low, high = np.quantile(estimates, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return low, high


def _runs(values: ArrayLike) -> NDArray[np.float64]:
    runs = np.asarray(values, dtype=np.float64)
    if runs.ndim == 0 or len(runs) == 0:
        raise ValueError("no runs to aggregate")
    return runs


def _iqm(runs: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    cut, last = runs.shape[axis] // 4, runs.shape[axis] - runs.shape[axis] // 4 - 1
    middle = np.moveaxis(np.partition(runs, (cut, last), axis), axis, 0)[cut : last + 1]
    return np.asarray(middle.mean(0))
