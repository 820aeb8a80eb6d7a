#!/usr/bin/env python
"""Train, evaluate, tune, plot, film, report: the command (``python trainer.py --help``) and the same from Python.

    import trainer

    run = trainer.train(implementation="CPG", gamename="cartpole", max_episodes=640)
    print(run.metrics["eval/return_greedy"][-1], run.evaluate(episodes=20).mean)

Keywords are the flags of the command. What is wrong with them is a `models.settings.SettingError`.
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
# Else matrix products round by where memory happens to lie, and a seed differs alone and in company.
os.environ.setdefault("MKL_CBWR", "AUTO")

from control.cli import errors
from control.cli import parse as config

if TYPE_CHECKING:
    from pytorch_lightning import Callback

    from control.commands.run import Evaluation, Run
    from control.lightning.module import RunModule


def train(*, verbose: bool = True, callbacks: "Sequence[Callback]" = (), **settings: Any) -> "Run":
    """Train as the command does, with its folder, metrics and checkpoints, and give back the run. ``verbose`` is the
    line per evaluation and the summary. ``callbacks`` are Lightning's."""
    training_settings = config.training_from(**settings)
    from control.commands.run import Run
    from control.commands.train import train as train_here

    return Run(*train_here(training_settings, callbacks, verbose))


def load(path: str | Path) -> "Run":
    """The run in a folder, or of a checkpoint."""
    from control.commands.run import Run

    return Run(path)


def evaluate(path: str | Path, episodes: int = 100, **options: Any) -> "Evaluation":
    """Play ``episodes`` with every seed of the best checkpoint in a folder, or of a checkpoint; see `Run.evaluate`."""
    return load(path).evaluate(episodes, **options)


def module(**settings: Any) -> "RunModule":
    """The LightningModule of a run, untrained, for a ``pytorch_lightning.Trainer`` of your own."""
    training_settings = config.training_from(**settings)
    from control.commands.train import build_module
    from control.loops.process import configure_torch

    configure_torch(training_settings.run.num_threads, training_settings.run.matmul_precision)
    return build_module(training_settings)


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the flags ask and return the exit status: 0; 2 for what the user can put right; 1 for a helper process
    that died; 130 after Ctrl-C, SIGTERM or SIGHUP."""
    ending.reset()
    if not (sys.argv[1:] if argv is None else argv):
        print(config.about_the_bare_command(), flush=True)
    try:
        ending.status = run(config.parse(argv))
    except KeyboardInterrupt:
        ending.say()
    except Exception as error:
        lines = errors.lines(error)
        if ending.stop_requested:  # an import that was cut short raises whatever it likes
            ending.say()
        elif lines is None:
            raise
        else:
            ending.status = getattr(error, "status", 2)
            for line in lines:
                errors.show(line)
    return ending.status


def run(settings: config.Settings) -> int:
    """Hand over to the part of ``control`` that does it."""
    # Millions of objects come with the imports, and stay: looking for garbage among them takes a fifth of the start.
    gc.disable()
    try:
        work = _work(settings)
        gc.freeze()
    finally:
        gc.enable()
    try:
        ending.orderly = True
        return work()
    finally:
        ending.orderly = False


def _work(settings: config.Settings) -> Callable[[], int]:
    """What is to be done. Imported here, so that a flag error needs no torch."""
    if settings.run.plot:
        from control.reports.plot import plot
        from control.reports.sheets import look_of

        folders, out = [Path(folder) for folder in settings.run.plot], settings.run.plot_out
        return lambda: plot(folders, Path(out) if out else None, look_of(settings.run))
    if settings.run.report:
        from control.reports.page import report

        pages, file = [Path(folder) for folder in settings.run.report], settings.run.report_out
        return lambda: report(pages, Path(file) if file else None)
    if settings.run.film:
        from control.commands.films import film_beside

        return lambda: film_beside(settings)
    if settings.run.import_proxy:
        from control.commands.import_proxy import import_proxy

        return lambda: import_proxy(settings)
    if settings.run.eval_agent:
        from control.commands.evaluate import evaluate as evaluate_here

        return lambda: evaluate_here(settings)
    if settings.run.use_tune:
        from control.commands.tune import tune

        return lambda: tune(settings)
    from control.lightning import lean

    lean.load()  # Lightning without modules that a run does not need; only in the process of the command
    from control.commands.train import train as train_here

    return lambda: 0 if train_here(settings)[1] else INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
