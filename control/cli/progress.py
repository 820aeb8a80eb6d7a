"""Progress of a command: a bar on a terminal, otherwise a line of text every few seconds."""

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

from tqdm import tqdm

from control.cli.colour import paint
from control.cli.ending import ending

Watch = Callable[..., object]
"""A function that is called with the finished fraction of some work, from 0 to 1. The functions of `progress` and
`watch_part` have a second argument, a text about an intermediate result, such as a return."""

_LEAST_WIDTH = 8  # minimum width of a column, so that few later numbers are wider than their column
_LEAST_FRACTION = 0.01  # fraction of the work below which an estimate of the time left is poor
_SPEED_SECONDS = 30.0  # least time over which the speed is measured
LINE_SECONDS = 10.0  # time between lines of text if stderr is no terminal
_COMPILING = "compiling machine code, half a minute or more, only once"


class Meter:
    """Shows the finished fraction of some work and the time left: in a bar if stderr is a terminal, otherwise in a line
    of text every `LINE_SECONDS`. The time left is estimated from the mean speed in the last quarter of the time since
    `restart`, at least `_SPEED_SECONDS`. The clock pauses while functions are compiled."""

    _open: ClassVar[list["Meter"]] = []  # the meters that are not closed; the last one is the bar on the terminal
    _compiling_since: ClassVar[float | None] = None  # time when compiling began; None if nothing is compiled now
    _compile_seconds: ClassVar[float] = 0.0  # time that the process has compiled so far
    _has_announced: ClassVar[bool] = False  # whether `begin_compiling` has printed its line

    def __init__(self, label: str) -> None:
        self.bar: tqdm | None = None
        if sys.stderr.isatty():
            self.bar = tqdm(total=1.0, desc=label, bar_format="  {desc}", leave=False, dynamic_ncols=True)
        self._last_shown = self.seconds()
        self.restart()
        Meter._open.append(self)

    @classmethod
    def seconds(cls) -> float:
        """Return the time in seconds of a clock that pauses while functions are compiled."""
        now = time.monotonic() if cls._compiling_since is None else cls._compiling_since
        return now - cls._compile_seconds

    @classmethod
    def begin_compiling(cls) -> None:
        """Stop the clock. If there is a meter, say that functions are compiled: in its bar or, without a terminal, in a
        line of text that is printed only once."""
        cls._compiling_since = time.monotonic()
        bar = cls._open[-1].bar if cls._open else None
        if bar is not None:
            bar.desc, bar.bar_format = _COMPILING, "  {desc}"
            bar.refresh()
        elif cls._open and not cls._has_announced:
            cls._has_announced = True
            print(f"  {_COMPILING}", flush=True)

    @classmethod
    def end_compiling(cls) -> None:
        """Start the clock again."""
        if cls._compiling_since is not None:
            cls._compile_seconds += time.monotonic() - cls._compiling_since
            cls._compiling_since = None

    def restart(self, fraction: float = 0.0) -> None:
        """Forget the speed so far: the time left is estimated from the speed after this call. ``fraction`` is the
        fraction of the work that is finished now."""
        self._first_fraction, self._started = fraction, self.seconds()
        self._points = deque([(self._started, fraction)])  # recent times and fractions

    def time_left(self, fraction: float) -> str:
        """Return the time left, such as ``02:06``, if ``fraction`` of the work is done; "?" soon after `restart`."""
        if fraction >= 1:
            return "00:00"
        if fraction - self._first_fraction < _LEAST_FRACTION:
            return "?"
        now = self.seconds()
        if fraction > self._points[-1][1] and now >= self._points[-1][0] + 1:
            self._points.append((now, fraction))
        window_start = now - max(_SPEED_SECONDS, (now - self._started) / 4)
        while len(self._points) > 2 and self._points[1][0] <= window_start:
            self._points.popleft()  # the second point is before the window too, so the first one is not needed
        first_seconds, first_fraction = self._points[0]
        seconds_per_fraction = (now - first_seconds) / (fraction - first_fraction)
        return str(tqdm.format_interval(seconds_per_fraction * (1 - fraction)))

    def show(self, fraction: float, label: str) -> None:
        """Show the finished ``fraction`` of the work that ``label`` describes, unless the last bar or line is too
        recent. At the beginning and the end of the work, there are no lines."""
        left_text = self.time_left(fraction)
        seconds_since_shown = self.seconds() - self._last_shown
        if self.bar is not None:
            # Set the new values even if they are not drawn yet, because a printed row also draws the bar again.
            self.bar.n, self.bar.desc = fraction, label
            # The bar is three columns narrower than it could be, with room for "^C".
            self.bar.bar_format = f"  {{desc}}: {{percentage:3.0f}} %|{{bar:-3}}| {left_text} left"
            if seconds_since_shown >= self.bar.mininterval:
                self._last_shown = self.seconds()
                self.bar.refresh()
        elif seconds_since_shown >= LINE_SECONDS and left_text != "?" and fraction < 1:
            self._last_shown = self.seconds()
            print(f"  {label}: {100 * fraction:.0f} %, {left_text} left", flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
        Meter._open.remove(self)


class RowTable:
    """Aligns the rows of a table that are printed one after another. A header precedes the first row, and any later row
    that has a new column or a text that is wider than its column."""

    def __init__(self) -> None:
        self.widths: dict[str, int] = {}  # column -> number of characters

    def text(self, row: Mapping[str, str]) -> str:
        """Return ``row`` (column -> text) as a line, with the header in a line above if the row needs it. Missing cells
        are empty."""
        header = ""
        if any(len(text) > self.widths.get(name, -1) for name, text in row.items()):
            self.widths = {name: max(len(name), len(text), _LEAST_WIDTH) for name, text in row.items()}
            names = " ".join(f"{name:>{width}}" for name, width in self.widths.items())
            header = f"{paint(names, 'dim', sys.stdout)}\n"
        return header + " ".join(f"{row.get(name, ''):>{width}}" for name, width in self.widths.items())


@contextlib.contextmanager
def progress(label: str, enabled: bool = True) -> Iterator[Watch | None]:
    """Context manager that yields a function to show the progress of some work (`Meter`), with the text ``label``. If
    not ``enabled``, it yields None. Raises KeyboardInterrupt if the command was interrupted before."""
    if ending.stop_requested:  # a signal during an import may have raised an error that the importing code ignored
        raise KeyboardInterrupt
    if enabled:
        with contextlib.closing(Meter(label)) as meter:
            yield lambda fraction, result="": meter.show(fraction, f"{label}, {result}" if result else label)
    else:
        yield None


def time_in_words(seconds: float) -> str:
    """Return a time such as ``9 s`` or ``2 min 6 s``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def watch_part(watch: Watch | None, first: float, size: float) -> Watch | None:
    """Return a function that shows the progress of a part of some work. It is called with the finished fraction of the
    part, and calls ``watch`` with the finished fraction of the whole work. The part begins at the fraction ``first`` of
    the work and has the fraction ``size``; both are 0.25 for the second quarter. Return None if ``watch`` is None."""
    if watch is None:
        return None
    return lambda fraction, *result: watch(first + size * fraction, *result)
