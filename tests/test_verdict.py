"""The verdict about fresh agents: its sentences by hand, and its baselines."""

import json
from typing import Any

import numpy as np
import pytest
import torch

from control.reports import verdict
from control.reports.verdict import Baselines, Score, Verdict, constant_actions
from models.spaces import Continuous, Discrete


def score(mean: float, error: float = 0.0) -> Score:
    return Score(mean, error, mean, None, 32)


# Random play returns -180 and the best constant action, 0, returns -140, both with a standard error of 3.
# With 4 of the agents, two standard errors of a difference are 10.
CASES: dict[str, tuple[dict[str, Any], bool, str]] = {
    "a teacher": (
        {"agents": score(233.6, 4.0), "teacher": score(242.0, 4.0)}, True,
        "agents (233.6) reach 98 % of the way from random play (-180.0) to the teacher (242.0)",
    ),
    "no teacher": (
        {"agents": score(20.0, 4.0)}, True,
        "agents (20.0) are better than random play (-180.0) by 200.0, and than the best constant action (0: -140.0)",
    ),
    "two standard errors": (
        {"agents": score(-129.9, 4.0)}, True,
        "agents (-129.9) are better than random play (-180.0) by 50.1, and than the best constant action (0: -140.0)",
    ),
    "less than two standard errors": (
        {"agents": score(-130.1, 4.0), "advice": "--preset two_stage"}, False,
        "agents (-130.1) are no better than a constant action (0: -140.0): try --preset two_stage",
    ),
    "no better than random play": (
        {"agents": score(-171.0, 4.0)}, False, "agents (-171.0) are no better than random play (-180.0)",
    ),
    "a poor teacher": (
        {"agents": score(233.6), "teacher": score(-175.0, 4.0)}, False,
        "the teacher (-175.0) is no better than random play (-180.0)",
    ),
    "a teacher like the constant action": (
        {"agents": score(-139.0, 4.0), "teacher": score(-138.0, 4.0)}, True,
        "agents (-139.0) reach 98 % of the way from random play (-180.0) to the teacher (-138.0)",
    ),
    "the goal, by a constant action": (
        {"agents": score(-140.0), "goal": -140.0}, True,
        "agents (-140.0) are better than random play (-180.0) by 40.0, and no worse than the best constant action "
        "(0: -140.0), which reaches the goal",
    ),
    "no progress": (
        {"agents": score(20.0), "progress": (score(3.0, 0.5), score(3.9, 0.1)), "advice": "more --generations"}, False,
        "the fitness of the winner (3.9) is no better than in the first generation (3.0): try more --generations",
    ),
    "no progress at the goal": (
        {"agents": score(20.0), "progress": (score(3.0), score(3.0)), "goal": 20.0}, True,
        "agents (20.0) are better than random play (-180.0) by 200.0, and than the best constant action (0: -140.0)",
    ),
    "diverged": (
        {"agents": Score.of([np.nan, np.inf])}, False, "the weights of all agents are no longer finite",
    ),
    "equal returns": (
        {name: score(7.0) for name in ("random", "constant", "agents")}, False,
        "agents, random play and constant actions all return 7.0, which shows nothing to learn",
    ),
    "equal returns, random rewards": (
        {"random": score(7.0, 0.1), "constant": score(7.0), "agents": score(7.0, 0.1)}, False,
        "agents (7.0) are no better than random play (7.0)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_sentences(case: str) -> None:
    details, passed, sentence = CASES[case]
    fields = {"random": score(-180.0, 3.0), "constant": score(-140.0, 3.0), "action": "0"} | details
    result = Verdict(**fields)
    assert (result.passed, result.sentence) == (passed, sentence)


def test_scores() -> None:
    numbers = Score.of([1.0, 2.0, np.nan, 3.0, 6.0])
    # The squared deviations from 3 are 4, 1, 0 and 9: their sum by 3 is 14/3, and the error the root of 14/12.
    assert (numbers.mean, numbers.iqm, numbers.count) == (3.0, 2.5, 4)
    assert numbers.error == pytest.approx((14 / 12) ** 0.5)
    assert numbers.bounds is not None
    assert Score.of([5.0]) == Score(5.0, 0.0, 5.0, None, 1)
    assert not Score.of([1e6 + 1]).exceeds(Score.of([1e6]))  # a difference by rounding


def test_constant_actions() -> None:
    assert list(constant_actions(Discrete(3))) == ["0", "1", "2"]
    assert list(constant_actions(Discrete(500)))[:: verdict.MOST_CONSTANTS - 1] == ["0", "499"]
    assert list(constant_actions(Continuous((-2.0,), (2.0,)))) == ["-2", "0", "2"]
    pairs = constant_actions(Continuous((-1.0, 0.0), (1.0, 4.0)))
    assert len(pairs) == 9 and torch.equal(pairs["-1 4"], torch.tensor([-1.0, 4.0]))
    assert list(constant_actions(Continuous((-1.0,) * 3, (1.0,) * 3))) == ["-1", "0", "1"]


def test_baselines_of_a_map() -> None:
    """On the cliff, action 1 runs into a wall until the time limit of 50 steps, and others fall."""

    def teacher(obs: torch.Tensor) -> torch.Tensor:
        return torch.ones(len(obs), dtype=torch.int64)

    baselines = Baselines.measure("cliff", 3)
    assert (baselines.action, baselines.constant.mean, baselines.constant.error) == ("1", -50.0, 0.0)
    assert baselines.random.mean < -50 and baselines.random.count == verdict.EPISODES
    assert Baselines.measure("cliff", 3) is baselines  # measured once
    taught = Baselines.measure("cliff", 3, None, teacher)
    assert (taught.random, taught.teacher) == (baselines.random, baselines.constant)
    result = baselines.judge([-13.0] * 4, advice="nothing")
    assert result.passed and json.loads(json.dumps(result.as_dict()))["passed"]


def test_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "MOST_STEPS", 4000)
    baselines = Baselines.measure("mountaincar", 1)
    assert baselines.real_steps <= 4000 + 4 * 200 and 2 <= baselines.random.count < 32
