"""Handmade potentials for reward shaping. They are baselines, and a search for a reward network may start from one."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class HandmadePotential:
    """A handmade potential, and the states to which a network is fitted: within bounds, or the cells of a map."""

    potential: Callable[[Tensor], Tensor]  # states [..., S] -> values [...] in units of reward
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    cells: int = 0

    def states(self, count: int) -> Tensor:
        """Return ``count`` fixed states ``[count, S]``, uniform within the bounds. For a map, return each of its cells
        once, one-hot ``[cells, cells]``."""
        if self.cells:
            return torch.eye(self.cells)
        low, high = torch.tensor(self.low), torch.tensor(self.high)
        generator = torch.Generator().manual_seed(0)
        return low + (high - low) * torch.rand(count, len(low), generator=generator)


def _negative_distance(obs: Tensor) -> Tensor:
    """Return -1 times the number of moves to the goal of Cliff (4 x 12 cells) for one-hot cells ``[..., 48]``."""
    cell = obs.argmax(-1)
    row, column = cell // 12, cell % 12
    manhattan_distance = (3 - row) + (11 - column)  # the goal is the bottom right cell
    # From the bottom row (the start and the cliff) the path has two additional moves, one up and one down.
    moves = torch.where((row == 3) & (column < 11), manhattan_distance + 2, manhattan_distance)
    return -moves.float()


def _balance(obs: Tensor) -> Tensor:
    """Return how near CartPole is to standing upright, still and in the middle: at most 1, for ``obs [..., 4]``. The
    weights are chosen by hand."""
    x, speed, angle, spin = obs.unbind(-1)
    return 1 - (0.2 * x**2 + 0.1 * speed**2 + 20 * angle**2 + spin**2 + 5 * angle * spin)


def _energy(obs: Tensor) -> Tensor:
    """Return 1,000 times the mechanical energy of MountainCar for ``obs [..., 2]``, position and speed."""
    x, speed = obs.unbind(-1)
    # Gravity accelerates the car by -0.0025 cos(3 x), so its potential energy is 0.0025 / 3 sin(3 x).
    return 1000 * (0.0025 / 3 * (3 * x).sin() + speed**2 / 2)


def _upright(obs: Tensor) -> Tensor:
    """Return how upright and how still the pendulum is: at most 10, for ``obs [..., 3]``."""
    cos, _, speed = obs.unbind(-1)
    return 10 * cos - 0.1 * speed**2


_BALANCE = HandmadePotential(_balance, (-2.4, -2, -0.21, -2), (2.4, 2, 0.21, 2))
HAND: dict[str, HandmadePotential] = {
    "cliff": HandmadePotential(_negative_distance, cells=48),
    "cartpole": _BALANCE,
    "cartpole-200": _BALANCE,
    "mountaincar-continuous": HandmadePotential(_energy, (-1.2, -0.07), (0.6, 0.07)),
    "pendulum": HandmadePotential(_upright, (-1, -1, -8), (1, 1, 8)),
}
