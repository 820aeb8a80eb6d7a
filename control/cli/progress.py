"""How far a part of a command has come: a bar on a terminal, elsewhere a line every few seconds."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from tqdm import tqdm

Watch = Callable[[float], None]
"""Takes the share of the work that is done, from 0 to 1."""

LINE_SECONDS = 5.0  # between lines without a terminal


class Lines:
    """A line of text every so many seconds, for a log."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Count the seconds from now on."""
        self._started = self._last = time.monotonic()

    def show(self, label: str, share: float) -> None:
        """Print the progress of ``label``, if a line is due."""
        if 0 < share < 1:
            remaining = tqdm.format_interval((time.monotonic() - self._started) * (1 - share) / share)
            self.say(f"  {label}: {100 * share:.0f} %, {remaining} left")

    def say(self, line: str) -> None:
        """Print it, if it is time for a line."""
        now = time.monotonic()
        if now - self._last >= LINE_SECONDS:
            self._last = now
            print(line, flush=True)


@contextlib.contextmanager
def progress(label: str, enabled: bool = True) -> Iterator[Watch | None]:
    """Context manager for a function that shows the progress of ``label``; None unless ``enabled``. The bar is on
    stderr and is erased at the end."""
    if not enabled:
        yield None
    elif sys.stderr.isatty():
        form = "  {desc}: {percentage:3.0f} %|{bar}| {elapsed}<{remaining}"
        with tqdm(total=1.0, desc=label, bar_format=form, leave=False, dynamic_ncols=True) as bar:
            yield lambda share: bar.update(share - bar.n) and None
    else:
        lines = Lines()
        yield lambda share: lines.show(label, share)


def part(watch: Watch | None, first: float, size: float) -> Watch | None:
    """Progress of a part of the work that begins at the share ``first`` and has the share ``size``."""
    return None if watch is None else lambda share: watch(first + size * share)
