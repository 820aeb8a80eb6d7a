"""The base of the LightningModules here: what any run is, counts and keeps, whatever it is that learns."""

import math
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from control.cli.settings import Settings, as_dict
from control.reports.tags import GREEDY
from control.storage.checkpoints import FORMAT, OURS


class RunModule(pl.LightningModule):
    """M members of one run, with seeds ``seeds [M]``; callbacks, commands and checkpoints know only this class.

    A Lightning epoch has one batch, so that Lightning's cost is paid once an epoch. A subclass trains an epoch in
    `training_step`, where it sets ``epoch`` and begins a new ``row``, and evaluates in `validation_step`. ``row`` is
    what the epoch measured, ``{tag: [M]}``, NaN where there was nothing to measure; ``env_steps [M]`` and
    ``gradient_steps`` count from the start of the run, ``best`` is the best `score` so far.

    Any Lightning trainer will do. Loggers get the mean of every row, `score` and its like are in
    ``trainer.callback_metrics`` after an evaluation, and the run ends once `score` reaches `target`.
    """

    unit = "epoch"  # what the progress bar counts
    steps_on = "environment"  # what `env_steps` are steps of

    def __init__(self, settings: Settings, seeds: list[int]):
        super().__init__()
        self.automatic_optimization = False
        self.save_hyperparameters(as_dict(settings))
        self.settings, self.seeds = settings, seeds
        self.row: dict[str, Tensor] = {}
        self.epoch = 0  # of the row being collected; survives a resume as Lightning's own counter does
        self.epochs_before = 0  # done when this process took over
        self.env_steps = torch.zeros(len(seeds), dtype=torch.int64)
        self.gradient_steps = 0
        self.best = -math.inf
        self.whole = True  # whether the checkpoint about to be written must serve to resume

    # -- what a subclass may say otherwise ------------------------------------------------------------------------

    @property
    def epochs(self) -> int:
        return self.settings.epochs

    def is_over(self) -> bool:
        """Whether nothing is left to train."""
        return self.epoch >= self.epochs

    @property
    def eval_every(self) -> int:
        """Epochs between evaluations."""
        return self.settings.schedule.eval_every

    @property
    def target(self) -> float | None:
        """The `score` that ends the run."""
        return self.settings.run.target_return

    def score(self) -> float | None:
        """What best.ckpt and the target go by in this epoch; None where nothing was evaluated."""
        greedy = self.row.get(GREEDY)
        return None if greedy is None else float(greedy.mean())

    @property
    def score_name(self) -> str:
        """What `score` is, in words."""
        return "greedy return"

    def is_evaluated(self) -> bool:
        """Whether this epoch ended with an evaluation."""
        return self.score() is not None

    def headline(self) -> str:
        """Short text for the progress bar."""
        return ""

    def report(self) -> list[str] | None:
        """Parts of this epoch's printed line; None prints nothing."""
        return None

    def histograms(self) -> dict[str, Tensor]:
        """Numbers of the first member whose distribution TensorBoard shows, taken at evaluations."""
        return {}

    def training_state(self) -> dict[str, Any]:
        """What a resumed run needs beyond weights and the fields above; it lies beside those in checkpoints."""
        return {}

    def load_training_state(self, state: dict[str, Any]) -> None:
        """Take up what `training_state` gave; ``state`` holds the other fields too."""

    def reached_target(self) -> bool:
        """Whether this epoch's `score` ends the run."""
        score = self.score()
        return score is not None and self.target is not None and score >= self.target

    def callbacks(self) -> list[pl.Callback]:
        """The module's own; they act before all others."""
        return []

    def close(self) -> None:
        """Close the environments and end the processes that are the module's."""

    # -- Lightning's hooks ----------------------------------------------------------------------------------------

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return []

    def train_dataloader(self) -> DataLoader:
        return DataLoader([0])  # type: ignore[arg-type]  # a list is a dataset

    val_dataloader = train_dataloader

    def on_train_start(self) -> None:
        self.epochs_before = self.epoch
        if self.is_over():  # of a run that goes on from its end
            self.trainer.should_stop = True

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        # Agents make their own optimiser steps, which Lightning cannot see. ModelCheckpoint writes nothing at a step
        # that it has seen before, so an epoch counts as one.
        progress = self.trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
        progress.increment_ready()
        progress.increment_completed()

    def on_train_epoch_end(self) -> None:
        if self.reached_target():
            self.trainer.should_stop = True
        if self.loggers:
            means = {tag: float(values.double().nanmean()) for tag, values in self.row.items()}
            counters = {"env_steps": float(self.env_steps.double().mean()), "gradient_steps": self.gradient_steps}
            measured = {tag: mean for tag, mean in means.items() if math.isfinite(mean)}
            for logger in self.loggers:
                logger.log_metrics(counters | measured, self.epoch)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[OURS] = {
            "format": FORMAT, "settings": as_dict(self.settings), "seeds": self.seeds, "epoch": self.epoch,
            "env_steps": self.env_steps, "gradient_steps": self.gradient_steps, "best": self.best, "whole": self.whole,
        } | self.training_state()  # fmt: skip

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        ours = checkpoint[OURS]
        self.epoch, self.gradient_steps, self.best = ours["epoch"], ours["gradient_steps"], ours["best"]
        self.env_steps = ours["env_steps"]
        self.load_training_state(ours)

    # -- for subclasses -------------------------------------------------------------------------------------------

    def has_something_to_say(self) -> bool:
        """At evaluations, in the first epoch of a process, and always where more is to be printed."""
        first = self.epoch == self.epochs_before + 1
        return first or self.is_evaluated() or self.settings.run.print_statements > 0

    def steps_text(self) -> str:
        steps = int(self.env_steps.sum())
        return f"{steps:,} steps" if steps < 100_000 else f"{steps / 1e6:.2f} M steps"
