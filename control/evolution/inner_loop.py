"""The inner loop: fresh agents train on stand-ins (or on the real environment) and are tested on the real one.

All agents are members of one tensor program; those that are through leave it. Imports no Lightning, so that worker
processes start quickly.
"""

import copy
import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from control.loops.rollout import rollout
from control.loops.steps import StepLoop
from control.loops.stopping import Plateau, Rule, Solved
from envs.base import Environment
from envs.make import make_environment
from envs.synthetic import Starts, SyntheticDynamics, starts_of
from envs.tensor import TensorEnvironment
from models.contract import InnerAgent
from models.proxies.synthetic.config import Config
from models.proxies.synthetic.networks import Networks
from models.registry import agent_class
from models.spaces import Spaces
from models.streams import Streams

_COMPACT = 0.75  # share of members still at it below which the others leave the program
_MOST_MEMBERS = 512  # agents in one program; more take turns, for the sake of memory and cache


@dataclass
class Trained:
    """N agents after training: the policies, and what each spent, ``[N]``."""

    agent: Any
    steps: Tensor
    episodes: Tensor


@dataclass
class Outcome:
    """N agents trained and tested: real returns ``[N, K]``, steps and episodes of training ``[N]``, and the steps
    of all tests; seconds of both parts."""

    returns: Tensor
    steps: Tensor
    episodes: Tensor
    test_steps: int
    train_seconds: float
    test_seconds: float

    @property
    def scores(self) -> Tensor:
        """Mean return of each agent, ``[N]``."""
        return self.returns.mean(1)

    @classmethod
    def joined(cls, parts: Sequence["Outcome"]) -> "Outcome":
        """Parts of one batch of agents, in order."""
        return cls(
            torch.cat([part.returns for part in parts]),
            torch.cat([part.steps for part in parts]),
            torch.cat([part.episodes for part in parts]),
            sum(part.test_steps for part in parts),
            sum(part.train_seconds for part in parts),
            sum(part.test_seconds for part in parts),
        )

    def of(self, rows: Tensor) -> "Outcome":
        """Agents ``rows [N']`` (indices) in that order; totals stay those of all."""
        return dataclasses.replace(
            self, returns=self.returns[rows], steps=self.steps[rows], episodes=self.episodes[rows]
        )


def train(interaction: StepLoop, ticks: int, rule: Rule | None = None, episodes: int | None = None) -> Trained:
    """Up to ``ticks`` ticks of every member, fewer where ``rule`` says so or ``episodes`` are through.

    What a member learns does not depend on when others leave. The agent that comes back acts for all members.
    """
    agent = interaction.agent
    assert isinstance(agent, InnerAgent)
    members = agent.members
    agent.budget = ticks * agent.envs
    at = torch.arange(members)  # the original position of each member still in the program
    running = torch.ones(members, dtype=torch.bool)
    spent, counts = torch.full((members,), ticks * agent.envs), torch.zeros(members, dtype=torch.int64)
    result = agent.online.clone()
    for _ in range(ticks):
        ended = interaction.step()
        if ended is None:
            continue
        ended = ended.of(running)  # a rule may be costly; nobody asks it about agents that are through
        who = ended.members
        if len(who) == 0:
            continue
        counts.index_add_(0, at[who], torch.ones_like(who))
        through = torch.zeros_like(who, dtype=torch.bool) if rule is None else rule(interaction, ended)
        if episodes is not None:
            through |= counts[at[who]] >= episodes
        if not through.any():
            continue
        for m in who[through].tolist():
            result[at[m]], spent[at[m]], running[m] = agent.online[m], ended.step * agent.envs, False
        if not running.any():
            break
        if interaction.is_tensor and running.sum() < _COMPACT * len(running):
            keep = running.nonzero()[:, 0]
            interaction.select(keep)
            if rule is not None:
                rule.select(keep)
            at, running = at[keep], running[keep]
    result[at[running]] = agent.online[running]
    return Trained(agent.with_weights(result), spent, counts)


def test(agent: Any, environment: Environment, seeds: Tensor) -> tuple[Tensor, int]:
    """Greedy episodes from ``seeds [M, K]``: returns ``[M, K]`` and the steps they took in all."""
    episodes = rollout(agent, environment, seeds, keep=False)
    return episodes.returns, int(episodes.lengths.sum())


class InnerLoop:
    """Trains and tests agents of one kind around one real environment. ``config`` is that of the stand-ins, ``game``
    the real environment and ``agent_config`` the settings of its agents."""

    def __init__(self, config: Config, agent: str, agent_config: Any, game: str):
        self.config, self.agent_config, self.game = config, agent_config, game
        self.agent_class = agent_class(agent)
        real = make_environment(game, 1, 8)
        self.spaces: Spaces = real.spaces
        self.starts: Starts = starts_of(real)
        real.close()
        self.networks = Networks(config, self.spaces)
        self._rule_steps = 0  # real steps of the tests that a rule asked for, of the group under way

    def run(
        self, proxies: Tensor | None, seeds: Sequence[int], steps: int | None = None, test_limit: int | None = None,
        rule: str | None = None, drawn: bool = False,
    ) -> Outcome:  # fmt: skip
        """Train N fresh agents of ``seeds [N]`` and test them; agent i on ``proxies [N, D]`` row i, or all on the
        real environment where ``proxies`` is None.

        ``steps``, ``test_limit`` and ``rule`` replace the settings'; ``drawn`` draws all hyperparameters that the
        agents can draw. Tests start from seeds of the agent's own seed.
        """
        if drawn:
            return self._drawing().run(proxies, seeds, steps, test_limit, rule)
        chosen = self.agent_class.groups(self.agent_config, seeds)
        pieces = [group[i : i + _MOST_MEMBERS] for group in chosen for i in range(0, len(group), _MOST_MEMBERS)]
        parts = []
        for piece in pieces:
            mine = None if proxies is None else proxies[piece]
            parts.append(self._run_group(mine, [seeds[i] for i in piece], steps, test_limit, rule))
        order = torch.tensor([i for piece in pieces for i in piece])
        return Outcome.joined(parts).of(order.argsort())

    def _drawing(self) -> "InnerLoop":
        """The same with agents that draw everything they can."""
        other = copy.copy(self)
        everything = type(self.agent_config)().vary
        other.agent_config = dataclasses.replace(self.agent_config, vary_hp=True, vary=everything)
        return other

    def _run_group(
        self, proxies: Tensor | None, seeds: list[int], steps: int | None, test_limit: int | None, rule: str | None
    ) -> Outcome:
        started, self._rule_steps = time.perf_counter(), 0
        trained = self.train(proxies, seeds, steps, rule)
        middle = time.perf_counter()
        returns, test_steps = self._test(trained.agent, seeds, test_limit or self.config.test_limit)
        returns[~trained.agent.online.isfinite().all(1)] = torch.nan  # such an agent still plays, always the same
        test_steps += self._rule_steps
        return Outcome(
            returns, trained.steps, trained.episodes, test_steps, middle - started, time.perf_counter() - middle
        )

    def train(
        self, proxies: Tensor | None, seeds: list[int], steps: int | None = None, rule: str | None = None
    ) -> Trained:
        """Train agents of one shape, as `run` does, without a test."""
        return self.finish(self.begin(proxies, seeds), steps, rule)

    def finish(self, interaction: StepLoop, steps: int | None = None, rule: str | None = None) -> Trained:
        """Train the agents of an interaction just begun to the end, as the settings or ``steps`` and ``rule`` say."""
        config = self.config
        ticks = -(-(steps or config.inner_steps) // interaction.agent.envs)
        seeds = list(interaction.agent.seeds)
        return train(interaction, ticks, self._rule(rule or config.inner_rule, seeds), config.train_episodes)

    def begin(self, proxies: Tensor | None, seeds: list[int]) -> StepLoop:
        """Fresh agents of ``seeds [N]`` before their first step on ``proxies [N, D]``, or on the real environment."""
        agent = self.agent_class(self.agent_config, self.spaces, seeds)
        return StepLoop(agent, self._stage(proxies, agent), Streams.named(seeds, "episodes"))

    def _stage(self, proxies: Tensor | None, agent: Any) -> Environment:
        if proxies is None:
            return make_environment(self.game, agent.members, agent.envs, time_limit=self.config.test_limit)
        dynamics = SyntheticDynamics(self.networks.program(proxies), self.spaces, self.starts)
        return TensorEnvironment(dynamics, agent.members, agent.envs)

    def _test(self, agent: Any, seeds: Sequence[int], limit: int | None) -> tuple[Tensor, int]:
        real = make_environment(self.game, agent.members, self.config.test_episodes, time_limit=limit)
        starts = Streams.named(seeds, "tests").episode_seeds(self.config.test_episodes)
        returns, steps = test(agent, real, starts)
        real.close()
        return returns, steps

    def _rule(self, name: str, seeds: list[int]) -> Rule | None:
        config, initial = self.config, self.agent_config.init_episodes
        if name == "plateau":
            return Plateau(
                len(seeds), config.early_out_num, config.early_out_virtual_diff, initial, config.plateau_floor
            )
        if name == "tests":
            assert config.solved_reward is not None
            return Solved(len(seeds), config.early_out_num, config.solved_reward, initial, self._test_some)
        if name == "solved":
            assert config.solved_reward is not None
            return Solved(len(seeds), config.early_out_num, config.solved_reward, initial)
        return None

    def _test_some(self, interaction: StepLoop, members: Tensor) -> Tensor:
        """Mean test return of ``members`` as they are now, ``[N]``."""
        agent = interaction.agent
        assert isinstance(agent, InnerAgent)
        few = agent.with_weights(agent.online[members])
        seeds = [derive(agent.seeds[m], int(agent.episodes[m])) for m in members.tolist()]
        returns, steps = self._test(few, seeds, self.config.test_limit)
        self._rule_steps += steps
        return returns.mean(1)


def derive(seed: int, episode: int) -> int:
    """The seed of the tests after an episode."""
    return (seed * 1_000_003 + episode) % 2**63
