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

_TIME_LIMIT = 1000  # steps of an episode if the task has no limit, because a policy may never end it
# A teacher and a clone are judged in rounds of so many episodes, until the standard error of the mean return is at most
# this fraction of its difference from random play, or until the number of episodes is the largest one.
JUDGING_EPISODES, _JUDGING_ERROR, _MOST_JUDGING_EPISODES = 64, 0.01, 512
JUDGING_ENVS = 16  # environments in parallel
# Steps of an environment per second below which it is slow: a teacher of continuous actions is SAC, and agents of the
# exam do not train on the task itself.
_FAST_RATE = 1000
_MAX_SECONDS, _MIN_STEPS = 1800, 10_000  # limits of a training in a slow environment
# After a failure of the teacher or the clone, the first part only if the teacher was trained.
_TRAINING_ADVICE, _TEACHER_ADVICE = "more --teacher_steps or ", "another --teacher, in a new run"


@dataclass
class Task:
    """A task to learn, with the settings of the command. ``results`` has the results of its stages by name. ``stage``
    is the name of the current stage, ``position`` is its number and the number of stages, such as ``2/4``, and
    ``verbose`` says whether to show its progress."""

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
        """Show the progress of the current stage or of a part, its ``work`` (`control.cli.progress.progress`)."""
        text = f"{self.position} {self.stage}"
        return progress(f"{text}, {work}" if work else text, self.verbose)

    def part(self, name: str, work: Callable[[Watch | None], dict[str, Any]]) -> dict[str, Any]:
        """Return the results of ``work``, a part of the current stage, and show its progress with ``name``. The file
        `parts_path` keeps them, so that a resumed command does not repeat finished parts."""
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
        """The options that differ from their defaults, except the game and ``only``. After a resume, they also contain
        the options of the first command, which the file of results has."""
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
        """The number of steps of each agent in the race, also if it has finished."""
        finished_race = self.results.get("race", {})
        return (
            self.options.race_steps
            or finished_race.get("steps")
            or self._affordable_steps(RACE_STEPS, self.most_race_agents)
        )

    @property
    def most_race_agents(self) -> int:
        """The largest number of agents in the race: with the learned reward, and with the task's for two settings."""
        return 3 * self.options.race_agents

    def _affordable_steps(self, steps: int, agents: int) -> int:
        """Return the number of steps of each of ``agents`` agents, ``steps`` if possible. In a slow environment it is
        reduced, so that all agents together take `_MAX_SECONDS`, but not below `_MIN_STEPS`."""
        if not self.is_slow:
            return steps
        affordable = self.results["probe"]["steps_per_second"] * _MAX_SECONDS / agents
        rounded = float(f"{affordable:.1e}")  # two significant digits
        return min(steps, max(_MIN_STEPS, int(rounded)))

    def score(self, stage: str, name: str) -> Score:
        """Return the score ``name`` in the results of a stage."""
        return Score(**self.results[stage][name])

    def verdict(self, agents: Score, teacher_score: Score, advice: str = "") -> Verdict:
        """Return a comparison of agents or policies, which have the score ``agents``, with random play, the best
        constant action and the teacher. ``advice`` is text to show after a failure, by default about the teacher."""
        if not advice:
            advice = f"{'' if self.options.teacher else _TRAINING_ADVICE}{_TEACHER_ADVICE}"
        baselines = (random_play(self.results), self.score("probe", "constant"), self.results["probe"]["action"])
        return Verdict(*baselines, teacher_score, agents=agents, goal=self.spaces.max_return, advice=advice)

    def fraction(self, score: Score) -> float:
        """Return how far ``score`` is on the way from random play (0) to the teacher (1)."""
        return self.verdict(score, self.score("teacher", "score")).share

    def judge(self, policy: Policy, name: str, episodes: int | None = None) -> Score:
        """Return the score of a policy of one member in new episodes of the task. ``name`` determines their seeds. By
        default, a slow environment has one round of `JUDGING_EPISODES` episodes. In others, rounds follow until the
        mean is precise (`_JUDGING_ERROR`), or there are `_MOST_JUDGING_EPISODES`."""
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
