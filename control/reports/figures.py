"""Figures of runs: one run's learning curve, many seeds' aggregate. Draws what `control.reports.runs` reads."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from control.reports.panels import (
    COLOURS,
    GREY,
    X_LABELS,
    clip_below,
    draw_aggregate,
    draw_seeds,
    label_ends,
    on_grid,
    scale,
)
from control.reports.runs import (
    Group,
    Run,
    find_groups,
    logged,
    read_runs,
    return_tags,
    summarise,
    table,
)
from control.reports.tags import COMMAND, REWARD_RATE, TAGS, TRAINING, tags
from models.settings import SettingError

# Of a run's own curve; what is drawn for want of the other has its colour.
RETURN_COLOURS = dict(zip(tags("return"), (COLOURS[0], *COLOURS), strict=False))
FORMATS = (".png", ".pdf", ".svg")
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

    Takes run folders or any folder above them; several games are a row of panels each. Writes the figure to `out`
    (.png, .pdf, .svg, or a folder that gets `plot.png`), by default into the folder common to the runs, and the
    table's numbers as JSON beside it. `x` is env_steps or epoch. Returns the exit code 0. Raises SettingError when
    there is nothing to draw or the figure cannot be written, the latter before anything is printed.
    """
    if x not in X_LABELS:
        raise SettingError(f"x is '{x}'; allowed: {', '.join(X_LABELS)}")
    out = None if out is None else figure_file(Path(out))
    groups = find_groups(run_dirs)
    labels, title = _labels(groups)
    summary = {label: summarise(group) for label, group in zip(labels, groups, strict=True)}
    target = out or _common_folder(groups) / "plot.png"

    def draw(target: Path) -> None:
        _draw_groups(_rows(groups, labels), title, x, target)

    show(table(title, summary), {"runs": title, "groups": summary}, draw, target, "plot_out")
    return 0


def show(text: str, numbers: Any, draw: Callable[[Path], None], target: Path, setting: str = "out") -> None:
    """Print the table ``text``, have ``draw`` write the figure ``target``, and put the numbers beside it as JSON.

    Raises SettingError, in the name of ``setting`` and before anything is printed, where these cannot be written.
    """
    beside = target.with_suffix(".json")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try_writing(target, beside)
        print(text)
        draw(target)
        beside.write_text(json.dumps(numbers, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingError(f"{setting} is '{target}', which cannot be written: {error.strerror or error}") from None
    print(f"\nFigure:  {target}\nNumbers: {beside}")


def learning_curve(run_dir: Path) -> Path:
    """Draw one run folder as `curve.png` in it and return that path: returns, losses, command against obtained return.

    Seeds trained together appear as thin lines with their mean. Raises SettingError when there is nothing to draw.
    """
    run_dir = Path(run_dir)
    runs = read_runs(run_dir / "metrics.csv")
    if not runs:
        raise SettingError(f"{run_dir / 'metrics.csv'} has no epoch yet")
    losses, commanded = logged(runs, tags("loss")), logged(runs, [COMMAND])
    with style() as plt:
        figure, axes = _beside_returns(plt, len(losses) + len(commanded))
        _draw_returns(axes[0], runs)
        for axis, tag in zip(axes[1:], losses, strict=False):
            draw_seeds(axis, runs, tag, COLOURS[0])
            axis.set(title=TAGS[tag].title, xlabel=X_LABELS["env_steps"])
            scale(axis)
        if commanded:
            _draw_commands(figure, axes[-1], runs)
        figure.suptitle(_run_title(run_dir, runs), x=0.01, ha="left", fontsize=12)
        figure.savefig(run_dir / "curve.png", dpi=130)
        plt.close(figure)
    return run_dir / "curve.png"


def style() -> Any:
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


def _beside_returns(plt: Any, count: int) -> tuple[Any, list[Any]]:
    """A figure and its axes: a wide one, and ``count`` narrower ones in a row beside it, or in two for more than
    three."""
    rows = 1 if count <= 3 else 2
    columns = -(-count // rows)
    widths = [1.6] + [1.0] * columns
    figure = plt.figure(figsize=(4.2 * sum(widths), 4.2 if rows == 1 else 7.0))
    grid = figure.add_gridspec(rows, 1 + columns, width_ratios=widths)
    places = [grid[:, 0], *(grid[i // columns, 1 + i % columns] for i in range(count))]
    return figure, [figure.add_subplot(place) for place in places]


def _draw_groups(rows: dict[str, dict[str, Group]], title: str, x: str, target: Path) -> None:
    """A figure of `rows[game][label]`: the panels of one game side by side or in two rows, else a row a game."""
    everything = [group for row in rows.values() for group in row.values()]
    panels = _titles([run for group in everything for run in group.runs])
    drawn = list(panels)
    if not drawn:
        raise SettingError(f"{title}: neither returns nor losses were logged yet")
    columns = len(drawn) if len(rows) > 1 else min(len(drawn), 3 if len(drawn) > 4 else 2)
    height = len(rows) if len(rows) > 1 else -(-len(drawn) // columns)
    labels = sorted({label for row in rows.values() for label in row})
    colours = {label: COLOURS[i % len(COLOURS)] for i, label in enumerate(labels)}
    with style() as plt:
        figure, axes = plt.subplots(height, columns, figsize=(5.4 * columns, 3.9 * height), squeeze=False)
        places = iter(axes.flat)
        for game, row in rows.items():
            for tag, axis in zip(drawn, places, strict=False):
                _draw_panel(axis, row, tag, x, colours)
                axis.set(title=f"{game}: {panels[tag]}" if len(rows) > 1 else panels[tag], xlabel=X_LABELS[x])
        for axis in axes.flat:
            axis.set_visible(axis.has_data())
        counts = sorted({len(group.runs) for group in everything})
        seeds = f"{counts[0]}-{counts[-1]} seeds" if len(counts) > 1 else f"{counts[0]} seed{'s' * (counts[0] > 1)}"
        note = "line: mean, band: its 95 % bootstrap interval, dashed: interquartile mean; to the shortest run's end"
        figure.suptitle(", ".join(part for part in (title, seeds) if part), x=0.01, ha="left", fontsize=13)
        figure.supxlabel(note if counts[-1] > 1 else "", x=0.01, ha="left", fontsize=9, color=GREY)
        figure.savefig(target, dpi=130)
        plt.close(figure)


def _titles(runs: Sequence[Run]) -> dict[str, str]:
    """The panels for these runs: tag and title, with the tag where another panel is called the same."""
    panels = [*return_tags(runs), *logged(runs, tags("loss"))]
    titles = [TAGS[tag].title for tag in panels]
    return {
        tag: f"{title} ({tag})" if titles.count(title) > 1 else title for tag, title in zip(panels, titles, strict=True)
    }


def _draw_panel(axis: Any, row: dict[str, Group], tag: str, x: str, colours: dict[str, str]) -> None:
    drawn = [
        draw_aggregate(axis, *on_grid(group.runs, tag, x), colours[label], label, len(row) == 1)
        for label, group in row.items()
    ]
    ends = [end for end in drawn if end]
    if not ends:
        return
    scale(axis)
    if TAGS[tag].kind == "return":
        clip_below(axis, np.concatenate([run.points(tag, x)[1] for group in row.values() for run in group.runs]))
    if len(colours) > 1:
        label_ends(axis, ends)


def _draw_returns(axis: Any, runs: Sequence[Run]) -> None:
    returns = return_tags(runs)
    for tag in returns:
        draw_seeds(axis, runs, tag, RETURN_COLOURS[tag], TAGS[tag].short)
    axis.set(title="Reward per step" if returns == [REWARD_RATE] else "Return", xlabel=X_LABELS["env_steps"])
    scale(axis)
    if returns:
        clip_below(axis, np.concatenate([run.points(tag, "env_steps")[1] for run in runs for tag in returns]))
    if axis.get_legend_handles_labels()[0]:
        axis.legend(frameon=False, loc="best")


def _draw_commands(figure: Any, axis: Any, runs: Sequence[Run]) -> None:
    commands = np.concatenate([run.columns[COMMAND] for run in runs])
    nothing = np.full(len(commands), np.nan)
    obtained = [run.columns.get(TRAINING) for run in runs]
    returns = np.concatenate([column for column in obtained if column is not None] or [nothing])
    epochs = np.concatenate([run.columns["epoch"] for run in runs])
    dots = axis.scatter(commands, returns, c=epochs, cmap="viridis", s=14, linewidths=0)
    both = np.concatenate([commands, returns])
    low, high = np.nanmin(both), np.nanmax(both)
    axis.plot([low, high], [low, high], color=GREY, linewidth=1, linestyle=(0, (4, 2)))
    axis.set(title=TAGS[COMMAND].title, xlabel="commanded", ylabel="obtained (mean of the epoch)")
    figure.colorbar(dots, ax=axis, label="epoch")


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


def _rows(groups: Sequence[Group], labels: Sequence[str]) -> dict[str, dict[str, Group]]:
    """`[game][label]` where there are several games, whose returns share no scale; else all in one row."""
    games = {group.names[0] for group in groups}
    if len(games) == 1 or any(len(group.names) < 3 for group in groups):
        return {"": dict(zip(labels, groups, strict=True))}
    distinct = sorted({group.names[1:] for group in groups})
    short = dict(zip(distinct, _labels([Group(names) for names in distinct])[0], strict=True))
    rows: dict[str, dict[str, Group]] = {game: {} for game in sorted(games)}
    for group in groups:
        rows[group.names[0]][short[group.names[1:]]] = group
    return rows


def _common_folder(groups: Sequence[Group]) -> Path:
    return Path(os.path.commonpath([run.source.parent for group in groups for run in group.runs]))


def figure_file(out: Path, setting: str = "plot_out") -> Path:
    """The file that ``out`` means: itself, or `plot.png` in the folder that it is or will be. Raises SettingError, in
    the name of ``setting``, for a format that is none of `FORMATS`."""
    if out.is_dir() or not out.suffix:
        return out / "plot.png"
    if out.suffix.lower() not in FORMATS:
        raise SettingError(f"{setting} is '{out}'; allowed: a folder, or a file ending in {', '.join(FORMATS)}")
    return out


def try_writing(*paths: Path) -> None:
    """Raise the OSError that writing these files would; leave no trace where it would not."""
    for path in paths:
        new = not path.exists()
        path.open("ab").close()
        if new:
            path.unlink()
