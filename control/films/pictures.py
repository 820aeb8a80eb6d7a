"""Frames of a film: enlarged pictures with lines of text below, which Pillow draws in a font of matplotlib."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Frame = NDArray[np.uint8]
"""A picture, ``[H, W, 3]`` uint8."""

SMALLEST = 400  # pixels; a picture is enlarged if its longer side is shorter
GAP = 8  # pixels between pictures side by side
_LETTER, _PER_LETTER = 16, 52  # height of letters in pixels is at least 16, and 1/52 of a wide film's width
_READABLE = 10  # pixels of the smallest letters
_BACK, _INK, _STRONG = (24, 26, 30), (206, 210, 216), (255, 255, 255)


def enlarged(frame: Frame) -> Frame:
    """Enlarge the picture by the smallest integer factor that makes its longer side at least `SMALLEST` pixels. Pixels
    are repeated, so edges remain sharp."""
    factor = max(1, -(-SMALLEST // max(frame.shape[:2])))
    return frame if factor == 1 else frame.repeat(factor, 0).repeat(factor, 1)


def letters(width: int) -> int:
    """Return the height of letters in a film of ``width`` pixels. They are readable if it is shown at half size."""
    return max(_LETTER, width // _PER_LETTER)


def captioned(frame: Frame, lines: Sequence[Sequence[str]], height: int) -> Frame:
    """Return the picture with ``lines`` of text below. A line is a sequence of cells with equal widths, so that numbers
    do not move. Letters have a height of ``height`` pixels, or less in a cell with long text. The first line is
    brighter."""
    row, width, margin = round(1.6 * height), frame.shape[1], height // 2
    strip = _backdrop(row * len(lines) + margin, width).copy()
    for number, cells in enumerate(lines):
        room = (width - 2 * margin) // max(1, len(cells))
        top = margin // 2 + row * number
        for place, text in enumerate(cells):
            x_offset = margin + place * room
            cell = _cell(text, height, room, row, _INK if number else _STRONG)
            strip[top : top + row, x_offset : x_offset + cell.shape[1]] = cell[:, : width - x_offset]
    return np.concatenate([frame, strip])


@functools.lru_cache(256)
def _cell(text: str, height: int, room: int, row: int, ink: tuple[int, int, int]) -> Frame:
    """Draw a cell with ``text``, ``[row, room, 3]``. Cached, because most cells are equal in successive frames."""
    from PIL import Image, ImageDraw

    cell = Image.new("RGB", (room, row), _BACK)
    words, letter = _fitting(text, height, room - height // 2)
    ImageDraw.Draw(cell).text((0, row // 2), words, ink, letter, anchor="lm")
    return np.asarray(cell)


@functools.lru_cache(16)
def _backdrop(height: int, width: int) -> Frame:
    return np.full((height, width, 3), _BACK, np.uint8)


def side_by_side(frames: Sequence[Frame]) -> Frame:
    """Return pictures side by side. Shorter pictures have background below. Height and width are padded to even
    numbers, which video formats need."""
    height = max(frame.shape[0] for frame in frames)
    width = sum(frame.shape[1] for frame in frames) + GAP * (len(frames) - 1)
    sheet = _backdrop(height + height % 2, width + width % 2).copy()
    x_offset = 0
    for frame in frames:
        sheet[: frame.shape[0], x_offset : x_offset + frame.shape[1]] = frame
        x_offset += frame.shape[1] + GAP
    return sheet


@functools.cache
def _font(height: int) -> Any:
    import matplotlib
    from PIL import ImageFont

    return ImageFont.truetype(str(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")), height)


@functools.lru_cache(4096)
def _fitting(text: str, height: int, room: float) -> tuple[str, Any]:
    """Return ``text`` and a font in which it fits into ``room`` pixels. Text is cut if letters would be too small to
    read."""
    smallest = min(height, _READABLE)
    for size in range(height, smallest - 1, -1):
        if _font(size).getlength(text) <= room:
            return text, _font(size)
    while len(text) > 1 and _font(smallest).getlength(f"{text}…") > room:
        text = text[:-1]
    return f"{text}…", _font(smallest)
