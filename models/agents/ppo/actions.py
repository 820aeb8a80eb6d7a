"""Action distributions: sampling, log-probabilities, entropies, and gradients written by hand.

The parameters of a distribution are A = ``outputs`` outputs of the policy network, ``[M, A, B]``, and ``scales``
learned numbers that do not depend on the state. An action is stored as ``width`` numbers. ``noise`` samples the random
numbers for `draw`.
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
    """Log-probabilities of actions, ``[M, B]``, and entropies of their distributions in nats, ``[M, B]`` (``[M, 1]`` if
    equal in all states). ``parts`` are intermediate results for the gradient."""

    log_prob: Tensor
    entropy: Tensor
    parts: tuple[Tensor, ...]


class Categorical:
    """Distribution of A discrete actions, the softmax of their logits (``logits``)."""

    width, scales = 1, 0
    noise = staticmethod(Streams.gumbel)

    def __init__(self, actions: Discrete):
        self.outputs = actions.n

    def first(self) -> Tensor:
        """Return the initial scales, ``[scales]``."""
        return torch.empty(0)

    def sample(self, logits: Tensor, scales: Tensor, noise: Tensor) -> Tensor:
        """Sample actions ``[M, E]``, from ``logits [M, A, E]`` and Gumbel ``noise [M, E, A]``."""
        return (logits.transpose(1, 2) + noise).argmax(2)

    def best(self, logits: Tensor) -> Tensor:
        return logits.max(1).indices

    def clip(self, action: Tensor) -> Tensor:
        return action

    def evaluate(self, logits: Tensor, scales: Tensor, action: Tensor) -> Judged:
        """Return log-probabilities of ``action [M, 1, B]`` and entropies, for ``logits [M, A, B]``."""
        log_p, action_index = logits.log_softmax(1), action.long()
        p = exp(log_p)
        entropy = -(p * log_p).sum(1)
        return Judged(log_p.gather(1, action_index).squeeze(1), entropy, (p, log_p, action_index))

    def gradient(self, judged: Judged, of_log_prob: Tensor, of_entropy: float) -> tuple[Tensor, Tensor]:
        """Return d loss / d logits ``[M, A, B]`` and d loss / d scales, from d loss / d log-probability ``[M, B]`` and
        d loss / d entropy."""
        p, log_p, action_index = judged.parts
        pull = of_log_prob.unsqueeze(1)
        if of_entropy:  # dH / d score = -p (log p + H)
            p_factor = pull + of_entropy * (log_p + judged.entropy.unsqueeze(1))
        else:
            p_factor = pull
        logits_gradient = (p * p_factor).neg_().scatter_add_(1, action_index, pull)
        return logits_gradient, logits_gradient.new_empty(len(logits_gradient), 0)


class Gaussian:
    """Distribution of vectors of A independent normal numbers. Means depend on the state. Standard deviations do not;
    their logarithms are the scales. Actions are stored unclipped, and the environment gets them clipped to its bounds.
    """

    noise = staticmethod(Streams.normal)

    def __init__(self, actions: Continuous, std: float):
        self.outputs = self.scales = self.width = actions.size
        self.low, self.high = torch.tensor(actions.low), torch.tensor(actions.high)
        self.std = std

    def first(self) -> Tensor:
        return torch.full((self.scales,), self.std).log()

    def sample(self, outputs: Tensor, scales: Tensor, noise: Tensor) -> Tensor:
        """Sample vectors ``[M, E, A]``, from ``outputs [M, A, E]`` and standard normal ``noise [M, E, A]``."""
        return (outputs + exp(scales).unsqueeze(2) * noise.transpose(1, 2)).transpose(1, 2)

    def best(self, outputs: Tensor) -> Tensor:
        return outputs.transpose(1, 2)

    def clip(self, action: Tensor) -> Tensor:
        # Environments accept no NaN, but a diverged member continues to act.
        return action.nan_to_num(0.0).clamp(self.low, self.high)

    def evaluate(self, outputs: Tensor, scales: Tensor, action: Tensor) -> Judged:
        """Return log-probabilities of ``action [M, A, B]`` and the entropy, for ``outputs [M, A, B]``."""
        deviation = exp(scales).unsqueeze(2)
        log_prob = -gaussian_nll(action, outputs, deviation).sum(1)
        # The entropy of a normal number equals its nll at one deviation from the mean.
        entropy = gaussian_nll(deviation, torch.zeros_like(deviation), deviation).sum(1)
        return Judged(log_prob, entropy, (deviation, (action - outputs) / deviation))

    def gradient(self, judged: Judged, of_log_prob: Tensor, of_entropy: float) -> tuple[Tensor, Tensor]:
        deviation, off = judged.parts
        pull = of_log_prob.unsqueeze(1)
        of_scales = (pull * (off.square() - 1)).sum(2) + of_entropy * of_log_prob.shape[1]
        return pull * off / deviation, of_scales


Actions = Categorical | Gaussian


def noise_of(actions: Actions, streams: Streams, envs: int) -> NoiseBlocks:
    """Return random numbers for actions in ``envs`` environments, ``{"action": [M, envs, A]}`` for each step."""
    return NoiseBlocks(streams, [(type(actions).noise, {"action": (envs, actions.outputs)})])


def actions_of(config: Config, spaces: Spaces) -> Actions:
    if isinstance(spaces.actions, Discrete):
        return Categorical(spaces.actions)
    return Gaussian(spaces.actions, config.action_std)
