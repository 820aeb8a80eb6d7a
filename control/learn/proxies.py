"""The stages `bandit` and `reward` of `--learn`: make a learned environment and a learned reward from the teacher."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from control.cli.parse import settings_from
from control.cli.settings import Settings
from control.commands.choose_proxy import write_proxy
from control.evolution.teachers import cloned_proxy
from control.learn.task import Task, command_text
from control.reports.stages import GOOD_FRACTION, TEACHER
from control.reports.tables import Score
from control.storage.run_dir import BANDIT
from envs.make import proxy_factory
from models.contract import Policy

REWARD = "reward.safetensors"


class Clone(NamedTuple):
    """A synthetic environment that imitates the teacher: its weights ``[D]`` and settings, the policy that takes the
    actions with the highest reward in it, and the score of this policy on the task."""

    score: Score
    settings: Settings
    weights: Tensor
    policy: Policy


def make_bandit(task: Task) -> dict[str, Any]:
    """Run the stage `bandit` of `--learn`: clone the teacher into a synthetic environment with episodes of one step,
    whose reward is highest for the teacher's action. If the policy with the highest rewards is much worse than the
    teacher, fit a new clone with more states that the clone visits, and then one that also has a wider network. Write
    the best clone to the file `BANDIT`. Returns:

    - ``score``: statistics of the best clone's returns on the task;
    - ``fraction``: how far this score is on the way from random play (0) to the teacher (1);
    - ``real_steps``: the number of environment steps of all fits;
    - ``rounds``: a pair for each clone, the steps so far and the mean return.
    """
    options = {"implementation": "SE", "gamename": task.game, "seed": task.seed, "proxy": "bandit", "preset": "clone"}
    options |= {"agent": task.learners[0], "start_from": task.teacher, "test_limit": task.time_limit}
    if not task.spaces.one_hot:
        options["table_episodes"] = task.time_limit  # steps after which episodes restart
    if task.options.exam_steps is not None:
        options["inner_steps"] = task.options.exam_steps  # the file says for how many steps agents train on the bandit
    # Further settings of each attempt.
    attempts: list[dict[str, Any]] = [{}, {"dagger_rounds": 6}, {"dagger_rounds": 6, "proxy_hidden_size": 128}]
    if task.spaces.one_hot:  # observations are numbered cells: the clone is fitted to every cell
        attempts = [{"first_states": "cells"}]
    clones: list[Clone] = []
    real_steps: list[int] = []  # numbers of steps in the environment, which `cloned_proxy` appends
    rounds: list[tuple[int, float]] = []  # steps so far and mean return of each clone
    for number, changes in enumerate(attempts):
        settings = settings_from(**options | changes)
        factory: Any = proxy_factory(settings.proxy, task.game)
        with task.progress(f"attempt {number + 1}"):
            weights = cloned_proxy(task.teacher, factory, task.seed, real_steps.append)
        policy = factory.parameters.target(weights[None])  # [1, D]; takes the actions with the highest reward
        score = task.judge(policy, f"judging clone {number}")
        clones.append(Clone(score, settings, weights, policy))
        rounds.append((sum(real_steps), score.mean))
        if task.fraction(score) >= GOOD_FRACTION:
            break
    best = max(clones, key=lambda clone: clone.score.mean)
    score = best.score
    if len(clones) > 1:  # the highest of several scores is an overestimate
        score = task.judge(best.policy, "judging the best clone")
    _write_proxy(task, BANDIT, best.settings, best.weights, {"clone": dataclasses.asdict(score)})
    result = {"score": dataclasses.asdict(score), "fraction": task.fraction(score)}
    return {**result, "real_steps": sum(real_steps), "rounds": rounds}


def make_reward(task: Task) -> dict[str, Any]:
    """Run the stage `reward` of `--learn`: fit a reward network to the teacher's returns, and write it to the file
    `REWARD`. Returns:

    - ``real_steps``: the number of environment steps of the fit;
    - ``explained_variance``: the fraction of the variance of the returns that the network explains.
    """
    options = {"implementation": "RN", "gamename": task.game, "seed": task.seed, "preset": "teacher"}
    options |= {"agent": "QLearning" if task.spaces.one_hot else "PPO", "start_from": task.teacher}
    settings = settings_from(**options, test_limit=task.time_limit)
    real_steps: list[int] = []  # numbers of steps in the environment, which `cloned_proxy` appends
    factory: Any = proxy_factory(settings.proxy, task.game)
    with task.progress("a fit to the teacher's returns"):
        weights = cloned_proxy(task.teacher, factory, task.seed, real_steps.append)
    explained = factory.explained_variance  # result of the fit in `cloned_proxy`
    _write_proxy(task, REWARD, settings, weights, {"explained_variance": explained})
    return {"real_steps": sum(real_steps), "explained_variance": explained}


def _write_proxy(task: Task, name: str, settings: Settings, weights: Tensor, scores: Mapping[str, Any]) -> None:
    """Write a proxy to the file ``name`` in the run folder: its ``weights [D]``, settings and scores, and the command
    that repeats the stages."""
    if task.options.teacher is None:
        settings = settings.replace(start_from=TEACHER)  # relative to the folder, which may be moved
    write_proxy(task.folder / name, weights, settings, task.spaces, scores, text=command_text(task))
