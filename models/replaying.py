"""The base class of agents that learn from a replay buffer: when learning starts, selection of members, training
state."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from models.contract import InnerAgent
from models.curiosity import Curiosity
from models.optim import MemberAdam
from models.replay import ReplayBuffer
from models.streams import NoiseBlocks


def rates(member_configs: Sequence[Any]) -> Tensor:
    """Return the learning rate of each member, ``[M]``."""
    return torch.tensor([member_config.lr for member_config in member_configs], dtype=torch.float64)


_STATE = ("optimizer", "replay_buffer", "episodes", "noise", "curiosity")


class OffPolicyAgent(InnerAgent):
    """Base class of agents with a replay buffer. Subclasses set the attributes below and implement `_update_views`.
    ``member_configs`` are the settings of each member; ``steps`` counts the steps so far in each environment."""

    per_member: ClassVar[tuple[str, ...]] = ("seeds", "member_configs", *_STATE)
    saved: ClassVar[tuple[str, ...]] = (*_STATE, "steps")
    member_configs: list[Any]
    optimizer: MemberAdam  # of ``flat_parameters``
    replay_buffer: ReplayBuffer
    curiosity: Curiosity | None
    noise: NoiseBlocks
    steps: int

    def mask_non_learners(self, metrics: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return ``metrics`` (``[M]`` each) with NaN for members that do not learn yet."""
        not_learning = ~self.learning()
        return {tag: values.masked_fill(not_learning, torch.nan) for tag, values in metrics.items()}

    def status(self) -> dict[str, Tensor]:
        buffer_sizes = torch.full((self.members,), self.replay_buffer.size)
        return {"train/learning_rate": rates(self.member_configs), "train/buffer_size": buffer_sizes}

    def _update_views(self) -> None:
        """Update attributes that are views of the weights; called when the weights have moved to other memory."""
        raise NotImplementedError

    @property
    def first_update(self) -> int:
        """A lower bound of the first step with an update, from ``fill`` alone: the length of ``init_episodes`` is not
        known before they are played."""
        return max(1, self.config.fill)

    def learning(self) -> Tensor:
        """Return whether members have played ``init_episodes`` and stored ``fill`` steps, ``[M]`` bool."""
        return (self.episodes >= self.config.init_episodes) & (self.replay_buffer.size >= max(1, self.config.fill))

    def count_steps(self, steps: int) -> None:
        """Count ``steps`` steps in each environment, after compiled code made them and wrote their rows to the replay
        buffer."""
        self.steps += steps
        self.replay_buffer.added(steps * self.envs)

    def select(self, members: Tensor) -> None:
        """Keep only ``members`` (indices ``[M']`` int64)."""
        super().select(members)  # includes ``optimizer.param``, the selected weights
        self.flat_parameters = nn.Parameter(self.optimizer.param, requires_grad=False)
        self._update_views()
