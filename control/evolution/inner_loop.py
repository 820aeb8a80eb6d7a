"""The inner loop: fresh agents train on proxies (or on the real environment) and are tested on the real environment.

A proxy is a learned environment or a learned reward. ``proxies [N, D]`` are the D weights of one proxy for each of N
agents. A test plays K episodes of each agent on the real environment, and ``curve [N, T]`` are mean returns of T tests
during training. Imports no Lightning, so that worker processes start quickly.
"""

import contextlib
import copy
import dataclasses
import functools
import importlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from control.cli.progress import Watch, watch_part
from control.loops.process import configure_torch
from control.loops.rollout import Episodes, play_episodes
from control.loops.steps import StepLoop
from control.loops.stopping import Plateau, Rule, Solved
from envs.base import Environment
from envs.gridmaps import CellTable
from envs.make import make_dynamics, make_environment, proxy_factory
from envs.tensor import TensorEnvironment
from models.contract import InnerAgent, Policy
from models.proxies.search import SearchConfig
from models.registry import agent_class, config_of, parse_agents
from models.streams import derive_seed, lockstep_streams, numbered_seed

# Limits on the agents in one program, to save memory: an agent has thousands of observations.
MOST_MEMBERS = 512  # maximum number of agents
_MOST_NUMBERS = 2048  # maximum number of agents times numbers in an observation
_WATCH_STEPS = 512  # environment steps per member between progress reports
_TRAINING_FRACTION = 0.9  # fraction of the progress that is training; the rest is for tests


@dataclass
class Trained:
    """N agents after training: their greedy ``policy``, whether their weights are ``finite [N]``, their numbers of
    ``steps`` and ``episodes`` ``[N]``, and the results of T tests during training, ``curve [N, T]``."""

    policy: Policy
    finite: Tensor
    steps: Tensor
    episodes: Tensor
    curve: Tensor


@dataclass
class Outcome:
    """Results of N agents on the real environment.

    ``returns`` and ``lengths`` ``[N, K]`` are from the test episodes after training. ``curve [N, T]`` are the mean
    returns of T tests during training. Returns are NaN if an agent's weights are no longer finite. ``steps`` and
    ``episodes`` ``[N]`` count the training. ``test_steps`` is the number of steps in all tests.
    """

    returns: Tensor
    lengths: Tensor
    curve: Tensor
    steps: Tensor
    episodes: Tensor
    test_steps: int
    train_seconds: float
    test_seconds: float

    @property
    def scores(self) -> Tensor:
        """Return the mean return of each agent, ``[N]``."""
        return self.returns.mean(1)

    @classmethod
    def joined(cls, parts: Sequence["Outcome"]) -> "Outcome":
        """Concatenate the agents of ``parts`` in order, and add up the counts and seconds. Curves are cut to the
        shortest one, because agents with more environments may have one test less during training."""
        num_tests = min(part.curve.shape[1] for part in parts)
        parts = [dataclasses.replace(part, curve=part.curve[:, :num_tests]) for part in parts]
        joined: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            values = [getattr(part, field.name) for part in parts]
            joined[field.name] = torch.cat(values) if isinstance(values[0], Tensor) else sum(values)
        return cls(**joined)


def fresh_seeds(seed: int, name: str, count: int, num_implementations: int = 1, index: int | None = None) -> list[int]:
    """Return the seeds of ``count`` agents, derived from ``seed`` and ``name``. The remainder of a
    seed, divided by ``num_implementations``, is the index of the agent's implementation. For two implementations, the
    indices are 0, 1, 0, 1, ... or, if ``index`` is not None, always ``index``."""
    base_seeds = [derive_seed(seed, f"{name}, agent {i}") for i in range(count)]
    indices = range(count) if index is None else [index] * count
    pairs = zip(base_seeds, indices, strict=True)
    return [base - base % num_implementations + i % num_implementations for base, i in pairs]  # the remainder becomes i


def by_implementation(implementations: Sequence[str], seeds: Sequence[int], scores: Tensor) -> dict[str, float]:
    """Return the mean score of each implementation, such as ``{"DDQN": 180.0, "PPO": 195.0}``. Agent i has the
    implementation ``implementations[seeds[i] % len(implementations)]`` (`fresh_seeds`) and the score ``scores[i]``. NaN
    scores are ignored. Implementations without a finite score are left out."""
    indices_of_agents = torch.tensor([seed % len(implementations) for seed in seeds])
    means = {}
    for index, implementation in enumerate(implementations):
        implementation_scores = scores[indices_of_agents == index]
        if implementation_scores.isfinite().any():
            means[implementation] = float(implementation_scores.nanmean())
    return means


def train(
    loop: StepLoop,
    steps: int,
    rule: Rule | None = None,
    episodes: int | None = None,
    test: Callable[[Policy, int], Tensor] | None = None,
    test_every: int = 1,
    watch: Watch | None = None,
) -> Trained:
    """Train the M agents of ``loop`` for up to ``steps`` steps of every environment. The training of an agent ends
    earlier if ``rule`` says so, or after ``episodes`` episodes.

    After every ``test_every`` steps, ``test(policy, k)`` returns the results ``[M]`` of test k = 0, 1, ... Agents that
    have ended are tested with their final weights. When all have ended, no more tests follow. ``watch`` is called with
    the finished fraction.
    """
    agent = loop.agent
    assert isinstance(agent, InnerAgent)
    members, envs = agent.members, agent.envs
    agent.budget = (loop.steps + steps) * envs  # schedules of the agent, such as epsilon, depend on it
    running = torch.ones(members, dtype=torch.bool)
    weights = agent.flat_parameters.clone()  # [M, D], final for agents that have ended
    steps_taken = torch.full((members,), steps * envs)  # fewer for agents that end earlier
    num_episodes = torch.zeros(members, dtype=torch.int64)
    curve = [torch.zeros(members, 0)]  # a column [M, 1] for each test follows
    stops_early = rule is not None or episodes is not None
    start_step, start_episodes = loop.steps, agent.episodes.clone()
    steps_done = 0
    while steps_done < steps and running.any():
        next_steps = steps - steps_done  # until the end, the next test or the next report
        if test is not None:
            steps_to_test = test_every - steps_done % test_every
            next_steps = min(next_steps, steps_to_test)
        if watch is not None:
            # Fraction of all agents' steps.
            remaining_fraction = int(running.sum()) / members * (1 - steps_done / steps)
            watch(1 - remaining_fraction)
            next_steps = min(next_steps, math.ceil(_WATCH_STEPS / envs))
        # If agents may stop early, the steps pause at the end of an episode.
        for ended in loop.advance(next_steps, running, pause=stops_early):
            if stops_early:
                ended = ended.select_members(running)  # rules may be slow, so they get no episodes of other members
                num_episodes += torch.bincount(ended.members, minlength=members)
                is_done = torch.zeros_like(ended.members, dtype=torch.bool)
                if rule is not None and len(ended.members):
                    is_done |= rule(loop, ended)
                if episodes is not None:
                    is_done |= num_episodes[ended.members] >= episodes
                done_members = ended.members[is_done]
                weights[done_members] = agent.flat_parameters[done_members]
                steps_taken[done_members] = ended.steps[is_done] * envs
                running[done_members] = False
        steps_done = loop.steps - start_step
        if test is not None and steps_done % test_every == 0:
            weights[running] = agent.flat_parameters[running]
            policy = agent.with_weights(weights.clone())  # a copy: ``weights`` will change
            test_number = steps_done // test_every - 1
            curve.append(test(policy, test_number).unsqueeze(1))
    weights[running] = agent.flat_parameters[running]
    if not stops_early:
        num_episodes = agent.episodes - start_episodes
    is_finite = weights.isfinite().all(1)
    return Trained(agent.with_weights(weights), is_finite, steps_taken, num_episodes, torch.cat(curve, 1))


class InnerLoop:
    """Trains agents on proxies of one kind, and tests them on one real environment, all in this process.

    ``agent`` names the agents' implementation. If it names several, separated by commas, each agent's seed selects one
    (`fresh_seeds`). ``agent_config`` holds their settings (`models.mixture`), and ``game`` names the real environment.
    Agents that train in machine code are divided among ``threads``, whose number does not change results. The
    constructor configures torch, because results could otherwise differ between processes.
    """

    def __init__(self, config: SearchConfig, agent: str, agent_config: Any, game: str, threads: int = 1):
        configure_torch()
        self.config, self.agent_config, self.game, self.threads = config, agent_config, game, threads
        self.implementations = parse_agents(agent)
        # The class of the first implementation; `for_implementation` sets another one.
        self.agent_class: type[InnerAgent] = agent_class(self.implementations[0])
        self.factory = proxy_factory(config, game)
        # The module of machine code, whose import needs Numba; None for training in torch.
        self.compiled = importlib.import_module("control.loops.compiled") if config.compiled else None
        self._training_limit = config.test_limit  # time limit of training episodes on the real environment
        self._test_steps = 0  # real steps of tests, in the current batch of agents

    def run(
        self,
        proxies: Tensor | None,
        seeds: Sequence[int],
        sample_all: bool = False,
        watch: Watch | None = None,
        by_target: bool = False,
        **changes: Any,
    ) -> Outcome:
        """Train N new agents of ``seeds [N]`` and test them on the real environment. Agent i trains on the proxy with
        the parameters ``proxies[i] [D]`` or, if ``proxies`` is None, on the real environment. With ``by_target``, no
        agent is trained; the tests run the policy with the highest rewards in each proxy.

        ``changes`` replace settings of the search. ``sample_all`` samples all hyperparameters that can be sampled.
        ``watch`` is called with the finished fraction of the work.
        """
        configure_torch()  # again, because the current thread may be another one
        loop = copy.copy(self)
        loop.config = dataclasses.replace(self.config, **changes)
        outcomes: list[Outcome] = []
        order: list[int] = []  # indices in ``seeds`` of the agents in ``outcomes``
        for batch_loop, rows in loop._batches(seeds, sample_all):
            batch_proxies = None if proxies is None else proxies[rows]
            batch_seeds = [seeds[i] for i in rows]
            batch_watch = watch_part(watch, len(order) / len(seeds), len(rows) / len(seeds))
            outcomes.append(batch_loop._run_batch(batch_proxies, batch_seeds, batch_watch, by_target))
            order += rows
        fields: dict[str, Any] = vars(Outcome.joined(outcomes))
        inverse = torch.tensor(order).argsort()  # sorts the outcome by the agents' order in ``seeds``
        fields |= {name: value[inverse] for name, value in fields.items() if isinstance(value, Tensor)}
        return Outcome(**fields)

    def _batches(self, seeds: Sequence[int], sample_all: bool) -> Iterator[tuple["InnerLoop", list[int]]]:
        """Divide N agents into batches that can be trained together: of one implementation, with networks of one shape,
        and not too many for the memory. Yield a loop and the agents' indices in ``seeds [N]`` for each batch."""
        spaces = self.factory.spaces
        # In a grid world, an observation counts as one number, its cell.
        obs_size = 1 if isinstance(make_dynamics(self.game), CellTable) else math.prod(spaces.obs_shape)
        size = max(1, min(MOST_MEMBERS, _MOST_NUMBERS // obs_size))
        for index, implementation in enumerate(self.implementations):
            # `fresh_seeds` explains the remainder.
            indices = [i for i, seed in enumerate(seeds) if seed % len(self.implementations) == index]
            if not indices:
                continue
            loop = self.for_implementation(implementation)
            if sample_all:
                config = loop.agent_config  # the default ``vary`` names all hyperparameters that can be sampled
                loop.agent_config = dataclasses.replace(config, vary_hp=True, vary=type(config)().vary)
            # Agents of a group have networks of one shape; `groups` returns positions in ``indices``.
            for positions in loop.agent_class.groups(loop.agent_config, [seeds[i] for i in indices]):
                group = [indices[position] for position in positions]
                for first in range(0, len(group), size):
                    yield loop, group[first : first + size]

    def for_implementation(self, implementation: str) -> "InnerLoop":
        """Return a copy of this loop for one of its ``implementations`` of agents."""
        loop = copy.copy(self)
        loop.agent_config = config_of(self.agent_config, implementation, self.implementations)
        loop.implementations, loop.agent_class = [implementation], agent_class(implementation)
        return loop

    def _run_batch(self, proxies: Tensor | None, seeds: Sequence[int], watch: Watch | None, by_target: bool) -> Outcome:
        """Train and test a batch of agents (`_batches`); see `run` for the arguments."""
        start_time = time.perf_counter()
        self._test_steps = 0
        if by_target:
            assert proxies is not None
            policy = self.factory.parameters.target(proxies)  # the policy with the highest rewards
            zeros, no_curve = torch.zeros(len(seeds), dtype=torch.int64), torch.zeros(len(seeds), 0)
            trained = Trained(policy, proxies.isfinite().all(1), steps=zeros, episodes=zeros, curve=no_curve)
        else:
            loop = self.begin(proxies, list(seeds))
            trained = self.train_to_end(loop, with_tests=True, watch=watch_part(watch, 0, _TRAINING_FRACTION))
        training_end = time.perf_counter()
        test_episodes = self.test(trained.policy, seeds)
        for returns in (test_episodes.returns, trained.curve):
            returns[~trained.finite] = torch.nan  # a diverged agent still plays, but its result means nothing
        if watch is not None:
            watch(1)
        return Outcome(
            returns=test_episodes.returns,
            lengths=test_episodes.lengths,
            curve=trained.curve,
            steps=trained.steps,
            episodes=trained.episodes,
            test_steps=self._test_steps,
            train_seconds=training_end - start_time,
            test_seconds=time.perf_counter() - training_end,
        )

    def close(self) -> None:
        """Do nothing; `RayWorkers` have processes to stop."""

    def runs_compiled(self) -> bool:
        """Return whether some of the agents, with these settings, train in machine code."""
        if self.compiled is None:
            return False
        loops = [self.for_implementation(implementation) for implementation in self.implementations]
        agents = [loop.agent_class(loop.agent_config, self.factory.spaces, [0]) for loop in loops]
        return any(map(self.compiled.can_compile_agent, agents))

    def begin(self, proxies: Tensor | None, seeds: list[int]) -> StepLoop:
        """Return the loop of fresh agents of ``seeds [N]`` before their first step, on ``proxies [N, D]`` or, if None,
        on the real environment. The agents must have one implementation and networks of one shape."""
        agent = self.agent_class(self.agent_config, self.factory.spaces, seeds)
        if proxies is None:
            environment = make_environment(self.game, agent.members, agent.envs, time_limit=self._training_limit)
        else:
            environment = self.factory.environment(proxies, agent)  # in which the agent trains on the proxies
        return StepLoop(agent, environment, lockstep_streams(seeds, "episodes"))

    def train_to_end(self, loop: StepLoop, with_tests: bool = False, watch: Watch | None = None) -> Trained:
        """Train the new agents of ``loop`` to the end, in machine code if it supports them. If ``with_tests``, test
        them every ``test_every`` steps (None: never). The returned policy acts in the real environment."""
        config, agent = self.config, loop.agent
        compiled = self.compiled
        if compiled is not None and not compiled.can_compile(loop):
            # Python steps the environment. The agents still train in machine code, if they have any.
            importlib.import_module("control.loops.compiled_agent").use_machine_code(loop, self.threads)
            compiled = None
        steps = math.ceil(config.inner_steps / agent.envs)  # number of steps in every environment
        compiled_tests: Any = None  # the compiled real environment, and the tests on it
        test, test_every = None, 1
        with contextlib.ExitStack() as stack:
            if with_tests and config.test_every is not None:
                num_tests = config.inner_steps // config.test_every + 1  # the largest possible number
                streams = lockstep_streams(agent.seeds, "tests on the way")
                seeds = streams.episode_seeds(num_tests, config.test_episodes)  # [M, tests, K]
                real = stack.enter_context(contextlib.closing(self._test_environment(agent.members)))
                test_every = math.ceil(config.test_every / agent.envs)  # steps of every environment
                if compiled is not None:  # tests inside the training loop, if possible
                    compiled_tests = compiled.make_tests(agent, real, seeds, test_every)
                if compiled_tests is None:
                    test = functools.partial(self._test_in_training, real, seeds)
            if compiled is not None:
                loop.machine_code = compiled.CompiledLoop(self.threads, *(compiled_tests or ()))
            rule = self._rule(agent.members)
            trained = train(loop, steps, rule, config.train_episodes, test, test_every, watch)
        if compiled_tests is not None:
            _, tests = compiled_tests
            num_done = loop.steps // test_every
            returns = torch.from_numpy(tests.returns[:, :num_done])  # [M, T, K]
            trained.curve = returns.contiguous().mean(2)
            self._test_steps += int(tests.lengths[:, :num_done].sum())
        if isinstance(loop.environment, TensorEnvironment):  # a proxy may scale observations
            trained.policy = loop.environment.dynamics.adapt_policy(trained.policy)
        return trained

    def _test_in_training(self, real: Environment, seeds: Tensor, policy: Policy, number: int) -> Tensor:
        """Return the mean return ``[M]`` of a policy in test ``number`` from 0, with ``seeds [M, tests, K]``."""
        return self._rollout(policy, real, seeds[:, number]).returns.mean(1)

    def test(self, policy: Policy, seeds: Sequence[int]) -> Episodes:
        """Play K greedy test episodes of each of M agents on the real environment, by the agents' ``seeds [M]``."""
        with contextlib.closing(self._test_environment(policy.members)) as real:
            return self._rollout(policy, real, lockstep_streams(seeds, "tests").episode_seeds(real.envs))

    def _test_environment(self, members: int) -> Environment:
        """Return the real environment with the K test episodes of each of ``members`` agents."""
        config = self.config
        return make_environment(self.game, members, config.test_episodes, time_limit=config.test_limit)

    def _rollout(self, policy: Policy, real: Environment, seeds: Tensor) -> Episodes:
        """Play K greedy episodes of each of M members from ``seeds [M, K]``, in machine code if possible. Count their
        steps."""
        episodes = self.compiled.CompiledLoop(self.threads).play(policy, real, seeds) if self.compiled else None
        if episodes is None:
            episodes = play_episodes(policy, real, seeds)
        self._test_steps += int(episodes.lengths.sum())
        return episodes

    def _rule(self, members: int) -> Rule | None:
        """Return the rule that ends the training of agents early (``inner_rule``), or None for "budget". No agent ends
        within its initial random episodes."""
        config, initial = self.config, self.agent_config.init_episodes
        window = config.early_out_num
        if config.inner_rule == "budget":
            return None
        if config.inner_rule == "plateau":  # the returns no longer change
            return Plateau(members, window, config.early_out_virtual_diff, initial, config.plateau_floor)
        assert config.solved_reward is not None
        # With "tests", the scores are the results of tests after training episodes; with "solved", the returns of the
        # training episodes themselves.
        test = self._test_members if config.inner_rule == "tests" else None
        return Solved(members, window, config.solved_reward, initial, test)

    def _test_members(self, loop: StepLoop, members: Tensor) -> Tensor:
        """Return the mean test return ``[N]`` of ``members`` (indices ``[N]``) with their current weights. The seeds of
        the test episodes depend on a member's number of training episodes, so that each test has other episodes."""
        agent = loop.agent
        assert isinstance(agent, InnerAgent)
        episode_counts = agent.episodes.tolist()
        seeds = [numbered_seed(agent.seeds[m], episode_counts[m]) for m in members.tolist()]
        return self.test(agent.with_weights(agent.flat_parameters[members]), seeds).returns.mean(1)
