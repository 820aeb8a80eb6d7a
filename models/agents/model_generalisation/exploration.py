"""How actions are chosen from action values, in the world and in imagination."""

import torch
from torch import Tensor

from models.agents.model_generalisation.config import Config


def noise(config: Config, actions: int) -> tuple[str, int]:
    """The kind of random numbers (of `Draws`) and how many of them one choice takes."""
    return ("gumbel", actions) if config.exploration_strat == "softmax" else ("uniform", 2)


def explore(config: Config, values: Tensor, numbers: Tensor) -> Tensor:
    """Actions ``[M, B]`` int64 for ``values [M, B, A]`` by ``numbers [M, B, count]`` of the kind that `noise` names.

    softmax: ``argmax(value + temperature * Gumbel)``, which is a draw from softmax(value / temperature) (Maddison et
    al. 2014). epsilon_greedy: the best with probability 1 - epsilon, and else any.
    """
    if config.exploration_strat == "softmax":
        return torch.add(values, numbers, alpha=config.softmax_temp).argmax(2)
    anyone = (numbers[..., 1] * values.shape[2]).to(torch.int64).clamp_(max=values.shape[2] - 1)
    return torch.where(numbers[..., 0] < config.epsilon, anyone, values.argmax(2))
