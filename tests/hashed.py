"""For tests of environments whose chance is a hash of seed and step: the hash in plain Python, and reward rates."""

from typing import Any

import torch
from torch import Tensor

from envs.tensor import Dynamics, TensorEnvironment

_GOLDEN = 0x9E3779B97F4A7C15


def _mix(number: int) -> int:
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB % 2**64
    return number ^ (number >> 31)


def plain_uniform_at(seed: int, column: int) -> float:
    """`envs.seeded.uniform_at` of one seed, any integer, and one column."""
    seed_hash = _mix((seed + _GOLDEN) % 2**64)
    return (_mix((_mix((seed_hash + 3) % 2**64) + (column + 1) * _GOLDEN) % 2**64) >> 11) / 2**53


def walk(world: Any, state: Tensor, actions: list[int]) -> list[tuple[list[int], float, bool]]:
    """After each action: the state of the one episode, the reward, and whether it terminated."""
    transitions = []
    for action in actions:
        state, reward, terminated, discount = world.step(state, torch.tensor([[action]]))
        assert discount is None and reward.dtype == torch.float32
        transitions.append((state[0, 0].tolist(), round(reward.item(), 6), bool(terminated)))
    return transitions


def random_actions(dynamics: Dynamics, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(dynamics.spaces.actions.n, shape, generator=torch.Generator().manual_seed(seed))


def reward_rate(dynamics: Dynamics, actions: Tensor) -> tuple[float, float]:
    """Mean reward a step of the actions ``[T, E]`` from the reset on, and its standard error over the E rollouts."""
    environment = TensorEnvironment(dynamics, 1, actions.shape[1])
    environment.reset(torch.arange(actions.shape[1])[None])
    rates = torch.stack([environment.step(action[None]).reward[0] for action in actions]).double().mean(0)
    return rates.mean().item(), rates.std().item() / len(rates) ** 0.5
