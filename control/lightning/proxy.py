"""What every LightningModule has that learns a proxy: fresh agents that judge it, and steps of the real environment."""

from typing import Any

from control.cli.settings import Settings
from control.evolution.cluster import Workers
from control.evolution.inner_loop import Outcome, fresh_seeds
from control.lightning.module import RunModule
from envs.make import Stages
from models.proxies.search import SearchConfig
from models.registry import named_agents
from models.settings import UserError
from models.state import like
from understudy.kinds import KINDS


class ProxyModule(RunModule):
    """Learns a proxy, on which the agents of ``workers`` train and are tested on the real environment."""


    def __init__(self, settings: Settings, workers: Workers, stages: Stages):
        super().__init__(settings, [settings.run.seed])
        self.config: SearchConfig = settings.proxy
        self.workers, self.stages = workers, stages
        self.agents = named_agents(settings.run.agent)
        self.kinds = len(self.agents)
        self.outcome: Outcome | None = None  # of the latest agents
        self.real_steps = 0

    def spend(self, steps: int) -> None:
        """Count steps in the real environment."""
        self.real_steps += steps

    def seeds_of(self, name: str, count: int) -> list[int]:
        """Seeds of ``count`` fresh agents, of all kinds in turn; different names give agents that share nothing."""
        return fresh_seeds(self.settings.run.seed, name, count, self.kinds)

    def seconds_of(self, agents: int) -> float:
        """What training and testing so many fresh agents as they are in use may take, by the last generation's."""
        if self.outcome is None:
            return 0.0
        own = (self.outcome.train_seconds + self.outcome.test_seconds) / len(self.outcome.returns)
        return own * agents * self.config.steps_in_use / self.config.inner_steps

    def close(self) -> None:
        self.workers.close()

    val_dataloader = test_dataloader = RunModule.train_dataloader

    def forward(self, *args: Any, **more: Any) -> Any:
        """Raises UserError: what is learned here does not act."""
        called = KINDS[self.settings.proxy.proxy].called
        raise UserError(
            f"{self.settings.run.implementation} learns a {called}, which has no actions; --eval_agent with "
            "the folder of a search trains agents on it and tests them"
        )

    test_step = predict_step = forward

    def own_state(self) -> dict[str, Any]:
        return super().own_state() | {"real_steps": self.real_steps}

    def take_state(self, state: dict[str, Any]) -> None:
        super().take_state(state)
        self.real_steps = like(self.real_steps, state["real_steps"], "real_steps")
