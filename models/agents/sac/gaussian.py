"""The tanh-squashed normal distribution of actions ``[M, A, B]``, with a gradient written by hand.

Source: Haarnoja et al. 2018, arXiv 1812.05905, appendix C.
"""

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from models.layers import allocate_blocks, exp
from models.losses import HALF_LOG_TWO_PI

LOG_STD_BOUNDS = (-20.0, 2.0)  # as in the authors' code


@dataclass
class ActionSample:
    """Sampled actions ``tanh(mean + std * noise)`` and the intermediate results that `output_gradient` needs."""

    action: Tensor  # [M, A, B]
    log_prob: Tensor  # [M, B]
    std: Tensor  # [M, A, B]
    noise: Tensor  # [M, A, B]
    within_bounds: Tensor  # [M, A, B], 1 if the logarithm of std is within its bounds, else 0


def sample(outputs: Tensor, noise: Tensor) -> ActionSample:
    """Sample actions for a network's ``outputs [M, 2 A, B]`` (means, then logarithms of standard deviations) by
    standard normal ``noise [M, A, B]``."""
    mean, unclamped_log_std = outputs.chunk(2, 1)
    log_std = unclamped_log_std.clamp(*LOG_STD_BOUNDS)
    std = exp(log_std)
    pre_tanh = torch.addcmul(mean, std, noise)
    normal_log_prob = noise.square().mul_(-0.5).sub_(log_std).sub_(HALF_LOG_TWO_PI)
    # Change of variables: the density of tanh(x) is the density of x, divided by the derivative of tanh.
    log_prob = (normal_log_prob - _log_tanh_derivative(pre_tanh)).sum(1)
    within_bounds = (unclamped_log_std == log_std).float()  # the clamp changed nothing
    return ActionSample(pre_tanh.tanh(), log_prob, std, noise, within_bounds)


def _log_tanh_derivative(x: Tensor) -> Tensor:
    """Return ``log(1 - tanh(x)^2)``, computed as ``2 (log 2 - |x| - log(1 + e^(-2 |x|)))``: no x overflows."""
    magnitude = x.abs()
    memory, out = allocate_blocks(tuple(magnitude.shape), magnitude)  # ``out`` is a view of ``memory``
    torch.mul(magnitude, -2, out=out)
    memory.exp_().log1p_()  # in whole blocks, so that all elements are rounded alike
    return out.add_(magnitude).sub_(log(2)).mul_(-2)


def output_gradient(action_sample: ActionSample, action_gradient: Tensor, log_prob_gradient: Tensor) -> Tensor:
    """Return d loss / d outputs of the network, ``[M, 2 A, B]``. ``action_gradient [M, A, B]`` is d loss / d action;
    ``log_prob_gradient [M, 1, 1]`` is d loss / d log-probability, equal for all B actions."""
    action, std, noise = action_sample.action, action_sample.std, action_sample.noise
    # d log-probability / d mean = 2 action, because d log(1 - tanh(x)^2) / dx = -2 tanh(x).
    mean_gradient = torch.ops.aten.tanh_backward(action_gradient, action) + 2 * log_prob_gradient * action
    # d pre_tanh / d log_std = std * noise, and the log-probability contains -log_std.
    log_std_gradient = (mean_gradient * std * noise - log_prob_gradient) * action_sample.within_bounds
    return torch.cat([mean_gradient, log_std_gradient], 1)
