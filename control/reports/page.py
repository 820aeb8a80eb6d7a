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
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from control.cli.options import flags_for_values
from control.cli.parse import parse
from control.cli.progress import time_in_words
from control.cli.settings import Settings, to_yaml
from control.cli.words import as_word, command_line
from control.films.encoding import poster
from control.reports import tags
from control.reports.curves import solved_return
from control.reports.plot import distinct_labels, draw, figure_of, file_stem
from control.reports.runs import Group, find_groups, short_path
from control.reports.sheets import CYCLES, GREY, INK, INKS, PAPER, RULES, Book, Look, check_writable, output_file
from control.reports.tables import (
    Table,
    aggregates,
    number_text,
    over_seeds,
    seed_table,
    seeds_text,
    solved_text,
    summarise,
)
from control.storage.run_dir import atomic_write_text
from control.storage.versions import FILE, read_versions, versions
from models.settings import SettingError, UserError

MAX_FILMS = 12  # on a page
_SOURCES = re.compile(r" \[[A-Z]\b[^]]*\]")  # references in help texts to the sources listed in a config.py
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
_MEDIA = {".svg": "image/svg+xml", ".mp4": "video/mp4", ".png": "image/png"}
_TIMES = ("time/train", "time/rollout", "time/update", "time/eval", "time/test")  # parts of an epoch, in seconds
# Colours of figures and the CSS variables of the page that replace them, so that figures follow its theme. INK and GREY
# are places in the cycle of colours, such as C6.
_VARIABLES = {colour.lower(): f"var(--c{i})" for i, colour in enumerate(CYCLES["light"])} | {
    CYCLES["light"][int(INK[1:])].lower(): "currentColor",
    CYCLES["light"][int(GREY[1:])].lower(): "var(--faint)",
    INKS["light"]: "currentColor",
    PAPER["light"]: "var(--paper)",
    RULES["light"]: "var(--rule)",
}


@dataclass(eq=False)
class Folder:
    """A run folder."""

    path: Path

    @functools.cache  # noqa: B019  # a page has few folders, and warnings are printed once
    def file(self, *names: str) -> Path | None:
        """Return a file in the folder, or None. Print a warning if the path is no regular file inside the folder, such
        as a link out of it."""
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
        with contextlib.suppress(UserError, SystemExit), contextlib.redirect_stderr(io.StringIO()):
            return parse(["--config", str(file)])
        return None

    @cached_property
    def texts(self) -> dict[str, str]:
        """Values of the settings in config.yaml as texts, by name. Parts of a command are named ``command.PART``."""
        file = self.file("config.yaml")
        values: dict[str, Any] = {}
        if self.settings is not None:
            # A setting that config.yaml omits has no effect in this environment.
            effective = yaml.safe_load(to_yaml(self.settings))
            values = {name: value for name, value in effective.items() if name in self.settings.explicit_names}
            if self.settings.proxy is not None and values.get("checkpoint_every") == 1:
                del values["checkpoint_every"]  # a search sets it to 1
        elif file:  # of another program or version
            with contextlib.suppress(UserError):
                values = read_mapping("report", str(file), "name: value", empty=True)
        command = values.pop("command", None)
        if isinstance(command, dict):
            values |= {f"command.{part}": value for part, value in command.items()}
        return {name: _setting_text(value) for name, value in values.items()}

    @property
    def films(self) -> list[Path]:
        """Films of the end and of evaluations, and the last film during training."""
        patterns = ("final.mp4", "eval_*.mp4", "epoch_*.mp4")
        end, evaluations, epochs = (sorted((self.path / "videos").glob(pattern)) for pattern in patterns)
        videos = (self.file("videos", path.name) for path in (*end, *evaluations, *epochs[-1:]))
        return [path for path in videos if path]

    @property
    def scores(self) -> dict[str, Any]:
        """Held-out evaluation of a search, the sentence of its ``verdict`` and whether it ``passed``; empty if none."""
        path = self.file("scores.json")
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            results = read_json(path) if path else {}
            verdict = results.get("verdict", {})
            return {**results["report"], "verdict": verdict.get("sentence", ""), "passed": verdict.get("passed")}
        return {}  # the file is malformed

    def film_text(self, film: Path) -> str:
        """Return the seed and the returns of a film as text, or only the seed if no text is stored beside the film."""
        path = self.file("videos", f"{film.stem}.txt")
        return path.read_text("utf-8", "replace").strip() if path else self.name.partition("-")[0]  # the first seed

    def is_unfinished(self, epochs: int, steps: int) -> bool:
        """Return whether a run with this number of epochs and steps was interrupted or continues, according to its
        settings. A run that may end early because of a return counts as finished."""
        settings = self.settings
        if settings is None or settings.run.target_return is not None:
            return False
        if settings.proxy is not None and settings.proxy.quit_when_solved:
            return False
        reaches_steps = settings.total_steps is not None and steps >= settings.total_steps
        return not reaches_steps and (settings.epochs is None or epochs < settings.epochs)

    @property
    def name(self) -> str:
        """Seed of the run as text, such as ``seed 25``."""
        return self.path.parent.name.replace("_", " ")


@dataclass
class Subject:
    """A group of runs on the page: label, runs, and the numbers that `summarise` returns."""

    label: str
    group: Group
    summary: dict[str, Any]

    @cached_property
    def folders(self) -> list[Folder]:
        """Folders of the runs."""
        return [Folder(path) for path in dict.fromkeys(run.source.parent for run in self.group.runs)]

    @property
    def is_search(self) -> bool:
        """Whether the runs are searches."""
        return tags.of_search(self.summary["over_seeds"])

    @property
    def duration(self) -> str:
        """Time of training and tests of a single run, as text. Empty for several runs, and if it was not logged."""
        if len(self.group.runs) > 1:
            return ""
        columns = self.group.runs[0].columns
        seconds = sum(float(np.nansum(columns[tag])) for tag in _TIMES if tag in columns)
        return f"{time_in_words(seconds)} of training and tests" if seconds else ""

    @cached_property
    def tag(self) -> str:
        """Tag of the result by which the runs are judged: the first of `_RESULTS` that all runs have, otherwise any tag
        that all or some have; empty without any."""
        names = self.summary["over_seeds"]
        counts = {tag: numbers["n"] for tag, numbers in names.items()} | {tags.HELD_OUT_RETURN: len(self._held_out)}
        of_all_runs = (tag for tag in (*_RESULTS, *names) if counts.get(tag) == len(self.group.runs))
        return next(of_all_runs, next(iter(names), ""))

    @property
    def _held_out(self) -> list[float]:
        """Mean held-out returns of the winners of searches, one for each run that has been evaluated."""
        means = (folder.scores.get("mean") for folder in self.folders)
        return [float(mean) for mean in means if isinstance(mean, int | float) and math.isfinite(mean)]

    @property
    def result(self) -> dict[str, Any]:
        """Statistics of the result over seeds, as `over_seeds` returns them."""
        return dict(self.summary["over_seeds"].get(self.tag) or over_seeds(self._held_out))

    @cached_property
    def game(self) -> str:
        """Name of the environment, from the settings or else from the folder. Empty if a copied folder has only its
        name."""
        names = self.group.names
        return self.folders[0].texts.get("gamename", names[0] if len(names) >= 3 else "")

    @cached_property
    def solved(self) -> float | None:
        """Return that solves the environment: a search's ``solved_reward``, otherwise the environment's threshold. None
        if it is unknown or the result is no return."""
        if self.tag in ("", tags.REWARD_RATE, tags.FITNESS):
            return None
        settings = self.folders[0].settings
        if settings is not None and settings.proxy is not None:
            return settings.proxy.solved_reward
        return solved_return(self.game) if self.game else None

    @property
    def verdict(self) -> str:
        """Whether the mean result solves the environment, as words; empty if that is unknown."""
        return "" if self.solved is None else solved_text(self.result["mean"], self.solved)

    @cached_property
    def confirmed_best(self) -> tuple[float, int] | None:
        """Score of the agent in best.ckpt, a mean of two evaluations if they vary, and its epoch. None without this
        file, and for searches, several runs, and agents that are chosen by their returns in training."""
        folder = self.folders[0]
        file, settings = folder.file("checkpoints", "best.ckpt"), folder.settings
        if len(self.group.runs) > 1 or self.tag != tags.GREEDY or file is None or settings is None:
            return None
        if getattr(settings.schedule, "running_mean", 0):  # the score is of training episodes
            return None
        from control.storage import checkpoints  # imports torch, which other pages do not need

        with contextlib.suppress(UserError):
            run_state = checkpoints.load(file).run_state
            return float(run_state["best"]), int(run_state["epoch"])
        return None  # the file is damaged

    @property
    def unfinished(self) -> list[str]:
        """Names of the runs that were interrupted or continue, with their epochs."""
        texts, folders = [], {folder.path: folder for folder in self.folders}
        for run in self.group.runs:
            epochs, steps = (int(run.columns[name].max()) for name in ("epoch", "env_steps"))
            if folders[run.source.parent].is_unfinished(epochs, steps):
                texts.append(f"{self.label}, seed {run.seed} ({epochs:,} epochs)")
        return texts

    @property
    def steps(self) -> str:
        """Numbers of steps of the seeds as text: one, or the smallest and the largest."""
        steps = [seed["env_steps"] for seed in self.summary["seeds"].values()]
        return f"{min(steps):,}" + (f" to {max(steps):,}" if min(steps) < max(steps) else "")

    def setting(self, name: str) -> str:
        """Return the value of a setting as text. If runs have different values, they are separated by ``|``."""
        values = dict.fromkeys(folder.texts.get(name, "-") for folder in self.folders)
        return " | ".join(values)


def report(run_dirs: Sequence[Path], out: Path | None = None) -> int:
    """Write the page of runs in ``run_dirs``, which are run folders or folders above them. ``out`` is a file (.html) or
    a folder, by default the common folder of the runs. Returns the exit code 0. Raises SettingError if there are no
    runs or the page cannot be written."""
    groups = find_groups(run_dirs, "report")
    labels, _ = distinct_labels([group.names for group in groups])
    subjects = [Subject(label, group, summarise(group)) for label, group in zip(labels, groups, strict=True)]
    solved_returns = {subject.solved for subject in subjects}
    if len(solved_returns) == 1 and None not in solved_returns:  # returns in one environment, the best first
        subjects.sort(key=lambda subject: -subject.result["mean"])
    folders = [folder for subject in subjects for folder in subject.folders]
    if linked := [folder.path for folder in folders if (folder.path / "metrics.csv").is_symlink()]:
        raise SettingError(f"report has '{linked[0]}', whose metrics.csv is a link to another folder's")
    run_folders = sorted({str(folder.path) for folder in folders})
    stem = "report"
    if len(run_folders) > 1:
        stem = file_stem("report", {group.names[0] for group in groups}, {subject.label for subject in subjects})
    target = output_file(out or Path(os.path.commonpath(run_folders)), "report_out", stem, ("html",))
    check_writable("report_out", target)
    atomic_write_text(target, _page(subjects, run_dirs, target))
    print_wrapped(f"Report: {short_path(target)} ({target.stat().st_size / 1e6:.1f} MB; open it in a browser)")
    return 0


def _page(subjects: Sequence[Subject], run_dirs: Sequence[Path], target: Path) -> str:
    """Return the HTML of the page, rendered from its template."""
    films = [(subject, folder, path) for subject in subjects for folder in subject.folders for path in folder.films]
    run_paths = " ".join(shlex.quote(short_path(Path(path))) for path in run_dirs)
    report_command = f"python trainer.py --report {run_paths} --report_out {shlex.quote(short_path(target))}"
    return render(
        "page.html.j2",
        subjects=subjects,
        title=_title(subjects),
        seeds=seeds_text([len(subject.group.runs) for subject in subjects]),
        tags=[tags.TAGS[tag] for tag in dict.fromkeys(subject.tag for subject in subjects) if tag],
        results=_results(subjects),
        unfinished=[text for subject in subjects for text in subject.unfinished],
        figures=_figures(subjects),
        films=films[:MAX_FILMS],
        more_films=max(0, len(films) - MAX_FILMS),
        learned=list(_search_results(subjects)),
        seed_tables=[seed_table(subject.summary, caption=f"Seeds of {subject.label}") for subject in subjects],
        settings=_settings(subjects),
        versions=_versions(subjects),
        runs=[(subject.label, commands) for subject in subjects if (commands := _commands(subject))],
        page_commands=[report_command, f"python trainer.py --plot {run_paths}"],
        date=time.strftime("%Y-%m-%d"),
        version=versions()["understudy"],
    )


def _title(subjects: Sequence[Subject]) -> str:
    """Return a title such as ``UDRL and PPO on pendulum``. If groups do not differ in these, their labels follow."""
    all_names = [subject.group.names for subject in subjects]
    # A copied folder has only its name, so game and implementation are unknown.
    if any(len(names) < 3 for names in all_names):
        return _enumeration(list(dict.fromkeys("/".join(names) for names in all_names)))
    games = list(dict.fromkeys(subject.game for subject in subjects))
    implementation_names = list(dict.fromkeys(names[2] for names in all_names))
    title = f"{_enumeration(implementation_names)} on {_enumeration(games)}"
    if len(subjects) > 1 and len(games) == len(implementation_names) == 1:
        title += f": {_enumeration([subject.label for subject in subjects])}"
    return title


def _results(subjects: Sequence[Subject]) -> Table:
    """Return the table of runs and results, a row for each group, without columns that are empty for all of them."""
    has_one_seed = all(len(subject.group.runs) == 1 for subject in subjects)
    mean_column = "mean"
    if has_one_seed:
        mean_column = "return" if any(subject.is_search for subject in subjects) else "return at the end"
    rows = []
    for subject in subjects:
        seeds = subject.summary["seeds"]
        mean, iqm, interval = aggregates(subject.result).values() if subject.tag else ["-"] * 3
        if len(seeds) == 1:  # over the agents of a search
            iqm, interval = _agents_iqm(subject.folders[0].scores) if subject.is_search else ("-", "-")
        best = [number for run in subject.group.runs if math.isfinite(number := run.best(subject.tag))]
        if subject.confirmed_best:
            best = [subject.confirmed_best[0]]
        rows.append({
            "runs": subject.label,
            mean_column: mean,
            "IQM": iqm,
            "its 95 % interval": interval,
            "verdict": subject.verdict or "-",
            "solved from": "-" if subject.solved is None else f"{subject.solved:g}",
            "return of": tags.TAGS[subject.tag].short if subject.tag else "-",
            "best return": number_text(sum(best) / len(best)) if best else "-",
            "seeds": f"{len(seeds)} ({_seed_numbers([int(seed) for seed in seeds])})",
            "steps of a seed": "-" if subject.is_search else subject.steps,
            "steps of a search": subject.steps if subject.is_search else "-",
        })  # fmt: skip
    columns = [name for name in rows[0] if any(row[name] != "-" for row in rows)]
    table_rows = [columns, *([row[name] for name in columns] for row in rows)]
    return Table(table_rows, "Results" if has_one_seed else "Results over seeds")


def _agents_iqm(scores: Mapping[str, Any]) -> tuple[str, str]:
    """Return the interquartile mean over the agents of a search's held-out evaluation, and its interval, as texts."""
    numbers = [scores.get(name) for name in ("iqm", "iqm_low", "iqm_high")]
    iqm, low, high = (number_text(number) if isinstance(number, int | float) else "-" for number in numbers)
    return iqm, f"{low} to {high}" if "-" not in (low, high) else "-"


def _figures(subjects: Sequence[Subject]) -> list[tuple[list[Markup], str, str]]:
    """Return the figures of `--plot`, if any: for each a list of a wide and a narrow SVG, a caption, and a note."""
    figure = figure_of([subject.group for subject in subjects])
    if not any(arm.curves for arm in figure.arms):
        return []
    drawings = []  # the SVGs of all sheets, wide and narrow
    with tempfile.TemporaryDirectory() as folder:
        for narrow in (False, True):
            look = Look(formats=("svg",), narrow=narrow, texts=False)
            with Book(Path(folder, "figure.svg"), look) as book:
                draw(book, figure)
            drawings.append([path.read_text("utf-8") for path in book.files])
    _, tasks = figure.comparison
    compared = dict.fromkeys(label for task in tasks.values() for label in task)
    figures: dict[str, list[Any]] = {kind: [] for kind in _FIGURES}
    for number, ((name, note), wide, narrow_svg) in enumerate(zip(book.sheets, *drawings, strict=True)):
        kind = name.rstrip("0123456789")  # such as "losses" for "losses2"
        subject_text = _enumeration([*compared]) if kind == "scores" else _title(subjects)
        caption = f"{_FIGURES[kind]}: {subject_text}."
        alt = f"{caption} The tables below have the numbers."
        inline = [_inline(wide, f"f{number}", alt), _inline(narrow_svg, f"n{number}", alt)]
        figures[kind].append((inline, caption, note))
    return [content for sheets in figures.values() for content in sheets]


def _recoloured(svg: str) -> str:
    """Return an SVG of matplotlib in the page's colours, without metadata, and with coordinates of two decimals."""
    text = svg[svg.find("<svg") :]  # without the XML declaration
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)  # comments
    text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text)  # coordinates
    text = re.sub(r"#[0-9a-fA-F]{6}\b", lambda colour: _VARIABLES.get(colour[0].lower(), colour[0]), text)
    return re.sub(r">\s+<", "><", text)  # space between elements


def _inline(svg: str, prefix: str, alt: str) -> Markup:
    """Return an SVG of matplotlib as part of the page. ``prefix`` makes its ids unique. ``alt`` is its description."""
    text = re.sub(r'\b(id="|url\(#|href="#)', rf"\g<1>{prefix}-", _recoloured(svg))  # ids and references to them
    size = "".join(re.findall(r'viewBox="[^"]*"', text)[:1])
    description = f'role="img" aria-label="{escape(alt)}"'
    content = text[text.index(">") + 1 :]  # after the old <svg ...>
    return Markup(f'<svg xmlns:xlink="http://www.w3.org/1999/xlink" {size} {description}>{content}')


def _search_results(subjects: Sequence[Subject]) -> Iterator[tuple[str, Table | None, list[tuple[Any, ...]]]]:
    """Yield, for each search or fit of a proxy, its label, the table of the held-out evaluation (None without one) and
    its pictures, which have a file and a caption."""
    for subject in subjects:
        for folder in subject.folders:
            label = f"{subject.label}, {folder.name}"
            titles = dict(_PICTURES)
            if folder.scores and not subject.is_search:  # the page shows curves of searches, but not of fits
                titles["curve"] = "Losses of the fit"
            pictures = []
            for stem, title in titles.items():
                path = folder.file(f"{stem}.svg") or folder.file(f"{stem}.png")
                if path:
                    pictures.append((path, f"{title}: {label}"))
            columns = []  # of the table
            for name, (heading, text_of) in _HELD_OUT.items():
                value = folder.scores.get(name)
                if isinstance(value, int | float):
                    columns.append((heading, text_of(value)))
            table = Table(list(zip(*columns, strict=True)), f"Held-out evaluation: {label}") if columns else None
            if folder.scores or pictures:
                yield label, table, pictures


def _settings(subjects: Sequence[Subject]) -> dict[str, Any] | None:
    """Return the tables of all settings (``table``) and of ``changes``, whether the defaults are ``known``, and the
    ``module`` without which they are not, empty if there is none. Changes are settings that differ between the groups
    or from the defaults; their table is None if there are none. Returns None if no run has a config.yaml."""
    folders = [folder for subject in subjects for folder in subject.folders]
    names = list(dict.fromkeys(name for folder in folders for name in folder.texts))
    if not names:
        return None
    # Ordered sets of defaults and help texts, which may differ between families.
    defaults: dict[str, dict[str, None]] = {name: {} for name in names}
    meanings: dict[str, dict[str, None]] = {name: {} for name in names}
    changed_names = set[str]()
    for folder in folders:
        if folder.settings is None:
            continue
        run = folder.settings.run
        for name, flag in flags_for_values(run.implementation, run.gamename, folder.texts).items():
            if name in folder.texts:
                default = _setting_text(flag.default)
                defaults[name][default] = None
                meanings[name][_SOURCES.sub("", flag.meta["help"])] = None
                if folder.texts[name] != default:
                    changed_names.add(name)
    caption = "Settings that are not the defaults, or differ between the runs"
    header = ["setting", *(subject.label for subject in subjects), "default", "meaning"]
    rows, changes = [], []
    for name in names:
        values = [subject.setting(name) for subject in subjects]
        rows.append([name, *values, " / ".join(defaults[name]) or "-", " / ".join(meanings[name])])
        if name in changed_names or len({*values} - {"-"}) > 1:
            changes.append(rows[-1])
    return {
        "changes": Table([header, *changes], caption, numeric=False) if changes else None,
        "known": bool(defaults),
        "module": subjects[0].game.rpartition(":")[0],  # of an environment of the user
        "table": Table([header, *rows], "All settings", numeric=False),
    }


def _setting_text(value: Any) -> str:
    """Return the value of a setting as text."""
    return value if isinstance(value, str) else as_word(value, ",")


def _versions(subjects: Sequence[Subject]) -> Table | None:
    """Return the table of the versions of programs, None if no run has stored any. A program has several versions if
    runs differ or were resumed with another version."""
    run_folders = [folder for subject in subjects for folder in subject.folders]
    versions_by_program: dict[str, dict[str, None]] = {}  # ordered sets of versions
    for folder in run_folders:
        for entry in read_versions(folder.path) if folder.file(FILE) else []:
            for name, version in entry.items():
                versions_by_program.setdefault(name, {})[version] = None
    versions_by_program.pop("from", None)  # the first epoch of an entry
    rows = [[name, " | ".join(versions)] for name, versions in versions_by_program.items()]
    return Table([["", "version"], *rows], "Made with", numeric=False) if rows else None


def _commands(subject: Subject) -> list[str]:
    """Return the commands that repeat the runs of a group, by flags if its settings are known."""
    commands = []
    for folder in subject.folders:
        if folder.settings is not None:
            # A search sets `checkpoint_every` itself, so the setting is left out unless the user chose it.
            commands.append(command_line(folder.settings, {"checkpoint_every"} - folder.texts.keys()))
        elif config := folder.file("config.yaml"):
            commands.append(f"python trainer.py --config {shlex.quote(short_path(config))}")
    return commands


def render(template: str, **values: Any) -> str:
    """Return the HTML of a template in this folder with these ``values``."""
    loader, blocks = FileSystemLoader(Path(__file__).parent), {"trim_blocks": True, "lstrip_blocks": True}
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, **blocks)  # type: ignore[arg-type]
    environment.filters |= {
        "data_url": _data_url,
        "poster": lambda path: base64.b64encode(poster(path)).decode(),
        "number": number_text,
        "solved_text": solved_text,
        "with_code": lambda text: Markup(re.sub(r"`([^`<]+)`", r"<code>\1</code>", str(escape(text)))),
    }
    environment.globals["cycles"] = CYCLES
    return environment.get_template(template).render(**values)


def _data_url(path: Path) -> str:
    """Return a file as a URL. An SVG gets the page's colours. As an image on the page it cannot run scripts."""
    content = path.read_bytes()
    if path.suffix == ".svg":
        style = f"<style>{render('theme.css.j2')} svg {{ color: var(--ink); fill: currentColor; }}</style>"
        content = _recoloured(content.decode("utf-8", "replace")).replace(">", f">{style}", 1).encode()
    return f"data:{_MEDIA[path.suffix]};base64,{base64.b64encode(content).decode()}"


def _seed_numbers(seeds: Sequence[int]) -> str:
    """Return sorted seeds as text: ``25-29`` for consecutive ones, otherwise all, such as ``25, 31``."""
    first, last = seeds[0], seeds[-1]
    return f"{first}-{last}" if 0 < last - first == len(seeds) - 1 else ", ".join(map(str, seeds))


def _enumeration(words: Sequence[str]) -> str:
    """Return words as text, such as ``a, b and c``."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
