"""The inner loop: every agent trains as if alone, no matter if others stop or fail."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

import test_learn  # noqa: F401  # registers environments
from control.evolution.inner_loop import InnerLoop, Outcome, fresh_seeds
from control.loops.rollout import Episodes
from models.agents.ddqn.config import Config as AgentConfig
from models.agents.tabular.config import Config as TableConfig
from models.proxies.reward.config import Config as Reward
from models.proxies.synthetic.config import Config
from models.streams import Streams

AGENT = AgentConfig(hidden_sizes=(8,), batch_size=5, lr=1e-2, eps_decay=0.8)
TABLES = TableConfig(lr=1.0, discount=0.8, eps_init=0.3, eps_min=0.3, eps_decay=1.0, random_ties=False)
SMALL = Config(proxy_hidden_size=7, max_steps=25, inner_steps=160, test_episodes=3, test_limit=60)
PLATEAU: dict[str, Any] = {"inner_rule": "plateau", "early_out_num": 2, "early_out_virtual_diff": 0.1}
TESTS: dict[str, Any] = {"inner_rule": "tests", "solved_reward": 4.0, "test_limit": 3}  # of 3 steps each


class Watched(InnerLoop):
    """Keeps the tested weights, as scores alone would hide differences."""

    def run(self, proxies: Tensor | None, seeds: Any, *args: Any, **kwargs: Any) -> Outcome:
        self.tested: dict[int, Tensor] = {}
        outcome = super().run(proxies, seeds, *args, **kwargs)
        outcome.weights = [self.tested[seed] for seed in seeds]  # type: ignore[attr-defined]
        return outcome

    def test(self, policy: Any, seeds: Any) -> Episodes:
        self.tested |= dict(zip(seeds, policy.flat_parameters.clone(), strict=True))
        return super().test(policy, seeds)


def loop_of(game: str = "cartpole", agent: dict[str, Any] | None = None, **changes: Any) -> Watched:
    return Watched(dataclasses.replace(SMALL, **changes), "DDQN", dataclasses.replace(AGENT, **(agent or {})), game)


def proxies_of(loop: InnerLoop, count: int) -> Tensor:
    """Random proxies with episodes of one step up to the limit."""
    flat = 2 * loop.factory.parameters.initial(Streams(range(count)))
    if "done" in loop.factory.parameters.mlps:
        last_done(loop, flat).add_(torch.linspace(-0.4, 0.8, count))
    return flat


def last_done(loop: InnerLoop, flat: Tensor) -> Tensor:
    """The last biases [M] of the networks that end episodes, as a view."""
    networks = loop.factory.parameters
    return networks.mlps["done"].layers(networks.split(flat)["done"])[-1][1][:, 0, 0]


def assert_same_alone(
    loop: Any, proxies: Tensor | None, seeds: Any, company: Outcome, *groups: Any, **kwargs: Any
) -> None:
    """Each of ``groups``, lists of rows, gives the same numbers as with the others."""
    for rows in groups:
        outcome = loop.run(None if proxies is None else proxies[rows], [seeds[i] for i in rows], **kwargs)
        for weights, i in zip(outcome.weights, rows, strict=True):
            assert torch.equal(weights, company.weights[i])  # type: ignore[attr-defined]
        for name in ("returns", "scores", "steps", "episodes"):
            assert torch.equal(getattr(outcome, name), getattr(company, name)[rows]), name


# name -> settings of the proxies and of the agents; the first three end with their budget
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "budget": ({}, {}),
    "dueling": ({"inner_steps": 40},
                {"head": "dueling", "dueling_mean": "batch", "vary_hp": True, "feature_dim": 6}),
    "bandits": ({"proxy": "bandit", "inner_steps": 400},
                {"num_envs": 10, "fill": 30, "init_episodes": 0, "buffer_size": 200, "eps_fraction": 0.5,
                 "vary_hp": True, "vary": ("lr",)}),
    "plateau": (PLATEAU, {}),
    "plateau with a floor": (PLATEAU | {"plateau_floor": 100}, {"num_envs": 2}),
    "episodes": ({"train_episodes": 15}, {}),
    "learned reset, raw done": (PLATEAU | {"learned_reset": True, "raw_done": True}, {}),
    "varied": (PLATEAU, {"vary_hp": True, "vary": ("lr", "depth"), "hidden_sizes": (8, 8)}),
    "tests": ({"inner_rule": "tests", "solved_reward": 12.0, "early_out_num": 3, "test_limit": 15, "inner_steps": 60},
              {}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_agent_alone_equals_agent_in_company(case: str) -> None:
    settings, agent = CASES[case]
    loop, seeds = loop_of(agent=agent, **settings), list(range(20, 32))
    proxies = proxies_of(loop, len(seeds))
    company = loop.run(proxies, seeds)
    assert company.returns.unique().numel() > 3
    if case in list(CASES)[:3]:
        assert company.steps.unique().tolist() == [loop.config.inner_steps]
    else:
        assert company.steps.min() < 160 and company.steps.unique().numel() > 3
        assert company.episodes.unique().numel() > 1
    assert_same_alone(loop, proxies, seeds, company, [5], [10, 3, 7])


@pytest.mark.parametrize("rule", ["budget", "plateau", "solved"])
def test_alone_equals_company_on_the_real_environment(rule: str) -> None:
    settings = PLATEAU | {"inner_rule": "budget", "solved_reward": 20.0, "inner_steps": 250}
    loop, seeds = loop_of(**settings), list(range(8))
    company = loop.run(None, seeds, inner_rule=rule)
    assert (company.steps.unique().numel() > 1) == (rule != "budget")
    assert_same_alone(loop, None, seeds, company, [0], [5, 2], inner_rule=rule)


@pytest.mark.xdist_group("compiled")
@pytest.mark.parametrize("rule", ["budget", "solved"])
def test_agents_train_in_machine_code_where_python_steps(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if reports of progress divide the steps into other blocks, and with numbers like those of torch."""
    loop = loop_of("test_learn:Corridor-v0", test_limit=12, solved_reward=0.5)
    in_torch = loop_of("test_learn:Corridor-v0", test_limit=12, solved_reward=0.5, compiled=False)
    assert loop.runs_compiled() and not in_torch.runs_compiled()
    seeds, expected = [3, 4, 5], in_torch.run(None, [3, 4, 5], inner_rule=rule)
    monkeypatch.setattr("models.agents.ddqn.agent.Agent.learn", None)
    monkeypatch.setattr("control.evolution.inner_loop._WATCH_STEPS", 37)
    company = loop.run(None, seeds, inner_rule=rule, watch=lambda fraction: None)
    assert torch.equal(company.steps, expected.steps) and torch.equal(company.episodes, expected.episodes)
    for weights, torch_weights in zip(company.weights, expected.weights, strict=True):  # type: ignore[attr-defined]
        torch.testing.assert_close(weights, torch_weights, rtol=1e-3, atol=1e-4)
    assert_same_alone(loop, None, seeds, company, [0], [2, 1], inner_rule=rule)


# game, agents, settings of the agents, settings of the search
ON_REWARDS: dict[str, tuple[str, str, Any, dict[str, Any]]] = {
    "tables": ("emptyroom33", "QLearning", TABLES, {"mode": 2, "test_every": 40}),
    "networks of two kinds": ("cartpole-200", "DDQN,DuelingDDQN", AGENT, {"mode": 6, "test_every": 50}),
    "members that end early": ("cartpole-200", "DDQN", AGENT, {"mode": 2, "train_episodes": 6}),
    "members that end early on a map": ("emptyroom33", "QLearning", TABLES, {"mode": 2, "train_episodes": 6}),
}  # fmt: skip


@pytest.mark.xdist_group("compiled")
@pytest.mark.parametrize("case", ON_REWARDS)
def test_alone_equals_company_on_learned_rewards(case: str) -> None:
    game, agents, agent, settings = ON_REWARDS[case]
    config = Reward(**{"proxy_hidden_size": 7, "inner_steps": 200, "test_episodes": 2, "test_limit": 40} | settings)
    loop = InnerLoop(config, agents, agent, game)
    seeds = fresh_seeds(3, "ten", 10, len(loop.implementations))
    proxies = 5 * loop.factory.initial(Streams(range(10)))
    company = loop.run(proxies, seeds)
    tests = 200 // config.test_every if config.test_every else 0
    assert company.curve.shape == (10, tests) and company.returns.unique().numel() > 1
    for rows in ([5], [8, 3, 6]):
        alone = loop.run(proxies[rows], [seeds[i] for i in rows])
        for name in ("returns", "lengths", "curve", "steps", "episodes"):
            assert torch.equal(getattr(alone, name), getattr(company, name)[rows]), name
    if tests and game == "cartpole-200":  # other starts at every test
        assert not torch.equal(company.curve[:, 0], company.curve[:, 1])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_broken_proxy_does_not_affect_others(bad: float) -> None:
    loop, seeds = loop_of(agent={"vary_hp": True, "vary": ("lr",)}, **PLATEAU), list(range(5))
    proxies = proxies_of(loop, 5)
    broken = proxies.clone()
    broken[2] = bad
    outcome, rest = loop.run(broken, seeds), [0, 1, 3, 4]
    assert_same_alone(loop, proxies, seeds, outcome, rest)
    assert outcome.returns[rest].isfinite().all() and (outcome.steps > 0).all()
    if bad != bad:  # agents with NaN weights have failed
        assert outcome.returns[2].isnan().all()


def test_counts_of_steps_and_episodes() -> None:
    """One proxy ends each episode after one step and the other at the limit of 25; two environments an agent."""
    loop = loop_of(agent={"num_envs": 2}, inner_steps=101)
    proxies = torch.zeros(2, loop.factory.parameters.size)
    last_done(loop, proxies)[1] = 1.0
    outcome = loop.run(proxies, [0, 1])
    assert outcome.steps.tolist() == [102, 102]  # 51 each
    assert outcome.episodes.tolist() == [4, 102]
    outcome = loop_of(agent={"num_envs": 2}, train_episodes=4).run(proxies, [0, 1])
    assert outcome.steps.tolist() == [100, 4] and outcome.episodes.tolist() == [4, 4]
    outcome = loop.run(proxies, [0, 1], inner_steps=50, test_limit=5, inner_rule="budget")  # in place of the settings
    assert outcome.steps.tolist() == [50, 50] and outcome.returns.tolist() == [[5.0] * 3] * 2
    assert outcome.test_steps == 30
    # The rule ignores agents that have finished.
    outcome = loop_of(**TESTS, agent={"init_episodes": 1_000}, train_episodes=1).run(proxies, [0, 1])
    assert outcome.steps.tolist() == [25, 1] and outcome.episodes.tolist() == [1, 1]
    assert outcome.test_steps == 2 * 9 + 2 * 9


def test_sample_all_equals_vary_hp() -> None:
    loop = InnerLoop(dataclasses.replace(SMALL, inner_steps=40), "DDQN", AGENT, "cartpole")
    drawing = loop_of(inner_steps=40, agent={"vary_hp": True})
    proxies = proxies_of(drawing, 3)
    outcome, expected = loop.run(proxies, [0, 1, 2], sample_all=True), drawing.run(proxies, [0, 1, 2])
    assert torch.equal(outcome.returns, expected.returns) and outcome.test_steps == expected.test_steps
    assert torch.equal(outcome.episodes, expected.episodes) and loop.agent_config is AGENT


def test_starts_of_tests_depend_on_the_seed_alone() -> None:
    """Agents that cannot learn have the same returns with the same seed on any proxy."""
    loop = loop_of(agent={"init_episodes": 10_000})
    returns = loop.run(proxies_of(loop, 4), [3, 3, 4, 3]).returns
    assert torch.equal(returns[0], returns[1]) and torch.equal(returns[0], returns[3])
    assert not torch.equal(returns[0], returns[2])


def test_tests_rule_ends_training_after_an_episode() -> None:
    """A test of CartPole always pays 9 or more in 12 steps: solved at 5 with the first episode that may count."""
    loop = loop_of(**TESTS | {"solved_reward": 5.0, "test_limit": 12}, agent={"init_episodes": 3})
    proxies, seeds = proxies_of(loop, 4), list(range(4))
    outcome = loop.run(proxies, seeds)
    assert outcome.episodes.tolist() == [4] * 4 and outcome.steps.unique().numel() > 1
    unsolved_loop = loop_of(**TESTS | {"solved_reward": 13.0, "test_limit": 12}, inner_steps=40)
    assert unsolved_loop.run(proxies, seeds).steps.tolist() == [40] * 4
