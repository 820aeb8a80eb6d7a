#!/usr/bin/env python
"""The command ``python trainer.py``, which trains, evaluates, tunes, plots, films and reports, and its functions in
Python. Keyword arguments are the flags of the command.
"""

import functools
import gc
import importlib
import os
import sys

from control.cli.ending import ending, install_handlers

if __name__ == "__main__":
    install_handlers()  # the imports below take time

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Two OpenMP threads on busy cores were up to 20 times slower; torch reads this when it is first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Otherwise rounding in matrix products depends on memory addresses, and a seed trained alone differs from the same seed
# among others.
os.environ.setdefault("MKL_CBWR", "AUTO")

from control.cli import errors
from control.cli import parse as config
from control.cli.settings import Settings
from models.settings import HAS_NUMBA, SettingError

if TYPE_CHECKING:
    from pytorch_lightning import Callback

    from control.commands.run import Evaluation, Run
    from control.learn.command import Learned
    from control.lightning.module import RunModule


def train(*, verbose: bool = True, callbacks: "Sequence[Callback]" = (), **settings: Any) -> "Run":
    """Train as the command does. Writes a run folder with metrics and checkpoints.

    >>> import trainer
    >>> run = trainer.train(implementation="PPO", gamename="cartpole", total_steps=50_000, verbose=False)
    >>> run.evaluate(episodes=20).mean
    500.0

    :param verbose: Whether to print a line for each evaluation and a summary, and not only warnings.
    :param callbacks: Callbacks of Lightning.
    :param settings: Any of the settings by name. The page ``docs/settings.md`` lists them. The most used are
        ``implementation`` (the algorithm, by default ``"UDRL"``), ``gamename`` (the environment, by default
        ``"lunarlander"``), ``total_steps``, ``seed``, ``num_seeds``, ``exp_name`` (a folder) and hyperparameters such
        as ``lr``.
    :return: The run, with its metrics and its agent. If Ctrl-C ended the training, ``finished`` is False.
    :raises SettingError: A setting is unknown, of the wrong type, out of range or in conflict with another.
    """
    training_settings = config.training_from(**settings)
    from control.commands.run import Run
    from control.commands.train import train as train_in_folder

    folder, finished = train_in_folder(training_settings, callbacks, verbose)
    return Run(folder, finished)


def learn(gamename: str, *, verbose: bool = True, **settings: Any) -> "Learned":
    """Learn a synthetic environment and a reward for a task, as ``--learn`` does.

    >>> learned = trainer.learn("CartPole-v1", only="probe", verbose=False)  # a stage
    >>> learned.sentence
    'random play 24.3, best constant action (0) 9.5 in 32 episodes each; ... steps/s'

    :param gamename: Environment of the task, such as ``"CartPole-v1"`` or ``"my_module:MyTask-v0"``.
    :param verbose: Whether to print the results of each stage, and not only warnings.
    :param settings: Any of the settings of ``--learn`` by name. The page ``docs/settings.md`` lists them. The most used
        are ``teacher`` (a policy, also a function), ``teacher_steps``, ``only`` (the last stage), ``seed`` and
        ``resume``.
    :return: The results, and the folder with the files.
    :raises SettingError: A setting is wrong, or the environment or the teacher cannot be used.
    """
    teacher = settings.get("teacher")
    if callable(teacher):
        name = getattr(teacher, "__qualname__", "")
        if not name.isidentifier():  # a lambda, a method or another object, which cannot be imported
            raise SettingError(f"teacher is {teacher!r}; allowed: a function at the top level of a module", "teacher")
        settings["teacher"] = f"{teacher.__module__}:{name}"
    learn_settings = config.settings_from(learn=gamename, **settings)
    from control.learn.command import learn_in_folder
    from control.loops.process import configure_process

    configure_process(learn_settings.run)
    return learn_in_folder(learn_settings, verbose)


def load(path: str | Path) -> "Run":
    """Load a run.

    >>> run = trainer.load("exp_dir/cartpole/debug/PPO/seed_25/version_0")
    >>> run.settings.value("total_steps")
    50000

    :param path: Folder of the run, or a checkpoint.
    :return: The run, with its metrics and its agent. Files are read when they are needed.
    """
    from control.commands.run import Run

    return Run(path)


def evaluate(
    path: str | Path, episodes: int = 100, sample: bool = False, seed: int = 25, gamename: str | None = None
) -> "Evaluation":
    """Play episodes with the agent of every seed of a run. `Run.evaluate` does this with a loaded run.

    >>> trainer.evaluate("exp_dir/cartpole/debug/PPO/seed_25/version_0", episodes=20).lengths.shape
    (1, 20)

    :param path: Folder of the run, whose best checkpoint is played, or a checkpoint.
    :param episodes: Number of episodes of each seed.
    :param sample: Whether actions are sampled and not greedy.
    :param seed: Seed of the episodes.
    :param gamename: Another environment with the same spaces. None: the environment of the run.
    :return: Returns and lengths of the episodes.
    :raises CheckpointError: There is no checkpoint, or it cannot be read.
    :raises SettingError: An argument is not possible with this run.
    """
    return load(path).evaluate(episodes, sample, seed, gamename)


def module(**settings: Any) -> "RunModule":
    """Build a LightningModule for a ``pytorch_lightning.Trainer``, and set torch's threads and matmul precision.

    >>> import pytorch_lightning
    >>> module = trainer.module(implementation="DDQN", gamename="cartpole", steps_per_epoch=100)
    >>> pytorch_lightning.Trainer(max_epochs=2, accelerator="cpu").fit(module)
    >>> module.env_steps
    tensor([200])

    :param settings: Any of the settings by name, as for `train`.
    :return: The untrained module.
    :raises SettingError: A setting is wrong.
    """
    training_settings = config.training_from(**settings)
    from control.commands.train import build_module
    from control.loops.process import configure_torch

    configure_torch(training_settings.run.num_threads, training_settings.run.matmul_precision)
    return build_module(training_settings)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with the flags ``argv`` (default: ``sys.argv[1:]``) and return its exit status: 0 for success, 1
    if a search or the evaluation of a proxy failed by its verdict or if a helper process died, 2 for an error that the
    user can correct, 130 after Ctrl-C, SIGTERM or SIGHUP."""
    ending.reset()  # the status is 130 until the command has finished
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments:
        from control.cli.help import EXAMPLES, in_colours

        print(in_colours(f"Without flags nothing is trained. Some commands to begin with:\n\n{EXAMPLES}\nMore: --help"))
        ending.status = 0
        return 0
    try:
        ending.status = run(config.parse(arguments))
    except KeyboardInterrupt:
        ending.print_interrupted()
    except Exception as error:
        lines = errors.user_messages(error)
        if ending.stop_requested:  # an interrupted import may raise any error
            ending.print_interrupted()
        elif lines is None:  # a bug, which keeps its traceback
            raise
        else:
            ending.status = getattr(error, "status", 2)  # 1 if a helper process died (`ProcessDied`)
            for line in lines:
                errors.show(line)
    return ending.status


def run(settings: Settings) -> int:
    """Run the command that the settings select, and return the exit status."""
    # The imports create millions of permanent objects. Searching them for garbage takes a fifth of the starting time.
    gc.disable()
    is_terminal = sys.stderr.isatty()
    if is_terminal:
        print("  loading ...", end="", file=sys.stderr, flush=True)
    try:
        run_command = _command_function(settings)
        gc.freeze()  # the garbage collector skips them from now on
    finally:
        gc.enable()
        if is_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)  # erases the line
    try:
        ending.orderly = True  # a signal now raises KeyboardInterrupt, so that the command can clean up
        return run_command()
    finally:
        ending.orderly = False


# Flag of a command -> module and function that run it with the settings. They are imported only for this command, so
# that an error in a flag needs no torch.
_FUNCTIONS = {
    "": ("control.commands.train", "train_and_report"),
    "eval_agent": ("control.commands.evaluate", "evaluate"),
    "film": ("control.commands.films", "film_side_by_side"),
    "import_proxy": ("control.commands.import_proxy", "import_proxy"),
    "learn": ("control.learn.command", "learn"),
    "plot": ("control.reports.plot", "plot"),
    "report": ("control.reports.page", "report"),
    "use_tune": ("control.commands.tune", "tune"),
}


def _command_function(settings: Settings) -> Callable[[], int]:
    """Import the modules of the command that the settings select, such as ``--eval_agent``. Return a function without
    arguments that runs the command and returns the exit status."""
    options = settings.subcommand  # None for a training
    command = options.flag if options else ""
    if command in ("", "learn"):
        from control.lightning import lean

        # Import Lightning without modules that a run does not need. The function `train` does not do this, because the
        # process of its caller may need them.
        lean.load()
    module_name, function_name = _FUNCTIONS[command]
    function = getattr(importlib.import_module(module_name), function_name)
    if command == "" and HAS_NUMBA and settings.value("compiled"):
        from control.loops.build import has_machine_code

        if has_machine_code(settings):
            lean.load_numba()
    if command not in ("plot", "report"):
        return functools.partial(function, settings)
    folders = [Path(folder) for folder in getattr(options, command)]
    out = getattr(options, f"{command}_out")  # None: in the common folder of the runs
    out_path = Path(out) if out else None
    if command == "report":
        return functools.partial(function, folders, out_path)
    style = importlib.import_module("control.reports.figures").style_of(settings.run)
    return functools.partial(function, folders, out_path, style)


if __name__ == "__main__":
    sys.path.append(os.getcwd())  # finds modules of the user if trainer.py is in another folder
    sys.exit(main())
