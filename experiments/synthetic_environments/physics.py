"""Test fresh agents under physics that they did not train for. They train on synthetic environments, on the real
CartPole, or on a CartPole with new gravity, masses and length in each episode (domain randomisation).

    python experiments/synthetic_environments/physics.py --proxies fixed=cartpole-bandit varied=RUN --json physics.json
    python experiments/synthetic_environments/physics.py --numbers docs/results/physics.json --out physics.png

On synthetic environments DDQN trains with the settings and steps of the first of them; on the real ones with the
settings of DDQN, for the same number of steps and for ``--real_steps``. A test multiplies one property of
CartPole by a factor, or all of them by random factors per episode.
"""

import argparse
import copy
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from control.commands.proxy_agents import agent_settings
from control.evolution.inner_loop import InnerLoop, fresh_seeds
from control.loops.rollout import Episodes
from control.reports.curves import Level, draw_levels
from control.reports.figures import COLOURS, WIDTH, figure_files, figure_panels, write_numbers
from control.reports.search import describe, iqm_text
from envs.names import CartPoleParameters
from experiments.comparison import (
    Layout,
    add_look,
    check_number,
    check_options,
    figure_to_write,
    numbers_in,
    run_script,
    script_flags,
    style_of,
)
from experiments.proxies import settings_on_task
from experiments.synthetic_environments.exam import load_synthetic
from models.contract import Policy
from models.settings import SettingError

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
PROPERTIES = ("half_length", "pole_mass", "cart_mass", "gravity")
SPREADS = (2.0, 3.0, 5.0)
SHOWN = ("mean", "worst", "iqm", "iqm_low", "iqm_high", "solved")
MIDDLE = dataclasses.asdict(CartPoleParameters())
BOUNDS = CartPoleParameters.__dataclass_fields__["physics_spread"].metadata
LAYOUT = Layout(("agents", "episodes", "spread", "regimes"))


def variants() -> dict[str, str]:
    """Return the tests: name -> environment, such as ``{"gravity x 2": "cartpole,gravity=19.6"}``."""
    tests = {"as it is": "cartpole"}
    for name in PROPERTIES:
        for factor in FACTORS:
            if factor != 1:
                tests[f"{name} x {factor:g}"] = f"cartpole,{name}={MIDDLE[name] * factor}"
    for spread in SPREADS:
        tests[f"all within x {spread:g}"] = f"cartpole,physics_spread={spread}"
    return tests


class VariantLoop(InnerLoop):
    """Trains like `InnerLoop`, and tests agents in all `variants`, one after another."""

    def test(self, policy: Policy, seeds: Sequence[int]) -> Episodes:
        episodes = []
        for game in variants().values():
            variant_loop = copy.copy(self)
            variant_loop.game = game
            episodes.append(InnerLoop.test(variant_loop, policy, seeds))
        return Episodes.concatenate(episodes)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Train agents in all regimes (on each synthetic environment, and on the real one with fixed and with random
    physics), and test them. Return regime -> variant -> numbers of `describe`, and the options."""
    proxies: dict[str, Any] = {}
    for assignment in options.proxies:
        name, equals, path = assignment.partition("=")
        if not equals:
            raise SettingError(f"proxies is {assignment!r}; allowed: NAME=FILE")
        proxies[name] = load_synthetic(path, ["DDQN"])
        if proxies[name].game.partition(",")[0] != "cartpole":
            raise SettingError(f"proxies is {assignment!r}; allowed: synthetic environments of cartpole")
    first = next(iter(proxies.values()))
    config = dataclasses.replace(first.config, test_episodes=options.episodes, test_limit=None)
    synthetic_settings = agent_settings(first, "DDQN", {"vary_hp": True})
    real_settings = dataclasses.replace(settings_on_task("DDQN", "cartpole"), vary_hp=True)
    seeds, steps = fresh_seeds(options.seed, "physics", options.agents), config.steps_in_use
    # Name of a regime -> environment, parameters of the synthetic one (None: real), and training steps.
    regimes = {name: ("cartpole", proxy.parameters, steps) for name, proxy in proxies.items()}
    for budget in dict.fromkeys((steps, options.real_steps)):
        regimes[f"real, {budget:,} steps"] = ("cartpole", None, budget)
        random_physics = f"cartpole,physics_spread={options.spread:g}"
        regimes[f"real with drawn physics, {budget:,} steps"] = (random_physics, None, budget)
    results: dict[str, Any] = {}
    for regime, (game, parameters, budget) in regimes.items():
        started = time.process_time()
        loop = VariantLoop(config, "DDQN", real_settings if parameters is None else synthetic_settings, game)
        copies = None if parameters is None else parameters.expand(len(seeds), -1)  # one for each agent
        outcome = loop.run(copies, seeds, inner_steps=budget, inner_rule="budget")
        returns_of_variants = outcome.returns.split(options.episodes, 1)
        print(f"{regime} ({time.process_time() - started:.0f} CPU-s)", flush=True)
        results[regime] = {}
        for name, returns in zip(variants(), returns_of_variants, strict=True):
            summary = describe(dataclasses.replace(outcome, returns=returns), config)
            row = {key: None if summary[key] is None else round(summary[key], 3) for key in SHOWN}
            results[regime][name] = row
            print(f"  {name:<20} {row['mean']:6.1f}  IQM {iqm_text(row)}", flush=True)
    return {"agents": options.agents, "episodes": options.episodes, "spread": options.spread, "regimes": results}


def draw(numbers: dict[str, Any], options: argparse.Namespace) -> None:
    """Draw a panel for each property: return over its factor, a line for each regime."""
    note = f"{numbers['agents']} fresh agents (DDQN, drawn hyperparameters), {numbers['episodes']} greedy episodes each"
    note += "; lines: interquartile mean, bands: its 95 % bootstrap interval"
    note += f"; sampled physics: factors up to {numbers['spread']:g}"
    style = style_of(options)
    with figure_panels(options.out, [[0, 1], [2, 3]], (WIDTH, 4.2), style, options.numbers, note=note) as axes:
        for axis, name in zip(axes, PROPERTIES, strict=True):
            for colour, (regime, rows) in zip(COLOURS, numbers["regimes"].items(), strict=False):
                factor_rows = [rows["as it is" if factor == 1 else f"{name} x {factor:g}"] for factor in FACTORS]
                label = regime.replace("drawn physics", "sampled physics")
                means = [row["iqm"] for row in factor_rows]
                axis.plot(FACTORS, means, color=colour, marker="o", markersize=3, label=label)
                low, high = [row["iqm_low"] for row in factor_rows], [row["iqm_high"] for row in factor_rows]
                if None not in [*low, *high]:
                    axis.fill_between(FACTORS, low, high, color=colour, alpha=0.15, linewidth=0)
            axis.set_xscale("log", base=2)
            axis.set_ylim(0, 520)
            axis.set_xticks(FACTORS, [f"{factor:g}" for factor in FACTORS])
            draw_levels(axis, [Level(475.0, "solved")])
            axis.set(xlabel=f"{name.replace('_', ' ')}, times that of CartPole", ylabel="return (of 500)")
    print("\n".join(map(str, figure_files(options.out, style))))


def main(argv: Sequence[str] | None = None) -> int:
    flags = script_flags(__doc__)
    flags.add_argument("--proxies", nargs="+", default=["fixed=cartpole-bandit"], metavar="NAME=FILE")
    flags.add_argument("--numbers", type=Path, help="draw a JSON of earlier results")
    flags.add_argument("--json", type=Path, help="write the numbers here")
    flags.add_argument("--out", type=Path, help="write a figure here")
    flags.add_argument("--agents", type=int, default=32)
    flags.add_argument("--episodes", type=int, default=10)
    flags.add_argument("--real_steps", type=int, default=50_000)
    flags.add_argument("--spread", type=float, default=3.0, help="largest factor of physics drawn in training")
    flags.add_argument("--seed", type=int, default=1000)
    add_look(flags)
    options = flags.parse_args(argv)

    def run() -> None:
        check_options(options, LAYOUT, agents=1, episodes=1, real_steps=1)
        check_number("spread", options.spread, **BOUNDS)
        options.out = options.out and figure_to_write("out", options.out)
        style_of(options)  # raise for a wrong format before measuring
        torch.set_num_threads(1)
        numbers = numbers_in("numbers", options.numbers, LAYOUT) if options.numbers else measure(options)
        if options.json:
            write_numbers(options.json, numbers)
        if options.out:
            draw(numbers, options)

    return run_script(run)


if __name__ == "__main__":
    sys.exit(main())
