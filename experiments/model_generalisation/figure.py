"""Compare the agents of model generalisation: one panel per environment and amount of data, and the numbers.

    python experiments/model_generalisation/figure.py exp_dir --out figure.png

Takes run folders or any folder above them and reads `metrics.csv` and `config.yaml` only, so unfinished runs work too.
Runs of other families are skipped. A curve ends with its shortest seed. If the argument is the JSON of an earlier
figure, the script draws its numbers: means and intervals of the last tenth of the steps and of the whole curve.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

from control.reports.curves import STEPS_LABEL, Level, draw_curves, draw_levels, scale, share_limits
from control.reports.figures import (
    COLOURS,
    INK,
    WIDTH,
    FigureStyle,
    figure_file,
    figure_panels,
    row_lengths,
    rows,
    set_title,
    show,
)
from control.reports.runs import LAST, Array, Run
from control.reports.statistics import MIN_RUNS, interval
from control.reports.tables import Table, seeds_text
from control.reports.tags import GREEDY, REWARD_RATE
from experiments.comparison import check_counts, check_seed_is_new, command_line, run_script, runs_of, style_of
from models.agents.model_generalisation.config import IMPLEMENTATIONS
from models.settings import SettingError

TITLES = {"procmaze": "ProcMaze", "buttongrid": "ButtonGrid", "panflute": "PanFlute", "opengrid": "OpenGrid"}
REGIMES = {"high": "high data", "low": "low data"}
Y_LABELS = {GREEDY: "return (sum of rewards), greedy", REWARD_RATE: "reward per step, greedy"}
# Game -> expected score of the best known policy and of uniformly random actions. ProcMaze: shortest paths, teleports
# included. PanFlute: a script that plays the pipes in turn, longest first.
REFERENCES: dict[str, dict[str, float]] = {
    "procmaze": {"optimum": -4.40, "random": -35.36},
    "procmaze,grid_size=3": {"optimum": -3.05, "random": -20.5},
    "procmaze,grid_size=5": {"optimum": -5.85, "random": -50.66},
    "panflute": {"script": 0.2219, "random": 0.0398},
    "panflute,num_pipes=3": {"script": 0.4029, "random": 0.1419},
    "panflute,num_pipes=8": {"script": 0.1338, "random": 0.01556},
}


@dataclass
class Panel:
    """Runs on one environment with one amount of data, by agent in the family's order."""

    game: str
    tag: str
    runs: dict[str, list[Run]] = field(default_factory=dict)

    @property
    def threshold(self) -> float | None:
        """Score half-way between random actions and the best known policy; None if one is unknown."""
        levels = REFERENCES.get(self.game, {})
        return sum(levels.values()) / 2 if len(levels) == 2 else None


@dataclass
class Curves:
    """Seeds of one agent after smoothing: ``steps [K]``, ``values [N, K]``."""

    steps: Array
    values: Array


Place = tuple[str, str]
"""Amount of data and environment: row and column."""


def load(folders: Sequence[Path]) -> dict[Place, Panel]:
    """Return the panels of all runs. Raises SettingError without runs, or if settings in a panel differ."""
    panels: dict[Place, Panel] = {}
    order = list(IMPLEMENTATIONS)
    matching_runs = runs_of(folders, IMPLEMENTATIONS)
    for settings, run in sorted(matching_runs, key=lambda pair: order.index(pair[0].run.implementation)):
        _add(panels, settings, run)
    return {place: panels[place] for place in sorted(panels)}


def _add(panels: dict[Place, Panel], settings: Any, run: Run) -> None:
    """Add a run with these ``settings`` to its panel."""
    name, game = settings.run.implementation, settings.run.gamename
    regime = "high" if settings.agent.updates_per_step == 1 else "low"
    tag = GREEDY if settings.agent.episodic_env else REWARD_RATE
    panel = panels.setdefault((regime, game.partition(",")[0]), Panel(game, tag))
    if (panel.game, panel.tag) != (game, tag):
        mismatch = ("gamename", panel.game, game) if panel.game != game else ("episodic_env", "true", "false")
        raise SettingError(
            f"{mismatch[0]} of these runs is {mismatch[1]} and {mismatch[2]}; allowed: one a panel; give fewer folders"
        )
    runs = panel.runs.setdefault(name, [])
    check_seed_is_new(run, runs, name)
    if not len(run.points(tag, "env_steps")[0]):
        raise SettingError(f"{run.source} has no evaluation yet: {tag} is missing")
    runs.append(run)


def curves(runs: Sequence[Run], tag: str, window: int, frequency: int) -> Curves:
    """Return the curves of the seeds of an agent: every ``frequency``-th evaluation that all seeds share, then moving
    averages over ``window`` evaluations, each at the last of its steps. Raises SettingError for too few evaluations."""
    points = [run.points(tag, "env_steps") for run in runs]
    steps = reduce(np.intersect1d, [run_steps for run_steps, _ in points])[::frequency]
    if len(steps) < window:
        raise SettingError(
            f"window is {window}, but {runs[0].source.parent} and its other seeds have {len(steps)} evaluations in "
            f"common, with frequency {frequency}; allowed: at most as many"
        )
    values = np.stack([run_values[np.isin(run_steps, steps)] for run_steps, run_values in points])
    averages = np.lib.stride_tricks.sliding_window_view(values, window, axis=1).mean(2)
    return Curves(steps[window - 1 :], averages)


def summarise(panels: dict[Place, Panel], window: int, frequency: int) -> dict[str, Any]:
    """Return the numbers of every panel and agent (`_numbers`), as data for JSON."""
    summary: dict[str, Any] = {"window": window, "frequency": frequency, "panels": {}}
    for (regime, environment), panel in panels.items():
        agents = {}
        for name, runs in panel.runs.items():
            agents[name] = _numbers(panel, curves(runs, panel.tag, window, frequency))
        summary["panels"][f"{environment}_{regime}"] = {
            "game": panel.game,
            "metric": panel.tag,
            "references": REFERENCES.get(panel.game, {}),
            "threshold": panel.threshold,
            "agents": agents,
        }
    return summary


def _numbers(panel: Panel, seed_curves: Curves) -> dict[str, Any]:
    """Return the numbers of an agent: the mean over the last tenth of the steps and the mean height of the curve (area
    divided by steps), both with 95 % intervals over seeds, and the first step where the mean reaches
    `Panel.threshold`."""
    steps, values = seed_curves.steps, seed_curves.values
    late = values[:, steps > (1 - LAST) * steps[-1]].mean(1)
    span = steps[-1] - steps[0]
    area = np.trapezoid(values, steps, axis=1) / span if span else values[:, 0]
    reached_steps = steps[values.mean(0) >= (np.inf if panel.threshold is None else panel.threshold)]
    return {
        "seeds": len(values),
        "env_steps": int(steps[-1]),
        "last_tenth": _over_seeds(late),
        "area": _over_seeds(area),
        "steps_to_threshold": int(reached_steps[0]) if len(reached_steps) else None,
    }


def _over_seeds(values: Array) -> dict[str, Any]:
    """Return the mean over seeds and its 95 % interval."""
    bounds = interval(values)
    return {"mean": float(values.mean()), "interval": [float(bound) for bound in bounds] if bounds else None}


def table(summary: dict[str, Any]) -> str:
    """Return the summary as text, one row per agent."""
    lines = [f"evaluations: every {summary['frequency']}., means of {summary['window']} in a row"]
    for name, panel in summary["panels"].items():
        threshold = "-" if panel["threshold"] is None else f"{panel['threshold']:.3g}"
        rows = [[name, "seeds", "env steps", "last tenth", "95 %", "mean height", "95 %", f"steps to {threshold}"]]
        for agent, numbers in panel["agents"].items():
            seeds, steps = numbers["seeds"], numbers["steps_to_threshold"]
            cells = [*_cells(numbers["last_tenth"], seeds), *_cells(numbers["area"], seeds)]
            steps_text = "-" if steps is None else f"{steps:,}"
            rows.append([agent, str(seeds), f"{numbers['env_steps']:,}", *cells, steps_text])
        lines += ["", *Table(rows).lines()]
    return "\n".join(lines)


def _cells(number: dict[str, Any], seeds: int) -> list[str]:
    """Return a mean and its interval (`_over_seeds`) as texts."""
    interval_text = {1: "one seed", 2: "two seeds"}.get(seeds, "-")
    if number["interval"]:
        low, high = number["interval"]
        interval_text = f"{low:#.4g} to {high:#.4g}"
    return [f"{number['mean']:#.4g}", interval_text]


LEVELS = "optimum or script: the best known policy; random: uniformly random actions"


def _colours() -> dict[str, str]:
    """Return a colour per agent; ink for the agent without a model."""
    other_colours = [colour for colour in COLOURS if colour != INK]
    return dict(zip(IMPLEMENTATIONS, (INK, *other_colours), strict=False))


def draw(panels: dict[Place, Panel], window: int, frequency: int, out: Path, style: FigureStyle) -> None:
    """Write the figure: one column per environment, one row per amount of data. Panels without runs are left out."""
    regimes = [regime for regime in REGIMES if any(place[0] == regime for place in panels)]
    columns = [name for name in TITLES if any(place[1] == name for place in panels)]
    columns += sorted({environment for _, environment in panels} - set(columns))
    places = [(regime, name) for regime in regimes for name in columns if (regime, name) in panels]
    lengths: list[int] = []
    for regime in regimes:
        lengths += row_lengths(sum(place[0] == regime for place in places))
    counts = [len(runs) for panel in panels.values() for runs in panel.runs.values()]
    note = f"mean of {seeds_text(counts)}"
    if max(counts) >= MIN_RUNS:
        note += "; band: its 95 % bootstrap interval; dashed: interquartile mean"
    if window > 1:
        note += f"; moving average over {window} evaluations"
    note += f"; {LEVELS}"
    row_height = 2.1 if max(lengths) > 1 else 3.0  # inches
    with figure_panels(out, rows(*lengths), (WIDTH, row_height * len(lengths)), style, note=note) as axes:
        for axis, place in zip(axes, places, strict=True):
            panel = panels[place]
            for name, runs in panel.runs.items():
                seed_curves = curves(runs, panel.tag, window, frequency)
                draw_curves(axis, seed_curves.steps, seed_curves.values, _colours()[name], name)
            draw_levels(axis, [Level(value, name) for name, value in REFERENCES.get(panel.game, {}).items()])
            scale(axis)
            axis.set(xlabel=STEPS_LABEL, ylabel=Y_LABELS[panel.tag])
            set_title(axis, f"{_title(panel.game)}, {REGIMES[place[0]]}", 2.2)


def _title(game: str) -> str:
    """Return an environment as in titles, such as ``ProcMaze, grid size 3``."""
    name, *pairs = game.split(",")
    return ", ".join([TITLES.get(name, name), *(pair.replace("_", " ").replace("=", " ") for pair in pairs)])


def redraw(numbers: Path, out: Path, style: FigureStyle) -> None:
    """Draw the means and intervals in the JSON of an earlier figure. Raises SettingError for another file."""
    try:
        panels = json.loads(numbers.read_text(encoding="utf-8"))["panels"]
        agents = max((list(panel["agents"]) for panel in panels.values()), key=len)
        seeds = [n["seeds"] for panel in panels.values() for n in panel["agents"].values()]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        raise SettingError(f"logdir is '{numbers}', which holds no numbers of this figure") from None
    note = f"diamond: mean of {seeds_text(seeds)}; line: its 95 % bootstrap interval"
    note += f"; mean height: area under the curve by the steps it covers; {LEVELS}"
    quantities = {"last_tenth": "last tenth of the steps", "area": "mean height of the curve"}
    size = (WIDTH, (0.2 * len(agents) + 0.75) * len(panels))
    with figure_panels(out, rows(*[2] * len(panels)), size, style, numbers, note=note) as axes:
        for i, (place, panel) in enumerate(panels.items()):
            for axis, (key, quantity) in zip(axes[2 * i : 2 * i + 2], quantities.items(), strict=True):
                for row, (name, agent_numbers) in enumerate(panel["agents"].items()):
                    number, colour = agent_numbers[key], _colours()[name]
                    if number["interval"]:
                        axis.plot(number["interval"], [row, row], color=colour, linewidth=1.6)
                    axis.plot(number["mean"], row, "D", color=colour, markersize=4)
                axis.set_yticks(range(len(panel["agents"])), panel["agents"])
                axis.set_ylim(len(panel["agents"]) - 0.5, -0.5)
                axis.tick_params(axis="y", length=0)
                axis.grid(False, axis="y")
                references = [Level(value, name) for name, value in panel["references"].items()]
                draw_levels(axis, references, axis_name="x")
                set_title(axis, f"{_title(panel['game'])}, {REGIMES[place.rpartition('_')[2]]}: {quantity}", 2.9)
                axis.set_xlabel(Y_LABELS[panel["metric"]])
            share_limits(axes[2 * i : 2 * i + 2], "x")


def make(options: argparse.Namespace) -> None:
    """Print the table, write the figure and, beside it, the numbers. Raises SettingError for wrong options."""
    check_counts(options, window=1, frequency=1)
    out, style = figure_file(options.out, "out"), style_of(options)
    if options.logdir[0].suffix == ".json":
        redraw(options.logdir[0], out, style)
        print(f"Figure:  {out}")
        return
    panels = load(options.logdir)
    summary = summarise(panels, options.window, options.frequency)
    show(table(summary), summary, lambda out: draw(panels, options.window, options.frequency, out, style), out)


def main(argv: Sequence[str] | None = None) -> int:
    flags = command_line(__doc__, "model_generalisation.png")
    flags.add_argument("--window", "-w", type=int, default=1, help="evaluations of the moving average (1: none)")
    flags.add_argument("--frequency", "-f", type=int, default=1, help="take every so many-th evaluation only (1: all)")
    options = flags.parse_args(argv)
    return run_script(lambda: make(options))


if __name__ == "__main__":
    sys.exit(main())
