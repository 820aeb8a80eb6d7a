"""Agents of stable-baselines3 on our synthetic environments: DQN, A2C and PPO train on the Gymnasium form of each and,
for the same number of steps, on the real CartPole (or ``--real_id``). All are tested on the real one.

    python experiments/synthetic_environments/transfer.py --json results.json

Needs the `bench` extra.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import gymnasium
import numpy as np
import torch

import understudy  # noqa: F401  registers the synthetic environments
from control.reports.figures import write_numbers
from experiments.comparison import Layout, check_options, run_script, script_flags
from experiments.synthetic_environments.rules import episode_return
from models.settings import SettingError

PROXIES = {"bandit": "cartpole-bandit", "broad": "cartpole-mdp-broad", "mdp": "cartpole-mdp"}
# All other settings are stable-baselines3's defaults.
SETTINGS: dict[str, dict[str, Any]] = {
    "DQN": {
        "learning_rate": 1e-3,
        "learning_starts": 300,
        "train_freq": 1,
        "target_update_interval": 100,
        "exploration_fraction": 0.5,
        "policy_kwargs": {"net_arch": [64]},
    },
    "A2C": {},
    "PPO": {"n_steps": 256},
    "PPO by default": {},
    "PPO as in CleanRL": {
        "n_steps": 128,
        "batch_size": 128,
        "n_epochs": 4,
        "ent_coef": 0.01,
        "clip_range_vf": 0.2,
        "learning_rate": lambda progress_remaining: 2.5e-4 * progress_remaining,
    },
}
SIDE_BY_SIDE = {"PPO as in CleanRL": 4}  # environments; 1 by default


def check_spaces(real_id: str, proxies: dict[str, str]) -> None:
    """Raise SettingError or ProxyError unless ``real_id`` has discrete actions, and all ``proxies`` (flag -> file) are
    synthetic environments with its spaces."""
    try:
        real = gymnasium.make(real_id)
    except (gymnasium.error.Error, ImportError, ValueError) as error:
        raise SettingError(f"real_id is {real_id!r}, which Gymnasium cannot make: {error}", "real_id") from None
    shape, actions = real.observation_space.shape, real.action_space
    if not isinstance(actions, gymnasium.spaces.Discrete):
        raise SettingError(f"real_id is {real_id!r}, whose actions are {actions}; allowed: discrete actions", "real_id")
    for flag, path in proxies.items():
        synthetic = gymnasium.make("understudy/Synthetic-v0", proxy=path)  # raises for a learned reward
        if synthetic.observation_space.shape != shape or synthetic.action_space != actions:
            line = f"{flag} is {path!r}, which has other spaces than {real_id} (--real_id)"
            raise SettingError(f"{line}; allowed: synthetic environments of it", flag)


def train(kind: str, where: str, steps: int, seed: int, proxy: str | None, real: str) -> Any:
    """Train an agent of stable-baselines3 (``kind`` of `SETTINGS`) on the environment ``real`` (a Gymnasium id) if
    ``where`` is "real", otherwise on the synthetic environment in the file ``proxy``."""
    import stable_baselines3
    from stable_baselines3.common.env_util import make_vec_env

    env_id, env_kwargs = (real, {}) if where == "real" else ("understudy/Synthetic-v0", {"proxy": proxy})
    vec_env = make_vec_env(env_id, SIDE_BY_SIDE.get(kind, 1), seed=seed, env_kwargs=env_kwargs)
    agent = getattr(stable_baselines3, kind.split()[0])("MlpPolicy", vec_env, seed=seed, device="cpu", **SETTINGS[kind])
    return agent.learn(steps)


def test(agent: Any, episodes: int, real_id: str) -> float:
    """Return the mean return of greedy episodes on the real environment."""
    real, greedy = gymnasium.make(real_id), lambda obs: agent.predict(obs, deterministic=True)[0]
    return sum(episode_return(real, greedy, 10_000 + episode) for episode in range(episodes)) / episodes


def main(argv: Sequence[str] | None = None) -> int:
    flags = script_flags(__doc__)
    flags.add_argument("--json", type=Path)
    flags.add_argument("--steps", type=int, default=10_000)
    flags.add_argument("--seeds", type=int, default=5)
    flags.add_argument("--episodes", type=int, default=10)
    flags.add_argument("--real_id", default="CartPole-v1", help="the real environment, by its Gymnasium id")
    flags.add_argument("--on", nargs="+", choices=[*PROXIES, "real"], default=[*PROXIES, "real"])
    flags.add_argument("--agents", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    for where, shipped in PROXIES.items():
        flags.add_argument(f"--{where}", default=shipped, help=f"a file of one's own ({shipped})")
    options = flags.parse_args(argv)
    return run_script(lambda: make(options))


def make(options: argparse.Namespace) -> None:
    """Train and test all agents. Raises SettingError or ProxyError before the first if an option is wrong."""
    check_options(options, Layout(("steps", "returns"), 1), steps=1, seeds=1, episodes=1)
    check_spaces(options.real_id, {where: getattr(options, where) for where in PROXIES if where in options.on})
    torch.set_num_threads(1)
    results: dict[str, dict[str, Any]] = {}
    for kind in options.agents:
        for where in options.on:
            started, proxy = time.process_time(), getattr(options, where, None)
            returns = []
            for seed in range(options.seeds):
                agent = train(kind, where, options.steps, seed, proxy, options.real_id)
                returns.append(test(agent, options.episodes, options.real_id))
            seconds = (time.process_time() - started) / options.seeds
            results[f"{kind} on {where}"] = {"steps": options.steps, "returns": returns, "cpu_seconds": seconds}
            returns_text = ", ".join(f"{value:.0f}" for value in returns)
            mean = f"{np.mean(returns):7.1f}"
            print(f"{kind} trained on {where:<7}{mean}  ({returns_text}), {seconds:.0f} s per seed", flush=True)
    if options.json:
        write_numbers(options.json, results)


if __name__ == "__main__":
    sys.exit(main())
