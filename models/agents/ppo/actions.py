"""Action distributions: sampling, log-probabilities and entropies.

The parameters of a distribution are A = ``num_outputs`` outputs of the policy network, ``[M, B, A]``, and ``log_std [M,
num_log_std]``, logarithms of standard deviations, which are learned and do not depend on the state. An action is stored
as ``width`` numbers. ``noise`` is the method of `Streams` that samples the random numbers for `sample`.
"""

import torch
from torch import Tensor

from models.layers import exp
from models.losses import HALF_LOG_TWO_PI, categorical_entropy, gaussian_nll
from models.spaces import Continuous, Discrete
from models.streams import NoiseBlocks, Streams


class Categorical:
    """Distribution of A discrete actions: the softmax of their logits. It has no ``log_std``."""

    width, num_log_std = 1, 0
    noise = staticmethod(Streams.gumbel)

    def __init__(self, actions: Discrete):
        self.num_outputs = actions.n

    def initial_log_std(self) -> Tensor:
        """Return the initial ``log_std``, which is empty."""
        return torch.empty(0)

    def sample(self, logits: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
        """Sample actions ``[M, E]`` from ``logits [M, E, A]`` by Gumbel ``noise [M, E, A]``: the argmax of their sum is
        a sample of the softmax. ``log_std`` is not used."""
        return (logits + noise).argmax(2)

    def best(self, logits: Tensor) -> Tensor:
        """Return the most likely actions, ``logits [M, E, A] -> [M, E]``."""
        return logits.argmax(2)

    def clip(self, action: Tensor) -> Tensor:
        """Return ``action`` itself: discrete actions have no bounds."""
        return action

    def log_prob(self, logits: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
        """Return log-probabilities ``[M, B]`` of ``action [M, B, 1]`` (as floats), for ``logits [M, B, A]``."""
        return logits.log_softmax(2).gather(2, action.long()).squeeze(2)

    def entropy(self, logits: Tensor, log_std: Tensor) -> Tensor:
        """Return the mean entropy in nats, ``logits [M, B, A] -> [M]``."""
        return categorical_entropy(logits).mean(1)


class Gaussian:
    """Distribution of vectors of A independent normal numbers. Means depend on the state, standard deviations do not.
    Actions are stored before clipping; the environment gets them clipped to its bounds. If ``scaled``, stored actions
    are relative to the middle of the bounds, in units of half their distance."""

    noise = staticmethod(Streams.normal)

    def __init__(self, actions: Continuous, std: float, scaled: bool = False):
        self.num_outputs = self.num_log_std = self.width = actions.size
        self.low, self.high = torch.tensor(actions.low), torch.tensor(actions.high)
        self.initial_std, self.scaled = std, scaled

    def initial_log_std(self) -> Tensor:
        """Return the initial ``log_std``, ``[A]``."""
        return torch.full((self.num_log_std,), self.initial_std).log()

    def sample(self, mean: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
        """Sample vectors ``[M, E, A]`` from ``mean [M, E, A]`` and standard normal ``noise [M, E, A]``."""
        return mean + exp(log_std).unsqueeze(1) * noise

    def best(self, mean: Tensor) -> Tensor:
        """Return the means ``[M, E, A]`` as actions."""
        return mean

    def clip(self, action: Tensor) -> Tensor:
        """Return ``action [M, E, A]`` in the environment's units, clipped to its bounds. NaN becomes 0."""
        if self.scaled:
            middle, half_range = (self.low + self.high) / 2, (self.high - self.low) / 2
            action = middle + half_range * action
        # Environments accept no NaN, but a diverged member continues to act.
        return action.nan_to_num(0.0).clamp(self.low, self.high)

    def log_prob(self, mean: Tensor, log_std: Tensor, action: Tensor) -> Tensor:
        """Return log-probabilities ``[M, B]`` of ``action [M, B, A]``, for ``mean [M, B, A]``."""
        z = (action - mean) / exp(log_std).unsqueeze(1)  # in standard deviations from the mean
        return -(gaussian_nll(z, torch.zeros_like(z)) + log_std.unsqueeze(1)).sum(2)

    def entropy(self, mean: Tensor, log_std: Tensor) -> Tensor:
        """Return the entropy in nats, ``[M]``, equal for all means. Each number of an action has ``(1 + log(2 pi)) / 2
        + log_std``."""
        return (0.5 + HALF_LOG_TWO_PI + log_std).sum(1)


Actions = Categorical | Gaussian


def noise_of(actions: Actions, streams: Streams, envs: int) -> NoiseBlocks:
    """Return the random numbers for actions in ``envs`` environments: ``{"action": [M, envs, A]}`` for each step."""
    return NoiseBlocks(streams, [(type(actions).noise, {"action": (envs, actions.num_outputs)})])
