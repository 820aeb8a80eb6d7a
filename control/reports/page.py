"""Page of `--report`: one HTML file about runs, with their results, curves, films, settings, versions and commands. Its
template is ``page.html.j2``.
"""

import contextlib
import itertools
import math
import os
import re
import shlex
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from control.cli.colour import print_wrapped
from control.cli.help import SOURCES
from control.cli.options import command_line, flags_for_values
from control.cli.words import Flag
from control.reports import tables, tags
from control.reports.figures import FigureStyle, check_writable, narrow_file, output_file
from control.reports.html import Picture, data_url, render_page
from control.reports.plot import Figure, distinct_labels, draw, figure_of
from control.reports.run_folders import (
    IQM,
    ReportGroup,
    RunFolder,
    is_interrupted,
    searched_values,
    setting_text,
    trials_in,
)
from control.reports.runs import find_groups, short_path
from control.reports.search import FEWEST, plot_search
from control.reports.stages import PAGE
from control.reports.statistics import MIN_RUNS
from control.reports.tables import NOT_SOLVED, Table, number_text, with_interval
from control.storage.run_dir import RESULTS, atomic_write_text
from control.storage.versions import FILE
from models.settings import SettingError

MAX_FILMS = 12  # on a page
_MAX_NAMED = 4  # groups, or environments with their best group, about which the conclusion has a sentence
_MIN_COUNTED = 3  # groups of which the conclusion says how many solve their environment
_MAX_LABELS = 8  # in a list of the conclusion
_PICTURES = {  # with titles of their own: their descriptions
    "behaviour": "States and rewards in training, beside the real environment",
    "behaviour_reward": "What the synthetic bandit pays for: the reward of an action in a state",
    "reward": "What the learned reward says of states",
}
_NAMED = ("implementation", "gamename", "exp_name", "seed", "num_seeds")  # settings that other sections name
_OF_SEARCHES = re.compile(r"\(with SE, RN: [^)]*\) | SE, RN: [^.]*\.")  # in the help texts of agents' settings


def report(run_dirs: Sequence[Path], out: Path | None = None) -> int:
    """Write the page of runs in ``run_dirs``, which are run folders or folders above them. ``out`` is a file (.html) or
    a folder, by default the common folder of ``run_dirs``. Returns the exit code 0. Raises SettingError if there are no
    runs or the page cannot be written."""
    run_groups = find_groups(run_dirs, "report", is_interrupted)
    figure = figure_of(run_groups)
    pairs = zip(run_groups, figure.summary.items(), strict=True)
    groups = [ReportGroup(group.names, group.runs, label, summary) for group, (label, summary) in pairs]
    paths = [folder.path for group in groups for folder in group.folders]
    for path in paths:
        if (path / "metrics.csv").is_symlink():
            raise SettingError(f"report has '{path}', whose metrics.csv is a link to another folder's")
    common = Path(os.path.commonpath([folder.resolve() for folder in run_dirs]))
    target = output_file(out or common, "report_out", "report", ("html",))
    check_writable("report_out", target)
    atomic_write_text(target, _page(groups, figure, run_dirs, target))
    print_wrapped(f"Report: {short_path(target)} ({target.stat().st_size / 1e6:.1f} MB; open it in a browser)")
    return 0


def _page(groups: Sequence[ReportGroup], figure: Figure, run_dirs: Sequence[Path], target: Path) -> str:
    """Return the HTML of the page of ``groups``. ``figure`` has their curves. ``run_dirs`` and ``target`` are for the
    last lines of the page, the commands that make it again."""
    tunings = _tunings(groups)
    # The best trials are first, and runs that have not finished last.
    groups = list(itertools.chain(*tunings.values())) or sorted(groups, key=lambda group: bool(group.unfinished))
    run_names = {}  # names on the page, by folder
    for group in groups:
        for folder in group.folders:
            run_names[folder] = folder.name if len(groups) == 1 else f"{group.label}, {folder.name}"
    films = [(path, caption, name) for folder, name in run_names.items() for path, caption in folder.films]
    learned = {name: (folder.scores.get("verdict", ""), list(_pictures(folder))) for folder, name in run_names.items()}
    commands = {group.label: _commands(group) for group in groups}
    paths = " ".join(shlex.quote(short_path(Path(path))) for path in run_dirs)
    command = f"python trainer.py --report {paths} --report_out {shlex.quote(short_path(target))}"
    title = _title(groups, f"{'Searches' if len(tunings) > 1 else 'Search'} of hyperparameters: " if tunings else "")
    # Pages of `--learn`: those whose teachers the runs trained, and others in the same folders.
    teacher_pages = dict.fromkeys(folder.learn_page for folder in run_names)
    learn_pages = [page for page in teacher_pages if page and page.is_file()]
    result_pages = [file.with_name(PAGE) for folder in run_dirs for file in sorted(folder.rglob(RESULTS))]
    other_pages = [page for page in dict.fromkeys(result_pages) if page.is_file() and page.resolve() not in learn_pages]
    return render_page(
        "page.html.j2",
        title,
        f"{len(groups)} trials" if tunings else _description(groups),
        conclusion=_conclusion(groups, tunings),
        learn_pages=_links(learn_pages, target),
        other_pages=_links(other_pages, target),
        results=_results_table(groups, bool(tunings)) if len(groups) > 1 else None,
        held_out=_held_out_table(groups, run_names),
        notes=_notes(groups),
        seed_tables=_seed_tables(_with_seed_tables(groups)),
        trials=_trials_table(groups) if tunings else None,
        fewest_trials=FEWEST,
        importances=_importance_figures(tunings),
        figures=_page_figures(figure, title),
        metrics=list(
            zip(run_names.values(), _links([folder.path / "metrics.csv" for folder in run_names], target), strict=True)
        ),
        films=films[:MAX_FILMS],
        more_films=max(0, len(films) - MAX_FILMS),
        learned={name: content for name, content in learned.items() if any(content)},
        settings=_settings_tables([trials[0] for trials in tunings.values()] or groups),
        versions=tables.versions_table([folder.path for folder in run_names if folder.file(FILE)]),
        commands={label: lines for label, lines in commands.items() if lines},
        page_commands=[command, f"python trainer.py --plot {paths}"],
    )


def _held_out_table(groups: Sequence[ReportGroup], run_names: Mapping[RunFolder, str]) -> Table | None:
    """Return the table of the held-out evaluations of searches, None if there are none."""
    rows = []
    for group in groups:
        # With several groups, the table of results has mean and IQM of a search with one seed.
        omitted = ("mean", IQM) if len(groups) > 1 and len(group.folders) == 1 else ()
        for folder in group.folders:
            if folder.held_out:
                texts = {heading: text for heading, text in folder.held_out.items() if heading not in omitted}
                rows.append({"run": run_names[folder]} | texts | {"steps of the search": group.steps})
    return Table.of_rows(rows, "Returns of new agents that trained on the winner") if rows else None


def _links(pages: Sequence[Path], target: Path) -> list[str]:
    """Return the addresses of other ``pages`` on the page ``target``."""
    return [quote(os.path.relpath(page.absolute(), target.absolute().parent)) for page in pages]


def _title(groups: Sequence[ReportGroup], prefix: str) -> str:
    """Return a title such as ``PPO, UDRL on pendulum``, after the ``prefix``."""
    all_names = [group.names for group in groups]
    # A copied folder has only its name, so game and implementation are unknown.
    if any(len(names) < 3 for names in all_names):
        return ", ".join(dict.fromkeys("/".join(names) for names in all_names))
    implementations = dict.fromkeys(names[2] for names in all_names)
    games = dict.fromkeys(group.game for group in groups)
    return f"{prefix}{', '.join(implementations)} on {', '.join(games)}"


def _tunings(groups: Sequence[ReportGroup]) -> dict[Path, list[ReportGroup]]:
    """Return the groups by the folder of `--use_tune`, best first, if they are all trials of such searches of
    hyperparameters. Otherwise empty."""
    groups_by_folder: dict[Path, dict[str, ReportGroup]] = {}  # by the number of the trial
    for group in groups:
        folder = group.folders[0]
        groups_by_folder.setdefault(folder.tuning_folder, {})[folder.trial.get("trial", "")] = group
    tunings = {}
    for path, groups_by_trial in groups_by_folder.items():
        numbers = [
            row["trial"] for row in trials_in(path) if any((path / f"trial_{row['trial']}").rglob("metrics.csv"))
        ]
        if len(groups) < 2 or set(numbers) != groups_by_trial.keys():
            return {}
        tunings[path] = [groups_by_trial[number] for number in numbers]
    return tunings


def _description(groups: Sequence[ReportGroup]) -> str:
    """Return the size of the runs, such as ``5 seeds, 50,400 steps, experiment debug``."""
    seeds = tables.seeds_text([len(group.runs) for group in groups])
    if len(groups) > 1:
        return f"{len(groups)} groups of runs, {seeds} each"
    (group,) = groups
    steps = f"{group.steps} steps"
    if group.is_search:
        steps += f" of all agents, {group.real_steps} real steps"
    *_, experiment = group.names[:2]  # of (game, experiment, implementation); a copied folder has only its name
    time = "" if group.duration == "-" else f" {group.duration} of training and tests,"
    return f"{seeds}, {steps},{time} experiment {experiment}"


def _conclusion(
    groups: Sequence[ReportGroup], tunings: Mapping[Path, Sequence[ReportGroup]]
) -> tuple[list[str], bool | None]:
    """Return the conclusion as sentences, and whether it is good (True), bad (False) or neither (None). The sentences
    have the results of the best groups, verdicts of searches, and runs that have not finished."""
    judged = [group for group in groups if group.tag]
    if not judged:
        return ["No return was logged."], None
    # Returns of several environments cannot be compared. Of groups with equal results, finished groups are first.
    judged.sort(key=lambda group: (group.verdict == "solved", group.result["mean"], not group.unfinished), reverse=True)
    if tunings:
        names, _ = distinct_labels([trials[0].names[:-1] for trials in tunings.values()])
        labels = [f"{name}: " if len(tunings) > 1 else "" for name in names]
        sentences = []
        for label, (folder, trials) in zip(labels, tunings.items(), strict=True):
            first, *details = _tuning_sentences(folder, trials[0].solved if trials[0].verdict else None)
            sentences += [label + first, *details]
        return sentences, None
    verdicts = {group.verdict for group in judged}  # "solved", "not solved", or "" if that is unknown
    main_groups = judged
    if len(judged) > _MAX_NAMED:  # only the best of each environment; the table has all
        games = [group.game for group in judged]
        main_groups = [judged[games.index(game)] for game in dict.fromkeys(games)][:_MAX_NAMED]
    sentences = [group.sentence for group in main_groups]
    if len(judged) >= _MIN_COUNTED and verdicts != {""}:
        count = sum(group.verdict == "solved" for group in judged)
        sentences.insert(0, f"Solved by {count} of {len(judged)} groups.")
    for verdict in ("solved", "not solved") if len(judged) > _MAX_NAMED else ():
        if labels := [group.label for group in judged if group.verdict == verdict]:
            ending = f" and {len(labels) - _MAX_LABELS} more" if len(labels) > _MAX_LABELS else ""
            sentences.append(f"{verdict.capitalize()}: {', '.join(labels[:_MAX_LABELS])}{ending}.")
    if len(groups) == 1 and judged[0].checkpoint_sentence:
        sentences.append(judged[0].checkpoint_sentence)
    scores_of_searches = [folder.scores for group in judged for folder in group.folders if folder.scores.get("verdict")]
    some_searches_failed = not all(scores["passed"] for scores in scores_of_searches)
    if len(groups) == 1:  # the sentence about the group also says that it is not solved
        sentences += [scores["verdict"].removeprefix(NOT_SOLVED) for scores in scores_of_searches]
    labels_with_state = [group.label for group in main_groups if group.sentence_has_state]
    states = []  # of runs that have not finished
    for group in groups:
        if group.label not in labels_with_state:
            states += [f"{group.label}, {name}, {state}" for name, state in group.unfinished.items()]
    if states:
        sentences.append(f"Not finished: {'; '.join(states)}.")
    if some_searches_failed or (verdicts == {"not solved"} and not any(group.unfinished for group in groups)):
        return sentences, False
    return sentences, True if verdicts == {"solved"} else None


def _tuning_sentences(folder: Path, solved: float | None) -> list[str]:
    """Return the conclusion of a search of hyperparameters in ``folder``: its best trial, with the settings. A score
    from ``solved`` counts as solved; it is None if that is unknown."""
    trials = trials_in(folder)
    best = trials[0]
    score = float(best["score"] or "nan")
    if math.isnan(score):
        return [f"None of {len(trials)} trials has a score."]
    values = ", ".join(f"{name} {value}" for name, value in searched_values(best).items())
    sentences = [f"Best of {len(trials)} trials: trial {best['trial']}, score {tables.score_text(score, solved)}."]
    sentences.append(f"Its settings: {values}.")
    if (folder / "best.yaml").exists():
        sentences.append(f"To train with them: `python trainer.py --config {short_path(folder / 'best.yaml')}`")
    return sentences


def _notes(groups: Sequence[ReportGroup]) -> list[str]:
    """Return sentences that explain the columns of the tables of results."""
    shown_tags = [tag for group in _with_seed_tables(groups) for tag in group.summary["over_seeds"]]
    if len(groups) > 1:  # the table of results has the tag of each result
        shown_tags = [group.tag for group in groups if group.tag] + shown_tags
    notes = []
    for name in dict.fromkeys(shown_tags):  # each once
        explanation = tags.explanations().get(name, tags.TAGS[name].title)
        sentence = f"{explanation[0].lower()}{explanation[1:]}".removesuffix(".")  # titles have no full stop
        notes.append(f"{tags.TAGS[name].short.capitalize()}: {sentence}.")
    if any(group.solved_at(group.runs) != "-" for group in groups):
        notes.append("Solved at step: of the first evaluation with a return that counts as solved.")
    period = "generations" if all(group.is_search for group in groups) else "epochs"
    if any("steps to solve, task's reward" in folder.held_out for group in groups for folder in group.folders):
        notes.append("Steps to solve: until the median agent solves a test.")
    notes.append(f"Returns are means over the last tenth of the {period}.")
    if any(folder.setting("total_steps").isdecimal() for group in groups for folder in group.folders):
        notes.append(f"Training ends with whole {period}, so with total_steps or a few steps more.")
    if len(groups) == 1 and "second evaluation" in groups[0].checkpoint_sentence:
        notes.append("The agent in best.ckpt has the best mean of two evaluations; the table has the first of them.")
    if any(len(group.runs) >= MIN_RUNS or IQM in folder.held_out for group in groups for folder in group.folders):
        notes.append("IQM: interquartile mean, with its bootstrap interval over three seeds or more, or over agents.")
    return notes


def _results_table(groups: Sequence[ReportGroup], with_scores: bool) -> Table:
    """Return the table of results, a row for each group, ``with_scores`` of trials. The caption has texts that are the
    same in all rows."""
    has_search = any(group.is_search for group in groups)
    rows = [_results_row(group, has_search) for group in groups]
    if with_scores:
        scores = [number_text(float(group.folders[0].trial["score"] or "nan")).replace("nan", "-") for group in groups]
        rows = [{"run": row["run"], "score": score} | row for row, score in zip(rows, scores, strict=True)]
        same = [name for name in ("mean", "best") if all(row[name] == row["score"] for row in rows)]
        rows = [{name: text for name, text in row.items() if name not in same} for row in rows]
    caption = "Returns at the end of training"
    if any(group.tag == tags.HELD_OUT_RETURN for group in groups):
        caption += "; of a search, of new agents that trained on its winner"
    for name in ("evaluation", "solved from"):
        if len({row[name] for row in rows}) == 1:
            caption += f"; {name}: {rows[0][name]}"
            rows = [{heading: text for heading, text in row.items() if heading != name} for row in rows]
    return Table.of_rows(rows, caption)


def _results_row(group: ReportGroup, with_real_steps: bool) -> dict[str, str]:
    """Return the texts of a group in the table of results, by the heading of the column; ``-`` for an empty cell."""
    iqm = "-"
    if len(group.runs) >= MIN_RUNS and group.tag:
        iqm = with_interval(group.result["iqm"], group.result["iqm_interval"])
    elif len(group.runs) == 1:  # of a search: over the agents of its held-out evaluation
        iqm = group.folders[0].held_out.get(IQM, "-")
    status = group.folders[0].trial.get("status", "")
    state = "" if status else next(iter(group.unfinished.values()), "").partition(" after")[0]  # such as "interrupted"
    return {
        "run": group.label,
        "mean": number_text(group.result["mean"]) if group.tag else "-",
        IQM: iqm,
        "verdict": ",\n".join(filter(None, (group.verdict, state))) or "-",
        "state": status or "-",
        "solved from": "-" if group.solved is None else f"{group.solved:g}",
        "evaluation": tags.TAGS[group.tag].short if group.tag else "-",
        "best": number_text(group.best),
        "solved at step": group.solved_at(group.runs),
        "training steps": group.steps,  # of a search, of all its agents
        "real steps": group.real_steps if with_real_steps else "-",
        "time": group.duration,
    }


def _with_seed_tables(groups: Sequence[ReportGroup]) -> list[ReportGroup]:
    """Return the groups whose seeds have a table: the only one, and groups with several seeds."""
    return [group for group in groups if len(groups) == 1 or len(group.runs) > 1]


def _seed_tables(groups: Sequence[ReportGroup]) -> list[Table]:
    """Return the table of the returns of the seeds (`tables.seed_table`) of each group, with an additional column."""
    seed_tables = []
    for group in groups:
        headings, *text_rows = tables.seed_table(group.summary).rows
        rows = [dict(zip(headings, texts, strict=True)) for texts in text_rows]
        caption = f"Returns of the seeds of {group.label}"
        if len(group.runs) > 1:
            caption += ", in brackets the best"
        else:  # the best results, in brackets, become columns
            parts = {name: text.removesuffix(")").partition(" (") for name, text in rows[0].items()}
            bests = {f"best {name}": best for name, (_, _, best) in parts.items() if best}
            rows = [{name: end for name, (end, _, _) in parts.items()} | bests]
        for row, run in zip(rows, group.runs, strict=False):  # the last rows are statistics of all seeds
            row["solved at step"] = group.solved_at([run])
        seed_tables.append(Table.of_rows(rows, caption))
    return seed_tables


def _trials_table(trials: Sequence[ReportGroup]) -> Table:
    """Return the table of the hyperparameters of ``trials``, which are sorted."""
    rows = [{"run": trial.label} | searched_values(trial.folders[0].trial) for trial in trials]
    return Table.of_rows(rows, "Hyperparameters of the trials, best first")


def _importance_figures(folders: Iterable[Path]) -> list[Picture]:
    """Return the figures of `--plot` for the folders of `--use_tune`. One without a figure, which has too few trials
    with a score, or without Optuna, is left out."""
    pictures = []
    with tempfile.TemporaryDirectory() as temporary:
        for folder in folders:
            with contextlib.suppress(SettingError, ImportError):
                file = plot_search(folder, FigureStyle(narrow=True), Path(temporary, "figure.svg"))
                alt = "Importance of hyperparameters, and scores over the values of the most important ones"
                pictures.append(Picture(data_url(file), alt, narrow=data_url(narrow_file(file))))
    return pictures


def _page_figures(figure: Figure, page_title: str) -> list[Picture]:
    """Return the figures of `--plot`. Empty if neither returns nor losses were logged."""
    if not any(arm.curves for arm in figure.arms):
        return []
    pictures = []
    with tempfile.TemporaryDirectory() as folder:
        for file in draw(figure, Path(folder, "figure.svg"), FigureStyle(narrow=True)):
            title = file.stem.removeprefix("figure").strip("_").capitalize()  # of figure, figure_losses, ...
            alt = f"{title or 'Curves'} of {page_title}. The tables have the numbers"
            pictures.append(Picture(data_url(file), alt, title, data_url(narrow_file(file))))
    return pictures


def _pictures(folder: RunFolder) -> Iterator[Picture]:
    """Yield the figures of a learned environment or reward in a run folder."""
    for stem, title in _PICTURES.items():
        if path := folder.file(f"{stem}.svg") or folder.file(f"{stem}.png"):
            narrow = folder.file(f"{stem}_narrow.svg")
            yield Picture(data_url(path), title, narrow=data_url(narrow) if narrow else "")


def _settings_tables(groups: Sequence[ReportGroup]) -> dict[str, tuple[Table | None, Table]]:
    """Return the tables of `_group_settings` by implementation, without implementations whose settings are unknown."""
    groups_by_implementation: dict[str, list[ReportGroup]] = {}
    for group in groups:
        implementation = group.folders[0].setting_texts.get("implementation", group.label)
        groups_by_implementation.setdefault(implementation, []).append(group)
    return {
        implementation: _group_settings(same_groups)
        for implementation, same_groups in groups_by_implementation.items()
        if any(folder.setting_texts for group in same_groups for folder in group.folders)
    }


def _group_settings(groups: Sequence[ReportGroup]) -> tuple[Table | None, Table]:
    """Return two tables of settings, for groups with the same implementation: a table of changed settings, and a table
    of all settings. A setting is changed if it affects results, and if it differs between the runs or from its default.
    The first table is None if no setting is changed. Defaults of other programs and versions are unknown."""
    folders = [folder for group in groups for folder in group.folders]
    # Setting -> its flag (default and help) in each folder. Environments may have different defaults.
    flags_by_name: dict[str, list[Flag]] = {}
    for folder in folders:
        if folder.settings is not None:
            run = folder.settings.run
            for name, flag in flags_for_values(run.implementation, run.gamename, folder.setting_texts).items():
                flags_by_name.setdefault(name, []).append(flag)
    labels = distinct_labels([group.names for group in groups])[0] if len(groups) > 1 else ["value"]
    rows, changed_rows, caption = [["setting", *labels, "default", "meaning"]], [], "Not the default"
    for name in dict.fromkeys(name for folder in folders for name in folder.setting_texts):
        # Different values in the folders of one group are separated by ``|``.
        texts_by_group = [[_table_text(name, folder.setting(name)) for folder in group.folders] for group in groups]
        values = [" | ".join(dict.fromkeys(group_texts)) for group_texts in texts_by_group]
        flags = flags_by_name.get(name, [])  # empty if the default is unknown
        defaults = dict.fromkeys(_table_text(name, setting_text(flag.default)) for flag in flags)
        meaning = SOURCES.sub("", flags[0].meta["help"]) if flags else "-"
        if not any(group.is_search for group in groups):
            meaning = _OF_SEARCHES.sub("", meaning)
        rows.append([name, *values, " / ".join(defaults) or "-", meaning])
        is_default = not flags or set(values) <= defaults.keys()  # also True if the default is unknown
        is_changed = len(set(values)) > 1 or not is_default
        if name not in _NAMED and is_changed and all(flag.meta["outcome"] for flag in flags):
            changed_rows.append(rows[-1])
            if len(set(values)) > 1:
                caption = "Not the default, or different between the runs"
    changed = _captioned(caption, [rows[0], *changed_rows])
    return changed if changed_rows else None, _captioned("All", rows)


def _table_text(name: str, text: str) -> str:
    """Return the value of the setting ``name`` as in the tables of results, such as ``50,000``, except for names and
    seeds."""
    return f"{int(text):,}" if text.isdecimal() and name not in _NAMED else text


def _captioned(caption: str, rows: Sequence[Sequence[str]]) -> Table:
    """Return a table of settings. Its caption explains empty cells of groups, which precede default and meaning."""
    has_empty_cells = any("-" in cells[1:-2] for cells in rows)
    return Table(rows, f"{caption}; -: not a setting of this run" if has_empty_cells else caption)


def _commands(group: ReportGroup) -> list[str]:
    """Return the commands that repeat the runs of a group, with flags if the folders have their settings. Teachers of
    `--learn` have none here: the page of `--learn` has the command."""
    commands = []
    for folder in group.folders:
        if folder.learn_page:
            continue
        if folder.settings is not None:
            # A search sets `checkpoint_every` itself, so it is left out unless the user chose it. A default kind of
            # proxy is left out too, as in the table of changed settings.
            omitted, run = {"checkpoint_every"} - folder.setting_texts.keys(), folder.settings.run
            flags = flags_for_values(run.implementation, run.gamename, folder.setting_texts)
            for name in flags.keys() & {"proxy", "mode"}:
                if folder.setting(name) == setting_text(flags[name].default):
                    omitted.add(name)
            commands.append(command_line(folder.settings, omitted))
        elif config := folder.file("config.yaml"):
            commands.append(f"python trainer.py --config {shlex.quote(short_path(config))}")
    return commands
