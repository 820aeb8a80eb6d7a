"""Observation and action spaces of an environment: shapes, kind of actions, bounds."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Discrete:
    """The space of n discrete actions, the integers ``0 .. n - 1``."""

    n: int


@dataclass(frozen=True)
class Continuous:
    """The space of continuous actions: vectors of length A, with coordinate i in the finite ``[low[i], high[i]]``."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def size(self) -> int:
        return len(self.low)


@dataclass(frozen=True)
class Spaces:
    """Observation and action spaces of one environment."""

    obs_shape: tuple[int, ...]  # (O,) for vectors, (C, H, W) for images
    actions: Discrete | Continuous
    obs_dtype: torch.dtype = torch.float32  # uint8 for images, from 0 to 255
    max_episode_steps: int | None = None  # time limit in steps, None without one
    max_return: float | None = None  # largest possible return of an episode, None if unknown
    binary: bool = False  # True if every number of an observation is 0 or 1; False also if that is unknown
    one_hot: bool = False  # True if every observation is one-hot, the index of a cell; False also if that is unknown
    info: tuple[str, ...] = ()  # names of the numbers in the info of each step

    @property
    def is_image(self) -> bool:
        return len(self.obs_shape) == 3

    @property
    def action_shape(self) -> tuple[int, ...]:
        """Shape of one action: ``()`` if discrete, ``(A,)`` if continuous."""
        return () if isinstance(self.actions, Discrete) else (self.actions.size,)

    @property
    def action_size(self) -> int:
        """Number of discrete actions, or length A of a continuous action vector."""
        return self.actions.n if isinstance(self.actions, Discrete) else self.actions.size

    @property
    def action_dtype(self) -> torch.dtype:
        return torch.int64 if isinstance(self.actions, Discrete) else torch.float32
