"""The verdict about fresh agents, which trained on a learned environment or with a learned reward. Two sentences
compare their returns on the real environment with the returns of baselines: random play, the best constant action and
a teacher (a trained agent).

Episodes of the baselines are not counted as steps of a search. The number of their steps is in the result.
"""

import contextlib
import dataclasses
import functools
import itertools
import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from control.cli.progress import Watch, watch_part
from control.loops.rollout import LONG, FunctionPolicy, play_episodes
from control.reports.stages import GOOD_FRACTION
from control.reports.tables import NOT_SOLVED, Score, percent_text
from envs.base import Environment
from envs.gymnasium_adapter import GymnasiumEnvironment
from envs.make import make_environment, spaces_of
from models.spaces import Continuous, Discrete
from models.streams import Streams, derive_seed, random_actions

Act = Callable[[Tensor], Tensor]
"""A function from observations ``[N, *O]`` to actions, ``[N]`` or ``[N, A]``."""

SCORES = "scores.json"  # file in the run folder of a search
# Number of episodes of each baseline, and of each constant action in the choice of the best.
EPISODES, CHOICE_EPISODES = 32, 8
MOST_STEPS = 50_000  # number of real steps after which no further episodes begin
MOST_CONSTANTS = 9  # maximum number of constant actions that play `CHOICE_EPISODES`
MOST_CANDIDATES = 64  # maximum number of discrete actions among which a round selects `MOST_CONSTANTS`
_SMALL_MARGIN = 0.05  # fraction of the way from random play to the teacher; smaller margins are not shown
_WAY = "of the way from random play to the teacher"


@dataclass(frozen=True)
class Baselines:
    """Scores of three policies on the real environment: ``random`` play, the best ``constant`` action, and a
    ``teacher``, None if there is no teacher. ``action`` is the name of the best constant action, and ``real_steps`` is
    the number of steps of all episodes."""

    random: Score
    constant: Score
    action: str = ""
    teacher: Score | None = None
    real_steps: int = 0

    @classmethod
    @functools.lru_cache(8)
    def measure(
        cls, game: str, seed: int, limit: int | None = None, teacher: Act | None = None, watch: Watch | None = None
    ) -> "Baselines":
        """Measure the baselines on the real environment ``game``: random play, the best constant action and, if it is
        not None, the ``teacher``. Results are cached, so a second call with equal arguments plays no episodes.

        First, the best constant action is chosen (`_best_constant`). Then each baseline plays the same `EPISODES` new
        episodes, or fewer if these reach `MOST_STEPS` steps. ``seed`` determines the episodes. ``limit`` replaces the
        environment's time limit; if there is no limit at all, it is `LONG`. ``watch`` is called with the finished
        fraction.
        """
        spaces = spaces_of(game, limit)
        if not spaces.max_episode_steps:
            limit = LONG
        longest_episode = spaces.max_episode_steps or LONG
        most_actions = min(MOST_CANDIDATES, max(MOST_CONSTANTS, MOST_STEPS // (8 * longest_episode)))
        actions = constant_actions(spaces.actions, most_actions)
        constants: dict[str, Act] = {name: _constant_policy(action) for name, action in actions.items()}
        # Episodes are always played to their end. If they may be long, fewer are played at once, so that the choice
        # takes about half of MOST_STEPS at most.
        most_round_steps = (len(constants) + 1) * longest_episode  # an episode of each policy
        envs = min(CHOICE_EPISODES, max(2, MOST_STEPS // (2 * most_round_steps)))
        with contextlib.closing(make_environment(game, 1, envs, time_limit=limit)) as real:
            best, choice_steps = _best_constant(constants, real, seed, watch_part(watch, 0.0, 0.5))
            streams = Streams([derive_seed(seed, "random play")])
            # 0 is the index of the only member.
            policies: dict[str, Act] = {"random": lambda obs: random_actions(spaces.actions, streams, len(obs))[0]}
            policies[best] = constants[best]
            if teacher is not None:
                policies["teacher"] = teacher
            second_half = watch_part(watch, 0.5, 0.5)
            returns, steps = _play(policies, real, seed, EPISODES, MOST_STEPS - choice_steps, second_half)
            action = best
            if isinstance(real, GymnasiumEnvironment) and isinstance(spaces.actions, Discrete):
                action = real.converter.action_text(int(best))
        scores = {name: Score.of(values) for name, values in returns.items()}
        return cls(scores["random"], scores[best], action, scores.get("teacher"), choice_steps + steps)

    def judge(self, returns: ArrayLike, **details: Any) -> "Verdict":
        """Return the verdict about agents with the mean returns ``[N]``. ``details`` are other fields of `Verdict`."""
        return Verdict(**vars(self), agents=Score.of(returns), **details)  # a `Verdict` has all fields of `Baselines`


def _best_constant(constants: Mapping[str, Act], real: Environment, seed: int, watch: Watch | None) -> tuple[str, int]:
    """Choose the best of ``constants`` (name -> policy that repeats an action) by the mean return in `CHOICE_EPISODES`
    episodes. Return its name, and the number of steps of all episodes. If there are more than `MOST_CONSTANTS`
    policies, a round of fewer episodes first selects the best `MOST_CONSTANTS`. ``seed`` determines the episodes.
    ``watch`` is called with the finished fraction."""
    first_steps, start = 0, 0.0
    if len(constants) > MOST_CONSTANTS:
        start = 0.5
        returns, first_steps = _play(constants, real, seed, 1, MOST_STEPS // 4, watch_part(watch, 0.0, start))
        names = sorted(constants, key=lambda name: statistics.fmean(returns[name]), reverse=True)
        constants = {name: constants[name] for name in names[:MOST_CONSTANTS]}
    max_steps, rest = MOST_STEPS // 2 - first_steps, watch_part(watch, start, 1 - start)
    returns, steps = _play(constants, real, seed, CHOICE_EPISODES, max_steps, rest)
    return max(returns, key=lambda name: statistics.fmean(returns[name])), first_steps + steps


def _play(
    policies: Mapping[str, Act], real: Environment, seed: int, count: int, max_steps: int, watch: Watch | None
) -> tuple[dict[str, list[float]], int]:
    """Let the ``policies`` play, one after another, rounds of an episode in each environment of ``real``. A policy ends
    after ``count`` episodes or, because its episodes may be far longer than episodes of other policies, after an equal
    share of ``max_steps`` steps. Return name of the policy -> returns of its episodes, and the number of all steps.
    ``seed`` and ``count`` determine the episodes, which are the same for all policies. ``watch`` is called with the
    finished fraction."""
    returns: dict[str, list[float]] = {name: [] for name in policies}
    total_steps, share = 0, max_steps / len(policies)
    for number, (name, act) in enumerate(policies.items()):
        streams, steps = Streams([derive_seed(seed, f"{count} episodes of baselines")]), 0
        while not steps or (len(returns[name]) < count and steps < share):
            episodes = play_episodes(FunctionPolicy(act), real, streams.episode_seeds(real.envs))
            steps += int(episodes.lengths.sum())
            returns[name] += episodes.returns[0].tolist()
            if watch is not None:
                watch((number + min(1.0, max(len(returns[name]) / count, steps / share))) / len(policies))
        total_steps += steps
    return returns, total_steps


@dataclass(frozen=True, kw_only=True)
class Verdict(Baselines):
    """A comparison of fresh ``agents`` on the real environment with the baselines.

    Agents whose mean return reaches ``goal``, such as the environment's largest return, need not exceed the best
    constant action. The environment is solved by a mean return of ``solved_reward``, None if that is unknown.
    ``progress`` is a pair: the fitness in a search's first generation, and the fitness of its winner. ``advice`` names
    changes to try after a failure. ``comparison`` is an additional sentence, such as a comparison with agents that
    trained with the task's reward.
    """

    agents: Score
    goal: float | None = None
    solved_reward: float | None = None
    progress: tuple[Score, Score] | None = None
    advice: str = ""
    comparison: str = ""

    @property
    def passed(self) -> bool:
        """Whether the agents are better than random play and the best constant action. The winner of a search must also
        be better than its first generation. The agents may be only as good as the best constant action if they reach
        ``goal``, or if the teacher is no better either."""
        return not self.failure

    @property
    def share(self) -> float:
        """The mean return of the agents on a scale from random play (0) to the teacher (1)."""
        assert self.teacher is not None
        return (self.agents.mean - self.random.mean) / (self.teacher.mean - self.random.mean)

    @property
    def share_text(self) -> str:
        """The `share` in percent, with two standard errors of the agents' mean unless these are small."""
        assert self.teacher is not None
        margin = 2 * self.agents.error / (self.teacher.mean - self.random.mean)
        share = percent_text(self.share)
        return share if margin < _SMALL_MARGIN else f"{share.removesuffix(' %')} ± {percent_text(margin)}"

    @property
    def is_unsolved(self) -> bool:
        """Whether the agents return less than ``solved_reward``. False if that is unknown."""
        return self.solved_reward is not None and not self.agents.mean >= self.solved_reward  # True if the mean is NaN

    @property
    def sentence(self) -> str:
        """The result of the comparison as two sentences, with the numbers that it compares, and the additional
        ``comparison``. Begins with `NOT_SOLVED` if the agents do not solve the environment."""
        result = "agents are better than random play, and as good as the best constant action, which reaches the goal"
        if self.failure:
            result = self.failure
        elif self.teacher is not None:
            result = f"agents come {self.share_text} {_WAY}"
        elif self.agents.exceeds(self.constant):
            result = "agents are better than random play and than the best constant action"
        advice = self.advice if self.failure else ""
        numbers = self.numbers if self.agents.count else ""
        sentence = f"{_two_sentences(result, advice, numbers)} {self.comparison}".rstrip()
        return f"{NOT_SOLVED}{sentence}" if self.is_unsolved else sentence

    @property
    def numbers(self) -> str:
        """The numbers that the verdict compares, as text. Usually, these are the mean returns of the agents and of all
        baselines. If the verdict fails only because the search did not improve the fitness, they are the fitness of the
        winner and of the first generation, and the mean return of the agents."""
        is_failure_of_fitness = self.failure and not self._failure_of_returns
        if self.progress is not None and is_failure_of_fitness:
            first, winner = self.progress
            return f"fitness: winner {winner}, first generation {first}; mean return of the agents: {self.agents}"
        # If the teacher itself is judged, its score is in both fields, and is shown only once.
        agents = "" if self.agents is self.teacher else f"agents {self.agents}, "
        return f"mean returns: {agents}{self._baseline_numbers}"

    @property
    def _baseline_numbers(self) -> str:
        """The mean returns of all baselines, as text."""
        teacher = f"teacher {self.teacher}, " if self.teacher is not None else ""
        return f"{teacher}random play {self.random}, best constant action ({self.action}) {self.constant}"

    @property
    def failure(self) -> str:
        """The reason why the verdict fails: the agents' returns or else the fitness of the search. "" if `passed`."""
        if self._failure_of_returns or self.progress is None:
            return self._failure_of_returns
        first, winner = self.progress
        failure = winner.failure_to_exceed(first, "the winner is", "the first generation")
        return f"agents are better than random play, but the search gained nothing: {failure}" if failure else ""

    @property
    def _failure_of_returns(self) -> str:
        """The reason why the agents fail by their returns alone. "" if they pass."""
        agents, random, constant, teacher = self.agents, self.random, self.constant, self.teacher
        if not agents.count:
            return "the weights of all agents are no longer finite"
        scores = [score for score in (agents, random, constant, teacher) if score is not None]
        some_vary = any(score.error for score in scores)
        some_differ = any(score.exceeds(other) for score, other in itertools.permutations(scores, 2))
        if not some_vary and not some_differ:
            return "agents, random play and constant actions have the same return, which shows nothing to learn"
        if teacher is not None and not teacher.exceeds(random):
            return teacher.failure_to_exceed(random, "the teacher is", "random play")
        if not agents.exceeds(random):
            return agents.failure_to_exceed(random, "agents are", "random play")
        if self.goal is not None and agents.mean >= self.goal:  # then a constant action may reach the goal too
            return ""
        # The agents may be as good as the teacher, which is no better than a constant action.
        if teacher is not None and not teacher.exceeds(constant) and not teacher.exceeds(agents):
            return ""
        return agents.failure_to_exceed(constant, "agents are", "the best constant action")  # "" if they exceed it

    @property
    def doubt(self) -> str:
        """A doubt about a success: the teacher does not exceed the best constant action. "" without this doubt."""
        if self.teacher is None:
            return ""
        return self.teacher.failure_to_exceed(self.constant, "the teacher is", "the best constant action")

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, with ``passed``, ``solved`` and the ``sentence``, as data for JSON."""
        solved = self.passed and not self.is_unsolved
        return {"passed": self.passed, "solved": solved, "sentence": self.sentence} | dataclasses.asdict(self)


def joint_verdict(verdicts: Mapping[str, Verdict]) -> dict[str, Any]:
    """Return a verdict about several kinds of agents that trained on a bandit, as data for JSON. ``verdicts`` maps the
    name of each kind to its verdict, which compares it with a teacher. The result has:

    - ``passed``: whether more kinds pass than fail;
    - ``sentence``: the results of all kinds. It has no advice if the joint verdict passes and a kind comes near the
      teacher (`GOOD_FRACTION`);
    - ``kinds``: name of a kind -> `Verdict.as_dict`.
    """
    first_verdict = next(iter(verdicts.values()))  # all have the same baselines and advice
    shares = [f"{verdict.share_text} ({name})" for name, verdict in verdicts.items() if verdict.passed]
    failures = [f"{name}: {verdict.failure}" for name, verdict in verdicts.items() if not verdict.passed]
    passed = len(shares) > len(failures)
    is_near_teacher = passed and max(verdict.share for verdict in verdicts.values()) >= GOOD_FRACTION
    clauses = list(failures)
    if shares:
        clauses.insert(0, f"new agents that trained only on the bandit come {', '.join(shares)} {_WAY}")
        if first_verdict.doubt:
            clauses.append(first_verdict.doubt)
    returns = ", ".join(f"{name} {verdict.agents}" for name, verdict in verdicts.items())
    numbers = f"mean returns: {returns}, {first_verdict._baseline_numbers}"
    sentence = _two_sentences("; ".join(clauses), "" if is_near_teacher else first_verdict.advice, numbers)
    kinds = {name: verdict.as_dict() for name, verdict in verdicts.items()}
    return {"passed": passed, "sentence": sentence, "kinds": kinds}


def _two_sentences(result: str, advice: str, numbers: str) -> str:
    """Return a sentence with ``result`` and ``advice``, and a sentence with ``numbers``, such as ``Agents are no better
    than random play: try more steps. Mean returns: agents 9.`` Advice and numbers may be empty."""
    sentences = [f"{result}: try {advice}" if advice else result, numbers]
    return " ".join(f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences if sentence)


def read_verdict(folder: Path) -> dict[str, Any]:
    """Return `Verdict.as_dict` of the search in a run folder, {} if there is no verdict."""
    path = folder / SCORES
    return json.loads(path.read_text(encoding="utf-8")).get("verdict", {}) if path.exists() else {}


def constant_actions(actions: Discrete | Continuous, most_actions: int = MOST_CANDIDATES) -> dict[str, Tensor]:
    """Select actions for policies that always repeat one action. Return name -> action in the space ``actions``; a name
    is, for example, ``2`` or ``-1 0.5``. There are at most ``most_actions`` evenly spaced discrete actions, or
    `MOST_CONSTANTS` continuous actions: in two dimensions, all combinations of the lowest, middle and highest values;
    otherwise, all dimensions have the same level, evenly spaced from the lowest to the highest value."""
    if isinstance(actions, Discrete):
        indices = np.unique(np.linspace(0, actions.n - 1, min(actions.n, most_actions)).round().astype(int))
        return {str(index): torch.tensor(index) for index in indices.tolist()}
    low, high = np.array(actions.low), np.array(actions.high)
    constants = {}
    all_levels = np.linspace(0, 1, MOST_CONSTANTS)[:, None]  # a single level counts for all dimensions
    if actions.size == 2:
        all_levels = np.array(list(itertools.product([0, 0.5, 1], repeat=2)))
    for levels in all_levels:
        action = low + (high - low) * levels
        named_values = action if len(set(action)) > 1 else action[:1]  # the name has equal values only once
        constants[" ".join(f"{value:g}" for value in named_values)] = torch.tensor(action, dtype=torch.float32)
    return constants


def _constant_policy(action: Tensor) -> Act:
    """Return the policy that takes this ``action`` in all observations."""
    return lambda obs: action.expand(len(obs), *action.shape)
