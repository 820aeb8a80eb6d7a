"""A task to learn with `--learn`: its settings, its results so far, and the judging of policies on it."""

import contextlib
import dataclasses
import json
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from control.cli.files import read_json
from control.cli.progress import Watch, progress
from control.cli.run_settings import RACE_STEPS, TEACHER_STEPS, LearnConfig
from control.cli.settings import Settings
from control.cli.words import as_word
from control.loops.rollout import play_episodes
from control.reports.stages import TEACHER, random_play
from control.reports.tables import Score
from control.reports.verdict import Verdict
from control.storage import run_dir
from envs.make import make_environment
from models.contract import Policy
from models.spaces import Discrete, Spaces
from models.streams import Streams, derive_seed

_TIME_LIMIT = 1000  # maximum steps of an episode if the task has no limit, because a policy may never end the episode
# A teacher and a clone are judged in rounds of `JUDGING_EPISODES` episodes. The rounds end if the standard error of the
# mean return is at most `_JUDGING_ERROR` times its difference from random play, or after `_MOST_JUDGING_EPISODES`.
JUDGING_EPISODES, _JUDGING_ERROR, _MOST_JUDGING_EPISODES = 64, 0.01, 512
JUDGING_ENVS = 16  # number of environments in parallel
# An environment with fewer steps per second is slow. There a teacher of continuous actions is SAC, and agents of the
# exam do not train on the task itself.
_FAST_RATE = 1000
_MAX_SECONDS, _MIN_STEPS = 1800, 10_000  # maximum time and minimum steps of a training in a slow environment
# Advice after a failure of the teacher or the clone. The first part is shown only if the teacher was trained.
_TRAINING_ADVICE, _TEACHER_ADVICE = "more --teacher_steps or ", "another --teacher, in a new run"


@dataclass
class Task:
    """A task to learn: an environment with observations and actions in ``spaces``.

    ``settings`` are the settings of the command, and ``folder`` is its run folder. ``results`` has the results of the
    stages by name. ``stage`` is the name of the current stage. ``position`` is its number and the number of stages,
    such as ``2/4``. ``verbose`` says whether to show its progress.
    """

    settings: Settings
    folder: Path
    spaces: Spaces
    results: dict[str, Any]
    verbose: bool
    stage: str = ""
    position: str = ""

    def __post_init__(self) -> None:
        self.game, self.seed = self.settings.run.gamename, self.settings.run.seed
        self.options: LearnConfig = self.settings.subcommand
        self.teacher = self.options.teacher or str(self.folder / TEACHER)  # the policy to clone
        self.time_limit = None if self.spaces.max_episode_steps else _TIME_LIMIT  # None: the task has a time limit

    def progress(self, work: str = "") -> contextlib.AbstractContextManager[Watch | None]:
        """Show the progress of the current stage or, if it is not empty, of its part ``work``
        (`control.cli.progress.progress`)."""
        text = f"{self.position} {self.stage}"
        return progress(f"{text}, {work}" if work else text, self.verbose)

    def part(self, name: str, work: Callable[[Watch | None], dict[str, Any]]) -> dict[str, Any]:
        """Run a part of the current stage: call ``work(watch)``, show its progress with ``name``, and return its
        results with its times. The file `parts_path` keeps the results, so that a resumed command does not repeat
        finished parts."""
        parts = self.finished_parts
        if name not in parts:
            started, cpu_started = time.perf_counter(), time.process_time()
            with self.progress(name) as watch:
                result = work(watch)
            times = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu_started}
            parts[name] = result | times
            run_dir.atomic_write_text(self.parts_path, json.dumps(parts))
        return parts[name]

    @property
    def parts_path(self) -> Path:
        """The file with the results of the finished parts of the current stage. It is deleted after the stage."""
        return self.folder / f"{self.stage}_parts.json"

    @property
    def finished_parts(self) -> dict[str, dict[str, Any]]:
        """The results of the finished parts of the current stage by name, also of an interrupted command."""
        try:
            return dict(read_json(self.parts_path))
        except (OSError, ValueError):  # there is no valid file, so repeat all parts
            return {}

    @property
    def changed_options(self) -> dict[str, Any]:
        """The options that differ from their defaults, except the game and ``only``. In a resumed run, they include the
        options of the first command, which are in the file of results."""
        defaults = dataclasses.replace(LearnConfig(), learn=self.options.learn, only=self.options.only)
        return {name: value for name, value in vars(self.options).items() if value != getattr(defaults, name)}

    @property
    def learners(self) -> tuple[str, ...]:
        """The implementations of the agents in the exam: algorithms of different kinds."""
        if not isinstance(self.spaces.actions, Discrete):
            return "TD3", "SAC", "PPO"
        if self.spaces.one_hot:  # observations are numbered cells
            return "DDQN", "PPO", "QLearning"
        return "DDQN", "PPO", "A2C"

    @property
    def is_slow(self) -> bool:
        """Whether the environment makes fewer than `_FAST_RATE` steps per second."""
        return bool(self.results["probe"]["steps_per_second"] < _FAST_RATE)

    @property
    def teacher_steps(self) -> int:
        """The largest number of steps of the teacher's training."""
        return self.options.teacher_steps or self._affordable_steps(TEACHER_STEPS, 1)

    @property
    def race_steps(self) -> int:
        """The number of steps of each agent in the race. If the race has finished, the number in its results."""
        finished_race = self.results.get("race", {})
        return (
            self.options.race_steps
            or finished_race.get("steps")
            or self._affordable_steps(RACE_STEPS, self.most_race_agents)
        )

    @property
    def most_race_agents(self) -> int:
        """The largest number of agents in the race, which has up to three trainings: with the learned reward, and with
        the task's reward for each of two settings."""
        return 3 * self.options.race_agents

    def _affordable_steps(self, steps: int, agents: int) -> int:
        """Return the number of training steps of each of ``agents`` agents. It is ``steps`` in a fast environment. In a
        slow environment it is reduced, so that all agents together take `_MAX_SECONDS`, but not below
        `_MIN_STEPS`."""
        if not self.is_slow:
            return steps
        affordable = self.results["probe"]["steps_per_second"] * _MAX_SECONDS / agents
        rounded = float(f"{affordable:.1e}")  # two significant digits
        return min(steps, max(_MIN_STEPS, int(rounded)))

    def score(self, stage: str, name: str) -> Score:
        """Return the score ``name`` in the results of a stage."""
        return Score(**self.results[stage][name])

    def verdict(self, agents: Score, teacher_score: Score, advice: str = "") -> Verdict:
        """Compare the score of ``agents`` (or policies) with the scores of random play, the best constant action and
        the teacher (``teacher_score``). ``advice`` is text to show after a failure, by default about the teacher."""
        if not advice:
            advice = f"{'' if self.options.teacher else _TRAINING_ADVICE}{_TEACHER_ADVICE}"
        baselines = (random_play(self.results), self.score("probe", "constant"), self.results["probe"]["action"])
        return Verdict(*baselines, teacher_score, agents=agents, goal=self.spaces.max_return, advice=advice)

    def fraction(self, score: Score) -> float:
        """Return how far ``score`` is on the way from random play (0) to the teacher (1)."""
        return self.verdict(score, self.score("teacher", "score")).share

    def judge(self, policy: Policy, name: str, episodes: int | None = None) -> Score:
        """Return the score of a policy of one member in new episodes of the task, whose seeds depend on ``name``.

        The episodes are played in rounds of `JUDGING_EPISODES`. The rounds end after ``episodes`` episodes if that is
        not None. Otherwise, a slow environment has one round. In other environments, rounds follow until the mean
        return is precise (`_JUDGING_ERROR`), or until there are `_MOST_JUDGING_EPISODES` episodes.
        """
        streams = Streams([derive_seed(self.seed, name)])
        most_episodes = episodes or (JUDGING_EPISODES if self.is_slow else _MOST_JUDGING_EPISODES)
        parts: list[Tensor] = []
        with contextlib.closing(make_environment(self.game, 1, JUDGING_ENVS, time_limit=self.time_limit)) as real:
            while True:
                for seeds in streams.episode_seeds(JUDGING_EPISODES).split(JUDGING_ENVS, 1):
                    parts.append(play_episodes(policy, real, seeds).returns[0])
                score = Score.of(torch.cat(parts).numpy())
                difference = abs(score.mean - random_play(self.results).mean)
                is_precise = episodes is None and score.error <= _JUDGING_ERROR * difference
                if is_precise or score.count >= most_episodes:
                    return score


def command_text(task: Task) -> str:
    """Return the command that repeats the stages."""
    values = dict(task.changed_options)
    # Without these flags, the speed of the machine would select the teacher's implementation and the steps.
    if implementation := task.results.get("teacher", {}).get("implementation"):
        values["implementation"] = implementation
    if task.is_slow:
        values |= {"teacher_steps": task.teacher_steps, "race_steps": task.race_steps}
    flags = [f"--{flag} {shlex.quote(as_word(value))}" for flag, value in values.items()]
    game = task.options.learn or task.game  # as the user wrote it
    return " ".join(["python trainer.py", f"--learn {game} --seed {task.seed}", *flags])
