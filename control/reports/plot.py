"""Figures of `--plot`: groups of runs side by side, from run folders or from the numbers of an earlier figure."""

import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from control.cli.files import read_json
from control.reports import curves, scores
from control.reports.curves import (
    RETURN_LABEL,
    Level,
    draw_levels,
    episode_returns,
    game_text,
    levels,
    package_of,
    quantity,
    share_limits,
    sources,
    steps_label,
)
from control.reports.runs import Array, Group, find_groups, logged, note_group_versions, return_tags
from control.reports.search import TRIALS, plot_search
from control.reports.sheets import (
    COLOURS,
    PLAIN,
    WIDTH,
    Book,
    Look,
    balanced,
    check_writable,
    figure_file,
    rows,
    set_title,
    write_numbers,
)
from control.reports.tables import seeds_text, summarise, summary_text
from control.reports.tags import GREEDY, TAGS, of_search, tags
from models.registry import implementations
from models.settings import SettingError

PAGE_ROWS = 4  # rows of panels on a page
_MAX_BYTES = 20_000_000  # of the JSON of a figure


@dataclass
class Arm:
    """Curves and scores of the seeds of a group. ``curves`` maps a tag to steps ``[G]`` and values ``[N, G]``;
    ``scores`` maps a return to the means ``[N]`` of the seeds over the last tenth of the epochs. ``label`` is the name
    in the legend, and ``game`` the environment in figures of several."""

    label: str
    names: tuple[str, ...]
    seeds: int
    curves: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    scores: dict[str, Array] = field(default_factory=dict)
    game: str = ""

    @property
    def search(self) -> bool:
        """Whether the runs are searches."""
        return of_search((*self.curves, *self.scores))


class Panel(NamedTuple):
    """A panel of curves: environment, tag, title, label of the y axis, and the arms in it."""

    game: str
    tag: str
    title: str
    label: str
    arms: list[Arm]


def plot(run_dirs: Sequence[Path], out: Path | None = None, look: Look = PLAIN) -> int:
    """Draw and tabulate groups of runs: mean with its 95 % bootstrap band and IQM over seeds.

    ``run_dirs`` are run folders, folders above them, or the JSON of an earlier figure. The folder of a hyperparameter
    search gives a figure of its hyperparameters. ``out`` is a file (.png, .pdf, .svg) or a folder; by default the
    figure is in the common folder of the runs. The numbers are written beside it as JSON. Each environment has
    separate rows of panels. Algorithms with three seeds or more are also compared by their scores.

    Returns the exit code 0. Raises SettingError if there is nothing to draw or a file cannot be written, before
    anything is printed.
    """
    out = None if out is None else Path(out)
    if len(run_dirs) == 1 and (run_dirs[0] / TRIALS).is_file():
        print(f"Figure:  {plot_search(run_dirs[0], look, out)}")
        return 0
    if out is not None:
        figure_file(out)  # raises for a wrong suffix before anything is read
    redrawn = Path(run_dirs[0]) if len(run_dirs) == 1 and Path(run_dirs[0]).suffix == ".json" else None
    if redrawn:
        title, summary, arms = read_numbers(redrawn)
        folder, made_from = redrawn.parent, list[str]()
    else:
        groups = find_groups(run_dirs)
        note_group_versions(groups, run_dirs, "plot")
        labels, title = distinct_labels([group.names for group in groups])
        summary = {label: summarise(group) for label, group in zip(labels, groups, strict=True)}
        made_from = sorted({str(run.source.parent) for group in groups for run in group.runs})
        folder = Path(os.path.commonpath(made_from))
        arms = [_arm(group, label) for group, label in zip(groups, labels, strict=True)]
        for label, arm in zip(labels, arms, strict=True):
            summary[label] |= {"names": arm.names, "curves": _curve_numbers(arm.curves, arm.scores)}
    heading = ", ".join(filter(None, (title, _shorten_labels(arms))))
    if out is None or out.is_dir() or not out.suffix:
        out = _default_file(out or folder, arms, look)
    target = figure_file(out, look=look)
    numbers_path = target.with_suffix(".json")
    if not redrawn and numbers_path.is_file() and not _is_plot_json(numbers_path):
        line = f"plot_out is '{target}', whose numbers would replace {numbers_path.name}, a file of something else"
        raise SettingError(f"{line}; allowed: another name", "plot_out")
    check_writable("plot_out", *([target] if redrawn else [target, numbers_path]))
    tag, tasks = _tasks(arms)
    if not tasks and not any(arm.curves for arm in arms):
        problem = f"{title or 'these runs'}: neither returns nor losses were logged yet"
        if any(arm.scores for arm in arms):  # only in a JSON without curves
            problem = f"plot is '{redrawn}', which holds no curves and fewer than two groups of three seeds"
            problem += ": there is nothing to draw; allowed: run folders too"
        raise SettingError(problem)
    text = summary_text(title, summary)
    numbers: dict[str, Any] = {"runs": title, "made_from": made_from, "groups": summary}
    if tasks:
        among = [label for label, arm in zip(summary, arms, strict=True) if arm.label in tasks.get(arm.game, ())]
        numbers["compared"] = {"tag": tag, "groups": among, **scores.compare(tasks)}
        text += "\n" + scores.comparison_text(numbers["compared"], f"{TAGS[tag].short} return")
    print(text)
    with Book(target, look, redrawn) as book:
        _draw(book, arms, heading, tag, tasks)
    if redrawn is None:
        write_numbers(numbers_path, numbers)
    print("\n" + "\n".join(f"Figure:  {path}" for path in book.files) + f"\nNumbers: {redrawn or numbers_path}")
    return 0


# -- arms and their names ----------------------------------------------------------------------------------------------


def _arm(group: Group, label: str) -> Arm:
    """Return the arm of a group of runs."""
    names = dict.fromkeys([*return_tags(group.runs), *logged(group.runs, tags("return", "loss"))])
    by_tag = {tag: curves.on_grid(group.runs, tag) for tag in names}
    finals = {tag: np.array([run.last(tag) for run in group.runs]) for tag in by_tag if TAGS[tag].kind == "return"}
    finals = {tag: values[np.isfinite(values)] for tag, values in finals.items()}
    return Arm(label, group.names, len(group.runs), by_tag, finals)


def read_numbers(path: Path) -> tuple[str, dict[str, Any], list[Arm]]:
    """Read title, summary and arms from a JSON of `plot`. Raises SettingError for any other file."""
    problem = "which --plot did not write; allowed: run folders, or a JSON file that it wrote"
    try:
        content = read_json(path, _MAX_BYTES)
        title, arms = str(content["runs"]), []
        summary_text(title, content["groups"])  # raises for values that the loop below does not check
        for label, group in content["groups"].items():
            curves_by_tag = {}
            for tag, curve in group.get("curves", {}).items():
                steps, seeds = curve["env_steps"], curve["seeds"]
                values = np.array(seeds, float).reshape(len(seeds), len(steps))
                curves_by_tag[tag] = (np.array(steps, float).reshape(len(steps)), values)
            finals: dict[str, list[float]] = {}
            for numbers in group["seeds"].values():
                for tag, number in numbers.items():
                    if tag in TAGS and (last := number["last"]) is not None:
                        finals.setdefault(tag, []).append(last)
            # Published files without names have them in title and label.
            names = tuple(map(str, group.get("names") or [*title.split(", "), *label.split("/")]))
            arm_scores = {tag: np.array(finals[tag], float) for tag in TAGS if tag in finals}
            arms.append(Arm(label, names, len(group["seeds"]), curves_by_tag, arm_scores))
        return title, content["groups"], arms
    except OSError as error:
        problem = f"which cannot be read: {error.strerror}"
    except (ArithmeticError, ValueError, TypeError, LookupError, AttributeError):
        pass
    raise SettingError(f"plot is '{path}', {problem}")


def _is_plot_json(path: Path) -> bool:
    """Return whether a file is a JSON of `plot`."""
    try:
        return {"runs", "groups"} <= read_json(path, _MAX_BYTES).keys()
    except (OSError, ValueError, AttributeError):
        return False


def _curve_numbers(by_tag: Mapping[str, tuple[Array, Array]], names: Collection[str]) -> dict[str, Any]:
    """Return the curves of the tags ``names`` for JSON, with five digits."""
    return {
        tag: {
            "env_steps": [round(step) for step in steps.tolist()],
            "seeds": [[float(f"{value:.5g}") for value in row] for row in values.tolist()],
        }
        for tag, (steps, values) in by_tag.items()
        if tag in names
    }


def distinct_labels(names: Sequence[tuple[str, ...]]) -> tuple[list[str], str]:
    """Return labels of groups by the parts in which their ``names`` differ, and the text of the common parts."""
    if len({len(parts) for parts in names}) > 1:
        return ["/".join(parts) for parts in names], ""
    differs = [len(set(level)) > 1 for level in zip(*names, strict=True)]  # for each part of the names
    shared = ", ".join(name for name, differ in zip(names[0], differs, strict=True) if not differ)
    return ["/".join(compress(parts, differs)) or parts[-1] for parts in names], shared


def _shorten_labels(arms: Sequence[Arm]) -> str:
    """Set environments and short labels of arms, and return the common prefix of the labels. The environment of arms of
    several environments becomes ``game`` and is not part of the label, because their returns have different scales. A
    prefix of all labels up to a - or _ is removed."""
    environments = {arm.names[0] for arm in arms}
    if len(environments) > 1 and all(len(arm.names) >= 3 for arm in arms):
        short, _ = distinct_labels([arm.names[1:] for arm in arms])
        for arm, label in zip(arms, short, strict=True):
            arm.label, arm.game = label, arm.names[0]
    distinct = {arm.label for arm in arms}
    common_start = os.path.commonprefix(sorted(distinct)) if len(distinct) > 1 else ""
    prefix = common_start[: max(common_start.rfind("-"), common_start.rfind("_")) + 1]
    if not prefix or not all(re.search("[a-zA-Z]", label.removeprefix(prefix)) for label in distinct):
        return ""
    for arm in arms:
        arm.label = arm.label.removeprefix(prefix)
    return prefix.strip("-_")


def _default_file(folder: Path, arms: Sequence[Arm], look: Look) -> Path:
    """Return the file of a figure without a name, such as `plot_lunarlander_RCP-A_UDRL.png`."""
    games = sorted({arm.names[0] for arm in arms}) if all(len(arm.names) >= 3 for arm in arms) else []
    words = games if len(games) <= 3 else [f"{len(games)}_environments"]
    kinds = sorted({arm.label for arm in arms})
    words += kinds if len(kinds) <= 4 else [f"{len(kinds)}_groups"]
    words += ["dark"] * (look.theme == "dark") + ["log"] * look.log
    return look.path(folder, re.sub(r"[^\w.+-]+", "-", "_".join(["plot", *words]))[:80])


def _tasks(arms: Sequence[Arm]) -> tuple[str, dict[str, dict[str, Array]]]:
    """Return the return by which algorithms are compared, and their scores by environment. It is the greedy return if
    all arms have it. Algorithms need three seeds. Searches are omitted beside agents."""
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


# -- drawing -----------------------------------------------------------------------------------------------------------


def _draw(book: Book, arms: Sequence[Arm], title: str, tag: str, tasks: Mapping[str, Mapping[str, Array]]) -> None:
    """Draw the sheets: returns, losses (for a single environment beside the returns), and the comparison of scores."""
    colours = _colours(sorted({arm.label for arm in arms}), arms)
    games = {game: [arm for arm in arms if arm.game == game] for game in dict.fromkeys(arm.game for arm in arms)}
    returns = [panel for game, game_arms in games.items() for panel in _return_panels(game, game_arms)]
    losses = [panel for game, game_arms in games.items() for panel in _loss_panels(game, game_arms)]
    reference_levels = {game: _levels(game_arms) for game, game_arms in games.items()}
    sheets = {"": returns, "losses": losses} if len(games) > 1 else {"": returns + losses}
    for sheet_name, panels in sheets.items():
        for number, page in enumerate(_pages(panels), 1):
            name = f"{sheet_name}{number if number > 1 else ''}"
            _draw_page(book, page, reference_levels, colours, title, name)
    if tasks:
        _draw_scores(book, games, reference_levels, colours, title, tag, tasks)


def _colours(labels: Sequence[str], arms: Sequence[Arm]) -> dict[str, str]:
    """Return a colour for each label. Labels of one environment differ in colour as long as there are enough."""
    colours: dict[str, str] = {}
    for label, preferred in zip(labels, cycle(COLOURS), strict=False):
        games = {arm.game for arm in arms if arm.label == label}
        used = {colours.get(arm.label) for arm in arms if arm.game in games}
        colours[label] = next((colour for colour in (preferred, *COLOURS) if colour not in used), preferred)
    return colours


def _return_panels(game: str, arms: Sequence[Arm]) -> list[Panel]:
    """Return the panels of returns of an environment. Tags that all agents have replace noisier ones."""
    names = [tag for tag in tags("return") if any(tag in arm.curves for arm in arms)]
    common = [tag for tag in names if all(tag in arm.curves for arm in arms if not arm.search)]
    noisy = {name for tag in common for name in TAGS[tag].replaces}
    names = [tag for tag in names if tag not in noisy and (tag in common or not TAGS[tag].replaces)]
    return [Panel(game, tag, *quantity(tag), [arm for arm in arms if tag in arm.curves]) for tag in names]


def _loss_panels(game: str, arms: Sequence[Arm]) -> list[Panel]:
    """Return the panels of losses of an environment. A tag has a panel for each quantity that families log as it."""
    panels: dict[tuple[str, str, str], Panel] = {}
    for tag in tags("loss"):
        for arm in arms:
            if tag in arm.curves:
                title, label = quantity(tag, package_of(arm.names))
                panels.setdefault((tag, title, label), Panel(game, tag, title, label, [])).arms.append(arm)
    return list(panels.values())


def _pages(panels: Sequence[Panel]) -> list[list[list[Panel]]]:
    """Return pages of rows of panels. A row has one environment, one kind of tag and at most three panels."""
    groups: dict[tuple[str, str], list[Panel]] = {}
    for panel in panels:
        groups.setdefault((panel.game, TAGS[panel.tag].kind), []).append(panel)
    panel_rows = []
    for group in groups.values():
        first = 0
        for length in balanced(len(group)):
            panel_rows.append(group[first : first + length])
            first += length
    return [panel_rows[i : i + PAGE_ROWS] for i in range(0, len(panel_rows), PAGE_ROWS)]


def _levels(arms: Sequence[Arm]) -> list[Level]:
    """Return the reference levels of the arms of one environment. A level of one algorithm needs the colour of one arm,
    so it is omitted if several arms have that algorithm."""
    names = {name for arm in arms for name in arm.names if name in implementations()}
    folder = arms[0].names[0]
    game = folder.replace("_", ",", 1) if "=" in folder else folder
    labels = {name: [arm.label for arm in arms if name in arm.names] for name in names} | {"": [""]}
    return [
        Level(level.value, level.name, level.source, labels[level.implementation][0])
        for level in levels(game, names)
        if len(labels[level.implementation]) == 1
    ]


def _heading(arms: Sequence[Arm], title: str) -> str:
    """Return the title of a sheet: environment or number of environments, common names, number of seeds."""
    games = list(dict.fromkeys(arm.game for arm in arms))
    environments = f"{len(games)} environments" if len(games) > 1 else game_text(games[0])
    return ", ".join(filter(None, (environments, title, seeds_text([arm.seeds for arm in arms]))))


def _draw_page(
    book: Book,
    page: Sequence[Sequence[Panel]],
    reference_levels: Mapping[str, Sequence[Level]],
    colours: Mapping[str, str],
    title: str,
    name: str,
) -> None:
    """Draw a sheet with rows of panels. Panels of returns of one environment share their limits."""
    panels = [panel for row in page for panel in row]
    arms = [arm for panel in panels for arm in panel.arms]
    seeds = [arm.seeds for arm in arms]
    notes = curves.curves_note(seeds, any(len(panel.arms) == 1 for panel in panels))
    notes += [curves.SMOOTHED, "to the shortest run's end"] if max(seeds) > 1 else [curves.SMOOTHED]
    if any(TAGS[panel.tag].kind == "return" for panel in panels):
        notes.append(sources([level for game in _games(panels) for level in reference_levels[game]]))
    note = "; ".join(filter(None, notes))
    several = any(arm.game for arm in arms)
    size = (WIDTH, (2.0 if max(map(len, page)) > 1 else 2.8) * len(page))
    cells = rows(*map(len, page))
    with book.sheet(cells, size, name=name, title=_heading(arms, title), note=note) as axes:
        for label in sorted({arm.label for arm in arms}):  # sets the order of the legend
            axes[0].plot([], [], color=colours[label], label=label)
        remaining_axes = iter(axes)
        values: dict[Any, Array] = {}  # axis -> all values of a panel of returns
        for row in page:
            for column, panel in enumerate(row):
                axis, is_return = next(remaining_axes), TAGS[panel.tag].kind == "return"
                with_seeds = len(panel.arms) == 1
                for arm in panel.arms:
                    curves.draw_curves(axis, *arm.curves[panel.tag], colours[arm.label], arm.label, with_seeds)
                set_title(axis, f"{game_text(panel.game)}: {panel.title}" if several else panel.title, 6.2 / len(row))
                same_label = column > 0 and panel.label == row[column - 1].label
                log = book.look.log if is_return or panel.label == RETURN_LABEL else True
                if is_return:
                    values[axis] = np.concatenate([arm.curves[panel.tag][1].ravel() for arm in panel.arms])
                curves.finish_panel(axis, panel.tag, "" if same_label else panel.label, log, values.get(axis))
        for game in _games(panels):
            return_axes: dict[Any, str] = {}  # axis -> label of its steps
            for panel, axis in zip(panels, axes, strict=True):
                if panel.game == game and episode_returns([panel.tag]):
                    return_axes[axis] = steps_label(panel.tag)
            share_limits([*return_axes])
            for label in dict.fromkeys(return_axes.values()):
                share_limits([axis for axis in return_axes if return_axes[axis] == label], "x")
            for axis in return_axes:
                draw_levels(axis, reference_levels[game], dict(colours), labels=not several, game=game_text(game))
            share_limits([*return_axes])  # which levels may have extended
        for axis, panel_values in values.items():
            curves.note_hidden(axis, panel_values)


def _games(panels: Sequence[Panel]) -> list[str]:
    """Return the environments of panels in their order."""
    return list(dict.fromkeys(panel.game for panel in panels))


def _draw_scores(
    book: Book,
    games: Mapping[str, Sequence[Arm]],
    reference_levels: Mapping[str, Sequence[Level]],
    colours: Mapping[str, str],
    title: str,
    tag: str,
    tasks: Mapping[str, Mapping[str, Array]],
) -> None:
    """Draw the sheet that compares algorithms by the scores of ``tag``. A sheet of a single environment also shows up
    to two other returns."""
    all_levels = [level for game in tasks for level in reference_levels[game]]
    note = "; ".join(filter(None, (scores.note(tasks), sources(all_levels))))
    arms = {game: [arm for arm in games[game] if arm.label in task] for game, task in tasks.items()}
    other_scores = {}
    if len(tasks) == 1 and episode_returns([tag]):
        (game_arms,) = arms.values()
        names = [name for name in episode_returns(TAGS) if all(name in arm.scores for arm in game_arms)]
        noisy = {name for common in names for name in TAGS[common].replaces}
        other_names = [name for name in names if name not in noisy | {tag}]
        for name in other_names[:2]:
            other_scores[_score_label(name)] = {arm.label: arm.scores[name] for arm in game_arms}
    heading = _heading([arm for game_arms in arms.values() for arm in game_arms], title)
    scores.draw(book, tasks, colours, reference_levels, _score_label(tag), heading, note, other_scores)


def _score_label(tag: str) -> str:
    """Return the label of an axis of scores."""
    return f"return, {TAGS[tag].short}" if episode_returns([tag]) else TAGS[tag].short
