"""Any Gymnasium environment as tensors ``[M, E]``, stepped in this process one after another."""

import contextlib
import os
import sys
import warnings
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

import envs.registration  # noqa: F401  # our own ids
from envs import wrappers
from envs.base import EnvironmentFault, Replayed, Step
from envs.names import Game, first_line
from models.settings import SettingError
from models.spaces import Continuous, Discrete, Spaces

# What an ImportError mentions -> the extra of this project that brings it.
_EXTRAS = {"vizdoom": "[doom]", "mujoco": "[mujoco]", "imageio": "[mujoco]", "box2d": "[train]", "pygame": "[train]"}


class GymnasiumEnvironment(Replayed):
    """``members * envs`` instances of one Gymnasium environment; see `envs.base.Environment` for the contract.

    Observations: 1-D Box as float32; images (uint8, or a Dict with one under "screen") as grey stacked frames,
    see `ImageObservation`; all others flattened, discrete parts one-hot, float32. Actions: Discrete, or Box with
    finite bounds, flattened. Instances are made when first reset. Raises SettingError where the environment
    cannot be made, and EnvironmentFault where it raises or gives a reward or observation that is not finite.
    """

    def __init__(self, game: Game, members: int, envs: int, render: bool = False) -> None:
        self.game, self.members, self.envs = game, members, envs
        self._render = render
        rows = members * envs
        first = _open(game, render)
        self.spaces = _spaces(first, game)
        self._action_space = first.action_space
        self._envs: list[gym.Env | None] = [first] + [None] * (rows - 1)
        self._steps: list[Any] = [_not_reset] * rows
        dtype = np.uint8 if self.spaces.is_image else np.float32
        self._obs = np.zeros((rows, *self.spaces.obs_shape), dtype)
        self._ages = np.zeros(rows, np.int64)

    def reset(self, seeds: Tensor, where: Tensor | None = None) -> Tensor:
        self._note_reset(seeds, where)
        rows = self._rows(where)
        numbers = seeds.reshape(-1).tolist()
        for row in rows:
            self._ages[row] = 0
            env = self._envs[row]
            if env is None:
                env = self._envs[row] = _open(self.game, self._render)
            try:
                self._obs[row], _ = env.reset(seed=numbers[row])
                self._steps[row] = env.step
            except Exception as error:
                self._fail(row, error)
        self._check_finite(None)
        return self._observations()

    def step(self, actions: Tensor, active: Tensor | None = None) -> Step:
        self._note_step(actions, active)
        rows = self._rows(active)
        given = self._native(actions)
        count = len(self._envs)
        reward = np.zeros(count, np.float32)
        terminated, truncated = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        names = self.game.info
        told = np.zeros((count, len(names)), np.float32)
        observations, steps, row = self._obs, self._steps, 0
        try:
            for row in rows:
                obs, reward[row], terminated[row], truncated[row], info = steps[row](given[row])
                observations[row] = obs
                if names:
                    told[row] = [info[name] for name in names]
        except Exception as error:
            self._ages[row] += 1
            self._fail(row, error)
        self._ages[rows if active is not None else slice(None)] += 1
        self._check_finite(reward)
        shape = (self.members, self.envs)
        flags = torch.from_numpy(terminated).view(shape), torch.from_numpy(truncated).view(shape)
        further = torch.from_numpy(told).view(*shape, -1) if names else None
        return Step(self._observations(), torch.from_numpy(reward).view(shape), *flags, info=further)

    def frame(self, member: int, env: int) -> np.ndarray:
        """The picture of one environment, ``[H, W, 3]`` uint8. Needs ``render=True`` and an episode begun."""
        instance = self._envs[member * self.envs + env]
        try:
            picture: Any = None if instance is None else instance.render()
        except Exception as error:
            raise EnvironmentFault(f"environment {self.game.name} cannot be drawn: {first_line(error)}") from error
        if not isinstance(picture, np.ndarray) or picture.ndim != 3:
            raise EnvironmentFault(f"environment {self.game.name} drew no picture: it was not made to render, or reset")
        return picture

    def close(self) -> None:
        for env in self._envs:
            if env is not None:
                env.close()
        self._envs = [None] * len(self._envs)
        self._steps = [_not_reset] * len(self._envs)

    def _rows(self, mask: Tensor | None) -> Any:
        return range(len(self._envs)) if mask is None else np.flatnonzero(mask.numpy()).tolist()

    def _native(self, actions: Tensor) -> Any:
        """Actions as the environment's own space has them, one item a row; never a view of the caller's tensor."""
        space, numbers = self._action_space, actions.detach().numpy()
        if isinstance(space, gym.spaces.Discrete):
            return (numbers.reshape(-1) + space.start).tolist()  # a Discrete space is slow with NumPy's integers
        assert isinstance(space, Box)
        return numbers.reshape(-1, *space.shape).astype(space.dtype, copy=True)

    def _observations(self) -> Tensor:
        return torch.from_numpy(self._obs.copy()).view(self.members, self.envs, *self.spaces.obs_shape)

    def _check_finite(self, reward: np.ndarray | None) -> None:
        for what, values in (("reward", reward), ("observation", self._obs)):
            if values is None or values.dtype == np.uint8 or np.isfinite(values).all():
                continue
            row = int(np.argwhere(~np.isfinite(values))[0, 0])
            value = float(values[row][~np.isfinite(values[row])][0])
            raise EnvironmentFault(f"{self._place(row)}: {what} is {value}; it must be finite")

    def _fail(self, row: int, error: Exception) -> NoReturn:
        raise EnvironmentFault(f"{self._place(row)}: {type(error).__name__}: {first_line(error)}") from error

    def _place(self, row: int) -> str:
        seed = 0 if self._seeds is None else int(self._seeds.flatten()[row])
        return f"environment {self.game.name}, step {self._ages[row]} of the episode with seed {seed}"


def _not_reset(action: Any) -> NoReturn:
    raise RuntimeError("stepped before its first reset")


def _open(game: Game, render: bool) -> gym.Env:
    """One instance with its wrappers; SettingError where it, or a package it needs, is missing."""
    if os.environ.get("SDL_VIDEODRIVER") == "":
        os.environ["SDL_VIDEODRIVER"] = "dummy"  # SDL takes the empty name for an unknown driver and fails
    if render:
        # Pictures are drawn off screen; without a desktop SDL would complain on stderr in words like our errors.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
        os.environ.setdefault("SDL_AUDIODRIVER", "dummy")
    if render and sys.platform == "linux" and not os.environ.get("DISPLAY"):
        os.environ.setdefault("MUJOCO_GL", "egl")  # MuJoCo's own default draws through a display
    kwargs = {**game.kwargs, **({"render_mode": "rgb_array"} if render else {})}
    try:
        with warnings.catch_warnings():
            if render:  # a missing render mode is told below, in one line
                warnings.simplefilter("ignore")
            env = gym.make(game.gym_id, disable_env_checker=True, **kwargs)
    except (ImportError, gym.error.DependencyNotInstalled) as error:
        known = [package for package in _EXTRAS if package in str(error).lower()]
        what = f"a package it needs is missing ({first_line(error)})"
        if known:
            what = f"it needs {known[0]}; install it: pip install -e '.{_EXTRAS[known[0]]}'"
        raise SettingError(f"gamename is {game.name!r}: {what}") from error
    except Exception as error:
        raise SettingError(f"gamename is {game.name!r}: it cannot be made ({first_line(error)})") from error
    inner = env.unwrapped
    if type(inner.action_space) is gym.spaces.Discrete:
        inner.action_space = wrappers.FastDiscrete(inner.action_space.n, start=inner.action_space.start)
    if render and "rgb_array" not in env.metadata.get("render_modes", ()):
        raise SettingError(f"record: {game.name} cannot be drawn; its render modes: {env.metadata['render_modes']}")
    for name in game.wrappers:
        env = getattr(wrappers, name)(env)
    if wrappers.is_image(env.observation_space):
        return wrappers.ImageObservation(env)
    if isinstance(env.observation_space, Box) and len(env.observation_space.shape) == 1:
        return env
    with contextlib.suppress(NotImplementedError):  # told with the space, by _spaces
        return gym.wrappers.FlattenObservation(env)
    return env


def _spaces(env: gym.Env, game: Game) -> Spaces:
    seen, acted = env.observation_space, env.action_space
    if not isinstance(seen, Box):
        raise SettingError(f"gamename is {game.name!r}: its observation space {seen} cannot be flattened to numbers")
    if isinstance(acted, gym.spaces.Discrete):
        actions: Discrete | Continuous = Discrete(int(acted.n))
    elif isinstance(acted, Box) and acted.is_bounded() and np.issubdtype(acted.dtype, np.floating):
        actions = Continuous(tuple(acted.low.ravel().tolist()), tuple(acted.high.ravel().tolist()))
    else:
        raise SettingError(
            f"gamename is {game.name!r}: its action space {acted} is not supported; "
            "allowed: Discrete, or Box of floats with finite bounds"
        )
    limit = env.spec.max_episode_steps if env.spec is not None else None
    dtype = torch.uint8 if len(seen.shape) == 3 else torch.float32
    return Spaces(tuple(seen.shape), actions, dtype, limit, game.max_return)
