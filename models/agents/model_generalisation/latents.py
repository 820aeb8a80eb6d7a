"""Distributions of latent states, from a network's outputs ``[M, B, outputs]``.

A latent has ``size`` numbers, of ``features`` variables; a draw takes so many random numbers, ``normal`` or uniform.
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
    """Draws of classes: ``probability [..., C]``, ``uniform [...]`` in [0, 1) -> ``[...]`` int64. The inverse of the
    distribution function, so that a draw takes one number."""
    # Rounding errors of the sum go to the last class.
    return (probability.cumsum(-1)[..., :-1] <= uniform.unsqueeze(-1)).sum(-1)


class Categorical:
    """``num_features`` variables of ``feature_width`` classes as one-hot vectors. Gradients go straight through a draw
    as if it were the probabilities (Bengio et al. 2013)."""

    normal = False

    def __init__(self, config: Config):
        self.features, self.width = config.num_features, config.feature_width
        self.outputs = self.size = self.features * self.width

    def params(self, outputs: Tensor, encoder: bool) -> Params:
        """The distribution's parameters, of the encoder or of the prediction."""
        return (outputs.unflatten(2, (self.features, self.width)).log_softmax(3),)

    def draw(self, params: Params, noise: Tensor) -> Tensor:
        """Latents ``[M, B, size]`` by ``noise [M, B, features]``, open to autograd."""
        probability = params[0].exp()
        category = pick(probability.detach(), noise).unsqueeze(3)
        sample = torch.zeros_like(probability).scatter_(3, category, 1.0)
        if torch.is_grad_enabled():
            sample = sample + (probability - probability.detach())
        return sample.flatten(2)

    def kl(self, p: Params, q: Params) -> Tensor:
        """``KL(p || q)`` summed over the variables, ``[M, B]`` in nats."""
        return categorical_kl(p[0], q[0], 3).sum(2)

    def kl_to_base(self, p: Params) -> Tensor:
        """The same to the uniform distribution (of `Gaussian`: the standard normal one)."""
        return self.kl(p, (torch.full_like(p[0], 1 / self.width).log(),))


class Gaussian:
    """``num_features`` normal variables, drawn as mean + standard deviation * noise; with ``squashed`` the latent is
    their tanh, and divergences are those before it."""

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

    def draw(self, params: Params, noise: Tensor) -> Tensor:
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
    """The distribution that ``latent_type`` names."""
    return Categorical(config) if config.latent_type == "categorical" else Gaussian(config)
