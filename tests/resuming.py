"""Runs that stop in the midst, to be resumed and held against a run that nobody stopped."""

from pathlib import Path
from typing import Any

import pytest

import trainer
from control.lightning.callbacks import RunLog
from control.storage import checkpoints
from helpers import run_folder


def stopped(argv: list[str], logdir: Path, epoch: int) -> dict[str, Any]:
    """A run of the command that dies after ``epoch`` was logged. Returns what its last checkpoint holds beside weights
    and optimisers, which is of an earlier epoch."""
    log = RunLog.on_train_epoch_end

    def dies(self: Any, lightning: Any, module: Any) -> None:
        log(self, lightning, module)
        if module.epoch == epoch:
            self.boards[0].writer.flush()
            raise ArithmeticError

    with pytest.MonkeyPatch.context() as patched, pytest.raises(ArithmeticError):
        patched.setattr(RunLog, "on_train_epoch_end", dies)
        trainer.main(argv)
    state = checkpoints.load(run_folder(logdir) / "checkpoints" / "last.ckpt", resume=True).run_state
    assert state["epoch"] == epoch - 1
    return state


def epochs_of(logdir: Path) -> int:
    """Rows of the only table below a folder, as many as epochs and seeds."""
    files = list(logdir.rglob("metrics.csv"))
    return len(files[-1].read_text().splitlines()) - 1 if files else 0
