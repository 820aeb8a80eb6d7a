"""CartPole as a tensor program: the equations of Gymnasium 1.4.0's CartPole-v0 and -v1 in float64, within rounding.

A cart of 1 kg on a track carries a pole of 0.1 kg and half length 0.5 m (Barto, Sutton & Anderson 1983, with Florian
2007's corrected equations and no friction). Actions push it with 10 N to the left (0) or right (1) for 0.02 s, explicit
Euler. Every step pays 1, the one that ends the episode too. It terminates when the cart is beyond 2.4 m or the pole
beyond 12 degrees. Initial states are uniform as Gymnasium's but from `envs.seeded`, not from NumPy's stream: the same
seed starts another episode there.
"""

import math

import torch
from torch import Tensor

from envs.seeded import uniform
from envs.tensor import Dynamics
from models.spaces import Discrete, Spaces

_GRAVITY, _FORCE, _SECONDS = 9.8, 10.0, 0.02
_MASS, _POLE_MASS, _HALF_LENGTH = 1.1, 0.1, 0.5  # kg with the pole, kg, m
_SHARE = _POLE_MASS * _HALF_LENGTH / _MASS  # the pole's moment over the whole mass, m
_PUSHES = torch.tensor([-_FORCE / _MASS, _FORCE / _MASS], dtype=torch.float64)
# The largest |state| of an episode that goes on; no speed is too large. `math.radians(12)` is an ulp off Gymnasium's.
_BOUNDS = torch.tensor([2.4, math.inf, 12 * 2 * math.pi / 360, math.inf], dtype=torch.float64)
_START = 0.05


class CartPole(Dynamics):
    """State ``[..., 4]`` float64: position (m), speed (m/s), angle from upright (rad), angular speed (rad/s); the
    observation is the same in float32. ``max_episode_steps`` is 500 in CartPole-v1, 200 in CartPole-v0."""

    def __init__(self, max_episode_steps: int = 500) -> None:
        self.spaces = Spaces((4,), Discrete(2), torch.float32, max_episode_steps, float(max_episode_steps))
        self._pushes, self._bounds = _PUSHES, _BOUNDS

    def initial(self, seeds: Tensor) -> Tensor:
        """Uniform on [-0.05, 0.05) in each of the four numbers."""
        return (uniform(seeds, 4) * 2 - 1) * _START

    def observe(self, state: Tensor) -> Tensor:
        return state.float()

    def step(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        _, speed, angle, spin = state.unbind(-1)
        cos, sin = angle.cos(), angle.sin()
        push = torch.take(self._pushes, actions) + spin * spin * sin * _SHARE
        turn = (sin * _GRAVITY - cos * push) / (_HALF_LENGTH * 4 / 3 - cos * cos * (_HALF_LENGTH * _POLE_MASS / _MASS))
        rates = torch.stack((speed, push - turn * cos * _SHARE, spin, turn), -1)
        state = state + rates * _SECONDS
        return state, torch.ones_like(speed, dtype=torch.float32), (state.abs() > self._bounds).any(-1), None
