"""Reading what finished or running runs wrote: runs, and the groups of seeds that belong together.

Imports no torch and is quick, so that figures can be drawn while runs go on.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from control.reports.statistics import Array
from control.reports.tags import RUNNING_MEAN, TAGS, tags
from control.storage.run_dir import home, read_columns
from models.settings import SettingError

LAST = 0.1  # share of the epochs, at the end, that `Run.last` averages over


_LARGEST = 1e150  # larger numbers are drawn as infinite, because matplotlib cannot make an axis for them


@dataclass
class Run:
    """One seed's numbers: every column is ``[rows]``, NaN where a tag was not logged."""

    seed: int
    source: Path
    columns: dict[str, Array]

    def points(self, tag: str, x: str = "epoch") -> tuple[Array, Array]:
        """The logged values of ``tag`` and where: ``(x [K], values [K])``, both empty where it was never logged."""
        values = self.columns.get(tag)
        if values is None:
            return np.empty(0), np.empty(0)
        logged = np.isfinite(values)
        return self.columns[x][logged], values[logged]

    def last(self, tag: str) -> float:
        """Mean over the last tenth of the epochs; NaN where nothing was logged."""
        epochs, values = self.points(tag)
        if not len(values):
            return math.nan
        late = epochs >= (1 - LAST) * (self.columns["epoch"].max() + 1)
        return float(values[late].mean() if late.any() else values[-1])

    def best(self, tag: str) -> float:
        """Largest value logged; NaN where nothing was logged."""
        return float(max(self.points(tag)[1], default=math.nan))


@dataclass
class Group:
    """The seeds of one environment, experiment and implementation, which are its ``names``. ``older_versions`` are the
    folders of older versions, by the folder that counts in their place."""

    names: tuple[str, ...]
    runs: list[Run]
    older_versions: dict[Path, list[Path]] = field(default_factory=dict)


def read_runs(path: Path) -> list[Run]:
    """The runs in one metrics.csv, by seed; none where it has no row yet. A last line cut short by a kill is left out.

    Raises SettingError for a file that cannot be read or is no table of numbers.
    """
    columns = read_columns(path)
    if not columns:
        raise SettingError(f"{str(path)!r} is no metrics.csv of numbers: it is empty")
    seeds = np.array(columns["seed"], dtype=np.float64)
    rows = [(Run(int(seed), path, {}), seeds == seed) for seed in np.unique(seeds)]
    for name in list(columns):
        values = np.array(columns.pop(name), dtype=np.float64)  # long tables are not held twice
        values[np.abs(values) > _LARGEST] *= np.inf
        for run, mask in rows:
            run.columns[name] = values[mask]
    return [run for run, _ in rows]


def find_groups(run_dirs: Sequence[Path], setting: str = "plot") -> list[Group]:
    """All runs at or below the given folders, grouped by environment, experiment and implementation. A checkpoint,
    metrics.csv and config.yaml stand for their run.

    Of a seed found more than once in a group the version counts that ``run_dirs`` names, else the newest. Where they
    name two versions, each is a group. Raises SettingError, in the name of ``setting``, where a folder does not exist
    or holds no metrics.csv, and for any other file.
    """
    groups: dict[tuple[str, ...], Group] = {}
    run_dirs = [_folder(Path(path), setting) for path in run_dirs]
    named_folders = {Path(folder).resolve() for folder in run_dirs if Path(folder, "metrics.csv").is_file()}
    versions_apart = len({folder.parent for folder in named_folders}) < len(named_folders)
    files = _metrics_files(run_dirs, setting)

    def first(path: Path) -> tuple[bool, int, float]:
        return path.parent in named_folders, _place(path)[1], path.stat().st_mtime

    for path in sorted(files, key=first, reverse=True):
        names = _place(path)[0] + ((path.parent.name,) if versions_apart else ())
        for run in read_runs(path):
            group = groups.setdefault(names, Group(names, []))
            counts = next((other.source.parent for other in group.runs if other.seed == run.seed), None)
            if counts is None:
                group.runs.append(run)
            elif counts not in named_folders and path.parent not in (
                older_folders := group.older_versions.setdefault(counts, [])
            ):
                older_folders.append(path.parent)
    if not groups:
        listed = ", ".join(f"'{path}'" for path in run_dirs)
        raise SettingError(f"{setting} is {listed}; its metrics.csv has no epoch yet")
    for group in groups.values():
        group.runs.sort(key=lambda run: run.seed)
    return [groups[names] for names in sorted(groups)]


def _folder(path: Path, setting: str) -> Path:
    """The run folder that a file of it stands for; any other path as it is."""
    if not path.is_file():
        return path
    folder = home(path)
    if (path.suffix == ".ckpt" or path.name in ("metrics.csv", "config.yaml")) and (folder / "metrics.csv").is_file():
        return folder
    allowed = "run folders, any folder above them, or a checkpoint, metrics.csv or config.yaml in one"
    allowed += "; the JSON file of a figure of --plot stands alone" if setting == "plot" else ""
    raise SettingError(f"{setting} has '{path}', a file that stands for no run; allowed: {allowed}")


def _metrics_files(run_dirs: Sequence[Path], setting: str) -> list[Path]:
    files: dict[Path, None] = {}
    for folder in run_dirs:
        paths = sorted(folder.rglob("metrics.csv"))
        if not paths:
            fault = "holds no metrics.csv" if folder.is_dir() else "is not there"
            allowed = "run folders, or any folder above them"
            raise SettingError(f"{setting} is '{folder}', which {fault}; allowed: {allowed}")
        files.update(dict.fromkeys(path.parent.resolve() / path.name for path in paths))
    return list(files)


def _place(path: Path) -> tuple[tuple[str, ...], int]:
    """(environment, experiment, implementation) and version; a folder copied elsewhere has its own name for all."""
    version, seed = path.parent, path.parent.parent
    if version.name.startswith("version_") and seed.name.startswith("seed_") and len(path.parts) > 6:
        number = version.name.removeprefix("version_")
        return path.parts[-6:-3], int(number) if number.isdigit() else 0
    return (version.name,), 0


def logged(runs: Sequence[Run], names: Iterable[str]) -> list[str]:
    """Those tags of ``names`` that any of the runs has a number of."""
    return [tag for tag in names if any(len(run.points(tag)[1]) for run in runs)]


def return_tags(runs: Sequence[Run]) -> list[str]:
    """The returns to show of these runs. A tag that all runs have replaces those that say the same with more noise;
    the running mean is left out where some run has none."""
    common = [tag for tag in tags("return") if all(len(run.points(tag)[1]) for run in runs)]
    dropped = {name for tag in common for name in TAGS[tag].replaces}
    dropped |= {RUNNING_MEAN} - set(common)
    return [tag for tag in logged(runs, tags("return")) if tag not in dropped]
