"""Coloured text and broken lines, only on terminals. Imports nothing slow."""

import os
import shutil
import sys
import textwrap
from typing import Any, TextIO

_CODES = {"red": 31, "green": 32, "yellow": 33, "cyan": 36, "bold": 1, "dim": 2}


def paint(text: str, colour: str, stream: TextIO) -> str:
    """Return ``text`` with colour codes if ``stream`` is a terminal, unless NO_COLOR is set or the terminal is dumb."""
    shows_colours = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return f"\033[{_CODES[colour]}m{text}\033[0m" if shows_colours and text else text


def wrapped(text: str, stream: TextIO, indent: str = "  ", end: str = "", start: str = "") -> str:
    """Return ``start`` and ``text``, broken at words to the width of the terminal if ``stream`` is one. Lines after the
    first begin with ``indent``, lines before the last end with ``end``."""
    if not stream.isatty():
        return start + text
    width = max(40, shutil.get_terminal_size().columns) - len(end)
    options: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    return f"{end}\n".join(textwrap.wrap(text, width, initial_indent=start, subsequent_indent=indent, **options))


def print_wrapped(text: str) -> None:
    """Print ``text``, `wrapped`."""
    print(wrapped(text, sys.stdout), flush=True)


def print_named(name: str, text: str, width: int, margin: str = "") -> None:
    """Print ``name`` in a column of this ``width``, cyan on a terminal, and ``text`` beside it, `wrapped`."""
    column = f"{margin}{name:<{width}}"
    line = wrapped(text, sys.stdout, " " * len(column), start=" " * len(column))
    print(f"{paint(column, 'cyan', sys.stdout)}{line[len(column) :]}", flush=True)


def note(text: str, kind: str = "note") -> None:
    """Print ``note: text``, with ``kind`` as its first word, yellow on a terminal."""
    print(paint(wrapped(f"{kind}: {text}", sys.stdout), "yellow", sys.stdout), flush=True)


def warning(text: str) -> None:
    """Print ``warning: text``, yellow on a terminal."""
    note(text, "warning")
