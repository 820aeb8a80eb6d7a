"""One trial of a search: an ordinary training run that reports its evaluations. Knows no Ray."""

import contextlib
import traceback
from collections.abc import Callable
from pathlib import Path

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Checkpoint as CheckpointCallback

from control.cli import errors
from control.cli.settings import Settings, to_yaml
from control.commands.search_results import EVALUATED, METRIC
from control.commands.train import build_module, fit, prepare
from control.lightning.module import RunModule
from control.lightning.progress import Progress
from control.storage import checkpoints
from control.storage.run_dir import atomic_write_text

Reporter = Callable[[dict[str, float]], None]


class TrialFailed(Exception):
    """A trial that cannot go on; the text is one line, the rest is in its log."""


class Report(CheckpointCallback):
    """Hands each evaluation to ``report``. It derives from Lightning's checkpoints because those act last, when
    ``last.ckpt`` is written. A trial that takes up another's checkpoint keeps its own learning rates."""

    def __init__(self, folder: Path, report: Reporter):
        self.folder, self.report = folder, report
        self.lr: list[float] = []

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Before the checkpoint is read."""
        self.lr = [group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups]

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """After it was read. The best score too is that of this trial's folder."""
        assert isinstance(module, RunModule)
        groups = [group for optimizer in trainer.optimizers for group in optimizer.param_groups]
        for group, lr in zip(groups, self.lr, strict=True):
            group["lr"] = lr
        best = self.folder / "checkpoints" / "best.ckpt"
        module.best = checkpoints.load(best).run_state["best"] if best.exists() else float("-inf")

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, RunModule)
        score = module.score()
        if score is None or not module.is_evaluated():
            return
        measured = {name: float(module.row[name].mean()) for name in EVALUATED if name in module.row}
        self.report({METRIC: score, **measured, "epoch": module.epoch, "env_steps": int(module.env_steps.sum())})


def run_trial(settings: Settings, folder: Path, start_from: Path | None, report: Reporter) -> None:
    """Train in ``folder``, going on from the checkpoint ``start_from`` where there is one.

    What the run prints is in ``log.txt`` there. Raises TrialFailed.
    """
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    atomic_write_text(folder / "config.yaml", to_yaml(settings))
    with (
        open(folder / "log.txt", "a", encoding="utf-8", buffering=1) as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        try:
            prepare(settings.run)
            with contextlib.closing(build_module(settings)) as module:
                checkpoint = checkpoints.load(start_from) if start_from else None
                fit(module, folder, [Progress()], checkpoint, after=[Report(folder, report)])
        except Exception as error:
            traceback.print_exc()
            line = errors.one_line(error) or f"{type(error).__name__}: {error}".splitlines()[0]
            raise TrialFailed(line) from None
