"""When the training of an agent on a proxy ends before its budget. A rule judges every member on its own."""

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from control.loops.steps import Ended, StepLoop
from control.loops.window import RunningWindow


class Rule(Protocol):
    """``ended`` are the episodes that ended in one step; gives which of their members are done, ``[N]`` bool."""

    def __call__(self, interaction: StepLoop, ended: Ended) -> Tensor: ...

    def select(self, members: Tensor) -> None: ...


class Plateau:
    """Done when the mean return of the latest ``number`` episodes differs from that of the ``number`` before by
    less than ``difference``, relatively. Not before ``initial + number`` episodes and ``floor`` steps.

    Source: Ferreira et al. 2022, section 3, and the public code: at least ``initial + number + 1`` episodes.
    """

    def __init__(self, members: int, number: int, difference: float, initial: int, floor: int = 0):
        self.number, self.difference, self.initial, self.floor = number, difference, initial, floor
        self.returns = RunningWindow(members, 2 * number)

    def __call__(self, interaction: StepLoop, ended: Ended) -> Tensor:
        who, n = ended.members, self.number
        self.returns.add(who, ended.returns)
        now, before = self.returns.mean(who, 0, n), self.returns.mean(who, n, 2 * n)
        flat = (now - before).abs() / (before.abs() + 1e-9) < self.difference
        enough = self.returns.counts[who] > self.initial + n
        return flat & enough & (ended.step * interaction.agent.envs >= self.floor)

    def select(self, members: Tensor) -> None:
        self.returns.select(members)


class Solved:
    """Done when the mean of the latest ``number`` scores reaches ``solved``; not before the ``initial`` episodes.

    The score of an episode is its own return, or what ``test(interaction, members) -> [N]`` says of the agent then:
    the published rule tests on the real environment after every training episode. Source: as `Plateau`.
    """

    def __init__(
        self,
        members: int,
        number: int,
        solved: float,
        initial: int,
        test: Callable[[StepLoop, Tensor], Tensor] | None = None,
    ):
        self.number, self.solved, self.initial, self.test = number, solved, initial, test
        self.scores = RunningWindow(members, number)

    def __call__(self, interaction: StepLoop, ended: Ended) -> Tensor:
        who = ended.members
        self.scores.add(who, ended.returns if self.test is None else self._tested(interaction, who))
        return (self.scores.mean(who, 0, self.number) >= self.solved) & (self.scores.counts[who] > self.initial)

    def _tested(self, interaction: StepLoop, who: Tensor) -> Tensor:
        """One test an agent, also where several of its episodes ended at once."""
        assert self.test is not None
        once, of = who.unique(return_inverse=True)
        return self.test(interaction, once)[of]

    def select(self, members: Tensor) -> None:
        self.scores.select(members)
