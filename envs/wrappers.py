"""Gymnasium wrappers for observations, rewards and repeated actions. Checks that agents can use the spaces and the
results of an environment."""

import math
import traceback
from collections.abc import Mapping
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box
from torch.nn.functional import adaptive_avg_pool1d

from envs.names import first_line
from models.settings import StopNow, UserError, shorten

MAX_COMBINATIONS = 4096  # most combinations of an action's parts; the policy has an output for each
MAX_SIZE = 2**24  # largest size of an observation, and largest number of actions
RESET = "reset() returns observation and info"  # end of messages about a reset that returns an observation alone
_NUMBERS = "biuf"  # NumPy's letters for the kinds of dtypes: bool, int, unsigned int, float
COMBINED = gym.spaces.MultiDiscrete | gym.spaces.MultiBinary  # spaces of actions with several discrete parts


class BrokenContract(Exception):
    """A result of an environment that breaks Gymnasium's contract. The message states it and the expected result."""


def check_observation(space: Box, obs: Any) -> None:
    """Raise `BrokenContract` unless ``obs`` consists of numbers and has the shape of ``space``. NumPy would broadcast a
    single number to a whole observation. Bounds are not checked: many environments exceed them a little."""
    if type(obs) is np.ndarray and obs.dtype is space.dtype and obs.shape == space.shape:
        return  # the usual case, which needs no conversion
    array = np.asarray(obs)
    if array.dtype.kind not in _NUMBERS or array.shape != space.shape:
        description = f"an array of {array.dtype} {list(array.shape)}"
        raise BrokenContract(f"observation is {description}; expected an array of {space.dtype} {list(space.shape)}")
    if space.dtype.kind != "f":
        with np.errstate(invalid="ignore"):
            is_changed = array.astype(space.dtype) != array  # numbers that the dtype cannot hold
        if is_changed.any():
            raise BrokenContract(f"observation holds {array[is_changed].flat[0]}; expected numbers of {space.dtype}")


def as_number(result: Any, name: str = "reward") -> Any:
    """Return ``result``, a number or an array of one number, as a plain number. Raises `BrokenContract` for any other
    result, which the message calls ``name``. (NumPy would convert texts, and drop imaginary parts.)"""
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
    line = f"{type(error).__name__}: {first_line(error)}"
    frames = traceback.extract_tb(error.__traceback__)
    if "unpack" in line and frames and ".reset(" in (frames[-1].line or ""):
        return f"{line}; {RESET}"
    if "values to unpack (expected 5" in line:  # gym before 0.26 returned four values
        return f"{line}; step() returns observation, reward, terminated, truncated and info"
    return line


def spaces_problem(env: gym.Env, screen: Box | None) -> str | None:
    """Return why agents cannot use the spaces of ``env``, as part of a message for the user. None if they can. Agents
    observe images of the space ``screen`` or, if it is None, flattened observations."""
    obs_space, action_space = env.observation_space, env.action_space
    try:
        size = gym.spaces.flatdim(obs_space if screen is None else screen)
    except Exception:  # usually NotImplementedError or ValueError, but an invalid space may raise any error
        size = 0
    if size < 1:
        return f"its observation space {describe(obs_space)} cannot be flattened to numbers; allowed: a wrapper for it"
    if size > MAX_SIZE:
        return f"its observation space {describe(obs_space)} holds {size} numbers; allowed: at most {MAX_SIZE}"
    if not _is_supported(action_space):
        return (
            f"its action space {describe(action_space)} is not supported; allowed: Discrete, MultiDiscrete or "
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
    """Return the number of values of each part of an action: ``[3, 2]`` for MultiDiscrete([3, 2])."""
    if isinstance(space, gym.spaces.MultiBinary):
        return [2] * math.prod(space.shape)
    return space.nvec.ravel().tolist()


def describe(space: Any) -> str:
    """Return a space in words, on one line of at most 200 characters."""
    return shorten(" ".join(str(space).split()), 200)


# Size of a frame for TakeCover in Srivastava et al. 2019, "Training Agents using Upside-Down RL".
FRAME_SIZE = 32
_LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue in a grey image (ITU-R BT.601)


class FastDiscrete(gym.spaces.Discrete):
    """A Discrete space with a `contains` that is faster for Python's integers. Environments call it at every step."""

    def contains(self, x: Any) -> bool:
        if type(x) is int:
            return int(self.start) <= x < int(self.start) + int(self.n)
        return super().contains(x)


class SparseReward(gym.Wrapper):
    """Pay 0 until the last step of the episode, which pays the whole return (float64 sum of the rewards).

    An episode that ends at its time limit is reported as terminated, because no reward can follow. Otherwise agents
    would add the value of the last observation to the whole return, and prefer to reach the time limit."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._sum = 0.0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._sum += as_number(reward)
        ends = terminated or truncated
        return obs, self._sum if ends else 0.0, ends, False, info


class RepeatAction(gym.Wrapper):
    """Take each action ``times`` times, or fewer if the episode ends before. The reward is the float64 sum of the
    rewards. Observation and info are from the last repetition."""

    def __init__(self, env: gym.Env, times: int) -> None:
        super().__init__(env)
        self._times = times

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Repeat ``action``, and return the results of the last repetition with the sum of the rewards."""
        total = 0.0
        for _ in range(self._times):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += as_number(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


class FlatObservation(gym.wrappers.FlattenObservation):
    """Flatten observations of any space to vectors, and numbered cells to one-hot vectors. A cell outside of its space
    raises `BrokenContract`, because NumPy would count a negative index from the end."""

    def observation(self, observation: Any) -> Any:
        _check_cells(self.env.observation_space, observation, "observation")
        return super().observation(observation)


def _check_cells(space: gym.Space, observation: Any, name: str) -> None:
    """Raise `BrokenContract` if ``observation``, of any ``space``, has a discrete number that is not in its range. In
    the message, the observation is called ``name``."""
    if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        parts = space.spaces.items() if isinstance(space, gym.spaces.Dict) else enumerate(space.spaces)
        for key, part in parts:
            _check_cells(part, observation[key], f"{name}[{key!r}]")
    elif isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        size: Any = space.n if isinstance(space, gym.spaces.Discrete) else space.nvec
        is_one_cell = np.size(observation) == np.size(size)  # NumPy would set the bit of each of several cells
        if not is_one_cell or not ((space.start <= observation) & (observation < space.start + size)).all():
            allowed = f"{space.start} to {space.start + size - 1}"
            raise BrokenContract(f"{name} is {observation}; expected a cell from {allowed}")


class FlatAction(gym.ActionWrapper):
    """Take actions with several parts, MultiDiscrete or MultiBinary, as one discrete action: the index of the
    combination, in which the last part changes fastest."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        space = env.action_space
        assert isinstance(space, COMBINED)
        self.choices = choices(space)
        self._start = space.start if isinstance(space, gym.spaces.MultiDiscrete) else 0
        self.action_space = FastDiscrete(math.prod(self.choices))

    def action(self, action: int) -> np.ndarray:
        """Return the parts of the combination with the index ``action``."""
        space = self.env.action_space
        parts = np.array(np.unravel_index(action, self.choices), space.dtype)
        return parts.reshape(space.shape) + self._start

    def indices(self, actions: np.ndarray) -> np.ndarray:
        """Return the indices ``[N]`` of combinations ``[N, *parts]``. Raises ValueError if a part is out of range."""
        parts = (actions - self._start).reshape(len(actions), -1)
        is_valid = ((parts >= 0) & (parts < self.choices) & (parts == np.round(parts))).all(1)
        if not is_valid.all():
            raise ValueError(f"{actions[~is_valid][0]} is not in {describe(self.env.action_space)}")
        return np.asarray(np.ravel_multi_index(tuple(parts.astype(np.int64).T), self.choices))


class GreyFrame(gym.ObservationWrapper):
    """Observe a grey frame ``(size, size)`` uint8, which is resized by averaging areas. The environment's observations
    are uint8 images ``(H, W)`` or ``(H, W, C)`` with 1, 3 or 4 channels (the fourth is ignored), or have one under
    "screen"."""

    def __init__(self, env: gym.Env, size: int) -> None:
        super().__init__(env)
        images = image_space(env.observation_space)
        assert images is not None
        self._images = images
        height, width, *channels = images.shape
        luma = [1.0]
        if channels and channels[0] > 1:
            luma = [*_LUMA, 0.0][: channels[0]]  # a fourth channel is ignored
        # Averaging n pixels to ``size`` is a product with a matrix [n, size]: the average of the identity matrix. So a
        # grey frame [size, size] is rows [size, H] @ image [H, W C] @ columns [W C, size]. The columns also weight the
        # channels by luma.
        self._rows = adaptive_avg_pool1d(torch.eye(height)[None], size)[0].T
        width_matrix = adaptive_avg_pool1d(torch.eye(width)[None], size)[0]  # [W, size]
        self._columns = torch.kron(width_matrix, torch.tensor(luma).unsqueeze(1))
        self.observation_space = Box(0, 255, (size, size), np.uint8)

    def observation(self, obs: Any) -> np.ndarray:
        """Convert an image ``[H, W(, C)]`` to a grey frame ``[size, size]`` uint8."""
        picture = obs["screen"] if isinstance(obs, Mapping) else obs
        check_observation(self._images, picture)
        image = torch.from_numpy(np.ascontiguousarray(picture))
        # The first matrix averages rows, the second columns and colours.
        frame = self._rows @ image.flatten(1).float() @ self._columns
        return frame.round_().to(torch.uint8).numpy()


def image_space(space: Any) -> Box | None:
    """Return the space of the images in observations of ``space``, which may be a Dict with an image under "screen".
    None if there are none, or if they are smaller than a frame: such arrays are cells of a grid, and are flattened."""
    if isinstance(space, gym.spaces.Dict):
        return image_space(space.spaces.get("screen"))
    if not isinstance(space, Box) or space.dtype != np.uint8:
        return None
    is_grey = len(space.shape) == 2
    has_channels = len(space.shape) == 3 and space.shape[2] in (1, 3, 4)
    if not (is_grey or has_channels) or min(space.shape[:2]) < FRAME_SIZE:
        return None
    return space
