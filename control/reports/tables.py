"""Tables as aligned text and as HTML, and the numbers over seeds that they show."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from control.reports.runs import Group, return_tags
from control.reports.statistics import interval, iqm, mean
from control.reports.tags import RUNNING_MEAN, TAGS, of_search

AGGREGATES = ("mean", "IQM", "  95 %")  # rows below the seeds


@dataclass
class Table:
    """Table of texts, whose first row is the header and whose first column is the heading of each row. ``caption`` and
    ``numeric`` (cells aligned to the right) are for HTML. Jinja2 renders a table by `__html__`."""

    rows: Sequence[Sequence[str]]
    caption: str = ""
    numeric: bool = True

    def lines(self, min_widths: Sequence[int] = ()) -> list[str]:
        """Return lines of text, with the first column aligned to the left and the others to the right. ``min_widths``
        of the columns align a table that is printed row by row."""
        columns = list(zip(*self.rows, strict=True))
        widths = [
            max(width, *map(len, column))
            for width, column in zip(min_widths or [0] * len(columns), columns, strict=True)
        ]
        lines = []
        for first, *rest in self.rows:
            cells = [first.ljust(widths[0]), *map(str.rjust, rest, widths[1:])]
            lines.append("  ".join(cells).rstrip())
        return lines

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def __html__(self) -> str:
        """Return HTML. The table scrolls sideways on a narrow page."""
        head, *rows = self.rows
        cells = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
        body = "".join(
            f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in rest)}</tr>\n'
            for first, *rest in rows
        )
        name, kind = escape(self.caption), ' class="numbers"' if self.numeric else ""
        return (
            f'<div class="wide" tabindex="0" role="region" aria-label="{name}"><table{kind}><caption>{name}</caption>\n'
            f"<thead><tr>{cells}</tr></thead>\n<tbody>\n{body}</tbody></table></div>"
        )


# -- numbers over seeds ------------------------------------------------------------------------------------------------


def summarise(group: Group) -> dict[str, Any]:
    """Return the numbers of a group, as data for JSON. ``seeds`` has the mean over the last tenth of the epochs and the
    best epoch of each return; ``over_seeds`` the statistics of the former; ``best_over_seeds`` the statistics of the
    best running mean."""
    returns = return_tags(group.runs)
    seeds = {
        str(run.seed): {
            "epochs": len(run.columns["epoch"]),
            "env_steps": int(run.columns["env_steps"].max()),
            **{tag: {"last": _finite(run.last(tag)), "best": _finite(run.best(tag))} for tag in returns},
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


def _finite(value: float) -> float | None:
    """Return a number, or None if it is not finite."""
    return value if math.isfinite(value) else None  # JSON has no NaN


def over_seeds(values: Sequence[float]) -> dict[str, Any]:
    """Return mean, IQM and the IQM's 95 % interval of the finite ``values``, one value per seed. The interval is None
    for fewer than three."""
    finite = [value for value in values if math.isfinite(value)]
    bounds = interval(finite, iqm)
    return {
        "n": len(finite),
        "mean": float(mean(finite)),
        "iqm": float(iqm(finite)),
        "iqm_interval": [float(bound) for bound in bounds] if bounds else None,
    }


def summary_text(title: str, summary: dict[str, Any]) -> str:
    """Return the text of the numbers of several groups, a table for each."""
    lines = [f"{f'{title}: returns' if title else 'Returns'}, mean of the last tenth of the epochs (best epoch)"]
    for label, group in summary.items():
        lines += ["", *seed_table(group, label).lines()]
    return "\n".join(lines)


def seed_table(group: dict[str, Any], corner: str = "seed", caption: str = "") -> Table:
    """Return the table of a group's numbers: a row for each seed and three rows of statistics."""
    return_names = list(group["over_seeds"])
    steps = "steps of all agents" if of_search(return_names) else "env steps"
    rows = [[corner, "epochs", steps, *(TAGS[tag].short for tag in return_names)]]
    for seed, numbers in group["seeds"].items():
        cells = [f"{number_text(numbers[tag]['last'])} ({number_text(numbers[tag]['best'])})" for tag in return_names]
        rows.append([f"seed {seed}", str(numbers["epochs"]), f"{numbers['env_steps']:,}", *cells])
    best = group.get("best_over_seeds", {})
    columns = [aggregates(group["over_seeds"][tag], best.get(tag)) for tag in return_names]
    return Table(rows + [[name, "", "", *(column[name] for column in columns)] for name in AGGREGATES], caption)


def aggregates(summary: dict[str, Any], best: dict[str, Any] | None = None) -> dict[str, str]:
    """Return the texts of the rows `AGGREGATES` for numbers of `over_seeds`, with the texts of ``best`` in brackets."""
    low_high = summary["iqm_interval"]
    fallback = {1: "one seed", 2: "two seeds"}.get(summary["n"], "-")
    span = f"{number_text(low_high[0])} to {number_text(low_high[1])}" if low_high else fallback
    texts = dict(zip(AGGREGATES, (number_text(summary["mean"]), number_text(summary["iqm"]), span), strict=True))
    if best is None:
        return texts
    return {name: f"{texts[name]} ({text})" for name, text in aggregates(best).items()}


# -- texts of numbers --------------------------------------------------------------------------------------------------


def number_text(value: float | None) -> str:
    """Return a number as text; rewards per step, which are small, with three digits."""
    if value is None:
        return "-"
    return f"{value:,.1f}" if abs(value) >= 1 or value == 0 else f"{value:#.3g}"


def with_interval(value: float, bounds: Sequence[Any] | None, digits: int = 1) -> str:
    """Return a value and its interval, such as ``500.0 [499.1, 500.0]``, with this number of decimal ``digits``."""
    text, *ends = (f"{float(number):.{digits}f}" for number in (value, *(bounds or ())))
    return f"{text} [{', '.join(ends)}]" if ends else text


def seeds_text(counts: Sequence[int]) -> str:
    """Return numbers of seeds as text, such as "5 seeds" or "3-5 seeds"."""
    fewest_and_most = dict.fromkeys((min(counts), max(counts)))
    return f"{'-'.join(map(str, fewest_and_most))} seed{'s' * (max(counts) > 1)}"
