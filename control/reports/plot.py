"""Figures of `--plot`: groups of runs side by side, from run folders or from the numbers of an earlier figure. An arm
(`Arm`) has the curves and scores of a group of runs."""

import contextlib
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress, cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from control.cli.files import read_json
from control.reports import curves, scores, sheets
from control.reports.runs import Array, Group, find_groups, logged, return_tags, short_path
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
    the tag of a return to the means ``[N]`` of the seeds over the last tenth of the epochs. ``label`` is the name in
    the legend. ``game`` is the environment if the figure has several, otherwise empty."""

    label: str
    names: tuple[str, ...]
    seeds: int
    curves: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    scores: dict[str, Array] = field(default_factory=dict)
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

    @property
    def is_return(self) -> bool:
        """Whether the panel shows a return, and not a loss."""
        return TAGS[self.tag].kind == "return"

    @property
    def values(self) -> Array:
        """All values in the panel, ``[K]``."""
        return np.concatenate([arm.curves[self.tag][1].ravel() for arm in self.arms])


@dataclass
class Figure:
    """Content of a figure: the ``arms``, the names common to all of them as a ``title``, and the numbers of each arm by
    label, ``summary``, as they are in the JSON of the figure."""

    title: str
    summary: dict[str, Any]
    arms: list[Arm]

    def __post_init__(self) -> None:
        """If there are several environments, move the environment from the labels of the arms to ``Arm.game``."""
        if len(_environments(self.arms)) > 1:
            new_labels, _ = distinct_labels([arm.names[1:] for arm in self.arms])
            for arm, label in zip(self.arms, new_labels, strict=True):
                arm.label, arm.game = label, arm.names[0]

    @cached_property
    def arms_by_game(self) -> dict[str, list[Arm]]:
        """Arms of each environment."""
        games: dict[str, list[Arm]] = {}
        for arm in self.arms:
            games.setdefault(arm.game, []).append(arm)
        return games

    @cached_property
    def colours(self) -> dict[str, str]:
        """Colours by label, in the order of the legend."""
        colour_of = dict(zip(sorted({arm.label for arm in self.arms}), cycle(sheets.COLOURS), strict=False))
        return {arm.label: colour_of[arm.label] for arm in self.arms}

    @cached_property
    def levels(self) -> dict[str, list[curves.Level]]:
        """Reference levels of each environment."""
        return {game: _levels(arms) for game, arms in self.arms_by_game.items()}

    @cached_property
    def comparison(self) -> tuple[str, dict[str, dict[str, Array]]]:
        """Tag of the return by which algorithms are compared, and their scores ``[N]`` by environment and label. The
        tag is the greedy return if all have it. Algorithms with fewer than three seeds are omitted, and so are searches
        unless all arms are searches."""
        arms = [arm for arm in self.arms if not arm.is_search] or self.arms
        shared = [tag for tag in TAGS if all(tag in arm.scores for arm in arms)]
        if not shared:
            return "", {}
        tag = GREEDY if GREEDY in shared else shared[0]
        tasks: dict[str, dict[str, Array]] = {}
        for arm in arms:
            tasks.setdefault(arm.game, {})[arm.label] = arm.scores[tag]
        comparable_tasks = {game: scores.comparable(task) for game, task in tasks.items()}
        return tag, {game: task for game, task in comparable_tasks.items() if task}

    def heading(self, arms: Sequence[Arm]) -> str:
        """Return the title of a sheet about some of the arms: environment or number of environments, common names,
        number of seeds."""
        games = list(dict.fromkeys(arm.game for arm in arms))
        environments = f"{len(games)} environments" if len(games) > 1 else curves.game_text(games[0])
        return ", ".join(filter(None, (environments, self.title, seeds_text([arm.seeds for arm in arms]))))


def plot(run_dirs: Sequence[Path], out: Path | None = None, look: Look = PLAIN) -> int:
    """Draw and tabulate groups of runs: mean with its 95 % bootstrap band and IQM over seeds.

    ``run_dirs`` are run folders, folders above them, or the JSON of an earlier figure. The folder of a hyperparameter
    search gives a figure of its hyperparameters. ``out`` is a file (.png, .pdf, .svg) or a folder; by default the
    figure is in the common folder of the runs. The numbers are written beside it as JSON. Each environment has separate
    rows of panels. Algorithms with three seeds or more are also compared by their scores.

    Returns the exit code 0. Raises SettingError if there is nothing to draw or a file cannot be written, before
    anything is printed.
    """
    if len(run_dirs) == 1 and (run_dirs[0] / TRIALS).is_file():
        print(f"Figure:  {short_path(plot_search(run_dirs[0], look, out))}")
        return 0
    earlier_json = run_dirs[0] if len(run_dirs) == 1 and run_dirs[0].suffix == ".json" else None
    if earlier_json:
        folder, figure, made_from = earlier_json.parent, read_numbers(earlier_json), list[str]()
    else:
        groups = find_groups(run_dirs)
        made_from = sorted({str(run.source.parent) for group in groups for run in group.runs})
        folder, figure = Path(os.path.commonpath(made_from)), figure_of(groups)
    stem = file_stem("plot", _environments(figure.arms), {arm.label for arm in figure.arms}, look)
    target = sheets.figure_file(out or folder, look=look, stem=stem)
    numbers_path = earlier_json or target.with_suffix(".json")
    if not earlier_json:
        _check_numbers_path(numbers_path, target)
    sheets.check_writable("plot_out", target, *([] if earlier_json else [numbers_path]))
    tag, tasks = figure.comparison
    if not tasks and not any(arm.curves for arm in figure.arms):
        raise SettingError(f"{figure.title or 'these runs'}: neither returns nor losses were logged yet")
    print(summary_text(figure.title, figure.summary))
    numbers: dict[str, Any] = {"runs": figure.title, "made_from": made_from, "groups": figure.summary}
    if tasks:
        improvements = scores.compare(tasks)
        numbers["compared"] = {"tag": tag, "improvement": improvements}
        print(f"\n{scores.comparison_text(improvements)}")
    with sheets.Book(target, look, earlier_json) as book:
        draw(book, figure)
    if not earlier_json:
        sheets.write_numbers(numbers_path, numbers)
    print()
    for path in book.files:
        print(f"Figure:  {short_path(path)}")
    print(f"Numbers: {short_path(numbers_path)}")
    return 0


# -- arms and their names ----------------------------------------------------------------------------------------------


def figure_of(groups: Sequence[Group]) -> Figure:
    """Return the content of the figure of ``groups``."""
    labels, title = distinct_labels([group.names for group in groups])
    summary, arms = {}, []
    for label, group in zip(labels, groups, strict=True):
        names = dict.fromkeys([*return_tags(group.runs), *logged(group.runs, tags("return", "loss"))])
        arm = Arm(label, group.names, len(group.runs))
        curve_numbers = {}  # of returns, rounded
        for tag in names:
            steps, seed_curves = curves.on_grid(group.runs, tag)
            arm.curves[tag] = (steps, seed_curves)
            if TAGS[tag].kind == "return":
                last = np.array([run.last(tag) for run in group.runs])
                arm.scores[tag] = last[np.isfinite(last)]
                rounded = [[float(f"{value:.5g}") for value in row] for row in seed_curves.tolist()]
                curve_numbers[tag] = {"env_steps": [round(step) for step in steps.tolist()], "seeds": rounded}
        summary[label] = summarise(group) | {"names": group.names, "curves": curve_numbers}
        arms.append(arm)
    return Figure(title, summary, arms)


def read_numbers(path: Path) -> Figure:
    """Return the content of a figure from its JSON. Raises SettingError for any other file."""
    problem = "which --plot did not write; allowed: run folders, or a JSON file that it wrote"
    try:
        content = read_json(path, _MAX_BYTES)
        title, groups = str(content["runs"]), content["groups"]
        summary_text(title, groups)  # raises for values that the next line does not check
        return Figure(title, groups, [_redrawn_arm(label, group, title) for label, group in groups.items()])
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


def file_stem(kind: str, games: Collection[str], labels: Collection[str], look: Look = PLAIN) -> str:
    """Return the name of a file about groups of runs with these ``labels``, such as `plot_lunarlander_RCP-A_UDRL` of
    the ``kind`` "plot"."""
    words = [kind]
    words += sorted(games) if len(games) <= 3 else [f"{len(games)}_environments"]
    words += sorted(labels) if len(labels) <= 4 else [f"{len(labels)}_groups"]
    words += ["dark"] if look.theme == "dark" else []
    words += ["log"] if look.log else []
    return re.sub(r"[^\w.+-]+", "-", "_".join(words))[:80]


# -- drawing -----------------------------------------------------------------------------------------------------------


def draw(book: sheets.Book, figure: Figure) -> None:
    """Draw the sheets: returns, losses, and the comparison of scores. For a single environment, losses
    are on the sheets of returns, except on a page of `--report`, which shows the comparison between them."""
    _, tasks = figure.comparison
    returns, losses = [], []  # rows of panels
    for game, arms in figure.arms_by_game.items():
        returns += _panel_rows(game, arms, "return")
        losses += _panel_rows(game, arms, "loss")
    # Figures of `--report` have no texts.
    separate_losses = len(figure.arms_by_game) > 1 or (tasks and not book.look.texts)
    rows_by_sheet = {"": returns, "losses": losses} if separate_losses else {"": returns + losses}
    for sheet_name, rows in rows_by_sheet.items():
        for first in range(0, len(rows), PAGE_ROWS):
            name = f"{sheet_name}{first // PAGE_ROWS + 1 if first else ''}"  # losses, losses2, ...
            _draw_page(book, figure, rows[first : first + PAGE_ROWS], name)
    if tasks:
        _draw_scores(book, figure)


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
    rows, remaining_panels = [], list(panels.values())
    for length in sheets.balanced(len(panels)):
        rows.append(remaining_panels[:length])
        remaining_panels = remaining_panels[length:]
    return rows


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


def _draw_page(book: sheets.Book, figure: Figure, page: Sequence[Sequence[Panel]], name: str) -> None:
    """Draw the sheet ``name`` with the rows of panels of a ``page``."""
    panels = [panel for row in page for panel in row]
    arms = [arm for panel in panels for arm in panel.arms]
    size = (sheets.WIDTH, (2.0 if max(map(len, page)) > 1 else 2.8) * len(page))
    games = dict.fromkeys(panel.game for panel in panels if panel.is_return)
    sources = curves.sources([level for game in games for level in figure.levels[game]])
    cells, note = sheets.rows(*map(len, page)), "; ".join(filter(None, [curves.CURVES_NOTE, sources]))
    with book.sheet(cells, size, name=name, title=figure.heading(arms), note=note) as axes:
        for label, colour in figure.colours.items():  # sets the order of the legend
            if any(arm.label == label for arm in arms):
                axes[0].plot([], [], color=colour, label=label)
        remaining_axes = iter(axes)
        for row in page:
            left_label = ""
            for panel in row:
                axis = next(remaining_axes)
                _draw_panel(axis, panel, figure.colours, book.look.log)
                panel_title = f"{curves.game_text(panel.game)}: {panel.title}" if panel.game else panel.title
                sheets.set_title(axis, panel_title, 6.2 / len(row))
                axis.yaxis.label.set_visible(panel.label != left_label)  # once for neighbours with the same label
                left_label = panel.label
        return_axes = [(panel, axis) for panel, axis in zip(panels, axes, strict=True) if panel.is_return]
        for game, levels in figure.levels.items():
            _share_axes([item for item in return_axes if item[0].game == game], levels, figure.colours)
        for panel, axis in return_axes:
            curves.note_hidden(axis, panel.values)


def _draw_panel(axis: Any, panel: Panel, colours: Mapping[str, str], log: bool) -> None:
    """Draw the curves of a panel. A single arm has thin lines of its seeds. With ``log``, returns have a logarithmic
    axis, as losses always have."""
    for arm in panel.arms:
        steps, seed_curves = arm.curves[panel.tag]
        is_alone = len(panel.arms) == 1
        curves.draw_curves(axis, steps, seed_curves, colours[arm.label], arm.label, with_seeds=is_alone)
    is_loss = not panel.is_return and panel.label != curves.RETURN_LABEL  # a baseline is a return
    curves.finish_panel(axis, panel.tag, panel.label, is_loss or log, panel.values if panel.is_return else None)


def _share_axes(items: Sequence[tuple[Panel, Any]], levels: Sequence[curves.Level], colours: Mapping[str, str]) -> None:
    """Give panels of returns of episodes in one environment the same limits, and draw the reference ``levels``.
    ``items`` are panels of returns and their axes. Searches and agents have different steps."""
    axes = {axis: panel for panel, axis in items if curves.episode_returns([panel.tag])}
    curves.share_limits([*axes])
    for is_search in (False, True):
        curves.share_limits([axis for axis, panel in axes.items() if of_search([panel.tag]) == is_search], "x")
    for axis, panel in axes.items():
        legend: curves.Legend = "names" if panel.game else "values"
        curves.draw_levels(axis, levels, colours, legend, game=curves.game_text(panel.game))
    curves.share_limits([*axes])  # the levels may have changed them


def _draw_scores(book: sheets.Book, figure: Figure) -> None:
    """Draw the sheet that compares algorithms by their scores."""
    tag, scores_by_game = figure.comparison
    sources = curves.sources([level for game in scores_by_game for level in figure.levels[game]])
    note = "; ".join(filter(None, (scores.note(), sources)))
    arms = [
        arm
        for game, scores_by_label in scores_by_game.items()
        for arm in figure.arms_by_game[game]
        if arm.label in scores_by_label
    ]
    is_return = bool(curves.episode_returns([tag]))  # short names of other tags need no addition
    label = f"return, {TAGS[tag].short}" if is_return else TAGS[tag].short
    scores.draw(book, scores_by_game, figure.colours, figure.levels, label, figure.heading(arms), note)
