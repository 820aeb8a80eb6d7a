"""CPU time of a training step in this project, rejax, SBX and stable-baselines3.

    python experiments/speed.py docs/results/against_jax.json --out exp_dir/against_jax.png

The numbers come from benchmarks/against_jax.py.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from control.reports.figures import COLOURS, WIDTH, figure_panels, set_row_labels
from experiments.comparison import Layout, add_look, figure_to_write, numbers_in, run_script, script_flags, style_of

LIBRARIES = {"ours": "this project", "rejax": "rejax (JAX)", "sbx": "SBX (JAX)", "sb3": "stable-baselines3"}
CASES = {
    "ppo_64": "PPO, CartPole",
    "a2c_64": "A2C, CartPole",
    "ddqn_64": "DDQN, CartPole",
    "td3_64": "TD3, Pendulum",
    "sac_64": "SAC, Pendulum",
    "td3_256": "TD3, Pendulum, 256-256",
    "sac_256": "SAC, Pendulum, 256-256",
}


def make(options: argparse.Namespace) -> None:
    """Write the figure: a row for each case with one member, a dot for the median of each library."""
    steps = numbers_in("numbers", options.numbers, Layout(("steps", "first_result")), script="against_jax.py")["steps"]
    note = "median and range over six rounds, one agent, one core, with its updates; 64-64 units unless stated"
    with figure_panels(
        figure_to_write("out", options.out), [[0]], (WIDTH, 2.9), style_of(options), options.numbers, note=note
    ) as (axis,):
        for colour, (library, name) in zip(COLOURS, LIBRARIES.items(), strict=False):
            for row, case in enumerate(CASES):
                values = steps[f"{case}/1"]["microseconds"].get(library, [])
                if values:
                    axis.plot([min(values), max(values)], [row, row], color=colour, linewidth=2)
                    axis.plot(statistics.median(values), row, "o", color=colour, markersize=5)
            axis.plot([], [], "o", color=colour, label=name)
        set_row_labels(axis, [*CASES.values()])
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:,.0f}")
        axis.set_xlabel("CPU microseconds of a step (log scale)")


def main(argv: Sequence[str] | None = None) -> int:
    flags = script_flags(__doc__)
    flags.add_argument("numbers", type=Path, help="JSON of benchmarks/against_jax.py")
    flags.add_argument("--out", type=Path, default=Path("exp_dir/against_jax.png"), help=".png, .pdf or .svg")
    add_look(flags)
    options = flags.parse_args(argv)
    return run_script(lambda: make(options))


if __name__ == "__main__":
    sys.exit(main())
