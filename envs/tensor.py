"""Environments as tensor programs, which compute the steps of many environments at once in torch: `Dynamics` compute
one step, `TensorEnvironment` holds the episodes. Their random numbers are hashes of seeds (`envs.seeded`), so the same
seed starts a different episode than in Gymnasium or in JAX."""

import copy
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor

from envs.base import EnvironmentFault, Step
from envs.seeded import uniform_at
from models.settings import OPTIONAL_INTEGER, check_value
from models.spaces import Discrete, Spaces
from models.state import check_like
from models.streams import Streams

SEED, TIME = range(2)  # first columns of the states of `ChanceDynamics`
CPU = torch.device("cpu")


class Transition(NamedTuple):
    """Result of a step of `Dynamics` in E environments of each of M members (independent agents)."""

    next_state: Tensor  # [M, E, K]
    reward: Tensor  # [M, E] float32
    terminated: Tensor  # [M, E] bool
    discount: Tensor | None = None  # [M, E], see `envs.base.Step`


class Dynamics(Protocol):
    """Initial states, observations and steps of an environment, as pure functions that never change their arguments.
    ``spaces`` includes the time limit, which `TensorEnvironment` applies. The dynamics of a learned environment have
    parameters for each of M members; all others work for any number of members.
    """

    spaces: Spaces

    def initial(self, seeds: Tensor) -> Tensor:
        """Return initial states ``[..., M, E, K]`` for ``seeds [..., M, E]`` int64, perhaps of several resets."""

    def observe(self, state: Tensor) -> Tensor:
        """Return observations ``[..., M, E, *O]`` of states ``[..., M, E, K]``, in the dtype of ``spaces``."""

    def step(self, state: Tensor, actions: Tensor) -> Transition:
        """Take ``actions [M, E(, A)]`` in ``state [M, E, K]``."""

    def sample_observations(self, streams: Streams, count: int) -> Tensor | None:
        """Sample observations ``[M, count, *O]`` that are spread over their range; None if it is unknown."""
        return None

    def adapt_policy(self, policy: Any) -> Any:
        """Return the ``policy`` of agents that trained here, adapted to the units of the real environment."""
        return policy

    def to(self, device: torch.device) -> Self:
        """Return a copy that takes tensors on ``device``, and transfers no number to the host."""
        duplicate = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(duplicate, name, value.to(device))
        return duplicate


class ChanceDynamics(Dynamics):
    """Base class of dynamics with random events that the caller can choose, on any device. Observations consist of
    zeros and ones.

    States ``[..., K]`` are int64. Their first columns are `SEED`, the seed of the episode, and `TIME`, the steps since
    its start. `step` calls `advance` with random numbers that are hashed from these two (`envs.seeded.uniform_at`). So
    steps from a stored state repeat the same events. For other events, change the column `SEED`, or pass other random
    numbers to `advance`.
    """

    state_size: int  # K
    chances: int  # number of random numbers of each step; 0 for deterministic dynamics

    def __init__(self, obs_size: int, actions: int, max_episode_steps: int | None, max_return: float | None = None):
        check_value("max_episode_steps", max_episode_steps, OPTIONAL_INTEGER, {"minimum": 1})
        self.spaces = Spaces((obs_size,), Discrete(actions), torch.float32, max_episode_steps, max_return, binary=True)

    def advance(self, state: Tensor, actions: Tensor, chance: Tensor) -> Transition:
        """Take ``actions [...]`` in ``state [..., K]``. ``chance [..., chances]`` decides the random events: uniform
        numbers on [0, 1) in any floating dtype. Never waits for the device."""
        raise NotImplementedError

    def chance_at(self, seed: Tensor, time: Tensor) -> Tensor:
        """Return the random numbers ``[..., chances]`` of the step at ``time [..., 1]`` of an episode's ``seed``."""
        return uniform_at(seed, time)

    def step(self, state: Tensor, actions: Tensor) -> Transition:
        seed, time = state[..., SEED : SEED + 1], state[..., TIME : TIME + 1]
        chance = self.chance_at(seed, time) if self.chances else state[..., :0]  # [..., 0]: no numbers
        return self.advance(state, actions, chance)


class TensorEnvironment:
    """``[M, E]`` episodes of one `Dynamics`. Interface: `envs.base.Environment`.

    As with Gymnasium's TimeLimit, the step that reaches the time limit is truncated even if it also terminates. Every
    step replaces ``state [M, E, K]`` and ``age`` by new tensors. Episodes, actions, masks and results are on
    ``device``; initial states are sampled on the CPU.
    """

    def __init__(self, dynamics: Dynamics, members: int, envs: int, device: torch.device = CPU) -> None:
        self.dynamics, self.members, self.envs, self.device = dynamics, members, envs, device
        self.device_dynamics = dynamics if device == CPU else dynamics.to(device)  # computes steps and observations
        self.spaces, self._limit = dynamics.spaces, dynamics.spaces.max_episode_steps
        self._started = False
        self.age = torch.zeros(members, envs, dtype=torch.int64, device=device)  # steps since the reset
        # Environments that were never reset are stepped too, so they need a valid state.
        self.state = dynamics.initial(torch.zeros(members, envs, dtype=torch.int64)).to(device)

    def reset(self, seeds: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.set_state(self.prepare_resets(seeds), mask)

    def set_state(self, state: Tensor, mask: Tensor | None = None) -> Tensor:
        """Start episodes as `reset` does, but from ``state [M, E, K]``, which is not copied without ``mask``."""
        self._started = True
        state = state.to(self.device)
        if mask is None:
            self.state, self.age = state, torch.zeros_like(self.age)
        else:
            mask = mask.to(self.device)
            self.state, self.age = torch.where(mask[..., None], state, self.state), self.age.masked_fill(mask, 0)
        return self.device_dynamics.observe(self.state)

    def step(self, actions: Tensor, active: Tensor | None = None) -> Step:
        """Advance the environments in ``active [M, E]`` (None: all) with ``actions [M, E(, A)]``, and apply the time
        limit. The dynamics compute a step of all environments, but only active environments keep the new state."""
        if not self._started:
            raise EnvironmentFault(f"environment {type(self.dynamics).__name__} was stepped before its first reset")
        state, reward, terminated, discount = self.device_dynamics.step(self.state, actions)
        age = self.age + 1
        truncated = torch.zeros_like(terminated) if self._limit is None else age >= self._limit
        if active is not None:
            state, age = torch.where(active[..., None], state, self.state), torch.where(active, age, self.age)
            # Not a product with the mask, because rewards of inactive environments may be infinite, and 0 * inf is NaN.
            reward, terminated, truncated = torch.where(active, reward, 0.0), terminated & active, truncated & active
        self.state, self.age = state, age
        return Step(self.device_dynamics.observe(state), reward, terminated, truncated, discount)

    def sample_observations(self, streams: Streams, count: int) -> Tensor | None:
        return self.dynamics.sample_observations(streams, count)

    def prepare_resets(self, seeds: Tensor) -> Tensor:
        return self.dynamics.initial(seeds)

    reset_prepared = set_state

    def snapshot(self) -> dict[str, Any]:
        """Return ``state [M, E, K]``, ``age [M, E]``, and ``started``: whether there was a reset."""
        return {"state": self.state, "age": self.age, "started": self._started}

    def restore(self, state: dict[str, Any]) -> None:
        check_like(self.snapshot(), state, "environment")
        self.state, self.age = state["state"].to(self.device), state["age"].to(self.device)
        self._started = state["started"]

    def close(self) -> None:
        pass
