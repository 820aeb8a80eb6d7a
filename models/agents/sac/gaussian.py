"""The squashed normal distribution in columns, ``[M, A, B]``, with its gradient by hand.

Source: Haarnoja et al. 2018, arXiv 1812.05905, appendix C.
"""

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from models.layers import exp, in_blocks
from models.losses import HALF_LOG_TWO_PI

LOG_STD = (-20.0, 2.0)  # bounds of the logarithm of the standard deviation, as in the authors' code


@dataclass
class Draw:
    """``action = tanh(mean + deviation * noise)``, ``[M, A, B]``, with its log-probability ``[M, B]``, in nats."""

    action: Tensor
    log_prob: Tensor
    deviation: Tensor
    noise: Tensor
    free: Tensor  # whether the logarithm of the deviation is within its bounds


def draw(outputs: Tensor, noise: Tensor) -> Draw:
    """By a network's ``outputs [M, 2 A, B]``, mean and logarithm of the deviation, and standard normal ``noise``."""
    mean, raw = outputs.chunk(2, 1)
    level = raw.clamp(*LOG_STD)
    deviation = exp(level)
    pre_tanh = torch.addcmul(mean, deviation, noise)
    of_normal = noise.square().mul_(-0.5).sub_(level).sub_(HALF_LOG_TWO_PI)
    log_prob = (of_normal - _log_slope(pre_tanh)).sum(1)
    return Draw(pre_tanh.tanh(), log_prob, deviation, noise, (raw == level).float())


def _log_slope(pre_tanh: Tensor) -> Tensor:
    """``log(1 - tanh(x)^2) = 2 (log 2 - |x| - log(1 + e^(-2 |x|)))``, which no x overflows."""
    size = pre_tanh.abs()
    memory, out = in_blocks(tuple(size.shape), size)
    torch.mul(size, -2, out=out)
    memory.exp_().log1p_()
    return out.add_(size).sub_(log(2)).mul_(-2)


def slope(action_sample: Draw, of_action: Tensor, of_log_prob: Tensor) -> Tensor:
    """From d loss / d action ``[M, A, B]`` and d loss / d log-probability, a number ``[M, 1, 1]`` for each, to that by
    the network's outputs ``[M, 2 A, B]``."""
    of_mean = torch.ops.aten.tanh_backward(of_action, action_sample.action) + 2 * of_log_prob * action_sample.action
    of_level = (of_mean * action_sample.deviation * action_sample.noise - of_log_prob) * action_sample.free
    return torch.cat([of_mean, of_level], 1)
