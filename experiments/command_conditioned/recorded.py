"""Offline learning by d3rlpy (2.8) on a recorded dataset, to compare UDRL and RCP with: behaviour cloning of all
episodes and of the best tenth, CQL, and a decision transformer.

    pip install d3rlpy
    python experiments/command_conditioned/recorded.py FOLDER --gamename LunarLander-v3 --json exp_dir/recorded.json

FOLDER is a dataset of Minari, as `--save_dataset` writes it. Actions are discrete. Each agent is trained on about as
many steps of minibatches as UDRL in 40 epochs, 3 million, and then plays ten episodes with greedy actions. Results are
added to the JSON file, and those in it are not measured again.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import d3rlpy
import gymnasium
import minari
import numpy as np
import torch

AGENTS = ("BC", "BC of the best tenth", "CQL", "decision transformer")
SAMPLES = 3_000_000  # steps of minibatches
BATCH = 256
CONTEXT, DT_BATCH = 20, 64  # of the decision transformer's paper, as 3 layers, 1 head and 128 units are


def read(folder: str, best_share: float = 1.0) -> d3rlpy.dataset.MDPDataset:
    """Return the episodes of a dataset, or the share of them that has the highest returns."""
    episodes = list(minari.MinariDataset(Path(folder) / "data").iterate_episodes())
    episodes.sort(key=lambda episode: -episode.rewards.sum())
    episodes = episodes[: max(1, round(best_share * len(episodes)))]
    return d3rlpy.dataset.MDPDataset(
        observations=np.concatenate([episode.observations[:-1] for episode in episodes]).astype(np.float32),
        actions=np.concatenate([episode.actions for episode in episodes])[:, None],
        rewards=np.concatenate([episode.rewards for episode in episodes])[:, None].astype(np.float32),
        terminals=np.concatenate([episode.terminations for episode in episodes]).astype(np.float32),
        timeouts=np.concatenate([episode.truncations for episode in episodes]).astype(np.float32),
    )


def train(agent: str, folder: str, seed: int) -> Callable[[], Callable[[Any, float], int]]:
    """Train an agent, and return a function that begins an episode. It returns a policy, a function of an observation
    and the reward before it."""
    d3rlpy.seed(seed)
    dataset = read(folder, 0.1 if agent == "BC of the best tenth" else 1.0)
    options = {"show_progress": False, "logger_adapter": d3rlpy.logging.NoopAdapterFactory(), "n_steps_per_epoch": 1000}
    if agent == "decision transformer":
        scale = d3rlpy.preprocessing.MultiplyRewardScaler(0.01)
        transformer = d3rlpy.algos.DiscreteDecisionTransformerConfig(
            batch_size=DT_BATCH, context_size=CONTEXT, num_layers=3, num_heads=1, reward_scaler=scale, max_timestep=1001
        ).create(device="cpu")
        transformer.fit(dataset, n_steps=SAMPLES // (DT_BATCH * CONTEXT), **options)
        target = max(episode.rewards.sum() for episode in dataset.episodes)

        def begin_commanded() -> Callable[[Any, float], int]:
            return transformer.as_stateful_wrapper(  # type: ignore[no-any-return]
                target_return=float(target), action_sampler=d3rlpy.algos.GreedyTransformerActionSampler()
            ).predict

        return begin_commanded
    if agent == "CQL":
        config = d3rlpy.algos.DiscreteCQLConfig(batch_size=BATCH, learning_rate=3e-4, target_update_interval=1000)
    else:
        config = d3rlpy.algos.DiscreteBCConfig(batch_size=BATCH)
    learner = config.create(device="cpu")
    learner.fit(dataset, n_steps=SAMPLES // BATCH, **options)
    return lambda: lambda obs, reward: int(learner.predict(obs[None])[0])


def play(begin: Callable[[], Callable[[Any, float], int]], gamename: str, episodes: int = 10) -> float:
    """Return the mean return of ``episodes`` with seeds from 0."""
    env, returns = gymnasium.make(gamename), []
    for seed in range(episodes):
        policy, reward, done = begin(), 0.0, False
        obs, _ = env.reset(seed=seed)
        rewards = []
        while not done:
            obs, new_reward, terminated, truncated, _ = env.step(policy(obs.astype(np.float32), reward))
            reward = float(new_reward)
            rewards.append(reward)
            done = terminated or truncated
        returns.append(sum(rewards))
    return float(np.mean(returns))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="folder of a dataset of Minari")
    parser.add_argument("--gamename", default="LunarLander-v3")
    parser.add_argument("--agents", nargs="+", default=AGENTS, choices=AGENTS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1001, 1002, 1003])
    parser.add_argument("--json", type=Path, default=Path("exp_dir/recorded.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(options.json.read_text()) if options.json.exists() else {}
    name = Path(options.folder).resolve().name
    for agent in options.agents:
        for seed in options.seeds:
            row = results.setdefault(name, {}).setdefault(agent, {})
            if str(seed) in row:
                continue
            start = time.process_time()
            begin = train(agent, options.folder, seed)
            seconds = time.process_time() - start
            row[str(seed)] = {"return": round(play(begin, options.gamename), 1), "cpu_seconds": round(seconds)}
            print(name, agent, seed, row[str(seed)], flush=True)
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
