"""Figures of `--plot`: groups of runs side by side, from run folders or from the numbers of an earlier figure. An arm
(`Arm`) has the curves and scores of a group of runs."""

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from control.cli.files import read_json
from control.reports import curves, scores, sheets
from control.reports.runs import Array, Group, find_groups, logged, note_group_versions, return_tags, short_path
from control.reports.search import TRIALS, plot_search
from control.reports.sheets import PLAIN, Look
from control.reports.tables import seeds_text, summarise, summary_text
from control.reports.tags import GREEDY, TAGS, Kind, of_search, tags, without_replaced
from models.registry import implementations
from models.settings import SettingError

PAGE_ROWS = 4  # rows of panels on a page
_MAX_BYTES = 20_000_000  # of the JSON of a figure


@dataclass
class Arm:
    """Curves and scores of a group of runs with ``seeds`` seeds and the ``names`` of environment, experiment and
    implementation (`Group`). ``curves`` maps a tag to G steps ``[G]`` and values ``[N, G]`` of N seeds. ``scores`` maps
    the tag of a return to the means ``[N]`` of the seeds over the last tenth of the epochs. ``points`` has the steps
    and values of a single run as it logged them. ``label`` is the name in the legend. ``game`` is the environment if
    the figure has several, otherwise empty."""

    label: str
    names: tuple[str, ...]
    seeds: int
    curves: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    scores: dict[str, Array] = field(default_factory=dict)
    points: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    game: str = ""

    @property
    def is_search(self) -> bool:
        """Whether the runs are searches."""
        return of_search((*self.curves, *self.scores))


class Panel(NamedTuple):
    """A panel of curves: environment, tag, title, label of the y axis, and the arms in it."""

    game: str
    tag: str
    title: str
    label: str
    arms: list[Arm]


def plot(run_dirs: Sequence[Path], out: Path | None = None, look: Look = PLAIN, groups: Sequence[Group] = ()) -> int:
    """Draw and tabulate groups of runs: mean with its 95 % bootstrap band and IQM over seeds.

    ``run_dirs`` are run folders, folders above them, or the JSON of an earlier figure. The folder of a hyperparameter
    search gives a figure of its hyperparameters. ``groups`` are the runs, if they are read already. ``out`` is a file
    (.png, .pdf, .svg) or a folder; by default the figure is in the common folder of the runs. The numbers are written
    beside it as JSON. Each environment has separate rows of panels. Algorithms with three seeds or more are also
    compared by their scores.

    Returns the exit code 0. Raises SettingError if there is nothing to draw or a file cannot be written, before
    anything is printed.
    """
    out = None if out is None else Path(out)
    if len(run_dirs) == 1 and (run_dirs[0] / TRIALS).is_file():
        print(f"Figure:  {short_path(plot_search(run_dirs[0], look, out))}")
        return 0
    if out is not None:
        sheets.figure_file(out)  # raises for a wrong suffix before anything is read
    redrawn = Path(run_dirs[0]) if len(run_dirs) == 1 and Path(run_dirs[0]).suffix == ".json" else None
    if redrawn:  # from the JSON of an earlier figure
        made_from = list[str]()
        folder = redrawn.parent
        title, summary, arms = read_numbers(redrawn)
    else:
        if not groups:
            groups = find_groups(run_dirs)
            note_group_versions(groups, run_dirs, "plot")
        made_from = sorted({str(run.source.parent) for group in groups for run in group.runs})
        folder = Path(os.path.commonpath(made_from))
        title, summary, arms = _summarise(groups)
    heading = ", ".join(filter(None, (title, _shorten_labels(arms))))
    if out is None or out.is_dir() or not out.suffix:
        out = _default_file(out or folder, arms, look)
    target = sheets.figure_file(out, look=look)
    numbers_path = redrawn or target.with_suffix(".json")
    if redrawn:
        sheets.check_writable("plot_out", target)
    else:
        _check_numbers_path(numbers_path, target)
        sheets.check_writable("plot_out", target, numbers_path)
    tag, tasks = _tasks(arms)
    if not tasks and not any(arm.curves for arm in arms):
        raise SettingError(f"{title or 'these runs'}: neither returns nor losses were logged yet")
    text = summary_text(title, summary)
    numbers: dict[str, Any] = {"runs": title, "made_from": made_from, "groups": summary}
    if tasks:
        compared = [label for label, arm in zip(summary, arms, strict=True) if arm.label in tasks.get(arm.game, ())]
        numbers["compared"] = {"tag": tag, "groups": compared, **scores.compare(tasks)}
        text += "\n" + scores.comparison_text(numbers["compared"], f"{TAGS[tag].short} return")
    print(text)
    with sheets.Book(target, look, redrawn) as book:
        _draw(book, arms, heading, tag, tasks)
    if not redrawn:
        sheets.write_numbers(numbers_path, numbers)
    print()
    for path in book.files:
        print(f"Figure:  {short_path(path)}")
    print(f"Numbers: {short_path(redrawn or numbers_path)}")
    return 0


# -- arms and their names ----------------------------------------------------------------------------------------------


def _summarise(groups: Sequence[Group]) -> tuple[str, dict[str, Any], list[Arm]]:
    """Return three things: the names common to all groups as a title, the numbers of each group by label, as `plot`
    writes them in its JSON, and an arm for each group."""
    labels, title = distinct_labels([group.names for group in groups])
    summary, arms = {}, []
    for label, group in zip(labels, groups, strict=True):
        names = dict.fromkeys([*return_tags(group.runs), *logged(group.runs, tags("return", "loss"))])
        arm = Arm(label, group.names, len(group.runs))
        curve_numbers = {}  # of returns, rounded
        for tag in names:
            steps, seed_curves = curves.on_grid(group.runs, tag)
            arm.curves[tag] = (steps, seed_curves)
            if len(group.runs) == 1:
                arm.points[tag] = group.runs[0].points(tag, "env_steps")
            if TAGS[tag].kind == "return":
                last = np.array([run.last(tag) for run in group.runs])
                arm.scores[tag] = last[np.isfinite(last)]
                rounded = [[float(f"{value:.5g}") for value in row] for row in seed_curves.tolist()]
                curve_numbers[tag] = {"env_steps": [round(step) for step in steps.tolist()], "seeds": rounded}
        summary[label] = summarise(group) | {"names": group.names, "curves": curve_numbers}
        arms.append(arm)
    return title, summary, arms


def read_numbers(path: Path) -> tuple[str, dict[str, Any], list[Arm]]:
    """Read title, numbers by label, and arms from a JSON of `plot`. Raises SettingError for any other file."""
    problem = "which --plot did not write; allowed: run folders, or a JSON file that it wrote"
    try:
        content = read_json(path, _MAX_BYTES)
        title, groups = str(content["runs"]), content["groups"]
        summary_text(title, groups)  # raises for values that the next line does not check
        return title, groups, [_redrawn_arm(label, group, title) for label, group in groups.items()]
    except OSError as error:
        problem = f"which cannot be read: {error.strerror}"
    except (ArithmeticError, ValueError, TypeError, LookupError, AttributeError):
        pass
    raise SettingError(f"plot is '{path}', {problem}")


def _redrawn_arm(label: str, group: dict[str, Any], title: str) -> Arm:
    """Return the curves and scores of the ``group`` with this ``label`` in a JSON of `plot` with this ``title``."""
    arm_curves = {}
    for tag, curve in group.get("curves", {}).items():
        steps, seeds = curve["env_steps"], curve["seeds"]
        values = np.array(seeds, float).reshape(len(seeds), len(steps))  # raises for other shapes
        arm_curves[tag] = (np.array(steps, float).reshape(len(steps)), values)
    last: dict[str, list[float]] = {}
    for numbers in group["seeds"].values():
        for tag, number in numbers.items():
            if tag in TAGS and number["last"] is not None:
                last.setdefault(tag, []).append(number["last"])
    # Older files have no names. Title and label contain them.
    names = tuple(map(str, group.get("names") or [*title.split(", "), *label.split("/")]))
    arm_scores = {tag: np.array(last[tag], float) for tag in TAGS if tag in last}
    return Arm(label, names, len(group["seeds"]), arm_curves, arm_scores)


def _check_numbers_path(path: Path, figure: Path) -> None:
    """Raise SettingError if the numbers of ``figure`` would replace a file ``path`` that `plot` did not write."""
    is_replaceable = not path.is_file()
    with contextlib.suppress(OSError, ValueError, AttributeError):
        is_replaceable = is_replaceable or {"runs", "groups"} <= read_json(path, _MAX_BYTES).keys()
    if not is_replaceable:
        line = f"plot_out is '{figure}', whose numbers would replace {path.name}, a file of something else"
        raise SettingError(f"{line}; allowed: another name", "plot_out")


def distinct_labels(names: Sequence[tuple[str, ...]]) -> tuple[list[str], str]:
    """Return a label for each group, made from the parts in which their ``names`` differ, and the text of the parts
    that all share (none if their numbers of parts differ). If all names are equal, the last part is the label."""
    if len({len(parts) for parts in names}) > 1:
        return ["/".join(parts) for parts in names], ""
    differs = [len(set(parts)) > 1 for parts in zip(*names, strict=True)]  # first parts, second parts, ...
    shared = ", ".join(part for part, differ in zip(names[0], differs, strict=True) if not differ)
    return ["/".join(compress(parts, differs)) or parts[-1] for parts in names], shared


def _environments(arms: Sequence[Arm]) -> list[str]:
    """Return the environments of groups of runs. Empty if an arm (group) has no names of environment, experiment and
    implementation: a copied run folder has only the name of the folder."""
    has_all_names = all(len(arm.names) >= 3 for arm in arms)
    return sorted({arm.names[0] for arm in arms}) if has_all_names else []


def _shorten_labels(arms: Sequence[Arm]) -> str:
    """Shorten the labels of ``arms`` in place. If there are several environments, the environment moves from the label
    to ``game``. Then a prefix that all labels share, up to a - or _, is removed and returned, unless that would leave a
    label without letters, such as ``256``. Returns an empty text if no prefix was removed."""
    if len(_environments(arms)) > 1:
        new_labels, _ = distinct_labels([arm.names[1:] for arm in arms])
        for arm, label in zip(arms, new_labels, strict=True):
            arm.label, arm.game = label, arm.names[0]
    labels = {arm.label for arm in arms}
    common_start = os.path.commonprefix(sorted(labels)) if len(labels) > 1 else ""
    prefix = common_start[: max(common_start.rfind("-"), common_start.rfind("_")) + 1]
    if not all(re.search("[a-zA-Z]", label.removeprefix(prefix)) for label in labels):
        return ""
    for arm in arms:
        arm.label = arm.label.removeprefix(prefix)
    return prefix.strip("-_")


def _default_file(folder: Path, arms: Sequence[Arm], look: sheets.Look) -> Path:
    """Return the file of a figure without a name, such as `plot_lunarlander_RCP-A_UDRL.png`."""
    games, labels = _environments(arms), sorted({arm.label for arm in arms})
    words = ["plot"]
    words += games if len(games) <= 3 else [f"{len(games)}_environments"]
    words += labels if len(labels) <= 4 else [f"{len(labels)}_groups"]
    words += ["dark"] if look.theme == "dark" else []
    words += ["log"] if look.log else []
    return look.path(folder, re.sub(r"[^\w.+-]+", "-", "_".join(words))[:80])


def _tasks(arms: Sequence[Arm]) -> tuple[str, dict[str, dict[str, Array]]]:
    """Return the tag of the return by which algorithms are compared (the greedy return if all arms have it), and their
    scores ``[N]`` by environment and label. Algorithms with fewer than three seeds are omitted, and so are searches
    unless all arms are searches."""
    arms = [arm for arm in arms if not arm.is_search] or arms
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


def _draw(book: sheets.Book, arms: Sequence[Arm], title: str, tag: str, tasks: Mapping[str, scores.Task]) -> None:
    """Draw the sheets: returns, losses, and the comparison of scores. For a single environment, losses
    are on the sheets of returns, except on a page of `--report`, which shows the comparison between them."""
    colour_of = _colours(sorted({arm.label for arm in arms}), arms)
    colours = {arm.label: colour_of[arm.label] for arm in arms}  # in the order of the legend
    arms_by_game: dict[str, list[Arm]] = {}
    for arm in arms:
        arms_by_game.setdefault(arm.game, []).append(arm)
    returns, losses = [], []  # rows of panels
    for game, game_arms in arms_by_game.items():
        returns += _panel_rows(game, game_arms, "return")
        losses += _panel_rows(game, game_arms, "loss")
    reference_levels = {game: _levels(game_arms) for game, game_arms in arms_by_game.items()}
    # Figures of `--report` have no texts.
    separate_losses = len(arms_by_game) > 1 or (tasks and not book.look.texts)
    rows_by_sheet = {"": returns, "losses": losses} if separate_losses else {"": returns + losses}
    for sheet_name, rows in rows_by_sheet.items():
        for first in range(0, len(rows), PAGE_ROWS):
            name = f"{sheet_name}{first // PAGE_ROWS + 1 if first else ''}"  # losses, losses2, ...
            _draw_page(book, rows[first : first + PAGE_ROWS], reference_levels, colours, title, name)
    if tasks:
        _draw_scores(book, arms_by_game, reference_levels, colours, title, tag, tasks)


def _colours(labels: Sequence[str], arms: Sequence[Arm]) -> dict[str, str]:
    """Return a colour for each label. Two labels in the same environment get different colours, unless there are more
    labels than colours."""
    colours: dict[str, str] = {}
    for label, preferred in zip(labels, cycle(sheets.COLOURS), strict=False):
        games = {arm.game for arm in arms if arm.label == label}
        used = {colours.get(arm.label) for arm in arms if arm.game in games}  # None for labels without a colour yet
        colours[label] = next((colour for colour in (preferred, *sheets.COLOURS) if colour not in used), preferred)
    return colours


def _panel_rows(game: str, arms: Sequence[Arm], kind: Kind) -> list[list[Panel]]:
    """Return rows of at most three panels with the returns or losses (``kind``) of the ``arms`` in an environment. If
    one tag is different quantities for different agents (`curves.quantity`), each has a panel."""
    names = [tag for tag in tags(kind) if any(tag in arm.curves for arm in arms)]
    common = [tag for tag in names if all(tag in arm.curves for arm in arms if not arm.is_search)]
    panels: dict[tuple[str, str, str], Panel] = {}
    for tag in without_replaced(names, common):
        for arm in arms:
            if tag in arm.curves:
                title, label = curves.quantity(tag, curves.package_of(arm.names))
                panels.setdefault((tag, title, label), Panel(game, tag, title, label, [])).arms.append(arm)
    remaining_panels = iter(panels.values())
    return [list(islice(remaining_panels, length)) for length in sheets.balanced(len(panels))]


def _levels(arms: Sequence[Arm]) -> list[curves.Level]:
    """Return the reference levels of the arms in one environment. The ``implementation`` of a level is replaced by the
    label of the arm with this implementation, so that both have one colour. If several arms have it, the level is
    omitted."""
    names = {name for arm in arms for name in arm.names if name in implementations()}
    folder = arms[0].names[0]
    game = folder.replace("_", ",", 1) if "=" in folder else folder  # the folder of procmaze,grid_size=3 has a _
    reference_levels = []
    for level in curves.levels(game, names):
        labels = [arm.label for arm in arms if level.implementation in arm.names] if level.implementation else [""]
        if len(labels) == 1:
            reference_levels.append(replace(level, implementation=labels[0]))
    return reference_levels


def _heading(arms: Sequence[Arm], title: str) -> str:
    """Return the title of a sheet: environment or number of environments, common names, number of seeds."""
    games = list(dict.fromkeys(arm.game for arm in arms))
    environments = f"{len(games)} environments" if len(games) > 1 else curves.game_text(games[0])
    return ", ".join(filter(None, (environments, title, seeds_text([arm.seeds for arm in arms]))))


def _draw_page(
    book: sheets.Book,
    page: Sequence[Sequence[Panel]],
    reference_levels: Mapping[str, Sequence[curves.Level]],
    colours: Mapping[str, str],
    title: str,
    name: str,
) -> None:
    """Draw the sheet ``name`` with rows of panels (``page``). Returns of one environment have the same limits."""
    panels = [panel for row in page for panel in row]
    arms = [arm for panel in panels for arm in panel.arms]
    several_games = any(arm.game for arm in arms)
    size = (sheets.WIDTH, (2.0 if max(map(len, page)) > 1 else 2.8) * len(page))
    cells, note = sheets.rows(*map(len, page)), _page_note(panels, reference_levels)
    with book.sheet(cells, size, name=name, title=_heading(arms, title), note=note) as axes:
        for label, colour in colours.items():  # sets the order of the legend
            if any(arm.label == label for arm in arms):
                axes[0].plot([], [], color=colour, label=label)
        remaining_axes = iter(axes)
        return_values: dict[Any, Array] = {}  # axis of a panel of returns -> all values in it
        for row in page:
            left_label = ""
            for panel in row:
                axis = next(remaining_axes)
                for arm in panel.arms:
                    steps, seed_curves = arm.curves[panel.tag]
                    with_seeds = len(panel.arms) == 1
                    curves.draw_curves(axis, steps, seed_curves, colours[arm.label], arm.label, with_seeds)
                    if with_seeds and panel.tag in arm.points:
                        axis.plot(*arm.points[panel.tag], color=colours[arm.label], linewidth=0.5, alpha=0.4)
                panel_title = f"{curves.game_text(panel.game)}: {panel.title}" if several_games else panel.title
                sheets.set_title(axis, panel_title, 6.2 / len(row))
                is_return = TAGS[panel.tag].kind == "return"
                if is_return:
                    return_values[axis] = np.concatenate([arm.curves[panel.tag][1].ravel() for arm in panel.arms])
                is_loss = not is_return and panel.label != curves.RETURN_LABEL  # a baseline is a return
                curves.finish_panel(axis, panel.tag, panel.label, is_loss or book.look.log, return_values.get(axis))
                axis.yaxis.label.set_visible(panel.label != left_label)  # once for neighbours with the same label
                left_label = panel.label
        for game in dict.fromkeys(panel.game for panel in panels):
            return_axes: dict[Any, str] = {}  # axis -> label of its steps
            for panel, axis in zip(panels, axes, strict=True):
                if panel.game == game and curves.episode_returns([panel.tag]):
                    return_axes[axis] = curves.steps_label(panel.tag)
            curves.share_limits([*return_axes])
            for label in dict.fromkeys(return_axes.values()):
                curves.share_limits([axis for axis in return_axes if return_axes[axis] == label], "x")
            game_text = curves.game_text(game)
            legend: curves.Legend = "names" if several_games else "values"
            for axis in return_axes:
                curves.draw_levels(axis, reference_levels[game], colours, legend, game=game_text)
            curves.share_limits([*return_axes])  # the levels may have changed them
        for axis, values in return_values.items():
            curves.note_hidden(axis, values)


def _page_note(panels: Sequence[Panel], reference_levels: Mapping[str, Sequence[curves.Level]]) -> str:
    """Return the note of a sheet with these panels: the meaning of the lines, and the sources of reference levels."""
    seeds = [arm.seeds for panel in panels for arm in panel.arms]
    notes = curves.curves_note(seeds, any(len(panel.arms) == 1 for panel in panels))
    notes += [curves.SMOOTHED, "to the shortest run's end"] if max(seeds) > 1 else [curves.SMOOTHED]
    if any(len(panel.arms) == 1 and panel.arms[0].points for panel in panels):
        notes.append("thin, in panels of one run: as logged")
    if any(TAGS[panel.tag].kind == "return" for panel in panels):
        games = dict.fromkeys(panel.game for panel in panels)
        notes.append(curves.sources([level for game in games for level in reference_levels[game]]))
    return "; ".join(filter(None, notes))


def _draw_scores(
    book: sheets.Book,
    arms_by_game: Mapping[str, Sequence[Arm]],
    reference_levels: Mapping[str, Sequence[curves.Level]],
    colours: Mapping[str, str],
    title: str,
    tag: str,
    tasks: Mapping[str, scores.Task],
) -> None:
    """Draw the sheet that compares algorithms by their scores of the return ``tag``, which ``tasks`` has by environment
    and label. A sheet of a single environment also shows up to two other returns."""
    sources = curves.sources([level for game in tasks for level in reference_levels[game]])
    note = "; ".join(filter(None, (scores.note(tasks), sources)))
    arms = [arm for game, task in tasks.items() for arm in arms_by_game[game] if arm.label in task]
    other_scores = {}
    if len(tasks) == 1 and curves.episode_returns([tag]):
        common = [name for name in curves.episode_returns(TAGS) if all(name in arm.scores for arm in arms)]
        other_names = [name for name in without_replaced(common, common) if name != tag]
        for name in other_names[:2]:
            other_scores[_score_label(name)] = {arm.label: arm.scores[name] for arm in arms}
    heading = _heading(arms, title)
    scores.draw(book, tasks, colours, reference_levels, _score_label(tag), heading, note, other_scores)


def _score_label(tag: str) -> str:
    """Return the label of an axis of scores."""
    return f"return, {TAGS[tag].short}" if curves.episode_returns([tag]) else TAGS[tag].short
