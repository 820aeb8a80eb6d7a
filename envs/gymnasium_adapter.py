"""Gymnasium environments as tensors ``[M, E, ...]``, stepped one after another in this process."""

import contextlib
import math
import os
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

import envs.registration  # noqa: F401  # ids of this project
from envs import wrappers
from envs.base import EnvironmentFault, ReplayedEnvironment, Step
from envs.names import Game, first_line
from envs.wrappers import BrokenContract
from models.settings import SettingError, UserError, shorten
from models.spaces import Continuous, Discrete, Spaces
from models.streams import Streams

# A number that is too large for float32 becomes infinite and raises EnvironmentFault, so NumPy need not warn.
warnings.filterwarnings("ignore", "overflow encountered in cast", RuntimeWarning, __name__)
_NUM_FRAMES = 8  # also from Srivastava et al. 2019, see `envs.wrappers.FRAME_SIZE`
# Name in the message of an ImportError -> the extra of this project that installs the package.
_EXTRAS = {"vizdoom": "[doom]", "mujoco": "[mujoco]", "imageio": "[mujoco]", "box2d": "[train]", "pygame": "[train]"}


class GymnasiumEnvironment(ReplayedEnvironment):
    """``members * envs`` instances of one Gymnasium environment. Interface: `envs.base.Environment`.

    Observations of a 1-D Box are converted to float32. Images (uint8, or a Dict with an image under "screen") become
    stacked grey frames (`envs.wrappers.GreyFrame`). All other observations are flattened to float32 vectors, in which
    discrete parts are one-hot. Actions are Discrete, or a Box with finite bounds, which is flattened; if it has
    integers, actions are rounded. MultiDiscrete and MultiBinary actions are numbered (`envs.wrappers.FlatAction`).

    Raises SettingError if the environment cannot be made. Raises EnvironmentFault if it raises an error, exits, or
    returns results that are not finite or do not match its spaces.
    """

    def __init__(self, game: Game, members: int, envs: int, render: bool = False) -> None:
        self.game, self.members, self.envs = game, members, envs
        self._render = render
        rows = members * envs
        self._envs: list[gym.Env | None] = [None] * rows  # all except the first are made at their first reset
        first = self._envs[0] = _make_instance(game, render)
        self.spaces = _spaces(first, game)
        self._space: Box = first.observation_space  # type: ignore[assignment]
        self.converter = Converter(first)
        dtype = np.uint8 if self.spaces.is_image else np.float32
        self._obs = np.zeros((rows, *self.spaces.obs_shape), dtype)
        self._ages = np.zeros(rows, np.int64)  # number of steps of each current episode

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """The lowest and the highest observation ``[*O]`` that the environment states."""
        return torch.tensor(self._space.low).float(), torch.tensor(self._space.high).float()

    def sample_observations(self, streams: Streams, count: int) -> Tensor | None:
        """Sample observations ``[M, count, O]`` that are uniform within their bounds, with M random ``streams``. Return
        None if observations are no vectors, or if the absolute value of a bound is above 1e6."""
        space = self._space
        if len(space.shape) != 1 or np.abs([space.low, space.high]).max() > 1e6:
            return None
        low, high = self.bounds
        return low + (high - low) * streams.uniform(count, len(low))

    def reset(self, seeds: Tensor, mask: Tensor | None = None) -> Tensor:
        self._record_reset(seeds, mask)
        row_seeds = seeds.reshape(-1).tolist()
        for row in self._rows(mask):
            self._ages[row] = 0
            env = self._envs[row]
            if env is None:
                env = self._envs[row] = _make_instance(self.game, self._render)
            try:
                obs, info = env.reset(seed=row_seeds[row])
                if not isinstance(info, Mapping | None):
                    raise BrokenContract(f"info is {shorten(repr(info), 80)}; {wrappers.RESET}")
                wrappers.check_observation(self._space, obs)
                self._obs[row] = obs
            except BaseException as error:
                raise self._fault(row, error) from error
        self._check_finite("observation", self._obs)
        return self._member_tensor(self._obs.copy())

    def step(self, actions: Tensor, active: Tensor | None = None) -> Step:
        self._record_step(actions, active)
        native_actions = self.converter.wrapped_actions(actions)
        num_rows = len(self._envs)
        reward = np.zeros(num_rows, np.float32)
        terminated, truncated = np.zeros(num_rows, np.bool_), np.zeros(num_rows, np.bool_)
        info_names = self.game.info
        info_values = np.zeros((num_rows, len(info_names)), np.float32)
        envs: Any = self._envs
        for row in self._rows(active):
            self._ages[row] += 1
            try:
                obs, reward_of_row, is_terminated, is_truncated, info = envs[row].step(native_actions[row])
                wrappers.check_observation(self._space, obs)
                self._obs[row], reward[row] = obs, wrappers.as_number(reward_of_row)
                terminated[row] = wrappers.as_number(is_terminated, "terminated")
                truncated[row] = wrappers.as_number(is_truncated, "truncated")
                info_values[row] = [wrappers.as_number(info[name], f"info[{name!r}]") for name in info_names]
            except BaseException as error:
                raise self._fault(row, error) from error
        self._check_finite("reward", reward)
        self._check_finite("observation", self._obs)
        self._check_finite("info", info_values)
        return Step(
            obs=self._member_tensor(self._obs.copy()),
            reward=self._member_tensor(reward),
            terminated=self._member_tensor(terminated),
            truncated=self._member_tensor(truncated),
            info=self._member_tensor(info_values) if info_names else None,
        )

    @property
    def frames_per_second(self) -> float:
        """Frames per second: ``render_fps`` (30 if missing), divided by the action repeat, and limited to [1, 240]."""
        metadata = getattr(self._envs[0], "metadata", None) or {}
        rate = float(metadata.get("render_fps") or 30)
        return min(max(rate / self.game.kwargs.get("action_repeat", 1), 1.0), 240.0)

    def frame(self, member: int, env: int) -> np.ndarray:
        """Return a picture ``[H, W, 3]`` uint8 of environment ``env`` of ``member``, or raise EnvironmentFault."""
        instance = self._envs[member * self.envs + env]
        try:
            picture: Any = None if instance is None else instance.render()
        except BaseException as error:
            raise EnvironmentFault(f"{self.game.name} cannot be drawn: {wrappers.error_reason(error)}") from error
        is_image = isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.shape[2:] == (3,)
        if not is_image or min(picture.shape) < 2:  # an array of one row or column is no picture either
            raise EnvironmentFault(f"environment {self.game.name} drew no picture: it was not made to render, or reset")
        return picture

    def close(self) -> None:
        """Close all instances. If that fails, print a warning, because they are not needed any more."""
        for row, env in enumerate(self._envs):
            self._envs[row] = None
            try:
                if env is not None:
                    env.close()
            except BaseException as error:
                reason = wrappers.error_reason(error)
                print(f"warning: environment {self.game.name} could not be closed: {reason}", file=sys.stderr)

    def _rows(self, mask: Tensor | None) -> Any:
        """Return the indices of instances (member * E + environment) that ``mask [M, E]`` selects (None: all)."""
        return range(len(self._envs)) if mask is None else np.flatnonzero(mask.numpy()).tolist()

    def _member_tensor(self, rows: np.ndarray) -> Tensor:
        """Return an array ``[M * E, ...]`` as a tensor ``[M, E, ...]`` that shares its memory."""
        return torch.from_numpy(rows.reshape(self.members, self.envs, *rows.shape[1:]))

    def _check_finite(self, name: str, values: np.ndarray) -> None:
        """Raise EnvironmentFault about the first number of ``values [M * E, ...]`` that is not finite."""
        if values.dtype == np.uint8 or np.isfinite(values).all():
            return
        row, *index = np.argwhere(~np.isfinite(values))[0].tolist()  # position of the first such number
        place = str(index) if index else ""
        raise self._fault(row, BrokenContract(f"{name}{place} is {values[row, *index]}; it must be finite"))

    def _fault(self, row: int, error: BaseException) -> EnvironmentFault:
        """Return the EnvironmentFault about an error that the instance ``row`` raised in a step or reset."""
        assert self._seeds is not None
        place = f"step {self._ages[row]} of the episode with seed {self._seeds.flatten()[row]}"
        reason = wrappers.error_reason(error)
        if not isinstance(error, BrokenContract | UserError) and "() returns " not in reason:
            frame = _frame_of_user(error)
            reason += f" ({Path(frame.filename).name}:{frame.lineno})"
        return EnvironmentFault(f"environment {self.game.name}, {place}: {reason}")


class Converter:
    """Converts observations and actions between agents and a Gymnasium environment, ``env`` with its wrappers for
    agents (`_wrap`). Observations and actions of the environment itself are called native."""

    def __init__(self, env: gym.Env) -> None:
        self._action_space: Any = env.action_space
        self._obs_shape: Any = env.observation_space.shape
        self._flat_action: wrappers.FlatAction | None = _wrapper_of(env, wrappers.FlatAction)
        # Observations of a 1-D Box are not wrapped.
        self._observer: Any = _wrapper_of(env, wrappers.FlatObservation | wrappers.GreyFrame)

    @classmethod
    def from_spaces(cls, spaces: Spaces) -> "Converter":
        """Return the converter of a tensor program. Its native spaces are `gymnasium_spaces`."""
        env: gym.Env = gym.Env()
        env.observation_space, env.action_space = gymnasium_spaces(spaces)
        return cls(_wrap(env, Game("tensor program"), observes_images=False))

    def observation(self, obs: Any) -> Any:
        """Convert a native observation to the vector ``[O]`` of agents, or an image to a grey frame ``[H, W]``. An
        observation ``[*O]`` of agents is returned as it is. Raises SettingError for an observation of neither form."""
        if self._observer is None or _has_shape(obs, self._obs_shape):
            return obs
        try:
            return self._observer.observation(obs)
        except Exception as error:  # an observation of any type may raise any error
            allowed = f"one of {wrappers.describe(self._observer.env.observation_space)}, or {list(self._obs_shape)}"
            line = shorten(" ".join(repr(obs).split()), 80)
            raise SettingError(f"observation is {line}; allowed: {allowed}") from error

    def action(self, action: Tensor) -> Any:
        """Convert an agent's ``action``, an index or a vector ``[A]``, to the native form: an int or an array."""
        (native,) = self.wrapped_actions(action[None])
        return native if self._flat_action is None else self._flat_action.action(native)

    def action_text(self, index: int) -> str:
        """Return the agent's discrete action ``index`` (from 0) in the native form, such as "14" or "[2, 1]"."""
        return str(np.asarray(self.action(torch.tensor(index))).tolist())

    def action_indices(self, actions: np.ndarray) -> np.ndarray:
        """Convert discrete native ``actions``, ``[N]`` numbers or ``[N, *parts]``, to the agent's form: indices ``[N]``
        that count from 0. Numbers for actions with several parts are such indices already. Raises ValueError for an
        action outside of the space, unless the space itself counts from 0. Other actions are unchanged."""
        if self._flat_action is not None:
            return actions if actions.ndim == 1 else self._flat_action.indices(actions)
        if isinstance(self._action_space, Box):
            return actions
        indices = actions - self._action_space.start
        is_valid = (indices >= 0) & (indices < self._action_space.n) & (indices == np.round(indices))
        if self._action_space.start and not is_valid.all():
            raise ValueError(f"{actions[~is_valid][0]} is not in {self._action_space}")
        return indices

    def wrapped_actions(self, actions: Tensor) -> Any:
        """Convert ``actions [...(, A)]`` to the action space of the wrapped environment, an item for each action. The
        result shares no memory with ``actions``, because an environment may change its action."""
        space, array = self._action_space, actions.detach().numpy()
        if isinstance(space, gym.spaces.Discrete):
            return (array.reshape(-1) + space.start).tolist()  # NumPy integers make `Discrete.contains` slow
        assert isinstance(space, Box)
        if space.dtype.kind != "f":
            array = array.round()
        return array.reshape(-1, *space.shape).astype(space.dtype, copy=True)


def _frame_of_user(error: BaseException) -> traceback.FrameSummary:
    """Return the innermost frame of ``error`` in a file of the user, or else the innermost frame. Installed packages,
    the standard library and the modules that call environments are not the user's."""
    frames = traceback.extract_tb(error.__traceback__)
    other_folders = (str(Path(__file__).parent), sysconfig.get_path("stdlib"))
    for frame in reversed(frames):
        if "site-packages" not in frame.filename and not frame.filename.startswith(other_folders):
            return frame
    return frames[-1]


def _quiet_mujoco(gym_id: str) -> None:
    """Suppress a deprecation warning that MuJoCo 4 would print about Gymnasium's models for each new instance."""
    spec = gym.registry.get(gym_id)
    if spec is not None and str(spec.entry_point).startswith("gymnasium.envs.mujoco"):

        def warn(text: str) -> None:
            if "settotalmass" not in text:
                warnings.warn(text, stacklevel=2)

        # If MuJoCo is missing, `gym.make` reports it. MuJoCo before version 4 has no `set_mju_user_warning`.
        with contextlib.suppress(ImportError, AttributeError):
            import mujoco

            mujoco.set_mju_user_warning(warn)


def _environment_repeats_actions(game: Game) -> bool:
    """Return whether the environment itself repeats actions, as VizDoom does. Its time limit then counts actions."""
    return game.gym_id.startswith("vizdoom")


def _wrapper_of(env: gym.Env, kind: Any) -> Any:
    """Return the outermost wrapper of ``env`` that is of the class ``kind``, None if there is none."""
    while isinstance(env, gym.Wrapper):
        if isinstance(env, kind):
            return env
        env = env.env
    return None


def _has_shape(obs: Any, shape: tuple[int, ...]) -> bool:
    """Return whether ``obs`` is an array of this ``shape``."""
    with contextlib.suppress(ValueError):  # a tuple whose parts have different shapes
        return np.shape(obs) == shape
    return False


def _make_instance(game: Game, render: bool) -> gym.Env:
    """Make one instance of the Gymnasium environment of ``game``, with its wrappers. With ``render``, it can be drawn.
    Raises SettingError if it cannot be made or drawn, or if agents cannot use its spaces."""
    kwargs = _gym_kwargs(game)
    if render:
        _set_drivers()
        kwargs["render_mode"] = "rgb_array"
    try:
        _quiet_mujoco(game.gym_id)
        # With ``render``, Gymnasium would warn about a missing render mode, which is an error below.
        with warnings.catch_warnings(action="ignore") if render else contextlib.nullcontext():
            env = gym.make(game.gym_id, disable_env_checker=True, **kwargs)
        images = wrappers.image_space(env.observation_space)
        problem = wrappers.spaces_problem(env, images)
        space = env.unwrapped.action_space
        if type(space) is gym.spaces.Discrete:
            # Most environments call `contains` of their action space in every step, and that of FastDiscrete is faster.
            with contextlib.suppress(AttributeError):  # a class may have `action_space` as a property
                env.unwrapped.action_space = wrappers.FastDiscrete(space.n, start=space.start)
    except BaseException as error:
        if render and isinstance(error, TypeError):
            takes_no_mode = "unexpected keyword argument 'render_mode'" in str(error)
            reason = "it takes no render_mode" if takes_no_mode else "Gymnasium's version has other parameters"
            raise film_error(game, reason) from error
        raise SettingError(f"gamename is {game.name!r}: {_cause_of(error)}") from error
    if problem:
        raise SettingError(f"gamename is {game.name!r}: {problem}", "gamename")
    modes = (env.metadata or {}).get("render_modes", ())
    if render and "rgb_array" not in modes:
        raise film_error(game, f"its render modes are {list(modes)}")
    return _wrap(env, game, images is not None)


def film_error(game: Game, reason: str) -> SettingError:
    """Return the error that the environment of ``game`` has no pictures, for this ``reason``."""
    return SettingError(f"{game.name} cannot be filmed: {reason}; allowed: environments with render_mode 'rgb_array'")


def _gym_kwargs(game: Game) -> dict[str, Any]:
    """Return the keyword arguments of `gym.make` for ``game``. Only VizDoom repeats actions itself."""
    kwargs = {name: value for name, value in game.kwargs.items() if name != "action_repeat"}
    limit = kwargs.get("max_episode_steps", 0)  # 0 means the limit of the id, None no limit
    if limit is None:
        kwargs["max_episode_steps"] = -1  # no limit; for Gymnasium, None means the limit of the id
    action_repeat = game.kwargs.get("action_repeat", 1)
    if action_repeat > 1 and _environment_repeats_actions(game):
        kwargs["frame_skip"] = action_repeat
        if limit:
            kwargs["max_episode_steps"] = math.ceil(limit / action_repeat)
    return kwargs


def _cause_of(error: BaseException) -> str:
    """Explain to the user why `gym.make` raised ``error``. KeyboardInterrupt and StopNow are raised again."""
    if not isinstance(error, ImportError | gym.error.DependencyNotInstalled):
        return f"it cannot be made ({wrappers.error_reason(error)})"
    for package, extra in _EXTRAS.items():
        if package in str(error).lower():
            return f"it needs {package}; install it: pip install -e '.{extra}'"
    return f"a package it needs is missing ({first_line(error)})"


def _wrap(env: gym.Env, game: Game, observes_images: bool) -> gym.Env:
    """Wrap ``env`` for agents: repeat actions as ``game`` says, and number actions with several discrete parts. With
    ``observes_images``, observations become stacks of grey frames, the newest last, otherwise vectors."""
    action_repeat = game.kwargs.get("action_repeat", 1)
    if action_repeat > 1 and not _environment_repeats_actions(game):
        env = wrappers.RepeatAction(env, action_repeat)
    for name in game.wrappers:
        env = getattr(wrappers, name)(env)
    if isinstance(env.action_space, wrappers.COMBINED):
        env = wrappers.FlatAction(env)
    if observes_images:
        return gym.wrappers.FrameStackObservation(wrappers.GreyFrame(env, wrappers.FRAME_SIZE), _NUM_FRAMES)
    if isinstance(env.observation_space, Box) and len(env.observation_space.shape) == 1:
        return env  # observations are vectors already
    return wrappers.FlatObservation(env)


def _set_drivers() -> None:
    """Set environment variables so that SDL and MuJoCo draw without a display. Keep variables that the user has set."""
    # Without a desktop, SDL would print errors that look like ours, and fail with an empty name.
    os.environ["SDL_VIDEODRIVER"] = os.environ.get("SDL_VIDEODRIVER") or "dummy"
    os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    if sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")  # MuJoCo's default needs a display


def action_space_of(space: gym.Space) -> Discrete | Continuous | None:
    """Convert Gymnasium's ``space`` of actions to the class that agents use. None for a kind that no agent supports."""
    if isinstance(space, gym.spaces.Discrete):
        return Discrete(int(space.n))
    if isinstance(space, Box):
        return Continuous(tuple(space.low.ravel().tolist()), tuple(space.high.ravel().tolist()))
    return None


def gymnasium_spaces(spaces: Spaces) -> tuple[gym.Space, gym.Space]:
    """Convert ``spaces`` to Gymnasium's spaces of observations and of actions. One-hot observations are Discrete."""
    obs_space: gym.Space = Box(-np.inf, np.inf, spaces.obs_shape, np.float32)
    if spaces.one_hot:
        obs_space = gym.spaces.Discrete(spaces.obs_shape[0])
    elif spaces.is_image:
        obs_space = Box(0, 255, spaces.obs_shape, np.uint8)
    actions = spaces.actions
    if isinstance(actions, Discrete):
        return obs_space, gym.spaces.Discrete(actions.n)
    return obs_space, Box(np.asarray(actions.low, np.float32), np.asarray(actions.high, np.float32))


def equals_spaces(obs_space: gym.Space, action_space: gym.Space, spaces: Spaces) -> bool:
    """Return whether Gymnasium's spaces, with flattened observations, equal ``spaces``."""
    return (gym.spaces.flatdim(obs_space),) == spaces.obs_shape and action_space_of(action_space) == spaces.actions


def _spaces(env: gym.Env, game: Game) -> Spaces:
    """Return the spaces of the wrapped environment ``env``. Their time limit counts actions of the agent."""
    obs_space = env.observation_space
    actions = action_space_of(env.action_space)
    assert isinstance(obs_space, Box) and actions is not None
    limit = None if env.spec is None else env.spec.max_episode_steps
    if limit is not None and not _environment_repeats_actions(game):
        # A wrapper repeats each action, and the environment's limit counts the repetitions.
        limit = math.ceil(limit / game.kwargs.get("action_repeat", 1))
    dtype = torch.uint8 if len(obs_space.shape) == 3 else torch.float32  # stacks of frames, or vectors
    one_hot = False
    if isinstance(env, gym.wrappers.FlattenObservation):
        one_hot = isinstance(env.env.observation_space, gym.spaces.Discrete)
    return Spaces(tuple(obs_space.shape), actions, dtype, limit, game.max_return, one_hot=one_hot, info=game.info)
