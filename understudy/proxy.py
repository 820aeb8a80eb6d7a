"""`Proxy`: a learned environment, or a learned reward, as plain numbers and text."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete

from understudy.kinds import KINDS

BOUND = 1e6  # largest absolute value of a number in an observation, and of a reward


class ProxyError(ValueError):
    """The error about a learned environment or reward that is missing, or cannot be used in this way."""


@dataclass(frozen=True)
class Proxy:
    """A learned environment or reward, with the content of its file (`understudy.load`).

    :ivar Path path: The file.
    :ivar str game: Name of the real environment.
    :ivar dict spaces: Description of this environment. ``obs_shape`` is ``[S]``. ``actions`` has the number ``n`` of
        discrete actions, or the bounds ``low`` and ``high`` of continuous actions. ``max_episode_steps`` is the time
        limit and ``max_return`` the largest return, both None if there is none. A reward has ``info``, the names of the
        numbers that it reads from the info of a step.
    :ivar dict config: Settings of the networks and of the search.
    :ivar dict description: Plain data such as ``settings`` and ``scores``.
    :ivar dict tensors: Finite float32 numbers, named and laid out as in ``torch.nn.Linear``:
        ``state.0.weight [out, in]``, ``state.0.bias [out]``.
    """

    path: Path
    game: str
    spaces: dict[str, Any]
    config: dict[str, Any]
    description: dict[str, Any]
    tensors: dict[str, np.ndarray]

    def __repr__(self) -> str:
        size = sum(tensor.size for tensor in self.tensors.values())
        return f"Proxy({str(self.path)!r}): {self.kind} of {self.game}, {size:,} parameters"

    @property
    def kind(self) -> str:
        """The kind, ``mdp``, ``bandit`` (episodes of one step) or ``reward``."""
        return self.config["proxy"]

    @property
    def time_limit(self) -> int | None:
        """The time limit in steps; None without a limit, and for bandits."""
        return None if KINDS[self.kind].one_step else self.config["max_steps"] or self.spaces["max_episode_steps"]

    @property
    def observation_space(self) -> Box:
        """A Box of numbers up to `BOUND` (1e6) in size; observations may leave the range of the real environment."""
        return Box(-BOUND, BOUND, tuple(self.spaces["obs_shape"]), np.float32)

    @property
    def action_space(self) -> Discrete | Box:
        """The action space of the real environment."""
        actions = self.spaces["actions"]
        if "n" in actions:
            return Discrete(actions["n"])
        return Box(np.array(actions["low"], np.float32), np.array(actions["high"], np.float32))
