"""Running means and standard deviations of M members (independent agents), to normalise observations and rewards."""

import torch
from torch import Tensor

from models.state import Stateful

EPS = 1e-8  # added to variances


class Moments(Stateful):
    """Running mean and variance of each number in observations or other arrays of ``shape``, separately for each
    member: ``[M, *shape]`` float64. The initial state is as if ``prior`` arrays with mean 0 and variance 1 had been
    added. Source: Chan et al. 1979, "Updating formulae [...] for computing sample variances"."""

    saved = ("count", "mean", "square")

    def __init__(self, members: int, shape: tuple[int, ...], prior: float = 0.0):
        count_shape = (members, *[1] * len(shape))  # [M, 1, ...], to broadcast over ``shape``
        self.count = torch.full(count_shape, prior, dtype=torch.float64)  # number of arrays so far
        self.mean = torch.zeros(members, *shape, dtype=torch.float64)
        self.square = torch.full_like(self.mean, prior)  # the sum of squared distances from the mean

    def add(self, values: Tensor, members: Tensor | None = None) -> None:
        """Update the moments of the members ``members [M]`` bool (None: all) by B arrays, ``values [M, B, *shape]``."""
        values = values.double()
        num_added = values.shape[1]
        # The parallel update by Chan et al.
        count = self.count + num_added
        batch_mean = values.mean(1)
        difference = batch_mean - self.mean
        mean = self.mean + difference * (num_added / count)
        batch_square = (values - batch_mean.unsqueeze(1)).square().sum(1)
        square = self.square + (batch_square + difference.square() * (self.count * num_added / count))
        if members is not None:
            is_updated = members.view_as(self.count)
            count = torch.where(is_updated, count, self.count)
            mean = torch.where(is_updated, mean, self.mean)
            square = torch.where(is_updated, square, self.square)
        self.count, self.mean, self.square = count, mean, square

    def scale(self) -> Tensor:
        """Return the factors that scale values to variance 1, ``[M, *shape]`` float32. `EPS` is added to variances, as
        in the wrappers of Gymnasium and stable-baselines3."""
        return (1 / (self._variance() + EPS).sqrt()).float()

    def deviation(self) -> Tensor:
        """Return standard deviations ``[M, *shape]``, or 1 for numbers that do not vary except by rounding."""
        variance = self._variance()
        # A standard deviation below 1e-10 of the mean is only the rounding of float64. With a mean of 0, the limit is
        # 1e-15.
        return torch.where(variance > 1e-20 * self.mean.square() + 1e-30, variance.sqrt(), 1.0)

    def _variance(self) -> Tensor:
        """Return population variances ``[M, *shape]``, or 0 without values."""
        return self.square / self.count.masked_fill(self.count == 0, 1.0)
