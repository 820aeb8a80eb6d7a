"""Disks that are full or that nobody may write to, at every file a run writes; on a file system in memory."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partialmethod
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from torch.utils.tensorboard import SummaryWriter

from control.cli import parse as config
from control.storage import checkpoints
from control.storage.run_dir import read_metrics
from helpers import flags, run_folder, same_runs, trained
from running import Running, apart, mount

pytestmark = pytest.mark.slow

# Runs by what they write: settings, metrics, events, checkpoints and figures; videos; synthetic environment and scores.
RUNS: dict[str, dict[str, Any]] = {
    "UDRL": {"implementation": "UDRL"},
    "videos": {"implementation": "CPG", "gamename": "cartpole", "record": "true", "recording_epoch_interval": 4},
    "SE": {"implementation": "SE"},
}
HALF: dict[str, dict[str, Any]] = {"UDRL": {"epochs": 2}, "videos": {"max_episodes": 6}, "SE": {"generations": 1}}
PAGE = 4096


@contextmanager
def disk(folder: Path, *options: str) -> Iterator[Path]:
    """An empty disk of 64 MiB, and beside it ``folder/logs`` on another."""
    (place := folder / "disk").mkdir(exist_ok=True)
    mount("-t", "tmpfs", "-o", ",".join(("size=64m", *options)), "none", str(place))
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path, left: int) -> Path:
    """Leave so many bytes of a disk."""
    with open(filler := place / "filler", "wb") as file:
        seen = os.statvfs(place)
        if seen.f_bavail * seen.f_bsize > left:
            os.posix_fallocate(file.fileno(), 0, seen.f_bavail * seen.f_bsize - left)
    return filler


def held(run: Running) -> str:
    """What is wrong with the end of a run that could not write; empty where it ended as it should."""
    status, errors = run.status(120), run.err.read_text()
    if status == 0 and errors == "":
        return ""
    if status == 2 and errors.startswith("error: ") and errors.count("\n") == 1:
        return ""
    return f"status {status}: " + " | ".join(
        errors.splitlines()[-3:] if errors.startswith("Trace") else errors.splitlines()
    )


def whole(logdir: Path) -> Iterator[str]:
    """What is left of a run that could not write, and is not whole."""
    for path in logdir.glob("*/*/*/*/*/**/*"):
        try:
            if path.suffix == ".ckpt":
                checkpoints.load(path)
            elif path.name == "config.yaml":
                config.parse(["--config", str(path)])
            elif path.name == "metrics.csv":
                read_metrics(path)
            elif path.name.endswith(".tmp"):
                raise ValueError("half a file was left")
        except Exception as error:
            yield f"{path.name}: {str(error)[:200]}"


def go_on(name: str, place: Path, log: Path) -> Running:
    return Running(flags(place / "exp_dir", "--resume", **RUNS[name]), log, fork=True)


def after(place: Path, log: Path, name: str, reference: Path, begun: bool) -> Iterator[str]:
    """What is wrong with a run that could not write, and with the same run once it can."""
    logdir = place / "exp_dir"
    yield from whole(logdir)
    if begun and not (run_folder(logdir) / "checkpoints" / "last.ckpt").exists():
        yield "the checkpoint from before is gone"
    for filler in place.glob("filler"):
        filler.unlink()
    run = go_on(name, place, log)
    if wrong := held(run) or run.err.read_text():
        yield f"then: {wrong}"
        return
    try:
        same_runs(reference, run_folder(logdir))
    except AssertionError as error:
        yield f"then: another run, {str(error)[:200]}"


def small(name: str, tmp_path: Path, **changes: Any) -> Path:
    """The root of a run that nothing stopped."""
    trained(tmp_path / "exp_dir", **RUNS[name] | changes)
    return tmp_path / "exp_dir"


def attempts(tmp_path: Path, limits: Iterator[Any], attempt: Callable[[Any, Path], Iterator[str]]) -> None:
    """Try one limit after another, each on a disk of its own."""
    found = []

    def work() -> None:
        for number, limit in enumerate(limits):
            log = tmp_path / f"attempt_{number}"
            for wrong in attempt(limit, log):
                found.append(f"{limit}: {wrong}")
                print(found[-1], flush=True)
        assert found == []

    try:
        said = apart(work)
    except OSError as error:
        pytest.skip(f"this system lets no one but root mount: {error}")
    assert not said, said


@pytest.mark.parametrize("begun", [False, True], ids=["new", "resumed"])
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("what", ["bytes", "files"])
def test_a_disk_with_little_room(what: str, name: str, begun: bool, tmp_path: Path) -> None:
    """For pages or files: none, some, nearly as many as the run needs, enough."""
    (tmp_path / "half").mkdir()
    reference = run_folder(small(name, tmp_path))
    half = small(name, tmp_path / "half", **HALF[name]) if begun else None
    files = [path for path in reference.rglob("*") if path.is_file()]
    most = len(files) + 9 if what == "files" else 3 + sum(-(-path.stat().st_size // PAGE) for path in files) * 3 // 2

    def attempt(left: int, log: Path) -> Iterator[str]:
        with disk(tmp_path) as place:
            if half:
                shutil.copytree(half, place / "exp_dir")
            if what == "bytes":
                fill(place, left * PAGE)
            else:
                seen = os.statvfs(place)
                mount("-o", f"remount,size=64m,nr_inodes={seen.f_files - seen.f_ffree + left}", str(place))
            if wrong := held(go_on(name, place, log)):
                yield wrong
            if what == "files":
                mount("-o", "remount,size=64m,nr_inodes=10000", str(place))
            yield from after(place, log.with_name(f"{log.name}_again"), name, reference, begun)

    attempts(tmp_path, iter(range(0, most, max(1, most // 16))), attempt)


# What writes, and in which call the disk is full.
MOMENTS = [
    ("UDRL", "control.lightning.callbacks.RunLog.__init__", 1),
    ("UDRL", "control.lightning.callbacks.RunLog.on_train_epoch_end", 1),
    ("UDRL", "control.lightning.callbacks.RunLog.on_train_epoch_end", 4),
    ("UDRL", "control.lightning.callbacks.RunLog._draw", 1),
    ("UDRL", "control.lightning.callbacks.RunLog._draw", 2),
    ("UDRL", "control.lightning.callbacks.RunLog.finish", 1),
    ("UDRL", "control.lightning.callbacks.Checkpoints._save", 1),
    ("UDRL", "control.lightning.callbacks.Checkpoints._save", 2),
    ("UDRL", "control.lightning.callbacks.Checkpoints._save", 3),
    ("UDRL", "control.commands.train.learning_curve", 1),
    ("videos", "control.films.recording.record", 1),
    ("videos", "control.films.recording.record", 2),
    ("SE", "control.lightning.callbacks.RunLog._draw", 2),
    ("SE", "control.lightning.callbacks.Checkpoints._save", 4),
    ("SE", "control.storage.run_dir.atomic_write_text", 1),
    ("SE", "control.storage.run_dir.atomic_write_text", 2),
    ("SE", "models.proxies.files.save", 1),
    ("SE", "control.reports.synthetic.picture", 1),
]


@pytest.mark.parametrize("name", RUNS)
def test_a_disk_that_fills_up_meanwhile(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before each file that a run writes, or goes on with."""
    reference = run_folder(small(name, tmp_path))

    def attempt(moment: tuple[str, int], log: Path) -> Iterator[str]:
        (path, count), calls = moment, 0
        with disk(tmp_path) as place, monkeypatch.context() as patched:
            real = resolve_name(path)

            def filling(*args: Any, **more: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == count:
                    fill(place, 0)
                return real(*args, **more)

            patched.setattr(path, filling)
            # TensorBoard's thread writes whenever two minutes are over.
            patched.setattr(SummaryWriter, "__init__", partialmethod(SummaryWriter.__init__, flush_secs=0))
            run = go_on(name, place, log)
            if wrong := held(run):
                yield wrong
            patched.undo()
            if not (place / "filler").exists():
                yield "the disk was never full"
            yield from after(place, log.with_name(f"{log.name}_again"), name, reference, False)

    attempts(tmp_path, iter([moment[1:] for moment in MOMENTS if moment[0] == name]), attempt)


# Folders and files that nobody may write to when a run is to begin or go on, and whether anything may be left to do.
LOCKED = [
    "",
    "run",
    "checkpoints",
    "config.yaml",
    "metrics.csv",
    "last.ckpt",
    "best.ckpt",
    ".lock",
    "curve.png",
    "events*",
]


@pytest.mark.parametrize("begun", [False, True], ids=["new", "resumed"])
def test_a_disk_that_is_read_only(begun: bool, tmp_path: Path) -> None:
    """All of it, or one folder or file of a run: one line that names it, or a run that does not need it."""
    (tmp_path / "half").mkdir()
    reference = run_folder(small("UDRL", tmp_path))
    half = small("UDRL", tmp_path / "half", **HALF["UDRL"])

    def attempt(name: str, log: Path) -> Iterator[str]:
        with disk(tmp_path) as place:
            if begun:
                shutil.copytree(half, place / "exp_dir")
                run = run_folder(place / "exp_dir")
                found = {"": place, "run": run}.get(name) or next(run.rglob(name))
            else:
                found = place
            before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
            mount("--bind", str(found), str(found))
            mount("-o", "remount,bind,ro", str(found))
            if wrong := held(go_on("UDRL", place, log)):
                yield wrong
            said = log.with_suffix(".err").read_text()
            if said and name and found.name not in said and name != "run":
                yield f"does not name it: {said}"
            subprocess.run(["umount", str(found)], check=True)
            for path in before:
                if path.name != ".lock" and not path.exists():
                    yield f"{path.name} is gone"
            yield from after(place, log.with_name(f"{log.name}_again"), "UDRL", reference, begun)

    attempts(tmp_path, iter(LOCKED if begun else [""]), attempt)
