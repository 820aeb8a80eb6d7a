"""Numbers over seeds, and text tables of them."""

import math
from collections.abc import Sequence
from typing import Any

from control.reports.runs import Group, return_tags
from control.reports.statistics import interval, iqm, mean
from control.reports.tags import RUNNING_MEAN, TAGS, of_search


def summarise(group: Group) -> dict[str, Any]:
    """The numbers of `table`, ready for JSON. ``seeds``: for each tag of returns the mean over the last tenth of the
    epochs and the best. ``over_seeds``: `over_seeds` of the former; ``best_over_seeds`` of the best running mean, by
    which such a run is judged. Tags never logged are absent."""
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
    return value if math.isfinite(value) else None  # JSON has no NaN


def over_seeds(values: Sequence[float]) -> dict[str, Any]:
    """Mean, IQM and the IQM's 95 % interval of the finite ``values``, one per seed; None for fewer than three."""
    finite = [value for value in values if math.isfinite(value)]
    bounds = interval(finite, iqm)
    return {
        "n": len(finite),
        "mean": float(mean(finite)),
        "iqm": float(iqm(finite)),
        "iqm_interval": [float(bound) for bound in bounds] if bounds else None,
    }


def table(title: str, summary: dict[str, Any]) -> str:
    """The summary of each group as text (`rows_of_seeds`)."""
    lines = [f"{f'{title}: returns' if title else 'Returns'}, mean of the last tenth of the epochs (best epoch)"]
    for label, group in summary.items():
        (_, *head), *rows = rows_of_seeds(group)
        lines += ["", *aligned([[label, *head], *rows])]
    return "\n".join(lines)


def rows_of_seeds(group: dict[str, Any]) -> list[list[str]]:
    """The summary of a group as a table: the names of the columns, a row for each seed and three for the aggregates."""
    shown_tags = list(group["over_seeds"])
    steps = "steps of all agents" if of_search(shown_tags) else "env steps"
    rows = [["seed", "epochs", steps, *(TAGS[tag].short for tag in shown_tags)]]
    for seed, numbers in group["seeds"].items():
        cells = [f"{number_text(numbers[tag]['last'])} ({number_text(numbers[tag]['best'])})" for tag in shown_tags]
        rows.append([f"seed {seed}", str(numbers["epochs"]), f"{numbers['env_steps']:,}", *cells])
    best = group.get("best_over_seeds", {})
    columns = [aggregates(group["over_seeds"][tag], best.get(tag)) for tag in shown_tags]
    return rows + [[name, "", "", *(column[name] for column in columns)] for name in AGGREGATES]


def aligned(rows: Sequence[Sequence[str]], least: Sequence[int] = ()) -> list[str]:
    """Lines of a text table: the first column to the left, the others to the right. ``least`` are the columns' least
    widths, for a table that is printed row by row."""
    columns = list(zip(*rows, strict=True))
    widths = [max(width, *map(len, column)) for width, column in zip(least or [0] * len(columns), columns, strict=True)]
    form = "  ".join([f"{{:<{widths[0]}}}", *(f"{{:>{width}}}" for width in widths[1:])])
    return [form.format(*row).rstrip() for row in rows]


def with_interval(value: float, bounds: Sequence[Any] | None, digits: int = 1) -> str:
    """``500.0 [499.1, 500.0]``, with so many ``digits`` behind the point; the value alone where there are no bounds."""
    text, *ends = (f"{float(number):.{digits}f}" for number in (value, *(bounds or ())))
    return f"{text} [{', '.join(ends)}]" if ends else text


def seeds_text(counts: Sequence[int]) -> str:
    """How many seeds curves are of, "5 seeds" or "3-5 seeds"."""
    fewest_and_most = dict.fromkeys((min(counts), max(counts)))
    return f"{'-'.join(map(str, fewest_and_most))} seed{'s' * (max(counts) > 1)}"


def number_text(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if abs(value) >= 1 or value == 0 else f"{value:#.3g}"  # rewards per step are small


def aggregates(summary: dict[str, Any], best: dict[str, Any] | None = None) -> dict[str, str]:
    """What the rows `AGGREGATES` show of the numbers that `over_seeds` gave, in brackets also those of ``best``."""
    low_high = summary["iqm_interval"]
    fallback = {1: "one seed", 2: "two seeds"}.get(summary["n"], "-")
    span = f"{number_text(low_high[0])} to {number_text(low_high[1])}" if low_high else fallback
    texts = dict(zip(AGGREGATES, (number_text(summary["mean"]), number_text(summary["iqm"]), span), strict=True))
    if best is None:
        return texts
    return {name: f"{texts[name]} ({text})" for name, text in aggregates(best).items()}


AGGREGATES = ("mean", "IQM", "  95 %")
"""Rows of a table below those of the seeds."""
