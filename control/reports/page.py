"""Page of `--report`: one HTML file about runs, with their results, curves, films, settings, versions and commands. Its
template is ``page.html.j2``.
"""

import os
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from control.cli.colour import print_wrapped
from control.cli.help import SOURCES
from control.cli.options import flags_for_values
from control.cli.words import command_line
from control.reports import stages, tables, tags
from control.reports.figures import PAGE_STYLES, check_writable, figure_pages, output_file
from control.reports.html import Picture, picture, render_page
from control.reports.plot import distinct_labels, draw, figure_of, file_stem
from control.reports.run_folders import IQM, ReportGroup, RunFolder, setting_text
from control.reports.runs import Group, find_groups, short_path
from control.reports.statistics import MIN_RUNS
from control.reports.tables import Table, number_text, with_interval
from control.storage.run_dir import atomic_write_text
from control.storage.versions import FILE, read_versions
from models.settings import SettingError

MAX_FILMS = 12  # on a page
_MOST_NAMES = 4  # groups that are named one by one
_FIGURES = {"": "", "scores": "Scores of the seeds", "losses": "Losses"}  # their titles, in the order of the page
_PICTURES = {
    "behaviour": "States and rewards in training, beside the real environment",
    "behaviour_reward": "What the synthetic bandit pays for: the reward of an action in a state",
    "reward": "What the learned reward says of states",
}
_LEARNED = {"SE": "Synthetic environment", "RN": "Reward network"}  # headings of their pictures
_NAMED = ("implementation", "gamename", "exp_name")  # settings that the title and the first line name


def report(run_dirs: Sequence[Path], out: Path | None = None) -> int:
    """Write the page of runs in ``run_dirs``, which are run folders or folders above them. ``out`` is a file (.html) or
    a folder, by default the common folder of the runs. Returns the exit code 0. Raises SettingError if there are no
    runs or the page cannot be written."""
    run_groups = find_groups(run_dirs, "report")
    _name_trials(run_groups)
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


def _name_trials(groups: Sequence[Group]) -> None:
    """Add the settings that differ to the names of trials, if these are one or two: ``trial 3, lr 0.01``."""
    texts = [RunFolder(group.runs[0].source.parent, "").setting_texts if group.names[3:] else {} for group in groups]
    names = [name for name in texts[0] if len({text.get(name) for text in texts}) > 1]
    if all(texts) and 1 <= len(names) <= 2:
        for group, text in zip(groups, texts, strict=True):
            group.names = (*group.names[:-1], ", ".join([group.names[-1], *(f"{name} {text[name]}" for name in names)]))


def _page(groups: Sequence[ReportGroup], run_dirs: Sequence[Path], target: Path) -> str:
    """Return the HTML of the page. ``run_dirs`` and ``target`` are for its last lines, the commands that make it."""
    folders = {}  # with the names of runs
    for group in groups:
        for folder in group.folders:
            folders[folder] = folder.name if len(groups) == 1 else f"{group.label}, {folder.name}"
    films = [(folder, path) for folder in folders for path in folder.films]
    paths = " ".join(shlex.quote(short_path(Path(path))) for path in run_dirs)
    command = f"python trainer.py --report {paths} --report_out {shlex.quote(short_path(target))}"
    implementations = {name for group in groups for name in group.names[2:3]}  # unknown for copied folders
    searches = {folder for group in groups if group.is_search for folder in group.folders}
    learned = {label: list(_pictures(folder, folder in searches)) for folder, label in folders.items()}
    return render_page(
        "page.html.j2",
        _title(groups),
        _description(groups),
        conclusion=_conclusion(groups),
        teachers=_teachers(groups, target),
        results=_results_table(groups) if len(groups) > 1 else None,
        held_out=_held_out_table(folders),
        notes=_notes(groups),
        seed_tables=_seed_tables(groups),
        figures=_page_figures(groups),
        films=[(path, folder.film_text(path), folders[folder]) for folder, path in films[:MAX_FILMS]],
        more_films=max(0, len(films) - MAX_FILMS),
        learned_heading=" and ".join(heading for name, heading in _LEARNED.items() if name in implementations),
        learned={label: pictures for label, pictures in learned.items() if pictures},
        settings=_settings_tables(groups),
        versions=_versions_table(groups),
        commands={group.label: lines for group in groups if (lines := _commands(group))},
        page_commands=[command, f"python trainer.py --plot {paths}"],
    )


def _description(groups: Sequence[ReportGroup]) -> str:
    """Return the size of the runs, such as ``5 seeds, 50,400 steps each, experiment debug``."""
    seeds = tables.seeds_text([len(group.runs) for group in groups])
    if len(groups) > 1:
        return f"{len(groups)} {_noun(groups)}, {seeds} each"
    (group,) = groups
    steps = f"{group.steps} steps{' each' if len(group.runs) > 1 else ''}"
    if group.is_search:
        steps += f" of all agents, {group.real_steps} real steps"
    return ", ".join(filter(None, (seeds, steps, group.duration, f"experiment {group.names[:2][-1]}")))


def _noun(groups: Sequence[ReportGroup]) -> str:
    """Return "runs" if each group has one run, otherwise "groups of runs"."""
    return "runs" if all(len(group.runs) == 1 for group in groups) else "groups of runs"


def _conclusion(groups: Sequence[ReportGroup]) -> tuple[list[str], bool | None]:
    """Return the conclusion as sentences: which runs solve the environment, their results, and verdicts of searches. It
    is good, bad or, with None, neither."""
    judged = [group for group in groups if group.tag]
    if not judged:
        return ["No return was logged."], None
    if len(groups) == 1:
        verdict, sentences = judged[0].sentences()
        verdicts = {verdict}
    else:
        verdicts = {group.verdict for group in judged}
        sentences = _several_sentences(judged)
    for group in judged:
        for folder in group.folders:
            if sentence := folder.scores.get("verdict"):
                sentences.append(sentence if len(judged) == 1 else f"{group.label}: {sentence}")
                verdicts |= set() if folder.scores["passed"] else {"failed"}
    unfinished = [text for group in groups for text in group.unfinished]
    if unfinished:
        sentences.append(f"Interrupted, or still running: {', '.join(unfinished)}.")
    if verdicts == {"solved"}:
        return sentences, True
    has_failed = "failed" in verdicts or (verdicts == {"not solved"} and not unfinished)
    return sentences, False if has_failed else None


def _several_sentences(groups: Sequence[ReportGroup]) -> list[str]:
    """Return sentences about several groups: which of them solve the environment, and their results. Of many groups,
    only the best is named."""
    sentences = []
    if all(group.verdict for group in groups):
        solved = [group.label for group in groups if group.verdict == "solved"]
        unsolved = [group.label for group in groups if group.verdict != "solved"]
        thresholds = {group.solved for group in groups}
        limit = f" ({thresholds.pop():g} or more)" if len(thresholds) == 1 else ""
        if not solved:
            text = f"Not solved{limit} by any of {len(groups)} {_noun(groups)}"
        elif len(groups) > _MOST_NAMES:
            text = f"Solved{limit} by {len(solved)} of {len(groups)} {_noun(groups)}"
        else:
            text = f"Solved{limit} by {_enumeration(solved)}{f', not by {_enumeration(unsolved)}' if unsolved else ''}"
        sentences.append(f"{text}.")
    results = []
    for group in sorted(groups, key=lambda group: group.result["mean"], reverse=True):
        steps = f"{group.real_steps} real" if group.is_search else group.steps
        results.append(f"{number_text(group.result['mean'])} for {group.label} ({steps} steps)")
    if len(groups) > _MOST_NAMES:
        return [*sentences, f"Highest return at the end of training: {results[0]}."]
    return [*sentences, f"Returns at the end of training: {', '.join(results)}."]


def _notes(groups: Sequence[ReportGroup]) -> list[str]:
    """Return sentences that explain the numbers in the tables of results."""
    shown_tags = [tag for group in groups for tag in (group.tag, *group.summary["over_seeds"]) if tag]
    notes = []
    for tag in [tags.TAGS[name] for name in dict.fromkeys(shown_tags)]:
        notes.append(f"{tag.short.capitalize()}: {tag.text[0].lower()}{tag.text[1:]}")
    if notes:
        period = "generations" if all(group.is_search for group in groups) else "epochs"
        notes.append(f"Numbers of seeds are means over the last tenth of the {period}, in brackets the best.")
    has_seeds = any(len(group.runs) >= MIN_RUNS for group in groups)
    if has_seeds or any(folder.scores for group in groups for folder in group.folders):
        notes.append(f"IQM: interquartile mean, with its bootstrap interval over {'seeds' if has_seeds else 'agents'}.")
    return notes


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
        labels = _enumeration([group.label for group in groups])
        title += f": {labels if len(groups) <= _MOST_NAMES else f'{len(groups)} runs'}"
    return title


def _results_table(groups: Sequence[ReportGroup]) -> Table:
    """Return the table of results, a row for each group, without columns that are empty for all of them or that other
    words of the page make redundant."""
    rows = [_results_row(group) for group in groups]
    columns = []
    for name in rows[0]:
        cells = {row[name] for row in rows}
        if cells != {"-"} and (len(cells) > 1 or name not in ("solved from", "return of")):
            columns.append(name)
    if not any(group.is_search for group in groups):
        columns.remove("real steps")  # all steps are real
    kinds = {row["return of"] for row in rows}
    caption = f"{kinds.pop() if len(kinds) == 1 else ''} returns at the end of training".strip().capitalize()
    return Table([columns, *([row[name] for name in columns] for row in rows)], caption)


def _results_row(group: ReportGroup) -> dict[str, str]:
    """Return the texts of a group in the table of results, by the heading of the column; ``-`` for an empty cell."""
    iqm = "-"
    if len(group.runs) >= MIN_RUNS and group.tag:
        iqm = with_interval(group.result["iqm"], group.result["iqm_interval"])
    elif len(group.runs) == 1:  # of a search: over the agents of its held-out evaluation
        iqm = group.folders[0].held_out.get(IQM, "-")
    return {
        "run": group.label,
        "mean": number_text(group.result["mean"]) if group.tag else "-",
        IQM: iqm,
        "verdict": group.verdict or "-",
        "solved from": "-" if group.solved is None else f"{group.solved:g}",
        "return of": tags.TAGS[group.tag].short if group.tag else "-",
        "best": number_text(group.best),
        "training steps": group.steps,
        "real steps": group.real_steps if group.is_search else group.steps,
    }


def _seed_tables(groups: Sequence[ReportGroup]) -> list[Table]:
    """Return a table of seeds for each group. Groups of one seed have one table if its columns are the same for all."""
    seed_tables = []
    for group in groups:
        rows = tables.seed_table(group.summary, "run").rows
        num_seeds = len(group.runs)
        if num_seeds < MIN_RUNS:
            rows = rows[: 1 + num_seeds + (num_seeds > 1)]  # without IQM and its interval
        # Epochs and steps that are equal for all seeds are in the first line of the page or in the table of results.
        equal = [column for column in (1, 2) if len({row[column] for row in rows[1 : 1 + num_seeds]}) == 1 < num_seeds]
        rows = [[cell for column, cell in enumerate(row) if column not in equal] for row in rows]
        seed_tables.append(Table(rows, f"Seeds of {group.label}"))
    headers = {tuple(table.rows[0]) for table in seed_tables}
    if len(groups) > 1 and len(headers) == 1 and all(len(group.runs) == 1 for group in groups):
        rows = [[group.label, *table.rows[1][1:]] for group, table in zip(groups, seed_tables, strict=True)]
        return [Table([*headers, *rows], "Returns of the runs")]
    return seed_tables


def _held_out_table(folders: dict[RunFolder, str]) -> Table | None:
    """Return the statistics of the held-out evaluations of searches, a row for each. None without any. ``folders`` has
    the names of runs."""
    cells = {label: folder.held_out for folder, label in folders.items() if folder.held_out}
    headings = dict.fromkeys(heading for texts in cells.values() for heading in texts)
    rows = [[label, *(texts.get(heading, "-") for heading in headings)] for label, texts in cells.items()]
    return Table([["run", *headings], *rows], "Returns of new agents that trained on the winner") if cells else None


def _page_figures(groups: Sequence[ReportGroup]) -> list[Picture]:
    """Return the figures of `--plot` in the order of `_FIGURES`. Empty if neither returns nor losses were logged."""
    figure = figure_of(groups)
    if not any(arm.curves for arm in figure.arms):
        return []
    pictures: dict[str, list[Picture]] = {kind: [] for kind in _FIGURES}
    with tempfile.TemporaryDirectory() as folder:
        files = []  # of each style
        for style in PAGE_STYLES:
            with figure_pages(style.path(Path(folder), "figure"), style) as pages:
                draw(pages, figure)
            files.append(pages.files)
        for name, wide, narrow in zip(pages.names, *files, strict=True):
            kind = name.rstrip("0123456789")  # such as "losses" for "losses2"; "" is the figure of returns
            alt = f"{_FIGURES[kind] or 'Curves'} of {_title(groups)}. The tables have the numbers"
            pictures[kind].append(picture(wide, narrow, alt, _FIGURES[kind]))
    return [drawing for drawings in pictures.values() for drawing in drawings]


def _pictures(folder: RunFolder, is_search: bool) -> Iterator[Picture]:
    """Yield the pictures that show the result of a search or of a supervised fit."""
    titles = dict(_PICTURES)
    if folder.scores and not is_search:
        titles["curve"] = "Losses of the fit"
    for stem, title in titles.items():
        if path := folder.file(f"{stem}_wide.svg") or folder.file(f"{stem}.svg") or folder.file(f"{stem}.png"):
            yield picture(path, folder.file(f"{stem}_narrow.svg"), title, title)


def _settings_tables(groups: Sequence[ReportGroup]) -> dict[str, Any] | None:
    """Return the values of the page's section about settings, None if no run has a config.yaml.

    ``table`` has all settings. ``changes`` has the settings that differ between groups or from their defaults; it is
    None if there are none. Of many groups, it has the settings that differ between them, in columns. ``known`` says
    whether the defaults are known. They are unknown if the environment is in a Python module that was not imported;
    ``module`` is its name, empty for other environments. ``many`` says whether there are many groups.
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
                default = setting_text(flags[name].default)
                if len(groups) <= _MOST_NAMES:
                    is_changed = is_changed or folder.setting_texts[name] != default
                defaults.append(default)
                meanings.append(SOURCES.sub("", flags[name].meta["help"]))
        row = [name, *texts, " / ".join(dict.fromkeys(defaults)) or "-", " / ".join(dict.fromkeys(meanings))]
        rows.append(row)
        if is_changed and name not in _NAMED:
            changed_rows.append(row)
    labels = [group.label for group in groups] if len(groups) > 1 else ["value"]
    header = ["setting", *labels, "default", "meaning"]
    changes = None
    if changed_rows and len(groups) <= _MOST_NAMES:
        between = ", or differ between the runs" if len(groups) > 1 else ""
        changes = Table([header, *changed_rows], f"Settings that are not the defaults{between}")
    elif changed_rows:
        columns = [["runs", *labels], *(row[:-2] for row in changed_rows)]
        changes = Table([*zip(*columns, strict=True)], "Settings that differ between the runs")
    return {
        "table": Table([header, *rows], "All settings"),
        "changes": changes,
        "known": bool(flags_by_folder),
        "many": len(groups) > _MOST_NAMES,
        "module": groups[0].game.rpartition(":")[0],  # an environment of the user is named MODULE:ID
    }


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
    return Table([["program", "version"], *rows], "Versions") if rows else None


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


def _enumeration(words: Sequence[str]) -> str:
    """Return words as text, such as ``a, b and c``."""
    if len(words) == 1:
        return words[0]
    return f"{', '.join(words[:-1])} and {words[-1]}"
