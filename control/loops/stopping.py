"""Running means, and rules that end the training of a member early, if it learns on a learned environment or reward. A
member is one of M independent agents that are trained together."""

from collections.abc import Callable

import torch
from torch import Tensor

from control.loops.steps import EndedEpisodes, StepLoop
from models.state import Stateful


class RunningWindow(Stateful):
    """The latest ``size`` numbers of each member (fewer at first), in a ring buffer, and their mean."""

    saved = ("values", "counts")

    def __init__(self, members: int, size: int):
        self.values = torch.zeros(members, size, dtype=torch.float64)
        self.counts = torch.zeros(members, dtype=torch.int64)  # how many numbers each member has added

    def add(self, members: Tensor, new_values: Tensor) -> None:
        """Add number ``new_values[i]`` to the window of member ``members[i]``, for N numbers. ``members [N]`` is
        ascending, and a member can occur several times."""
        size = self.values.shape[1]
        new_counts = torch.bincount(members, minlength=len(self.counts))
        # The position of each number among the new numbers of its member: 0, 1, 0 for the members 4, 4, 7.
        positions = torch.arange(len(members)) - torch.searchsorted(members, members)
        columns = (self.counts[members] + positions) % size
        is_latest = positions >= new_counts[members] - size  # older numbers would be overwritten
        self.values[members[is_latest], columns[is_latest]] = new_values[is_latest].double()
        self.counts += new_counts

    def mean(self, members: Tensor, count: int, skip: int = 0) -> Tensor:
        """Return the mean of the latest ``count`` numbers of each of ``members [N]``, after leaving out the ``skip``
        newest. If there are fewer numbers so far, it is the mean of these, and NaN if there are none."""
        ages = torch.arange(skip, skip + count)  # 0 is the latest number
        index = self.counts[members].unsqueeze(1) - 1 - ages  # [N, count]; 0 is a member's first number
        exists = index >= 0
        size = self.values.shape[1]
        latest_values = self.values[members].gather(1, index % size)  # [N, count]
        return (latest_values * exists).sum(1) / exists.sum(1)


Rule = Callable[[StepLoop, EndedEpisodes], Tensor]
"""``rule(loop, episodes)`` takes the N episodes that have just ended, and returns whether the training of the member of
each episode ends now, ``[N]`` bool."""


class Plateau:
    """A `Rule` that ends the training of a member whose returns no longer change: the mean over the latest ``number``
    episodes is close to the mean over the ``number`` episodes before them. Their difference, divided by the earlier
    mean, must be below ``difference``. The member also needs more than ``initial + number`` episodes and at least
    ``floor`` steps.

    Source: Ferreira et al. 2022, section 3; the minimum number of episodes is from the public code.
    """

    def __init__(self, members: int, number: int, difference: float, initial: int, floor: int = 0):
        self.latest = RunningWindow(members, 2 * number)  # returns
        self.number, self.difference, self.initial, self.floor = number, difference, initial, floor

    def __call__(self, loop: StepLoop, episodes: EndedEpisodes) -> Tensor:
        """Add N episodes, and return whether the training of their members ends, ``[N]`` bool (`Rule`)."""
        members, n = episodes.members, self.number
        self.latest.add(members, episodes.returns)
        current_mean = self.latest.mean(members, n)
        previous_mean = self.latest.mean(members, n, skip=n)
        change = (current_mean - previous_mean).abs()
        relative_difference = change / (previous_mean.abs() + 1e-9)  # 1e-9 avoids a division by 0
        is_flat = relative_difference < self.difference
        has_episodes = self.latest.counts[members] > self.initial + n
        has_steps = episodes.steps * loop.agent.envs >= self.floor
        return is_flat & has_episodes & has_steps


class Solved:
    """A `Rule` that ends the training of a member that has solved the task: the mean of its latest ``number`` scores
    is at least ``solved``, after more than ``initial`` episodes.

    The score of an episode is its return. With the function ``test(loop, members [N])``, it is the score ``[N]`` of a
    test of the member with its current weights instead, as published. Source: Ferreira et al. 2022, section 3.
    """

    def __init__(
        self, members: int, number: int, solved: float, initial: int, test: Callable[..., Tensor] | None = None
    ):
        self.latest = RunningWindow(members, number)  # scores
        self.number, self.solved, self.initial, self.test = number, solved, initial, test

    def __call__(self, loop: StepLoop, episodes: EndedEpisodes) -> Tensor:
        """Add N episodes, and return whether the training of their members ends, ``[N]`` bool (`Rule`)."""
        members, scores = episodes.members, episodes.returns
        if self.test is not None:  # one test of a member, even if several of its episodes ended at once
            unique_members, indices = members.unique(return_inverse=True)
            scores = self.test(loop, unique_members)[indices]  # [N], score of each episode
        self.latest.add(members, scores)
        has_episodes = self.latest.counts[members] > self.initial
        is_solved = self.latest.mean(members, self.number) >= self.solved
        return is_solved & has_episodes
