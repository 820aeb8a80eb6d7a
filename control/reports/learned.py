"""The page of `--learn`: one HTML file with the results of the stages, and its figure. Its template is
``learned.html.j2``.

The stages are `probe` (random play, constant actions), `teacher` (an agent learns the task), `bandit` (an environment
made from the teacher's policy), `exam` (fresh agents train on it), `reward`, and `race` (fresh agents train with it).
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from control.reports.figures import COLOURS, GREY, WIDTH, FigureStyle, figure_panels, rows, set_row_labels, with_svg
from control.reports.page import render
from control.reports.tables import number_text
from control.storage.run_dir import atomic_write_text
from control.storage.versions import versions
from understudy.program import IDS

FIGURE, PAGE = "exam.png", "page.html"
GOOD_FRACTION = 0.9  # of the way from random play to the teacher; a clone and the agents of the race should reach it


def write_page(folder: Path, game: str, results: Mapping[str, Any], command: str = "") -> Path:
    """Write the page about the ``results`` (stage -> its results), and return its path. ``command`` repeats the run."""
    figure = None
    if "exam" in results:
        _draw(folder / FIGURE, results, with_svg())
        figure = (folder / FIGURE).with_suffix(".svg")
    page = render(
        "learned.html.j2",
        game=game,
        env_id=IDS.get(game, game),
        results=results,
        conclusion=conclusion(results),
        figure=figure,
        files=sorted(file.name for file in folder.glob("*") if file.suffix in (".ckpt", ".safetensors", ".json")),
        command=command,
        date=time.strftime("%Y-%m-%d"),
        version=versions()["understudy"],
    )
    atomic_write_text(folder / PAGE, page)
    return folder / PAGE


def conclusion(results: Mapping[str, Any]) -> list[str]:
    """Return the conclusion from the ``results`` (stage -> its results) as sentences: the verdict of the last stage
    that has one, the mean returns of the exam's agents that trained on the task itself, the environment's cost in steps
    of the task, and whether agents of the race learned sooner with the learned reward. It is empty without these."""
    sentences = []
    verdicts = [result["verdict"]["sentence"] for result in results.values() if "verdict" in result]
    if verdicts:
        sentences = [f"{sentence.removesuffix('.')}." for sentence in verdicts[-1].split(". ")]
    if exam := results.get("exam"):
        steps = results["teacher"].get("real_steps", 0) + results["bandit"].get("real_steps", 0)
        cost = f"{steps:,} steps of the task"
        if "real_steps" not in results["teacher"]:  # a policy of the user
            cost += " beside the teacher's"
        if exam["real"]:
            scores = ", ".join(f"{name} {number_text(score['mean'])}" for name, score in exam["real"].items())
            sentences.append(f"Agents that trained for {exam['steps']:,} steps on the task itself: {scores}.")
            cost += f", as many as {steps / exam['steps']:.1f} of these agents"
        sentences.append(f"The environment took {cost}; agents on it take none.")
    if race := results.get("race"):
        gain = f"made {race['agent']} agents learn sooner" if race["gain"] else "brought no clear gain"
        sentences.append(f"The learned reward {gain}.")
    return sentences


def _draw(path: Path, results: Mapping[str, Any], style: FigureStyle) -> None:
    """Draw the returns of random play, a constant action, the teacher, its clone and fresh agents. Beside them, draw
    the learning curves with both rewards, if the stage `race` has run."""
    probe, exam, race = results["probe"], results["exam"], results.get("race")
    scores = {"random play": probe["random"], f"constant action {probe['action']}": probe["constant"]}
    scores |= {"teacher": results["teacher"]["score"], "its clone": results["bandit"]["score"]}
    scores |= {f"{name} on the bandit": score for name, score in exam["agents"].items()}
    scores |= {f"{name}, as long on the task": score for name, score in exam["real"].items()}
    with figure_panels(path, rows(2 if race else 1), (WIDTH, 0.8 + 0.28 * len(scores)), style) as axes:
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
    for (reward, label), colour in zip(labels.items(), COLOURS[2:], strict=False):
        result = race["arms"][reward]
        curves = np.array(result.get("curves") or [result["curve"]])  # [N, T]; older files have the mean alone
        steps = race["test_every"] * np.arange(1, curves.shape[1] + 1) / 1000
        axis.plot(steps, np.median(curves, 0), color=colour, label=label)
        axis.plot(steps, curves.T, color=colour, linewidth=0.5, alpha=0.4)
    goal_label = f"{100 * GOOD_FRACTION:.0f} % of the way to the teacher"
    axis.axhline(race["solved"], color=GREY, linewidth=0.8, linestyle="--", label=goal_label)
    title = f"{race['agent']}: median of {race.get('agents', 'the')} agents"
    axis.set(xlabel="thousand steps on the task", ylabel="return", title=title)
