"""Bandits cloned from a policy, hand-written or trained, and bandits of a few pairs of state and action."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import test_learn  # noqa: F401  # registers environments
import trainer
from conftest import Finished
from control.cli import parse
from control.evolution import teachers
from control.evolution.teachers import cloned_proxy, teacher, visited_states
from envs.make import make_environment, proxy_factory
from helpers import trained
from models.settings import SettingError
from models.streams import Streams

CARTPOLE = make_environment("cartpole", 1, 1).spaces
PENDULUM = make_environment("pendulum", 1, 1).spaces
CLONE = parse.parse(["--implementation", "SE", "--gamename", "cartpole", "--proxy", "bandit", "--preset", "clone",
                     "--start_from", "test_teachers:balance"]).proxy  # fmt: skip
searched = partial(trained, implementation="SE")


pytestmark = pytest.mark.usefixtures("short_fits")


@pytest.fixture
def agent(finished: Finished) -> str:
    """The folder of a run of DDQN on CartPole, to be read only."""
    return str(finished(implementation="DDQN")[0])


def balance(obs: np.ndarray) -> np.ndarray:
    return (obs @ np.array([0.5, 1.0, 10.0, 2.0]) > 0).astype(int)


def brake(obs: np.ndarray) -> np.ndarray:
    return (-obs[:, 2:] / 4).astype(float)  # float64


def late(obs: np.ndarray) -> list[int]:
    return [2] * len(obs)


def half(obs: np.ndarray) -> np.ndarray:
    return np.full(len(obs), 0.5)


def lost(obs: np.ndarray) -> np.ndarray:
    return np.where(np.arange(len(obs)) < 2, 0.0, np.nan)  # fails far from the start


def huge_action(obs: np.ndarray) -> np.ndarray:
    return 1e30 * np.sign(obs[:, 0])


def ending(obs: np.ndarray) -> np.ndarray:
    raise SystemExit(3)


def broken(obs: np.ndarray) -> np.ndarray:
    raise RuntimeError("no such policy")


def make_clone(game: str, source: str, *extra_flags: str) -> tuple[Any, torch.Tensor]:
    """The factory and the parameters of the clone."""
    words = ["--implementation", "SE", "--gamename", game, "--proxy", "bandit", "--preset", "clone"]
    agent = ["--agent", "TD3"] if game == "pendulum" else []
    size_flags = ["--proxy_hidden_layer", "1", "--dagger_rounds", "1"]
    size_flags += [] if {"latent", "--pairs"} & {*extra_flags} else ["--table_size", "300"]
    config = parse.parse([*words, *agent, "--start_from", source, *size_flags, *extra_flags]).proxy
    factory = proxy_factory(config, game)
    return factory, cloned_proxy(source, factory, 0)


def test_clone_imitates_its_teacher() -> None:
    factory, flat = make_clone("cartpole", "test_teachers:balance")
    networks = factory.parameters
    states = networks.fixed_tensors(flat[None])["states.table"]
    actions = networks.target(flat[None]).act(states)[0]
    expected = torch.from_numpy(balance(states[0].numpy()))
    assert (actions == expected).double().mean() > 0.97
    assert 0.1 < expected.double().mean() < 0.9


def test_continuous_clone_imitates_within_the_bounds() -> None:
    factory, flat = make_clone("pendulum", "test_teachers:brake")
    states = factory.parameters.fixed_tensors(flat[None])["states.table"]
    assert states[0, :, 2].abs().max() > 4  # also states that the policy alone does not visit
    actions = factory.parameters.target(flat[None]).act(states)[0]
    expected = torch.from_numpy(brake(states[0].numpy())).clamp(-2, 2)
    assert (actions - expected).abs().mean() < 0.05


def test_values_of_an_agent_become_rewards(agent: str) -> None:
    factory, flat = make_clone("cartpole", agent, "--clone_of", "values", "--reward_form", "free")
    states = factory.parameters.fixed_tensors(flat[None])["states.table"][0]
    q = teacher(agent, "cartpole", CARTPOLE, wants_values=True)(states)
    program = factory.parameters.with_weights(flat[None])
    rewards = torch.stack([program.step(states[None], torch.full((1, len(states)), a)).reward[0] for a in (0, 1)], 1)
    expected = (q - q.mean()) / q.std()
    assert np.corrcoef(rewards.flatten(), expected.flatten())[0, 1] > 0.98
    without_target = factory.with_visited_states(flat, lambda *_: torch.zeros(300, 4), False)
    assert torch.equal(without_target, flat)


def test_teacher_acts_greedily(agent: str) -> None:
    policy, obs = teacher(agent, "cartpole", CARTPOLE), 0.1 * torch.randn(20, 4)
    assert policy(obs).tolist() == [trainer.load(agent).predict(observation) for observation in obs.numpy()]


@pytest.mark.parametrize("name", ["PPO", "A2C", "DQN", "SAC", "TD3", "DDPG"])
def test_agent_of_stable_baselines3_is_a_policy(name: str, tmp_path: Path) -> None:
    library = pytest.importorskip("stable_baselines3")
    game, spaces = ("pendulum", PENDULUM) if name in ("SAC", "TD3", "DDPG") else ("cartpole", CARTPOLE)
    env_id = "Pendulum-v1" if game == "pendulum" else "CartPole-v1"
    model = getattr(library, name)("MlpPolicy", env_id, policy_kwargs={"net_arch": [8]}, seed=1)
    model.save(tmp_path / "agent")
    source, obs = str(tmp_path / "agent.zip"), torch.randn(20, *spaces.obs_shape)
    assert teachers.is_teacher(source)
    expected, _ = model.predict(obs.numpy(), deterministic=True)
    assert np.array_equal(teacher(source, game, proxy_factory(CLONE, game).spaces)(obs).numpy(), expected)
    if name == "DQN":
        q = teacher(source, game, spaces, wants_values=True)(obs)
        assert (q.argmax(1).numpy() == expected).all() and q.shape == (20, 2)
    else:
        with pytest.raises(SettingError, match=f"{name.replace('DDPG', 'TD3')} has no value of each action"):
            teachers.load_sb3_policy(source, spaces, wants_values=True)
    with pytest.raises(SettingError, match=r"one for observations \[6\] and actions Discrete\(n=3\)"):
        teacher(source, "acrobot", make_environment("acrobot", 1, 1).spaces)


def test_visited_states_come_from_the_policy_and_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    act = teacher("test_teachers:balance", "cartpole", CARTPOLE)
    states = visited_states(act, 600, None, "cartpole", 0)
    assert states.shape == (600, 4) and torch.equal(states, visited_states(act, 600, None, "cartpole", 0))
    monkeypatch.setattr(teachers, "_NOISE_LEVELS", (0.0,))
    calm = visited_states(act, 600, None, "cartpole", 0)
    assert states[:, 2].std() > 1.5 * calm[:, 2].std()
    starts = visited_states(act, 600, 1, "cartpole", 0)
    assert starts.abs().max() <= 0.05 < states.abs().max() and len(starts.unique(dim=0)) == 600
    monkeypatch.setattr("models.proxies.fitting._UPDATES", 1)  # only the states count
    factory, flat = make_clone("cartpole", "test_teachers:balance", "--table_episodes", "1")
    assert factory.parameters.fixed_tensors(flat[None])["states.table"].abs().max() <= 0.05


@pytest.mark.parametrize(
    ("source", "words", "game"),
    [
        ("test_teachers:nobody", "module:function", "cartpole"),
        ("test_teachers:late", "the action 2; allowed: whole numbers, 0 to 1", "cartpole"),
        ("test_teachers:broken", "failed: no such policy", "cartpole"),
        ("test_teachers:half", "the action 0.5; allowed: whole numbers, 0 to 1", "cartpole"),
        ("test_teachers:lost", "gives numbers that are not finite; allowed", "cartpole"),
        ("test_teachers:ending", "failed: 3; allowed: a function", "cartpole"),
        ("test_learn:nine", "failed: [9 9] is not in MultiDiscrete([5 7])", "test_learn:Orders-v0"),
        ("test_learn:left", "failed: 0 is not in Discrete(40, start=1)", "test_learn:Order-v0"),
    ],
)
def test_invalid_teacher_is_an_error(source: str, words: str, game: str) -> None:
    spaces = make_environment(game, 1, 1).spaces
    with pytest.raises(SettingError, match=f"start_from is '{source}'.*{re.escape(words)}"):
        teacher(source, game, spaces)(torch.zeros(3, *spaces.obs_shape))


def test_continuous_actions_are_clipped() -> None:
    actions = teacher("test_teachers:huge_action", "pendulum", PENDULUM)(
        torch.tensor([[1.0, 0, 0], [-1.0, 0, 0], [0.0, 1, 0]])
    )
    assert actions.tolist() == [[2.0], [-2.0], [0.0]]


def test_search_from_a_policy_has_the_agents_of_a_clone() -> None:
    """States of a policy are close to each other, so agents need many updates. Tuned games keep their settings."""

    def settings(game: str, *words: str) -> Any:
        return parse.parse(["--implementation", "SE", "--gamename", game, "--proxy", "bandit", "--preset", *words])

    start = ("--start_from", "test_teachers:balance")
    search, clone = settings("lunarlander", "two_stage", *start), settings("lunarlander", "clone", *start)
    assert search.agent == clone.agent != settings("lunarlander", "two_stage").agent
    assert search.proxy.deploy_steps == clone.proxy.inner_steps
    tuned, random_start = settings("cartpole", "two_stage", *start), settings("cartpole", "two_stage")
    assert tuned.agent == random_start.agent and tuned.proxy.deploy_steps == random_start.proxy.deploy_steps
    assert settings("lunarlander", "two_stage", *start, "--lr", "0.5", "--deploy_steps", "7").agent.lr == 0.5


def pair_stages(game: str, *extra_flags: str) -> Any:
    agent = ["--agent", "TD3"] if game == "pendulum" else []
    words = ["--implementation", "SE", "--gamename", game, "--proxy", "bandit", "--preset", "distilled", *agent]
    return proxy_factory(parse.parse([*words, *extra_flags]).proxy, game)


@pytest.mark.parametrize(("game", "numbers"), [("cartpole", 4 + 2), ("pendulum", 3 + 1)])
def test_a_target_says_what_the_pairs_say_and_is_the_same_in_company(game: str, numbers: int) -> None:
    search_stages = pair_stages(game, "--pairs", "5")
    template = search_stages.initial(Streams([3]))[0]
    searched = search_stages.searched_part(template) + 0.5 * Streams([4]).normal(4, 5 * numbers)[0]
    assert (
        searched.shape == (4, 5 * numbers)
        and not search_stages.searched_part(template).view(5, -1)[:, numbers - 1].any()
    )
    flat = search_stages.with_searched_part(searched, template)
    for searched_row, row in zip(searched, flat, strict=True):
        assert torch.equal(search_stages.with_searched_part(searched_row, template), row)
    fixed, first = search_stages.parameters.fixed_tensors(flat), search_stages.parameters.fixed_tensors(template[None])
    assert fixed["states.table"].shape == (4, 5, search_stages.parameters.state_size)
    for name in ("target.center", "target.spread"):
        assert torch.equal(fixed[name], first[name].expand_as(fixed[name]))
    restored = torch.stack([search_stages.searched_part(row) for row in flat])
    expected = searched.view(4, 5, -1).clone()
    if game == "pendulum":
        expected[..., 3:].clamp_(-1, 1)
    torch.testing.assert_close(restored.view(4, 5, -1), expected, atol=0.05, rtol=0)


def test_first_weights_are_those_of_the_stream() -> None:
    search_stages = pair_stages("cartpole", "--pairs", "5")
    template = search_stages.initial(Streams([3]))[0]
    searched = (search_stages.searched_part(template) + 0.5 * Streams([4]).normal(30)[0]).expand(2, -1)
    flat = search_stages.train_on_pairs(searched, template, Streams([7, 8]))
    assert torch.equal(flat[0], search_stages.train_on_pairs(searched[:1], template, Streams([7]))[0])
    assert torch.equal(*search_stages.parameters.fixed_tensors(flat)["states.table"]) and not torch.equal(*flat)


def test_a_search_may_start_from_what_a_policy_does() -> None:
    search_stages, flat = make_clone("cartpole", "test_teachers:balance", "--pairs", "6")
    pairs = search_stages.searched_part(flat).view(6, 6)
    states = search_stages.parameters.fixed_tensors(flat[None])["states.table"][0]
    margins = states @ torch.tensor([0.5, 1.0, 10.0, 2.0])
    expected_actions = (margins > 0).long()
    assert torch.equal(pairs[:, 4:].argmax(1), expected_actions)
    clear = margins.abs() > 0.2  # near 0 the policy changes its action
    assert clear.sum() >= 4
    torch.testing.assert_close(pairs[clear, 4:], torch.eye(2)[expected_actions[clear]], atol=0.05, rtol=0)
