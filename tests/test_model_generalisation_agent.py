"""Agents of the model-generalisation family: each member by itself, resuming, what is measured and refused."""

import dataclasses
from typing import Any

import pytest
import torch

from envs.make import make_environment
from generalisation import GAMES, NAMES, TINY, Life
from models.agents.model_generalisation.agent import Agent
from models.registry import default_config
from models.settings import SettingError
from models.spaces import Continuous, Discrete, Spaces
from models.streams import Streams

# -- odds and ends -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "period", "first"), [(0, 5, 0), (3, 5, 5), (5, 5, 5), (6, 5, 10), (8, 1, 8)])
def test_learning_begins_with_the_first_period_after_its_start(start: int, period: int, first: int) -> None:
    """As in the original, where a period trains if it begins no sooner: after ``first`` steps without an update."""
    life = Life("ER", GAMES[0], [0, 1], training_start_time=start, eval_frequency=period)
    before = life.agent.values.online.flat.detach().clone()
    for tick in range(12):
        life.live(1)
        assert life.agent.learning().tolist() == [tick >= first] * 2
        assert (life.losses[-1].isfinite() == (tick >= first)).all()
        assert torch.equal(life.agent.values.online.flat, before) == (tick < first)


@pytest.mark.parametrize("name", NAMES)
def test_measured_are_means_since_it_was_last_asked(name: str) -> None:
    expected = {
        "SimpleModel": {"reward", "termination", "obs"},
        "CategoricalLatent": {"reward", "termination", "obs", "kl"},
        "GaussianLatent": {"reward", "termination", "obs", "kl"},
    }.get(name, set())
    once, often = (Life(name, GAMES[2], [0, 1], updates_per_step=2).live(20) for _ in range(2))
    assert once.agent.measured().keys() == {f"train/model_{part}" for part in expected}
    often.agent.measured()
    assert often.agent.measured() == {}
    single = []
    for _ in range(4):
        once.live(1), often.live(1)
        single.append(often.agent.measured())
    for tag, mean in once.agent.measured().items():
        torch.testing.assert_close(mean, torch.stack([each[tag] for each in single]).mean(0))


@pytest.mark.parametrize("name", NAMES)
def test_greedy_takes_the_best(name: str) -> None:
    life = Life(name, GAMES[0], [0, 1, 2]).live(10)
    agent, obs = life.agent, torch.rand(3, 6, life.agent.obs_size).round()
    if "Latent" not in name:
        with torch.no_grad():
            best = agent.values(obs).argmax(2)
        assert torch.equal(agent.begin(6, Streams([0, 1, 2])).act(obs), best)
    with torch.no_grad():
        for part in agent.values.parameters():
            part.zero_()
    assert not agent.begin(6, Streams([0, 1, 2])).act(obs).any()  # of equal values the first


@pytest.mark.parametrize(("name", "game", "changes", "named"), [
    ("SimpleModel", "cartpole", {"binary_obs": True}, "binary_obs"),
    ("GaussianLatent", GAMES[0], {"learn_obs_variance": True}, "learn_obs_variance"),
])  # fmt: skip
def test_what_cannot_be_is_refused(name: str, game: str, changes: dict[str, Any], named: str) -> None:
    environment = make_environment(game, 1, 1)
    config = dataclasses.replace(default_config(name, game), **(TINY | changes))
    with pytest.raises(SettingError, match=f"^{named} is "):
        Agent(config, environment.spaces, [0], environment.on_device)  # type: ignore[attr-defined]


@pytest.mark.parametrize("spaces", [
    Spaces((3, 8, 8), Discrete(2), torch.uint8), Spaces((3,), Continuous((-1.0,), (1.0,)))
])  # fmt: skip
def test_images_and_continuous_actions_are_refused(spaces: Spaces) -> None:
    with pytest.raises(SettingError):
        Agent(default_config("ER", ""), spaces, [0])
