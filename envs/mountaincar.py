"""MountainCar as a tensor program: the equations of Gymnasium 1.4.0's MountainCar-v0 in float64, within rounding.

A car in a valley is too weak to drive up the hill and has to swing (Moore 1990, "Efficient Memory-based Learning for
Robot Control"). Initial states are uniform as Gymnasium's but from `envs.seeded`, not from NumPy's stream: the same
seed starts another episode there.
"""

import torch
from torch import Tensor

from envs.repeated import RepeatedDynamics
from envs.seeded import uniform
from models.spaces import Discrete
from models.streams import Streams

_GRAVITY, _FORCE = 0.0025, 0.001
LEFT, RIGHT, FASTEST = -1.2, 0.6, 0.07  # ends of the track, and the largest speed per step
_GOAL = 0.5


class MountainCar(RepeatedDynamics):
    """State ``[..., 2]`` float64, position and speed; the observation is the same in float32. Actions 0, 1, 2 push to
    the left, not at all, to the right. A step pays -1, and terminates from position 0.5 on. The left end stops the
    car."""

    observed, actions = 2, Discrete(3)

    def first(self, seeds: Tensor) -> Tensor:
        return valley(seeds)

    def anywhere(self, streams: Streams, count: int) -> Tensor:
        return track(streams, count)

    def seen(self, state: Tensor) -> Tensor:
        return state.float()

    def once(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        position, speed = state.unbind(-1)
        push = (actions - 1).double() * _FORCE - (position * 3).cos() * _GRAVITY
        state, terminated = driven(position, speed + push, _GOAL)
        return state, torch.full_like(position, -1.0, dtype=torch.float32), terminated


def valley(seeds: Tensor) -> Tensor:
    """States ``[..., 2]`` float64 at rest, uniform on [-0.6, -0.4)."""
    position = uniform(seeds, 1) * 0.2 - 0.6
    return torch.cat((position, torch.zeros_like(position)), -1)


def track(streams: Streams, count: int) -> Tensor:
    """Positions and speeds ``[M, count, 2]`` float32, uniform between their ends."""
    position, speed = streams.uniform(count, 2).unbind(-1)
    return torch.stack((LEFT + (RIGHT - LEFT) * position, FASTEST * (2 * speed - 1)), -1)


def driven(position: Tensor, speed: Tensor, goal: float) -> tuple[Tensor, Tensor]:
    """The next state ``[..., 2]`` and whether it is at the goal, of a car at ``position [...]`` that was pushed to
    ``speed [...]``."""
    speed = speed.clamp(-FASTEST, FASTEST)
    position = (position + speed).clamp(LEFT, RIGHT)
    speed = torch.where((position == LEFT) & (speed < 0), 0.0, speed)
    return torch.stack((position, speed), -1), (position >= goal) & (speed >= 0)
