"""The contract of every environment: tensors with the member axis first, stepped `[M, E]` at a time."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from models.settings import UserError
from models.spaces import Spaces


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
    draws from the member's own stream; an episode is a function of its seed and its actions alone, so
    a run that stops between episodes needs no environment state to go on.
    """

    spaces: Spaces
    members: int
    envs: int

    def reset(self, seeds: Tensor, where: Tensor | None = None) -> Tensor:
        """Start episodes. ``seeds [M, E]`` int64 >= 0; ``where [M, E]`` bool chooses which (all by default).
        Returns the observations ``[M, E, *O]`` of all environments, those not reset unchanged."""
        ...

    def step(self, actions: Tensor, active: Tensor | None = None) -> Step:
        """Advance the environments in ``active [M, E]`` (all by default) with ``actions [M, E(, A)]``."""
        ...

    def close(self) -> None: ...
