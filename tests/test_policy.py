"""Exported agents: `understudy.Policy` chooses the greedy action of every agent that can be exported, in NumPy."""

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import numpy as safetensors_numpy

import trainer
import understudy
from control.cli.settings import RunConfig
from control.commands.run import export_policy
from control.loops.build import spaces_of
from helpers import ALL, build, default_game, flags, run_folder, tiny
from models.settings import SettingError
from models.spaces import Discrete
from models.streams import Streams
from rounding import assert_near

# Agents that follow commands or sample latents; PerfectModel, which acts as ER does, needs a tensor program here.
OTHERS = ("UDRL", "RCP-R", "RCP-A", "CategoricalLatent", "GaussianLatent", "PerfectModel")
EXPORTED = [case for case, (name, _) in ALL.items() if name not in OTHERS]


@pytest.mark.parametrize("case", EXPORTED)
def test_actions_equal_the_agents(case: str, tmp_path: Path) -> None:
    """In 10,000 observations; two actions may differ if their values are equal within rounding."""
    game = default_game(case)
    spaces = spaces_of(game)
    agent = build(case, spaces, [3], tiny(case, game))
    for parameter in agent.parameters():  # no zeros, such as biases and tables
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
    path = export_policy(agent, RunConfig(implementation=ALL[case][0], gamename=game), tmp_path / "agent.safetensors")
    policy = understudy.Policy(path)
    obs = 5 * torch.randn(10_000, *spaces.obs_shape, generator=torch.Generator().manual_seed(1))
    if spaces.one_hot:
        obs = torch.eye(spaces.obs_shape[0])[torch.arange(10_000) % spaces.obs_shape[0]]
        assert policy(5) == policy(np.eye(policy.obs_size, dtype=np.int64)[5])
        assert (policy(np.arange(7)) == policy(obs[:7].numpy())).all()
    agent_policy = agent.begin(len(obs), Streams.from_name([3], "x"), sample=False, evaluate=True)
    if getattr(agent.config, "test_noise", False):  # evaluations sample
        agent_policy.streams = None
    expected = agent_policy.act(obs.expand(1, *obs.shape))[0]
    actions = policy(obs.numpy())
    if isinstance(spaces.actions, Discrete):
        assert (actions == expected.numpy()).mean() > 0.9995 and len(set(actions.tolist())) > 1
    else:
        assert_near(torch.from_numpy(actions), expected, 1e-5 * (1 + expected.abs()))
    single, state = policy.predict(obs[0].numpy())
    assert np.allclose(single, actions[0], atol=1e-5) and state is None


@pytest.mark.parametrize("case", ["UDRL", "CategoricalLatent"])
def test_other_agents_are_refused(case: str, tmp_path: Path) -> None:
    agent = build(case, spaces_of(default_game(case)), [3])
    run = RunConfig(implementation=case, gamename=default_game(case))
    with pytest.raises(SettingError, match=f"does not describe the policy of {case}"):
        export_policy(agent, run, tmp_path / "agent.safetensors")
    assert not [*tmp_path.iterdir()]


def test_the_command_writes_a_file_that_needs_no_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert trainer.main(flags(tmp_path, implementation="DDQN")) == 0
    run, file = run_folder(tmp_path), tmp_path / "agent.safetensors"
    words = ["--eval_agent", str(run), "--no_record", "--num_eval_episodes", "2", "--export", str(file)]
    assert trainer.main(words) == 0 and f'understudy.Policy("{file}")' in capsys.readouterr().out
    content = file.read_bytes()
    assert trainer.main(words) == 2 and "which exists; allowed: a new file" in capsys.readouterr().err
    assert file.read_bytes() == content and trainer.load(run).export(tmp_path / "b").read_bytes() == content
    code = f"import sys, understudy; print(understudy.Policy({str(file)!r})([0.0, 0, 0, 0]), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{trainer.load(run).predict(np.zeros(4, np.float32))} False\n"


def test_wrong_files_and_observations(tmp_path: Path) -> None:
    file = tmp_path / "agent.safetensors"
    agent = build("DDQN", spaces_of("cartpole"), [3])
    policy = understudy.Policy(export_policy(agent, RunConfig(implementation="DDQN", gamename="cartpole"), file))
    for obs in (np.zeros(5), np.zeros((1, 1, 4)), 3):
        with pytest.raises(understudy.PolicyError, match=r"allowed: \[4\] or \[N, 4\]"):
            policy(obs)
    for obs, problem in (
        ([1e300, 0, 0, 0], "is 1e[+]300; allowed: finite"),
        (["a"] * 4, "no array of numbers"),
        ([[1, 2], [3]], "no array of numbers"),
    ):
        with pytest.raises(understudy.PolicyError, match=problem):
            policy(obs)
    assert pickle.loads(pickle.dumps(policy))(np.ones(4)) == policy(np.ones(4))
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match="which cannot be written"):
        export_policy(agent, RunConfig(implementation="DDQN", gamename="cartpole"), tmp_path / "file" / "a")
    tensors = safetensors_numpy.load_file(file)
    header = {"format": 1, "game": "cartpole", "implementation": "DDQN", "actions": {"n": 2}, "cells": False}
    header |= {"activations": ["tanh"], "head": "argmax"}

    def fault(changes: dict[str, Any], **changed: np.ndarray) -> str:
        text = json.dumps(header | changes)
        safetensors_numpy.save_file(tensors | changed, tmp_path / "other", {"understudy_policy": text})
        with pytest.raises(understudy.PolicyError) as caught:
            understudy.Policy(tmp_path / "other")
        return str(caught.value)

    assert "is missing" in fault({"activations": ["tanh"] * 9})
    assert "an activation is 'sine'" in fault({"activations": ["sine"]})
    assert "2 outputs for 3 actions" in fault({"actions": {"n": 3}})
    assert "of format 1" in fault({"format": 2})
    for bounds, text in (
        ({"low": [1, -1], "high": [-1, 1]}, "low [1.0, -1.0], high [-1.0, 1.0]"),
        ({"low": [-1, -1], "high": [1]}, "low [-1.0, -1.0], high [1.0]"),
        ({"low": -1, "high": 1}, "low -1.0, high 1.0"),
        ({"low": [-1, -1], "high": [1, float("inf")]}, "low [-1.0, -1.0], high [1.0, inf]"),
    ):
        assert f"its bounds of actions are {text}" in fault({"head": "clip", "actions": bounds})
    nan = {"layers.0.bias": np.full_like(tensors["layers.0.bias"], np.nan)}
    assert "finite float32" in fault({"activations": header["activations"]}, **nan)
    with pytest.raises(understudy.PolicyError, match="allowed: a file of --eval_agent RUN --export FILE"):
        understudy.Policy(tmp_path / "absent")
