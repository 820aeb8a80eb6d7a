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
from control.storage.checkpoints import Checkpoint
from control.storage.run_dir import atomic_write_text

Reporter = Callable[[dict[str, float]], None]


class TrialFailed(Exception):
    """A trial that cannot go on; the text is one line, the rest is in its log."""


class Report(CheckpointCallback):
    """Hands each evaluation to ``report``. It derives from Lightning's checkpoints because those act last, when
    ``last.ckpt`` is written."""

    def __init__(self, report: Reporter):
        self.report = report

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, RunModule)
        score = module.score()
        if score is None or not module.is_evaluated():
            return
        measured = {name: float(module.row[name].mean()) for name in EVALUATED if name in module.row}
        self.report({METRIC: score, **measured, "epoch": module.epoch, "env_steps": int(module.env_steps.sum())})


def run_trial(settings: Settings, folder: Path, start_from: Path | None, report: Reporter) -> None:
    """Train in ``folder``, going on from the checkpoint ``start_from`` where there is one. What the run prints is in
    ``log.txt`` there. Raises TrialFailed."""
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
                if checkpoint:
                    _take_over(checkpoint, module, folder)
                fit(module, folder, [Progress()], checkpoint, after=[Report(report)])
        except Exception as error:
            traceback.print_exc()
            line = errors.one_line(error) or f"{type(error).__name__}: {error}".splitlines()[0]
            raise TrialFailed(line) from None


def _take_over(checkpoint: Checkpoint, module: RunModule, folder: Path) -> None:
    """Make this trial's a checkpoint that may be another's: with the learning rates of ``module`` and the best score in
    ``folder``."""
    own = [group for optimizer in module.configure_optimizers() for group in optimizer.param_groups]
    theirs = [group for state in checkpoint.content["optimizer_states"] for group in state["param_groups"]]
    for group, other in zip(own, theirs, strict=True):
        other["lr"] = group["lr"]
    best = folder / "checkpoints" / "best.ckpt"
    checkpoint.run_state["best"] = checkpoints.load(best).run_state["best"] if best.exists() else float("-inf")
