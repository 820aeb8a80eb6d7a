"""Whole episodes, side by side: every member's E environments advance together until the last one ends."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from envs.base import Environment, Step
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


class GreedyActor:
    """Greedy play of an agent that learns between steps: of its ``player()``, which has ``greedy(obs [M, E, ...]) ->
    actions [M, E]``, or of such a player itself. One evaluation.

    It has `begin`, so that it also stands where an agent of whole episodes is expected.
    """

    def __init__(self, agent: Any):
        self.player, self.members = agent.player(), agent.members

    def begin(self, envs: int, streams: Streams, **how: Any) -> "GreedyActor":
        return self

    def act(self, obs: Tensor) -> Tensor:
        return self.player.greedy(obs)

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
    few = _FirstFew(environment, seeds.shape[1]) if seeds.shape[1] < environment.envs else environment
    obs = few.reset(seeds)
    trace: list[tuple[Tensor, ...]] = []
    running = torch.ones(seeds.shape, dtype=torch.bool, device=obs.device)
    returns = torch.zeros(seeds.shape, device=obs.device)
    lengths = torch.zeros(seeds.shape, dtype=torch.int64, device=obs.device)
    while running.any():
        action = actor.act(obs)
        step = few.step(action, running)
        if keep:
            trace.append((obs, action, step.reward, step.terminated, step.truncated, running))
        returns += step.reward
        lengths += running
        actor.advance(step.reward)
        obs = step.obs
        running = running & ~(step.terminated | step.truncated)
    if not keep:
        return Episodes(returns.cpu(), lengths.cpu())
    columns = [torch.stack(column) for column in zip(*trace, strict=True)]
    return Trajectory(*columns, final_obs=obs, returns=returns)  # type: ignore[misc]  # six columns, in order


class _FirstFew:
    """The first environments of every member as if there were no others."""

    def __init__(self, environment: Environment, count: int):
        self.environment, self.count = environment, count

    def reset(self, seeds: Tensor) -> Tensor:
        everyone = torch.ones(seeds.shape, dtype=torch.bool)
        return self.environment.reset(self._widen(seeds), self._widen(everyone))[:, : self.count]

    def step(self, actions: Tensor, active: Tensor) -> Step:
        step = self.environment.step(self._widen(actions), self._widen(active))
        n = self.count
        fields = {name: value[:, :n] for name, value in vars(step).items() if value is not None}
        return Step(**fields)

    def _widen(self, values: Tensor) -> Tensor:
        wide = values.new_zeros(values.shape[0], self.environment.envs, *values.shape[2:])
        wide[:, : self.count] = values
        return wide
