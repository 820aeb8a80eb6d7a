"""Training on reward networks as plain programs: one agent, one step at a time. Baselines of ../rewards.py.

Same networks, settings and order of work as ours. Source: Ferreira et al. 2022, arXiv 2202.02790, and its public code,
which has the same order of steps and tests.
"""

import random
from collections.abc import Callable

import gymnasium as gym
import torch
from plain import ddqn
from torch import Tensor, nn

ROWS, COLUMNS, START, GOAL = 4, 12, 36, 47
MOVES = ((0, 1), (0, -1), (1, 0), (-1, 0))  # right, left, down, up
LIMIT = 50


def walk(cell: int, action: int) -> tuple[int, float, bool]:
    """Return the next cell of Cliff, the reward, and whether the episode ends."""
    row, column = divmod(cell, COLUMNS)
    row_step, column_step = MOVES[action]
    row, column = min(max(row + row_step, 0), ROWS - 1), min(max(column + column_step, 0), COLUMNS - 1)
    cell = row * COLUMNS + column
    if row == ROWS - 1 and 0 < column < COLUMNS - 1:
        return cell, -100.0, True
    return cell, 0.0 if cell == GOAL else -1.0, cell == GOAL


class QLearning:
    """Trains on Cliff with an additive potential, and tests after every episode, as the published search does."""

    def __init__(self, network: nn.Module, seed: int, epsilon: float = 0.01, discount: float = 0.8, lr: float = 1.0):
        self.network, self.random = network, random.Random(seed)
        self.epsilon, self.discount, self.lr = epsilon, discount, lr
        self.table = [[0.0] * len(MOVES) for _ in range(ROWS * COLUMNS)]
        self.one_hot = torch.eye(ROWS * COLUMNS)

    @torch.no_grad()
    def phi(self, cell: int) -> float:
        """Return the potential of a cell."""
        return float(self.network(self.one_hot[cell]))

    def best(self, cell: int) -> int:
        """Return the greedy action in a cell."""
        values = self.table[cell]
        return values.index(max(values))

    def train(self, episodes: int, solved: float, window: int) -> int:
        """Train until ``window`` latest tests reach ``solved`` on average, or for ``episodes``. Return the steps."""
        steps, tests = 0, []
        for _ in range(episodes):
            cell, done, age = START, False, 0
            while not done and age < LIMIT:
                explores = self.random.random() < self.epsilon
                action = self.random.randrange(len(MOVES)) if explores else self.best(cell)
                next_cell, reward, done = walk(cell, action)
                reward += self.discount * self.phi(next_cell) - self.phi(cell)
                td_target = reward + self.discount * max(self.table[next_cell]) * (not done)
                self.table[cell][action] += self.lr * (td_target - self.table[cell][action])
                cell, age = next_cell, age + 1
            steps += age
            tests.append(self.test())
            if sum(tests[-window:]) / len(tests[-window:]) >= solved:
                break
        return steps

    def test(self) -> float:
        """Return the return of a greedy episode."""
        cell, total = START, 0.0
        for _ in range(LIMIT):
            cell, reward, done = walk(cell, self.best(cell))
            total += reward
            if done:
                break
        return total


class CartPoleWithPotential:
    """Gymnasium's CartPole with the interface of `plain.ddqn.SyntheticEnvironment`. The reward is the difference of the
    potential ``network`` between two states, in place of the task's reward."""

    def __init__(self, network: Callable[[Tensor], Tensor], discount: float):
        self.network, self.discount, self.env = network, discount, ddqn.cartpole()

    def reset(self) -> Tensor:
        self.obs = torch.as_tensor(self.env.reset()[0])
        return self.obs

    @torch.no_grad()
    def step(self, action: int) -> tuple[Tensor, Tensor, Tensor | bool, bool]:
        next_obs, _, terminated, truncated, _ = self.env.step(action)
        previous_obs, self.obs = self.obs, torch.as_tensor(next_obs)
        reward = self.discount * self.network(self.obs) - self.network(previous_obs)
        return self.obs, reward, terminated, terminated or truncated


def cartpole_training(network: nn.Module, seed: int, steps: int, test_every: int, tests: int) -> ddqn.PlainTraining:
    """Train a plain DDQN on CartPole with the potential ``network``, with greedy tests every ``test_every`` steps."""
    settings = ddqn.PRESETS["recipe"]
    training = ddqn.PlainTraining(settings, seed)
    training.environment = CartPoleWithPotential(network, settings.discount)  # type: ignore[assignment]  # same methods
    training.obs = training.environment.reset()
    real: gym.Env = ddqn.cartpole()
    for _ in range(steps // test_every):
        training.run(test_every)
        ddqn.test(training.online, real, range(tests))
    return training
