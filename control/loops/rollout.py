"""Whole episodes in parallel: every member's E environments advance together until the last episode ends.

M is the number of members (independent agents, one per seed), E of environments of each, A the size of a continuous
action, ``*O`` the shape of an observation.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from control.cli.colour import note
from envs.base import Environment
from models.contract import Policy
from models.trajectory import Trajectory

LONG = 10_000  # steps after which a note says that an episode has no time limit


@dataclass
class Episodes:
    """Returns and lengths of finished episodes, ``[M, E]`` each, without the steps of the episodes. If recorded,
    ``actions`` has the first member's actions in all N steps of its episodes, ``[N]`` or ``[N, A]``."""

    returns: Tensor
    lengths: Tensor
    actions: Tensor | None = None

    @classmethod
    def joined(cls, parts: Sequence["Episodes"]) -> "Episodes":
        """Concatenate episodes of the same members, in order."""
        actions = [part.actions for part in parts if part.actions is not None]
        return cls(
            torch.cat([part.returns for part in parts], 1),
            torch.cat([part.lengths for part in parts], 1),
            torch.cat(actions) if actions else None,
        )


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


def rollout(policy: Policy, environment: Environment, seeds: Tensor) -> Trajectory:
    """Play one episode in each of the first E environments of every member, and return all steps. ``seeds [M, E]``
    start the episodes."""
    trace = []
    for step, next_obs in _play(policy, environment, seeds):
        trace.append(step)
        final_obs = next_obs
    columns = [torch.stack(column) for column in zip(*trace, strict=True)]  # [T, M, E, ...] each
    rewards = [step[2] for step in trace]
    # Summed step by step, because the rounding of a sum over the padded axis would depend on its length.
    returns = sum(rewards[1:], start=rewards[0])
    return Trajectory(*columns, final_obs=final_obs, returns=returns)  # type: ignore[misc]


def play_episodes(policy: Policy, environment: Environment, seeds: Tensor, record_actions: bool = False) -> Episodes:
    """Play the same episodes as `rollout`, but keep only returns and lengths and, if ``record_actions``, the actions of
    the first member."""
    # Scalars become tensors [M, E] on the device of the episodes, so that a GPU copies nothing to the host in a step.
    returns, lengths = torch.tensor(0.0), torch.tensor(0)
    actions = []
    for (_, action, reward, _, _, running), _ in _play(policy, environment, seeds):
        returns = returns + reward
        lengths = lengths + running
        if record_actions:
            actions.append(action[0][running[0]])
    return Episodes(returns.cpu(), lengths.cpu(), torch.cat(actions).cpu() if record_actions else None)


def _play(
    policy: Policy, environment: Environment, seeds: Tensor
) -> Iterator[tuple[tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]]:
    """Play one episode in each of the first E environments of every member until the last one ends. For each step,
    yield the first six fields of a `Trajectory` and the next observation.

    After the end of its episode, an environment makes no more steps and its rewards are 0. The policy still receives
    all E rows, so that a row's result does not depend on the number of running episodes.
    """
    count = seeds.shape[1]

    def padded(values: Tensor) -> Tensor:
        """Append zeros to ``[M, E, ...]`` for the environments that are not used."""
        padding = values.new_zeros(values.shape[0], environment.envs - count, *values.shape[2:])
        return torch.cat([values, padding], 1) if padding.numel() else values

    running = torch.ones(seeds.shape, dtype=torch.bool)
    obs = environment.reset(padded(seeds), padded(running))[:, :count]
    running = running.to(obs.device)
    has_limit = environment.spaces.max_episode_steps is not None
    steps = 0
    while running.any():
        steps += 1
        if steps > LONG and not has_limit:
            _note_length()  # prints only once
        action = policy.act(obs)
        step = environment.step(padded(action), padded(running))
        reward, terminated, truncated = (part[:, :count] for part in (step.reward, step.terminated, step.truncated))
        policy.advance(reward)
        next_obs = step.obs[:, :count]
        yield (obs, action, reward, terminated, truncated, running), next_obs
        obs = next_obs
        running = running & ~(terminated | truncated)
