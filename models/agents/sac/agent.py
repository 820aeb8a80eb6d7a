"""Soft actor-critic for M members (independent agents, one per seed) in lockstep. `models.off_policy` explains the
other letters in shapes."""

from collections.abc import Sequence
from math import log

import torch
from torch import Tensor

from models.agents.sac.config import Config
from models.layers import exp, softplus
from models.losses import gaussian_nll, temperature_loss
from models.off_policy import TwinCriticAgent
from models.optim import polyak_update
from models.spaces import Spaces
from models.streams import Streams

LOG_STD_BOUNDS = (-20.0, 2.0)  # bounds of the authors' code


class Agent(TwinCriticAgent):
    """SAC: the TD target is ``r + discount * (min Q_target(s', a') - alpha log pi(a'|s'))``, and the actor samples a'.
    The actor minimises ``alpha log pi(a|s) - min Q(s, a)``. Gradient steps on the temperature alpha move the entropy
    towards ``target_entropy``. Actions are tanh of normal numbers. Source: Haarnoja et al. 2018, arXiv 1812.05905,
    algorithm 1. The logarithm of alpha is an additional weight of the actor. As in common implementations, the gradient
    is with respect to this logarithm."""

    random_number_names = (*TwinCriticAgent.random_number_names, "now")
    normal_names = ("next", "now")  # "now" samples the actor's actions
    metric_names = (*TwinCriticAgent.metric_names, "entropy", "entropy_temperature")
    outputs_per_action = 2  # a mean and a ``log_std``
    log_setting = "entropy_temperature"

    def __init__(self, config: Config, spaces: Spaces, seeds: Sequence[int]):
        super().__init__(config, spaces, seeds)
        self.target_entropy = -float(self.action_size) if config.target_entropy is None else config.target_entropy

    def alpha(self) -> Tensor:
        """Return the temperature alpha, the reward per nat of entropy, ``[M, 1]``."""
        return exp(self.flat_parameters[:, -1:])

    def _explore(self, outputs: Tensor, random_numbers: dict[str, Tensor]) -> Tensor:
        action, _ = sample(outputs, random_numbers["explore"])
        return action

    def evaluation_vectors(self, outputs: Tensor, streams: Streams | None) -> Tensor:
        if streams is None:
            return outputs[:, :, : self.action_size].tanh()
        noise = streams.normal(self.action_size, outputs.shape[1])  # [M, A, E]
        return self._explore(outputs, {"explore": noise.transpose(1, 2)})

    def next_q(self, next_obs: Tensor, random_numbers: dict[str, Tensor]) -> Tensor:
        """Return ``min Q_target(s', a') - alpha log pi(a'|s')`` for sampled a', ``next_obs [M, B, O] -> [M, B]``."""
        outputs = self.actor(self.flat_parameters, next_obs)
        next_action, log_prob = sample(outputs, random_numbers["next"].transpose(1, 2))
        return self.critics.target_values(next_obs, next_action) - self.alpha() * log_prob

    def finish_update(self, obs: Tensor, random_numbers: dict[str, Tensor], mask: Tensor | None) -> None:
        self.optimizer.zero_grad()
        loss, log_prob = self.actor_loss(obs, random_numbers)
        if self.config.learn_temperature:
            loss = loss + temperature_loss(self.flat_parameters[:, -1], log_prob, self.target_entropy)
        loss.sum().backward()
        self.optimizer.step(mask)
        critics = self.critics
        polyak_update(critics.target_parameters, critics.flat_parameters, self.config.tau, mask)

    def actor_loss(self, obs: Tensor, random_numbers: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return ``mean(alpha log pi(a|s) - min Q(s, a))`` over ``obs [M, B, O]`` for sampled actions a, ``[M]``, and
        their log-probabilities ``[M, B]``. No gradient flows into alpha."""
        outputs = self.actor(self.flat_parameters, obs)
        action, log_prob = sample(outputs, random_numbers["now"].transpose(1, 2))
        q = self.critics(obs, action).amin(1)  # the smaller value
        return (self.alpha().detach() * log_prob - q).mean(1), log_prob

    def actor_metrics(self, obs: Tensor, random_numbers: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the actor's loss, the entropy of its actions in nats, and the temperature: ``{name: [M]}``."""
        loss, log_prob = self.actor_loss(obs, random_numbers)
        return {"policy_loss": loss, "entropy": -log_prob.mean(1), "entropy_temperature": self.alpha()[:, 0]}


def sample(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Sample actions ``tanh(mean + std * noise)`` by standard normal ``noise [M, B, A]``. ``outputs [M, B, 2 A]`` of a
    network are A means, then A logarithms of standard deviations. Return the actions ``[M, B, A]`` and their
    log-probabilities ``[M, B]`` (Haarnoja et al. 2018, arXiv 1812.05905, appendix C)."""
    mean, log_std = outputs.chunk(2, 2)
    log_std = log_std.clamp(*LOG_STD_BOUNDS)
    x = mean + exp(log_std) * noise
    # Change of variables: the density of tanh(x) is the density of x, divided by the derivative of tanh.
    log_density = -gaussian_nll(noise, torch.zeros_like(noise)) - log_std
    log_tanh_derivative = 2 * (log(2) - x - softplus(-2 * x))  # log(1 - tanh(x)^2), but no x overflows
    return x.tanh(), (log_density - log_tanh_derivative).sum(2)
