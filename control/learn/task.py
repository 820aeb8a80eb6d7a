"""A task to learn with `--learn`: its settings, its results so far, the judging of policies on it, and the stage
`probe`, which measures baselines and the speed of the environment."""

import contextlib
import dataclasses
import json
import os
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from control.cli.colour import note, warning
from control.cli.files import read_json
from control.cli.progress import Watch, progress
from control.cli.run_settings import RACE_STEPS, TEACHER_STEPS, LearnConfig
from control.cli.settings import Settings
from control.cli.words import as_word
from control.loops.rollout import LONG, play_episodes, rollout
from control.reports.stages import TEACHER, random_play
from control.reports.tables import Score
from control.reports.verdict import Baselines, Verdict
from control.storage import run_dir
from envs.gymnasium_adapter import GymnasiumEnvironment
from envs.make import make_environment
from models.contract import Policy, RandomPolicy
from models.spaces import Discrete, Spaces
from models.streams import Streams, derive_seed

TIME_LIMIT = 1000  # maximum steps of an episode if the task has no limit, because a policy may never end the episode
# A teacher and a clone are judged in rounds of `JUDGING_EPISODES` episodes. The rounds end if the standard error of the
# mean return is at most `_JUDGING_ERROR` times its difference from random play, or after `_MOST_JUDGING_EPISODES`.
JUDGING_EPISODES, _JUDGING_ERROR, _MOST_JUDGING_EPISODES = 64, 0.01, 512
JUDGING_ENVS = 16  # number of environments in parallel
# An environment with fewer steps per second is slow. There a teacher of continuous actions is SAC, and agents of the
# exam do not train on the task itself.
_FAST_RATE = 1000
_MAX_SECONDS, _MIN_STEPS = 1800, 10_000  # maximum time and minimum steps of a training in a slow environment
_CHECKED_STEPS = 200  # steps in which observations are compared with their bounds
_EPISODES = 4  # episodes that show whether the environment has a time limit that its id lacks
# Advice after a failure of the teacher or the clone. The first part is shown only if the teacher was trained.
_TRAINING_ADVICE, _TEACHER_ADVICE = "more --teacher_steps or ", "another --teacher, in a new run"


@dataclass
class Task:
    """A task to learn with `--learn`: an environment, the settings, and the results so far."""

    settings: Settings  # of the command
    folder: Path  # run folder of the command
    spaces: Spaces  # observations and actions of the environment
    results: dict[str, Any]  # name of a stage -> its results
    verbose: bool  # whether to show the progress
    stage: str = ""  # name of the current stage
    position: str = ""  # its number and the number of stages, such as "2/4"

    def __post_init__(self) -> None:
        self.game, self.seed = self.settings.run.gamename, self.settings.run.seed
        self.options: LearnConfig = self.settings.subcommand
        self.teacher = self.options.teacher or str(self.folder / TEACHER)  # the policy to clone

    @property
    def time_limit(self) -> int | None:
        """The time limit in place of the limit of the task's id. None if the id has one. Requires the stage `probe`."""
        if self.spaces.max_episode_steps:
            return None
        return int(self.results["probe"].get("time_limit", TIME_LIMIT))  # results of earlier versions lack it

    def progress(self, work: str = "") -> contextlib.AbstractContextManager[Watch | None]:
        """Context manager that shows the progress of the current stage or, unless it is "", of its part ``work``. It
        returns a function to call with the finished fraction."""
        text = f"{self.position} {self.stage}"
        return progress(f"{text}, {work}" if work else text, self.verbose)

    def part(self, name: str, work: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
        """Run a part of the current stage, such as a training: call ``work(*arguments, watch)``, show its progress with
        ``name``, and return its results and times. The file `parts_path` keeps them for a resumed command."""
        parts = self.finished_parts
        if name not in parts:
            started, cpu_started = time.perf_counter(), time.process_time()
            with self.progress(name) as watch:
                result = work(*arguments, watch)
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
        except (OSError, ValueError):  # no valid file
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
        """The number of training steps of each agent in the race, from its results if it has finished."""
        if self.options.race_steps:
            return self.options.race_steps
        if "steps" in self.results.get("race", {}):
            return int(self.results["race"]["steps"])
        return self._affordable_steps(RACE_STEPS, self.most_race_agents)

    @property
    def most_race_agents(self) -> int:
        """The largest number of agents in the race, which has up to three trainings: with the learned reward, and with
        the task's reward for each of two settings."""
        return 3 * self.options.race_agents

    def _affordable_steps(self, steps: int, agents: int) -> int:
        """Return the number of training steps of each of ``agents`` agents: ``steps``, or fewer in a slow environment,
        so that all agents together take `_MAX_SECONDS`, but at least `_MIN_STEPS`."""
        if not self.is_slow:
            return steps
        affordable = self.results["probe"]["steps_per_second"] * _MAX_SECONDS / agents
        rounded = float(f"{affordable:.1e}")  # two significant digits
        return min(steps, max(_MIN_STEPS, int(rounded)))

    def score(self, stage: str, name: str) -> Score:
        """Return the score ``name`` in the results of a stage."""
        return Score(**self.results[stage][name])

    def verdict(self, agents: Score, teacher_score: Score, advice: str = "") -> Verdict:
        """Judge the score of ``agents`` (or of other policies) by the scores of random play, the best constant action
        and the teacher (``teacher_score``). ``advice`` is shown after a failure, by default about the teacher."""
        if not advice:
            advice = _TEACHER_ADVICE if self.options.teacher else f"{_TRAINING_ADVICE}{_TEACHER_ADVICE}"
        baselines = (random_play(self.results), self.score("probe", "constant"), self.results["probe"]["action"])
        return Verdict(*baselines, teacher_score, agents=agents, goal=self.spaces.max_return, advice=advice)

    def fraction(self, score: Score) -> float:
        """Return the position of ``score`` between the scores of random play (0) and of the teacher (1)."""
        return self.verdict(score, self.score("teacher", "score")).share

    def judge(self, policy: Policy, name: str, episodes: int | None = None) -> Score:
        """Measure the returns of a policy of one member in new episodes of the task, whose seeds depend on ``name``.

        The episodes are played in rounds of `JUDGING_EPISODES`: until there are ``episodes`` episodes or, if that is
        None, until the mean return is precise (`_JUDGING_ERROR`), in at most `_MOST_JUDGING_EPISODES` episodes. A slow
        environment then has only one round.
        """
        streams = Streams([derive_seed(self.seed, name)])
        most_episodes = JUDGING_EPISODES if self.is_slow else _MOST_JUDGING_EPISODES
        if episodes is not None:
            most_episodes = episodes
        returns: list[Tensor] = []  # [JUDGING_ENVS] each
        environment = make_environment(self.game, 1, JUDGING_ENVS, time_limit=self.time_limit)
        with self.progress(name) as watch, contextlib.closing(environment) as real:
            while True:
                for seeds in streams.episode_seeds(JUDGING_EPISODES).split(JUDGING_ENVS, 1):
                    returns.append(play_episodes(policy, real, seeds).returns[0])
                    if watch is not None:
                        watch(len(returns) * JUDGING_ENVS / most_episodes)
                score = Score.of(torch.cat(returns).numpy())
                difference = abs(score.mean - random_play(self.results).mean)
                is_precise = episodes is None and score.error <= _JUDGING_ERROR * difference
                if is_precise or score.count >= most_episodes:
                    return score


def command_text(task: Task) -> str:
    """Return the command line that repeats the stages, "python trainer.py --learn GAME --seed 0 ..."."""
    options = dict(task.changed_options)
    # Without these flags, the speed of the machine would select the teacher's implementation and the steps.
    teacher_results = task.results.get("teacher", {})
    if "implementation" in teacher_results:
        options["implementation"] = teacher_results["implementation"]
    if task.is_slow:
        options |= {"teacher_steps": task.teacher_steps, "race_steps": task.race_steps}
    flags = [f"--{flag} {shlex.quote(as_word(value))}" for flag, value in options.items()]
    game = task.options.learn or task.game  # as the user wrote it
    return " ".join(["python trainer.py", f"--learn {game} --seed {task.seed}", *flags])


def _check_environment(task: Task) -> None:
    """Warn about a Gymnasium environment in which results would be unreliable: two instances begin differently with the
    same seed, or random play observes numbers outside of the bounds that the environment states."""
    with contextlib.closing(make_environment(task.game, 1, 2, time_limit=_CHECKED_STEPS)) as real:
        if not isinstance(real, GymnasiumEnvironment):
            return
        streams = Streams([derive_seed(task.seed, "bounds")])
        seeds = streams.episode_seeds(1).expand(1, 2)  # [members, instances]
        obs = rollout(RandomPolicy(real.spaces, 2, streams), real, seeds).obs  # [T, 1, 2, *O]
        low, high = real.bounds
    first_instance, second_instance = obs[0, 0]  # first observations
    if not torch.equal(first_instance, second_instance):
        warning(
            f"two instances of {task.game} that were reset with the same seed are in different states, so results "
            "cannot be repeated, and a policy may fail in another instance"
        )
    outside = obs[(obs < low) | (obs > high)]
    if len(outside):
        warning(f"an observation has the number {outside[0]:.4g}, outside of the bounds of {task.game}")


def _time_limit(task: Task) -> int | None:
    """Return the time limit of a task whose id has none. It is the length at which the environment itself ends episodes
    of random play, or `TIME_LIMIT` if they have no such length. Return None if the id has a limit."""
    if task.spaces.max_episode_steps:
        return None
    with contextlib.closing(make_environment(task.game, 1, _EPISODES, time_limit=LONG)) as real:
        streams = Streams([derive_seed(task.seed, "time limit")])
        episodes = rollout(RandomPolicy(real.spaces, _EPISODES, streams), real, streams.episode_seeds(_EPISODES))
    lengths, truncated = episodes.lengths[0], episodes.truncated.any(0)[0]  # [_EPISODES] each
    longest = int(lengths.max())
    # An environment may also truncate episodes for other reasons, but then hardly twice at the same, largest length.
    is_truncated_alike = int(truncated.sum()) > 1 and bool((lengths[truncated] == longest).all())
    if longest < LONG and (is_truncated_alike or (longest > TIME_LIMIT and (lengths == longest).all())):
        note(f"{task.game} ends its episodes after {longest:,} steps, which is taken as their time limit")
        return longest
    name = f"{task.game},max_episode_steps=N"
    note(f"{task.game} shows no time limit, so its episodes end after {TIME_LIMIT:,} steps; {name} has another limit")
    return TIME_LIMIT


def measure_baselines(task: Task) -> dict[str, Any]:
    """Run the stage `probe` of `--learn`: measure the returns of random play and of the best constant action, and the
    speed of the environment. Returns:

    - ``random``, ``constant``: statistics of the returns of random play and of the best constant action;
    - ``action``: the name of this action;
    - ``real_steps``: the number of environment steps of all episodes;
    - ``steps_per_second``: the speed of the environment;
    - ``time_limit``: the time limit of a task whose id has none (`_time_limit`).
    """
    _check_environment(task)
    limit = _time_limit(task)
    Baselines.measure.cache_clear()  # type: ignore[attr-defined]  # cached results would hide the speed
    started, cpu_started = time.perf_counter(), time.process_time()
    with task.progress() as watch:
        baselines = Baselines.measure(task.game, task.seed, limit, watch=watch)
    seconds = time.perf_counter() - started
    if os.getloadavg()[0] > (os.cpu_count() or 1):  # other programs take a part of the time
        seconds = time.process_time() - cpu_started
    rate = baselines.real_steps / seconds
    result = dataclasses.asdict(baselines)
    del result["teacher"]  # not measured yet
    return {**result, "steps_per_second": rate, "time_limit": limit}
