"""Exploration noise on actions that is correlated in time, computed from white noise.

Sources: Lillicrap et al. 2016, "Continuous Control with Deep Reinforcement Learning", arXiv 1509.02971 (value of
THETA); stable-baselines3 (value of DT); Eberhard et al. 2023, "Pink Noise Is All You Need", ICLR (correlated noise for
policies that sample actions).
"""

from math import sqrt

import torch
from torch import Tensor

from models.state import PerMember

THETA, DT = 0.15, 0.01


class OrnsteinUhlenbeck(PerMember):
    """Ornstein-Uhlenbeck noise x (``level``), ``[M, E, A]``: ``x += -THETA x DT + sqrt(DT) n`` with standard normal n.

    x is 0 at the start of an episode. The noise in stable-baselines3 is x times its parameter sigma. After t steps the
    standard deviation of x is about ``sqrt((1 - exp(-2 THETA DT t)) / (2 THETA))``: 0.1 after one step, 0.9 after a
    hundred, 1.8 in the limit.
    """

    per_member = saved = ("level",)

    def __init__(self, *shape: int):
        self.level = torch.zeros(shape)

    def next(self, normal: Tensor) -> Tensor:
        """Advance one step and return the noise ``[M, E, A]``. ``normal`` are standard normal numbers of this shape."""
        # Products and sum are separate, because fused operations could round the last elements of an array differently.
        self.level = self.level.mul(1 - THETA * DT).add_(normal.mul(sqrt(DT)))
        return self.level

    def reset_finished(self, done: Tensor) -> None:
        """Reset the noise to 0 in the environments marked by ``done [M, E]`` bool."""
        self.level = self.level.masked_fill(done.unsqueeze(2), 0.0)
