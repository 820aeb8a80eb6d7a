"""Robustness of agents to noise on the states and rewards of a synthetic environment.

    python experiments/synthetic_environments/robustness.py measure cartpole-mdp --json exp_dir/robustness.json
    python experiments/synthetic_environments/robustness.py draw docs/results/robustness.json --out robustness.png

Follows the figure of Ferreira et al. 2022. Agents train with Gaussian noise on the reward or on one component of the
observations, and are tested on the real environment. The noise is in units of the component's standard deviation during
training without noise. It affects the agents' observations, not the states of the synthetic environment.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from torch import Tensor

from control.commands.proxy_agents import agent_settings
from control.evolution.inner_loop import fresh_seeds
from control.reports.figures import COLOURS, WIDTH, write_numbers
from control.reports.states import state_names
from envs.base import Environment, Step
from experiments.comparison import Layout, check_number, check_options, numbers_in
from experiments.plotting import measure_and_draw, run_command
from experiments.proxies import WrappedLoop, Wrapper
from experiments.synthetic_environments.exam import load_synthetic
from models.proxies.files import Proxy

SCALES = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
LAYOUT = Layout(("proxy", "agents", "spread", "returns"))
NOTE = "mean and quartiles over agents; noise in standard deviations that the number itself has while agents train"


class Noisy(Wrapper):
    """Adds noise of standard deviation ``noise`` to one column of [observation, reward]."""

    def __init__(self, environment: Environment, column: int, noise: float):
        super().__init__(environment)
        self.column, self.noise = column, noise
        self.generator = torch.Generator().manual_seed(column)
        self.rows: list[Tensor] = []  # observations and rewards before noise, [N, S + 1] for each step

    def step(self, actions: Tensor, active: Tensor | None = None) -> Step:
        """Make a step of the environment, and add noise to what it returns."""
        step = self.environment.step(actions, active)
        self.rows.append(torch.cat([step.obs, step.reward.unsqueeze(-1)], -1).flatten(0, 1))
        if not self.noise:
            return step
        noise = self.noise * torch.randn(step.reward.shape, generator=self.generator)
        if self.column == step.obs.shape[-1]:
            return replace(step, reward=step.reward + noise)
        obs = step.obs.clone()
        obs[..., self.column] += noise
        return replace(step, obs=obs)


def train_with_noise(proxy: Proxy, column: int, noise: float, agents: int) -> tuple[list[float], Tensor]:
    """Train a number of ``agents`` on ``proxy`` with noise (`Noisy`). Return the mean real return of each agent (0 if
    it diverged), and the standard deviations ``[S + 1]`` of observations and reward before noise."""
    config = replace(
        proxy.config, inner_steps=proxy.config.steps_in_use, compiled=False, test_episodes=10, test_limit=200
    )
    agent = agent_settings(proxy, "DDQN", {"vary_hp": False})
    loop = WrappedLoop(lambda environment: Noisy(environment, column, noise), config, "DDQN", agent, proxy.game)
    scores = loop.run(proxy.parameters.expand(agents, -1), fresh_seeds(0, "robustness", agents)).scores
    rows = torch.cat([row for wrapper in loop.wrappers for row in wrapper.rows])
    return [round(float(score), 2) for score in scores.nan_to_num(0.0)], rows.std(0)


def measure(flags: argparse.Namespace) -> None:
    """Train the agents that the file lacks. Raises SettingError or ProxyError if the proxy does not fit."""
    check_options(flags, LAYOUT, agents=1)
    check_number("scales", flags.scales, above=0)
    torch.set_num_threads(1)
    proxy = load_synthetic(flags.proxy, ["DDQN"])
    results = numbers_in("json", flags.json, LAYOUT, new=True)
    if not results:
        scores, spread = train_with_noise(proxy, 0, 0.0, flags.agents)
        results = {
            "proxy": flags.proxy,
            "game": proxy.game,
            "agents": flags.agents,
            "spread": [round(float(value), 5) for value in spread],
            "without": scores,
            "returns": {},
        }
        write_numbers(flags.json, results)
    for column, spread in enumerate(results["spread"]):
        column_scores = results["returns"].setdefault(str(column), {})
        for scale in flags.scales:
            if f"{scale:g}" not in column_scores:
                scores, _ = train_with_noise(proxy, column, scale * spread, results["agents"])
                column_scores[f"{scale:g}"] = scores
                write_numbers(flags.json, results)
                print(f"column {column}, noise {scale:g}: {np.mean(scores):.1f}", flush=True)


def fill(axes: list[Any], numbers: dict[str, Any]) -> None:
    """Draw a line for each noisy component."""
    (axis,) = axes
    names = [*state_names(numbers["game"], len(numbers["spread"]) - 1), "reward"]
    for column, colour in zip(numbers["returns"], COLOURS, strict=False):
        scales = sorted(numbers["returns"][column], key=float)
        scores = np.array([numbers["returns"][column][scale] for scale in scales])
        x, (low, high) = list(map(float, scales)), np.quantile(scores, [0.25, 0.75], 1)
        axis.plot(x, scores.mean(1), "o-", color=colour, markersize=3, label=names[int(column)])
        axis.fill_between(x, low, high, color=colour, alpha=0.1, linewidth=0)
    axis.axhline(np.mean(numbers["without"]), color=COLOURS[6], linewidth=0.8, linestyle=":", label="without noise")
    axis.set(
        xscale="log",
        xlabel="standard deviation of the noise, relative",
        ylabel="real return (of 200)",
        title=f"{numbers['proxy']}: {numbers['agents']} DDQN agents each",
    )


def main(argv: Sequence[str] | None = None) -> int:
    flags, measuring, _ = measure_and_draw(__doc__)
    measuring.add_argument("proxy", help="file, run folder or shipped name of a synthetic environment")
    measuring.add_argument("--agents", type=int, default=32)
    measuring.add_argument("--scales", nargs="+", type=float, default=list(SCALES), help="standard deviations")
    return run_command(flags.parse_args(argv), measure, LAYOUT, fill, ([[0]], (WIDTH, 2.6)), NOTE)


if __name__ == "__main__":
    sys.exit(main())
