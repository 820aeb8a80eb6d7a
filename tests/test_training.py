"""Whole runs through the command: what they write, when they stop, what they warn of."""

import math
import signal
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from gymnasium.envs.registration import EnvSpec
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import trainer
from control.cli import parse as config
from control.lightning.agent import AgentModule
from control.loops.build import build_loop
from control.storage import checkpoints
from control.storage.run_dir import read_metrics
from fake_runs import Shown, refused
from helpers import CASES, flags, last_checkpoint, learned, on_policy, run_folder, start, trained, wait_until
from models.settings import UserError

ALWAYS = {
    "train/policy_loss", "rollout/return_mean", "rollout/return_std", "rollout/return_max", "rollout/return_min",
    "rollout/length", "time/rollout", "time/update", "gradient_steps",
}  # fmt: skip
EVALUATED = {"eval/return_greedy", "eval/return_sampled", "time/eval"}
OWN = {
    "UDRL": {"command/return", "command/horizon", "train/val_loss"},
    "RCP-R": {"command/return", "train/val_loss"},
    "RCP-A": {"command/advantage", "train/value_loss"},
}
BARE = [name for name in dict.fromkeys(implementation for implementation, _ in CASES.values()) if not on_policy(name)]
HIDDEN = {"UDRL": "12,16", "RCP-R": "16,16", "RCP-A": "16,16"}


def events(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"images": 0, "scalars": 0})
    accumulator.Reload()
    return accumulator


# -- what a run writes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BARE)
def test_a_run_writes_what_it_promises(name: str, logdir: Path, capsys: Shown) -> None:
    folder = trained(logdir, implementation=name, hidden_sizes=HIDDEN.get(name, "16,16"), epochs=5, seed=3)
    assert folder == logdir / "cartpole" / "debug" / name / "seed_3" / "version_0"
    assert {"config.yaml", "metrics.csv", "checkpoints", "curve.png"} <= {path.name for path in folder.iterdir()}
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"last.ckpt", "best.ckpt"}

    metrics = read_metrics(folder / "metrics.csv")
    assert set(metrics) == {"epoch", "env_steps", "seed"} | ALWAYS | EVALUATED | OWN.get(name, set())
    assert metrics["epoch"] == [1, 2, 3, 4, 5] and metrics["seed"] == [3] * 5
    assert metrics["gradient_steps"] == [3, 6, 9, 12, 15]
    for tag, column in metrics.items():
        measured = [not math.isnan(value) for value in column]
        assert measured == [tag not in EVALUATED or epoch % 2 == 0 for epoch in metrics["epoch"]], tag
    # every step counts: of four random episodes and of three an epoch, each as long as its return in this game
    steps = np.diff([0, *metrics["env_steps"]])
    assert (steps[1:] == np.multiply(3, metrics["rollout/length"][1:]).round()).all()
    assert metrics["rollout/length"] == metrics["rollout/return_mean"]
    assert all(low <= mean <= high for low, mean, high in zip(
        *(metrics[f"rollout/return_{which}"] for which in ("min", "mean", "max")), strict=True))  # fmt: skip

    shown = capsys.readouterr().out
    for line in ("epoch 1/5", "epoch 4/5", "greedy", str(folder), "--eval_agent", "tensorboard"):
        assert line in shown
    assert "--resume" not in shown and "warning" not in shown.lower()


def test_tensorboard_shows_the_same_numbers_settings_and_the_scatter(logdir: Path) -> None:
    folder = trained(logdir)
    shown, metrics = events(folder), read_metrics(folder / "metrics.csv")
    for tag in set(metrics) - {"epoch", "seed"}:
        scalars = shown.Scalars(tag)
        expected = [(e, v) for e, v in zip(metrics["epoch"], metrics[tag], strict=True) if not math.isnan(v)]
        assert [scalar.step for scalar in scalars] == [epoch for epoch, _ in expected]
        np.testing.assert_allclose([scalar.value for scalar in scalars], [value for _, value in expected], rtol=1e-6)
    assert [image.step for image in shown.Images("command/obtained_vs_commanded")] == [2, 4]
    assert shown.Scalars("hparam/eval_return_greedy")[0].value == pytest.approx(metrics["eval/return_greedy"][3])
    plugins = shown.SummaryMetadata("_hparams_/session_start_info").plugin_data
    assert plugins.plugin_name == "hparams" and b"batch_size" in plugins.content


def test_config_yaml_makes_the_same_run_again(logdir: Path, tmp_path: Path) -> None:
    more = ["--command.return", "31.5", "--lr", "0.002", "--no_expo_weighting"]
    first, asked = trained(logdir, *more), config.parse(flags(logdir, *more))
    read = config.from_dict(yaml.safe_load((first / "config.yaml").read_text()))
    assert read == config.Settings(asked.run, asked.agent, asked.command)
    assert trainer.main(["--config", str(first / "config.yaml"), "--logdir", str(tmp_path / "again")]) == 0
    np.testing.assert_equal(learned(run_folder(tmp_path / "again")), learned(first))


def test_a_second_run_overwrites_nothing_and_is_the_newest_of_the_folder(logdir: Path) -> None:
    first = trained(logdir)
    before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    newest = trained(logdir)
    assert newest.name == "version_1"
    np.testing.assert_equal(learned(newest), learned(first))
    assert before == {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    for folder in (newest, newest / "checkpoints", newest.parent):
        assert checkpoints.load(folder).path == newest / "checkpoints" / "best.ckpt"
    with pytest.raises(UserError, match="holds no checkpoint"):
        checkpoints.load(logdir)


def test_no_checkpoint_writes_none(logdir: Path, capsys: Shown) -> None:
    assert not list(trained(logdir, "--no_checkpoint").rglob("*.ckpt"))
    assert "--eval_agent" not in capsys.readouterr().out


def test_several_seeds_in_one_program_are_each_alone(logdir: Path, tmp_path: Path) -> None:
    """All the way through Lightning: rows of member 26 are those of a run with seed 26."""
    folder = trained(logdir, num_seeds=3)
    together, alone = learned(folder), learned(trained(tmp_path / "alone", seed=26))
    assert folder.parent.name == "seed_25-27"
    assert {path.name for path in folder.glob("seed_*")} == {"seed_25", "seed_26", "seed_27"}
    rows = [row for row, seed in enumerate(together["seed"]) if seed == 26]
    assert len(rows) == 5
    np.testing.assert_equal({name: [together[name][row] for row in rows] for name in alone}, alone)
    assert "hparam/eval_return_greedy" in events(folder / "seed_26").Tags()["scalars"]


# -- stopping, reloading, failing ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["UDRL", "DDQN"])
def test_stops_at_the_target_return(name: str, logdir: Path, capsys: Shown) -> None:
    folder = trained(logdir, implementation=name, target_return=1.0, epochs=50)
    assert read_metrics(folder / "metrics.csv")["epoch"] == [1, 2]
    assert "reached the target 1.0" in capsys.readouterr().out
    assert (folder / "checkpoints" / "last.ckpt").exists()
    longer = trained(logdir, implementation=name, target_return=1e6, epochs=3)
    assert len(read_metrics(longer / "metrics.csv")["epoch"]) == 3


@pytest.mark.parametrize(("name", "which", "weights", "other"), [
    ("UDRL", "last", "agents.0.policy.flat", {"hidden_sizes": "8,8"}),
    ("DDQN", "best", "agents.0.online", {"hidden_size": 8}),
])  # fmt: skip
def test_reload_takes_the_weights_and_nothing_else(
    name: str, which: str, weights: str, other: dict[str, Any], logdir: Path, tmp_path: Path, capsys: Shown
) -> None:
    kept = trained(logdir, implementation=name) / "checkpoints" / f"{which}.ckpt"
    again = trained(tmp_path / "b", implementation=name, reload=kept, epochs=1, lr=1e-12)
    theirs, ours = checkpoints.load(kept), checkpoints.load(again / "checkpoints" / "last.ckpt")
    before, after = (each.content["state_dict"][weights] for each in (theirs, ours))
    torch.testing.assert_close(after, before, rtol=0, atol=1e-9)
    assert ours.run_state["epoch"] == 1
    if name == "UDRL":
        assert ours.content["optimizer_states"][0]["param_groups"][0]["step_count"] == 3
    else:
        assert theirs.run_state["loop"]["groups"] is None
    argv = flags(tmp_path / "c", implementation=name, reload=kept, **other)
    refused(trainer.main, argv, "whose networks are others", capsys)
    assert not (tmp_path / "c").exists()


class Spoiled(gym.Env):
    """Pays ``rewards`` one after the other."""

    observation_space = gym.spaces.Box(-1, 1, (3,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, rewards: list[float]):
        self.rewards = rewards

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.age += 1
        return np.zeros(3, np.float32), self.rewards[self.age - 1], self.age == len(self.rewards), False, {}


@pytest.mark.parametrize(("name", "rewards", "limit", "said"), [
    ("UDRL", [1.0] * 6 + [math.nan, 1.0, 1.0], None, "reward is nan"),
    ("UDRL", [3e38] * 9, 5, "the rewards of an episode add up to nan or to more than a float holds"),
    ("DDQN", [math.nan] * 9, None, "reward is nan"),
    ("DDQN", [3e38] * 9, None, "the rewards of an episode add up to nan or to more than a float holds"),
])  # fmt: skip
def test_rewards_that_are_no_number_are_one_line(
    name: str, rewards: list[float], limit: int | None, said: str, logdir: Path, capsys: Shown,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    spec = EnvSpec("Spoiled-v0", Spoiled, max_episode_steps=limit, kwargs={"rewards": rewards})
    monkeypatch.setitem(gym.registry, "Spoiled-v0", spec)
    argv = flags(logdir, implementation=name, gamename="Spoiled-v0")
    assert refused(trainer.main, argv, said, capsys, begun=True).startswith("error: environment Spoiled-v0")


# -- warnings --------------------------------------------------------------------------------------------------------


def warned(logdir: Path, epochs: int, capsys: Shown, spoil) -> list[str]:
    """The warnings of a run whose epochs report the losses that ``spoil`` makes of its agent."""
    loop: Any = build_loop(config.parse(flags(logdir, num_seeds=2)))
    loop.agent.learn = lambda: {"policy_loss": spoil(loop.agent)}
    for epoch in range(1, epochs + 1):
        loop.epochs = epoch
        loop._learn({})
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]


def losing(weights: Any, *losses: float):
    """Sets ``weights`` of the policies to NaN, and says what was lost."""

    def spoil(agent) -> torch.Tensor:
        with torch.no_grad():
            agent.policy.flat[weights] = float("nan")
        return torch.tensor(losses)

    return spoil


def test_warns_once_of_a_policy_that_stays_uniform(logdir: Path, capsys: Shown) -> None:
    for epochs, away, times in ((9, 0.001, 0), (30, -0.001, 1), (30, 0.05, 0)):
        lines = warned(logdir, epochs, capsys, losing([], 0.3, math.log(2) + away))
        assert len(lines) == times
        assert all("has sat at ln(2) = 0.693" in line and "not learning" in line for line in lines)


def test_warns_once_of_nan_and_ends_when_all_is_lost(logdir: Path, capsys: Shown) -> None:
    lines = warned(logdir, 5, capsys, losing((1, 5), 0.3, 0.3))
    assert len(lines) == 1 and lines[0].startswith("warning: seed 26: weights are no longer finite (epoch 1)")
    lines = warned(logdir, 5, capsys, losing([], 0.3, math.nan))
    assert len(lines) == 1 and "seed 26" in lines[0]
    with pytest.raises(UserError, match="no longer finite"):
        warned(logdir, 1, capsys, losing(..., math.nan, math.nan))


# -- signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_epoch_under_way(
    number: signal.Signals, logdir: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes in the third epoch, of which there would be no checkpoint."""
    step = AgentModule.training_step

    def interrupted(self: AgentModule, *batch: int) -> None:
        step(self, *batch)
        if self.epoch == 3:
            signal.raise_signal(number)

    monkeypatch.setattr(AgentModule, "training_step", interrupted)
    assert trainer.main(flags(logdir, checkpoint_every=4)) == 130
    folder, shown = run_folder(logdir), capsys.readouterr()
    assert "stopping after this epoch" in shown.err and shown.err.count("\n") <= 2
    assert "3 epochs," in shown.out and "--resume goes on from epoch 3" in shown.out
    assert read_metrics(folder / "metrics.csv")["epoch"] == [1, 2, 3]
    assert last_checkpoint(folder)["understudy"]["epoch"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_with_checkpoint_and_summary(number: signal.Signals, logdir: Path) -> None:
    process = start(flags(logdir, epochs=1_000_000, checkpoint_every=1_000_000))
    wait_until(lambda: any(len(p.read_text().splitlines()) > 3 for p in logdir.rglob("metrics.csv")), process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err and "stopping after this epoch" in err
    epochs = read_metrics(run_folder(logdir) / "metrics.csv")["epoch"]
    assert f"{epochs[-1]} epochs," in out and f"--resume goes on from epoch {epochs[-1]}" in out
    assert last_checkpoint(run_folder(logdir))["understudy"]["epoch"] == epochs[-1]


def test_a_second_ctrl_c_ends_at_once(logdir: Path) -> None:
    # one epoch of a minute of gradient steps
    process = start(flags(logdir, num_grad_steps=200_000))
    assert process.stderr is not None
    wait_until(lambda: any(logdir.rglob("events*")), process)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    while "stopping" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err and err.strip().endswith("interrupted")
