"""Algorithms against each other by the final scores of their seeds: every seed's score, performance profiles and
probabilities of improvement, as panels and as a table (`control.reports.statistics` has the definitions)."""

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

import numpy as np

from control.reports.levels import Level, in_words
from control.reports.panels import draw_levels, share_limits
from control.reports.sheets import WIDTH, Book, Cells, rows, set_title
from control.reports.statistics import LEAST, Array, improvement, interval, iqm, mean, profile
from control.reports.style import GREY
from control.reports.tables import aligned

POINTS = 201  # of a profile
BANDS = 3  # profiles whose intervals can be told apart
Task = Mapping[str, Array]
"""On one environment the final scores ``[N]`` of the seeds of each algorithm."""


def comparable(task: Task) -> dict[str, Array]:
    """The algorithms of enough seeds, where there are two of them; else none."""
    eligible = {label: np.asarray(scores, float) for label, scores in task.items() if len(scores) >= LEAST}
    return eligible if len(eligible) > 1 else {}


def ranked(task: Task) -> list[str]:
    """The algorithms from the highest mean score down."""
    return sorted(task, key=lambda label: -float(np.mean(task[label])))


def common(tasks: Mapping[str, Task]) -> list[str]:
    """The algorithms that all tasks have, first the one that is most often better than the others."""
    shared = set.intersection(*(set(task) for task in tasks.values())) if tasks else set()
    wins = {x: sum(improvement(*_of(tasks, x, y))[0] for y in shared - {x}) for x in shared}
    return sorted(shared, key=lambda label: (-wins[label], label))


def _of(tasks: Mapping[str, Task], *labels: str) -> list[list[Array]]:
    return [[task[label] for task in tasks.values()] for label in labels]


def compare(tasks: Mapping[str, Task]) -> dict[str, Any]:
    """Numbers for JSON. ``profiles[task][label]``: at ``levels`` the share of seeds above and its interval;
    ``improvement``: of each ordered pair the probability over all tasks, and its interval."""
    profiles = {
        name: {
            "levels": (at := _levels(task)).tolist(),
            "above": {label: _with(profile([scores], at)) for label, scores in task.items()},
        }
        for name, task in tasks.items()
    }
    pairs = {f"{x} > {y}": _with(improvement(*_of(tasks, x, y))) for x, y in permutations(common(tasks), 2)}
    return {"profiles": profiles, "improvement": pairs}


def _with(result: tuple[Any, Any]) -> dict[str, Any]:
    estimate, bounds = result
    return {"estimate": np.asarray(estimate).tolist(), "interval": bounds and np.asarray(bounds).tolist()}


def _levels(task: Task) -> Array:
    """Five levels between the lowest and the highest score."""
    all_scores = np.concatenate(list(task.values()))
    return np.linspace(all_scores.min(), all_scores.max(), 7)[1:-1]


def table(compared: Mapping[str, Any], of: str) -> str:
    """`compare`'s numbers as text: shares of seeds above some scores, and who is better than whom how likely."""
    lines = []
    for name, task in compared["profiles"].items():
        heading = f"share of seeds with a higher {of}" + (f", {in_words(name)}" if name else "")
        lined = [[heading, *(f"{level:.4g}" for level in task["levels"])]]
        lined += [[label, *(f"{share:.2f}" for share in row["estimate"])] for label, row in task["above"].items()]
        lines += ["", *aligned(lined)]
    if not compared["improvement"]:
        return "\n".join(lines)
    lined = [["probability of improvement", "", "95 %"]]
    for pair, row in compared["improvement"].items():
        if row["estimate"] >= 0.5:
            bounds = row["interval"]
            lined.append([pair, f"{row['estimate']:.2f}", f"{bounds[0]:.2f} to {bounds[1]:.2f}" if bounds else "-"])
    return "\n".join([*lines, "", *aligned(lined)])


def note(tasks: Mapping[str, Task], score: str = "mean over the last tenth of the epochs") -> str:
    """What `draw` shows of these tasks, whose seeds have each their ``score``."""
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
    """A sheet: for each task the seeds' scores and the profiles, then the probabilities of improvement over all
    tasks, where algorithms are to be compared on all of them. ``others`` are further scores of a single task, by the
    label of their axis: with them the seeds' scores are a row of their own."""
    algorithms, several = common(tasks), len(tasks) > 1
    other_scores = {} if several else other_scores or {}
    height = max(1.7, 0.24 * max(map(len, tasks.values())) + 0.8)
    cells, widths, heights = _layout(len(tasks), len(other_scores), len(algorithms) > 1, height)
    with book.sheet(
        cells,
        (WIDTH, sum(heights)),
        name="scores",
        title=title,
        note=note,
        widths=widths,
        heights=heights,
        legend=1,
    ) as axes:
        remaining_axes = iter(axes)
        for name, task in tasks.items():
            scope_text = f"{in_words(name)}: " if name else ""
            panels, order = [], ranked(task)
            for label, panel_task in {axis_label: task, **other_scores}.items():
                panels.append(axis := next(remaining_axes))
                _seeds(axis, panel_task, [algorithm for algorithm in order if algorithm in panel_task], colours)
                level_labels = None if panels[1:] else not several
                draw_levels(axis, game_levels.get(name, ()), dict(colours), labels=level_labels, axis_name="x")
                axis.set(xlabel=label)
                if panels[1:]:
                    axis.set_yticklabels([])
                else:
                    set_title(axis, f"{scope_text}Score of each seed", 2.4)
            share_limits(panels, "x")
            axis = next(remaining_axes)
            _profiles(axis, task, colours)
            grey = [level for level in game_levels.get(name, ()) if not level.implementation]
            draw_levels(axis, grey, dict(colours), labels=None, axis_name="x")
            axis.set(xlabel=axis_label, ylabel="share of seeds", ylim=(-0.03, 1.03))
            set_title(axis, f"{scope_text}Seeds that score more", 2.2)
        if len(algorithms) > 1:
            axis = next(remaining_axes)
            _improvements(axis, tasks, algorithms, colours)
            scope_text = f" over {len(tasks)} environments" if several else f", {axis_label}" if other_scores else ""
            set_title(
                axis,
                f"Probability that {algorithms[0]} is better{scope_text}",
                6.0 if several else 2.5 if other_scores else 1.8,
            )


def _layout(
    tasks: int, other_count: int, compared: bool, height: float
) -> tuple[Cells, list[float] | None, list[float]]:
    """Cells, widths of the columns and heights of the rows of `draw`'s sheet."""
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
    for at, label in enumerate(labels):
        scores = np.asarray(task[label], float)
        colour = colours[label]
        axis.plot(
            scores, np.full(len(scores), at + 0.2), "o", color=colour, markersize=3.2, alpha=0.6, markeredgewidth=0
        )
        axis.plot([iqm(scores)] * 2, [at - 0.3, at - 0.02], color=colour, linewidth=1.2)
        if bounds := interval(scores, mean):
            axis.plot(bounds, [at - 0.16] * 2, color=colour, linewidth=1.4)
        axis.plot(mean(scores), at - 0.16, "D", color=colour, markersize=3.6)
    _named_rows(axis, labels)


def _named_rows(axis: Any, labels: Sequence[str]) -> None:
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(len(labels) - 0.4, -0.6)
    axis.tick_params(axis="y", length=0)
    axis.grid(False, axis="y")


def _profiles(axis: Any, task: Task, colours: Mapping[str, str]) -> None:
    all_scores = np.concatenate(list(task.values()))
    margin = 0.04 * (all_scores.max() - all_scores.min() or 1)
    at = np.linspace(all_scores.min() - margin, all_scores.max() + margin, POINTS)
    for label in ranked(task):
        share, bounds = profile([task[label]], at)
        axis.plot(at, share, color=colours[label], linewidth=1.4)
        if bounds and len(task) <= BANDS:
            axis.fill_between(at, *bounds, color=colours[label], alpha=0.13, linewidth=0)


def _improvements(axis: Any, tasks: Mapping[str, Task], labels: Sequence[str], colours: Mapping[str, str]) -> None:
    """Draw how likely the first of ``labels`` is to beat each other; one half is no difference."""
    best, *rivals = labels
    axis.axvline(0.5, color=GREY, linewidth=0.8, linestyle=(0, (4, 2)))
    for at, other in enumerate(rivals):
        probability, bounds = improvement(*_of(tasks, best, other))
        if bounds:
            axis.plot(bounds, [at, at], color=colours[other], linewidth=1.4)
        axis.plot(probability, at, "D", color=colours[other], markersize=4, clip_on=False, zorder=3)
    _named_rows(axis, [f"than {other}" for other in rivals])
    axis.set(xlim=(-0.04, 1.04), xticks=[0, 0.5, 1], xlabel="probability")
