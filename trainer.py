#!/usr/bin/env python
"""The one command: train, evaluate, tune and plot. ``python trainer.py --help`` says how."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from control.cli import errors
from control.cli import parse as config


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the flags ask and return the exit status: 0; 2 for what the user can put right; 130 after Ctrl-C."""
    # Two OpenMP threads on busy cores were up to 20 times slower; torch reads this when it is first imported.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Else matrix products round by where memory happens to lie, and a seed differs alone and in company.
    os.environ.setdefault("MKL_CBWR", "AUTO")
    try:
        return run(config.parse(argv))
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read our output (head, less) has enough
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

        out = Path(settings.run.plot_out) if settings.run.plot_out else None
        return plot([Path(folder) for folder in settings.run.plot], out)
    if settings.run.eval_agent:
        from control.commands.evaluate import evaluate_checkpoint
        from control.commands.evaluate_proxy import evaluate_proxy, is_proxy

        if is_proxy(settings.run.eval_agent):
            return evaluate_proxy(settings)
        return evaluate_checkpoint(settings)
    if settings.run.use_tune:
        from control.commands.tune import tune

        return tune(settings)
    from control.commands.train import train

    return train(settings)


if __name__ == "__main__":
    sys.exit(main())
