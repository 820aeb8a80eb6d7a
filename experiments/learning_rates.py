"""Test at which learning rates fresh agents learn on learned environments and rewards.

    python experiments/learning_rates.py cartpole-bandit cartpole-additive-potential --json exp_dir/rates.json

For each rate, agents of the kind that the search used train for the file's number of steps. Tests are on the real
environment with its reward. For a learned reward, a second group of agents trains on the real reward. ``--write``
stores the table in the file's scores.
"""

import argparse
import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from control.commands.proxy_agents import agent_settings
from control.reports.figures import write_numbers
from control.reports.search import describe
from experiments.comparison import Layout, check_number, check_options, run_script, script_flags
from experiments.proxies import load_proxy, train_and_test
from models.proxies import files
from models.proxies.files import Proxy
from models.registry import default_config
from models.settings import SettingError
from models.streams import derive_seed
from understudy.kinds import KINDS

RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
LAYOUT = Layout(("learning_rate", "mean", "worst"), 2)  # proxy -> "rate" or "rate, real reward" -> its numbers


def agent_of(proxy: Proxy) -> str:
    """Return the first kind of agent that the search trained. Raises SettingError if it has no setting ``lr``."""
    name = str(proxy.description.get("settings", {}).get("agent", "DDQN")).partition(",")[0]
    if not hasattr(default_config(name, proxy.game), "lr"):
        raise SettingError(f"proxies is {str(proxy.path)!r}, whose {name} has no lr; allowed: agents with networks")
    return name


def measure(proxy: Proxy, rate: float, agents: int, seed: int, real: bool) -> dict[str, Any]:
    """Train a number of ``agents`` at one learning rate on ``proxy`` or, if ``real``, on the real environment. Test
    them on the real one, and return their scores as plain data."""
    name = agent_of(proxy)
    agent = dataclasses.replace(agent_settings(proxy, name, {}), lr=rate, vary_hp=False)
    seeds = [derive_seed(seed, f"learning rates, agent {i}") for i in range(agents)]
    row = describe(train_and_test(proxy, name, agent, seeds, real), proxy.config)
    return {"agent": name, "learning_rate": rate, "steps": proxy.config.steps_in_use} | {
        key: row[key] for key in ("agents", "mean", "median", "worst", "iqm", "solved")
    }


def make(flags: argparse.Namespace) -> None:
    """Measure all proxies and rates, print a line for each, and write the numbers."""
    check_options(flags, LAYOUT, agents=1)
    check_number("rates", flags.rates, above=0)
    proxies = {name: load_proxy(name, "environments and rewards") for name in flags.proxies}
    for proxy in proxies.values():
        agent_of(proxy)
    torch.set_num_threads(1)
    results: dict[str, dict[str, Any]] = {}
    for name, proxy in proxies.items():
        rows = results[name] = {}
        is_reward = bool(KINDS[proxy.config.proxy].used_by)
        for real in (False, True) if is_reward else (False,):
            ending = ", real reward" if real else ""
            for rate in flags.rates:
                row = measure(proxy, rate, flags.agents, flags.seed, real)
                rows[f"{rate:g}{ending}"] = row
                scores_text = f"mean {row['mean']:.1f}, worst {row['worst']:.1f}"
                print(f"{name}{ending}: {row['agent']} at {rate:g}: {scores_text}", flush=True)
        if flags.write:
            scores = proxy.description.get("scores", {}) | {"learning_rates": list(rows.values())}
            description = proxy.description | {"scores": scores}
            parts: dict[str, Any] = {"config": proxy.config, "spaces": proxy.spaces, "game": proxy.game}
            files.save(proxy.path, proxy.parameters, **parts, description=description)
    if flags.json:
        write_numbers(flags.json, results)


def main(argv: Sequence[str] | None = None) -> int:
    parser = script_flags(__doc__)
    parser.add_argument("proxies", nargs="+", help="files, run folders or shipped names")
    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES), help="learning rates")
    parser.add_argument("--agents", type=int, default=32, help="agents at each rate")
    parser.add_argument("--seed", type=int, default=3000)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--write", action="store_true", help="keep the table in the scores of each file")
    flags = parser.parse_args(argv)
    return run_script(lambda: make(flags))


if __name__ == "__main__":
    sys.exit(main())
