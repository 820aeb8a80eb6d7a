"""Obedience: whether an agent that is commanded a return obtains it. Statistics, table and figure of a sweep.

A sweep asks for C returns in each of E episodes by each of M seeds. A command is inside where it lies within the
returns that this seed has seen in training, and outside elsewhere, where nothing but extrapolation can answer it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from control.reports.sheets import WIDTH, sheet
from control.reports.statistics import LEAST, Array, interval
from control.reports.style import COLOURS, GREY, PLAIN, Look
from control.reports.tables import aligned

END = "_obedience.json"  # of the file beside a checkpoint
BEYOND = 0.25  # share of the range seen that a sweep goes beyond each of its ends
COMMANDS = 15
REGIONS = ("inside", "outside", "all")
NAMES = {"slope": "slope", "rho": "rank correlation", "mae": "mean absolute error"}
HEAD = ("returns asked for", "commands", "episodes", *NAMES.values())
NOTE = "points: mean with its 95 % bootstrap interval; dashed: obtained as commanded; shaded: returns seen in training"


def grid(low: ArrayLike, high: ArrayLike) -> Array:
    """The returns to ask for, ``[C]``: from a quarter of the range below the lowest to as much above the highest."""
    least, most = float(np.min(low)), float(np.max(high))
    margin = BEYOND * (most - least or max(1.0, abs(most)))
    return np.linspace(least - margin, most + margin, COMMANDS)


def slope(commanded: ArrayLike, obtained: ArrayLike) -> float:
    """The slope of the line that least squares puts through pairs ``[N]``: 1 where each unit that is asked for is
    obtained, 0 where the command changes nothing."""
    x = np.asarray(commanded, dtype=np.float64)
    x = x - x.mean()
    return float(x @ np.asarray(obtained, dtype=np.float64) / (x @ x))


def rank_correlation(commanded: ArrayLike, obtained: ArrayLike) -> float:
    """Spearman's, of pairs ``[N]``; equal numbers share the mean of their ranks. 0 where all of one side are equal."""
    import torch  # a page draws numbers that were measured before, without it

    from control.evolution.fitness_shaping import centred_ranks

    pair = (torch.as_tensor(np.asarray(each, dtype=np.float64)) for each in (commanded, obtained))
    x, y = (centred_ranks(each).numpy() for each in pair)
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale else 0.0


def absolute_error(commanded: ArrayLike, obtained: ArrayLike) -> float:
    """The mean absolute difference of pairs ``[N]``, in units of return."""
    return float(np.abs(np.asarray(obtained, dtype=np.float64) - np.asarray(commanded)).mean())


_STATISTICS: dict[str, Callable[[ArrayLike, ArrayLike], float]] = {
    "slope": slope, "rho": rank_correlation, "mae": absolute_error,
}  # fmt: skip


def measure(commanded: ArrayLike, obtained: ArrayLike, low: ArrayLike, high: ArrayLike) -> dict[str, Any]:
    """What ``obtained [M, C, E]`` says under commands ``[C]``, where seeds have seen returns from ``low`` to ``high
    [M]``; ready for JSON.

    ``regions`` has for each of `REGIONS` its number of commands and of episodes, and each statistic of `NAMES` with its
    interval. Episode e is the same under all commands but for what follows from them, so each gives a statistic over
    the C commands, of which the mean is taken over episodes and seeds. None where a seed has fewer than two commands
    there. The bootstrap is over seeds, or over episodes where there are fewer than three seeds.
    """
    asked, got = np.asarray(commanded, dtype=np.float64), np.asarray(obtained, dtype=np.float64)
    lows, highs = np.asarray(low, dtype=np.float64)[:, None], np.asarray(high, dtype=np.float64)[:, None]
    inside = (asked >= lows) & (asked <= highs)  # [M, C]
    of = dict(zip(REGIONS, (inside, ~inside, np.ones_like(inside)), strict=True))
    return {
        "commanded": asked.tolist(),
        "seen": np.concatenate([lows, highs], 1).tolist(),
        "obtained": got.mean(2).tolist(),
        "mean": got.mean((0, 2)).tolist(),
        "interval": _points(got),
        "regions": {name: _region(asked, got, where) for name, where in of.items()},
    }


def _points(got: Array) -> list[list[float]] | None:
    """The interval ``[C, 2]`` of the mean of each command."""
    bounds = interval(got.mean(2)) if len(got) >= LEAST else interval(got.mean(0).T)
    return None if bounds is None else np.stack(bounds, 1).tolist()


def _region(asked: Array, got: Array, where: Any) -> dict[str, Any]:
    """The statistics of the commands that ``where [M, C]`` names for each seed."""
    found: dict[str, Any] = {"commands": int(where.any(0).sum()), "episodes": int(where.sum()) * got.shape[2]}
    if where.sum(1).min() < 2:
        return found | dict.fromkeys(NAMES)
    for name, statistic in _STATISTICS.items():
        of_episodes = np.array(
            [[statistic(asked[w], each) for each in own[w].T] for own, w in zip(got, where, strict=True)]
        )
        bounds = interval(of_episodes.mean(1)) if len(got) >= LEAST else interval(of_episodes.mean(0))
        found[name] = {
            "value": float(of_episodes.mean()),
            "interval": [float(each) for each in bounds] if bounds else None,
        }
    return found


def rows(measured: dict[str, Any]) -> list[list[str]]:
    """A row of texts for each region, below `HEAD`."""
    return [
        [name, f"{region['commands']}", f"{region['episodes']:,}", *(_cell(region[each]) for each in NAMES)]
        for name, region in measured["regions"].items()
    ]


def _cell(found: dict[str, Any] | None) -> str:
    if found is None:
        return "-"
    bounds = found["interval"]
    return f"{found['value']:.2f}" + (f" [{bounds[0]:.2f}, {bounds[1]:.2f}]" if bounds else "")


def table(numbers: dict[str, Any]) -> str:
    """The text of a sweep's ``numbers``, a block for each way to act."""
    blocks = (aligned([[mode, *HEAD[1:]], *rows(measured)]) for mode, measured in numbers["modes"].items())
    return "\n\n".join("\n".join(lines) for lines in blocks)


def draw(numbers: dict[str, Any], target: Path, look: Look = PLAIN) -> None:
    """Write the figure of a sweep's ``numbers``: a panel for each way to act."""
    modes = numbers["modes"]
    size = (WIDTH if len(modes) > 1 else 0.6 * WIDTH, 2.9)
    with sheet(target, [list(range(len(modes)))], size, look, title=numbers["title"], note=NOTE) as axes:
        for axis, (mode, measured) in zip(axes, modes.items(), strict=True):
            _panel(axis, measured)
            axis.set(title=f"{mode.capitalize()} actions", xlabel="commanded return", ylabel="obtained return")


def _panel(axis: Any, measured: dict[str, Any]) -> None:
    asked, mean, seen = measured["commanded"], np.array(measured["mean"]), measured["seen"]
    for low, high in seen:
        axis.axvspan(low, high, color=GREY, alpha=0.18 / len(seen), linewidth=0)
    axis.plot([asked[0], asked[-1]], [asked[0], asked[-1]], color=GREY, linewidth=1, linestyle=(0, (4, 2)))
    if len(seen) > 1:
        axis.plot(asked, np.array(measured["obtained"]).T, color=COLOURS[0], linewidth=0.5, alpha=0.4)
    bars = None
    if measured["interval"]:
        # A bar has no negative length, though a mean may lie outside its interval by rounding.
        bars = np.abs(np.array(measured["interval"]).T - mean)
    axis.errorbar(asked, mean, yerr=bars, color=COLOURS[0], fmt="o", markersize=3, linewidth=0, elinewidth=1)


def title(kind: str, game: str, seeds: Sequence[int]) -> str:
    return f"{kind} on {game}, seed {', '.join(map(str, seeds))}: obtained against commanded return"
