"""Potentials made by hand: what people who know a task would shape its reward with. Baselines, and where a search for a
reward network may start."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ByHand:
    """``potential`` of states ``[..., S] -> [...]``, in units of reward. ``low`` and ``high`` bound the states of
    interest; a map has so many ``cells`` instead."""

    potential: Callable[[Tensor], Tensor]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    cells: int = 0

    def states(self, count: int) -> Tensor:
        """``[N, S]``: ``count`` uniform within the bounds, the same every time; or each cell once."""
        if self.cells:
            return torch.eye(self.cells)
        low, high = torch.tensor(self.low), torch.tensor(self.high)
        return low + (high - low) * torch.rand(count, len(low), generator=torch.Generator().manual_seed(0))


def _way_home(obs: Tensor) -> Tensor:
    """Minus the moves to the goal of Cliff by the row above it, 4 x 12 cells."""
    cell = obs.argmax(-1)
    row, column = cell // 12, cell % 12
    manhattan_distance = 3 - row + 11 - column
    moves = torch.where((row == 3) & (column < 11), manhattan_distance + 2, manhattan_distance)
    return -moves.float()


def _balance(obs: Tensor) -> Tensor:
    """How near CartPole is to upright, still and the middle."""
    x, speed, angle, spin = obs.unbind(-1)
    return 1 - (0.2 * x**2 + 0.1 * speed**2 + 20 * angle**2 + spin**2 + 5 * angle * spin)


def _energy(obs: Tensor) -> Tensor:
    """A thousand times the mechanical energy of the car."""
    x, speed = obs.unbind(-1)
    return 1000 * (0.0025 / 3 * (3 * x).sin() + speed**2 / 2)


def _upright(obs: Tensor) -> Tensor:
    """How upright the pendulum is, and how still."""
    cos, _, speed = obs.unbind(-1)
    return 10 * cos - 0.1 * speed**2


_BALANCE = ByHand(_balance, (-2.4, -2, -0.21, -2), (2.4, 2, 0.21, 2))
HAND: dict[str, ByHand] = {
    "cliff": ByHand(_way_home, cells=48),
    "cartpole": _BALANCE,
    "cartpole-200": _BALANCE,
    "mountaincar-continuous": ByHand(_energy, (-1.2, -0.07), (0.6, 0.07)),
    "pendulum": ByHand(_upright, (-1, -1, -8), (1, 1, 8)),
}
