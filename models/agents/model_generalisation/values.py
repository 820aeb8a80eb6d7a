"""Networks of the family; action values: how they choose actions, and how they learn from transitions."""

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
    """``[M, B, inputs] -> [M, B, outputs]`` with the family's hidden layers.

    Rows of parameters are whole vector blocks: Adam's kernel rounds the last elements of an array otherwise than those
    before, and a member's last elements lie elsewhere in company.
    """
    hidden = list(config.hidden_sizes)
    return MlpNetwork((inputs, *hidden, outputs), config.activation, streams, Truncated, BLOCK).to(device)


def adam(config: Config, params: Sequence[Tensor], lr: float) -> AdamW:
    """The family's optimiser of ``params``."""
    return AdamW(params, lr, (config.adam_beta1, config.adam_beta2), config.adam_eps, config.weight_decay)


def one_hot(action: Tensor, actions: int) -> Tensor:
    """``[M, B]`` int64 to ``[M, B, A]`` bool."""
    return action.unsqueeze(2) == torch.arange(actions, device=action.device)


class Update(NamedTuple):
    """Loss and gradient of an update of the values, and the numbers by which it is measured."""

    loss: Tensor  # [M]
    gradient: Tensor  # [M, D]
    chosen_q: Tensor  # [M, B], values of the actions that were taken, before the update
    goal: Tensor  # [M, B]
    weight: Tensor | None  # [M, B]; None if all weights are equal


class ActionValues(nn.Module):
    """Action values of M members, ``[M, B, size] -> [M, B, A]``, with the target network and the optimiser."""

    def __init__(self, config: Config, size: int, actions: int, seeds: Sequence[int], device: torch.device):
        super().__init__()
        self.config, self.actions = config, actions
        self.online = network(config, size, actions, Streams.from_name(seeds, "weights of values"), device)
        self.target = nn.Parameter(self.online.flat.detach().clone(), requires_grad=False)
        self.optimizer = adam(config, [self.online.flat], config.lr)

    def forward(self, features: Tensor) -> Tensor:
        return self.online(features)

    def bootstrap_value(self, features: Tensor) -> Tensor:
        """Values of the states after a step, ``[M, B, size] -> [M, B]``: the target network's maximum or, with
        ``double_DQN``, its value of the online network's best action."""
        values = self.online.trace(features, self.target if self.config.use_target else None)[-1]
        if not self.config.double_DQN:
            return values.amax(2)
        return values.gather(2, self(features).argmax(2, keepdim=True)).squeeze(2)

    def td_update(
        self, goal: Tensor, features: Tensor, trace: list[Tensor], action: Tensor, weight: Tensor | None = None
    ) -> Update:
        """The loss ``mean(weight (Q(features)[action] - goal)^2)`` and its gradient, for ``goal``, ``action`` and
        ``weight`` ``[M, B]``. ``trace`` is the result of ``online.trace`` for ``features``. The mean divides by B even
        if there are weights."""
        action_mask = one_hot(action, self.actions).float()
        chosen_q = (trace[-1] * action_mask).sum(2)
        error = chosen_q - goal
        weighted = error if weight is None else error * weight
        of_values = action_mask * (weighted * (2 / action.shape[1])).unsqueeze(2)
        gradient = self.online.gradient(features, trace, of_values)[0]
        return Update((weighted * error).mean(1), gradient, chosen_q, goal, weight)


def exploration_noise(config: Config, actions: int) -> tuple[Callable[..., Tensor], int]:
    """The sampler of random numbers for one choice of an action, and their count."""
    return (Streams.gumbel, actions) if config.exploration_strat == "softmax" else (Streams.uniform, 2)


def explore(config: Config, values: Tensor, numbers: Tensor) -> Tensor:
    """Actions ``[M, B]`` int64 for ``values [M, B, A]`` by ``numbers [M, B, count]`` of `exploration_noise`.

    softmax: ``argmax(value + temperature * Gumbel)``, which is a draw from softmax(value / temperature) (Maddison et
    al. 2014). epsilon_greedy: the best with probability 1 - epsilon, and else any.
    """
    if config.exploration_strat == "softmax":
        return torch.add(values, numbers, alpha=config.softmax_temp).argmax(2)
    any_action = (numbers[..., 1] * values.shape[2]).to(torch.int64).clamp_(max=values.shape[2] - 1)
    return torch.where(numbers[..., 0] < config.epsilon, any_action, values.argmax(2))


def replayed(values: ActionValues, batch: Batch) -> Update:
    """The update towards goals ``r + gamma * Q_target(s', best)``, r alone after termination
    (Young et al. 2023, "experience replay"). As in `imagination.imagined` nothing changes and shapes are fixed."""
    next_q = values.bootstrap_value(batch.next_obs)
    goal = torch.addcmul(batch.reward, batch.continues, next_q, value=values.config.discount)
    return values.td_update(goal, batch.obs, values.online.trace(batch.obs), batch.action)


def compiled(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """``function`` as one program of fixed shapes, compiled when it is first called, which takes half a minute; on a
    GPU a captured graph of operations. It rounds otherwise than ``function`` itself.

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
