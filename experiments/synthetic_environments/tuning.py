"""Hyperparameters chosen on a synthetic environment: does their order agree with the order on the real one, and at
which cost?

    python experiments/synthetic_environments/tuning.py cartpole-bandit cartpole-mdp --json tuning.json
    python experiments/synthetic_environments/tuning.py cartpole-bandit --searched exp_dir/.../tune/version_0/best.yaml

The script samples settings of DDQN and trains agents with each of them on the synthetic environment. Two numbers rank
the settings: the agents' return on the synthetic environment, which needs no real step, and their return in a few
episodes of the real one. The true ranking is by the return of agents that train on the real environment.
"""

import argparse
import contextlib
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from torch import Tensor

from control.cli.parse import parse
from control.cli.settings import Settings
from control.commands.proxy_agents import agent_settings
from control.evolution.inner_loop import InnerLoop, fresh_seeds
from control.loops.rollout import Episodes, play_episodes
from control.loops.steps import StepLoop
from control.reports.figures import write_numbers
from control.reports.obedience import rank_correlation
from control.reports.statistics import interval
from control.reports.tables import with_interval
from experiments.comparison import Layout, check_given, run_script, sample_settings, script_flags
from experiments.synthetic_environments.exam import opened
from models.contract import Policy
from models.registry import default_config
from models.settings import SettingError
from models.streams import Streams

SYNTHETIC_EPISODES = 64
LAYOUT = Layout(("settings", "agents", "real_steps", "results"))
SPACE = Path(__file__).with_name("search_choosing.yaml")


class OnBoth(InnerLoop):
    """Tests agents on the real environment, then on the proxies that they trained on (if any)."""

    def begin(self, proxies: Tensor | None, seeds: list[int]) -> StepLoop:
        self.trained_on = proxies
        return super().begin(proxies, seeds)

    def test(self, policy: Policy, seeds: Sequence[int]) -> Episodes:
        real = super().test(policy, seeds)
        if self.trained_on is None:
            return real
        agent = self.agent_class(self.agent_config, self.factory.spaces, list(seeds))
        agent.envs = SYNTHETIC_EPISODES
        with contextlib.closing(self.factory.environment(self.trained_on, agent)) as stage:
            starts = Streams.from_name(seeds, "synthetic tests").episode_seeds(SYNTHETIC_EPISODES)
            synthetic_episodes = play_episodes(policy, stage, starts)
        free = torch.zeros_like(synthetic_episodes.lengths)  # no steps of the real environment
        return Episodes.concatenate([real, Episodes(synthetic_episodes.returns, free)])


def correlations(pairs: Any, axis: int) -> np.ndarray:
    """Return rank correlations ``[R]`` of resampled pairs ``[R, N, 2]``: a statistic for `interval`."""
    assert axis == 1
    return np.array([rank_correlation(*sample.T) for sample in pairs])


def scores(loop: OnBoth, settings: Sequence[Any], proxies: Tensor | None, agents: int, steps: int, seed: int) -> Any:
    """Train ``agents`` with each of N settings.

    Return mean real returns ``[N, agents]``, mean synthetic returns (NaN without proxies), and CPU seconds. Agents that
    diverged get the lowest return.
    """
    started, all_returns = time.process_time(), []
    seeds = fresh_seeds(seed, "tuning", agents)
    for config in settings:
        loop.agent_config = config
        rows = None if proxies is None else proxies.expand(agents, -1)
        returns = loop.run(rows, seeds, inner_steps=steps, inner_rule="budget", test_every=None).returns
        finite = returns[returns.isfinite()].tolist()
        all_returns.append(returns.nan_to_num(min(finite, default=-1e9)))
    stacked_returns = torch.stack(all_returns).double()
    real, synthetic = (part.mean(2).numpy() for part in stacked_returns.tensor_split([loop.config.test_episodes], 2))
    return real, synthetic, time.process_time() - started


def found_by(path: str, games: Sequence[str]) -> Settings:
    """Load the settings in a search's best.yaml. Raises SettingError unless they are for DDQN on one of ``games``."""
    settings = parse(["--config", path])
    if settings.run.implementation != "DDQN" or settings.run.gamename not in games:
        line = f"searched is {path!r}, of {settings.run.implementation} on {settings.run.gamename}"
        raise SettingError(f"{line}; allowed: settings of DDQN on {', '.join(dict.fromkeys(games))}")
    return settings


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all proxies. Return for each the rank correlations, the true return of its first choice, and the costs.

    Raises SettingError or ProxyError before the first training if an option is wrong.
    """
    check_given(options, LAYOUT, settings=1, agents=1, episodes=1, real_steps=1, seed=0)
    proxies = {path: opened(path, ["DDQN"]) for path in options.proxies}
    searched = {path: found_by(path, [proxy.game for proxy in proxies.values()]) for path in options.searched}
    results, truths, on_real = {}, {}, {}
    words = ["--implementation", "DDQN", "--gamename", "cartpole", "--search_space", str(SPACE)]
    changes = sample_settings(words, options.settings, options.seed)
    for path, proxy in proxies.items():
        config = dataclasses.replace(proxy.config, test_episodes=options.episodes, test_limit=None)
        if proxy.game not in truths:
            plain = default_config("DDQN", proxy.game)
            loop = on_real[proxy.game] = OnBoth(config, "DDQN", plain, proxy.game)
            real = [dataclasses.replace(plain, **change) for change in changes]
            truth, _, seconds = scores(loop, real, None, options.agents, options.real_steps, options.seed)
            truths[proxy.game] = truth.mean(1)
            print(
                f"{proxy.game}, real: {seconds:.0f} CPU-s, best {truth.mean(1).max():.1f}, "
                f"median {np.median(truth.mean(1)):.1f}",
                flush=True,
            )
            results[proxy.game] = {
                "returns": truth.tolist(),
                "cpu_seconds": seconds,
                "real_steps": options.settings * options.agents * options.real_steps,
            }
        truth = truths[proxy.game]
        loop = OnBoth(config, "DDQN", agent_settings(proxy, "DDQN", {}), proxy.game)
        agent_configs = [dataclasses.replace(loop.agent_config, vary_hp=False, **change) for change in changes]
        rows = proxy.parameters[None]
        real_returns, reward, seconds = scores(
            loop, agent_configs, rows, options.agents, config.steps_in_use, options.seed
        )
        row: dict[str, Any] = {"cpu_seconds": seconds, "synthetic_steps": real_returns.size * config.steps_in_use}
        for name, order in (("synthetic return", reward.mean(1)), ("real return", real_returns.mean(1))):
            agree, best = rank_correlation(order, truth), np.argsort(-order, kind="stable")
            bounds = interval(np.stack([order, truth], 1), correlations)
            row[name] = {
                "scores": order.tolist(),
                "rank_correlation": agree,
                "interval": bounds and [float(bound) for bound in bounds],
                "first": float(truth[best[0]]),
                "best_of_five": float(truth[best[:5]].max()),
            }
            choice_text = f"first choice {truth[best[0]]:.1f}, best of five {truth[best[:5]].max():.1f}"
            agreed = f"rank correlation {with_interval(agree, bounds, 2)}"
            print(f"{path}, by {name:<17} {agreed}; {choice_text}; {seconds:.0f} CPU-s", flush=True)
        results[path] = row
    for path, tuned_settings in searched.items():
        loop = on_real[tuned_settings.run.gamename]
        truth, _, _ = scores(loop, [tuned_settings.agent], None, options.agents, options.real_steps, options.seed)
        results[path] = {
            "settings": {name: getattr(tuned_settings.agent, name) for name in changes[0]},
            "truth": truth.mean(),
        }
        print(f"{path}: {truth.mean():.1f} after {options.real_steps:,} real steps", flush=True)
    return {
        "settings": [change | {"hidden_sizes": list(change["hidden_sizes"])} for change in changes],
        "agents": options.agents,
        "real_steps": options.real_steps,
        "results": results,
    }


def main(argv: Sequence[str] | None = None) -> int:
    flags = script_flags(__doc__)
    flags.add_argument("proxies", nargs="+", help="files, run folders or shipped names")
    flags.add_argument("--json", type=Path, help="write the numbers here")
    flags.add_argument("--settings", type=int, default=40)
    flags.add_argument("--agents", type=int, default=4, help="of each setting")
    flags.add_argument("--episodes", type=int, default=10)
    flags.add_argument("--real_steps", type=int, default=50_000, help="of training on the real environment")
    flags.add_argument("--searched", nargs="*", default=[], help="best.yaml of searches with Ray Tune: what it found")
    flags.add_argument("--seed", type=int, default=1000)
    options = flags.parse_args(argv)

    def run() -> None:
        torch.set_num_threads(1)
        numbers = measure(options)
        if options.json:
            write_numbers(options.json, numbers)

    return run_script(run)


if __name__ == "__main__":
    sys.exit(main())
