"""`--report`: runs as one HTML file that needs nothing else: curves, tables, films, what learned environments show,
settings and where they differ, versions, and the commands that repeat it all."""

import os
import re
import time
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

from control.cli.colour import warning
from control.reports import html, sections
from control.reports.files import check_writable
from control.reports.folders import Subject, say_versions_of
from control.reports.groups import labelled
from control.reports.runs import find_groups
from control.reports.tables import seeds_text, summarise
from control.storage.run_dir import atomic_write_text, safe_name
from control.storage.versions import versions
from models.settings import SettingError

TEMPLATE = Path(__file__).with_name("page.html")


def report(run_dirs: Sequence[Path], out: Path | None = None) -> int:
    """Write the page of these runs, run folders or any folders above them. ``out`` is a file (.html) or a folder, by
    default the run's own or the one common to the runs. Returns the exit code 0. Raises SettingError where there is
    nothing to show or the page cannot be written."""
    groups = find_groups(run_dirs, "report")
    say_versions_of(groups, run_dirs, "report")
    labels, _ = labelled([group.names for group in groups])
    subjects = [Subject(label, group, summarise(group)) for label, group in zip(labels, groups, strict=True)]
    made_from = sorted({str(folder.path) for subject in subjects for folder in subject.folders})
    folders = [folder for subject in subjects for folder in subject.folders]
    if foreign := [folder.path for folder in folders if not folder.file("metrics.csv")]:
        raise SettingError(f"report has '{foreign[0]}', whose metrics.csv is a link to another folder's")
    target = _target(out, subjects, made_from)
    check_writable("report_out", target)
    atomic_write_text(target, _page(subjects, run_dirs, target))
    for path in (path for folder in folders for path in folder.left_out):
        warning(f"left out: '{path}' is no regular file of its run's folder")
    print(f"Report: {target} ({target.stat().st_size / 1e6:.1f} MB; open it in a browser)")
    return 0


def _target(out: Path | None, subjects: Sequence[Subject], made_from: Sequence[str]) -> Path:
    """The file to write."""
    if out is not None and not out.is_dir() and (out.suffix or out.is_file()):
        if out.suffix.lower() not in (".html", ".htm"):
            raise SettingError(f"report_out is '{out}'; allowed: a folder, or a file ending in .html", "report_out")
        return out
    folder, words = out or Path(os.path.commonpath(made_from)), ["report"]
    if len(made_from) > 1:
        games = dict.fromkeys(subject.group.names[0] for subject in subjects)
        kinds = dict.fromkeys(subject.group.names[-1] for subject in subjects)
        words += [*games, *kinds] if len(games) + len(kinds) <= 6 else [f"{len(subjects)}_groups"]
    return folder / f"{safe_name('_'.join(words))[:80]}.html"


def _page(subjects: Sequence[Subject], run_dirs: Sequence[Path], target: Path) -> str:
    words = {
        "In brief": sections.brief(subjects),
        "Curves": sections.curves(subjects, run_dirs),
        "Films": sections.films(subjects),
        "Learned environments and rewards": sections.learned(subjects),
        "Numbers": sections.numbers(subjects),
        "Settings": sections.settings(subjects),
        "Versions": sections.versions(subjects),
        "How to repeat it": sections.repeat(subjects, run_dirs, target),
    }
    entries = {_anchor(name): (name, content) for name, content in words.items() if content}
    counts = seeds_text([len(subject.group.runs) for subject in subjects])
    description = f"{len(subjects)} groups of runs, {counts} each" if len(subjects) > 1 else f"One experiment, {counts}"
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(sections.title(subjects)),
        description=escape(f"{description}, {sections.steps(subjects)}."),
        contents="\n".join(f"<li>{html.link(anchor, name)}</li>" for anchor, (name, _) in entries.items()),
        sections="\n".join(
            f'<section aria-labelledby="{anchor}"><h2 id="{anchor}">{escape(name)}</h2>\n{content}</section>'
            for anchor, (name, content) in entries.items()
        ),
        made=escape(f"Made on {time.strftime('%Y-%m-%d')} with understudy {versions()['understudy']}."),
    )


def _anchor(name: str) -> str:
    return re.sub(r"\W+", "-", name.lower())
