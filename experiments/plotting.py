"""Figures of experiments: the flags of scripts that measure and draw, and one drawing for a light and a dark page."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from control.reports.figures import THEMES, Cells, FigureStyle, figure_panels
from experiments.comparison import Layout, figure_to_write, numbers_in, run_script, script_flags

Array = np.ndarray[Any, Any]
Draw = Callable[[list[Any], dict[str, Any]], None]
"""Function that draws the numbers of a file into the axes of the panels."""
Panels = tuple[Cells, tuple[float, float]]
"""Layout of the panels, and their width and height together in inches."""


def measure_and_draw(description: str | None) -> tuple[argparse.ArgumentParser, Any, Any]:
    """Return the parser of a script with the commands ``measure`` and ``draw``, and the parsers of both commands."""
    flags = script_flags(description)
    commands = flags.add_subparsers(dest="command", required=True)
    measure = commands.add_parser("measure", help="run what the file lacks, and write the file after each unit")
    measure.add_argument("--json", type=Path, required=True, help="file of the numbers; a stopped call goes on from it")
    draw = commands.add_parser("draw", help="draw the figure of a file")
    draw.add_argument("source", type=Path, help="file of the numbers")
    draw.add_argument("--out", type=Path, required=True, help=".png, .pdf or .svg; the dark page's ends in _dark")
    return flags, measure, draw


def run_command(
    values: argparse.Namespace, measure: Callable[[Any], None], layout: Layout, draw: Draw, panels: Panels, note: str
) -> int:
    """Run the command in ``values``: ``measure(values)``, or `draw_pages` with the rest. Return the exit status."""
    if values.command == "measure":
        return run_script(lambda: measure(values))
    return run_script(lambda: draw_pages(values.source, layout, values.out, draw, panels, note))


def parse_with_extra_flags(flags: argparse.ArgumentParser, argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse ``argv``. Unknown flags of ``measure`` become ``extra_flags``, for the searches that it starts."""
    values, extra_flags = flags.parse_known_args(argv)
    if extra_flags and values.command == "draw":
        flags.error(f"unrecognized arguments: {' '.join(extra_flags)}")
    values.extra_flags = extra_flags
    return values


def draw_pages(
    source: Path, layout: Layout, out: Path, draw: Draw, panels: Panels, note: str = "", **sheet_options: Any
) -> None:
    """Write the figure of the numbers in ``source`` for a light and for a dark page. ``sheet_options`` go to
    `figure_panels`. Raises SettingError if ``source`` has another ``layout`` or ``out`` cannot be written."""
    numbers = numbers_in("source", source, layout)
    light = figure_to_write("out", out)
    dark = figure_to_write("out", light.with_stem(f"{light.stem}_dark"))
    for theme, path in zip(THEMES, (light, dark), strict=True):
        with figure_panels(path, *panels, FigureStyle(theme), source, note=note, **sheet_options) as axes:
            draw(axes, numbers)
        print(f"Figure:  {path}")


def density(values: Array, points: Array, min_bandwidth: float) -> Array:
    """Return a Gaussian kernel density of ``values [N]`` at ``points [K]``, with the bandwidth of Scott's rule."""
    bandwidth = max(min_bandwidth, float(values.std()) * len(values) ** -0.2)
    kernels = np.exp(-0.5 * ((points[:, None] - values) / bandwidth) ** 2)
    return kernels.mean(1) / (bandwidth * np.sqrt(2 * np.pi))
