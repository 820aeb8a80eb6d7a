"""The end of the command's process: its exit status after signals, and output streams that ignore write errors. Imports
nothing slow, because all other modules are imported after `install_handlers`."""

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, kill, and a terminal that is closed
INTERRUPTED = 130
REACTION_SECONDS = 1.9  # from Ctrl-C to the end of the process, if the running code does not react


class Ending:
    """Signal handler of the command. If ``orderly`` is True, the first signal raises KeyboardInterrupt, so that the
    running code can clean up. Otherwise, and at a second signal, the process exits at once with ``status``, after it
    has called the functions in ``exit_callbacks``. ``stop_requested`` says whether a signal has arrived.

    Python calls a handler only between two of its instructions, and machine code or a step of an environment may take
    minutes. So a thread (`watch`) ends the process `REACTION_SECONDS` after Ctrl-C. To prevent this, the running code
    sets the event ``handled`` when it begins to clean up or to finish its work.
    """

    def __init__(self) -> None:
        self.exit_callbacks: list[Callable[[], Any]] = []
        self.handled = threading.Event()
        self.reset()

    def reset(self) -> None:
        """Prepare for a new command in this process. Its exit status is `INTERRUPTED` until it has finished."""
        self.status = INTERRUPTED
        self.orderly = False
        self.stop_requested = self.is_announced = False
        self.handled.clear()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal ``number``: raise KeyboardInterrupt, or end the process."""
        self.stop_requested = True
        if self.orderly:
            self.orderly = False  # a second signal ends the process
            self.handled.set()
            raise KeyboardInterrupt
        self.exit()

    def watch(self, descriptor: int) -> None:
        """End the process if ``handled`` is not set `REACTION_SECONDS` after Ctrl-C. This runs in a thread, which waits
        for signals. ``descriptor`` is a pipe from which each arriving signal can be read, as a byte with its number."""
        while True:
            signal_number = os.read(descriptor, 1)[0]
            if signal_number == signal.SIGINT and not self.handled.wait(REACTION_SECONDS):
                self.exit()

    def exit(self) -> None:
        """End the process at once, with ``status``, after the ``exit_callbacks``, whose exceptions are ignored."""
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        self.print_interrupted()
        for callback in list(self.exit_callbacks):  # a callback may remove itself
            with contextlib.suppress(Exception):
                callback()
        os._exit(self.status)

    def print_interrupted(self) -> None:
        """Print ``interrupted`` once, unless the command had finished before the signal."""
        if self.status == INTERRUPTED and not self.is_announced:
            self.is_announced = True
            print_over_bar("interrupted")


ending = Ending()


def print_over_bar(text: str) -> None:
    """Print a line on stderr, on a terminal in place of the progress bar and ``^C``. Also works in a signal handler
    that has interrupted a print."""
    erase_line = "\r\033[K" if sys.stderr.isatty() else ""
    try:
        print(f"{erase_line}{text}", file=sys.stderr, flush=True)
    except (OSError, RuntimeError):
        with contextlib.suppress(OSError):
            os.write(2, f"{erase_line}{text}\n".encode())  # 2 is stderr


def install_handlers() -> None:
    """Install the handler of `SIGNALS` and make stdout and stderr robust. Call it only in the command's main process.
    Signals that are ignored, as under nohup, continue to be ignored."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, ending)  # Python calls ``ending`` with the number of the signal
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)  # Python writes the number of each signal there at once
    threading.Thread(target=ending.watch, args=(reader,), daemon=True).start()
    sys.unraisablehook = _handle_unraisable
    for descriptor in range(3):  # stdin, stdout, stderr
        try:
            os.fstat(descriptor)
        except OSError:  # closed: without devnull here, the next opened file would get this descriptor
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdout, sys.stderr = _robust_stream(1, sys.stdout), _robust_stream(2, sys.stderr)


class _RobustFile(io.FileIO):
    """An output file that ignores write errors: a closed pipe, a lost terminal, a full disk."""

    def write(self, data: Any, /) -> int:
        """Write ``data``. After an error, this output and all later output of the descriptor are discarded."""
        try:
            return super().write(data)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
            return memoryview(data).nbytes  # as if all of it had been written


def _robust_stream(descriptor: int, stream: Any) -> io.TextIOWrapper:
    """Return a text stream for a file ``descriptor`` (1 is stdout) that ignores write errors. It has the encoding and
    buffering of ``stream``, the present stream of the descriptor, which is None if it is closed. Characters that the
    encoding lacks are written as escapes such as ``\\u65e5``."""
    line_buffering = stream is None or stream.line_buffering or stream.write_through
    file = io.BufferedWriter(_RobustFile(descriptor, "w", closefd=False))
    encoding = None if stream is None else stream.encoding
    return io.TextIOWrapper(file, encoding, "backslashreplace", line_buffering=line_buffering)


def _handle_unraisable(unraisable: "sys.UnraisableHookArgs") -> None:
    """Handle an exception in a place that cannot raise it, such as a finalizer. If it is from a signal, end the
    command. Python prints all others."""
    from models.settings import StopNow  # loaded already if the exception is StopNow

    if issubclass(unraisable.exc_type, KeyboardInterrupt | StopNow):
        ending(signal.SIGINT, frame=None)
    else:
        sys.__unraisablehook__(unraisable)
