"""Whole episodes, side by side: every member's E environments advance together until the last one ends."""

from dataclasses import dataclass
from typing import Literal, overload

import torch
from torch import Tensor

from envs.base import Environment, Step
from models.contract import Policy
from models.trajectory import Trajectory


@dataclass
class Episodes:
    """Returns and lengths of finished episodes, ``[M, E]``, when only they matter."""

    returns: Tensor
    lengths: Tensor


@overload
def rollout(policy: Policy, environment: Environment, seeds: Tensor, keep: Literal[True] = True) -> Trajectory: ...
@overload
def rollout(policy: Policy, environment: Environment, seeds: Tensor, keep: Literal[False]) -> Episodes: ...
def rollout(policy: Policy, environment: Environment, seeds: Tensor, keep: bool = True) -> Trajectory | Episodes:
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
        action = policy.act(obs)
        step = few.step(action, running)
        if keep:
            trace.append((obs, action, step.reward, step.terminated, step.truncated, running))
        returns += step.reward
        lengths += running
        policy.advance(step.reward)
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
