"""The page of `--learn`: one HTML file with the results of the stages, and its figure. Its template is
``learned.html.j2``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from control.cli.words import flags_of
from control.reports import figures
from control.reports.html import Picture, data_url, render_page
from control.reports.run_folders import setting_text
from control.reports.stages import GOOD_FRACTION, PAGE, conclusion, exam_scores, returns_table
from control.reports.tables import Table, versions_table
from control.storage.run_dir import atomic_write_text
from control.storage.versions import FILE
from understudy.program import IDS

FIGURE = "exam.png"
_MEANINGS = {
    "probe": "random play, and always the same action",
    "teacher": "an agent that learns the task",
    "bandit": "a network whose reward is highest for the teacher's action, so that the best policy on it is a clone of "
    "the teacher",
    "exam": "new agents train on the bandit, and play the task",
    "reward": "a network that estimates the teacher's later return",
    "race": "new agents train on the task with the learned reward, and with its own",
}


def write_page(folder: Path, game: str, results: Mapping[str, Any], command: str = "", options: Any = None) -> Path:
    """Write the page about the ``results`` (stage -> its results) into ``folder``, and return its path. ``game`` is the
    environment. The page also shows ``command``, the command line that repeats the run, ``options``, the `LearnConfig`
    of the run, and versions that the training of the teacher has stored."""
    drawing = None
    if "exam" in results:
        _draw(folder / FIGURE, results)
        alt = "Returns of random play, a constant action, the teacher, its clone and new agents; the numbers follow"
        wide = (folder / FIGURE).with_suffix(".svg")
        drawing = Picture(data_url(wide), alt, narrow=data_url(figures.narrow_file(wide)))
    is_good = not any(result.get("failed") for result in results.values())
    env_id = IDS.get(game, game)
    steps = {name: results.get(name, {}).get("real_steps", 0) for name in ("teacher", "bandit", "reward")}
    steps["comparisons"] = _total(results, "real_steps") - sum(steps.values())
    steps_text = ", ".join(f"{name} {count:,}" for name, count in steps.items() if count)
    settings = [[name, setting_text(flag.default), flag.meta["help"]] for name, flag in flags_of(options).items()]
    teacher_settings = Path(results.get("teacher", {}).get("run", ""), "config.yaml")
    page = render_page(
        "learned.html.j2",
        f"Learned environment and reward of {env_id}",
        f"Steps of the task: {steps_text}; {_total(results, 'cpu_seconds'):,.0f} CPU seconds",
        env_id=env_id,
        results=results,
        conclusion=(conclusion(results), is_good),
        drawing=drawing,
        returns=returns_table(results) if "exam" in results else None,
        stages=_stages_table(results),
        files=sorted(file.name for file in folder.glob("*") if file.suffix in (".ckpt", ".safetensors", ".json")),
        settings=Table([["setting", "value", "meaning"], *settings], "Settings of --learn") if settings else None,
        teacher_settings=quote(str(teacher_settings)) if (folder / teacher_settings).is_file() else "",
        versions=versions_table(file.parent for file in sorted(folder.rglob(FILE))),
        command=command,
    )
    atomic_write_text(folder / PAGE, page)
    return folder / PAGE


def _total(results: Mapping[str, Any], name: str) -> Any:
    """Return the sum over all stages of a number in their results, such as ``real_steps``."""
    return sum(result.get(name, 0) for result in results.values())


def _stages_table(results: Mapping[str, Any]) -> Table:
    """Return the table of stages: their results and meanings, their steps in the task, and their time."""
    task_agents = sum(score["count"] for score in results.get("exam", {}).get("real", {}).values())
    rows = [["stage", "result", "real steps", "CPU s"]]
    for name, result in results.items():
        steps = f"{result['real_steps']:,}" if "real_steps" in result else "-"
        text = f"{result['text']}\n{_MEANINGS[name]}"
        if name == "exam" and task_agents:
            text += f"; {task_agents} others train on the task, to compare"
        rows.append([name, text, steps, f"{result['cpu_seconds']:,.0f}"])
    rows.append(["sum", "", f"{_total(results, 'real_steps'):,}", f"{_total(results, 'cpu_seconds'):,.0f}"])
    return Table(rows, "Results, steps in the task, and time")


def _draw(path: Path, results: Mapping[str, Any]) -> None:
    """Draw the returns of random play, a constant action, the teacher, its clone and fresh agents, as PNG and SVG.
    Beside them, draw the learning curves with both rewards, if the stage `race` has run."""
    race, scores = results.get("race"), exam_scores(results)
    means = [score["mean"] for score in scores.values()]
    errors = [2 * score["error"] for score in scores.values()]
    colours = [figures.COLOURS[0] if name.endswith(" on the bandit") else figures.GREY for name in scores]
    cells, size = figures.rows(2 if race else 1), (figures.WIDTH, 0.8 + 0.28 * len(scores))  # inches
    style = figures.DEFAULT_STYLE.with_svg()
    note = "race: bold lines are medians, thin lines single agents" if race and race["agents"] > 1 else ""
    with figures.figure_panels(path, cells, size, style, note=note) as (axis, *race_axes):
        axis.errorbar(means, range(len(scores)), xerr=errors, linestyle="none", color=figures.GREY, elinewidth=1)
        axis.scatter(means, range(len(scores)), c=colours, zorder=3)
        figures.set_row_labels(axis, list(scores))
        axis.set(xlabel="mean ± 2 standard errors", title="Returns on the task\n(coloured: trained on the bandit)")
        axis.locator_params(axis="x", nbins=4)  # returns of a hundred thousand fit
        if race:
            _draw_race(race_axes[0], race)


def _draw_race(axis: Any, race: Mapping[str, Any]) -> None:
    """Draw the learning curves of agents that train with the learned reward, and of agents that train with the task's:
    the median thick, the agents thin. ``race`` has the results of the stage "race"."""
    styles = (("learned", "race: learned reward", "-"), ("task", "race: task's reward", "--"))
    for (reward, label, line_style), colour in zip(styles, figures.COLOURS[2:], strict=False):
        curves = np.array(race["arms"][reward]["curves"])  # returns of N agents in T tests, [N, T]
        steps = race["test_every"] * np.arange(1, curves.shape[1] + 1) / 1000
        axis.plot(steps, np.median(curves, 0), color=colour, linestyle=line_style, label=label)
        axis.plot(steps, curves.T, color=colour, linewidth=0.5, alpha=0.4)
    goal_label = f"race: {100 * GOOD_FRACTION:.0f} % of the way to teacher"
    axis.axhline(race["solved"], color=figures.GREY, linewidth=0.8, linestyle=":", label=goal_label)
    title = f"Race: {race['agents']} {race['agent']} agents on the task"
    axis.set(xlabel="thousand steps on the task", ylabel="median return", title=title)
    axis.locator_params(axis="x", nbins=5)
