"""Running means, and rules that end a member's training on a proxy early."""

from collections.abc import Callable

import torch
from torch import Tensor

from control.loops.steps import Ended, StepLoop
from models.state import PerMember

Test = Callable[[StepLoop, Tensor], Tensor]


class RunningWindow(PerMember):
    """The latest ``size`` numbers of each member (fewer at first), in a ring buffer, and their mean."""

    per_member = ("values", "counts")

    def __init__(self, members: int, size: int):
        self.values = torch.zeros(members, size, dtype=torch.float64)
        self.counts = torch.zeros(members, dtype=torch.int64)

    def add(self, members: Tensor, values: Tensor) -> None:
        """Add ``values [N]`` of ``members [N]``, ascending. A member can occur several times."""
        size = self.values.shape[1]
        new = torch.bincount(members, minlength=len(self.counts))
        order = torch.arange(len(members)) - torch.searchsorted(members, members)  # among the member's new values
        columns = (self.counts[members] + order) % size
        kept = order >= new[members] - size  # older ones would be overwritten
        self.values[members[kept], columns[kept]] = values[kept].double()
        self.counts += new

    def mean(self, members: Tensor, first: int, last: int) -> Tensor:
        """Return the mean ``[N]`` of entries ``first`` to ``last - 1``, counted back from the latest, of ``members
        [N]``: ``mean(m, 0, 10)`` is the mean of the latest ten. NaN without entries."""
        offsets = torch.arange(first, last)
        index = self.counts[members].unsqueeze(1) - 1 - offsets
        valid = index >= 0
        values = self.values[members].gather(1, index % self.values.shape[1])
        return (values * valid).sum(1) / valid.sum(1)


class Rule(PerMember):
    """Base class of rules, which decide by the latest ``size`` numbers of every member. ``number`` is the length of
    their means. No member is done within its first ``initial`` episodes."""

    per_member = ("latest",)

    def __init__(self, members: int, number: int, initial: int, size: int):
        self.number, self.initial, self.latest = number, initial, RunningWindow(members, size)

    def __call__(self, loop: StepLoop, ended: Ended) -> Tensor:
        """Add N ``ended`` episodes. Return whether their members are done, ``[N]`` bool."""
        raise NotImplementedError


class Plateau(Rule):
    """A member is done if its mean return over the latest ``number`` episodes differs from the mean over the ``number``
    before by less than ``difference``, relatively. It needs more than ``initial + number`` episodes and at least
    ``floor`` steps.

    Source: Ferreira et al. 2022, section 3; the minimum number of episodes is from the public code.
    """

    def __init__(self, members: int, number: int, difference: float, initial: int, floor: int = 0):
        super().__init__(members, number, initial, 2 * number)
        self.difference, self.floor = difference, floor

    def __call__(self, loop: StepLoop, ended: Ended) -> Tensor:
        members, n = ended.members, self.number
        self.latest.add(members, ended.returns)
        current, previous = self.latest.mean(members, 0, n), self.latest.mean(members, n, 2 * n)
        flat = (current - previous).abs() / (previous.abs() + 1e-9) < self.difference
        enough_episodes = self.latest.counts[members] > self.initial + n
        return flat & enough_episodes & (ended.step * loop.agent.envs >= self.floor)


class Solved(Rule):
    """A member is done if the mean of its latest ``number`` scores reaches ``solved``. It needs more than ``initial``
    episodes.

    The score of an episode is its return. With ``test(loop, members) -> [N]``, it is the result of a test of the member
    (one test if several of its episodes ended at once). The published rule tests on the real environment after every
    training episode. Source: as `Plateau`.
    """

    def __init__(self, members: int, number: int, solved: float, initial: int, test: Test | None = None):
        super().__init__(members, number, initial, number)
        self.solved, self.test = solved, test

    def __call__(self, loop: StepLoop, ended: Ended) -> Tensor:
        members, scores = ended.members, ended.returns
        if self.test is not None:
            unique_members, indices = members.unique(return_inverse=True)
            scores = self.test(loop, unique_members)[indices]
        self.latest.add(members, scores)
        enough_episodes = self.latest.counts[members] > self.initial
        return (self.latest.mean(members, 0, self.number) >= self.solved) & enough_episodes
