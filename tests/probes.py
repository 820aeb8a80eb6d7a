"""Probe environments: each has one thing to learn, so a failure shows which part of an agent is broken.

| probe | task | an agent that fails it |
|---|---|---|
| probe-1 | one step, reward 1 | cannot predict a constant: value or return regression, its step size, its targets |
| probe-2 | one step, reward = observation (-1 or 1) | predicts without regard to its observation |
| probe-3 | two steps, reward 0 then 1 | does not carry reward back in time: discount, bootstrap, return-to-go |
| probe-4 | one step, 1 for the right action | does not improve its policy: loss sign, advantages, sampling |
| probe-5 | one step, 1 for the action the observation names | policy does not depend on the observation |
| probe-truncated | 8 steps, 1 for each right action, ended by the time limit only | takes truncation for an end |

Importing this module registers them as games. Actions are Discrete(2), and 1 is right; in probe-5 it is 1 for the
observation 1, and 0 for the observation -1.
In probes 1-3 actions have no effect. The ``-continuous`` forms take one number a in [-1, 1] and pay
``1 - (a - target)**2``; the target is 0.5, or half the observation in probe-5. Probes 1-5 are from Andy Jones,
"Debugging Reinforcement Learning Systems" (2021).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from envs.names import GAMES, Game
from envs.tensor import Dynamics
from models.spaces import Continuous, Discrete, Spaces
from understudy.hashing import seed_hash

TARGET = 0.5  # the best continuous action; in probe-5 it is multiplied by the observation


@dataclass(frozen=True)
class Probe:
    """One probe environment.

    ``length`` is the number of steps. ``shows`` selects the observation: ``sign`` (-1 or 1, from the seed), ``age``
    (the number of the step, from 0) or ``zero``. ``reward(obs, score, age)`` and ``value(obs, discount)`` are
    elementwise over ``[M, E]``; ``score`` is the action's score, at most 1. ``value`` is the true expected discounted
    return from an observation under the best policy, without regard to truncation. ``best_return`` and
    ``random_return`` are mean returns of the best and of the uniformly random policy.
    """

    length: int
    shows: str
    reward: Callable[[Tensor, Tensor, Tensor], Tensor]
    value: Callable[[Tensor, float], Tensor]
    best_return: float
    random_return: float
    truncates: bool = False
    continuous: bool = False


def _constant_one(obs: Tensor, *_: Any) -> Tensor:
    return torch.ones_like(obs)


def _scored(length: int, shows: str, continuous: bool = False) -> Probe:
    """Return a probe that pays the score of the action at every step. It truncates if it is longer than one step, else
    it terminates."""
    truncates = length > 1
    # Mean of 1 - (a - 0.5)^2 for a uniform in [-1, 1]: 1 - (1/3 + 1/4).
    random_return = length * (5 / 12 if continuous else 0.5)

    def value(obs: Tensor, discount: float) -> Tensor:
        return torch.ones_like(obs) / (1 - discount if truncates else 1.0)

    return Probe(length, shows, lambda obs, score, age: score, value, length, random_return, truncates, continuous)


PROBES: dict[str, Probe] = {
    "probe-1": Probe(1, "zero", _constant_one, _constant_one, 1, 1),
    "probe-2": Probe(1, "sign", lambda obs, right, age: obs, lambda obs, discount: obs.clone(), 0, 0),
    "probe-3": Probe(2, "age", lambda obs, right, age: age, lambda obs, discount: discount ** (1 - obs), 1, 1),
    "probe-4": _scored(1, "zero"),
    "probe-5": _scored(1, "sign"),
    "probe-4-continuous": _scored(1, "zero", continuous=True),
    "probe-5-continuous": _scored(1, "sign", continuous=True),
    "probe-truncated": _scored(8, "zero"),
    "probe-truncated-continuous": _scored(8, "zero", continuous=True),
}


class ProbeDynamics(Dynamics):
    """One probe. State ``[..., 2]`` float32: the sign of the seed and the age."""

    def __init__(self, name: str, max_episode_steps: int | None = None) -> None:
        self.probe = PROBES[name]
        actions = Continuous((-1.0,), (1.0,)) if self.probe.continuous else Discrete(2)
        self.spaces = Spaces((1,), actions, torch.float32, self.probe.length, GAMES[name].max_return)

    def initial(self, seeds: Tensor) -> Tensor:
        """Return states with the sign of the seed's hash and age 0."""
        signs = torch.where(seed_hash(seeds.to(torch.int64)) < 0, 1.0, -1.0)
        return torch.stack((signs, torch.zeros(seeds.shape)), -1)

    def observe(self, state: Tensor) -> Tensor:
        obs_by_kind = {"zero": torch.zeros_like(state[..., :1]), "sign": state[..., :1], "age": state[..., 1:]}
        return obs_by_kind[self.probe.shows].clone()

    def step(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Compute the score of the actions, and from it the reward; end the episode after ``length`` steps."""
        seed_sign, age = state.unbind(-1)
        # The right action is the upper one, or has the sign in the observation.
        direction = seed_sign if self.probe.shows == "sign" else torch.ones_like(seed_sign)
        if self.probe.continuous:
            score = 1 - (actions[..., 0] - TARGET * direction).square()
        else:
            right_action = direction > 0  # 1 or 0
            score = (actions == right_action).float()
        reward = self.probe.reward(self.observe(state)[..., 0], score, age)
        terminated = (age + 1 >= self.probe.length) & (not self.probe.truncates)
        return torch.stack((seed_sign, age + 1), -1), reward, terminated, None


for _name, _probe in PROBES.items():
    GAMES[_name] = Game(_name, "", float(max(_probe.best_return, 1)), {"name": _name}, dynamics="probes:ProbeDynamics")
