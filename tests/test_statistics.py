import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from control.reports.statistics import interval, iqm, mean

returns = st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=12)


@pytest.mark.parametrize(("values", "expected"), [
    ([7.0], 7.0),
    ([0.0, 3.0, 9.0], 4.0),  # under four runs there is no whole run to drop
    ([-100.0, 1.0, 2.0, 100.0], 1.5),
    ([-100.0, 1.0, 2.0, 3.0, 100.0], 2.0),
    ([-9.0, -9.0, 1.0, 2.0, 3.0, 4.0, 99.0, 99.0], 2.5),
])  # fmt: skip
def test_iqm_by_hand(values: list[float], expected: float) -> None:
    assert float(iqm(values)) == pytest.approx(expected)


@pytest.mark.parametrize("runs", range(1, 14))
def test_iqm_is_scipys_trimmed_mean_and_keeps_the_points_of_curves(runs: int) -> None:
    curves = np.random.default_rng(runs).normal(0, 100, (runs, 3))
    np.testing.assert_array_equal(iqm(curves), stats.trim_mean(curves, 0.25))
    np.testing.assert_array_equal(mean(curves), curves.mean(0))
    assert np.shape(interval(curves)) == (() if runs == 1 else (2, 3))  # none of one run


@pytest.mark.parametrize("statistic", [mean, iqm])
@given(values=returns)
def test_interval_lies_within_the_runs_and_is_repeatable(statistic, values: list[float]) -> None:
    bounds = interval(values, statistic)
    assert bounds is not None
    low, high = bounds
    slack = 1e-9 * (1 + max(map(abs, values)))
    assert min(values) - slack <= low <= high <= max(values) + slack
    assert interval(values, statistic) == bounds


def test_interval_agrees_with_scipy() -> None:
    values = np.random.default_rng(1).normal(100, 30, size=20)
    reference = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=9999).confidence_interval
    bounds = interval(values)
    assert bounds is not None
    assert bounds == pytest.approx((reference.low, reference.high), abs=2.5)
