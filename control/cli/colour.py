"""Coloured text, only on terminals that show colours. Imports nothing slow."""

import os
import sys
from typing import TextIO

_CODES = {"red": 31, "green": 32, "yellow": 33, "cyan": 36, "bold": 1, "dim": 2}


def paint(text: str, colour: str, stream: TextIO) -> str:
    """Return ``text`` with colour codes if ``stream`` is a terminal, unless NO_COLOR is set or the terminal is dumb."""
    shows_colours = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return f"\033[{_CODES[colour]}m{text}\033[0m" if shows_colours and text else text


def note(text: str, kind: str = "note") -> None:
    """Print ``note: text``, with ``kind`` as its first word, yellow on a terminal."""
    print(paint(f"{kind}: {text}", "yellow", sys.stdout), flush=True)


def warning(text: str) -> None:
    """Print ``warning: text``, yellow on a terminal."""
    note(text, "warning")
