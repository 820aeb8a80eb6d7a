"""Action values: how they choose actions, and how they learn from transitions or from imagined rollouts.

`replayed` and `imagined` give the loss ``[M]`` and its gradient ``[M, D]``, change nothing, have fixed shapes and ask
the device for nothing: each can be compiled, or captured as a graph, as it is.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from models.agents.model_generalisation.config import Config
from models.agents.model_generalisation.experience import Batch
from models.agents.model_generalisation.imagination import Imagination
from models.agents.model_generalisation.networks import adam, network, one_hot
from models.streams import Streams


class ActionValues(nn.Module):
    """Q of M members on what they see, ``[M, B, size] -> [M, B, A]``, with the target network and the optimiser."""

    def __init__(self, config: Config, size: int, actions: int, seeds: Sequence[int], device: torch.device):
        super().__init__()
        self.config, self.actions = config, actions
        self.online = network(config, size, actions, Streams.named(seeds, "weights of values"), device)
        self.target = nn.Parameter(self.online.flat.detach().clone(), requires_grad=False)
        self.optimizer = adam(config, [self.online.flat], config.Q_alpha)

    def forward(self, seen: Tensor) -> Tensor:
        return self.online(seen)

    def copy_to_target(self) -> None:
        """Set the target network to the online one."""
        self.target.copy_(self.online.flat)

    def bootstrap_value(self, seen: Tensor) -> Tensor:
        """The value of what comes after a step, ``[M, B, size] -> [M, B]``: the best by the target network, or, with
        ``double_DQN``, the target network's value of what the online network finds best."""
        values = self.online.trace(seen, self.target if self.config.use_target else None)[-1]
        if not self.config.double_DQN:
            return values.amax(2)
        return values.gather(2, self(seen).argmax(2, keepdim=True)).squeeze(2)

    def td_update(
        self, goal: Tensor, seen: Tensor, trace: list[Tensor], action: Tensor, weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The loss ``mean(weight (Q(seen)[action] - goal)^2)`` ``[M]`` and its gradient ``[M, D]``, for ``goal``,
        ``action`` and ``weight`` ``[M, B]``; ``trace`` is what ``online.trace`` gave for ``seen``. The mean divides by
        B whatever the weights are."""
        taken = one_hot(action, self.actions).float()
        error = (trace[-1] * taken).sum(2) - goal
        weighted = error if weight is None else error * weight
        of_values = taken * (weighted * (2 / action.shape[1])).unsqueeze(2)
        return (weighted * error).mean(1), self.online.gradient(seen, trace, of_values)[0]


def exploration_noise(config: Config, actions: int) -> tuple[Callable[..., Tensor], int]:
    """How the random numbers of one choice are drawn, and how many there are."""
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


def replayed(config: Config, values: ActionValues, batch: Batch) -> tuple[Tensor, Tensor]:
    """Goals ``r + gamma * Q_target(s', best)``, r alone after termination (Young et al. 2023, "experience replay")."""
    goal = torch.addcmul(batch.reward, batch.continues, values.bootstrap_value(batch.next_obs), value=config.gamma)
    return values.td_update(goal, batch.obs, values.online.trace(batch.obs), batch.action)


def imagined(
    config: Config, values: ActionValues, model: Imagination, start: Any, numbers: dict[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Rollouts of T steps by the exploring policy from each of ``start``; every step is learned from, weighted by the
    probability that its episode got there (Young et al. 2023, algorithm 1)."""
    state, seen = model.begin(start, numbers.get("begin"))
    choices, noise = numbers["imagined"].unbind(1), numbers["step"].unbind(1) if "step" in numbers else None
    every_seen, traces, actions, kept = [seen], [], [], []
    for step in range(config.rollout_length):
        trace = values.online.trace(seen)
        action = explore(config, trace[-1], choices[step])
        state, seen, outcome = model.step(state, action, None if noise is None else noise[step])
        every_seen.append(seen)
        traces.append(trace)
        actions.append(action)
        kept.append(outcome)
    # The policy's forward passes are those of the loss too: the values change only after the rollout.
    before, traces_together = torch.cat(every_seen[:-1], 1), [torch.cat(each, 1) for each in zip(*traces, strict=True)]
    chosen = torch.cat(actions, 1)
    reward, continues = model.outcomes(before, chosen, kept)
    following = values.bootstrap_value(torch.cat(every_seen[1:], 1))
    goal = torch.addcmul(reward, continues, following, value=config.gamma)
    return values.td_update(goal, before, traces_together, chosen, survival_weight(config, continues))


def survival_weight(config: Config, continues: Tensor) -> Tensor | None:
    """The probability that an episode got to each imagined step, ``[M, T B]``, from the probability that each step
    continues it; None where all are sure. The environment itself also ends episodes that ``episodic_env`` says have no
    end."""
    if not config.episodic_env and config.model != "perfect":
        return None
    steps = continues.unflatten(1, (config.rollout_length, -1))
    return torch.cat((torch.ones_like(steps[:, :1]), steps[:, :-1].cumprod(1)), 1).flatten(1)
