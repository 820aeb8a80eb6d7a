"""Curves within a panel: aggregates over seeds, single seeds, scales, limits and the lines they are compared with.

Axes are matplotlib's.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from control.reports.levels import Level
from control.reports.runs import Array, Run
from control.reports.statistics import LEAST, interval, iqm, mean
from control.reports.style import GREY

GRID_POINTS = 200
SMOOTH = 0.02  # share of a curve's points that its moving average spans
SMOOTHED = "curves are centred moving averages over 2 % of their points"
RARE = 0.02  # at most this share of a panel's values, and at least one, may lie below the axis
_STYLES: tuple[Any, ...] = ((0, (1, 1.5)), (0, (5, 2)), (0, (8, 2, 1, 2)))
FAR = 2.0  # heights of a panel that a level may be away from it
FEW = 10  # with fewer values than this the axis shows all


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
    places = np.arange(len(values))
    counts = np.minimum(places, half) + np.minimum(places[::-1], half) + 1
    return np.convolve(values, np.ones(2 * half + 1), "same") / counts


def draw_aggregate(axis: Any, x: Array, curves: Array, colour: str, label: str, with_seeds: bool = False) -> None:
    """One group's mean, its band and IQM over ``curves [N, G]`` at ``x [G]``, of fewer than three seeds a line each;
    nothing where these are empty."""
    if not len(x):
        return
    label = f" {label}" if label.startswith("_") else label  # which matplotlib leaves out of legends
    point: dict[str, Any] = {"marker": "o", "clip_on": False} if len(x) == 1 else {}  # whole at the frame too
    bounds = interval(curves, mean)
    if bounds is None:
        for i, curve in enumerate(curves):
            axis.plot(x, curve, color=colour, linewidth=1.2, label=None if i else label, **point)
        return
    axis.plot(x, mean(curves), color=colour, linewidth=1.6, label=label, **point)
    if with_seeds:
        axis.plot(x, curves.T, color=colour, linewidth=0.5, alpha=0.4)
    if len(x) > 1:
        axis.fill_between(x, *bounds, color=colour, alpha=0.2, linewidth=0)
        if len(curves) > LEAST:  # of three the IQM is the mean
            axis.plot(x, iqm(curves), color=colour, linewidth=0.9, linestyle=(0, (4, 2)))


def meaning(seeds: Sequence[int], with_seeds: bool = False) -> list[str]:
    """What the lines of `draw_aggregate` mean, in parts, for groups of so many ``seeds``."""
    texts = ["line: mean over seeds; band: its 95 % bootstrap interval"] if max(seeds) >= LEAST else []
    texts += ["dashed: interquartile mean"] if max(seeds) > LEAST else []
    texts += ["thin: each seed"] if with_seeds and max(seeds) >= LEAST else []
    return texts + ["fewer than three seeds have no interval: a line each"] * (min(seeds) < LEAST)


def raw(seeds: int, epochs: int) -> str:
    """What the lines of `draw_seeds` mean, or its dots after a single epoch."""
    parts = ["dots"] if epochs == 1 else ["thin: as logged; thick: centred moving average over 2 % of the points"]
    parts += ["mean over seeds"] if seeds > 1 else ["as logged"] * (epochs == 1)
    return (": " if epochs == 1 else ", ").join(parts)


def draw_seeds(axis: Any, runs: Sequence[Run], tag: str, colour: str, label: str | None = None) -> None:
    """The raw points faint, the smoothed mean over seeds on top."""
    for run in runs:
        axis.plot(*run.points(tag, "env_steps"), color=colour, linewidth=0.5, alpha=0.45)
    x, curves = on_grid(runs, tag)
    if len(x):
        axis.plot(x, mean(curves), color=colour, linewidth=1.6, label=label, marker="o" if len(x) == 1 else None)


def scale(axis: Any, log: bool = False) -> None:
    """Thousands and millions of steps as k and M; if ``log``, a logarithmic y axis where all values are positive and
    spread over a factor of 30."""
    from matplotlib.ticker import EngFormatter

    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    line_values = [np.asarray(line.get_ydata()) for line in axis.lines if len(line.get_ydata())]
    values = np.concatenate(line_values) if line_values else np.empty(0)
    if log and len(values) and values.min() > 0 and values.max() > 30 * values.min():
        axis.set_yscale("log")


def clip_below(axis: Any, values: Array) -> None:
    """End the y axis above the few lowest of the ``values`` drawn where they would take more than two thirds of it: one
    collapsed evaluation in a hundred should not hide all others. `say_hidden` tells of them."""
    values = np.sort(values[np.isfinite(values)])
    if len(values) < FEW or axis.get_yscale() == "log":
        return
    low, high = values[max(1, int(RARE * len(values)))], values[-1]
    visible = values[values >= low - (high - low)]
    if high == low or len(visible) == len(values) or low - values[0] <= 2 * (high - low):
        return
    margin = 0.05 * (high - visible[0])
    axis.set_ylim(visible[0] - margin, high + margin)


def say_hidden(axis: Any, values: Array) -> None:
    """Say below a panel, whose limits are settled, how far down those of the ``values`` reach that it does not show."""
    lowest = values[np.isfinite(values)].min(initial=math.inf)
    if lowest >= axis.get_ylim()[0]:
        return
    note = f"not shown: values down to {lowest:.0f}"
    axis.annotate(
        note,
        (1, 0),
        (0, -27),
        xycoords="axes fraction",
        textcoords="offset points",
        color=GREY,
        fontsize=6,
        ha="right",
        va="top",
        annotation_clip=False,
    )


def draw_levels(
    axis: Any,
    shown_levels: Iterable[Level],
    colours: dict[str, str],
    labels: bool | None = True,
    axis_name: str = "y",
    game: str = "",
) -> None:
    """A line for each level, grey in a style of its own, or dash-dotted in the colour that ``colours`` has for its
    implementation. The axis is made to reach as far as they do. Without ``labels`` the legend has their names alone,
    since values differ from panel to panel; those of grey lines then stand beside the axis. None: it has them already.
    A level so far away that curves would shrink to a third of the panel is in the legend alone,
    with the ``game`` that it is of, if one is given.
    """
    styles = iter(_STYLES)
    for level in shown_levels:
        at = level.value
        low, high = getattr(axis, f"get_{axis_name}lim")()
        colour, style = (colours[level.implementation], "-.") if level.implementation else (GREY, next(styles, ":"))
        name = None if labels is None else level.label if labels else level.name
        if axis_name == "y" and not low - FAR * (high - low) <= at <= high + FAR * (high - low):
            where = f" in {game}" if game else ""
            axis.plot([], [], color=colour, linestyle=style, label=f"{level.label}{where} (beyond the axis)")
            continue
        draw = axis.axhline if axis_name == "y" else axis.axvline
        draw(at, color=colour, linewidth=1.0, linestyle=style, label=name, zorder=1.5)
        if labels is False and not level.implementation and axis_name == "y":
            where = axis.get_yaxis_transform()
            axis.text(1.01, at, f"{at:g}", transform=where, color=GREY, fontsize=6, va="center")
        margin = 0.04 * (high - low)
        if axis_name == "y" and axis.get_yscale() == "log":
            margin = 0.0
        getattr(axis, f"set_{axis_name}lim")(min(low, at - margin), max(high, at + margin))


def share_limits(axes: Sequence[Any], axis_name: str = "y") -> None:
    """Give panels of the same quantity the same limits."""
    limits = [getattr(axis, f"get_{axis_name}lim")() for axis in axes]
    for axis in axes:
        getattr(axis, f"set_{axis_name}lim")(min(low for low, _ in limits), max(high for _, high in limits))
