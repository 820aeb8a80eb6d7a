"""Whole episodes, side by side: every member's E environments advance together until the last one ends."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from envs.base import Environment
from models.spaces import Discrete, Spaces
from models.streams import Streams
from models.trajectory import Trajectory


class Actor(Protocol):
    """Whoever chooses actions for E episodes of M members."""

    def act(self, obs: Tensor) -> Tensor: ...

    def advance(self, reward: Tensor) -> None: ...


class RandomActor:
    """Uniform actions, each member from its own stream."""

    def __init__(self, spaces: Spaces, envs: int, streams: Streams):
        self.actions, self.envs, self.streams = spaces.actions, envs, streams

    def act(self, obs: Tensor) -> Tensor:
        if isinstance(self.actions, Discrete):
            return self.streams.integers(self.actions.n, self.envs)
        low, high = torch.tensor(self.actions.low), torch.tensor(self.actions.high)
        return low + (high - low) * self.streams.uniform(self.envs, self.actions.size)

    def advance(self, reward: Tensor) -> None:
        pass


@dataclass
class Episodes:
    """Returns and lengths of finished episodes, ``[M, E]``, when only they matter."""

    returns: Tensor
    lengths: Tensor


def rollout(actor: Actor, environment: Environment, seeds: Tensor, keep: bool = True) -> Trajectory | Episodes:
    """One episode in each of the first E environments of every member, E = ``seeds.shape[1]``.

    ``seeds [M, E]`` start the episodes. ``keep`` returns the trajectory, else only returns and lengths. An
    environment whose episode is over is not stepped again; the policy still sees all E rows, so that a row's result
    never depends on how many are left.
    """
    count = seeds.shape[1]
    active = torch.zeros(environment.members, environment.envs, dtype=torch.bool)
    active[:, :count] = True
    everyone = torch.zeros(environment.members, environment.envs, dtype=torch.int64)
    everyone[:, :count] = seeds
    actions = torch.zeros(
        environment.members, environment.envs, *environment.spaces.action_shape, dtype=environment.spaces.action_dtype
    )
    obs = environment.reset(everyone, active)[:, :count]
    trace: list[tuple[Tensor, ...]] = []
    running = torch.ones(seeds.shape, dtype=torch.bool)
    returns, lengths = torch.zeros(seeds.shape), torch.zeros(seeds.shape, dtype=torch.int64)
    while running.any():
        action = actor.act(obs)
        actions[:, :count] = action
        step = environment.step(actions, active)
        reward, terminated = step.reward[:, :count], step.terminated[:, :count]
        truncated = step.truncated[:, :count]
        if keep:
            trace.append((obs, action, reward, terminated, truncated, running))
        returns += reward
        lengths += running
        actor.advance(reward)
        obs = step.obs[:, :count]
        running = running & ~(terminated | truncated)
        active[:, :count] = running
    if not keep:
        return Episodes(returns, lengths)
    columns = [torch.stack(column) for column in zip(*trace, strict=True)]
    return Trajectory(*columns, final_obs=obs, returns=returns)  # type: ignore[misc]  # six columns, in order
