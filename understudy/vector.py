"""Many copies of a learned synthetic environment as one `gymnasium.vector.VectorEnv`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from understudy.env import checked, opened
from understudy.program import SEEDS, Episodes, Program
from understudy.proxy import Proxy, ProxyError


class SyntheticVectorEnv(gym.vector.VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """``num_envs`` (N) copies as one program; each does what a `SyntheticEnv` of its seed does, up to rounding.

    ``max_episode_steps`` shortens the time limit of the proxy. ``autoreset_mode`` is NEXT_STEP, where the step after an
    episode's last one starts the next and pays 0, or SAME_STEP, where the last step itself gives the new episode's
    observation and ``infos["final_obs"]`` holds its own. SAME_STEP wastes no step, which counts with bandits.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(
        self,
        num_envs: int = 1,
        proxy: str | Path | Proxy | None = None,
        game: str = "",
        kind: str = "",
        max_episode_steps: int | None = None,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        render_mode: str | None = None,
    ) -> None:
        self.num_envs, self.proxy = num_envs, opened(proxy, game, kind, render_mode)
        self.program = Program(self.proxy)
        self.single_observation_space, self.single_action_space = self.proxy.observation_space, self.proxy.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._mode = AutoresetMode(autoreset_mode)
        if self._mode is AutoresetMode.DISABLED:
            raise ProxyError("autoreset_mode is 'Disabled'; allowed: NextStep, SameStep")
        self.metadata = self.metadata | {"autoreset_mode": self._mode}
        limits = (self.proxy.time_limit, max_episode_steps)
        self._limit = min((limit for limit in limits if limit is not None and limit > 0), default=None)
        self._episodes: Episodes | None = None

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start all; ``seed`` s gives them s, s + 1, and so on, a list each its own; a None in it, or for all, goes
        on with the next episode. ``options`` are ignored. Observations ``[N, S]``."""
        one = int(seed) if isinstance(seed, int | np.integer) else None
        super().reset(seed=one)
        if isinstance(seed, list | tuple):
            seeds = list(seed)
        else:
            seeds = [None if one is None else one + i for i in range(self.num_envs)]
        if len(seeds) != self.num_envs:
            raise ValueError(f"seed has {len(seeds)} numbers; allowed: {self.num_envs}, one per environment")
        following = self._episodes.following() if self._episodes else self.np_random.integers(SEEDS, size=self.num_envs)
        for i, own in enumerate(seeds):
            if own is not None:
                following[i] = seeding.np_random(own)[0].integers(SEEDS)
        self._episodes = Episodes(self.program, following)
        self._ages = np.zeros(self.num_envs, np.int64)
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._state = self._episodes.begin(np.arange(self.num_envs))
        return self._state.copy(), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """``actions [N]`` or ``[N, A]`` -> observations ``[N, S]`` float32, rewards ``[N]`` float32, terminated and
        truncated ``[N]`` bool, infos."""
        if self._episodes is None:
            raise gym.error.ResetNeeded("stepped before its first reset")
        given = checked(actions, self.action_space, self.single_action_space)
        state, rewards, terminated = self.program.step(self._state, given)
        self._ages += 1
        truncated = np.zeros_like(terminated) if self._limit is None else self._ages >= self._limit
        infos: dict[str, Any] = {}
        over = terminated | truncated
        if self._mode is AutoresetMode.NEXT_STEP:
            over, self._ended = self._ended, over & ~self._ended
            if over.any():
                rewards[over], terminated[over], truncated[over] = 0, False, False
        elif over.any():
            infos = _final(state, over)
        if over.any():
            rows = np.flatnonzero(over)
            state[rows] = self._episodes.begin(rows)
            self._ages[rows] = 0
        self._state = state
        return state.copy(), rewards, terminated, truncated, infos


def _final(observations: np.ndarray, over: np.ndarray) -> dict[str, Any]:
    """Gymnasium's form of last observations: objects, None where no episode ended."""
    last = np.full(len(over), None, dtype=object)
    for i, observation in zip(np.flatnonzero(over), observations[over], strict=True):
        last[i] = observation
    return {"final_obs": last, "_final_obs": over.copy(), "final_info": {}, "_final_info": over.copy()}
