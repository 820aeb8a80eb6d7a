"""Checks that agents can use the spaces of a Gymnasium environment, and that its observations have their shape."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box

from envs.names import first_line
from models.settings import StopNow, UserError, shorten

MAX_SIZE = 2**24  # largest number of numbers in an observation, and of actions
MAX_COMBINATIONS = 4096  # of the parts of an action; each has an output of the policy
COMBINED = gym.spaces.MultiDiscrete | gym.spaces.MultiBinary  # spaces of actions with several discrete parts


class BrokenContract(Exception):
    """A result of an environment that breaks Gymnasium's contract. The message states it and the expected result."""


def check_observation(space: Box, obs: Any) -> None:
    """Raise `BrokenContract` unless ``obs`` consists of numbers and has the shape of ``space``. NumPy would broadcast a
    single number to a whole observation. Bounds are not checked: many environments exceed them a little."""
    if type(obs) is np.ndarray and obs.dtype is space.dtype and obs.shape == space.shape:  # as usual
        return
    numbers = np.asarray(obs)
    if numbers.dtype.kind not in "biuf" or numbers.shape != space.shape:  # bool, int, unsigned int, float
        description = f"an array of {numbers.dtype} {list(numbers.shape)}"
        raise BrokenContract(f"observation is {description}; expected an array of {space.dtype} {list(space.shape)}")


def as_number(result: Any) -> float:
    """Return ``result``, a number or an array of one number. Raises any error for other results."""
    return result if type(result) is float else np.asarray(result, np.float64).item()


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
