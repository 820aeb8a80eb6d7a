"""The stages of `--learn`. Each takes a `Task` and returns its results.

A proxy is a learned environment or reward on which agents train: the bandit or the reward. ``flat [D]`` are all D
weights of a proxy in one vector. N is the number of agents, T the number of their tests.
"""

import contextlib
import dataclasses
import functools
import json
import math
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from control.cli.colour import warning
from control.cli.ending import INTERRUPTED, ending
from control.cli.files import read_json
from control.cli.parse import settings_from, training_from
from control.cli.progress import Watch, progress
from control.cli.run_settings import RACE_STEPS, TEACHER_STEPS, LearnConfig
from control.cli.settings import Settings
from control.cli.words import as_word
from control.commands.choose_proxy import write_proxy
from control.commands.evaluate import agent_settings
from control.commands.run import Run
from control.commands.train import train
from control.evolution.inner_loop import InnerLoop, fresh_seeds
from control.evolution.objectives import first_solved_test
from control.evolution.teachers import cloned_proxy, teacher
from control.lightning.callbacks import StopWhenFlat
from control.loops.rollout import FunctionPolicy, play_episodes, rollout
from control.reports.search import quartiles
from control.reports.stages import GOOD_FRACTION, TEACHER, is_clearly_sooner
from control.reports.tables import Score
from control.reports.verdict import Baselines, Verdict, joint_verdict
from control.storage import checkpoints, run_dir
from control.storage.run_dir import BANDIT
from envs.gymnasium_adapter import GymnasiumEnvironment
from envs.make import make_dynamics, make_environment, stages_of
from models.agents.ppo.config import LONG_ROLLOUTS
from models.contract import Policy, RandomPolicy
from models.proxies import files
from models.proxies.search import load_presets
from models.registry import default_config, parse_agents
from models.spaces import Discrete, Spaces
from models.streams import Streams, derive_seed

REWARD = "reward.safetensors"
_TIME_LIMIT = 1000  # steps of an episode if the task has no limit, because a policy may never end it
# A teacher and a clone are judged in rounds of so many episodes, until the standard error of the mean return is at most
# this fraction of its difference from random play, or until the number of episodes is the largest one.
JUDGING_EPISODES, _JUDGING_ERROR, _MOST_JUDGING_EPISODES = 64, 0.01, 512
# Steps of an environment per second below which it is slow: a teacher of continuous actions is SAC, and agents of the
# exam do not train on the task itself.
_FAST_RATE = 1000
_MAX_SECONDS, _MIN_STEPS = 1800, 10_000  # of a training in a slow environment
# Settings of teachers, which have to suit tasks of any scale. With a discount of 0.995 and no entropy bonus, two of six
# PPO teachers on LunarLander hover instead of landing.
_TEACHERS: dict[str, dict[str, Any]] = {
    "PPO": LONG_ROLLOUTS | {"normalize_obs": True, "normalize_reward": True, "discount": 0.999},
    "QLearning": {"lr": 0.1, "anneal_lr": True, "discount": 0.99},
    "SAC": {"hidden_sizes": (128, 128), "batch_size": 128},  # a sixth of the time of 256, and HalfCheetah runs as fast
}
# Discount of a second PPO teacher if actions are continuous, of which the better one is kept. On Hopper only the second
# one learns to run, on Swimmer only the first one swims far.
_SECOND_DISCOUNT = 0.99
_ENTROPY_BONUS = 0.01  # of teachers with discrete actions
_PATIENCE = 0.4  # fraction of the teacher's training without a better evaluation after which the training ends
_EVALUATIONS, _EVALUATION_EPISODES = 50, 20  # most evaluations of the teacher during its training, their episodes
_CHECKED_STEPS = 200  # steps in which observations are compared with their bounds
_EXAM_EPISODES = 10  # test episodes of an agent in the exam
# If agents come less far than `_GOOD_AGENTS` of the way to the teacher, others train for `_MORE_STEPS` times the steps.
_GOOD_AGENTS, _MORE_STEPS = 0.95, 4
_TESTS, _TEST_EPISODES = 16, 4  # tests of an agent in the race, and episodes of each test
REAL_AGENTS = 4  # most agents of the exam that train on the task itself
_BUFFER_NUMBERS = 5_000_000  # largest replay buffer of such an agent, in numbers of observations
# After a failure of the teacher or the clone, the first part only if the teacher was trained.
_TRAINING_ADVICE, _TEACHER_ADVICE = "more --teacher_steps or ", "another --teacher, in a new run"
# After a failure of agents that train on a good clone.
_EXAM_ADVICE = "more --exam_steps, in a new run with this teacher (--teacher)"
# For rough estimates of the time left, in seconds of the machine of docs/benchmarks.md.
_FIT_SECONDS = 5.0  # to fit the bandit or the reward, beside the steps of the task
_FIT_STEPS = 50_000  # steps of the task for such a fit
_TEACHER_UPDATE = 4e-5  # updates and evaluations, for each step of a teacher's training
_TEACHER_FRACTION = 0.4  # of its steps after which the training of a teacher ends
_DISCRETE_STEP, _CONTINUOUS_STEP = 8e-6, 7e-5  # a step of an agent on the bandit, by its kind of actions
_TASK_UPDATE, _RACE_UPDATE = 5e-5, 1e-5  # updates of an agent on the task, for each step, in exam and race
_MACHINE_STEP = 5e-6  # a step of an environment in machine code
_INPUT_ON_BANDIT, _INPUT_ON_TASK = 1.3e-7, 6e-7  # more for each number of the observation


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
    def is_slow(self) -> bool:
        """Whether the environment makes fewer than `_FAST_RATE` steps per second."""
        return bool(self.results["probe"]["steps_per_second"] < _FAST_RATE)

    @property
    def teacher_steps(self) -> int:
        """The largest number of steps of the teacher's training."""
        return self.options.teacher_steps or self._affordable_steps(TEACHER_STEPS, 1)

    @property
    def race_steps(self) -> int:
        """The number of steps of each agent in the race."""
        return self.options.race_steps or self._affordable_steps(RACE_STEPS, 2 * self.options.race_agents)

    def _affordable_steps(self, steps: int, agents: int) -> int:
        """Return the number of steps of each of ``agents`` agents, ``steps`` if possible. In a slow environment it is
        reduced, so that all agents together take `_MAX_SECONDS`, but not below `_MIN_STEPS`."""
        if not self.is_slow:
            return steps
        affordable = self.results["probe"]["steps_per_second"] * _MAX_SECONDS / agents
        rounded = float(f"{affordable:.1e}")  # to two significant digits
        return min(steps, max(_MIN_STEPS, int(rounded)))

    def score(self, stage: str, name: str) -> Score:
        """Return the score ``name`` in the results of a stage."""
        return Score(**self.results[stage][name])

    def verdict(self, agents: Score, teacher_score: Score, advice: str = "") -> Verdict:
        """Return a comparison of agents or policies, which have the score ``agents``, with random play, the best
        constant action and the teacher. ``advice`` is text to show after a failure, by default about the teacher."""
        if not advice:
            advice = f"{'' if self.options.teacher else _TRAINING_ADVICE}{_TEACHER_ADVICE}"
        baselines = (self.score("probe", "random"), self.score("probe", "constant"), self.results["probe"]["action"])
        return Verdict(*baselines, teacher_score, agents=agents, goal=self.spaces.max_return, advice=advice)

    def fraction(self, score: Score) -> float:
        """Return how far ``score`` is on the way from random play (0) to the teacher (1)."""
        return self.verdict(score, self.score("teacher", "score")).share


def _check_environment(task: Task) -> None:
    """Warn if two instances of the environment begin differently with the same seed, or if random play observes numbers
    outside of the bounds that the environment states."""
    with contextlib.closing(make_environment(task.game, 1, 2, time_limit=_CHECKED_STEPS)) as real:
        if not isinstance(real, GymnasiumEnvironment):
            return
        streams = Streams([derive_seed(task.seed, "bounds")])
        seeds = streams.episode_seeds(1).expand(1, 2)  # [members, instances]
        obs = rollout(RandomPolicy(real.spaces, 2, streams), real, seeds).obs  # [T, 1, 2, *O]
        low, high = real.bounds
    if not torch.equal(*obs[0, 0]):
        warning(
            f"two instances of {task.game} that were reset with the same seed are in different states, so results "
            "cannot be repeated, and a policy may fail in another instance"
        )
    outside = obs[(obs < low) | (obs > high)]
    if len(outside):
        warning(f"an observation has the number {outside[0]:.4g}, outside of the bounds of {task.game}")


def _measure_baselines(task: Task) -> dict[str, Any]:
    """Run the stage `probe`: measure random play, the best constant action and the speed of the environment."""
    _check_environment(task)
    Baselines.measure.cache_clear()  # type: ignore[attr-defined]  # cached results would hide the speed
    started, cpu_started = time.perf_counter(), time.process_time()
    with task.progress() as watch:
        baselines = Baselines.measure(task.game, task.seed, task.time_limit, watch=watch)
    seconds = time.perf_counter() - started
    if os.getloadavg()[0] > (os.cpu_count() or 1):  # other programs take a part of the time
        seconds = time.process_time() - cpu_started
    rate = baselines.real_steps / seconds
    result = dataclasses.asdict(baselines)
    del result["teacher"]  # not measured yet
    return {**result, "steps_per_second": rate}


def _find_teacher(task: Task) -> dict[str, Any]:
    """Run the stage `teacher`: train a teacher, unless the user has one, and measure its returns in new episodes. The
    stage fails if the teacher is not better than random play."""
    training = _train_teacher(task) if task.options.teacher is None else {}
    act = teacher(task.teacher, task.game, task.spaces)
    score = _judge_policy(task, FunctionPolicy(act), "judging the teacher")
    policy_name = training.get("implementation", task.teacher)  # without a training, the user's file or function
    result = {**training, "policy": policy_name, "score": dataclasses.asdict(score)}
    if not score.exceeds(task.score("probe", "random")):
        result |= {"failed": True, "verdict": task.verdict(score, teacher_score=score).as_dict()}
    return result


def teacher_trainings(task: Task) -> dict[str, Settings]:
    """Return the settings of each training of which the teacher is the best result, by a name that shows the discount
    if there are two. The implementation is the user's choice. By default it is Q-learning if the observations are
    numbered cells, else SAC for continuous actions in a slow environment, else PPO."""
    run, is_continuous = task.settings.run, not isinstance(task.spaces.actions, Discrete)
    if "implementation" in task.settings.explicit_names:
        implementation = run.implementation
    elif task.spaces.one_hot:
        implementation = "QLearning"
    else:
        implementation = "SAC" if task.is_slow and is_continuous else "PPO"
    changes = dict(_TEACHERS.get(implementation, {}))
    num_evaluations = _EVALUATIONS
    if implementation == "PPO":
        changes |= {"scale_actions": True} if is_continuous else {"ent_coef": _ENTROPY_BONUS}
        steps_per_env = task.teacher_steps // (4 * changes["num_envs"])  # for at least four rollouts
        changes["rollout_steps"] = min(changes["rollout_steps"], steps_per_env)
        num_rollouts = task.teacher_steps // (changes["num_envs"] * changes["rollout_steps"])
        num_evaluations = min(num_evaluations, num_rollouts)  # a policy that has not changed needs no new evaluation
    steps_per_epoch = -(-task.teacher_steps // num_evaluations)  # rounded up; each epoch ends with an evaluation
    changes |= {"logdir": str(task.folder), "exp_name": Path(TEACHER).stem, "num_threads": run.num_threads}
    changes |= {"total_steps": task.teacher_steps, "steps_per_epoch": steps_per_epoch}
    changes |= {"eval_every": 1, "eval_episodes": _EVALUATION_EPISODES, "checkpoint_every": 1}
    changes |= {"time_limit": task.time_limit}
    trainings = {"": changes}
    if implementation == "PPO" and is_continuous:
        experiment = f"{changes['exp_name']}_{_SECOND_DISCOUNT}"
        second = changes | {"discount": _SECOND_DISCOUNT, "exp_name": experiment}
        trainings = {f"discount {values['discount']}": values for values in (changes, second)}
    return {
        name: training_from(implementation=implementation, gamename=task.game, seed=run.seed, **values)
        for name, values in trainings.items()
    }


def _train_teacher(task: Task) -> dict[str, Any]:
    """Make the trainings of `teacher_trainings`, and keep the checkpoint with the best returns in new episodes as
    `TEACHER`. The second training is left out if the first has reached the largest possible return."""
    trainings: dict[str, dict[str, Any]] = {}
    checkpoint_of: dict[str, Path] = {}  # training -> its best checkpoint
    returns: dict[str, float] = {}  # training -> the mean return of this checkpoint
    for name, settings in teacher_trainings(task).items():
        trainings[name] = task.part(name, functools.partial(_train_one_teacher, task, settings))
        checkpoint_of[name], returns[name] = _best_checkpoint(task, trainings[name])
        if task.spaces.max_return is not None and returns[name] >= task.spaces.max_return:
            break
    best = max(returns, key=lambda name: returns[name])
    shutil.copyfile(checkpoint_of[best], task.folder / TEACHER)
    return {
        "implementation": trainings[best]["implementation"],
        "run": trainings[best]["run"],
        "best_steps": int(checkpoints.load(checkpoint_of[best]).run_state["env_steps"][0]),
        "real_steps": sum(training["real_steps"] for training in trainings.values()),
        "max_steps": sum(training["max_steps"] for training in trainings.values()),
        "returns": returns if len(returns) > 1 else {},
    }


def _train_one_teacher(task: Task, settings: Settings, watch: Watch | None) -> dict[str, Any]:
    """Train a teacher until its evaluations no longer improve, and return its folder and number of steps. Continues an
    interrupted training."""
    settings = settings.replace(resume=run_dir.newest(run_dir.parent(settings.run)) is not None)
    baseline = max(task.score("probe", name).mean for name in ("random", "constant"))
    num_evaluations = math.ceil(task.teacher_steps / settings.run.steps_per_epoch)  # one at the end of each epoch
    # Noise, or a few of many initial states, hide that a table still improves, because its learning rate falls.
    is_noisy = task.score("probe", "constant").error > 0
    trains_to_end = settings.run.implementation == "QLearning" and (is_noisy or _starts_vary(task))
    # The number of evaluations without a better one, which ends the training.
    patience = num_evaluations if trains_to_end else math.ceil(_PATIENCE * num_evaluations)
    callback = StopWhenFlat(patience, watch, task.spaces.max_return, baseline)
    board_folder = task.folder / settings.run.exp_name
    folder, finished = train(settings, [callback], verbose=False, board_folder=board_folder)
    ending.status = INTERRUPTED  # `train` has set the status of a finished command, but this command goes on
    if not finished:
        raise KeyboardInterrupt
    return {
        "implementation": settings.run.implementation,
        "run": str(folder.relative_to(task.folder)),
        "real_steps": int(Run(folder).metrics["env_steps"].max()),
        "max_steps": task.teacher_steps,
        "trains_to_end": trains_to_end,
    }


def _best_checkpoint(task: Task, training: Mapping[str, Any]) -> tuple[Path, float]:
    """Return the checkpoint of a teacher's ``training`` with the best mean return in new episodes, and this return."""
    names = ["best.ckpt", "last.ckpt"]
    if training["trains_to_end"]:
        names.reverse()  # if returns are equal, prefer the table with more training
    candidates = [task.folder / training["run"] / "checkpoints" / name for name in names]
    seed = task.settings.run.seed
    returns = {path: Run(path).evaluate(JUDGING_EPISODES, seed=seed).mean for path in candidates if path.exists()}
    best = max(returns, key=lambda path: returns[path])
    return best, returns[best]


def _starts_vary(task: Task) -> bool:
    """Return whether some of 16 episodes begin with different observations."""
    streams = Streams([derive_seed(task.seed, "starts")])
    with contextlib.closing(make_environment(task.game, 1, 16)) as real:
        obs = real.reset(streams.episode_seeds(16))  # [1, 16, *O]
    return bool((obs != obs[:, :1]).any())


def _make_bandit(task: Task) -> dict[str, Any]:
    """Run the stage `bandit`: clone the teacher into a synthetic environment, whose reward is highest for the teacher's
    action. If the clone's policy is much worse than the teacher, fit it again with more states that it visits, and then
    also with a wider network. Keep the best clone."""
    values = {"implementation": "SE", "gamename": task.game, "seed": task.seed, "proxy": "bandit", "preset": "clone"}
    values |= {"agent": learners(task.spaces)[0], "start_from": task.teacher, "test_limit": task.time_limit}
    if not task.spaces.one_hot:
        values["table_episodes"] = task.time_limit  # steps after which episodes restart
    if task.options.exam_steps is not None:
        values["inner_steps"] = task.options.exam_steps
    attempts: list[dict[str, Any]] = [{}, {"dagger_rounds": 6}, {"dagger_rounds": 6, "proxy_hidden_size": 128}]
    if task.spaces.one_hot:  # observations are numbered cells: the clone is fitted to every cell
        attempts = [{"first_states": "cells"}]
    clones: list[tuple[Score, Settings, Tensor, Policy]] = []
    real_steps: list[int] = []  # numbers of steps in the environment
    rounds: list[tuple[int, float]] = []  # steps so far and mean return of each clone
    for number, changes in enumerate(attempts):
        settings = settings_from(**values | changes)
        stages: Any = stages_of(settings.proxy, task.game)
        with task.progress(f"attempt {number + 1}"):
            flat = cloned_proxy(task.teacher, stages, task.seed, real_steps.append)
        policy = stages.parameters.target(flat[None])  # takes the actions with the highest reward; flat[None] is [1, D]
        score = _judge_policy(task, policy, f"judging clone {number}")
        clones.append((score, settings, flat, policy))
        rounds.append((sum(real_steps), score.mean))
        if task.fraction(score) >= GOOD_FRACTION:
            break
    score, settings, flat, policy = max(clones, key=lambda clone: clone[0].mean)
    if len(clones) > 1:  # the highest of several scores is an overestimate
        score = _judge_policy(task, policy, "judging the best clone")
    _write_proxy(task, BANDIT, settings, flat, {"clone": dataclasses.asdict(score)})
    result = {"score": dataclasses.asdict(score), "fraction": task.fraction(score)}
    return {**result, "real_steps": sum(real_steps), "rounds": rounds}


def _make_reward(task: Task) -> dict[str, Any]:
    """Run the stage `reward`: fit a reward network to the teacher's returns."""
    values = {"implementation": "RN", "gamename": task.game, "seed": task.seed, "preset": "teacher"}
    values |= {"agent": "QLearning" if task.spaces.one_hot else "PPO", "start_from": task.teacher}
    settings = settings_from(**values, test_limit=task.time_limit)
    real_steps: list[int] = []  # numbers of steps in the environment
    stages: Any = stages_of(settings.proxy, task.game)
    with task.progress("a fit to the teacher's returns"):
        flat = cloned_proxy(task.teacher, stages, task.seed, real_steps.append)
    explained = stages.explained_variance  # of the fit that `cloned_proxy` has made
    _write_proxy(task, REWARD, settings, flat, {"explained_variance": explained})
    return {"real_steps": sum(real_steps), "explained_variance": explained}


def _test_fresh_agents(task: Task) -> dict[str, Any]:
    """Run the stage `exam`: train fresh agents of each implementation in `learners` on the bandit, and test them on the
    task. If agents of an implementation learn too little from a good clone (`_GOOD_AGENTS`), others train for
    `_MORE_STEPS` times as many steps, unless the user has chosen the steps, and the better result counts. For
    comparison, a few agents train on the task itself, with the default settings for it. The stage fails if the verdict
    about the agents on the bandit is a failure."""
    proxy = files.load(task.folder / BANDIT)
    base_steps, long_steps = proxy.config.inner_steps, _MORE_STEPS * proxy.config.inner_steps

    def results_of(names: Iterable[str], steps: int, on_task: bool) -> dict[str, dict[str, Any]]:
        """Return implementation -> results of fresh agents, which train on the task itself or on the bandit."""
        part = f"on the {'task' if on_task else 'bandit'}, {steps:,} steps"
        return {
            name: task.part(f"{name} {part}", functools.partial(_train_and_test, task, proxy, name, steps, on_task))
            for name in names
        }

    results = results_of(learners(task.spaces), base_steps, on_task=False)
    is_good_clone = task.fraction(task.score("bandit", "score")) >= GOOD_FRACTION
    more_steps: dict[str, int] = {}  # implementation -> steps of agents that learned more in them
    if is_good_clone and task.options.exam_steps is None:
        names = [name for name in results if task.fraction(Score(**results[name]["score"])) < _GOOD_AGENTS]
        for name, result in results_of(names, long_steps, on_task=False).items():
            if result["score"]["mean"] > results[name]["score"]["mean"]:
                results[name], more_steps[name] = result, long_steps
        if more_steps:  # the file says for how many steps its agents train
            config = dataclasses.replace(proxy.config, deploy_steps=long_steps)
            settings = proxy.description["settings"] | {"deploy_steps": long_steps}
            options = {"spaces": proxy.spaces, "game": proxy.game, "config": config}
            description = {**proxy.description, "settings": settings}
            files.save(proxy.path, proxy.parameters, description=description, **options)
    scores = {name: Score(**result["score"]) for name, result in results.items()}
    task_results = results_of(learners_on_task(task), base_steps, on_task=True)
    teacher_score = task.score("teacher", "score")
    advice = _EXAM_ADVICE if is_good_clone else ""  # "" is the advice about the teacher
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
    """Train fresh agents of implementation ``name`` for ``steps`` steps on the proxy or, with ``on_task``, on the task
    itself. Return their score on the task, and the steps of their training on it."""
    loop = _inner_loop(task, proxy, name, on_task, inner_steps=steps, test_episodes=_EXAM_EPISODES)
    count = min(REAL_AGENTS, task.options.exam_agents) if on_task else task.options.exam_agents
    seeds = fresh_seeds(task.seed, f"exam of {name}{' on the task' if on_task else ''}", count)
    proxies = None if on_task else proxy.parameters.expand(count, -1)  # [N, D], equal rows
    outcome = loop.run(proxies, seeds, watch=watch)
    real_steps = int(outcome.steps.sum()) if on_task else 0
    return {"score": dataclasses.asdict(Score.of(outcome.scores)), "real_steps": real_steps}


def learners_on_task(task: Task) -> tuple[str, ...]:
    """Return the implementations of the agents that train on the task itself in the exam. In a slow environment there
    are none, because they would take hours. With continuous actions PPO is the only one, because TD3 with its default
    settings would need longer than all other stages."""
    if task.is_slow:
        return ()
    return learners(task.spaces) if isinstance(task.spaces.actions, Discrete) else ("PPO",)


def _compare_rewards(task: Task) -> dict[str, Any]:
    """Run the stage `race`: train agents with the learned reward and with the task's reward, each with the settings for
    it. Compare the steps until half of the agents have come near the teacher (`GOOD_FRACTION` of the way from random
    play to its mean return), and the mean returns in the last quarter of the tests. The learned reward is a gain if
    its agents come near the teacher clearly sooner, and do not have lower returns in the end."""
    proxy = files.load(task.folder / REWARD)
    steps, count = task.race_steps, task.options.race_agents
    random_play, goal = task.score("probe", "random").mean, task.score("teacher", "score").mean
    solved = random_play + GOOD_FRACTION * (goal - random_play)
    name = parse_agents(proxy.description["settings"]["agent"])[0]  # the implementation of all agents
    test_every = max(1, steps // _TESTS)
    # The rule "budget" ends a training only after all steps.
    limits = {"inner_steps": steps, "inner_rule": "budget", "test_every": test_every, "test_episodes": _TEST_EPISODES}
    seeds = fresh_seeds(task.seed, "race", count)
    arms: dict[str, dict[str, Any]] = {}  # name of a reward -> results of the agents that train with it
    # The weights [N, D] of the learned reward, an equal row for each agent. None: the task's reward.
    weights = {"learned": proxy.parameters.expand(count, -1), "task": None}
    real_steps = 0
    for reward_name, flat in weights.items():
        loop = _inner_loop(task, proxy, name, flat is None, solved_reward=solved, **limits)
        with task.progress("the learned reward" if reward_name == "learned" else "the task's reward") as watch:
            outcome = loop.run(flat, seeds, watch=watch)
        curve = outcome.curve  # [N, T]
        real_steps += int(outcome.steps.sum())
        # A test counts if the next one is as good: a single one may be luck. The last test has no next one.
        lasting = torch.cat([torch.minimum(curve[:, :-1], curve[:, 1:]), curve[:, -1:]], 1)
        solved_at = first_solved_test(lasting, solved)  # [N], index of a test
        _, median_steps, *_ = quartiles(solved_at, curve, test_every)  # steps until half of the agents are that good
        num_late_tests = max(1, curve.shape[1] // 4)  # the last quarter
        late = float(curve[:, -num_late_tests:].mean())
        arms[reward_name] = {
            "median": median_steps,  # None if fewer than half of the agents are that good
            "late": late,
            "discount": loop.agent_config.discount,
            "curves": curve.tolist(),
        }
    # A reward that is quick at first may be worse in the end.
    is_good_in_the_end = arms["learned"]["late"] >= min(solved, arms["task"]["late"])
    return {
        "agent": name,
        "agents": count,
        "steps": steps,
        "test_every": test_every,
        "solved": solved,
        "arms": arms,
        "gain": is_clearly_sooner(arms, "learned", "task", test_every) and is_good_in_the_end,
        "real_steps": real_steps,
    }


STAGES: dict[str, Callable[[Task], dict[str, Any]]] = {
    "probe": _measure_baselines,
    "teacher": _find_teacher,
    "bandit": _make_bandit,
    "exam": _test_fresh_agents,
    "reward": _make_reward,
    "race": _compare_rewards,
}
"""The stages by name, in order. Each returns its results as data for JSON, with ``failed`` and a ``verdict`` if it
judges agents. `stage_texts` makes texts of them."""
REQUIRED = {
    "probe": (),
    "teacher": ("probe",),
    "bandit": ("probe", "teacher"),
    "exam": ("probe", "teacher", "bandit"),
    "reward": ("probe", "teacher"),
    "race": ("probe", "teacher", "reward"),
}
"""The stages without which a stage cannot begin."""


def learners(spaces: Spaces) -> tuple[str, ...]:
    """Return the implementations of the agents in the exam: algorithms of different kinds."""
    if not isinstance(spaces.actions, Discrete):
        return "TD3", "SAC", "PPO"
    if spaces.one_hot:  # observations are numbered cells
        return "DDQN", "PPO", "QLearning"
    return "DDQN", "PPO", "A2C"


def _inner_loop(task: Task, proxy: files.Proxy, name: str, on_task: bool, **changes: Any) -> InnerLoop:
    """Return the training loop of agents of implementation ``name``. ``changes`` replace settings of the proxy's
    search, such as the number of test episodes."""
    config = dataclasses.replace(proxy.config, **changes)
    agent_config = _settings_on_task(task, name) if on_task else agent_settings(proxy, name, changed={})
    return InnerLoop(config, name, agent_config, task.game, task.settings.run.num_threads)


def _settings_on_task(task: Task, name: str) -> Any:
    """Return the settings of agents that train on the task itself: the defaults for it, with a replay buffer of limited
    size. If there are no defaults for this task, PPO and A2C learn from scaled observations, rewards and actions, as
    agents on the bandit and the teacher do."""
    config = default_config(name, task.game)
    if hasattr(config, "buffer_size"):  # an agent with a replay buffer
        capacity = min(config.buffer_size, _BUFFER_NUMBERS // math.prod(task.spaces.obs_shape))
        config = dataclasses.replace(config, buffer_size=capacity)
    if hasattr(config, "normalize_obs") and config == default_config(name, ""):
        scales = {"normalize_obs": not task.spaces.one_hot, "normalize_reward": True}
        config = dataclasses.replace(config, **scales, scale_actions=not isinstance(task.spaces.actions, Discrete))
    return config


def _judge_policy(task: Task, policy: Policy, name: str) -> Score:
    """Return the score of a policy of one member in episodes of the task, whose seeds ``name`` determines. In a slow
    environment there is one round of `JUDGING_EPISODES` episodes. Otherwise rounds follow until the mean is precise
    (`_JUDGING_ERROR`), or there are `_MOST_JUDGING_EPISODES`."""
    envs = 16  # environments in parallel
    streams, random_play = Streams([derive_seed(task.seed, name)]), task.score("probe", "random").mean
    most_episodes = JUDGING_EPISODES if task.is_slow else _MOST_JUDGING_EPISODES
    parts: list[Tensor] = []
    with contextlib.closing(make_environment(task.game, 1, envs, time_limit=task.time_limit)) as real:
        while True:
            for seeds in streams.episode_seeds(JUDGING_EPISODES).split(envs, 1):
                parts.append(play_episodes(policy, real, seeds).returns[0])
            score = Score.of(torch.cat(parts).numpy())
            is_precise = score.error <= _JUDGING_ERROR * abs(score.mean - random_play)
            if is_precise or score.count >= most_episodes:
                return score


def _write_proxy(task: Task, name: str, settings: Settings, flat: Tensor, scores: Mapping[str, Any]) -> None:
    """Write a proxy to the file ``name``: the weights ``flat [D]``, settings and scores, and the command that repeats
    the stages."""
    if task.options.teacher is None:
        settings = settings.replace(start_from=TEACHER)  # relative to the folder, which may be moved
    write_proxy(task.folder / name, flat, settings, task.spaces, scores, text=command_text(task))


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


def time_left(task: Task, names: Iterable[str]) -> str:
    """Return a rough estimate of the time of the stages ``names`` that have no results, such as ``; about 7 minutes
    left``. It is empty if they take less than two seconds."""
    step = 1 / task.results["probe"]["steps_per_second"]  # seconds of a step of the task
    if make_dynamics(task.game) is not None:  # the probe makes its steps in torch, unlike all trainings
        step = min(step, _MACHINE_STEP)
    clone_preset = load_presets("synthetic")["presets"]["bandit"]["clone"]  # settings of the agents of the exam
    exam_steps, num_agents = task.options.exam_steps or clone_preset["inner_steps"], task.options.exam_agents
    inputs = math.prod(task.spaces.obs_shape)
    bandit_step = _DISCRETE_STEP if isinstance(task.spaces.actions, Discrete) else _CONTINUOUS_STEP
    # Of the agents of one implementation that train on the bandit, and on the task itself.
    bandit_seconds = exam_steps * num_agents * (bandit_step + _INPUT_ON_BANDIT * inputs)
    task_seconds = exam_steps * min(REAL_AGENTS, num_agents) * (step + _TASK_UPDATE + _INPUT_ON_TASK * inputs)
    teacher_seconds = JUDGING_EPISODES * step
    if task.options.teacher is None:
        training_seconds = _TEACHER_FRACTION * task.teacher_steps * (step + _TEACHER_UPDATE)
        teacher_seconds += len(teacher_trainings(task)) * training_seconds
    seconds_of_stages = {
        "teacher": teacher_seconds,
        "bandit": _FIT_SECONDS + _FIT_STEPS * step,
        "exam": len(learners(task.spaces)) * bandit_seconds + len(learners_on_task(task)) * task_seconds,
        "reward": _FIT_SECONDS + _FIT_STEPS * step,
        "race": 2 * task.options.race_agents * task.race_steps * (step + _RACE_UPDATE),  # with two rewards
    }
    seconds = sum(seconds_of_stages[name] for name in names if name not in task.results)
    for unit, size in (("hours", 3600), ("minutes", 60), ("seconds", 1)):
        if seconds >= 2 * size:
            return f"; about {seconds / size:.0f} {unit} left"
    return ""
