"""Offline learning by d3rlpy (2.8) on a recorded dataset, to compare UDRL and RCP with: behaviour cloning of all
episodes and of the best tenth, CQL (discrete actions), TD3+BC (continuous actions), and a decision transformer.

    pip install d3rlpy
    python experiments/command_conditioned/recorded.py FOLDER --gamename LunarLander-v3 --json exp_dir/recorded.json

FOLDER is a dataset of Minari, as `--save_dataset` writes it. Each agent is trained on about `--samples` steps of
minibatches, 3 million like UDRL in 40 epochs, and then plays ten episodes with greedy actions. The decision transformer
is commanded the best return of the dataset, and then returns over the whole range of the dataset. Results are added to
the JSON file, and those in it are not measured again.
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
import scipy.stats
import torch

BC, BEST_TENTH, CQL, TD3_BC, TRANSFORMER = "BC", "BC of the best tenth", "CQL", "TD3+BC", "decision transformer"
AGENTS = (BC, BEST_TENTH, CQL, TD3_BC, TRANSFORMER)
BATCH = 256
CONTEXT, DT_BATCH, DT_UNITS = 20, 64, 128  # of the decision transformer's paper, as 3 layers and 1 head are
TARGETS, TARGET_EPISODES = 7, 3  # commanded returns of the decision transformer, and episodes of each
LARGEST_INPUT = 5.0  # of the decision transformer's returns

Policy = Callable[[Any, float], Any]  # maps an observation and the reward before it to an action
Begin = Callable[[float | None], Policy]  # begins an episode: maps a commanded return (None: the highest) to a policy


def read(folder: str, best_share: float = 1.0) -> d3rlpy.dataset.MDPDataset:
    """Return the episodes of a dataset, or only the ``best_share`` of the episodes with the highest returns."""
    episodes = list(minari.MinariDataset(Path(folder) / "data").iterate_episodes())
    episodes.sort(key=lambda episode: -episode.rewards.sum())
    episodes = episodes[: max(1, round(best_share * len(episodes)))]
    return d3rlpy.dataset.MDPDataset(
        observations=np.concatenate([episode.observations[:-1] for episode in episodes]).astype(np.float32),
        actions=np.concatenate([episode.actions.reshape(len(episode.actions), -1) for episode in episodes]),
        rewards=np.concatenate([episode.rewards for episode in episodes])[:, None].astype(np.float32),
        terminals=np.concatenate([episode.terminations for episode in episodes]).astype(np.float32),
        timeouts=np.concatenate([episode.truncations for episode in episodes]).astype(np.float32),
    )


def train(agent: str, folder: str, seed: int, samples: int) -> tuple[Begin, tuple[float, float]]:
    """Train an agent on about ``samples`` steps. Return how it begins an episode, and the range of the dataset's
    returns."""
    d3rlpy.seed(seed)
    dataset = read(folder, 0.1 if agent == BEST_TENTH else 1.0)
    returns = [float(episode.rewards.sum()) for episode in dataset.episodes]
    space = minari.MinariDataset(Path(folder) / "data").action_space
    is_discrete = isinstance(space, gymnasium.spaces.Discrete)
    bounds = {} if is_discrete else {"action_scaler": d3rlpy.preprocessing.MinMaxActionScaler(space.low, space.high)}
    scalers = bounds | {"observation_scaler": d3rlpy.preprocessing.StandardObservationScaler()}
    options = {"show_progress": False, "logger_adapter": d3rlpy.logging.NoopAdapterFactory(), "n_steps_per_epoch": 1000}
    if agent == TRANSFORMER:
        config_class = "DiscreteDecisionTransformerConfig" if is_discrete else "DecisionTransformerConfig"
        scale = d3rlpy.preprocessing.MultiplyRewardScaler(LARGEST_INPUT / max(map(abs, returns)))
        transformer = getattr(d3rlpy.algos, config_class)(
            batch_size=DT_BATCH, context_size=CONTEXT, num_layers=3, num_heads=1, max_timestep=1001,
            reward_scaler=scale, encoder_factory=d3rlpy.models.VectorEncoderFactory([DT_UNITS]), **scalers,
        ).create(device="cpu")  # fmt: skip
        transformer.fit(dataset, n_steps=samples // (DT_BATCH * CONTEXT), **options)

        def begin_commanded(target: float | None) -> Policy:
            sampler = "Greedy" if is_discrete else "Identity"
            return transformer.as_stateful_wrapper(  # type: ignore[no-any-return]  # d3rlpy is an optional package
                target_return=max(returns) if target is None else target,
                action_sampler=getattr(d3rlpy.algos, f"{sampler}TransformerActionSampler")(),
            ).predict

        return begin_commanded, (min(returns), max(returns))
    if agent == CQL:
        config = d3rlpy.algos.DiscreteCQLConfig(batch_size=BATCH, learning_rate=3e-4, target_update_interval=1000)
    elif agent == TD3_BC:
        config = d3rlpy.algos.TD3PlusBCConfig(batch_size=BATCH, **scalers)
    else:
        config = getattr(d3rlpy.algos, "DiscreteBCConfig" if is_discrete else "BCConfig")(batch_size=BATCH, **bounds)
    learner = config.create(device="cpu")
    learner.fit(dataset, n_steps=samples // BATCH, **options)
    # These policies take no command.
    return lambda target: lambda obs, reward: learner.predict(obs[None])[0], (min(returns), max(returns))


def play(begin: Begin, gamename: str, target: float | None = None, episodes: int = 10) -> Any:
    """Play episodes with the seeds 0, 1, ... under the commanded return ``target``. Return the returns."""
    env, returns = gymnasium.make(gamename), []
    for seed in range(episodes):
        policy, reward, done = begin(target), 0.0, False
        obs, _ = env.reset(seed=seed)
        rewards = []
        while not done:
            obs, new_reward, terminated, truncated, _ = env.step(policy(obs.astype(np.float32), reward))
            reward = float(new_reward)
            rewards.append(reward)
            done = terminated or truncated
        returns.append(sum(rewards))
    return np.array(returns)


def obedience(begin: Begin, gamename: str, lowest: float, highest: float) -> dict[str, Any]:
    """Measure how obtained returns follow commanded returns between ``lowest`` and ``highest``: slope and rank
    correlation, means over episodes, as `--obedience` does inside the range."""
    targets = np.linspace(lowest, highest, TARGETS)
    obtained = np.stack([play(begin, gamename, float(target), TARGET_EPISODES) for target in targets])
    pairs = [(np.polyfit(targets, row, 1)[0], scipy.stats.spearmanr(targets, row)[0]) for row in obtained.T]
    slope, correlation = np.nan_to_num(pairs).mean(0)  # equal returns have no correlation
    rounded = {"slope": round(float(slope), 2), "rank_correlation": round(float(correlation), 2)}
    return rounded | {"commanded": targets.round(1).tolist(), "obtained": obtained.mean(1).round(1).tolist()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="folder of a dataset of Minari")
    parser.add_argument("--gamename", default="LunarLander-v3")
    parser.add_argument("--agents", nargs="+", default=[BC, BEST_TENTH, CQL, TRANSFORMER], choices=AGENTS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1001, 1002, 1003])
    parser.add_argument("--samples", type=int, default=3_000_000, help="steps of minibatches")
    parser.add_argument("--json", type=Path, default=Path("exp_dir/recorded.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(options.json.read_text()) if options.json.exists() else {}
    name = "/".join(Path(options.folder).resolve().parts[-2:])
    for agent in options.agents:
        for seed in options.seeds:
            row = results.setdefault(name, {}).setdefault(agent, {})
            if str(seed) in row:
                continue
            start = time.process_time()
            begin, dataset_range = train(agent, options.folder, seed, options.samples)
            seconds = time.process_time() - start
            row[str(seed)] = {
                "return": round(float(play(begin, options.gamename).mean()), 1),
                "cpu_seconds": round(seconds),
            }
            if agent == TRANSFORMER:
                row[str(seed)] |= obedience(begin, options.gamename, *dataset_range)
            print(name, agent, seed, row[str(seed)], flush=True)
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
