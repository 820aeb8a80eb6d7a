"""The base class of agents that learn from a replay buffer: when learning starts, selection of members, training
state."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from models.contract import InnerAgent
from models.curiosity import Curiosity
from models.optim import MemberAdam
from models.replay import ReplayBuffer
from models.state import check_like
from models.streams import NoiseBlocks


def rates(member_configs: Sequence[Any]) -> Tensor:
    """Return the learning rate of each member, ``[M]``."""
    return torch.tensor([member_config.lr for member_config in member_configs], dtype=torch.float64)


class OffPolicyAgent(InnerAgent):
    """Base class of agents with a replay buffer. Subclasses set the attributes below and implement `_views`.
    ``member_configs`` are the settings of each member; ``steps`` counts the steps so far in each environment."""

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

    def _views(self) -> None:
        """Update attributes that are views of the weights; called when the weights have moved to other memory."""
        raise NotImplementedError

    @property
    def first_update(self) -> int:
        """A lower bound, from ``fill`` alone: the length of ``init_episodes`` is not known before they are played."""
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
        indices = members.tolist()
        self.seeds = [self.seeds[m] for m in indices]
        self.member_configs = [self.member_configs[m] for m in indices]
        self.flat_parameters = nn.Parameter(self.flat_parameters[members], requires_grad=False)
        self.optimizer.select(self.flat_parameters, members)
        self.episodes = self.episodes[members]
        self.replay_buffer.select(members)
        self.noise.select(members)
        if self.curiosity is not None:
            self.curiosity.select(members)
        self._views()

    def training_state(self) -> dict[str, Any]:
        return {
            "optimizer": self.optimizer.state_dict(),
            "replay": self.replay_buffer.state_dict(),
            "episodes": self.episodes,
            "steps": self.steps,
            "noise": self.noise.state_dict(),
            "curiosity": None if self.curiosity is None else self.curiosity.state_dict(),
        }

    def load_training_state(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.replay_buffer.load_state_dict(state["replay"])
        self.noise.load_state_dict(state["noise"])
        if self.curiosity is not None:
            self.curiosity.load_state_dict(state["curiosity"])
        self.episodes = check_like(self.episodes, state["episodes"], "episodes").to(self.device)
        self.steps = check_like(self.steps, state["steps"], "steps")
