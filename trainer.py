#!/usr/bin/env python
"""Train, evaluate, tune and plot: the command (``python trainer.py --help`` says how) and the same from Python.

    import trainer

    run = trainer.train(implementation="CPG", gamename="cartpole", max_episodes=640)
    print(run.metrics["eval/return_greedy"][-1], run.evaluate(episodes=20).mean)

Keywords are the flags of the command. What is wrong with them is a `models.settings.SettingError`.
"""

import os
import sys
from collections.abc import Sequence
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
    asked = config.settings_from(**settings)
    from control.commands.run import Run
    from control.commands.train import train as train_here

    return Run(*train_here(asked, callbacks, verbose))


def load(path: str | Path) -> "Run":
    """The run in a folder, or of a checkpoint."""
    from control.commands.run import Run

    return Run(path)


def evaluate(path: str | Path, episodes: int = 100, **how: Any) -> "Evaluation":
    """Play ``episodes`` with every seed of the best checkpoint in a folder, or of a checkpoint; see `Run.evaluate`."""
    return load(path).evaluate(episodes, **how)


def module(**settings: Any) -> "RunModule":
    """The LightningModule of a run, untrained, for a ``pytorch_lightning.Trainer`` of your own."""
    asked = config.settings_from(**settings)
    from control.commands.train import build_module
    from control.loops.process import configure_torch

    configure_torch(asked.run.num_threads, asked.run.matmul_precision)
    return build_module(asked)


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the flags ask and return the exit status: 0; 2 for what the user can put right; 130 after Ctrl-C."""
    try:
        return run(config.parse(argv))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whatever reads our output (head, less) has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        line = errors.one_line(error)
        if line is None:
            raise
        errors.show(line)
        return 2


def run(settings: config.Settings) -> int:
    """Hand over to the part of ``control`` that does it. Imported here, so that a flag error needs no torch."""
    if settings.run.plot:
        from control.reports.figures import plot

        out = settings.run.plot_out
        return plot([Path(folder) for folder in settings.run.plot], Path(out) if out else None)
    if settings.run.eval_agent:
        from control.commands.evaluate import evaluate as evaluate_here

        return evaluate_here(settings)
    if settings.run.use_tune:
        from control.commands.tune import tune

        return tune(settings)
    from control.commands.train import train as train_here

    _, finished = train_here(settings)
    return 0 if finished else 130


if __name__ == "__main__":
    sys.exit(main())
