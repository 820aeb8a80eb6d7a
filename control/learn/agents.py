"""The stages `exam` and `race` of `--learn`: train fresh agents with both proxies, and compare them.

N is the number of agents, T the number of tests of each agent, and D the number of weights of a proxy.
"""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from control.cli.progress import Watch
from control.commands.proxy_agents import agent_settings
from control.evolution.inner_loop import InnerLoop, fresh_seeds
from control.evolution.objectives import first_solved_test
from control.learn.task import Task
from control.learn.teacher import REWARD
from control.reports.search import quartiles
from control.reports.stages import GOOD_FRACTION, is_clearly_sooner, random_play
from control.reports.tables import Score
from control.reports.verdict import joint_verdict
from control.storage.run_dir import BANDIT
from models.proxies import files
from models.registry import default_config, parse_agents
from models.spaces import Discrete

_EXAM_EPISODES = 10  # test episodes of an agent in the exam
# Fraction of the way from random play to the teacher that agents should come. If they do not, other agents train for
# `_MORE_STEPS` times as many steps.
_GOOD_AGENTS, _MORE_STEPS = 0.95, 4
_TESTS, _TEST_EPISODES = 16, 4  # number of tests of an agent in the race, and number of episodes of each test
REAL_AGENTS = 4  # maximum number of agents of the exam, per implementation, that train on the task itself
_BUFFER_NUMBERS = 5_000_000  # maximum of steps times numbers per observation in the replay buffer of such an agent
# Advice after a failure of agents that train on a good clone.
_EXAM_ADVICE = "more --exam_steps, in a new run with this teacher (--teacher)"


def examine_fresh_agents(task: Task) -> dict[str, Any]:
    """Run the stage `exam` of `--learn`: train fresh agents of each algorithm in `Task.learners` on the bandit (the
    learned environment), and test them on the task. For comparison, a few agents train on the task itself.

    If the bandit is a good clone, but agents of an algorithm learn too little (`_GOOD_AGENTS`), other agents train for
    `_MORE_STEPS` times as many steps, unless the user has chosen the steps. The better result counts. Returns:

    - ``agents``, ``real``: implementation -> score of the agents that train on the bandit, and on the task itself;
    - ``steps``: the training steps of an agent;
    - ``more_steps``: implementation -> training steps, if agents learned more in more steps;
    - ``real_steps``: the training steps on the task itself of all agents together;
    - ``verdict``: the `joint_verdict` about the agents on the bandit;
    - ``failed``: whether this verdict is a failure.
    """
    proxy = files.load(task.folder / BANDIT)
    base_steps, long_steps = proxy.config.inner_steps, _MORE_STEPS * proxy.config.inner_steps

    def train(name: str, steps: int, on_task: bool) -> dict[str, Any]:
        """Run `_train_and_test` as a part of the stage, or return its results if an interrupted command has run it."""
        part = f"{name} on the {'task' if on_task else 'bandit'}, {steps:,} steps"
        return task.part(part, _train_and_test, task, proxy, name, steps, on_task)

    results = {name: train(name, base_steps, on_task=False) for name in task.learners}
    is_good_clone = task.fraction(task.score("bandit", "score")) >= GOOD_FRACTION
    more_steps: dict[str, int] = {}  # implementation -> steps of agents that learned more in them
    if is_good_clone and task.options.exam_steps is None:
        for name in task.learners:
            if task.fraction(Score(**results[name]["score"])) >= _GOOD_AGENTS:
                continue
            result = train(name, long_steps, on_task=False)
            if result["score"]["mean"] > results[name]["score"]["mean"]:
                results[name], more_steps[name] = result, long_steps
        if more_steps:  # the file says for how many steps agents train on the bandit
            config = dataclasses.replace(proxy.config, deploy_steps=long_steps)
            settings = proxy.description["settings"] | {"deploy_steps": long_steps}
            options = {"spaces": proxy.spaces, "game": proxy.game, "config": config}
            description = {**proxy.description, "settings": settings}
            files.save(proxy.path, proxy.parameters, description=description, **options)
    scores = {name: Score(**result["score"]) for name, result in results.items()}
    task_results = {name: train(name, base_steps, on_task=True) for name in learners_on_task(task)}
    teacher_score = task.score("teacher", "score")
    advice = _EXAM_ADVICE if is_good_clone else ""  # with "", `Task.verdict` gives advice about the teacher
    verdict = joint_verdict({name: task.verdict(score, teacher_score, advice) for name, score in scores.items()})
    return {
        "agents": {name: result["score"] for name, result in results.items()},
        "real": {name: result["score"] for name, result in task_results.items()},
        "steps": base_steps,
        "more_steps": more_steps,
        "real_steps": sum(result["real_steps"] for result in task_results.values()),
        "failed": not verdict["passed"],
        "verdict": verdict,
    }


def _train_and_test(
    task: Task, proxy: files.Proxy, name: str, steps: int, on_task: bool, watch: Watch | None
) -> dict[str, Any]:
    """Train fresh agents of the algorithm ``name`` for ``steps`` steps on the proxy or, if ``on_task``, on the task
    itself, and test them on the task. Returns:

    - ``score``: statistics of the agents' mean returns on the task;
    - ``real_steps``: the training steps of all agents together on the task itself, 0 on the proxy.
    """
    count, purpose = task.options.exam_agents, f"exam of {name}"
    if on_task:
        count, purpose = min(REAL_AGENTS, count), f"{purpose} on the task"
        agent_config, proxies = _settings_on_task(task, name), None
    else:
        agent_config = agent_settings(proxy, name, changed={})
        proxies = proxy.parameters.expand(count, -1)  # [N, D], equal rows
    loop = _inner_loop(task, proxy, name, agent_config, inner_steps=steps, test_episodes=_EXAM_EPISODES)
    outcome = loop.run(proxies, fresh_seeds(task.seed, purpose, count), watch=watch)
    real_steps = int(outcome.steps.sum()) if on_task else 0
    return {"score": dataclasses.asdict(Score.of(outcome.scores)), "real_steps": real_steps}


def learners_on_task(task: Task) -> tuple[str, ...]:
    """Return the algorithms of the agents that train on the task itself in the exam: none in a slow environment, where
    they would take hours, and only PPO for continuous actions, because TD3 would take longer than all other stages."""
    if task.is_slow:
        return ()
    return task.learners if isinstance(task.spaces.actions, Discrete) else ("PPO",)


def compare_rewards(task: Task) -> dict[str, Any]:
    """Run the stage `race` of `--learn`: find out whether agents learn sooner with the learned reward than with the
    task's reward. With the task's reward, some agents have the default settings for the task, others have the settings
    of the agents with the learned reward. The better of the two results counts. An agent is near the teacher if it has
    come `GOOD_FRACTION` of the way from random play to the teacher's mean return. Returns:

    - ``agent``, ``agents``: the implementation of all agents, and the number of agents in a training;
    - ``steps``, ``test_every``: the training steps of an agent, and the steps between its tests;
    - ``solved``: the return of an agent that is near the teacher;
    - ``arms``: the results of `_train_for_race` with the ``learned`` reward, and with the reward of the ``task``. The
      latter also has its ``settings``, "default" or "same", and the results with the ``others``;
    - ``gain``: whether agents with the learned reward come near the teacher clearly sooner, and have no lower returns
      in the end;
    - ``real_steps``: the training steps of all agents together.
    """
    proxy = files.load(task.folder / REWARD)
    name = parse_agents(proxy.description["settings"]["agent"])[0]  # the implementation of all agents
    random_mean, goal = random_play(task.results).mean, task.score("teacher", "score").mean
    solved = random_mean + GOOD_FRACTION * (goal - random_mean)
    config, task_config = agent_settings(proxy, name, changed={}), _settings_on_task(task, name)
    steps, count = task.race_steps, task.options.race_agents
    test_every = max(1, steps // _TESTS)
    # With the rule "budget", a training ends only after all steps.
    limits = {"inner_steps": steps, "inner_rule": "budget", "test_every": test_every, "test_episodes": _TEST_EPISODES}
    loop = _inner_loop(task, proxy, name, config, **limits, solved_reward=solved)
    task_loop = _inner_loop(task, proxy, name, task_config, **limits, solved_reward=solved)
    weights = proxy.parameters.expand(count, -1)  # [N, D], equal rows, for the learned reward of each agent
    learned = task.part("the learned reward", _train_for_race, task, loop, weights)
    results = task.part("the task's reward, default settings", _train_for_race, task, task_loop, None)
    task_results = {"default": results}  # settings -> results with the task's reward
    if config != task_config:
        task_results["same"] = task.part("the task's reward, the same settings", _train_for_race, task, loop, None)

    def rank(key: str) -> tuple[float, float]:
        """Return a pair that is smaller if half of the agents come near the teacher sooner, or are better later."""
        median, late = task_results[key]["median"], task_results[key]["late"]
        return math.inf if median is None else median, -late

    best_key, *other_keys = sorted(task_results, key=rank)  # "default" or "same"
    other_results = [{"median": task_results[key]["median"], "late": task_results[key]["late"]} for key in other_keys]
    arms = {"learned": learned, "task": task_results[best_key] | {"settings": best_key, "others": other_results}}
    # A reward that is quick at first may be worse in the end.
    is_good_in_the_end = learned["late"] >= min(solved, max(result["late"] for result in task_results.values()))
    return {
        "agent": name,
        "agents": count,
        "steps": steps,
        "test_every": test_every,
        "solved": solved,
        "arms": arms,
        "gain": is_clearly_sooner(arms, "learned", "task", test_every) and is_good_in_the_end,
        "real_steps": sum(result["real_steps"] for result in (learned, *task_results.values())),
    }


def _train_for_race(task: Task, loop: InnerLoop, weights: Tensor | None, watch: Watch | None) -> dict[str, Any]:
    """Train N fresh agents of ``loop`` on the task, with the learned reward of the network ``weights [N, D]`` or, if
    that is None, with the task's reward. Returns:

    - ``median``: the steps after which half of the agents have solved the task; None if they never have;
    - ``late``: the mean return of all agents in the last quarter of the tests;
    - ``discount``: the discount factor of the agents;
    - ``curves``: the returns ``[N, T]`` in T tests, as nested lists;
    - ``real_steps``: the training steps of all agents together.
    """
    config: Any = loop.config
    outcome = loop.run(weights, fresh_seeds(task.seed, "race", task.options.race_agents), watch=watch)
    curve = outcome.curve  # [N, T]
    # A good return in a single test may be luck, so each return is limited by the return in the next test.
    confirmed_curve = torch.cat([torch.minimum(curve[:, :-1], curve[:, 1:]), curve[:, -1:]], 1)
    solved_at = first_solved_test(confirmed_curve, config.solved_reward)  # [N], index of a test
    _, median_steps, *_ = quartiles(solved_at, curve, config.test_every)
    num_late_tests = max(1, curve.shape[1] // 4)  # number of tests in the last quarter
    return {
        "median": median_steps,
        "late": float(curve[:, -num_late_tests:].mean()),
        "discount": loop.agent_config.discount,
        "curves": curve.tolist(),
        "real_steps": int(outcome.steps.sum()),
    }


def _inner_loop(task: Task, proxy: files.Proxy, name: str, agent_config: Any, **changes: Any) -> InnerLoop:
    """Return an `InnerLoop`, to train and test agents of the algorithm ``name`` with the settings ``agent_config``. Its
    other settings are from the proxy's search, except ``changes``, such as ``test_episodes=4``."""
    config = dataclasses.replace(proxy.config, **changes)
    return InnerLoop(config, name, agent_config, task.game, task.settings.run.num_threads)


def _settings_on_task(task: Task, name: str) -> Any:
    """Return the settings of agents of the algorithm ``name`` that train on the task itself: the defaults for the task,
    with a replay buffer of limited size. If there are no defaults for this task, PPO and A2C learn from scaled
    observations, rewards and actions, as agents on the bandit and the teacher do."""
    config = default_config(name, task.game)
    if hasattr(config, "buffer_size"):  # an agent with a replay buffer
        capacity = min(config.buffer_size, _BUFFER_NUMBERS // math.prod(task.spaces.obs_shape))
        config = dataclasses.replace(config, buffer_size=capacity)
    if hasattr(config, "normalize_obs") and config == default_config(name, ""):
        scales = {"normalize_obs": not task.spaces.one_hot, "normalize_reward": True}
        config = dataclasses.replace(config, **scales, scale_actions=not isinstance(task.spaces.actions, Discrete))
    return config
