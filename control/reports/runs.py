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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from control.cli.colour import note
from control.reports.statistics import Array
from control.reports.tags import GREEDY, TRAINING, tags, without_replaced
from control.storage.run_dir import read_columns, version_folders
from envs.names import resolve
from models.settings import SettingError, UserError

LAST = 0.1  # final share of the epochs, over which `Run.last` averages
FOREIGN = ("monitor.csv", "evaluations.npz")  # ends of the names of files that stable-baselines3 writes
_DAMAGED = (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError)  # raised by damaged files
_NUMBER = re.compile(r"[_-](\d+)$")


@dataclass
class Run:
    """Metrics of one seed, from the file ``source``. Each column has the shape ``[rows]``, NaN for missing values."""

    seed: int
    source: Path
    columns: dict[str, Array]

    def points(self, tag: str, x: str = "epoch") -> tuple[Array, Array]:
        """Return the finite values of a tag and their x, ``(x [K], values [K])``. K is 0 if it was never logged."""
        values = self.columns.get(tag)
        if values is None:
            return np.empty(0), np.empty(0)
        is_finite = np.isfinite(values)
        return self.columns[x][is_finite], values[is_finite]

    def last(self, tag: str) -> float:
        """Return the mean over the last tenth of the epochs, or the latest value if none was logged there; NaN if the
        tag was never logged."""
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
    columns: dict[str, Any] = _foreign_columns(path) if path.name.endswith(FOREIGN) else read_columns(path)
    if not columns:
        raise SettingError(f"{str(path)!r} is no metrics.csv of numbers: it is empty")
    seeds = np.array(columns["seed"], dtype=np.float64)
    runs_and_masks = [(Run(int(seed), path, columns={}), seeds == seed) for seed in np.unique(seeds)]
    for name in list(columns):
        values = np.array(columns.pop(name), dtype=np.float64)  # pop: long tables are not kept twice
        for run, is_row_of_seed in runs_and_masks:
            run.columns[name] = values[is_row_of_seed]
    return [run for run, _ in runs_and_masks]


def _foreign_columns(path: Path) -> dict[str, Array]:
    """Read the run of stable-baselines3 in the folder of ``path``, as columns of metrics.csv. The folder has a file of
    evaluations, and a monitor file for each environment with a row for each episode. Steps are the sum over
    environments. A number at the end of the folder's name is the seed. Raises SettingError for a damaged file."""
    folder = path.parent.resolve()
    episodes: list[tuple[float, ...]] = []  # time of the end, length, return
    rows: list[tuple[float, ...]] = []  # steps, training return, mean of an evaluation
    for file in (*sorted(folder.glob(f"*{FOREIGN[0]}")), *folder.glob(FOREIGN[1])):
        try:
            if file.name == FOREIGN[1]:
                rows += _evaluation_rows(file)
            else:
                episodes += _episode_rows(file)
        except (*_DAMAGED, EOFError, zipfile.BadZipFile) as error:
            raise SettingError(f"{str(file)!r} is no file of stable-baselines3's Monitor or EvalCallback") from error
    steps = 0.0
    for _, length, episode_return in sorted(episodes):  # by time
        steps += length
        rows.append((steps, episode_return, math.nan))
    if not rows:
        raise SettingError(f"{str(path)!r} has no episode and no evaluation yet")
    env_steps, training_returns, evaluations = np.array(sorted(rows, key=lambda row: row[0])).T
    number = _NUMBER.search(folder.name)
    seeds = np.full(len(rows), int(number[1]) if number else 0)
    # Steps take the place of epochs, so `Run.last` averages over the last tenth of the steps.
    columns = {"epoch": env_steps, "env_steps": env_steps, "seed": seeds}
    return columns | {TRAINING: training_returns, GREEDY: evaluations}


def _episode_rows(file: Path) -> list[tuple[float, ...]]:
    """Return (time of the end, length, return) of the episodes in a monitor file. An incomplete last line is ignored.
    Raises for a damaged file."""
    header, *lines = file.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()
    start = json.loads(header.removeprefix("#"))["t_start"]
    return [(start + float(row["t"]), float(int(row["l"])), float(row["r"])) for row in csv.DictReader(lines)]


def _evaluation_rows(file: Path) -> list[tuple[float, ...]]:
    """Return (steps, NaN, mean return) of the evaluations in evaluations.npz. Raises for a damaged file."""
    with np.load(file) as arrays:
        pairs = zip(arrays["timesteps"].tolist(), arrays["results"].mean(1).tolist(), strict=True)
        return [(float(int(step)), math.nan, float(mean)) for step, mean in pairs]


def _foreign_names(path: Path) -> tuple[str, ...]:
    """Return the names of a run of stable-baselines3: environment (only from a monitor file), parent and folder."""
    folder, game = path.parent.resolve(), ""
    with contextlib.suppress(*_DAMAGED, UserError, ImportError):
        with path.open(encoding="utf-8") as opened:
            game = str(json.loads(opened.readline().removeprefix("#"))["env_id"])
        game = resolve(game).name  # an unknown one keeps Gymnasium's id
    return (*[game] * bool(game), folder.parent.name, _NUMBER.sub("", folder.name))


def find_groups(run_dirs: Sequence[Path], setting: str = "plot") -> list[Group]:
    """Find all runs in ``run_dirs``, grouped by environment, experiment and implementation.

    ``run_dirs`` are run folders or folders above them. If there are several versions of a seed (trainings in separate
    folders), a version among ``run_dirs`` is used, otherwise the newest, with a note. Two versions of a seed among
    ``run_dirs`` are in separate groups. Raises SettingError about the ``setting`` for a missing folder and a folder
    without metrics.csv.
    """
    named_folders = {folder.resolve() for folder in run_dirs if (folder / "metrics.csv").is_file()}
    # Versions of a run have the same parent folder.
    separate_versions = len({folder.parent for folder in named_folders}) < len(named_folders)
    candidates: list[tuple[tuple[bool, int, float], Path, tuple[str, ...]]] = []  # priority, file and names
    for path in _metrics_files(run_dirs, setting):
        names, version = names_and_version(path)
        if separate_versions:
            names += (path.parent.name,)
        candidates.append(((path.parent in named_folders, version, path.stat().st_mtime), path, names))
    groups: dict[tuple[str, ...], Group] = {}
    unused_versions: dict[Path, list[Path]] = {}  # folder in use -> folders of older versions
    for _, path, names in sorted(candidates, key=lambda candidate: candidate[0], reverse=True):
        for run in read_runs(path):
            group = groups.setdefault(names, Group(names, runs=[]))
            used_folder = next((other.source.parent for other in group.runs if other.seed == run.seed), None)
            if used_folder is None:
                group.runs.append(run)
            elif used_folder not in named_folders:
                unused_folders = unused_versions.setdefault(used_folder, [])
                if path.parent not in unused_folders:
                    unused_folders.append(path.parent)
    if not groups:
        listed = ", ".join(f"'{folder}'" for folder in run_dirs)
        raise SettingError(f"{setting} is {listed}; its metrics.csv has no epoch yet")
    _note_versions(unused_versions)
    for group in groups.values():
        group.runs.sort(key=lambda run: run.seed)
    return [groups[names] for names in sorted(groups)]


def _metrics_files(folders: Sequence[Path], setting: str) -> list[Path]:
    """Return the files metrics.csv below ``folders`` and, for ``--plot``, a file for each run of stable-baselines3.
    Raises SettingError for a folder without such files."""
    files: dict[Path, None] = {}
    for folder in folders:
        paths = sorted(folder.rglob("metrics.csv"))
        if setting == "plot":
            foreign: dict[Path, Path] = {}  # folder of stable-baselines3 -> file; a monitor file, which names the game
            for end in reversed(FOREIGN):
                foreign |= {file.parent: file for file in sorted(folder.rglob(f"*{end}"))}
            paths += foreign.values()
        if not paths:
            fault = "holds no metrics.csv" if folder.exists() else "is not there"
            raise SettingError(
                f"{setting} is '{folder}', which {fault}; allowed: run folders, or any folder above them"
            )
        # Only the folder is resolved: a metrics.csv that is a link to another folder's file belongs to this folder.
        files |= {path.parent.resolve() / path.name: None for path in paths}
    return list(files)


def names_and_version(path: Path) -> tuple[tuple[str, ...], int]:
    """Return the names (environment, experiment, implementation) and the version of the run with this metrics.csv, from
    its path. The names of a copied run folder are only its name, and its version is 0."""
    if path.name.endswith(FOREIGN):
        return _foreign_names(path), 0
    folder, seed_folder = path.parent, path.parent.parent
    _, *parts = path.parts  # without the root: .../GAME/EXPERIMENT/IMPLEMENTATION/seed_S/version_V/metrics.csv
    if folder.name.startswith("version_") and seed_folder.name.startswith("seed_") and len(parts) >= 6:
        game, experiment, implementation = parts[-6:-3]
        number = folder.name.removeprefix("version_")
        return (game, experiment, implementation), int(number) if number.isdigit() else 0
    return (folder.name,), 0


def logged(runs: Sequence[Run], names: Iterable[str]) -> list[str]:
    """Return the tags among ``names`` that at least one run has logged."""
    return [tag for tag in names if any(len(run.points(tag)[1]) for run in runs)]


def return_tags(runs: Sequence[Run]) -> list[str]:
    """Return the tags of logged returns, without noisier tags of the same quantity (`without_replaced`)."""
    common = [tag for tag in tags("return") if all(len(run.points(tag)[1]) for run in runs)]
    return without_replaced(logged(runs, tags("return")), common)


def note_other_versions(path: str, used_path: Path, flag: str) -> None:
    """Print a note if the folder ``path``, the value of a flag, has several versions of a run. ``used_path`` is a file
    in the version that is used."""
    newest_first = version_folders(Path(path))[::-1]
    used = next((folder for folder in newest_first if folder in used_path.parents), None)
    if used and len(newest_first) > 1:
        _note_versions({used: [folder for folder in newest_first if folder != used]}, f"--{flag} ")


def _note_versions(unused_versions: Mapping[Path, Sequence[Path]], flag: str = "") -> None:
    """Print a note about ``unused_versions`` (used run folder -> unused folders), if there are any. It names the first
    and counts all. ``flag`` precedes the folder that the user can name instead."""
    if not unused_versions:
        return
    used, unused = next(iter(unused_versions.items()))
    runs = f"each of {len(unused_versions)} runs" if len(unused_versions) > 1 else "a run"
    unused_names = ", ".join(folder.name for folder in unused)
    another = f"for another, name its folder: {flag}{shlex.quote(short_path(unused[0]))}"
    such_as = ", such as" if len(unused_versions) > 1 else ":"
    note(f"the newest version of {runs} counts{such_as} {short_path(used)} (not {unused_names}); {another}")


def short_path(path: Path) -> str:
    """Return a path as text, relative to the working directory if it is inside."""
    full_path, working_dir = path.resolve(), Path.cwd()
    return str(full_path.relative_to(working_dir)) if full_path.is_relative_to(working_dir) else str(full_path)
