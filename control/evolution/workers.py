"""This process as the one that trains the agents of a generation; `control.evolution.cluster` has several processes.

An agent's numbers never depend on its company, so who trains it does not change them.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from control.evolution.inner_loop import InnerLoop, Outcome
from control.loops.process import configure_torch
from models.proxies.search import SearchConfig


class LocalWorkers:
    """All agents in this process, on one thread. Sets torch to one thread and to round denormal numbers to zero, as
    every worker does: else the same agent would come out differently here and there."""

    def __init__(self, config: SearchConfig, agent: str, agent_config: Any, game: str):
        configure_torch()
        self.loop = InnerLoop(config, agent, agent_config, game)

    def run(self, proxies: Tensor | None, seeds: Sequence[int], **how: Any) -> Outcome:
        """See `control.evolution.inner_loop.InnerLoop.run`."""
        configure_torch()  # again: this thread need not be the one of last time
        return self.loop.run(proxies, seeds, **how)

    def close(self) -> None:
        """Nothing was started."""
