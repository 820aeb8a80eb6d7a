"""The stages of `--learn` in order, and an estimate of their time."""

import math
from collections.abc import Callable, Iterable
from typing import Any

from control.learn.agents import REAL_AGENTS, compare_rewards, examine_fresh_agents, learners_on_task
from control.learn.task import JUDGING_EPISODES, Task, measure_baselines
from control.learn.teacher import find_teacher, make_bandit, make_reward, teacher_trainings
from envs.make import make_dynamics
from models.proxies.search import load_presets
from models.spaces import Discrete

# Times for rough estimates of the time left, in seconds on the machine of docs/benchmarks.md.
_FIT_SECONDS = 5.0  # time to fit the bandit or the reward, without the steps of the task
_FIT_STEPS = 50_000  # number of steps of the task for such a fit
_TEACHER_UPDATE = 4e-5  # time of updates and evaluations, for each step of a teacher's training
_TEACHER_FRACTION = 0.4  # fraction of the largest number of steps after which a teacher's training usually ends
_DISCRETE_STEP, _CONTINUOUS_STEP = 8e-6, 7e-5  # time of a step on the bandit, with discrete and continuous actions
_TASK_UPDATE, _RACE_UPDATE = 5e-5, 1e-5  # time of an agent's updates for each step on the task, in exam and race
_MACHINE_STEP = 5e-6  # time of a step of an environment in machine code
_INPUT_ON_BANDIT, _INPUT_ON_TASK = 1.3e-7, 6e-7  # additional time of a step for each number of the observation

STAGES: dict[str, tuple[Callable[[Task], dict[str, Any]], tuple[str, ...]]] = {
    "probe": (measure_baselines, ()),
    "teacher": (find_teacher, ("probe",)),
    "bandit": (make_bandit, ("probe", "teacher")),
    "exam": (examine_fresh_agents, ("probe", "teacher", "bandit")),
    "reward": (make_reward, ("probe", "teacher")),
    "race": (compare_rewards, ("probe", "teacher", "reward")),
}
"""The stages by name, in order, each with the stages whose results it needs. A stage returns its results as data for
JSON, with ``failed`` and a ``verdict`` if it judges agents. `stage_texts` describes the results in words."""


def time_left(task: Task, names: Iterable[str]) -> str:
    """Estimate the time of the stages in ``names`` that have no results yet. Return it as text, such as "; about 7
    minutes left", which is empty below two seconds."""
    step = 1 / task.results["probe"]["steps_per_second"]  # seconds of a step of the task
    if make_dynamics(task.game) is not None:  # trainings make steps in machine code, unlike the probe
        step = min(step, _MACHINE_STEP)
    clone_preset = load_presets("synthetic")["presets"]["bandit"]["clone"]  # settings of the agents of the exam
    exam_steps, num_agents = task.options.exam_steps or clone_preset["inner_steps"], task.options.exam_agents
    inputs = math.prod(task.spaces.obs_shape)
    bandit_step = _DISCRETE_STEP if isinstance(task.spaces.actions, Discrete) else _CONTINUOUS_STEP
    # Seconds for the agents of one implementation: on the bandit, and on the task itself.
    bandit_seconds = exam_steps * num_agents * (bandit_step + _INPUT_ON_BANDIT * inputs)
    task_seconds = exam_steps * min(REAL_AGENTS, num_agents) * (step + _TASK_UPDATE + _INPUT_ON_TASK * inputs)
    judging_seconds = JUDGING_EPISODES * (task.spaces.max_episode_steps or task.time_limit or 0) * step
    teacher_seconds = judging_seconds
    if task.options.teacher is None:
        training_seconds = _TEACHER_FRACTION * task.teacher_steps * (step + _TEACHER_UPDATE)
        teacher_seconds += len(teacher_trainings(task)) * training_seconds
    seconds_of_stages = {
        "teacher": teacher_seconds,
        "bandit": _FIT_SECONDS + _FIT_STEPS * step + judging_seconds,
        "exam": len(task.learners) * bandit_seconds + len(learners_on_task(task)) * task_seconds,
        "reward": _FIT_SECONDS + _FIT_STEPS * step,
        "race": task.most_race_agents * task.race_steps * (step + _RACE_UPDATE),
    }
    seconds = sum(seconds_of_stages[name] for name in names if name not in task.results)
    for unit, size in (("hours", 3600), ("minutes", 60), ("seconds", 1)):
        if seconds >= 2 * size:
            return f"; about {seconds / size:.0f} {unit} left"
    return ""
