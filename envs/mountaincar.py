"""MountainCar as tensor programs, with the equations of Gymnasium 1.4.0. MountainCar-v0 is computed in float64 and
equals Gymnasium's up to rounding. MountainCarContinuous-v0 has its state in float32 and is rounded as Gymnasium's.

A car in a valley is too weak to drive straight up the hill and has to swing (Moore 1990, "Efficient Memory-based
Learning for Robot Control"). Initial states have Gymnasium's distribution.
"""

import torch
from torch import Tensor

from envs.repeated import RepeatedDynamics
from envs.seeded import uniform
from models.spaces import Continuous, Discrete
from models.streams import Streams

_GRAVITY, _FORCE, _POWER = 0.0025, 0.001, 0.0015
LEFT, RIGHT, MAX_SPEED = -1.2, 0.6, 0.07  # positions of the ends of the track, and the largest speed per step
_GOAL, _CONTINUOUS_GOAL = 0.5, 0.45  # positions of the goal with discrete and with continuous actions
_GOAL_REWARD, _FORCE_COST = 100.0, 0.1


class _Car(RepeatedDynamics):
    """Base class of both cars: the state is position and speed, and both are observed."""

    obs_size = 2

    def sample_observations(self, streams: Streams, count: int) -> Tensor:
        position, speed = streams.uniform(count, 2).unbind(-1)
        return torch.stack((LEFT + (RIGHT - LEFT) * position, MAX_SPEED * (2 * speed - 1)), -1)

    def observe_state(self, state: Tensor) -> Tensor:
        return state.float()


class MountainCar(_Car):
    """State ``[..., 2]`` float64: position and speed. The observation is the same in float32. Actions 0, 1, 2 push to
    the left, not at all, to the right. Every step pays -1. An episode terminates at position 0.5 or beyond. The left
    end of the track stops the car."""

    actions = Discrete(3)

    def first_states(self, seeds: Tensor) -> Tensor:
        return states_at_rest(seeds)

    def single_step(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        position, speed = state.unbind(-1)
        acceleration = (actions - 1).double() * _FORCE - (position * 3).cos() * _GRAVITY
        state, terminated = move_car(position, speed + acceleration, _GOAL)
        return state, torch.full_like(position, -1.0, dtype=torch.float32), terminated


class MountainCarContinuous(_Car):
    """State and observation ``[..., 2]`` float32: position and speed. Actions ``[..., 1]`` are forces within [-1, 1]. A
    step costs 0.1 times the square of the force. An episode terminates at position 0.45 or beyond, which pays 100.

    Two steps may differ from Gymnasium's in the last digit: the first one, because Gymnasium's initial state is
    float64, and a step with a force out of bounds, which Gymnasium clips."""

    actions, max_return = Continuous((-1.0,), (1.0,)), _GOAL_REWARD

    def first_states(self, seeds: Tensor) -> Tensor:
        return states_at_rest(seeds).float()

    def single_step(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        position, speed = state.unbind(-1)
        force = actions.squeeze(-1)
        # Gymnasium computes the cosine and the square in float64, everything else in float32.
        slope = ((position * 3).double().cos() * _GRAVITY).float()
        acceleration = force.clamp(-1.0, 1.0) * _POWER - slope
        state, terminated = move_car(position, speed + acceleration, _CONTINUOUS_GOAL)
        reward = terminated.double() * _GOAL_REWARD - force.double().square() * _FORCE_COST
        return state, reward, terminated


def states_at_rest(seeds: Tensor) -> Tensor:
    """Return states ``[..., 2]`` float64 at rest, with positions uniform on [-0.6, -0.4)."""
    position = uniform(seeds, 1) * 0.2 - 0.6
    return torch.cat((position, torch.zeros_like(position)), -1)


def move_car(position: Tensor, speed: Tensor, goal: float) -> tuple[Tensor, Tensor]:
    """Move a car at ``position [...]`` by ``speed [...]``, which already includes the acceleration of the step. Return
    the next state ``[..., 2]``, and terminated ``[...]``: whether it is at the goal and does not move to the left."""
    speed = speed.clamp(-MAX_SPEED, MAX_SPEED)
    position = (position + speed).clamp(LEFT, RIGHT)
    hits_left_end = (position == LEFT) & (speed < 0)
    speed = torch.where(hits_left_end, 0.0, speed)
    terminated = (position >= goal) & (speed >= 0)
    return torch.stack((position, speed), -1), terminated
