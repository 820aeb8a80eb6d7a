"""The interface of all environments. A step is for E environments of each of M members (independent agents) at once,
with tensors ``[M, E, ...]``."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from envs.names import Game
from models.settings import UserError
from models.spaces import Spaces
from models.state import check_like, require


class EnvironmentFault(UserError, RuntimeError):
    """An environment died, or returned a result from which no agent can learn, such as a NaN reward."""


@dataclass
class Step:
    """Result of one step of all environments. For inactive environments, which were not stepped, ``obs`` is the last
    observation, ``discount`` is arbitrary, and all other fields are 0 or False."""

    obs: Tensor  # [M, E, *O], *after* the step; if an episode ended, the final observation
    reward: Tensor  # [M, E] float32
    terminated: Tensor  # [M, E] bool
    truncated: Tensor  # [M, E] bool
    # [M, E] float32, factor for bootstrapping from the value of the next state, as in dm_env. None: 0 after termination
    # and 1 otherwise.
    discount: Tensor | None = None
    info: Tensor | None = None  # [M, E, I] float32, more numbers about the step, such as the terms of a reward

    @property
    def done(self) -> Tensor:
        return self.terminated | self.truncated


class Environment(Protocol):
    """M members with E environments each. Environments do not reset themselves, so the final observation of an episode
    is never lost. The caller samples a seed for each episode. An episode depends only on its seed and its actions."""

    spaces: Spaces
    members: int
    envs: int

    @property
    def state(self) -> Tensor | None:
        """Complete state ``[M, E, K]`` of a tensor program; None for other environments."""

    def reset(self, seeds: Tensor, mask: Tensor | None = None) -> Tensor:
        """Start episodes from ``seeds [M, E]`` int64 >= 0, in the environments selected by ``mask [M, E]`` bool (all by
        default). Return the observations ``[M, E, *O]`` of all environments, including those that are not reset."""

    def step(self, actions: Tensor, active: Tensor | None = None) -> Step:
        """Advance the environments in ``active [M, E]`` (all by default) with ``actions [M, E(, A)]``."""

    def prepare_resets(self, seeds: Tensor) -> Tensor:
        """Compute initial states for B resets from ``seeds [B, M, E]`` in one call, which is cheaper than B resets.
        Return ``[B, M, E, ...]``. A row of it is the argument of `reset_prepared`."""

    def reset_prepared(self, prepared: Tensor, mask: Tensor | None = None) -> Tensor:
        """Reset as `reset` does, but from ``prepared [M, E, ...]``, a row of `prepare_resets`, instead of seeds."""

    def snapshot(self) -> dict[str, Any]:
        """Return the current episodes, as plain values and tensors."""

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `snapshot` in a new environment, as if there had been no interruption."""

    def close(self) -> None: ...


class ReplayedEnvironment(Environment):
    """Base class of environments whose state cannot be copied, such as Gymnasium's. A snapshot has the seeds and the
    actions of the current episodes; `restore` repeats them. Subclasses call `_record_reset` and `_record_step`."""

    game: Game
    state = None  # it cannot be read
    _seeds: Tensor | None = None  # [M, E], seeds of the current episodes
    _start_steps: Tensor  # [M, E], index in `_actions` of the first step of each current episode
    _actions: list[tuple[Tensor, Tensor]]  # actions and active environments of each step

    def _record_reset(self, seeds: Tensor, mask: Tensor | None) -> None:
        """Record that the environments in ``mask [M, E]`` (None: all) start an episode from ``seeds [M, E]``. Recorded
        actions that are older than all current episodes are deleted."""
        if mask is None or self._seeds is None:  # a reset of all environments, or the first reset
            self._seeds, self._start_steps, self._actions = seeds, torch.zeros_like(seeds), []
            return
        self._seeds = torch.where(mask, seeds, self._seeds)
        start_steps = torch.where(mask, len(self._actions), self._start_steps)
        oldest_start = int(start_steps.min())
        self._start_steps = start_steps - oldest_start
        self._actions = self._actions[oldest_start:]

    def _record_step(self, actions: Tensor, active: Tensor | None) -> None:
        """Record the ``actions [M, E(, A)]`` of a step of the environments in ``active [M, E]`` (None: all). Raises
        EnvironmentFault before the first reset."""
        if self._seeds is None:
            raise EnvironmentFault(f"environment {self.game.name} was stepped before its first reset")
        if active is None:
            active = torch.ones_like(self._seeds, dtype=torch.bool)
        self._actions.append((actions, active))

    def prepare_resets(self, seeds: Tensor) -> Tensor:
        return seeds

    def reset_prepared(self, prepared: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.reset(prepared, mask)

    def snapshot(self) -> dict[str, Any]:
        """Return what is needed to play the current episodes again, which restores their states:

        - ``seeds [M, E]`` of the episodes and ``began [M, E]``, the number of the step at which each of them began;
        - ``actions [T, M, E(, A)]`` of the last T steps, and ``active [T, M, E]``, whether an environment took part in
          a step. Both are missing before the first step.

        Before the first reset, the snapshot is empty.
        """
        if self._seeds is None:
            return {}
        state: dict[str, Any] = {"seeds": self._seeds, "began": self._start_steps}
        if self._actions:
            state["actions"] = torch.stack([actions for actions, _ in self._actions])
            state["active"] = torch.stack([active for _, active in self._actions])
        return state

    def restore(self, state: dict[str, Any]) -> None:
        if not state:
            return
        seeds, start_steps = state["seeds"], state["began"]
        zeros = torch.zeros(self.members, self.envs, dtype=torch.int64)
        check_like({"seeds": zeros, "began": zeros}, {"seeds": seeds, "began": start_steps}, "environment")
        actions, active = state.get("actions", ()), state.get("active", ())  # missing before the first step
        require(int(start_steps.max()) <= len(actions), "environment", "began after its last action", "before it")
        self.reset(seeds)
        # `reset` has started all current episodes. Actions from before the start of an episode do not belong to it.
        for step, step_actions in enumerate(actions):
            has_begun = start_steps <= step
            self.step(step_actions, active[step] & has_begun)
        # Replace what `reset` and `step` have recorded, so that the next snapshot is as in an uninterrupted run.
        self._start_steps = start_steps
        self._actions = list(zip(actions, active, strict=True))
