"""A run that was killed and resumed is the run that was not."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import trainer
from control.storage import checkpoints
from control.storage.run_dir import read_metrics
from fake_runs import Shown, refused
from helpers import dying_after, flags, lasting, learned, run_folder, same_runs, start, trained, wait_until

BY_CASE = {
    "UDRL": {"checkpoint_every": 2},
    "RCP-A": {"implementation": "RCP-A", "hidden_sizes": "16,16", "checkpoint_every": 1, "buffer_size": 150},
    "two seeds": {"num_seeds": 2, "checkpoint_every": 3, "eval_every": 1},
    "AAC": {"implementation": "AAC", "num_seeds": 2, "gae_lambda": 0.9, "bootstrap_truncation": True,
            "grad_clip_val": 0.5, "value_lr": 1e-2},
    "DDQN": {"implementation": "DDQN", "checkpoint_every": 1, "steps_per_epoch": 60},
}  # fmt: skip
# What dies in epoch 3; agents that learn between steps in the middle of episodes.
DYING = {
    "UDRL": {},
    "AAC": BY_CASE["AAC"] | {"anneal_lr": True},
    "DDQN": {"implementation": "DDQN"},
    "DDQN, two groups, three environments, linear epsilon": {
        "implementation": "DDQN", "num_seeds": 4, "vary_hp": "true", "hidden_size": 6, "num_envs": 3,
        "eps_fraction": 0.6,
    },
    "dueling": {"implementation": "DuelingDDQN", "num_seeds": 2, "feature_dim": 10},
    "replayed": {"implementation": "DDQN", "gamename": "lunarlander", "steps_per_epoch": 130, "num_envs": 2},
}  # fmt: skip


def epochs_of(logdir: Path) -> int:
    files = list(logdir.rglob("metrics.csv"))
    return len(files[-1].read_text().splitlines()) - 1 if files else 0


# -- in this process ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "stop"), [("UDRL", 1), ("UDRL", 5), ("RCP-A", 4), ("two seeds", 3), ("AAC", 3)])
def test_resume_is_exact(case: str, stop: int, logdir: Path, tmp_path: Path) -> None:
    """Ended after epoch ``stop`` by asking for no more, then resumed to the end."""
    changes = BY_CASE[case]
    trained(logdir, **lasting(changes, stop))
    resumed = trained(logdir, "--resume", **lasting(changes, 7))
    assert resumed.name == "version_0"
    same_runs(trained(tmp_path / "whole", **lasting(changes, 7)), resumed)


@pytest.mark.parametrize("case", DYING)
def test_rows_after_the_last_checkpoint_are_learned_again(
    case: str, logdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run dies after epoch 3 was logged, with the checkpoint of epoch 2."""
    changes = DYING[case]
    dying_after(3, monkeypatch, flags(logdir, **changes))
    rows = changes.get("num_seeds", 1)
    assert epochs_of(logdir) == 3 * rows
    state = checkpoints.load(run_folder(logdir) / "checkpoints" / "last.ckpt", resume=True).run_state
    assert state["epoch"] == 2
    if "DDQN" in changes.get("implementation", ""):
        assert all(group["lengths"].any() for group in state["loop"]["groups"])
    resumed = trained(logdir, "--resume", **changes)
    assert read_metrics(resumed / "metrics.csv")["epoch"][::rows] == [1, 2, 3, 4, 5]
    same_runs(trained(tmp_path / "whole", **changes), resumed)


def test_resume_starts_a_run_where_there_is_none(logdir: Path, tmp_path: Path) -> None:
    folder = trained(logdir, "--resume")
    same_runs(folder, trained(tmp_path / "plain"))
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    assert settings["resume"] is False, "no setting of the run"


def test_resume_of_a_finished_run_changes_nothing_and_says_what_is_there(logdir: Path, capsys: Shown) -> None:
    folder = trained(logdir)
    before = learned(folder), (folder / "checkpoints" / "last.ckpt").read_bytes()
    capsys.readouterr()
    assert trained(logdir, "--resume") == folder
    shown = capsys.readouterr().out
    assert f"5 epochs, {int(before[0]['env_steps'][-1]):,} environment steps" in shown
    assert "goes on from" not in shown
    assert repr((learned(folder), (folder / "checkpoints" / "last.ckpt").read_bytes())) == repr(before)


def test_resume_without_epochs_takes_those_of_the_run(logdir: Path) -> None:
    trained(logdir, epochs=3)
    assert trainer.main([word for word in flags(logdir, "--resume") if word not in ("--epochs", "5")]) == 0
    assert epochs_of(logdir) == 3


def test_resume_with_another_hyperparameter_is_refused(logdir: Path, capsys: Shown) -> None:
    trained(logdir)
    before = {path: path.read_bytes() for path in logdir.rglob("*") if path.is_file()}
    for change, line in [({"lr": 0.5}, "lr is 0.5, but the run to resume has 0.00035"),
                         ({"batch_size": 17}, "batch_size is 17, but the run to resume has 16"),
                         ({"command.return": 3}, "command")]:  # fmt: skip
        refused(trainer.main, flags(logdir, "--resume", **change), line, capsys, begun=True)
    assert before == {path: path.read_bytes() for path in logdir.rglob("*") if path.is_file()}


def test_resume_takes_the_newest_run_even_when_it_came_to_no_checkpoint(
    logdir: Path, tmp_path: Path, capsys: Shown
) -> None:
    """A finished older one with other settings is another run."""
    trained(logdir, lr=0.5)
    trained(logdir, "--no_checkpoint", epochs=1)
    capsys.readouterr()
    anew = trained(logdir, "--resume")
    assert "version_1 ended before its first checkpoint, so this starts anew; version_0" in capsys.readouterr().out
    assert anew.name == "version_2"
    same_runs(trained(tmp_path / "plain"), anew)


def test_no_resume_from_a_damaged_or_best_checkpoint(logdir: Path, capsys: Shown) -> None:
    folder = trained(logdir, epochs=2) / "checkpoints"
    for content, said in (
        ((folder / "last.ckpt").read_bytes()[:1000], "damaged"),
        ((folder / "best.ckpt").read_bytes(), "holds weights but no memory"),
    ):
        (folder / "last.ckpt").write_bytes(content)
        error = refused(trainer.main, flags(logdir, "--resume"), said, capsys, begun=True)
        assert said == "damaged" or "--reload" in error
        assert epochs_of(logdir) == 2


# -- killed ----------------------------------------------------------------------------------------------------------


def killed(logdir: Path, wait: Callable[["subprocess.Popen[str]"], None], **changes: Any) -> bool:
    """Resumes the run and kills it once ``wait`` returns; whether the kill hit."""
    process = start(flags(logdir, "--resume", **changes))
    wait(process)
    process.kill()
    _, err = process.communicate()
    assert process.returncode in (0, -signal.SIGKILL), err
    return process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "case", [case if case == "UDRL" else pytest.param(case, marks=pytest.mark.slow) for case in BY_CASE]
)
def test_killed_and_resumed_is_the_same_run(case: str, logdir: Path, tmp_path: Path) -> None:
    changes = lasting(BY_CASE[case], 12)
    rows, kills = changes.get("num_seeds", 1), 0
    for epochs, moment in [(5, 0.013)] if case == "UDRL" else [(4, 0.0), (8, 0.013)]:

        def wait(process, epochs=epochs, moment=moment) -> None:
            wait_until(lambda: epochs_of(logdir) >= epochs * rows, process)
            time.sleep(moment)

        kills += killed(logdir, wait, **changes)
    assert kills >= 1
    resumed = trained(logdir, "--resume", **changes)
    same_runs(trained(tmp_path / "whole", **changes), resumed)


@pytest.mark.soak
def test_fifty_random_kills(logdir: Path, tmp_path: Path) -> None:
    """`make soak`: about ten minutes. Kills fall anywhere from the first import to the last checkpoint; SOAK_KILLS says
    how many instead of fifty."""
    changes = {"epochs": 400, "checkpoint_every": 3, "eval_every": 5, "lr": 3e-3}
    wanted, kills, draws = int(os.environ.get("SOAK_KILLS", 50)), 0, random.Random(0)

    def wait(process) -> None:
        if draws.random() < 0.8:  # the rest fall into imports and the start
            process.stdout.readline()  # what the run prints first comes with its first epoch
        time.sleep(draws.uniform(0, 0.8))  # a dozen epochs, so that the kills wander through the run

    for _ in range(wanted):
        kills += killed(logdir, wait, **changes)
        print(f"kill {kills}: {epochs_of(logdir)} epochs", flush=True)
    resumed = trained(logdir, "--resume", **changes)
    assert kills > wanted // 2
    same_runs(trained(tmp_path / "whole", **changes), resumed)
