"""The family's networks and optimiser, and action values: how they choose actions and learn from transitions."""

import os
import shutil
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from models.agents.model_generalisation.config import Config
from models.agents.model_generalisation.experience import Batch
from models.layers import BLOCK, Truncated
from models.mlp import MlpNetwork
from models.optim import AdamW
from models.settings import SettingError
from models.streams import Streams


def network(config: Config, inputs: int, outputs: int, streams: Streams, device: torch.device) -> MlpNetwork:
    """Build a network ``[M, B, inputs] -> [M, B, outputs]`` with the family's hidden layers.

    Each member's parameters are padded to whole vector blocks. Adam's kernel rounds the last elements of an array
    differently, and the position of a member's elements in the array depends on the number of members.
    """
    hidden = list(config.hidden_sizes)
    return MlpNetwork((inputs, *hidden, outputs), config.activation, streams, Truncated, BLOCK).to(device)


def adam(config: Config, params: Sequence[Tensor], lr: float) -> AdamW:
    """Build the family's optimiser of ``params``."""
    return AdamW(params, lr, (config.adam_beta1, config.adam_beta2), config.adam_eps, config.weight_decay)


def one_hot(action: Tensor, actions: int) -> Tensor:
    """Convert ``[M, B]`` int64 to one-hot ``[M, B, A]`` bool."""
    return action.unsqueeze(2) == torch.arange(actions, device=action.device)


class Update(NamedTuple):
    """Loss and gradient of an update of the action values, and the numbers for its explained variance."""

    loss: Tensor  # [M]
    gradient: Tensor  # [M, D]
    chosen_q: Tensor  # [M, B], values of the recorded actions before the update
    td_target: Tensor  # [M, B], TD targets
    weight: Tensor | None  # [M, B]; None if all weights are equal


class ActionValues(nn.Module):
    """Action values of M members, ``[M, B, size] -> [M, B, A]``, with their target network and optimiser."""

    def __init__(self, config: Config, size: int, actions: int, seeds: Sequence[int], device: torch.device):
        super().__init__()
        self.config, self.actions = config, actions
        self.q_network = network(config, size, actions, Streams.from_name(seeds, "weights of values"), device)
        self.target_parameters = nn.Parameter(self.q_network.flat.detach().clone(), requires_grad=False)
        self.optimizer = adam(config, [self.q_network.flat], config.lr)

    def forward(self, features: Tensor) -> Tensor:
        return self.q_network(features)

    def bootstrap_value(self, features: Tensor) -> Tensor:
        """Return values of next states, ``[M, B, size] -> [M, B]``: the target network's maximum or, with
        ``double_DQN``, its value of the online network's best action. Without ``use_target`` the online network takes
        its place."""
        values = self.q_network.activations(features, self.target_parameters if self.config.use_target else None)[-1]
        if not self.config.double_DQN:
            return values.amax(2)
        return values.gather(2, self(features).argmax(2, keepdim=True)).squeeze(2)

    def td_update(
        self, td_target: Tensor, features: Tensor, trace: list[Tensor], action: Tensor, weight: Tensor | None = None
    ) -> Update:
        """Compute the loss ``mean(weight (Q(features)[action] - goal)^2)`` and its gradient, for ``td_target``,
        ``action`` and ``weight`` ``[M, B]``. ``activations`` is the result of ``q_network.activations`` for
        ``features``. The mean divides by B even if there are weights."""
        action_mask = one_hot(action, self.actions).float()
        chosen_q = (trace[-1] * action_mask).sum(2)
        error = chosen_q - td_target
        weighted = error if weight is None else error * weight
        of_values = action_mask * (weighted * (2 / action.shape[1])).unsqueeze(2)
        gradient = self.q_network.gradient(features, trace, of_values)[0]
        return Update((weighted * error).mean(1), gradient, chosen_q, td_target, weight)


def exploration_noise(config: Config, actions: int) -> tuple[Callable[..., Tensor], int]:
    """Return the sampler of the random numbers that choose one action, and their count."""
    return (Streams.gumbel, actions) if config.exploration_strat == "softmax" else (Streams.uniform, 2)


def explore(config: Config, values: Tensor, random_numbers: Tensor) -> Tensor:
    """Sample actions ``[M, B]`` int64 for ``values [M, B, A]``. `exploration_noise` describes the random ``numbers
    [M, B, count]``.

    softmax: ``argmax(value + temperature * Gumbel)``, a sample from softmax(value / temperature) (Maddison et al.
    2014). epsilon_greedy: the best action with probability 1 - epsilon, otherwise a uniformly random one.
    """
    if config.exploration_strat == "softmax":
        return torch.add(values, random_numbers, alpha=config.softmax_temp).argmax(2)
    any_action = (random_numbers[..., 1] * values.shape[2]).to(torch.int64).clamp_(max=values.shape[2] - 1)
    return torch.where(random_numbers[..., 0] < config.epsilon, any_action, values.argmax(2))


def replayed(values: ActionValues, batch: Batch) -> Update:
    """Compute the update towards TD targets ``r + gamma * Q_target(s', best)``, r alone after termination (Young et al.
    2023, "experience replay"). Like `imagination.imagined` it changes nothing and has fixed shapes."""
    next_q = values.bootstrap_value(batch.next_obs)
    td_target = torch.addcmul(batch.reward, batch.continues, next_q, value=values.config.discount)
    return values.td_update(td_target, batch.obs, values.q_network.activations(batch.obs), batch.action)


def compiled(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Compile ``function`` for fixed shapes at its first call, which takes half a minute. On a GPU its operations are
    captured as a graph. Results are rounded differently from ``function`` itself.

    Raises SettingError on a CPU without a C++ compiler.
    """
    if device.type == "cpu" and not (os.environ.get("CXX") or any(map(shutil.which, ("g++", "clang++", "c++")))):
        raise SettingError(
            "compile is True, but no C++ compiler is on the PATH; allowed here: false (Debian and Ubuntu: "
            "apt-get install g++)",
            "compile",
        )
    return torch.compile(
        function, fullgraph=True, dynamic=False, mode="default" if device.type == "cpu" else "reduce-overhead"
    )
