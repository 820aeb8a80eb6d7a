"""Run folders: layout, atomic writes, metrics.csv and locks."""

import math
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control.cli.settings import RunConfig
from control.reports.runs import read_runs
from control.storage import run_dir
from helpers import trained
from models.settings import SettingError


def run_in(logdir: Path, **changes: Any) -> RunConfig:
    return RunConfig(logdir=str(logdir), **changes)


def test_create_makes_a_new_version(logdir: Path) -> None:
    path = run_dir.create(run_in(logdir, gamename="ALE/Pong-v5", exp_name="a b", seed=25))
    assert path == logdir / "ALE_Pong-v5/a_b/UDRL/seed_25/version_0"
    assert path.is_dir()
    assert run_dir.parent(run_in(logdir, num_seeds=5)).name == "seed_25-29"
    run = run_in(logdir)
    assert run_dir.newest_run(run_dir.parent(run)) is None
    (run_dir.parent(run) / "version_9").mkdir(parents=True)
    (run_dir.parent(run) / "notes").mkdir()
    assert [run_dir.create(run).name for _ in range(2)] == ["version_10", "version_11"]
    assert run_dir.newest_run(run_dir.parent(run)) == run_dir.parent(run) / "version_11"


@given(st.text())
def test_safe_name_is_one_folder(name: str) -> None:
    safe = run_dir.safe_name(name)
    assert safe not in ("", ".", "..") and "/" not in safe and "\0" not in safe
    assert Path("root", safe).parent == Path("root")


def _create_many(logdir: Path, barrier: Any) -> None:
    barrier.wait()
    for _ in range(5):
        path = run_dir.create(run_in(logdir))
        # Fails if another process has the same folder.
        (path / "owner").touch(exist_ok=False)


def test_concurrent_processes_get_different_folders(logdir: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(8)
    processes = [context.Process(target=_create_many, args=(logdir, barrier)) for _ in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert [process.exitcode for process in processes] == [0] * 8
    assert [path.name for path in run_dir.version_folders(run_dir.parent(run_in(logdir)))] == [
        f"version_{k}" for k in range(40)
    ]


@pytest.mark.parametrize(("place", "message"), [
    ("file", "logdir is .*file' is a file.*allowed: a folder"),
    ("link/deeper", "logdir is .*link' is a symbolic link to 'nowhere', where nothing is"),
    pytest.param("/proc/runs", "logdir is '/proc/runs'", marks=pytest.mark.skipif(
        not Path("/proc").is_dir(), reason="needs a folder that nobody can write")),
])  # fmt: skip
def test_unwritable_logdir_is_an_error(tmp_path: Path, place: str, message: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(SettingError, match=message):
        run_dir.create(run_in(tmp_path / place))


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    run_dir.atomic_write_text(path, "old")
    with pytest.raises(OSError, match="full"), run_dir.atomic_file(path) as temporary:
        temporary.write_text("half of the n")
        raise OSError(28, "disk full")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    child = os.fork()
    if child == 0:
        with run_dir.atomic_file(path) as temporary:
            temporary.write_text("half of the n")
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert path.read_text() == "old"


def test_files_are_on_the_disk_before_they_replace_others(logdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut, a checkpoint is neither empty, nor does it count rows of metrics.csv that are lost."""
    synced: list[str] = []
    replace = os.replace

    def replacing_synced(source: Path, target: Path) -> None:
        assert synced[-1] == str(source)
        assert target.name != "last.ckpt" or str(target.parents[1] / "metrics.csv") in synced
        replaced.append(target.name)
        synced.clear()
        replace(source, target)

    replaced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    monkeypatch.setattr(os, "replace", replacing_synced)
    trained(logdir, implementation="CPG")
    assert {"config.yaml", "best.ckpt", "last.ckpt"} <= {*replaced}


def row(epoch: int, seed: int = 25, **tags: float) -> dict[str, float]:
    return {"epoch": epoch, "env_steps": 100 * epoch, "seed": seed, **tags}


def test_metrics_round_trip(tmp_path: Path) -> None:
    metrics = run_dir.MetricsFile(tmp_path / "metrics.csv")
    metrics.append(row(0, loss=1 / 3), row(0, seed=26, loss=float("nan")))
    metrics.append(row(np.int64(1), loss=np.float32(0.5)))
    assert metrics.path.read_text().startswith("epoch,env_steps,seed,loss\n")
    metrics.append(row(2, loss=2.0, score=3.0))
    columns = run_dir.read_metrics(metrics.path)
    assert list(columns) == ["epoch", "env_steps", "seed", "loss", "score"]
    assert columns["epoch"] == [0, 0, 1, 2] and columns["seed"] == [25, 26, 25, 25]
    np.testing.assert_equal(columns["loss"], [1 / 3, math.nan, 0.5, 2.0])
    np.testing.assert_equal(columns["score"], [math.nan] * 3 + [3.0])


def test_metrics_of_a_killed_run_continue(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    metrics = run_dir.MetricsFile(path)
    for epoch in range(5):
        metrics.append(row(epoch, loss=float(epoch)))
    with open(path, "a") as file:
        file.write("5,500,25")  # killed here
    assert run_dir.read_metrics(path)["epoch"] == [0, 1, 2, 3, 4]
    metrics = run_dir.MetricsFile(path)
    metrics.resume_after([row(2)])
    metrics.append(row(3, loss=9.0, score=1.0))
    assert run_dir.read_metrics(path)["loss"] == [0.0, 1.0, 2.0, 9.0]


HEAD, ROWS = "epoch,env_steps,seed,loss\n", ("1,100,25,0.5\n", "1,100,26,\n", "2,200,25,0.1\n", "2,200,26,0.2\n")


@pytest.mark.parametrize(("content", "message"), [
    (b"\xff\xfe\n", "numbers: it is no text in UTF-8"),
    (HEAD + "1,100,25\n", "line 2: 3 cells instead of 4"),
    (HEAD + "1,100,25,good\n", "line 2: .*'good'"),
    (HEAD + "".join(ROWS) + "the end\n", "line 6: 1 cells"),
    (HEAD + f"1,100,{2**63},0.5\n", "numbers: line 2: .* too "),
    (None, "Is a directory"),
])  # fmt: skip
def test_invalid_metrics_file_is_an_error(tmp_path: Path, content: str | bytes | None, message: str) -> None:
    path = tmp_path / "metrics.csv"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    for read in (run_dir.read_metrics, run_dir.MetricsFile, read_runs):
        with pytest.raises(SettingError, match=message) as error:
            read(path)
        assert "\n" not in str(error.value) and str(path) in str(error.value)
    assert content is None or path.read_bytes() == (content if isinstance(content, bytes) else content.encode())


@pytest.mark.parametrize(("rows", "epochs"), [
    (ROWS, [1, 1, 2, 2]), (ROWS[2:], [2, 2]), (ROWS[:3], [1, 1, 2, 2]), ((), [2, 2]),
    ((*ROWS, "3,300,25,\n"), [1, 1, 2, 2]),
])  # fmt: skip
def test_table_ends_with_the_epoch_of_the_checkpoint(tmp_path: Path, rows: tuple[str, ...], epochs: list[int]) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(HEAD + "".join(rows))
    run_dir.MetricsFile(path).resume_after([{"epoch": 2, "env_steps": 200, "seed": seed} for seed in (25, 26)])
    table = run_dir.read_metrics(path)
    assert table["epoch"] == epochs and table["seed"] == [25, 26] * (len(epochs) // 2)
    assert table["env_steps"][-2:] == [200, 200]
