"""Probe environments: each has one thing to learn, so an agent that fails one shows which part of it is broken.

| probe | what it is | an agent that fails it |
|---|---|---|
| probe-1 | one step, reward 1 | cannot predict a constant: value or return regression, its step size, its targets |
| probe-2 | one step, reward = observation (-1 or 1) | does not connect what it predicts with what it sees |
| probe-3 | two steps, reward 0 then 1 | does not carry reward back in time: discount, bootstrap, return-to-go |
| probe-4 | one step, 1 for the right action | does not improve its policy: loss sign, advantages, sampling |
| probe-5 | one step, 1 for the action the observation names | policy does not depend on the observation |
| probe-truncated | 8 steps, 1 for each right action, ended by the time limit only | takes truncation for an end |

Actions are Discrete(2), the right one 1; in probe-5 it is 1 where the observation is 1 and 0 where it is -1.
In probes 1-3 actions do nothing. The ``-continuous`` forms take one number a in [-1, 1] and pay
``1 - (a - target)**2`` with target 0.5, in probe-5 half the observation. After Andy Jones, "Debugging
Reinforcement Learning Systems" (2021), whose probes 1-5 these are.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from envs.base import Replayed, Step
from envs.names import GAMES
from envs.seeded import sign
from models.spaces import Continuous, Discrete, Spaces

TARGET = 0.5  # the best continuous action; in probe-5 times the observation


@dataclass(frozen=True)
class Probe:
    """``reward(obs, right, age)`` and ``value(obs, discount)`` are elementwise over ``[M, E]``: ``right`` is the
    action's score (at most 1) and ``age`` the step about to be taken, from 0. ``best_return`` and
    ``random_return`` are mean returns of the best and of the uniformly random policy; `value` is the true
    expected discounted return from an observation under the best policy, which never ends where the probe is
    only truncated. ``shows`` makes the observation: ``sign`` (-1 or 1, from the seed), ``age``, or ``zero``.
    """

    length: int
    shows: str
    reward: Callable[[Tensor, Tensor, Tensor], Tensor]
    value: Callable[[Tensor, float], Tensor]
    best_return: float
    random_return: float
    truncates: bool = False
    continuous: bool = False


# Mean of 1 - (a - 0.5)^2 for a uniform in [-1, 1]: 1 - (1/3 + 1/4).
_UNIFORM = 5 / 12


def _one(obs: Tensor, discount: float) -> Tensor:
    return torch.ones_like(obs)


def _one_at_last_step(obs: Tensor, discount: float) -> Tensor:
    return discount ** (1 - obs)


def _right(obs: Tensor, right: Tensor, age: Tensor) -> Tensor:
    return right


def _scored(length: int, shows: str, continuous: bool) -> Probe:
    """A probe that pays the score of the action at every step; truncated when longer than one step."""
    endless = length > 1
    random_return = length * (_UNIFORM if continuous else 0.5)

    def value(obs: Tensor, discount: float) -> Tensor:
        return torch.ones_like(obs) / (1 - discount if endless else 1.0)

    return Probe(length, shows, _right, value, float(length), random_return, endless, continuous)


PROBES: dict[str, Probe] = {
    "probe-1": Probe(1, "zero", lambda obs, right, age: torch.ones_like(obs), _one, 1.0, 1.0),
    "probe-2": Probe(1, "sign", lambda obs, right, age: obs, lambda obs, discount: obs.clone(), 0.0, 0.0),
    "probe-3": Probe(2, "age", lambda obs, right, age: age.float(), _one_at_last_step, 1.0, 1.0),
    "probe-4": _scored(1, "zero", False),
    "probe-5": _scored(1, "sign", False),
    "probe-4-continuous": _scored(1, "zero", True),
    "probe-5-continuous": _scored(1, "sign", True),
    "probe-truncated": _scored(8, "zero", False),
    "probe-truncated-continuous": _scored(8, "zero", True),
}


class ProbeEnvironment(Replayed):
    """``[M, E]`` copies of one probe as one tensor program; see `envs.base.Environment` for the contract."""

    def __init__(self, name: str, members: int, envs: int) -> None:
        self.name, self.members, self.envs = name, members, envs
        self.probe = PROBES[name]
        actions = Continuous((-1.0,), (1.0,)) if self.probe.continuous else Discrete(2)
        self.spaces = Spaces((1,), actions, torch.float32, self.probe.length, GAMES[name].max_return)
        self._age = torch.zeros(members, envs, dtype=torch.int64)
        self._sign = torch.ones(members, envs)

    def reset(self, seeds: Tensor, where: Tensor | None = None) -> Tensor:
        self._note_reset(seeds, where)
        mask = torch.ones_like(self._age, dtype=torch.bool) if where is None else where
        self._age = torch.where(mask, 0, self._age)
        self._sign = torch.where(mask, sign(seeds), self._sign)
        return self._observation()[..., None].clone()

    def step(self, actions: Tensor, active: Tensor | None = None) -> Step:
        self._note_step(actions, active)
        mask = torch.ones_like(self._age, dtype=torch.bool) if active is None else active
        obs = self._observation()
        reward = torch.where(mask, self.probe.reward(obs, self._score(actions), self._age), 0.0)
        self._age = self._age + mask
        ended = mask & (self._age >= self.probe.length)
        never = torch.zeros_like(ended)
        terminated, truncated = (never, ended) if self.probe.truncates else (ended, never)
        return Step(self._observation()[..., None].clone(), reward, terminated, truncated)

    def close(self) -> None:
        pass

    def _observation(self) -> Tensor:
        shown = {"zero": torch.zeros_like(self._sign), "sign": self._sign, "age": self._age.float()}
        return shown[self.probe.shows]

    def _score(self, actions: Tensor) -> Tensor:
        side = self._sign if self.probe.shows == "sign" else torch.ones_like(self._sign)
        if self.probe.continuous:
            return 1 - (actions[..., 0] - TARGET * side).square()
        return (actions == (side > 0)).float()
