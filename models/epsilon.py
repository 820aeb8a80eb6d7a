"""Schedules of epsilon, the probability of a random action, by the number of finished episodes or of steps."""

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.contract import InnerAgent


@functools.lru_cache(16)
def _decay_table(initial: float, decay: float, minimum: float, count: int) -> Tensor:
    """Return ``max(minimum, initial * decay ** k)`` for k = 0 .. ``count`` - 1."""
    return torch.tensor([max(minimum, initial * decay**k) for k in range(count)])


class EpsilonGreedy(InnerAgent):
    """Base class of agents that act at random with probability epsilon: ``eps_init * eps_decay ** k`` after k finished
    episodes of a member, at least ``eps_min``. If ``eps_fraction`` is set, epsilon changes linearly from ``eps_init``
    to ``eps_min`` over this fraction of all steps, and is constant afterwards. ``config`` has these settings."""

    def epsilon(self) -> Tensor:
        """Return the probability of a random action in the current step, ``[M]``."""
        if self.config.eps_fraction is None:
            return self._epsilon_table(int(self.episodes.max()))[self.episodes]
        previous_steps = self.steps - 1  # `act` has already counted the current step
        return torch.full(self.episodes.shape, self._linear_epsilon(previous_steps))

    def upcoming_epsilon(self, steps: int) -> dict[str, np.ndarray[Any, Any]]:
        """Return epsilon in the next ``steps`` steps, for compiled code, as two float32 arrays. If ``eps_fraction`` is
        set, ``epsilon_by_step [steps]`` is epsilon in each step. Otherwise, ``epsilon_by_episode`` is epsilon by number
        of finished episodes. The other array is empty."""
        empty_array = np.empty(0, np.float32)
        if self.config.eps_fraction is None:
            max_episodes = int(self.episodes.max()) + steps * self.envs  # an episode has at least one step
            return {"epsilon_by_episode": self._epsilon_table(max_episodes).numpy(), "epsilon_by_step": empty_array}
        epsilon_by_step = np.array([self._linear_epsilon(self.steps + t) for t in range(steps)], np.float32)
        return {"epsilon_by_episode": empty_array, "epsilon_by_step": epsilon_by_step}

    def _epsilon_table(self, max_episodes: int) -> Tensor:
        """Return a table of epsilon by number of finished episodes, for 0 to at least ``max_episodes``."""
        config = self.config
        size = 64
        while size <= max_episodes:  # powers of two, so that few tables are computed and `_decay_table` caches them
            size *= 2
        return _decay_table(config.eps_init, config.eps_decay, config.eps_min, size)

    def _linear_epsilon(self, steps: int) -> float:
        """Return epsilon after ``steps`` steps in each environment, if ``eps_fraction`` is set."""
        decay_steps = self.config.eps_fraction * self.budget  # steps of a member over all environments
        progress = min(1.0, steps * self.envs / decay_steps)
        return self.config.eps_init + (self.config.eps_min - self.config.eps_init) * progress
