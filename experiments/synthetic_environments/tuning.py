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
from experiments.comparison import Layout, check_options, run_script, sample_settings, script_flags
from experiments.proxies import settings_on_task
from experiments.synthetic_environments.exam import load_synthetic
from models.contract import Policy
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
        with contextlib.closing(self.factory.environment(self.trained_on, agent)) as environment:
            episode_seeds = Streams.from_name(seeds, "synthetic tests").episode_seeds(SYNTHETIC_EPISODES)
            synthetic = play_episodes(policy, environment, episode_seeds)
        no_steps = torch.zeros_like(synthetic.lengths)  # steps of the real environment
        return Episodes.concatenate([real, Episodes(synthetic.returns, no_steps)])


def correlations(pairs: Any, axis: int) -> np.ndarray:
    """Return rank correlations ``[R]`` of resampled pairs ``[R, N, 2]``: a statistic for `interval`."""
    assert axis == 1
    return np.array([rank_correlation(*sample.T) for sample in pairs])


def scores(loop: OnBoth, settings: Sequence[Any], proxy: Tensor | None, agents: int, steps: int, seed: int) -> Any:
    """Train a number of ``agents`` for ``steps`` steps with each of N ``settings``, on the synthetic environment with
    the parameters ``proxy [1, D]`` or, if it is None, on the real one. Return mean real returns ``[N, agents]``, mean
    synthetic returns ``[N, agents]`` (NaN without proxy), and CPU seconds. Agents that diverged get the lowest return.
    """
    started, all_returns = time.process_time(), []
    seeds = fresh_seeds(seed, "tuning", agents)
    for config in settings:
        loop.agent_config = config
        proxies = None if proxy is None else proxy.expand(agents, -1)
        returns = loop.run(proxies, seeds, inner_steps=steps, inner_rule="budget", test_every=None).returns
        finite = returns[returns.isfinite()].tolist()
        all_returns.append(returns.nan_to_num(min(finite, default=-1e9)))
    # The episodes on the real environment are first.
    real, synthetic = torch.stack(all_returns).double().tensor_split([loop.config.test_episodes], 2)
    return real.mean(2).numpy(), synthetic.mean(2).numpy(), time.process_time() - started


def load_settings(path: str, games: Sequence[str]) -> Settings:
    """Load the settings in a search's best.yaml. Raises SettingError unless they are for DDQN on one of ``games``."""
    settings = parse(["--config", path])
    if settings.run.implementation != "DDQN" or settings.run.gamename not in games:
        line = f"searched is {path!r}, of {settings.run.implementation} on {settings.run.gamename}"
        raise SettingError(f"{line}; allowed: settings of DDQN on {', '.join(dict.fromkeys(games))}")
    return settings


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all proxies (synthetic environments). Return for each the rank correlations, the true return of its first
    choice, and the costs. Raises SettingError or ProxyError before the first training if an option is wrong."""
    check_options(options, LAYOUT, settings=1, agents=1, episodes=1, real_steps=1, seed=0)
    proxies = {path: load_synthetic(path, ["DDQN"]) for path in options.proxies}
    searched = {path: load_settings(path, [proxy.game for proxy in proxies.values()]) for path in options.searched}
    results, truths, real_loops = {}, {}, {}  # truths: true returns of the settings, by environment
    flags = ["--implementation", "DDQN", "--gamename", "cartpole", "--search_space", str(SPACE)]
    changes = sample_settings(flags, options.settings, options.seed)
    for path, proxy in proxies.items():
        config = dataclasses.replace(proxy.config, test_episodes=options.episodes, test_limit=None)
        if proxy.game not in truths:
            defaults = settings_on_task("DDQN", proxy.game)
            loop = real_loops[proxy.game] = OnBoth(config, "DDQN", defaults, proxy.game)
            agent_configs = [dataclasses.replace(defaults, **change) for change in changes]
            truth, _, seconds = scores(loop, agent_configs, None, options.agents, options.real_steps, options.seed)
            means = truths[proxy.game] = truth.mean(1)
            text = f"{seconds:.0f} CPU-s, best {means.max():.1f}, median {np.median(means):.1f}"
            print(f"{proxy.game}, real: {text}", flush=True)
            results[proxy.game] = {
                "returns": truth.tolist(),
                "cpu_seconds": seconds,
                "real_steps": options.settings * options.agents * options.real_steps,
            }
        truth = truths[proxy.game]
        loop = OnBoth(config, "DDQN", agent_settings(proxy, "DDQN", {}), proxy.game)
        agent_configs = [dataclasses.replace(loop.agent_config, vary_hp=False, **change) for change in changes]
        parameters, steps = proxy.parameters[None], config.steps_in_use
        real_returns, synthetic_returns, seconds = scores(
            loop, agent_configs, parameters, options.agents, steps, options.seed
        )
        row: dict[str, Any] = {"cpu_seconds": seconds, "synthetic_steps": real_returns.size * steps}
        for name, returns in (("synthetic return", synthetic_returns), ("real return", real_returns)):
            ranking = returns.mean(1)  # of the settings
            correlation, best = rank_correlation(ranking, truth), np.argsort(-ranking, kind="stable")
            bounds = interval(np.stack([ranking, truth], 1), correlations)
            first, best_of_five = float(truth[best[0]]), float(truth[best[:5]].max())
            row[name] = {
                "scores": ranking.tolist(),
                "rank_correlation": correlation,
                "interval": bounds and [float(bound) for bound in bounds],
                "first": first,
                "best_of_five": best_of_five,
            }
            choice_text = f"first choice {first:.1f}, best of five {best_of_five:.1f}"
            correlation_text = f"rank correlation {with_interval(correlation, bounds, 2)}"
            print(f"{path}, by {name:<17} {correlation_text}; {choice_text}; {seconds:.0f} CPU-s", flush=True)
        results[path] = row
    for path, tuned_settings in searched.items():
        loop = real_loops[tuned_settings.run.gamename]
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
