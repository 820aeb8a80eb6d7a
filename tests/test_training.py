"""Whole runs through the command: their files, stopping, running means, reloading, warnings and signals."""

import itertools
import math
import re
import signal
import subprocess
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.registration import EnvSpec

import trainer
from conftest import Finished
from control.cli.settings import from_dict
from control.commands.summary import TRAINER, resume_command, show_next
from control.lightning.agent import AgentModule
from control.lightning.callbacks import Checkpoints
from control.lightning.proxy_module import ProxyModule
from control.loops.episodes import EpisodeLoop
from control.storage import checkpoints
from control.storage.run_dir import read_metrics
from fake_runs import Shown, refused
from helpers import flags, lasting, learned, load_events, loop_of, on_policy, run_folder, spoil, start, trained
from models.settings import UserError
from test_envs import Scripted

COMMON = {
    "epoch", "env_steps", "seed", "train/gradient_steps", "train/learning_rate", "rollout/return_mean",
    "rollout/length_mean", "time/steps_per_second", "eval/return_greedy", "eval/length_greedy", "time/eval",
}  # fmt: skip
# Some columns besides the common ones.
METRICS = {
    "UDRL": {"train/policy_loss", "rollout/command_return", "rollout/command_horizon", "train/validation_loss"},
    "UDRL ranks": {"rollout/command_rank", "train/quantile_loss", "rollout/command_return_seen_max"},
    "RCP-R": {"train/entropy", "rollout/command_return", "eval/return_sampled"},
    "RCP-A": {"train/value_loss", "rollout/command_advantage", "train/explained_variance"},
    "VPG": {"rollout/return_running_mean", "train/policy_loss", "train/entropy_share", "rollout/return_std"},
    "CPG": {"train/baseline", "train/entropy_loss", "train/total_loss"},
    "AAC": {"train/value_loss", "train/advantage_mean", "train/explained_variance"},
    "DDQN": {"train/value_loss", "train/epsilon", "train/q_mean", "train/buffer_size", "time/train"},
    "DuelingDDQN": {"train/value_loss", "train/epsilon", "train/grad_norm", "time/train"},
    "TD3Discrete": {"train/value_loss", "train/policy_loss", "train/entropy", "time/train"},
}


def load_run_state(folder: Path) -> dict[str, Any]:
    """Everything in the last checkpoint of a run except weights and optimisers."""
    return checkpoints.load(folder / "checkpoints" / "last.ckpt").run_state


@pytest.mark.usefixtures("curves")
def test_a_learning_curve_has_at_least_two_epochs(logdir: Path) -> None:
    folder = trained(logdir, implementation="DDQN", epochs=1)
    assert not (folder / "curve.png").exists()
    assert trained(logdir, "--resume", implementation="DDQN", epochs=2) == folder and (folder / "curve.png").exists()


@pytest.mark.usefixtures("curves")
@pytest.mark.parametrize("name", METRICS)
def test_run_writes_its_files_metrics_and_output(name: str, finished: Finished) -> None:
    columns = COMMON | METRICS[name]
    name, _, preset = name.partition(" ")
    changes: dict[str, Any] = {"hidden_sizes": "16,16"} if name.startswith("RCP") else {}
    by_steps = "time/train" in columns
    if name.startswith("TD3"):
        changes = {"init_episodes": 1, "fill": 0}
    if preset:
        changes["preset"] = preset
    folder, output = finished(implementation=name, **changes)
    assert {"config.yaml", "metrics.csv", "checkpoints", "curve.png"} <= {path.name for path in folder.iterdir()}
    assert {path.name for path in (folder / "checkpoints").iterdir()} == {"last.ckpt", "best.ckpt"}

    metrics = read_metrics(folder / "metrics.csv")
    assert columns <= set(metrics)
    assert metrics["epoch"] == [1, 2, 3, 4, 5] and metrics["seed"] == [25] * 5
    for tag, column in metrics.items():
        has_value = [not math.isnan(value) for value in column]
        if not (tag.startswith("rollout/") and by_steps):  # some epochs have no end of an episode
            expected = [not tag.startswith(("eval/", "time/eval")) or epoch % 2 == 0 for epoch in range(1, 6)]
            assert has_value == expected, tag
    # CartPole pays 1 for each step
    assert np.array_equal(metrics["rollout/return_mean"], metrics["rollout/length_mean"], equal_nan=True)
    if by_steps:  # one update a step, from the end of the first episode on
        assert metrics["env_steps"] == [37, 74, 111, 148, 185]
        updates = metrics["train/gradient_steps"]
        assert 0 < updates[0] < 37 and np.diff(updates).tolist() == [37] * 4
    else:  # every step of three episodes an epoch counts
        assert metrics["train/gradient_steps"] == [epoch * (1 if on_policy(name) else 3) for epoch in range(1, 6)]
        epoch_steps = np.multiply(3, metrics["rollout/length_mean"][1:]).round()
        assert np.diff(metrics["env_steps"]).tolist() == epoch_steps.tolist()
    for line in (" 2/5", " 4/5", "greedy", str(folder), "--eval_agent", "tensorboard"):
        assert line in output
    assert "--resume" not in output and "warning" not in output.lower() and "nan" not in output


@pytest.mark.parametrize(("best", "verdict"), [(475.0, "solved (475 or more)"), (474.9, "not solved (475 or more)")])
def test_summary_says_whether_the_environment_is_solved(
    best: float, verdict: str, logdir: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AgentModule, "score", lambda self: best if self.is_evaluated() else None)
    monkeypatch.setattr(AgentModule, "confirmed_score", lambda self: best)
    trained(logdir, implementation="DDQN", epochs=2)
    output = capsys.readouterr().out
    parts = re.search(
        rf"mean greedy return {best} at epoch \d \((.+), and (.+) in a second evaluation\), (.+)\n", output
    )
    assert parts and parts[3].startswith(verdict)
    assert float(parts[1]) + float(parts[2]) == pytest.approx(2 * best, abs=0.11)


def test_best_checkpoint_is_evaluated_twice(logdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its score is the mean of both evaluations. Metrics do not depend on the second one."""
    changes = {"eval_every": 1, "num_seeds": 2}
    folder = trained(logdir, **changes)
    best, metrics = checkpoints.load(folder / "checkpoints" / "best.ckpt"), learned(folder)
    epoch = best.run_state["epoch"]
    module = AgentModule(best.settings)
    module.load_weights(best)
    module.loop.epochs = epoch
    first = np.array(metrics["eval/return_greedy"]).reshape(5, 2)[epoch - 1]
    second = module.loop.second_score().numpy()
    assert (first != second).any() and (second == module.loop.second_score().numpy()).all()
    assert best.run_state["best"] == pytest.approx((first + second).mean() / 2)
    monkeypatch.setattr(AgentModule, "confirmed_score", AgentModule.score)
    without = trained(tmp_path, **changes)
    np.testing.assert_equal(learned(without), metrics)
    best_of_one = checkpoints.load(without / "checkpoints" / "best.ckpt").run_state["best"]
    assert best_of_one == pytest.approx(np.reshape(metrics["eval/return_greedy"], (5, 2)).mean(1).max())


@pytest.mark.parametrize(
    ("changes", "evaluated"),
    [
        ({"epochs": 12, "eval_every": 10}, [2, 4, 6, 8, 10, 12]),  # the default
        ({"epochs": 3, "eval_every": 10}, [1, 2, 3]),
        ({"epochs": 26, "eval_every": 10}, [5, 10, 15, 20, 25, 26]),
        ({"total_steps": 12 * 37, "eval_every": 11}, [11]),
        ({"total_steps": 12 * 37, "eval_every": 13}, [12]),
    ],
)
def test_short_runs_are_evaluated_five_times(changes: dict[str, int], evaluated: list[int], logdir: Path) -> None:
    """Training does not depend on these evaluations."""
    changes = {"epochs": 12} | changes
    metrics = learned(trained(logdir, implementation="DDQN", **changes))
    finite = np.isfinite(metrics["eval/return_greedy"])
    assert np.array(metrics["epoch"])[finite].tolist() == evaluated
    seldom = learned(trained(logdir, implementation="DDQN", **changes | {"eval_every": 100}))
    names = {name for name in metrics if not name.startswith("eval/")}
    np.testing.assert_equal({name: seldom[name] for name in names}, {name: metrics[name] for name in names})


def test_unconfirmed_score_is_not_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Second scores are -1, 3, -11, 4 and 20: so the means are 0, 4, -1, 5; the last epoch has no second evaluation."""
    module = SimpleNamespace(best=-math.inf, epoch=0)
    saved: list[tuple[int, float]] = []
    monkeypatch.setattr(Checkpoints, "_save", lambda *_, **__: saved.append((module.epoch, module.best)))
    for first, confirmed in ((1.0, 0.0), (5.0, 4.0), (9.0, -1.0), (6.0, 5.0), (4.5, 12.0)):
        module.epoch += 1
        module.score, module.confirmed_score = (lambda first=first: first), (lambda confirmed=confirmed: confirmed)
        trainer_state: Any = SimpleNamespace(should_stop=False, max_epochs=-1)
        Checkpoints(tmp_path, 99).on_train_epoch_end(trainer_state, module)  # type: ignore[arg-type]
    assert saved == [(1, 0.0), (2, 4.0), (4, 5.0)]


@pytest.mark.parametrize(
    ("name", "target", "epochs"), [("UDRL", 1.0, 2), ("DDQN", 1.0, 2), ("CPG", 1.0, 2), ("UDRL", 1e6, 3)]
)
def test_stops_at_the_target_return(name: str, target: float, epochs: int, logdir: Path, capsys: Shown) -> None:
    folder = trained(logdir, **lasting({"implementation": name, "target_return": target}, 3))
    assert read_metrics(folder / "metrics.csv")["epoch"] == list(range(1, epochs + 1))
    output = capsys.readouterr().out
    assert ("reached the target 1.0" in output) == (epochs == 2)
    assert "--resume" not in output  # whether all epochs or the target ended it
    assert (folder / "checkpoints" / "last.ckpt").exists()


@pytest.mark.parametrize(("name", "checkpoint_name", "other"), [
    ("UDRL", "last", {"hidden_sizes": "8,8"}), ("DDQN", "best", {"hidden_sizes": "8"}),
    ("AAC", "last", {"value_hidden_sizes": "8,8"}),
])  # fmt: skip
def test_reload_copies_only_the_weights(
    name: str, checkpoint_name: str, other: dict[str, Any], logdir: Path, capsys: Shown, finished: Finished
) -> None:
    checkpoint_path = finished(implementation=name)[0] / "checkpoints" / f"{checkpoint_name}.ckpt"
    short = {"max_episodes": 1, "value_lr": 1e-12} if name == "AAC" else {"epochs": 1}
    reloaded_folder = trained(logdir, implementation=name, reload=checkpoint_path, lr=1e-12, **short)
    new_checkpoint = checkpoints.load(reloaded_folder / "checkpoints" / "last.ckpt")
    source_weights = checkpoints.load(checkpoint_path).content["state_dict"]
    new_weights = new_checkpoint.content["state_dict"]
    weights = [key for key in source_weights if key.endswith((".flat", ".flat_parameters"))]
    assert len(weights) == (2 if name == "AAC" else 1)
    for key in weights:
        torch.testing.assert_close(new_weights[key], source_weights[key], rtol=0, atol=1e-9)
    assert new_checkpoint.run_state["epoch"] == 1
    if name == "UDRL":
        assert new_checkpoint.content["optimizer_states"][1]["param_groups"][0]["step_count"] == 3
    argv = flags(logdir, implementation=name, reload=checkpoint_path, **other)
    refused(trainer.main, argv, "whose networks are others", capsys)


@pytest.mark.parametrize(("name", "limit"), [("UDRL", 5), ("DDQN", None)])
def test_overflowing_return_is_an_error(
    name: str, limit: int | None, logdir: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = {"obs_space": gym.spaces.Box(-1, 1, (3,)), "action_space": gym.spaces.Discrete(2), "rewards": [3e38] * 9}
    spec = EnvSpec("Large-v0", Scripted, max_episode_steps=limit, kwargs=large)
    monkeypatch.setitem(gym.registry, "Large-v0", spec)
    argv = flags(logdir, implementation=name, gamename="Large-v0")
    message = "the rewards of an episode add up to nan or to more than a float holds"
    assert refused(trainer.main, argv, message, capsys, run_started=True).startswith("error: environment Large-v0")


def warnings(capsys: Shown) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]


@pytest.mark.parametrize("case", ["UDRL", "DDQN"])
def test_warns_once_about_nan_and_stops_without_a_finite_member(case: str, capsys: Shown) -> None:
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


def test_diverged_seed_is_left_out_of_means(logdir: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its actions are still finite, so its evaluations count."""
    step = AgentModule.training_step

    def spoiling(self: AgentModule, *batch: int) -> None:
        step(self, *batch)
        if self.epoch == 1:
            spoil(self.loop.agents[0], 1)

    monkeypatch.setattr(AgentModule, "training_step", spoiling)
    assert trainer.main(flags(logdir, gamename="probe-4-continuous", num_seeds=3, eval_every=1)) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if re.match(r" *\d/5 ", line)]
    assert len(rows) == 5 and "nan" not in "".join(rows)
    assert ["1 of 3" in row for row in rows] == [False] + [True] * 4
    metrics = read_metrics(run_folder(logdir) / "metrics.csv")
    returns = np.array(metrics["eval/return_greedy"]).reshape(5, 3)
    assert (returns[1:, 1] == 0.75).all()  # the action in the middle is half from the target
    assert load_run_state(run_folder(logdir))["best"] == pytest.approx(returns.mean(1).max())


def test_printed_commands_are_quoted_for_the_shell(
    tmp_path: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    python, odd = tmp_path / "a python", tmp_path / "it's $HOME `x`" / "日本"
    monkeypatch.setattr("sys.executable", str(python))
    show_next([("run", odd)], [(TRAINER, "--eval_agent", odd, "--num_agents", 10), ("-m", "a.b")])
    first, head, *commands = capsys.readouterr().out.splitlines()
    relative_path = str(odd.relative_to(tmp_path))
    assert (first, head) == (f"  run         {relative_path}", "next:")
    shell = subprocess.run(["sh", "-c", f"printf '%s\\n' {commands[0]}"], capture_output=True, text=True, check=True)
    assert shell.stdout.splitlines() == ["a python", str(TRAINER), "--eval_agent", relative_path, "--num_agents", "10"]
    assert commands[1] == "  'a python' -m a.b"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    show_next([], [("-m", "a.b", "--first", "a value", "--second", "7")])
    assert capsys.readouterr().out.endswith("  'a python' -m a.b \\\n    --first 'a value' \\\n    --second 7\n")
    monkeypatch.setattr("shutil.which", lambda name: str(python))
    show_next([], [("-m", "a.b")])
    assert capsys.readouterr().out.endswith("  python -m a.b\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_after_the_current_epoch(
    number: signal.Signals, logdir: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third epoch would write no checkpoint by itself."""
    step = AgentModule.training_step

    def interrupted(self: AgentModule, *batch: int) -> None:
        step(self, *batch)
        if self.epoch == 3:
            signal.raise_signal(number)

    monkeypatch.setattr(AgentModule, "training_step", interrupted)
    assert trainer.main(flags(logdir, checkpoint_every=4)) == 130
    folder, captured = run_folder(logdir), capsys.readouterr()
    assert "stopping after this epoch" in captured.err and captured.err.count("\n") <= 2
    assert "interrupted after 3 of 5 epochs," in captured.out and re.search(r"next:\n  .* --resume\n", captured.out)
    assert read_metrics(folder / "metrics.csv")["epoch"] == [1, 2, 3]
    assert load_run_state(folder)["epoch"] == 3
    assert trainer.main(flags(logdir, "--no_checkpoint", exp_name="nothing_saved")) == 130
    assert "--resume" not in capsys.readouterr().out


def test_interrupted_search_says_so(logdir: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    train = ProxyModule.train_epoch

    def interrupted(self: ProxyModule) -> None:
        train(self)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(ProxyModule, "train_epoch", interrupted)
    monkeypatch.setattr("control.commands.train.Meter.seconds", itertools.count(step=5).__next__)  # a slow summary
    assert trainer.main(flags(logdir, implementation="SE", logger="tensorboard")) == 130
    output = capsys.readouterr().out
    assert re.search(r"interrupted after 1 of 3 generations, [\d,]+ synthetic steps in .* s, drawn in ", output)
    (text,) = load_events(run_folder(logdir)).Tensors("conclusion/text_summary")
    assert text.tensor_proto.string_val[0] == b"- **training**: interrupted after 1 of 3 generations"


def test_command_that_resumes_does_not_reload() -> None:
    settings = from_dict({"implementation": "PPO", "gamename": "cartpole", "reload": "last.ckpt", "lr": 0.5})
    words = " ".join(map(str, resume_command(settings)))
    assert "--lr 0.5" in words and words.endswith("--resume") and "--reload" not in words


def test_second_ctrl_c_stops_at_once(logdir: Path, capsys: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: AgentModule, *batch: int) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("the epoch went on")

    monkeypatch.setattr(AgentModule, "training_step", interrupted)
    assert trainer.main(flags(logdir)) == 130
    stderr = capsys.readouterr().err
    assert "stopping after this epoch" in stderr and stderr.strip().endswith("interrupted")


WITHOUT_NUMBA = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "numba":
            raise ModuleNotFoundError(name)
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "numba" else find_spec(name, *rest)
sys.meta_path.insert(0, Blocker())
import trainer
sys.exit(trainer.main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("is_compiled", "extra", "changes"),
    [("true", (), {}), ("false", ("--no_compiled",), {}), ("false", (), {"intrinsic": "icm"})],
)
def test_choice_of_machine_code_is_stored_and_kept(
    is_compiled: str, extra: tuple[str, ...], changes: dict[str, Any], logdir: Path, capsys: Shown
) -> None:
    """By default it follows from the settings."""
    pytest.importorskip("numba")
    folder = trained(logdir, *extra, implementation="DDQN", **changes)
    assert f"compiled: {is_compiled}\n" in (folder / "config.yaml").read_text()
    assert trainer.main(flags(logdir, "--resume", implementation="DDQN", epochs=6, **changes)) == 0
    assert f"compiled: {is_compiled}\n" in (run_folder(logdir) / "config.yaml").read_text()
    other = "--no_compiled" if is_compiled == "true" else "--compiled"
    refused(trainer.main, flags(logdir, "--resume", other, implementation="DDQN", **changes), "compiled", capsys)


def test_without_numba_agents_train_in_torch(logdir: Path) -> None:
    process = start(flags(logdir, implementation="DDQN"), WITHOUT_NUMBA)
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert out.count("note: training is many times as fast with Numba") == 1
    assert "compiled: false\n" in (run_folder(logdir) / "config.yaml").read_text()


def test_running_mean_equals_a_deque(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches have three episodes and the running mean has seven, counted again with a deque."""
    returns: list[torch.Tensor] = []  # [M, E] of each batch
    real = EpisodeLoop._play

    def play(self, policy, count):
        trajectory = real(self, policy, count)
        returns.append(trajectory.returns.clone())
        return trajectory

    monkeypatch.setattr(EpisodeLoop, "_play", play)
    folder = trained(logdir, implementation="CPG", running_mean_len=7, num_seeds=2)
    metrics = read_metrics(folder / "metrics.csv")
    for m, seed in enumerate((25, 26)):
        rows = [row for row, value in enumerate(metrics["seed"]) if value == seed]
        latest: deque[float] = deque(maxlen=7)
        means: list[float] = []
        for batch in returns:
            latest.extend(batch[m].tolist())
            means.append(sum(latest) / len(latest))
        assert len(rows) == len(returns) == 5  # batches of three have 14 episodes
        assert [metrics["rollout/return_running_mean"][row] for row in rows] == pytest.approx(means, rel=1e-12)
        best = np.maximum.accumulate(means).tolist()
        assert [metrics["rollout/return_running_best"][row] for row in rows] == pytest.approx(best, rel=1e-12)

    # best.ckpt is from the first epoch with the largest mean over both seeds
    means = np.mean(np.reshape(metrics["rollout/return_running_mean"], (5, 2)), axis=1)
    run_state = checkpoints.load(folder / "checkpoints" / "best.ckpt").run_state
    assert run_state["epoch"] == 1 + means.argmax() and run_state["best"] == pytest.approx(means.max())


def test_run_stops_at_the_target_running_mean(logdir: Path, capsys: Shown, finished: Finished) -> None:
    """The target is the largest mean of the first four epochs."""
    means = read_metrics(finished(implementation="CPG")[0] / "metrics.csv")["rollout/return_running_mean"]
    folder = trained(logdir, implementation="CPG", target_running_mean=repr(max(means[:4])))
    last_epoch = means.index(max(means[:4])) + 1
    assert read_metrics(folder / "metrics.csv")["rollout/return_running_mean"] == means[:last_epoch]
    output = capsys.readouterr().out
    assert f"mean return of the last 7 episodes {max(means[:4]):.1f} reached the" in output
    for _ in range(2):  # the second time finds nothing to do
        assert checkpoints.load(folder / "checkpoints" / "last.ckpt", resume=True).run_state["epoch"] == last_epoch
        assert trained(logdir, "--resume", implementation="CPG") == folder


def test_finished_run_keeps_its_settings(logdir: Path, tmp_path: Path, capsys: Shown) -> None:
    file = trained(logdir, implementation="CPG", max_episodes=3) / "config.yaml"
    written = file.read_text()
    trained(logdir, "--resume", implementation="CPG", max_episodes=1, target_running_mean=7.0)
    assert file.read_text() == written
    # annealed learning rates fix the end of the run
    falling = tmp_path / "falling"
    folder = trained(falling, "--anneal_lr", implementation="CPG", max_episodes=3)
    longer = flags(falling, "--resume", "--anneal_lr", implementation="CPG", max_episodes=6)
    message = f"max_episodes is 6, but the run to resume in {folder} has 3"
    refused(trainer.main, longer, message, capsys, run_started=True)


def test_infinite_weights_end_the_run(logdir: Path, capsys: Shown) -> None:
    argv = flags(logdir, implementation="CPG", lr=1e9, hidden_sizes=[8] * 9)
    error = refused(trainer.main, argv, "weights are no longer finite", capsys, run_started=True)
    assert error.endswith("a smaller lr may help\n")


def test_longer_resumed_run_continues_epsilon(logdir: Path) -> None:
    changes: dict[str, Any] = {"implementation": "DDQN", "eps_fraction": 1.0, "eps_min": 0.01}
    trained(logdir, epochs=4, **changes)
    epsilon = read_metrics(trained(logdir, "--resume", epochs=6, **changes) / "metrics.csv")["train/epsilon"]
    assert len(epsilon) == 6 and epsilon[0] > epsilon[1] > 0.1 and epsilon[4:] == pytest.approx([0.01] * 2)


@pytest.mark.parametrize("agent", ["PPO --num_envs 2 --rollout_steps 8", "DDQN --init_episodes 0 --fill 16"])
def test_run_too_short_to_learn_prints_a_warning(agent: str, tmp_path: Path, capsys: Shown) -> None:
    """Both agents need 16 steps for the first update."""
    for epochs in (1, 2):
        run = f"--implementation {agent} --gamename cartpole --steps_per_epoch 8 --eval_episodes 1 --time_limit 9"
        assert trainer.main([*run.split(), "--epochs", str(epochs), "--logdir", str(tmp_path)]) == 0
        start_text, _, rest_text = capsys.readouterr().out.partition(" 1/")
        warning = "nothing will be learned: the run has 8 steps a seed, and the first update comes with step 16"
        assert (warning in start_text) == (epochs == 1) == ("no gradient step was made" in rest_text)


class Large(gym.Env):
    """Observes 5000."""

    observation_space, action_space = gym.spaces.Box(-np.inf, np.inf, (2,)), gym.spaces.Discrete(2)

    def reset(self, **options: Any) -> tuple[Any, dict]:
        return np.float32([5000, 0]), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        return np.float32([5000, 0]), 1.0, False, False, {}


gym.register("Large-v0", Large, max_episode_steps=9)


@pytest.mark.parametrize(("agent", "advice"), [
    ("PPO --num_envs 2 --rollout_steps 4", "try --normalize_obs"), ("DDQN", "try a wrapper"),
    ("PPO --num_envs 2 --rollout_steps 4 --normalize_obs", ""),
])  # fmt: skip
def test_large_observations_are_mentioned_once(agent: str, advice: str, tmp_path: Path, capsys: Shown) -> None:
    run = f"--implementation {agent} --gamename Large-v0 --steps_per_epoch 8 --eval_episodes 1 --epochs 2"
    assert trainer.main([*run.split(), "--logdir", str(tmp_path)]) == 0
    text = " ".join("".join(capsys.readouterr()).split())
    assert text.count("large observations, here 5,000; try") == bool(advice) and advice in text
