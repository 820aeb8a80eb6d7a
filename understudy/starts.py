"""First observations of the real environments, for learned ones without a network for them: functions of the seed, the
same as those that agents of the trainer see (`envs.synthetic.starts_of`)."""

import functools
from collections.abc import Callable

import gymnasium
import numpy as np

from understudy.hashing import uniform
from understudy.proxy import ProxyError

Starts = Callable[[np.ndarray], np.ndarray]
"""Seeds ``[...]`` int64 to first observations ``[..., S]`` float32."""

# Gymnasium ids of the trainer's own names of environments; any other name is an id itself.
IDS = {
    "cartpole": "CartPole-v1",
    "cartpole-200": "CartPole-v0",
    "acrobot": "Acrobot-v1",
    "lunarlander": "LunarLander-v3",
    "lunarlander-sparse": "LunarLander-v3",
    "beresheet": "LunarLander-v3",
    "mountaincar": "MountainCar-v0",
    "mountaincar-continuous": "MountainCarContinuous-v0",
    "pendulum": "Pendulum-v1",
    "cliffwalking": "CliffWalking-v1",
    "halfcheetah": "HalfCheetah-v5",
}
_DRAWS = 4096  # first observations of an environment that has no formula here


def starts_of(game: str) -> Starts:
    """First observations of the environment of that name: by formula for CartPole and Acrobot; for any other, the
    Gymnasium environment's, reset with one of 4,096 seeds. Raises ProxyError where that cannot be made."""
    gym_id = IDS.get(game, game)
    return _FORMULAS[gym_id] if gym_id in _FORMULAS else _resets(gym_id)


def _cartpole(seeds: np.ndarray) -> np.ndarray:
    """Uniform on [-0.05, 0.05): position (m), speed (m/s), angle (rad), angular speed (rad/s)."""
    return ((uniform(seeds, 4) * 2 - 1) * 0.05).astype(np.float32)


def _acrobot(seeds: np.ndarray) -> np.ndarray:
    """Uniform on [-0.1, 0.1): two angles (rad), seen as cosine and sine, and their speeds (rad/s)."""
    first, second, *speeds = np.moveaxis((uniform(seeds, 4) * 2 - 1) * 0.1, -1, 0)
    return np.stack((np.cos(first), np.sin(first), np.cos(second), np.sin(second), *speeds), -1).astype(np.float32)


_FORMULAS = {"CartPole-v0": _cartpole, "CartPole-v1": _cartpole, "Acrobot-v1": _acrobot}


@functools.cache
def _resets(gym_id: str) -> Starts:
    try:
        real = gymnasium.make(gym_id)
    except Exception as error:  # whatever a missing package or an unknown id raises
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ProxyError(f"first states are those of {gym_id!r}, which cannot be made ({reason})") from error

    @functools.cache
    def first(seed: int) -> np.ndarray:
        seen = gymnasium.spaces.flatten(real.observation_space, real.reset(seed=seed)[0])
        return np.asarray(seen, np.float32)

    def starts(seeds: np.ndarray) -> np.ndarray:
        numbers = (uniform(seeds, 1) * _DRAWS).astype(np.int64)
        return np.stack([first(number) for number in numbers.ravel().tolist()]).reshape(*seeds.shape, -1)

    return starts
