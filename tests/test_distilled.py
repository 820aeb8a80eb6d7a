"""Bandits of a few pairs of state and action, which are what is searched for."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainer
from control.cli import parse
from control.storage.run_dir import read_metrics
from envs.make import stages_of
from fake_runs import refused
from helpers import trained
from models.proxies import files
from models.streams import Streams
from test_teachers import made

SEARCH = partial(trained, implementation="SE")
WORDS = "--proxy bandit --preset distilled --pairs 3 --agent TD3 --no_compiled --fill 5 --num_envs 2 --no_vary_hp"


def stages(game: str, *more: str) -> Any:
    agent = ["--agent", "TD3"] if game == "pendulum" else []
    words = ["--implementation", "SE", "--gamename", game, "--proxy", "bandit", "--preset", "distilled", *agent]
    return stages_of(parse.parse([*words, *more]).proxy, game)


@pytest.mark.parametrize(("game", "numbers"), [("cartpole", 4 + 2), ("pendulum", 3 + 1)])
def test_a_target_says_what_the_pairs_say_and_is_the_same_in_company(game: str, numbers: int) -> None:
    own = stages(game, "--pairs", "5")
    like = own.initial(Streams([3]))[0]
    known = own.known(like) + 0.5 * Streams([4]).normal(4, 5 * numbers)[0]
    assert known.shape == (4, 5 * numbers) and not own.known(like).view(5, -1)[:, numbers - 1].any()
    flat = own.completed(known, like)
    for one, row in zip(known, flat, strict=True):
        assert torch.equal(own.completed(one, like), row)
    fixed, first = own.parameters.fixed(flat), own.parameters.fixed(like[None])
    assert fixed["states.table"].shape == (4, 5, own.parameters.state_size)
    for name in ("target.center", "target.spread"):
        assert torch.equal(fixed[name], first[name].expand_as(fixed[name]))
    again = torch.stack([own.known(row) for row in flat])
    wanted = known.view(4, 5, -1).clone()
    if game == "pendulum":
        wanted[..., 3:].clamp_(-1, 1)
    torch.testing.assert_close(again.view(4, 5, -1), wanted, atol=0.05, rtol=0)


def test_first_weights_are_those_of_the_stream() -> None:
    own = stages("cartpole", "--pairs", "5")
    like = own.initial(Streams([3]))[0]
    known = (own.known(like) + 0.5 * Streams([4]).normal(30)[0]).expand(2, -1)
    flat = own.taught(known, like, Streams([7, 8]))
    assert torch.equal(flat[0], own.taught(known[:1], like, Streams([7]))[0])
    assert torch.equal(*own.parameters.fixed(flat)["states.table"]) and not torch.equal(*flat)


def test_a_search_leaves_pairs_and_a_resumed_one_the_same(tmp_path: Path) -> None:
    values: dict[str, Any] = {"gamename": "pendulum", "eval_every": 1, "population": 4, "deploy_steps": 20}
    words = f"{WORDS} --buffer_size 50 --keep_best 1 --retest_agents 1 --report_agents 2".split()
    folder = SEARCH(tmp_path / "whole", *words, **values, generations=2)
    proxy = files.load(folder / "proxy.safetensors")
    named = proxy.networks.named(proxy.parameters)
    assert named["states.table"].shape == (3, 3) and proxy.config.pairs == 3
    assert np.isfinite(read_metrics(folder / "metrics.csv")["search/center_return"]).all()
    part = SEARCH(tmp_path / "parts", *words, **values, generations=1)
    SEARCH(tmp_path / "parts", *words, "--resume", **values, generations=2)
    assert torch.equal(files.load(part / "proxy.safetensors").parameters, proxy.parameters)


def test_a_search_may_start_from_what_a_policy_does() -> None:
    own, flat = made("cartpole", "test_teachers:balance", "--pairs", "6")
    pairs = own.known(flat).view(6, 6)
    states = own.parameters.fixed(flat[None])["states.table"][0]
    wanted = (states @ torch.tensor([0.5, 1.0, 10.0, 2.0]) > 0).long()
    torch.testing.assert_close(pairs[:, 4:], torch.eye(2)[wanted], atol=0.05, rtol=0)


@pytest.mark.parametrize(("more", "said"), [
    ("--proxy bandit --preset distilled --pairs 1", "pairs is 1; allowed: integer, at least 2, at most 64; or null"),
    ("--proxy bandit --preset distilled --pairs 65", "pairs is 65; allowed: integer, at least 2, at most 64; or null"),
    ("--proxy bandit --preset distilled --reward_form free", "but reward_form is 'free', which has no target"),
    ("--proxy bandit --preset distilled --first_states latent", "first_states is 'latent', but pairs is "),
    ("--proxy bandit --preset distilled --table_size 9", "table_size has no effect: pairs is "),
    ("--proxy mdp --pairs 4", "pairs is 4, but proxy is 'mdp'; allowed: null, or the proxy bandit"),
])  # fmt: skip
def test_bad_input_is_one_line(more: str, said: str, tmp_path: Path, capsys: Any) -> None:
    argv = ["--implementation", "SE", "--gamename", "cartpole", "--logdir", str(tmp_path), *more.split()]
    refused(trainer.main, argv, said, capsys)
    assert not list(tmp_path.iterdir())
