"""Agents of the model-generalisation family in their environments, as several test files need them."""

import dataclasses
from typing import Any, Self

import torch
from torch import Tensor

from control.cli.settings import RunConfig, Settings
from control.loops.build import build_loop
from envs.tensor import TensorEnvironment
from helpers import MODELS, STEP_TINY, VARIANTS
from models.registry import default_config

CPU = torch.device("cpu")
NAMES = ["ER", "PerfectModel", "SimpleModel", "CategoricalLatent", "GaussianLatent"]
GAMES = ["procmaze,grid_size=3", "buttongrid,grid_size=4", "panflute,num_pipes=3"]
TINY: dict[str, Any] = {
    name: value for name, value in STEP_TINY.items() if name not in ("hidden_size", "feature_dim", "rb_size")
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {case: VARIANTS.get(case, (case, {})) for case in MODELS}


class Life:
    """The step loop of a run, step by step. Seeds are neighbours."""

    def __init__(self, case: str, game: str, seeds: list[int], **changes: Any):
        name, own = CASES[case]
        config = dataclasses.replace(default_config(name, game), **(TINY | own | changes))
        run = RunConfig(implementation=name, gamename=game, seed=seeds[0], num_seeds=len(seeds))
        loop: Any = build_loop(Settings(run, config))
        self.interaction = loop.groups[0].loop
        self.agent, self.environment = self.interaction.agent, self.interaction.environment
        assert isinstance(self.environment, TensorEnvironment)
        self.losses: list[Tensor] = []

    def live(self, ticks: int) -> Self:
        for _ in range(ticks):
            self.interaction.step()
            self.losses.append(self.interaction.loss)
        return self

    def state(self) -> dict[str, Any]:
        return {"weights": self.agent.state_dict(), "loop": self.interaction.state_dict()}

    def load(self, state: dict[str, Any]) -> Self:
        self.agent.load_state_dict(state["weights"])
        self.interaction.load_state_dict(state["loop"])
        return self
