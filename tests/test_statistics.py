import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from control.reports.statistics import improvement, interval, iqm, profile

returns = st.lists(st.floats(-1e4, 1e4), min_size=3, max_size=12)


@pytest.mark.parametrize("runs", range(1, 14))
def test_iqm_is_scipys_trimmed_mean_and_keeps_the_points_of_curves(runs: int) -> None:
    curves = np.random.default_rng(runs).normal(0, 100, (runs, 3))
    np.testing.assert_array_equal(iqm(curves), stats.trim_mean(curves, 0.25))
    assert np.shape(interval(curves)) == (() if runs < 3 else (2, 3))  # none of fewer than three


@pytest.mark.parametrize("statistic", [np.mean, iqm])
@given(values=returns)
def test_interval_lies_within_the_runs_and_is_repeatable(statistic, values: list[float]) -> None:
    bounds = interval(values, statistic)
    assert bounds is not None
    low, high = bounds
    slack = 1e-9 * (1 + max(map(abs, values)))
    assert min(values) - slack <= low <= high <= max(values) + slack
    assert interval(values, statistic) == bounds


# -- performance profiles and probability of improvement -------------------------------------------------------------

# Runs of two algorithms on four tasks, and what rliable 1.2.0 makes of them (with pandas 2, which it needs): the shares
# of scores above seven levels, the probability that A is better than B, and 95 % stratified bootstrap intervals.
A = [[3.0, 0.5, 0.1, 0.7, 1.5, 1.0], [-1.6, 0.8, 4.3, 0.3, 0.8, 2.5], [1.4, -1.0, 1.2, -0.1, 2.0, 1.5],
     [0.4, 0.8, 0.6, 0.6, 0.8, 0.5]]  # fmt: skip
B = [[0.2, 0.2, 1.3, -2.4, 0.7], [0.9, 1.4, 1.0, 1.4, 1.1], [2.3, -0.5, 0.5, -0.6, -0.0], [0.1, 0.1, 1.1, -1.3, -0.7]]
LEVELS = np.linspace(-2, 3, 7)
RLIABLE = json.loads((Path(__file__).parent / "fixtures" / "rliable.json").read_text())


@pytest.mark.parametrize(("name", "scores"), [("A", A), ("B", B)])
def test_profiles_are_those_of_rliable(name: str, scores: list[list[float]]) -> None:
    share, bounds = profile(scores, LEVELS)
    np.testing.assert_allclose(share, RLIABLE["profile"][name], atol=1e-12)
    assert bounds is not None
    np.testing.assert_allclose(bounds, RLIABLE["profile_ci"][name], atol=0.06)  # both draw 2,000 times


def test_the_probability_of_improvement_is_that_of_rliable() -> None:
    probability, bounds = improvement(A, B)
    assert probability == pytest.approx(RLIABLE["poi"], abs=1e-12)
    assert bounds == pytest.approx(RLIABLE["poi_ci"], abs=0.03)
    assert improvement(B, A)[0] == pytest.approx(1 - probability)


def test_profile_and_improvement_by_hand() -> None:
    """Tasks of three and of two runs."""
    assert profile([[1, 2, 3], [5, 0]], [0])[1] is None
    # Of nine pairs four are won and three equal. Of the four on the second task three are won.
    assert improvement([[1, 2, 3], [4, 2]], [[2, 2, 1], [1, 3]]) == (pytest.approx((5.5 / 9 + 0.75) / 2), None)
    assert improvement([[3, 4, 5]], [[0, 1, 2]]) == (1.0, (1.0, 1.0))
    low, high = improvement([[1, 2, 3]], [[1, 2, 3]])[1] or (0, 0)
    assert 0 <= low < 0.5 < high <= 1
