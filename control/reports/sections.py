"""The sections of a page about runs, each as HTML."""

import contextlib
import io
import json
import re
import shlex
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from control.cli.files import read_json
from control.cli.words import command_line
from control.reports import html
from control.reports.folders import Folder, Subject, as_text, judged_by, short_path
from control.reports.groups import plot
from control.reports.tables import AGGREGATES, aggregates, number_text, rows_of_seeds
from control.reports.tags import TAGS
from control.storage.versions import FILE, read_versions
from models.settings import SettingError

MOST_FILMS = 12  # of a page; for further films the page has their number
_SOURCES = re.compile(r" \[[A-Z](, [A-Z])*\]")  # letters that the docstring of a family's settings explains
_MOST_COMMANDS = 12  # of one group; for further ones the page has their number
_FIGURES = {
    "": "Curves over steps",
    "losses": "Losses over steps",
    "scores": "Comparison of scores: performance profiles and probability of improvement",
}
_PICTURES = {
    "curve.png": "The search: fitness of the population and return of fresh agents of the mean",
    "behaviour.png": "What the synthetic environment shows the agents that train on it, beside the real environment",
    "behaviour_reward.png": "What the synthetic bandit pays for: the mean reward of actions by each number of a state",
    "reward.png": "What the learned reward says of states",
}


def title(subjects: Sequence[Subject]) -> str:
    """``UDRL, RCP-R and RCP-A on lunarlander``."""
    names = [subject.group.names for subject in subjects]
    if any(len(parts) < 3 for parts in names):
        return _listed(list(dict.fromkeys("/".join(parts) for parts in names)))
    games, kinds = (list(dict.fromkeys(parts[place] for parts in names)) for place in (0, 2))
    alike = len(subjects) > 1 and len(games) == len(kinds) == 1
    labels = f": {_listed([subject.label for subject in subjects])}" if alike else ""
    return f"{_listed(kinds)} on {_listed(games)}{labels}"


def steps(subjects: Sequence[Subject]) -> str:
    """How many steps a seed has made at most: of its environment, and in a search of all its agents."""
    kinds = {False: "environment steps of a seed", True: "steps of all agents of a search together, on proxies"}
    max_steps = {
        kind: max(
            (
                seed["env_steps"]
                for subject in subjects
                if subject.search == kind
                for seed in subject.summary["seeds"].values()
            ),
            default=None,
        )
        for kind in kinds
    }
    return " and ".join(
        f"up to {max_steps[kind]:,} {words}" for kind, words in kinds.items() if max_steps[kind] is not None
    )


def brief(subjects: Sequence[Subject]) -> str:
    """Runs and results, one row for each group."""
    rows, shown_tags = [], judged_by(subjects)
    for subject, tag in zip(subjects, shown_tags, strict=True):
        seeds = subject.summary["seeds"]
        steps = [seed["env_steps"] for seed in seeds.values()]
        span = f"{min(steps):,}" + (f" to {max(steps):,}" if min(steps) < max(steps) else "")
        span += " of all agents" if subject.search else ""
        row = [subject.label, f"{len(seeds)} ({_ranges([int(seed) for seed in seeds])})", span]
        if tag:
            aggregated = aggregates(subject.summary["over_seeds"][tag])
            best = [seed[tag]["best"] for seed in seeds.values() if seed.get(tag, {}).get("best") is not None]
            row += [TAGS[tag].short, *(aggregated[name] for name in AGGREGATES)]
            row += [number_text(sum(best) / len(best))] if best else []
        rows.append(row + ["-"] * (8 - len(row)))
    head = (
        "runs",
        "seeds (which)",
        "steps of a seed",
        "return",
        "mean",
        "IQM",
        "its 95 % interval",
        "best epoch",
    )
    first = subjects[0].group.names
    where = f"{first[2]} on {first[0]}, experiment {first[1]}." if len(first) >= 3 else ""
    note = (
        "Returns are means over the last tenth of the epochs, over seeds; the best epoch is the mean of each seed's. "
        "The interval is a bootstrap over seeds of the interquartile mean (IQM)."
    )
    if len(set(filter(None, shown_tags))) > 1:
        note += " The column return says of what: rows of different ones are not to be compared."
    parts = [html.paragraph(where)] if where and len(subjects) == 1 else []
    parts.append(html.table("Results over seeds", head, rows))
    return "\n".join([*parts, html.paragraph(note if any(shown_tags) else "No return was logged.", "faint")])


def curves(subjects: Sequence[Subject], run_dirs: Sequence[Path]) -> str:
    """The figures of `--plot`."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        try:
            plot(run_dirs, Path(folder, "plot.svg"))
        except SettingError:  # nothing to draw yet
            return html.paragraph("Neither returns nor losses were logged yet.")
        drawings = {path.stem: path.read_text(encoding="utf-8") for path in sorted(Path(folder).glob("*.svg"))}
        among = json.loads(Path(folder, "plot.json").read_text(encoding="utf-8")).get("compared", {}).get("groups", [])
    parts = []
    for place, (stem, svg) in enumerate(drawings.items()):
        kind = stem.removeprefix("plot").strip("_0123456789")
        whose = _listed(among) if kind == "scores" else title(subjects)
        caption = f"{_FIGURES[kind]}: {whose}."
        parts.append(html.drawing(svg, place, f"{caption} The tables below have the numbers.", caption))
    return "\n".join(parts)


def numbers(subjects: Sequence[Subject]) -> str:
    """A table for each group, a row for each seed."""
    parts = [html.paragraph("Returns: mean over the last tenth of the epochs, in brackets the best epoch.")]
    for subject in subjects:
        head, *rows = rows_of_seeds(subject.summary)
        parts.append(html.table(f"Seeds of {subject.label}", head, rows))
    return "\n".join(parts)


def learned(subjects: Sequence[Subject]) -> str:
    """Results of searches: held-out evaluations, and their pictures."""
    parts = []
    for subject in subjects:
        for folder in subject.folders:
            scores = _scores(folder)
            files = [path for name in _PICTURES if (path := folder.file(name))]
            if not scores and not any(path.name != "curve.png" for path in files):
                continue
            label = f"{subject.label}, {folder.path.parent.name.replace('_', ' ')}"
            parts.append(f"<h3>{escape(label)}</h3>")
            if scores:
                parts.append(_held_out(scores, label))
            for path in files:
                caption = f"{_PICTURES[path.name]}: {label}"
                parts.append(html.picture(path, caption, f"{caption}."))
    return "\n".join(parts)


def _held_out(scores: dict[str, Any], label: str) -> str:
    names = {
        "agents": "fresh agents",
        "mean": "mean return",
        "std": "standard deviation",
        "iqm": "IQM",
        "worst": "worst",
        "solved": "share solved",
        "steps": "training steps",
    }
    values = {text: scores["report"].get(name) for name, text in names.items()}
    rows = [
        [text, f"{value:,}" if isinstance(value, int) else number_text(value)]
        for text, value in values.items()
        if isinstance(value, int | float)
    ]
    return html.table(f"Held-out evaluation: {label}", ("", "value"), rows)


def _scores(folder: Folder) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        content = read_json(path) if (path := folder.file("scores.json")) else {}
        return content if isinstance(content["report"], dict) else {}
    return {}


def films(subjects: Sequence[Subject]) -> str:
    """The films of all runs, `MOST_FILMS` at most."""
    all_films = [(subject, folder, path) for subject in subjects for folder in subject.folders for path in folder.films]
    parts = []
    for subject, folder, path in all_films[:MOST_FILMS]:
        caption = f"Film {path.stem}: {subject.label}, {folder.path.parent.name.replace('_', ' ')}"
        parts.append(html.video(path, caption, f"{caption}. A few episodes are no mean: the tables have those."))
    if len(all_films) > MOST_FILMS:
        parts.append(
            html.paragraph(f"And {len(all_films) - MOST_FILMS} films more, in the folders of the runs.", "faint")
        )
    return "\n".join(parts)


def settings(subjects: Sequence[Subject]) -> str:
    """Settings that differ between groups, or from the defaults for a single group; and all settings, folded."""
    names = list(dict.fromkeys(name for subject in subjects for folder in subject.folders for name in folder.written))
    if not names:
        return html.paragraph("No config.yaml was found beside the metrics.")
    flags = {name: flag for subject in subjects for folder in subject.folders for name, flag in folder.flags.items()}
    meaning = {name: _SOURCES.sub("", str(flag.meta.get("help", ""))) for name, flag in flags.items()}
    values = {name: [_value(subject, name) for subject in subjects] for name in names}
    labels = [subject.label for subject in subjects]
    all_rows = [[name, *values[name], meaning.get(name, "")] for name in names]
    full_table = html.table("All settings", ("setting", *labels, "meaning"), all_rows, numbers=False)
    if len(subjects) > 1:
        heading, head = "Settings that differ between the runs", ("setting", *labels, "meaning")
        rows = [row for row in all_rows if len(set(row[1:-1])) > 1 and row[0] != "seed"]
        empty_text = "The settings of all runs are the same."
    else:
        heading, head = "Settings that are not the defaults", ("setting", "value", "default", "meaning")
        defaults = {name: as_text(flag.default) for name, flag in flags.items()}
        rows = [
            [name, *values[name], defaults[name], meaning.get(name, "")]
            for name in names
            if name in defaults and values[name] != [defaults[name]]
        ]
        empty_text = "All settings are the defaults." if flags else "The defaults of these settings are not known here."
    first = html.table(heading, head, rows, numbers=False) if rows else html.paragraph(empty_text)
    return f"{first}\n{html.details(f'All {len(names)} settings', full_table)}"


def _value(subject: Subject, name: str) -> str:
    """A setting of a group's runs; of several values all."""
    values = dict.fromkeys(folder.written.get(name, "") for folder in subject.folders)
    if name == "seed" and all(value.isdigit() for value in values):
        return _ranges([run.seed for run in subject.group.runs])
    return " | ".join(values)


def versions(subjects: Sequence[Subject]) -> str:
    """Versions of the programs that made the runs, with a line for runs that lack them."""
    label_versions = {
        subject.label: [read_versions(folder.path) if folder.file(FILE) else [] for folder in subject.folders]
        for subject in subjects
    }
    flat = {label: [entry for of_run in runs for entry in of_run] for label, runs in label_versions.items()}
    names = dict.fromkeys(name for entries in flat.values() for entry in entries for name in entry if name != "from")
    if not names:
        return html.paragraph("These runs were made before versions were noted in their folders.")
    columns = [flat[subject.label] for subject in subjects]
    rows = [
        [name, *(" | ".join(dict.fromkeys(entry[name] for entry in column if name in entry)) for column in columns)]
        for name in names
    ]
    parts = [html.table("Made with", ("", *(subject.label for subject in subjects)), rows, numbers=False)]
    if any(not of_run for runs in label_versions.values() for of_run in runs):
        parts.append(html.paragraph("Some of the runs do not say what they were made with.", "faint"))
    return "\n".join(parts)


def repeat(subjects: Sequence[Subject], run_dirs: Sequence[Path], target: Path) -> str:
    """Commands that make these runs, and this page, again."""
    parts = []
    for subject in subjects:
        lines = []
        for folder in subject.folders:
            config = folder.file("config.yaml")
            if folder.settings is not None:
                lines.append(command_line(folder.settings))
            elif config:
                lines.append(f"python trainer.py --config {shlex.quote(short_path(config))}")
        if not lines:
            continue
        parts.append(f"<h3>{escape(subject.label)}</h3>" if len(subjects) > 1 else "")
        parts.append(html.code(lines[:_MOST_COMMANDS]))
        if len(lines) > _MOST_COMMANDS:
            parts.append(html.paragraph(f"And {len(lines) - _MOST_COMMANDS} runs with other seeds.", "faint"))
    folders = " ".join(shlex.quote(short_path(Path(path))) for path in run_dirs)
    out = f" --report_out {shlex.quote(short_path(target))}"
    parts += [html.paragraph("This page, and its figure as a file:")]
    parts += [html.code([f"python trainer.py --report {folders}{out}", f"python trainer.py --plot {folders}"])]
    note = "A run gives the same numbers again with the same versions and processor; others round differently."
    return "\n".join([*parts, html.paragraph(note, "faint")])


def _ranges(numbers: Sequence[int]) -> str:
    """``25-29, 31``."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(f"{low}-{high}" if high > low else str(low) for low, high in spans)


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
