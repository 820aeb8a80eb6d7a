"""Gymnasium's classic control tasks as tensor programs: the equations of Gymnasium 1.4.0 in float64, within rounding.

Initial states have Gymnasium's distribution, but are not rounded to float32.
"""

import math

import torch
from torch import Tensor

from envs.names import CartPoleParameters, RepeatParameters
from envs.seeded import uniform
from envs.tensor import Dynamics, Transition
from models.spaces import Continuous, Discrete, Spaces
from models.streams import Streams

# Names with _SECONDS are the duration of a step, names with _START the largest absolute value of an initial state.

# CartPole. Largest absolute values of a state that does not terminate; speeds have no bound. `math.radians(12)` would
# differ from Gymnasium's bound by an ulp.
_CARTPOLE_BOUNDS = torch.tensor([2.4, math.inf, 12 * 2 * math.pi / 360, math.inf], dtype=torch.float64)
_CARTPOLE_SECONDS, _CARTPOLE_START = 0.02, 0.05
# Physics that are sampled for each episode if there is a spread. They are columns 4 to 7 of a state.
_SAMPLED_PHYSICS = ("gravity", "cart_mass", "pole_mass", "half_length")
# Acrobot
_ACROBOT_GRAVITY, _ACROBOT_SECONDS, _ACROBOT_START = 9.8, 0.2, 0.1
# MountainCar
_CAR_GRAVITY, _CAR_FORCE, _CAR_POWER = 0.0025, 0.001, 0.0015
_LEFT, _RIGHT, _CAR_MAX_SPEED = -1.2, 0.6, 0.07  # positions of the ends of the track, and the largest speed per step
_CAR_GOAL, _CONTINUOUS_GOAL = 0.5, 0.45  # positions of the goal with discrete and with continuous actions
_GOAL_REWARD, _FORCE_COST = 100.0, 0.1
# Pendulum
_PENDULUM_SECONDS, _PENDULUM_MAX_SPEED, _TORQUE = 0.05, 8.0, 2.0
_WEIGHT = 15.0  # 3 g / 2 l, factor on the sine of the angle in the angular acceleration
_INERTIA = 3.0  # 3 / m l^2, factor on the torque
_SPEED_COST, _TORQUE_COST = 0.1, 0.001  # factors on the squares of speed and torque
_PENDULUM_START = torch.tensor([math.pi, 1.0], dtype=torch.float64)


class CartPole(Dynamics):
    """A cart of 1 kg on a track carries a pole of 0.1 kg and half length 0.5 m (Barto, Sutton & Anderson 1983, with
    Florian 2007's corrected equations and no friction). Actions push the cart with 10 N to the left (0) or right (1)
    for 0.02 s, which is one step of the explicit Euler method. Every step pays 1, including the last step. An episode
    terminates if the cart is more than 2.4 m from the middle or the pole more than 12 degrees from upright.

    State ``[..., 4]`` float64: position (m), speed (m/s), angle from upright (rad), angular speed (rad/s). The
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
        self._bounds = _CARTPOLE_BOUNDS

    def initial(self, seeds: Tensor) -> Tensor:
        """Return initial states: uniform positions, speeds and angles, then physics if they are random."""
        if not self.random_physics:
            return (uniform(seeds, 4) * 2 - 1) * _CARTPOLE_START
        num_physics = len(_SAMPLED_PHYSICS)
        samples = uniform(seeds, 4 + num_physics) * 2 - 1  # uniform on [-1, 1)
        motion_samples, physics_samples = samples.split([4, num_physics], -1)
        # Log-uniform between 1 / spread and spread.
        factors = (physics_samples * math.log(self.physics.physics_spread)).exp()
        return torch.cat((motion_samples * _CARTPOLE_START, factors * self._nominal_tensor), -1)

    def observe(self, state: Tensor) -> Tensor:
        return state[..., :4].float()

    def step(self, state: Tensor, actions: Tensor) -> Transition:
        """Push the carts for 0.02 s, one step of the explicit Euler method. Every step pays 1."""
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
        motion = motion + rates * _CARTPOLE_SECONDS
        terminated = (motion.abs() > self._bounds).any(-1)
        next_state = torch.cat((motion, episode_physics), -1) if self.random_physics else motion
        return Transition(next_state, torch.ones_like(speed, dtype=torch.float32), terminated)


class Acrobot(Dynamics):
    """Two links of 1 m and 1 kg hang from a fixed joint. Actions 0, 1, 2 apply a torque of -1, 0, +1 N m between them
    for 0.2 s, which is one step of the classical Runge-Kutta method. Equations are from Sutton & Barto, "Reinforcement
    Learning" (section 11.3 of the first edition, Gymnasium's ``book``), without noise. The reward is -1 per step, and 0
    in the step that brings the tip more than 1 m above the joint, which ends the episode. Swings are chaotic, so after
    a hundred steps, an episode differs from Gymnasium's.

    State ``[..., 4]`` float64: the angle of the first link (rad, 0 if it hangs down), the angle between the links
    (rad), and the speeds of both angles (rad/s). Observation ``[..., 6]`` float32: cosine and sine of the first angle,
    cosine and sine of the second angle, both speeds."""

    def __init__(self, max_episode_steps: int | None = 500) -> None:
        self.spaces = Spaces((6,), Discrete(3), torch.float32, max_episode_steps)
        # Attributes, so that `Dynamics.to` moves them to a device. Angles wrap into [-pi, pi], and speeds (rad/s) are
        # clipped. Both operations are applied to the whole state, which need not be sliced: a period of infinity and a
        # shift of 0 leave a speed unchanged when angles wrap, and infinite bounds an angle when speeds are clipped.
        self._torques = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
        self._period = torch.tensor([2 * math.pi, 2 * math.pi, math.inf, math.inf], dtype=torch.float64)
        self._shift = torch.tensor([2 * math.pi, 2 * math.pi, 0.0, 0.0], dtype=torch.float64)
        self._fastest = torch.tensor([math.inf, math.inf, 4 * math.pi, 9 * math.pi], dtype=torch.float64)

    def initial(self, seeds: Tensor) -> Tensor:
        return (uniform(seeds, 4) * 2 - 1) * _ACROBOT_START

    def observe(self, state: Tensor) -> Tensor:
        angles, speeds = state.split(2, -1)
        cos_and_sin = torch.stack((angles.cos(), angles.sin()), -1).flatten(-2)
        return torch.cat((cos_and_sin, speeds), -1).float()

    def step(self, state: Tensor, actions: Tensor) -> Transition:
        """Apply the torques for 0.2 s, one step of the Runge-Kutta method. k1 to k4 are its time derivatives."""
        torque = torch.take(self._torques, actions)
        k1 = _acrobot_rates(state, torque)
        k2 = _acrobot_rates(state + k1 * (_ACROBOT_SECONDS / 2), torque)
        k3 = _acrobot_rates(state + k2 * (_ACROBOT_SECONDS / 2), torque)
        k4 = _acrobot_rates(state + k3 * _ACROBOT_SECONDS, torque)
        state = state + (k1 + (k2 + k3) * 2 + k4) * (_ACROBOT_SECONDS / 6)
        state = state - (state / self._period).round() * self._shift  # wraps angles into [-pi, pi]
        state = state.clamp(-self._fastest, self._fastest)  # limits the speeds; the bounds of angles are infinite
        first, second = state[..., 0], state[..., 1]
        terminated = first.cos() + (first + second).cos() < -1.0  # the sum is how far the tip is below the joint, in m
        return Transition(state, terminated.float() - 1.0, terminated)


def _acrobot_rates(state: Tensor, torque: Tensor) -> Tensor:
    """Return the time derivatives ``[..., 4]`` of ``state [..., 4]`` under ``torque [...]``. The names d1, d2, phi1 and
    phi2 are from Sutton & Barto's book. The values of its constants are inserted, and cos(x - pi/2) is sin(x)."""
    first, second, speed1, speed2 = state.unbind(-1)
    cos, half_sin = second.cos(), second.sin() * 0.5
    d1, d2 = cos + 3.5, cos * 0.5 + 1.25
    phi2 = (first + second).sin() * (0.5 * _ACROBOT_GRAVITY)
    phi1 = first.sin() * (1.5 * _ACROBOT_GRAVITY) + phi2 - half_sin * speed2 * (speed2 + speed1 * 2)
    ratio = d2 / d1
    rate2 = (torque + ratio * phi1 - half_sin * speed1 * speed1 - phi2) / (1.25 - d2 * ratio)
    rate1 = -(d2 * rate2 + phi1) / d1
    return torch.stack((speed1, speed2, rate1, rate2), -1)


class RepeatedDynamics(Dynamics):
    """Base class of dynamics that repeat every action. A subclass defines one repetition, `single_step`.

    With ``action_repeat`` n, a step is n repetitions of an action, or fewer if the episode ends before, and pays the
    sum of their rewards. ``max_episode_steps`` counts repetitions: with a limit of 999 and n = 2, an episode has 500
    steps, the last of which has one repetition. If the limit is no multiple of n, states have an additional last
    column: the number of repetitions since the start. Raises SettingError.
    """

    obs_size: int
    actions: Discrete | Continuous
    max_return: float | None = None

    def __init__(
        self, action_repeat: int = RepeatParameters.action_repeat, max_episode_steps: int | None = None
    ) -> None:
        RepeatParameters(action_repeat)  # raises SettingError
        self.repeat = action_repeat
        # Number of repetitions after which an episode ends in the middle of a step. None if that never happens, and
        # states have no column of repetitions.
        self.repetition_limit: int | None = None
        step_limit = None
        if max_episode_steps is not None:
            step_limit = math.ceil(max_episode_steps / action_repeat)
            if max_episode_steps % action_repeat:
                self.repetition_limit = max_episode_steps
        self.spaces = Spaces((self.obs_size,), self.actions, torch.float32, step_limit, self.max_return)

    def first_states(self, seeds: Tensor) -> Tensor:
        """Return initial states as `Dynamics.initial` does, without the column of repetitions."""
        raise NotImplementedError

    def single_step(self, state: Tensor, actions: Tensor) -> Transition:
        """Compute one repetition of ``actions [M, E(, A)]`` in ``state [M, E, K]``. States have no column of
        repetitions here, and the reward may have any floating dtype."""
        raise NotImplementedError

    def observe_state(self, state: Tensor) -> Tensor:
        """Return the observations of states without the column of repetitions."""
        raise NotImplementedError

    def initial(self, seeds: Tensor) -> Tensor:
        state = self.first_states(seeds)
        if self.repetition_limit is None:
            return state
        no_repetitions = torch.zeros_like(state[..., :1])
        return torch.cat((state, no_repetitions), -1)

    def observe(self, state: Tensor) -> Tensor:
        return self.observe_state(state if self.repetition_limit is None else state[..., :-1])

    def step(self, state: Tensor, actions: Tensor) -> Transition:
        """Repeat the actions and sum up the rewards. After its end, an episode does not change any more."""
        limit = self.repetition_limit
        if limit is not None:
            state, counts = state[..., :-1], state[..., -1:]  # [..., 1], repetitions before this step
        state, total, terminated, _ = self.single_step(state, actions)
        for repetitions in range(1, self.repeat):
            continues = ~terminated
            if limit is not None:
                continues &= counts[..., 0] + repetitions < limit
            next_state, reward, next_terminated, _ = self.single_step(state, actions)
            state = torch.where(continues[..., None], next_state, state)
            total = total + torch.where(continues, reward, 0.0)
            terminated = terminated | (continues & next_terminated)
        if limit is not None:
            state = torch.cat((state, counts + self.repeat), -1)
        return Transition(state, total.float(), terminated)


class _Car(RepeatedDynamics):
    """A car in a valley is too weak to drive straight up the hill and has to swing (Moore 1990, "Efficient Memory-based
    Learning for Robot Control"). The state is position and speed, and both are observed."""

    obs_size = 2

    def first_states(self, seeds: Tensor) -> Tensor:
        """Return states at rest, with positions uniform on [-0.6, -0.4)."""
        position = uniform(seeds, 1) * 0.2 - 0.6
        return torch.cat((position, torch.zeros_like(position)), -1)

    def sample_observations(self, streams: Streams, count: int) -> Tensor:
        position, speed = streams.uniform(count, 2).unbind(-1)
        return torch.stack((_LEFT + (_RIGHT - _LEFT) * position, _CAR_MAX_SPEED * (2 * speed - 1)), -1)

    def observe_state(self, state: Tensor) -> Tensor:
        return state.float()


class MountainCar(_Car):
    """State ``[..., 2]`` float64: position and speed, observed in float32. Actions 0, 1, 2 push to the left, not at
    all, to the right. Every step pays -1. The left end of the track stops the car. Episodes terminate at position 0.5
    or beyond."""

    actions = Discrete(3)

    def single_step(self, state: Tensor, actions: Tensor) -> Transition:
        position, speed = state.unbind(-1)
        acceleration = (actions - 1).double() * _CAR_FORCE - (position * 3).cos() * _CAR_GRAVITY
        state, terminated = _move_car(position, speed + acceleration, _CAR_GOAL)
        return Transition(state, torch.full_like(position, -1.0, dtype=torch.float32), terminated)


class MountainCarContinuous(_Car):
    """State and observation ``[..., 2]`` float32, rounded as Gymnasium's: position and speed. Actions ``[..., 1]`` are
    forces within [-1, 1]. A step costs 0.1 times the square of the force. An episode terminates at position 0.45 or
    beyond, which pays 100.

    Two steps may differ from Gymnasium's in the last digit: the first step, because Gymnasium's initial state is
    float64, and a step with a force out of bounds, which Gymnasium clips."""

    actions, max_return = Continuous((-1.0,), (1.0,)), _GOAL_REWARD

    def first_states(self, seeds: Tensor) -> Tensor:
        return super().first_states(seeds).float()

    def single_step(self, state: Tensor, actions: Tensor) -> Transition:
        """Push the car once with a force, with Gymnasium's mixture of float32 and float64."""
        position, speed = state.unbind(-1)
        force = actions.squeeze(-1)
        # Gymnasium computes the cosine and the square in float64, everything else in float32.
        slope = ((position * 3).double().cos() * _CAR_GRAVITY).float()
        acceleration = force.clamp(-1.0, 1.0) * _CAR_POWER - slope
        state, terminated = _move_car(position, speed + acceleration, _CONTINUOUS_GOAL)
        reward = terminated.double() * _GOAL_REWARD - force.double().square() * _FORCE_COST
        return Transition(state, reward, terminated)


def _move_car(position: Tensor, speed: Tensor, goal: float) -> tuple[Tensor, Tensor]:
    """Move a car at ``position [...]`` by ``speed [...]``, which already includes the acceleration of the step. The
    position of the goal is ``goal``. Return the next state ``[..., 2]`` (position and speed), and whether the car is at
    the goal and does not move to the left ``[...]``."""
    speed = speed.clamp(-_CAR_MAX_SPEED, _CAR_MAX_SPEED)
    position = (position + speed).clamp(_LEFT, _RIGHT)
    hits_left_end = (position == _LEFT) & (speed < 0)
    speed = torch.where(hits_left_end, 0.0, speed)
    terminated = (position >= goal) & (speed >= 0)
    return torch.stack((position, speed), -1), terminated


class Pendulum(RepeatedDynamics):
    """A motor must hold a rod of 1 kg and 1 m upright under a gravity of 10 m/s^2. A step of 0.05 s is one step of the
    semi-implicit Euler method.

    State ``[..., 2]`` float64: the angle from upright (rad), which is never wrapped, and its speed (rad/s). Observation
    ``[..., 3]`` float32: cosine and sine of the angle, and the speed. Actions ``[..., 1]`` are torques within [-2, 2] N
    m. A step costs angle^2 + 0.1 speed^2 + 0.001 torque^2, with angle and speed before the step and the angle wrapped
    into [-pi, pi). Episodes never terminate."""

    obs_size = 3
    actions = Continuous((-_TORQUE,), (_TORQUE,))
    max_return = 0.0

    def first_states(self, seeds: Tensor) -> Tensor:
        return (uniform(seeds, 2) * 2 - 1) * _PENDULUM_START.to(seeds.device)

    def sample_observations(self, streams: Streams, count: int) -> Tensor:
        largest = torch.tensor([math.pi, _PENDULUM_MAX_SPEED], dtype=torch.float64)
        states = (streams.uniform(count, 2).double() * 2 - 1) * largest
        return self.observe_state(states)

    def observe_state(self, state: Tensor) -> Tensor:
        angle, speed = state.unbind(-1)
        return torch.stack((angle.cos(), angle.sin(), speed), -1).float()

    def single_step(self, state: Tensor, actions: Tensor) -> Transition:
        """Apply the torques for 0.05 s, one step of the semi-implicit Euler method."""
        angle, speed = state.unbind(-1)
        torque = actions.squeeze(-1).clamp(-_TORQUE, _TORQUE)
        wrapped_angle = torch.remainder(angle + math.pi, 2 * math.pi) - math.pi
        # As in Gymnasium, the terms of the torque are float32 until they are added to the other terms.
        cost = wrapped_angle * wrapped_angle + speed * speed * _SPEED_COST + torque * torque * _TORQUE_COST
        speed = speed + (angle.sin() * _WEIGHT + torque * _INERTIA) * _PENDULUM_SECONDS
        speed = speed.clamp(-_PENDULUM_MAX_SPEED, _PENDULUM_MAX_SPEED)
        state = torch.stack((angle + speed * _PENDULUM_SECONDS, speed), -1)
        return Transition(state, -cost, torch.zeros_like(cost, dtype=torch.bool))
