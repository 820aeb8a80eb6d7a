"""Learned synthetic environments for Gymnasium: a single environment, and a vector environment."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from understudy.files import SUFFIX, load
from understudy.kinds import KINDS
from understudy.program import SEEDS, Episodes, Program
from understudy.proxy import Proxy, ProxyError

Source = str | Path | Proxy | None
"""A file, the run folder of a search, the name of a shipped environment, or a `Proxy`."""


class SyntheticEnv(gym.Env[np.ndarray, Any]):
    """A learned synthetic environment, without its time limit, which ``gymnasium.make`` adds.

    :param proxy: A file, the run folder of a search, the name of a shipped environment, or a `Proxy`.
    :raises ProxyError: The proxy cannot be loaded.
    """

    metadata = {"render_modes": []}

    def __init__(self, proxy: Source = None) -> None:
        self.proxy = _load_environment(proxy)
        self.program = Program(self.proxy)
        self.observation_space, self.action_space = self.proxy.observation_space, self.proxy.action_space
        self._episodes: Episodes | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start the first episode of ``seed`` or, if it is None, the next episode. ``options`` are ignored."""
        super().reset(seed=seed)
        if seed is not None or self._episodes is None:
            self._episodes = Episodes(self.program, self.np_random.integers(SEEDS, size=1))
        self._state = self._episodes.begin(np.zeros(1, np.int64))
        return self._state[0].copy(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take ``action``, an integer or an array ``[A]``, which is not clipped to the bounds. Episodes are not
        truncated. Raises ValueError for an action of another shape or type, out of range, or with numbers that are not
        finite."""
        if self._episodes is None:
            raise gym.error.ResetNeeded("stepped before its first reset")
        action_array = _check_actions(action, self.action_space, batch_shape=())
        # The program takes a batch of states [1, S], and an action for all rows of the batch.
        self._state, reward, terminated = self.program.step(self._state, action_array)
        return self._state[0].copy(), float(reward[0]), bool(terminated[0]), False, {}


def make_synthetic(proxy: Source = None) -> gym.Env:
    """Make the synthetic environment ``proxy`` with its time limit, which ``gymnasium.make`` can only shorten."""
    env = SyntheticEnv(proxy)
    limit = env.proxy.time_limit
    return env if limit is None else gym.wrappers.TimeLimit(env, limit)


class SyntheticVectorEnv(gym.vector.VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """Copies of a synthetic environment, which are stepped at once. With the same seed, a copy equals a `SyntheticEnv`
    up to rounding.

    :param num_envs: Number N of copies.
    :param proxy: As for `SyntheticEnv`.
    :param max_episode_steps: Shorter time limit. None: the time limit of the proxy.
    :param autoreset_mode: With NEXT_STEP, the step after the last step of an episode starts the next episode and pays
        0. With SAME_STEP, the last step returns the first observation of the next episode, and ``infos["final_obs"]``
        has the final observation. SAME_STEP is better for bandits, because no step is only a reset.
    :raises ProxyError: The proxy cannot be loaded.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(
        self,
        num_envs: int = 1,
        proxy: Source = None,
        max_episode_steps: int | None = None,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    ) -> None:
        self.num_envs, self.proxy = num_envs, _load_environment(proxy)
        self.program = Program(self.proxy)
        self.single_observation_space, self.single_action_space = self.proxy.observation_space, self.proxy.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._mode = AutoresetMode(autoreset_mode)
        if self._mode is AutoresetMode.DISABLED:
            raise ProxyError("autoreset_mode is 'Disabled'; allowed: NextStep, SameStep")
        self.metadata = self.metadata | {"autoreset_mode": self._mode}
        time_limits = (self.proxy.time_limit, max_episode_steps)
        # To Gymnasium, a limit of -1 means no limit.
        self._limit = min((limit for limit in time_limits if limit is not None and limit > 0), default=None)
        self._episodes: Episodes | None = None

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Reset all environments and return observations ``[N, S]`` and an empty dictionary. An integer ``seed`` s
        means the seeds s, s + 1, and so on. A list has a seed for each environment. If the seed of an environment is
        None, its next episode starts. ``options`` are ignored."""
        seeds: Sequence[int | None]
        if isinstance(seed, int):
            super().reset(seed=seed)
            seeds = range(seed, seed + self.num_envs)
        else:
            seeds = [None] * self.num_envs if seed is None else seed
        if len(seeds) != self.num_envs:
            raise ValueError(f"seed has {len(seeds)} numbers; allowed: {self.num_envs}, one per environment")
        if self._episodes is None:
            episode_seeds = self.np_random.integers(SEEDS, size=self.num_envs)
        else:
            episode_seeds = self._episodes.seeds
        for i, env_seed in enumerate(seeds):
            if env_seed is not None:
                episode_seeds[i] = seeding.np_random(env_seed)[0].integers(SEEDS)
        self._episodes = Episodes(self.program, episode_seeds)
        self._steps = np.zeros(self.num_envs, np.int64)
        self._autoreset_envs = np.zeros(self.num_envs, np.bool_)
        self._state = self._episodes.begin(np.arange(self.num_envs))
        return self._state.copy(), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take ``actions``, ``[N]`` integers or ``[N, A]`` numbers. Return observations ``[N, S]`` float32, rewards
        ``[N]`` float32, terminated and truncated ``[N]`` bool, and infos. Raises ValueError as `SyntheticEnv.step`."""
        if self._episodes is None:
            raise gym.error.ResetNeeded("stepped before its first reset")
        action_array = _check_actions(actions, self.single_action_space, batch_shape=(self.num_envs,))
        state, rewards, terminated = self.program.step(self._state, action_array)
        self._steps += 1
        truncated = np.zeros_like(terminated) if self._limit is None else self._steps >= self._limit
        infos: dict[str, Any] = {}
        dones = terminated | truncated
        resets = dones  # environments that start their next episode in this step
        if self._mode is AutoresetMode.NEXT_STEP:
            resets = self._autoreset_envs  # environments whose episode ended in the previous step
            self._autoreset_envs = dones & ~resets
        rows = np.flatnonzero(resets)
        if len(rows):
            if self._mode is AutoresetMode.NEXT_STEP:  # the step was only a reset
                rewards[rows], terminated[rows], truncated[rows] = 0, False, False
            else:
                final_obs = np.full(self.num_envs, None, dtype=object)
                for row, row_state in zip(rows.tolist(), state[rows], strict=True):
                    final_obs[row] = row_state
                infos = {"final_obs": final_obs, "_final_obs": resets, "final_info": {}, "_final_info": resets.copy()}
            state[rows] = self._episodes.begin(rows)
            self._steps[rows] = 0
        self._state = state
        return state.copy(), rewards, terminated, truncated, infos


def _load_environment(proxy: Source) -> Proxy:
    """Load a learned environment. Raises ProxyError if that fails, or if ``proxy`` is a learned reward."""
    if proxy is None:
        raise ProxyError(f"proxy is None; allowed: a {SUFFIX} file of a synthetic environment")
    loaded = proxy if isinstance(proxy, Proxy) else load(proxy)
    wrapper = KINDS[loaded.kind].used_by  # the wrapper for a learned reward, "" for an environment
    if wrapper:
        raise ProxyError(f"proxy {str(loaded.path)!r} is a learned reward; allowed: {wrapper} for it")
    return loaded


def _check_actions(actions: Any, space: gym.Space, batch_shape: tuple[int, ...]) -> np.ndarray:
    """Return ``actions`` as an array. Its shape must be ``batch_shape``, which is () for one action and (N,) for a
    batch, followed by the shape of an action of ``space``. Raises ValueError if an action is not in ``space``.
    Continuous actions may be out of bounds, but must be finite."""
    if isinstance(space, gym.spaces.Discrete):
        action_array = np.asarray(actions)  # as uint64, a negative number is huge, so it is not below ``n``
        is_valid = action_array.dtype.kind in "iu" and (action_array.astype(np.uint64) < space.n).all()
    else:
        action_array = np.asarray(actions, np.float32)
        is_valid = np.isfinite(action_array).all()  # a NaN action would pay 0, which may be the highest reward
    if not is_valid or action_array.shape != (*batch_shape, *(space.shape or ())):
        raise ValueError(f"action is {actions!r}; allowed: {space}")
    return action_array
