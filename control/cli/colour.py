"""Coloured text and broken lines, only on terminals. Imports nothing slow."""

import os
import shutil
import sys
import textwrap
from typing import TextIO

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
    wrapper = textwrap.TextWrapper(width, start, indent, break_long_words=False, break_on_hyphens=False)
    return f"{end}\n".join(wrapper.wrap(text))


def print_wrapped(text: str) -> None:
    """Print ``text``, `wrapped`."""
    print(wrapped(text, sys.stdout), flush=True)


def print_named(name: str, text: str, width: int) -> None:
    """Print ``name`` in a column of this ``width``, cyan on a terminal, and ``text`` beside it, `wrapped`."""
    line = wrapped(text, sys.stdout, " " * width, start=" " * width)
    print(f"{paint(f'{name:<{width}}', 'cyan', sys.stdout)}{line[width:]}", flush=True)


def verdict_text(sentence: str, passed: bool) -> str:
    """Return a verdict, which after a failure begins with the exit status and is yellow on a terminal."""
    return sentence if passed else paint(f"failed, so the exit status is 1: {sentence}", "yellow", sys.stdout)


def note(text: str, kind: str = "note") -> None:
    """Print ``note: text``, with ``kind`` as its first word, yellow on a terminal."""
    print(paint(wrapped(f"{kind}: {text}", sys.stdout), "yellow", sys.stdout), flush=True)


def warning(text: str) -> None:
    """Print ``warning: text``, yellow on a terminal."""
    note(text, "warning")
