"""A learned environment as NumPy functions: initial states from seeds, and steps of N rows at once."""

import functools
import re
import sys
from collections.abc import Callable

import gymnasium
import numpy as np

from understudy.hashing import normal, uniform
from understudy.kinds import FORMS, FREE, KINDS
from understudy.layers import ACTIVATIONS, finished, side_by_side
from understudy.proxy import BOUND, Proxy, ProxyError

SEEDS = 2**62  # bound on the seed of an environment's first episode; each next episode adds 1
ENDS_ABOVE = 0.5  # the done network's output above which an episode ends
_BLOCK = 32  # number of episodes for which initial states are computed at once
_DRAWS = 4096  # number of initial observations of an environment that has no formula here
# Gymnasium ids for the trainer's names of environments; any other name is an id.
IDS = {
    "cartpole": "CartPole-v1",
    "cartpole-200": "CartPole-v0",
    "acrobot": "Acrobot-v1",
    "lunarlander": "LunarLander-v3",
    "lunarlander-sparse": "LunarLander-v3",
    "beresheet": "LunarLander-v3",
    "mountaincar": "MountainCar-v0",
    "mountaincar-continuous": "MountainCarContinuous-v0",
    "pendulum": "Pendulum-v1",
    "cliffwalking": "CliffWalking-v1",
    "halfcheetah": "HalfCheetah-v5",
    "hopper": "Hopper-v5",
    "swimmer": "Swimmer-v5",
    "cliff": "understudy/Cliff-v0",
    "emptyroom22": "understudy/EmptyRoom22-v0",
    "emptyroom23": "understudy/EmptyRoom23-v0",
    "emptyroom33": "understudy/EmptyRoom33-v0",
    "wallroom": "understudy/WallRoom-v0",
    "holeroom": "understudy/HoleRoom-v0",
    "holeroomlarge": "understudy/HoleRoomLarge-v0",
    "holeroomlargeshifted": "understudy/HoleRoomLargeShifted-v0",
}
Starts = Callable[[np.ndarray], np.ndarray]
"""Seeds ``[...]`` int64, at least one axis, to first states ``[..., S]`` float32."""


class Program:
    """A `Proxy` ready to be stepped.

    Results are always finite: NaN becomes 0, and observations and rewards are clipped to [-`BOUND`, `BOUND`].
    """

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._size, self._one_step = proxy.spaces["obs_shape"][0], KINDS[proxy.kind].one_step
        self._activation = ACTIVATIONS[proxy.config["proxy_activation_fn"]]
        self._discrete = "n" in proxy.spaces["actions"]
        self._pay = None if proxy.config.get("reward_form", FREE) == FREE else _pay_by_target(proxy)
        if self._pay is None:
            names = ["reward"] if self._one_step else ["state", "reward", "done"]
            (first, self._bias), *self._layers = side_by_side(proxy.tensors, names)
            self._by_action, self._by_state = np.split(first, [-self._size])
            if self._discrete:  # a one-hot action selects a row of the weights
                self._by_action = self._by_action + self._bias
        if "states.table" in proxy.tensors:
            self._starts = _rows_of(proxy.tensors["states.table"])
        else:
            learned = "initial.0.bias" in proxy.tensors
            self._starts = self._learned_starts(proxy) if learned else real_starts(proxy.game)

    def __reduce__(self) -> tuple[type["Program"], tuple[Proxy]]:
        return Program, (self._proxy,)  # pickle cannot store the functions in `_starts` and `_pay`

    def first_states(self, seeds: np.ndarray) -> np.ndarray:
        """Return initial states ``[..., S]`` for ``seeds [...]``: learned ones, rows of a table, or the real
        environment's. Raises ProxyError if they do not fit the proxy."""
        with np.errstate(all="ignore"):
            states = _finite(self._starts(seeds))
        if states.shape[-1] != self._size:
            raise ProxyError(f"first states have {states.shape[-1]} numbers, the synthetic environment {self._size}")
        return states

    def step(self, state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take ``action [N]`` integers or ``[N, A]`` float32 in ``state [N, S]``; an action without the first axis is
        for all rows. Return the next state ``[N, S]``, the reward ``[N]`` float32 and terminated ``[N]`` bool. The next
        state of a bandit is the same array as ``state``."""
        with np.errstate(all="ignore"):
            if self._pay is not None:
                return state, _finite(self._pay(state, action)), np.ones(len(state), np.bool_)
            action_term = self._by_action[action] if self._discrete else action @ self._by_action + self._bias
            out = finished(state @ self._by_state + action_term, self._layers, self._activation)
            ends = out[:, -1] > ENDS_ABOVE
            out = _finite(out)
        if self._one_step:
            return state, out[:, 0], np.ones(len(state), np.bool_)
        return out[:, : self._size], out[:, self._size], ends

    def _learned_starts(self, proxy: Proxy) -> Starts:
        (weight, bias), *layers = side_by_side(proxy.tensors, ["initial"])

        def starts(seeds: np.ndarray) -> np.ndarray:
            hidden = normal(seeds, len(weight)).astype(np.float32) @ weight + bias
            return finished(hidden, layers, self._activation)

        return starts


def _finite(values: np.ndarray) -> np.ndarray:
    if np.abs(values).max() <= BOUND:  # false for NaN
        return values
    return np.clip(np.nan_to_num(values, nan=0.0, posinf=BOUND, neginf=-BOUND), -BOUND, BOUND)


def _rows_of(table: np.ndarray) -> Starts:
    """Return a function that picks a uniform row of ``table`` for each seed."""
    return lambda seeds: table[(uniform(seeds, 1)[..., 0] * len(table)).astype(np.int64)]


def _pay_by_target(proxy: Proxy) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return a function from states ``[N, S]`` and actions to rewards ``[N]``, which depend on the distance between an
    action and the target's action."""
    (weight, bias), *layers = side_by_side(proxy.tensors, ["target"])
    center, spread = proxy.tensors["target.center"], proxy.tensors["target.spread"]
    activation, form = ACTIVATIONS[proxy.config["proxy_activation_fn"]], FORMS[proxy.config["reward_form"]]
    actions = proxy.spaces["actions"]

    def target(state: np.ndarray) -> np.ndarray:
        return finished((state - center) / spread @ weight + bias, layers, activation)

    if "n" in actions:
        one_hot = np.eye(actions["n"], dtype=np.float32)
        return lambda state, action: form(one_hot[action] - one_hot[target(state).argmax(-1)], -1)
    low, high = (np.array(actions[name], np.float32) for name in ("low", "high"))
    middle, half = (low + high) / 2, (high - low) / 2

    def pay(state: np.ndarray, action: np.ndarray) -> np.ndarray:
        off = np.clip((action - middle) / half, -1, 1) - np.clip(target(state), -1, 1)
        return np.asarray(form(off, -1), np.float32)

    return pay


class Episodes:
    """Initial states of successive episodes of N environments, computed in blocks, because one call costs the same for
    few states and for many. ``seeds [N]`` int64 are the seeds of the next episodes; each episode adds 1."""

    def __init__(self, program: Program, seeds: np.ndarray) -> None:
        self._program, self.seeds = program, seeds
        self._first = seeds - _BLOCK  # first seeds of the current block; no block exists yet

    def begin(self, rows: np.ndarray) -> np.ndarray:
        """Start the next episode in the k environments ``rows``. Return a copy of the initial states ``[k, S]``."""
        used = self.seeds[rows] - self._first[rows]
        if used.max() == _BLOCK:
            self._first, used = self.seeds.copy(), np.zeros_like(used)
            self._block = self._program.first_states(self._first + np.arange(_BLOCK)[:, None])  # [block, N, S]
        self.seeds[rows] += 1
        return self._block[used, rows]


def real_starts(game: str) -> Starts:
    """Return a function from seeds to initial observations of a real environment. They equal the trainer's
    (`envs.synthetic.starts_of`). Tensor programs of the trainer have a formula here; for other environments, a reset
    with one of 4,096 seeds gives the observation. Raises ProxyError if the environment cannot be made."""
    game = re.sub(r",action_repeat=\d+$", "", game)  # it does not change initial states
    gym_id = IDS.get(game.partition(",")[0], game)  # nor do the parameters of these environments
    return _FORMULAS[gym_id] if gym_id in _FORMULAS else _resets(gym_id)


def _cartpole(seeds: np.ndarray) -> np.ndarray:
    """Return position (m), speed (m/s), angle (rad) and angular speed (rad/s), all uniform on [-0.05, 0.05)."""
    return ((uniform(seeds, 4) * 2 - 1) * 0.05).astype(np.float32)


def _acrobot(seeds: np.ndarray) -> np.ndarray:
    """Return cosine and sine of two angles (rad), and their speeds (rad/s). Angles and speeds are uniform on [-0.1,
    0.1)."""
    first, second, *speeds = np.moveaxis((uniform(seeds, 4) * 2 - 1) * 0.1, -1, 0)
    return np.stack((np.cos(first), np.sin(first), np.cos(second), np.sin(second), *speeds), -1).astype(np.float32)


def _cell(cells: int, first: int = 0) -> Starts:
    """Return a function that gives the cell ``first`` of ``cells``, one-hot, for every seed."""
    obs = np.zeros(cells, np.float32)
    obs[first] = 1
    return lambda seeds: np.tile(obs, (*seeds.shape, 1))


def _mountaincar(seeds: np.ndarray) -> np.ndarray:
    """Return a position uniform on [-0.6, -0.4), and speed 0."""
    position = uniform(seeds, 1) * 0.2 - 0.6
    return np.concatenate((position, np.zeros_like(position)), -1).astype(np.float32)


def _pendulum(seeds: np.ndarray) -> np.ndarray:
    """Return cosine and sine of an angle (rad) uniform on [-pi, pi), and a speed (rad/s) uniform on [-1, 1)."""
    angle, speed = np.moveaxis((uniform(seeds, 2) * 2 - 1) * [np.pi, 1.0], -1, 0)
    return np.stack((np.cos(angle), np.sin(angle), speed), -1).astype(np.float32)


_FORMULAS = {
    "CartPole-v0": _cartpole,
    "CartPole-v1": _cartpole,
    "Acrobot-v1": _acrobot,
    "MountainCar-v0": _mountaincar,
    "MountainCarContinuous-v0": _mountaincar,
    "Pendulum-v1": _pendulum,
    "CliffWalking-v1": _cell(48, 36),
    "understudy/Cliff-v0": _cell(48, 36),
    "understudy/EmptyRoom22-v0": _cell(4),
    "understudy/EmptyRoom23-v0": _cell(6),
    "understudy/EmptyRoom33-v0": _cell(9),
    "understudy/WallRoom-v0": _cell(25),
    "understudy/HoleRoom-v0": _cell(25),
    "understudy/HoleRoomLarge-v0": _cell(35),
    "understudy/HoleRoomLargeShifted-v0": _cell(35),
}


@functools.cache
def _resets(gym_id: str) -> Starts:
    module = gym_id.rpartition(":")[0]
    if module and module not in sys.modules:  # Gymnasium would import a module named by a file
        line = f"first states are those of {gym_id!r}, but no file has a module imported"
        raise ProxyError(f"{line}; import {module} yourself first")
    try:
        real = gymnasium.make(gym_id)
    except (Exception, SystemExit) as error:  # missing packages and unknown ids may raise any error
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ProxyError(f"first states are those of {gym_id!r}, which cannot be made ({reason})") from error

    @functools.cache
    def first(seed: int) -> np.ndarray:
        try:
            obs = gymnasium.spaces.flatten(real.observation_space, real.reset(seed=seed)[0])
            return np.asarray(obs, np.float32).reshape(gymnasium.spaces.flatdim(real.observation_space))
        except (Exception, SystemExit) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            line = f"first states are those of {gym_id!r}, whose reset with seed {seed} failed ({reason})"
            raise ProxyError(line) from error

    def starts(seeds: np.ndarray) -> np.ndarray:
        numbers = (uniform(seeds, 1) * _DRAWS).astype(np.int64).ravel().tolist()
        return np.stack([first(number) for number in numbers]).reshape(*seeds.shape, -1)

    return starts
