"""Environments as compiled functions of one episode: the steps of `TensorEnvironment` and `RewardedEnvironment`.

A `World` describes an environment for all members. Each block names the class that it mirrors; tests/test_compiled.py
compares the two. Importing this requires Numba.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from envs.acrobot import Acrobot
from envs.base import Environment
from envs.cartpole import CartPole
from envs.gridmaps import CellTable
from envs.mountaincar import MountainCar, MountainCarContinuous
from envs.names import CartPoleParameters
from envs.pendulum import Pendulum
from envs.repeated import RepeatedDynamics
from envs.reward import RewardedEnvironment
from envs.synthetic import ENDS_ABOVE, SyntheticDynamics
from envs.tensor import TensorEnvironment
from models.compiled import NO_NET, Net, better, net, single
from models.machine import exact, exact_inlined, type_predicate
from models.proxies.reward.networks import Phi
from models.proxies.synthetic.compiled import FORMS, network_step, target_reward
from models.spaces import Discrete

Array = np.ndarray[Any, Any]
CARTPOLE, ACROBOT, MOUNTAINCAR, CONTINUOUS, PENDULUM, CELLS, LEARNED = range(7)
KINDS = {
    CartPole: CARTPOLE,
    Acrobot: ACROBOT,
    MountainCar: MOUNTAINCAR,
    MountainCarContinuous: CONTINUOUS,
    Pendulum: PENDULUM,
}
TAU = 2 * math.pi


class World(NamedTuple):
    """An environment without its episodes, for compiled functions. Arrays that a kind does not use are empty."""

    kind: int
    obs_size: int
    limit: int  # time limit in steps; a huge number without a limit
    physics: tuple[float, ...]  # of CartPole: gravity, masses of cart and pole, half length, force
    # RepeatedDynamics
    repeat: int
    repetition_limit: int  # time limit in repetitions if it cuts a step short, else 0
    # CellTable
    moves: int
    next_cell: Array
    pays: Array
    ends: Array
    # SyntheticDynamics
    actions: int
    flat: Array  # [M, D]
    state: Net
    reward: Net
    done: Net
    bandit: bool
    raw_done: bool
    one_hot: bool
    form: int  # index in `FORMS` if a target decides the reward (`reward` is then the target network), else 0
    fixed: int  # position of the target's centre and spread in ``flat``
    middle: Array  # [A], middle of the range of actions
    half: Array  # [A], half of the range
    # RewardedEnvironment
    learned_reward: bool
    phi: Net
    weights: Array  # [M, D]
    table: Array  # [M, S], phi of every cell
    scale: Array  # [M]
    center: Array
    spread: Array
    additive: bool
    potential: bool
    blind: bool  # phi is always 0
    zero_at_end: bool
    discounts: Array  # [M]
    weight: np.float32


class Map(World):
    """The `World` of a map whose agents need only the numbers of cells. It is a separate type, so that compiled
    functions leave out all other code (`on_map`)."""


on_map = type_predicate(Map)


def _empty(dtype: Any = np.float32, axes: int = 1) -> Array:
    return np.empty((0,) * axes, dtype)


def _kind(real: Environment) -> int | None:
    """Return the kind of an environment, from `CARTPOLE` to `LEARNED`; None if it has no compiled version."""
    if not isinstance(real, TensorEnvironment) or real.device.type != "cpu":
        return None
    dynamics = real.dynamics
    if isinstance(dynamics, CellTable) and type(dynamics).step is CellTable.step:
        return CELLS
    return LEARNED if isinstance(dynamics, SyntheticDynamics) else KINDS.get(type(dynamics))  # type: ignore[call-overload]


def _is_bent(phi: object) -> bool:
    """Return whether ``phi`` applies symexp and has no table of cells. Compiled steps do not compute this."""
    return isinstance(phi, Phi) and phi.uses_symexp and phi.table is None


def world(environment: Environment, cells_only: bool = False) -> World | None:
    """Return the environment for compiled functions, None if it has no compiled version. With ``cells_only`` a map has
    no observations, for agents that need only the state. If rewards are learned, check `can_compile` first."""
    rewarded, real = (
        environment if isinstance(environment, RewardedEnvironment) else None,
        real_environment(environment),
    )
    kind, phi = _kind(real), getattr(rewarded, "phi", None)
    if kind is None or _is_bent(phi):
        return None
    assert isinstance(real, TensorEnvironment)
    dynamics, spaces = real.dynamics, real.spaces
    repeated = dynamics if isinstance(dynamics, RepeatedDynamics) else None
    physics = dynamics.physics if isinstance(dynamics, CartPole) else CartPoleParameters()
    fields: dict[str, Any] = {
        "kind": kind,
        "obs_size": spaces.obs_shape[0],
        "limit": 2**62 if spaces.max_episode_steps is None else spaces.max_episode_steps,
        "repeat": 1 if repeated is None else repeated.repeat,
        "repetition_limit": 0 if repeated is None else repeated._last or 0,
        "physics": (physics.gravity, physics.cart_mass, physics.pole_mass, physics.half_length, physics.force),
        "moves": 0,
        "next_cell": _empty(np.int64),
        "pays": _empty(),
        "ends": _empty(np.bool_),
        "actions": spaces.actions.n if isinstance(spaces.actions, Discrete) else spaces.actions.size,
        "flat": _empty(axes=2),
        "state": NO_NET,
        "reward": NO_NET,
        "done": NO_NET,
        "bandit": False,
        "raw_done": False,
        "one_hot": False,
        "form": 0,
        "fixed": 0,
        "middle": _empty(),
        "half": _empty(),
    }
    if isinstance(dynamics, CellTable):
        fields |= {
            "moves": len(dynamics.actions),
            "next_cell": dynamics.next_cell.numpy(),
            "pays": dynamics.reward.numpy(),
            "ends": dynamics.terminated.numpy(),
        }
    if isinstance(dynamics, SyntheticDynamics):
        program, begin = dynamics.program, 0
        nets = {}
        for name, part in program.networks.parts.items():
            nets[name] = net(part, begin)
            begin += part.size
        nets.pop("initial", None)
        if "target" in nets:
            bounds = program.bounds or (_empty(), _empty())
            nets["reward"] = nets.pop("target")
            fields |= {"form": FORMS.index(program.networks.config.reward_form), "fixed": program.networks.searched}
            fields |= dict(zip(("middle", "half"), map(np.asarray, bounds), strict=True))
        fields |= nets | {
            "flat": program.flat.contiguous().numpy(),
            "bandit": dynamics.bandit,
            "raw_done": dynamics.raw_done,
            "one_hot": dynamics.spaces.one_hot,
        }
    return (Map if kind == CELLS and cells_only else World)(**(fields | _pay(rewarded)))


def _pay(rewarded: RewardedEnvironment | None) -> dict[str, Any]:
    """Return the fields of `World` about a learned reward; without one, placeholders."""
    defaults: dict[str, Any] = {
        "learned_reward": False,
        "phi": NO_NET,
        "weights": _empty(axes=2),
        "table": _empty(axes=2),
        "scale": _empty(),
        "center": _empty(),
        "spread": _empty(),
        "additive": False,
        "potential": False,
        "blind": False,
        "zero_at_end": False,
        "discounts": _empty(),
        "weight": np.float32(1),
    }
    if rewarded is None:
        return defaults
    phi, mode = rewarded.phi, rewarded.mode
    fields = defaults | {
        "learned_reward": True,
        "additive": mode.additive,
        "potential": mode.potential,
        "blind": not mode.state,
        "zero_at_end": rewarded.zero_at_end,
        "discounts": rewarded.discounts[:, 0].contiguous().numpy(),
        "weight": np.float32(rewarded.weight),
    }
    if mode.state:
        assert isinstance(phi, Phi)
        fields |= {
            "phi": net(phi._mlp),
            "weights": phi.flat.contiguous().numpy(),
            "scale": phi._scale[:, 0].contiguous().numpy(),
            "center": phi._center.numpy(),
            "spread": phi._spread.numpy(),
            "table": _empty(axes=2) if phi.table is None else phi.table.contiguous().numpy(),
        }
    return fields


def real_environment(environment: Environment) -> Environment:
    """Return the environment that holds the states: below a learned reward, the real one."""
    return environment.real if isinstance(environment, RewardedEnvironment) else environment


def set_episodes(environment: Environment, state: Tensor, age: Tensor, obs: Tensor) -> None:
    """Set an environment's episodes to ``state [M, E, K]``, ``age [M, E]`` in steps, and their observations ``obs``."""
    real = real_environment(environment)
    assert isinstance(real, TensorEnvironment)
    real.state, real.age = state.to(real.state.dtype), age
    if isinstance(environment, RewardedEnvironment):
        environment._remember_obs(obs)


def can_compile(environment: Environment) -> bool:
    """Return whether compiled functions can compute the environment's steps and rewards."""
    if isinstance(environment, RewardedEnvironment):
        mode, phi = environment.mode, environment.phi
        if mode.info or (mode.state and not isinstance(phi, Phi)) or _is_bent(phi):
            return False
    return _kind(real_environment(environment)) is not None


def memory(world: World) -> Array:
    """Return uninitialised memory for `advance`: two scratch rows, and a row for the next observation."""
    size = max(world.phi.widest, world.state.widest, world.reward.widest, world.done.widest, world.obs_size)
    return np.empty((3, size), np.float32)


@exact_inlined
def observe(world, state, obs):
    """Write the observation of ``state [K]`` into ``obs [O]`` (`Dynamics.observe`)."""
    if on_map(world):
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
        best = 0
        for k in range(len(obs)):
            best = k if better(state[k], state[best]) else best
        obs[:] = np.float32(0)
        obs[best] = np.float32(1)
    else:
        for k in range(len(obs)):
            obs[k] = np.float32(state[k])


@exact
def _cartpole(physics, state, action):
    """Advance ``state`` in place and return terminated (`CartPole.step`)."""
    gravity, cart, pole, half, force = physics
    if len(state) > 4:
        gravity, cart, pole, half = state[4], state[5], state[6], state[7]
    mass = cart + pole
    share = pole * half / mass
    speed, angle, spin = state[1], state[2], state[3]
    cos, sin = math.cos(angle), math.sin(angle)
    push = (force / mass if action == 1 else -force / mass) + spin * spin * sin * share
    turn = (sin * gravity - cos * push) / (half * 4 / 3 - cos * cos * (half * pole / mass))
    state[0] += speed * 0.02
    state[1] += (push - turn * cos * share) * 0.02
    state[2] += spin * 0.02
    state[3] += turn * 0.02
    return abs(state[0]) > 2.4 or abs(state[2]) > 12 * TAU / 360


@exact
def _swing(a, b, speed1, speed2, torque):
    """Return the time derivatives of both speeds (`acrobot._rates`)."""
    cos, half_sin = math.cos(b), math.sin(b) * 0.5
    d1, d2 = cos + 3.5, cos * 0.5 + 1.25
    phi2 = math.sin(a + b) * (0.5 * 9.8)
    phi1 = math.sin(a) * (1.5 * 9.8) + phi2 - half_sin * speed2 * (speed2 + speed1 * 2)
    ratio = d2 / d1
    rate2 = (torque + ratio * phi1 - half_sin * speed1 * speed1 - phi2) / (1.25 - d2 * ratio)
    return -(d2 * rate2 + phi1) / d1, rate2


@exact
def _acrobot(state, action):
    """Advance ``state`` in place and return terminated (`Acrobot.step`)."""
    torque, h = action - 1.0, 0.2
    a, b, v, w = state[0], state[1], state[2], state[3]
    v1, w1 = _swing(a, b, v, w, torque)
    v2, w2 = _swing(a + v * (h / 2), b + w * (h / 2), v + v1 * (h / 2), w + w1 * (h / 2), torque)
    p, q = v + v1 * (h / 2), w + w1 * (h / 2)
    v3, w3 = _swing(a + p * (h / 2), b + q * (h / 2), v + v2 * (h / 2), w + w2 * (h / 2), torque)
    r, s = v + v2 * (h / 2), w + w2 * (h / 2)
    v4, w4 = _swing(a + r * h, b + s * h, v + v3 * h, w + w3 * h, torque)
    t, u = v + v3 * h, w + w3 * h
    a += (v + (p + r) * 2 + t) * (h / 6)
    b += (w + (q + s) * 2 + u) * (h / 6)
    a -= np.rint(a / TAU) * TAU
    b -= np.rint(b / TAU) * TAU
    state[0], state[1] = a, b
    state[2] = min(max(v + (v1 + (v2 + v3) * 2 + v4) * (h / 6), -4 * math.pi), 4 * math.pi)
    state[3] = min(max(w + (w1 + (w2 + w3) * 2 + w4) * (h / 6), -9 * math.pi), 9 * math.pi)
    return math.cos(a) + math.cos(a + b) < -1.0


@exact
def _driven(position, speed, goal, fastest, left_end, right_end):
    """Return the next position and speed, and terminated, in the arguments' precision (`mountaincar.driven`)."""
    speed = min(max(speed, -fastest), fastest)
    position = min(max(position + speed, left_end), right_end)
    if position == left_end and speed < 0:
        speed = speed * 0
    return position, speed, position >= goal and speed >= 0


@exact
def _single_step(kind, state, action, vector):
    """Advance ``state`` in place by one repetition. Return reward and terminated (`RepeatedDynamics.single_step`)."""
    if kind == MOUNTAINCAR:
        speed = state[1] + ((action - 1) * 0.001 - math.cos(state[0] * 3) * 0.0025)
        state[0], state[1], ends = _driven(state[0], speed, 0.5, 0.07, -1.2, 0.6)
        return -1.0, ends
    if kind == CONTINUOUS:
        f32 = np.float32
        position, force = f32(state[0]), vector[0]
        slope = f32(math.cos(np.float64(position * f32(3))) * 0.0025)
        cut = min(max(force, f32(-1)), f32(1))
        speed = f32(f32(state[1]) + f32(f32(cut * f32(0.0015)) - slope))
        speed = min(max(speed, -f32(0.07)), f32(0.07))
        position = min(max(f32(position + speed), -f32(1.2)), f32(0.6))
        if position == -f32(1.2) and speed < 0:
            speed = f32(0)
        ends = position >= f32(0.45) and speed >= 0
        state[0], state[1] = position, speed
        return (100.0 if ends else 0.0) - np.float64(force) * np.float64(force) * 0.1, ends
    angle, speed = state[0], state[1]
    torque = min(max(vector[0], np.float32(-2)), np.float32(2))
    off = (angle + math.pi) % TAU - math.pi
    cost = off * off + speed * speed * 0.1 + np.float64(torque * torque * np.float32(0.001))
    speed = speed + (math.sin(angle) * 15.0 + np.float64(torque * np.float32(3.0))) * 0.05
    speed = min(max(speed, -8.0), 8.0)
    state[0], state[1] = angle + speed * 0.05, speed
    return -cost, False


@exact_inlined
def _repeated(world, state, action, vector):
    """Advance ``state`` in place by one step. Return reward and terminated (`RepeatedDynamics.step`)."""
    total, ends = _single_step(world.kind, state, action, vector)
    for count in range(1, world.repeat):
        if ends or world.repetition_limit and state[len(state) - 1] + count >= world.repetition_limit:
            break
        reward, ends = _single_step(world.kind, state, action, vector)
        total += reward
    if world.repetition_limit:
        state[len(state) - 1] += world.repeat
    return np.float32(total), ends


@exact_inlined
def value(world, m, state, obs, rows):
    """Return member m's phi of ``state`` and its observation ``obs`` (`Phi`). ``rows`` is from `memory`."""
    if world.blind:
        return np.float32(0)
    if on_map(world) or world.kind == CELLS:
        return world.table[m, int(state[0])]
    x = rows[0]
    for k in range(world.obs_size):
        x[k] = obs[k]
    if len(world.center):
        for k in range(world.obs_size):
            x[k] -= world.center[k]
    if len(world.spread):
        for k in range(world.obs_size):
            x[k] /= world.spread[k]
    return rows[single(world.phi, world.weights[m], rows, 0), 0] * world.scale[m]


@exact_inlined
def advance(world, m, state, action, vector, obs, rows, potential):
    """Advance member m by one step, with ``state`` and ``obs`` replaced in place. Return reward, terminated, discount,
    and phi of the next observation. ``potential`` is phi of the previous one (`RewardedEnvironment.step`). ``action``
    is a discrete action, ``vector`` a continuous one, empty if actions are discrete."""
    f32 = np.float32
    reward, ends, discount = f32(1), False, f32(1)
    if on_map(world) or world.kind == CELLS:
        place = int(state[0]) * world.moves + action
        state[0], reward, ends = world.next_cell[place], world.pays[place], world.ends[place]
    elif world.kind == CARTPOLE:
        ends = _cartpole(world.physics, state, action)
    elif world.kind == ACROBOT:
        ends = _acrobot(state, action)
        reward = f32(0) if ends else f32(-1)
    elif world.kind == LEARNED and world.form:
        reward, ends = target_reward(world, m, state, action, vector, rows), True
    elif world.kind == LEARNED:
        reward, raw = network_step(world, m, state, action, vector, rows)
        ends = raw > ENDS_ABOVE
        if world.raw_done and not world.bandit:
            discount = f32(1) - raw
    else:
        reward, ends = _repeated(world, state, action, vector)
    if ends and not (world.kind == LEARNED and world.raw_done and not world.bandit):
        discount = f32(0)
    observe(world, state, obs)
    if not world.learned_reward:
        return reward, ends, discount, potential
    next_potential = value(world, m, state, obs, rows)
    masked_potential = f32(0) if ends and world.zero_at_end else next_potential
    bonus = world.discounts[m] * masked_potential - potential if world.potential else masked_potential
    if world.additive:
        bonus = (reward if world.weight == f32(1) else reward * world.weight) + bonus
    return bonus, ends, discount, next_potential
