"""Another kind of proxy, a learned reward: settings and `Stages` are all that a search needs of it."""

import sys
from dataclasses import dataclass
from types import ModuleType

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor

from control.cli.settings import RunConfig, Settings
from control.evolution.inner_loop import InnerLoop
from control.lightning.population import PopulationModule
from envs.make import make_dynamics, stages_of
from envs.tensor import Dynamics, TensorEnvironment
from models.agents.ddqn.config import Config as AgentConfig
from models.proxies.contract import Trainee
from models.proxies.search import SearchConfig
from models.settings import setting
from models.streams import Streams

AGENT = AgentConfig(hidden_size=8, batch_size=5, lr=1e-2, eps_decay=0.8)


@dataclass(frozen=True)
class Config(SearchConfig):
    scale: float = setting(1.0, "factor of the reward", above=0)


class Weights:
    """One number for each of the four parts of a state."""

    size = 4

    def initial(self, streams: Streams) -> Tensor:
        return streams.normal(4)

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        return {"reward": flat}


class Rewarding:
    """Real dynamics that pay ``weights [M, 4]`` times the state."""

    def __init__(self, real: Dynamics, weights: Tensor):
        self.real, self.weights, self.spaces = real, weights, real.spaces
        self.initial, self.observe = real.initial, real.observe

    def step(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        state, _, terminated, discount = self.real.step(state, actions)
        return state, (self.observe(state) * self.weights[:, None]).sum(-1), terminated, discount

    def select(self, members: Tensor) -> "Rewarding":
        return Rewarding(self.real.select(members), self.weights[members])


class Stages:
    def __init__(self, config: Config, game: str):
        real = make_dynamics(game)
        assert real is not None
        self.config, self.real, self.spaces, self.parameters = config, real, real.spaces, Weights()
        self.initial = self.parameters.initial

    def stage(self, flat: Tensor, agent: Trainee) -> TensorEnvironment:
        return TensorEnvironment(Rewarding(self.real, self.config.scale * flat), agent.members, agent.envs)


@pytest.fixture(autouse=True)
def kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the two files were there."""
    module = ModuleType("envs.rewarding")
    module.Stages = Stages  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "envs.rewarding", module)
    monkeypatch.setattr(Config, "__module__", "models.proxies.rewarding.config")


def test_agents_train_on_it_alone_as_in_company() -> None:
    config = Config(inner_rule="plateau", early_out_num=2, early_out_virtual_diff=0.5, inner_steps=160, test_episodes=3)
    loop, seeds = InnerLoop(config, "DDQN", AGENT, "cartpole"), list(range(8))
    proxies = loop.stages.parameters.initial(Streams(seeds))
    company = loop.run(proxies, seeds)
    assert company.steps.unique().numel() > 2 and company.returns.unique().numel() > 3
    for i in (0, 5):
        alone = loop.run(proxies[[i]], [seeds[i]])
        assert torch.equal(alone.returns[0], company.returns[i]) and alone.steps[0] == company.steps[i]


def test_a_search_under_a_plain_lightning_trainer() -> None:
    config = Config(population=4, generations=2, inner_steps=120, noise_std=2.0, center_every=1)
    settings = Settings(RunConfig(implementation="SE", gamename="cartpole", epochs=2), AGENT, proxy=config)
    module = PopulationModule(settings, InnerLoop(config, "DDQN", AGENT, "cartpole"), stages_of(config, "cartpole"))
    pl.Trainer(
        max_epochs=module.epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    ).fit(module)  # fmt: skip
    assert module.epoch == 2 and module.is_over() and len(module.archive.entries) == 2
    assert module.archive.entries[0][2].shape == (4,) and float(module.row["es/update_norm"]) > 0
    assert set(module.histograms()) == {"parameters/reward"}
