"""Agents of stable-baselines3 on our synthetic environments: DQN and PPO train on the Gymnasium form of each and, for
as many steps, on the real CartPole. All are tested on the real one.

    python experiments/synthetic_environments/transfer.py --json results.json

Needs the `bench` extra.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import gymnasium  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402

import understudy  # noqa: E402, F401  # registers the synthetic environments

TRAINED_ON = {
    "bandit": "understudy/SyntheticCartPole-v0",
    "mdp": "understudy/SyntheticCartPoleMDP-v0",
    "real": "CartPole-v1",
}
# Everything not named here is stable-baselines3's default.
SETTINGS: dict[str, dict[str, Any]] = {
    "DQN": {"learning_rate": 1e-3, "learning_starts": 300, "train_freq": 1, "target_update_interval": 100,
            "exploration_fraction": 0.5, "policy_kwargs": {"net_arch": [64]}},
    "PPO": {"n_steps": 256},
}  # fmt: skip


def trained(kind: str, where: str, steps: int, seed: int, proxy: str | None) -> Any:
    """An agent of stable-baselines3 after ``steps`` steps."""
    import stable_baselines3

    made = gymnasium.make(TRAINED_ON[where], **({"proxy": proxy} if proxy else {}))
    agent = getattr(stable_baselines3, kind)("MlpPolicy", made, seed=seed, device="cpu", **SETTINGS[kind])
    return agent.learn(steps)


def tested(agent: Any, episodes: int) -> float:
    """Mean return of greedy episodes on the real CartPole (500 steps)."""
    real, total = gymnasium.make("CartPole-v1"), 0.0
    for episode in range(episodes):
        obs, _ = real.reset(seed=10_000 + episode)
        over = False
        while not over:
            obs, reward, terminated, truncated, _ = real.step(int(agent.predict(obs, deterministic=True)[0]))
            total, over = total + float(reward), terminated or truncated
    return total / episodes


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--json", type=Path)
    flags.add_argument("--steps", type=int, default=10_000)
    flags.add_argument("--seeds", type=int, default=3)
    flags.add_argument("--episodes", type=int, default=10)
    flags.add_argument("--on", nargs="+", choices=list(TRAINED_ON), default=list(TRAINED_ON))
    flags.add_argument("--bandit", help="a bandit of one's own in place of the shipped one")
    flags.add_argument("--mdp", help="an MDP of one's own in place of the shipped one")
    given = flags.parse_args()
    torch.set_num_threads(1)
    results: dict[str, dict[str, Any]] = {}
    for kind in SETTINGS:
        for where in given.on:
            started, proxy = time.process_time(), getattr(given, where, None)
            returns = [
                tested(trained(kind, where, given.steps, seed, proxy), given.episodes) for seed in range(given.seeds)
            ]
            seconds = (time.process_time() - started) / given.seeds
            results[f"{kind} on {where}"] = {"steps": given.steps, "returns": returns, "cpu_seconds": seconds}
            shown = ", ".join(f"{value:.0f}" for value in returns)
            print(
                f"{kind} trained on {where:<7}{np.mean(returns):7.1f}  ({shown}), {seconds:.0f} s per seed", flush=True
            )
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
