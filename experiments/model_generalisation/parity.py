"""Compare our learning curves with the original code's, on settings small enough to run both.

    python experiments/model_generalisation/parity.py --fixture A --figure parity.png

trains our seeds as members of one program, with the original's mistakes (`--faithful_to_paper`), and prints mean and
standard error over seeds of both at a few points. The original's curves and the settings of both are in parity.json.
Random streams cannot be matched, so one or two points of ten differ by more than two of the original's standard errors
even for identical algorithms: our curves have errors too. Further flags are trainer.py's:
`--total_steps 15000` ends earlier, `--resume` continues an earlier call.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import trainer
from control.cli.errors import show
from control.cli.parse import parse
from control.reports.curves import RETURN_LABEL, STEPS_LABEL, scale, share_limits
from control.reports.figures import COLOURS, GREY, WIDTH, figure_panels, row_lengths, set_title, write_numbers
from control.reports.figures import rows as rows_of
from control.reports.runs import Array, read_runs
from control.reports.tables import Table
from control.reports.tags import REWARD_RATE
from control.storage.run_dir import newest_run, parent
from experiments.comparison import Layout, check_options, figure_to_write, run_script
from models.settings import SettingError, nearest

FIXTURES: dict[str, Any] = json.loads(Path(__file__).with_name("parity.json").read_text(encoding="utf-8"))["fixtures"]
CLOSE = 2.0  # standard errors of the difference


@dataclass(frozen=True)
class Curve:
    """Learning curve: mean and standard error (NaN if unknown) over seeds at ``steps``, all ``[K]``."""

    steps: Array
    mean: Array
    error: Array

    def at(self, step: int) -> tuple[float, float] | None:
        """Return mean and error at a step; None if the curve lacks it."""
        indices = np.flatnonzero(self.steps == step)
        return (float(self.mean[indices[0]]), float(self.error[indices[0]])) if len(indices) else None


def original(fixture: str, agent: str) -> Curve:
    """Return the curve of the original code, for the agent in one of `FIXTURES` (an environment with settings)."""
    entry = FIXTURES[fixture]["agents"][agent]
    mean = np.array(entry["mean"], dtype=np.float64)
    steps = FIXTURES[fixture]["settings"]["steps_per_epoch"] * np.arange(1.0, len(mean) + 1)
    standard_errors = entry.get("se") or [sum(entry["typical_se"]) / 2] * len(mean)
    return Curve(steps, mean, np.array(standard_errors, dtype=np.float64))


def flags_of(fixture: str, agent: str, seed: int, extra_flags: Sequence[str] = ()) -> list[str]:
    """Return our command line for a fixture and an agent, with the original's steps. ``extra_flags`` override it."""
    entry, agent_entry = FIXTURES[fixture], FIXTURES[fixture]["agents"][agent]
    settings = {
        "implementation": agent,
        "exp_name": f"parity_{fixture}",
        "seed": seed,
        "num_seeds": entry["seeds"],
        "total_steps": len(agent_entry["mean"]) * entry["settings"]["steps_per_epoch"],
        **entry["settings"],
        **agent_entry["settings"],
    }
    flags: list[str] = []
    for name, value in settings.items():
        flags += [f"--{name}", str(value)]
    return [*flags, "--faithful_to_paper", *extra_flags]


def train(fixture: str, agent: str, seed: int, extra_flags: Sequence[str]) -> Curve:
    """Train our agents and return their curve. Raises SettingError for wrong flags, RuntimeError if the run fails."""
    argv = flags_of(fixture, agent, seed, extra_flags)
    settings = parse(argv)
    code = trainer.main(argv)
    if code:
        raise RuntimeError(f"{' '.join(argv)} ended with {code}")
    folder = newest_run(parent(settings.run))
    assert folder is not None
    return read_curve(folder, FIXTURES[fixture]["metric"])


def read_curve(folder: Path, tag: str) -> Curve:
    """Return the curve of a run folder over its seeds."""
    points = [run.points(tag, "env_steps") for run in read_runs(folder / "metrics.csv")]
    steps, values = points[0][0], np.stack([seed_values for _, seed_values in points])
    error = np.full(len(steps), np.nan)
    if len(values) > 1:
        error = values.std(0, ddof=1) / len(values) ** 0.5
    return Curve(steps, values.mean(0), error)


def compare(fixture: str, agent: str, reference_curve: Curve, project_curve: Curve) -> list[dict[str, Any]]:
    """Return a row for every point of the fixture that both curves have. ``difference`` is ours minus the original's,
    in standard errors of the difference; if ours has one seed, in standard errors of the original."""
    rows = []
    for step in FIXTURES[fixture]["points"]:
        project_point, reference_point = project_curve.at(step), reference_curve.at(step)
        if project_point is None or reference_point is None:
            continue
        project_mean, project_error = project_point
        reference_mean, reference_error = reference_point
        difference = (project_mean - reference_mean) / math.hypot(reference_error, np.nan_to_num(project_error))
        row = {
            "fixture": fixture,
            "agent": agent,
            "step": step,
            "original": reference_mean,
            "original_se": reference_error,
            "typical": "typical_se" in FIXTURES[fixture]["agents"][agent],
            "ours": project_mean,
            "ours_se": None if np.isnan(project_error) else project_error,
            "difference": difference,
            "within": abs(difference) <= CLOSE,
        }
        rows.append(row)
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as text, a block per fixture. A ~ marks a standard error that is only typical for the agent."""
    lines = []
    for fixture in dict.fromkeys(row["fixture"] for row in rows):
        entry = FIXTURES[fixture]
        digits = 3 if entry["metric"] == REWARD_RATE else 1
        title = f"{fixture}: {entry['title']}"
        cells = [[title, "step", "original", "ours", "difference / SE", f"within {CLOSE:g}"]]
        for row in rows:
            if row["fixture"] == fixture:
                tilde = "~" if row["typical"] else ""
                reference_text = f"{row['original']:.{digits}f} ({tilde}{row['original_se']:.{digits}f})"
                error_text = "one seed" if row["ours_se"] is None else f"{row['ours_se']:.{digits}f}"
                project_text = f"{row['ours']:.{digits}f} ({error_text})"
                verdict = "yes" if row["within"] else "NO"
                difference = f"{row['difference']:+.1f}"
                cells.append([row["agent"], f"{row['step']:,}", reference_text, project_text, difference, verdict])
        lines += [*Table(cells).lines(), ""]
    close = sum(row["within"] for row in rows)
    return "\n".join([*lines, f"{close} of {len(rows)} points within {CLOSE:g} standard errors"])


def draw(curves: dict[tuple[str, str], tuple[Curve, Curve]], out: Path) -> None:
    """Draw a panel for each (fixture, agent) of ``curves``, which have the original's curve and ours."""
    panel_fixtures = [fixture for fixture, _ in curves]
    fixtures = list(dict.fromkeys(panel_fixtures))
    lengths: list[int] = []
    for fixture in fixtures:
        lengths += row_lengths(panel_fixtures.count(fixture))
    note = "greedy evaluation, mean over seeds; band: one standard error"
    with figure_panels(out, rows_of(*lengths), (WIDTH, 2.1 * len(lengths)), note=note) as axes:
        for axis, ((fixture, agent), pair) in zip(axes, curves.items(), strict=True):
            for curve, colour, name in zip(pair, (GREY, COLOURS[0]), ("original", "ours"), strict=True):
                axis.plot(curve.steps, curve.mean, color=colour, linewidth=1.6, label=name)
                low, high = curve.mean - curve.error, curve.mean + curve.error
                axis.fill_between(curve.steps, low, high, color=colour, alpha=0.25, linewidth=0)
            set_title(axis, f"{agent}, {FIXTURES[fixture]['title']}", 2.1)
            is_rate = FIXTURES[fixture]["metric"] == REWARD_RATE
            axis.set(xlabel=STEPS_LABEL, ylabel="reward per step" if is_rate else RETURN_LABEL)
            scale(axis)
        for fixture in fixtures:
            share_limits([axis for axis, name in zip(axes, panel_fixtures, strict=True) if name == fixture])


def make(options: argparse.Namespace, extra_flags: Sequence[str]) -> None:
    """Train, print the table, write the files. Raises SettingError before any training if an option is wrong."""
    selected_agents = [(name, agent) for name in options.fixture for agent in _agents(name, options.agents)]
    if not selected_agents:
        line = f"agents is {' '.join(options.agents)}; none of them is in fixture {' '.join(options.fixture)}"
        raise SettingError(line)
    figure = figure_to_write("figure", options.figure) if options.figure else None
    check_options(options, Layout(("seed", "rows")))
    for fixture, agent in selected_agents:
        parse(flags_of(fixture, agent, options.seed, extra_flags))  # raises for wrong flags
    curves, rows = {}, []
    for fixture, agent in selected_agents:
        reference_curve, project_curve = original(fixture, agent), train(fixture, agent, options.seed, extra_flags)
        rows += compare(fixture, agent, reference_curve, project_curve)
        if len(reference_curve.steps) > 1:  # a curve of a single point is not drawn
            curves[fixture, agent] = (reference_curve, project_curve)
    if not rows:
        problem = "no step that is compared was evaluated"
        raise SettingError(f"{problem}; allowed: more total_steps, or another steps_per_epoch")
    print("\n" + table(rows))
    if options.json:
        write_numbers(options.json, {"seed": options.seed, "rows": rows})
    if figure and curves:
        draw(curves, figure)


def _agents(fixture: str, agent_names: Sequence[str] | None) -> list[str]:
    """Return the agents of a fixture among ``agent_names`` (None: all). Raises SettingError for an unknown name."""
    known_agents = {agent for entry in FIXTURES.values() for agent in entry["agents"]}
    for agent in agent_names or ():
        if agent not in known_agents:
            raise SettingError(
                f"agents is {agent!r}; allowed: {', '.join(sorted(known_agents))}{nearest(agent, known_agents)}"
            )
    return [agent for agent in FIXTURES[fixture]["agents"] if not agent_names or agent in agent_names]


def main(argv: Sequence[str] | None = None) -> int:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    flags.add_argument("--fixture", nargs="+", choices=list(FIXTURES), default=list(FIXTURES), help="all unless given")
    flags.add_argument("--agents", nargs="+", metavar="AGENT", help="all of the fixture unless given")
    flags.add_argument("--seed", type=int, default=0, help="first of the seeds (0)")
    flags.add_argument("--json", type=Path, help="file for the rows of the table")
    flags.add_argument("--figure", type=Path, help="file for curves, ours over the original's: .png, .pdf or .svg")
    options, extra_flags = flags.parse_known_args(argv)
    try:
        return run_script(lambda: make(options, extra_flags))
    except RuntimeError as error:
        show(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
