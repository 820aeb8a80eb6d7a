"""The stage `probe` of `--learn`: baselines, the speed of the environment, and warnings about it."""

import contextlib
import dataclasses
import os
import time
from typing import Any

import torch

from control.cli.colour import note, warning
from control.learn.task import TIME_LIMIT, Task
from control.loops.rollout import LONG, rollout
from control.reports.verdict import Baselines
from envs.gymnasium_adapter import GymnasiumEnvironment
from envs.make import make_environment
from models.contract import RandomPolicy
from models.streams import Streams, derive_seed

_CHECKED_STEPS = 200  # steps in which observations are compared with their bounds
_EPISODES = 4  # episodes that show whether the environment has a time limit that its id lacks


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
