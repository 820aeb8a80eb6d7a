"""Whole searches for reward networks: phases, resume, restarts and initial rewards."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer
from control.evolution.strategies import OpenAIES
from control.storage import checkpoints
from control.storage.run_dir import read_metrics
from helpers import SEARCHED, flags, same_runs
from models.proxies import files
from models.proxies.files import first_parameters
from models.proxies.reward.networks import Networks
from models.settings import SettingError
from rewards import CLIFF, random_networks, written

SMALL: dict[str, Any] = {
    "implementation": "RN", "gamename": "emptyroom33", "agent": "QLearning", "population": 4, "generations": 4,
    "agents_per_proxy": 1, "inner_steps": 40, "deploy_steps": 40, "test_every": 20, "proxy_hidden_size": 5,
    "center_agents": 2, "eval_every": 1, "keep_best": 2, "retest_agents": 2, "report_agents": 3, "seed": 1,
    "test_episodes": 1, "solved_reward": 0.8, "second_phase": 2, "second_noise_std": 0.5, "second_agents": 2,
    "second_steps": 60, "choose_by": "stays", "lr": 1.0, "discount": 0.8, "eps_init": 0.3, "eps_min": 0.3,
}  # fmt: skip
UNUSED = ("hidden_sizes", "batch_size", "test_limit")


def search(folder: Path, *extra_flags: str, **changes: Any) -> list[str]:
    words = flags(folder, *extra_flags, **(SMALL | changes))
    idle = ("proxy_hidden_size",) if changes.get("mode") == 0 else ()
    for name in (*UNUSED, *idle):  # settings without effect for tables
        at = words.index(f"--{name}")
        del words[at : at + 2]
    return words


def searched(folder: Path, *extra_flags: str, **changes: Any) -> Path:
    assert trainer.main(search(folder, *extra_flags, **changes)) in SEARCHED
    return sorted(folder.glob("*/*/*/*/version_*"))[-1]


def test_search_of_two_phases_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """The second phase starts a new strategy and archive. The search resumes exactly at any generation."""
    starts: list[tuple[float, bool]] = []
    init = OpenAIES.__init__

    def spy(self: OpenAIES, config: Any, mean: torch.Tensor) -> None:
        init(self, config, mean)
        starts.append((config.noise_std, bool(mean.any())))

    monkeypatch.setattr(OpenAIES, "__init__", spy)
    full_folder = searched(tmp_path / "whole")
    output = capsys.readouterr().out
    assert "first solved test" in output and "of agents solve all tests of the second half" in output
    assert [std for std, _ in starts][-2:] == [0.05, 0.5] and starts[-1][1]
    scores = json.loads((full_folder / "scores.json").read_text())
    assert re.search(
        r"The learned reward (helps|shows no clear gain): with the task's reward", scores["verdict"]["sentence"]
    )
    assert {row["generation"] for row in scores["second_test"]} == {3, 4, 5}
    for stops in ((2, 4), (1, 3, 4)):
        for generations in stops:
            folder = searched(tmp_path / str(stops), "--resume", generations=generations)
        same_runs(full_folder, folder)
    steps = read_metrics(full_folder / "metrics.csv")["search/synthetic_steps"]
    assert steps == [240, 480, 480 + 10 * 60, 480 + 20 * 60]
    capsys.readouterr()
    assert trainer.main(["--eval_agent", str(full_folder), "--num_agents", "3"]) in SEARCHED
    output = capsys.readouterr().out
    assert "emptyroom33 by a reward network: " in output and output.count("\n  Steps to the first solved test: ") == 2
    assert "The learned reward " in output
    rows = [line for line in output.splitlines() if line.startswith(("reward network ", "real reward "))]
    assert len(rows) == 2 and all(row.endswith(" 40") for row in rows)  # the same number of steps


def test_constant_fitness_restarts_with_more_noise(tmp_path: Path, capsys) -> None:
    """Every five generations, with twice the noise; a resumed search gives the same numbers."""
    changes = {"mode": 0, "inner_steps": 2, "test_every": 2, "deploy_steps": 2, "eval_every": 50, "objective": "final",
           "choose_by": "return", "second_phase": 30, "second_steps": 2, "noise_std": 0.05}  # fmt: skip
    means = []
    for name, parts in (("whole", [12]), ("resumed", [7, 12])):
        for generations in parts:
            argv = search(tmp_path / name, **changes, generations=generations)
            assert trainer.main([*argv, *(["--resume"] if generations != parts[0] else [])]) in SEARCHED
        output = capsys.readouterr().out
        notes = [line for line in output.splitlines() if line.startswith("note: for ")]
        assert [note.split()[2] for note in notes] == ["5", "10"]
        assert "noise_std 0.1;" in notes[0] and "noise_std 0.2;" in notes[1] and "a new mean" in notes[1]
        (last,) = (tmp_path / name).rglob("last.ckpt")
        content = checkpoints.load(last).content
        means.append(content["state_dict"]["mean"])
        assert content["callbacks"]["EvolutionStrategy"]["restarts"] == 2
    assert torch.equal(*means)


def test_search_starts_from_a_saved_reward(tmp_path: Path) -> None:
    """The file includes the evolved scale, and another search continues from it."""
    path = tmp_path / "proxy.safetensors"
    factory, flat = random_networks("cliff", mode=2, rn_evolve_scale=True, rn_output_scale=3.0, **CLIFF)
    flat[0, -1] = 0.7
    written(path, factory, flat[0])
    proxy = files.load(path)
    assert not proxy.config.rn_evolve_scale and proxy.parameters.shape == (factory.parameters.size - 1,)
    assert proxy.config.rn_output_scale == pytest.approx(3.0 * torch.tensor(0.7).exp().item())
    cells, expected = torch.eye(48)[None], factory.parameters.with_weights(flat)
    torch.testing.assert_close(proxy.networks.with_weights(proxy.parameters[None])(cells), expected(cells))
    restored = first_parameters(str(path), factory.config, factory.spaces, "cliff")
    torch.testing.assert_close(restored, flat[0])
    for changes in ({"proxy_hidden_size": 9}, {"rn_output_scale": -1.0}):
        other, _ = random_networks("cliff", **({"mode": 2, "rn_evolve_scale": True} | CLIFF | changes))
        with pytest.raises(SettingError, match="^start_from is "):
            first_parameters(str(path), other.config, other.spaces, "cliff")
    with pytest.raises(SettingError, match="which is of cliff; allowed: a proxy of emptyroom33"):
        first_parameters(str(path), factory.config, factory.spaces, "emptyroom33")
    assert isinstance(factory.parameters, Networks)
    next_state_stages, _ = random_networks("cliff", mode=5, **CLIFF)
    with pytest.raises(SettingError, match="a policy, but mode is 5; allowed with a policy: 1, 2"):
        next_state_stages.check_policy("test_teachers:balance")
