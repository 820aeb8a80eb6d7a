"""Figures of runs: one run's learning curve, many seeds' aggregate. Draws what `control.results` reads."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from control.results import RETURNS, SHORT, Array, Group, Run, find_groups, read_runs, summarise, table
from control.statistics import interval, iqm, mean
from models.settings import SettingError

LOSSES = {"train/policy_loss": "Policy loss", "train/value_loss": "Value loss"}
X_LABELS = {"env_steps": "environment steps", "epoch": "epoch"}

# Okabe and Ito's palette, told apart under every common colour blindness; its yellow is too faint for a line.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
GREY = "#6b6b6b"
GRID_POINTS = 200
SMOOTH = 0.02  # the share of a curve's points that its moving average spans
STYLE: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "figure.constrained_layout.use": True,
}


def plot(run_dirs: Sequence[Path], out: Path | None = None, x: str = "env_steps") -> int:
    """Draw and tabulate runs: mean with its 95 % bootstrap band and IQM over seeds, groups overlaid.

    Takes run folders or any folder above them. Writes the figure to `out` (a PNG, or a folder that gets `plot.png`),
    by default into the folder common to the runs, and the table's numbers as JSON beside it. `x` is env_steps or
    epoch. Returns the exit code 0. Raises SettingError when there is nothing to draw or the figure cannot be written.
    """
    if x not in X_LABELS:
        raise SettingError(f"x is '{x}'; allowed: {', '.join(X_LABELS)}")
    groups = find_groups(run_dirs)
    labels, title = _labels(groups)
    summary = {label: summarise(group) for label, group in zip(labels, groups, strict=True)}
    print(table(title, summary))
    target = _target(groups, out)
    numbers = target.with_suffix(".json")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _draw_groups(dict(zip(labels, groups, strict=True)), title, x, target)
        numbers.write_text(json.dumps({"runs": title, "groups": summary}, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingError(f"plot_out is '{target}', which cannot be written: {error.strerror or error}") from None
    print(f"\nFigure:  {target}\nNumbers: {numbers}")
    return 0


def learning_curve(run_dir: Path) -> Path:
    """Draw one run folder as `curve.png` in it and return that path: returns, losses, command against obtained return.

    Seeds trained together appear as thin lines with their mean. Raises SettingError when there is nothing to draw.
    """
    run_dir = Path(run_dir)
    runs = read_runs(run_dir / "metrics.csv")
    if not runs:
        raise SettingError(f"{run_dir / 'metrics.csv'} has no epoch yet")
    losses = _logged(runs, LOSSES)
    commanded = _logged(runs, ["command/return"])
    with _style() as plt:
        columns = 1 + len(losses) + len(commanded)
        widths = [1.6] + [1.0] * (columns - 1)
        figure, axes = plt.subplots(1, columns, figsize=(4.2 * sum(widths), 4.2), squeeze=False, width_ratios=widths)
        _draw_returns(axes[0, 0], runs)
        for axis, tag in zip(axes[0, 1:], losses, strict=False):
            _draw_seeds(axis, runs, tag, COLOURS[0])
            axis.set(title=LOSSES[tag], xlabel=X_LABELS["env_steps"])
            _scale(axis)
        if commanded:
            _draw_commands(figure, axes[0, -1], runs)
        figure.suptitle(_run_title(run_dir, runs), x=0.01, ha="left", fontsize=12)
        figure.savefig(run_dir / "curve.png", dpi=130)
        plt.close(figure)
    return run_dir / "curve.png"


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


def _style() -> Any:
    """matplotlib for files only, imported on first use: a second that `--help` and flag errors must not pay."""
    import contextlib

    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    @contextlib.contextmanager
    def styled() -> Any:
        with plt.rc_context(STYLE):
            yield plt

    return styled()


def _logged(runs: Sequence[Run], tags: Any) -> list[str]:
    return [tag for tag in tags if any(len(run.points(tag, "epoch")[1]) for run in runs)]


def _draw_groups(groups: dict[str, Group], title: str, x: str, target: Path) -> None:
    panels = RETURNS | LOSSES
    tags = _logged([run for group in groups.values() for run in group.runs], panels)
    if not tags:
        raise SettingError(f"{title}: neither returns nor losses were logged yet")
    columns = min(len(tags), 3 if len(tags) > 4 else 2)
    rows = -(-len(tags) // columns)
    with _style() as plt:
        figure, axes = plt.subplots(rows, columns, figsize=(5.4 * columns, 3.9 * rows), squeeze=False)
        for axis, tag in zip(axes.flat, tags, strict=False):
            ends = [
                _draw_aggregate(axis, *on_grid(group.runs, tag, x), COLOURS[i % len(COLOURS)], label, len(groups) == 1)
                for i, (label, group) in enumerate(groups.items())
            ]
            axis.set(title=panels[tag], xlabel=X_LABELS[x])
            _scale(axis)
            if len(groups) > 1 and any(ends):
                _label_ends(axis, [end for end in ends if end])
        for axis in axes.flat[len(tags) :]:
            axis.set_visible(False)
        counts = sorted({len(group.runs) for group in groups.values()})
        seeds = f"{counts[0]}-{counts[-1]} seeds" if len(counts) > 1 else f"{counts[0]} seed{'s' * (counts[0] > 1)}"
        note = "line: mean, band: its 95 % bootstrap interval, dashed: interquartile mean; to the shortest run's end"
        figure.suptitle(", ".join(part for part in (title, seeds) if part), x=0.01, ha="left", fontsize=13)
        figure.supxlabel(note if counts[-1] > 1 else "", x=0.01, ha="left", fontsize=9, color=GREY)
        figure.savefig(target, dpi=130)
        plt.close(figure)


def _draw_aggregate(
    axis: Any, grid: Array, curves: Array, colour: str, label: str, with_seeds: bool
) -> tuple[float, float, str, str] | None:
    """One group's line, band and IQM; returns where its mean ends, with label and colour, for `_label_ends`."""
    if not len(grid):
        return None
    if len(grid) == 1:
        axis.plot(grid, mean(curves), "o", color=colour)
        return grid[-1], float(mean(curves)[-1]), label, colour
    if with_seeds and len(curves) > 1:
        axis.plot(grid, curves.T, color=colour, linewidth=0.7, alpha=0.35)
    axis.plot(grid, mean(curves), color=colour, linewidth=2)
    bounds = interval(curves, mean)
    if bounds:
        axis.fill_between(grid, *bounds, color=colour, alpha=0.18, linewidth=0)
        axis.plot(grid, iqm(curves), color=colour, linewidth=1.2, linestyle=(0, (4, 2)))
    return grid[-1], float(mean(curves)[-1]), label, colour


def _label_ends(axis: Any, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write each label to the right of its curve's end, pushed apart where they would overlap."""
    to_axes = axis.transData + axis.transAxes.inverted()
    axis.get_ylim()  # settles the limits that the transformation depends on
    wanted, labels, colours = zip(
        *sorted((to_axes.transform((x, y))[1], label, colour) for x, y, label, colour in ends), strict=True
    )
    heights = [wanted[0]]
    for height in wanted[1:]:
        heights.append(max(height, heights[-1] + 0.07))
    shift = (sum(heights) - sum(wanted)) / len(wanted)
    for height, label, colour in zip(heights, labels, colours, strict=True):
        axis.text(1.01, height - shift, label, transform=axis.transAxes, color=colour, va="center", fontsize=10)


def _draw_returns(axis: Any, runs: Sequence[Run]) -> None:
    for colour, (tag, name) in zip(COLOURS, SHORT.items(), strict=False):
        _draw_seeds(axis, runs, tag, colour, name)
    axis.set(title="Return", xlabel=X_LABELS["env_steps"])
    _scale(axis)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, loc="best")


def _draw_seeds(axis: Any, runs: Sequence[Run], tag: str, colour: str, name: str | None = None) -> None:
    """The raw points faint, the smoothed mean over seeds on top."""
    for run in runs:
        axis.plot(*run.points(tag, "env_steps"), color=colour, linewidth=0.7, alpha=0.35)
    grid, curves = on_grid(runs, tag, "env_steps")
    if len(grid):
        axis.plot(grid, mean(curves), color=colour, linewidth=2, label=name, marker="o" if len(grid) == 1 else None)


def _draw_commands(figure: Any, axis: Any, runs: Sequence[Run]) -> None:
    commands = np.concatenate([run.columns["command/return"] for run in runs])
    nothing = np.full(len(commands), np.nan)
    obtained = [run.columns.get("rollout/return_mean") for run in runs]
    returns = np.concatenate([column for column in obtained if column is not None] or [nothing])
    epochs = np.concatenate([run.columns["epoch"] for run in runs])
    dots = axis.scatter(commands, returns, c=epochs, cmap="viridis", s=14, linewidths=0)
    both = np.concatenate([commands, returns])
    low, high = np.nanmin(both), np.nanmax(both)
    axis.plot([low, high], [low, high], color=GREY, linewidth=1, linestyle=(0, (4, 2)))
    axis.set(title="Obtained against commanded return", xlabel="commanded", ylabel="obtained (mean of the epoch)")
    figure.colorbar(dots, ax=axis, label="epoch")


def _scale(axis: Any) -> None:
    """Thousands and millions of steps as k and M; a logarithmic axis for positive values over a factor of 30."""
    from matplotlib.ticker import EngFormatter

    axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    drawn = [line.get_ydata() for line in axis.lines if len(line.get_ydata())]
    values = np.concatenate(drawn) if drawn else np.empty(0)
    if len(values) and values.min() > 0 and values.max() > 30 * values.min():
        axis.set_yscale("log")


def _labels(groups: Sequence[Group]) -> tuple[list[str], str]:
    """What tells each group from the others, and what they share."""
    names = [group.names for group in groups]
    if len(names) == 1:
        return [names[0][-1]], ", ".join(names[0])
    if len({len(each) for each in names}) > 1:
        return ["/".join(each) for each in names], ""
    differ = [len(set(level)) > 1 for level in zip(*names, strict=True)]
    shared = ", ".join(name for name, differs in zip(names[0], differ, strict=True) if not differs)
    return ["/".join(n for n, differs in zip(each, differ, strict=True) if differs) for each in names], shared


def _run_title(run_dir: Path, runs: Sequence[Run]) -> str:
    parts = run_dir.resolve().parts
    names = parts[-5:-2] if run_dir.resolve().name.startswith("version_") else parts[-1:]
    return ", ".join([*names, "seed " + ", ".join(str(run.seed) for run in runs)])


def _target(groups: Sequence[Group], out: Path | None) -> Path:
    if out is None:
        sources = [run.source.parent for group in groups for run in group.runs]
        return Path(os.path.commonpath(sources)) / "plot.png"
    out = Path(out)
    return out if out.suffix.lower() == ".png" else out / "plot.png"
