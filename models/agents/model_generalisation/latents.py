"""Distributions of latent states, from a network's outputs ``[M, B, outputs]``.

A latent is ``size`` numbers that represent ``features`` random variables. A sample takes one random number per
variable: standard normal if ``normal``, otherwise uniform on [0, 1).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from models.agents.model_generalisation.config import Config
from models.layers import sigmoid
from models.losses import categorical_kl, gaussian_kl

_SMALLEST = 1e-6  # standard deviation
Params = tuple[Tensor, ...]


def pick(probability: Tensor, uniform: Tensor) -> Tensor:
    """Sample classes by inverting the distribution function: ``probability [..., C]`` and ``uniform [...]`` in [0, 1)
    -> ``[...]`` int64."""
    # If rounding leaves the sum below 1, the last class gets the rest.
    return (probability.cumsum(-1)[..., :-1] <= uniform.unsqueeze(-1)).sum(-1)


class Categorical:
    """``num_features`` categorical variables of ``feature_width`` classes, as one-hot vectors. Gradients pass through a
    sample as if it were the probabilities (straight-through estimator, Bengio et al. 2013)."""

    normal = False

    def __init__(self, config: Config):
        self.features, self.width = config.num_features, config.feature_width
        self.outputs = self.size = self.features * self.width

    def params(self, outputs: Tensor, encoder: bool) -> Params:
        """Return the distribution's parameters for ``outputs`` of the encoder (``encoder``) or of the predictor."""
        return (outputs.unflatten(2, (self.features, self.width)).log_softmax(3),)

    def sample(self, params: Params, noise: Tensor) -> Tensor:
        """Sample latents ``[M, B, size]`` by ``noise [M, B, features]``, with gradients to ``params``."""
        probability = params[0].exp()
        category = pick(probability.detach(), noise).unsqueeze(3)
        sample = torch.zeros_like(probability).scatter_(3, category, 1.0)
        if torch.is_grad_enabled():
            sample = sample + (probability - probability.detach())
        return sample.flatten(2)

    def kl(self, p: Params, q: Params) -> Tensor:
        """Return ``KL(p || q)`` summed over the variables, ``[M, B]`` in nats."""
        return categorical_kl(p[0], q[0], 3).sum(2)

    def kl_to_base(self, p: Params) -> Tensor:
        """Return the same divergence from ``p`` to the uniform distribution (`Gaussian`: to the standard normal)."""
        return self.kl(p, (torch.full_like(p[0], 1 / self.width).log(),))


class Gaussian:
    """``num_features`` normal variables, sampled as mean + standard deviation * noise. If ``squashed``, the latent is
    their tanh; divergences are computed before the tanh."""

    normal = True

    def __init__(self, config: Config):
        self.features = self.size = config.num_features
        self.outputs = 2 * self.features
        self.squashed, self.min_std = config.latent_type == "tanh_gaussian", config.min_std
        self.positive = _POSITIVE[config.std_act]

    def params(self, outputs: Tensor, encoder: bool) -> Params:
        mean, raw = outputs.split(self.features, 2)
        deviation = self.positive(raw).clamp(min=_SMALLEST)
        return mean, deviation + self.min_std if encoder else deviation

    def sample(self, params: Params, noise: Tensor) -> Tensor:
        value = params[0] + params[1] * noise
        return value.tanh() if self.squashed else value

    def kl(self, p: Params, q: Params) -> Tensor:
        return gaussian_kl(*p, *q).sum(2)

    def kl_to_base(self, p: Params) -> Tensor:
        return self.kl(p, (torch.zeros_like(p[0]), torch.ones_like(p[1])))


_POSITIVE: dict[str, Callable[[Tensor], Tensor]] = {
    "softplus": F.softplus,
    "sigmoid": sigmoid,
    "sigmoid2": lambda raw: 2 * sigmoid(raw / 2),
}


def latents(config: Config) -> Categorical | Gaussian:
    """Return the distribution that ``latent_type`` names."""
    return Categorical(config) if config.latent_type == "categorical" else Gaussian(config)
