"""Learning curves: smoothing, and panels with reference levels and axis labels. Axes are matplotlib's."""

import contextlib
from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

from control.reports.figures import GREY
from control.reports.runs import Array, Run
from control.reports.statistics import MIN_RUNS, interval, iqm
from control.reports.tags import FITNESS, REWARD_RATE, TAGS, is_search
from envs.names import reward_threshold
from models.settings import UserError

STEPS_LABEL = "environment steps"
SEARCH_STEPS_LABEL = "training steps of all agents"
GENERATIONS_LABEL = "generations"
RETURN_LABEL = "return (sum of rewards)"


def is_episode_return(tag: str) -> bool:
    """Return whether a tag is a return of episodes. Panels of such tags share limits and have reference levels."""
    return TAGS[tag].kind == "return" and tag not in (REWARD_RATE, FITNESS)


def finish_panel(axis: Any, tag: str, log: bool) -> None:
    """Label the axes of a panel with curves of a ``tag``. Losses and, with ``log``, returns have a logarithmic axis."""
    label = TAGS[tag].axis or (RETURN_LABEL if TAGS[tag].kind == "return" else "loss")
    axis.set(xlabel=SEARCH_STEPS_LABEL if is_search([tag]) else STEPS_LABEL, ylabel=label)
    scale(axis, log or label == "loss")
    low, high = axis.get_ylim()
    margin = (_MIN_RANGE * max(abs(low), abs(high)) - (high - low)) / 2
    if margin > 0:  # a nearly constant curve would look rough
        axis.set_ylim(low - margin, high + margin)


def scale(axis: Any, log: bool = False) -> None:
    """Abbreviate the steps on the x axis, such as ``10k``. With ``log``, make the y axis logarithmic if all values are
    positive and the largest is more than 30 times the smallest."""
    from matplotlib.ticker import EngFormatter

    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    # `concatenate` needs an array even if there are no lines.
    values = np.concatenate([np.empty(0), *(line.get_ydata() for line in axis.lines)])
    if log and len(values) and values.min() > 0 and values.max() > 30 * values.min():
        axis.set_yscale("log")


def share_limits(axes: Sequence[Any], axis_name: str = "y") -> None:
    """Give panels of the same quantity the same limits of the ``axis_name`` axis, which include all their limits."""
    limits = [getattr(axis, f"get_{axis_name}lim")() for axis in axes]
    for axis in axes:
        getattr(axis, f"set_{axis_name}lim")(min(low for low, _ in limits), max(high for _, high in limits))


def scale_steps(axes: Sequence[Any]) -> None:
    """Make the x axes of panels logarithmic if the longest of their curves is more than five times as long as the
    shortest, which would otherwise be hard to see."""
    from matplotlib.ticker import LogLocator, NullFormatter

    steps = [line.get_xdata() for axis in axes for line in axis.lines if len(line.get_xdata())]
    ends = [curve[-1] for curve in steps]
    if not ends or min(ends) <= 0 or max(ends) <= _MAX_RATIO * min(ends):
        return
    num_decades = np.log10(max(ends) / max(1, min(curve[0] for curve in steps)))
    for axis in axes:
        formatter = axis.xaxis.get_major_formatter()
        axis.set_xscale("log")
        axis.set_xlabel(f"{axis.get_xlabel()} (log)")
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if num_decades < 2 else (1,)))
        axis.xaxis.set_major_formatter(formatter)
        axis.xaxis.set_minor_formatter(NullFormatter())


class Level(NamedTuple):
    """A reference return, drawn as a line, with its ``name`` in the legend."""

    value: float
    name: str


_DASHES: tuple[Any, ...] = (
    (0, (1, 1.5)),
    (0, (5, 2)),
    (0, (8, 2, 1, 2)),
)  # line styles of the first, second, ... level
_MIN_RANGE = 1e-3  # of a panel's limits, relative to its largest value
_MAX_RATIO = 5  # of the lengths of curves over linear steps
_MAX_DISTANCE = 2.0  # of a level from the panel, in sizes of the panel


def solved_return(game: str) -> float | None:
    """Return Gymnasium's reward threshold of an environment, None if there is none or the environment is unknown."""
    with contextlib.suppress(UserError, ImportError):
        return reward_threshold(game)
    return None


def solved_levels(game: str) -> list[Level]:
    """Return the reference level of an environment, its reward threshold. Empty if there is none."""
    threshold = solved_return(game)
    return [] if threshold is None else [Level(threshold, "solved (Gymnasium)")]


def draw_levels(axis: Any, reference_levels: Iterable[Level], axis_name: str = "y") -> None:
    """Draw a grey line for each level, horizontal for the y axis and vertical for the x axis (``axis_name``), and
    extend the axis to it. The legend has its name, and a y axis its value. A level that would make the panel more than
    three times as large is left out."""
    for (value, name), dashes in zip(reference_levels, cycle(_DASHES), strict=False):
        low, high = getattr(axis, f"get_{axis_name}lim")()
        if max(low - value, value - high) > _MAX_DISTANCE * (high - low):
            continue
        draw_line = axis.axhline if axis_name == "y" else axis.axvline
        draw_line(value, label=name, color=GREY, linewidth=1.0, linestyle=dashes, zorder=1.5)
        margin = 0.0 if axis.get_yscale() == "log" else 0.04 * (high - low)
        getattr(axis, f"set_{axis_name}lim")(min(low, value - margin), max(high, value + margin))
        if axis_name == "y":
            transform = axis.get_yaxis_transform()  # x as a fraction of the panel, y as a value
            text = f"{value:g}".replace("-", "\N{MINUS SIGN}")  # as on the axis
            axis.text(1.01, value, text, transform=transform, color=GREY, fontsize=6, va="center")


GRID_POINTS = 200
_IQM_RUNS = 4  # with fewer runs, the interquartile mean is the mean
SMOOTH = 0.02  # width of the moving average as a fraction of a curve's points


def curves_note(num_seeds: int) -> str:
    """Return a text that explains the lines of `draw_curves`, for arms of at most ``num_seeds`` seeds."""
    lines = ["line: mean over seeds, as a centred moving average over 2 % of the points"]
    if num_seeds == 1:
        lines = ["line: centred moving average over 2 % of the points"]
    if num_seeds >= MIN_RUNS:
        lines.append("band: 95 % bootstrap interval of the mean of three seeds or more")
    if num_seeds >= _IQM_RUNS:
        lines.append("dashed: interquartile mean of four seeds or more")
    if num_seeds > 1:
        lines.append("thin: single seeds")
    return "; ".join(lines)


def on_grid(runs: Sequence[Run], tag: str, x: str = "env_steps") -> tuple[Array, Array]:
    """Return the curves of a tag on a common grid, ``(grid [G], values [N, G])``, for the N runs that have logged the
    tag. The grid has logged values of column ``x``, from the latest start of a run to the earliest end: all of them, or
    a selection that is even on a linear and on a logarithmic axis. Between its points, a run is interpolated linearly.
    Curves are smoothed, except evaluations, which are few and whose single numbers are in tables. If N is 0, both
    arrays are empty."""
    curves = [run.points(tag, x) for run in runs if run.has(tag)]
    if not curves:
        return np.empty(0), np.empty((0, 0))
    start = max(xs[0] for xs, _ in curves)
    end = min(xs[-1] for xs, _ in curves)
    grid = np.unique(np.concatenate([np.array([start]), *(xs[(start < xs) & (xs <= end)] for xs, _ in curves)]))
    if len(grid) > GRID_POINTS:
        positions = np.concatenate([scale(max(start, 1), end, GRID_POINTS) for scale in (np.linspace, np.geomspace)])
        grid = grid[np.unique(np.searchsorted(grid, positions))]
    if not tag.startswith("eval/"):
        curves = [(xs, smooth(values)) for xs, values in curves]
    return grid, np.stack([np.interp(grid, xs, values) for xs, values in curves])


def smooth(values: Array) -> Array:
    """Return the centred moving average over 2 % of the points, ``[K] -> [K]``. The window is smaller at both ends. At
    the start, it is as far to the right as to the left, because a logarithmic axis shows the first points far apart."""
    half = round(len(values) * SMOOTH / 2)
    window = np.ones(2 * half + 1)
    counts = np.convolve(np.ones(len(values)), window, "same")  # number of points in each window
    smoothed: Array = np.convolve(values, window, "same") / counts
    smoothed[:half] = [values[: 2 * index + 1].mean() for index in range(half)]
    return smoothed


def shown_label(label: str) -> str:
    """Return a label for matplotlib, which hides labels that begin with an underscore."""
    return f" {label}" if label.startswith("_") else label


def draw_curves(axis: Any, x: Array, curves: Array, colour: str, label: str, with_seeds: bool = False) -> None:
    """Draw the ``curves [N, G]`` of N seeds over ``x [G]``: their mean, its 95 % band, and the interquartile mean as a
    dashed line. ``with_seeds`` adds a thin line for each seed. Fewer than three seeds have no band, fewer than four no
    dashed line, and two seeds always have their thin lines."""
    if not len(x):
        return
    marker = "o" if len(x) == 1 else None  # a line through one point cannot be seen
    axis.plot(x, curves.mean(0), color=colour, linewidth=1.6, marker=marker, label=shown_label(label))
    if with_seeds or len(curves) == 2:
        axis.plot(x, curves.T, color=colour, linewidth=0.5, alpha=0.4)
    # A bootstrap at each of many thousand points would need gigabytes.
    points = np.linspace(0, len(x) - 1, min(len(x), GRID_POINTS)).round().astype(int)
    if bounds := interval(curves[:, points]):  # three seeds or more
        if len(curves) >= _IQM_RUNS:
            axis.plot(x, iqm(curves), color=colour, linewidth=0.9, linestyle=(0, (4, 2)))
        axis.fill_between(x[points], *bounds, color=colour, alpha=0.2, linewidth=0)
