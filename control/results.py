"""What finished or running runs wrote, read back: groups of seeds and their summary in numbers.

Torch-free and quick, so that figures can be drawn while runs go on.
"""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from control.run_dir import KEYS, read_metrics
from control.statistics import interval, iqm, mean
from models.settings import SettingError

Array = NDArray[np.float64]

RETURNS = {
    "rollout/return_mean": "Return while exploring",
    "eval/return_sampled": "Return in evaluation, sampled actions",
    "eval/return_greedy": "Return in evaluation, greedy actions",
    "es/fitness_mean": "Real return of agents of perturbed stand-ins",
    "es/center_return": "Real return of fresh agents of the centre",
}
SHORT = {
    "rollout/return_mean": "exploring", "eval/return_sampled": "sampled", "eval/return_greedy": "greedy",
    "es/fitness_mean": "fitness", "es/center_return": "centre",
}  # fmt: skip
LAST = 0.1  # the share of epochs, at the end, that the table averages over


@dataclass
class Run:
    """One seed's numbers: `columns[tag]` and x are `[rows]`, NaN where a tag was not logged."""

    seed: int
    source: Path
    columns: dict[str, Array]

    def points(self, tag: str, x: str) -> tuple[Array, Array]:
        """The logged values of `tag` and where: `(x [K], values [K])`, both empty when it never was."""
        values = self.columns.get(tag)
        if values is None:
            return np.empty(0), np.empty(0)
        there = np.isfinite(values)
        return self.columns[x][there], values[there]

    def last(self, tag: str) -> float:
        """Mean over the last tenth of the epochs; NaN when nothing was logged."""
        epochs, values = self.points(tag, "epoch")
        if not len(values):
            return math.nan
        late = epochs >= (1 - LAST) * (self.columns["epoch"].max() + 1)
        return float(values[late].mean() if late.any() else values[-1])

    def best(self, tag: str) -> float:
        """Largest value logged; NaN when nothing was."""
        values = self.points(tag, "epoch")[1]
        return float(values.max()) if len(values) else math.nan


@dataclass
class Group:
    """The seeds of one game, experiment and implementation."""

    names: tuple[str, ...]
    runs: list[Run] = field(default_factory=list)


def read_runs(path: Path) -> list[Run]:
    """The runs in one metrics.csv, by seed; none when it has no row yet. A last line cut short by a kill is left out.

    Raises SettingError for a file that cannot be read or is no table of numbers.
    """
    try:
        table = read_metrics(path)
    except OSError as error:
        raise SettingError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, KeyError, csv.Error) as error:
        raise SettingError(f"{path} is no metrics.csv of numbers: {error}") from None
    missing = [name for name in KEYS if name not in table]
    if missing:
        raise SettingError(f"{path} is no metrics.csv: it has no column {missing[0]}")
    columns = {name: np.array(values, dtype=np.float64) for name, values in table.items()}
    seeds = columns["seed"]
    return [
        Run(int(seed), path, {name: values[seeds == seed] for name, values in columns.items()})
        for seed in np.unique(seeds)
    ]


def find_groups(run_dirs: Sequence[Path]) -> list[Group]:
    """All runs at or below the given folders, grouped by game, experiment and implementation.

    Of a seed found more than once in a group the newest version counts. Raises SettingError when a folder is not
    there or holds no metrics.csv.
    """
    groups: dict[tuple[str, ...], dict[int, tuple[Any, Run]]] = {}
    for path in _metrics_files(run_dirs):
        names, version = _place(path)
        newest = groups.setdefault(names, {})
        age = (version, path.stat().st_mtime)
        for run in read_runs(path):
            if run.seed not in newest or age > newest[run.seed][0]:
                newest[run.seed] = (age, run)
    found = [
        Group(names, [newest[seed][1] for seed in sorted(newest)]) for names, newest in sorted(groups.items()) if newest
    ]
    if not found:
        raise SettingError(f"plot is {_listed(run_dirs)}; its metrics.csv has no epoch yet")
    return found


def _metrics_files(run_dirs: Sequence[Path]) -> list[Path]:
    files: dict[Path, None] = {}
    for folder in map(Path, run_dirs):
        if folder.is_file():
            folder = folder.parent
        below = sorted(folder.rglob("metrics.csv")) if folder.is_dir() else []
        if not below:
            fault = "holds no metrics.csv" if folder.is_dir() else "is not there"
            raise SettingError(f"plot is '{folder}', which {fault}; allowed: run folders, or any folder above them")
        files.update(dict.fromkeys(path.resolve() for path in below))
    return list(files)


def _place(path: Path) -> tuple[tuple[str, ...], int]:
    """(game, experiment, implementation) and version, from `GAME/EXP/IMPL/seed_N/version_K/metrics.csv`.
    A folder copied elsewhere is a group under its own name."""
    version, seed = path.parent, path.parent.parent
    if version.name.startswith("version_") and seed.name.startswith("seed_") and len(path.parts) > 6:
        number = version.name.removeprefix("version_")
        return path.parts[-6:-3], int(number) if number.isdigit() else 0
    return (version.name,), 0


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(f"'{path}'" for path in paths)


def summarise(group: Group) -> dict[str, Any]:
    """Numbers of the table: for each seed the mean over the last tenth of its epochs and the best, for each tag of
    returns; then over seeds mean, IQM and the IQM's 95 % interval (None for one seed). Tags never logged are absent."""
    tags = [tag for tag in RETURNS if any(len(run.points(tag, "epoch")[1]) for run in group.runs)]
    seeds = {
        str(run.seed): {
            "epochs": len(run.columns["epoch"]),
            "env_steps": int(run.columns["env_steps"].max()),
            **{tag: {"last": _plain(run.last(tag)), "best": _plain(run.best(tag))} for tag in tags},
        }
        for run in group.runs
    }
    return {"seeds": seeds, "over_seeds": {tag: _over_seeds([run.last(tag) for run in group.runs]) for tag in tags}}


def _over_seeds(values: list[float]) -> dict[str, Any]:
    there = [value for value in values if math.isfinite(value)]
    bounds = interval(there, iqm)
    return {
        "n": len(there),
        "mean": float(mean(there)),
        "iqm": float(iqm(there)),
        "iqm_interval": [float(bound) for bound in bounds] if bounds else None,
    }


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no NaN


def table(title: str, summary: dict[str, Any]) -> str:
    """The summary of each group as text, a row a seed and three for the aggregates."""
    lines = [f"{title}: returns, mean of the last tenth of the epochs (best epoch)"]
    for label, group in summary.items():
        tags = list(group["over_seeds"])
        rows = [[label, "epochs", "env steps", *(SHORT[tag] for tag in tags)]]
        for seed, numbers in group["seeds"].items():
            cells = [f"{_text(numbers[tag]['last'])} ({_text(numbers[tag]['best'])})" for tag in tags]
            rows.append([f"seed {seed}", str(numbers["epochs"]), f"{numbers['env_steps']:,}", *cells])
        over = group["over_seeds"]
        rows.append(["mean", "", "", *(_text(over[tag]["mean"]) for tag in tags)])
        rows.append(["IQM", "", "", *(_text(over[tag]["iqm"]) for tag in tags)])
        rows.append(["  95 %", "", "", *(_range(over[tag]["iqm_interval"]) for tag in tags)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines.append("")
        for row in rows:
            first, *rest = (
                cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            lines.append("  ".join([first, *rest]).rstrip())
    return "\n".join(lines)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _range(bounds: list[float] | None) -> str:
    return f"{bounds[0]:.1f} to {bounds[1]:.1f}" if bounds else "one seed"
