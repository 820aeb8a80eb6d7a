"""Test synthetic environments: fresh agents of several kinds train on each and are tested on the real one.

    python experiments/synthetic_environments/exam.py PROXY... --json results.json
    python experiments/synthetic_environments/exam.py cartpole-bandit --real --exams DDQN PPO TD3Discrete --agents 32

``--exams supervised`` is for bandits of pairs (`--pairs`): policies with different initial weights train on the pairs
by supervised learning.

Every agent trains for the number of steps that the synthetic environment is meant for (`deploy_steps`). With
``--real``, other agents with default settings train on the real environment for the same number of steps. CartPole's
returns under the limit of 200 steps are the returns under 500, clipped at 200, because its reward is 1 per step.
"""

import argparse
import dataclasses
import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from control.commands.proxy_agents import agent_settings
from control.evolution.inner_loop import InnerLoop
from control.reports.figures import write_numbers
from control.reports.search import describe, iqm_text
from envs.synthetic import ProxyFactory
from experiments.comparison import Layout, check_options, run_script, script_flags
from experiments.proxies import load_proxy, settings_on_task, train_and_test
from models.proxies.files import Proxy
from models.registry import agent_class
from models.settings import SettingError
from models.streams import Streams, derive_seed
from understudy.kinds import KINDS

WIDE = {"hidden_sizes": (128, 128), "batch_size": 128}  # the published ranges: 42 to 384, 1 to 3 layers
# Name of an exam -> implementation of the agents, their number, and changes to their settings.
EXAMS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "DDQN, drawn": ("DDQN", 64, {"vary_hp": True}),
    "DuelingDDQN, drawn": ("DuelingDDQN", 32, {"vary_hp": True, "feature_dim": 64}),
    "DDQN, drawn from the published ranges": ("DDQN", 40, {"vary_hp": True} | WIDE),
    **{
        name: (name, 32, {"vary_hp": True, "vary": ("lr",)})
        for name in ("DDQN", "DuelingDDQN", "PPO", "A2C", "TD3Discrete", "TD3", "DDPG", "SAC")
    },
}
USUAL = list(EXAMS)[:3]
SUPERVISED = "supervised"
EXAMS[SUPERVISED] = ("DDQN", 32, {})  # a placeholder: no agent plays
LAYOUT = Layout(("agents", "iqm", "worst", "cpu_seconds"), 2)  # synthetic environment -> exam -> its numbers


def load_synthetic(path: str, exams: Sequence[str] = ()) -> Proxy:
    """Load a synthetic environment. Raises SettingError for another file, or if one of the ``exams`` does not fit."""
    proxy = load_proxy(path, "synthetic environments")
    proxy_kind = KINDS[proxy.config.proxy]
    if proxy_kind.used_by:
        raise SettingError(f"proxies is {path!r}, which is a {proxy_kind.noun}; allowed: synthetic environments")
    for name in [name for name in exams if name != SUPERVISED]:
        action_kinds = agent_class(EXAMS[name][0]).action_kinds
        if not isinstance(proxy.spaces.actions, action_kinds):
            allowed = " or ".join(kind.__name__.lower() for kind in action_kinds)
            line = f"whose actions are {type(proxy.spaces.actions).__name__.lower()}"
            raise SettingError(f"proxies is {path!r}, {line}; allowed with {name}: {allowed} actions")
    if SUPERVISED in exams and not getattr(proxy.config, "pairs", None):
        raise SettingError(f"proxies is {path!r}, which has no pairs; allowed with {SUPERVISED}: bandits of pairs")
    return proxy


def examine(proxy: Proxy, name: str, seed: int, agents: int | None, real: bool = False) -> dict:
    """Run the exam ``name`` of `EXAMS` and return its numbers as plain data. The number of ``agents`` replaces the
    number in the table. With ``real``, agents train on the real environment instead of ``proxy``."""
    kind, count, changes = EXAMS[name]
    count = agents or count
    if name == SUPERVISED:
        return examine_supervised(proxy, [derive_seed(seed, f"{name}, policy {i}") for i in range(count)])
    agent_config = settings_on_task(kind, proxy.game) if real else agent_settings(proxy, kind, {})
    seeds = [derive_seed(seed, f"{name}, agent {i}") for i in range(count)]
    started = time.process_time()
    outcome = train_and_test(proxy, kind, dataclasses.replace(agent_config, **changes), seeds, real)
    row = describe(outcome, proxy.config) | {"cpu_seconds": time.process_time() - started}
    if proxy.game == "cartpole":
        clipped = dataclasses.replace(outcome, returns=outcome.returns.clamp(max=200))
        row["of_200"] = describe(clipped, dataclasses.replace(proxy.config, solved_reward=195.0))
    return row


def examine_supervised(proxy: Proxy, seeds: list[int]) -> dict:
    """Test policies that supervised learning trains on the pairs of ``proxy``; ``seeds`` set their initial weights."""
    config: Any = dataclasses.replace(proxy.config, test_episodes=10, test_limit=None)
    factory, started = ProxyFactory(config, proxy.game), time.process_time()
    pairs = factory.searched_part(proxy.parameters).expand(len(seeds), -1)
    policies = factory.train_on_pairs(pairs, proxy.parameters, Streams(seeds))
    loop = InnerLoop(config, "DDQN", settings_on_task("DDQN", proxy.game), proxy.game)
    outcome = loop.run(policies, seeds, by_target=True)
    return describe(outcome, config) | {"cpu_seconds": time.process_time() - started}


def main(argv: Sequence[str] | None = None) -> int:
    flags = script_flags(__doc__)
    flags.add_argument("proxies", nargs="+", help="files, run folders or shipped names")
    flags.add_argument("--json", type=Path, help="write the numbers here")
    flags.add_argument("--exams", nargs="+", choices=list(EXAMS), default=USUAL)
    flags.add_argument("--real", action="store_true", help="also agents that train on the real environment")
    flags.add_argument("--agents", type=int, help="agents in each exam, in place of its own number")
    flags.add_argument("--seed", type=int, default=1000)
    options = flags.parse_args(argv)
    return run_script(lambda: make(options))


def make(options: argparse.Namespace) -> None:
    """Run all exams. Raises SettingError or ProxyError before the first training if an option is wrong."""
    check_options(options, LAYOUT, agents=1)
    proxies = {path: load_synthetic(path, options.exams) for path in options.proxies}
    torch.set_num_threads(1)
    results: dict[str, dict[str, dict]] = {}
    for path, proxy in proxies.items():
        for name, real in itertools.product(options.exams, (False, True)[: 1 + options.real]):
            if real and name == SUPERVISED:
                continue
            row = examine(proxy, name, options.seed, options.agents, real)
            trained_on = f"{path}, real" if real else path
            results.setdefault(trained_on, {})[name] = row
            text = f"{row['agents']} agents, mean {row['mean']:.1f}, IQM {iqm_text(row)}, worst {row['worst']:.0f}"
            if "of_200" in row:
                text += f", of 200: {row['of_200']['mean']:.2f}, worst {row['of_200']['worst']:.0f}"
            print(f"{trained_on}: {name}: {text} ({row['cpu_seconds']:.0f} CPU-s)", flush=True)
    if options.json:
        write_numbers(options.json, results)


if __name__ == "__main__":
    sys.exit(main())
