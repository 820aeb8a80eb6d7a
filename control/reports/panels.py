"""What figures are made of: a sheet of panels in one style, and the curves, scales and limits within a panel.

Axes are matplotlib's. It is imported on first use: half a second that `--help` and flag errors must not pay.
"""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from control.reports.runs import Array, Run
from control.reports.statistics import interval, iqm, mean
from control.storage.run_dir import replacing

STEPS_LABEL = "environment steps"
NOTE = "line: mean, band: its 95 % bootstrap interval, dashed: interquartile mean"

# Okabe and Ito's palette, told apart under every common colour blindness; its yellow is too faint for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
GREY = "#6b6b6b"
STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "legend.frameon": False,
}
GRID_POINTS = 200
SMOOTH = 0.02  # share of a curve's points that its moving average spans
RARE = 0.02  # at most this share of a panel's values, and at least one, may lie below the axis
FEW = 10  # with fewer values than this the axis shows all

Cells = list[list[int]]
"""The layout of a sheet: in each row the numbers of its panels. A panel may span several cells; -1 is an empty cell."""


def grid(panels: int, columns: int) -> Cells:
    """The cells of ``panels`` panels, filled row by row."""
    return [[i if i < panels else -1 for i in range(row, row + columns)] for row in range(0, panels, columns)]


@contextlib.contextmanager
def sheet(
    target: Path, cells: Cells, size: tuple[float, float], *, title: str = "", note: str = "",
    widths: Sequence[float] | None = None, legend: Any = "outside right upper",
) -> Iterator[list[Any]]:  # fmt: skip
    """The axes of a figure that is written to ``target`` at the end.

    ``size`` is in inches; ``widths`` are those of the columns, relatively; ``note`` stands below. Panels in which
    nothing was drawn are left out. ``legend`` is where the one for all panels stands; None for none.
    """
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        by_number: Any = figure.subplot_mosaic(cells, empty_sentinel=-1, width_ratios=widths)  # type: ignore[arg-type]
        axes = [by_number[number] for number in sorted(by_number)]
        yield axes
        labelled: dict[str, Any] = {}
        for axis in axes:
            axis.set_visible(axis.has_data())
            handles, labels = axis.get_legend_handles_labels()
            labelled |= dict(zip(labels, handles, strict=True))
        if legend and len(labelled) > 1:
            figure.legend(list(labelled.values()), list(labelled), loc=legend)
        figure.suptitle(title, x=0.01, ha="left", fontsize=13)
        figure.supxlabel(note, x=0.01, ha="left", fontsize=9, color=GREY)
        for text in figure.findobj(Text):
            _make_drawable(text)
        with replacing(target) as temporary:
            figure.savefig(temporary, format=target.suffix[1:], dpi=130)


def _make_drawable(text: Any) -> None:
    """Have a text drawn as it is: dollars as dollars, other scripts in a font of this machine that has them, and what
    no font has as ``\\u65e5``."""
    from matplotlib import font_manager

    words = text.get_text()
    text.set_parse_math("$" not in words)
    missing = set(words) - {"\n"} - _characters(font_manager.findfont(text.get_fontproperties()))
    for font in font_manager.fontManager.ttflist if missing else ():
        if font.weight == 400 and missing <= _characters(font.fname):
            text.set_fontfamily([*text.get_fontfamily(), font.name])
            return
    text.set_text(words.translate({ord(each): each.encode("unicode_escape").decode() for each in missing}))


@functools.cache
def _characters(path: str) -> frozenset[str]:
    """What a font can draw; nothing of one that is broken, made of pixels, or has a box for everything."""
    from matplotlib import font_manager

    with contextlib.suppress(OSError, RuntimeError):
        font = font_manager.get_font(path)
        real = font.scalable and "Last Resort" not in font.family_name
        return frozenset(map(chr, font.get_charmap() if real else ()))
    return frozenset()


def on_grid(runs: Sequence[Run], tag: str, x: str = "env_steps") -> tuple[Array, Array]:
    """Smoothed curves of the runs that logged ``tag``, on a grid of x they all cover: ``(grid [G], values [N, G])``.

    The grid ends where the shortest run ends, so that every point aggregates the same seeds; linear in between.
    Both are empty where no run logged it.
    """
    curves = [curve for curve in (run.points(tag, x) for run in runs) if len(curve[0])]
    if not curves:
        return np.empty(0), np.empty((0, 0))
    start, end = max(xs[0] for xs, _ in curves), min(xs[-1] for xs, _ in curves)
    points = np.linspace(start, max(start, end), GRID_POINTS if end > start else 1)
    return points, np.stack([np.interp(points, xs, smooth(values)) for xs, values in curves])


def smooth(values: Array) -> Array:
    """Centred moving average over 2 % of the points, ``[K] -> [K]``; the window shrinks at both ends."""
    half = round(len(values) * SMOOTH / 2)
    if half == 0:
        return values
    window = np.ones(2 * half + 1)
    return np.convolve(values, window, "same") / np.convolve(np.ones(len(values)), window, "same")


def draw_aggregate(axis: Any, x: Array, curves: Array, colour: str, label: str, with_seeds: bool = False) -> None:
    """One group's mean, its band and IQM over ``curves [N, G]`` at ``x [G]``; nothing where these are empty."""
    if not len(x):
        return
    label = f" {label}" if label.startswith("_") else label  # which matplotlib leaves out of legends
    axis.plot(x, mean(curves), color=colour, linewidth=2, label=label, marker="o" if len(x) == 1 else None)
    if with_seeds and len(curves) > 1:
        axis.plot(x, curves.T, color=colour, linewidth=0.7, alpha=0.35)
    bounds = interval(curves, mean)
    if bounds and len(x) > 1:
        axis.fill_between(x, *bounds, color=colour, alpha=0.18, linewidth=0)
        axis.plot(x, iqm(curves), color=colour, linewidth=1.2, linestyle=(0, (4, 2)))


def draw_seeds(axis: Any, runs: Sequence[Run], tag: str, colour: str, label: str | None = None) -> None:
    """The raw points faint, the smoothed mean over seeds on top."""
    for run in runs:
        axis.plot(*run.points(tag, "env_steps"), color=colour, linewidth=0.7, alpha=0.35)
    x, curves = on_grid(runs, tag)
    if len(x):
        axis.plot(x, mean(curves), color=colour, linewidth=2, label=label, marker="o" if len(x) == 1 else None)


def scale(axis: Any, allow_log: bool = True) -> None:
    """Thousands and millions of steps as k and M; a logarithmic y axis for positive values over a factor of 30."""
    from matplotlib.ticker import EngFormatter

    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    drawn = [line.get_ydata() for line in axis.lines if len(line.get_ydata())]
    values = np.concatenate(drawn) if drawn else np.empty(0)
    if allow_log and len(values) and values.min() > 0 and values.max() > 30 * values.min():
        axis.set_yscale("log")


def clip_below(axis: Any, runs: Sequence[Run], tags: Sequence[str]) -> None:
    """End the y axis above the few lowest values of ``tags`` where they would take more than two thirds of it, and say
    so in the panel: one collapsed evaluation in a hundred should not hide all others."""
    values = np.sort(np.concatenate([np.empty(0), *(run.points(tag)[1] for run in runs for tag in tags)]))
    if len(values) < FEW or axis.get_yscale() == "log":
        return
    low, high = values[max(1, int(RARE * len(values)))], values[-1]
    shown = values[values >= low - (high - low)]
    if high == low or len(shown) == len(values) or low - values[0] <= 2 * (high - low):
        return
    margin = 0.05 * (high - shown[0])
    axis.set_ylim(shown[0] - margin, high + margin)
    note = f"not shown: {len(values) - len(shown)} of {len(values)} values, down to {values[0]:.0f}"
    behind = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
    axis.text(0.01, 0.015, note, transform=axis.transAxes, color=GREY, fontsize=8, va="bottom", bbox=behind)
