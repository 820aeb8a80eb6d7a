"""Comparison of algorithms by the final scores of their seeds, as panels and as text.

It has the score of each seed, performance profiles and probabilities of improvement (`control.reports.statistics`).
"""

from collections.abc import Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from control.reports.curves import Level, draw_levels
from control.reports.figures import GREY, WIDTH, FigureStyle, figure_panels, rows, set_row_labels
from control.reports.statistics import MIN_RUNS, Array, improvement, interval, iqm, profile
from control.reports.tables import Table

POINTS = 201  # of a profile
MAX_BANDS = 3  # profiles have bands (intervals) only in panels of at most so many algorithms
_DOTS_BELOW, _MEAN_ABOVE, _HALF_BAR = 0.2, 0.16, 0.14  # places in a row of scores, in heights of a row
Task = Mapping[str, Array]
"""Final scores ``[N]`` of the seeds of each algorithm on one environment."""


def comparable(task: Task) -> dict[str, Array]:
    """Return the scores ``[N]`` of algorithms with three seeds or more. Empty for a single one: nothing to compare."""
    eligible = {label: np.asarray(scores, float) for label, scores in task.items() if len(scores) >= MIN_RUNS}
    return eligible if len(eligible) > 1 else {}


Improvements = Mapping[tuple[str, str], Mapping[str, Any]]
"""For pairs of algorithms, the probability that a seed of the first scores higher than a seed of the second
(``estimate``), and its 95 % ``interval``, None for fewer than three seeds."""


def improvements(tasks: Mapping[str, Task]) -> Improvements:
    """Return the mean probabilities of improvement over tasks, for all ordered pairs of the algorithms that all tasks
    have. The first pairs are of the algorithm with the highest mean probability, then of the second, and so on."""
    shared = sorted(set.intersection(*(set(task) for task in tasks.values())))
    estimates = {}
    total_probability = dict.fromkeys(shared, 0.0)
    for first, second in permutations(shared, 2):
        first_scores = [task[first] for task in tasks.values()]
        second_scores = [task[second] for task in tasks.values()]
        probability, bounds = improvement(first_scores, second_scores)
        estimates[first, second] = {"estimate": probability, "interval": bounds}
        total_probability[first] += probability
    best_first = sorted(shared, key=lambda label: total_probability[label], reverse=True)
    return {pair: estimates[pair] for pair in permutations(best_first, 2)}


def comparison_text(estimates: Improvements) -> str:
    """Return a table of probabilities of improvement, with rows such as ``PPO > DDQN  0.71  0.55 to 0.86``. Of each
    pair of algorithms, only the order with a probability of at least 0.5 is listed. Empty if there are no pairs."""
    rows = [["probability of improvement", "", "95 %"]]
    for (first, second), numbers in estimates.items():
        probability, bounds = numbers["estimate"], numbers["interval"]
        if probability >= 0.5:
            interval_text = f"{bounds[0]:.2f} to {bounds[1]:.2f}" if bounds else "-"
            rows.append([f"{first} > {second}", f"{probability:.2f}", interval_text])
    return str(Table(rows)) if estimates else ""


def note(score: str = "mean over the last tenth of the epochs") -> str:
    """Return the note of `draw`, with ``score`` as the definition of the scores."""
    scores = f"dots: seeds, {score}; diamond and line: mean and its 95 % bootstrap interval; bar: interquartile mean"
    intervals = f"bands (of up to {MAX_BANDS} profiles) and lines of probabilities: 95 % stratified bootstrap intervals"
    return f"{scores}; {intervals}; as in Agarwal et al. 2021"


def draw(
    target: Path,
    style: FigureStyle,
    numbers: Path | None,
    tasks: Mapping[str, Task],
    colours: Mapping[str, str],
    game_levels: Mapping[str, Sequence[Level]],
    axis_label: str,
    title: str,
    note: str,
) -> None:
    """Draw a figure with the scores of seeds and the performance profiles of each task, and the probabilities of
    improvement over all tasks. A PNG stores the hash of the file ``numbers``. ``colours`` are by algorithm,
    ``game_levels`` (reference levels) by task. The scores have the label ``axis_label``."""
    estimates = improvements(tasks)
    height = max(1.7, 0.24 * max(map(len, tasks.values())) + 0.8)  # inches; algorithms are rows of a panel
    lengths, heights = [2] * len(tasks), [height] * len(tasks)  # for each task a row with scores and profiles
    if estimates:
        lengths.append(1)
        heights.append(0.75 * height)
    options: Any = {"title": title, "note": note, "heights": heights}
    with figure_panels(target, rows(*lengths), (WIDTH, sum(heights)), style, numbers, **options) as axes:
        # A row has the scores of a task, then its profiles. The last axis, of improvements, may remain.
        for (name, task), score_axis, profile_axis in zip(tasks.items(), axes[::2], axes[1::2], strict=False):
            ranked = dict(sorted(task.items(), key=lambda item: -float(np.mean(item[1]))))  # the highest mean first
            _draw_scores(score_axis, ranked, colours)
            _draw_profiles(profile_axis, ranked, colours)
            profile_axis.set(ylabel="share of seeds", ylim=(-0.03, 1.03))
            for axis, panel_title in ((score_axis, "Score of each seed"), (profile_axis, "Seeds that score more")):
                draw_levels(axis, game_levels.get(name, ()), axis_name="x")
                axis.set(xlabel=axis_label, title=f"{name}: {panel_title}" if name else panel_title)
        if estimates:
            best, _ = next(iter(estimates))  # pairs of the best algorithm are first
            rivals = {second: numbers for (first, second), numbers in estimates.items() if first == best}
            _draw_improvements(axes[-1], rivals, colours)
            axes[-1].set_title(f"Probability that {best} is better")


def _draw_scores(axis: Any, task: Task, colours: Mapping[str, str]) -> None:
    """Draw a row for each algorithm: dots for scores, diamond and line for mean and interval, a bar for the IQM."""
    for row, (label, scores) in enumerate(task.items()):
        values, colour = np.asarray(scores, float), colours[label]
        dots_y, mean_y = row + _DOTS_BELOW, row - _MEAN_ABOVE  # the y axis points down
        bar_ends = [mean_y - _HALF_BAR, mean_y + _HALF_BAR]
        axis.plot(values, [dots_y] * len(values), "o", color=colour, markersize=3.2, alpha=0.6, markeredgewidth=0)
        axis.plot([iqm(values)] * 2, bar_ends, color=colour, linewidth=1.2)
        if bounds := interval(values):
            axis.plot(bounds, [mean_y] * 2, color=colour, linewidth=1.4)
        axis.plot(values.mean(), mean_y, "D", color=colour, markersize=3.6)
    set_row_labels(axis, list(task))


def _draw_profiles(axis: Any, task: Task, colours: Mapping[str, str]) -> None:
    """Draw the performance profile of each algorithm: the share of seeds above each score."""
    all_scores = np.concatenate(list(task.values()))
    low, high = all_scores.min(), all_scores.max()
    margin = 0.04 * (high - low if high > low else 1)
    levels = np.linspace(low - margin, high + margin, POINTS)
    for label, scores in task.items():
        fractions, bounds = profile([scores], levels)
        axis.plot(levels, fractions, color=colours[label], linewidth=1.4)
        if bounds and len(task) <= MAX_BANDS:
            axis.fill_between(levels, *bounds, color=colours[label], alpha=0.13, linewidth=0)


def _draw_improvements(axis: Any, rivals: Mapping[str, Mapping[str, Any]], colours: Mapping[str, str]) -> None:
    """Draw the probabilities that an algorithm is better than each of its ``rivals``; 0.5 is no difference. ``rivals``
    maps the name of an algorithm to the numbers of the pair, as in `Improvements`."""
    axis.axvline(0.5, color=GREY, linewidth=0.8, linestyle=(0, (4, 2)))
    for row, (label, numbers) in enumerate(rivals.items()):
        if numbers["interval"]:
            axis.plot(numbers["interval"], [row, row], color=colours[label], linewidth=1.4)
        axis.plot(numbers["estimate"], row, "D", color=colours[label], markersize=4, clip_on=False, zorder=3)
    set_row_labels(axis, [f"than {label}" for label in rivals])
    axis.set(xlim=(-0.04, 1.04), xticks=[0, 0.5, 1], xlabel="probability")
