"""Comparison of algorithms by the final scores of their seeds, as panels and as text.

It has the score of each seed, performance profiles and probabilities of improvement (`control.reports.statistics`).
"""

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np

from control.reports.curves import Level, draw_levels, game_text, share_limits
from control.reports.sheets import GREY, WIDTH, Book, Cells, rows, set_row_labels, set_title
from control.reports.statistics import LEAST, Array, improvement, interval, iqm, mean, profile
from control.reports.tables import Table

POINTS = 201  # of a profile
BANDS = 3  # largest number of profiles with intervals
Task = Mapping[str, Array]
"""Final scores ``[N]`` of the seeds of each algorithm on one environment."""


def comparable(task: Task) -> dict[str, Array]:
    """Return the algorithms with three seeds or more, or none if there are fewer than two."""
    eligible = {label: np.asarray(scores, float) for label, scores in task.items() if len(scores) >= LEAST}
    return eligible if len(eligible) > 1 else {}


def ranked(task: Task) -> list[str]:
    """Return the algorithms by mean score, the highest first."""
    return sorted(task, key=lambda label: -float(np.mean(task[label])))


def common(tasks: Mapping[str, Task]) -> list[str]:
    """Return the algorithms that all tasks have, by their mean probability of improvement over the others."""
    shared = set.intersection(*(set(task) for task in tasks.values())) if tasks else set()
    total_improvements = {}
    for label in shared:
        probabilities = [improvement(*_scores_of(tasks, label, other))[0] for other in shared - {label}]
        total_improvements[label] = sum(probabilities)
    return sorted(shared, key=lambda label: (-total_improvements[label], label))


def _scores_of(tasks: Mapping[str, Task], *labels: str) -> list[list[Array]]:
    """Return, for each label, its scores on each task."""
    return [[task[label] for task in tasks.values()] for label in labels]


def compare(tasks: Mapping[str, Task]) -> dict[str, Any]:
    """Return the comparison as data for JSON. ``profiles`` has the share of seeds above each of the ``levels``, by task
    and algorithm. ``improvement`` has the probability over all tasks for each ordered pair. Both have intervals."""
    profiles, improvements = {}, {}
    for name, task in tasks.items():
        levels = _levels(task)
        above = {label: _for_json(profile([scores], levels)) for label, scores in task.items()}
        profiles[name] = {"levels": levels.tolist(), "above": above}
    for label, other in permutations(common(tasks), 2):
        improvements[f"{label} > {other}"] = _for_json(improvement(*_scores_of(tasks, label, other)))
    return {"profiles": profiles, "improvement": improvements}


def _for_json(result: tuple[Any, Any]) -> dict[str, Any]:
    """Return an estimate and its interval as data for JSON."""
    estimate, bounds = result
    return {"estimate": np.asarray(estimate).tolist(), "interval": bounds and np.asarray(bounds).tolist()}


def _levels(task: Task) -> Array:
    """Return five levels between the lowest and the highest score."""
    all_scores = np.concatenate(list(task.values()))
    return np.linspace(all_scores.min(), all_scores.max(), 7)[1:-1]


def comparison_text(compared: Mapping[str, Any], score: str) -> str:
    """Return the numbers of `compare` as text, for ``score`` as the name of the scores. Of each pair of algorithms only
    the probability of at least 0.5 is listed."""
    lines = []
    for name, task in compared["profiles"].items():
        heading = f"share of seeds with a higher {score}" + (f", {game_text(name)}" if name else "")
        table = [[heading, *(f"{level:.4g}" for level in task["levels"])]]
        table += [[label, *(f"{share:.2f}" for share in row["estimate"])] for label, row in task["above"].items()]
        lines += ["", *Table(table).lines()]
    if not compared["improvement"]:
        return "\n".join(lines)
    table = [["probability of improvement", "", "95 %"]]
    for pair, row in compared["improvement"].items():
        if row["estimate"] >= 0.5:
            bounds = row["interval"]
            table.append([pair, f"{row['estimate']:.2f}", f"{bounds[0]:.2f} to {bounds[1]:.2f}" if bounds else "-"])
    return "\n".join([*lines, "", *Table(table).lines()])


def note(tasks: Mapping[str, Task], score: str = "mean over the last tenth of the epochs") -> str:
    """Return the note of `draw`, with ``score`` as the definition of the scores."""
    banded = [len(task) <= BANDS for task in tasks.values()]
    intervals = ["bands of profiles" if all(banded) else f"bands of up to {BANDS} profiles"] * any(banded)
    intervals += ["lines of probabilities"] * (len(common(tasks)) > 1)
    interval_note = f"; {' and '.join(intervals)}: 95 % stratified bootstrap intervals" if intervals else ""
    dots = f"dots: seeds, {score}; diamond and line: mean and its 95 % bootstrap interval; bar: interquartile mean"
    return f"{dots}{interval_note}; as in Agarwal et al. 2021"


def draw(
    book: Book,
    tasks: Mapping[str, Task],
    colours: Mapping[str, str],
    game_levels: Mapping[str, Sequence[Level]],
    axis_label: str,
    title: str,
    note: str,
    other_scores: Mapping[str, Task] | None = None,
) -> None:
    """Draw a sheet with scores of seeds and profiles for each task, and probabilities of improvement over all tasks.
    ``other_scores`` of a single task have further panels, labelled by their keys, in a separate row with the scores."""
    algorithms, several = common(tasks), len(tasks) > 1
    other_scores = {} if several else other_scores or {}
    height = max(1.7, 0.24 * max(map(len, tasks.values())) + 0.8)
    cells, widths, heights = _layout(len(tasks), len(other_scores), len(algorithms) > 1, height)
    with book.sheet(
        cells, (WIDTH, sum(heights)), name="scores", title=title, note=note, widths=widths, heights=heights, legend=1
    ) as axes:
        remaining_axes = iter(axes)
        for name, task in tasks.items():
            heading, levels, order = f"{game_text(name)}: " if name else "", game_levels.get(name, ()), ranked(task)
            panels: list[Any] = []
            for label, panel_task in {axis_label: task, **other_scores}.items():
                axis, is_first = next(remaining_axes), not panels
                panels.append(axis)
                _seeds(axis, panel_task, [algorithm for algorithm in order if algorithm in panel_task], colours)
                level_labels = not several if is_first else None
                draw_levels(axis, levels, dict(colours), labels=level_labels, axis_name="x")
                axis.set(xlabel=label)
                if is_first:
                    set_title(axis, f"{heading}Score of each seed", 2.4)
                else:
                    axis.set_yticklabels([])
            share_limits(panels, "x")
            axis = next(remaining_axes)
            _profiles(axis, task, colours)
            grey_levels = [level for level in levels if not level.implementation]
            draw_levels(axis, grey_levels, dict(colours), labels=None, axis_name="x")
            axis.set(xlabel=axis_label, ylabel="share of seeds", ylim=(-0.03, 1.03))
            set_title(axis, f"{heading}Seeds that score more", 2.2)
        if len(algorithms) > 1:
            axis = next(remaining_axes)
            _improvements(axis, tasks, algorithms, colours)
            scope, width = "", 1.8
            if several:
                scope, width = f" over {len(tasks)} environments", 6.0
            elif other_scores:
                scope, width = f", {axis_label}", 2.5
            set_title(axis, f"Probability that {algorithms[0]} is better{scope}", width)


def _layout(
    tasks: int, other_count: int, compared: bool, height: float
) -> tuple[Cells, list[float] | None, list[float]]:
    """Return cells, widths of columns and heights of rows for the sheet of `draw`."""
    if other_count:
        return rows(1 + other_count, 1 + compared), None, [height, max(1.7, 0.9 * height)]
    cells, heights = [[2 * i, 2 * i + 1] for i in range(tasks)], [height] * tasks
    if compared and tasks == 1:
        cells[0].append(2)
    elif compared:
        cells.append([2 * tasks] * 2)
        heights.append(0.75 * height)
    return cells, [1.15, 1.0, 0.95][: len(cells[0])], heights


def _seeds(axis: Any, task: Task, labels: Sequence[str], colours: Mapping[str, str]) -> None:
    """Draw dots for the scores, a diamond and line for mean and interval, and a bar for the IQM."""
    for row, label in enumerate(labels):
        scores, colour = np.asarray(task[label], float), colours[label]
        rows_of_dots = np.full(len(scores), row + 0.2)
        axis.plot(scores, rows_of_dots, "o", color=colour, markersize=3.2, alpha=0.6, markeredgewidth=0)
        axis.plot([iqm(scores)] * 2, [row - 0.3, row - 0.02], color=colour, linewidth=1.2)
        if bounds := interval(scores, mean):
            axis.plot(bounds, [row - 0.16] * 2, color=colour, linewidth=1.4)
        axis.plot(mean(scores), row - 0.16, "D", color=colour, markersize=3.6)
    set_row_labels(axis, labels)


def _profiles(axis: Any, task: Task, colours: Mapping[str, str]) -> None:
    """Draw the performance profiles of the algorithms of a task."""
    all_scores = np.concatenate(list(task.values()))
    margin = 0.04 * (all_scores.max() - all_scores.min() or 1)
    levels = np.linspace(all_scores.min() - margin, all_scores.max() + margin, POINTS)
    for label in ranked(task):
        share, bounds = profile([task[label]], levels)
        axis.plot(levels, share, color=colours[label], linewidth=1.4)
        if bounds and len(task) <= BANDS:
            axis.fill_between(levels, *bounds, color=colours[label], alpha=0.13, linewidth=0)


def _improvements(axis: Any, tasks: Mapping[str, Task], labels: Sequence[str], colours: Mapping[str, str]) -> None:
    """Draw the probability that the first of ``labels`` is better than each other; 0.5 is no difference."""
    best, *rivals = labels
    axis.axvline(0.5, color=GREY, linewidth=0.8, linestyle=(0, (4, 2)))
    for row, other in enumerate(rivals):
        probability, bounds = improvement(*_scores_of(tasks, best, other))
        if bounds:
            axis.plot(bounds, [row, row], color=colours[other], linewidth=1.4)
        axis.plot(probability, row, "D", color=colours[other], markersize=4, clip_on=False, zorder=3)
    set_row_labels(axis, [f"than {other}" for other in rivals])
    axis.set(xlim=(-0.04, 1.04), xticks=[0, 0.5, 1], xlabel="probability")
