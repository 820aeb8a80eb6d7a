"""Runs in separate processes for tests that kill them, and mounts for tests that fill a disk."""

import atexit
import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import trainer
from conftest import ROOT

LIMIT = 600.0  # seconds


class Running:
    """A process ``python trainer.py argv`` with output and errors in files beside ``log``. With ``fork`` it copies
    this process, which saves the imports."""

    def __init__(self, argv: list[str], log: Path, fork: bool = False):
        self.out, self.err = (log.with_suffix(f".{end}") for end in ("out", "err"))
        self.started = time.monotonic()
        if fork:
            self.pid = os.fork()
            if self.pid == 0:
                os._exit(self._inside(argv))
        else:
            with open(self.out, "w") as out, open(self.err, "w") as err:
                environment = os.environ | {"OMP_NUM_THREADS": "1"}
                to = [(os.POSIX_SPAWN_DUP2, file.fileno(), number) for number, file in enumerate((out, err), start=1)]
                program = [sys.executable, str(ROOT / "trainer.py"), *argv]
                self.pid = os.posix_spawn(sys.executable, program, environment, file_actions=to)

    def _inside(self, argv: list[str]) -> int:
        try:
            with open(self.out, "w") as sys.stdout, open(self.err, "w") as sys.stderr:
                atexit._clear()
                threading.excepthook, sys.unraisablehook = threading.__excepthook__, sys.__unraisablehook__
                status = trainer.main(argv)
                threading._shutdown()  # type: ignore[attr-defined]  # like an interpreter that ends
                atexit._run_exitfuncs()
                return status
        except BaseException:
            self.err.write_text(traceback.format_exc())
            return 1

    def status(self, seconds: float = 0.0) -> int | None:
        """The exit status, negative after a signal; None if it still runs after ``seconds``."""
        while True:
            ended_pid, status = os.waitpid(self.pid, os.WNOHANG)
            if ended_pid:
                return os.waitstatus_to_exitcode(status)
            if self.age > seconds:
                return None
            time.sleep(0.002)

    @property
    def age(self) -> float:
        return time.monotonic() - self.started

    def has_ended(self) -> bool:
        return self.pid not in processes()

    def until_it_speaks(self) -> None:
        """Wait for the first output, at the first epoch."""
        while not (self.out.exists() and self.out.stat().st_size) and not self.has_ended():
            time.sleep(0.01)

    def to_the_end(self) -> None:
        status = self.status(LIMIT)
        # 1 is the verdict on a small search.
        assert status in (0, 1) and not self.err.read_text(), f"ended with {status}: {self.err.read_text()}"

    def kill(self, victim: str, draws: random.Random) -> int | None:
        """Kill the process, or a descendant with ``victim`` in its command line, and wait until all of them have ended.
        Returns the exit status, or None without a process to kill."""
        family = descendants(self.pid)
        targets = [pid for pid, command in family.items() if victim in command] if victim else [self.pid]
        if self.has_ended() or not targets:
            self.to_the_end()
            return None
        os.kill(draws.choice(targets), signal.SIGKILL)
        status = self.status(LIMIT)
        deadline = time.monotonic() + LIMIT
        while remaining := family.keys() & processes().keys():
            assert time.monotonic() < deadline, f"still there: {[family[pid] for pid in remaining]}"
            time.sleep(0.05)
        return status


def processes() -> dict[int, tuple[int, str]]:
    """Parent and command line of every running process."""
    process_table = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                command = (folder / "cmdline").read_bytes().decode(errors="replace")
                process_table[int(folder.name)] = int(parent), command
    return process_table


def descendants(pid: int) -> dict[int, str]:
    """Descendants of process ``pid`` with their command lines."""
    process_table, children, new = processes(), dict[int, str](), {pid}
    while new := {child for child, (parent, _) in process_table.items() if parent in new}:
        children |= {child: process_table[child][1] for child in new}
    return children


# -- mounts ------------------------------------------------------------------------------------------------------------

_NEW_NAMES = 0x10000000 | 0x00020000  # CLONE_NEWUSER | CLONE_NEWNS


def run_isolated(work: Callable[[], None]) -> str:
    """Do ``work`` in a forked process with private mounts. Returns its traceback, or "" without an error. Raises
    OSError if the system does not allow user namespaces."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        error_text = ""
        try:
            _enter()
        except OSError as error:
            error_text = f"OSError: {error}"
        else:
            try:
                work()
            except BaseException:
                error_text = traceback.format_exc()
        with open(writing, "w") as pipe:
            pipe.write(error_text)
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        error_text = pipe.read()
    os.waitpid(pid, 0)
    if error_text.startswith("OSError: "):
        raise OSError(error_text)
    return error_text


def _enter() -> None:
    users = {"uid_map": f"0 {os.getuid()} 1", "gid_map": f"0 {os.getgid()} 1"}
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare") or libc.unshare(_NEW_NAMES):
        raise OSError(ctypes.get_errno(), "no name space of its own")
    for name, text in ({"setgroups": "deny"} | users).items():
        Path("/proc/self", name).write_text(text)
    mount("-t", "tmpfs", "none", "/mnt")


def mount(*words: str) -> None:
    """Raises OSError if the system does not allow it."""
    done = subprocess.run(["mount", *words], capture_output=True, text=True)
    if done.returncode:
        raise OSError(done.stderr.strip())
