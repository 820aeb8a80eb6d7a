#!/usr/bin/env python
"""The command ``python trainer.py``, which trains, evaluates, tunes, plots, films and reports, and its functions in
Python.

    import trainer

    run = trainer.train(implementation="PPO", gamename="cartpole", total_steps=50_000)
    print(run.metrics["eval/return_greedy"][-1], run.evaluate(episodes=20).mean)

Keyword arguments are the flags of the command. A wrong one raises `models.settings.SettingError`.
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

    :param verbose: Whether to print a line for each evaluation and a summary, and not only warnings.
    :param callbacks: Callbacks of Lightning.
    :param settings: Any of the settings by name, such as ``lr=1e-3``. The most used are ``implementation`` (the
        algorithm, such as ``"PPO"``), ``gamename`` (the environment), ``total_steps``, ``seed`` and ``num_seeds``.
    :return: The run, with its metrics and its agent.
    """
    training_settings = config.training_from(**settings)
    from control.commands.run import Run
    from control.commands.train import train as train_in_folder

    folder, finished = train_in_folder(training_settings, callbacks, verbose)
    return Run(folder, finished)


def learn(gamename: str, *, verbose: bool = True, **settings: Any) -> "Learned":
    """Learn a synthetic environment and a reward for a task, as ``--learn`` does.

    :param gamename: Environment of the task, such as ``"CartPole-v1"`` or ``"my_module:MyTask-v0"``.
    :param verbose: Whether to print the results of each stage, and not only warnings.
    :param settings: Any of the settings of ``--learn`` by name, such as ``teacher_steps=100_000``. ``teacher`` may also
        be a function.
    :return: The results, and the folder with the files.
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

    :param path: Folder of the run, or a checkpoint.
    :return: The run, with its metrics and its agent.
    """
    from control.commands.run import Run

    return Run(path)


def evaluate(path: str | Path, episodes: int = 100, **options: Any) -> "Evaluation":
    """Play episodes with the agent of every seed of a run.

    :param path: Folder of the run, whose best checkpoint is played, or a checkpoint.
    :param episodes: Number of episodes of each seed.
    :param options: Other arguments of `Run.evaluate`, such as ``seed``.
    :return: Returns and lengths of the episodes.
    """
    return load(path).evaluate(episodes, **options)


def module(**settings: Any) -> "RunModule":
    """Build a LightningModule for a ``pytorch_lightning.Trainer``. Also sets torch's number of threads and matmul
    precision.

    :param settings: Any of the settings by name, such as ``lr=1e-3``.
    :return: The untrained module.
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
        from control.cli.help import first_commands

        print(first_commands())
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
