"""What a return and a rank command in three states of LunarLander: the quantiles that a run with ranks predicts there.

    python experiments/command_conditioned/quantiles.py measure RUN --json exp_dir/quantiles.json
    python experiments/command_conditioned/quantiles.py draw docs/results/quantiles.json --out exp_dir/quantiles.png

RUN is a folder or a checkpoint of `--preset ranks` on lunarlander. The quantiles are means over its members.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

import trainer
from control.reports.figures import COLOURS, WIDTH, write_numbers
from experiments.comparison import Layout, check_options
from experiments.plotting import measure_and_draw, run_command
from models.settings import SettingError

LAYOUT = Layout(("observation", "levels", "quantiles"), 1)
NOTE = "discounted return-to-go; a rank is a position on the x axis, a return one on the y axis"
RETURN, RANK = 60.0, 0.9  # the two commands
# Position, velocity, angle, angular velocity, and contact of both legs.
STATES = {
    "stands between the flags": (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0),
    "hovers above the pad": (0.0, 0.3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    "falls, turned": (0.3, 0.8, 0.0, -1.0, 0.5, 0.3, 0.0, 0.0),
}


@torch.no_grad()
def measure(flags: argparse.Namespace) -> None:
    """Predict the quantiles in each state. Raises SettingError for a run without ranks or of another environment."""
    check_options(flags, LAYOUT)
    agent: Any = trainer.load(flags.run).module.loop.agents[0]
    if not getattr(agent.config, "desire_rank", False) or agent.spaces.obs_shape != (8,):
        raise SettingError(f"run is {flags.run!r}; allowed: one of --preset ranks on lunarlander", "run")
    obs = torch.tensor(list(STATES.values())).expand(agent.members, -1, -1)
    quantiles = (agent._quantiles(obs) * agent._value_scale()[:, None, None]).mean(0)  # [state, Q]
    levels = [round(level, 3) for level in agent.levels.tolist()]
    results = {}
    for (name, observation), values in zip(STATES.items(), quantiles.tolist(), strict=True):
        rounded = [round(value, 1) for value in values]
        results[name] = {"observation": observation, "levels": levels, "quantiles": rounded}
        print(f"{name:<26}{'  '.join(f'{value:7.1f}' for value in rounded)}")
    write_numbers(flags.json, results)


def fill(axes: list[Any], numbers: dict[str, Any]) -> None:
    """Draw the quantile function of each state, and both commands as lines."""
    (axis,) = axes
    for colour, (name, row) in zip(COLOURS, numbers.items(), strict=False):
        axis.plot(row["levels"], row["quantiles"], "o-", markersize=3, color=colour, label=name)
    axis.axhline(RETURN, linestyle=":", color="grey", label=f"the command return {RETURN:g}")
    axis.axvline(RANK, linestyle="--", color="grey", label=f"the command rank {RANK:g}")
    axis.set(xlabel="rank among what came from this state", ylabel="return")


def main(argv: Sequence[str] | None = None) -> int:
    flags, measuring, _ = measure_and_draw(__doc__)
    measuring.add_argument("run", help="folder or checkpoint of a run")
    return run_command(flags.parse_args(argv), measure, LAYOUT, fill, ([[0]], (WIDTH, 2.8)), NOTE)


if __name__ == "__main__":
    sys.exit(main())
