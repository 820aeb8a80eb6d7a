"""Model-generalisation agents: learning schedule, sampling, exploration and metrics.

test_model_generalisation_updates.py tests the updates.
"""

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fake_runs import load_script
from helpers import MODELS, step_loop
from models.agents.model_generalisation.agent import Agent
from models.agents.model_generalisation.config import Config
from models.agents.model_generalisation.latents import latent_distribution, sample_classes
from models.agents.model_generalisation.values import explore
from models.registry import default_config
from models.settings import SettingError
from models.spaces import Discrete, Spaces
from models.streams import Streams

NAMES = MODELS[:5]
MAZE, FLUTE = "procmaze,grid_size=3", "panflute,num_pipes=3"
LATEST = ("train/explained_variance", "train/grad_norm")
ACTED = {"train/q_mean", "train/entropy", *LATEST}
BELOW_ONE = 1 - 2**-24  # the largest number that `torch.rand` gives
parity = load_script("model_generalisation/parity")


@pytest.mark.parametrize(("start", "period", "first"), [(0, 5, 0), (3, 5, 5), (5, 5, 5), (6, 5, 10), (8, 1, 8)])
def test_learning_starts_with_a_period(start: int, period: int, first: int) -> None:
    """The original trains in a period only if it begins after the start: no update in the first ``first`` steps."""
    loop = step_loop("ER", MAZE, training_start_time=start, steps_per_epoch=period)
    initial_weights = loop.agent.values.q_network.flat.detach().clone()
    for step in range(12):
        loop.step()
        assert loop.agent.learning().tolist() == [step >= first] * 2
        assert (loop.loss.isfinite() == (step >= first)).all()
        assert torch.equal(loop.agent.values.q_network.flat, initial_weights) == (step < first)


@pytest.mark.parametrize(("name", "expected"), [("ER", ""), ("CategoricalLatent", "reward termination obs kl")])
def test_metrics_are_means_since_last_call(name: str, expected: str) -> None:
    rare_loop, frequent_loop = (step_loop(name, FLUTE, updates_per_step=2) for _ in range(2))
    single = []
    for step in range(12):
        rare_loop.step(), frequent_loop.step()
        if step == 8:
            losses = {f"model/{part}_loss" for part in expected.split()}
            assert rare_loop.agent.metrics().keys() == ACTED | losses
        if step >= 8:
            single.append(frequent_loop.agent.metrics())
    assert frequent_loop.agent.metrics() == {}
    means = rare_loop.agent.metrics()
    assert all(torch.equal(means.pop(tag), single[-1][tag]) for tag in LATEST)
    for tag, mean in means.items():
        torch.testing.assert_close(mean, torch.stack([logged[tag] for logged in single[1:]]).mean(0))


@pytest.mark.parametrize("name", NAMES)
def test_greedy_policy_takes_best_action(name: str) -> None:
    agent = step_loop(name, MAZE, seeds=3).agent
    obs, policy = torch.rand(3, 6, agent.obs_size).round(), agent.begin(6, Streams([0, 1, 2]))
    with torch.no_grad():
        if "Latent" not in name:
            assert torch.equal(policy.act(obs), agent.values(obs).argmax(2))
        for part in agent.values.parameters():
            part.zero_()
    assert not agent.begin(6, Streams([0, 1, 2])).act(obs).any()  # the first of equal values


@pytest.mark.parametrize(("name", "spaces", "changes", "message"), [
    ("SimpleModel", Spaces((4,), Discrete(2)), {"binary_obs": True}, "^binary_obs is "),
    ("GaussianLatent", Spaces((6,), Discrete(3), binary=True), {"learn_obs_variance": True}, "^learn_obs_variance is "),
])  # fmt: skip
def test_invalid_settings(name: str, spaces: Spaces, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Agent(dataclasses.replace(default_config(name, ""), **changes), spaces, [0])


@pytest.mark.parametrize(("probability", "table"), [
    ([0.25, 0.0, 0.5, 0.25], {0.0: 0, 0.2499: 0, 0.25: 2, 0.5: 2, 0.7499: 2, 0.75: 3, 0.99: 3, BELOW_ONE: 3}),
    # Probability 0 is never drawn.
    ([1.0, 0.0, 0.0], {0.0: 0, BELOW_ONE: 0}), ([0.0, 1.0, 0.0], {0.0: 1, BELOW_ONE: 1}),
    ([0.0, 0.0, 1.0], {0.0: 2, BELOW_ONE: 2}), ([0.0, 0.5, 0.5], {0.0: 1, BELOW_ONE: 2}),
    # Ten times 0.0999 is 0.999; a number above it is class 9, not 10.
    ([0.0999] * 10, {BELOW_ONE: 9}),
])  # fmt: skip
def test_pick_inverts_distribution_function(probability: list[float], table: dict[float, int]) -> None:
    probabilities = torch.tensor(probability).expand(len(table), len(probability))
    assert sample_classes(probabilities, torch.tensor(list(table))).tolist() == list(table.values())


@pytest.mark.parametrize(
    ("epsilon", "first", "second", "action"),
    [(0.0, 0.0, 0.0, 1), (1.0, BELOW_ONE, 0.0, 0), (1.0, 0.0, BELOW_ONE, 2), (0.5, 0.5, 0.0, 1)],
)
def test_epsilon_greedy_boundaries(epsilon: float, first: float, second: float, action: int) -> None:
    config = Config(exploration_strat="epsilon_greedy", epsilon=epsilon)
    values = torch.tensor([[[0.0, 3.0, 3.0]]])  # the first of equal values
    assert explore(config, values, torch.tensor([[[first, second]]])).item() == action


@pytest.mark.parametrize(("std_act", "raw", "deviation"), [
    ("softplus", 0.0, math.log(2)), ("softplus", -200.0, 1e-6), ("sigmoid", 0.0, 0.5), ("sigmoid", -200.0, 1e-6),
    ("sigmoid2", 2 * math.log(3), 1.5), ("sigmoid2", -400.0, 1e-6),
])  # fmt: skip
def test_latent_deviations(std_act: str, raw: float, deviation: float) -> None:
    """At least 1e-6; the encoder adds ``min_std``."""
    kind = latent_distribution(Config(latent_type="gaussian", num_features=1, std_act=std_act, min_std=0.25))
    for encoder, extra_std in ((False, 0.0), (True, 0.25)):
        mean, std = kind.params(torch.tensor([[[0.7, raw]]]), encoder=encoder)
        assert mean.item() == pytest.approx(0.7) and std.item() == pytest.approx(deviation + extra_std, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fixture", "agent", "steps"), [("A", "PerfectModel", 20_000), ("B", "CategoricalLatent", 5000)]
)
def test_learning_curve_matches_original(fixture: str, agent: str, steps: int, tmp_path: Path) -> None:
    """Ten seeds of each: three points within two standard errors of the original."""
    argv = ["--fixture", fixture, "--agents", agent, "--total_steps", str(steps), "--logdir", str(tmp_path / "exp_dir")]
    assert parity.main([*argv, "--json", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert len(rows) == 3
    assert [row for row in rows if not row["within"]] == []
