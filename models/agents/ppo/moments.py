"""Running means and variances of M members, to normalise observations and rewards by."""

import torch
from torch import Tensor

from models.state import like

LIMIT = 10.0  # normalised numbers are cut off there
_EPS = 1e-8  # added to variances


class Moments:
    """Mean and variance of all numbers so far, each of ``shape`` by itself: ``[M, *shape]`` float64.

    Counting starts at 1e-4 with mean 0 and variance 1, as in Gymnasium's and stable-baselines3's wrappers. Source: Chan
    et al. 1979, "Updating formulae and a pairwise algorithm for computing sample variances".
    """

    def __init__(self, members: int, shape: tuple[int, ...]):
        self.mean = torch.zeros(members, *shape, dtype=torch.float64)
        self.square = torch.ones_like(self.mean)  # the variance
        self.count = 1e-4

    def add(self, values: Tensor) -> None:
        """``values [M, E, *shape]``."""
        values, more = values.double(), values.shape[1]
        mean = values.mean(1)
        square = (values - mean.unsqueeze(1)).square().mean(1)
        total, off = self.count + more, mean - self.mean
        self.mean = self.mean + off * (more / total)
        summed = self.square * self.count + square * more + off.square() * (self.count * more / total)
        self.square, self.count = summed / total, total

    def scale(self) -> Tensor:
        """What numbers are multiplied by, ``[M, *shape]`` float32."""
        return (1 / (self.square + _EPS).sqrt()).float()

    def select(self, members: Tensor) -> None:
        self.mean, self.square = self.mean[members], self.square[members]

    def state_dict(self) -> dict[str, Tensor | float]:
        return {"mean": self.mean, "square": self.square, "count": self.count}

    def load_state_dict(self, state: dict[str, Tensor | float]) -> None:
        like(self.state_dict(), state, "moments")
        vars(self).update(state)
