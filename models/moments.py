"""Running means and deviations of M members, to normalise observations and rewards by."""

import torch
from torch import Tensor

from models.state import like

_EPS = 1e-8  # added to variances


class Moments:
    """Mean and variance of all numbers that each member has met, each of ``shape`` by itself: ``[M, *shape]`` float64.

    Before the first number stand ``prior`` numbers of mean 0 and variance 1. Source: Chan et al. 1979, "Updating
    formulae and a pairwise algorithm for computing sample variances".
    """

    def __init__(self, members: int, shape: tuple[int, ...], prior: float = 0.0):
        self.count = torch.full((members, *[1] * len(shape)), prior, dtype=torch.float64)
        self.mean = torch.zeros(members, *shape, dtype=torch.float64)
        self.square = torch.full_like(self.mean, prior)  # the sum of squared distances from the mean

    def add(self, values: Tensor, who: Tensor | None = None) -> None:
        """Take in ``values [M, B, *shape]`` of the members ``who [M]`` bool (None: all)."""
        values, more = values.double(), values.shape[1]
        mean = values.mean(1)
        count, off = self.count + more, mean - self.mean
        square = (values - mean.unsqueeze(1)).square().sum(1) + off.square() * (self.count * more / count)
        new = {"count": count, "mean": self.mean + off * (more / count), "square": self.square + square}
        for name, own in self.state_dict().items():
            setattr(self, name, new[name] if who is None else torch.where(who.view_as(self.count), new[name], own))

    def scale(self) -> Tensor:
        """What numbers are multiplied by, ``[M, *shape]`` float32. Variances are taken to be 1e-8 larger, as in
        Gymnasium's and stable-baselines3's wrappers."""
        return (1 / (self._variance() + _EPS).sqrt()).float()

    def deviation(self) -> Tensor:
        """``[M, *shape]``; 1 where nothing varies, but for rounding."""
        variance = self._variance()
        return torch.where(variance > 1e-20 * self.mean.square() + 1e-30, variance.sqrt(), 1.0)

    def _variance(self) -> Tensor:
        return self.square / self.count.masked_fill(self.count == 0, 1.0)

    def select(self, members: Tensor) -> None:
        for name, own in self.state_dict().items():
            setattr(self, name, own[members])

    def state_dict(self) -> dict[str, Tensor]:
        return {"count": self.count, "mean": self.mean, "square": self.square}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        like(self.state_dict(), state, "moments")
        vars(self).update(state)
