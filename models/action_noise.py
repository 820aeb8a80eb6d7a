"""Noise on actions that is correlated in time, made of white noise.

Sources: Lillicrap et al. 2016, "Continuous Control with Deep Reinforcement Learning", arXiv 1509.02971, whose THETA it
is; stable-baselines3, whose DT it is; for drawn actions Eberhard et al. 2023, "Pink Noise Is All You Need", ICLR.
"""

from math import sqrt

import torch
from torch import Tensor

from models.state import check_like

THETA, DT = 0.15, 0.01


class OrnsteinUhlenbeck:
    """``x += -THETA x DT + sqrt(DT) n`` with standard normal n, ``[M, E, A]``. x is 0 at the start of an episode.

    Multiplied by sigma it is the noise of stable-baselines3. After t steps its standard deviation is about ``sqrt((1 -
    exp(-2 THETA DT t)) / (2 THETA))``: 0.1 after one, 0.9 after a hundred, 1.8 in the end.
    """

    def __init__(self, *shape: int):
        self.level = torch.zeros(shape)

    def next(self, normal: Tensor) -> Tensor:
        """The noise of the next step, by white noise of the same shape."""
        # Products and sum apart: fused ones could round the last elements of an array differently.
        self.level = self.level.mul(1 - THETA * DT).add_(normal.mul(sqrt(DT)))
        return self.level

    def reset_finished(self, done: Tensor) -> None:
        """Begin anew in the environments ``done [M, E]``."""
        self.level = self.level.masked_fill(done.unsqueeze(2), 0.0)

    def select(self, members: Tensor) -> None:
        """Go on with ``members`` (indices ``[M']``) only."""
        self.level = self.level[members]

    def state_dict(self) -> dict[str, Tensor]:
        return {"level": self.level}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.level = check_like(self.level, state["level"], "noise on actions")
