"""Learning curves: smoothing, panels with reference levels and axis labels, and the figure of one run.

`--plot`, pages of runs and scripts of experiments draw their curves by `draw_curves` too. Axes are matplotlib's.
"""

import contextlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from control.reports.figures import (
    COLOURS,
    DEFAULT_STYLE,
    GREY,
    INK,
    WIDTH,
    FigureStyle,
    balanced,
    figure_panels,
    rows,
    set_title,
)
from control.reports.runs import Array, Run, logged, names_and_version, read_runs, return_tags
from control.reports.statistics import MIN_RUNS, interval, iqm
from control.reports.tags import COMMAND, FITNESS, REWARD_RATE, TAGS, TRAINING, of_search, tags
from envs.names import reward_threshold
from models.registry import family, implementations
from models.settings import SettingError, UserError

# -- axis labels -------------------------------------------------------------------------------------------------------

STEPS_LABEL = "environment steps"
SEARCH_STEPS_LABEL = "training steps of all agents"
RETURN_LABEL = "return (sum of rewards)"
_TD_FAMILIES = ("ddqn", "tabular", "td3", "td3_discrete", "sac", "model_generalisation")
_RETURN_FAMILIES = ("command_conditioned", "ppo", "policy_gradients")
# Title and unit of losses by tag and package, the folder of the agent in models/agents/. Losses with different titles
# have separate panels.
LOSSES: dict[tuple[str, str], tuple[str, str]] = {
    **dict.fromkeys([("train/value_loss", name) for name in _TD_FAMILIES], ("Squared TD error", "reward²")),
    **dict.fromkeys([("train/value_loss", name) for name in _RETURN_FAMILIES],
                    ("Squared error of the value", "return²")),
    **dict.fromkeys([("train/policy_loss", name) for name in ("td3", "td3_discrete", "sac")],
                    ("Minus the value of the policy's actions", "reward")),
    ("train/policy_loss", "policy_gradients"): ("Policy-gradient loss", "nats x weight"),
    ("train/policy_loss", "command_conditioned"): ("Cross-entropy of actions", "nats"),
    ("train/validation_loss", "command_conditioned"): ("Loss on new episodes", "nats"),
    ("train/policy_loss", "ppo"): ("Clipped surrogate loss", "advantage"),
    ("train/entropy_loss", "policy_gradients"): ("Entropy loss", "beta x entropy share"),
    ("train/total_loss", "ppo"): ("Sum of PPO's losses", "weighted"),
    ("train/total_loss", "policy_gradients"): ("Sum of the policy gradient's losses", "weighted"),
}  # fmt: skip


def quantity(tag: str, package: str = "") -> tuple[str, str]:
    """Return the title of a tag's panel and the label of its y axis. ``package`` is the folder of the agent that
    logged the tag, such as "ppo": one tag means different losses for different agents."""
    title = TAGS[tag].title
    if tag == REWARD_RATE:
        return title, "reward per step"
    if tag == FITNESS:
        return title, "fitness (return)"
    if TAGS[tag].kind == "return" or tag == "train/baseline":  # drawn beside losses, but it is a mean return
        return title, RETURN_LABEL
    title, unit = LOSSES.get((tag, package), (title, ""))
    return title, f"loss ({unit})" if unit else "loss"


def package_of(names: Iterable[str]) -> str:
    """Return the folder in models/agents/ of the first implementation among ``names``, such as "ppo" for PPO. Empty if
    there is none."""
    for name in names:
        if name in implementations():
            _, _, folder = family(name).package.rpartition(".")
            return folder
    return ""


def is_episode_return(tag: str) -> bool:
    """Return whether a tag is a return of episodes. Panels of such tags share limits and have reference levels."""
    return TAGS[tag].kind == "return" and tag not in (REWARD_RATE, FITNESS)


def game_text(game: str) -> str:
    """Return the name of an environment's folder, such as ``procmaze_grid_size=3``, as ``procmaze, grid size 3``."""
    return re.sub(r"[_,]([a-z_]+)=([^_,]*)", lambda match: f", {match[1].replace('_', ' ')} {match[2]}", game)


# -- reference levels --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Level:
    """A reference return, drawn as a line, with its ``name`` in the legend and its ``source`` in the note. A level of
    one ``implementation`` has the colour of that implementation."""

    value: float
    name: str
    source: str
    implementation: str = ""

    @property
    def label(self) -> str:
        """Name and value."""
        return f"{self.name}: {self.value:g}"


_SRIVASTAVA = "Srivastava et al. 2019, read off a figure"
_KUMAR = "Kumar et al. 2019, read off a figure"
_ZOO = "RL Baselines3 Zoo"
# Published returns, by the environment's name in `--gamename`.
PUBLISHED: dict[str, tuple[Level, ...]] = {
    "lunarlander": (
        Level(140, "UDRL, published", _SRIVASTAVA, "UDRL"),
        Level(220, "RCP-R, published", _KUMAR, "RCP-R"),
        Level(200, "RCP-A, published", _KUMAR, "RCP-A"),
    ),
    "lunarlander-sparse": (Level(160, "UDRL, published", _SRIVASTAVA, "UDRL"),),
    "pendulum": (Level(-150, "TD3, published", _ZOO, "TD3"), Level(-150, "SAC, published", _ZOO, "SAC")),
}


def solved_return(game: str) -> float | None:
    """Return Gymnasium's reward threshold of an environment, None if there is none or the environment is unknown."""
    with contextlib.suppress(UserError, ImportError):
        return reward_threshold(game)
    return None


def levels(game: str, names: Iterable[str] = ()) -> list[Level]:
    """Return the reference levels of an environment: its reward threshold, then the published returns of ``names``."""
    selected = set(names)
    published = [level for level in PUBLISHED.get(game, ()) if level.implementation in selected]
    threshold = solved_return(game)
    solved = [] if threshold is None else [Level(threshold, "solved", "Gymnasium's reward_threshold")]
    return solved + published


def sources(reference_levels: Sequence[Level]) -> str:
    """Return the sources of levels for a note, such as ``solved: Gymnasium's reward_threshold``."""
    return "; ".join(dict.fromkeys(f"{level.name}: {level.source}" for level in reference_levels))


_STYLES: tuple[Any, ...] = ((0, (1, 1.5)), (0, (5, 2)), (0, (8, 2, 1, 2)))  # dashes of matplotlib
_MAX_DISTANCE = 2.0  # of a level from the panel, in heights of the panel
Legend = Literal["values", "names", "none"]


def draw_levels(
    axis: Any,
    reference_levels: Iterable[Level],
    colours: Mapping[str, str],
    legend: Legend = "values",
    axis_name: str = "y",
    game: str = "",
) -> None:
    """Draw a line for each level, horizontal for the y axis and vertical for the x axis (``axis_name``), and extend the
    axis to it.

    A level of an implementation has its colour in ``colours``; other levels are grey. The ``legend`` has the name and
    the value of each level ("values"), the name alone ("names"), or no text ("none"). With "names", the values of grey
    lines are beside the y axis. A level that is more than two heights of the panel beyond the y axis is only listed in
    the legend, with ``game`` as its environment.
    """
    is_y = axis_name == "y"
    styles = iter(_STYLES)
    for level in reference_levels:
        value = level.value
        if level.implementation:
            style: dict[str, Any] = {"color": colours[level.implementation], "linestyle": "-."}
        else:
            style = {"color": GREY, "linestyle": next(styles, ":")}
        low, high = axis.get_ylim() if is_y else axis.get_xlim()
        distance = max(low - value, value - high)  # from the panel
        if is_y and distance > _MAX_DISTANCE * (high - low):
            place = f" in {game}" if game else ""
            axis.plot([], [], label=f"{level.label}{place} (beyond the axis)", **style)
            continue
        label = {"values": level.label, "names": level.name, "none": None}[legend]
        margin = 0.04 * (high - low)
        if not is_y:
            axis.axvline(value, label=label, linewidth=1.0, zorder=1.5, **style)
            axis.set_xlim(min(low, value - margin), max(high, value + margin))
            continue
        axis.axhline(value, label=label, linewidth=1.0, zorder=1.5, **style)
        if legend == "names" and not level.implementation:
            transform = axis.get_yaxis_transform()
            axis.text(1.01, value, f"{value:g}", transform=transform, color=GREY, fontsize=6, va="center")
        if axis.get_yscale() == "log":
            margin = 0.0
        axis.set_ylim(min(low, value - margin), max(high, value + margin))


# -- curves ------------------------------------------------------------------------------------------------------------

GRID_POINTS = 200
_FEW_POINTS = 15  # a curve with fewer points has markers
SMOOTH = 0.02  # width of the moving average as a fraction of a curve's points


def curves_note(seed_counts: Sequence[int], with_seeds: bool = True) -> str:
    """Return a note about the lines of a figure with groups of so many seeds (``seed_counts``). ``with_seeds`` says
    whether a panel has thin lines of single seeds, as in `draw_curves`."""
    average = "a centred moving average over 2 % of the points"
    if max(seed_counts) < MIN_RUNS:
        return f"line: a seed, {average}"
    parts = [f"line: mean over seeds, {average}", "band: its 95 % bootstrap interval"]
    if max(seed_counts) > MIN_RUNS:
        parts.append("dashed: interquartile mean")
    if with_seeds:
        parts.append("thin: single seeds")
    if min(seed_counts) < MIN_RUNS:
        parts.append("fewer than three seeds have a line each")
    return "; ".join(parts)


def on_grid(runs: Sequence[Run], tag: str, x: str = "env_steps") -> tuple[Array, Array]:
    """Return smoothed curves of a tag on a common grid, ``(grid [G], values [N, G])``, for the N runs that have logged
    the tag. The grid covers the values of column ``x`` that all runs have: it begins with the latest start and ends
    with the earliest end. Values are interpolated linearly. If N is 0, both arrays are empty."""
    curves = [run.points(tag, x) for run in runs if run.has(tag)]
    if not curves:
        return np.empty(0), np.empty((0, 0))
    start = max(xs[0] for xs, _ in curves)
    end = min(xs[-1] for xs, _ in curves)
    if end <= start:
        grid = np.array([start])
    elif max(len(xs) for xs, _ in curves) < _FEW_POINTS:  # the grid consists of the points of all runs
        points = np.unique(np.concatenate([xs for xs, _ in curves]))
        grid = points[(start <= points) & (points <= end)]
    else:
        grid = np.linspace(start, end, GRID_POINTS)
    return grid, np.stack([np.interp(grid, xs, smooth(values)) for xs, values in curves])


def smooth(values: Array) -> Array:
    """Return the centred moving average over 2 % of the points, ``[K] -> [K]``. The window is smaller at both ends."""
    half = round(len(values) * SMOOTH / 2)
    if half == 0:
        return values
    indices = np.arange(len(values))
    # Number of points in each window: on the left, in the middle and on the right.
    counts = np.minimum(indices, half) + 1 + np.minimum(indices[::-1], half)
    return np.convolve(values, np.ones(2 * half + 1), "same") / counts


def draw_curves(
    axis: Any,
    x: Array,
    curves: Array,
    colour: str,
    label: str,
    with_seeds: bool = False,
    with_band: bool = True,
    with_iqm: bool = True,
) -> None:
    """Draw the ``curves [N, G]`` of N seeds over ``x [G]``: their mean, its 95 % band (``with_band``), and the
    interquartile mean as a dashed line (``with_iqm``). ``with_seeds`` adds thin lines of the seeds. Fewer than three
    seeds have no band: they have a line each instead of the mean."""
    if not len(x):
        return
    if label.startswith("_"):
        label = f" {label}"  # matplotlib hides labels with a leading underscore
    marker: dict[str, Any] = {}
    if len(x) == 1:
        marker = {"marker": "o", "markersize": 6, "clip_on": False}
    elif len(x) < _FEW_POINTS:
        marker = {"marker": "o", "markersize": 3.5}
    if with_band and len(curves) < MIN_RUNS:
        first_line, *_ = axis.plot(x, curves.T, color=colour, linewidth=1.2, **marker)
        first_line.set_label(label)  # one entry in the legend
        return
    axis.plot(x, curves.mean(0), color=colour, linewidth=1.6, label=label, **marker)
    if with_seeds:
        axis.plot(x, curves.T, color=colour, linewidth=0.5, alpha=0.4)
    if not with_band or len(x) == 1:
        return
    # A bootstrap at each of many thousand points would need gigabytes.
    points = np.linspace(0, len(x) - 1, min(len(x), GRID_POINTS)).round().astype(int)
    bounds = interval(curves[:, points])
    assert bounds  # there are at least three seeds
    axis.fill_between(x[points], *bounds, color=colour, alpha=0.2, linewidth=0)
    if with_iqm and len(curves) > MIN_RUNS:  # with three seeds, the IQM drops none and equals the mean
        axis.plot(x, iqm(curves), color=colour, linewidth=0.9, linestyle=(0, (4, 2)))


# -- panels ------------------------------------------------------------------------------------------------------------

_MAX_HIDDEN = 0.02  # maximum fraction of a panel's values that may be below the axis
_MIN_VALUES = 10  # an axis of fewer values includes all


def finish_panel(axis: Any, tag: str, ylabel: str, log: bool, values: Array | None = None) -> None:
    """Set the labels of a panel of curves, whose tag decides between the steps of a run and of a search. Abbreviate the
    numbers of steps, such as ``10k``, and cut off the lowest outliers among the ``values`` (`clip_below`). With
    ``log`` the y axis is logarithmic if all values are positive and spread over a factor of 30."""
    axis.set(xlabel=SEARCH_STEPS_LABEL if of_search([tag]) else STEPS_LABEL, ylabel=ylabel)
    scale(axis, log)
    if values is not None:
        clip_below(axis, values)


def scale(axis: Any, log: bool = False) -> None:
    """Format steps with k and M, and use a logarithmic y axis as in `finish_panel`."""
    from matplotlib.ticker import EngFormatter

    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    # `concatenate` needs an array even if there are no lines.
    values = np.concatenate([np.empty(0), *(line.get_ydata() for line in axis.lines)])
    if log and len(values) and values.min() > 0 and values.max() > 30 * values.min():
        axis.set_yscale("log")


def clip_below(axis: Any, values: Array) -> None:
    """End the y axis above the lowest 2 % of ``values`` if they would take two thirds of it. So one collapsed
    evaluation in a hundred does not hide the others. `note_hidden` writes the lowest hidden value below the panel."""
    values = np.sort(values[np.isfinite(values)])
    if len(values) < _MIN_VALUES or axis.get_yscale() == "log":
        return
    num_lowest = max(1, int(_MAX_HIDDEN * len(values)))
    low, high = values[num_lowest], values[-1]  # of the other 98 %
    height, height_of_lowest = high - low, low - values[0]
    if height == 0 or height_of_lowest <= 2 * height:
        return
    lowest_visible = values[values >= low - height].min()  # may be one of the 2 %, if it is near the others
    margin = 0.05 * (high - lowest_visible)
    axis.set_ylim(lowest_visible - margin, high + margin)


def note_hidden(axis: Any, values: Array) -> None:
    """Write below a panel how far ``values`` extend below its y axis. Call this after the limits are final."""
    lowest = values[np.isfinite(values)].min(initial=math.inf)
    if lowest >= axis.get_ylim()[0]:
        return
    place: Any = {"xy": (1, 0), "xycoords": "axes fraction", "xytext": (0, -27), "textcoords": "offset points"}
    style: Any = {"color": GREY, "fontsize": 6, "ha": "right", "va": "top", "annotation_clip": False}
    axis.annotate(f"not shown: values down to {lowest:.0f}", **place, **style)


def share_limits(axes: Sequence[Any], axis_name: str = "y") -> None:
    """Give panels of the same quantity the same limits of the ``axis_name`` axis, which include all their limits."""
    if axes:
        limits = [getattr(axis, f"get_{axis_name}lim")() for axis in axes]
        lowest, highest = min(low for low, _ in limits), max(high for _, high in limits)
        for axis in axes:
            getattr(axis, f"set_{axis_name}lim")(lowest, highest)


# -- the figure of one run ---------------------------------------------------------------------------------------------

_TITLE_WIDTH = WIDTH / 3.2  # inches, for the titles of three panels side by side


def learning_curve(run_dir: Path, style: FigureStyle = DEFAULT_STYLE) -> Path:
    """Draw the returns, losses and commands of a run folder over its steps, and return the file: `curve.png` in the
    folder, or `curve.pdf` and so on for other formats of ``style``. Several seeds are thin lines with their mean.
    Raises SettingError if there is nothing to draw."""
    metrics_file = Path(run_dir, "metrics.csv")
    runs = read_runs(metrics_file)
    if not runs:
        raise SettingError(f"{metrics_file} has no epoch yet")
    names, _ = names_and_version(metrics_file.resolve())
    seeds = ", ".join(str(run.seed) for run in runs)
    title = f"{', '.join(names)}, seed {seeds}"
    returns, losses = return_tags(runs), logged(runs, tags("loss"))
    has_commands = bool(logged(runs, [COMMAND]) and logged(runs, [TRAINING]))
    note = "thin: as logged; thick: centred moving average over 2 % of the points, mean over seeds"
    reference_levels = []
    if any(is_episode_return(tag) for tag in returns):
        # The names are environment, experiment and implementation. A copied folder has only the first.
        reference_levels = levels(names[0], names[2:])
        if reference_levels:
            note += f"; {sources(reference_levels)}"
    row_lengths = balanced(len(losses) + has_commands)
    path, size = style.path(run_dir, "curve"), (WIDTH, 2.3 + 1.8 * len(row_lengths))
    with figure_panels(path, rows(1, *row_lengths), size, style, title=title, note=note) as axes:
        _draw_returns(axes[0], runs, returns, reference_levels, style.log)
        for axis, tag in zip(axes[1:], losses, strict=False):
            heading, label = quantity(tag, package_of(names))
            _draw_runs(axis, runs, tag, INK)
            set_title(axis, heading, _TITLE_WIDTH)
            finish_panel(axis, tag, label, log=True)
        if has_commands:
            _draw_commands(axes[-1], runs)
    return path


def _draw_returns(axis: Any, runs: Sequence[Run], returns: list[str], references: Sequence[Level], log: bool) -> None:
    """Draw the panel of the tags ``returns`` of a run, with grey reference levels."""
    # The first two tags, running mean and training return, have the same colour: a figure has only one of them.
    colours = dict(zip(tags("return"), (COLOURS[0], *COLOURS), strict=False))
    all_values = [np.empty(0)]  # `concatenate` needs an array even if there are no returns
    for tag in returns:
        _draw_runs(axis, runs, tag, colours[tag], TAGS[tag].short)
        all_values += [run.points(tag)[1] for run in runs]
    values = np.concatenate(all_values)
    axis.set_title("Reward per step" if returns == [REWARD_RATE] else "Return")
    ylabel = RETURN_LABEL
    if len(returns) == 1:
        _, ylabel = quantity(returns[0])
    finish_panel(axis, returns[0] if returns else "", ylabel, log, values)
    draw_levels(axis, [replace(level, implementation="") for level in references], {})  # grey
    note_hidden(axis, values)


def _draw_runs(axis: Any, runs: Sequence[Run], tag: str, colour: str, label: str = "") -> None:
    """Draw the logged points as thin lines and the smoothed mean over seeds on top."""
    for run in runs:
        axis.plot(*run.points(tag, "env_steps"), color=colour, linewidth=0.5, alpha=0.45)
    draw_curves(axis, *on_grid(runs, tag), colour, label, with_band=False)


def _draw_commands(axis: Any, runs: Sequence[Run]) -> None:
    """Draw the obtained return (y) over the commanded return (x) of each epoch, coloured by epoch, and the diagonal on
    which they are equal."""
    commands = np.concatenate([run.columns[COMMAND] for run in runs])
    returns = np.concatenate([run.columns[TRAINING] for run in runs])
    epochs = np.concatenate([run.columns["epoch"] for run in runs])
    dots = axis.scatter(commands, returns, s=7, linewidths=0, c=epochs, cmap="viridis")
    values = np.concatenate([commands, returns])
    ends = [np.nanmin(values), np.nanmax(values)]
    axis.plot(ends, ends, color=GREY, linewidth=1, linestyle=(0, (4, 2)))
    set_title(axis, "Obtained against commanded return", _TITLE_WIDTH)
    axis.set(xlabel="commanded return", ylabel="obtained return")
    bar = axis.figure.colorbar(dots, ax=axis, label="epoch")
    bar.ax.yaxis.get_major_locator().set_params(integer=True)
