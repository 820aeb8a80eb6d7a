"""Figure of commanded and obtained returns of several runs, from the files that `--obedience` writes.

    python experiments/command_conditioned/obedience.py measure NAME=FILE ... --json exp_dir/obedience.json
    python experiments/command_conditioned/obedience.py draw docs/results/obedience.json --out exp_dir/obedience.png

FILE is the best_obedience.json of a run. The figure has a panel for each of the first six NAMEs, with greedy actions.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from control.reports.figures import WIDTH, write_numbers
from control.reports.obedience import NOTE, draw_returns
from experiments.comparison import Layout
from experiments.plotting import measure_and_draw, run_command

LAYOUT = Layout(("epoch", "results"), 1)


def measure(flags: argparse.Namespace) -> None:
    """Collect the results with greedy actions."""
    rows = {}
    for entry in flags.files:
        name, _, file = entry.partition("=")
        sweep = json.loads(Path(file).read_text(encoding="utf-8"))
        rows[name] = {"epoch": sweep["epoch"], "results": sweep["modes"]["greedy"]}
    write_numbers(flags.json, rows)


def fill(axes: list[Any], numbers: dict[str, Any]) -> None:
    """Draw a panel for each run."""
    for axis, (name, row) in zip(axes, numbers.items(), strict=False):
        draw_returns(axis, row["results"])
        axis.set(title=name, xlabel="commanded return")
    for axis in axes[::3]:
        axis.set_ylabel("obtained return")


def main(argv: Sequence[str] | None = None) -> int:
    flags, measuring, _ = measure_and_draw(__doc__)
    measuring.add_argument("files", nargs="+", metavar="NAME=FILE")
    panels = ([[0, 1, 2], [3, 4, 5]], (WIDTH, 5.2))
    return run_command(flags.parse_args(argv), measure, LAYOUT, fill, panels, NOTE)


if __name__ == "__main__":
    raise SystemExit(main())
