"""Figures of runs against each other: what `--plot` shows, from run folders or from the numbers of an earlier one."""

import os
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from control.reports import panels, scores
from control.reports.arms import Arm, arm_of, default_name, has_numbers, labelled, name_rows, read_numbers
from control.reports.files import check_writable, figure_files, numbers_text, write_numbers
from control.reports.folders import say_versions_of
from control.reports.importance import TRIALS, plot_search
from control.reports.levels import (
    RETURN_LABEL,
    Level,
    in_words,
    levels,
    package,
    quantity,
    same_axis,
    sources,
    steps_label,
)
from control.reports.runs import Array, find_groups
from control.reports.sheets import WIDTH, Book, balanced, rows, set_title
from control.reports.style import COLOURS, PLAIN, Look
from control.reports.tables import seeds_text, summarise, table
from control.reports.tags import GREEDY, TAGS, tags
from models.registry import implementations
from models.settings import SettingError

ON_PAGE = 4  # rows of panels


def plot(run_dirs: Sequence[Path], out: Path | None = None, look: Look = PLAIN) -> int:
    """Draw and tabulate runs: mean with its 95 % bootstrap band and IQM over seeds, groups overlaid.

    Takes run folders or any folder above them, or one JSON that it wrote earlier. Of the folder of a hyperparameter
    search it draws the importance of each hyperparameter. Writes the figure to ``out`` (.png,
    .pdf, .svg, or a folder), by default under a name of its own into the folder common to the runs, and the table's
    numbers as JSON beside it. Several environments have rows of panels each, on as many pages as it takes; algorithms
    of three seeds and more are also compared by their scores. Returns the exit code 0. Raises SettingError where there
    is nothing to draw or the figure cannot be written, the latter before anything is printed.
    """
    out = None if out is None else Path(out)
    if len(run_dirs) == 1 and (run_dirs[0] / TRIALS).is_file():
        print(f"Figure:  {plot_search(run_dirs[0], look, out)}")
        return 0
    if out is not None:
        figure_files(out, look)  # its suffix is refused before anything is read
    redrawn = Path(run_dirs[0]) if len(run_dirs) == 1 and Path(run_dirs[0]).suffix == ".json" else None
    if redrawn:
        title, summary, arms = read_numbers(redrawn)
        folder, made_from = redrawn.parent, list[str]()
    else:
        groups = find_groups(run_dirs)
        say_versions_of(groups, run_dirs, "plot")
        labels, title = labelled([group.names for group in groups])
        summary = {label: summarise(group) for label, group in zip(labels, groups, strict=True)}
        made_from = sorted({str(run.source.parent) for group in groups for run in group.runs})
        folder = Path(os.path.commonpath(made_from))
        arms = [arm_of(group, label) for group, label in zip(groups, labels, strict=True)]
        for label, arm in zip(labels, arms, strict=True):
            summary[label] |= {"names": arm.names, "curves": numbers_text(arm.curves, arm.scores)}
    heading = ", ".join(filter(None, (title, name_rows(arms))))
    if out is None or out.is_dir() or not out.suffix:
        out = default_name(out or folder, arms, look)
    target, numbers_path = figure_files(out, look)
    if not redrawn and numbers_path.is_file() and not has_numbers(numbers_path):
        line = f"plot_out is '{target}', whose numbers would replace {numbers_path.name}, a file of something else"
        raise SettingError(f"{line}; allowed: another name", "plot_out")
    check_writable("plot_out", *([target] if redrawn else [target, numbers_path]))
    if not any(arm.curves or arm.scores for arm in arms):
        raise SettingError(f"{title or 'these runs'}: neither returns nor losses were logged yet")
    tag, tasks = _tasks(arms)
    if not tasks and not any(arm.curves for arm in arms):
        shortage = "no curves and fewer than two groups of three seeds"
        raise SettingError(
            f"plot is '{redrawn}', which holds {shortage}: there is nothing to draw; allowed: run folders too"
        )
    text = table(title, summary)
    numbers: dict[str, Any] = {"runs": title, "made_from": made_from, "groups": summary}
    if tasks:
        among = [label for label, arm in zip(summary, arms, strict=True) if arm.label in tasks.get(arm.game, ())]
        numbers["compared"] = {"tag": tag, "groups": among, **scores.compare(tasks)}
        text += "\n" + scores.table(numbers["compared"], f"{TAGS[tag].short} return")
    print(text)
    with Book(target, look, redrawn) as book:
        _draw(book, arms, heading, tag, tasks)
    if redrawn is None:
        write_numbers(numbers_path, numbers)
    print("\n" + "\n".join(f"Figure:  {path}" for path in book.files) + f"\nNumbers: {redrawn or numbers_path}")
    return 0


def _tasks(arms: Sequence[Arm]) -> tuple[str, dict[str, dict[str, Array]]]:
    """The return by which algorithms are compared, greedy evaluation where all have it, and by environment the scores
    of those of enough seeds. Searches have no return of an agent's and are left out beside agents."""
    arms = [arm for arm in arms if not arm.search] or arms
    shared = [tag for tag in TAGS if all(tag in arm.scores for arm in arms)]
    if not shared:
        return "", {}
    tag = GREEDY if GREEDY in shared else shared[0]
    tasks: dict[str, dict[str, Array]] = {}
    for arm in arms:
        tasks.setdefault(arm.game, {})[arm.label] = arm.scores[tag]
    comparable_tasks = {game: scores.comparable(task) for game, task in tasks.items()}
    return tag, {game: task for game, task in comparable_tasks.items() if task}


def _colours(labels: Sequence[str], arms: Sequence[Arm]) -> dict[str, str]:
    """A colour for each label, another than those of its environments' others as long as there are enough."""
    colours: dict[str, str] = {}
    for label, colour in zip(labels, cycle(COLOURS), strict=False):
        games = {arm.game for arm in arms if arm.label == label}
        used_colours = {colours.get(arm.label) for arm in arms if arm.game in games}
        colours[label] = (
            colour
            if colour not in used_colours
            else next((spare for spare in COLOURS if spare not in used_colours), colour)
        )
    return colours


def _draw(book: Book, arms: Sequence[Arm], title: str, tag: str, tasks: Mapping[str, Mapping[str, Array]]) -> None:
    """The sheets: returns, losses (of one environment on the same), and the comparison."""
    labels = sorted({arm.label for arm in arms})
    colours = _colours(labels, arms)
    games = list(dict.fromkeys(arm.game for arm in arms))
    places: dict[str, list[tuple[str, str]]] = {"": [], "losses": []}  # by page: environment and panel
    for kind, page in (("return", ""), ("loss", "losses" if len(games) > 1 else "")):
        for game in games:
            shown_panels = _panels([arm for arm in arms if arm.game == game], kind)
            places[page] += [(game, panel) for panel in shown_panels]
    for page, page_panels in places.items():
        for number, part in enumerate(_parts(page_panels)):
            name = f"{page}{number + 1 if number else ''}".strip("_")
            _draw_curves(book, arms, part, colours, title, name)
    if tasks:
        shown_levels = {game: _levels(arms, game) for game in tasks}
        all_levels = [level for level_group in shown_levels.values() for level in level_group]
        note = "; ".join(part for part in (scores.note(tasks), sources(all_levels)) if part)
        other_scores = {}
        if len(tasks) == 1 and same_axis([tag]):  # at most two more have room beside it
            game = next(iter(tasks))
            game_arms = [arm for arm in arms if arm.game == game and arm.label in tasks[game]]
            all_have = [name for name in same_axis(TAGS) if all(name in arm.scores for arm in game_arms)]
            covered_tags = {name for shown_tag in all_have for name in TAGS[shown_tag].replaces} | {tag}
            also = [name for name in all_have if name not in covered_tags][:2]
            other_scores = {_score_label(name): {arm.label: arm.scores[name] for arm in game_arms} for name in also}
        compared = [arm for arm in arms if arm.label in tasks.get(arm.game, ())]
        scores.draw(
            book, tasks, colours, shown_levels, _score_label(tag), _heading(compared, title), note, other_scores
        )


def _heading(arms: Sequence[Arm], title: str) -> str:
    """Of a sheet that shows these arms: how many environments, or which, and of how many seeds."""
    games = list(dict.fromkeys(arm.game for arm in arms))
    where = f"{len(games)} environments" if len(games) > 1 else in_words(games[0])
    return ", ".join(filter(None, (where, title, seeds_text([arm.seeds for arm in arms]))))


def _score_label(tag: str) -> str:
    return f"return, {TAGS[tag].short}" if same_axis([tag]) else TAGS[tag].short


Panel = str
"""A tag, or ``tag@title@label`` of a loss, which may mean another thing in another family."""


def _panels(arms: Sequence[Arm], kind: str) -> list[Panel]:
    of_kind = [tag for tag in tags("return" if kind == "return" else "loss") if any(tag in arm.curves for arm in arms)]
    if kind == "return":
        agents = [arm for arm in arms if not arm.search]
        common = [tag for tag in of_kind if all(tag in arm.curves for arm in agents)]
        replaced_tags = {name for tag in common for name in TAGS[tag].replaces}
        return [tag for tag in of_kind if tag not in replaced_tags and (tag in common or not TAGS[tag].replaces)]
    quantities = [(quantity(tag, package(arm.names)), tag) for tag in of_kind for arm in arms if tag in arm.curves]
    return [f"{tag}@{title}@{label}" for (title, label), tag in dict.fromkeys(quantities)]


def _panel_labels(panel: Panel) -> tuple[str, str, str]:
    """Tag, title and label of the y axis."""
    tag, *texts = panel.split("@")
    title, label = texts or quantity(tag)
    return tag, title, label


def _logged(arms: Sequence[Arm], game: str, panel: Panel) -> list[Arm]:
    """The arms that a panel shows."""
    tag, heading, _ = _panel_labels(panel)
    game_arms = [arm for arm in arms if arm.game == game and tag in arm.curves]
    return [arm for arm in game_arms if "@" not in panel or quantity(tag, package(arm.names))[0] == heading]


def _parts(places: Sequence[tuple[str, Panel]]) -> list[list[list[tuple[str, Panel]]]]:
    """Pages of rows of panels. Rows hold one environment and one kind, three panels at most."""
    kinds: dict[tuple[str, bool], list[tuple[str, Panel]]] = {}
    for place in places:
        kinds.setdefault((place[0], "@" in place[1]), []).append(place)
    panel_rows = []
    for group in kinds.values():
        first = 0
        for length in balanced(len(group)):
            panel_rows.append(group[first : first + length])
            first += length
    return [panel_rows[i : i + ON_PAGE] for i in range(0, len(panel_rows), ON_PAGE)]


def _levels(arms: Sequence[Arm], game: str) -> list[Level]:
    game_arms = [arm for arm in arms if arm.game == game]
    implementation_names = {name for arm in game_arms for name in arm.names if name in implementations()}
    game_levels = levels(game_arms[0].environment, implementation_names)
    # A level of an algorithm needs one colour.
    by_name = {name: [arm.label for arm in game_arms if name in arm.names] for name in implementation_names}
    return [
        Level(level.value, level.name, level.source, (by_name.get(level.implementation) or [""])[0])
        for level in game_levels
        if len(by_name.get(level.implementation, "1")) == 1
    ]


def _draw_curves(
    book: Book,
    arms: Sequence[Arm],
    page: Sequence[Sequence[tuple[str, Panel]]],
    colours: Mapping[str, str],
    title: str,
    name: str,
) -> None:
    panel_arms = [_logged(arms, game, panel) for row in page for game, panel in row]
    all_arms = [arm for shown_arms in panel_arms for arm in shown_arms]
    seeds = [arm.seeds for arm in all_arms]
    notes = panels.meaning(seeds, any(len(shown_arms) == 1 for shown_arms in panel_arms))
    notes += [panels.SMOOTHED, "to the shortest run's end"] if max(seeds) > 1 else [panels.SMOOTHED]
    games = list(dict.fromkeys(game for row in page for game, _ in row))
    several = any(arm.game for arm in arms)
    game_levels = {game: _levels(arms, game) for game in games}
    if any("@" not in panel for row in page for _, panel in row):
        all_levels = [level for level_group in game_levels.values() for level in level_group]
        notes += [sources(all_levels)] if all_levels else []
    height = 2.0 if max(map(len, page)) > 1 else 2.8
    cells = rows(*map(len, page))
    with book.sheet(
        cells, (WIDTH, height * len(page)), name=name, title=_heading(all_arms, title), note="; ".join(notes)
    ) as axes:
        for label in sorted({arm.label for arm in all_arms}):  # which gives the legend its order
            axes[0].plot([], [], color=colours[label], label=label)
        panel_iter = iter(zip(axes, panel_arms, strict=True))
        equal: dict[str, dict[str, list[Any]]] = {}  # by environment, and by the steps of the x axis
        values: dict[Any, Array] = {}
        for row in page:
            for column, (game, panel) in enumerate(row):
                axis, shown_arms = next(panel_iter)
                tag, heading, label = _panel_labels(panel)
                for arm in shown_arms:
                    panels.draw_aggregate(axis, *arm.curves[tag], colours[arm.label], arm.label, len(shown_arms) == 1)
                set_title(axis, f"{in_words(game)}: {heading}" if several else heading, 6.2 / len(row))
                axis.set(xlabel=steps_label(tag))
                if column == 0 or label != _panel_labels(row[column - 1][1])[2]:
                    axis.set_ylabel(label)
                panels.scale(axis, book.look.log if TAGS[tag].kind == "return" or label == RETURN_LABEL else True)
                if TAGS[tag].kind == "return":
                    values[axis] = np.concatenate([arm.curves[tag][1].ravel() for arm in shown_arms])
                    panels.clip_below(axis, values[axis])
                if same_axis([tag]):
                    equal.setdefault(game, {}).setdefault(steps_label(tag), []).append(axis)
        for game, by_steps in equal.items():
            alike = [axis for part in by_steps.values() for axis in part]
            panels.share_limits(alike)
            for part in by_steps.values():
                panels.share_limits(part, "x")
            for axis in alike:
                panels.draw_levels(axis, game_levels[game], dict(colours), labels=not several, game=in_words(game))
            panels.share_limits(alike)
        for axis, drawn_there in values.items():
            panels.say_hidden(axis, drawn_there)
