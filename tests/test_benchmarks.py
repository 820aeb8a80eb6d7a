"""Benchmarks run at small scale, and their plain loops compute the same updates as the product."""

import dataclasses
import importlib
import importlib.util
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

from benchmarks.common import ratio_interval, verdict
from benchmarks.plain import ddqn as plain_ddqn
from benchmarks.plain import policy_gradients as plain_pg
from conftest import ROOT
from fake_runs import Shown
from helpers import torch_network
from models.agents.ddqn.agent import Agent
from models.agents.policy_gradients.agent import Agent as PolicyGradientAgent
from models.registry import default_config, search_defaults
from models.spaces import Discrete, Spaces
from models.trajectory import Trajectory
from test_policy_gradients import make_trajectory

BENCHMARKS = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem not in ("__init__", "common"))
FLAGS = {"against_jax": ["--sides", "ours"]}  # the other libraries are in an extra of their own


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmark_prints_json(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--quick", "--json", *FLAGS.get(name, [])]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert not [*tmp_path.iterdir()]
    assert re.search(r"load average \d.*\d threads?", done.stderr)
    results = json.loads(done.stdout)
    for key, result in results.items():
        assert set(result) == {"value", "unit", "against"} and key in done.stderr, key
        assert isinstance(result["value"], float) and math.isfinite(result["value"]) and result["value"] >= 0, key
        assert isinstance(result["unit"], str) and result["unit"], key
        assert result["against"] is None or isinstance(result["against"], str), key


@pytest.fixture
def against_jax(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("benchmarks.against_jax")


def test_tables_of_the_page_are_of_the_stored_numbers(against_jax: ModuleType, capsys: Shown) -> None:
    stored = ROOT / "docs" / "results" / "against_jax.json"
    assert against_jax.main(["--tables", str(stored)]) == 0
    assert json.loads(stored.read_text())["command"]
    assert capsys.readouterr().out in (ROOT / "docs" / "benchmarks.md").read_text()


def test_faster_is_claimed_only_if_every_round_was() -> None:
    assert ratio_interval([2.0, 6.0, 4.0], [1.0, 2.0, 4.0]) == (2.0, 1.0, 3.0)
    verdicts = [verdict(*span) for span in ((1.01, 2.0), (0.5, 0.99), (0.9, 1.1), (1.0, 3.0))]
    assert verdicts == ["faster", "slower", "no clear difference", "no clear difference"]


def flat_of(network: nn.Module) -> torch.Tensor:
    """Each layer's weights, ``[inputs, outputs]``, then its biases."""
    linear = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    return torch.cat([part.detach().flatten() for layer in linear for part in (layer.weight.T, layer.bias)])


@pytest.mark.parametrize("preset", ["paper", "recipe"])
def test_plain_ddqn_updates_as_the_agent_does(preset: str) -> None:
    torch.manual_seed(0)
    config, _ = search_defaults("SE", "cartpole", {"preset": preset}, "DDQN")
    spaces = Spaces((4,), Discrete(2), torch.float32, 200, 200.0)
    our_agent = Agent(dataclasses.replace(config, vary_hp=False), spaces, [3])
    plain = plain_ddqn.PlainTraining(plain_ddqn.PRESETS[preset], 0)
    our_agent.target_parameters.data += 0.3 * torch.randn_like(our_agent.target_parameters)
    plain_ddqn.take_weights(plain.online, our_agent.network.layers(our_agent.flat_parameters), 0)
    plain_ddqn.take_weights(plain.target, our_agent.network.layers(our_agent.target_parameters), 0)
    old_weights = flat_of(plain.online)
    rows = {name: torch.randn(300, 1, *shape) for name, (shape, _) in our_agent.replay_buffer.columns.items()}
    rows["action"] = torch.randint(2, (300, 1)).float()
    our_agent.replay_buffer.load_state_dict({"rows": rows, "position": 300})
    for field, name in zip(plain.memory.fields, ("obs", "action", "next_obs", "reward"), strict=False):
        field[:300] = rows[name].reshape(300, -1).to(field.dtype)
    plain.memory.done[:300] = 1 - rows["discount"]
    for _ in range(10):
        uniform = torch.rand(1, plain.settings.batch)
        our_agent.update({"replay": uniform})
        plain.update(*plain.memory.at((uniform[0] * 300).long()))
    for plain_network, flat in ((plain.online, our_agent.flat_parameters), (plain.target, our_agent.target_parameters)):
        expected = [part[0].reshape(-1) for layer in our_agent.network.layers(flat) for part in layer]
        actual = [parameter.flatten() for parameter in plain_network.parameters()]
        torch.testing.assert_close(torch.cat(actual), torch.cat(expected), atol=1e-5, rtol=0)
    assert (flat_of(plain.online) - old_weights).abs().max() > 1e-3


@pytest.mark.parametrize("implementation", ["CPG", "AAC"])
def test_plain_policy_gradient(implementation: str) -> None:
    config = dataclasses.replace(default_config(implementation, ""), hidden_sizes=(16, 12), value_hidden_sizes=(10,))
    our_agent = PolicyGradientAgent(config, Spaces((8,), Discrete(4)), [1])
    plain = plain_pg.PlainTraining(config, 0)
    pairs = [(plain.policy, our_agent.network.policy)]
    if plain.critic is not None:
        assert our_agent.network.critic is not None
        pairs.append((plain.critic, our_agent.network.critic))
    old_weights = [network.flat.detach().clone() for _, network in pairs]
    for plain_network, network in pairs:
        plain_network.load_state_dict(torch_network(network, 0, nn.ReLU()).state_dict())
    for seed in range(3):
        trajectory = make_trajectory([[3, 7]], seed=seed)
        plain.learn([plain_episode(trajectory, 0), plain_episode(trajectory, 1)])
        our_agent.observe(trajectory)
        our_agent.learn()
    for (plain_network, network), first in zip(pairs, old_weights, strict=True):
        torch.testing.assert_close(flat_of(plain_network), network.flat[0].detach(), atol=1e-5, rtol=0)
        assert (network.flat - first).abs().max() > 2 * config.lr


def plain_episode(trajectory: Trajectory, env: int) -> plain_pg.Episode:
    steps = int(trajectory.lengths[0, env])
    columns = (trajectory.obs, trajectory.action, trajectory.reward)
    obs, actions, rewards = (values[:steps, 0, env] for values in columns)
    return plain_pg.Episode(list(obs), actions.tolist(), rewards.tolist())
