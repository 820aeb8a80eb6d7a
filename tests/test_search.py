"""Whole searches for synthetic environments, from flags to the proxy file."""

import dataclasses
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainer
from control.cli import parse as config
from control.commands.proxy_agents import agent_settings
from control.evolution.generations import InitialSearch
from control.evolution.inner_loop import InnerLoop, Outcome
from control.loops.rollout import rollout
from control.storage.run_dir import read_metrics
from envs.make import make_environment, proxy_factory
from fake_runs import refused
from helpers import SEARCHED, flags, load_events, run_folder, trained
from models.proxies import files
from models.proxies.synthetic.config import Config
from models.registry import default_config
from models.streams import Streams, derive_seed
from proxies import KINDS, written

search, searched = partial(flags, implementation="SE"), partial(trained, implementation="SE")


@pytest.mark.usefixtures("curves")
@pytest.mark.parametrize(
    "extra_flags", [[], ["--proxy", "bandit", "--initial_draws", "3", "--deploy_steps", "60"], ["--learned_reset"]]
)
def test_search_writes_a_proxy_with_scores(tmp_path: Path, extra_flags: list[str], capsys) -> None:
    folder = searched(tmp_path, *extra_flags)
    proxy = files.load(folder / "proxy.safetensors")
    scores = json.loads((folder / "scores.json").read_text())
    assert proxy.description["scores"] == scores and proxy.game == "cartpole"
    assert scores["report"]["agents"] == 3 and scores["generation"] in (1, 3, 4)
    assert {row["generation"] for row in scores["second_test"]} == {1, 3, 4}
    for name in ("curve.png", "behaviour.png", "config.yaml", "metrics.csv"):
        assert (folder / name).stat().st_size > 0
    assert (folder / "behaviour_reward.png").exists() == (proxy.config.proxy == "bandit")
    metrics = read_metrics(folder / "metrics.csv")
    assert metrics["epoch"] == [1, 2, 3]
    assert np.isfinite(metrics["search/center_return"]).tolist() == [True, False, True]
    for tag in ("search/fitness_mean", "search/fitness_best", "search/real_steps", "time/train", "time/test"):
        assert np.isfinite(metrics[tag]).all()
    events = load_events(folder)
    (scalar,) = events.Scalars("eval/return_greedy")
    assert scalar.value == pytest.approx(scores["report"]["mean"])
    assert ("search/episode_length" in events.Tags()["scalars"]) == (proxy.config.proxy != "bandit")
    pictures = {"winner/behaviour"} | ({"winner/behaviour_reward"} if proxy.config.proxy == "bandit" else set())
    assert {tag for tag in events.Tags()["images"] if tag.startswith("winner")} == pictures
    output = capsys.readouterr().out
    generation = scores["generation"]  # the first one that would train on the winner
    is_last = generation > metrics["epoch"][-1]
    assert f"({'last mean' if is_last else f'mean of generation {generation}'})" in output
    assert "proxy.safetensors" in output and "--eval_agent" in output and "tensorboard" in output
    for line in ("second test of the 3 best networks, 2 new agents each", "winner with 3 fresh agents"):
        assert f"{line}\n" in output


def test_two_stage_search_scores_targets_then_agents(tmp_path: Path) -> None:
    """The search leaves the table alone, agents judge the winner, and a resumed search gives the same."""
    words = "--proxy bandit --preset two_stage --agent TD3 --no_compiled --second_phase 2 --second_scored_by agents"
    words += " --table_size 20 --fill 5 --num_envs 2 --buffer_size 50 --no_vary_hp --initial_draws 2 --deploy_steps 60"
    words += " --initial_generations 1"
    changes: dict[str, Any] = {"gamename": "pendulum", "eval_every": 1, "generations": 3}
    folder = searched(tmp_path / "whole", *words.split(), **changes)
    metrics = read_metrics(folder / "metrics.csv")
    assert metrics["search/steps_per_agent"] == [0, 0, 60] and np.isfinite(metrics["search/center_return"]).all()
    proxy = files.load(folder / "proxy.safetensors")
    scores = proxy.description["scores"]
    judges = scores["report"]["agents"] + sum(row["agents"] for row in scores["second_test"])
    assert scores["report"]["steps"] > 0 and judges > 3
    assert scores["search_real_steps"] == metrics["search/real_steps"][-1] + judges * 2 * 30  # tests of two episodes
    inner = InnerLoop(proxy.config, "TD3", default_config("TD3", "pendulum"), "pendulum")
    networks, (cos, sin, speed) = proxy.networks, proxy.networks.named_tensors(proxy.parameters)["states.table"].T
    torch.testing.assert_close(cos**2 + sin**2, torch.ones(20))
    assert speed.abs().max() > 4
    seeds, flat = [3, 4], proxy.parameters.expand(2, -1)
    outcome = inner.run(flat, seeds, by_target=True)
    real = make_environment("pendulum", 2, proxy.config.test_episodes, time_limit=30)
    starts = Streams.from_name(seeds, "tests").episode_seeds(proxy.config.test_episodes)
    assert torch.equal(outcome.returns, rollout(networks.target(flat), real, starts).returns)
    assert outcome.steps.tolist() == [0, 0] and outcome.test_steps == 2 * proxy.config.test_episodes * 30
    part = searched(tmp_path / "parts", *words.split(), **changes | {"generations": 2})
    searched(tmp_path / "parts", *words.split(), "--resume", **changes)
    resumed_proxy = files.load(part / "proxy.safetensors")
    assert torch.equal(resumed_proxy.parameters, proxy.parameters) and resumed_proxy.description["scores"] == scores


def test_better_half_of_first_searches_continues() -> None:
    """Fitness is one weight, so the first search with the largest one wins; it keeps its table."""
    values: dict[str, Any] = {"proxy": "bandit", "preset": "two_stage", "initial_draws": 5, "initial_generations": 2}
    values |= {"population": 4, "center_agents": 3, "table_size": 8, "scored_by": "target", "step_size": 1e-3}
    config = Config(first_states="table", reward_form="absolute", **values)
    factory = proxy_factory(config, "pendulum")
    weight, rows = 20, []

    def train(proxies: torch.Tensor, seeds: list[int]) -> Outcome:
        assert len(proxies) == len(seeds)
        rows.append(len(proxies))
        zeros = torch.zeros(len(seeds))
        return Outcome(proxies[:, weight, None], zeros[:, None], zeros[:, None], zeros, zeros, 0, 0.0, 0.0)

    starts = factory.initial(Streams([derive_seed(7, f"initial stand-in {i}") for i in range(5)]))
    best = starts[int(starts[:, weight].argmax())]
    mean = InitialSearch(config, factory, 7, 1, train).mean()
    searched = factory.parameters.num_searched
    assert rows == [35, 35, 21, 21, 14, 14]
    assert torch.equal(mean[searched:], best[searched:]) and not torch.equal(mean[:searched], best[:searched])
    assert float(mean[weight] - best[weight]) == pytest.approx(6e-3, rel=0.1)


@pytest.mark.parametrize(("proxy", "agent", "expected"), [
    # TD3 measures noise in shares of half the range, PPO in units of the action.
    ("pendulum-bandit", "TD3", {"action_std": 0.3, "num_envs": 5}),
    ("pendulum-bandit", "SAC", {"entropy_temperature": 0.05, "num_envs": 5}),
    ("pendulum-bandit", "PPO", {"action_std": 2.0, "num_envs": 10, "rollout_steps": 50, "normalize_obs": False}),
    ("mountaincar-bandit", "TD3Discrete", {"num_envs": 1}),
    ("mountaincar-bandit", "A2C", {"normalize_obs": True}),
    ("cartpole-mdp-broad", "DDQN", {"num_envs": 8}),  # of a search with DDQN and PPO
    ("cartpole-mdp-broad", "PPO", {"num_envs": 4}),
    # Of a search with tables, which vary lr and discount.
    ("cliff-additive-potential", "DDQN", {"vary_hp": True, "vary": ("lr",), "discount": 0.8, "lr": 1e-3}),
    # Settings of the implementation are kept.
    ("cliff-additive-potential", "SARSA", {"backup": "redrawn"}),
    ("pendulum-bandit", "DDPG", {"policy_delay": 1, "policy_std": 0.0, "twin_critics": False, "num_envs": 5}),
    ("cartpole-mdp-broad", "A2C", {"ppo_epochs": 1, "rollout_steps": 5, "num_envs": 8}),
])  # fmt: skip
def test_agent_settings_follow_preset_and_implementation(proxy: str, agent: str, expected: dict) -> None:
    agent_config = agent_settings(files.load(proxy), agent, {})
    assert {name: getattr(agent_config, name) for name in expected} == expected


def test_search_stops_at_the_target_return(tmp_path: Path, capsys) -> None:
    def epochs(*extra_flags: str, **changes: object) -> tuple[Path, list[float]]:
        folder = searched(tmp_path, *extra_flags, eval_every=1, **changes)
        return folder, read_metrics(folder / "metrics.csv")["epoch"]

    first = epochs(generations=50, target_return=1)
    assert first[1] == [1]
    capsys.readouterr()
    proxy_bytes = (first[0] / "proxy.safetensors").read_bytes()
    assert epochs("--resume", generations=50, target_return=1) == first
    assert (first[0] / "proxy.safetensors").read_bytes() == proxy_bytes
    assert json.loads((first[0] / "scores.json").read_text())["generation"] == 1
    assert "--resume" not in capsys.readouterr().out
    assert epochs("--resume", generations=3, target_return=499) == (first[0], [1, 2, 3])
    assert epochs("--resume", generations=50, target_return=1) == (first[0], [1, 2, 3])


def test_infinite_mean_is_an_error(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr("control.evolution.strategies.SNES._step", lambda self, *_: self.mean + torch.inf)
    refused(trainer.main, search(tmp_path, proxy="bandit"), "the mean is no longer finite", capsys, run_started=True)


def test_diverged_agents_are_counted_and_never_win(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in every generation, and then all of the re-evaluation."""
    run = InnerLoop.run

    def diverging(self: InnerLoop, *job: Any, **kwargs: Any) -> Outcome:
        outcome = run(self, *job, **kwargs)
        outcome.returns[: 99 if "sample_all" in kwargs else 1] = torch.nan
        return outcome

    monkeypatch.setattr(InnerLoop, "run", diverging)
    assert trainer.main(search(tmp_path)) == 2
    captured = capsys.readouterr()
    assert captured.out.count("  1 of 4  ") == 2 and "nan" not in captured.out
    assert "so the search has no winner" in captured.err and captured.err.count("\n") == 1
    folder = run_folder(tmp_path)
    assert not (folder / "proxy.safetensors").exists() and not (folder / "scores.json").exists()
    assert len(read_metrics(folder / "metrics.csv")["epoch"]) == 3 and (folder / "checkpoints" / "last.ckpt").exists()


@pytest.mark.parametrize(("game", "episodes"), [("cartpole", 30), ("mountaincar", 3)])
def test_paper_preset_stops_at_a_plateau(tmp_path: Path, game: str, episodes: int) -> None:
    changes = {"preset": "paper", "gamename": game, "inner_steps": 400, "train_episodes": episodes, "eval_every": 1,
           "early_out_num": 2, "early_out_virtual_diff": 0.5, "max_steps": 20, "generations": 1}  # fmt: skip
    folder = searched(tmp_path, **changes)
    metrics = read_metrics(folder / "metrics.csv")
    assert np.isfinite(metrics["search/center_return"]).all() and min(metrics["search/steps_per_agent"]) < 400
    settings = config.parse(search(tmp_path, **changes))
    preset_values = settings.proxy.raw_done, settings.proxy.score_transform, settings.agent.activation
    assert preset_values == ((True, 3, "tanh") if game == "cartpole" else (True, 7, "relu"))
    command = files.load(folder / "proxy.safetensors").description["command"]
    assert f"--gamename {game}" in command and "--preset paper" in command and "logdir" not in command


def test_evaluation_compares_with_the_real_environment(tmp_path: Path, capsys) -> None:
    folder = searched(tmp_path, solved_reward=12)
    for where, agent in (
        (folder, "DuelingDDQN"), (folder / "proxy.safetensors", "DDQN"), (folder / "checkpoints" / "last.ckpt", "DDQN"),
        (folder, "TD3Discrete"),  # of another family
    ):  # fmt: skip
        capsys.readouterr()
        assert trainer.main(["--eval_agent", str(where), "--num_agents", "3", "--agent", agent]) in SEARCHED
        lines = capsys.readouterr().out.splitlines()
        assert {len(line) for line in lines if line.startswith(("trained on", "synthetic ", "real "))} == {71}
        rows = {line.split()[0]: line.split() for line in lines if line.strip()}
        assert float(rows["synthetic"][1]) > 0 and float(rows["real"][1]) > 0
    assert trainer.main(["--eval_agent", str(folder), "--num_agents", "2", "--real_steps", "33"]) in SEARCHED
    output = capsys.readouterr().out
    (row,) = [line.split() for line in output.splitlines() if line.startswith("real")]
    assert "33" in row and "at most 33 steps" in output
    assert (
        trainer.main(["--eval_agent", str(folder), "--num_agents", "2", "--vary_hp", "--no_real_baseline"]) in SEARCHED
    )
    output = capsys.readouterr().out
    assert "sampled for each agent: lr, batch_size, width, depth" in output and "\nreal " not in output


def test_inner_rule_does_not_end_an_evaluation(tmp_path: Path, capsys) -> None:
    """They would end the training in a search, as any agent reaches an average of 5 in its first tests."""
    path = tmp_path / "proxy.safetensors"
    rule: dict[str, Any] = {"inner_rule": "tests", "solved_reward": 5.0, "max_steps": 10, "deploy_steps": 77}
    written(path, config=dataclasses.replace(KINDS["mdp"][0], **rule))
    argv = ["--eval_agent", str(path), "--num_agents", "2", "--no_real_baseline", "--time_limit", "12"]
    assert trainer.main(argv) in SEARCHED
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("synthetic")]
    assert row[-1] == "77"
    assert "%" not in row  # these tests are no whole episodes
