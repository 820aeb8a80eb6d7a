"""Searches with agents of several families: their settings, and independence of each agent."""

import math
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import trainer
from control.cli import parse as config
from control.cli.settings import as_dict, from_dict, to_yaml
from control.commands.proxy_agents import agent_settings
from control.evolution.inner_loop import InnerLoop, fresh_seeds
from control.loops.build import has_machine_code
from control.storage.run_dir import read_metrics
from helpers import SEARCHED, run_folder, same_runs
from models.mixture import family_configs
from models.proxies import files
from models.proxies.synthetic.config import Config
from models.registry import config_of, family
from models.streams import Streams

SE = "--implementation SE --gamename cartpole --agent DDQN,PPO"


def test_machine_code_is_imported_if_one_agent_has_it() -> None:
    for agent in ("DDQN,PPO", "DDQN"):
        assert has_machine_code(config.parse(f"--implementation SE --gamename cartpole --agent {agent}".split()))
    assert not has_machine_code(config.parse(["--implementation", "ER", "--gamename", "procmaze"]))


def mixed_settings(flags: str) -> Any:
    return config.parse(f"{SE} {flags}".split())


def test_flag_is_for_all_families_unless_it_names_one(tmp_path: Path) -> None:
    """A flag is for all families; a flag with a family's name wins."""
    ddqn, ppo = family_configs(mixed_settings("").agent)
    assert (ddqn.hidden_sizes, ppo.hidden_sizes, ppo.lr) == ((64,), (64, 64), family("PPO").config.lr)
    assert ddqn.vary == ppo.vary == ("lr",) and ddqn.vary_hp and ppo.vary_hp
    flags = "--PPO_lr 1e-4 --lr 5e-3 --no_vary_hp --ent_coef 0.02 --eps_min 0.1"
    ddqn, ppo = family_configs(mixed_settings(flags).agent)
    assert (ddqn.lr, ppo.lr, ppo.ent_coef, ddqn.eps_min) == (5e-3, 1e-4, 0.02, 0.1)
    assert not ddqn.vary_hp and not ppo.vary_hp
    file = tmp_path / "run.yaml"
    file.write_text(to_yaml(mixed_settings(flags)))
    assert config.parse(["--config", str(file)]).agent == mixed_settings(flags).agent
    ddqn, ppo = family_configs(config.parse(["--config", str(file), "--lr", "7"]).agent)
    assert (ddqn.lr, ppo.lr, ppo.ent_coef) == (7.0, 7.0, 0.02)
    settings = config.settings_from(implementation="SE", gamename="cartpole", agent="DDQN,PPO", lr=1e-2, PPO_lr=1e-3)
    assert [family_config.lr for family_config in family_configs(settings.agent)] == [1e-2, 1e-3]


def test_settings_round_trip() -> None:
    settings = mixed_settings("--PPO_num_envs 3")
    assert from_dict(as_dict(settings)).agent == settings.agent == pickle.loads(pickle.dumps(settings.agent))
    assert family_configs(settings.replace(lr=1.0).agent)[1].lr == 1.0


def test_agents_of_one_family_share_settings() -> None:
    names = ["DDQN", "PPO", "DuelingDDQN"]
    settings = config.parse([*SE.split()[:-1], ",".join(names), "--DDQN_lr", "0.5"])
    assert settings.proxy.agents_per_proxy == 3 and len(family_configs(settings.agent)) == 2
    plain, ppo, dueling = (config_of(settings.agent, name, names) for name in names)
    assert (plain.head, dueling.head, plain.lr, dueling.lr) == ("plain", "dueling", 0.5, 0.5) and ppo.lr != 0.5


@pytest.mark.parametrize(("agents", "per_proxy", "rank_apart"), [
    ("DDQN", 2, False), ("DDQN,DuelingDDQN", 2, False), ("DDQN,PPO", 2, True),
    ("DDQN,PPO --agents_take_turns generations", 2, False), ("DDQN,PPO --strategy nes", 2, False),
])  # fmt: skip
def test_defaults_of_the_search_depend_on_its_agents(agents: str, per_proxy: int, rank_apart: bool) -> None:
    """Each agent trains on each proxy, and kinds with different returns have separate ranks."""
    proxy = config.parse(f"--implementation SE --gamename cartpole --agent {agents}".split()).proxy
    assert (proxy.agents_per_proxy, proxy.rank_apart) == (per_proxy, rank_apart)


SMALL = {"hidden_sizes": (8,), "batch_size": 8, "vary_hp": False}
MIXTURES = {
    "discrete": ("cartpole", "DDQN,PPO,TD3Discrete", {"rollout_steps": 16, "fill": 20, "PPO_num_envs": 2}),
    "continuous": ("pendulum", "SAC,TD3,PPO", {"rollout_steps": 16, "fill": 20}),
    "drawn": ("cartpole", "PPO,DDQN", {"rollout_steps": 16, "vary_hp": True, "vary": ("lr", "width", "batch_size")}),
}


@pytest.mark.parametrize("case", ["discrete", "continuous", pytest.param("drawn", marks=pytest.mark.slow)])
def test_agent_alone_equals_agent_in_company(case: str) -> None:
    game, agents, changes = MIXTURES[case]
    arguments = {"implementation": "SE", "gamename": game, "agent": agents, **SMALL, **changes}
    proxy = Config(
        proxy_hidden_size=7, max_steps=25, inner_steps=40, test_every=10, test_episodes=2, test_limit=40, compiled=False
    )
    settings = config.settings_from(**arguments)
    loop = InnerLoop(proxy, agents, settings.agent, game)
    kinds = agents.split(",")
    seeds = fresh_seeds(3, "some", 7, len(kinds))
    proxies = loop.factory.initial(Streams(range(7)))
    company = loop.run(proxies, seeds)
    assert company.returns.isfinite().all() and company.returns.unique().numel() > 3
    for rows in ([4], [6, 1, 2]):
        alone = loop.run(proxies[rows], [seeds[i] for i in rows])
        for name in ("returns", "steps", "episodes"):
            assert torch.equal(getattr(alone, name), getattr(company, name)[rows]), name
        tests = company.curve.shape[1]
        assert torch.equal(alone.curve[:, :tests], company.curve[rows])
    # A loop of one kind gives the same results.
    for number, kind in enumerate(kinds):
        single_loop = InnerLoop(proxy, kind, config_of(settings.agent, kind, kinds), game)
        rows = [i for i, seed in enumerate(seeds) if seed % len(kinds) == number]
        assert torch.equal(single_loop.run(proxies[rows], [seeds[i] for i in rows]).returns, company.returns[rows])


TINY = (
    "--population 4 --generations 3 --inner_steps 40 --test_episodes 2 --test_limit 30 --center_agents 4 "
    "--eval_every 1 --retest_agents 4 --report_agents 4 --hidden_sizes 8 --batch_size 8 --rollout_steps 20 "
    "--ppo_epochs 1 "
    "--exp_name m --seed 1 --logger none --no_compiled --test_limit_first 10 --test_limit_grows 1 3"
).split()


@pytest.mark.parametrize("mode", ["generations", pytest.param("seeds", marks=pytest.mark.slow)])
def test_search_resumes_to_same_results(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two families alternate, and tests get longer from one generation to the next."""
    trained: list[list[int]] = []
    limits: list[int | None] = []
    run = InnerLoop.run

    def spy(self: InnerLoop, proxies: Any, seeds: Any, *args: Any, **kwargs: Any) -> Any:
        trained.append([sum(seed % 2 == number for seed in seeds) for number in (0, 1)])
        self.compiled = None
        limits.append(kwargs.get("test_limit", self.config.test_limit))
        return run(self, proxies, seeds, *args, **kwargs)

    monkeypatch.setattr(InnerLoop, "run", spy)
    flags = [*SE.split(), "--agents_take_turns", mode, *TINY]
    assert trainer.main([*flags, "--logdir", str(tmp_path / "whole")]) in SEARCHED
    assert trained[:3] == ([[6, 6]] * 3 if mode == "seeds" else [[10, 2], [2, 10], [10, 2]])
    assert limits == [10, 20, 30, 30, 30]  # the last two are the re-evaluation and held-out agents
    assert re.search(r"of each +DDQN [\d.]+, PPO [\d.]+", capsys.readouterr().out)
    parted = [*flags, "--logdir", str(tmp_path / "parted")]
    for words in (["--generations", "2"], ["--resume"]):
        assert trainer.main([*parted, *words]) in SEARCHED
    folders = [run_folder(tmp_path / name) for name in ("whole", "parted")]
    second = files.load(folders[1] / "proxy.safetensors")
    same_runs(*folders)
    solved = read_metrics(folders[0] / "metrics.csv")["search/center_solved"]
    assert [math.isnan(share) for share in solved] == [True, True, False], "only full tests count"
    assert [row["generation"] for row in second.description["scores"]["second_test"]] == [3, 4]
    # Evaluated agents have the settings of their family in the search.
    for name, expected in (("PPO", {"rollout_steps": 20}), ("DDQN", {}), ("DuelingDDQN", {})):
        agent_config = agent_settings(second, name, {"lr": 0.5})
        assert (agent_config.hidden_sizes, agent_config.lr) == ((8,), 0.5)
        assert all(getattr(agent_config, key) == value for key, value in expected.items())
    assert second.description["scores"]["report"]["by_implementation"].keys() == {"DDQN", "PPO"}
    capsys.readouterr()
    words = ["--eval_agent", str(folders[0]), "--num_agents", "4", "--no_real_baseline", "--DDQN_lr", "1e-2"]
    assert trainer.main(words) in SEARCHED
    assert re.search(r"\n  DDQN [\d.]+, PPO [\d.]+\n", capsys.readouterr().out)
