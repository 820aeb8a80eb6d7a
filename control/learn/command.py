"""`--learn GAME`: learn a synthetic environment and a reward for a Gymnasium task, and judge them.

The command runs the `STAGES`, and writes the results of each to ``exam.json``, so that ``--resume`` does not repeat it.
"""

import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.cli.colour import paint, print_named, print_wrapped, verdict_text, wrap_text
from control.cli.ending import ending
from control.cli.errors import one_line
from control.cli.files import read_json
from control.cli.progress import time_in_words
from control.cli.settings import Settings
from control.commands.summary import Command, command, path_text, resume_command, show_next
from control.commands.train import check_unchanged
from control.evolution.teachers import teacher
from control.learn.agents import REAL_AGENTS, compare_rewards, examine_fresh_agents, learners_on_task
from control.learn.task import JUDGING_EPISODES, Task, command_text, measure_baselines
from control.learn.teacher import REWARD, find_teacher, make_bandit, make_reward, teacher_trainings
from control.lightning.board import show_learned
from control.loops.process import configure_process
from control.reports.learned import FIGURE, write_page
from control.reports.stages import PAGE, TEACHER, conclusion, returns_table, stage_texts
from control.storage import run_dir
from control.storage.run_dir import BANDIT, RESULTS
from envs.make import make_dynamics, spaces_of
from models.proxies.search import load_presets
from models.registry import family
from models.settings import SettingError, rename_setting
from models.spaces import Discrete

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
# Times for rough estimates of the time left, in seconds on the machine of docs/benchmarks.md.
_FIT_SECONDS = 5.0  # time to fit the bandit or the reward, without the steps of the task
_FIT_STEPS = 50_000  # number of steps of the task for such a fit
_TEACHER_UPDATE = 4e-5  # time of updates and evaluations, for each step of a teacher's training
_TEACHER_FRACTION = 0.4  # fraction of the largest number of steps after which a teacher's training usually ends
_DISCRETE_STEP, _CONTINUOUS_STEP = 8e-6, 7e-5  # time of a step on the bandit, with discrete and continuous actions
_TASK_UPDATE, _RACE_UPDATE = 5e-5, 1e-5  # time of an agent's updates for each step on the task, in exam and race
_MACHINE_STEP = 5e-6  # time of a step of an environment in machine code
_INPUT_ON_BANDIT, _INPUT_ON_TASK = 1.3e-7, 6e-7  # additional time of a step for each number of the observation


@dataclass(frozen=True)
class Learned:
    """The result of `trainer.learn`. Notebooks display its figure.

    :ivar Path folder: Folder with the files.
    :ivar bool passed: Whether no stage of this command has failed.
    """

    folder: Path
    passed: bool

    @property
    def results(self) -> dict[str, Any]:
        """The results of all stages by name, the content of ``exam.json``."""
        return _read_results(self.folder / RESULTS)[1]

    @property
    def sentence(self) -> str:
        """The verdict and other results as sentences. Without an exam and a race, the texts of the stages."""
        sentences = conclusion(self.results)
        if sentences:
            return " ".join(sentences)
        return "; ".join(result["text"] for result in self.results.values())

    def _repr_png_(self) -> bytes | None:
        """Return the figure, or None without an exam; Jupyter calls this."""
        path = self.folder / FIGURE
        return path.read_bytes() if path.exists() else None


def learn(settings: Settings) -> int:
    """Run the command ``--learn``: run its stages, print their results, and write the page. Return the exit status, 0
    if no stage failed, else 1."""
    configure_process(settings.run)
    try:
        learned = learn_in_folder(settings)
    except KeyboardInterrupt:
        ending.print_interrupted()
        show_next([], [resume_command(settings)])
        raise
    folder = learned.folder
    seconds = sum(result["seconds"] for result in learned.results.values())  # includes interrupted commands
    lines: list[tuple[str, object]] = [("run", path_text(folder)), ("time", time_in_words(seconds))]
    files = {"page": PAGE, "teacher": TEACHER, "bandit": BANDIT, "reward": REWARD, "results": RESULTS}
    for name, file in files.items():
        if (folder / file).exists():
            lines.append((name, f"{file} (open it in a browser)" if file == PAGE else file))
    reward_is_useful = learned.results.get("race", {}).get("gain", True)  # True if no race has tested the reward
    proxies = [BANDIT, REWARD] if reward_is_useful else [BANDIT]
    commands: list[Command] = [("tensorboard", "--logdir", folder)]
    commands += [command(settings, "--eval_agent", folder / name) for name in proxies if (folder / name).exists()]
    # With ``only``, some stages have no results yet. The last command runs them, unless any stage has failed, also of
    # an earlier command.
    has_failed = any(result.get("failed") for result in learned.results.values())
    if STAGES.keys() - learned.results.keys() and not has_failed:
        commands.append(resume_command(settings, only=None))
    show_next(lines, commands, folder)
    return 0 if learned.passed else 1


def learn_in_folder(settings: Settings, verbose: bool = True) -> Learned:
    """Run the stages of ``--learn`` in a new run folder or, with the setting ``resume``, the remaining stages in the
    newest folder. If ``verbose``, print the results. Raises SettingError if the environment or the teacher cannot be
    used, or if the settings differ from the settings of the run to resume."""
    run = dataclasses.replace(settings.run, implementation="learned")  # a part of the folder's path
    previous = run_dir.newest_run(run_dir.parent(run)) if run.resume else None
    try:
        spaces = spaces_of(run.gamename)  # raises the error for a wrong environment before files are written
    except SettingError as error:
        raise rename_setting(error, "gamename", "learn") from error
    if spaces.is_image:
        problem = f"learn is {run.gamename!r}, which shows images"
        raise SettingError(f"{problem}; allowed: vectors of numbers, or cells", "learn")
    if family(settings.run.implementation).learns_from == "evolution":
        problem = f"implementation is {settings.run.implementation!r}, which learns a proxy"
        raise SettingError(f"{problem}; allowed with --learn: an agent", "implementation")
    if settings.subcommand.teacher is not None:
        try:
            teacher(settings.subcommand.teacher, run.gamename, spaces)  # raises if the policy cannot be used
        except SettingError as error:  # its message names the setting of searches that selects a policy
            raise rename_setting(error, "start_from", "teacher") from error
    folder = previous or run_dir.create(run)
    with run_dir.folder_lock(folder):
        results: dict[str, Any] = {}
        if (folder / RESULTS).exists():
            saved, results = _read_results(folder / RESULTS)
            saved = {name: value for name, value in saved.items() if name not in ("learn", "only")}
            check_unchanged(settings.explicit_names & saved.keys(), saved, vars(settings.subcommand), folder)
            settings = settings.replace(**saved)
        task = Task(settings, folder, spaces, results, verbose)
        if verbose:
            print_wrapped(f"learning an environment and a reward for {run.gamename}, seed {run.seed}: {folder}")
        return Learned(folder, _run_stages(task))


def _read_results(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return two dictionaries from the file ``exam.json``: the settings by name, and the results of the stages by name.
    Raises SettingError if the file is damaged."""
    try:
        stages = dict(read_json(path))
        return dict(stages.pop("settings")), stages
    except (OSError, ValueError, TypeError, KeyError) as error:
        problem = f"{str(path)!r} cannot be read ({one_line(error) or error})"
        raise SettingError(f"{problem}; allowed: the file as it was, or a new run, without --resume") from error


def _run_stages(task: Task) -> bool:
    """Run the stages that have no results, print the results, and write the page. Return True if no stage failed."""
    verbose, only = task.verbose, task.options.only
    required = {name: required_names for name, (_, required_names) in STAGES.items()}
    names = [name for name in STAGES if only is None or name in (only, *required[only])]  # stages to run
    failures = {name for name in names if task.results.get(name, {}).get("failed")}
    is_over = all(name in task.results or failures.intersection(required[name]) for name in names)
    if verbose and is_over:
        print_wrapped("nothing is left to do: these are the results of the earlier run")
    for number, name in enumerate(names, 1):
        if failures.intersection(required[name]):
            continue
        if name not in task.results:
            task.stage, task.position = name, f"{number}/{len(names)}"
            _run_stage(task)
        if task.results[name].get("failed"):
            failures.add(name)
        if verbose:
            main_result, *details = stage_texts(name, task.results[name])
            text = "; ".join([main_result, *details]) if name == only else main_result  # the page has the details
            is_next_new = number < len(names) and names[number] not in task.results
            time_text = _time_left(task, names) if is_next_new and name not in failures else ""
            # The width is the length of the longest name, "teacher", and two blanks.
            print_named(name, f"{text}{time_text}", width=9)
    bandit = task.folder / BANDIT
    if "exam" in failures and bandit.exists():
        bandit.rename(bandit.with_name(f"rejected_{BANDIT}"))
    _write_reports(task)
    results = {name: task.results[name] for name in names if name in task.results}  # results of the selected stages
    if verbose and "exam" in results:
        print(f"\n{returns_table(results)}")
    sentences = conclusion(results)
    if verbose and sentences:
        verdict, *remarks = sentences
        text = wrap_text(verdict_text(verdict, passed=not failures), sys.stdout)
        print("\n" + paint(text, "bold", sys.stdout))
        if remarks:
            print_wrapped(" ".join(remarks))
        print()
    return not failures


def _time_left(task: Task, names: Iterable[str]) -> str:
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


def _run_stage(task: Task) -> None:
    """Run the stage ``task.stage``, and add its results, time and text to ``task.results`` and to the file."""
    earlier_parts = task.finished_parts.values()  # parts of an interrupted command; their time counts too
    started, cpu_started = time.perf_counter(), time.process_time()
    run_stage, _ = STAGES[task.stage]
    result = run_stage(task)
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    result["seconds"] = round(seconds + sum(part["seconds"] for part in earlier_parts), 2)
    result["cpu_seconds"] = round(cpu_seconds + sum(part["cpu_seconds"] for part in earlier_parts), 2)
    result["text"] = "; ".join(stage_texts(task.stage, result))
    task.results[task.stage] = result
    content = {"settings": dataclasses.asdict(task.options), **task.results}
    run_dir.atomic_write_text(task.folder / RESULTS, json.dumps(content, indent=1) + "\n")
    task.parts_path.unlink(missing_ok=True)


def _write_reports(task: Task) -> None:
    """Write the page about all results so far, and add them to TensorBoard."""
    command_line = command_text(task)
    if task.options.only is not None:
        command_line += f" --only {task.options.only}"
    write_page(task.folder, task.game, task.results, command_line, task.options)
    setup = {"gamename": task.game, "seed": task.seed, "exam_agents": task.options.exam_agents} | task.changed_options
    # Without a value of the user, these follow from the task.
    setup["teacher_steps"] = task.results.get("teacher", {}).get("max_steps")
    setup["exam_steps"] = task.results.get("exam", {}).get("steps")
    run = dataclasses.replace(task.settings.run, implementation="learn")
    show_learned(run, task.folder, vars(task.options), setup, task.results, task.folder / FIGURE)
