"""A search in numbers and pictures, whatever proxy it is for."""

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from control.evolution.inner_loop import Outcome
from control.evolution.objectives import first, first_stable, staying
from control.reports.runs import read_runs
from control.reports.sheets import WIDTH, sheet
from control.reports.statistics import interval, iqm
from control.reports.style import COLOURS, PLAIN, Look
from control.reports.tables import with_interval
from control.reports.tags import GRADIENT_STEPS, HELD_OUT, MODEL_LOSSES
from models.proxies.search import SearchConfig


def describe(outcome: Outcome, config: SearchConfig) -> dict[str, Any]:
    """Numbers of N agents: of their mean returns, with a 95 % bootstrap interval of the interquartile mean, and of what
    training cost. Agents whose weights are no longer finite have failed, and count in nothing else."""
    solved = config.solved_reward
    scores = outcome.scores[outcome.scores.isfinite()].double().numpy()
    if not len(scores):
        scores = np.full(1, np.nan)
    bounds = interval(scores, iqm)
    low, high = (None, None) if bounds is None else map(float, bounds)
    speed: dict[str, Any] = {}
    if outcome.curve.shape[1] and config.test_every and solved is not None:
        speed = {
            "first": quartiles(first(outcome.curve, solved), outcome.curve, config.test_every),
            "stays": quartiles(first_stable(outcome.curve, solved), outcome.curve, config.test_every),
            "staying": float(staying(outcome.curve, solved).float().mean()),
        }
    return speed | {
        "agents": len(outcome.scores),
        "failed": int((~outcome.scores.isfinite()).sum()),
        "mean": float(scores.mean()),
        "std": float(scores.std()),
        "median": float(np.median(scores)),
        "worst": float(scores.min()),
        "iqm": float(iqm(scores)),
        "iqm_low": low,
        "iqm_high": high,
        "solved": None if solved is None else float((scores >= solved).mean()),
        "steps": float(outcome.steps.double().mean()),
        "steps_std": float(outcome.steps.double().std(correction=0)),
        "episodes": float(outcome.episodes.double().mean()),
    }


def quartiles(tests: Tensor, curve: Tensor, test_every: int) -> list[float | None]:
    """Steps at the numbers of ``tests [N]``: lower quartile, median, upper quartile and last agent; None where that is
    beyond the end of ``curve [N, T]``."""
    steps = [float(np.quantile(tests.double().numpy(), share, method="higher")) for share in (0.25, 0.5, 0.75, 1.0)]
    return [(test + 1) * test_every if test < curve.shape[1] else None for test in steps]


def speed_text(summary: dict[str, Any]) -> str:
    """``first after 225 steps (median; last agent 400), for good never (median; last agent never); 97 % of agents at
    every test of the second half``."""

    def steps(key: str) -> str:
        _, middle, _, last = summary[key]
        median_text = "never" if middle is None else f"after {middle:,.0f} steps"
        return f"{median_text} (median; last agent {'never' if last is None else f'{last:,.0f}'})"

    share = f"{100 * summary['staying']:.0f} % of agents at every test of the second half"
    return f"first {steps('first')}, for good {steps('stays')}; {share}"


def iqm_text(summary: dict[str, Any]) -> str:
    """``500.0 [499.1, 500.0]``: the interquartile mean of `describe`'s numbers and its interval."""
    bounds = summary["iqm_low"], summary["iqm_high"]
    return with_interval(summary["iqm"], None if None in bounds else bounds)


def fit_figure(folder: Path, look: Look = PLAIN) -> Path:
    """``curve.png``: held-out losses of a fit, those in training dotted, and ends and rollouts that go wrong."""
    (run,) = read_runs(folder / "metrics.csv")
    path, updates = folder / f"curve.{(look.formats or ('png',))[0]}", run.columns[GRADIENT_STEPS]
    with sheet(path, [[0, 1]], (WIDTH, 2.4), look, note="solid: on transitions held out; dotted: in training") as axes:
        for tag, name, colour in zip(MODEL_LOSSES, ("state", "reward", "end"), COLOURS, strict=False):
            axes[0].plot(updates, run.columns[tag], color=colour, linestyle=(0, (1, 1)))
            axes[0].plot(updates, run.columns[tag.replace("model/", f"{HELD_OUT}_")], color=colour, label=name)
        for tag, colour in zip(("ends_missed", "ends_false", "rollout_ends"), COLOURS[3:], strict=False):
            name = tag.replace("rollout_ends", "rollouts_that_end_wrongly").replace("_", " ")
            axes[1].plot(updates, run.columns[f"{HELD_OUT}_{tag}"], color=colour, label=name)
        axes[0].set(xlabel="gradient steps", ylabel="loss", yscale="log")
        axes[1].set(xlabel="gradient steps", ylabel="share")
    return path
