"""Run folders and groups of runs, as the page of `--report` shows them: settings, films, results and their verdicts.

A run trains agents, or it is a search, which evolves a learned environment or reward. The winner of a search is judged
by its held-out evaluation: the returns on the real environment of new agents that trained on the winner.
"""

import contextlib
import csv
import functools
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from control.cli.colour import warning
from control.cli.files import read_json, read_mapping
from control.cli.parse import parse
from control.cli.progress import time_in_words
from control.cli.settings import Settings, to_yaml
from control.cli.words import as_word
from control.reports import stages, tables, tags
from control.reports.curves import is_episode_return, solved_return
from control.reports.runs import Group, Run
from control.reports.search import STEPS_TO_SOLVE
from control.reports.tables import number_text, range_text
from control.reports.tags import ELAPSED
from control.storage.run_dir import is_locked, learn_folder
from models.settings import UserError

# Tags of the results by which runs are judged: the first one that they have.
_RESULTS = (tags.HELD_OUT_RETURN, tags.GREEDY, tags.REWARD_RATE, tags.MEAN_RETURN, tags.RUNNING_MEAN)

_TRIAL_COLUMNS = {"trial", "status", "score", "best_epoch", "checkpoint"}  # in results.csv of a search
IQM = "IQM [95 % interval]"
# Numbers of a held-out evaluation: their headings and the functions that format them.
_HELD_OUT: dict[str, tuple[str, Callable[[float], str]]] = {
    "agents": ("new agents", "{:,.0f}".format), "mean": ("mean", number_text), "std": ("std", number_text),
    "iqm": (IQM, number_text), "worst": ("worst", number_text), "solved": ("solved", tables.percent_text),
    "steps": ("steps of a new agent", "{:,.0f}".format),
}  # fmt: skip


def trials_in(folder: Path) -> list[dict[str, str]]:
    """Return the rows of results.csv, the table of trials in the folder of a search of hyperparameters, best first.
    Empty if the table is missing, damaged or of another program."""
    try:
        with open(folder / "results.csv", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row.keys() >= _TRIAL_COLUMNS and None not in row.values()]
        for row in rows:
            float(row["score"] or "nan")  # raises ValueError for a damaged score; failed trials have none
    except (OSError, ValueError, csv.Error):
        return []
    return rows


def searched_values(trial: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the hyperparameters in a row of `trials_in` by name, without missing ones."""
    columns = list(trial)
    names = columns[columns.index("best_epoch") + 1 : columns.index("checkpoint")]
    return {name: trial[name] for name in names if trial[name]}


@dataclass(eq=False)
class RunFolder:
    """A run folder. Its ``name`` has the seeds, such as ``seed 25``."""

    path: Path
    name: str

    @functools.cache  # noqa: B019  # a page has few folders, and warnings are printed once
    def file(self, *names: str) -> Path | None:
        """Return the path of a file in the folder, None if it does not exist. ``names`` are the parts of the path, such
        as ``("videos", "final.mp4")``. Warn about anything but a regular file, such as a link out of the folder."""
        path = self.path.joinpath(*names)
        if path.is_file() and path.resolve().is_relative_to(self.path.resolve()):
            return path
        if os.path.lexists(path):
            warning(f"left out: '{path}' is no regular file of its run's folder")
        return None

    @cached_property
    def settings(self) -> Settings | None:
        """Settings in config.yaml, None if it is missing or of another program or version."""
        if file := self.file("config.yaml"):
            # `parse` prints and exits, or raises, for settings of another version. The page then shows the file as is.
            with contextlib.suppress(UserError, SystemExit), contextlib.redirect_stderr(io.StringIO()):
                return parse(["--config", str(file)])
        return None

    @cached_property
    def setting_texts(self) -> dict[str, str]:
        """Settings in config.yaml as texts, such as ``{"lr": "0.001"}``, without settings that have no effect; that is
        unknown for a file of another version. A mapping, the setting ``command``, becomes a setting for each of its
        values, such as ``command.return``."""
        values: dict[str, Any] = {}
        if self.settings is not None:
            # `explicit_names` are the names in config.yaml. A setting that it omits has no effect in this environment.
            effective = yaml.safe_load(to_yaml(self.settings))
            values = {name: value for name, value in effective.items() if name in self.settings.explicit_names}
            if self.settings.proxy is not None and values.get("checkpoint_every") == 1:
                del values["checkpoint_every"]  # a search sets it to 1
        elif file := self.file("config.yaml"):
            with contextlib.suppress(UserError):
                values = read_mapping("report", str(file), "name: value", allow_empty=True)
        command = values.pop("command", None)
        if isinstance(command, dict):
            values |= {f"command.{part}": value for part, value in command.items()}
        return {name: setting_text(value) for name, value in values.items()}

    def setting(self, name: str) -> str:
        """Return the setting ``name`` as text: its default if it has no effect in this run, ``-`` if the run does not
        have it."""
        if name not in self.setting_texts and self.settings is not None:
            with contextlib.suppress(AttributeError):
                return setting_text(self.settings.value(name))
        return self.setting_texts.get(name, "-")

    @property
    def films(self) -> list[tuple[Path, str]]:
        """Films and their captions: the trained agent, evaluations, and the last film during training. A caption has
        the text that is stored beside the film (seed and returns), or else the seed."""
        videos = self.path / "videos"
        paths = [*videos.glob("final.mp4"), *sorted(videos.glob("eval_*.mp4"))]
        paths += sorted(videos.glob("epoch_*.mp4"))[-1:]
        films = []
        for path in paths:
            if self.file("videos", path.name) is None:
                continue
            if path.stem == "final":
                title = "The trained agent"
            elif path.stem.startswith("eval_"):
                title = "Evaluation"
            else:  # such as epoch_0010_0
                title = f"Training, epoch {path.stem.split('_')[1].lstrip('0')}"
            text = self.name.partition("-")[0]  # a film shows the first seed: ``seed 25`` of the run ``seed 25-29``
            if text_file := self.file("videos", f"{path.stem}.txt"):
                text = text_file.read_text("utf-8", "replace").strip()
            films.append((path, f"{title}: {text}"))
        return films

    @cached_property
    def scores(self) -> dict[str, Any]:
        """Statistics of the held-out evaluation of a search, from scores.json, with the sentence of its ``verdict`` and
        whether it ``passed``. Empty if the file is missing or malformed."""
        if path := self.file("scores.json"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                results = read_json(path)
                verdict = results.get("verdict", {})
                return results["report"] | {"verdict": verdict.get("sentence", ""), "passed": verdict.get("passed")}
        return {}

    @cached_property
    def held_out(self) -> dict[str, str]:
        """Known numbers of the held-out evaluation as texts by headings in tables, such as ``{"mean": "487.3"}``."""
        numbers = {name: value for name, value in self.scores.items() if isinstance(value, int | float)}
        texts = {heading: to_text(numbers[name]) for name, (heading, to_text) in _HELD_OUT.items() if name in numbers}
        if {"iqm", "iqm_low", "iqm_high"} <= numbers.keys():
            texts[IQM] = tables.with_interval(numbers["iqm"], (numbers["iqm_low"], numbers["iqm_high"]))
        if steps := STEPS_TO_SOLVE.search(self.scores.get("verdict", "")):
            texts = {"steps to solve, learned reward": steps[1], "steps to solve, task's reward": steps[2]} | texts
        return texts

    @cached_property
    def trial(self) -> dict[str, str]:
        """Row of this run in the table of trials (`trials_in`), if it is a trial of `--use_tune`. Otherwise empty."""
        for row in trials_in(self.tuning_folder):
            if self.tuning_folder / f"trial_{row['trial']}" in (self.path, self.path.parent):
                return row
        return {}

    @property
    def tuning_folder(self) -> Path:
        """Folder of `--use_tune` if this run is a trial, or one of the searches for proxies that are a trial."""
        return self.path.parents[1 if self.path.parent.name.startswith("trial_") else 0]

    @property
    def learn_page(self) -> Path | None:
        """Page of `--learn` if this run trained its teacher."""
        folder = learn_folder(Path(os.path.abspath(self.path)))
        return folder / stages.PAGE if folder and (folder / stages.TEACHER).is_file() else None


@dataclass
class ReportGroup(Group):
    """A group of runs with its ``label`` on the page and the statistics of the runs, which `summarise` returns."""

    label: str
    summary: dict[str, Any]

    @cached_property
    def folders(self) -> list[RunFolder]:
        """Folders of the runs. Several seeds may be in one folder."""
        seeds_of_folder: dict[Path, list[int]] = {}  # in ascending order
        for run in self.runs:
            seeds_of_folder.setdefault(run.source.parent, []).append(run.seed)
        return [
            RunFolder(path, f"seed {seeds[0]}-{seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}")
            for path, seeds in seeds_of_folder.items()
        ]

    @property
    def is_search(self) -> bool:
        return tags.is_search(self.summary["over_seeds"])

    @cached_property
    def tag(self) -> str:
        """Tag of the result by which the runs are judged: the first of `_RESULTS` that all runs have. Without one, the
        first other tag that all runs have, or else that some runs have. Empty if no return was logged."""
        for tag in (*_RESULTS, *self.statistics):
            if tag in self.statistics and self.statistics[tag]["n"] == len(self.runs):
                return tag
        return next(iter(self.summary["over_seeds"]), "")

    @cached_property
    def statistics(self) -> dict[str, Any]:
        """Statistics over seeds of each result by tag, as `over_seeds` returns them. Held-out returns of the winners of
        searches are in scores.json, and all other results in the summary of the metrics."""
        means = [folder.scores.get("mean") for folder in self.folders]
        held_out = [float(mean) for mean in means if isinstance(mean, int | float)]
        return self.summary["over_seeds"] | {tags.HELD_OUT_RETURN: tables.over_seeds(held_out)}

    @property
    def result(self) -> dict[str, Any]:
        """Statistics over seeds of the result by which the runs are judged (`tag`)."""
        return self.statistics[self.tag]

    @cached_property
    def game(self) -> str:
        """Name of the environment, from the settings or else from the folder. Empty if both do not say it."""
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
    def is_open_search(self) -> bool:
        """Whether the runs are searches whose winners have no held-out evaluation yet."""
        return self.is_search and self.tag != tags.HELD_OUT_RETURN

    @property
    def sentence_has_state(self) -> bool:
        """Whether `sentence` says how far the run is: a single search without a held-out evaluation."""
        return self.is_open_search and len(self.runs) == 1

    @property
    def verdict(self) -> str:
        """ "solved" or "not solved" by the mean result; empty if unknown, as before a search's held-out evaluation."""
        if self.solved is None or self.is_open_search:
            return ""
        return "solved" if self.result["mean"] >= self.solved else "not solved"

    @property
    def best(self) -> float | None:
        """The mean over seeds of the best result, None if it was not logged."""
        results = [run.best(self.tag) for run in self.runs if run.has(self.tag)]
        return sum(results) / len(results) if results else None

    @property
    def sentence(self) -> str:
        """Result and verdict, such as ``Solved (475 or more): PPO returns 497.2 at the end of training.``"""
        mean = number_text(self.result["mean"])
        if self.sentence_has_state:
            generations, values = self.runs[0].points(self.tag)
            subject = "new agents returned" if self.tag == tags.MEAN_RETURN else "the mean fitness was"
            state = next(iter(self.unfinished.values()), "without a held-out evaluation")
            return f"{self.label}: {state}; {subject} {number_text(values[-1])} after generation {generations[-1]:.0f}."
        if self.tag == tags.HELD_OUT_RETURN:
            agents = self.folders[0].scores.get("agents", "") if len(self.folders) == 1 else ""
            clause = f"{agents} new agents that trained on the winner of {self.label} return {mean}".strip()
        elif is_episode_return(self.tag) and not self.is_search:
            seeds = f", the mean of {len(self.runs)} seeds" if len(self.runs) > 1 else ""
            clause = f"{self.label} returns {mean} at the end of training{seeds}"
            steps = self._solved_steps(self.runs)
            if self.verdict == "solved" and len(steps) == len(self.runs):
                clause += f"; first solved at step {range_text(steps)}"
        else:
            title = tags.TAGS[self.tag].title
            clause = f"{title[0].lower()}{title[1:]} of {self.label} at the end: {mean}"
        if self.verdict:
            clause = f"{self.verdict} ({self.solved:g} or more): {clause}"
        if not clause.startswith(self.label):  # a label may be a path, such as cliff/debug/QLearning
            clause = f"{clause[0].upper()}{clause[1:]}"
        return f"{clause}."

    @cached_property
    def checkpoint_sentence(self) -> str:
        """The score and the epoch of the agent in best.ckpt, as the terminal prints them. Empty without this file, and
        for searches, several runs, and agents that are chosen by their returns in training."""
        folder = self.folders[0]
        file, settings = folder.file("checkpoints", "best.ckpt"), folder.settings
        if len(self.runs) > 1 or self.tag != tags.GREEDY or file is None or settings is None:
            return ""
        if getattr(settings.schedule, "running_mean", 0):  # the score is of training episodes
            return ""
        from control.storage import checkpoints  # imports torch, which other pages do not need

        with contextlib.suppress(UserError):  # the file is damaged
            run_state = checkpoints.load(file).run_state
            score = tables.best_text(run_state["best"], run_state["epoch"], self.solved, self.runs)
            return f"best.ckpt: mean greedy return {score}."
        return ""

    @cached_property
    def unfinished(self) -> dict[str, str]:
        """States of runs that have not finished, by the name of the run, such as ``interrupted after 3 of 100
        generations``. Runs with unknown settings are left out."""
        texts = {}
        for folder in self.folders:
            runs = [run for run in self.runs if run.source.parent == folder.path]
            settings = folder.settings
            if settings is None or _has_finished(folder, settings, runs):
                continue
            state = "still running" if is_locked(folder.path) else "interrupted"
            epochs = int(runs[0].columns["epoch"].max())
            limit_text = "" if settings.epochs is None else f" of {settings.epochs:,}"
            unit = "epochs" if settings.proxy is None else "generations"
            texts[folder.name] = f"{state} after {epochs:,}{limit_text} {unit}"
        return texts

    @property
    def duration(self) -> str:
        """Time of training and tests of all runs together, as text; ``-`` if an epoch of an earlier version lacks
        it."""
        # Seeds in one folder train side by side, and have the same times.
        runs = {run.source: run for run in self.runs}.values()
        if any(len(run.points(ELAPSED)[1]) < len(run.columns["epoch"]) for run in runs):
            return "-"
        return time_in_words(sum(run.best(ELAPSED) for run in runs))

    def solved_at(self, runs: Sequence[Run]) -> str:
        """Return the steps of the first evaluations that solve the environment as text, such as ``20,160``. If several
        of ``runs`` have one, it is ``20,160 to 30,240``, or ``2 of 3: 20,160 to 30,240`` if one has none. It is ``-``
        if none has one, and for searches."""
        steps = self._solved_steps(runs)
        if not steps:
            return "-"
        return range_text(steps) if len(steps) == len(runs) else f"{len(steps)} of {len(runs)}: {range_text(steps)}"

    def _solved_steps(self, runs: Sequence[Run]) -> list[int]:
        """Return the steps of the first evaluations that solve the environment, if any. Empty for searches."""
        if self.solved is None or self.is_search:
            return []
        return tables.solved_steps(runs, self.tag, self.solved)

    @property
    def steps(self) -> str:
        """Numbers of steps of the seeds as text: ``10,000`` or, if they differ, ``10,000 to 12,000``."""
        return range_text([seed["env_steps"] for seed in self.summary["seeds"].values()])

    @property
    def real_steps(self) -> str:
        """Numbers of steps in the real environment as text like `steps`; ``-`` if unknown, as for earlier searches."""
        if not self.is_search:
            return self.steps
        tag = "search/real_steps"
        steps = [int(run.columns[tag].max()) for run in self.runs if tag in run.columns]
        return range_text(steps) if steps else "-"


def is_interrupted(runs: Sequence[Run]) -> bool:
    """Return whether the ``runs`` of the seeds in a folder have not finished and no longer run. False if unknown."""
    folder = RunFolder(runs[0].source.parent, "")
    if folder.settings is None or is_locked(folder.path):
        return False
    return not _has_finished(folder, folder.settings, runs)


def setting_text(value: Any) -> str:
    """Return the value of a setting as in a flag, such as ``64,64``."""
    return value if isinstance(value, str) else as_word(value, ",")


def _has_finished(folder: RunFolder, settings: Settings, runs: Sequence[Run]) -> bool:
    """Return whether the ``runs`` of the seeds in a folder have reached the end that their ``settings`` set. Runs that
    may end earlier for a reason that their metrics do not show also count as finished."""
    if folder.learn_page is not None or folder.trial.get("status") == "stopped early":
        return True
    if getattr(settings.agent, "target_running_mean", 0):  # the run may have ended because of its running mean
        return True
    last_returns = [run.points(tags.GREEDY)[1][-1] for run in runs if run.has(tags.GREEDY)]
    target = settings.run.target_return
    if target is not None and last_returns and sum(last_returns) / len(last_returns) >= target:
        return True
    columns = runs[0].columns  # seeds in one folder train side by side, so the first stands for all
    search = settings.proxy
    if search is not None:
        returns = runs[0].points(tags.MEAN_RETURN)[1]
        is_solved = search.solved_reward is not None and bool((returns >= search.solved_reward).any())
        if folder.scores or (search.quit_when_solved and is_solved):
            return True
    if settings.epochs is not None and columns["epoch"].max() >= settings.epochs:
        return True
    return settings.total_steps is not None and bool(columns["env_steps"].max() >= settings.total_steps)
