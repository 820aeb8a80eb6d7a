"""The base class of agents that learn from a replay buffer.

M is the number of members (independent agents, one per seed), B of steps in a minibatch, U of updates after each step.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from models.contract import InnerAgent
from models.curiosity import build_curiosity
from models.optim import MemberAdam
from models.replay import ReplayBuffer
from models.spaces import Discrete, Spaces
from models.streams import NoiseBlocks
from models.varied import groups, sample_member_configs


def rates(member_configs: Sequence[Any]) -> Tensor:
    """Return the learning rate of each member, ``[M]``."""
    return torch.tensor([member_config.lr for member_config in member_configs], dtype=torch.float64)


_STATE = ("optimizer", "replay_buffer", "episodes", "noise", "curiosity")


class OffPolicyAgent(InnerAgent):
    """Base class of agents with a replay buffer. Subclasses set the attributes below. ``member_configs`` are the
    settings of each member, and ``steps`` is the number of steps so far in each environment. ``random_numbers`` of the
    current step are ``{name: [M, ...]}``. "replay" ``[M, U, B]`` are uniform numbers that choose the minibatches of its
    U updates."""

    per_member: ClassVar[tuple[str, ...]] = ("seeds", "member_configs", "random_numbers", *_STATE)
    saved: ClassVar[tuple[str, ...]] = (*_STATE, "steps")
    optimizer: MemberAdam  # of ``flat_parameters``
    replay_buffer: ReplayBuffer
    noise: NoiseBlocks

    update_numbers: tuple[str, ...] = ("replay",)  # names of the random numbers ``[M, U, ...]`` of updates
    groups = staticmethod(groups)

    def __init__(self, config: Any, spaces: Spaces, seeds: Sequence[int]):
        super().__init__()
        self.config, self.spaces, self.seeds = config, spaces, list(seeds)
        self.member_configs = sample_member_configs(config, seeds)
        self.envs, self.updates_per_step = config.num_envs, config.updates_per_step
        self.curiosity = build_curiosity(config, spaces, seeds)
        self.random_numbers: dict[str, Tensor] = {}
        self.episodes = torch.zeros(len(seeds), dtype=torch.int64)
        self.steps = 0

    def numbers_of_update(self, i: int) -> dict[str, Tensor]:
        """Return the random numbers of update ``i`` of this step, by the names in ``update_numbers``."""
        return {name: self.random_numbers[name][:, i] for name in self.update_numbers}

    def update(self, random_numbers: dict[str, Tensor], learning: Tensor | None = None) -> Tensor:
        """Make one update of the members ``learning [M]`` bool (None: all). ``random_numbers`` (`numbers_of_update`)
        choose the minibatch. Return the loss ``[M]`` before the update."""
        raise NotImplementedError

    def learn(self) -> Tensor:
        """Make the updates that follow this step, in the members that have enough experience (`learning`). Return the
        loss of the last update ``[M]``, NaN for the other members."""
        learning = self.learning()
        if not learning.any():
            return torch.full((self.members,), torch.nan)
        active = None if learning.all() else learning  # None: all members
        for i in range(self.updates_per_step):
            loss = self.update(self.numbers_of_update(i), active)
        return loss.masked_fill(~learning, torch.nan)

    def sample(self, uniform: Tensor) -> dict[str, Tensor]:
        """Sample rows of the replay buffer by ``uniform [M, B]`` (`ReplayBuffer.sample`)."""
        return self.replay_buffer.sample(uniform)

    def minibatch(self, uniform: Tensor, learning: Tensor | None = None) -> dict[str, Tensor]:
        """Sample a minibatch ``{column: [M, B, ...]}`` by ``uniform [M, B]`` in [0, 1). If the agent gets rewards for
        novelty (``curiosity``), add them to the reward, and train the networks that compute them in the members
        ``learning [M]`` bool (None: all)."""
        batch = self.sample(uniform)
        if self.curiosity is not None:
            action = batch["action"]
            if isinstance(self.spaces.actions, Discrete) and action.dim() == 3:  # vectors, such as one-hot ones
                action = action.argmax(2)
            novelty = self.curiosity.rewards(batch["obs"], action, batch["next_obs"], learning)
            batch["reward"] = batch["reward"] + novelty
        return batch

    def latest_minibatch(self) -> dict[str, Tensor] | None:
        """Sample the minibatch of the latest update again, without training. Return None if no member learns yet."""
        if not self.random_numbers or not self.learning().any():
            return None
        return self.minibatch(self.random_numbers["replay"][:, -1], torch.zeros(self.members, dtype=torch.bool))

    def mask_non_learners(self, metrics: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return ``metrics`` (``[M]`` each) with NaN for members that do not learn yet."""
        not_learning = ~self.learning()
        return {tag: values.masked_fill(not_learning, torch.nan) for tag, values in metrics.items()}

    def status(self) -> dict[str, Tensor]:
        buffer_sizes = torch.full((self.members,), self.replay_buffer.size)
        return {"train/learning_rate": rates(self.member_configs), "train/buffer_size": buffer_sizes}

    @property
    def first_update(self) -> int:
        """A lower bound on the step of the first update, from ``fill`` alone: how many steps ``init_episodes`` take is
        not known before they are played."""
        return max(1, self.config.fill)

    def learning(self) -> Tensor:
        """Return whether members have played ``init_episodes`` and stored ``fill`` steps, ``[M]`` bool."""
        return (self.episodes >= self.config.init_episodes) & (self.replay_buffer.size >= max(1, self.config.fill))

    def count_steps(self, steps: int) -> None:
        """Count ``steps`` steps in each environment, after compiled code made them and wrote their rows to the replay
        buffer."""
        self.steps += steps
        self.replay_buffer.advance(steps * self.envs)
