"""Page of `--report`: one HTML file about runs, with curves, tables, films, settings, versions and commands.

The page refers to no other file. `page.html.j2` is its template.
"""

import base64
import contextlib
import functools
import io
import math
import os
import re
import shlex
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from control.cli.colour import print_wrapped, warning
from control.cli.files import read_json, read_mapping
from control.cli.help import SOURCES
from control.cli.options import flags_for_values
from control.cli.parse import parse
from control.cli.progress import time_in_words
from control.cli.settings import Settings, to_yaml
from control.cli.words import as_word, command_line
from control.films.encoding import poster
from control.reports import stages, tables, tags
from control.reports.curves import solved_return
from control.reports.figures import (
    CYCLES,
    GREY,
    INK,
    INKS,
    PAPER,
    RULES,
    FigureStyle,
    check_writable,
    figure_pages,
    output_file,
)
from control.reports.plot import Figure, distinct_labels, draw, figure_of, file_stem
from control.reports.runs import Group, find_groups, short_path
from control.reports.tables import Table, number_text
from control.storage.run_dir import atomic_write_text
from control.storage.versions import FILE, read_versions, versions
from models.settings import SettingError, UserError

MAX_FILMS = 12  # on a page
_FIGURES = {
    "": "Curves over steps",
    "scores": "Comparison of scores: performance profiles and probability of improvement",
    "losses": "Losses over steps",
}  # in the order of the page
_PICTURES = {
    "behaviour": "What the synthetic environment shows the agents that train on it, beside the real environment",
    "behaviour_reward": "What the synthetic bandit pays for: the reward of actions by state",
    "reward": "What the learned reward says of states",
}
# Numbers of a held-out evaluation: their headings and the functions that format them.
_HELD_OUT: dict[str, tuple[str, Callable[[float], str]]] = {
    "agents": ("fresh agents", "{:,.0f}".format), "mean": ("mean return", number_text),
    "std": ("standard deviation", number_text), "iqm": ("IQM", number_text), "worst": ("worst", number_text),
    "solved": ("share solved", lambda share: f"{100 * share:.0f} %"), "steps": ("training steps", "{:,.0f}".format),
}  # fmt: skip
# Tags of the results by which runs are judged: the first one that they have.
_RESULTS = (tags.HELD_OUT_RETURN, tags.GREEDY, tags.REWARD_RATE, tags.MEAN_RETURN, tags.RUNNING_MEAN)
_TIMES = ("time/train", "time/rollout", "time/update", "time/eval", "time/test")  # parts of an epoch, in seconds
_MEDIA = {".svg": "image/svg+xml", ".mp4": "video/mp4", ".png": "image/png"}


# Colours of figures, and the values in CSS that replace them, so that figures follow the theme of the page.
_CYCLE = [colour.lower() for colour in CYCLES["light"]]
_CSS_VARIABLES = (
    {colour: f"var(--c{number})" for number, colour in enumerate(_CYCLE)}
    | {
        _CYCLE[int(INK[1:])]: "currentColor",  # INK and GREY are places in the cycle, such as "C6"
        _CYCLE[int(GREY[1:])]: "var(--faint)",
        INKS["light"]: "currentColor",
        PAPER["light"]: "var(--paper)",
        RULES["light"]: "var(--rule)",
    }
)


@dataclass(eq=False)
class RunFolder:
    """A run folder."""

    path: Path

    @functools.cache  # noqa: B019  # a page has few folders, and warnings are printed once
    def file(self, *names: str) -> Path | None:
        """Return the path of a file in the folder, None if it does not exist. ``names`` are its folders and its name.
        Print a warning for anything but a regular file inside the folder, such as a link out of it."""
        path = self.path.joinpath(*names)
        if path.is_file() and path.resolve().is_relative_to(self.path.resolve()):
            return path
        if os.path.lexists(path):
            warning(f"left out: '{path}' is no regular file of its run's folder")
        return None

    @cached_property
    def settings(self) -> Settings | None:
        """Settings in config.yaml, None if it is missing or of another program or version."""
        file = self.file("config.yaml")
        if not file:
            return None
        # `parse` prints and exits, or raises, for settings of another version. The page then shows the file as it is.
        with contextlib.suppress(UserError, SystemExit), contextlib.redirect_stderr(io.StringIO()):
            return parse(["--config", str(file)])
        return None

    @cached_property
    def setting_texts(self) -> dict[str, str]:
        """Values of the settings in config.yaml as texts by name, such as ``{"lr": "0.001"}``. The setting ``command``,
        a mapping, becomes a setting ``command.PART`` for each of its parts."""
        values = self._setting_values()
        command = values.pop("command", None)
        if isinstance(command, dict):
            values |= {f"command.{part}": value for part, value in command.items()}
        return {name: _setting_text(value) for name, value in values.items()}

    def _setting_values(self) -> dict[str, Any]:
        """Return the settings in config.yaml that have an effect. For a file of another program or version, return all
        its entries."""
        if self.settings is not None:
            # `explicit_names` are the names in config.yaml. A setting that it omits has no effect in this environment.
            effective = yaml.safe_load(to_yaml(self.settings))
            values = {name: value for name, value in effective.items() if name in self.settings.explicit_names}
            if self.settings.proxy is not None and values.get("checkpoint_every") == 1:
                del values["checkpoint_every"]  # a search sets it to 1
            return values
        if file := self.file("config.yaml"):
            with contextlib.suppress(UserError):
                return read_mapping("report", str(file), "name: value", empty=True)
        return {}

    @property
    def films(self) -> list[Path]:
        """Films of the end and of evaluations, and the last film during training."""
        videos = self.path / "videos"
        paths = [*videos.glob("final.mp4"), *sorted(videos.glob("eval_*.mp4"))]
        paths += sorted(videos.glob("epoch_*.mp4"))[-1:]
        return [path for path in paths if self.file("videos", path.name)]

    @cached_property
    def scores(self) -> dict[str, Any]:
        """Statistics of the held-out evaluation of a search, from scores.json, with the sentence of its ``verdict`` and
        whether it ``passed``. Empty if the file is missing or malformed."""
        path = self.file("scores.json")
        if path is None:
            return {}
        try:
            results = read_json(path)
            verdict = results.get("verdict", {})
            return results["report"] | {"verdict": verdict.get("sentence", ""), "passed": verdict.get("passed")}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def film_text(self, film: Path) -> str:
        """Return the seed and the returns of a film as text, or only the seed if no text is stored beside the film."""
        path = self.file("videos", f"{film.stem}.txt")
        # A film shows the first seed: ``seed 25`` of the run ``seed 25-29``.
        return path.read_text("utf-8", "replace").strip() if path else self.name.partition("-")[0]

    @cached_property
    def learn_results(self) -> dict[str, Any]:
        """Results of `--learn` by stage if this run trained its teacher, else empty."""
        path = self.learn_folder / stages.RESULTS
        with contextlib.suppress(OSError, ValueError):
            results = read_json(path) if path.is_file() else {}
            if isinstance(results, dict) and isinstance(results.get("teacher"), dict):
                return {name: result for name, result in results.items() if name != "settings"}
        return {}  # the file is malformed, or of another program

    @property
    def learn_folder(self) -> Path:
        """Folder of `--learn` if this run, in GAME/teacher/PPO/seed_N/version_K there, trained its teacher."""
        return Path(os.path.abspath(self.path / "../../../../.."))

    def is_unfinished(self, epochs: int, steps: int) -> bool:
        """Return whether a run with this number of epochs and steps was interrupted or continues, according to its
        settings. A run that may end early because of a return counts as finished."""
        settings = self.settings
        if settings is None or settings.run.target_return is not None or "teacher" in self.learn_results:
            return False
        if settings.proxy is not None and settings.proxy.quit_when_solved:
            return False
        if settings.total_steps is not None and steps >= settings.total_steps:
            return False
        return settings.epochs is None or epochs < settings.epochs

    @property
    def name(self) -> str:
        """Seed of the run as text, such as ``seed 25``."""
        return self.path.parent.name.replace("_", " ")


@dataclass
class ReportGroup(Group):
    """A group of runs with its ``label`` on the page and the statistics of the runs, which `summarise` returns."""

    label: str
    summary: dict[str, Any]

    @cached_property
    def folders(self) -> list[RunFolder]:
        """Folders of the runs. Several seeds may be in one folder."""
        return [RunFolder(path) for path in dict.fromkeys(run.source.parent for run in self.runs)]

    @property
    def is_search(self) -> bool:
        """Whether the runs are searches."""
        return tags.of_search(self.summary["over_seeds"])

    @cached_property
    def tag(self) -> str:
        """Tag of the result by which the runs are judged: the first of `_RESULTS` that all runs have, otherwise any tag
        that all or some have; empty without any."""
        statistics = self.summary["over_seeds"]
        num_seeds = {tag: numbers["n"] for tag, numbers in statistics.items()}
        num_seeds[tags.HELD_OUT_RETURN] = len(self._held_out)
        for tag in (*_RESULTS, *statistics):
            if num_seeds.get(tag) == len(self.runs):
                return tag
        return next(iter(statistics), "")

    @property
    def _held_out(self) -> list[float]:
        """Mean held-out returns of the winners of searches, one for each run that has been evaluated."""
        means = [folder.scores.get("mean") for folder in self.folders]
        return [float(mean) for mean in means if isinstance(mean, int | float) and math.isfinite(mean)]

    @property
    def result(self) -> dict[str, Any]:
        """Statistics of the result over seeds, as `over_seeds` returns them."""
        # Held-out returns are in scores.json, and all other results in the summary of the metrics.
        return self.summary["over_seeds"].get(self.tag) or tables.over_seeds(self._held_out)

    @cached_property
    def game(self) -> str:
        """Name of the environment, from the settings or else from the folder. Empty if a copied folder has only its
        name."""
        game_folder = self.names[0] if len(self.names) >= 3 else ""
        return self.folders[0].setting_texts.get("gamename", game_folder)

    @cached_property
    def solved(self) -> float | None:
        """Lowest return with which the environment counts as solved: a search's ``solved_reward``, otherwise the
        environment's threshold. None if it is unknown or the result is no return."""
        if self.tag in ("", tags.REWARD_RATE, tags.FITNESS):
            return None
        settings = self.folders[0].settings
        if settings is not None and settings.proxy is not None:
            return settings.proxy.solved_reward
        return solved_return(self.game) if self.game else None

    @property
    def verdict(self) -> str:
        """Whether the mean result solves the environment, as words; empty if that is unknown."""
        return "" if self.solved is None else tables.solved_text(self.result["mean"], self.solved)

    @cached_property
    def confirmed_best(self) -> tuple[float, int] | None:
        """``(score, epoch)`` of the agent in best.ckpt. The score is a mean of two evaluations if they vary. None
        without this file, and for searches, several runs, and agents that are chosen by their returns in training."""
        file, settings = self.folders[0].file("checkpoints", "best.ckpt"), self.folders[0].settings
        if len(self.runs) > 1 or self.tag != tags.GREEDY or file is None or settings is None:
            return None
        if getattr(settings.schedule, "running_mean", 0):  # the score is of training episodes
            return None
        from control.storage import checkpoints  # imports torch, which other pages do not need

        with contextlib.suppress(UserError):
            run_state = checkpoints.load(file).run_state
            return float(run_state["best"]), int(run_state["epoch"])
        return None  # the file is damaged

    @property
    def best(self) -> float | None:
        """The score of `confirmed_best`, otherwise the mean over seeds of the best result. None if it was not
        logged."""
        if self.confirmed_best:
            score, _ = self.confirmed_best
            return score
        results = [run.best(self.tag) for run in self.runs]
        finite = [result for result in results if math.isfinite(result)]
        return sum(finite) / len(finite) if finite else None

    @property
    def unfinished(self) -> list[str]:
        """Names of the runs that were interrupted or continue, with their epochs."""
        texts = []
        folder_by_path = {folder.path: folder for folder in self.folders}
        for run in self.runs:
            epochs, steps = int(run.columns["epoch"].max()), int(run.columns["env_steps"].max())
            if folder_by_path[run.source.parent].is_unfinished(epochs, steps):
                texts.append(f"{self.label}, seed {run.seed} ({epochs:,} epochs)")
        return texts

    @property
    def duration(self) -> str:
        """Time of training and tests of a single run, as text. Empty for several runs, and if it was not logged."""
        if len(self.runs) > 1:
            return ""
        columns = self.runs[0].columns
        seconds = sum(float(np.nansum(columns[tag])) for tag in _TIMES if tag in columns)
        return f"{time_in_words(seconds)} of training and tests" if seconds else ""

    @property
    def kind_of_return(self) -> str:
        """Kind of the return by which the runs are judged, such as ``greedy``; empty without any."""
        return tags.TAGS[self.tag].short if self.tag else ""

    @property
    def steps(self) -> str:
        """Numbers of steps of the seeds as text: ``10,000`` or, if they differ, ``10,000 to 12,000``."""
        return _range_text([seed["env_steps"] for seed in self.summary["seeds"].values()])

    @property
    def real_steps(self) -> str:
        """Numbers of steps in the real environment that the searches made, as text like `steps`; ``-`` if unknown."""
        tag = "search/real_steps"
        steps = [int(run.columns[tag].max()) for run in self.runs if tag in run.columns]
        return _range_text(steps) if steps else "-"

    def setting_text(self, name: str) -> str:
        """Return the value of a setting as text. If runs have different values, they are separated by ``|``."""
        values = dict.fromkeys(folder.setting_texts.get(name, "-") for folder in self.folders)
        return " | ".join(values)


def report(run_dirs: Sequence[Path], out: Path | None = None) -> int:
    """Write the page of runs in ``run_dirs``, which are run folders or folders above them. ``out`` is a file (.html) or
    a folder, by default the common folder of the runs. Returns the exit code 0. Raises SettingError if there are no
    runs or the page cannot be written."""
    run_groups = find_groups(run_dirs, "report")
    labels, _ = distinct_labels([group.names for group in run_groups])
    groups = []
    for label, group in zip(labels, run_groups, strict=True):
        groups.append(ReportGroup(group.names, group.runs, label, tables.summarise(group)))
    solved_returns = {group.solved for group in groups}
    if len(solved_returns) == 1 and None not in solved_returns:  # returns in one environment, the best first
        groups.sort(key=lambda group: group.result["mean"], reverse=True)
    folders = [folder for group in groups for folder in group.folders]
    # The page about the teacher of `--learn` belongs beside the files of that command.
    run_folders = [folder.learn_folder if folder.learn_results else folder.path for folder in folders]
    for path in [folder.path for folder in folders]:
        if (path / "metrics.csv").is_symlink():
            raise SettingError(f"report has '{path}', whose metrics.csv is a link to another folder's")
    stem = "report"
    if len(run_folders) > 1:
        stem = file_stem("report", {group.names[0] for group in groups}, {group.label for group in groups})
    target = output_file(out or Path(os.path.commonpath(run_folders)), "report_out", stem, ("html",))
    check_writable("report_out", target)
    atomic_write_text(target, _page(groups, run_dirs, target))
    print_wrapped(f"Report: {short_path(target)} ({target.stat().st_size / 1e6:.1f} MB; open it in a browser)")
    for folder in folders:
        if folder.learn_results:
            page = short_path(folder.learn_folder / stages.PAGE)
            print_wrapped(f"It has the teacher of --learn; the page about all of it: {page}")
    return 0


def _page(groups: Sequence[ReportGroup], run_dirs: Sequence[Path], target: Path) -> str:
    """Return the HTML of the page, rendered from its template. ``run_dirs`` and ``target`` are for its last lines, the
    commands that make the page."""
    films = [(group, folder, path) for group in groups for folder in group.folders for path in folder.films]
    run_paths = " ".join(shlex.quote(short_path(Path(path))) for path in run_dirs)
    report_command = f"python trainer.py --report {run_paths} --report_out {shlex.quote(short_path(target))}"
    commands = [(group.label, _commands(group)) for group in groups]
    return render(
        "page.html.j2",
        groups=groups,
        title=_title(groups),
        seeds=tables.seeds_text([len(group.runs) for group in groups]),
        tags=[tags.TAGS[tag] for tag in dict.fromkeys(group.tag for group in groups) if tag],
        results=_results_table(groups),
        teachers=_teachers(groups, target),
        unfinished=[text for group in groups for text in group.unfinished],
        figures=_page_figures(groups),
        films=films[:MAX_FILMS],
        more_films=max(0, len(films) - MAX_FILMS),
        learned=list(_search_results(groups)),
        seed_tables=[tables.seed_table(group.summary, caption=f"Seeds of {group.label}") for group in groups],
        settings=_settings_tables(groups),
        versions=_versions_table(groups),
        commands=[(label, lines) for label, lines in commands if lines],
        page_commands=[report_command, f"python trainer.py --plot {run_paths}"],
        date=time.strftime("%Y-%m-%d"),
        version=versions()["understudy"],
    )


def _teachers(groups: Sequence[ReportGroup], target: Path) -> list[tuple[str, str]]:
    """Return the conclusion of `--learn` for each run that trained a teacher, and the address of its page from the page
    ``target``."""
    teachers = []
    for folder in [folder for group in groups for folder in group.folders]:
        page = folder.learn_folder / stages.PAGE
        if folder.learn_results and page.is_file():
            address = Path(os.path.relpath(page, target.absolute().parent)).as_posix()
            teachers.append((" ".join(stages.conclusion(folder.learn_results)), address))
    return teachers


def _title(groups: Sequence[ReportGroup]) -> str:
    """Return a title such as ``UDRL and PPO on pendulum``. If all groups have the same implementation and environment,
    their labels follow."""
    all_names = [group.names for group in groups]
    # A copied folder has only its name, so game and implementation are unknown.
    if any(len(names) < 3 for names in all_names):
        return _enumeration(list(dict.fromkeys("/".join(names) for names in all_names)))
    games = list(dict.fromkeys(group.game for group in groups))
    implementation_names = list(dict.fromkeys(names[2] for names in all_names))
    title = f"{_enumeration(implementation_names)} on {_enumeration(games)}"
    if len(groups) > 1 and len(games) == len(implementation_names) == 1:
        title += f": {_enumeration([group.label for group in groups])}"
    return title


def _results_table(groups: Sequence[ReportGroup]) -> Table:
    """Return the table of runs and results, a row for each group, without columns that are empty for all of them."""
    has_one_seed = all(len(group.runs) == 1 for group in groups)
    mean_heading = "mean"
    if has_one_seed:
        mean_heading = "return" if any(group.is_search for group in groups) else "return at the end"
    rows = [_results_row(group, mean_heading) for group in groups]
    columns = [name for name in rows[0] if any(row[name] != "-" for row in rows)]
    if not any(group.is_search for group in groups):
        columns.remove("real steps")  # all steps are real
    cells = [[row[name] for name in columns] for row in rows]
    return Table([columns, *cells], "Results" if has_one_seed else "Results over seeds")


def _results_row(group: ReportGroup, mean_heading: str) -> dict[str, str]:
    """Return the texts of a group in the table of results, by the heading of the column; ``-`` for an empty cell."""
    mean = iqm = interval = "-"
    if group.tag:
        mean, iqm, interval = tables.aggregates(group.result).values()
    if len(group.runs) == 1:
        iqm = interval = "-"
        if group.is_search:  # statistics over the agents of its held-out evaluation
            iqm, interval = _agents_iqm(group.folders[0].scores)
    return {
        "runs": group.label,
        mean_heading: mean,
        "IQM": iqm,
        "its 95 % interval": interval,
        "verdict": group.verdict or "-",
        "solved from": "-" if group.solved is None else f"{group.solved:g}",
        "return of": group.kind_of_return or "-",
        "best return": number_text(group.best),
        "seeds": f"{len(group.runs)} ({_seed_numbers([run.seed for run in group.runs])})",
        "training steps": group.steps,
        "real steps": group.real_steps if group.is_search else group.steps,
    }


def _range_text(numbers: Sequence[int]) -> str:
    """Return numbers as text: ``10,000`` or, if they differ, ``10,000 to 12,000``."""
    smallest, largest = min(numbers), max(numbers)
    return f"{smallest:,} to {largest:,}" if smallest < largest else f"{smallest:,}"


def _agents_iqm(scores: dict[str, Any]) -> tuple[str, str]:
    """Return the interquartile mean in ``scores`` (`RunFolder.scores`) and its interval as texts, such as ``480.1`` and
    ``470.2 to 491.0``. Missing numbers are ``-``."""

    def text(name: str) -> str:
        return number_text(scores[name]) if isinstance(scores.get(name), int | float) else "-"

    low, high = text("iqm_low"), text("iqm_high")
    return text("iqm"), "-" if "-" in (low, high) else f"{low} to {high}"


def _page_figures(groups: Sequence[ReportGroup]) -> list[dict[str, Any]]:
    """Return the figures of `--plot` in the order of `_FIGURES`, each with its SVG for ``wide`` and for ``narrow``
    screens, its ``caption`` and its ``note``. Empty if neither episode returns nor losses were logged."""
    figure = figure_of(groups)
    if not any(arm.curves for arm in figure.arms):
        return []
    wide_svgs, names_and_notes = _draw_svgs(figure, narrow=False)
    narrow_svgs, _ = _draw_svgs(figure, narrow=True)
    _, tasks = figure.comparison
    compared_labels = list(dict.fromkeys(label for task in tasks.values() for label in task))
    figures: dict[str, list[dict[str, Any]]] = {kind: [] for kind in _FIGURES}
    for number, ((name, note), wide, narrow) in enumerate(zip(names_and_notes, wide_svgs, narrow_svgs, strict=True)):
        kind = name.rstrip("0123456789")  # such as "losses" for "losses2"; "" is the figure of returns
        topic = _enumeration(compared_labels) if kind == "scores" else _title(groups)
        caption = f"{_FIGURES[kind]}: {topic}."
        alt = f"{caption} The tables below have the numbers."
        svgs = {"wide": _inline(wide, f"f{number}", alt), "narrow": _inline(narrow, f"n{number}", alt)}
        figures[kind].append(svgs | {"caption": caption, "note": note})
    return [figure for kind in _FIGURES for figure in figures[kind]]


def _draw_svgs(figure: Figure, narrow: bool) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the SVG of each page of a figure, and the names and notes of the pages."""
    style = FigureStyle(formats=("svg",), narrow=narrow, texts=False)
    with tempfile.TemporaryDirectory() as folder:
        with figure_pages(Path(folder, "figure.svg"), style) as pages:
            draw(pages, figure)
        return [path.read_text("utf-8") for path in pages.files], pages.names_and_notes


def _recoloured(svg: str) -> str:
    """Return an SVG of matplotlib in the page's colours, without metadata, and with coordinates of two decimals."""
    text = svg[svg.find("<svg") :]  # without the XML declaration
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)  # comments
    text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text)  # coordinates
    text = re.sub(r"#[0-9a-fA-F]{6}\b", lambda colour: _CSS_VARIABLES.get(colour[0].lower(), colour[0]), text)
    return re.sub(r">\s+<", "><", text)  # space between elements


def _inline(svg: str, prefix: str, alt: str) -> Markup:
    """Return an SVG of matplotlib as part of the page. ``prefix`` makes its ids unique. ``alt`` is its description."""
    text = re.sub(r'\b(id="|url\(#|href="#)', rf"\g<1>{prefix}-", _recoloured(svg))  # ids and references to them
    view_box = re.search(r'viewBox="[^"]*"', text)
    size = view_box[0] if view_box else ""
    content = text[text.index(">") + 1 :]  # after the old <svg ...>
    description = f'role="img" aria-label="{escape(alt)}"'
    return Markup(f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" {size} {description}>{content}')


def _search_results(groups: Sequence[ReportGroup]) -> Iterator[tuple[str, Table | None, list[tuple[Path, str]]]]:
    """Yield a label, a table and pictures for each run that searched for a learned environment or reward, or fitted
    one. The table has the held-out evaluation; it is None without one. A picture is a file and its caption."""
    for group in groups:
        for folder in group.folders:
            label = f"{group.label}, {folder.name}"
            captions = dict(_PICTURES)
            if folder.scores and not group.is_search:  # the page shows curves of searches, but not of fits
                captions["curve"] = "Losses of the fit"
            pictures = []
            for stem, caption in captions.items():
                if path := folder.file(f"{stem}.svg") or folder.file(f"{stem}.png"):
                    pictures.append((path, f"{caption}: {label}"))
            header, numbers = [], []
            for name, (heading, text_of) in _HELD_OUT.items():
                value = folder.scores.get(name)
                if isinstance(value, int | float):
                    header.append(heading)
                    numbers.append(text_of(value))
            table = Table([header, numbers], f"Held-out evaluation: {label}") if numbers else None
            if folder.scores or pictures:
                yield label, table, pictures


def _settings_tables(groups: Sequence[ReportGroup]) -> dict[str, Any] | None:
    """Return the values of the page's section about settings, None if no run has a config.yaml.

    ``table`` has all settings. ``changes`` has the settings that differ between groups or from their defaults; it is
    None if there are none. ``known`` says whether the defaults are known. They are unknown if the environment is in a
    Python module that was not imported; ``module`` is its name, empty for other environments.
    """
    folders = [folder for group in groups for folder in group.folders]
    names = list(dict.fromkeys(name for folder in folders for name in folder.setting_texts))
    if not names:
        return None
    flags_by_folder = {}  # the flags of the command line, which have the defaults and the meanings
    for folder in folders:
        if folder.settings is not None:
            run = folder.settings.run
            flags_by_folder[folder] = flags_for_values(run.implementation, run.gamename, folder.setting_texts)
    rows, changed_rows = [], []
    for name in names:
        texts = [group.setting_text(name) for group in groups]
        is_changed = len(set(texts) - {"-"}) > 1  # between groups; "-" is for a group without the setting
        defaults, meanings = [], []  # may differ between implementations
        for folder, flags in flags_by_folder.items():
            if name in flags and name in folder.setting_texts:
                default = _setting_text(flags[name].default)
                is_changed = is_changed or folder.setting_texts[name] != default
                defaults.append(default)
                meanings.append(SOURCES.sub("", flags[name].meta["help"]))
        row = [name, *texts, " / ".join(dict.fromkeys(defaults)) or "-", " / ".join(dict.fromkeys(meanings))]
        rows.append(row)
        if is_changed:
            changed_rows.append(row)
    header = ["setting", *(group.label for group in groups), "default", "meaning"]
    changes = None
    if changed_rows:
        caption = "Settings that are not the defaults, or differ between the runs"
        changes = Table([header, *changed_rows], caption, numeric=False)
    return {
        "table": Table([header, *rows], "All settings", numeric=False),
        "changes": changes,
        "known": bool(flags_by_folder),
        "module": groups[0].game.rpartition(":")[0],  # an environment of the user is named MODULE:ID
    }


def _setting_text(value: Any) -> str:
    """Return the value of a setting as text."""
    return value if isinstance(value, str) else as_word(value, ",")


def _versions_table(groups: Sequence[ReportGroup]) -> Table | None:
    """Return the table of the versions of programs, None if no run has stored any. A program has several versions if
    runs differ or were resumed with another version."""
    versions_by_program: dict[str, list[str]] = {}
    for folder in [folder for group in groups for folder in group.folders]:
        entries = read_versions(folder.path) if folder.file(FILE) else []
        for entry in entries:
            for name, version in entry.items():
                versions_by_program.setdefault(name, []).append(version)
    versions_by_program.pop("from", None)  # the first epoch of an entry
    rows = [[name, " | ".join(dict.fromkeys(texts))] for name, texts in versions_by_program.items()]
    return Table([["", "version"], *rows], "Made with", numeric=False) if rows else None


def _commands(group: ReportGroup) -> list[str]:
    """Return the commands that repeat the runs of a group, by flags if its settings are known."""
    commands = []
    for folder in group.folders:
        if folder.settings is not None:
            # A search sets `checkpoint_every` itself, so the setting is left out unless the user chose it.
            commands.append(command_line(folder.settings, {"checkpoint_every"} - folder.setting_texts.keys()))
        elif config := folder.file("config.yaml"):
            commands.append(f"python trainer.py --config {shlex.quote(short_path(config))}")
    return commands


def render(template: str, **values: Any) -> str:
    """Return the HTML of a template in this folder with these ``values``."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "data_url": data_url,
        "poster": lambda path: base64.b64encode(poster(path)).decode(),
        "number": number_text,
        "solved_text": tables.solved_text,
        # Text between backquotes becomes code.
        "with_code": lambda text: Markup(re.sub(r"`([^`<]+)`", r"<code>\1</code>", str(escape(text)))),
    }
    environment.globals["cycles"] = CYCLES
    return environment.get_template(template).render(**values)


def data_url(path: Path) -> str:
    """Return the content of a film or a picture as a URL ``data:TYPE;base64,...``, so that a page needs no other file.
    An SVG gets the colours of the page. Since it is an image there, it cannot run scripts."""
    content = path.read_bytes()
    if path.suffix == ".svg":
        # An image does not inherit the page's style, so the SVG needs a copy. It goes right after the tag <svg ...>,
        # which is the first and so ends with the first ">".
        style = f"<style>{render('theme.css.j2')} svg {{ color: var(--ink); fill: currentColor; }}</style>"
        content = _recoloured(content.decode("utf-8", "replace")).replace(">", f">{style}", 1).encode()
    return f"data:{_MEDIA[path.suffix]};base64,{base64.b64encode(content).decode()}"


def _seed_numbers(seeds: Sequence[int]) -> str:
    """Return sorted seeds as text: ``25-29`` for consecutive ones, otherwise all, such as ``25, 31``."""
    first, last = seeds[0], seeds[-1]
    is_range = len(seeds) > 1 and last - first == len(seeds) - 1
    return f"{first}-{last}" if is_range else ", ".join(map(str, seeds))


def _enumeration(words: Sequence[str]) -> str:
    """Return words as text, such as ``a, b and c``."""
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} and {words[-1]}"
