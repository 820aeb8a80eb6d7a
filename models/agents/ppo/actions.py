"""Action distributions: sampling, log-probabilities, entropies, and gradients written by hand.

The parameters of a distribution are A = ``num_outputs`` outputs of the policy network, ``[M, A, B]``, and ``log_std``,
``num_log_std`` learned numbers that do not depend on the state. An action is stored as ``width`` numbers. ``noise`` is
the method of `Streams` that samples the random numbers for `sample`.
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
class Evaluation:
    """Log-probabilities of actions, ``[M, B]``, and entropies of their distributions in nats, ``[M, B]`` (``[M, 1]`` if
    equal in all states). ``intermediates`` are results that the method ``gradient`` of the distribution needs."""

    log_prob: Tensor
    entropy: Tensor
    intermediates: tuple[Tensor, ...]


class Categorical:
    """Distribution of A discrete actions: the softmax of their logits. It has no ``log_std``."""

    width, num_log_std = 1, 0
    noise = staticmethod(Streams.gumbel)

    def __init__(self, actions: Discrete):
        self.num_outputs = actions.n

    def initial_log_std(self) -> Tensor:
        """Return the initial ``log_std``, ``[num_log_std]``, here empty."""
        return torch.empty(0)

    def sample(self, logits: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
        """Sample actions ``[M, E]`` from ``logits [M, A, E]`` and Gumbel ``noise [M, E, A]``: the argmax of their sum
        is a sample of the softmax. ``log_std`` is unused."""
        return (logits.transpose(1, 2) + noise).argmax(2)

    def best(self, logits: Tensor) -> Tensor:
        """Return the most likely actions, ``logits [M, A, E] -> [M, E]``."""
        return logits.max(1).indices

    def clip(self, action: Tensor) -> Tensor:
        """Return ``action`` itself: discrete actions have no bounds."""
        return action

    def evaluate(self, logits: Tensor, log_std: Tensor, action: Tensor) -> Evaluation:
        """Return log-probabilities of ``action [M, 1, B]`` (as floats) and entropies, for ``logits [M, A, B]``."""
        log_probs = logits.log_softmax(1)
        probs = exp(log_probs)
        entropy = -(probs * log_probs).sum(1)
        action_index = action.long()
        log_prob = log_probs.gather(1, action_index).squeeze(1)
        return Evaluation(log_prob, entropy, (probs, log_probs, action_index))

    def gradient(
        self, evaluation: Evaluation, log_prob_gradient: Tensor, entropy_gradient: float
    ) -> tuple[Tensor, Tensor]:
        """Return d loss / d logits ``[M, A, B]`` and d loss / d log_std ``[M, 0]``. ``log_prob_gradient [M, B]`` is
        d loss / d log-probability, ``entropy_gradient`` is d loss / d entropy, equal for all rows."""
        probs, log_probs, action_index = evaluation.intermediates
        gradient = log_prob_gradient.unsqueeze(1)  # [M, 1, B]
        # d log p(action) / d logits = one_hot(action) - p, and dH / d logits = -p (log p + H).
        if entropy_gradient:
            probs_factor = gradient + entropy_gradient * (log_probs + evaluation.entropy.unsqueeze(1))
        else:
            probs_factor = gradient
        logits_gradient = (probs * probs_factor).neg_().scatter_add_(1, action_index, gradient)
        return logits_gradient, logits_gradient.new_empty(len(logits_gradient), 0)


class Gaussian:
    """Distribution of vectors of A independent normal numbers. Means depend on the state. Standard deviations do not;
    their logarithms are ``log_std``. Actions are stored unclipped, and the environment gets them clipped to its bounds.
    """

    noise = staticmethod(Streams.normal)

    def __init__(self, actions: Continuous, std: float):
        self.num_outputs = self.num_log_std = self.width = actions.size
        self.low, self.high = torch.tensor(actions.low), torch.tensor(actions.high)
        self.initial_std = std

    def initial_log_std(self) -> Tensor:
        """Return the initial ``log_std``, ``[A]``."""
        return torch.full((self.num_log_std,), self.initial_std).log()

    def sample(self, mean: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
        """Sample vectors ``[M, E, A]`` from ``mean [M, A, E]`` and standard normal ``noise [M, E, A]``."""
        return (mean + exp(log_std).unsqueeze(2) * noise.transpose(1, 2)).transpose(1, 2)

    def best(self, mean: Tensor) -> Tensor:
        """Return the means as actions, ``[M, A, E] -> [M, E, A]``."""
        return mean.transpose(1, 2)

    def clip(self, action: Tensor) -> Tensor:
        """Return ``action [M, E, A]``, clipped to the environment's bounds. NaN becomes 0."""
        # Environments accept no NaN, but a diverged member continues to act.
        return action.nan_to_num(0.0).clamp(self.low, self.high)

    def evaluate(self, mean: Tensor, log_std: Tensor, action: Tensor) -> Evaluation:
        """Return log-probabilities of ``action [M, A, B]``, and entropies ``[M, 1]``. ``mean`` has the shape of
        ``action``."""
        std = exp(log_std).unsqueeze(2)
        log_prob = -gaussian_nll(action, mean, std).sum(1)
        # The entropy of a normal number equals its negative log-likelihood at one standard deviation from the mean.
        entropy = gaussian_nll(std, torch.zeros_like(std), std).sum(1)
        return Evaluation(log_prob, entropy, (std, (action - mean) / std))

    def gradient(
        self, evaluation: Evaluation, log_prob_gradient: Tensor, entropy_gradient: float
    ) -> tuple[Tensor, Tensor]:
        """Return d loss / d mean ``[M, A, B]`` and d loss / d log_std ``[M, A]``; the rest is as in `Categorical`."""
        std, z = evaluation.intermediates  # z is the action in standard deviations from the mean
        gradient = log_prob_gradient.unsqueeze(1)  # [M, 1, B]
        batch_size = log_prob_gradient.shape[1]
        # d log-probability / d log_std = z^2 - 1, and dH / d log_std = 1, in each row.
        log_std_gradient = (gradient * (z.square() - 1)).sum(2) + entropy_gradient * batch_size
        return gradient * z / std, log_std_gradient


Actions = Categorical | Gaussian


def noise_of(actions: Actions, streams: Streams, envs: int) -> NoiseBlocks:
    """Return random numbers for actions in ``envs`` environments, ``{"action": [M, envs, A]}`` for each step."""
    return NoiseBlocks(streams, [(type(actions).noise, {"action": (envs, actions.num_outputs)})])


def actions_of(config: Config, spaces: Spaces) -> Actions:
    """Return the kind of distribution for actions in ``spaces``."""
    if isinstance(spaces.actions, Discrete):
        return Categorical(spaces.actions)
    return Gaussian(spaces.actions, config.action_std)
