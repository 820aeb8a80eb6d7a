"""Frames of a film: enlarged pictures with lines of text below, which Pillow draws in a font of matplotlib."""

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Frame = NDArray[np.uint8]
"""A picture, ``[H, W, 3]`` uint8."""

SMALLEST = 400  # minimum length of the longer side of a picture, in pixels; smaller pictures are enlarged
GAP = 8  # distance between pictures side by side, in pixels
_SMALLEST_LETTERS = 10  # minimum height of letters in a cell with long text, in pixels
_BACKGROUND, _GREY, _WHITE = (24, 26, 30), (206, 210, 216), (255, 255, 255)  # RGB


def enlarge(frame: Frame) -> Frame:
    """Enlarge the picture by the smallest integer factor that makes its longer side at least `SMALLEST` pixels. Pixels
    are repeated, so edges remain sharp."""
    height, width, _ = frame.shape
    factor = math.ceil(SMALLEST / max(height, width))
    return frame if factor == 1 else frame.repeat(factor, 0).repeat(factor, 1)


def add_caption(frame: Frame, lines: Sequence[Sequence[str]], height: int) -> Frame:
    """Return the picture ``frame`` with ``lines`` of text below, the first one brighter. A line is a sequence of texts
    in cells of equal width, so that they do not move in a film. Letters are at most ``height`` pixels high."""
    from PIL import Image, ImageDraw

    line_height, margin = round(1.6 * height), height // 2  # 0.6 of a letter's height is space between lines
    width = frame.shape[1]
    caption = Image.new("RGB", (width, line_height * len(lines) + margin), _BACKGROUND)
    draw = ImageDraw.Draw(caption)
    for row, texts in enumerate(lines):
        cell_width = (width - 2 * margin) // max(1, len(texts))
        middle = margin // 2 + line_height * row + line_height // 2
        colour = _WHITE if row == 0 else _GREY
        for column, text in enumerate(texts):
            max_width = cell_width - height // 2  # the rest is space between cells
            fitting_text, font = _fit_text(text, height, max_width)
            draw.text((margin + column * cell_width, middle), fitting_text, colour, font, anchor="lm")  # left, middle
    return np.concatenate([frame, np.asarray(caption)])


def place_side_by_side(frames: Sequence[Frame]) -> Frame:
    """Return the pictures ``frames`` side by side, as one picture. Shorter pictures have background below. Height and
    width are padded to even numbers, which video formats need."""
    height = max(frame.shape[0] for frame in frames)
    width = sum(frame.shape[1] for frame in frames) + GAP * (len(frames) - 1)
    picture = np.full((height + height % 2, width + width % 2, 3), _BACKGROUND, np.uint8)
    left = 0
    for frame in frames:
        picture[: frame.shape[0], left : left + frame.shape[1]] = frame
        left += frame.shape[1] + GAP
    return picture


@functools.cache
def _font(height: int) -> Any:
    """Return the font DejaVu Sans of matplotlib, with letters of ``height`` pixels."""
    import matplotlib
    from PIL import ImageFont

    return ImageFont.truetype(str(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")), height)


@functools.lru_cache(4096)
def _fit_text(text: str, height: int, max_width: float) -> tuple[str, Any]:
    """Return ``text`` and the largest font, up to ``height``, in which it fits into ``max_width`` pixels. Text is cut,
    with an ellipsis at its end, if letters would be smaller than `_SMALLEST_LETTERS`."""
    fraction = max_width / max(1, _font(height).getlength(text))  # lengths are proportional to heights
    fitting_height = int(height * fraction)
    font = _font(min(height, max(fitting_height, _SMALLEST_LETTERS)))
    while len(text) > 1 and font.getlength(text) > max_width:
        text = f"{text[:-2]}…"  # after the first time, the last letter is the ellipsis
    return text, font
