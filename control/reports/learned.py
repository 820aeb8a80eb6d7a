"""The page of `--learn`: one HTML file with the results of the stages, and its figure. Its template is
``learned.html.j2``.
"""

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from control.reports.figures import COLOURS, GREY, WIDTH, FigureStyle, figure_panels, rows, set_row_labels, with_svg
from control.reports.page import data_url, render
from control.reports.stages import GOOD_FRACTION, PAGE, conclusion, exam_scores, returns_table
from control.storage.run_dir import atomic_write_text
from control.storage.versions import versions
from understudy.program import IDS

FIGURE = "exam.png"


def write_page(folder: Path, game: str, results: Mapping[str, Any], command: str = "") -> Path:
    """Write the page about the ``results`` (stage -> its results), and return its path. ``command`` is the command line
    that repeats the run, which the page shows."""
    figures = {}  # for wide and for narrow windows, as URLs
    if "exam" in results:
        _draw(folder / FIGURE, results, with_svg())
        figures["wide"] = data_url((folder / FIGURE).with_suffix(".svg"))
        with tempfile.TemporaryDirectory() as temporary:
            narrow = Path(temporary, "narrow.svg")
            _draw(narrow, results, FigureStyle(formats=("svg",), narrow=True))
            figures["narrow"] = data_url(narrow)
    page = render(
        "learned.html.j2",
        game=game,
        env_id=IDS.get(game, game),
        results=results,
        conclusion=conclusion(results, with_returns=False),
        figures=figures,
        returns=returns_table(results) if "exam" in results else None,
        files=sorted(file.name for file in folder.glob("*") if file.suffix in (".ckpt", ".safetensors", ".json")),
        command=command,
        date=time.strftime("%Y-%m-%d"),
        version=versions()["understudy"],
    )
    atomic_write_text(folder / PAGE, page)
    return folder / PAGE


def _draw(path: Path, results: Mapping[str, Any], style: FigureStyle) -> None:
    """Draw the returns of random play, a constant action, the teacher, its clone and fresh agents. Beside them, draw
    the learning curves with both rewards, if the stage `race` has run."""
    race, scores = results.get("race"), exam_scores(results)
    size = (WIDTH, 0.8 + 0.28 * len(scores))  # inches
    with figure_panels(path, rows(2 if race else 1), size, style) as axes:
        _draw_scores(axes[0], scores)
        if race:
            _draw_race(axes[1], race)


def _draw_scores(axis: Any, scores: Mapping[str, Any]) -> None:
    """Draw a row with the mean return and its error for each of ``scores``, with agents on the bandit in colour."""
    means = [score["mean"] for score in scores.values()]
    errors = [2 * score["error"] for score in scores.values()]
    colours = [COLOURS[0] if name.endswith(" on the bandit") else GREY for name in scores]
    axis.errorbar(means, range(len(scores)), xerr=errors, linestyle="none", color=GREY, elinewidth=1)
    axis.scatter(means, range(len(scores)), c=colours, zorder=3)
    set_row_labels(axis, list(scores))
    axis.set(xlabel="mean ± 2 standard errors", title="Returns on the task")
    axis.locator_params(axis="x", nbins=4)  # returns of a hundred thousand fit


def _draw_race(axis: Any, race: Mapping[str, Any]) -> None:
    """Draw the learning curves of agents with the learned reward and with the task's reward."""
    labels = {"learned": "learned reward", "task": "task's reward"}
    lines = []  # for a legend in this panel; lines with labels would be in the legend of the whole figure
    for reward, colour in zip(labels, COLOURS[2:], strict=False):
        result = race["arms"][reward]
        curves = np.array(result.get("curves") or [result["curve"]])  # [N, T]; older files have the mean alone
        steps = race["test_every"] * np.arange(1, curves.shape[1] + 1) / 1000
        lines += axis.plot(steps, np.median(curves, 0), color=colour)
        axis.plot(steps, curves.T, color=colour, linewidth=0.5, alpha=0.4)
    goal_label = f"{100 * GOOD_FRACTION:.0f} % of the way to the teacher"
    lines.append(axis.axhline(race["solved"], color=GREY, linewidth=0.8, linestyle="--"))
    title = f"{race['agent']}: median of {race.get('agents', 'the')} agents"
    axis.set(xlabel="thousand steps on the task", ylabel="return", title=title)
    axis.legend(lines, [*labels.values(), goal_label], loc="lower right", fontsize="small")
