"""Ends of the command: signals at any moment, and closed output streams."""

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import trainer
from conftest import ROOT
from control.cli import ending as module
from control.cli.ending import SIGNALS, Ending, ending, print_over_bar
from control.storage import checkpoints
from control.storage.run_dir import atomic_file, read_metrics
from fake_runs import Shown
from helpers import SEARCHED, STEPPED_CAR, flags, run_folder, same_runs, start, trained, wait_until

COMMAND = [sys.executable, str(ROOT / "trainer.py")]


@pytest.fixture(autouse=True)
def fresh_ending() -> Iterator[None]:
    """Later tests of this process have had no signal."""
    yield
    ending.reset()


# The command in a new process group, as from a shell.
started = partial(start, start_new_session=True)


def handles_signals(process: "subprocess.Popen[str]") -> bool:
    """Whether the program has installed its handlers."""
    caught = next(
        line for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if line.startswith("SigCgt")
    )
    return bool(int(caught.split()[1], 16) >> signal.SIGHUP - 1 & 1)


def clean(process: "subprocess.Popen[str]", seconds: float = 120) -> str:
    """The output, without a traceback."""
    out, err = process.communicate(timeout=seconds)
    assert not [word for word in ("Traceback", "Exception ignored", "error") if word in out + err], err
    return out + err


@pytest.mark.parametrize(("line", "status"), [("--help >&- 2>&- <&-", 0), ("--lr x 2> /dev/full", 2)])
def test_unwritable_output_is_ignored(line: str, status: int) -> None:
    shell = ["bash", "-c", f'"$0" "$1" {line}', *COMMAND]
    done = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (status, "")


def test_stream_survives_a_closed_reader_and_unknown_characters() -> None:
    reader, writer = os.pipe()
    old_stream = io.TextIOWrapper(io.FileIO(writer, "w", closefd=False), "ascii", line_buffering=True)
    stream = module._robust_stream(writer, old_stream)
    print("日", file=stream)
    assert os.read(reader, 99) == b"\\u65e5\n"
    os.close(reader)
    for _ in range(2):
        print("nobody reads this", file=stream)
    assert os.fstat(writer).st_rdev == os.stat(os.devnull).st_rdev
    os.close(writer)


def test_signal_during_imports(logdir: Path) -> None:
    process = started(flags(logdir))
    wait_until(lambda: handles_signals(process), process)
    process.send_signal(signal.SIGHUP)
    assert (clean(process), process.returncode) == ("interrupted\n", 130)
    assert not logdir.exists()


def test_nohup_is_respected() -> None:
    code = "import signal; from control.cli import ending; ending.install_handlers()"
    code += "; print(signal.getsignal(signal.SIGHUP))"
    shell = ["sh", "-c", 'trap "" HUP; exec "$0" -c "$1"', sys.executable, code]
    done = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == (f"{signal.SIG_IGN!s}\n", "")


def test_line_replaces_the_bar_while_another_line_is_printed(monkeypatch: pytest.MonkeyPatch, capfd: Shown) -> None:
    def write(text: str) -> int:
        raise RuntimeError("reentrant call")  # as in a signal handler that has interrupted a print

    stream = SimpleNamespace(write=write, flush=lambda: None, isatty=lambda: True)
    monkeypatch.setattr(sys, "stderr", stream)
    print_over_bar("stopping")
    assert capfd.readouterr().err == "\r\033[Kstopping\n"


def test_second_signal_removes_temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As after a second Ctrl-C."""
    listings: list[list[str]] = []

    def leave(status: int) -> None:
        listings.append(sorted(path.name for path in tmp_path.iterdir()))
        raise SystemExit(status)

    monkeypatch.setattr(os, "_exit", leave)
    (tmp_path / "film.mp4").write_text("an old one")
    with pytest.raises(SystemExit), atomic_file(tmp_path / "film.mp4") as temporary:
        temporary.write_text("half")
        ending(signal.SIGTERM, None)
    assert listings == [["film.mp4"]] and (tmp_path / "film.mp4").read_text() == "an old one"
    assert ending.exit_callbacks == []


def test_second_signal_ends_at_once(monkeypatch: pytest.MonkeyPatch, capfd: Shown) -> None:
    handler, statuses = Ending(), list[int]()
    monkeypatch.setattr(os, "_exit", statuses.append)
    handler.orderly = True
    with pytest.raises(KeyboardInterrupt):
        handler(signal.SIGINT, None)
    handler(signal.SIGTERM, None)
    handler.status = 0  # the work is complete
    handler(signal.SIGHUP, None)
    assert (statuses, capfd.readouterr().err) == ([130, 0], "interrupted\n")


SLOW_GAME = "slow_cartpole:SlowCartPole-v0"
SEARCH = {"implementation": "SE", "gamename": SLOW_GAME, "generations": 6}
PHASES: dict[str, tuple[dict[str, Any], str]] = {  # settings, and the line after which every step takes minutes
    "code that is no Python": ({"implementation": "DDQN", "gamename": SLOW_GAME}, "seed 25"),
    "workers": ({"implementation": "DDQN", "gamename": SLOW_GAME, "num_workers": 2}, "seed 25"),
    "a generation": (SEARCH, " 1/6"),
}


@pytest.mark.parametrize("phase", [
    "a generation", *(pytest.param(phase, marks=pytest.mark.slow) for phase in ("code that is no Python", "workers")),
])  # fmt: skip
def test_ctrl_c_is_heard_in_a_step_of_minutes(
    phase: str, logdir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed search repeats the generation."""
    settings, sign = PHASES[phase]
    monkeypatch.setenv("SLOW", str(tmp_path / "slow"))
    monkeypatch.setenv("DEAF", "1" if phase == "code that is no Python" else "")
    variables = {"PYTHONPATH": str(ROOT / "tests"), "PYTHONUNBUFFERED": "1"}
    process = started(flags(logdir, **settings), env=os.environ | variables)
    assert process.stdout
    while sign not in (line := process.stdout.readline()):
        assert line, process.communicate()
    (tmp_path / "slow").touch()
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    output = clean(process, 60)
    assert process.returncode == 130
    assert "interrupted" in output
    if phase == "a generation":
        assert " --report " in output
        (tmp_path / "slow").unlink()
        interrupted_run = run_folder(logdir)
        assert trainer.main(flags(logdir, "--resume", **settings)) in SEARCHED
        same_runs(trained(tmp_path / "whole", **settings), interrupted_run)


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_signal_to_the_process_group_writes_a_checkpoint(number: signal.Signals, logdir: Path) -> None:
    """As from a closed terminal or a scheduler; the workers of environments get it too."""
    changes = {"gamename": STEPPED_CAR, "time_limit": 30, "num_workers": 2, "checkpoint_every": 1_000_000}
    process = started(flags(logdir, epochs=1_000_000, **changes))
    wait_until(lambda: any(len(p.read_text().splitlines()) > 3 for p in logdir.rglob("metrics.csv")), process)
    os.killpg(process.pid, number)
    output = clean(process)
    epochs = read_metrics(run_folder(logdir) / "metrics.csv")["epoch"]
    assert process.returncode == 130 and "stopping after this epoch" in output
    assert f"interrupted after {epochs[-1]:,.0f} of 1,000,000 epochs," in output and re.search(
        r"next:\n  .* --resume\n", output
    )
    last = checkpoints.load(run_folder(logdir) / "checkpoints" / "last.ckpt")
    assert last.run_state["epoch"] == epochs[-1]
