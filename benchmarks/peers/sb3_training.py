"""stable-baselines3's agents and, with SBX as the last argument, those of SBX, on Gymnasium's environments."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

import gymnasium
import torch
from stable_baselines3.common.callbacks import EvalCallback, StopTrainingOnRewardThreshold
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv
from training import FIRST, GOALS, Case, main

WITH_SBX = sys.argv[-1] == "SBX"
LIBRARY = importlib.import_module("sbx" if WITH_SBX else "stable_baselines3")
PACKAGES = ("stable-baselines3", "gymnasium", "torch") + (("sbx-rl", "jax") if WITH_SBX else ())
# Neither library has double Q-learning; their DQN spares a pass through the network.
AGENTS = {"DDQN": "DQN"}


def trainer_of(case: Case) -> Callable[[int], int]:
    """Return the function that `training.serve` times. It trains for a number of units and returns the steps."""
    assert case.members == 1, case
    kind = getattr(LIBRARY, AGENTS.get(case.agent, case.agent))
    environments = DummyVecEnv([lambda: gymnasium.make(case.game)] * case.envs)  # without monitor, which counts returns
    policy: dict[str, Any] = {"net_arch": list(case.hidden)}
    values: dict[str, Any] = {"policy_kwargs": policy, "seed": 0, "device": "cpu"}
    if case.rollout:
        values |= {"n_steps": case.rollout}
        if case.agent == "PPO":
            values |= {"batch_size": case.batch, "n_epochs": case.passes}
    else:
        values |= {"batch_size": case.batch, "buffer_size": case.buffer, "learning_starts": 1, "tau": 0.01}
        values |= {"train_freq": 1, "gradient_steps": 1}
        if case.agent == "DDQN":
            values |= {"target_update_interval": 1}
    model = kind("MlpPolicy", environments, **values)

    def train(units: int) -> int:
        before = model.num_timesteps
        model.learn(units * case.unit, reset_num_timesteps=False)
        return model.num_timesteps - before

    return train


def first_result(game: str, seed: int) -> int:
    """Train PPO until a greedy evaluation reaches the return in `GOALS`. Return the steps that it took."""
    size = FIRST[game]
    environments = make_vec_env(game, size.envs, seed=seed)
    goal = StopTrainingOnRewardThreshold(GOALS[game], verbose=0)
    tests = EvalCallback(
        make_vec_env(game, 1, seed=seed + 1000), goal, n_eval_episodes=size.eval_episodes, verbose=0,
        eval_freq=size.eval_steps // size.envs, deterministic=True,
    )  # fmt: skip
    model = LIBRARY.PPO(
        "MlpPolicy", environments, n_steps=size.rollout, batch_size=size.batch, n_epochs=size.passes, seed=seed,
        gamma=size.discount, gae_lambda=size.gae_lambda, learning_rate=size.lr, ent_coef=0.0, device="cpu",
        policy_kwargs={"net_arch": list(size.hidden)},
    )  # fmt: skip
    model.learn(size.most_steps, callback=tests)
    if tests.best_mean_reward < GOALS[game]:
        raise SystemExit(f"{GOALS[game]} was not reached in {size.most_steps} steps")
    return model.num_timesteps


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(trainer_of, first_result, PACKAGES)
