"""Training on reward networks as plain programs: one agent, one step at a time. ../rewards.py compares with them.

Same networks, settings and order of work as ours. Source: Ferreira et al. 2022, arXiv 2202.02790, and its public code,
which steps and tests so.
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
    """The next cell of Cliff, the reward, and whether the episode ends."""
    row, column = divmod(cell, COLUMNS)
    down, right = MOVES[action]
    row, column = min(max(row + down, 0), ROWS - 1), min(max(column + right, 0), COLUMNS - 1)
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
        return float(self.network(self.one_hot[cell]))

    def best(self, cell: int) -> int:
        row = self.table[cell]
        return row.index(max(row))

    def train(self, episodes: int, solved: float, window: int) -> int:
        """Steps until the mean of the latest ``window`` tests reaches ``solved``, or of all ``episodes``."""
        steps, tests = 0, []
        for _ in range(episodes):
            cell, over, age = START, False, 0
            while not over and age < LIMIT:
                explores = self.random.random() < self.epsilon
                action = self.random.randrange(len(MOVES)) if explores else self.best(cell)
                after, reward, over = walk(cell, action)
                reward += self.discount * self.phi(after) - self.phi(cell)
                goal = reward + self.discount * max(self.table[after]) * (not over)
                self.table[cell][action] += self.lr * (goal - self.table[cell][action])
                cell, age = after, age + 1
            steps += age
            tests.append(self.test())
            if sum(tests[-window:]) / len(tests[-window:]) >= solved:
                break
        return steps

    def test(self) -> float:
        cell, total = START, 0.0
        for _ in range(LIMIT):
            cell, reward, over = walk(cell, self.best(cell))
            total += reward
            if over:
                break
        return total


class Rewarded:
    """Gymnasium's CartPole with an exclusive potential, as `plain.ddqn.SyntheticEnvironment` is stepped."""

    def __init__(self, network: Callable[[Tensor], Tensor], discount: float):
        self.network, self.discount, self.env = network, discount, ddqn.cartpole()

    def reset(self) -> Tensor:
        self.obs = torch.as_tensor(self.env.reset()[0])
        return self.obs

    @torch.no_grad()
    def step(self, action: int) -> tuple[Tensor, Tensor, Tensor | bool, bool]:
        seen, _, terminated, truncated, _ = self.env.step(action)
        before, self.obs = self.obs, torch.as_tensor(seen)
        reward = self.discount * self.network(self.obs) - self.network(before)
        return self.obs, reward, terminated, terminated or truncated


def cartpole_training(network: nn.Module, seed: int, steps: int, every: int, tests: int) -> ddqn.PlainTraining:
    """A fresh plain DDQN on CartPole's potential ``network``, tested greedily every so many steps."""
    settings = ddqn.PRESETS["recipe"]
    training = ddqn.PlainTraining(settings, seed)
    training.environment = Rewarded(network, settings.discount)  # type: ignore[assignment]
    training.obs = training.environment.reset()
    real: gym.Env = ddqn.cartpole()
    for _ in range(steps // every):
        training.run(every)
        ddqn.test(training.online, real, range(tests))
    return training
