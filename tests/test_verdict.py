"""The verdict about fresh agents: its sentences by hand, its baselines, and the exit codes of commands. Also the
presets that are the default because they succeed."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import trainer
import understudy
from control.cli.parse import parse
from control.cli.settings import from_dict, to_yaml
from control.evolution.inner_loop import InnerLoop, Outcome
from control.reports import verdict
from control.reports.tables import Score
from control.reports.verdict import Baselines, Verdict, constant_actions, joint_verdict
from helpers import flags
from models.spaces import Continuous, Discrete


def score(mean: float, error: float = 0.0) -> Score:
    return Score(mean, error, mean, None, 32)


# Random play returns -180 and the best constant action, 0, returns -140, both with a standard error of 3.
# With 4 of the agents, two standard errors of a difference are 10.
CASES: dict[str, tuple[dict[str, Any], bool, str]] = {
    "a teacher": (
        {"agents": score(233.6, 4.0), "teacher": score(242.0, 4.0)}, True,
        "Agents come 98 % of the way from random play to the teacher. Mean returns: agents 233.6, teacher 242.0, "
        "random play -180.0, best constant action (0) -140.0.",
    ),
    "two standard errors": (
        {"agents": score(-129.9, 4.0)}, True, "Agents are better than random play and than the best constant action. ",
    ),
    "less than two standard errors": (
        {"agents": score(-130.1, 4.0), "advice": "--preset two_stage"}, False,
        "Agents are not clearly better than the best constant action: try --preset two_stage. Mean returns: agents ",
    ),
    "no better than random play": (
        {"agents": score(-171.0, 4.0)}, False, "Agents are not clearly better than random play. ",
    ),
    "a poor teacher": (
        {"agents": score(233.6), "teacher": score(-175.0, 4.0)}, False,
        "The teacher is not clearly better than random play. ",
    ),
    "a teacher like the constant action": (
        {"agents": score(-139.0, 4.0), "teacher": score(-138.0, 4.0)}, True, "Agents come 98 ± 19 % of the way ",
    ),
    "worse than a teacher like the constant action": (
        {"agents": score(-160.0, 1.0), "teacher": score(-141.0, 3.0)}, False,
        "Agents are no better than the best constant action. ",
    ),
    "the goal, by a constant action": (
        {"agents": score(-140.0), "goal": -140.0}, True,
        "Agents are better than random play, and as good as the best constant action, which reaches the goal. ",
    ),
    "not solved": (
        {"agents": score(-110.0, 1.0), "solved_reward": -90.0}, True,
        "Not solved. Agents are better than random play and than the best constant action. Mean returns: agents -110",
    ),
    "failed and not solved": (
        {"agents": score(-171.0, 4.0), "solved_reward": -90.0}, False,
        "Not solved. Agents are not clearly better than random play. ",
    ),
    "no progress": (
        {"agents": score(20.0), "progress": (score(3.0, 0.5), score(3.9, 0.1)), "advice": "more --generations"}, False,
        "Agents are better than random play, but the search gained nothing: the winner is not clearly better than the "
        "first generation: try more --generations. Fitness: winner 3.9, first generation 3.0; mean return of the "
        "agents: 20.0.",
    ),
    "diverged": ({"agents": Score.of([np.nan, np.inf])}, False, "The weights of all agents are no longer finite."),
    "equal returns": (
        {name: score(7.0) for name in ("random", "constant", "agents")}, False,
        "Agents, random play and constant actions have the same return, which shows nothing to learn. ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_verdict_and_its_sentence(case: str) -> None:
    details, passed, sentence = CASES[case]
    fields = {"random": score(-180.0, 3.0), "constant": score(-140.0, 3.0), "action": "0"} | details
    result = Verdict(**fields)
    assert result.passed == passed and result.sentence.startswith(sentence)


def test_joint_verdict_passes_if_most_kinds_pass() -> None:
    """Two of three kinds must pass, and the sentences name every kind."""
    fields: dict[str, Any] = {"random": score(-180.0, 3.0), "constant": score(-140.0, 3.0), "action": "0"}
    fields |= {"teacher": score(220.0, 4.0), "advice": "more"}
    good, poor, bad = (Verdict(agents=score(mean, 4.0), **fields) for mean in (220.0, 180.0, -150.0))
    way = "of the way from random play to the teacher"
    failure = "agents are no better than the best constant action"
    baselines = "teacher 220.0, random play -180.0, best constant action (0) -140.0."
    two = joint_verdict({"DDQN": good, "PPO": poor, "A2C": bad})
    assert two["passed"] and two["sentence"] == (
        f"New agents that trained only on the bandit come 100 % (DDQN), 90 % (PPO) {way}; A2C: {failure}. "
        f"Mean returns: DDQN 220.0, PPO 180.0, A2C -150.0, {baselines}"
    )
    halfway = joint_verdict({"DDQN": Verdict(agents=score(20.0, 4.0), **fields), "PPO": bad, "A2C": poor})
    assert halfway["passed"] and "try" not in halfway["sentence"], "A2C comes near the teacher"
    far = joint_verdict({"DDQN": Verdict(agents=score(20.0, 4.0), **fields)})
    assert far["passed"] and f"come 50 % (DDQN) {way}: try more." in far["sentence"]
    noisy = joint_verdict({"DDQN": Verdict(agents=score(220.0, 24.0), **fields)})
    assert f"come 100 ± 12 % (DDQN) {way}" in noisy["sentence"]
    one = joint_verdict({"DDQN": good, "PPO": bad})
    assert not one["passed"] and f" come 100 % (DDQN) {way}; PPO: {failure}: try more." in one["sentence"]
    assert joint_verdict({"PPO": bad})["sentence"].startswith(f"PPO: {failure}: try more. Mean returns: PPO -150.0")
    like_constant = Verdict(agents=score(-139.0, 4.0), **fields | {"teacher": score(-141.0, 4.0)})
    doubt = "the teacher is no better than the best constant action"
    assert f"; {doubt}. Mean returns: PPO -139.0" in joint_verdict({"PPO": like_constant})["sentence"]


def test_score_is_of_finite_returns() -> None:
    numbers = Score.of([1.0, 2.0, np.nan, 3.0, 6.0])
    # The squared deviations from 3 are 4, 1, 0 and 9: their sum by 3 is 14/3, and the error the root of 14/12.
    assert (numbers.mean, numbers.iqm, numbers.count) == (3.0, 2.5, 4)
    assert numbers.error == pytest.approx((14 / 12) ** 0.5)
    assert numbers.bounds is not None
    assert Score.of([5.0]) == Score(5.0, 0.0, 5.0, None, 1)
    assert not Score.of([1e6 + 1]).exceeds(Score.of([1e6]))  # a difference by rounding


def test_constant_actions_cover_the_space() -> None:
    assert list(constant_actions(Discrete(3))) == ["0", "1", "2"]
    assert list(constant_actions(Discrete(500), 9))[::8] == ["0", "499"]
    assert len(constant_actions(Discrete(40))) == 40
    assert list(constant_actions(Continuous((-2.0,), (2.0,)))) == "-2 -1.5 -1 -0.5 0 0.5 1 1.5 2".split()
    pairs = constant_actions(Continuous((-1.0, 0.0), (1.0, 4.0)))
    assert len(pairs) == 9 and torch.equal(pairs["-1 4"], torch.tensor([-1.0, 4.0]))
    assert list(constant_actions(Continuous((-1.0,) * 3, (1.0,) * 3)))[::4] == ["-1", "0", "1"]


def test_baselines_of_a_map_are_those_by_hand() -> None:
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


def test_baselines_play_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "MOST_STEPS", 4000)
    baselines = Baselines.measure("mountaincar", 1)
    assert baselines.real_steps <= 4000 + 4 * 200 and 2 <= baselines.random.count < 32


# -- whole commands ----------------------------------------------------------------------------------------------------


CLIFF: dict[str, Any] = {
    "implementation": "RN", "gamename": "cliff", "agent": "QLearning", "preset": "cheap", "population": 20,
    "generations": 8, "second_phase": None, "seed": 0, "retest_agents": 8, "report_agents": 16,
}  # fmt: skip


def test_a_search_that_cannot_succeed_exits_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rewards by chance: the command says before and after the search that agents are no better, and exits with 1. So
    does an evaluation of its result. From Python the verdict is an attribute."""
    words = flags(tmp_path, implementation="SE", gamename="test_learn:Noise-v0", proxy="bandit", report_agents=8)
    assert trainer.main(words) == 1
    output = capsys.readouterr().out
    assert re.search(r"DDQN after 60 real steps: .*, random play .*: agents are (no|not clearly) better", output)
    sentence = re.search(r"verdict +Failed, so the exit status is 1. (.*)", output)
    assert sentence and re.fullmatch(
        r"Agents are (no|not clearly) better than .*: try more --generations or --proxy bandit.*", sentence[1]
    )
    (scores,) = tmp_path.rglob("scores.json")
    run = trainer.load(scores.parent)
    assert run.verdict["sentence"] == sentence[1] and not run.verdict["passed"] and run.verdict["real_steps"] > 0
    assert understudy.load(scores.parent).description["scores"]["verdict"] == run.verdict
    assert trainer.main(["--eval_agent", str(scores.parent), "--num_agents", "4", "--no_real_baseline"]) == 1
    output = capsys.readouterr().out
    assert output.splitlines()[-1].startswith("Failed, so the exit status is 1. Agents are") and "on each" not in output


def test_a_search_that_succeeds_exits_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [word for name, value in CLIFF.items() for word in (f"--{name}", str(value))]
    assert trainer.main([*words, "--logdir", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "real steps: " not in output  # the settings for the cliff are known to suffice
    assert (
        "verdict     Agents are better than random play and than the best constant action. Mean returns: agents -12.0"
        in output
    )
    (folder,) = (path.parent for path in tmp_path.rglob("scores.json"))
    first, winner = trainer.load(folder).verdict["progress"]
    assert first["mean"] < winner["mean"] and first["count"] == 32  # center_agents


@pytest.mark.usefixtures("short_fits")
def test_clone_is_compared_with_its_policy(tmp_path: Path) -> None:
    """A clone is compared with its policy."""
    changes = {"proxy": "bandit", "preset": "clone", "start_from": "test_teachers:balance", "table_size": 50}
    status = trainer.main(flags(tmp_path, implementation="SE", **changes))
    (scores,) = tmp_path.rglob("scores.json")
    assert understudy.load(scores.parent).description["settings"]["start_from"] == "test_teachers:balance"
    result = trainer.load(scores.parent).verdict
    assert result["teacher"]["mean"] == 30  # the limit of tests
    assert status == 1 - result["passed"]


def test_shipped_bandit_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert trainer.main("--eval_agent cartpole-bandit --num_agents 3 --no_real_baseline --num_threads 1".split()) == 0
    assert "returns: agents 500.0, random play" in capsys.readouterr().out


def test_each_implementation_is_evaluated_as_if_alone(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """Its settings and returns do not depend on the implementations beside it, of its family (PPO, A2C) or others."""
    trained: list[tuple[str, Any, list[int], Outcome]] = []
    run = InnerLoop.run

    def spy(self: InnerLoop, proxies: Any, seeds: list[int], **options: Any) -> Outcome:
        (name,) = self.implementations
        outcome = run(self, proxies, seeds, **options | {"inner_steps": 2048})  # briefly
        trained.append((name, self.agent_config, seeds, outcome))
        return trained[-1][-1]

    monkeypatch.setattr(InnerLoop, "run", spy)
    words = "--eval_agent lunarlander-bandit --no_real_baseline --time_limit 30 --lr 1e-3"
    for agents, count in (("DDQN,PPO,A2C", 6), ("DDQN", 2), ("PPO", 2), ("A2C", 2)):
        trainer.main([*words.split(), "--agent", agents, "--num_agents", str(count)])
        if "," in agents:
            assert re.search(r"\n  DDQN -?[\d.]+, PPO -?[\d.]+, A2C -?[\d.]+\n", capsys.readouterr().out)
    together, alone = trained[:3], trained[3:]
    assert [name for name, *_ in together] == [name for name, *_ in alone] == ["DDQN", "PPO", "A2C"]
    for (_, config, seeds, outcome), (_, config_alone, seeds_alone, outcome_alone) in zip(together, alone, strict=True):
        assert config == config_alone and config.lr == 1e-3 and seeds == seeds_alone
        assert torch.equal(outcome.returns, outcome_alone.returns)


@pytest.mark.parametrize(("words", "expected"), [
    ("--gamename pendulum", ("bandit", "two_stage", "TD3")),
    ("--gamename pendulum --proxy bandit --agent TD3", ("bandit", "two_stage", "TD3")),
    ("--gamename halfcheetah", ("bandit", "two_stage", "TD3")),
    ("--gamename hopper --agent PPO", ("bandit", "two_stage", "PPO")),
    ("--gamename mountaincar", ("bandit", "two_stage", "DDQN")),
    ("--gamename pendulum --preset recipe", ("bandit", "recipe", "TD3")),
    ("--gamename pendulum --preset broad --agent PPO", ("mdp", "broad", "PPO")),
    ("--gamename pendulum --proxy mdp", ("mdp", "recipe", "TD3")),
    ("--gamename cartpole", ("mdp", "recipe", "DDQN")),
    ("--gamename acrobot --proxy bandit", ("bandit", "recipe", "DDQN")),
])  # fmt: skip
def test_default_preset_of_each_game(words: str, expected: tuple[str, str, str]) -> None:
    """The preset that works on a game is the default, and is in config.yaml."""
    settings = parse(["--implementation", "SE", *words.split()])
    written = yaml.safe_load(to_yaml(settings))
    assert tuple(written[name] for name in ("proxy", "preset", "agent")) == expected
    assert from_dict(written).proxy == settings.proxy
