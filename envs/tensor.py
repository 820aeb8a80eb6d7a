"""Environments as tensor programs: `Dynamics` compute one step, `TensorEnvironment` holds the episodes."""

import copy
from dataclasses import replace
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from envs.base import EnvironmentFault, Step
from envs.seeded import uniform_at
from models.settings import OPTIONAL_INTEGER, check_value
from models.spaces import Discrete, Spaces
from models.state import check_like
from models.streams import Streams

# Columns of the states of `ChanceDynamics`.
SEED, TIME = range(2)
CPU = torch.device("cpu")


class Dynamics(Protocol):
    """The transition function of an environment, as pure functions of states.

    Results are new tensors or the arguments themselves; arguments are never changed. ``spaces`` includes the time
    limit, which `TensorEnvironment` applies. Dynamics may have parameters for every member (a learned environment);
    dynamics without them serve any number of members.
    """

    spaces: Spaces

    def initial(self, seeds: Tensor) -> Tensor:
        """States that start an episode, each a function of its seed: ``seeds [..., M, E]`` int64 to ``[..., M, E, K]``.

        Leading axes are a block of ticks at once, cheaper than tick by tick."""

    def observe(self, state: Tensor) -> Tensor:
        """Observations ``[..., M, E, *O]`` of states ``[..., M, E, K]``, in the dtype of ``spaces``."""

    def step(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """``state [M, E, K]``, ``actions [M, E(, A)]`` to the next state, reward ``[M, E]`` float32, terminated
        ``[M, E]`` bool, and the discount ``[M, E]`` of `Step`, None if it is 1 minus terminated."""

    def anywhere(self, streams: Streams, count: int) -> Tensor | None:
        """Observations ``[M, count, *O]`` spread over the range of states, drawn from M streams; None if the range is
        unknown."""
        return None

    def select(self, members: Tensor) -> Self:
        """The same for some of the members, ``members [M']`` int64; without parameters of members, itself."""
        return self

    def to(self, device: torch.device) -> Self:
        """A copy whose `initial`, `observe` and `step` take tensors on ``device`` and take no number back to the
        host."""
        twin = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                setattr(twin, name, value.to(device))
        return twin


class ChanceDynamics(Dynamics):
    """Base class of dynamics whose random events can be passed in, on any device. Their observations are bits, and they
    have no parameters of members.

    States ``[..., K]`` are int64 and begin with the columns `SEED`, of the episode, and `TIME`, the steps since its
    start. `step` is `advance` with a chance that is a hash of these two (`envs.seeded.uniform_at`), so an episode is a
    function of its seed and its actions alone. A stored state that is played again with the same seed has the same
    events. For other events, change column `SEED`, or pass the random numbers to `advance`.
    """

    state_size: int  # K
    chances: int  # random numbers of a step, the same at every step; 0 for deterministic dynamics

    def __init__(self, obs_size: int, actions: int, max_episode_steps: int | None, max_return: float | None = None):
        check_value("max_episode_steps", max_episode_steps, OPTIONAL_INTEGER, {"minimum": 1})
        self.spaces = Spaces((obs_size,), Discrete(actions), torch.float32, max_episode_steps, max_return, binary=True)

    def advance(self, state: Tensor, actions: Tensor, chance: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """``state [..., K]``, ``actions [...]`` and ``chance [..., chances]``, independent and uniform on [0, 1) in any
        floating dtype, to the results of `step`. It passes the seed on, counts the time, and never waits for the
        device."""
        raise NotImplementedError

    def chance_at(self, seed: Tensor, time: Tensor) -> Tensor:
        """The chance ``[..., chances]`` of the step that begins at ``time [..., 1]``."""
        return uniform_at(seed, time)

    def step(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        seed, time = state[..., SEED : SEED + 1], state[..., TIME : TIME + 1]
        return self.advance(state, actions, self.chance_at(seed, time) if self.chances else state[..., :0])


class TensorEnvironment:
    """``[M, E]`` episodes of one `Dynamics`. Interface: `envs.base.Environment`.

    ``time_limit`` in steps replaces the limit of the dynamics, unless it is None. As with Gymnasium's TimeLimit, the
    step that reaches it is truncated even if it also terminates. ``state [M, E, K]`` and ``age [M, E]`` int64, the
    steps since the reset, are replaced at every step and never written into. Rewards and states are not checked for
    NaN.

    Episodes, actions, masks and results are on ``device``. ``dynamics`` stays on its device, and draws initial states
    on the CPU; `reset` and `set_state` move their arguments.
    """

    def __init__(
        self, dynamics: Dynamics, members: int, envs: int, time_limit: int | None = None, device: torch.device = CPU
    ) -> None:
        self.dynamics, self.members, self.envs, self.device = dynamics, members, envs, device
        self.on_device = dynamics
        if device != CPU:
            self.on_device = dynamics.to(device)
        self.spaces = dynamics.spaces
        if time_limit is not None:
            self.spaces = replace(self.spaces, max_episode_steps=time_limit)
        self._limit = self.spaces.max_episode_steps
        self._started = False
        self.age = torch.zeros(members, envs, dtype=torch.int64, device=device)
        # A state for those never reset too: they are stepped along with the rest, and must be numbers.
        self.state = dynamics.initial(torch.zeros(members, envs, dtype=torch.int64)).to(device)

    def reset(self, seeds: Tensor, where: Tensor | None = None) -> Tensor:
        """Start episodes from ``seeds [M, E]``, only in ``where [M, E]``. Returns the observations of all episodes."""
        return self.set_state(self.starts(seeds), where)

    def set_state(self, state: Tensor, where: Tensor | None = None) -> Tensor:
        """`reset` to given states ``[M, E, K]``, such as initial states that ``dynamics.initial`` drew beforehand.

        Without ``where`` the tensor ``state`` is stored without a copy.
        """
        self._started = True
        state = state.to(self.device)
        if where is None:
            self.state, self.age = state, torch.zeros_like(self.age)
        else:
            where = where.to(self.device)
            self.state, self.age = torch.where(where[..., None], state, self.state), self.age.masked_fill(where, 0)
        return self.on_device.observe(self.state)

    def step(self, actions: Tensor, active: Tensor | None = None) -> Step:
        """One step of the episodes in ``active [M, E]`` bool (None: all, the cheapest). Raises EnvironmentFault before
        the first reset."""
        if not self._started:
            raise EnvironmentFault(f"environment {type(self.dynamics).__name__} was stepped before its first reset")
        state, reward, terminated, discount = self.on_device.step(self.state, actions)
        if active is None:
            self.state, self.age = state, self.age + 1
        else:
            # `where` instead of a product with the mask, because inactive rows may become infinite.
            self.state, self.age = torch.where(active[..., None], state, self.state), self.age + active
            reward, terminated = torch.where(active, reward, 0.0), terminated & active
        truncated = torch.zeros_like(terminated) if self._limit is None else self.age >= self._limit
        if active is not None:
            truncated = truncated & active
        return Step(self.on_device.observe(self.state), reward, terminated, truncated, discount)

    def select(self, members: Tensor) -> "TensorEnvironment":
        """A new environment of the members ``[M']`` int64 alone, with their current episodes. This one is not
        changed."""
        subset = TensorEnvironment(self.dynamics.select(members), len(members), self.envs, self._limit, self.device)
        rows = members.to(self.device)
        subset.state, subset.age, subset._started = self.state[rows], self.age[rows], self._started
        return subset

    def starts(self, seeds: Tensor) -> Tensor:
        """States ``[B, M, E, K]`` that ``seeds [B, M, E]`` start in, both on the CPU."""
        return self.dynamics.initial(seeds)

    start = set_state

    def snapshot(self) -> dict[str, Any]:
        return {"state": self.state, "age": self.age, "started": self._started}

    def restore(self, state: dict[str, Any]) -> None:
        check_like(self.snapshot(), state, "environment")
        self.state, self.age = state["state"].to(self.device), state["age"].to(self.device)
        self._started = state["started"]

    def close(self) -> None:
        pass
