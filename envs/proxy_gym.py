"""Learned synthetic environments as Gymnasium environments, one or many at once.

A step is that of `envs.synthetic.SyntheticDynamics`, with one difference: what a poor stand-in may blow up is made
finite. NaN becomes 0 and observations and rewards stop at `BOUND` either way; the observation so bounded is the state
of the next step. Below the bound nothing is changed. Episodes start where the real environment's do, or as the
stand-in has learned to; they end where it says so, at every step of a bandit. Both are functions of the seed.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from torch import Tensor

from envs.make import make_environment
from envs.names import resolve
from envs.synthetic import Starts, SyntheticDynamics, starts_of
from models.proxies import files
from models.proxies.files import Proxy, ProxyError
from models.settings import SettingError
from models.spaces import Discrete

BOUND = 1e6
_SEEDS = 2**62  # of an environment's first episode; the next ones count on
_BLOCK = 32
_ONLY = np.zeros(1, np.int64)


class SyntheticEnv(gym.Env[np.ndarray, Any]):
    """One synthetic environment, without time limit; `make_synthetic` adds that.

    ``proxy`` is a file, a search's folder, the name of a shipped stand-in or a `Proxy`. ``game`` and ``kind`` (mdp,
    bandit), where given, are what it must stand in for. Raises ProxyError where it cannot be had or does not.
    """

    metadata = {"render_modes": []}

    def __init__(
        self, proxy: str | Path | Proxy | None = None, game: str = "", kind: str = "", render_mode: str | None = None
    ) -> None:
        _check_render_mode(render_mode)
        self.proxy = opened(proxy, game, kind)
        self.dynamics = dynamics_of(self.proxy)
        self.observation_space, self.action_space = _observations(self.proxy), _actions(self.proxy)
        self._episodes: _Episodes | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode; without ``seed`` the next one of the last seed. ``options`` are ignored."""
        super().reset(seed=seed)
        if seed is not None or self._episodes is None:
            self._episodes = _Episodes(self.dynamics, self.np_random.integers(_SEEDS, size=1))
        self._state = self._episodes.begin(_ONLY)
        return self._state[0, 0].numpy().copy(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """``action`` is an integer, or ``[A]``, which is not clipped to the bounds. Never truncates."""
        if isinstance(self.proxy.spaces.actions, Discrete):
            if not self.action_space.contains(action):
                raise _wrong(action, self.proxy)
            given = torch.tensor([[int(action)]])
        else:
            given = torch.as_tensor(action, dtype=torch.float32)[None, None]
        state, reward, ends, _ = self.dynamics.step(self._state, given)
        self._state = _finite(state)
        pay = float(reward)
        pay = min(max(pay, -BOUND), BOUND) if pay == pay else 0.0
        return self._state[0, 0].numpy().copy(), pay, bool(ends), False, {}


def make_synthetic(
    proxy: str | Path | Proxy | None = None, game: str = "", kind: str = "", render_mode: str | None = None
) -> gym.Env:
    """`SyntheticEnv` with the time limit of the stand-in, which a bandit needs not. ``max_episode_steps`` of
    ``gymnasium.make`` is another limit on top."""
    env = SyntheticEnv(proxy, game, kind, render_mode)
    limit = _time_limit(env.dynamics, None)
    return env if limit is None else gym.wrappers.TimeLimit(env, limit)


class SyntheticVectorEnv(gym.vector.VectorEnv[np.ndarray, np.ndarray, np.ndarray]):
    """``num_envs`` (N) copies as one tensor program; each does what a `SyntheticEnv` of its seed does, up to rounding.

    ``max_episode_steps`` shortens the stand-in's time limit. ``autoreset_mode`` is NEXT_STEP, where the step after an
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
        _check_render_mode(render_mode)
        self.num_envs, self.proxy = num_envs, opened(proxy, game, kind)
        self.dynamics = dynamics_of(self.proxy)
        self.single_observation_space, self.single_action_space = _observations(self.proxy), _actions(self.proxy)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._mode = AutoresetMode(autoreset_mode)
        if self._mode is AutoresetMode.DISABLED:
            raise SettingError("autoreset_mode is 'Disabled'; allowed: NextStep, SameStep", "autoreset_mode")
        self.metadata = self.metadata | {"autoreset_mode": self._mode}
        self._limit = _time_limit(self.dynamics, max_episode_steps)
        self._episodes: _Episodes | None = None

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
            raise ValueError(f"seed has {len(seeds)} numbers; allowed: {self.num_envs}, one an environment")
        following = (
            self._episodes.following() if self._episodes else self.np_random.integers(_SEEDS, size=self.num_envs)
        )
        for i, own in enumerate(seeds):
            if own is not None:
                following[i] = seeding.np_random(own)[0].integers(_SEEDS)
        self._episodes = _Episodes(self.dynamics, following)
        self._ages = np.zeros(self.num_envs, np.int64)
        self._ended = np.zeros(self.num_envs, np.bool_)
        self._state = self._episodes.begin(np.arange(self.num_envs))
        return self._state[0].numpy().copy(), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """``actions [N]`` or ``[N, A]`` -> observations ``[N, S]`` float32, rewards ``[N]`` float32, terminated and
        truncated ``[N]`` bool, infos."""
        if self._episodes is None:
            raise gym.error.ResetNeeded("stepped before its first reset")
        given = _batch(self.proxy, actions)
        state, reward, ends, _ = self.dynamics.step(self._state, given)
        state, rewards, terminated = _finite(state), _finite(reward)[0].numpy(), ends[0].numpy()
        self._ages += 1
        truncated = self._ages >= self._limit if self._limit is not None else np.zeros_like(terminated)
        infos: dict[str, Any] = {}
        over = self._ended
        if self._mode is AutoresetMode.NEXT_STEP:
            rewards[over], terminated[over], truncated[over] = 0, False, False
            self._ended = terminated | truncated
        else:
            over = terminated | truncated
            if over.any():
                infos = _final(state[0].numpy(), over)
        if over.any():
            rows = np.flatnonzero(over)
            state = state.index_copy(1, torch.from_numpy(rows), self._episodes.begin(rows))
            self._ages[rows] = 0
        self._state = state
        return state[0].numpy().copy(), rewards, terminated, truncated, infos


class _Episodes:
    """First states of the episodes of N environments one after the other, drawn in blocks: a draw costs the same for
    one and for many. Episode k of environment i is that of the seed ``first[i] + k``."""

    def __init__(self, dynamics: SyntheticDynamics, first: np.ndarray) -> None:
        self._dynamics, self._first = dynamics, first
        self._used = np.zeros(len(first), np.int64)
        self._draw()

    def _draw(self) -> None:
        self._first, self._used = self.following(), np.zeros_like(self._used)
        seeds = torch.from_numpy(self._first + np.arange(_BLOCK)[:, None])
        self._bank = _finite(self._dynamics.initial(seeds[:, None]))[:, 0]  # [block, N, S]

    def following(self) -> np.ndarray:
        """Seeds ``[N]`` of the next episodes."""
        return self._first + self._used

    def begin(self, rows: np.ndarray) -> Tensor:
        """``[1, k, S]`` for the k environments ``rows``, each of which goes on to its next episode."""
        if self._used[rows].max() == _BLOCK:
            self._draw()
        states = self._bank[self._used[rows], rows]
        self._used[rows] += 1
        return states[None]


def opened(proxy: str | Path | Proxy | None, game: str = "", kind: str = "") -> Proxy:
    """The stand-in, held against what it must stand in for. Raises ProxyError."""
    if proxy is None:
        raise ProxyError(f"proxy is None; allowed: a {files.SUFFIX} file of a stand-in")
    loaded = proxy if isinstance(proxy, Proxy) else files.load(files.find(proxy))
    # cartpole-200 is a cartpole too.
    found = resolve(loaded.game).name.partition("-")[0] if game else ""
    if (game and found != game) or (kind and loaded.config.proxy != kind):
        raise ProxyError(
            f"stand-in {str(loaded.path)!r}: a {loaded.config.proxy} of {loaded.game}; "
            f"allowed: a {kind} of {game}, or the id Synthetic-v0, which takes any"
        )
    return loaded


def dynamics_of(proxy: Proxy) -> SyntheticDynamics:
    """The stand-in as a tensor program of one member; the real environment is made only where it says how to start."""
    networks = proxy.networks
    starts = _no_starts if networks.latent else _real_starts(proxy.game)
    return SyntheticDynamics(networks.program(proxy.parameters[None]), proxy.spaces, starts)


@functools.cache  # of a game without tensor program it takes thousands of resets
def _real_starts(game: str) -> Starts:
    real = make_environment(game, 1, 1)
    starts = starts_of(real)
    real.close()
    return starts


def _no_starts(seeds: Tensor) -> Tensor:
    raise AssertionError("first states are learned")


def _time_limit(dynamics: SyntheticDynamics, other: int | None) -> int | None:
    limits = [] if dynamics.bandit else [dynamics.spaces.max_episode_steps]
    return min((limit for limit in [*limits, other] if limit is not None and limit > 0), default=None)


def _finite(values: Tensor) -> Tensor:
    return values.nan_to_num(0.0, BOUND, -BOUND).clamp(-BOUND, BOUND)


def _batch(proxy: Proxy, actions: Any) -> Tensor:
    """``[N]`` or ``[N, A]`` as the networks take them, ``[1, N(, A)]``; ValueError for discrete ones that are none."""
    kind = proxy.spaces.actions
    if not isinstance(kind, Discrete):
        return torch.as_tensor(actions, dtype=torch.float32)[None]
    given = np.asarray(actions)
    if given.dtype.kind not in "iu" or given.min() < 0 or given.max() >= kind.n:
        raise _wrong(actions, proxy)
    return torch.from_numpy(given.astype(np.int64))[None]


def _wrong(action: Any, proxy: Proxy) -> ValueError:
    return ValueError(f"action is {action!r}; allowed: {_actions(proxy)}")


def _observations(proxy: Proxy) -> Box:
    return Box(-np.inf, np.inf, proxy.spaces.obs_shape, np.float32)


def _actions(proxy: Proxy) -> gym.Space:
    actions = proxy.spaces.actions
    if isinstance(actions, Discrete):
        return gym.spaces.Discrete(actions.n)
    return Box(np.array(actions.low, np.float32), np.array(actions.high, np.float32))


def _check_render_mode(render_mode: str | None) -> None:
    if render_mode is not None:
        raise SettingError(f"render_mode is {render_mode!r}; allowed: None, a stand-in has no picture", "render_mode")


def _final(observations: np.ndarray, over: np.ndarray) -> dict[str, Any]:
    """Gymnasium's form of last observations: objects, None where no episode ended."""
    last = np.full(len(over), None, dtype=object)
    for i, observation in zip(np.flatnonzero(over), observations[over], strict=True):
        last[i] = observation
    return {"final_obs": last, "_final_obs": over.copy(), "final_info": {}, "_final_info": over.copy()}
