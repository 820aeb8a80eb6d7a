"""What the action values learn from: remembered transitions, or rollouts that a model imagines.

Both functions give the loss ``[M]`` and its gradient ``[M, D]``, change nothing, have fixed shapes and ask the device
for nothing: each can be compiled, or captured as a graph, as it is.
"""

from typing import Any

import torch
from torch import Tensor

from models.agents.model_generalisation.config import Config
from models.agents.model_generalisation.exploration import explore
from models.agents.model_generalisation.imagination import Imagination, Numbers, part
from models.agents.model_generalisation.replay import Batch
from models.agents.model_generalisation.values import ActionValues


def replayed(config: Config, values: ActionValues, batch: Batch) -> tuple[Tensor, Tensor]:
    """Goals ``r + gamma * Q_target(s', best)``, nothing behind an end (Young et al. 2023, "experience replay")."""
    goal = torch.addcmul(batch.reward, batch.going_on, values.later(batch.next_obs), value=config.gamma)
    return values.towards(goal, batch.obs, values.online.trace(batch.obs), batch.action)


def imagined(
    config: Config, values: ActionValues, model: Imagination, start: Any, drawn: Numbers
) -> tuple[Tensor, Tensor]:
    """Rollouts of T steps by the exploring policy from each of ``start``; every step is learned from, weighted by the
    probability that its episode got there (Young et al. 2023, algorithm 1)."""
    state, seen = model.begin(start, part(drawn, "begin"))
    choices = drawn["imagined act"].unbind(1)
    noise = {name: numbers.unbind(1) for name, numbers in part(drawn, "step").items()}
    every_seen, traces, actions, kept = [seen], [], [], []
    for step in range(config.rollout_length):
        trace = values.online.trace(seen)
        action = explore(config, trace[-1], choices[step])
        state, seen, outcome = model.step(state, action, {name: numbers[step] for name, numbers in noise.items()})
        every_seen.append(seen)
        traces.append(trace)
        actions.append(action)
        kept.append(outcome)
    # The policy's forward passes are those of the loss too: the values change only after the rollout.
    before, traces_together = torch.cat(every_seen[:-1], 1), [torch.cat(each, 1) for each in zip(*traces, strict=True)]
    chosen = torch.cat(actions, 1)
    reward, going_on = model.outcomes(before, chosen, kept)
    goal = torch.addcmul(reward, going_on, values.later(torch.cat(every_seen[1:], 1)), value=config.gamma)
    return values.towards(goal, before, traces_together, chosen, reached(config, going_on))


def reached(config: Config, going_on: Tensor) -> Tensor | None:
    """The probability that an episode got to each imagined step, ``[M, T B]`` from what each step says of going on;
    None where all are sure. The world itself ends also what ``episodic_env`` says has no end."""
    if not config.episodic_env and config.model != "perfect":
        return None
    steps = going_on.unflatten(1, (config.rollout_length, -1))
    return torch.cat((torch.ones_like(steps[:, :1]), steps[:, :-1].cumprod(1)), 1).flatten(1)
