#!/usr/bin/env python
"""Train, evaluate, tune, plot, film, report: the command (``python trainer.py --help``) and the same from Python.

    import trainer

    run = trainer.train(implementation="CPG", gamename="cartpole", max_episodes=640)
    print(run.metrics["eval/return_greedy"][-1], run.evaluate(episodes=20).mean)

Keyword arguments are the flags of the command. A wrong one raises `models.settings.SettingError`.
"""

import gc
import os
import sys

from control.cli.ending import INTERRUPTED, begin, ending

if __name__ == "__main__":
    begin()  # before the imports that take time

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

if TYPE_CHECKING:
    from pytorch_lightning import Callback

    from control.commands.learn import Learned
    from control.commands.run import Evaluation, Run
    from control.lightning.module import RunModule


def train(*, verbose: bool = True, callbacks: "Sequence[Callback]" = (), **settings: Any) -> "Run":
    """Train as the command does, with run folder, metrics and checkpoints, and return the run. ``verbose`` prints a
    line per evaluation and a summary. ``callbacks`` are Lightning callbacks."""
    training_settings = config.training_from(**settings)
    from control.commands.run import Run
    from control.commands.train import train as train_here

    folder, finished = train_here(training_settings, callbacks, verbose)
    return Run(folder, finished)


def learn(gamename: str, *, verbose: bool = True, **settings: Any) -> "Learned":
    """Learn a synthetic environment and a reward for an environment, as ``--learn`` does, and return the result."""
    learn_settings = config.settings_from(learn=gamename, gamename=gamename, **settings)
    from control.commands.learn import learn_in_folder
    from control.commands.process import prepare

    prepare(learn_settings.run)
    return learn_in_folder(learn_settings, verbose)


def load(path: str | Path) -> "Run":
    """Return the run in a run folder, or the run of a checkpoint file."""
    from control.commands.run import Run

    return Run(path)


def evaluate(path: str | Path, episodes: int = 100, **options: Any) -> "Evaluation":
    """Play ``episodes`` episodes with every seed's agent. ``path`` is a run folder, of which the best checkpoint plays,
    or a checkpoint file. ``options`` are arguments of `Run.evaluate`."""
    return load(path).evaluate(episodes, **options)


def module(**settings: Any) -> "RunModule":
    """Return the untrained LightningModule of a run, for your ``pytorch_lightning.Trainer``. Also set torch's number of
    threads and matmul precision."""
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
        lines = errors.lines(error)
        if ending.stop_requested:  # an interrupted import may raise any error
            ending.print_interrupted()
        elif lines is None:  # a bug, which keeps its traceback
            raise
        else:
            ending.status = getattr(error, "status", 2)
            for line in lines:
                errors.show(line)
    return ending.status


def run(settings: config.Settings) -> int:
    """Run the part of ``control`` that the settings ask for, and return the exit status."""
    # The imports create millions of permanent objects. Searching them for garbage takes a fifth of the starting time.
    gc.disable()
    try:
        work = _work(settings)
        gc.freeze()  # no later search for garbage looks at them
    finally:
        gc.enable()
    try:
        ending.orderly = True  # a signal now raises KeyboardInterrupt, so that ``work`` can clean up
        return work()
    finally:
        ending.orderly = False


def _work(settings: config.Settings) -> Callable[[], int]:
    """Return a function that does the work and returns the exit status. Each part of ``control`` is imported only if it
    is used, so that an error in a flag needs no torch."""
    options = settings.subcommand
    command = options.flag if options else ""
    if command == "plot":
        from control.reports.plot import plot
        from control.reports.sheets import look_of

        folders = [Path(folder) for folder in options.plot]
        figure = Path(options.plot_out) if options.plot_out else None
        return lambda: plot(folders, figure, look_of(settings.run))
    if command == "report":
        from control.reports.page import report

        folders = [Path(folder) for folder in options.report]
        page = Path(options.report_out) if options.report_out else None
        return lambda: report(folders, page)
    if command == "film":
        from control.commands.films import film_beside

        return lambda: film_beside(settings)
    if command == "import_proxy":
        from control.commands.import_proxy import import_proxy

        return lambda: import_proxy(settings)
    if command == "eval_agent":
        from control.commands.evaluate import evaluate as evaluate_here

        return lambda: evaluate_here(settings)
    if command == "use_tune":
        from control.commands.tune import tune

        return lambda: tune(settings)
    from control.lightning import lean

    lean.load()  # Lightning without modules that a run does not need; `train` leaves the caller's process as it is
    if command == "learn":
        from control.commands.learn import learn as learn_here

        return lambda: learn_here(settings)
    from control.commands.train import exit_status, has_machine_code
    from control.commands.train import train as train_here

    if has_machine_code(settings):
        lean.load_numba()

    def train_and_return_status() -> int:
        folder, finished = train_here(settings)
        return exit_status(folder) if finished else INTERRUPTED

    return train_and_return_status


if __name__ == "__main__":
    sys.exit(main())
