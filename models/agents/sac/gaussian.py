"""The tanh-squashed normal distribution of actions.

Source: Haarnoja et al. 2018, arXiv 1812.05905, appendix C.
"""

from math import log

import torch
from torch import Tensor

from models.layers import exp, softplus
from models.losses import gaussian_nll

LOG_STD_BOUNDS = (-20.0, 2.0)  # as in the authors' code


def sample(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Sample actions ``tanh(mean + std * noise)`` by standard normal ``noise [M, B, A]``. ``outputs [M, B, 2 A]`` of a
    network are A means, then A logarithms of standard deviations. Return the actions ``[M, B, A]`` and their
    log-probabilities ``[M, B]``."""
    mean, log_std = outputs.chunk(2, 2)
    log_std = log_std.clamp(*LOG_STD_BOUNDS)
    x = mean + exp(log_std) * noise
    # Change of variables: the density of tanh(x) is the density of x, divided by the derivative of tanh.
    log_density = -gaussian_nll(noise, torch.zeros_like(noise)) - log_std
    log_prob = (log_density - log_tanh_derivative(x)).sum(2)
    return x.tanh(), log_prob


def log_tanh_derivative(x: Tensor) -> Tensor:
    """Return ``log(1 - tanh(x)^2)``, computed as ``2 (log 2 - x - log(1 + e^(-2 x)))``: no x overflows."""
    return 2 * (log(2) - x - softplus(-2 * x))
