"""Map of the cells that agents visit on Cliff while they learn, on a learned reward and on the task's reward.

    python experiments/reward_networks/visits.py measure --json exp_dir/visits.json
    python experiments/reward_networks/visits.py draw docs/results/visits.json --out visits.png

Follows the heat map of Ferreira et al. 2022: SARSA agents, share of all steps that enter each cell.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from torch import Tensor

from control.cli.parse import parse
from control.evolution.inner_loop import fresh_seeds
from control.reports.figures import WIDTH, write_numbers
from envs.base import Environment, Step
from experiments.comparison import Layout, check_options
from experiments.plotting import measure_and_draw, run_command
from experiments.proxies import WrappedLoop, Wrapper
from models.proxies import files

FLAGS = "--implementation RN --gamename cliff --agent SARSA --lr 0.5 --no_compiled --inner_rule budget --no_vary_hp"
COLUMNS = 12
LAYOUT = Layout(("share", "return"), 1)
NOTE = "share of the steps of all agents that enter a cell; falls end an episode"


class Counter(Wrapper):
    """Counts the steps that enter each cell: ``counts [S]``."""

    def __init__(self, environment: Environment):
        super().__init__(environment)
        self.counts = torch.zeros(environment.spaces.obs_shape[0], dtype=torch.float64)

    def step(self, actions: Tensor, active: Tensor | None = None) -> Step:
        """Make a step of the environment, and count the cells that the members enter."""
        step = self.environment.step(actions, active)
        self.counts += step.obs.sum((0, 1))  # observations are one-hot
        return step


def measure(flags: argparse.Namespace) -> None:
    """Train SARSA agents on both rewards, and write the share of steps that enter each cell."""
    check_options(flags, LAYOUT, agents=1, steps=1)
    proxy = files.load("cliff-additive-potential")
    torch.set_num_threads(1)
    settings = parse(FLAGS.split())
    results = {}
    for name in ("learned", "native"):
        config = dataclasses.replace(settings.proxy if name == "native" else proxy.config, compiled=False)
        loop = WrappedLoop(Counter, config, "SARSA", settings.agent, "cliff")
        rewards = None if name == "native" else proxy.parameters.expand(flags.agents, -1)
        changes: dict[str, Any] = {"test_every": None, "inner_rule": "budget", "test_episodes": 1}
        outcome = loop.run(rewards, fresh_seeds(0, "visits", flags.agents), inner_steps=flags.steps, **changes)
        counts = torch.stack([counter.counts for counter in loop.wrappers]).sum(0)
        share = counts / counts.sum()
        results[name] = {
            "share": [float(f"{value:.4g}") for value in share],
            "return": float(outcome.scores.mean()),
            "agents": flags.agents,
            "steps": flags.steps,
            "agent": "SARSA",
        }
        print(f"{name}: mean return {results[name]['return']:.1f} after {flags.steps:,} steps", flush=True)
    write_numbers(flags.json, results)


def fill(axes: list[Any], numbers: dict[str, Any]) -> None:
    """Draw a map for each reward, with a common logarithmic colour scale."""
    from matplotlib.colors import LogNorm

    scale = LogNorm(1e-4, 0.3)
    for axis, (name, row) in zip(axes, numbers.items(), strict=True):
        share = np.array(row["share"]).reshape(-1, COLUMNS)
        image = axis.imshow(np.maximum(share, 1e-4), norm=scale, cmap="viridis", aspect="equal")
        reward = {"learned": "learned additive potential", "native": "the task's reward"}[name]
        axis.set(title=f"{reward}: {row['agents']} {row['agent']} agents, {row['steps']:,} steps", xticks=[], yticks=[])
        axis.grid(False)
        axis.text(0, 3, "S", ha="center", va="center", color="white")
        axis.text(COLUMNS - 1, 3, "G", ha="center", va="center", color="white")
        axis.figure.colorbar(image, ax=axis, label="share of steps", shrink=0.7)


def main(argv: Sequence[str] | None = None) -> int:
    flags, measuring, _ = measure_and_draw(__doc__)
    measuring.add_argument("--agents", type=int, default=100)
    measuring.add_argument("--steps", type=int, default=1000)
    return run_command(flags.parse_args(argv), measure, LAYOUT, fill, ([[0], [1]], (WIDTH, 3.6)), NOTE)


if __name__ == "__main__":
    sys.exit(main())
