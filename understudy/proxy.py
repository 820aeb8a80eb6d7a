"""A learned environment, or a learned reward, as plain numbers and text."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

BOUND = 1e6  # the largest size of an observation and of a reward


class ProxyError(ValueError):
    """A learned environment or reward that is not there, or cannot be used so. ``str(e)`` is one clear line."""


@dataclass(frozen=True)
class Mode:
    """One way to make a reward of a network phi (`understudy.rewards.shaped`): ``additive`` to the real reward, else in
    its place; of a ``potential``, else of where a step leads. phi is of the ``state``, of the step's ``info``, or of
    both; of the info alone it is linear and has no bias."""

    name: str
    additive: bool
    potential: bool
    state: bool = True
    info: bool = False


MODES: dict[int, Mode] = {
    0: Mode("native", additive=True, potential=False, state=False),
    1: Mode("exclusive potential", additive=False, potential=True),
    2: Mode("additive potential", additive=True, potential=True),
    3: Mode("exclusive potential with info", additive=False, potential=True, info=True),
    4: Mode("additive potential with info", additive=True, potential=True, info=True),
    5: Mode("exclusive", additive=False, potential=False),
    6: Mode("additive", additive=True, potential=False),
    7: Mode("exclusive with info", additive=False, potential=False, info=True),
    8: Mode("additive with info", additive=True, potential=False, info=True),
    101: Mode("exclusive weighted info", additive=False, potential=False, state=False, info=True),
    102: Mode("additive weighted info", additive=True, potential=False, state=False, info=True),
}


@dataclass(frozen=True)
class Proxy:
    """One learned environment or reward, as its file holds it (`understudy.load`).

    ``game`` names the real environment and ``spaces`` are that one's: ``obs_shape`` [S], ``actions`` (``n``, or ``low``
    and ``high``), ``max_episode_steps``, ``max_return`` and, with a reward, the names ``info`` of what a step tells.
    ``config`` are the settings of its networks and of the search,
    ``description`` is plain data such as ``settings`` and ``scores``. ``tensors`` are finite float32, named and laid
    out as in ``torch.nn.Linear``: ``state.0.weight [out, in]``, ``state.0.bias [out]``.
    """

    path: Path
    game: str
    spaces: dict[str, Any]
    config: dict[str, Any]
    description: dict[str, Any]
    tensors: dict[str, np.ndarray]

    @property
    def kind(self) -> str:
        """``mdp``, ``bandit``, whose episodes have one step, or ``reward``."""
        return self.config["proxy"]

    @property
    def time_limit(self) -> int | None:
        """Steps of an episode at most; None where there is no limit, and for a bandit, which needs none."""
        return None if self.kind == "bandit" else self.config["max_steps"] or self.spaces["max_episode_steps"]

    @property
    def observation_space(self) -> Box:
        """Every number up to `BOUND`: a learned environment leaves the range of the real one."""
        return Box(-BOUND, BOUND, tuple(self.spaces["obs_shape"]), np.float32)

    @property
    def action_space(self) -> Discrete | Box:
        """That of the real environment."""
        actions = self.spaces["actions"]
        if "n" in actions:
            return Discrete(actions["n"])
        return Box(np.array(actions["low"], np.float32), np.array(actions["high"], np.float32))
