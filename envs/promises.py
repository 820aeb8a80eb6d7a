"""Checks that a Gymnasium environment keeps its contract: usable spaces, and results of steps that match them.

NumPy would convert nearly everything to numbers: it broadcasts one number to a whole observation, and parses text. Each
function accepts the usual results by a fast comparison first.
"""

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from envs.names import first_line
from models.settings import StopNow, UserError, format_value, shorten

MAX_SIZE = 2**24  # largest number of numbers in an observation, and of actions
MAX_COMBINATIONS = 4096  # of the parts of an action; each has an output of the policy
COMBINED = gym.spaces.MultiDiscrete | gym.spaces.MultiBinary  # spaces of actions with several discrete parts
_NUMBERS = "biuf"  # NumPy's letters for the kinds of dtypes: bool, int, unsigned int, float


class BrokenContract(Exception):
    """A result of an environment that breaks Gymnasium's contract. The message states it and the expected result."""


def checked_step(result: Any, space: Box, info_names: tuple[str, ...]) -> tuple[Any, Any, bool, bool, list[Any]]:
    """Return the ``result`` of a step: observation, reward, terminated, truncated, and the numbers ``info_names`` of
    its info. Raises `BrokenContract` if it is not as expected of an environment with observations of ``space``."""
    if len(result) != 5:
        line = f"step gave {len(result)} values; expected observation, reward, terminated, truncated, info"
        raise BrokenContract(line)
    obs, reward, terminated, truncated, info = result
    check_observation(space, obs)
    check_info(info, info_names)
    terminated, truncated = as_number(terminated, "terminated"), as_number(truncated, "truncated")
    numbers = [as_number(info[name], f"info[{name!r}]") for name in info_names]
    return obs, as_number(reward), bool(terminated), bool(truncated), numbers


def check_observation(space: Box, obs: Any) -> None:
    """Raise `BrokenContract` unless ``obs`` consists of numbers and has the shape of ``space``. Bounds are not checked:
    many environments exceed them a little."""
    if type(obs) is np.ndarray and obs.dtype is space.dtype and obs.shape == space.shape:  # as usual
        return
    try:
        numbers = np.asarray(obs)
    except Exception:  # lists of unequal lengths, or an object whose conversion fails
        numbers = np.array(None)  # of the kind "O", an object
    if numbers.dtype.kind not in _NUMBERS or numbers.shape != space.shape:
        description = _describe_value(obs if numbers.dtype.kind == "O" else numbers)
        raise BrokenContract(f"observation is {description}; expected an array of {space.dtype} {list(space.shape)}")


def as_number(result: Any, name: str = "reward") -> Any:
    """Return ``result``, a number or an array of one number, as a plain number. Raises `BrokenContract` for anything
    else, such as text, None or complex numbers. The message calls it ``name``."""
    if type(result) in (float, bool, np.float64, np.bool_):  # the usual results
        return result
    value = np.asarray(result)
    if value.size != 1 or value.dtype.kind not in _NUMBERS:
        raise BrokenContract(f"{name} is {_describe_value(result)}; expected a number")
    return value.item()


def check_info(info: Any, names: tuple[str, ...] = ()) -> None:
    """Raise `BrokenContract` if ``info`` is no mapping, or lacks one of the ``names``."""
    if type(info) is not dict and not isinstance(info, Mapping):
        raise BrokenContract(f"info is {_describe_value(info)}; expected a mapping")
    missing = [name for name in names if name not in info]
    if missing:
        raise BrokenContract(f"info lacks {', '.join(map(repr, missing))}; expected {', '.join(map(repr, names))}")


def error_reason(error: BaseException) -> str:
    """Return one line about an error that an environment raised. KeyboardInterrupt and StopNow are raised again."""
    if isinstance(error, KeyboardInterrupt | StopNow):
        raise error
    if isinstance(error, BrokenContract | UserError):
        return str(error)
    return f"{type(error).__name__}: {first_line(error)}"


def spaces_problem(env: gym.Env, screen: Box | None) -> str | None:
    """Return the reason why agents cannot use an environment's spaces, None if they can. Agents observe images of the
    space ``screen`` or, if it is None, flattened observations."""
    obs_space, action_space = env.observation_space, env.action_space
    try:
        count = gym.spaces.flatdim(obs_space if screen is None else screen)
    except Exception:  # usually NotImplementedError or ValueError, but an invalid space may raise any error
        return f"its observation space {describe(obs_space)} cannot be flattened to numbers; allowed: a wrapper for it"
    if not 1 <= count <= MAX_SIZE:
        return f"its observation space {describe(obs_space)} holds {count} numbers; allowed: 1 to {MAX_SIZE}"
    if isinstance(action_space, COMBINED):
        count = math.prod(choices(action_space))
        if count > MAX_COMBINATIONS:
            text = f"its action space {describe(action_space)} has {count} combinations"
            return f"{text}; allowed: at most {MAX_COMBINATIONS}"
    if not _is_supported(action_space):
        return (
            f"its action space {describe(action_space)} is not supported; allowed: Discrete, MultiDiscrete, "
            f"MultiBinary, or Box with finite bounds, each low below its high; at most {MAX_SIZE} actions"
        )
    return None


def _is_supported(space: Any) -> bool:
    """Return whether agents can choose actions of ``space``: discrete actions, or vectors with finite bounds."""
    if isinstance(space, gym.spaces.Discrete):
        return 1 <= space.n <= MAX_SIZE
    if isinstance(space, COMBINED):
        return True
    if not isinstance(space, Box) or space.dtype.kind not in "fiu" or not 1 <= space.low.size <= MAX_SIZE:
        return False
    # Agents compute with bounds in float32, in which even the length of the range must be finite.
    with np.errstate(all="ignore"):
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
        is_valid = np.isfinite(high - low) & (low < high)
    return bool(is_valid.all())


def choices(space: gym.spaces.MultiDiscrete | gym.spaces.MultiBinary) -> list[int]:
    """Return the number of values of each part of an action."""
    if isinstance(space, gym.spaces.MultiBinary):
        return [2] * math.prod(space.shape)
    return space.nvec.ravel().tolist()


def describe(space: Any) -> str:
    """Return a space in words, on one line of at most 200 characters."""
    return shorten(" ".join(str(space).split()), 200)


def _describe_value(value: Any) -> str:
    """Return a value in words: dtype and shape of an array ("an array of float32 [4]"), a plain value itself, otherwise
    its type ("of type Environment")."""
    if isinstance(value, np.ndarray | np.generic):
        if value.ndim:
            return f"an array of {value.dtype} {list(value.shape)}"
        value = value.item()
    if isinstance(value, bool | int | float | complex | str | bytes | None):
        return format_value(value)
    return f"of type {type(value).__name__}"
