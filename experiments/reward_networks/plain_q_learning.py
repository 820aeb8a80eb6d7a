"""Q-learning in a dozen lines of NumPy on Gymnasium's CliffWalking, with a learned reward and without.

    python experiments/reward_networks/plain_q_learning.py --agents 400

Uses only the package `understudy`. Prints the number of steps until an agent's greedy path is the shortest one (-13),
tested after every step: the median, the 90th and 99th percentiles, and the share of agents that never find it. The
learning rate is 1, the discount 0.8, a tenth of the actions is random, and an episode ends after 50 steps.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import gymnasium
import numpy as np

import understudy

Env = gymnasium.Env[Any, Any]
DISCOUNT, EPSILON, EPISODE = 0.8, 0.1, 50


def solves(values: np.ndarray[Any, Any], moves: dict[int, dict[int, Any]]) -> bool:
    """Return whether the greedy policy of the action values ``[48, 4]`` reaches the goal from the start within 13
    steps. ``moves`` is Gymnasium's table ``P`` of the environment."""
    cell = 36
    for _ in range(13):
        ((_, cell, _, terminated),) = moves[cell][int(values[cell].argmax())]
        if terminated:
            return True
    return False


def steps_until_solved(env: Env, seed: int, max_steps: int, random_ties: bool) -> float:
    """Train one agent and return the steps until it solves the task; infinity after ``max_steps``. Of several best
    actions it takes a random one (``random_ties``) or the first."""
    random, values = np.random.default_rng(seed), np.zeros((48, 4))
    table_env: Any = env.unwrapped
    moves = table_env.P
    steps, done, cell = 0, True, 36
    while steps < max_steps:
        if done:
            cell, _ = env.reset(seed=seed)
        ties = np.flatnonzero(values[cell] == values[cell].max())
        action = int(random.choice(ties) if random_ties else ties[0])
        if random.random() < EPSILON:
            action = int(random.integers(4))
        next_cell, reward, terminated, truncated, _ = env.step(action)
        values[cell, action] = float(reward) + DISCOUNT * values[next_cell].max() * (not terminated)
        cell, done, steps = next_cell, terminated or truncated, steps + 1
        if solves(values, moves):
            return steps
    return float("inf")


def summary(steps: Sequence[float]) -> str:
    """Return median, 90th and 99th percentiles of steps until solved, and the share of unsolved agents, as text.

    Percentiles are not interpolated, so an agent that gave up counts as infinite.
    """
    middle, high, highest = np.quantile(steps, [0.5, 0.9, 0.99], method="higher")
    unsolved = float(np.isinf(steps).mean())
    return f"median {middle:,.0f}, p90 {high:,.0f}, p99 {highest:,.0f}, unsolved {100 * unsolved:.1f} %"


def main(argv: Sequence[str] | None = None) -> int:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--agents", type=int, default=400)
    flags.add_argument("--steps", type=int, default=5000, help="after which an agent gives up")
    flags.add_argument("--reward", default="cliffwalking-additive-potential", help="name or file of a learned reward")
    options = flags.parse_args(argv)
    try:
        for name, value in (("agents", options.agents), ("steps", options.steps)):
            if value < 1:
                raise ValueError(f"{name} is {value}; allowed: integer, at least 1")
        native_env: Env = gymnasium.make("CliffWalking-v1", max_episode_steps=EPISODE)
        learned: Env = gymnasium.make("CliffWalking-v1", max_episode_steps=EPISODE)
        envs = {
            options.reward: understudy.RewardWrapper(learned, options.reward, discount=DISCOUNT),
            "the own reward": native_env,
        }
    except ValueError as error:  # errors of the package are ValueErrors
        print(f"error: {error}", file=sys.stderr)
        return 2
    for random_ties in (False, True):
        for name, env in envs.items():
            steps = [steps_until_solved(env, seed, options.steps, random_ties) for seed in range(options.agents)]
            ties = "ties at random" if random_ties else "the first of ties"
            print(f"{name:<26} {ties:<18} {summary(steps)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
