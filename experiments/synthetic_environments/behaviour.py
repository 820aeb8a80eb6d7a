"""Histograms of states and rewards: agents in training on a synthetic environment, beside the real one.

    python experiments/synthetic_environments/behaviour.py cartpole-mdp --out docs/images/behaviour_mdp.png

    python experiments/synthetic_environments/behaviour.py cartpole-mdp --numbers docs/results/behaviour.json

Figures 4 (CartPole) and 8 (Acrobot) of Ferreira et al. 2022. ``--dark`` writes a second file for a dark page,
``--narrow`` files ending in ``_narrow`` for telephones, and ``--paid`` a figure of a bandit's reward over states and
actions. ``--json`` adds the histograms to a file, and ``--numbers`` draws them again from this file.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from control.cli.parse import parse
from control.commands.proxy_agents import agent_settings
from control.loops.build import check_spaces
from control.reports.figures import FigureStyle, write_numbers
from control.reports.synthetic import behaviour, draw_histograms, draw_rewards, histograms
from experiments.comparison import Layout, check_options, figure_to_write, numbers_in, run_script, script_flags
from experiments.synthetic_environments.exam import load_synthetic
from models.registry import agent_class, parse_agents
from models.settings import SettingError

LAYOUT = Layout(("game", "kind", "panels"), 1)


def draw(panels: list[dict[str, Any]], figures: dict[str, Path], narrow: bool, numbers: Path | None) -> None:
    """Write the figure for each page, with ``narrow`` also for telephones. ``figures``: theme -> file."""
    for theme, path in figures.items():
        draw_histograms(path, panels, FigureStyle(theme, narrow=narrow), numbers)
        print(f"Figure:  {path}")


def figures_of(flags: argparse.Namespace) -> dict[str, Path]:
    """Return the figures to write, theme -> file."""
    figures = {"light": figure_to_write("out", flags.out)}
    if flags.dark:
        figures["dark"] = figure_to_write("dark", flags.dark)
    return figures


def make(flags: argparse.Namespace) -> None:
    """Train ten agents and draw, or draw the ``numbers`` of an earlier call again. Raises SettingError if the proxy is
    no synthetic environment, or if the file lacks it."""
    name, agent = flags.proxy, flags.agent
    if flags.numbers:
        numbers = numbers_in("numbers", flags.numbers, LAYOUT)
        if name not in numbers:
            raise SettingError(f"proxy is {name!r}; allowed with '{flags.numbers}': {', '.join(numbers)}", "proxy")
        return draw(numbers[name]["panels"], figures_of(flags), flags.narrow, flags.numbers)
    check_options(flags, LAYOUT)
    figures = figures_of(flags)
    proxy = load_synthetic(name)
    if flags.paid and proxy.config.proxy != "bandit":
        raise SettingError(f"--paid has no effect: {name} is no bandit")
    reward_figures = {}  # theme -> file
    if flags.paid:
        reward_figures["light"] = figure_to_write("paid", flags.paid)
        reward_figures["dark"] = figure_to_write("paid", flags.paid.with_stem(f"{flags.paid.stem}_dark"))
    settings = parse(["--implementation", "SE", "--gamename", proxy.game, "--agent", agent])
    for agent_name in parse_agents(settings.run.agent):
        check_spaces(settings.run, agent_class(agent_name), proxy.spaces, agent_name)
    settings = dataclasses.replace(settings, agent=agent_settings(proxy, agent, {}), proxy=proxy.config)
    samples = behaviour(proxy, settings)
    panels = histograms(samples, proxy.game, proxy.config.proxy == "bandit")
    draw(panels, figures, flags.narrow, None)
    if flags.json:
        results = numbers_in("json", flags.json, LAYOUT, new=True)
        results[name] = {"game": proxy.game, "kind": proxy.config.proxy, "panels": panels}
        write_numbers(flags.json, results)
    for theme, path in reward_figures.items():
        print(f"Figure:  {draw_rewards(path, samples, proxy, FigureStyle(theme))}")


def main(argv: Sequence[str] | None = None) -> int:
    flags = script_flags(__doc__)
    flags.add_argument("proxy", help="file, run folder or shipped name")
    flags.add_argument("--agent", default="DDQN", help="what trains on it")
    flags.add_argument("--out", type=Path, default=Path("behaviour.png"), help=".png, .pdf or .svg")
    flags.add_argument("--dark", type=Path, help="the same for a dark page")
    flags.add_argument("--narrow", action="store_true", help="also write NAME_narrow, for telephones")
    flags.add_argument(
        "--paid", type=Path, help="what a bandit pays for, over state and action; the dark page's ends in _dark"
    )
    flags.add_argument("--json", type=Path, help="add the histograms to this file")
    flags.add_argument("--numbers", type=Path, help="draw the histograms of this file; nobody trains")
    values = flags.parse_args(argv)
    torch.set_num_threads(1)
    return run_script(lambda: make(values))


if __name__ == "__main__":
    sys.exit(main())
