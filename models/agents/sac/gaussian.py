"""The tanh-squashed normal distribution of actions ``[M, A, B]``, with a gradient written by hand.

Source: Haarnoja et al. 2018, arXiv 1812.05905, appendix C.
"""

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from models.layers import allocate_blocks, exp
from models.losses import HALF_LOG_TWO_PI

LOG_STD = (-20.0, 2.0)  # bounds of the logarithm of the standard deviation, as in the authors' code


@dataclass
class Draw:
    """Sampled actions ``tanh(mean + deviation * noise)``, ``[M, A, B]``, with their log-probabilities ``[M, B]``."""

    action: Tensor
    log_prob: Tensor
    deviation: Tensor
    noise: Tensor
    free: Tensor  # 1 if the logarithm of the deviation is within its bounds, else 0


def sample(outputs: Tensor, noise: Tensor) -> Draw:
    """Return the actions for a network's ``outputs [M, 2 A, B]`` (means, then logarithms of standard deviations) and
    standard normal ``noise [M, A, B]``."""
    mean, raw = outputs.chunk(2, 1)
    level = raw.clamp(*LOG_STD)
    deviation = exp(level)
    pre_tanh = torch.addcmul(mean, deviation, noise)
    of_normal = noise.square().mul_(-0.5).sub_(level).sub_(HALF_LOG_TWO_PI)
    log_prob = (of_normal - _log_slope(pre_tanh)).sum(1)
    return Draw(pre_tanh.tanh(), log_prob, deviation, noise, (raw == level).float())


def _log_slope(pre_tanh: Tensor) -> Tensor:
    """Return ``log(1 - tanh(x)^2)``, computed as ``2 (log 2 - |x| - log(1 + e^(-2 |x|)))``: no x overflows."""
    size = pre_tanh.abs()
    memory, out = allocate_blocks(tuple(size.shape), size)
    torch.mul(size, -2, out=out)
    memory.exp_().log1p_()
    return out.add_(size).sub_(log(2)).mul_(-2)


def slope(action_sample: Draw, of_action: Tensor, of_log_prob: Tensor) -> Tensor:
    """Return d loss / d outputs of the network, ``[M, 2 A, B]``. ``of_action [M, A, B]`` is d loss / d action;
    ``of_log_prob [M, 1, 1]`` is d loss / d log-probability, equal for all B actions."""
    of_mean = torch.ops.aten.tanh_backward(of_action, action_sample.action) + 2 * of_log_prob * action_sample.action
    of_level = (of_mean * action_sample.deviation * action_sample.noise - of_log_prob) * action_sample.free
    return torch.cat([of_mean, of_level], 1)
