"""What a synthetic environment shows the agents that train on it, beside the real one, as histograms.

    python experiments/synthetic_environments/behaviour.py cartpole-mdp --out docs/images/behaviour_mdp.png

As in figure 4 of Ferreira et al. 2022. ``--dark`` names a second file, for a dark page, of the same ten agents, and
``--paid`` one for what a bandit pays for.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from control.cli.parse import parse  # noqa: E402
from control.commands.evaluate import agent_settings, proxy_or_checkpoint  # noqa: E402
from control.loops.build import check_spaces  # noqa: E402
from control.reports.style import Look  # noqa: E402
from control.reports.synthetic import behaviour, draw_behaviour, draw_rewards  # noqa: E402
from experiments.comparison import figure_to_write, run_script  # noqa: E402
from models.proxies.files import Proxy  # noqa: E402
from models.registry import agent_class, named_agents  # noqa: E402
from models.settings import SettingError  # noqa: E402


def make(name: str, agent: str, out: Path, dark: Path | None, paid: Path | None) -> None:
    """Train ten agents and draw. Raises SettingError for what is no synthetic environment."""
    figures = {"light": figure_to_write("out", out)} | ({"dark": figure_to_write("dark", dark)} if dark else {})
    proxy = proxy_or_checkpoint(name)
    if not isinstance(proxy, Proxy) or proxy.config.proxy not in ("mdp", "bandit"):
        raise SettingError(f"proxy is {name!r}, which is no synthetic environment")
    if paid and proxy.config.proxy != "bandit":
        raise SettingError(f"--paid has no effect: {name} is no bandit")
    rewards = figure_to_write("paid", paid) if paid else None
    settings = parse(["--implementation", "SE", "--gamename", proxy.game, "--agent", agent])
    for each in named_agents(settings.run.agent):
        check_spaces(settings.run, agent_class(each), proxy.spaces, each)
    settings = dataclasses.replace(settings, agent=agent_settings(proxy, agent, {}), proxy=proxy.config)
    data = behaviour(proxy, settings)
    for theme, path in figures.items():
        draw_behaviour(path, data, proxy.game, proxy.config.proxy == "bandit", Look(theme))
        print(f"Figure:  {path}")
    if rewards:
        print(f"Figure:  {draw_rewards(rewards, data, proxy, Look())}")


def main(argv: Sequence[str] | None = None) -> int:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("proxy", help="file, run folder or shipped name")
    flags.add_argument("--agent", default="DDQN", help="what trains on it")
    flags.add_argument("--out", type=Path, default=Path("behaviour.png"), help=".png, .pdf or .svg")
    flags.add_argument("--dark", type=Path, help="the same for a dark page")
    flags.add_argument("--paid", type=Path, help="what a bandit pays for, over state and action")
    given = flags.parse_args(argv)
    torch.set_num_threads(1)
    return run_script(lambda: make(given.proxy, given.agent, given.out, given.dark, given.paid))


if __name__ == "__main__":
    sys.exit(main())
