"""Whole runs through the command: what they write, when they stop, what they refuse and warn of."""

import dataclasses
import math
import shutil
import signal
import subprocess
from collections.abc import Callable
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
from control.commands.summary import TRAINER, show_next
from control.lightning.agent import AgentModule
from control.storage import checkpoints
from control.storage.run_dir import read_metrics
from fake_runs import Shown, refused
from helpers import flags, lasting, learned, loop_of, on_policy, run_folder, spoil, trained
from models.settings import UserError

Finished = Callable[..., tuple[Path, str]]

EVALUATED = {"eval/return_greedy", "time/eval"}
COMMON = EVALUATED | {
    "epoch", "env_steps", "seed", "train/gradient_steps", "train/learning_rate", "rollout/return_mean",
    "rollout/length_mean", "time/steps_per_second",
}  # fmt: skip
STEPS = COMMON | {
    "train/value_loss", "train/epsilon", "train/q_mean", "train/explained_variance", "train/buffer_size", "time/train",
    "train/grad_norm",
}  # fmt: skip
EPISODES = COMMON | {
    "rollout/return_std", "rollout/return_max", "rollout/return_min", "time/rollout", "time/update",
    "eval/return_sampled",
}  # fmt: skip
SEEN = {"command/return_seen_min", "command/return_seen_max"}
COMMANDED = EPISODES | {"train/policy_loss", "train/entropy", "train/grad_norm", "train/buffer_size"}
GRADIENTS = EPISODES | {
    "rollout/return_running_mean", "rollout/return_running_best", "train/policy_loss", "train/total_loss",
    "train/entropy", "train/entropy_share", "train/grad_norm",
}  # fmt: skip
COMPARED = GRADIENTS | {"train/entropy_loss", "train/baseline", "train/advantage_mean"}
WRITTEN = {
    "UDRL": COMMANDED | SEEN | {"command/return", "command/horizon", "train/validation_loss"},
    "RCP-R": COMMANDED | SEEN | {"command/return", "train/validation_loss"},
    "RCP-A": COMMANDED | {"command/advantage", "train/value_loss", "train/explained_variance"},
    "VPG": GRADIENTS, "CPG": COMPARED, "AAC": COMPARED | {"train/value_loss", "train/explained_variance"},
    "DDQN": STEPS, "DuelingDDQN": STEPS,
    "TD3Discrete": STEPS - {"train/epsilon"} | {"train/policy_loss", "train/entropy"},
}  # fmt: skip


def events(folder: Path) -> EventAccumulator:
    accumulator = EventAccumulator(str(folder), size_guidance={"images": 0, "scalars": 0})
    accumulator.Reload()
    return accumulator


def load_run_state(folder: Path) -> dict[str, Any]:
    """What the last checkpoint of a run holds beside weights and optimisers."""
    return checkpoints.load(folder / "checkpoints" / "last.ckpt").run_state


# -- what a run writes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITTEN)
def test_a_run_writes_what_it_promises(name: str, finished: Finished) -> None:
    changes: dict[str, Any] = {"hidden_sizes": "16,16"} if name.startswith("RCP") else {}
    by_steps = "time/train" in WRITTEN[name]
    if name.startswith("TD3"):
        changes = {"init_episodes": 1, "fill": 0}
    folder, output = finished(implementation=name, **changes)
    assert folder.parts[-5:] == ("cartpole", "debug", name, "seed_25", "version_0")
    assert {"config.yaml", "metrics.csv", "checkpoints", "curve.png"} <= {path.name for path in folder.iterdir()}
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"last.ckpt", "best.ckpt"}

    metrics = read_metrics(folder / "metrics.csv")
    assert set(metrics) == WRITTEN[name]
    assert metrics["epoch"] == [1, 2, 3, 4, 5] and metrics["seed"] == [25] * 5
    for tag, column in metrics.items():
        has_value = [not math.isnan(value) for value in column]
        if tag.startswith("rollout/") and by_steps:  # episodes that ended in an epoch
            continue
        assert has_value == [not tag.startswith(("eval/", "time/eval")) or epoch % 2 == 0 for epoch in range(1, 6)], tag
    # in this environment an episode is as long as its return
    assert np.array_equal(metrics["rollout/return_mean"], metrics["rollout/length_mean"], equal_nan=True)
    if by_steps:  # one update a step, from the end of the first episode on
        assert metrics["env_steps"] == [37, 74, 111, 148, 185]
        assert (
            0 < metrics["train/gradient_steps"][0] < 37
            and np.diff(metrics["train/gradient_steps"]).tolist() == [37] * 4
        )
    else:  # every step of three episodes an epoch counts
        assert metrics["train/gradient_steps"] == [epoch * (1 if on_policy(name) else 3) for epoch in range(1, 6)]
        epoch_steps = np.multiply(3, metrics["rollout/length_mean"][1:]).round()
        assert np.diff(metrics["env_steps"]).tolist() == epoch_steps.tolist()
        extremes = np.array([metrics[f"rollout/return_{statistic}"] for statistic in ("min", "mean", "max")])
        assert (np.diff(extremes, axis=0) >= 0).all()
    for line in ("epoch 1/5", "epoch 4/5", "greedy", str(folder), "--eval_agent", "tensorboard"):
        assert line in output
    assert "--resume" not in output and "warning" not in output.lower() and "nan" not in output


def test_what_was_not_measured_is_nan_and_not_printed(logdir: Path, capsys: Shown) -> None:
    """Episodes of 200 steps; the first update only after one of them."""
    changes = {"gamename": "mountaincar", "steps_per_epoch": 80, "epochs": 3, "num_envs": 3}
    metrics = read_metrics(trained(logdir, implementation="DDQN", **changes) / "metrics.csv")
    assert metrics["env_steps"] == [81, 162, 243]  # whole steps of three environments
    assert np.isnan(metrics["train/value_loss"]).all() and np.isnan(metrics["rollout/length_mean"]).all()
    assert metrics["train/gradient_steps"] == [0, 0, 0] and metrics["train/epsilon"] == [1, 1, 1]
    assert "nan" not in capsys.readouterr().out


def test_config_yaml_makes_the_same_run_again(logdir: Path, tmp_path: Path) -> None:
    extra_flags = ["--command.return", "31.5", "--lr", "0.002", "--no_expo_weighting"]
    first, expected = trained(logdir, *extra_flags, epochs=2), config.parse(flags(logdir, *extra_flags, epochs=2))
    read = config.from_dict(yaml.safe_load((first / "config.yaml").read_text()))
    run = dataclasses.replace(expected.run, logdir=config.RunConfig.logdir)  # a file does not say where to write
    assert read == config.Settings(run, expected.agent, expected.command)
    assert trainer.main(["--config", str(first / "config.yaml"), "--logdir", str(tmp_path / "again")]) == 0
    np.testing.assert_equal(learned(run_folder(tmp_path / "again")), learned(first))


def test_a_second_run_overwrites_nothing_and_is_the_newest_of_the_folder(logdir: Path, finished: Finished) -> None:
    shutil.copytree(finished(implementation="UDRL")[0].parents[4], logdir)
    first = run_folder(logdir)
    first_files = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    newest = trained(logdir)
    assert newest.name == "version_1"
    np.testing.assert_equal(learned(newest), learned(first))
    assert first_files == {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    for folder in (newest, newest / "checkpoints", newest.parent):
        assert checkpoints.load(folder).path == newest / "checkpoints" / "best.ckpt"
    with pytest.raises(UserError, match="is no run, but has 2 below it; allowed: one of .*/version_0, .*/version_1$"):
        checkpoints.load(logdir)


def test_no_checkpoint_writes_none(logdir: Path, capsys: Shown) -> None:
    assert not list(trained(logdir, "--no_checkpoint", epochs=1).rglob("*.ckpt"))
    assert "--eval_agent" not in capsys.readouterr().out


@pytest.mark.parametrize("changes", [
    {"num_seeds": 3}, {"implementation": "DDQN", "num_seeds": 4, "vary_hp": "true", "hidden_sizes": "6", "lr": 0.01}
])  # fmt: skip
def test_several_seeds_in_one_program_are_each_alone(changes: dict[str, Any], logdir: Path, tmp_path: Path) -> None:
    """All the way through Lightning, also where networks of different shapes are trained in several groups."""
    folder, count = trained(logdir, **changes, epochs=3), changes["num_seeds"]
    assert folder.parent.name == f"seed_25-{24 + count}"
    assert {path.name for path in folder.glob("seed_*")} == {f"seed_{25 + m}" for m in range(count)}
    joint_metrics = learned(folder)
    alone = learned(trained(tmp_path / "alone", **changes | {"num_seeds": 1, "seed": 26}, epochs=3))
    rows = [row for row, seed in enumerate(joint_metrics["seed"]) if seed == 26]
    assert len(rows) == 3
    np.testing.assert_equal({name: [joint_metrics[name][row] for row in rows] for name in alone}, alone)
    plugins = events(folder / "seed_26").SummaryMetadata("_hparams_/session_start_info").plugin_data
    assert plugins.plugin_name == "hparams" and b"num_seeds" not in plugins.content
    if count == 4:
        assert len(load_run_state(folder)["loop"]["groups"]) > 1


# -- stopping, reloading, failing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "target", "epochs"), [("UDRL", 1.0, 2), ("DDQN", 1.0, 2), ("CPG", 1.0, 2), ("UDRL", 1e6, 3)]
)
def test_stops_at_the_target_return(name: str, target: float, epochs: int, logdir: Path, capsys: Shown) -> None:
    folder = trained(logdir, **lasting({"implementation": name, "target_return": target}, 3))
    assert read_metrics(folder / "metrics.csv")["epoch"] == list(range(1, epochs + 1))
    assert ("reached the target 1.0" in capsys.readouterr().out) == (epochs == 2)
    assert (folder / "checkpoints" / "last.ckpt").exists()


@pytest.mark.parametrize(("name", "checkpoint_name", "other"), [
    ("UDRL", "last", {"hidden_sizes": "8,8"}), ("DDQN", "best", {"hidden_sizes": "8"}),
    ("AAC", "last", {"value_hidden_sizes": "8,8"}),
])  # fmt: skip
def test_reload_takes_the_weights_and_nothing_else(
    name: str,
    checkpoint_name: str,
    other: dict[str, Any],
    logdir: Path,
    tmp_path: Path,
    capsys: Shown,
    finished: Finished,
) -> None:
    checkpoint_path = finished(implementation=name)[0] / "checkpoints" / f"{checkpoint_name}.ckpt"
    short = {"max_episodes": 1, "value_lr": 1e-12} if name == "AAC" else {"epochs": 1}
    reloaded_folder = trained(logdir, implementation=name, reload=checkpoint_path, lr=1e-12, **short)
    source_checkpoint, new_checkpoint = (
        checkpoints.load(checkpoint_path),
        checkpoints.load(reloaded_folder / "checkpoints" / "last.ckpt"),
    )
    source_weights, new_weights = (
        checkpoint.content["state_dict"] for checkpoint in (source_checkpoint, new_checkpoint)
    )
    weights = [key for key in source_weights if key.endswith((".flat", ".flat_parameters"))]
    assert len(weights) == (2 if name == "AAC" else 1)
    for key in weights:
        torch.testing.assert_close(new_weights[key], source_weights[key], rtol=0, atol=1e-9)
    assert new_checkpoint.run_state["epoch"] == 1
    if name == "UDRL":
        assert new_checkpoint.content["optimizer_states"][1]["param_groups"][0]["step_count"] == 3
    if name == "DDQN":
        assert source_checkpoint.run_state["loop"]["groups"] is None
    argv = flags(tmp_path / "c", implementation=name, reload=checkpoint_path, **other)
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


@pytest.mark.parametrize(("name", "rewards", "limit", "message"), [
    ("UDRL", [1.0] * 6 + [math.nan, 1.0, 1.0], None, "reward is nan"),
    ("UDRL", [3e38] * 9, 5, "the rewards of an episode add up to nan or to more than a float holds"),
    ("DDQN", [math.nan] * 9, None, "reward is nan"),
    ("DDQN", [3e38] * 9, None, "the rewards of an episode add up to nan or to more than a float holds"),
])  # fmt: skip
def test_rewards_that_are_no_number_are_one_line(
    name: str, rewards: list[float], limit: int | None, message: str, logdir: Path, capsys: Shown,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    spec = EnvSpec("Spoiled-v0", Spoiled, max_episode_steps=limit, kwargs={"rewards": rewards})
    monkeypatch.setitem(gym.registry, "Spoiled-v0", spec)
    argv = flags(logdir, implementation=name, gamename="Spoiled-v0")
    assert refused(trainer.main, argv, message, capsys, run_started=True).startswith("error: environment Spoiled-v0")


# -- warnings --------------------------------------------------------------------------------------------------------


def warnings(capsys: Shown) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]


@pytest.mark.parametrize(("epochs", "away", "times"), [(9, 0.001, 0), (30, -0.001, 1), (30, 0.05, 0)])
def test_warns_once_of_a_policy_that_stays_uniform(epochs: int, away: float, times: int, capsys: Shown) -> None:
    loop = loop_of("UDRL", "probe-4", 25, 2)
    loop.agent.learn = lambda: {"policy_loss": torch.tensor([0.3, math.log(2) + away])}
    for _ in range(epochs):
        loop.epoch()
    lines = warnings(capsys)
    assert len(lines) == times
    assert all("has sat at ln(2) = 0.693" in line and "not learning" in line for line in lines)


@pytest.mark.parametrize("case", ["UDRL", "DDQN"])
def test_warns_once_of_nan_and_ends_when_all_is_lost(case: str, capsys: Shown) -> None:
    loop = loop_of(case, "cartpole", 25, 2)
    for epoch in range(1, 6):
        if epoch == 3:
            spoil(loop.agents[0], 1)
        assert loop.epoch()[loop.loss_tag].isnan().tolist() == [False, epoch >= 3]
    lines = warnings(capsys)
    assert len(lines) == 2 and lines[0].startswith("warning: seed 26: the loss is nan since epoch 3")
    assert lines[1].startswith("warning: seed 26: weights are no longer finite (epoch 3)")
    spoil(loop.agents[0], 0)
    with pytest.raises(UserError, match="weights are no longer finite .epoch 6., so training stops"):
        loop.epoch()


def test_one_seed_that_diverges_spoils_no_mean_and_ends_no_run(
    logdir: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its actions are numbers still, so it counts with what it plays."""
    step = AgentModule.training_step

    def spoiling(self: AgentModule, *batch: int) -> None:
        step(self, *batch)
        if self.epoch == 1:
            spoil(self.loop.agents[0], 1)

    monkeypatch.setattr(AgentModule, "training_step", spoiling)
    assert trainer.main(flags(logdir, gamename="probe-4-continuous", num_seeds=3, eval_every=1)) == 0
    epoch_lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")]
    assert len(epoch_lines) == 5 and "nan" not in "".join(epoch_lines)
    assert ["1 of 3 seeds diverged" in line for line in epoch_lines] == [False] + [True] * 4
    metrics = read_metrics(run_folder(logdir) / "metrics.csv")
    returns = np.array(metrics["eval/return_greedy"]).reshape(5, 3)
    assert (returns[1:, 1] == 0.75).all()  # the action in the middle is half from the target
    assert load_run_state(run_folder(logdir))["best"] == pytest.approx(returns.mean(1).max())


# -- videos, and what is typed next ------------------------------------------------------------------------------------


@pytest.mark.parametrize("argv", [
    "--record", "--recording_epoch_interval 1 --resume", "--record --implementation SE",
    "--record --use_tune", "--record --eval_agent CHECKPOINT",
])  # fmt: skip
def test_what_has_no_pictures_is_not_trained_to_be_filmed(
    argv: str, logdir: Path, capsys: Shown, finished: Finished
) -> None:
    game = {"gamename": "probe-4"}
    if "CHECKPOINT" in argv:
        words = [*argv.split()[:-1], str(finished(**game)[0])]
    else:
        words = [*argv.split(), "--gamename", "probe-4", "--logdir", str(logdir)]
    name = argv.split()[0].removeprefix("--")
    message = refused(trainer.main, words, "probe-4 cannot be drawn", capsys)
    assert message.startswith(f"error: {name} is ") and not logdir.exists()


def test_the_next_commands_are_for_a_shell(tmp_path: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    python, odd = tmp_path / "a python", tmp_path / "it's $HOME `x`" / "日本"
    monkeypatch.setattr("sys.executable", str(python))
    show_next([("run", odd)], [(TRAINER, "--eval_agent", odd, "--num_agents", 10), ("-m", "a.b")])
    first, head, *commands = capsys.readouterr().out.splitlines()
    assert (first, head) == (f"  run         {odd}", "next:")
    shell = subprocess.run(["sh", "-c", f"printf '%s\\n' {commands[0]}"], capture_output=True, text=True, check=True)
    relative_path = str(odd.relative_to(tmp_path))
    assert shell.stdout.splitlines() == ["a python", str(TRAINER), "--eval_agent", relative_path, "--num_agents", "10"]
    assert commands[1] == "  'a python' -m a.b"
    show_next([("run", 1), ("a longer name", 2)], [])
    assert capsys.readouterr().out == "  run            1\n  a longer name  2\nnext:\n"
    monkeypatch.setattr("shutil.which", lambda name: str(python))
    show_next([], [("-m", "a.b")])
    assert capsys.readouterr().out.endswith("  python -m a.b\n")


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
    folder, captured = run_folder(logdir), capsys.readouterr()
    assert "stopping after this epoch" in captured.err and captured.err.count("\n") <= 2
    assert "3 epochs," in captured.out and "--resume goes on from epoch 3" in captured.out
    assert read_metrics(folder / "metrics.csv")["epoch"] == [1, 2, 3]
    assert load_run_state(folder)["epoch"] == 3


def test_a_second_ctrl_c_ends_at_once(logdir: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: AgentModule, *batch: int) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the epoch went on")

    monkeypatch.setattr(AgentModule, "training_step", interrupted)
    assert trainer.main(flags(logdir)) == 130
    stderr = capsys.readouterr().err
    assert "stopping after this epoch" in stderr and stderr.strip().endswith("interrupted")
