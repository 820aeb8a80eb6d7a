"""Progress of a command: a bar on a terminal, otherwise a line of text every few seconds."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping

from tqdm import tqdm

from control.cli.colour import paint
from control.cli.ending import ending

Watch = Callable[..., object]
"""A function that receives the fraction of the work that is done, from 0 to 1. The functions of `progress` and
`watch_part` also take a text about what the work has reached, such as a return. Results are ignored."""

_HEADER_ROWS = 22  # of a table: a screen of 24 lines has a header
_LEAST_WIDTH = 8  # of a column, so that few later numbers are wider
_LEAST_FRACTION = 0.01  # of the work; below it, an estimate of the time left is poor
LINE_SECONDS = 5.0  # between lines without a terminal
# A format of tqdm. {} becomes the time left. The bar is three columns narrower than it could be, with room for "^C".
BAR = "  {{desc}}: {{percentage:3.0f}} %|{{bar:-3}}| {} left"


class Lines:
    """Prints at most one line of text every `LINE_SECONDS`, for a log."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Restart the clock for the remaining time and for the next line."""
        self._started = self._last = time.monotonic()

    def show(self, label: str, fraction: float) -> None:
        """Print a line such as ``  label: 40 %, 01:10 left``, if one is due. ``fraction`` is the part of the work that
        is done. Nothing is printed for a fraction of 1, or below `_LEAST_FRACTION`."""
        if not (_LEAST_FRACTION <= fraction < 1 and self.is_due()):
            return
        self._last = time.monotonic()
        seconds_left = (self._last - self._started) * (1 - fraction) / fraction
        print(f"  {label}: {100 * fraction:.0f} %, {tqdm.format_interval(seconds_left)} left", flush=True)

    def is_due(self) -> bool:
        """Return whether the last line is at least `LINE_SECONDS` ago."""
        return time.monotonic() - self._last >= LINE_SECONDS


class RowTable:
    """Aligns rows that are printed one by one. The header is repeated before a row with a new column or with a text
    that is wider than its column, and after `_HEADER_ROWS` rows, so that a screen has one."""

    def __init__(self) -> None:
        self.widths: dict[str, int] = {}
        self._rows = 0  # since the last header

    def text(self, row: Mapping[str, str]) -> str:
        """Return ``row`` (column -> text) as a line, below a line with the header if that is due. Missing cells are
        empty."""
        if any(len(text) > self.widths.get(name, -1) for name, text in row.items()):  # a new or a wider column
            self.widths = {name: max(len(name), len(text), _LEAST_WIDTH) for name, text in row.items()}
            self._rows = 0
        line = " ".join(f"{row.get(name, ''):>{width}}" for name, width in self.widths.items())
        if self._rows % _HEADER_ROWS == 0:
            header = " ".join(f"{name:>{width}}" for name, width in self.widths.items())
            line = f"{paint(header, 'dim', sys.stdout)}\n{line}"
        self._rows += 1
        return line


def new_bar(label: str) -> tqdm:
    """Return a bar from 0 to 1 on stderr, which is erased at the end."""
    return tqdm(total=1.0, desc=label, bar_format=BAR.format("{remaining}"), leave=False, dynamic_ncols=True)


@contextlib.contextmanager
def progress(label: str, enabled: bool = True) -> Iterator[Watch | None]:
    """Context manager that yields a function to show the progress of ``label``, or None unless ``enabled``. On a
    terminal the function draws a bar on stderr, which is erased at the end. Otherwise it prints a line every few
    seconds. Raises KeyboardInterrupt if the command was interrupted before."""
    if ending.stop_requested:  # a signal during an import may have raised an error that the importing code ignored
        raise KeyboardInterrupt
    with contextlib.ExitStack() as stack:
        bar = stack.enter_context(new_bar(label)) if enabled and sys.stderr.isatty() else None
        lines, text = Lines(), label

        def show(fraction: float, result: str = "") -> None:
            """Show the finished ``fraction``, with a ``result`` such as ``best return 20.0`` after the label."""
            nonlocal text  # remains for later calls without a result
            if result:
                text = f"{label}, {result}"
            if bar is None:
                lines.show(text, fraction)
                return
            bar.desc = text
            bar.bar_format = BAR.format("{remaining}" if fraction >= _LEAST_FRACTION else "?")
            bar.update(fraction - bar.n)  # `update` takes the increase

        yield show if enabled else None


def time_in_words(seconds: float) -> str:
    """Return a time such as ``9 s`` or ``2 min 6 s``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def watch_part(watch: Watch | None, first: float, size: float) -> Watch | None:
    """Return a function like ``watch`` for a part of the work: it takes the finished fraction of this part. The part
    begins at the fraction ``first`` of the whole work and is the fraction ``size`` of it. None if ``watch`` is None."""
    if watch is None:
        return None
    return lambda fraction, *result: watch(first + size * fraction, *result)
