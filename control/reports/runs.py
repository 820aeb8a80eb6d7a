"""Runs and groups of runs, read from folders of finished or running runs.

Imports no torch and is quick, so that figures can be drawn while runs continue.
"""

import contextlib
import csv
import json
import math
import re
import shlex
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from control.cli.colour import note, warning
from control.cli.files import read_mapping
from control.reports.statistics import Array
from control.reports.tags import GREEDY, TRAINING, shown_tags, tags
from control.storage.run_dir import learn_folder, read_columns
from envs.names import resolve
from models.settings import SettingError, UserError

LAST = 0.1  # final share of the epochs, over which `Run.last` averages
SB3_FILES = ("monitor.csv", "evaluations.npz")  # ends of the names of files that stable-baselines3 writes
_DAMAGED = (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError)  # raised by damaged files
_NUMBER = re.compile(r"[_-](\d+)$")


@dataclass
class Run:
    """Metrics of one seed, from the file ``source``. Each column has the shape ``[rows]``, NaN for missing values."""

    seed: int
    source: Path
    columns: dict[str, Array]

    def points(self, tag: str, x: str = "epoch") -> tuple[Array, Array]:
        """Return ``(x [K], values [K])``: the K >= 0 logged values of a tag, and their numbers in the column ``x``."""
        values = self.columns.get(tag, np.full(len(self.columns[x]), np.nan))
        is_finite = np.isfinite(values)
        return self.columns[x][is_finite], values[is_finite]

    def has(self, tag: str) -> bool:
        return len(self.points(tag)[1]) > 0

    def last(self, tag: str) -> float:
        """Return the mean over the last tenth of the epochs, else the latest value; NaN if the tag was never logged."""
        epochs, values = self.points(tag)
        if not len(values):
            return math.nan
        is_late = epochs >= (1 - LAST) * (self.columns["epoch"].max() + 1)
        return float(values[is_late].mean() if is_late.any() else values[-1])

    def best(self, tag: str) -> float:
        """Return the largest logged value, NaN if the tag was never logged."""
        return float(max(self.points(tag)[1], default=math.nan))


@dataclass
class Group:
    """Runs of several seeds with the same ``names``: environment, experiment and implementation."""

    names: tuple[str, ...]
    runs: list[Run]


def read_runs(path: Path) -> list[Run]:
    """Read the runs in the metrics.csv ``path``, sorted by seed. For a file of stable-baselines3, read the run in its
    folder. An incomplete last line is ignored. Raises SettingError if the file is no readable table of numbers."""
    columns: dict[str, Any] = _sb3_columns(path) if path.name.endswith(SB3_FILES) else read_columns(path)
    if not columns:
        raise SettingError(f"{str(path)!r} is no metrics.csv of numbers: it is empty")
    seeds = np.array(columns["seed"], dtype=np.float64)
    runs = [Run(int(seed), path, columns={}) for seed in np.unique(seeds)]
    for name in list(columns):
        values = np.array(columns.pop(name), dtype=np.float64)  # pop: long tables are not kept twice
        for run in runs:
            run.columns[name] = values[seeds == run.seed]
    return runs


def _sb3_columns(path: Path) -> dict[str, Array]:
    """Read the run of stable-baselines3 in the folder of ``path``, as columns of metrics.csv. The folder has a file of
    evaluations, and a monitor file for each environment with a line for each episode. Steps are the sum over
    environments. A number at the end of the folder's name is the seed. Raises SettingError for a damaged file."""
    folder = path.parent.resolve()
    monitor_end, evaluations_name = SB3_FILES
    episodes: list[tuple[float, ...]] = []  # time of the end, length, return
    for file in sorted(folder.glob(f"*{monitor_end}")):
        with _sb3_errors(file):
            complete_lines, _, _ = file.read_text(encoding="utf-8").rpartition("\n")  # the last line may be cut off
            header, *lines = complete_lines.splitlines()
            start = json.loads(header.removeprefix("#"))["t_start"]
            # t: seconds since the start; l: length, an integer; r: return.
            for row in csv.DictReader(lines):
                episodes.append((start + float(row["t"]), float(int(row["l"])), float(row["r"])))
    results: list[tuple[float, ...]] = []  # steps, training return, mean return of an evaluation
    for file in folder.glob(evaluations_name):
        with _sb3_errors(file), np.load(file) as arrays:
            for step, mean in zip(arrays["timesteps"].tolist(), arrays["results"].mean(1).tolist(), strict=True):
                results.append((float(int(step)), math.nan, float(mean)))  # `int` raises for NaN
    steps = 0.0
    for _, length, episode_return in sorted(episodes):  # by time
        steps += length
        results.append((steps, episode_return, math.nan))
    if not results:
        raise SettingError(f"{str(path)!r} has no episode and no evaluation yet")
    results.sort(key=lambda result: result[0])  # by steps
    env_steps, training_returns, evaluations = np.array(results).T
    number = _NUMBER.search(folder.name)
    seeds = np.full(len(results), int(number[1]) if number else 0)
    # Steps take the place of epochs, so `Run.last` averages over the last tenth of the steps.
    columns = {"epoch": env_steps, "env_steps": env_steps, "seed": seeds}
    return columns | {TRAINING: training_returns, GREEDY: evaluations}


@contextlib.contextmanager
def _sb3_errors(file: Path) -> Iterator[None]:
    """Context manager that turns errors about the content of a ``file`` of stable-baselines3 into a SettingError."""
    try:
        yield
    except (*_DAMAGED, EOFError, zipfile.BadZipFile) as error:
        raise SettingError(f"{str(file)!r} is no file of stable-baselines3's Monitor or EvalCallback") from error


def _sb3_names(path: Path) -> tuple[str, ...]:
    """Return the names of a run of stable-baselines3 whose folder ``EXPERIMENT/NAME_SEED`` contains ``path``:
    (environment, experiment, name), without the environment if ``path`` is not a monitor file."""
    folder = path.parent.resolve()
    names = (folder.parent.name, _NUMBER.sub("", folder.name))
    game = ""
    with contextlib.suppress(*_DAMAGED, UserError, ImportError):
        with path.open(encoding="utf-8") as file:
            game = str(json.loads(file.readline().removeprefix("#"))["env_id"])
        game = resolve(game).name  # raises for an unknown environment, which keeps Gymnasium's id
    return (game, *names) if game else names


def find_groups(
    run_dirs: Sequence[Path], setting: str = "plot", is_interrupted: Callable[[Sequence[Run]], bool] = lambda _: False
) -> list[Group]:
    """Find all runs in ``run_dirs``, grouped by environment, experiment and implementation.

    ``run_dirs`` are run folders or folders above them. Of several versions of a run, in folders ``version_K``, the one
    that is itself in ``run_dirs`` is used, otherwise the newest, and a note names the others. ``is_interrupted`` says
    whether the runs in a folder were interrupted; such a version is used only if there is no other. If ``run_dirs`` has
    several versions of one run, each version has a separate group. A warning names each run below ``run_dirs`` whose
    metrics.csv is damaged. Raises SettingError about the ``setting`` ("plot" or "report") for a missing folder, a
    folder without metrics.csv, and a run folder with a damaged one.
    """
    run_folders = {folder.resolve() for folder in run_dirs}
    named_folders = {folder for folder in run_folders if (folder / "metrics.csv").is_file()}
    # Versions of a run have the same parent folder. If there are fewer parents, several versions of a run are named.
    separate_versions = len({folder.parent for folder in named_folders}) < len(named_folders)
    names_of_files: dict[Path, tuple[str, ...]] = {}
    version_numbers: dict[Path, int] = {}
    runs_of_files: dict[Path, list[Run]] = {}
    errors: list[SettingError] = []  # about damaged files
    for path in _metrics_files(run_dirs, setting):
        names, version_numbers[path] = names_and_version(path)
        names_of_files[path] = (*names, path.parent.name) if separate_versions else names
        try:
            runs_of_files[path] = read_runs(path)
        except SettingError as error:
            if path.parent in run_folders:
                raise
            errors.append(error)
    if not any(runs_of_files.values()) and errors:
        raise errors[0]
    num_versions = Counter((names_of_files[path], run.seed) for path, runs in runs_of_files.items() for run in runs)

    def priority(path: Path) -> tuple[float, ...]:
        """Prefer named folders, then runs that were not interrupted, then higher versions, then newer files."""
        runs = runs_of_files[path]
        is_single = all(num_versions[names_of_files[path], run.seed] == 1 for run in runs)
        is_complete = is_single or not is_interrupted(runs)
        return (path.parent in named_folders, is_complete, version_numbers[path], path.stat().st_mtime)

    groups: dict[tuple[str, ...], Group] = {}
    used_files: dict[tuple[tuple[str, ...], int], Path] = {}  # file of a run, by its names and its seed
    versions: tuple[Path, Path] | None = None  # folders of a run: of the version in use, and of another one
    for path in sorted(runs_of_files, key=priority, reverse=True):
        names = names_of_files[path]
        for run in runs_of_files[path]:
            used_file = used_files.setdefault((names, run.seed), path)
            if used_file == path:  # the first file of this run, which has the highest priority
                groups.setdefault(names, Group(names, runs=[])).runs.append(run)
            elif used_file.parent not in named_folders and versions is None:  # no note if the user named a version
                versions = (used_file.parent, path.parent)  # a note about one run suffices
    if not groups:
        listed = ", ".join(f"'{folder}'" for folder in run_dirs)
        raise SettingError(f"{setting} is {listed}; its metrics.csv has no epoch yet")
    for damaged in errors:
        warning(f"left out: {damaged}")
    if versions is not None:
        used, other = map(short_path, versions)
        note(f"the newest complete version of a run counts: {used}; for another, name its folder: {shlex.quote(other)}")
    for group in groups.values():
        group.runs.sort(key=lambda run: run.seed)
    # "trial 2" is before "trial 10".
    padded = {names: [re.sub(r"\d+", lambda number: number[0].zfill(9), name) for name in names] for names in groups}
    return [groups[names] for names in sorted(groups, key=padded.__getitem__)]


def _metrics_files(folders: Sequence[Path], setting: str) -> list[Path]:
    """Return the files metrics.csv below ``folders`` and, for ``--plot``, a file for each run of stable-baselines3. If
    a folder has other runs, teachers of `--learn` are left out. Raises SettingError for a folder without such files."""
    files: dict[Path, None] = {}  # an ordered set
    for folder in folders:
        paths = sorted(folder.rglob("metrics.csv"))
        paths = [path for path in paths if learn_folder(path) is None] or paths
        if setting == "plot":
            # Monitor files are last, and kept for the folder of a run, because they name the game.
            sb3_files = [file for ending in reversed(SB3_FILES) for file in sorted(folder.rglob(f"*{ending}"))]
            paths += {file.parent: file for file in sb3_files}.values()
        if not paths:
            problem = "holds no metrics.csv" if folder.exists() else "is not there"
            raise SettingError(
                f"{setting} is '{folder}', which {problem}; allowed: run folders, or any folder above them"
            )
        # Only the folder is resolved: a metrics.csv that is a link to another folder's file belongs to this folder.
        files |= {path.parent.resolve() / path.name: None for path in paths}
    return list(files)


def names_and_version(path: Path) -> tuple[tuple[str, ...], int]:
    """Return the names and the version of the run with the metrics.csv ``path``, from the names of the folders around
    it. For ``cartpole/debug/PPO/seed_0/version_1/metrics.csv``, they are (environment, experiment, implementation)
    ``("cartpole", "debug", "PPO")`` and 1. The environment is from config.yaml if there is one. A trial of a search for
    hyperparameters has two more names, such as ``("tune 0", "trial 1")``, the version of the search and the trial. The
    names of a copied run folder are only its name, and its version is 0."""
    if path.name.endswith(SB3_FILES):
        return _sb3_names(path), 0
    folders = list(path.parts[1:-1])  # without the root and the file
    trial: tuple[str, ...] = ()
    if len(folders) >= 7 and folders[-4] == "tune":  # one of a trial's searches: trial_1/seed_0
        folders.pop()
    if len(folders) >= 6 and folders[-3] == "tune":  # cartpole/debug/PPO/tune/version_0/trial_1
        trial = (folders[-2].replace("version_", "tune "), folders.pop().replace("_", " "))
    if len(folders) >= 5:
        game, experiment, implementation, seed, version = folders[-5:]
        if seed.startswith("tune" if trial else "seed_") and version.startswith("version_"):
            number = version.removeprefix("version_")
            with contextlib.suppress(UserError):  # no config.yaml, or a damaged one: the folder has the game's name
                settings = read_mapping("plot", str(path.with_name("config.yaml")), "name: value")
                game = str(settings.get("gamename", game))
            return (game, experiment, implementation, *trial), int(number) if number.isdigit() else 0
    return (path.parent.name,), 0


def logged(runs: Sequence[Run], names: Iterable[str]) -> list[str]:
    """Return the tags among ``names`` that at least one run has logged."""
    return [tag for tag in names if any(run.has(tag) for run in runs)]


def return_tags(runs: Sequence[Run]) -> list[str]:
    """Return the tags of logged returns, without noisier tags of the same quantity (`shown_tags`)."""
    common = [tag for tag in tags("return") if all(run.has(tag) for run in runs)]
    return shown_tags(logged(runs, tags("return")), common)


def short_path(path: Path) -> str:
    """Return a path as text, relative to the working directory if it is inside."""
    full_path, working_dir = path.resolve(), Path.cwd()
    return str(full_path.relative_to(working_dir)) if full_path.is_relative_to(working_dir) else str(full_path)
