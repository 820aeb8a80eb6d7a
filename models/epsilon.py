"""Schedules of epsilon, the probability of a random action, by the number of finished episodes or of steps."""

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor


@functools.lru_cache(16)
def _decay_table(initial: float, decay: float, minimum: float, count: int) -> Tensor:
    """Return ``max(minimum, initial * decay ** k)`` for k = 0 .. ``count`` - 1."""
    return torch.tensor([max(minimum, initial * decay**k) for k in range(count)])


class Epsilon:
    """Schedule of epsilon: ``eps_init * eps_decay ** k`` after k finished episodes of a member, at least ``eps_min``.

    If ``eps_fraction`` is set, epsilon changes linearly from ``eps_init`` to ``eps_min`` over this fraction of all
    steps, and is constant afterwards. ``config`` has these settings.
    """

    def __init__(self, config: Any):
        self.config = config
        self._table = torch.tensor([config.eps_init])  # epsilon by number of finished episodes; `current` extends it

    def current(self, episodes: Tensor, steps: int, budget: int) -> Tensor:
        """Return epsilon ``[M]`` after ``episodes [M]`` finished episodes and ``steps`` of all ``budget`` steps."""
        config = self.config
        if config.eps_fraction is not None:
            return torch.full(episodes.shape, self._linear(steps, budget))
        if (max_episodes := int(episodes.max())) >= len(self._table):
            size = 1 << (2 * max_episodes + 63).bit_length()  # a power of two, at least 64 and over max_episodes
            self._table = _decay_table(config.eps_init, config.eps_decay, config.eps_min, size)
        return self._table[episodes]

    def upcoming(
        self, episodes: Tensor, start_steps: int, steps: int, envs: int, budget: int
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return epsilon for the next ``steps`` steps as two float32 arrays, of which one is empty. The first one is
        epsilon by number of finished episodes, empty if ``eps_fraction`` is set. The second one is epsilon by step,
        empty otherwise.

        Each of the ``envs`` environments has made ``start_steps`` steps so far, and members have finished ``episodes
        [M]``. ``budget`` is the number of steps of a member in the whole run.
        """
        if self.config.eps_fraction is None:
            count = int(episodes.max()) + steps * envs + 1  # an episode has at least one step
            finished_episodes = torch.arange(count)
            by_episode = self.current(finished_episodes, steps=0, budget=1)  # steps and budget have no effect
            return by_episode.numpy(), np.empty(0, np.float32)
        by_step = [self._linear((start_steps + t) * envs, budget) for t in range(steps)]
        return np.empty(0, np.float32), np.array(by_step, np.float32)

    def _linear(self, steps: int, budget: int) -> float:
        """Return epsilon after ``steps`` of ``budget`` steps, if ``eps_fraction`` is set."""
        assert self.config.eps_fraction is not None
        progress = min(1.0, steps / (self.config.eps_fraction * budget))
        return self.config.eps_init + (self.config.eps_min - self.config.eps_init) * progress
