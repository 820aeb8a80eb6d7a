"""A learned environment as NumPy functions, which compute initial states from seeds, and steps of N states at once."""

import functools
import re
import sys
from collections.abc import Callable, Mapping, Sequence

import gymnasium
import numpy as np

from understudy.hashing import normal, uniform
from understudy.kinds import ACTIVATIONS, FORMS, FREE, KINDS
from understudy.proxy import BOUND, Proxy, ProxyError

SEEDS = 2**62  # upper bound of the seed of the first episode; each further episode adds 1
ENDS_ABOVE = 0.5  # the done network's output above which an episode ends
_BLOCK = 32  # number of episodes for which initial states are computed at once
_DRAWS = 4096  # number of initial observations of an environment that has no formula here
# The trainer's maps: the number of cells, and the cell in which episodes start.
_MAPS = {
    "Cliff": (48, 36),
    "EmptyRoom22": (4, 0),
    "EmptyRoom23": (6, 0),
    "EmptyRoom33": (9, 0),
    "WallRoom": (25, 0),
    "HoleRoom": (25, 0),
    "HoleRoomLarge": (35, 0),
    "HoleRoomLargeShifted": (35, 0),
}
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
    **{name.lower(): f"understudy/{name}-v0" for name in _MAPS},
}
Layers = list[tuple[np.ndarray, np.ndarray]]
"""Weights ``[in, out]`` and biases ``[out]``, from the first layer on."""
Starts = Callable[[np.ndarray], np.ndarray]
"""A function from seeds ``[...]`` int64, with at least one axis, to initial states ``[..., S]`` float32."""


class Program:
    """Computes the initial states and the steps of a learned environment, a `Proxy`. Results are always finite: NaN
    becomes 0, and observations and rewards are clipped to [-`BOUND`, `BOUND`].

    The networks are joined into a single network (`join_networks`). The weights of its first layer are split into
    weights for the action and weights for the state. A bandit (an environment with episodes of one step) may instead
    compute its reward from the output of a target network, which maps a state to the best action.
    """

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._size, self._one_step = proxy.spaces["obs_shape"][0], KINDS[proxy.kind].one_step
        self._activation = ACTIVATIONS[proxy.config["proxy_activation_fn"]]
        self._discrete = "n" in proxy.spaces["actions"]
        self._target_reward = None if proxy.config.get("reward_form", FREE) == FREE else _target_reward_of(proxy)
        if self._target_reward is None:
            names = ["reward"] if self._one_step else ["state", "reward", "done"]
            (first_weight, self._bias), *self._layers = join_networks(proxy.tensors, names)
            # Inputs are [action, state], so the last S rows are the weights of the state.
            self._action_weight, self._state_weight = np.split(first_weight, [-self._size])
            if self._discrete:  # a one-hot action selects a row of the weights, so the bias is added to each row
                self._action_weight = self._action_weight + self._bias
        self._starts = self._starts_of(proxy)

    def __reduce__(self) -> tuple[type["Program"], tuple[Proxy]]:
        return Program, (self._proxy,)  # pickle cannot store the functions in `_starts` and `_target_reward`

    def first_states(self, seeds: np.ndarray) -> np.ndarray:
        """Return the initial states ``[..., S]`` of episodes with ``seeds [...]`` int64. Depending on the proxy, they
        are outputs of the initial-state network, rows of the table, one-hot cells, or initial observations of the real
        environment. Raises ProxyError if the real environment cannot be reset, or has observations of another size."""
        with np.errstate(all="ignore"):  # the network's numbers may overflow, which `_make_finite` corrects
            states = _make_finite(self._starts(seeds))
        if states.shape[-1] != self._size:
            raise ProxyError(f"first states have {states.shape[-1]} numbers, the synthetic environment {self._size}")
        return states

    def step(self, state: np.ndarray, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take ``action``, ``[N]`` integers or ``[N, A]`` float32, in ``state [N, S]``. An action without the axis N
        applies to all N states. Return the next state ``[N, S]``, the reward ``[N]`` float32 and terminated ``[N]``
        bool. The next state of a bandit is the array ``state`` itself."""
        with np.errstate(all="ignore"):
            if self._target_reward is not None:  # a bandit with a target
                return state, _make_finite(self._target_reward(state, action)), np.ones(len(state), np.bool_)
            if self._discrete:
                action_term = self._action_weight[action]  # includes the bias
            else:
                action_term = action @ self._action_weight + self._bias
            outputs = run_layers(state @ self._state_weight + action_term, self._layers, self._activation)
            terminated = outputs[:, -1] > ENDS_ABOVE  # the last output of an MDP is done; false for NaN
            outputs = _make_finite(outputs)
        if self._one_step:  # a bandit with a reward network, whose only output is the reward
            return state, outputs[:, 0], np.ones(len(state), np.bool_)
        return outputs[:, : self._size], outputs[:, self._size], terminated  # state, reward, done

    def _starts_of(self, proxy: Proxy) -> Starts:
        """Return the function from seeds to initial states of ``proxy``, from one of the sources in `first_states`."""
        if "states.table" in proxy.tensors:
            return _table_starts(proxy.tensors["states.table"])
        if proxy.config.get("first_states") == "cells":
            return _table_starts(np.eye(self._size, dtype=np.float32))
        if "initial.0.bias" not in proxy.tensors:
            return real_starts(proxy.game)
        (weight, bias), *layers = join_networks(proxy.tensors, ["initial"])

        def network_starts(seeds: np.ndarray) -> np.ndarray:
            hidden = normal(seeds, len(weight)).astype(np.float32) @ weight + bias  # ``weight`` is [in, out]
            return run_layers(hidden, layers, self._activation)

        return network_starts


def join_networks(tensors: Mapping[str, np.ndarray], names: Sequence[str]) -> Layers:
    """Join networks of equal depth and with the same inputs into a single wide network, so that a step takes one matrix
    product per layer. Its outputs are the outputs of all networks, one after another. ``names`` are the names of the
    networks in ``tensors``, such as ``state`` for ``state.0.weight``."""
    layers: Layers = []
    while f"{names[0]}.{len(layers)}.weight" in tensors:
        i = len(layers)
        weights = [tensors[f"{name}.{i}.weight"].T for name in names]  # [in, out]
        bias = np.concatenate([tensors[f"{name}.{i}.bias"] for name in names])
        # The networks share the inputs of the first layer. In later layers, their inputs are separate.
        weight = np.concatenate(weights, 1) if i == 0 else _block_diagonal(weights)
        layers.append((weight, bias))
    return layers


def _block_diagonal(blocks: list[np.ndarray]) -> np.ndarray:
    """Return a matrix with the ``blocks`` along its diagonal and zeros elsewhere."""
    matrix = np.zeros(np.sum([block.shape for block in blocks], 0), np.float32)
    row = column = 0
    for block in blocks:
        matrix[row : row + block.shape[0], column : column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    return matrix


def run_layers(hidden: np.ndarray, layers: Layers, activation: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Compute the outputs ``[..., out]`` of a network from the result of its first layer before the activation,
    ``hidden [..., units]``. ``layers`` are the later layers."""
    for weight, bias in layers:
        hidden = activation(hidden) @ weight + bias
    return hidden


def _make_finite(values: np.ndarray) -> np.ndarray:
    """Return ``values`` clipped to [-`BOUND`, `BOUND`], with 0 for NaN."""
    if np.abs(values).max() <= BOUND:  # false for NaN
        return values
    return np.clip(np.nan_to_num(values, nan=0.0, posinf=BOUND, neginf=-BOUND), -BOUND, BOUND)


def _table_starts(table: np.ndarray) -> Starts:
    """Return a function that picks a row of ``table`` for each seed, all with the same probability."""
    return lambda seeds: table[(uniform(seeds, 1)[..., 0] * len(table)).astype(np.int64)]


def _target_reward_of(proxy: Proxy) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return the reward function of a bandit with a target, a network that maps a state to the best action. The
    function maps states ``[N, S]`` and actions, ``[N]`` or ``[N, A]``, to rewards ``[N]``, which depend on the
    difference between the action and the target's action."""
    (weight, bias), *layers = join_networks(proxy.tensors, ["target"])
    center, spread = proxy.tensors["target.center"], proxy.tensors["target.spread"]
    activation, form = ACTIVATIONS[proxy.config["proxy_activation_fn"]], FORMS[proxy.config["reward_form"]]
    actions = proxy.spaces["actions"]

    def target(state: np.ndarray) -> np.ndarray:
        return run_layers((state - center) / spread @ weight + bias, layers, activation)

    if "n" in actions:
        one_hot = np.eye(actions["n"], dtype=np.float32)
        return lambda state, action: form(one_hot[action] - one_hot[target(state).argmax(-1)], -1)
    low, high = (np.array(actions[name], np.float32) for name in ("low", "high"))
    middle, half = (low + high) / 2, (high - low) / 2
    return lambda state, action: form(np.clip((action - middle) / half, -1, 1) - np.clip(target(state), -1, 1), -1)


class Episodes:
    """Initial states of successive episodes of N environments. They are computed in blocks of `_BLOCK` episodes,
    because a call takes the same time for few states and for many. ``seeds [N]`` int64 are the seeds of the next
    episodes. The seed of an environment increases by 1 with each episode."""

    def __init__(self, program: Program, seeds: np.ndarray) -> None:
        self._program, self.seeds = program, seeds
        # Seeds [N] of the first episodes of the current block. These initial values mean that a block is used up, so
        # that the first call of `begin` computes a block.
        self._first_seeds = seeds - _BLOCK

    def begin(self, rows: np.ndarray) -> np.ndarray:
        """Start the next episode in k environments with indices ``rows [k]``. Return initial states ``[k, S]``."""
        num_used = self.seeds[rows] - self._first_seeds[rows]  # episodes of the current block so far
        if num_used.max() == _BLOCK:  # an environment has used all of its states, so all get a new block
            self._first_seeds, num_used = self.seeds.copy(), np.zeros_like(num_used)
            self._block = self._program.first_states(self._first_seeds + np.arange(_BLOCK)[:, None])  # [block, N, S]
        self.seeds[rows] += 1
        return self._block[num_used, rows]


def real_starts(game: str) -> Starts:
    """Return a function from seeds to initial observations of the real environment ``game``, a trainer's name (`IDS`)
    or an id of Gymnasium, perhaps with parameters after a comma. They equal the observations in training
    (`envs.synthetic.starts_of`). If there is no formula for them here, they are results of resets with one of 4,096
    seeds. Raises ProxyError if the environment cannot be made."""
    # Parameters that do not change initial states are removed: all parameters of environments in `IDS`, and
    # action_repeat of other environments. Other parameters remain part of the name.
    game = re.sub(r",action_repeat=\d+$", "", game)
    gym_id = IDS.get(game.partition(",")[0], game)
    return _FORMULAS[gym_id] if gym_id in _FORMULAS else _reset_starts(gym_id)


def _cartpole(seeds: np.ndarray) -> np.ndarray:
    """Return initial states ``[..., 4]``: position (m), speed, angle (rad) and its speed, uniform on [-0.05, 0.05)."""
    return ((uniform(seeds, 4) * 2 - 1) * 0.05).astype(np.float32)


def _acrobot(seeds: np.ndarray) -> np.ndarray:
    """Return initial states ``[..., 6]``: cosine and sine of two angles, and their speeds (rad/s). Angles (rad) and
    speeds are uniform on [-0.1, 0.1)."""
    first, second, *speeds = np.moveaxis((uniform(seeds, 4) * 2 - 1) * 0.1, -1, 0)
    return np.stack((np.cos(first), np.sin(first), np.cos(second), np.sin(second), *speeds), -1).astype(np.float32)


def _mountaincar(seeds: np.ndarray) -> np.ndarray:
    """Return initial states ``[..., 2]``: a position uniform on [-0.6, -0.4), and speed 0."""
    position = uniform(seeds, 1) * 0.2 - 0.6
    return np.concatenate((position, np.zeros_like(position)), -1).astype(np.float32)


def _pendulum(seeds: np.ndarray) -> np.ndarray:
    """Return initial states ``[..., 3]``: cosine and sine of an angle on [-pi, pi), and a speed on [-1, 1)."""
    angle, speed = np.moveaxis((uniform(seeds, 2) * 2 - 1) * [np.pi, 1.0], -1, 0)
    return np.stack((np.cos(angle), np.sin(angle), speed), -1).astype(np.float32)


_CELL_STARTS = {name: _table_starts(np.eye(cells, dtype=np.float32)[[start]]) for name, (cells, start) in _MAPS.items()}
_FORMULAS = {
    "CartPole-v0": _cartpole,
    "CartPole-v1": _cartpole,
    "Acrobot-v1": _acrobot,
    "MountainCar-v0": _mountaincar,
    "MountainCarContinuous-v0": _mountaincar,
    "Pendulum-v1": _pendulum,
    "CliffWalking-v1": _CELL_STARTS["Cliff"],
    **{f"understudy/{name}-v0": starts for name, starts in _CELL_STARTS.items()},
}


@functools.cache
def _reset_starts(gym_id: str) -> Starts:
    """Return a function from seeds to initial observations of the Gymnasium environment ``gym_id``. It maps a seed to
    one of 4,096 seeds for a reset, so that observations can be stored. It raises ProxyError if a reset fails, and this
    call raises it if the environment cannot be made."""
    module = gym_id.rpartition(":")[0]  # the module of an id "module:name"
    if module and module not in sys.modules:  # Gymnasium would import it, and so run code that a file names
        raise ProxyError(
            f"first states are those of {gym_id!r}, but no file has a module imported; import {module} yourself first"
        )
    try:
        real = gymnasium.make(gym_id)
    except (Exception, SystemExit) as error:  # missing packages and unknown ids may raise any error
        raise ProxyError(f"first states are those of {gym_id!r}, which cannot be made ({error!r})") from error

    @functools.cache
    def first_observation(seed: int) -> np.ndarray:
        """Return the flattened observation ``[S]`` after a reset with ``seed``."""
        try:
            obs = gymnasium.spaces.flatten(real.observation_space, real.reset(seed=seed)[0])
            return np.asarray(obs, np.float32).reshape(gymnasium.spaces.flatdim(real.observation_space))
        except (Exception, SystemExit) as error:
            raise ProxyError(
                f"first states are those of {gym_id!r}, whose reset with seed {seed} failed ({error!r})"
            ) from error

    def starts(seeds: np.ndarray) -> np.ndarray:
        """Return an initial observation for each of ``seeds [...]``, ``[..., S]``."""
        reset_seeds = (uniform(seeds, 1) * _DRAWS).astype(np.int64).ravel().tolist()
        return np.stack([first_observation(seed) for seed in reset_seeds]).reshape(*seeds.shape, -1)

    return starts
