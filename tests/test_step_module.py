"""Whole runs of agents that learn between steps: what they write, resume, refuse and warn of."""

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import EnvSpec

import trainer
from control.cli import parse as config
from control.commands.train import build_module
from control.lightning.agent import AgentModule
from control.storage.run_dir import read_metrics
from fake_runs import Shown, refused
from helpers import flags, learned, same_runs, trained
from models.settings import UserError

ALWAYS = {"gradient_steps", "train/loss", "train/epsilon", "rollout/return_mean", "rollout/length", "time/train"}
EVALUATED = {"eval/return_greedy", "time/eval"}


def step_flags(logdir: Path, *more: str, **changes: Any) -> list[str]:
    return flags(logdir, *more, **({"implementation": "DDQN"} | changes))


def stepped(logdir: Path, *more: str, **changes: Any) -> Path:
    return trained(logdir, *more, **({"implementation": "DDQN"} | changes))


# -- what a run writes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["DDQN", "DuelingDDQN"])
def test_a_run_writes_what_it_promises(name: str, logdir: Path, capsys: Shown) -> None:
    folder = stepped(logdir, implementation=name, seed=3)
    assert folder == logdir / "cartpole" / "debug" / name / "seed_3" / "version_0"
    assert {"config.yaml", "metrics.csv", "checkpoints", "curve.png"} <= {path.name for path in folder.iterdir()}
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"last.ckpt", "best.ckpt"}
    metrics = read_metrics(folder / "metrics.csv")
    assert set(metrics) == {"epoch", "env_steps", "seed"} | ALWAYS | EVALUATED
    assert metrics["epoch"] == [1, 2, 3, 4, 5] and metrics["env_steps"] == [37, 74, 111, 148, 185]
    evaluated = [not math.isnan(value) for value in metrics["eval/return_greedy"]]
    assert evaluated == [False, True, False, True, False]
    # one update a step, from the end of the first episode on
    updates = metrics["gradient_steps"]
    assert 0 < updates[0] < 37 and np.diff(updates).tolist() == [37] * 4
    assert np.isfinite(metrics["train/loss"]).all()
    assert np.array_equal(metrics["rollout/return_mean"], metrics["rollout/length"], equal_nan=True)
    shown = capsys.readouterr().out
    for line in ("epoch 1/5", "epoch 4/5", "greedy", str(folder), "--eval_agent", "tensorboard"):
        assert line in shown
    assert "warning" not in shown.lower() and "nan" not in shown


def test_what_was_not_measured_is_nan_and_not_printed(logdir: Path, capsys: Shown) -> None:
    """Episodes of 200 steps; the first update only after one of them."""
    folder = stepped(logdir, gamename="mountaincar", steps_per_epoch=80, epochs=3, num_envs=3)
    metrics = read_metrics(folder / "metrics.csv")
    assert metrics["env_steps"] == [81, 162, 243]  # whole steps of three environments
    assert np.isnan(metrics["train/loss"]).all() and np.isnan(metrics["rollout/length"]).all()
    assert metrics["gradient_steps"] == [0, 0, 0] and metrics["train/epsilon"] == [1, 1, 1]
    assert "nan" not in capsys.readouterr().out


def test_several_members_are_each_alone(logdir: Path, tmp_path: Path) -> None:
    """Also where they have networks of different shapes, which are trained in several groups."""
    changes = {"epochs": 4, "hidden_size": 6, "lr": 0.01}
    together = learned(stepped(logdir, "--vary_hp", num_seeds=4, **changes))
    module = build_module(config.parse(step_flags(logdir, "--vary_hp", num_seeds=4, **changes)))
    assert isinstance(module, AgentModule) and len(module.agents) > 1
    for seed in (25, 26, 27, 28):
        alone = learned(stepped(tmp_path / str(seed), "--vary_hp", seed=seed, **changes))
        rows = [row for row, own in enumerate(together["seed"]) if own == seed]
        assert len(rows) == 4
        np.testing.assert_equal({name: [together[name][row] for row in rows] for name in alone}, alone)


def test_worker_processes_change_nothing(logdir: Path, tmp_path: Path) -> None:
    changes = {"gamename": "lunarlander", "num_seeds": 2, "steps_per_epoch": 120, "epochs": 2}
    same_runs(stepped(logdir, **changes), stepped(tmp_path / "two", num_workers=2, **changes))


def test_a_longer_resumed_run_does_not_explore_anew(logdir: Path) -> None:
    stepped(logdir, eps_fraction=0.5)
    folder = stepped(logdir, "--resume", eps_fraction=0.5, epochs=9)
    epsilon = read_metrics(folder / "metrics.csv")["train/epsilon"]
    assert len(epsilon) == 9 and epsilon[0] > epsilon[1] > 0.1 and epsilon[3:] == pytest.approx([0.01] * 6)


# -- evaluating and recording ----------------------------------------------------------------------------------------


def test_a_checkpoint_is_evaluated_greedily_and_filmed(logdir: Path, capsys: Shown) -> None:
    folder = stepped(logdir, "--record", "--vary_hp", num_seeds=3, hidden_size=6)
    assert (folder / "videos" / "final.mp4").stat().st_size > 1000
    capsys.readouterr()
    assert trainer.main(["--eval_agent", str(folder), "--num_eval_episodes", "30", "--record"]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[:2] for line in shown.splitlines() if line.startswith(("greedy", "sampled"))] == [
        ["greedy", "25"], ["greedy", "26"], ["greedy", "27"], ["greedy", "all"],
    ]  # fmt: skip
    assert "command" not in shown and len(list((folder / "videos").glob("eval_*.mp4"))) == 1


@pytest.mark.parametrize("more", [["--evaluation", "sampled"], ["--command.return", "3"]])
def test_what_has_no_effect_on_evaluation_is_refused(more: list[str], logdir: Path, capsys: Shown) -> None:
    folder = stepped(logdir, epochs=2)
    assert "DDQN" in refused(trainer.main, ["--eval_agent", str(folder), *more], "has no effect", capsys)


# -- what cannot be --------------------------------------------------------------------------------------------------


class Pictures(gym.Env):
    observation_space = gym.spaces.Box(0, 255, (20, 20, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}


@pytest.mark.parametrize(("argv", "line"), [
    ("--gamename pendulum", "gamename is 'pendulum', whose actions are continuous; DDQN takes discrete actions"),
    ("--gamename Pictures-v0", "gamename is 'Pictures-v0', which shows images; DDQN takes vectors of observations"),
    ("--command.return 3", "command.return has no effect: DDQN here follows no command"),
])  # fmt: skip
def test_what_cannot_be_learned_is_one_line(
    argv: str, line: str, logdir: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gym.registry, "Pictures-v0", EnvSpec("Pictures-v0", Pictures))
    assert refused(trainer.main, step_flags(logdir, *argv.split()), line, capsys).startswith(f"error: {line}")


def test_warns_once_of_nan_and_ends_when_all_is_lost(logdir: Path, capsys: Shown, monkeypatch) -> None:
    real = AgentModule.training_step

    def spoiled(members: list[int]):
        def step(self, batch, batch_idx) -> None:
            if self.current_epoch == 2:
                with torch.no_grad():
                    self.agents[0].online[members] = float("nan")
            real(self, batch, batch_idx)

        return step

    monkeypatch.setattr(AgentModule, "training_step", spoiled([1]))
    folder = stepped(logdir, num_seeds=2)
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert len(warnings) == 2 and warnings[0].startswith("warning: seed 26: the loss is nan since epoch 3")
    assert warnings[1].startswith("warning: seed 26: weights are no longer finite (epoch 3)")
    losses = read_metrics(folder / "metrics.csv")["train/loss"]
    assert np.isnan(losses).tolist() == [False] * 5 + [True, False, True, False, True]
    monkeypatch.setattr(AgentModule, "training_step", spoiled([0, 1]))
    said = "weights are no longer finite (epoch 3), so training stops"
    refused(trainer.main, step_flags(logdir, num_seeds=2), said, capsys, begun=True)


def test_the_module_says_what_it_refuses_before_it_is_built(logdir: Path) -> None:
    with pytest.raises(UserError, match="continuous"):
        build_module(config.parse(step_flags(logdir, gamename="mountaincar-continuous")))


def test_a_run_that_ends_before_it_learns_says_so(tmp_path: Path, capsys: Shown) -> None:
    run = ["--implementation", "ER", "--gamename", "panflute", "--logdir", str(tmp_path), "--num_hidden_units", "4"]
    for steps, told in (("20", True), ("40", False)):
        flags = ["--num_steps", steps, "--eval_frequency", "20", "--training_start_time", "20", "--eval_steps", "2"]
        assert trainer.main([*run, *flags, "--exp_name", steps]) == 0
        assert ("warning: nothing will be learned: the run has 20 steps" in capsys.readouterr().out) == told
