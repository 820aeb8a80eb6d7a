"""CartPole as a tensor program: the equations of Gymnasium 1.4.0's CartPole-v0 and -v1 in float64, within rounding.

By default, a cart of 1 kg on a track carries a pole of 0.1 kg and half length 0.5 m (Barto, Sutton & Anderson 1983,
with Florian 2007's corrected equations and no friction). Actions push the cart with 10 N to the left (0) or right (1)
for 0.02 s, which is one step of the explicit Euler method. Every step pays 1, including the last one. An episode
terminates if the cart is more than 2.4 m from the middle or the pole more than 12 degrees from upright. Initial states
have Gymnasium's distribution.
"""

import math

import torch
from torch import Tensor

from envs.names import CartPoleParameters
from envs.seeded import uniform
from envs.tensor import Dynamics
from models.spaces import Discrete, Spaces

_SECONDS = 0.02
# Largest absolute values of a state that does not terminate; speeds have no bound. `math.radians(12)` would differ from
# Gymnasium's bound by an ulp.
_BOUNDS = torch.tensor([2.4, math.inf, 12 * 2 * math.pi / 360, math.inf], dtype=torch.float64)
_START = 0.05  # largest absolute value of the numbers of an initial state
# Physics that are sampled for each episode if there is a spread. They are columns 4 to 7 of a state.
_SAMPLED_PHYSICS = ("gravity", "cart_mass", "pole_mass", "half_length")


class CartPole(Dynamics):
    """State ``[..., 4]`` float64: position (m), speed (m/s), angle from upright (rad), angular speed (rad/s). The
    observation is the same in float32. ``max_episode_steps`` is 500 in CartPole-v1, 200 in CartPole-v0.

    ``physics`` are fields of `CartPoleParameters`. With a ``physics_spread`` above 1 the state is ``[..., 8]``. The
    last four numbers are gravity, both masses and half length, which differ between episodes and are not observed."""

    def __init__(self, max_episode_steps: int | None = 500, **physics: float) -> None:
        max_return = None if max_episode_steps is None else float(max_episode_steps)
        self.spaces = Spaces((4,), Discrete(2), torch.float32, max_episode_steps, max_return)
        self.physics = CartPoleParameters(**physics)
        self.random_physics = self.physics.physics_spread > 1
        self._nominal_physics = [getattr(self.physics, name) for name in _SAMPLED_PHYSICS]
        self._nominal_tensor = torch.tensor(self._nominal_physics, dtype=torch.float64)
        self._bounds = _BOUNDS

    def initial(self, seeds: Tensor) -> Tensor:
        if not self.random_physics:
            return (uniform(seeds, 4) * 2 - 1) * _START
        num_physics = len(_SAMPLED_PHYSICS)
        numbers = uniform(seeds, 4 + num_physics) * 2 - 1  # in [-1, 1)
        motion_numbers, physics_numbers = numbers.split([4, num_physics], -1)
        # Log-uniform between 1 / spread and spread.
        factors = (physics_numbers * math.log(self.physics.physics_spread)).exp()
        return torch.cat((motion_numbers * _START, factors * self._nominal_tensor), -1)

    def observe(self, state: Tensor) -> Tensor:
        return state[..., :4].float()

    def step(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        if self.random_physics:
            motion, episode_physics = state.split([4, len(_SAMPLED_PHYSICS)], -1)
            gravity, cart_mass, pole_mass, half_length = episode_physics.unbind(-1)
        else:
            motion = state
            gravity, cart_mass, pole_mass, half_length = self._nominal_physics
        _, speed, angle, angular_speed = motion.unbind(-1)
        mass = cart_mass + pole_mass
        moment = pole_mass * half_length / mass  # the pole's first moment of mass, divided by the total mass, in m
        cos, sin = angle.cos(), angle.sin()
        direction = actions.double() * 2 - 1  # -1 or 1
        push = direction * (self.physics.force / mass) + angular_speed * angular_speed * sin * moment
        inertia = half_length * 4 / 3 - cos * cos * (half_length * pole_mass / mass)
        angular_acceleration = (sin * gravity - cos * push) / inertia
        acceleration = push - angular_acceleration * cos * moment
        rates = torch.stack((speed, acceleration, angular_speed, angular_acceleration), -1)
        motion = motion + rates * _SECONDS
        terminated = (motion.abs() > self._bounds).any(-1)
        next_state = torch.cat((motion, episode_physics), -1) if self.random_physics else motion
        return next_state, torch.ones_like(speed, dtype=torch.float32), terminated, None
