"""What is drawn into one panel of a figure: curves, bands, labels at their ends, limits. `control.reports.figures` lays
the panels out. Axes are matplotlib's, which this module need not import to draw on them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from control.reports.runs import Array, Run
from control.reports.statistics import interval, iqm, mean

X_LABELS = {"env_steps": "environment steps", "epoch": "epoch"}

# Okabe and Ito's palette, told apart under every common colour blindness; its yellow is too faint for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
GREY = "#6b6b6b"
GRID_POINTS = 200
SMOOTH = 0.02  # the share of a curve's points that its moving average spans
RARE = 0.02  # at most this share of a panel's values, and at least one, may lie below the axis
FEW = 10  # values of which none does
LABEL_GAP = 0.07  # between labels, in heights of the panel

End = tuple[float, float, str, str]
"""Where a curve ends: x, y, its label and its colour."""


def on_grid(runs: Sequence[Run], tag: str, x: str) -> tuple[Array, Array]:
    """Smoothed curves of the runs that logged `tag`, on a grid of x they all cover: `(grid [G], values [N, G])`.

    The grid ends where the shortest run ends, so every point aggregates the same seeds; linear in between.
    Both are empty when no run logged it.
    """
    curves = [curve for curve in (run.points(tag, x) for run in runs) if len(curve[0])]
    if not curves:
        return np.empty(0), np.empty((0, 0))
    start, end = max(xs[0] for xs, _ in curves), min(xs[-1] for xs, _ in curves)
    grid = np.linspace(start, max(start, end), GRID_POINTS if end > start else 1)
    return grid, np.stack([np.interp(grid, xs, smooth(values)) for xs, values in curves])


def smooth(values: Array) -> Array:
    """Centred moving average over 2 % of the points, `[K] -> [K]`; the window shrinks at both ends."""
    half = round(len(values) * SMOOTH / 2)
    if half == 0:
        return values
    total = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    low, high = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    return (total[high] - total[low]) / (high - low)


def draw_aggregate(axis: Any, grid: Array, curves: Array, colour: str, label: str, with_seeds: bool) -> End | None:
    """One group's line, band and IQM; returns where its mean ends, for `label_ends`."""
    if not len(grid):
        return None
    end = (float(grid[-1]), float(mean(curves)[-1]), label, colour)
    if len(grid) == 1:
        axis.plot(grid, mean(curves), "o", color=colour)
        return end
    if with_seeds and len(curves) > 1:
        axis.plot(grid, curves.T, color=colour, linewidth=0.7, alpha=0.35)
    axis.plot(grid, mean(curves), color=colour, linewidth=2)
    bounds = interval(curves, mean)
    if bounds:
        axis.fill_between(grid, *bounds, color=colour, alpha=0.18, linewidth=0)
        axis.plot(grid, iqm(curves), color=colour, linewidth=1.2, linestyle=(0, (4, 2)))
    return end


def draw_seeds(axis: Any, runs: Sequence[Run], tag: str, colour: str, name: str | None = None) -> None:
    """The raw points faint, the smoothed mean over seeds on top."""
    for run in runs:
        axis.plot(*run.points(tag, "env_steps"), color=colour, linewidth=0.7, alpha=0.35)
    grid, curves = on_grid(runs, tag, "env_steps")
    if len(grid):
        axis.plot(grid, mean(curves), color=colour, linewidth=2, label=name, marker="o" if len(grid) == 1 else None)


def scale(axis: Any) -> None:
    """Thousands and millions of steps as k and M; a logarithmic axis for positive values over a factor of 30."""
    from matplotlib.ticker import EngFormatter

    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    drawn = [line.get_ydata() for line in axis.lines if len(line.get_ydata())]
    values = np.concatenate(drawn) if drawn else np.empty(0)
    if len(values) and values.min() > 0 and values.max() > 30 * values.min():
        axis.set_yscale("log")


def clip_below(axis: Any, values: Array) -> None:
    """End the y axis above the few lowest of the logged `values [K]` where they would flatten all others, and say so
    in the panel: one collapsed evaluation in a hundred is no reason to see nothing of the rest."""
    floor = robust_floor(values)
    if floor is None or axis.get_yscale() == "log":
        return
    margin = 0.05 * (values.max() - floor)
    axis.set_ylim(floor - margin, values.max() + margin)
    below = values[values < floor]
    note = f"not shown: {len(below)} of {len(values)} values, down to {below.min():.0f}"
    behind = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
    axis.text(0.01, 0.015, note, transform=axis.transAxes, color=GREY, fontsize=8, va="bottom", bbox=behind)


def robust_floor(values: Array) -> float | None:
    """The smallest of `values [K]` worth showing; None where that is all of them. Some of the lowest 2 % are not,
    where they would take more than two thirds of the axis: those that lie further below the rest than it spans."""
    if len(values) < FEW:
        return None
    ordered = np.sort(values)
    low = ordered[max(1, int(RARE * len(ordered)))]
    span = ordered[-1] - low
    if span == 0 or low - ordered[0] <= 2 * span:
        return None
    return float(ordered[ordered >= low - span][0])


def label_ends(axis: Any, ends: Sequence[End]) -> None:
    """Write each label to the right of its curve's end, no further off than overlapping labels need. Call it last:
    it goes by the axis's limits and scale."""
    axis.get_ylim()  # settles the limits that the transformation depends on
    to_axes = axis.transData + axis.transAxes.inverted()
    placed = sorted((to_axes.transform((x, y))[1], label, colour) for x, y, label, colour in ends)
    heights = spread(np.array([height for height, _, _ in placed]), LABEL_GAP)
    for height, (_, label, colour) in zip(heights, placed, strict=True):
        axis.text(1.01, height, label, transform=axis.transAxes, color=colour, va="center", fontsize=10)


def spread(wanted: Array, gap: float) -> Array:
    """The heights in 0..1 nearest to the ascending `wanted [K]`, by squares, that are at least `gap` apart (less
    where K do not fit)."""
    gap = min(gap, 1 / max(1, len(wanted) - 1))
    steps = gap * np.arange(len(wanted))
    blocks: list[list[float]] = []
    for value in wanted - steps:
        blocks.append([value])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    level = np.concatenate([np.full(len(block), np.mean(block)) for block in blocks])
    return np.clip(level, 0, max(0.0, 1 - steps[-1])) + steps
