"""Tables as aligned text and as HTML, and the numbers over seeds that they show."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from control.reports.runs import Group, return_tags
from control.reports.statistics import interval, iqm
from control.reports.tags import RUNNING_MEAN, TAGS, of_search

AGGREGATES = ("mean", "IQM", "  95 %")  # rows below the seeds


@dataclass
class Table:
    """Table of texts. The first row is the header, and the first column has the headings of the rows. ``caption`` and
    ``numeric`` (cells aligned to the right) are for HTML."""

    rows: Sequence[Sequence[str]]
    caption: str = ""
    numeric: bool = True

    def lines(self, min_widths: Sequence[int] = ()) -> list[str]:
        """Return lines of text, with the first column aligned to the left and the others to the right. If a table is
        printed row by row, ``min_widths`` of the columns align the rows."""
        columns = list(zip(*self.rows, strict=True))
        min_widths = min_widths or [0] * len(columns)
        widths = [max(width, *map(len, column)) for width, column in zip(min_widths, columns, strict=True)]
        lines = []
        for first, *rest in self.rows:
            cells = [first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]
            lines.append("  ".join(cells).rstrip())
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())


def solved_text(score: float, solved: float) -> str:
    """Return "solved" if a score reaches the return ``solved``, otherwise "not solved"."""
    return "solved" if score >= solved else "not solved"


def solved_verdict(score: float, solved: float) -> str:
    """Return `solved_text` and the threshold, such as ``not solved (475 or more)``."""
    return f"{solved_text(score, solved)} ({solved:g} or more)"


def summarise(group: Group) -> dict[str, Any]:
    """Return the numbers of a group, as data for JSON. ``seeds`` has the numbers of epochs and steps of each seed and,
    for the tag of each return, its mean over the last tenth of the epochs (``last``) and its ``best`` value.
    ``over_seeds`` has statistics of ``last`` by tag, and ``best_over_seeds`` statistics of the best running mean."""
    returns = return_tags(group.runs)
    seeds = {}
    for run in group.runs:
        numbers: dict[str, Any] = {
            "epochs": len(run.columns["epoch"]),
            "env_steps": int(run.columns["env_steps"].max()),
        }
        for tag in returns:
            numbers[tag] = {"last": _finite(run.last(tag)), "best": _finite(run.best(tag))}
        seeds[str(run.seed)] = numbers
    means = {tag: over_seeds([run.last(tag) for run in group.runs]) for tag in returns}
    summary = {"seeds": seeds, "over_seeds": means}
    if RUNNING_MEAN in returns:
        summary["best_over_seeds"] = {RUNNING_MEAN: over_seeds([run.best(RUNNING_MEAN) for run in group.runs])}
    return summary


def _finite(value: float) -> float | None:
    """Return a number, or None if it is not finite."""
    return value if math.isfinite(value) else None  # JSON has no NaN


def over_seeds(values: Sequence[float]) -> dict[str, Any]:
    """Return number, mean, interquartile mean and its 95 % interval of the finite ``values``, one per seed. The
    interval is None for fewer than three."""
    finite = [value for value in values if math.isfinite(value)]
    bounds = interval(finite, iqm)
    return {
        "n": len(finite),
        "mean": float(np.mean(finite)),
        "iqm": float(iqm(finite)),
        "iqm_interval": [float(bound) for bound in bounds] if bounds else None,
    }


def summary_text(title: str, summary: dict[str, Any]) -> str:
    """Return the text of the numbers of several groups, a table for each. ``summary`` has the numbers by label."""
    subject = f"{title}: returns" if title else "Returns"
    lines = [f"{subject}, mean of the last tenth of the epochs (best epoch)"]
    for label, group in summary.items():
        lines += ["", *seed_table(group, label).lines()]
    return "\n".join(lines)


def seed_table(group: dict[str, Any], corner: str = "seed", caption: str = "") -> Table:
    """Return the table of a group's numbers (`summarise`): a row for each seed and, for several seeds, the three rows
    `AGGREGATES`. ``corner`` is the first cell of the header."""
    return_names = list(group["over_seeds"])
    units = ("generations", "steps of all agents") if of_search(return_names) else ("epochs", "env steps")
    rows = [[corner, *units, *(TAGS[tag].short for tag in return_names)]]
    for seed, numbers in group["seeds"].items():
        cells = [f"{number_text(numbers[tag]['last'])} ({number_text(numbers[tag]['best'])})" for tag in return_names]
        rows.append([f"seed {seed}", str(numbers["epochs"]), f"{numbers['env_steps']:,}", *cells])
    best = group.get("best_over_seeds", {})
    columns = [aggregates(group["over_seeds"][tag], best.get(tag)) for tag in return_names]
    for name in AGGREGATES if len(group["seeds"]) > 1 else ():
        rows.append([name, "", "", *(column[name] for column in columns)])
    return Table(rows, caption)


def aggregates(summary: dict[str, Any], best: dict[str, Any] | None = None) -> dict[str, str]:
    """Return the statistics of `over_seeds` as texts by the names in `AGGREGATES`. Statistics of the seeds' ``best``
    values follow in brackets."""
    bounds = summary["iqm_interval"]
    if bounds:
        interval_text = f"{number_text(bounds[0])} to {number_text(bounds[1])}"
    else:
        interval_text = {1: "one seed", 2: "two seeds"}.get(summary["n"], "-")
    cells = (number_text(summary["mean"]), number_text(summary["iqm"]), interval_text)
    texts = dict(zip(AGGREGATES, cells, strict=True))
    if best is None:
        return texts
    best_texts = aggregates(best)
    return {name: f"{texts[name]} ({best_texts[name]})" for name in AGGREGATES}


def number_text(value: float | None) -> str:
    """Return a number as text. Numbers below 1, such as rewards per step, have three digits."""
    if value is None:
        return "-"
    return f"{value:,.1f}" if abs(value) >= 1 or value == 0 else f"{value:#.3g}"


def with_interval(value: float, bounds: Sequence[Any] | None, digits: int | None = None) -> str:
    """Return a value and its interval, such as ``500.0 [499.1, 500.0]``, with this number of decimal ``digits`` or, by
    default, as `number_text`."""
    numbers = [float(number) for number in (value, *(bounds or ()))]
    text, *ends = (number_text(number) if digits is None else f"{number:.{digits}f}" for number in numbers)
    return f"{text} [{', '.join(ends)}]" if ends else text


def seeds_text(counts: Sequence[int]) -> str:
    """Return numbers of seeds as text, such as "5 seeds" or "3-5 seeds"."""
    low, high = min(counts), max(counts)
    number = f"{low}-{high}" if low < high else f"{high}"
    return f"{number} seeds" if high > 1 else f"{number} seed"
