"""The stages `teacher`, `bandit` and `reward` of `--learn`: train and judge a teacher, and make a learned environment
and a learned reward from it."""

import contextlib
import dataclasses
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from control.cli.ending import INTERRUPTED, ending
from control.cli.parse import settings_from, training_from
from control.cli.progress import Watch
from control.cli.settings import Settings
from control.commands.choose_proxy import write_proxy
from control.commands.run import Run
from control.commands.train import train
from control.evolution.teachers import cloned_proxy, teacher
from control.learn.task import JUDGING_ENVS, JUDGING_EPISODES, Task, command_text
from control.lightning.callbacks import StopWhenFlat
from control.loops.rollout import FunctionPolicy
from control.reports.stages import GOOD_FRACTION, TEACHER, random_play
from control.reports.tables import Score
from control.storage import checkpoints, run_dir
from control.storage.run_dir import BANDIT
from envs.make import make_environment, proxy_factory
from models.contract import Policy, RandomPolicy
from models.spaces import Discrete
from models.streams import Streams, derive_seed

REWARD = "reward.safetensors"
# Settings of teachers, which have to suit tasks of any scale. With a discount of 0.995 and no entropy bonus, two of six
# PPO teachers on LunarLander hover instead of landing.
_TEACHERS: dict[str, dict[str, Any]] = {
    "PPO": {
        "num_envs": 16, "rollout_steps": 512, "batch_size": 512, "ppo_epochs": 6, "discount": 0.999, "gae_lambda": 0.98,
        "lr": 1e-3, "anneal_lr": True, "normalize_obs": True, "normalize_reward": True,
    },
    "QLearning": {"lr": 0.1, "anneal_lr": True, "discount": 0.99},
    "SAC": {"hidden_sizes": (128, 128), "batch_size": 128},  # a sixth of the time of 256, and HalfCheetah runs as fast
}  # fmt: skip
# Discount of a second PPO teacher for continuous actions. The better teacher is kept. On Hopper only the second teacher
# learns to run, on Swimmer only the first teacher swims far.
_SECOND_DISCOUNT = 0.99
_ENTROPY_BONUS = 0.01  # `ent_coef` of teachers with discrete actions
_PATIENCE = 0.4  # fraction of the teacher's training without a better evaluation after which the training ends
# Maximum number of evaluations of the teacher during its training, and number of episodes of an evaluation.
_EVALUATIONS, _EVALUATION_EPISODES = 50, 20


def find_teacher(task: Task) -> dict[str, Any]:
    """Run the stage `teacher` of `--learn`: train a teacher (an agent that the bandit clones), unless the user has
    chosen a policy, and measure its returns in new episodes. If the returns are noisy or no better than random play,
    random play is judged again in as many episodes, because the few episodes of the stage `probe` may miss rare
    successes. Returns:

    - the results of `_train_teacher`, if the teacher was trained;
    - ``policy``: the teacher's implementation, or the policy of the user;
    - ``score``: statistics of the teacher's returns;
    - ``random``: statistics of the returns of random play, if it was judged again;
    - ``failed`` and ``verdict``: True and a `Verdict` as a dictionary, if the teacher is not better than random play.
    """
    training = _train_teacher(task) if task.options.teacher is None else {}
    act = teacher(task.teacher, task.game, task.spaces)
    score = task.judge(FunctionPolicy(act), "judging the teacher")
    policy_name = training.get("implementation", task.teacher)  # a policy of the user is a file or a function
    result = {**training, "policy": policy_name, "score": dataclasses.asdict(score)}
    if score.count > JUDGING_EPISODES or not score.exceeds(random_play(task.results)):
        random_policy = RandomPolicy(task.spaces, JUDGING_ENVS, Streams([derive_seed(task.seed, "random actions")]))
        random_score = task.judge(random_policy, "judging random play", score.count)
        result["random"] = dataclasses.asdict(random_score)
        task.results["teacher"] = result  # so that the following lines use this score
    if not score.exceeds(random_play(task.results)):
        result |= {"failed": True, "verdict": task.verdict(score, teacher_score=score).as_dict()}
    return result


def teacher_trainings(task: Task) -> dict[str, Settings]:
    """Return the settings of the trainings whose best result is the teacher, name -> settings. There are two for PPO
    with continuous actions, whose names show the discount, such as "discount 0.99". Otherwise the only name is ""."""
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
        steps_per_env = task.teacher_steps // (4 * changes["num_envs"])  # so that there are at least four rollouts
        changes["rollout_steps"] = min(changes["rollout_steps"], steps_per_env)
        num_rollouts = task.teacher_steps // (changes["num_envs"] * changes["rollout_steps"])
        num_evaluations = min(num_evaluations, num_rollouts)  # a policy that has not changed needs no new evaluation
    steps_per_epoch = math.ceil(task.teacher_steps / num_evaluations)  # each epoch ends with an evaluation
    changes |= {"logdir": str(task.folder), "exp_name": Path(TEACHER).stem, "num_threads": run.num_threads}
    changes |= {"total_steps": task.teacher_steps, "steps_per_epoch": steps_per_epoch}
    changes |= {"eval_every": 1, "eval_episodes": _EVALUATION_EPISODES, "checkpoint_every": 1}
    changes |= {"time_limit": task.time_limit}
    first = training_from(implementation=implementation, gamename=task.game, seed=run.seed, **changes)
    if implementation != "PPO" or not is_continuous:
        return {"": first}
    second = first.replace(discount=_SECOND_DISCOUNT, exp_name=f"{changes['exp_name']}_{_SECOND_DISCOUNT}")
    return {f"discount {settings.agent.discount}": settings for settings in (first, second)}


def _train_teacher(task: Task) -> dict[str, Any]:
    """Run the trainings of `teacher_trainings`, and copy the checkpoint with the best returns in new episodes to
    `TEACHER`. The second training is left out if the first has reached the largest possible return. Returns:

    - ``implementation``, ``run``: implementation and run folder of the best training;
    - ``best_steps``: the training steps of the best checkpoint;
    - ``real_steps``, ``max_steps``: the number of training steps of all trainings, and its maximum;
    - ``returns``: name of the training -> mean return of its best checkpoint, if there are two trainings.
    """
    # By the name of a training: its results, its best checkpoint, and the mean return of this checkpoint.
    trainings: dict[str, dict[str, Any]] = {}
    checkpoint_of: dict[str, Path] = {}
    returns: dict[str, float] = {}
    for name, settings in teacher_trainings(task).items():
        trainings[name] = task.part(name, _train_one_teacher, task, settings)
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
    """Train a teacher with these ``settings`` until its evaluations no longer improve. An interrupted training is
    continued. Returns:

    - ``implementation``, ``run``: the implementation, and the run folder relative to the folder of `--learn`;
    - ``real_steps``, ``max_steps``: the number of training steps, and its maximum;
    - ``trains_to_end``: whether the training does not end early.
    """
    settings = settings.replace(resume=run_dir.newest_run(run_dir.parent(settings.run)) is not None)
    baseline = max(task.score("probe", name).mean for name in ("random", "constant"))
    num_evaluations = math.ceil(task.teacher_steps / settings.run.steps_per_epoch)  # an evaluation ends each epoch
    # Noise, or a few of many initial states, hide that a table still improves, because its learning rate falls.
    is_noisy = task.score("probe", "constant").error > 0
    trains_to_end = settings.run.implementation == "QLearning" and (is_noisy or _starts_vary(task))
    # Number of successive evaluations without an improvement after which the training ends.
    patience = num_evaluations if trains_to_end else math.ceil(_PATIENCE * num_evaluations)
    callback = StopWhenFlat(patience, watch, task.spaces.max_return, baseline)
    board_folder = task.folder / settings.run.exp_name
    folder, finished = train(settings, [callback], verbose=False, board_folder=board_folder)
    ending.status = INTERRUPTED  # `train` has set the status of a finished command, but the command is not finished
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
    """Evaluate best.ckpt and last.ckpt of a teacher's training in new episodes. Return the path of the better
    checkpoint, and its mean return. ``training`` is the result of `_train_one_teacher`."""
    names = ["best.ckpt", "last.ckpt"]  # if returns are equal, `max` below chooses the first
    if training["trains_to_end"]:
        names.reverse()  # evaluations cannot show that a Q-table still improves, so prefer the later checkpoint
    candidates = [task.folder / training["run"] / "checkpoints" / name for name in names]
    seed = task.settings.run.seed
    returns = {path: Run(path).evaluate(JUDGING_EPISODES, seed=seed).mean for path in candidates if path.exists()}
    best = max(returns, key=lambda path: returns[path])
    return best, returns[best]


def _starts_vary(task: Task) -> bool:
    """Return whether episodes begin with different observations, in a sample of 16 episodes."""
    streams = Streams([derive_seed(task.seed, "starts")])
    with contextlib.closing(make_environment(task.game, 1, 16)) as real:
        obs = real.reset(streams.episode_seeds(16))  # [1, 16, *O]
    return bool((obs != obs[:, :1]).any())


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
    teacher, fit a second clone to more states from its episodes, then a third with a wider network. Write the best
    clone to the file `BANDIT`. Returns:

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
