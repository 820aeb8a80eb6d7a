"""What finished or running runs wrote, read back: groups of seeds and their summary in numbers.

Torch-free and quick, so that figures can be drawn while runs go on.
"""

import csv
import math
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from control.cli.settings import from_dict
from control.reports.statistics import interval, iqm, mean
from control.reports.tags import RUNNING_MEAN, TAGS, tags
from control.storage.run_dir import KEYS, read_metrics
from models.settings import SettingError

Array = NDArray[np.float64]

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


def settings_of(metrics: Path, implementations: Container[str]) -> Any:
    """The settings of the run that wrote ``metrics``, from the config.yaml beside it; None where it is of none of
    ``implementations``.

    Raises SettingError where there is none that can be read.
    """
    import yaml

    path = metrics.with_name("config.yaml")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        return from_dict(content) if content["implementation"] in implementations else None
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds no settings of a run"
        raise SettingError(f"{path}, which says what was trained, cannot be read: {reason}") from None


def runs_of(run_dirs: Sequence[Path], implementations: Iterable[str], setting: str) -> list[tuple[Any, Run]]:
    """The runs of ``implementations`` at or below the given folders, each with its settings; of a seed in several
    versions the newest, as `find_groups` has it.

    Raises SettingError, in the name of ``setting``, where there is none.
    """
    wanted = list(implementations)
    found = [run for group in find_groups(run_dirs, setting) for run in group.runs]
    # Seeds that were members of one program share a file.
    settings = {source: settings_of(source, wanted) for source in dict.fromkeys(run.source for run in found)}
    ours = [(settings[run.source], run) for run in found if settings[run.source] is not None]
    if not ours:
        raise SettingError(f"{setting} is {_listed(run_dirs)}, which holds no run of {', '.join(wanted)}")
    return ours


def check_seed_is_new(run: Run, others: Iterable[Run], name: str, setting: str) -> None:
    """SettingError where a run's seed is among the ``others`` of what is called ``name``."""
    same = [other.source.parent for other in others if other.seed == run.seed]
    if same:
        raise SettingError(f"{setting} holds seed {run.seed} of {name} twice, in {same[0]} and {run.source.parent}")


def seeds_text(counts: Sequence[int]) -> str:
    """How many seeds curves are of, ``counts`` from the fewest to the most: "5 seeds", "3-5 seeds"."""
    fewest_and_most = dict.fromkeys((counts[0], counts[-1]))
    return f"{'-'.join(map(str, fewest_and_most))} seed{'s' * (counts[-1] > 1)}"


def logged(runs: Sequence[Run], tags: Iterable[str]) -> list[str]:
    """Those of ``tags`` that any of the runs has a number of."""
    return [tag for tag in tags if any(len(run.points(tag, "epoch")[1]) for run in runs)]


def return_tags(runs: Sequence[Run]) -> list[str]:
    """The returns to show of these runs. A tag that all runs have replaces those that say the same with more noise;
    the running mean is left out where some run has none."""
    common = [tag for tag in tags("return") if all(len(run.points(tag, "epoch")[1]) for run in runs)]
    dropped = {name for tag in common for name in TAGS[tag].replaces}
    dropped |= {RUNNING_MEAN} - set(common)
    return [tag for tag in logged(runs, tags("return")) if tag not in dropped]


def find_groups(run_dirs: Sequence[Path], setting: str = "plot") -> list[Group]:
    """All runs at or below the given folders, grouped by game, experiment and implementation.

    Of a seed found more than once in a group the newest version counts, unless ``run_dirs`` names two versions: then
    each is a group. Raises SettingError, in the name of ``setting``, when a folder is not there or holds no
    metrics.csv.
    """
    groups: dict[tuple[str, ...], dict[int, tuple[Any, Run]]] = {}
    named = {Path(folder).resolve() for folder in run_dirs if Path(folder, "metrics.csv").is_file()}
    apart = len({folder.parent for folder in named}) < len(named)
    for path in _metrics_files(run_dirs, setting):
        names, version = _place(path)
        names += (path.parent.name,) if apart else ()
        newest = groups.setdefault(names, {})
        age = (version, path.stat().st_mtime)
        for run in read_runs(path):
            if run.seed not in newest or age > newest[run.seed][0]:
                newest[run.seed] = (age, run)
    found = [
        Group(names, [newest[seed][1] for seed in sorted(newest)]) for names, newest in sorted(groups.items()) if newest
    ]
    if not found:
        raise SettingError(f"{setting} is {_listed(run_dirs)}; its metrics.csv has no epoch yet")
    return found


def _metrics_files(run_dirs: Sequence[Path], setting: str) -> list[Path]:
    files: dict[Path, None] = {}
    for folder in map(Path, run_dirs):
        if folder.is_file():
            folder = folder.parent
        below = sorted(folder.rglob("metrics.csv")) if folder.is_dir() else []
        if not below:
            fault = "holds no metrics.csv" if folder.is_dir() else "is not there"
            raise SettingError(
                f"{setting} is '{folder}', which {fault}; allowed: run folders, or any folder above them"
            )
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
    returns; then over seeds mean, IQM and the IQM's 95 % interval (None for one seed). Tags never logged are absent.
    The best running mean is aggregated too, being what such a run is judged by."""
    returns = return_tags(group.runs)
    seeds = {
        str(run.seed): {
            "epochs": len(run.columns["epoch"]),
            "env_steps": int(run.columns["env_steps"].max()),
            **{tag: {"last": _plain(run.last(tag)), "best": _plain(run.best(tag))} for tag in returns},
        }
        for run in group.runs
    }
    summary = {
        "seeds": seeds,
        "over_seeds": {tag: over_seeds([run.last(tag) for run in group.runs]) for tag in returns},
    }
    if RUNNING_MEAN in returns:
        summary["best_over_seeds"] = {RUNNING_MEAN: over_seeds([run.best(RUNNING_MEAN) for run in group.runs])}
    return summary


def over_seeds(values: Sequence[float]) -> dict[str, Any]:
    """Mean, IQM and the IQM's 95 % interval of the finite ``values``, a number a seed."""
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
        shown = list(group["over_seeds"])
        rows = [[label, "epochs", "env steps", *(TAGS[tag].short for tag in shown)]]
        for seed, numbers in group["seeds"].items():
            cells = [f"{_text(numbers[tag]['last'])} ({_text(numbers[tag]['best'])})" for tag in shown]
            rows.append([f"seed {seed}", str(numbers["epochs"]), f"{numbers['env_steps']:,}", *cells])
        over, best = group["over_seeds"], group.get("best_over_seeds", {})
        for name, text in AGGREGATES.items():
            cells = [f"{text(over[tag])} ({text(best[tag])})" if tag in best else text(over[tag]) for tag in shown]
            rows.append([name, "", "", *cells])
        lines += ["", *aligned(rows)]
    return "\n".join(lines)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a text table: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines


def _text(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if abs(value) >= 1 or value == 0 else f"{value:#.3g}"  # rewards a step are small


def _range(bounds: list[float] | None) -> str:
    return f"{_text(bounds[0])} to {_text(bounds[1])}" if bounds else "one seed"


AGGREGATES: dict[str, Callable[[dict[str, Any]], str]] = {
    "mean": lambda over: _text(over["mean"]),
    "IQM": lambda over: _text(over["iqm"]),
    "  95 %": lambda over: _range(over["iqm_interval"]),
}
"""Rows of a table below the seeds': how each shows what `over_seeds` gave."""
