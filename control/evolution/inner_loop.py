"""The inner loop: fresh agents train on proxies (or on the real environment) and are tested on the real environment.

A proxy is a learned environment or a learned reward. ``proxies [N, D]`` are the D weights of one proxy for each of N
agents. A test plays K episodes of each agent on the real environment, and ``curve [N, T]`` are mean returns of T tests
during training. Imports no Lightning, so that worker processes start quickly.
"""

import contextlib
import copy
import dataclasses
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
class TrainedAgents:
    """N agents after training."""

    policy: Policy  # chooses the greedy actions of all agents
    finite: Tensor  # [N] bool, whether all weights of an agent are finite
    steps: Tensor  # [N], number of training steps
    episodes: Tensor  # [N], number of training episodes
    curve: Tensor  # [N, T], mean returns of T tests during training


@dataclass
class Outcome:
    """Results of N agents on the real environment. Returns are NaN if an agent's weights are no longer finite."""

    returns: Tensor  # [N, K], of K test episodes of each agent after training
    lengths: Tensor  # [N, K], of these episodes
    curve: Tensor  # [N, T], mean returns of T tests during training
    steps: Tensor  # [N], number of training steps
    episodes: Tensor  # [N], number of training episodes
    test_steps: int  # number of environment steps in all tests
    train_seconds: float
    test_seconds: float

    @property
    def scores(self) -> Tensor:
        """Return the mean return of each agent, ``[N]``."""
        return self.returns.mean(1)

    @classmethod
    def concatenate(cls, outcomes: Sequence["Outcome"]) -> "Outcome":
        """Return the results of all agents in ``outcomes``, in order, with the sums of test steps and seconds. Curves
        are cut to the shortest curve, because agents with more environments may have one test less."""
        num_tests = min(outcome.curve.shape[1] for outcome in outcomes)
        shortened = [dataclasses.replace(outcome, curve=outcome.curve[:, :num_tests]) for outcome in outcomes]
        fields: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            results = [getattr(outcome, field.name) for outcome in shortened]
            fields[field.name] = torch.cat(results) if isinstance(results[0], Tensor) else sum(results)
        return cls(**fields)


def fresh_seeds(seed: int, name: str, count: int, num_implementations: int = 1, index: int | None = None) -> list[int]:
    """Return the seeds of ``count`` new agents, derived from ``seed`` and ``name``. A seed also selects the algorithm
    of its agent: ``agent_seed % num_implementations`` is the index of the implementation. For two implementations, the
    indices are 0, 1, 0, 1, ... or, if ``index`` is not None, always ``index``."""
    seeds: list[int] = []
    for i in range(count):
        base_seed = derive_seed(seed, f"{name}, agent {i}")
        multiple = base_seed - base_seed % num_implementations
        seeds.append(multiple + (i if index is None else index) % num_implementations)
    return seeds


def implementation_means(implementations: Sequence[str], seeds: Sequence[int], scores: Tensor) -> dict[str, float]:
    """Return the mean score by implementation, such as ``{"DDQN": 180.0, "PPO": 195.0}``, of N agents. Agent i has the
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
) -> TrainedAgents:
    """Train the M agents of ``loop`` for up to ``steps`` steps of every environment. The training of an agent ends
    earlier if ``rule`` says so, or after ``episodes`` episodes.

    After every ``test_every`` steps of every environment, ``test(policy, k)`` plays test k = 0, 1, ... and returns the
    mean returns ``[M]``. Agents whose training has ended are tested with their final weights, until all have ended.
    """
    agent = loop.agent
    assert isinstance(agent, InnerAgent)
    members, envs = agent.members, agent.envs
    agent.budget = (loop.steps + steps) * envs  # schedules of the agent, such as epsilon's, depend on its budget
    running = torch.ones(members, dtype=torch.bool)
    weights = agent.flat_parameters.clone()  # [M, D], final for agents whose training has ended
    steps_taken = torch.full((members,), steps * envs)  # fewer for agents whose training ends early
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
            running_fraction = int(running.sum()) / members
            watch(1 - running_fraction * (1 - steps_done / steps))
            next_steps = min(next_steps, math.ceil(_WATCH_STEPS / envs))
        # If agents may stop early, the steps pause at the end of an episode.
        for ended_episodes in loop.advance(next_steps, running, pause=stops_early):
            if stops_early:
                # Rules may be slow, so they get only episodes of running agents.
                ended_episodes = ended_episodes.select_members(running)
                num_episodes += torch.bincount(ended_episodes.members, minlength=members)
                is_done = torch.zeros_like(ended_episodes.members, dtype=torch.bool)
                if rule is not None and len(ended_episodes.members):
                    is_done |= rule(loop, ended_episodes)
                if episodes is not None:
                    is_done |= num_episodes[ended_episodes.members] >= episodes
                done_members = ended_episodes.members[is_done]
                weights[done_members] = agent.flat_parameters[done_members]
                steps_taken[done_members] = ended_episodes.steps[is_done] * envs
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
    return TrainedAgents(agent.with_weights(weights), is_finite, steps_taken, num_episodes, torch.cat(curve, 1))


class InnerLoop:
    """Trains fresh agents on proxies (learned environments or rewards), and tests them on the real environment.

    Args:
        config: settings of the search for proxies.
        agent: algorithm, such as "PPO". If there are several, as in "PPO,DDQN", an agent's seed selects its algorithm.
        agent_config: settings of the agents (`models.mixture`).
        game: name of the real environment.
        threads: number of threads of machine code, which does not change the results.
    """

    def __init__(self, config: SearchConfig, agent: str, agent_config: Any, game: str, threads: int = 1):
        configure_torch()  # otherwise results could differ between processes
        self.config, self.agent_config, self.game, self.threads = config, agent_config, game, threads
        self.implementations = parse_agents(agent)
        # The class of the first implementation; `for_implementation` sets another class.
        self.agent_class: type[InnerAgent] = agent_class(self.implementations[0])
        self.factory = proxy_factory(config, game)
        # The module of machine code, whose import needs Numba; None for training in torch.
        self.compiled = importlib.import_module("control.loops.compiled") if config.compiled else None
        self._training_limit = config.test_limit  # time limit of training episodes on the real environment
        self._test_steps = 0  # number of environment steps in tests of the current batch of agents

    def run(
        self,
        proxies: Tensor | None,
        seeds: Sequence[int],
        sample_all: bool = False,
        watch: Watch | None = None,
        by_target: bool = False,
        **changes: Any,
    ) -> Outcome:
        """Train N new agents with ``seeds [N]``, and test them on the real environment.

        Args:
            proxies: parameters ``[N, D]`` of the proxy on which each agent trains. None: the real environment.
            sample_all: whether to sample all hyperparameters that can be sampled for each agent.
            watch: called with the finished fraction of the work.
            by_target: test the policy with the highest rewards in each proxy, and train no agents.
            changes: settings of the search that replace the settings in ``config``.
        """
        configure_torch()  # again, because the current thread may not be the thread of the constructor
        loop = copy.copy(self)
        loop.config = dataclasses.replace(self.config, **changes)
        outcomes: list[Outcome] = []
        order: list[int] = []  # indices in ``seeds`` of the agents in ``outcomes``
        for batch_loop, indices in loop._batches(seeds, sample_all):
            batch_proxies = None if proxies is None else proxies[indices]
            batch_seeds = [seeds[i] for i in indices]
            batch_watch = watch_part(watch, len(order) / len(seeds), len(indices) / len(seeds))
            outcomes.append(batch_loop._run_batch(batch_proxies, batch_seeds, batch_watch, by_target))
            order += indices
        fields: dict[str, Any] = vars(Outcome.concatenate(outcomes))
        inverse = torch.tensor(order).argsort()  # sorts the outcome by the agents' order in ``seeds``
        for name, result in fields.items():
            if isinstance(result, Tensor):
                fields[name] = result[inverse]
        return Outcome(**fields)

    def _batches(self, seeds: Sequence[int], sample_all: bool) -> Iterator[tuple["InnerLoop", list[int]]]:
        """Divide the agents with ``seeds [N]`` into batches that can train together: with the same algorithm and
        networks of the same shape, and few enough for the memory. Yield the loop and the indices (0 to N - 1) of the
        agents of each batch. ``sample_all`` is as in `run`."""
        spaces = self.factory.spaces
        # In a grid world, an observation is stored as a single number, its cell.
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
            # Agents of a group have networks of the same shape; `groups` returns positions in ``indices``.
            for positions in loop.agent_class.groups(loop.agent_config, [seeds[i] for i in indices]):
                group = [indices[position] for position in positions]
                for first in range(0, len(group), size):
                    yield loop, group[first : first + size]

    def for_implementation(self, implementation: str) -> "InnerLoop":
        """Return a copy of this loop that trains only agents of ``implementation``, one of its algorithms."""
        loop = copy.copy(self)
        loop.agent_config = config_of(self.agent_config, implementation, self.implementations)
        loop.implementations, loop.agent_class = [implementation], agent_class(implementation)
        return loop

    def _run_batch(self, proxies: Tensor | None, seeds: Sequence[int], watch: Watch | None, by_target: bool) -> Outcome:
        """Train and test agents of one algorithm, with networks of one shape. The arguments are as in `run`."""
        start_time = time.perf_counter()
        self._test_steps = 0
        if by_target:
            assert proxies is not None
            policy = self.factory.parameters.target(proxies)  # the policy with the highest rewards
            zeros, no_curve = torch.zeros(len(seeds), dtype=torch.int64), torch.zeros(len(seeds), 0)
            trained = TrainedAgents(policy, proxies.isfinite().all(1), steps=zeros, episodes=zeros, curve=no_curve)
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
        """Return whether agents of at least one of the implementations train in machine code."""
        if self.compiled is None:
            return False
        loops = [self.for_implementation(implementation) for implementation in self.implementations]
        agents = [loop.agent_class(loop.agent_config, self.factory.spaces, [0]) for loop in loops]
        return any(self.compiled.can_compile_agent(agent) for agent in agents)

    def begin(self, proxies: Tensor | None, seeds: list[int]) -> StepLoop:
        """Return the training loop of new agents with ``seeds [N]``, before their first step. They train on the
        ``proxies [N, D]`` or, if that is None, on the real environment. They must have the same algorithm and networks
        of the same shape."""
        agent = self.agent_class(self.agent_config, self.factory.spaces, seeds)
        if proxies is None:
            environment = make_environment(self.game, agent.members, agent.envs, time_limit=self._training_limit)
        else:
            environment = self.factory.environment(proxies, agent)
        return StepLoop(agent, environment, lockstep_streams(seeds, "episodes"))

    def train_to_end(self, loop: StepLoop, with_tests: bool = False, watch: Watch | None = None) -> TrainedAgents:
        """Train the agents of ``loop`` to the end, in machine code if possible. If ``with_tests``, test them after
        every ``config.test_every`` steps, unless that is None. The returned policy acts in the real environment."""
        config, agent = self.config, loop.agent
        compiled = self.compiled  # the module, if agent and environment are machine code
        if compiled is not None and not compiled.can_compile(loop):
            # Python steps the environment. The agents still train in machine code, if they have any.
            importlib.import_module("control.loops.compiled_agent").use_machine_code(loop, self.threads)
            compiled = None
        steps = math.ceil(config.inner_steps / agent.envs)  # number of steps in every environment
        world: Any = None  # the compiled real environment, if machine code plays the ``tests`` on it
        tests: Any = None
        test: Callable[[Policy, int], Tensor] | None = None  # plays tests between blocks of training
        test_every = 1
        with contextlib.ExitStack() as stack:
            if with_tests and config.test_every is not None:
                num_tests = config.inner_steps // config.test_every + 1  # the largest possible number
                streams = lockstep_streams(agent.seeds, "tests on the way")
                seeds = streams.episode_seeds(num_tests, config.test_episodes)  # [M, tests, K]
                real = stack.enter_context(contextlib.closing(self._test_environment(agent.members)))
                test_every = math.ceil(config.test_every / agent.envs)  # steps of every environment

                def play_test(policy: Policy, number: int) -> Tensor:
                    """Play test ``number`` (0, 1, ...), and return the mean returns ``[M]``."""
                    return self._rollout(policy, real, seeds[:, number]).returns.mean(1)

                if compiled is not None:  # tests inside the training loop, if possible
                    world, tests = compiled.make_tests(agent, real, seeds, test_every)
                if tests is None:
                    test = play_test
            if compiled is not None:
                loop.machine_code = compiled.CompiledLoop(self.threads, world, tests)
            rule = self._rule(agent.members)
            trained = train(loop, steps, rule, config.train_episodes, test, test_every, watch)
        if tests is not None:
            num_done = loop.steps // test_every
            returns = torch.from_numpy(tests.returns[:, :num_done])  # [M, T, K]
            trained.curve = returns.contiguous().mean(2)
            self._test_steps += int(tests.lengths[:, :num_done].sum())
        if isinstance(loop.environment, TensorEnvironment):  # a proxy may scale observations
            trained.policy = loop.environment.dynamics.adapt_policy(trained.policy)
        return trained

    def test(self, policy: Policy, seeds: Sequence[int]) -> Episodes:
        """Play ``config.test_episodes`` greedy episodes of each of M agents on the real environment. The agents'
        ``seeds [M]`` determine the episodes."""
        with contextlib.closing(self._test_environment(policy.members)) as real:
            return self._rollout(policy, real, lockstep_streams(seeds, "tests").episode_seeds(real.envs))

    def _test_environment(self, members: int) -> Environment:
        """Make the real environment for the K test episodes of each of ``members`` agents."""
        config = self.config
        return make_environment(self.game, members, config.test_episodes, time_limit=config.test_limit)

    def _rollout(self, policy: Policy, real: Environment, seeds: Tensor) -> Episodes:
        """Play a greedy episode on the environment ``real`` for each of ``seeds [M, K]``, in machine code if possible.
        Count their steps."""
        episodes = None
        if self.compiled is not None:
            episodes = self.compiled.CompiledLoop(self.threads).play(policy, real, seeds)
        if episodes is None:
            episodes = play_episodes(policy, real, seeds)
        self._test_steps += int(episodes.lengths.sum())
        return episodes

    def _rule(self, members: int) -> Rule | None:
        """Make the rule ``config.inner_rule``, which ends the training of some of the ``members`` agents early, but not
        within their initial random episodes. Return None for "budget", with which no training ends early."""
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
        """Return the mean returns ``[N]`` of a test of the agents ``members [N]`` of ``loop``. The seeds of its
        episodes depend on an agent's number of training episodes, so that each test has different episodes."""
        agent = loop.agent
        assert isinstance(agent, InnerAgent)
        episode_counts = agent.episodes.tolist()
        seeds = [numbered_seed(agent.seeds[m], episode_counts[m]) for m in members.tolist()]
        return self.test(agent.with_weights(agent.flat_parameters[members]), seeds).returns.mean(1)
