"""The inner loop: every agent as if alone, whoever else trains, stops or breaks beside it."""

import dataclasses
import gc
import threading
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from control.evolution import inner_loop
from control.evolution.inner_loop import InnerLoop, Outcome, fresh_seeds
from control.loops.rollout import Episodes
from control.loops.steps import StepLoop
from models.agents.ddqn.config import Config as AgentConfig
from models.agents.ppo.config import Config as PPOConfig
from models.agents.tabular.config import Config as TableConfig
from models.agents.td3.config import Config as TD3Config
from models.proxies.reward.config import Config as Reward
from models.proxies.synthetic.config import Config
from models.streams import Streams, numbered_seed
from models.varied import groups

AGENT = AgentConfig(hidden_sizes=(8,), batch_size=5, lr=1e-2, eps_decay=0.8)
TABLES = TableConfig(lr=1.0, discount=0.8, eps_init=0.3, eps_min=0.3, eps_decay=1.0)
SMALL = Config(proxy_hidden_size=7, max_steps=25, inner_steps=160, test_episodes=3, test_limit=60)
PLATEAU: dict[str, Any] = {"inner_rule": "plateau", "early_out_num": 2, "early_out_virtual_diff": 0.1}
TESTS: dict[str, Any] = {"inner_rule": "tests", "solved_reward": 4.0, "test_limit": 3}  # of 3 steps each


class Watched(InnerLoop):
    """Keeps the weights that were tested: a score tells little of them."""

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
    """Random proxies whose episodes last from one step to the limit."""
    flat = 2 * loop.stages.parameters.initial(Streams(range(count)))
    if "done" in loop.stages.parameters.parts:
        last_done(loop, flat).add_(torch.linspace(-0.4, 0.8, count))
    return flat


def last_done(loop: InnerLoop, flat: Tensor) -> Tensor:
    """The last biases [M] of the networks that end episodes, as a view."""
    networks = loop.stages.parameters
    return networks.parts["done"].layers(networks.split(flat)["done"])[-1][1][:, 0, 0]


def same(outcome: Outcome, expected: Outcome, rows: list[int]) -> None:
    for weights, i in zip(outcome.weights, rows, strict=True):  # type: ignore[attr-defined]
        assert torch.equal(weights, expected.weights[i])  # type: ignore[attr-defined]
    for name in ("returns", "scores", "steps", "episodes"):
        assert torch.equal(getattr(outcome, name), getattr(expected, name)[rows]), name


def same_alone(loop: Any, proxies: Tensor | None, seeds: Any, company: Outcome, *groups: Any, **kwargs: Any) -> None:
    """Each of ``groups``, lists of rows, comes out by itself as it did in company."""
    for rows in groups:
        group_proxies = None if proxies is None else proxies[rows]
        same(loop.run(group_proxies, [seeds[i] for i in rows], **kwargs), company, rows)


class Told:
    """Watches work that so many threads begin at once."""

    def __init__(self, threads: int):
        self.all_at_once, self.thread_ids, self.max_progress = threading.Barrier(threads), set[int](), 0.0

    def __call__(self, share: float) -> None:
        self.max_progress = max(self.max_progress, share)
        if threading.get_ident() not in self.thread_ids:
            self.thread_ids.add(threading.get_ident())
            self.all_at_once.wait(10)


@pytest.fixture
def compaction_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many members each compaction left."""
    sizes: list[int] = []
    select = StepLoop.select

    def spy(self: StepLoop, members: Tensor) -> bool:
        sizes.append(len(members))
        return select(self, members)

    monkeypatch.setattr(StepLoop, "select", spy)
    return sizes


# name -> (settings of the proxies, of the agents), all trained on proxies; the first three end with their budget
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
    "two layers": (PLATEAU | {"proxy_hidden_layer": 2}, {"activation": "tanh", "hidden_sizes": (8, 8)}),
    "varied": (PLATEAU, {"vary_hp": True, "vary": ("lr", "depth"), "hidden_sizes": (8, 8)}),
    "waiting": (PLATEAU, {"init_episodes": 4, "fill": 50}),
    "tests": ({"inner_rule": "tests", "solved_reward": 12.0, "early_out_num": 3, "test_limit": 15, "inner_steps": 60},
              {}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_alone_as_in_company_to_the_bit(case: str, compaction_sizes: list[int]) -> None:
    settings, agent = CASES[case]
    loop, seeds = loop_of(agent=agent, **settings), list(range(20, 32))
    proxies = proxies_of(loop, len(seeds))
    company = loop.run(proxies, seeds)
    assert company.returns.unique().numel() > 3
    if case in list(CASES)[:3]:
        assert company.steps.unique().tolist() == [loop.config.inner_steps]
    else:
        assert company.steps.min() < 160 and company.steps.unique().numel() > 3
        assert compaction_sizes and min(compaction_sizes) < 9 and company.episodes.unique().numel() > 1
    if case == "varied":
        assert len(groups(loop.agent_config, seeds)) == 3
    same_alone(loop, proxies, seeds, company, [5], [10, 3, 7])


@pytest.mark.parametrize("case", ["varied", "dueling"])
def test_threads_take_whole_groups_and_change_no_bit(case: str) -> None:
    pytest.importorskip("numba", reason="needs the extra fast")
    settings, agent = CASES[case]
    loop, seeds, outcomes = loop_of(agent=agent, **settings), list(range(20, 26)), []
    proxies = proxies_of(loop, len(seeds))
    for threads in (1, 2):
        loop.threads = threads
        watcher = Told(threads)
        outcomes.append(loop.run(proxies, seeds, watch=watcher))
        assert len(watcher.thread_ids) == threads and watcher.max_progress == pytest.approx(1)
    same(outcomes[1], outcomes[0], list(range(len(seeds))))


def test_many_environments_tell_as_often_how_much_is_done() -> None:
    loop, progress = loop_of(agent={"num_envs": 8}, inner_steps=2560), list[float]()
    loop.run(proxies_of(loop, 2), [1, 2], watch=progress.append)
    assert len(progress) >= 5 and progress == sorted(progress) and progress[-1] == 1


@pytest.mark.parametrize("rule", ["budget", "plateau", "solved"])
def test_alone_as_in_company_on_the_real_environment(rule: str, compaction_sizes: list[int]) -> None:
    settings = PLATEAU | {"inner_rule": "budget", "solved_reward": 20.0, "inner_steps": 250}
    loop, seeds = loop_of(**settings), list(range(8))
    company = loop.run(None, seeds, inner_rule=rule)
    assert (company.steps.unique().numel() > 1) == (len(compaction_sizes) > 0) == (rule != "budget")
    same_alone(loop, None, seeds, company, [0], [5, 2], inner_rule=rule)


def test_alone_as_in_company_without_a_tensor_program() -> None:
    loop, seeds = loop_of("probe-5", **PLATEAU), list(range(6))
    proxies = proxies_of(loop, 6)
    same_alone(loop, proxies, seeds, loop.run(proxies, seeds), [0], [4, 2])
    loop = loop_of("probe-4", **PLATEAU | {"inner_steps": 60, "early_out_virtual_diff": 0.01, "early_out_num": 5})
    company = loop.run(None, seeds)
    assert company.steps.unique().numel() > 2 and company.steps.min() < 30
    same_alone(loop, None, seeds, company, [0], [4, 2])


# game, agents, their settings, those of the search
ON_REWARDS: dict[str, tuple[str, str, Any, dict[str, Any]]] = {
    "tables": ("emptyroom33", "QLearning", TABLES, {"mode": 2, "test_every": 40}),
    "tables of two kinds": ("emptyroom33", "QLearning,SARSA", TABLES, {"mode": 2, "test_every": 40}),
    "networks": ("cartpole-200", "DDQN", AGENT, {"mode": 1, "test_every": 50}),
    "networks of two kinds": ("cartpole-200", "DDQN,DuelingDDQN", AGENT, {"mode": 6, "test_every": 50}),
    "members that leave": ("cartpole-200", "DDQN", AGENT, {"mode": 2, "train_episodes": 6}),
    "members that leave a map": ("emptyroom33", "QLearning", TABLES, {"mode": 2, "train_episodes": 6}),
}  # fmt: skip


@pytest.mark.xdist_group("compiled")
@pytest.mark.parametrize("case", ON_REWARDS)
def test_alone_as_in_company_on_learned_rewards(case: str, compaction_sizes: list[int]) -> None:
    game, agents, agent, settings = ON_REWARDS[case]
    config = Reward(**{"proxy_hidden_size": 7, "inner_steps": 200, "test_episodes": 2, "test_limit": 40} | settings)
    loop = InnerLoop(config, agents, agent, game)
    seeds = fresh_seeds(3, "ten", 10, len(loop.kinds))
    proxies = 5 * loop.stages.initial(Streams(range(10)))
    company = loop.run(proxies, seeds)
    tests = 200 // config.test_every if config.test_every else 0
    assert company.curve.shape == (10, tests) and company.returns.unique().numel() > 1
    assert (len(compaction_sizes) > 0) == ("leave" in case)
    for rows in ([5], [8, 3, 6]):
        alone = loop.run(proxies[rows], [seeds[i] for i in rows])
        for name in ("returns", "lengths", "curve", "steps", "episodes"):
            assert torch.equal(getattr(alone, name), getattr(company, name)[rows]), name
    if tests and game == "cartpole-200":  # other starts at every test
        assert not torch.equal(company.curve[:, 0], company.curve[:, 1])


@pytest.mark.xdist_group("compiled")
@pytest.mark.parametrize(("game", "kind", "agent", "compiled"), [
    ("emptyroom33", "QLearning", TABLES, True),
    ("emptyroom33", "QLearning", TABLES, False),
    ("emptyroom33", "SARSA", dataclasses.replace(TABLES, eps_decay=0.9, eps_min=0.1, random_ties=True), False),
    ("cartpole-200", "DDQN", AGENT, False),
    ("cartpole-200", "PPO", PPOConfig(hidden_sizes=(8,), rollout_steps=20), False),
    ("pendulum", "TD3", TD3Config(hidden_sizes=(8,), batch_size=5, fill=10), False),
])  # fmt: skip
def test_agents_are_freed_with_their_run(game: str, kind: str, agent: Any, compiled: bool) -> None:
    """By their last reference. A cycle would keep all agents of a generation, with their tables and blocks of numbers,
    until Python happens to collect old garbage, many generations later."""
    if compiled:
        pytest.importorskip("numba", reason="needs the extra fast")
    agent_refs: list[weakref.ref[Any]] = []

    class Noted(InnerLoop):
        def begin(self, *parts: Any) -> StepLoop:
            loop = super().begin(*parts)
            agent_refs.append(weakref.ref(loop.agent))
            return loop

    config = Reward(mode=2, proxy_hidden_size=7, inner_steps=60, test_episodes=2, test_limit=20, test_every=30,
                    compiled=compiled)  # fmt: skip
    loop = Noted(config, kind, agent, game)
    gc.disable()
    try:
        loop.run(loop.stages.initial(Streams(range(3))), [4, 5, 6])
        assert len(agent_refs) == 1 and agent_refs[0]() is None
    finally:
        gc.enable()


def test_programs_that_take_turns_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, seeds = loop_of(**PLATEAU), list(range(7))
    proxies = proxies_of(loop, 7)
    expected = loop.run(proxies, seeds)
    monkeypatch.setattr(inner_loop, "MOST_MEMBERS", 3)
    parts = loop.run(proxies, seeds)
    same(parts, expected, list(range(7)))
    assert parts.test_steps == expected.test_steps > 0 and parts.train_seconds > 0 and parts.test_seconds > 0


def test_an_agent_that_stopped_is_the_agent_of_that_moment() -> None:
    """Tested as it was, though it learned on beside the others until it left the program."""
    loop, seeds = loop_of(**PLATEAU), list(range(12))
    proxies = proxies_of(loop, 12)
    company = loop.run(proxies, seeds)
    early = (company.steps < 160).nonzero()[:, 0].tolist()
    assert len(early) > 3
    for i in early[:3]:
        same(loop.run(proxies[[i]], [seeds[i]], inner_steps=int(company.steps[i]), inner_rule="budget"), company, [i])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_a_proxy_that_breaks_leaves_the_others_alone(bad: float) -> None:
    loop, seeds = loop_of(agent={"vary_hp": True, "vary": ("lr",)}, **PLATEAU), list(range(5))
    proxies = proxies_of(loop, 5)
    broken = proxies.clone()
    broken[2] = bad
    outcome, rest = loop.run(broken, seeds), [0, 1, 3, 4]
    same_alone(loop, proxies, seeds, outcome, rest)
    assert outcome.returns[rest].isfinite().all() and (outcome.steps > 0).all()
    if bad != bad:  # its agents' weights are NaN: such an agent plays on, always the same, and has failed
        assert outcome.returns[2].isnan().all()


def test_counts_of_steps_and_episodes() -> None:
    """One-step proxies, and proxies that end at the limit of 25 alone, two environments an agent."""
    loop = loop_of(agent={"num_envs": 2}, inner_steps=101)
    proxies = torch.zeros(2, loop.stages.parameters.size)
    last_done(loop, proxies)[1] = 1.0
    outcome = loop.run(proxies, [0, 1])
    assert outcome.steps.tolist() == [102, 102]  # 51 each
    assert outcome.episodes.tolist() == [4, 102]
    outcome = loop_of(agent={"num_envs": 2}, train_episodes=4).run(proxies, [0, 1])
    assert outcome.steps.tolist() == [100, 4] and outcome.episodes.tolist() == [4, 4]
    outcome = loop.run(proxies, [0, 1], inner_steps=50, test_limit=5, inner_rule="budget")  # in place of the settings
    assert outcome.steps.tolist() == [50, 50] and outcome.returns.tolist() == [[5.0] * 3] * 2
    assert outcome.test_steps == 30
    # The rule does not ask about an agent that has finished, whose episodes end at every step beside the other's.
    outcome = loop_of(**TESTS, agent={"init_episodes": 1_000}, train_episodes=1).run(proxies, [0, 1])
    assert outcome.steps.tolist() == [25, 1] and outcome.episodes.tolist() == [1, 1]
    assert outcome.test_steps == 2 * 9 + 2 * 9


def test_sampled_agents_are_those_of_settings_that_sample_everything() -> None:
    loop = InnerLoop(dataclasses.replace(SMALL, inner_steps=40), "DDQN", AGENT, "cartpole")
    drawing = loop_of(inner_steps=40, agent={"vary_hp": True})
    proxies = proxies_of(drawing, 3)
    outcome, expected = loop.run(proxies, [0, 1, 2], sample_all=True), drawing.run(proxies, [0, 1, 2])
    assert torch.equal(outcome.returns, expected.returns) and outcome.test_steps == expected.test_steps
    assert torch.equal(outcome.episodes, expected.episodes) and loop.agent_config is AGENT


def test_tests_start_from_the_agent_s_seed_alone() -> None:
    """Agents that cannot learn: the same seed has the same returns on any proxy, another seed has others."""
    loop = loop_of(agent={"init_episodes": 10_000})
    returns = loop.run(proxies_of(loop, 4), [3, 3, 4, 3]).returns
    assert torch.equal(returns[0], returns[1]) and torch.equal(returns[0], returns[3])
    assert not torch.equal(returns[0], returns[2])


def test_the_tests_rule_ends_a_training_after_an_episode() -> None:
    """A test of CartPole always pays 9 or more in 12 steps: solved at 5 with the first episode that may count."""
    loop = loop_of(**TESTS | {"solved_reward": 5.0, "test_limit": 12}, agent={"init_episodes": 3})
    proxies, seeds = proxies_of(loop, 4), list(range(4))
    outcome = loop.run(proxies, seeds)
    assert outcome.episodes.tolist() == [4] * 4 and outcome.steps.unique().numel() > 1
    unsolved_loop = loop_of(**TESTS | {"solved_reward": 13.0, "test_limit": 12}, inner_steps=40)
    assert unsolved_loop.run(proxies, seeds).steps.tolist() == [40] * 4


def test_steps_of_the_rule_s_tests_are_counted() -> None:
    """Every episode of training costs three tests of three steps, and the end three more."""
    loop, seeds = loop_of(**TESTS, train_episodes=9, inner_steps=100), list(range(6))
    proxies = proxies_of(loop, 6)
    company = loop.run(proxies, seeds)
    assert company.episodes.unique().numel() > 1
    assert company.test_steps == 9 * int(company.episodes.sum()) + 9 * 6
    assert company.test_steps == sum(loop.run(proxies[[i]], [seeds[i]]).test_steps for i in range(6))


def test_the_rule_s_tests_differ_from_episode_to_episode() -> None:
    test_seeds = {numbered_seed(seed, episode) for seed in range(50) for episode in range(50)}
    assert len(test_seeds) == 2500 and min(test_seeds) >= 0
    assert 0 <= numbered_seed(2**62 + 5, 3) < 2**63
