"""Distributions of actions given the outputs of a policy network, ``[M, A, B]``: draws, log-probabilities, entropies
and gradients by hand.

A distribution has ``outputs`` A of the network and ``scales`` learned numbers that do not depend on the state. It
stores an action as ``width`` numbers. ``noise`` draws the random numbers for `draw`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from models.agents.ppo.config import Config
from models.layers import exp
from models.losses import gaussian_nll
from models.spaces import Continuous, Discrete, Spaces
from models.streams import NoiseBlocks, Streams


@dataclass
class Judged:
    """Actions under a distribution: their log-probabilities and its entropy in nats, ``[M, B]`` (``[M, 1]`` if it does
    not depend on states), and intermediate results for the gradient."""

    log_prob: Tensor
    entropy: Tensor
    parts: tuple[Tensor, ...]


class Categorical:
    """One of A actions by the softmax of their scores."""

    width, scales = 1, 0
    noise = staticmethod(Streams.gumbel)

    def __init__(self, actions: Discrete):
        self.outputs = actions.n

    def first(self) -> Tensor:
        """The scales at first, ``[scales]``."""
        return torch.empty(0)

    def draw(self, scores: Tensor, scales: Tensor, noise: Tensor) -> Tensor:
        """Actions ``[M, E]`` of ``scores [M, A, E]``, ``noise [M, E, A]``."""
        return (scores.transpose(1, 2) + noise).argmax(2)

    def best(self, scores: Tensor) -> Tensor:
        return scores.max(1).indices

    def executed(self, action: Tensor) -> Tensor:
        return action

    def judge(self, scores: Tensor, scales: Tensor, action: Tensor) -> Judged:
        """``action [M, 1, B]``."""
        log_p, action_index = scores.log_softmax(1), action.long()
        p = exp(log_p)
        entropy = -(p * log_p).sum(1)
        return Judged(log_p.gather(1, action_index).squeeze(1), entropy, (p, log_p, action_index))

    def gradient(self, judged: Judged, of_log_prob: Tensor, of_entropy: float) -> tuple[Tensor, Tensor]:
        """From derivatives by each log-probability ``[M, B]`` and by each entropy to those by scores and scales."""
        p, log_p, action_index = judged.parts
        pull = of_log_prob.unsqueeze(1)
        if of_entropy:  # dH / d score = -p (log p + H)
            p_factor = pull + of_entropy * (log_p + judged.entropy.unsqueeze(1))
        else:
            p_factor = pull
        of_scores = (p * p_factor).neg_().scatter_add_(1, action_index, pull)
        return of_scores, of_scores.new_empty(len(of_scores), 0)


class Gaussian:
    """A vector of A independent normal numbers. Their means depend on the state, their standard deviations do not.
    Actions are stored unclipped, and clipped to the bounds for the environment. A scale is the logarithm of a standard
    deviation.
    """

    noise = staticmethod(Streams.normal)

    def __init__(self, actions: Continuous, std: float):
        self.outputs = self.scales = self.width = actions.size
        self.low, self.high = torch.tensor(actions.low), torch.tensor(actions.high)
        self.std = std

    def first(self) -> Tensor:
        return torch.full((self.scales,), self.std).log()

    def draw(self, outputs: Tensor, scales: Tensor, noise: Tensor) -> Tensor:
        """Vectors ``[M, E, A]``."""
        return (outputs + exp(scales).unsqueeze(2) * noise.transpose(1, 2)).transpose(1, 2)

    def best(self, outputs: Tensor) -> Tensor:
        return outputs.transpose(1, 2)

    def executed(self, action: Tensor) -> Tensor:
        # environments take no NaN, and a member that has diverged still has to act
        return action.nan_to_num(0.0).clamp(self.low, self.high)

    def judge(self, outputs: Tensor, scales: Tensor, action: Tensor) -> Judged:
        """``action [M, A, B]``."""
        deviation = exp(scales).unsqueeze(2)
        log_prob = -gaussian_nll(action, outputs, deviation).sum(1)
        # the entropy of a normal number is its nll at one deviation from the mean
        entropy = gaussian_nll(deviation, torch.zeros_like(deviation), deviation).sum(1)
        return Judged(log_prob, entropy, (deviation, (action - outputs) / deviation))

    def gradient(self, judged: Judged, of_log_prob: Tensor, of_entropy: float) -> tuple[Tensor, Tensor]:
        deviation, off = judged.parts
        pull = of_log_prob.unsqueeze(1)
        of_scales = (pull * (off.square() - 1)).sum(2) + of_entropy * of_log_prob.shape[1]
        return pull * off / deviation, of_scales


Actions = Categorical | Gaussian


def noise_of(actions: Actions, streams: Streams, envs: int) -> NoiseBlocks:
    """The random numbers for one action in each of ``envs`` environments, step by step."""
    return NoiseBlocks(streams, [(type(actions).noise, {"action": (envs, actions.outputs)})])


def actions_of(config: Config, spaces: Spaces) -> Actions:
    if isinstance(spaces.actions, Discrete):
        return Categorical(spaces.actions)
    return Gaussian(spaces.actions, config.action_std)
