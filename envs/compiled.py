"""Environments as functions that Numba compiles: the steps of `TensorEnvironment` and `RewardedEnvironment` in one
environment at a time.

Each function names the readable method of which it is a copy; tests/test_compiled.py compares the two.
control/loops/compiled.py describes the arguments that all compiled functions share. Here, ``world`` is a `World`, m the
index of a member (an independent agent), ``state [K]`` is float64, and ``scratch`` is from `make_scratch`.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from envs.base import Environment
from envs.classic_control import (
    Acrobot,
    CartPole,
    MountainCar,
    MountainCarContinuous,
    Pendulum,
    RepeatedDynamics,
)
from envs.gridmaps import CellTable
from envs.reward import RewardedEnvironment
from envs.synthetic import ENDS_ABOVE, SyntheticDynamics
from envs.tensor import TensorEnvironment
from models.compiled import NO_NET, Net, argmax, forward_one, make_net
from models.machine import Array, exact, exact_inlined, type_predicate
from models.proxies.reward.networks import Phi
from models.proxies.synthetic.config import FORMS

CARTPOLE, ACROBOT, MOUNTAINCAR, MOUNTAINCAR_CONTINUOUS, PENDULUM, CELLS, LEARNED = range(7)
KINDS: dict[type, int] = {
    CartPole: CARTPOLE,
    Acrobot: ACROBOT,
    MountainCar: MOUNTAINCAR,
    MountainCarContinuous: MOUNTAINCAR_CONTINUOUS,
    Pendulum: PENDULUM,
    SyntheticDynamics: LEARNED,
}
PHYSICS = ("gravity", "cart_mass", "pole_mass", "half_length", "force")
TAU = 2 * math.pi
_ABSOLUTE, _EXPONENTIAL = FORMS.index("absolute"), FORMS.index("exponential")  # values of ``world.reward_form``


def _empty(dtype: Any = np.float32, axes: int = 1) -> Array:
    """Return an array of size 0 with this number of ``axes``, a placeholder in `World`."""
    return np.empty((0,) * axes, dtype)


class World(NamedTuple):
    """The rules of an environment for compiled functions: everything that a step needs, except for the state. Fields
    that a kind of environment does not use have defaults."""

    kind: int
    obs_size: int
    actions: int  # number of discrete actions, or the size A of a continuous action
    limit: int = 2**62  # time limit in steps; a huge number without a limit
    physics: tuple[float, ...] = (0.0,) * 5  # physics of CartPole in the order of `PHYSICS`
    # RepeatedDynamics
    repeat: int = 1
    repetition_limit: int = 0  # time limit in repetitions if it cuts a step short, else 0
    # CellTable: arrays have an entry ``cell * num_moves + action``
    num_moves: int = 0
    next_cell: Array = _empty(np.int64)
    cell_reward: Array = _empty()
    cell_terminated: Array = _empty(np.bool_)
    # SyntheticDynamics
    net_parameters: Array = _empty(axes=2)  # [M, D], parameters of the three networks
    state_net: Net = NO_NET
    reward_net: Net = NO_NET
    done_net: Net = NO_NET
    bandit: bool = False
    raw_done: bool = False
    one_hot: bool = False
    reward_form: int = 0  # index in `FORMS` if a target decides the reward, else 0; `reward_net` is then the target
    target_inputs_at: int = 0  # position of centre and spread of the target's inputs in `net_parameters`
    action_middle: Array = _empty()  # [A], middle of the range of actions
    action_half_range: Array = _empty()  # [A], half the size of the range of actions
    # RewardedEnvironment
    learned_reward: bool = False
    phi_net: Net = NO_NET
    phi_parameters: Array = _empty(axes=2)  # [M, D]
    phi_table: Array = _empty(axes=2)  # [M, S], phi of every cell
    phi_scale: Array = _empty()  # [M], a factor on phi
    obs_center: Array = _empty()  # [O], subtracted from observations
    obs_spread: Array = _empty()  # [O], divides observations
    is_additive: bool = False  # whether the learned reward is added to the real reward
    is_potential: bool = False  # whether the learned reward is a difference of potentials
    phi_is_zero: bool = False
    zero_at_end: bool = False
    discounts: Array = _empty()  # [M]
    reward_weight: np.float32 = np.float32(1)  # factor on the real reward


class Map(World):
    """The `World` of a map whose agents need only the number of the cell, no observation. It is a separate type, so
    that compiled functions leave out the code for all other worlds (`is_map`)."""


is_map = type_predicate(Map)


def real_environment(environment: Environment) -> Environment:
    """Return the environment without the learned reward, if there is one. It holds the states."""
    return environment.real if isinstance(environment, RewardedEnvironment) else environment


def make_world(environment: Environment, cells_only: bool = False) -> World | None:
    """Describe an environment for compiled functions. With ``cells_only`` a map becomes a `Map`, for agents that need
    only the number of the cell. Return None if there is no compiled function for its steps or rewards."""
    if isinstance(environment, RewardedEnvironment):
        mode, phi = environment.mode, environment.phi  # phi is the reward network, and the mode says what it reads
        if mode.info or (mode.state and not isinstance(phi, Phi)):  # phi reads the info, or is a Python function
            return None
        if isinstance(phi, Phi) and phi.uses_symexp and phi.table is None:  # only a table can contain symexp
            return None
    real = real_environment(environment)
    if not isinstance(real, TensorEnvironment) or real.device.type != "cpu":
        return None
    dynamics, spaces = real.dynamics, real.spaces
    is_table = isinstance(dynamics, CellTable) and type(dynamics).step is CellTable.step  # not overridden
    kind = CELLS if is_table else KINDS.get(type(dynamics))
    if kind is None:
        return None
    fields: dict[str, Any] = {"kind": kind, "obs_size": spaces.obs_shape[0], "actions": spaces.action_size}
    if spaces.max_episode_steps is not None:
        fields["limit"] = spaces.max_episode_steps
    if isinstance(dynamics, CartPole):
        fields["physics"] = tuple(getattr(dynamics.physics, name) for name in PHYSICS)
    if isinstance(dynamics, RepeatedDynamics):
        fields |= {"repeat": dynamics.repeat, "repetition_limit": dynamics.repetition_limit or 0}
    if isinstance(dynamics, CellTable):
        fields |= {
            "num_moves": len(dynamics.actions),
            "next_cell": dynamics.next_cell.numpy(),
            "cell_reward": dynamics.reward.numpy(),
            "cell_terminated": dynamics.terminated.numpy(),
        }
    if isinstance(dynamics, SyntheticDynamics):
        fields |= _synthetic_fields(dynamics)
    if isinstance(environment, RewardedEnvironment):
        fields |= _reward_fields(environment)
    world_type = Map if kind == CELLS and cells_only else World
    return world_type(**fields)


def _synthetic_fields(dynamics: SyntheticDynamics) -> dict[str, Any]:
    """Return the fields of `World` about the networks of a synthetic environment, ``{name: value}``. A target network
    takes the place of the reward network."""
    program, networks = dynamics.program, dynamics.program.networks
    fields: dict[str, Any] = {
        "net_parameters": program.flat.contiguous().numpy(),
        "bandit": dynamics.bandit,
        "raw_done": dynamics.raw_done,
        "one_hot": dynamics.spaces.one_hot,
    }
    begin = 0  # position of a network's parameters in ``program.flat``
    for name, part in networks.mlps.items():
        if name != "initial":  # torch computes initial states
            fields["reward_net" if name == "target" else f"{name}_net"] = make_net(part, begin)
        begin += part.size
    if networks.has_target:
        # In ``program.flat``, centre and spread of the target's inputs follow the parameters of the networks.
        fields["reward_form"] = FORMS.index(networks.config.reward_form)
        fields["target_inputs_at"] = networks.num_searched
        if program.bounds is not None:
            middle, half_range = program.bounds
            fields |= {"action_middle": middle.numpy(), "action_half_range": half_range.numpy()}
    return fields


def _reward_fields(environment: RewardedEnvironment) -> dict[str, Any]:
    """Return the fields of `World` about a learned reward, ``{name: value}``."""
    phi, mode = environment.phi, environment.mode
    fields: dict[str, Any] = {
        "learned_reward": True,
        "is_additive": mode.additive,
        "is_potential": mode.potential,
        # Without the state, phi depends only on the info. Compiled environments have none, so phi is exactly 0.
        "phi_is_zero": not mode.state,
        "zero_at_end": environment.zero_at_end,
        "discounts": environment.discounts[:, 0].contiguous().numpy(),  # [M, 1] -> [M]
        "reward_weight": np.float32(environment.weight),
    }
    if mode.state:
        assert isinstance(phi, Phi)
        fields |= {
            "phi_net": make_net(phi._mlp),
            "phi_parameters": phi.flat.contiguous().numpy(),
            "phi_scale": phi._scale[:, 0].contiguous().numpy(),
            "obs_center": phi._center.numpy(),
            "obs_spread": phi._spread.numpy(),
        }
        if phi.table is not None:
            fields["phi_table"] = phi.table.contiguous().numpy()
    return fields


def set_episodes(environment: Environment, state: Tensor, age: Tensor, obs: Tensor) -> None:
    """Set an environment's episodes to ``state [M, E, K]``, ``age [M, E]`` and observations ``obs [M, E, O]``."""
    real: Any = real_environment(environment)
    real.state, real.age = state.to(real.state.dtype), age
    if isinstance(environment, RewardedEnvironment):
        environment._remember_obs(obs)


def make_scratch(world: World) -> Array:
    """Allocate memory ``[3, widest]`` for `advance`: two rows for the layers of a network, and a row for the next
    observation. Compiled functions cannot create arrays."""
    nets = world.phi_net, world.state_net, world.reward_net, world.done_net
    widest = max(world.obs_size, *(net.widest for net in nets))
    return np.empty((3, widest), np.float32)


@exact_inlined
def observe(world, state, obs):
    """Write the observation of ``state [K]`` into ``obs [O]`` (`Dynamics.observe`). A `Map` has none."""
    if is_map(world):
        return
    kind = world.kind
    if kind == CELLS:
        obs[:] = np.float32(0)
        obs[int(state[0])] = np.float32(1)
    elif kind == ACROBOT:
        obs[0], obs[1] = np.float32(math.cos(state[0])), np.float32(math.sin(state[0]))
        obs[2], obs[3] = np.float32(math.cos(state[1])), np.float32(math.sin(state[1]))
        obs[4], obs[5] = np.float32(state[2]), np.float32(state[3])
    elif kind == PENDULUM:
        obs[0], obs[1] = np.float32(math.cos(state[0])), np.float32(math.sin(state[0]))
        obs[2] = np.float32(state[1])
    elif kind == LEARNED and world.one_hot:
        obs[:] = np.float32(0)
        obs[argmax(state, len(obs))] = np.float32(1)
    else:  # the observation is the first numbers of the state
        for i in range(len(obs)):
            obs[i] = np.float32(state[i])


@exact
def _cartpole_step(physics, state, action):
    """Advance ``state`` (position, speed, angle, angular speed) in place by one step and return terminated
    (`CartPole.step`). ``physics`` are the numbers of `PHYSICS`. If the state has four more numbers (gravity, both
    masses, half the length of the pole), these replace the first four numbers of ``physics``."""
    gravity, cart_mass, pole_mass, half_length, force = physics
    if len(state) > 4:
        gravity, cart_mass, pole_mass, half_length = state[4], state[5], state[6], state[7]
    total_mass = cart_mass + pole_mass
    moment = pole_mass * half_length / total_mass
    speed, angle, angular_speed = state[1], state[2], state[3]
    cos, sin = math.cos(angle), math.sin(angle)
    signed_force = force if action == 1 else -force
    push = signed_force / total_mass + angular_speed * angular_speed * sin * moment
    inertia = half_length * 4 / 3 - cos * cos * (half_length * pole_mass / total_mass)
    angular_acceleration = (sin * gravity - cos * push) / inertia
    state[0] += speed * 0.02  # seconds
    state[1] += (push - angular_acceleration * cos * moment) * 0.02
    state[2] += angular_speed * 0.02
    state[3] += angular_acceleration * 0.02
    return abs(state[0]) > 2.4 or abs(state[2]) > 12 * TAU / 360  # the limits are 2.4 m and 12 degrees


@exact
def _acrobot_accelerations(angle1, angle2, speed1, speed2, torque):
    """Return the accelerations (rad/s^2) of two angles (rad) with two speeds (rad/s) under a torque (N m) between the
    links. `classic_control._acrobot_rates` explains names and numbers."""
    cos, half_sin = math.cos(angle2), math.sin(angle2) * 0.5
    d1, d2 = cos + 3.5, cos * 0.5 + 1.25
    phi2 = math.sin(angle1 + angle2) * (0.5 * 9.8)
    phi1 = math.sin(angle1) * (1.5 * 9.8) + phi2 - half_sin * speed2 * (speed2 + speed1 * 2)
    ratio = d2 / d1
    acceleration2 = (torque + ratio * phi1 - half_sin * speed1 * speed1 - phi2) / (1.25 - d2 * ratio)
    return -(d2 * acceleration2 + phi1) / d1, acceleration2


@exact
def _acrobot_step(state, action):
    """Advance ``state`` (two angles, two angular speeds) in place by one step of the Runge-Kutta method and return
    terminated (`Acrobot.step`). The method evaluates the speeds and accelerations of both joints four times. For
    example, ``speed1_k3`` and ``acc1_k3`` are the speed and acceleration of joint 1 at the third evaluation."""
    torque = action - 1.0
    h = 0.2  # seconds
    half = h / 2
    angle1, angle2, speed1, speed2 = state[0], state[1], state[2], state[3]
    acc1_k1, acc2_k1 = _acrobot_accelerations(angle1, angle2, speed1, speed2, torque)
    mid1, mid2 = angle1 + speed1 * half, angle2 + speed2 * half
    speed1_k2, speed2_k2 = speed1 + acc1_k1 * half, speed2 + acc2_k1 * half
    acc1_k2, acc2_k2 = _acrobot_accelerations(mid1, mid2, speed1_k2, speed2_k2, torque)
    mid1, mid2 = angle1 + speed1_k2 * half, angle2 + speed2_k2 * half
    speed1_k3, speed2_k3 = speed1 + acc1_k2 * half, speed2 + acc2_k2 * half
    acc1_k3, acc2_k3 = _acrobot_accelerations(mid1, mid2, speed1_k3, speed2_k3, torque)
    end1, end2 = angle1 + speed1_k3 * h, angle2 + speed2_k3 * h
    speed1_k4, speed2_k4 = speed1 + acc1_k3 * h, speed2 + acc2_k3 * h
    acc1_k4, acc2_k4 = _acrobot_accelerations(end1, end2, speed1_k4, speed2_k4, torque)
    angle1 += (speed1 + (speed1_k2 + speed1_k3) * 2 + speed1_k4) * (h / 6)
    angle2 += (speed2 + (speed2_k2 + speed2_k3) * 2 + speed2_k4) * (h / 6)
    # Wrap the angles into [-pi, pi], and limit the speeds.
    angle1 -= np.rint(angle1 / TAU) * TAU
    angle2 -= np.rint(angle2 / TAU) * TAU
    state[0], state[1] = angle1, angle2
    speed1 += (acc1_k1 + (acc1_k2 + acc1_k3) * 2 + acc1_k4) * (h / 6)
    speed2 += (acc2_k1 + (acc2_k2 + acc2_k3) * 2 + acc2_k4) * (h / 6)
    state[2], state[3] = min(max(speed1, -4 * math.pi), 4 * math.pi), min(max(speed2, -9 * math.pi), 9 * math.pi)
    return math.cos(angle1) + math.cos(angle1 + angle2) < -1.0  # whether the tip is more than 1 m above the joint


@exact
def _mountaincar_step(state, action):
    """Advance ``state`` (position, speed) in place by one repetition of an action. Return reward and terminated
    (`MountainCar.single_step`). The numbers have names in `envs.classic_control`, also in the next two functions."""
    speed = state[1] + ((action - 1) * 0.001 - math.cos(state[0] * 3) * 0.0025)
    speed = min(max(speed, -0.07), 0.07)
    position = min(max(state[0] + speed, -1.2), 0.6)
    if position == -1.2 and speed < 0:  # the left end of the track stops the car
        speed = 0.0
    state[0], state[1] = position, speed
    return -1.0, position >= 0.5 and speed >= 0


@exact
def _mountaincar_continuous_step(state, force):
    """Advance ``state`` (position, speed) in place by one repetition of the action ``force``. Return reward and
    terminated (`MountainCarContinuous.single_step`). Computes in float32, as Gymnasium."""
    f32 = np.float32
    position = f32(state[0])
    slope = f32(math.cos(np.float64(position * f32(3))) * 0.0025)
    clipped_force = min(max(force, f32(-1)), f32(1))
    speed = f32(f32(state[1]) + f32(f32(clipped_force * f32(0.0015)) - slope))
    speed = min(max(speed, -f32(0.07)), f32(0.07))
    position = min(max(f32(position + speed), -f32(1.2)), f32(0.6))
    if position == -f32(1.2) and speed < 0:
        speed = f32(0)
    ends = position >= f32(0.45) and speed >= 0
    state[0], state[1] = position, speed
    return (100.0 if ends else 0.0) - np.float64(force) * np.float64(force) * 0.1, ends


@exact
def _pendulum_step(state, action):
    """Advance ``state`` (angle, angular speed) in place by one repetition of an action, a torque. Return reward and
    terminated (`Pendulum.single_step`). As in Gymnasium, 15 is 3 g / (2 length), 3 is 3 / (mass length²), and a step
    has 0.05 seconds. Products with the torque are in float32, as in torch."""
    angle, speed = state[0], state[1]
    torque = min(max(action, np.float32(-2)), np.float32(2))
    wrapped_angle = (angle + math.pi) % TAU - math.pi
    cost = wrapped_angle * wrapped_angle + speed * speed * 0.1 + np.float64(torque * torque * np.float32(0.001))
    speed = speed + (math.sin(angle) * 15.0 + np.float64(torque * np.float32(3.0))) * 0.05
    speed = min(max(speed, -8.0), 8.0)
    state[0], state[1] = angle + speed * 0.05, speed
    return -cost, False


@exact_inlined
def _repeat_action(world, state, action, continuous_action):
    """Advance ``state`` in place by one step, which repeats the action ``world.repeat`` times. Return the summed reward
    and terminated (`RepeatedDynamics.step`). With a ``repetition_limit``, the last number of the state counts the
    repetitions of the episode, and the step ends early at the limit."""
    total, ends = 0.0, False
    counter = len(state) - 1  # index of the number of repetitions
    for repetition in range(world.repeat):
        is_at_limit = world.repetition_limit and state[counter] + repetition >= world.repetition_limit
        if repetition > 0 and (ends or is_at_limit):
            break
        if world.kind == MOUNTAINCAR:
            reward, ends = _mountaincar_step(state, action)
        elif world.kind == MOUNTAINCAR_CONTINUOUS:
            reward, ends = _mountaincar_continuous_step(state, continuous_action[0])
        else:
            reward, ends = _pendulum_step(state, continuous_action[0])
        total += reward
    if world.repetition_limit:
        state[counter] += world.repeat
    return np.float32(total), ends


@exact_inlined
def target_reward(world, m, state, action, continuous_action, scratch):
    """Return the reward of a bandit for an action in ``state`` (`Program._target_reward`). A target network computes
    the best action in this state, and the reward falls with the distance from it (`understudy.kinds.FORMS`).

    The distance is the mean of absolute or squared differences. Continuous actions are scaled to [-1, 1]. Discrete
    actions are one-hot, so the differences sum up to 2 if the actions differ. `network_step` describes the
    arguments."""
    f32, params, size, inputs = np.float32, world.net_parameters[m], world.obs_size, scratch[0]
    center_at, spread_at = world.target_inputs_at, world.target_inputs_at + size
    for k in range(size):
        inputs[k] = (f32(state[k]) - params[center_at + k]) / params[spread_at + k]
    output_row = forward_one(world.reward_net, params, scratch, 0)
    distance = f32(0)
    if len(continuous_action):
        for k in range(world.actions):
            scaled_action = (continuous_action[k] - world.action_middle[k]) / world.action_half_range[k]
            target_action = min(max(scratch[output_row, k], f32(-1)), f32(1))
            difference = min(max(scaled_action, f32(-1)), f32(1)) - target_action
            distance += abs(difference) if world.reward_form == _ABSOLUTE else difference * difference
    else:
        distance = f32(0) if argmax(scratch[output_row], world.actions) == action else f32(2)
    distance /= f32(world.actions)
    return f32(math.exp(f32(-4) * distance)) if world.reward_form == _EXPONENTIAL else -distance


@exact_inlined
def _run_network(net, world, m, state, action, continuous_action, scratch):
    """Run the network ``net`` of member ``m`` of a synthetic environment on ``[action, state]``. Write the outputs to a
    row of ``scratch``, and return the index of this row. `network_step` describes the arguments."""
    inputs = scratch[0]
    for k in range(world.actions):
        inputs[k] = continuous_action[k] if len(continuous_action) else np.float32(k == action)
    for k in range(world.obs_size):
        inputs[world.actions + k] = np.float32(state[k])
    return forward_one(net, world.net_parameters[m], scratch, 0)


@exact_inlined
def network_step(world, m, state, action, continuous_action, scratch):
    """Make a step of member ``m`` in the synthetic environment ``world`` (`SyntheticDynamics.step`). Return the reward
    and the output of the done network, and write the next state to ``state``. A bandit has no done network: its
    ``state`` does not change, and the output is 1.

    The action is ``continuous_action [A]`` or, if this is empty, the discrete ``action``. ``scratch`` is from
    `make_scratch`; two of its rows are overwritten.
    """
    reward_row = _run_network(world.reward_net, world, m, state, action, continuous_action, scratch)
    reward = scratch[reward_row, 0]
    if world.bandit:
        return reward, np.float32(1)
    done_row = _run_network(world.done_net, world, m, state, action, continuous_action, scratch)
    done = scratch[done_row, 0]
    state_row = _run_network(world.state_net, world, m, state, action, continuous_action, scratch)
    for k in range(world.obs_size):
        state[k] = scratch[state_row, k]
    return reward, done


@exact_inlined
def phi_value(world, m, state, obs, scratch):
    """Return phi, the output of the reward network of member ``m``, for ``state`` and its observation ``obs [O]``
    (`Phi`). Two rows of ``scratch`` are overwritten."""
    if world.phi_is_zero:
        return np.float32(0)
    if is_map(world) or world.kind == CELLS:
        return world.phi_table[m, int(state[0])]
    inputs = scratch[0]
    for i in range(world.obs_size):
        inputs[i] = (obs[i] - world.obs_center[i]) / world.obs_spread[i]
    output_row = forward_one(world.phi_net, world.phi_parameters[m], scratch, 0)
    return scratch[output_row, 0] * world.phi_scale[m]


@exact_inlined
def advance(world, m, state, action, continuous_action, obs, scratch, previous_phi):
    """Make a step of an environment of member ``m``: overwrite ``state [K]`` by the next state and ``obs [O]`` by its
    observation (`TensorEnvironment.step`, `RewardedEnvironment.step`). Return reward, terminated, discount, and the
    output phi of the reward network for the next observation. Does not end episodes at the time limit.

    ``previous_phi`` is phi before the step; it is returned unchanged if the reward is not learned. `network_step`
    describes the other arguments.
    """
    f32 = np.float32
    # `raw_done` is the output of the done network. A reward of 1 is CartPole's, all other kinds replace it.
    reward, ends, raw_done = f32(1), False, f32(0)
    if is_map(world) or world.kind == CELLS:
        entry = int(state[0]) * world.num_moves + action
        state[0], reward, ends = world.next_cell[entry], world.cell_reward[entry], world.cell_terminated[entry]
    elif world.kind == CARTPOLE:
        ends = _cartpole_step(world.physics, state, action)
    elif world.kind == ACROBOT:
        ends = _acrobot_step(state, action)
        reward = f32(0) if ends else f32(-1)
    elif world.kind == LEARNED and world.reward_form:  # a bandit with a target
        reward, ends = target_reward(world, m, state, action, continuous_action, scratch), True
    elif world.kind == LEARNED:
        reward, raw_done = network_step(world, m, state, action, continuous_action, scratch)
        ends = raw_done > ENDS_ABOVE
    else:
        reward, ends = _repeat_action(world, state, action, continuous_action)
    discount = f32(0) if ends else f32(1)
    if world.kind == LEARNED and world.raw_done and not world.bandit:  # the done network also decides the discount
        discount = f32(1) - raw_done
    observe(world, state, obs)
    if not world.learned_reward:
        return reward, ends, discount, previous_phi
    # The learned reward is phi or, if phi is a potential, the difference of its discounted next value and this value.
    next_phi = phi_value(world, m, state, obs, scratch)
    rewarded_phi = f32(0) if ends and world.zero_at_end else next_phi
    learned_reward = world.discounts[m] * rewarded_phi - previous_phi if world.is_potential else rewarded_phi
    if world.is_additive:
        real_reward = reward if world.reward_weight == f32(1) else reward * world.reward_weight
        learned_reward = real_reward + learned_reward
    return learned_reward, ends, discount, next_phi
