"""Exit of the command: the right status after signals, and no failure if its output cannot be written any more. Imports
nothing slow, because all other modules are imported after `begin`."""

import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, kill, and a terminal that is closed
INTERRUPTED = 130


class Ending:
    """Signal handler of the command. The first signal raises KeyboardInterrupt if the running code has to clean up
    (``orderly``). Otherwise, and at a second signal, the process exits at once with ``status``."""

    def __init__(self) -> None:
        self.last_acts: list[Callable[[], Any]] = []  # called also if the process exits without cleaning up
        self.reset()

    def reset(self) -> None:
        self.status = INTERRUPTED
        self.orderly = False
        self.stop_requested = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        orderly, self.orderly, self.stop_requested = self.orderly, False, True
        if orderly:
            raise KeyboardInterrupt
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        self.say()
        self.act_last()
        os._exit(self.status)

    def act_last(self) -> None:
        """Call the ``last_acts``, before the process exits without cleaning up. Their exceptions are ignored."""
        for act in list(self.last_acts):
            with contextlib.suppress(Exception):
                act()

    def say(self) -> None:
        """Print ``interrupted``, unless the command had finished before the signal."""
        if self.status == INTERRUPTED:
            say("interrupted")


ending = Ending()


def say(text: str) -> None:
    """Print a line on stderr. This also works in a signal handler that has interrupted a print."""
    try:
        print(text, file=sys.stderr, flush=True)
    except (OSError, RuntimeError):
        with contextlib.suppress(OSError):
            os.write(2, f"{text}\n".encode())


def begin() -> None:
    """Install the handler of `SIGNALS` and make stdout and stderr robust. Call it only in the command's main process.
    Signals that are ignored, as under nohup, continue to be ignored."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, ending)
    sys.unraisablehook = _unraisable
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # else the next opened file would get this descriptor and all output
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdout, sys.stderr = _lasting(1, sys.stdout), _lasting(2, sys.stderr)


class _Lasting(io.FileIO):
    """An output stream that ignores write errors: a closed pipe, a lost terminal, a full disk."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return memoryview(data).nbytes


def _lasting(number: int, stream: Any) -> io.TextIOWrapper:
    """Return a robust stream for descriptor ``number``, like ``stream`` (None if closed). Characters that its encoding
    lacks are written as escapes such as ``\\u65e5``."""
    line_buffering = stream is None or stream.line_buffering or stream.write_through
    file = io.BufferedWriter(_Lasting(number, "w", closefd=False))
    return io.TextIOWrapper(file, stream and stream.encoding, "backslashreplace", line_buffering=line_buffering)


def _unraisable(problem: Any) -> None:
    """End the command if a signal arrives in a finalizer, whose exceptions Python would only print."""
    if problem.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(problem)
    else:
        ending(signal.SIGINT, None)
