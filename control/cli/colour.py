"""Colours and line breaks for text on terminals. Imports nothing slow."""

import os
import re
import shutil
import sys
import textwrap
from typing import TextIO

_CODES = {"red": 31, "green": 32, "yellow": 33, "cyan": 36, "bold": 1, "dim": 2}


def paint(text: str, colour: str, stream: TextIO) -> str:
    """Return ``text`` in a colour (a key of `_CODES`) if ``stream`` is a terminal with colours, without NO_COLOR."""
    shows_colours = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    if not (shows_colours and text):
        return text
    return f"\033[{_CODES[colour]}m{text}\033[0m"


def wrap_text(text: str, stream: TextIO, indent: str = "  ", start: str = "") -> str:
    """Return ``start + text``. If ``stream`` is a terminal, break the text into lines that fit its width, and begin
    each line after the first with ``indent``."""
    if not stream.isatty():
        return start + text
    width = max(40, shutil.get_terminal_size().columns)
    wrapper = textwrap.TextWrapper(width, start, indent, break_long_words=False, break_on_hyphens=False)
    return wrapper.fill(text)


def print_wrapped(text: str) -> None:
    """Print ``text`` with line breaks (`wrap_text`) and coloured verdicts."""
    print(_paint_verdicts(wrap_text(text, sys.stdout)), flush=True)


def print_named(name: str, text: str, width: int) -> None:
    """Print ``name`` in a column of ``width`` characters, cyan on a terminal, and ``text`` beside it, with line
    breaks (`wrap_text`) and coloured verdicts."""
    empty_column = " " * width
    lines = wrap_text(text, sys.stdout, indent=empty_column, start=empty_column)
    column = paint(f"{name:<{width}}", "cyan", sys.stdout)
    print(column + _paint_verdicts(lines[width:]), flush=True)  # in place of the first line's empty column


def _paint_verdicts(text: str) -> str:
    """Paint the words ``solved`` and ``not solved`` before a bracket, as in ``not solved (475 or more)``."""

    def painted(verdict: re.Match[str]) -> str:
        return paint(verdict[0], "yellow" if verdict[1] else "green", sys.stdout)

    return re.sub(r"(not\s+)?\bsolved(?=\s+\()", painted, text)


def verdict_text(sentence: str, passed: bool) -> str:
    """Return the ``sentence`` of a verdict, in yellow and after the exit status if the verdict has not ``passed``."""
    if passed:
        return sentence
    return paint(f"Failed, so the exit status is 1. {sentence}", "yellow", sys.stdout)


def note(text: str, kind: str = "note") -> None:
    """Print ``kind: text`` on stdout, such as ``note: text``, yellow on a terminal, above a bar of tqdm."""
    line = paint(wrap_text(f"{kind}: {text}", sys.stdout), "yellow", sys.stdout)
    if "tqdm" in sys.modules:  # without a bar, tqdm is not imported
        sys.modules["tqdm"].tqdm.write(line)
    else:
        print(line)
    sys.stdout.flush()


def warning(text: str) -> None:
    """Print ``warning: text``, yellow on a terminal."""
    note(text, "warning")
