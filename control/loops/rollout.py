"""Whole episodes in parallel: every member's E environments advance together until the last episode ends.

M is the number of members (independent agents, one per seed), E of environments of each, A the size of a continuous
action, ``*O`` the shape of an observation.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from control.cli.colour import note
from envs.base import Environment
from models.contract import Policy
from models.trajectory import Trajectory

LONG = 10_000  # steps after which an episode without a time limit is truncated
_note_once = functools.cache(note)


@dataclass
class Episodes:
    """Returns and lengths of finished episodes, ``[M, E]`` each, without their steps. If recorded, ``actions`` has the
    first member's actions in all N steps of its episodes, ``[N]`` or ``[N, A]``."""

    returns: Tensor
    lengths: Tensor
    actions: Tensor | None = None

    @classmethod
    def concatenate(cls, rounds: Sequence["Episodes"]) -> "Episodes":
        """Concatenate ``rounds``, episodes of the same members, in order."""
        actions = [episodes.actions for episodes in rounds if episodes.actions is not None]
        return cls(
            torch.cat([episodes.returns for episodes in rounds], 1),
            torch.cat([episodes.lengths for episodes in rounds], 1),
            torch.cat(actions) if actions else None,
        )


class FunctionPolicy(Policy):
    """Policy of one member. Its ``function`` computes actions ``[E]`` or ``[E, A]`` from observations ``[E, *O]``."""

    members = 1

    def __init__(self, function: Callable[[Tensor], Tensor]):
        self.function = function

    def act(self, obs: Tensor) -> Tensor:
        return self.function(obs[0]).unsqueeze(0)


class Step(NamedTuple):
    """One step of all environments, ``[M, E, ...]`` each. ``valid`` is False where the episode had ended before."""

    obs: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    next_obs: Tensor


def rollout(policy: Policy, environment: Environment, seeds: Tensor) -> Trajectory:
    """Play an episode of ``policy`` for each of ``seeds [M, E]``, in the first E environments of every member. Return
    all T steps of the longest episode, in tensors ``[T, M, E, ...]``."""
    steps = list(_play(policy, environment, seeds))
    fields: dict[str, Tensor] = {}
    for name in ("obs", "action", "reward", "terminated", "truncated", "valid"):
        fields[name] = torch.stack([getattr(step, name) for step in steps])  # [T, M, E, ...]
    # Summed step by step, because the rounding of a sum over the padded axis would depend on its length.
    returns = sum((step.reward for step in steps[1:]), start=steps[0].reward)
    return Trajectory(**fields, final_obs=steps[-1].next_obs, returns=returns)


def play_episodes(policy: Policy, environment: Environment, seeds: Tensor, record_actions: bool = False) -> Episodes:
    """Play an episode of ``policy`` for each of ``seeds [M, E]``, as `rollout` does, but keep only returns, lengths
    and, with ``record_actions``, the first member's actions."""
    # The first additions turn these scalars into tensors [M, E] on the device of the episodes. So the sums stay on a
    # GPU, and no step copies them to the host.
    returns, lengths = torch.tensor(0.0), torch.tensor(0)
    actions = []
    for step in _play(policy, environment, seeds):
        returns = returns + step.reward
        lengths = lengths + step.valid
        if record_actions:
            actions.append(step.action[0][step.valid[0]])  # actions of the first member's running episodes
    return Episodes(returns.cpu(), lengths.cpu(), torch.cat(actions).cpu() if record_actions else None)


def _play(policy: Policy, environment: Environment, seeds: Tensor) -> Iterator[Step]:
    """Play one episode for each of ``seeds [M, E]``, in the first E environments of every member. Yield each step of
    all these environments, until the last episode has ended.

    After the end of its episode, an environment makes no more steps and its rewards are 0. The policy still receives
    all E observations, so that rounding does not depend on the number of running episodes. Without a time limit, an
    episode is truncated after `LONG` steps, because a greedy policy may never reach an end.
    """
    count = seeds.shape[1]

    def pad(tensor: Tensor) -> Tensor:
        """Append zeros to ``[M, E, ...]`` for the environments that are not used."""
        padding = tensor.new_zeros(tensor.shape[0], environment.envs - count, *tensor.shape[2:])
        return torch.cat([tensor, padding], 1) if padding.numel() else tensor

    running = torch.ones(seeds.shape, dtype=torch.bool)
    obs = environment.reset(pad(seeds), pad(running))[:, :count]
    running = running.to(obs.device)
    num_steps = 0
    while running.any():
        num_steps += 1
        action = policy.act(obs)
        result = environment.step(pad(action), pad(running))
        reward, next_obs = result.reward[:, :count], result.obs[:, :count]
        terminated, truncated = result.terminated[:, :count], result.truncated[:, :count]
        if num_steps == LONG and environment.spaces.max_episode_steps is None:
            _note_once(f"an episode without a time limit ends after {LONG:,} steps; --time_limit N sets another limit")
            truncated = truncated | (running & ~terminated)
        policy.advance(reward)
        yield Step(obs, action, reward, terminated, truncated, running, next_obs)
        obs = next_obs
        running = running & ~(terminated | truncated)
