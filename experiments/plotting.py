"""Figures of experiments: the flags of scripts that measure and draw, and one drawing for a light and a dark page."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from control.reports.sheets import THEMES, Cells, Look, sheet
from experiments.comparison import Layout, figure_to_write, numbers_in

Array = np.ndarray[Any, Any]


def measure_and_draw(description: str | None) -> tuple[argparse.ArgumentParser, Any, Any]:
    """Return the parser of a script with the commands ``measure`` and ``draw``, and the parsers of both commands."""
    flags = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = flags.add_subparsers(dest="command", required=True)
    measure = commands.add_parser("measure", help="run what the file lacks, and write the file after each unit")
    measure.add_argument("--json", type=Path, required=True, help="file of the numbers; a stopped call goes on from it")
    draw = commands.add_parser("draw", help="draw the figure of a file")
    draw.add_argument("source", type=Path, help="file of the numbers")
    draw.add_argument("--out", type=Path, required=True, help=".png, .pdf or .svg; the dark page's ends in _dark")
    return flags, measure, draw


def draw_pages(
    source: Path,
    layout: Layout,
    out: Path,
    draw: Callable[[list[Any], dict[str, Any]], None],
    cells: Callable[[dict[str, Any]], tuple[Cells, tuple[float, float]]],
    note: str = "",
    **sheet_options: Any,
) -> None:
    """Write the figure of the numbers in ``source`` for a light and for a dark page, and print both names.

    ``cells`` gives the panels and their size in inches, ``draw`` fills them. Raises SettingError if ``source`` has
    another ``layout`` or ``out`` cannot be replaced.
    """
    numbers = numbers_in("source", source, layout)
    light = figure_to_write("out", out)
    dark = figure_to_write("out", light.with_stem(f"{light.stem}_dark"))
    for theme, path in zip(THEMES, (light, dark), strict=True):
        panels, size = cells(numbers)
        with sheet(path, panels, size, Look(theme), source, note=note, **sheet_options) as axes:
            draw(axes, numbers)
        print(f"Figure:  {path}")


def density(values: Array, at: Array, narrowest: float) -> Array:
    """Return a Gaussian kernel density of ``values [N]`` at the points ``at [K]``. The bandwidth follows Scott's rule
    and is at least ``narrowest``."""
    bandwidth = max(narrowest, float(values.std()) * len(values) ** -0.2)
    kernels = np.exp(-0.5 * ((at[:, None] - values) / bandwidth) ** 2)
    return kernels.mean(1) / (bandwidth * np.sqrt(2 * np.pi))
