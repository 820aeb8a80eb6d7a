"""Full and read-only disks, at every file of a run; on a file system in memory."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from control.cli import parse as config
from control.storage import checkpoints
from control.storage.run_dir import read_metrics
from helpers import SEARCHED, flags, run_folder, same_runs, trained
from running import Running, mount, run_isolated

pytestmark = pytest.mark.slow

# Runs that write different files: metrics, events, checkpoints and figures; videos; proxy and scores.
RUNS: dict[str, dict[str, Any]] = {
    "UDRL": {"implementation": "UDRL"},
    "videos": {"implementation": "CPG", "gamename": "cartpole", "record": "true", "recording_epoch_interval": 4},
    "SE": {"implementation": "SE"},
}
HALF: dict[str, dict[str, Any]] = {"UDRL": {"epochs": 2}, "videos": {"max_episodes": 6}, "SE": {"generations": 1}}
PAGE = 4096


@contextmanager
def disk(folder: Path, *options: str) -> Iterator[Path]:
    """An empty disk of 64 MiB."""
    (place := folder / "disk").mkdir(exist_ok=True)
    mount("-t", "tmpfs", "-o", ",".join(("size=64m", *options)), "none", str(place))
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path, free_bytes: int) -> Path:
    """Fill a disk up to ``free_bytes``."""
    with open(filler := place / "filler", "wb") as file:
        disk_stats = os.statvfs(place)
        if disk_stats.f_bavail * disk_stats.f_bsize > free_bytes:
            os.posix_fallocate(file.fileno(), 0, disk_stats.f_bavail * disk_stats.f_bsize - free_bytes)
    return filler


def run_problem(run: Running) -> str:
    """The problem with the end of a run that could not write; empty if it ended properly."""
    status, errors = run.status(120), run.err.read_text()
    if status in SEARCHED and not errors or status == 2 and errors.startswith("error: ") and errors.count("\n") == 1:
        return ""
    return f"status {status}: " + " | ".join(errors.splitlines()[-3:])


def damaged_files(logdir: Path) -> Iterator[str]:
    """Damaged files of a run that could not write."""
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


def resume(name: str, place: Path, log: Path) -> Running:
    return Running(flags(place / "exp_dir", "--resume", **RUNS[name]), log, fork=True)


def recovery_problems(place: Path, log: Path, name: str, reference: Path, resumed: bool) -> Iterator[str]:
    """Problems of a run that could not write, and of the same run resumed with room."""
    logdir = place / "exp_dir"
    yield from damaged_files(logdir)
    if resumed and not (run_folder(logdir) / "checkpoints" / "last.ckpt").exists():
        yield "the checkpoint from before is gone"
    for filler in place.glob("filler"):
        filler.unlink()
    run = resume(name, place, log)
    if wrong := run_problem(run) or run.err.read_text():
        yield f"then: {wrong}"
        return
    try:
        same_runs(reference, run_folder(logdir))
    except AssertionError as error:
        yield f"then: another run, {str(error)[:200]}"


def small(name: str, tmp_path: Path, **changes: Any) -> Path:
    """The root of an uninterrupted run."""
    trained(tmp_path / "exp_dir", **RUNS[name] | changes)
    return tmp_path / "exp_dir"


def attempts(tmp_path: Path, limits: Iterator[Any], attempt: Callable[[Any, Path], Iterator[str]]) -> None:
    """Try one limit after another, each on a new disk."""
    problems = []

    def work() -> None:
        for number, limit in enumerate(limits):
            log = tmp_path / f"attempt_{number}"
            for wrong in attempt(limit, log):
                problems.append(f"{limit}: {wrong}")
                print(problems[-1], flush=True)
        assert problems == []

    try:
        error_text = run_isolated(work)
    except OSError as error:
        pytest.skip(f"this system lets no one but root mount: {error}")
    assert not error_text, error_text


@pytest.mark.parametrize("resumed", [False, True], ids=["new", "resumed"])
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("limit_kind", ["bytes", "files"])
def test_disk_with_little_room(limit_kind: str, name: str, resumed: bool, tmp_path: Path) -> None:
    """Room for no pages or files, for some, for nearly enough, and for enough."""
    (tmp_path / "half").mkdir()
    reference = run_folder(small(name, tmp_path))
    half = small(name, tmp_path / "half", **HALF[name]) if resumed else None
    files = [path for path in reference.rglob("*") if path.is_file()]
    pages = sum(-(-path.stat().st_size // PAGE) for path in files)
    max_limit = len(files) + 9 if limit_kind == "files" else 3 + pages * 3 // 2

    def attempt(limit: int, log: Path) -> Iterator[str]:
        with disk(tmp_path) as place:
            if half:
                shutil.copytree(half, place / "exp_dir")
            if limit_kind == "bytes":
                fill(place, limit * PAGE)
            else:
                disk_stats = os.statvfs(place)
                mount("-o", f"remount,size=64m,nr_inodes={disk_stats.f_files - disk_stats.f_ffree + limit}", str(place))
            if wrong := run_problem(resume(name, place, log)):
                yield wrong
            if limit_kind == "files":
                mount("-o", "remount,size=64m,nr_inodes=10000", str(place))
            yield from recovery_problems(place, log.with_name(f"{log.name}_again"), name, reference, resumed)

    attempts(tmp_path, iter(range(0, max_limit, max(1, max_limit // 16))), attempt)


# Read-only folders and files of a resumed run.
LOCKED = ["", "run", "checkpoints", "config.yaml", "metrics.csv", "last.ckpt", "best.ckpt", ".lock", "events*"]


@pytest.mark.parametrize("resumed", [False, True], ids=["new", "resumed"])
def test_read_only_disk(resumed: bool, tmp_path: Path) -> None:
    """The run names the disk, folder or file in one line, or does not need it."""
    (tmp_path / "half").mkdir()
    reference = run_folder(small("UDRL", tmp_path))
    half = small("UDRL", tmp_path / "half", **HALF["UDRL"])

    def attempt(name: str, log: Path) -> Iterator[str]:
        with disk(tmp_path) as place:
            if resumed:
                shutil.copytree(half, place / "exp_dir")
                run = run_folder(place / "exp_dir")
                locked_path = {"": place, "run": run}.get(name) or next(run.rglob(name))
            else:
                locked_path = place
            old_files = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
            mount("--bind", str(locked_path), str(locked_path))
            mount("-o", "remount,bind,ro", str(locked_path))
            if wrong := run_problem(resume("UDRL", place, log)):
                yield wrong
            error_text = log.with_suffix(".err").read_text()
            if error_text and name and locked_path.name not in error_text and name != "run":
                yield f"does not name it: {error_text}"
            subprocess.run(["umount", str(locked_path)], check=True)
            for path in old_files:
                if path.name != ".lock" and not path.exists():
                    yield f"{path.name} is gone"
            yield from recovery_problems(place, log.with_name(f"{log.name}_again"), "UDRL", reference, resumed)

    attempts(tmp_path, iter(LOCKED if resumed else [""]), attempt)
