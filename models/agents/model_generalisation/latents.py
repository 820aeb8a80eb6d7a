"""Distributions of latent states, from a network's outputs ``[M, B, outputs]``.

A latent is ``size`` numbers that represent ``num_features`` random variables. To sample it, one random number per
variable is needed: standard normal if ``uses_normal_noise``, otherwise uniform on [0, 1). The parameters of the
distribution are computed from ``num_outputs`` outputs of a network.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from models.agents.model_generalisation.config import Config
from models.layers import sigmoid
from models.losses import categorical_kl, gaussian_kl
from understudy.policy import ONE_HOT

_SMALLEST_STD = 1e-6
Params = tuple[Tensor, ...]
"""Parameters of a distribution: log-probabilities, or means and standard deviations, ``[M, B, ...]``."""


def sample_classes(probability: Tensor, uniform: Tensor) -> Tensor:
    """Sample classes ``[...]`` int64 by inverting the cumulative distribution of ``probability [..., C]`` at ``uniform
    [...]`` in [0, 1). The class is the number of cumulative probabilities that are not above ``uniform``."""
    # The last cumulative probability is left out, because rounding may leave it below 1.
    cumulative = probability.cumsum(-1)[..., :-1]
    return (cumulative <= uniform.unsqueeze(-1)).sum(-1)


class Categorical:
    """``num_features`` categorical variables of ``feature_width`` classes, as one-hot vectors. Gradients pass through a
    sample as if it were the probabilities (straight-through estimator, Bengio et al. 2013)."""

    uses_normal_noise = False

    def __init__(self, config: Config):
        self.num_features, self.num_classes = config.num_features, config.feature_width
        self.num_outputs = self.size = self.num_features * self.num_classes
        self.mode: str | float = f"{ONE_HOT}{self.num_classes}"  # activation for the most likely latent

    def params(self, outputs: Tensor, encoder: bool) -> Params:
        """Return log-probabilities, a tuple of one tensor ``[M, B, num_features, num_classes]``, for a network's
        ``outputs``. ``encoder`` has no effect (see `Gaussian.params`)."""
        logits = outputs.unflatten(2, (self.num_features, self.num_classes))
        return (logits.log_softmax(3),)

    def sample(self, params: Params, noise: Tensor) -> Tensor:
        """Sample latents ``[M, B, size]`` by uniform ``noise [M, B, num_features]``, with gradients to ``params``."""
        (log_probability,) = params
        probability = log_probability.exp()
        category = sample_classes(probability.detach(), noise).unsqueeze(3)
        sample = torch.zeros_like(probability).scatter_(3, category, 1.0)
        if torch.is_grad_enabled():
            sample = sample + (probability - probability.detach())  # adds 0, with the gradient of the probability
        return sample.flatten(2)

    def kl(self, p: Params, q: Params) -> Tensor:
        """Return ``KL(p || q)`` summed over the variables, ``[M, B]`` in nats."""
        (log_p,), (log_q,) = p, q
        return categorical_kl(log_p, log_q, 3).sum(2)

    def kl_to_base(self, p: Params) -> Tensor:
        """Return ``KL(p || uniform distribution)`` summed over the variables, ``[M, B]`` in nats."""
        (log_p,) = p
        uniform_probability = torch.full_like(log_p, 1 / self.num_classes)
        return self.kl(p, (uniform_probability.log(),))


class Gaussian:
    """``num_features`` normal variables, sampled as mean + standard deviation * noise. If ``squashed``, the latent is
    the tanh of these variables, but divergences are between the normal distributions."""

    uses_normal_noise = True

    def __init__(self, config: Config):
        self.num_features = self.size = config.num_features
        self.num_outputs = 2 * self.num_features
        self.squashed, self.min_std = config.latent_type == "tanh_gaussian", config.min_std
        # Activation that computes the most likely latent from the means; 1.0, a slope below 0, is the identity.
        self.mode: str | float = "tanh" if self.squashed else 1.0
        self.std_activation = _STD_ACTIVATIONS[config.std_act]

    def params(self, outputs: Tensor, encoder: bool) -> Params:
        """Return means and standard deviations ``[M, B, num_features]`` for a network's ``outputs``. If the network is
        the ``encoder``, ``min_std`` is added to standard deviations."""
        mean, raw_std = outputs.split(self.num_features, 2)
        std = self.std_activation(raw_std).clamp(min=_SMALLEST_STD)
        return mean, std + self.min_std if encoder else std

    def sample(self, params: Params, noise: Tensor) -> Tensor:
        """Sample latents ``[M, B, size]`` by standard normal ``noise``, with gradients to ``params``."""
        mean, std = params
        value = mean + std * noise
        return value.tanh() if self.squashed else value

    def kl(self, p: Params, q: Params) -> Tensor:
        """Return ``KL(p || q)`` summed over the variables, ``[M, B]`` in nats."""
        return gaussian_kl(*p, *q).sum(2)

    def kl_to_base(self, p: Params) -> Tensor:
        """Return ``KL(p || standard normal)`` summed over the variables, ``[M, B]`` in nats."""
        mean, std = p
        return self.kl(p, (torch.zeros_like(mean), torch.ones_like(std)))


_STD_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softplus": F.softplus,
    "sigmoid": sigmoid,
    "sigmoid2": lambda raw: 2 * sigmoid(raw / 2),
}
