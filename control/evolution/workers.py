"""Who trains the agents of a generation: this process, or several worker processes that share them out.

An agent's numbers never depend on its company, so who trains it does not change them.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from control.evolution.inner_loop import InnerLoop, Outcome
from control.loops.process import settle
from models.proxies.search import SearchConfig


class Workers(Protocol):
    """Trains and tests fresh agents; `control.evolution.inner_loop.InnerLoop.run` says what the arguments mean."""

    def run(
        self, proxies: Tensor | None, seeds: Sequence[int], *, steps: int | None = None,
        test_limit: int | None = None, rule: str | None = None, sample_all: bool = False,
    ) -> Outcome:  # fmt: skip
        """Agents of ``seeds [N]`` on ``proxies [N, D]``, or on the real environment where that is None."""

    def close(self) -> None:
        """End what was started; may be called twice, and nothing else after it."""


class LocalWorkers:
    """All agents in this process, on one thread. Sets torch to one thread and to round denormal numbers to zero, as
    every worker does: else the same agent would come out differently here and there."""

    def __init__(self, config: SearchConfig, agent: str, agent_config: Any, game: str):
        settle()
        self.loop = InnerLoop(config, agent, agent_config, game)

    def run(self, proxies: Tensor | None, seeds: Sequence[int], **how: Any) -> Outcome:
        settle()  # again: this thread need not be the one of last time
        return self.loop.run(proxies, seeds, **how)

    def close(self) -> None:
        pass
