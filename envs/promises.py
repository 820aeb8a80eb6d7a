"""Checks that agents can use the spaces of a Gymnasium environment, and that its observations have their shape."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from envs.names import first_line
from models.settings import StopNow, UserError, shorten

MAX_COMBINATIONS = 4096  # of the parts of an action; each has an output of the policy
MAX_SIZE = 2**24  # largest number of numbers in an observation, and of actions
_NUMBERS = "biuf"  # NumPy's letters for the kinds of dtypes: bool, int, unsigned int, float
COMBINED = gym.spaces.MultiDiscrete | gym.spaces.MultiBinary  # spaces of actions with several discrete parts


class BrokenContract(Exception):
    """A result of an environment that breaks Gymnasium's contract. The message states it and the expected result."""


def check_observation(space: Box, obs: Any) -> None:
    """Raise `BrokenContract` unless ``obs`` consists of numbers and has the shape of ``space``. NumPy would broadcast a
    single number to a whole observation. Bounds are not checked: many environments exceed them a little."""
    if type(obs) is np.ndarray and obs.dtype is space.dtype and obs.shape == space.shape:
        return  # the usual case, which needs no conversion
    numbers = np.asarray(obs)
    if numbers.dtype.kind not in _NUMBERS or numbers.shape != space.shape:
        description = f"an array of {numbers.dtype} {list(numbers.shape)}"
        raise BrokenContract(f"observation is {description}; expected an array of {space.dtype} {list(space.shape)}")
    if space.dtype.kind != "f":
        with np.errstate(invalid="ignore"):
            is_changed = numbers.astype(space.dtype) != numbers  # because the dtype cannot hold them
        if is_changed.any():
            raise BrokenContract(f"observation holds {numbers[is_changed].flat[0]}; expected numbers of {space.dtype}")


def as_number(result: Any, name: str = "reward") -> Any:
    """Return ``result``, a number or an array of one number, as a plain number. Raises `BrokenContract`, which calls it
    ``name``, for other results: NumPy would convert texts and drop imaginary parts."""
    if type(result) in (float, bool, np.float64, np.bool_):
        return result  # the usual case, which needs no conversion
    number = np.asarray(result)
    if number.size != 1 or number.dtype.kind not in _NUMBERS:
        raise BrokenContract(f"{name} is {shorten(repr(result), 80)}; expected a number")
    return number.item()


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
        size = gym.spaces.flatdim(obs_space if screen is None else screen)
    except Exception:  # usually NotImplementedError or ValueError, but an invalid space may raise any error
        size = 0
    if size < 1:
        return f"its observation space {_describe(obs_space)} cannot be flattened to numbers; allowed: a wrapper for it"
    if size > MAX_SIZE:
        return f"its observation space {_describe(obs_space)} holds {size} numbers; allowed: at most {MAX_SIZE}"
    if not _is_supported(action_space):
        return (
            f"its action space {_describe(action_space)} is not supported; allowed: Discrete, MultiDiscrete or "
            f"MultiBinary with at most {MAX_COMBINATIONS} combinations, or Box with finite bounds, low below high; "
            f"at most {MAX_SIZE} actions"
        )
    return None


def _is_supported(space: Any) -> bool:
    """Return whether agents can choose actions of ``space``: discrete actions, or vectors with finite bounds."""
    if isinstance(space, COMBINED):
        return math.prod(choices(space)) <= MAX_COMBINATIONS
    if isinstance(space, gym.spaces.Discrete):
        return bool(space.n <= MAX_SIZE)
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


def _describe(space: Any) -> str:
    """Return a space in words, on one line of at most 200 characters."""
    return shorten(" ".join(str(space).split()), 200)
