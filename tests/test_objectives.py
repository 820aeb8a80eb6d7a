"""Objectives of searches, and times until agents solve, by hand."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from control.evolution.objectives import first_solved_test, first_stable_test, objective, stays_solved
from control.reports.search import STEPS_TO_SOLVE, describe, quartiles, reward_comparison, speed_text
from models.proxies.reward.config import Config
from models.proxies.search import SearchConfig

NAN = float("nan")
CURVE = torch.tensor([
    [1.0, 5.0, 2.0, 6.0],  # solved at the second test, and for good at the fourth
    [6.0, 6.0, 6.0, 6.0],
    [0.0, 0.0, 5.0, 5.0],
    [9.0, 9.0, 9.0, 4.0],  # loses it at the end
    [0.0, 1.0, 2.0, 3.0],
    [NAN, NAN, NAN, NAN],
])  # fmt: skip
FIRST, FOR_GOOD = [1, 0, 2, 0, 4, 4], [3, 0, 2, 4, 4, 4]


def outcome_of(curve: Tensor = CURVE) -> Any:
    returns = curve[:, -1:] + torch.tensor([-1.0, 1.0])
    steps = torch.tensor([100, 70, 100, 100, 100, 30])[: len(curve)]
    lengths = steps[:, None] + torch.tensor([-10, 20])
    tested = {"scores": returns.mean(1), "returns": returns, "lengths": lengths}
    return SimpleNamespace(curve=curve, steps=steps, episodes=steps // 10, **tested)


@pytest.mark.parametrize("settings, expected", [
    ({}, [6.0, 6.0, 5.0, 4.0, 3.0, NAN]),
    ({"survival_bonus": 0.1}, [-4.5, -1.5, -5.5, -6.5, -7.5, NAN]),  # tests of 105 and 75 steps
    ({"objective": "average", "test_every": 25}, [3.5, 6.0, 2.5, 7.75, 1.5, NAN]),
    ({"objective": "average", "test_every": 25, "average_from": 25}, [3.5, 6.0, 2.5, 7.75, 1.5, NAN]),
    ({"objective": "average", "test_every": 25, "average_from": 50}, [13 / 3, 6.0, 10 / 3, 22 / 3, 2.0, NAN]),
    ({"objective": "average", "test_every": 25, "average_from": 75}, [4.0, 6.0, 5.0, 6.5, 2.5, NAN]),
    ({"objective": "average", "test_every": 25, "solved_reward": 5.0, "solved_bonus": 8.0},
     [7.5, 14.0, 6.5, 13.75, 1.5, NAN]),
    ({"objective": "auc", "test_every": 25}, [350.0, 600.0, 250.0, 775.0, 150.0, NAN]),
    ({"objective": "threshold", "solved_reward": 5.0, "unsolved_weight": 10.0}, [-100, -70, -100, -110, -120, NAN]),
])  # fmt: skip
def test_objective_by_hand(settings: dict[str, Any], expected: list[float]) -> None:
    fitness = objective(outcome_of(), SearchConfig(**settings))
    torch.testing.assert_close(fitness, torch.tensor(expected), equal_nan=True)


def test_first_and_stable_solution_by_hand() -> None:
    assert first_solved_test(CURVE, 5.0).tolist() == FIRST and first_stable_test(CURVE, 5.0).tolist() == FOR_GOOD
    assert stays_solved(CURVE, 5.0).tolist() == [False, True, True, False, False, False]
    assert stays_solved(CURVE[:, :3], 2.0).tolist() == [True, True, False, True, False, False]  # the last two of three


def test_quartiles_of_steps_by_hand() -> None:
    curve = torch.zeros(5, 10)
    assert quartiles(torch.tensor([3, 0, 9, 1, 2]), curve, 25) == [50, 75, 100, 250]
    assert quartiles(torch.tensor([3, 10, 9, 10, 10]), curve, 25) == [250, None, None, None]
    assert quartiles(torch.tensor([0, 1, 2, 3]), curve, 1) == [2, 3, 4, 4]


def test_summary_of_speed_by_hand() -> None:
    config = SearchConfig(test_every=25, solved_reward=5.0)
    summary = describe(outcome_of(), config)
    assert summary["first"] == [50, 75, None, None] and summary["stays"] == [100, None, None, None]
    assert summary["staying"] == pytest.approx(2 / 6) and summary["failed"] == 1 and summary["solved"] == 3 / 5
    text = speed_text(summary)
    assert text == (
        "Steps to the first solved test: median agent 75, slowest agent never. Steps until all later tests are "
        "solved: median agent never, slowest agent never (33 % of agents solve all tests of the second half)."
    )
    text = speed_text(describe(outcome_of(CURVE[1:3]), config))
    assert text.startswith("Steps to the first solved test: median agent 75, slowest agent 75. Steps until all later")
    assert text.endswith("median agent 75, slowest agent 75 (100 % of agents solve all tests of the second half).")
    assert "first" not in describe(outcome_of(), SearchConfig(test_every=25))
    assert "first" not in describe(outcome_of(), SearchConfig(solved_reward=5.0))


GROWS = {"solved_reward": 5.0, "test_limit_first": 5, "test_limit": 10, "test_limit_grows": (4, 9)}
INCOMPATIBLE: list[tuple[dict[str, Any], str]] = [
    ({"objective": "average"}, "objective is 'average', but test_every is null; allowed: steps between tests"),
    ({"objective": "threshold"}, "objective is 'threshold', but solved_reward is null"),
    ({"solved_bonus": 2.0}, "solved_bonus is 2.0, but solved_reward is null; allowed: a solved_reward to reach"),
    ({"choose_by": "stays", "test_every": 5}, "choose_by is 'stays', but solved_reward is null"),
    ({"test_every": 25, "inner_rule": "plateau"}, "test_every is 25, but inner_rule is 'plateau'; allowed: budget"),
    ({"test_every": 25, "inner_steps": 24}, "average_from + test_every is 25; allowed: at most 24, the steps of"),
    ({"test_every": 25, "average_from": 50, "second_phase": 3, "second_steps": 70}, "is 75; allowed: at most 70, the"),
    (GROWS | {"objective": "average", "test_every": 25, "solved_bonus": 2.0}, "test_limit_first is 5, but solved_"),
    ({"rank_apart": True, "strategy": "nes", "score_transform": 6, "eval_every": 1}, "score_transform is 6, which"),
]  # fmt: skip


@pytest.mark.parametrize("settings, line", INCOMPATIBLE)
def test_incompatible_settings_are_refused(settings: dict[str, Any], line: str) -> None:
    message = Config(**settings).validate()
    assert message is not None and line in message and "\n" not in message


def test_second_phase_has_its_settings() -> None:
    config = SearchConfig(second_phase=3, second_noise_std=0.5, second_agents=7, second_steps=11)
    changed = {"noise_std": 0.5, "agents_per_proxy": 7, "inner_steps": 11}
    assert (
        all(config.generation_settings(generation) == config for generation in (1, 3))
        and SearchConfig().generation_settings(9) == SearchConfig()
    )
    for generation in (4, 99):
        phase_settings = vars(config.generation_settings(generation))
        assert {name: value for name, value in phase_settings.items() if value != getattr(config, name)} == changed


@pytest.mark.parametrize("learned, task, expected", [
    # Higher returns in the end.
    ([[5.0, 9.0], [5.0, 9.2]], [[5.0, 1.0], [5.0, 1.2]], ("helps", "1.1 after as many steps; ")),
    # Equal returns, and the first solved test after half of the steps, or after as many.
    ([[5.0, 6.0], [5.0, 6.0]], [[1.0, 6.0], [1.0, 6.0]], ("helps", "agent solves a test: 25 (task's reward: 50).")),
    ([[1.0, 6.0], [1.0, 6.0]], [[1.0, 6.0], [1.0, 6.0]], ("shows no clear gain", "(task's reward: 50).")),
    # Sooner, but with lower returns in the end.
    ([[5.0, 1.0], [5.0, 1.2]], [[1.0, 9.0], [1.0, 9.2]], ("shows no clear gain", "(task's reward: 50).")),
    # No agent solves a test, or none with the task's reward.
    ([[1.0, 2.0], [1.0, 2.0]], [[1.0, 2.0], [1.0, 2.0]], ("shows no clear gain", "2.0 after as many steps.")),
    ([[5.0, 2.0], [5.0, 2.0]], [[1.0, 2.0], [1.0, 2.0]], ("helps", "(task's reward: never).")),
])  # fmt: skip
def test_comparison_with_the_reward_of_the_task(learned: Any, task: Any, expected: tuple[str, str]) -> None:
    config = SearchConfig(test_every=25, solved_reward=5.0)
    text = reward_comparison(outcome_of(torch.tensor(learned)), outcome_of(torch.tensor(task)), config)
    conclusion, end = expected
    assert text.startswith(f"The learned reward {conclusion}: with the task's reward, agents return ") and end in text
    assert bool(STEPS_TO_SOLVE.search(text)) == ("(task's reward: " in text)
