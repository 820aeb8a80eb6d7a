"""Figures of runs: the learning curve of one run, and groups of runs against each other."""

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress, cycle
from pathlib import Path
from typing import Any

import numpy as np

from control.reports import panels
from control.reports.panels import COLOURS, GREY, NOTE, STEPS_LABEL, Cells, grid, scale, sheet
from control.reports.runs import Array, Group, Run, find_groups, logged, read_runs, return_tags
from control.reports.tables import seeds_text, summarise, table
from control.reports.tags import COMMAND, REWARD_RATE, TAGS, TRAINING, tags
from control.storage.run_dir import atomic_write_text
from models.settings import SettingError

FORMATS = (".png", ".pdf", ".svg")


def plot(run_dirs: Sequence[Path], out: Path | None = None) -> int:
    """Draw and tabulate runs: mean with its 95 % bootstrap band and IQM over seeds, groups overlaid.

    Takes run folders or any folder above them; several environments are a row of panels each. Writes the figure to
    ``out`` (.png, .pdf, .svg, or a folder that gets `plot.png`), by default into the folder common to the runs, and
    the table's numbers as JSON beside it. Returns the exit code 0. Raises SettingError where there is nothing to draw
    or the figure cannot be written, the latter before anything is printed.
    """
    out = None if out is None else figure_file(Path(out))
    groups = find_groups(run_dirs)
    labels, title = _labels([group.names for group in groups])
    summary = {label: summarise(group) for label, group in zip(labels, groups, strict=True)}
    common = os.path.commonpath([run.source.parent for group in groups for run in group.runs])
    draw = partial(_draw_groups, _rows(groups, labels), title)
    show(table(title, summary), {"runs": title, "groups": summary}, draw, out or Path(common, "plot.png"), "plot_out")
    return 0


def show(text: str, numbers: Any, draw: Callable[[Path], None], target: Path, setting: str = "out") -> None:
    """Print the table ``text``, have ``draw`` write the figure ``target``, and put the numbers beside it as JSON.

    Raises SettingError, in the name of ``setting`` and before anything is printed, where these cannot be written.
    """
    beside = target.with_suffix(".json")
    check_writable(setting, target, beside)
    print(text)
    draw(target)
    atomic_write_text(beside, json.dumps(numbers, indent=2) + "\n")
    print(f"\nFigure:  {target}\nNumbers: {beside}")


def figure_file(out: Path, setting: str = "plot_out") -> Path:
    """The file that ``out`` means: itself, or `plot.png` in the folder that it is or will be. Raises SettingError, in
    the name of ``setting``, for a format that is none of `FORMATS`."""
    if out.is_dir() or not out.suffix:
        return out / "plot.png"
    if out.suffix.lower() not in FORMATS:
        raise SettingError(f"{setting} is '{out}'; allowed: a folder, or a file ending in {', '.join(FORMATS)}")
    return out


def check_writable(setting: str, *paths: Path) -> None:
    """SettingError, in the name of ``setting``, where a file cannot be written. Makes folders, and leaves no file."""
    try:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            new = not path.exists()
            path.open("ab").close()
            if new:
                path.unlink()
    except OSError as error:
        raise SettingError(f"{setting} is '{paths[0]}', which cannot be written: {error.strerror or error}") from None


def _labels(names: Sequence[tuple[str, ...]]) -> tuple[list[str], str]:
    """What tells each group from the others, and what they share."""
    if len({len(each) for each in names}) > 1:
        return ["/".join(each) for each in names], ""
    differs = [len(set(level)) > 1 for level in zip(*names, strict=True)]
    shared = ", ".join(name for name, differ in zip(names[0], differs, strict=True) if not differ)
    return ["/".join(compress(each, differs)) or each[-1] for each in names], shared


def _rows(groups: Sequence[Group], labels: Sequence[str]) -> dict[str, dict[str, Group]]:
    """``[environment][label]`` where there are several environments, whose returns share no scale; else one row."""
    environments = sorted({group.names[0] for group in groups})
    if len(environments) == 1 or any(len(group.names) < 3 for group in groups):
        return {"": dict(zip(labels, groups, strict=True))}
    short, _ = _labels([group.names[1:] for group in groups])
    return {
        name: {label: group for label, group in zip(short, groups, strict=True) if group.names[0] == name}
        for name in environments
    }


def _draw_groups(rows: dict[str, dict[str, Group]], title: str, target: Path) -> None:
    """A figure of ``rows[environment][label]``: one row of panels per environment; of a single one, up to three."""
    groups = [group for row in rows.values() for group in row.values()]
    titles = _titles([run for group in groups for run in group.runs])
    if not titles:
        raise SettingError(f"{title}: neither returns nor losses were logged yet")
    columns = len(titles) if len(rows) > 1 else min(len(titles), 3 if len(titles) > 4 else 2)
    cells = grid(len(rows) * len(titles), columns)
    labels = sorted({label for row in rows.values() for label in row})
    colours = dict(zip(labels, cycle(COLOURS), strict=False))
    counts = [len(group.runs) for group in groups]
    title = ", ".join(part for part in (title, seeds_text(counts)) if part)
    note = f"{NOTE}; to the shortest run's end" if max(counts) > 1 else ""
    with sheet(target, cells, (5.4 * columns, 3.9 * len(cells)), title=title, note=note) as axes:
        places = [(environment, tag) for environment in rows for tag in titles]
        for axis, (environment, tag) in zip(axes, places, strict=True):
            row = rows[environment]
            for label, group in row.items():
                panels.draw_aggregate(axis, *panels.on_grid(group.runs, tag), colours[label], label, len(row) == 1)
            axis.set(title=f"{environment}: {titles[tag]}" if environment else titles[tag], xlabel=STEPS_LABEL)
            scale(axis)
            if TAGS[tag].kind == "return":
                panels.clip_below(axis, [run for group in row.values() for run in group.runs], [tag])


def _titles(runs: Sequence[Run]) -> dict[str, str]:
    """The panels for these runs: tag and title, with the tag where another panel has the same title."""
    shown = [*return_tags(runs), *logged(runs, tags("loss"))]
    titles = {tag: TAGS[tag].title for tag in shown}
    several = [title for title, count in Counter(titles.values()).items() if count > 1]
    return {tag: f"{title} ({tag})" if title in several else title for tag, title in titles.items()}


def learning_curve(run_dir: Path) -> Path:
    """Draw one run folder as `curve.png` in it, whose path it gives: returns, losses, commanded and obtained return.

    Seeds trained together appear as thin lines with their mean. Raises SettingError where there is nothing to draw.
    """
    run_dir = Path(run_dir)
    runs = read_runs(run_dir / "metrics.csv")
    if not runs:
        raise SettingError(f"{run_dir / 'metrics.csv'} has no epoch yet")
    parts = run_dir.resolve().parts
    names = parts[-5:-2] if parts[-1].startswith("version_") else parts[-1:]
    title = ", ".join([*names, "seed " + ", ".join(str(run.seed) for run in runs)])
    losses, commanded = logged(runs, tags("loss")), logged(runs, [COMMAND]) and logged(runs, [TRAINING])
    cells = beside(len(losses) + len(commanded))
    widths = [1.6] + [1.0] * (len(cells[0]) - 1)
    size = (4.2 * sum(widths), 4.2 if len(cells) == 1 else 7.0)
    with sheet(run_dir / "curve.png", cells, size, title=title, widths=widths, legend=None) as axes:
        shown = return_tags(runs)
        # A running mean and the training return, of which one is drawn, have the same colour.
        colours = dict(zip(tags("return"), (COLOURS[0], *COLOURS), strict=False))
        for tag in shown:
            panels.draw_seeds(axes[0], runs, tag, colours[tag], TAGS[tag].short)
        axes[0].set(title="Reward per step" if shown == [REWARD_RATE] else "Return", xlabel=STEPS_LABEL)
        scale(axes[0])
        panels.clip_below(axes[0], runs, shown)
        if shown:
            axes[0].legend(loc="best")
        for axis, tag in zip(axes[1:], losses, strict=False):
            panels.draw_seeds(axis, runs, tag, COLOURS[0])
            axis.set(title=TAGS[tag].title, xlabel=STEPS_LABEL)
            scale(axis)
        if commanded:
            columns = [np.concatenate([run.columns[tag] for run in runs]) for tag in (COMMAND, TRAINING, "epoch")]
            dots = _draw_commands(axes[-1], *columns)
            axes[-1].figure.colorbar(dots, ax=axes[-1], label="epoch")
    return run_dir / "curve.png"


def beside(count: int) -> Cells:
    """Panel 0 at the sheet's full height, and beside it ``count`` more in a row, or in two for more than three."""
    rows = 1 if count <= 3 else 2
    others = grid(count, -(-count // rows)) if count else [[]]
    return [[0, *(number + 1 if number >= 0 else -1 for number in row)] for row in others]


def command_figure(commanded: Array, obtained: Array) -> Any:
    """A figure of obtained over commanded returns, both ``[N]``."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(panels.STYLE):
        figure = Figure(figsize=(4, 4), dpi=80, layout="constrained")
        _draw_commands(figure.subplots(), commanded, obtained)
    return figure


def _draw_commands(axis: Any, commanded: Array, obtained: Array, colours: Array | None = None) -> Any:
    """A dot for each pair, and the diagonal that an agent which follows its commands keeps to."""
    dots = axis.scatter(commanded, obtained, c=colours, cmap=None if colours is None else "viridis", s=14, linewidths=0)
    ends = [end(np.concatenate([commanded, obtained])) for end in (np.nanmin, np.nanmax)]
    axis.plot(ends, ends, color=GREY, linewidth=1, linestyle=(0, (4, 2)))
    axis.set(title=TAGS[COMMAND].title, xlabel="commanded", ylabel="obtained")
    return dots
