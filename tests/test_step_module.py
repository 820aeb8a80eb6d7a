"""Whole runs of agents that learn between steps: what they write, resume, refuse and warn of."""

import math
import signal
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

import trainer
from control.cli import parse as config
from control.commands.train import build_module
from control.lightning.agent import AgentModule
from control.storage import checkpoints
from control.storage.run_dir import read_metrics
from helpers import flags, learned, run_folder, same_runs, start, wait_until
from models.settings import UserError

Shown = pytest.CaptureFixture[str]

ALWAYS = {"gradient_steps", "train/loss", "train/epsilon", "rollout/return_mean", "rollout/length", "time/train"}
EVALUATED = {"eval/return_greedy", "time/eval"}


def step_flags(logdir: Path, *more: str, **changes) -> list[str]:
    return flags(logdir, *more, **({"implementation": "DDQN"} | changes))


# -- what a run writes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["DDQN", "DuelingDDQN"])
def test_a_run_writes_what_it_promises(name: str, logdir: Path, capsys: Shown) -> None:
    assert trainer.main(step_flags(logdir, implementation=name, seed=3)) == 0
    folder = logdir / "cartpole" / "debug" / name / "seed_3" / "version_0"
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
    assert trainer.main(step_flags(logdir, gamename="mountaincar", steps_per_epoch=80, epochs=3, num_envs=3)) == 0
    metrics = read_metrics(run_folder(logdir) / "metrics.csv")
    assert metrics["env_steps"] == [81, 162, 243]  # whole ticks of three environments
    assert np.isnan(metrics["train/loss"]).all() and np.isnan(metrics["rollout/length"]).all()
    assert metrics["gradient_steps"] == [0, 0, 0] and metrics["train/epsilon"] == [1, 1, 1]
    assert "nan" not in capsys.readouterr().out


def test_several_members_are_each_alone(logdir: Path, tmp_path: Path) -> None:
    """Also where they have networks of different shapes, which are trained in several groups."""
    changes = {"epochs": 4, "hidden_size": 6, "lr": 0.01}
    assert trainer.main(step_flags(logdir, "--vary_hp", num_seeds=4, **changes)) == 0
    module = build_module(config.parse(step_flags(logdir, "--vary_hp", num_seeds=4, **changes)))
    assert isinstance(module, AgentModule) and len(module.agents) > 1
    together = learned(run_folder(logdir))
    for seed in (25, 26, 27, 28):
        assert trainer.main(step_flags(tmp_path / "alone", "--vary_hp", seed=seed, **changes)) == 0
        folder = tmp_path / "alone" / "cartpole" / "debug" / "DDQN" / f"seed_{seed}" / "version_0"
        rows = [row for row, own in enumerate(together["seed"]) if own == seed]
        assert len(rows) == 4
        for name, column in learned(folder).items():
            assert np.array_equal([together[name][row] for row in rows], column, equal_nan=True), name


def test_worker_processes_change_nothing(logdir: Path, tmp_path: Path) -> None:
    changes = {"gamename": "lunarlander", "num_seeds": 2, "steps_per_epoch": 120, "epochs": 2}
    assert trainer.main(step_flags(logdir, **changes)) == 0
    assert trainer.main(step_flags(tmp_path / "two", num_workers=2, **changes)) == 0
    same_runs(run_folder(logdir), run_folder(tmp_path / "two"))


def test_stops_at_the_target_return(logdir: Path, capsys: Shown) -> None:
    assert trainer.main(step_flags(logdir, target_return=1.0, epochs=50)) == 0
    assert read_metrics(run_folder(logdir) / "metrics.csv")["epoch"] == [1, 2]
    assert "reached the target 1.0" in capsys.readouterr().out


# -- resuming --------------------------------------------------------------------------------------------------------

RESUMED = {
    "one": {},
    "two groups, three environments, linear epsilon": {
        "num_seeds": 4, "vary_hp": "true", "hidden_size": 6, "num_envs": 3, "eps_fraction": 0.6,
    },
    "dueling": {"implementation": "DuelingDDQN", "num_seeds": 2, "feature_dim": 10},
    "replayed": {"gamename": "lunarlander", "steps_per_epoch": 130, "num_envs": 2},
}  # fmt: skip


@pytest.mark.parametrize("case", RESUMED)
def test_in_two_parts_is_the_same_as_in_one(case: str, logdir: Path, tmp_path: Path, monkeypatch) -> None:
    """The run dies after epoch 3 was logged, with the checkpoint of epoch 2, in the middle of episodes."""
    from control.lightning.callbacks import RunLog

    real = RunLog.on_train_epoch_end

    def dies(self, lightning, module) -> None:
        real(self, lightning, module)
        if module.epoch == 3:
            raise ArithmeticError

    argv = step_flags(logdir, **RESUMED[case])
    with monkeypatch.context() as patched:
        patched.setattr(RunLog, "on_train_epoch_end", dies)
        with pytest.raises(ArithmeticError):
            trainer.main(argv)
    checkpoint = checkpoints.load(run_folder(logdir) / "checkpoints" / "last.ckpt", resume=True)
    assert checkpoint.run_state["epoch"] == 2
    assert all(group["lengths"].any() for group in checkpoint.run_state["loop"]["groups"])
    assert trainer.main([*argv, "--resume"]) == 0
    assert trainer.main(step_flags(tmp_path / "whole", **RESUMED[case])) == 0
    same_runs(run_folder(tmp_path / "whole"), run_folder(logdir))


@pytest.mark.slow
def test_killed_and_resumed_is_the_same_run(logdir: Path, tmp_path: Path) -> None:
    changes = {"epochs": 25, "checkpoint_every": 1, "steps_per_epoch": 60}
    process = start(step_flags(logdir, "--resume", **changes))
    wait_until(lambda: any(len(p.read_text().splitlines()) > 5 for p in logdir.rglob("metrics.csv")), process)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert trainer.main(step_flags(logdir, "--resume", **changes)) == 0
    assert trainer.main(step_flags(tmp_path / "whole", **changes)) == 0
    same_runs(run_folder(tmp_path / "whole"), run_folder(logdir))


def test_a_longer_resumed_run_does_not_explore_anew(logdir: Path) -> None:
    assert trainer.main(step_flags(logdir, eps_fraction=0.5)) == 0
    assert trainer.main(step_flags(logdir, "--resume", eps_fraction=0.5, epochs=9)) == 0
    epsilon = read_metrics(run_folder(logdir) / "metrics.csv")["train/epsilon"]
    assert len(epsilon) == 9 and epsilon[0] > epsilon[1] > 0.1 and epsilon[3:] == pytest.approx([0.01] * 6)


def test_reload_takes_the_weights_and_nothing_else(logdir: Path, tmp_path: Path, capsys: Shown) -> None:
    assert trainer.main(step_flags(logdir)) == 0
    best = run_folder(logdir) / "checkpoints" / "best.ckpt"
    assert trainer.main(step_flags(tmp_path / "b", reload=best, epochs=1, lr=1e-12)) == 0
    theirs, ours = (checkpoints.load(path) for path in (best, run_folder(tmp_path / "b") / "checkpoints" / "last.ckpt"))
    online = "agents.0.online"
    torch.testing.assert_close(
        ours.content["state_dict"][online], theirs.content["state_dict"][online], rtol=0, atol=1e-9
    )
    assert ours.run_state["epoch"] == 1 and theirs.run_state["loop"]["groups"] is None
    assert trainer.main(step_flags(tmp_path / "c", reload=best, hidden_size=8)) == 2
    assert "whose networks are others" in capsys.readouterr().err and not (tmp_path / "c").exists()


# -- evaluating and recording ----------------------------------------------------------------------------------------


def test_a_checkpoint_is_evaluated_greedily_and_filmed(logdir: Path, capsys: Shown) -> None:
    assert trainer.main(step_flags(logdir, "--record", "--vary_hp", num_seeds=3, hidden_size=6)) == 0
    folder = run_folder(logdir)
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
    assert trainer.main(step_flags(logdir, epochs=2)) == 0
    capsys.readouterr()
    assert trainer.main(["--eval_agent", str(run_folder(logdir)), *more]) == 2
    shown = capsys.readouterr().err
    assert "has no effect" in shown and "DDQN" in shown and shown.count("\n") == 1


# -- what cannot be --------------------------------------------------------------------------------------------------


class Pictures(gym.Env):
    observation_space = gym.spaces.Box(0, 255, (20, 20, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}


class Spoiled(gym.Env):
    """Every reward is finite, their sum is not; ``reward`` may be something else."""

    observation_space = gym.spaces.Box(-1, 1, (3,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, reward: float = 3e38):
        self.reward = reward

    def reset(self, *, seed=None, options=None):
        self.age = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.age += 1
        return np.zeros(3, np.float32), self.reward, self.age == 9, False, {}


@pytest.mark.parametrize(
    ("game", "line"),
    [
        ("pendulum", "error: gamename is 'pendulum', whose actions are continuous; DDQN takes discrete actions"),
        ("Pictures-v0", "error: gamename is 'Pictures-v0', which shows images; DDQN takes vectors of observations"),
        ("Endless-v0", "error: environment Endless-v0: the rewards of an episode add up to more than a float holds"),
        ("Spoiled-v0", "reward is nan"),
    ],
)
def test_a_game_it_cannot_learn_is_one_line(game: str, line: str, logdir: Path, capsys: Shown) -> None:
    gym.register("Pictures-v0", Pictures)
    gym.register("Endless-v0", Spoiled)
    gym.register("Spoiled-v0", Spoiled, kwargs={"reward": float("nan")})
    try:
        assert trainer.main(step_flags(logdir, gamename=game)) == 2
    finally:
        for name in ("Pictures-v0", "Endless-v0", "Spoiled-v0"):
            del gym.registry[name]
    shown = capsys.readouterr().err
    assert line in shown and shown.startswith("error: ") and shown.count("\n") == 1


def test_a_command_is_refused(logdir: Path, capsys: Shown) -> None:
    assert trainer.main(step_flags(logdir, "--command.return", "3")) == 2
    assert "command.return has no effect: DDQN here follows no command" in capsys.readouterr().err


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
    assert trainer.main(step_flags(logdir, num_seeds=2)) == 0
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert len(warnings) == 2 and warnings[0].startswith("warning: seed 26: the loss is nan since epoch 3")
    assert warnings[1].startswith("warning: seed 26: weights are no longer finite (epoch 3)")
    losses = read_metrics(run_folder(logdir) / "metrics.csv")["train/loss"]
    assert np.isnan(losses).tolist() == [False] * 5 + [True, False, True, False, True]
    monkeypatch.setattr(AgentModule, "training_step", spoiled([0, 1]))
    assert trainer.main(step_flags(logdir, num_seeds=2)) == 2
    assert "weights are no longer finite (epoch 3), so training stops" in capsys.readouterr().err


def test_the_module_says_what_it_refuses_before_it_is_built(logdir: Path) -> None:
    with pytest.raises(UserError, match="continuous"):
        build_module(config.parse(step_flags(logdir, gamename="mountaincar-continuous")))


def test_a_run_that_ends_before_it_learns_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["--implementation", "ER", "--gamename", "panflute", "--logdir", str(tmp_path), "--num_hidden_units", "4"]
    for steps, told in (("20", True), ("40", False)):
        flags = ["--num_steps", steps, "--eval_frequency", "20", "--training_start_time", "20", "--eval_steps", "2"]
        assert trainer.main([*run, *flags, "--exp_name", steps]) == 0
        assert ("warning: nothing will be learned: the run has 20 steps" in capsys.readouterr().out) == told
