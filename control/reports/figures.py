"""The figure of one run: its learning curve, and obtained over commanded returns."""

from pathlib import Path
from typing import Any

import numpy as np

from control.reports import panels
from control.reports.levels import RETURN_LABEL, Level, levels, package, quantity, same_axis, sources, steps_label
from control.reports.runs import Array, logged, read_runs, return_tags
from control.reports.sheets import WIDTH, Book, balanced, rows, set_title
from control.reports.style import COLOURS, GREY, INK, PLAIN, Look
from control.reports.tags import COMMAND, REWARD_RATE, TAGS, TRAINING, tags
from models.settings import SettingError


def learning_curve(run_dir: Path, look: Look = PLAIN) -> Path:
    """Draw one run folder as `curve.png` in it, whose path it gives: returns, losses, commanded and obtained return.
    In other formats of ``look`` it is `curve.pdf` and so on.

    Seeds trained together appear as thin lines with their mean. Raises SettingError where there is nothing to draw.
    """
    run_dir = Path(run_dir)
    runs = read_runs(run_dir / "metrics.csv")
    if not runs:
        raise SettingError(f"{run_dir / 'metrics.csv'} has no epoch yet")
    parts = run_dir.resolve().parts
    names = parts[-5:-2] if parts[-1].startswith("version_") else parts[-1:]
    title = ", ".join([*names, "seed " + ", ".join(str(run.seed) for run in runs)])
    shown_tags, losses = return_tags(runs), logged(runs, tags("loss"))
    commanded = bool(logged(runs, [COMMAND]) and logged(runs, [TRAINING]))
    shown_levels = [level for level in levels(names[0], names[2:]) if same_axis(shown_tags)]
    row_lengths = balanced(len(losses) + commanded)
    epochs = max(len(run.columns["epoch"]) for run in runs)
    note = "; ".join(part for part in (panels.raw(len(runs), epochs), sources(shown_levels)) if part)
    with (
        Book(run_dir / f"curve.{(look.formats or ('png',))[0]}", look) as book,
        book.sheet(rows(1, *row_lengths), (WIDTH, 2.3 + 1.8 * len(row_lengths)), title=title, note=note) as axes,
    ):
        # A running mean and the training return, of which one is drawn, have the same colour.
        colours = dict(zip(tags("return"), (COLOURS[0], *COLOURS), strict=False))
        for tag in shown_tags:
            panels.draw_seeds(axes[0], runs, tag, colours[tag], TAGS[tag].short)
        rate = shown_tags == [REWARD_RATE]
        axes[0].set(title="Reward per step" if rate else "Return", xlabel=steps_label(*shown_tags))
        axes[0].set_ylabel(quantity(shown_tags[0])[1] if len(shown_tags) == 1 else RETURN_LABEL)
        panels.scale(axes[0], look.log)
        values = np.concatenate([np.empty(0), *(run.points(tag)[1] for run in runs for tag in shown_tags)])
        panels.clip_below(axes[0], values)
        # The environment's own level and a published one of this algorithm alone are grey here.
        panels.draw_levels(axes[0], [Level(level.value, level.name, level.source) for level in shown_levels], {})
        panels.say_hidden(axes[0], values)
        for axis, tag in zip(axes[1:], losses, strict=False):
            heading, label = quantity(tag, package(names))
            panels.draw_seeds(axis, runs, tag, INK)
            set_title(axis, heading, WIDTH / 3.2)
            axis.set(xlabel=steps_label(tag), ylabel=label)
            panels.scale(axis, True)
        if commanded:
            command_tags = (COMMAND, TRAINING, *["epoch"] * (epochs > 1))
            dots = _draw_commands(
                axes[-1], *(np.concatenate([run.columns[tag] for run in runs]) for tag in command_tags)
            )
            if epochs > 1:
                bar = axes[-1].figure.colorbar(dots, ax=axes[-1], label="epoch")
                bar.ax.yaxis.get_major_locator().set_params(integer=True)
    return book.files[0]


def _draw_commands(axis: Any, commanded: Array, returns: Array, colours: Array | None = None) -> Any:
    """A dot for each pair, and the diagonal that an agent which follows its commands keeps to."""
    dots = axis.scatter(commanded, returns, c=colours, cmap=None if colours is None else "viridis", s=7, linewidths=0)
    ends = [end(np.concatenate([commanded, returns])) for end in (np.nanmin, np.nanmax)]
    axis.plot(ends, ends, color=GREY, linewidth=1, linestyle=(0, (4, 2)))
    set_title(axis, TAGS[COMMAND].title, WIDTH / 3.2)
    axis.set(xlabel="commanded return", ylabel="obtained return")
    return dots
