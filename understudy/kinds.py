"""The kinds of learned environments and rewards. `KINDS` has a record of each kind, which writers, readers and
environments use.

S is the size of an observation, A the number of discrete actions or the size of a continuous action, and I the number
of numbers that phi reads from the info of a step.
"""

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

Json = Mapping[str, Any]


def _leaky_relu(slope: float, x: np.ndarray) -> np.ndarray:
    """Return the leaky ReLU of ``x``, with ``slope`` (at most 1) below 0."""
    return np.maximum(x, x * np.float32(slope))


# The functions are no lambdas, because environments that contain them are pickled.
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": partial(np.maximum, np.float32(0)),
    "leakyrelu": partial(_leaky_relu, 0.01),
    "tanh": np.tanh,
    "prelu": partial(_leaky_relu, 0.25),
    "identity": np.positive,
}


class Setting(NamedTuple):
    """Requirement on a setting in a file: ``is_valid`` tests a value, ``allowed`` describes the allowed values."""

    is_valid: Callable[[Any], bool]
    allowed: str


@dataclass(frozen=True)
class Kind:
    """A kind of proxy (learned environment or reward). The arguments of its functions are ``config``, the settings in
    the file of a proxy, and ``spaces``, the description of the real environment in the file."""

    noun: str  # its name in a sentence
    settings: Mapping[str, Setting]  # settings that readers of a file need, with the ranges of the trainer's flags
    shapes: Callable[[Json, Json], dict[str, list[int]]]  # (config, spaces) -> {name: shape} of all tensors
    defaults: Mapping[str, Any] = field(default_factory=dict)  # values of settings that are missing in older files
    spaces: tuple[str, ...] = ()  # names of entries in ``spaces`` that only this kind has
    fits: Callable[[Json, Json], bool] = lambda config, spaces: True  # whether these entries fit the config
    one_step: bool = False  # whether every step is an episode
    used_by: str = ""  # name of the wrapper for a learned reward; empty for an environment


@dataclass(frozen=True)
class Mode:
    """A way to compute a reward from a network phi (`understudy.rewards.shaped_reward`). If only the info of a step is
    an input of phi, phi is linear without bias. If there is no input, phi is 0."""

    name: str
    additive: bool  # whether the learned reward is added to the real reward, and does not replace it
    potential: bool  # whether the learned reward is a difference of potentials phi, and not phi of the next state
    state: bool = True  # whether the state is an input of phi
    info: bool = False  # whether the info of the step is an input of phi


FORMS: dict[str, Callable[[Any, int], Any]] = {
    "absolute": lambda difference, axis: -abs(difference).mean(axis),
    "squared": lambda difference, axis: -(difference * difference).mean(axis),
    "exponential": lambda difference, axis: math.e ** (-4 * (difference * difference).mean(axis)),
}
"""Rewards of a bandit with a target. The arguments of these functions are the difference between an action and the
target's action, an array or tensor of float32, and its axis of the numbers of an action. Continuous actions are in
units of half their range, clipped to [-1, 1]. Discrete actions are one-hot."""
FREE = "free"  # the reward is the output of a network of state and action

MODES: dict[int, Mode] = {
    0: Mode("native", additive=True, potential=False, state=False),
    1: Mode("exclusive potential", additive=False, potential=True),
    2: Mode("additive potential", additive=True, potential=True),
    3: Mode("exclusive potential with info", additive=False, potential=True, info=True),
    4: Mode("additive potential with info", additive=True, potential=True, info=True),
    5: Mode("exclusive", additive=False, potential=False),
    6: Mode("additive", additive=True, potential=False),
    7: Mode("exclusive with info", additive=False, potential=False, info=True),
    8: Mode("additive with info", additive=True, potential=False, info=True),
    101: Mode("exclusive weighted info", additive=False, potential=False, state=False, info=True),
    102: Mode("additive weighted info", additive=True, potential=False, state=False, info=True),
}


def integer(maximum: int, allowed: str, optional: bool = False, minimum: int = 1) -> Setting:
    """Return a `Setting` for integers from ``minimum`` to ``maximum``, and null if ``optional``. ``allowed`` is their
    text."""

    def is_valid(value: Any) -> bool:
        if value is None:
            return optional
        return type(value) is int and minimum <= value <= maximum

    return Setting(is_valid, allowed)


def choice(*names: Any) -> Setting:
    """Return a `Setting` with the allowed values ``names``. Types must match too: 1 is not ``True``."""
    names_and_types = [(name, type(name)) for name in names]
    return Setting(lambda value: (value, type(value)) in names_and_types, ", ".join(map(str, names)))


def is_number(value: Any) -> bool:
    """Return whether ``value`` is a number of at most a billion in size."""
    return type(value) in (int, float) and abs(value) <= 1e9


def is_number_list(value: Any) -> bool:
    """Return whether ``value`` is a list of at most 512 numbers (`is_number`)."""
    return type(value) is list and len(value) <= 512 and all(map(is_number, value))


NETWORKS = {
    "proxy_hidden_size": integer(65_536, "integer, at least 1, at most 65536"),
    "proxy_hidden_layer": integer(16, "integer, at least 0, at most 16", minimum=0),
    "proxy_activation_fn": choice(*ACTIVATIONS),
}
"""The settings of networks that all have the same width, depth and activation."""


def layer_shapes(networks: Mapping[str, tuple[int, int]], config: Json) -> dict[str, list[int]]:
    """Return name -> shape for the weights and biases of fully connected networks, such as ``"reward.0.bias": [128]``.
    ``networks`` maps the name of a network to its numbers of inputs and outputs, such as ``{"reward": (6, 1)}``.
    ``config`` has the settings in `NETWORKS`."""
    hidden_sizes = [config["proxy_hidden_size"]] * config["proxy_hidden_layer"]
    shapes: dict[str, list[int]] = {}
    for name, (num_inputs, num_outputs) in networks.items():
        sizes = [num_inputs, *hidden_sizes, num_outputs]
        for i, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
            shapes |= {f"{name}.{i}.weight": [outputs, inputs], f"{name}.{i}.bias": [outputs]}
    return shapes


def environment_networks(config: Json, size: int, action_size: int) -> dict[str, tuple[int, int]]:
    """Return name -> (inputs, outputs) for the networks of a synthetic environment, whose states have ``size`` numbers.

    In an MDP, the networks ``state``, ``reward`` and ``done`` map ``[action, state]`` to the next state, the reward and
    done. In a bandit, either a network ``reward`` maps ``[action, state]`` to the reward, or the reward is computed
    from the action and the output of the network ``target``, which maps ``(state - center) / spread`` to an action. The
    network ``initial`` maps noise to initial states. A discrete action is one-hot, of length ``action_size``.
    """
    inputs, is_mdp = action_size + size, config["proxy"] == "mdp"
    if is_mdp:
        networks = {"state": (inputs, size), "reward": (inputs, 1), "done": (inputs, 1)}
    else:
        networks = {"reward": (inputs, 1)} if config["reward_form"] == FREE else {"target": (size, action_size)}
    has_initial_network = config["learned_reset"] if is_mdp else config["first_states"] == "latent"
    if has_initial_network:
        networks["initial"] = (config["latent_size"] or size, size)
    return networks


def _environment_shapes(config: Json, spaces: Json) -> dict[str, list[int]]:
    """Return name -> shape for the tensors of a synthetic environment: the layers of `environment_networks`, center and
    spread of a target's inputs, and the table of initial states that a bandit may have."""
    (size,), actions = spaces["obs_shape"], spaces["actions"]
    action_size = int(actions["n"] if "n" in actions else len(actions["low"]))
    networks = environment_networks(config, size, action_size)
    shapes = layer_shapes(networks, config)
    if "target" in networks:
        shapes |= {"target.center": [size], "target.spread": [size]}
    if config["proxy"] != "mdp" and config["first_states"] == "table":
        shapes["states.table"] = [config["table_size"], size]
    return shapes


_ENVIRONMENT = NETWORKS | {
    "learned_reset": Setting(lambda v: type(v) is bool, "true or false"),
    "latent_size": integer(65_536, "integer, at least 1, at most 65536; or null", optional=True),
    "max_steps": integer(10**9, "integer, at least 1; or null", optional=True),
}
_BANDIT = _ENVIRONMENT | {
    "reward_form": choice(FREE, *FORMS),
    "first_states": choice("latent", "table", "cells"),
    "table_size": integer(1_000_000, "integer, at least 1, at most 1000000"),
}
_BANDIT_DEFAULTS = {"reward_form": FREE, "first_states": "latent", "table_size": 2048}


def _reward_shapes(config: Json, spaces: Json) -> dict[str, list[int]]:
    """Return name -> shape for the tensors of a learned reward, a network whose inputs are the state, the info of a
    step, or both (`Mode`). With info alone it is a weight matrix without bias."""
    mode, (size,), info_size = MODES[config["mode"]], spaces["obs_shape"], len(spaces["info"])
    if mode.info and not mode.state:
        return {"reward.0.weight": [1, info_size]}
    num_inputs = (size if mode.state else 0) + (info_size if mode.info else 0)
    return layer_shapes({"reward": (max(1, num_inputs), 1)}, config)  # mode 0 has an unused network


def _reward_fits(config: Json, spaces: Json) -> bool:
    """Return whether the entries in the file of a learned reward fit each other: ``spaces["info"]`` is a list of names,
    not empty if the mode reads info. Center and spread of the inputs have the size of an observation, or are empty."""
    info, (size,) = spaces["info"], spaces["obs_shape"]
    valid_names = type(info) is list and len(info) <= 64 and all(type(name) is str for name in info)
    has_needed_info = bool(info) or not MODES[config["mode"]].info
    fits_inputs = all(len(config[name]) in (0, size) for name in ("rn_input_center", "rn_input_spread"))
    return valid_names and has_needed_info and fits_inputs


MOST_EXPONENT = 30.0  # largest exponent of symexp
_REWARD = NETWORKS | {
    "mode": choice(*MODES),
    "rn_output_scale": Setting(is_number, "number"),
    "rn_output": choice("linear", "symexp"),
    "rn_terminal": choice("free", "zero"),
    "rn_input_center": Setting(is_number_list, "list of numbers, at most 512"),
    "rn_input_spread": Setting(lambda v: is_number_list(v) and 0 not in v, "list of numbers other than 0, at most 512"),
}

KINDS: dict[str, Kind] = {
    "mdp": Kind("synthetic environment", _ENVIRONMENT, _environment_shapes),
    "bandit": Kind("synthetic bandit", _BANDIT, _environment_shapes, defaults=_BANDIT_DEFAULTS, one_step=True),
    "reward": Kind(
        "reward network",
        _REWARD,
        _reward_shapes,
        defaults={"rn_output": "linear"},
        spaces=("info",),
        fits=_reward_fits,
        used_by="understudy.RewardWrapper",
    ),
}
"""The kinds of proxies, by the value of the setting ``proxy`` in their files. A new kind is a new entry."""
