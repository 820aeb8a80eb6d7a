"""Power cuts at every moment of a run, and clocks that go backwards."""

import hashlib
import itertools
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from conftest import Finished
from control.storage import run_dir
from control.storage.run_dir import read_metrics
from helpers import flags, same_runs, stopped, trained

Names = dict[str, int]  # path below the root -> number of the file; -1 for a folder
State = dict[str, bytes | None]  # path -> content; None for a folder


class Disk:
    """Possible states of a journaling file system after a power cut at each sync, move or logged epoch of a run.

    Names are from any moment since the last sync. Data since the last sync of a file are lost, complete, or zeros.
    """

    def __init__(self, root: Path):
        self.root, self.states = root, dict[str, State]()
        self.numbers, self.count = dict[int, int](), 0  # inode -> number of the file
        self.synced, self.written = dict[int, bytes](), dict[int, bytes]()
        self.names: list[Names] = [{}]

    def look(self) -> None:
        """Record the changes and the possible states after a power cut now."""
        now: Names = {}
        inodes: dict[int, int] = {}
        for path in sorted(self.root.rglob("*")) if self.root.exists() else ():
            name = str(path.relative_to(self.root))
            if path.is_dir():
                now[name] = -1
                continue
            inode = path.stat().st_ino
            if inode not in self.numbers:
                self.count += 1
            now[name] = inodes[inode] = self.numbers.get(inode, self.count)
            self.written[now[name]] = path.read_bytes()
        self.numbers = inodes
        if now != self.names[-1]:
            self.names.append(now)
        for names in self.names:
            for durability in ("synced", "written", "zeros"):
                self.note({name: None if file < 0 else self.content(file, durability) for name, file in names.items()})

    def content(self, file: int, durability: str) -> bytes:
        synced, written = self.synced.get(file, b""), self.written[file]
        return {"synced": synced, "written": written, "zeros": synced.ljust(len(written), b"\0")}[durability]

    def note(self, state: State) -> None:
        ignored = ("tmp", "lock", "png")
        files = [item for item in state.items() if "events" not in item[0] and not item[0].endswith(ignored)]
        digest = hashlib.sha256(repr([item for item in files if item[1] is not None]).encode())
        self.states.setdefault(digest.hexdigest(), state)

    @contextmanager
    def watched(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        fsync, append = os.fsync, run_dir.MetricsFile.append

        def syncing(descriptor: int) -> None:
            self.look()
            fsync(descriptor)
            if file := self.numbers.get(os.fstat(descriptor).st_ino):
                self.synced[file] = self.written[file]
            del self.names[:-1]
            self.look()

        def around(call: Callable[..., None]) -> Callable[..., None]:
            def looking(*args: Any, **kwargs: Any) -> None:
                self.look()
                call(*args, **kwargs)
                self.look()

            return looking

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", syncing)
            for name in ("replace", "unlink"):
                patched.setattr(os, name, around(getattr(os, name)))
            patched.setattr(run_dir.MetricsFile, "append", around(append))
            yield

    def restore(self, state: State, root: Path) -> None:
        root.mkdir()
        for name, content in state.items():
            (path := root / name).parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.mkdir(exist_ok=True)
            else:
                path.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["UDRL", "DDQN", "SE"])
def test_run_resumes_after_a_power_cut(
    implementation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: Finished
) -> None:
    changes = {"implementation": implementation, "checkpoint_every": 2}
    disk = Disk(tmp_path / "exp_dir")
    with disk.watched(monkeypatch):
        full_run = trained(tmp_path / "exp_dir", **changes)
    assert len(disk.states) >= 20
    wrong = []
    for number, state in enumerate(disk.states.values()):
        disk.restore(state, root := tmp_path / f"cut_{number}")
        try:
            same_runs(full_run, trained(root, "--resume", **changes))
        except Exception as error:
            wrong.append(f"{root}: {str(error)[:300]}")
    assert wrong == [], f"{len(wrong)} of {len(disk.states)}"


def logged_scalars(folder: Path) -> list[tuple[int, float]]:
    """Steps and values of a tag in TensorBoard."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars("time/epoch")]


def test_clock_goes_backwards(
    logdir: Path, monkeypatch: pytest.MonkeyPatch, finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    """By an hour in each part of a run, and by a day between them."""
    today, looks = time.time(), itertools.count()

    def clock(start: float) -> Callable[[], float]:
        first_look = next(looks)
        return lambda: start - 3600 * (next(looks) > first_look + 9)

    monkeypatch.setattr(time, "time", clock(today))
    stopped(flags(logdir), logdir, 3)
    monkeypatch.setattr(time, "time", clock(today - 86_400))
    folder = trained(logdir, "--resume")
    same_runs(finished(implementation="UDRL")[0], folder)
    metrics = read_metrics(folder / "metrics.csv")
    assert logged_scalars(folder) == list(zip(metrics["env_steps"], metrics["epoch"], strict=True))
    assert all(value >= 0 for name in metrics if name.startswith("time/") for value in metrics[name] if value == value)
    assert not re.search(r"-\d[\d,]* steps/s|-\d+:\d\d left", capsys.readouterr().out)
