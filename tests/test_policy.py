"""Exported agents: `understudy.Policy` chooses the greedy action of every agent that can be exported, in NumPy."""

import json
import pickle
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import numpy as safetensors_numpy

import trainer
import understudy
from control.cli.parse import parse
from control.cli.settings import RunConfig, Settings
from control.commands.run import export_policy
from envs.make import spaces_of
from helpers import ALL, CELLS, build, completed, default_game, flags, output_of, run_folder, tiny
from models.agents.command_conditioned.agent import Agent as CommandConditioned
from models.settings import SettingError
from models.spaces import Discrete, Spaces
from models.streams import Streams
from rounding import assert_near
from understudy.policy import AGENT

COUNT = 10_000
NODE = shutil.which("node")
ENDINGS = [".safetensors", ".js", ".onnx"]
RUN_JS = """
import { readFileSync } from "node:fs";
const [module, input] = process.argv.slice(1);
const { act, advance, command } = await import(module);
const [obs, rewards] = JSON.parse(readFileSync(input));
const commands = rewards.map((steps) => steps.reduce((current, reward) => advance(current, reward), command));
console.log(JSON.stringify([commands, obs.map((x, i) => act(x, commands[i]))]));
"""
# An agent with the environment as its model acts as ER does; it needs a tensor program, which the case's lacks.
EXPORTED = [case for case, (name, _) in ALL.items() if name != "PerfectModel"]
EXPORTED.append("UDRL-ranks-and-horizon")
QUICK = ("UDRL", "UDRL-hypernetwork", "UDRL-ranks-and-horizon", "RCP-A", "CPG", "PPO-normalised", "DuelingDDQN", "SAC",
         "TD3Discrete", "QLearning", "CategoricalLatent", "tanh-sigmoid")  # fmt: skip
MEASURED = [(case, ".safetensors", COUNT) for case in EXPORTED]
MEASURED += [(case, ending, 200) for case in QUICK for ending in ENDINGS[1:]]
MEASURED += [pytest.param(case, ending, COUNT, marks=pytest.mark.slow) for case in EXPORTED for ending in ENDINGS[1:]]


def exportable(case: str, game: str) -> Any:
    """An agent without zeros among its weights, such as biases and tables, and with a command."""
    changes: dict[str, Any] = {}
    if case == "UDRL-ranks-and-horizon":
        case, changes = "UDRL", {"desire_rank": True, "desire_rtg": False, "average_decay": 0.9}
    agent = build(case, spaces_of(game), [3], tiny(case, game, **changes))
    for parameter in agent.parameters():
        parameter.data += torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    if isinstance(agent, CommandConditioned):
        commands = agent.commands
        for numbers, value in ((commands.mean, 20), (commands.horizon, 9), (commands.advantage_reach, 20)):
            numbers.fill_(value)
        commands.widen_scales(torch.full((1, 1, 1), 20.0), torch.full((1, 1), 20.0), torch.full((1, 1), 9.0))
    return agent


def exported(agent: Any, path: Path, implementation: str = "DDQN", game: str = "cartpole", **command: float) -> Path:
    settings = Settings(RunConfig(implementation=implementation, gamename=game), agent.config, command=command)
    return export_policy(agent, settings, path)


def greedy(agent: Any, obs: torch.Tensor, rewards: np.ndarray) -> tuple[np.ndarray | None, torch.Tensor]:
    """The commands ``[N, C]`` of the agent after ``rewards [N, T]``, if it follows any, and its greedy actions."""
    command = None
    if getattr(agent.model if hasattr(agent, "model") else None, "latents", None):
        agent.model.latents.sample = lambda params, noise: most_likely(agent.model.latents, params)
    policy = agent.begin(len(obs), Streams.from_name([3], "x"), sample=False, evaluate=True)
    if isinstance(agent, CommandConditioned):
        policy.command = agent.commands.sample(len(obs), Streams([0]), True, {})
        policy.noise = SimpleNamespace(next=dict)  # no sampled commands
        for step in rewards.T:
            policy.advance(torch.from_numpy(step)[None])
        command = policy.command[0].numpy()
    if getattr(agent.config, "test_noise", False):  # evaluations sample
        policy.streams = None
    return command, policy.act(obs.expand(1, *obs.shape))[0]


def most_likely(latents: Any, params: tuple[torch.Tensor, ...]) -> torch.Tensor:
    if len(params) == 1:
        return torch.nn.functional.one_hot(params[0].argmax(3), latents.num_classes).float().flatten(2)
    return params[0].tanh() if latents.applies_tanh else params[0]


def played(path: Path, obs: np.ndarray, rewards: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Commands after ``rewards [N, T]`` and actions of an exported agent."""
    policy = understudy.Policy(path.with_suffix(".safetensors"))
    commands = np.repeat(policy.command[None], len(obs), 0)
    for step in rewards.T:
        commands = policy.advance(commands, step)
    if path.suffix == ".safetensors":
        return commands, policy(obs, commands)
    if path.suffix == ".onnx":
        session = pytest.importorskip("onnxruntime").InferenceSession(path)
        inputs = {"observation": obs, **({"command": commands} if commands.size else {})}
        return commands, session.run(None, inputs)[0]
    if NODE is None:
        pytest.skip("needs node")
    path.with_suffix(".json").write_text(json.dumps([obs.tolist(), rewards.tolist()]))
    words = [NODE, "--input-type=module", "-e", RUN_JS, str(path), str(path.with_suffix(".json"))]
    commands, actions = json.loads(completed(words, path.parent))
    return np.array(commands), np.array(actions)


@pytest.mark.parametrize(("case", "ending", "count"), MEASURED)
def test_actions_equal_the_agents(case: str, ending: str, count: int, tmp_path: Path) -> None:
    """Two actions may differ if their values are equal within rounding. ``-rP`` prints how many do."""
    if ending == ".onnx":
        pytest.importorskip("onnx")
    name = ALL[case][0] if case in ALL else "UDRL"
    game = default_game(case if case in ALL else "UDRL")
    spaces, agent = spaces_of(game), exportable(case, game)
    for suffix in {".safetensors", ending}:
        exported(agent, tmp_path / f"agent{suffix}", name, game)
    random = np.random.default_rng(1)
    obs = (5 * random.standard_normal((count, *spaces.obs_shape))).astype(np.float32)
    if spaces.one_hot:
        obs = np.eye(spaces.obs_shape[0], dtype=np.float32)[np.arange(count) % spaces.obs_shape[0]]
    rewards = random.normal(1, 3, (count, 3)).astype(np.float32)
    expected_commands, expected = greedy(agent, torch.from_numpy(obs), rewards)
    commands, actions = played(tmp_path / f"agent{ending}", obs, rewards)
    if expected_commands is not None:
        assert np.allclose(commands, expected_commands, atol=1e-5)
    if isinstance(spaces.actions, Discrete):
        differing = int((actions != expected.numpy()).sum())
        print(f"{case}, {ending}: {differing} of {count:,} actions differ")
        assert differing < 0.0005 * count and len(set(actions.tolist())) > 1
    else:
        difference = torch.from_numpy(np.float32(actions)) - expected
        print(f"{case}, {ending}: largest difference of {count:,} actions {difference.abs().max():.1e}")
        assert_near(actions, expected)


def test_policies_take_one_or_many_observations_cells_and_commands(tmp_path: Path) -> None:
    """One observation, cells, commands for one and many, and stable-baselines3's `predict`."""
    cells = understudy.Policy(exported(exportable("QLearning", CELLS), tmp_path / "a.safetensors", "QLearning", CELLS))
    one_hot = np.eye(cells.obs_size, dtype=np.int64)
    assert cells(5) == cells(one_hot[5]) == cells.predict(5)[0] and cells.predict(5)[1] is None
    assert (cells(np.arange(7)) == cells(one_hot[:7])).all()
    agent = exportable("UDRL", "cartpole")
    policy = understudy.Policy(exported(agent, tmp_path / "b.safetensors", "UDRL", "cartpole", horizon=2))
    assert policy.command_names == ("return", "horizon") and policy.command.tolist() == [20, 2]
    assert policy.advance(None, 3.5).tolist() == [16.5, 1] == policy.advance([16.5, 1], 0).tolist()
    assert policy.advance(policy.command, [3.5, -9000]).tolist() == [[16.5, 1], [500, 1]]  # 500 is the largest return
    obs, commands = np.ones((2, 4)), [[500, 1], [-400, 3]]
    assert policy(obs[0], commands[1]) == policy(obs, commands)[1]
    with pytest.raises(understudy.PolicyError, match="predict knows no rewards, by which the command of"):
        policy.predict(obs)
    with pytest.raises(understudy.PolicyError, match=r"shape \[3\]; allowed: \[2\] or \[N, 2\], the return, horizon"):
        policy(obs, [1, 2, 3])
    constant = understudy.Policy(exported(exportable("RCP-R", "cartpole"), tmp_path / "c.safetensors", "RCP-R"))
    assert constant.advance(None, 7.0).tolist() == [20] and constant.predict(obs[0])[0] == constant(obs[0], [20])


def test_agents_that_no_network_describes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = build("UDRL-ranks", spaces_of("cartpole"), [3])
    images = build("UDRL", Spaces((3, 8, 8), Discrete(2), torch.uint8), [3])
    for agent, command, ending, problem in (
        (ranks, {"return": 5.0}, ".js", "single network does not describe the policy of UDRL on cartpole; allowed"),
        (images, {}, ".onnx", "single network does not describe the policy of UDRL on cartpole; allowed"),
        (ranks, {}, ".pt", "agent.pt'; allowed: a new file that ends with .safetensors, .js, .mjs, .onnx"),
        (ranks, {}, ".onnx", "'onnx' is not installed; in the project's folder: pip"),
    ):
        monkeypatch.setitem(sys.modules, "onnx", None)
        with pytest.raises(SettingError, match=problem):
            exported(agent, tmp_path / f"agent{ending}", "UDRL", **command)
    assert not [*tmp_path.iterdir()]


def test_the_command_writes_a_file_that_needs_no_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trainer.main(flags(tmp_path, implementation="DDQN")) == 0
    run, file = run_folder(tmp_path), tmp_path / "agent.safetensors"
    words = ["--eval_agent", str(run), "--no_record", "--num_eval_episodes", "2", "--export", str(file)]
    assert trainer.main(words) == 0 and f'understudy.Policy("{file}")' in capsys.readouterr().out
    content = file.read_bytes()
    assert trainer.main(words) == 2 and "allowed: a new file that" in capsys.readouterr().err
    again = trainer.load(run).export(tmp_path / "b.safetensors")
    assert file.read_bytes() == content == again.read_bytes()
    code = f"import sys, understudy; print(understudy.Policy({str(file)!r})([0.0, 0, 0, 0]), 'torch' in sys.modules)"
    assert output_of(code) == f"{trainer.load(run).predict(np.zeros(4, np.float32))} False\n"


class FakeHub:
    """The functions of huggingface_hub that are used, with a folder instead of the hub."""

    def __init__(self, folder: Path):
        self.folder, self.token = folder, "a token"

    def get_token(self) -> str:
        return self.token

    def HfApi(self) -> "FakeHub":
        return self

    def create_repo(self, name: str, exist_ok: bool) -> None:
        if name == "other/name":
            raise RuntimeError("403\nForbidden")

    def upload_folder(self, repo_id: str, folder_path: Path) -> None:
        shutil.copytree(folder_path, self.folder / repo_id)

    def hf_hub_download(self, repo_id: str, filename: str) -> str:
        path = self.folder / repo_id / filename
        if not path.exists():
            raise OSError(f"404:\n{filename} is not there")
        return str(path)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    hub = FakeHub(tmp_path / "hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    return hub


def test_pushed_agent_is_loaded_with_its_card(hub: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trainer.main(flags(tmp_path, implementation="CPG", num_seeds=2, no_record=True)) == 0
    run = run_folder(tmp_path)
    words = ["--eval_agent", str(run), "--no_record", "--num_eval_episodes", "2", "--evaluation", "greedy"]
    assert trainer.main([*words, "--push_to_hub", "me/agent"]) == 0
    assert 'hub: understudy.Policy("hf://me/agent")' in (out := capsys.readouterr().out)
    pushed = hub.folder / "me" / "agent"
    assert {path.name for path in pushed.iterdir()} == {"README.md", "agent.safetensors", "config.yaml"}
    card = (pushed / "README.md").read_text()
    facts = (
        "# CPG on cartpole",
        "| seeds | 25, 26 |",
        "| command | `python trainer.py --implementation CPG",
        "torch 2.",
    )
    for text in (*facts, 'understudy.Policy("hf://me/agent")', 'tags: ["reinforcement-learning", "CPG", "cartpole"]'):
        assert text in card
    assert str(tmp_path) not in card + (pushed / "config.yaml").read_text()
    greedy_row = next(line for line in out.splitlines() if line.startswith("greedy") and " all " in line)
    assert greedy_row in card
    assert parse(["--config", str(pushed / "config.yaml")]).run.implementation == "CPG"
    policy, player = understudy.Policy("hf://me/agent"), trainer.load(run)
    assert policy(np.ones(4)) == player.predict(np.ones(4)) == understudy.Policy(f"hf://me/agent/{AGENT}")(np.ones(4))


def test_pushed_proxy_is_loaded_with_its_card(hub: FakeHub, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    verdict = SimpleNamespace(passed=True, sentence="agents pass", agents=SimpleNamespace(count=3))
    monkeypatch.setattr("control.commands.evaluate.evaluate_proxy", lambda settings, proxy: verdict)
    assert trainer.main(["--eval_agent", "cartpole-bandit", "--push_to_hub", "me/bandit"]) == 0
    assert 'hub: understudy.load("hf://me/bandit")' in capsys.readouterr().out
    shipped, pushed = understudy.load("cartpole-bandit"), understudy.load("hf://me/bandit")
    assert all((shipped.tensors[name] == pushed.tensors[name]).all() for name in shipped.tensors)
    card = (hub.folder / "me" / "bandit" / "README.md").read_text()
    assert "# bandit on cartpole" in card and "agents pass" in card and "| agents | 3 |" in card
    assert understudy.load("hf://me/bandit/proxy.safetensors").config == shipped.config
    for name, problem in (("hf://me", "it has no user and name"), ("hf://me/bandit/x", "404: x is not there")):
        with pytest.raises(
            understudy.ProxyError, match=f"'{name}' cannot be loaded .{problem}.; allowed: hf://user/name"
        ):
            understudy.load(name)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An exported agent of CartPole."""
    return exported(build("DDQN", spaces_of("cartpole"), [3]), tmp_path / "agent.safetensors")


@pytest.mark.parametrize(("obs", "message"), [
    *((obs, r"allowed: \[4\] or \[N, 4\]") for obs in (np.zeros(5), np.zeros((1, 1, 4)), 3)),
    ([1e300, 0, 0, 0], "contains 1e[+]300; allowed: finite"),
    ({"a": 1}, "; for a Dict or Tuple space, gymnasium.spaces.flatten"),
    ((1, np.zeros(3)), "; for a Dict or Tuple space, gymnasium.spaces.flatten"),
    (["a"] * 4, "no array of numbers"), ([[1, 2], [3]], "no array of numbers"),
])  # fmt: skip
def test_wrong_observations_are_refused(obs: Any, message: str, file: Path) -> None:
    with pytest.raises(understudy.PolicyError, match=message):
        understudy.Policy(file)(obs)


def test_policies_can_be_pickled(file: Path) -> None:
    policy = understudy.Policy(file)
    assert pickle.loads(pickle.dumps(policy))(np.ones(4)) == policy(np.ones(4))


def test_files_that_cannot_be_written_or_read_are_errors(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match="which cannot be written"):
        exported(build("DDQN", spaces_of("cartpole"), [3]), tmp_path / "file" / "a.safetensors")
    with pytest.raises(understudy.PolicyError, match="allowed: a file of --eval_agent RUN --export FILE"):
        understudy.Policy(tmp_path / "absent")


HEADER: dict[str, Any] = {
    "format": 1, "game": "cartpole", "implementation": "DDQN", "actions": {"n": 2}, "cells": False, "head": "argmax",
    "activations": ["tanh"],
}  # fmt: skip
ONE_COMMAND = {"command": np.ones((7, 1), np.float32)}
# Changes of the header and of the tensors, and the message.
FAULTS: list[tuple[dict[str, Any], dict[str, np.ndarray], str]] = [
    ({"activations": ["tanh"] * 9}, {}, "is missing"),
    ({"activations": ["sine"]}, {}, "an activation is 'sine'"),
    ({"activations": ["one_hot/7"]}, {}, "layer 0 has shapes"),
    ({"activations": ["one_hot/0"]}, {}, "an activation is 'one_hot/0'"),
    ({"actions": {"n": 3}}, {}, "2 outputs for 3 actions"),
    ({"format": 3}, {}, "of format 1 or 2"),
    ({"format": 2, "command": ["return"]}, {}, "its command is ['return'] with the shape (7, 0)"),
    ({"command": ["return"]}, {"command": np.zeros((2, 1), np.float32)}, "['return'] with the shape (2, 1)"),
    ({"command": ["return"]}, ONE_COMMAND | {
        "gates.0.bias": np.ones(32, np.float32), "gates.0.weight": np.ones((2, 1), np.float32)}, "layer 0 has shapes"),
    *(({"head": "clip", "actions": {"low": low, "high": high}}, {}, f"its bounds of actions are {text}")
      for low, high, text in (
        ([1, -1], [-1, 1], "low [1.0, -1.0], high [-1.0, 1.0]"), ([-1, -1], [1], "low [-1.0, -1.0], high [1.0]"),
        (-1, 1, "low -1.0, high 1.0"), ([-1, -1], [1, float("inf")], "low [-1.0, -1.0], high [1.0, inf]"),
    )),
    ({}, {"layers.1.bias": np.full(2, np.nan, np.float32)}, "finite float32"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "tensors", "message"), FAULTS)
def test_damaged_files_are_refused(
    changes: dict[str, Any], tensors: dict[str, np.ndarray], message: str, file: Path
) -> None:
    layers = safetensors_numpy.load_file(file)
    safetensors_numpy.save_file(layers | tensors, file, {"understudy_policy": json.dumps(HEADER | changes)})
    with pytest.raises(understudy.PolicyError) as caught:
        understudy.Policy(file)
    assert message in str(caught.value)
