"""Tables as aligned text and as HTML, and the numbers over seeds that they show."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from control.reports.runs import Group, Run, return_tags
from control.reports.statistics import MIN_RUNS, interval, iqm
from control.reports.tags import GREEDY, RUNNING_MEAN, TAGS, is_search
from control.storage.versions import read_versions

NOT_SOLVED = "Not solved. "  # begins the verdict about agents that do not solve the environment
AGGREGATES = ("mean", "IQM", "  95 %")  # rows below the seeds


@dataclass
class Table:
    """Table of texts. The first row and the first column are headings. In HTML, it has a ``caption``."""

    rows: Sequence[Sequence[str]]
    caption: str = ""

    @classmethod
    def of_rows(cls, rows: Sequence[Mapping[str, str]], caption: str = "") -> "Table":
        """Return a table of ``rows`` that map headings to texts, without columns whose cells are all empty (``-``)."""
        headings = dict.fromkeys(name for row in rows for name in row)  # in the order of the rows' keys
        names = [name for name in headings if any(row.get(name, "-") != "-" for row in rows)]
        cells = [[row.get(name, "-") for name in names] for row in rows]
        return cls([names, *cells], caption)

    @property
    def numeric(self) -> list[bool]:
        """Whether the cells of each column are numbers, which are aligned to the right in HTML."""
        is_number = re.compile(r"-?\d|-?$").match  # also of an empty cell and of "-", which are missing numbers
        columns = zip(*self.rows[1:], strict=True)
        return [all(map(is_number, column)) for column in columns]

    def lines(self, min_widths: Sequence[int] = ()) -> list[str]:
        """Return a line of text for each row, with the first column aligned to the left and the others to the right.
        Columns are at least as wide as ``min_widths``, which align rows that are printed one by one."""
        widths = [max(map(len, column)) for column in zip(*self.rows, strict=True)]
        if min_widths:
            widths = list(map(max, widths, min_widths))
        rows = [[first.ljust(widths[0]), *map(str.rjust, cells, widths[1:])] for first, *cells in self.rows]
        return ["  ".join(row).rstrip() for row in rows]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def solved_verdict(score: float, solved: float) -> str:
    """Return whether a score reaches the return ``solved`` as text, such as ``not solved (475 or more)``."""
    return f"{'solved' if score >= solved else 'not solved'} ({solved:g} or more)"


def score_text(score: float, solved: float | None) -> str:
    """Return a score as text, such as ``491.5, solved (475 or more)``, or alone if ``solved`` is None."""
    text = number_text(score)
    return text if solved is None else f"{text}, {solved_verdict(score, solved)}"


def best_text(score: float, epoch: int, solved: float | None, runs: Sequence[Run]) -> str:
    """Return the score of best.ckpt and its ``epoch`` as text, such as ``372.2 at epoch 15 (358.6, and 385.8 in a
    second evaluation), not solved (475 or more)``. ``runs`` are the seeds of the run. Their metrics have the first of
    two greedy evaluations, whose mean is the score. Without ``runs``, the score is of training episodes."""
    first_returns: list[float] = []  # of the first evaluation in this epoch, one per seed
    for run in runs:
        epochs, returns = run.points(GREEDY)
        first_returns += returns[epochs == epoch].tolist()
    evaluations = ""
    if first_returns:
        first = float(np.mean(first_returns))
        if number_text(first) != number_text(score):
            evaluations = f" ({number_text(first)}, and {number_text(2 * score - first)} in a second evaluation)"
    verdict = "" if solved is None else f", {solved_verdict(score, solved)}"
    return f"{number_text(score)} at epoch {epoch:,}{evaluations}{verdict}"


def solved_steps(runs: Sequence[Run], tag: str, solved: float) -> list[int]:
    """Return the steps to the first value of ``tag`` of at least ``solved``, for each of ``runs`` that has one."""
    first_steps = []
    for run in runs:
        steps, values = run.points(tag, "env_steps")
        if (values >= solved).any():
            first_steps.append(int(steps[values >= solved][0]))
    return first_steps


def range_text(numbers: Sequence[int]) -> str:
    """Return numbers as text: ``10,000`` or, if they differ, ``10,000 to 12,000``."""
    smallest, largest = min(numbers), max(numbers)
    return f"{smallest:,} to {largest:,}" if smallest < largest else f"{smallest:,}"


@dataclass(frozen=True)
class Score:
    """Statistics of N returns: their number ``count``, their ``mean`` and its standard ``error``, their interquartile
    mean ``iqm`` and its 95 % interval ``bounds`` (None for fewer than three). The mean is NaN for no returns."""

    mean: float
    error: float
    iqm: float
    bounds: tuple[float, float] | None
    count: int

    @classmethod
    def of(cls, returns: ArrayLike) -> "Score":
        """Return the statistics of ``returns [N]``. Returns that are not finite are left out."""
        values = np.asarray(returns, dtype=np.float64)
        values = values[np.isfinite(values)]
        if not len(values):
            return cls(math.nan, 0.0, math.nan, None, 0)
        error = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0
        bounds = interval(values, iqm)
        ends = None if bounds is None else (float(bounds[0]), float(bounds[1]))
        return cls(float(values.mean()), error, float(iqm(values)), ends, len(values))

    def exceeds(self, other: "Score") -> bool:
        """Return whether this mean is higher by two standard errors of the difference, and by more than rounding."""
        rounding = 1e-5 * max(abs(self.mean), abs(other.mean))
        return self.mean - other.mean > max(2 * math.hypot(self.error, other.error), rounding)

    def failure_to_exceed(self, other: "Score", subject: str, other_name: str) -> str:
        """Return a clause such as ``agents are no better than random play``, empty if these returns exceed the
        others. It begins with the ``subject``, such as ``agents are``, and ends with ``other_name``."""
        if self.exceeds(other):
            return ""
        comparison = "not clearly better than" if self.mean > other.mean else "no better than"
        return f"{subject} {comparison} {other_name}"

    def __str__(self) -> str:
        return number_text(self.mean)


def summarise(group: Group) -> dict[str, Any]:
    """Return the statistics of a group of runs, as data for JSON.

    ``seeds`` has, for each seed, the numbers of ``epochs`` and ``env_steps`` and, by tag of a return, its mean over the
    last tenth of the epochs (``last``) and its largest value (``best``). ``over_seeds`` has the statistics of ``last``
    by tag (`over_seeds`). ``best_over_seeds`` has statistics of the best running mean, if it was logged.
    """
    shown_tags = return_tags(group.runs)
    seeds: dict[str, dict[str, Any]] = {}
    for run in group.runs:
        numbers: dict[str, Any] = {
            "epochs": len(run.columns["epoch"]),
            "env_steps": int(run.columns["env_steps"].max()),
        }
        for tag in shown_tags:
            numbers[tag] = {"last": _none_if_nan(run.last(tag)), "best": _none_if_nan(run.best(tag))}
        seeds[str(run.seed)] = numbers
    last_means = {tag: over_seeds([run.last(tag) for run in group.runs]) for tag in shown_tags}
    summary = {"seeds": seeds, "over_seeds": last_means}
    if RUNNING_MEAN in shown_tags:
        summary["best_over_seeds"] = {RUNNING_MEAN: over_seeds([run.best(RUNNING_MEAN) for run in group.runs])}
    return summary


def _none_if_nan(value: float) -> float | None:
    """Return a number, or None if it is not finite, because JSON has no NaN."""
    return value if math.isfinite(value) else None


def over_seeds(values: ArrayLike) -> dict[str, Any]:
    """Return the `Score` of ``values``, one per seed, as data for JSON: their number ``n``, their ``mean``, their
    interquartile mean ``iqm``, and its 95 % interval ``iqm_interval``, None for fewer than three values."""
    score = Score.of(values)
    bounds = list(score.bounds) if score.bounds else None
    return {"n": score.count, "mean": score.mean, "iqm": score.iqm, "iqm_interval": bounds}


def summary_text(title: str, summary: dict[str, Any]) -> str:
    """Return a heading and a table for each group of runs. ``summary`` has the statistics (`summarise`) by label."""
    quantity = f"{title}: returns" if title else "Returns"
    lines = [f"{quantity}, mean of the last tenth of the epochs (best epoch)"]
    for label, group in summary.items():
        lines += ["", *seed_table(group, label).lines()]
    return "\n".join(lines)


def seed_table(group: dict[str, Any], corner: str = "run") -> Table:
    """Return the table of the statistics of a group (`summarise`): a row for each seed and the three rows `AGGREGATES`,
    of two seeds their mean alone. A return is shown as ``LAST (BEST)``. ``corner`` is the first cell of the header."""
    returns = list(group["over_seeds"])
    units = ("generations", "steps of the search") if is_search(returns) else ("epochs", "env steps")
    rows = [[corner, *units, *(TAGS[tag].short for tag in returns)]]
    for seed, numbers in group["seeds"].items():
        scores = [f"{number_text(numbers[tag]['last'])} ({number_text(numbers[tag]['best'])})" for tag in returns]
        rows.append([f"seed {seed}", f"{numbers['epochs']:,}", f"{numbers['env_steps']:,}", *scores])
    best = group.get("best_over_seeds", {})
    columns = [aggregates(group["over_seeds"][tag], best.get(tag)) for tag in returns]
    if len(group["seeds"]) > 1:
        names = AGGREGATES if len(group["seeds"]) >= MIN_RUNS else AGGREGATES[:1]
        rows += [[name, "", "", *(column[name] for column in columns)] for name in names]
    return Table(rows)


def aggregates(summary: dict[str, Any], best: dict[str, Any] | None = None) -> dict[str, str]:
    """Return the statistics of `over_seeds` as texts by the names in `AGGREGATES`, such as ``{"mean": "27.5", "IQM":
    "27.5", "  95 %": "26.3 to 29.4"}``. Statistics of the seeds' ``best`` values follow in brackets."""
    bounds = summary["iqm_interval"]
    count_text = {1: "one seed", 2: "two seeds"}.get(summary["n"], "-")  # "-" for none
    interval_text = " to ".join(map(number_text, bounds)) if bounds else count_text
    cells = (number_text(summary["mean"]), number_text(summary["iqm"]), interval_text)
    texts = dict(zip(AGGREGATES, cells, strict=True))
    if best is None:
        return texts
    score_texts = aggregates(best)
    return {name: f"{texts[name]} ({score_texts[name]})" for name in AGGREGATES}


def versions_table(folders: Iterable[Path]) -> Table | None:
    """Return the table of the versions of programs in run ``folders``, several if runs differ. None if there are
    none."""
    entries = [entry for folder in folders for entry in read_versions(folder)]
    # ``from`` is no program: the epoch from which an entry is valid.
    programs = dict.fromkeys(name for entry in entries for name in entry if name != "from")
    rows = [[name, " | ".join(dict.fromkeys(entry[name] for entry in entries if name in entry))] for name in programs]
    return Table([["program", "version"], *rows], "Versions") if rows else None


def number_text(value: float | None) -> str:
    """Return a number as text, such as ``1,234.5``. Numbers below 1, such as rewards per step, have three digits."""
    if value is None:
        return "-"
    return f"{value:z,.1f}" if abs(value) >= 1 or value == 0 else f"{value:#.3g}"


def percent_text(share: float) -> str:
    """Return a share as text, such as ``97 %``."""
    return f"{100 * share:z.0f} %"


def with_margin(value: float, margin: float) -> str:
    """Return a value and its margin with the same number of decimals, such as ``247.3 ± 5.1``."""
    text = number_text(value)
    _, _, decimals = text.partition(".")
    return f"{text} ± {margin:,.{len(decimals)}f}"


def with_interval(value: float, bounds: Sequence[Any] | None, digits: int | None = None) -> str:
    """Return a value and its interval, such as ``500.0 [499.1, 500.0]``, or the value alone without ``bounds``. Numbers
    have this many decimal ``digits`` or, by default, the format of `number_text`."""
    numbers = [value, *bounds] if bounds else [value]
    texts = [number_text(float(number)) if digits is None else f"{number:.{digits}f}" for number in numbers]
    return f"{texts[0]} [{texts[1]}, {texts[2]}]" if bounds else texts[0]


def seeds_text(counts: Sequence[int]) -> str:
    """Return numbers of seeds as text, such as "5 seeds" or "3-5 seeds"."""
    low, high = min(counts), max(counts)
    number = f"{low}-{high}" if low < high else f"{high}"
    return f"{number} seeds" if high > 1 else f"{number} seed"
