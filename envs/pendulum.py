"""Pendulum as a tensor program: the equations of Gymnasium 1.4.0's Pendulum-v1 in float64, within rounding.

A motor must hold a rod of 1 kg and 1 m upright under a gravity of 10 m/s^2. A step of 0.05 s is one step of the
semi-implicit Euler method. Initial states have Gymnasium's distribution.
"""

import math

import torch
from torch import Tensor

from envs.repeated import RepeatedDynamics
from envs.seeded import uniform
from models.spaces import Continuous
from models.streams import Streams

_SECONDS, _MAX_SPEED, _TORQUE = 0.05, 8.0, 2.0
_WEIGHT = 15.0  # 3 g / 2 l, factor on the sine of the angle in the angular acceleration
_INERTIA = 3.0  # 3 / m l^2, factor on the torque
_SPEED_COST, _TORQUE_COST = 0.1, 0.001  # factors on the squares
# Largest initial angle and speed, in absolute value.
_START = torch.tensor([math.pi, 1.0], dtype=torch.float64)


class Pendulum(RepeatedDynamics):
    """State ``[..., 2]`` float64: the angle from upright (rad), which is never wrapped, and its speed (rad/s).
    Observation ``[..., 3]`` float32: cosine and sine of the angle, and the speed. Actions ``[..., 1]`` are torques
    within [-2, 2] N m. A step costs angle^2 + 0.1 speed^2 + 0.001 torque^2, with angle and speed before the step and
    the angle wrapped into [-pi, pi). Episodes never terminate."""

    obs_size = 3
    actions = Continuous((-_TORQUE,), (_TORQUE,))
    max_return = 0.0

    def first_states(self, seeds: Tensor) -> Tensor:
        return (uniform(seeds, 2) * 2 - 1) * _START.to(seeds.device)

    def sample_observations(self, streams: Streams, count: int) -> Tensor:
        largest = torch.tensor([math.pi, _MAX_SPEED], dtype=torch.float64)
        states = (streams.uniform(count, 2).double() * 2 - 1) * largest
        return self.observe_state(states)

    def observe_state(self, state: Tensor) -> Tensor:
        angle, speed = state.unbind(-1)
        return torch.stack((angle.cos(), angle.sin(), speed), -1).float()

    def single_step(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        angle, speed = state.unbind(-1)
        torque = actions.squeeze(-1).clamp(-_TORQUE, _TORQUE)
        wrapped_angle = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        # As in Gymnasium, the terms of the torque are float32 until they are added to the other terms.
        cost = wrapped_angle * wrapped_angle + speed * speed * _SPEED_COST + torque * torque * _TORQUE_COST
        speed = speed + (angle.sin() * _WEIGHT + torque * _INERTIA) * _SECONDS
        speed = speed.clamp(-_MAX_SPEED, _MAX_SPEED)
        state = torch.stack((angle + speed * _SECONDS, speed), -1)
        return state, -cost, torch.zeros_like(cost, dtype=torch.bool)
