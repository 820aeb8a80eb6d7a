"""Acrobot as a tensor program: the equations of Gymnasium 1.4.0's Acrobot-v1 in float64, within rounding.

Two links of 1 m and 1 kg hang from a fixed joint. Actions 0, 1, 2 apply a torque of -1, 0, +1 N m between them for 0.2
s, which is one step of the classical Runge-Kutta method. Equations are from Sutton & Barto, "Reinforcement Learning"
(section 11.3 of the first edition, Gymnasium's ``book``), without noise. The reward is -1 per step, and 0 in the step
that brings the tip more than 1 m above the joint, which ends the episode.

Initial states have Gymnasium's distribution, but are not rounded to float32. From the same state, the next state equals
Gymnasium's up to rounding. Swings are chaotic, so after a hundred steps the two differ.
"""

import math

import torch
from torch import Tensor

from envs.seeded import uniform
from envs.tensor import Dynamics
from models.spaces import Discrete, Spaces

_GRAVITY, _SECONDS = 9.8, 0.2
_START = 0.1  # largest absolute value of the numbers of an initial state


class Acrobot(Dynamics):
    """State ``[..., 4]`` float64: the angle of the first link (rad, 0 if it hangs down), the angle between the links
    (rad), and the speeds of both angles (rad/s). Observation ``[..., 6]`` float32: cosine and sine of the first angle,
    cosine and sine of the second angle, both speeds."""

    def __init__(self, max_episode_steps: int | None = 500) -> None:
        self.spaces = Spaces((6,), Discrete(3), torch.float32, max_episode_steps)
        # Attributes, so that `Dynamics.to` moves them to a device. Angles wrap into [-pi, pi], and speeds (rad/s) are
        # clipped. All tables have an entry for each number of the state, so that the state need not be sliced: a period
        # of infinity and a shift of 0 leave a speed unchanged when angles wrap, and infinite bounds leave an angle
        # unchanged when speeds are clipped.
        self._torques = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
        self._period = torch.tensor([2 * math.pi, 2 * math.pi, math.inf, math.inf], dtype=torch.float64)
        self._shift = torch.tensor([2 * math.pi, 2 * math.pi, 0.0, 0.0], dtype=torch.float64)
        self._fastest = torch.tensor([math.inf, math.inf, 4 * math.pi, 9 * math.pi], dtype=torch.float64)

    def initial(self, seeds: Tensor) -> Tensor:
        return (uniform(seeds, 4) * 2 - 1) * _START

    def observe(self, state: Tensor) -> Tensor:
        angles, speeds = state.split(2, -1)
        cos_and_sin = torch.stack((angles.cos(), angles.sin()), -1).flatten(-2)
        return torch.cat((cos_and_sin, speeds), -1).float()

    def step(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        torque = torch.take(self._torques, actions)
        k1 = _rates(state, torque)
        k2 = _rates(state + k1 * (_SECONDS / 2), torque)
        k3 = _rates(state + k2 * (_SECONDS / 2), torque)
        k4 = _rates(state + k3 * _SECONDS, torque)
        state = state + (k1 + (k2 + k3) * 2 + k4) * (_SECONDS / 6)
        state = state - (state / self._period).round() * self._shift  # wraps angles into [-pi, pi]
        state = state.clamp(-self._fastest, self._fastest)  # limits the speeds; the bounds of angles are infinite
        first, second = state[..., 0], state[..., 1]
        terminated = first.cos() + (first + second).cos() < -1.0  # the sum is how far the tip is below the joint, in m
        return state, terminated.float() - 1.0, terminated, None


def _rates(state: Tensor, torque: Tensor) -> Tensor:
    """Return the time derivatives ``[..., 4]`` of the state under the torque ``[...]``. d1, d2, phi1 and phi2 are the
    book's, with the masses, lengths and moments inserted, and with cos(x - pi/2) = sin(x)."""
    first, second, speed1, speed2 = state.unbind(-1)
    cos, half_sin = second.cos(), second.sin() * 0.5
    d1, d2 = cos + 3.5, cos * 0.5 + 1.25
    phi2 = (first + second).sin() * (0.5 * _GRAVITY)
    phi1 = first.sin() * (1.5 * _GRAVITY) + phi2 - half_sin * speed2 * (speed2 + speed1 * 2)
    ratio = d2 / d1
    rate2 = (torque + ratio * phi1 - half_sin * speed1 * speed1 - phi2) / (1.25 - d2 * ratio)
    rate1 = -(d2 * rate2 + phi1) / d1
    return torch.stack((speed1, speed2, rate1, rate2), -1)
