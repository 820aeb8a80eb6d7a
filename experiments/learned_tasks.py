"""How far new agents come that train only on what --learn makes of a task.

python experiments/learned_tasks.py docs/results/learned.json --out docs/results/learned.png
"""

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from control.reports.figures import COLOURS, GREY, set_row_labels
from experiments.comparison import Layout, run_script, script_flags
from experiments.plotting import draw_pages

SIZE = (3.5, 2.9)  # inches; readable on a telephone
NOTE = (
    "a dot: mean of the new agents of an algorithm, over three seeds; random play is 0 %; the last six tasks are in "
    "experiments/tasks"
)
AGENTS = {"DDQN": "DDQN", "PPO": "PPO", "A2C": "A2C", "QLearning": "Q-learning", "TD3": "TD3", "SAC": "SAC"}
DISTANCE = 0.25  # between the dots of a row


def short_name(task: str) -> str:
    """Return the name of a task in the figure: without module and version if it has a module, such as ``Battery``."""
    module, _, name = task.rpartition(":")
    return name.rpartition("-v")[0] if module else name


def fill(axes: list[Any], numbers: dict[str, Any]) -> None:
    """Draw a row for each task and a dot for each algorithm: the mean over seeds."""
    (axis,) = axes
    # Task -> agent -> way from random play to the teacher in percent, of each seed.
    percent: dict[str, dict[str, list[float]]] = {}
    for exam in numbers["exams"]:
        for agent, (mean, _) in exam["agents"].items():
            way = (mean - exam["random"]) / (exam["teacher"] - exam["random"])
            percent.setdefault(exam["task"], {}).setdefault(agent, []).append(100 * way)
    lowest = 100.0
    for (agent, label), colour in zip(AGENTS.items(), COLOURS, strict=False):
        means, heights = [], []
        for row, agents in enumerate(percent.values()):
            if agent in agents:
                means.append(statistics.mean(agents[agent]))
                heights.append(row + DISTANCE * (list(agents).index(agent) - 1))
        axis.plot(means, heights, "o", color=colour, markersize=3, label=label)
        lowest = min([lowest, *means])
    axis.axvline(100, color=GREY, linewidth=1, linestyle="--", zorder=0)
    set_row_labels(axis, [short_name(task) for task in percent])
    axis.tick_params(axis="y", labelsize=8)
    axis.set_xlim(10 * math.floor(lowest / 10 - 0.5), 104.5)  # the axis begins near the lowest mean
    axis.xaxis.set_major_formatter(lambda value, _: "teacher" if value == 100 else f"{value:g} %")


def make(options: argparse.Namespace) -> None:
    """Write the figure for light and dark pages."""
    draw_pages(options.numbers, Layout(("exams",)), options.out, fill, ([[0]], SIZE), NOTE)


def main(argv: Sequence[str] | None = None) -> int:
    flags = script_flags(__doc__)
    flags.add_argument("numbers", type=Path, help="JSON with the exams of --learn")
    flags.add_argument("--out", type=Path, required=True, help=".png, .pdf or .svg; the dark page's ends in _dark")
    options = flags.parse_args(argv)
    return run_script(lambda: make(options))


if __name__ == "__main__":
    sys.exit(main())
