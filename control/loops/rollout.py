"""Whole episodes in parallel: every member's E environments advance together until the last episode ends.

M is the number of members (independent agents, one per seed), E of environments of each, A the size of a continuous
action, ``*O`` the shape of an observation.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, overload

import torch
from torch import Tensor

from control.cli.colour import note
from envs.base import Environment
from models.contract import Policy
from models.trajectory import Trajectory

LONG = 10_000  # steps after which a note says that an episode has no time limit


@dataclass
class Episodes:
    """Returns and lengths of finished episodes, ``[M, E]`` each, without the steps of the episodes."""

    returns: Tensor
    lengths: Tensor

    @classmethod
    def joined(cls, parts: Sequence["Episodes"]) -> "Episodes":
        """Concatenate episodes of the same members, in order."""
        return cls(torch.cat([part.returns for part in parts], 1), torch.cat([part.lengths for part in parts], 1))


class FunctionPolicy(Policy):
    """Policy of one member. Its ``function`` computes actions ``[N]`` or ``[N, A]`` from observations ``[N, *O]``."""

    members = 1

    def __init__(self, function: Callable[[Tensor], Tensor]):
        self.function = function

    def act(self, obs: Tensor) -> Tensor:
        return self.function(obs[0])[None]


@functools.cache
def _note_length() -> None:
    """Print a note about a long episode without a time limit, once per process."""
    note(f"an episode has no time limit and has taken {LONG:,} steps; --time_limit N cuts it")


@overload
def rollout(policy: Policy, environment: Environment, seeds: Tensor, keep: Literal[True] = True) -> Trajectory: ...
@overload
def rollout(
    policy: Policy,
    environment: Environment,
    seeds: Tensor,
    keep: Literal[False],
    action_log: list[Tensor] | None = None,
) -> Episodes: ...
def rollout(
    policy: Policy, environment: Environment, seeds: Tensor, keep: bool = True, action_log: list[Tensor] | None = None
) -> Trajectory | Episodes:
    """Play one episode in each of the first E environments of every member. ``seeds [M, E]`` start the episodes.

    Return the trajectory if ``keep``, otherwise only returns and lengths. Without ``keep``, the N actions of the first
    member, ``[N]`` or ``[N, A]``, are appended to ``action_log`` as one tensor. After the end of its episode, an
    environment makes no more steps and its rewards are 0. The policy still receives all E rows, so that a row's result
    does not depend on the number of running episodes.
    """
    count = seeds.shape[1]

    def padded(values: Tensor) -> Tensor:
        """Append zeros to ``[M, E, ...]`` for the environments that are not used."""
        padding = values.new_zeros(values.shape[0], environment.envs - count, *values.shape[2:])
        return torch.cat([values, padding], 1) if padding.numel() else values

    running = torch.ones(seeds.shape, dtype=torch.bool)
    obs = environment.reset(padded(seeds), padded(running))[:, :count]
    trace: list[tuple[Tensor, ...]] = []  # for each step, the first six fields of a `Trajectory`
    logged: list[tuple[Tensor, Tensor]] = []  # actions, and the environments that were running
    running = running.to(obs.device)
    returns = torch.zeros(seeds.shape, device=obs.device)
    lengths = torch.zeros(seeds.shape, dtype=torch.int64, device=obs.device)
    has_limit = environment.spaces.max_episode_steps is not None
    steps = 0
    while running.any():
        steps += 1
        if steps > LONG and not has_limit:
            _note_length()  # prints only once
        action = policy.act(obs)
        step = environment.step(padded(action), padded(running))
        reward, terminated, truncated = (part[:, :count] for part in (step.reward, step.terminated, step.truncated))
        if keep:
            trace.append((obs, action, reward, terminated, truncated, running))
        elif action_log is not None:
            logged.append((action, running))
        returns += reward
        lengths += running
        policy.advance(reward)
        obs = step.obs[:, :count]
        running = running & ~(terminated | truncated)
    if not keep:
        if action_log is not None:
            first_actions = torch.stack([action[0] for action, _ in logged])
            was_running = torch.stack([mask[0] for _, mask in logged])
            action_log.append(first_actions[was_running].cpu())
        return Episodes(returns.cpu(), lengths.cpu())
    columns = [torch.stack(column) for column in zip(*trace, strict=True)]  # [T, M, E, ...] each
    return Trajectory(*columns, final_obs=obs, returns=returns)  # type: ignore[misc]
