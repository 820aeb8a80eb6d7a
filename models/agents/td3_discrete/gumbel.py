"""The Gumbel-softmax in columns, ``[M, A, B]``, and its temperature.

Source: Jang, Gu & Poole 2017, "Categorical Reparameterization with Gumbel-Softmax", arXiv 1611.01144, section 2.
"""

import torch
from torch import Tensor

from models.agents.td3_discrete.config import Config
from models.layers import exp

ANNEALED_TO, WITHIN = 0.05, 2000  # share of the temperature that is left, and after how many updates [F]


def gumbel_softmax(logits: Tensor, gumbel: Tensor, temperature: Tensor) -> Tensor:
    """``softmax((logits + gumbel) / temperature)`` over the A actions."""
    scores = (logits + gumbel) / temperature
    powers = exp(scores - scores.amax(1, keepdim=True))
    return powers.div_(powers.sum(1, keepdim=True))


def softmax_slope(soft: Tensor, gradient: Tensor) -> Tensor:
    """Backpropagate through a softmax over A actions: from d loss / d ``soft`` to d loss / d scores."""
    return soft * (gradient - (soft * gradient).sum(1, keepdim=True))


def temperature(config: Config, level: Tensor, updates: Tensor) -> Tensor:
    """The temperature ``[M]`` after ``updates [M]``; ``level [M]`` is the logarithm of a learned one."""
    if config.gumbel_temperature == "learned":
        return exp(level)
    start = torch.full_like(level, config.gumbel_softmax_temp)
    if config.gumbel_temperature == "fixed":
        return start
    return start * (1 - (1 - ANNEALED_TO) * (updates.float() / WITHIN).clamp(max=1))
