"""Figures of `--plot`: groups of runs side by side, from run folders or from the numbers of an earlier figure. An `Arm`
of the comparison has the curves and scores of a group of runs."""

import contextlib
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import cycle, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from control.cli.files import read_json, read_mapping
from control.reports import curves, figures, scores
from control.reports.figures import DEFAULT_STYLE, FigureStyle
from control.reports.run_folders import is_interrupted
from control.reports.runs import Group, find_groups, logged, names_and_version, read_runs, return_tags, short_path
from control.reports.search import TRIALS, plot_search
from control.reports.statistics import Array
from control.reports.tables import seeds_text, summarise, summary_text
from control.reports.tags import GREEDY, TAGS, Kind, is_search, shown_tags, tags
from models.registry import family, implementations
from models.settings import SettingError, UserError

_MAX_BYTES = 20_000_000  # of the JSON of a figure


@dataclass
class Arm:
    """Curves and scores of a group of runs, one arm of a comparison, with the ``names`` of environment, experiment and
    implementation. ``curves`` maps a tag to steps ``[G]`` and values ``[N, G]`` of N seeds. ``scores`` maps a tag of a
    return to the means ``[N]`` of the seeds over the last tenth of the epochs. ``label`` is the name in the legend.
    ``game`` is the environment if the figure has several, otherwise empty. Without ``has_steps``, curves are over
    generations."""

    label: str
    names: tuple[str, ...]
    seeds: int
    curves: dict[str, tuple[Array, Array]] = field(default_factory=dict)
    scores: dict[str, Array] = field(default_factory=dict)
    game: str = ""
    has_steps: bool = True

    @property
    def is_search(self) -> bool:
        return is_search((*self.curves, *self.scores))


class Panel(NamedTuple):
    """A panel with the curves of one tag in one environment."""

    game: str
    tag: str
    arms: list[Arm]


@dataclass
class Figure:
    """Content of a figure: its ``arms``, and a ``title`` of the names that are common to all of them. ``summary`` has
    the numbers of each arm by label, as they are in the JSON of the figure."""

    title: str
    summary: dict[str, Any]
    arms: list[Arm]

    def __post_init__(self) -> None:
        """If there are several environments, set the ``game`` of the arms and leave it out of their labels."""
        if len(_environments(self.arms)) > 1:
            labels, _ = distinct_labels([arm.names[1:] for arm in self.arms])
            for arm, label in zip(self.arms, labels, strict=True):
                arm.label = label
                arm.game = arm.names[0]

    @cached_property
    def arms_by_game(self) -> dict[str, list[Arm]]:
        games: dict[str, list[Arm]] = {}
        for arm in self.arms:
            games.setdefault(arm.game, []).append(arm)
        return games

    @cached_property
    def colours(self) -> dict[str, str]:
        """Colours by label, in the order of the legend."""
        labels = dict.fromkeys(arm.label for arm in self.arms)
        return dict(zip(labels, cycle(figures.COLOURS), strict=False))

    @cached_property
    def levels(self) -> dict[str, list[curves.Level]]:
        """Returns that solve an environment, by game: Gymnasium's, and others by which searches judge their agents."""
        levels = {game: curves.solved_levels(arms[0].names[0]) for game, arms in self.arms_by_game.items()}
        for arm, numbers in zip(self.arms, self.summary.values(), strict=True):
            solved = numbers.get("solved")
            if solved is not None and solved not in [level.value for level in levels[arm.game]]:
                levels[arm.game].append(curves.Level(solved, "solved (search)"))
        return levels

    @cached_property
    def comparison(self) -> tuple[str, dict[str, dict[str, Array]]]:
        """The comparison of algorithms, ``(tag, tasks)``: the tag of a return, and the scores ``[N]`` by environment
        and label. The tag is the greedy return if all arms have it, otherwise the first that all have. If there is
        none, both are empty. Left out are algorithms with fewer than three seeds, and searches if not all arms are."""
        all_are_searches = all(arm.is_search for arm in self.arms)
        arms = [arm for arm in self.arms if arm.is_search == all_are_searches]
        shared = [tag for tag in TAGS if all(tag in arm.scores for arm in arms)]
        if not shared:
            return "", {}
        tag = GREEDY if GREEDY in shared else shared[0]
        score_lists: dict[str, dict[str, Array]] = {game: {} for game in self.arms_by_game}
        for arm in arms:
            score_lists[arm.game][arm.label] = arm.scores[tag]
        tasks = {game: scores.comparable(task) for game, task in score_lists.items()}
        return tag, {game: task for game, task in tasks.items() if task}

    def heading(self, arms: Sequence[Arm]) -> str:
        """Return the title of a page about some of the arms, such as ``2 environments, debug, 3-5 seeds``: the
        environment or the number of environments, the names common to all arms, and the number of seeds. A single seed
        is named: ``cartpole, debug, PPO, seed 25``."""
        games = {arm.game for arm in arms}
        environments = f"{len(games)} environments" if len(games) > 1 else games.pop()
        seeds = [seed for group in self.summary.values() for seed in group["seeds"]]
        seed_text = f"seed {seeds[0]}" if len(seeds) == 1 else seeds_text([arm.seeds for arm in arms])
        return ", ".join(filter(None, (environments, self.title, seed_text)))


def plot(run_dirs: Sequence[Path], out: Path | None = None, style: FigureStyle = DEFAULT_STYLE) -> int:
    """Draw and tabulate groups of runs: mean with its 95 % bootstrap band and IQM over seeds.

    ``run_dirs`` are run folders, folders above them, or the JSON of an earlier figure. The folder of a hyperparameter
    search gives a figure of its hyperparameters. ``out`` is a file (.png, .pdf, .svg) or a folder, by default the
    common folder of ``run_dirs``. The numbers are written beside the figure as JSON. Each environment has separate rows
    of panels. Algorithms with three seeds or more are also compared by their scores.

    Returns the exit code 0. Raises SettingError if there is nothing to draw or a file cannot be written, before
    anything is printed.
    """
    if len(run_dirs) == 1 and (run_dirs[0] / TRIALS).is_file():
        print(f"Figure:  {short_path(plot_search(run_dirs[0], style, out))}")
        return 0
    earlier_json = run_dirs[0] if len(run_dirs) == 1 and run_dirs[0].suffix == ".json" else None
    made_from: list[str] = []  # run folders
    if earlier_json:
        figure = read_numbers(earlier_json, "plot", "run folders, or a JSON file that it wrote")
        folder = earlier_json.parent
    else:
        groups = find_groups(run_dirs, is_interrupted=is_interrupted)
        made_from = sorted({str(run.source.parent) for group in groups for run in group.runs})
        figure, folder = figure_of(groups), Path(os.path.commonpath([folder.resolve() for folder in run_dirs]))
    stem = _file_stem(_environments(figure.arms), {arm.label for arm in figure.arms}, style)
    target = figures.figure_file(out or folder, style=style, stem=stem)
    numbers_path = earlier_json or target.with_suffix(".json")
    new_files = [target] if earlier_json else [target, numbers_path]
    if not earlier_json and numbers_path.is_file():  # raise an error rather than replace a file of something else
        read_numbers(numbers_path, "plot_out", "another name")
    figures.check_writable("plot_out", *new_files)
    tag, tasks = figure.comparison
    if not tasks and not any(arm.curves for arm in figure.arms):
        raise SettingError(f"{figure.title or 'these runs'}: neither returns nor losses were logged yet")
    print(summary_text(figure.title, figure.summary))
    numbers: dict[str, Any] = {"runs": figure.title, "made_from": made_from, "groups": figure.summary}
    if tasks:
        improvements = scores.improvements(tasks)
        by_name = {f"{first} > {second}": estimate for (first, second), estimate in improvements.items()}
        numbers["compared"] = {"tag": tag, "improvement": by_name}
        print(f"\n{scores.comparison_text(improvements)}")
    files = draw(figure, target, style, earlier_json)
    if not earlier_json:
        figures.write_numbers(numbers_path, numbers)
    print()
    for path in files:
        print(f"Figure:  {short_path(path)}")
    print(f"Numbers: {short_path(numbers_path)}")
    return 0


def learning_curve(run_dir: Path, style: FigureStyle = DEFAULT_STYLE) -> Path | None:
    """Draw the returns and losses of a run folder over its steps as ``curve.png`` in it, or ``curve.pdf`` and so on for
    other formats of ``style``, and return the file. Returns None if neither was logged."""
    metrics_file = run_dir / "metrics.csv"
    names, _ = names_and_version(metrics_file.resolve())
    figure, path = figure_of([Group(names, read_runs(metrics_file))]), style.path(run_dir, "curve")
    if not figure.arms[0].curves:
        return None
    draw(figure, path, style)
    return path


def figure_of(groups: Sequence[Group]) -> Figure:
    """Return the content of a figure of groups of runs, with their curves and scores."""
    labels, title = distinct_labels([group.names for group in groups])
    summary = {}
    for label, group in zip(labels, groups, strict=True):
        curve_numbers = {}
        # Returns to show are first, in the order of `return_tags`. JSON gets five digits.
        for tag in dict.fromkeys([*return_tags(group.runs), *logged(group.runs, tags("return", "loss"))]):
            # Some searches train no agents until their end, so they count no steps.
            x = "env_steps" if any(run.columns["env_steps"].any() for run in group.runs) else "epoch"
            steps, values = curves.on_grid(group.runs, tag, x)
            rounded = [[float(f"{value:.5g}") for value in row] for row in values.tolist()]
            grid = steps.round().astype(int) if x == "env_steps" else steps.round(2)
            curve_numbers[tag] = {"env_steps": grid.tolist(), "seeds": rounded}
        summary[label] = summarise(group) | {"names": group.names, "curves": curve_numbers}
        with contextlib.suppress(UserError, KeyError, ValueError, TypeError):  # no search, or no settings
            config = read_mapping("plot", str(group.runs[0].source.with_name("config.yaml")), "name: value")
            summary[label]["solved"] = float(config["solved_reward"])
    return _figure(title, summary)


def read_numbers(path: Path, setting: str, allowed: str) -> Figure:
    """Return the content of a figure from its JSON. For other files, raises SettingError about ``setting``."""
    try:
        content = read_json(path, _MAX_BYTES)
        title, groups = str(content["runs"]), content["groups"]
        summary_text(title, groups)  # raises for values that the next line does not check
        return _figure(title, groups)
    except OSError as error:
        problem = f"which cannot be read: {error.strerror}"
    except (ArithmeticError, ValueError, TypeError, LookupError, AttributeError):
        problem = f"which --plot did not write; allowed: {allowed}"
    raise SettingError(f"{setting} is '{path}', {problem}", setting)


def _figure(title: str, summary: dict[str, Any]) -> Figure:
    """Return a figure with the curves and scores in its ``summary``."""
    arms = []
    for label, group in summary.items():
        # Older files have no names. Title and label contain them.
        names = group.get("names") or [*title.split(", "), *label.split("/")]
        arm = Arm(label, tuple(map(str, names)), len(group["seeds"]))
        for tag, curve in group.get("curves", {}).items():
            steps, values = np.array(curve["env_steps"], float), np.array(curve["seeds"], float)
            num_steps, num_seeds = len(curve["env_steps"]), len(curve["seeds"])
            arm.curves[tag] = steps.reshape(num_steps), values.reshape(num_seeds, num_steps)  # raises for other shapes
        for tag in TAGS:
            results = [numbers[tag]["last"] for numbers in group["seeds"].values() if tag in numbers]
            if last := [result for result in results if result is not None]:
                arm.scores[tag] = np.array(last, float)
        arm.has_steps = any(numbers["env_steps"] for numbers in group["seeds"].values())
        arms.append(arm)
    return Figure(title, summary, arms)


def distinct_labels(names: Sequence[tuple[str, ...]]) -> tuple[list[str], str]:
    """Return a label for each group, made from the names in which they differ, and a text of the names that all share.
    For ``("cartpole", "debug", "PPO")`` and ``("cartpole", "debug", "A2C")``, they are ``["PPO", "A2C"]`` and
    ``"cartpole, debug"``. A group whose names are all shared has the last one as its label."""
    columns = list(zip_longest(*names, fillvalue=""))  # trials have two names more than runs
    shared = [column[0] for column in columns if len(set(column)) == 1]
    distinct = [column for column in columns if len(set(column)) > 1]
    labels = ["/".join(filter(None, parts)) for parts in zip(*distinct, strict=True)] or [""] * len(names)
    return [label or group_names[-1] for label, group_names in zip(labels, names, strict=True)], ", ".join(shared)


def _environments(arms: Sequence[Arm]) -> list[str]:
    """Return the environments of the arms. Empty if one is unknown: a copied run folder has only a single name."""
    is_known = all(len(arm.names) >= 3 for arm in arms)
    return sorted({arm.names[0] for arm in arms}) if is_known else []


def _file_stem(games: Collection[str], labels: Collection[str], style: FigureStyle) -> str:
    """Return the name of a figure's file, without its suffix, from the environments and the labels of the groups, such
    as ``plot_lunarlander_RCP-A_UDRL``. If there are many, the name has their number instead. A dark theme and a
    logarithmic axis are added to the name."""
    words = ["plot"]
    words += sorted(games) if len(games) <= 3 else [f"{len(games)}_environments"]
    words += sorted(labels) if len(labels) <= 4 else [f"{len(labels)}_groups"]
    if style.theme == "dark":
        words.append("dark")
    if style.log:
        words.append("log")
    return re.sub(r"[^\w.+-]+", "-", "_".join(words))[:80]  # not too long for a file system


def draw(figure: Figure, target: Path, style: FigureStyle, numbers_path: Path | None = None) -> list[Path]:
    """Draw up to three figures: the returns, the losses, and the comparison of scores. Return their files.

    In a single environment, the losses are panels in the figure of returns. Figures without data are left out, but one
    must have data. The first figure is the file ``target``; the names of the others end in ``_losses`` and ``_scores``.
    If the figures are drawn again from the JSON file ``numbers_path``, a PNG stores its hash.
    """
    # Lists of panels, one list for each environment.
    panels = {
        "returns": [_panels(game, arms, "return") for game, arms in figure.arms_by_game.items()],
        "losses": [_panels(game, arms, "loss") for game, arms in figure.arms_by_game.items()],
    }
    if len(figure.arms_by_game) == 1:
        panels = {"returns": panels["returns"] + panels["losses"]}
    tag, tasks = figure.comparison  # scores by environment and algorithm; empty if there is nothing to compare
    names = [name for name, panel_lists in panels.items() if any(panel_lists)]
    if tasks:
        names.append("scores")
    targets = {name: target.with_stem(f"{target.stem}_{name}") for name in names} | {names[0]: target}
    for name, panel_lists in panels.items():
        if name in names:
            _draw_panels(targets[name], figure, panel_lists, style, numbers_path)
    if tasks:
        title = figure.heading([arm for arm in figure.arms if arm.label in tasks.get(arm.game, {})])
        # Short names of other tags, such as "reward rate", need no addition.
        label = f"return, {TAGS[tag].short}" if curves.is_episode_return(tag) else TAGS[tag].short
        scores.draw(
            targets["scores"],
            style,
            numbers_path,
            tasks,
            colours=figure.colours,
            game_levels=figure.levels if curves.is_episode_return(tag) else {},
            axis_label=label,
            title=title,
            note=scores.note(),
        )
    return [file for path in targets.values() for file in figures.figure_files(path, style)]


def _panels(game: str, arms: Sequence[Arm], kind: Kind) -> list[Panel]:
    """Return the panels with the returns or losses (``kind``) of the ``arms`` in an environment. Agents of different
    families have separate panels of losses, because one tag means different losses for them."""
    logged_tags = [tag for tag in tags(kind) if any(tag in arm.curves for arm in arms)]
    agents = [arm for arm in arms if not arm.is_search]  # searches have other tags
    common_tags = [tag for tag in logged_tags if all(tag in arm.curves for arm in agents)]
    panels: dict[tuple[str, ...], Panel] = {}  # by tag and, for losses, family
    for tag in shown_tags(logged_tags, common_tags):  # without noisier tags of the same quantity
        for arm in [arm for arm in arms if tag in arm.curves]:
            key = [tag] if arm.has_steps else [tag, curves.GENERATIONS_LABEL]
            if kind == "loss" and (name := _implementation(arm)) in implementations():
                key.append(family(name).package)
            panels.setdefault(tuple(key), Panel(game, tag, arms=[])).arms.append(arm)
    return list(panels.values())


def _implementation(arm: Arm) -> str:
    """Return the name of an arm's implementation, or else its label."""
    return next((name for name in arm.names if name in implementations()), arm.label)


def _draw_panels(
    target: Path, figure: Figure, panel_lists: Sequence[Sequence[Panel]], style: FigureStyle, numbers: Path | None
) -> None:
    """Draw a figure of curves. The panels of each list are in separate rows, of three at most."""
    panels = [panel for panel_list in panel_lists for panel in panel_list]
    arms = [arm for panel in panels for arm in panel.arms]
    row_lengths = [length for panel_list in panel_lists for length in figures.row_lengths(len(panel_list))]
    row_height = 2.0 if max(row_lengths) > 1 else 2.8  # inches
    title = figure.heading(arms)
    note = curves.curves_note(max(len(values) for arm in arms for _, values in arm.curves.values()))
    # A run that ends before its first update has no losses.
    without_loss = [
        arm.label for arm in figure.arms if not arm.is_search and arm.curves.keys().isdisjoint(tags("loss"))
    ]
    if without_loss and any(TAGS[panel.tag].kind == "loss" for panel in panels):
        note += f"; no loss was logged: {', '.join(without_loss)}"
    cells, size = figures.rows(*row_lengths), (figures.WIDTH, row_height * len(row_lengths))
    with figures.figure_panels(target, cells, size, style, numbers, title=title, note=note) as axes:
        for label, colour in figure.colours.items():  # sets the order of the legend
            if any(arm.label == label for arm in arms):
                axes[0].plot([], [], color=colour, label=curves.shown_label(label))
        panel_widths = [6.2 / length for length in row_lengths for _ in range(length)]  # inches; labels have 0.8
        for axis, panel, width in zip(axes, panels, panel_widths, strict=True):
            for arm in panel.arms:
                steps, values = arm.curves[panel.tag]
                curves.draw_curves(axis, steps, values, figure.colours[arm.label], arm.label, len(panel.arms) == 1)
            panel_title = f"{panel.game}: {TAGS[panel.tag].title}".removeprefix(": ")
            if sum((other.game, other.tag) == (panel.game, panel.tag) for other in panels) > 1:  # of several families
                panel_title += f" of {', '.join(dict.fromkeys(map(_implementation, panel.arms)))}"
            figures.set_title(axis, panel_title, width)
            curves.finish_panel(axis, panel.tag, style.log)
            if not panel.arms[0].has_steps:
                axis.set_xlabel(curves.GENERATIONS_LABEL)
            if not curves.is_episode_return(panel.tag):
                curves.scale_steps([axis])
        # Panels of returns in the same environment share limits. Their x axes differ if some count the steps of an
        # agent, and others, of searches, the steps of all agents.
        for game, game_levels in figure.levels.items():
            return_axes = []
            for axis, panel in zip(axes, panels, strict=True):
                if panel.game == game and curves.is_episode_return(panel.tag):
                    return_axes.append(axis)
            for label in {axis.get_xlabel() for axis in return_axes}:
                same_axes = [axis for axis in return_axes if axis.get_xlabel() == label]
                curves.scale_steps(same_axes)
                curves.share_limits(same_axes, "x")
            curves.share_limits(return_axes)
            for axis in return_axes:
                curves.draw_levels(axis, game_levels)
