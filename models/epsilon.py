"""Epsilon-greedy exploration: how likely a random action is, by finished episodes or by the share of the training."""

import functools
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor


class Settings(Protocol):
    """The settings of an epsilon schedule; their help texts explain them."""

    @property
    def eps_init(self) -> float: ...
    @property
    def eps_min(self) -> float: ...
    @property
    def eps_decay(self) -> float: ...
    @property
    def eps_fraction(self) -> float | None: ...


@functools.lru_cache(16)
def _powers(first: float, decay: float, least: float, count: int) -> Tensor:
    """``first * decay ** k`` of k below ``count``, at least ``least``."""
    return torch.tensor([max(least, first * decay**k) for k in range(count)])


class Epsilon:
    """``eps_init * eps_decay ** k`` after k episodes of a member, at least ``eps_min``; with ``eps_fraction`` linear
    from ``eps_init`` to ``eps_min`` over that share of the training, then level."""

    def __init__(self, config: Settings):
        self.config = config
        self.constant = config.eps_init if config.eps_init == config.eps_min else None  # if it is constant
        self._table = torch.tensor([config.eps_init])

    def now(self, episodes: Tensor, steps: int, budget: int) -> Tensor:
        """Of members that have finished ``episodes [M]`` and have made ``steps`` of ``budget``, ``[M]``."""
        config = self.config
        if config.eps_fraction is not None:
            return torch.full(episodes.shape, self._by_share(steps, budget))
        if (max_episodes := int(episodes.max())) >= len(self._table):
            self._table = _powers(
                config.eps_init, config.eps_decay, config.eps_min, 1 << (2 * max_episodes + 63).bit_length()
            )
        return self._table[episodes]

    def ahead(
        self, episodes: Tensor, start_steps: int, steps: int, envs: int, budget: int
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Epsilon in the next ``steps`` after ``start_steps`` steps, in E = ``envs`` environments: by the number of
        finished episodes, and by step. The array that does not apply is empty."""
        if self.config.eps_fraction is None:
            max_episodes = int(episodes.max()) + steps * envs + 1
            return self.now(torch.arange(max_episodes), 0, 1).numpy(), np.empty(0, np.float32)
        by_step = [self._by_share((start_steps + t) * envs, budget) for t in range(steps)]
        return np.empty(0, np.float32), np.array(by_step, np.float32)

    def _by_share(self, steps: int, budget: int) -> float:
        """By the share of the ``budget`` that so many steps are, with ``eps_fraction``."""
        assert self.config.eps_fraction is not None
        done = min(1.0, steps / (self.config.eps_fraction * budget))
        return self.config.eps_init + (self.config.eps_min - self.config.eps_init) * done
