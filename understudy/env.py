"""A learned synthetic environment as a `gymnasium.Env`."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from understudy.files import SUFFIX, load
from understudy.program import SEEDS, Episodes, Program
from understudy.proxy import Proxy, ProxyError
from understudy.starts import IDS

_ONLY = np.zeros(1, np.int64)


class SyntheticEnv(gym.Env[np.ndarray, Any]):
    """One synthetic environment, without time limit; `make_synthetic` adds that.

    ``proxy`` is a file, the folder of a search, the name of a shipped one or a `Proxy`. ``game`` and ``kind`` (mdp,
    bandit), where given, are what it must have been learned for. Raises ProxyError where it cannot be had or was not.
    """

    metadata = {"render_modes": []}

    def __init__(
        self, proxy: str | Path | Proxy | None = None, game: str = "", kind: str = "", render_mode: str | None = None
    ) -> None:
        self.proxy = opened(proxy, game, kind, render_mode)
        self.program = Program(self.proxy)
        self.observation_space, self.action_space = self.proxy.observation_space, self.proxy.action_space
        self._episodes: Episodes | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode; without ``seed`` the next one of the last seed. ``options`` are ignored."""
        super().reset(seed=seed)
        if seed is not None or self._episodes is None:
            self._episodes = Episodes(self.program, self.np_random.integers(SEEDS, size=1))
        self._state = self._episodes.begin(_ONLY)
        return self._state[0].copy(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """``action`` is an integer, or ``[A]``, which is not clipped to the bounds. Never truncates."""
        if self._episodes is None:
            raise gym.error.ResetNeeded("stepped before its first reset")
        given = checked(action, self.action_space, self.action_space)
        self._state, reward, ends = self.program.step(self._state, given)
        return self._state[0].copy(), float(reward[0]), bool(ends[0]), False, {}


def make_synthetic(
    proxy: str | Path | Proxy | None = None, game: str = "", kind: str = "", render_mode: str | None = None
) -> gym.Env:
    """`SyntheticEnv` with the time limit of its proxy. ``max_episode_steps`` of ``gymnasium.make`` is another on
    top."""
    env = SyntheticEnv(proxy, game, kind, render_mode)
    limit = env.proxy.time_limit
    return env if limit is None else gym.wrappers.TimeLimit(env, limit)


def opened(proxy: str | Path | Proxy | None, game: str = "", kind: str = "", render_mode: str | None = None) -> Proxy:
    """The learned environment, held against what it must have been learned for. Raises ProxyError."""
    if render_mode is not None:
        raise ProxyError(f"render_mode is {render_mode!r}; allowed: None, a synthetic environment has no picture")
    if proxy is None:
        raise ProxyError(f"proxy is None; allowed: a {SUFFIX} file of a synthetic environment")
    loaded = proxy if isinstance(proxy, Proxy) else load(proxy)
    # cartpole-200 and CartPole-v1 are a cartpole too.
    found = IDS.get(loaded.game, loaded.game).rpartition("-v")[0].lower()
    if (game and found != game) or (kind and loaded.kind != kind):
        raise ProxyError(
            f"synthetic environment {str(loaded.path)!r}: {loaded.kind} of {loaded.game}; "
            f"allowed: {kind} of {game}, or the id understudy/Synthetic-v0, which takes any"
        )
    return loaded


def checked(actions: Any, space: gym.Space, single: gym.Space) -> np.ndarray:
    """Actions of ``space``, one for each environment, of which each is of ``single``, as numbers; ValueError for those
    that are none. Continuous ones may be out of bounds."""
    given = np.asarray(actions, np.float32 if isinstance(single, gym.spaces.Box) else None)
    good = given.shape == space.shape
    if isinstance(single, gym.spaces.Discrete) and good:  # negative ones are large without their sign
        good = given.dtype.kind in "iu" and bool((given.astype(np.uint64) < single.n).all())
    if not good:
        raise ValueError(f"action is {actions!r}; allowed: {single}")
    return given
