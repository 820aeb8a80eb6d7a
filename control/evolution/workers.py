"""Who trains the agents of a generation: this process, or several worker processes that share them out.

An agent's numbers never depend on its company, so who trains it does not change them.
"""

import os
import signal
from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from control.evolution.inner_loop import InnerLoop, Outcome
from control.loops.process import settle
from models.proxies.synthetic.config import Config


class Workers(Protocol):
    """Trains and tests fresh agents; `control.evolution.inner_loop.InnerLoop.run` says what the arguments mean."""

    def run(
        self, proxies: Tensor | None, seeds: Sequence[int], *, steps: int | None = None,
        test_limit: int | None = None, rule: str | None = None, drawn: bool = False,
    ) -> Outcome:  # fmt: skip
        """Agents of ``seeds [N]`` on ``proxies [N, D]``, or on the real environment where that is None."""

    def close(self) -> None:
        """End what was started; may be called twice, and nothing else after it."""


class LocalWorkers:
    """All agents in this process, on one thread. Sets torch to one thread and to round denormal numbers to zero, as
    every worker does: else the same agent would come out differently here and there."""

    def __init__(self, config: Config, agent: str, agent_config: Any, game: str):
        settle()
        self.loop = InnerLoop(config, agent, agent_config, game)

    def run(
        self, proxies: Tensor | None, seeds: Sequence[int], *, steps: int | None = None,
        test_limit: int | None = None, rule: str | None = None, drawn: bool = False,
    ) -> Outcome:  # fmt: skip
        settle()  # again: this thread need not be the one of last time
        return self.loop.run(proxies, seeds, steps, test_limit, rule, drawn)

    def close(self) -> None:
        pass


class WorkerProcess:
    """`LocalWorkers` as the life of one worker process, which is told only by its parent what to do."""

    def __init__(self, *job: Any):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
        self.job = job
        self.workers: LocalWorkers | None = None

    def start(self) -> int:
        """Load what is needed; gives the process id. Not in the constructor, whose errors Ray would not pass on."""
        self.workers = LocalWorkers(*self.job)
        return os.getpid()

    def run(
        self,
        proxies: Tensor | None,
        seeds: Sequence[int],
        steps: int | None,
        test_limit: int | None,
        rule: str | None,
        drawn: bool,
    ) -> Outcome:
        if self.workers is None:
            self.start()
        assert self.workers is not None
        return self.workers.run(proxies, seeds, steps=steps, test_limit=test_limit, rule=rule, drawn=drawn)


def make_workers(
    config: Config, agent: str, agent_config: Any, game: str, num_workers: int = 1, ray_address: str | None = None
) -> Workers:
    """Workers for agents of that kind: this process for one, else as many processes of a Ray started for them, or of
    the cluster at ``ray_address``.

    Raises SettingError for more workers than there are cores, and UserError (one line) for a cluster that cannot be
    joined or a worker that cannot start.
    """
    if num_workers == 1:
        return LocalWorkers(config, agent, agent_config, game)
    from control.evolution.cluster import RayWorkers

    return RayWorkers(config, agent, agent_config, game, num_workers, ray_address)
