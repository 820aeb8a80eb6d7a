"""Progress of a command: a bar on a terminal, otherwise a line of text every few seconds."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from tqdm import tqdm

from control.cli.ending import ending

Watch = Callable[[float], object]
"""Takes the share of the work that is done, from 0 to 1. The result is ignored."""

LINE_SECONDS = 5.0  # between lines without a terminal


class Lines:
    """Prints at most one line of text every `LINE_SECONDS`, for a log."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Restart the clock for the remaining time and for the next line."""
        self._started = self._last = time.monotonic()

    def show(self, label: str, share: float) -> None:
        """Print the progress of ``label`` and the estimated remaining time, if a line is due. ``share`` is from 0 to
        1; nothing is printed below 0.01, where the estimate is poor, or at 1."""
        if 0.01 <= share < 1:
            remaining = tqdm.format_interval((time.monotonic() - self._started) * (1 - share) / share)
            self.print_if_due(f"  {label}: {100 * share:.0f} %, {remaining} left")

    def print_if_due(self, line: str) -> None:
        """Print ``line`` if the last one is at least `LINE_SECONDS` ago."""
        now = time.monotonic()
        if now - self._last >= LINE_SECONDS:
            self._last = now
            print(line, flush=True)


@contextlib.contextmanager
def progress(label: str, enabled: bool = True) -> Iterator[Watch | None]:
    """Yield a function that shows the progress of ``label``, or None unless ``enabled``. On a terminal it draws a bar
    on stderr, which is erased at the end; otherwise it prints lines (`Lines`). Raises KeyboardInterrupt if the command
    was interrupted before."""
    ending.raise_again()
    if not enabled:
        yield None
    elif sys.stderr.isatty():
        bar_format = "  {desc}: {percentage:3.0f} %|{bar}| {elapsed}<{remaining}"
        with tqdm(total=1.0, desc=label, bar_format=bar_format, leave=False, dynamic_ncols=True) as bar:
            yield lambda share: bar.update(share - bar.n)  # `update` takes the increase
    else:
        lines = Lines()
        yield lambda share: lines.show(label, share)


def part(watch: Watch | None, first: float, size: float) -> Watch | None:
    """Return a function that shows the progress of a part of the work, in the range of ``watch`` from ``first`` to
    ``first + size``. None if ``watch`` is None."""
    return None if watch is None else lambda share: watch(first + size * share)
