"""Runs in forked processes for tests that kill them."""

import atexit
import os
import signal
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path

import trainer


class Running:
    """The command with the flags ``argv`` in a copy of this process, which saves the imports. Output and errors are in
    files beside ``log``."""

    def __init__(self, argv: list[str], log: Path):
        self.out, self.err = (log.with_suffix(f".{end}") for end in ("out", "err"))
        self.pid = os.fork()
        if self.pid == 0:
            os._exit(self._inside(argv))

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

    def has_ended(self) -> bool:
        return self.pid not in processes()

    def to_the_end(self) -> None:
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        # 1 is the verdict on a small search.
        assert status in (0, 1) and not self.err.read_text(), f"ended with {status}: {self.err.read_text()}"

    def kill(self) -> bool:
        """Kill the process, and wait for its end. Returns False if it has ended before."""
        if self.has_ended():
            self.to_the_end()
            return False
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return True


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
