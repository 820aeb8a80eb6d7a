"""The contract of every environment: tensors with the member axis first, stepped `[M, E]` at a time."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from models.settings import UserError
from models.spaces import Spaces
from models.state import check_like, demand


class EnvironmentFault(UserError, RuntimeError):
    """An environment returned something no agent can learn from (a NaN reward, say) or died."""


@dataclass
class Step:
    """What one step of all environments gives. Rows of inactive environments hold their last values and zeros.

    ``obs [M, E, *O]`` is the observation *after* the step, the final one of the episode where it ended;
    ``reward [M, E]`` float32; ``terminated`` and ``truncated`` ``[M, E]`` bool, apart from each other.
    ``discount [M, E]`` float32 is the factor the environment itself gives for bootstrapping from the value of the next
    state (dm_env's word), 0 where nothing is to come; None means 0 where terminated, else 1. Rows of inactive
    environments hold anything there.
    ``info [M, E, I]`` float32 are further numbers that the environment tells of the step, such as the parts of a
    reward; None where it tells none.
    """

    obs: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    discount: Tensor | None = None
    info: Tensor | None = None

    @property
    def done(self) -> Tensor:
        return self.terminated | self.truncated


class Environment(Protocol):
    """M members with E environments each.

    Resets are explicit: an environment whose episode ended stays as it is until `reset` names it, so the
    final observation is never lost and no step is a hidden reset. Every episode starts from a seed the caller
    draws from the member's own stream; an episode is a function of its seed and its actions alone.
    """

    spaces: Spaces
    members: int
    envs: int

    @property
    def state(self) -> Tensor | None:
        """Of tensor programs all that the next step depends on, ``[M, E, K]``; None where that is out of reach."""

    def reset(self, seeds: Tensor, where: Tensor | None = None) -> Tensor:
        """Start episodes. ``seeds [M, E]`` int64 >= 0; ``where [M, E]`` bool chooses which (all by default).
        Returns the observations ``[M, E, *O]`` of all environments, those not reset unchanged."""

    def step(self, actions: Tensor, active: Tensor | None = None) -> Step:
        """Advance the environments in ``active [M, E]`` (all by default) with ``actions [M, E(, A)]``."""

    def select(self, members: Tensor) -> "Environment | None":
        """A new environment of ``members [M']`` int64 alone, their episodes where they are; this one is left. None for
        those that cannot."""

    def starts(self, seeds: Tensor) -> Tensor:
        """A block of B resets prepared at once: ``seeds [B, M, E]`` to what `start` takes a row ``[M, E, ...]`` of."""

    def start(self, prepared: Tensor, where: Tensor | None = None) -> Tensor:
        """`reset` by a row of `starts`."""

    def snapshot(self) -> dict[str, Any]:
        """The episodes under way, as plain values and tensors."""

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `snapshot` as if nothing had been. The environment must be a new one."""

    def close(self) -> None: ...


class Replayed(Environment):
    """For environments whose state is out of reach: a snapshot is the seeds of the episodes under way and the actions
    since, and to restore it is to take these actions again. A subclass calls
    `_note_reset` and `_note_step` when it does either."""

    state = None
    _seeds: Tensor | None = None  # [M, E] of the episodes under way
    _began: Tensor  # [M, E], how many of the actions below came before each of them
    _actions: list[tuple[Tensor, Tensor | None]]  # with which environments took them (None: all)

    def _note_reset(self, seeds: Tensor, where: Tensor | None) -> None:
        if where is None or self._seeds is None:
            self._seeds, self._began, self._actions = seeds, torch.zeros_like(seeds), []
            return
        self._seeds = torch.where(where, seeds, self._seeds)
        self._began = torch.where(where, len(self._actions), self._began)
        num_stale = int(self._began.min())  # actions of episodes that are all over
        self._actions, self._began = self._actions[num_stale:], self._began - num_stale

    def _note_step(self, actions: Tensor, active: Tensor | None) -> None:
        if self._seeds is not None:
            self._actions.append((actions, active))

    def select(self, members: Tensor) -> None:
        return None

    def starts(self, seeds: Tensor) -> Tensor:
        return seeds

    def start(self, prepared: Tensor, where: Tensor | None = None) -> Tensor:
        return self.reset(prepared, where)

    def snapshot(self) -> dict[str, Any]:
        if self._seeds is None:
            return {}
        all_active = torch.ones_like(self._seeds, dtype=torch.bool)
        actions = [action for action, _ in self._actions]
        active_masks = [all_active if active is None else active for _, active in self._actions]
        state: dict[str, Any] = {"seeds": self._seeds, "began": self._began}
        return state | {"actions": torch.stack(actions), "active": torch.stack(active_masks)} if actions else state

    def restore(self, state: dict[str, Any]) -> None:
        if not state:
            return
        at = torch.zeros(self.members, self.envs, dtype=torch.int64)
        actions = state.get("actions", at[:0])
        check_like({"seeds": at, "began": at}, {name: state[name] for name in ("seeds", "began")}, "environment")
        demand(int(state["began"].max()) <= len(actions), "environment", "began after its last action", "before it")
        self.reset(state["seeds"])
        active = state.get("active", at[:0])
        for i, action in enumerate(actions):
            self.step(action, active[i] & (state["began"] <= i))
        # The record before the snapshot: the next snapshot then equals that of an uninterrupted run.
        self._began, self._actions = state["began"], list(zip(actions, active, strict=True))
