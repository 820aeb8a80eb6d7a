"""The base class of the LightningModules: counters, rows of metrics, and checkpoints of any run."""

import math
from collections.abc import Callable
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from control.cli.colour import warning
from control.cli.progress import Watch
from control.cli.settings import Settings, as_dict
from control.reports.tags import ENV_STEPS, EPOCH, GRADIENT_STEPS, SCORES, TAGS
from control.storage.checkpoints import FORMAT, OURS, Checkpoint, CheckpointError, believing
from models.optim import LeanOptimizer
from models.settings import nearest
from models.state import check_like


class EpochOptimizer(LeanOptimizer):
    """An optimizer whose step is an epoch of training, so that Lightning's ``global_step`` counts epochs.

    An epoch has hundreds of updates, and a step through Lightning costs as much as a small one. Its learning rate is
    the agents', for `LearningRateMonitor`.
    """

    def __init__(self) -> None:
        super().__init__([torch.zeros(1)], {"lr": 0.0})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        assert closure is not None
        return closure()


class RunModule(pl.LightningModule):
    """M members of one run, with seeds ``seeds [M]``; callbacks, commands and checkpoints know only this class.

    A Lightning epoch has one batch, so that Lightning's overhead occurs once an epoch. A subclass trains an epoch in
    `training_step`, where it sets ``epoch`` and begins a new ``row`` of measurements, ``{tag: [M]}``, NaN for missing
    ones. ``env_steps [M]`` and ``gradient_steps`` count from the start of the run, ``best`` is the best `score` so far.
    Works with any Lightning trainer. Loggers get the mean of every row, at the mean number of environment steps of a
    member.
    """

    unit = "epoch"  # unit of the progress bar
    validate_every = 1  # epochs between validations
    steps_on = "environment"  # kind of `env_steps`

    def __init__(self, settings: Settings, seeds: list[int]):
        super().__init__()
        self.automatic_optimization = False
        self.save_hyperparameters(as_dict(settings))
        self.settings, self.seeds = settings, seeds
        self.epochs, self.total_steps = settings.epochs, settings.total_steps  # None for no limit
        self.row: dict[str, Tensor] = {}
        self.epoch = 0  # of the current row; restored at a resume, as Lightning's counter is
        self.epochs_before = 0  # done when this process took over
        self.env_steps = torch.zeros(len(seeds), dtype=torch.int64)
        self.gradient_steps = 0
        self.best = -math.inf
        self.restored: Checkpoint | None = None  # from which a run goes on
        self.log_all = True  # whether each measurement also goes to Lightning, which takes half a millisecond
        self.epoch_optimizer = EpochOptimizer()
        self.watch: Watch | None = None  # gets the progress of an epoch, or of the work before the first one
        self.resumable = True  # whether the checkpoint about to be written must serve to resume

    def is_over(self) -> bool:
        """Whether nothing is left to train."""
        return self.share() >= 1

    def share(self) -> float:
        """How much of the training is done, from 0 to 1, by whichever of its two ends is nearer."""
        steps = int(self.env_steps.min()) / self.total_steps if self.total_steps is not None else 0.0
        epochs = self.epoch / self.epochs if self.epochs is not None else 0.0
        return min(1.0, max(steps, epochs))

    def steps_a_seed(self) -> int:
        """The mean of `env_steps` over seeds."""
        return round(float(self.env_steps.double().mean()))

    def score(self) -> float | None:
        """The score for best.ckpt in this epoch; None without an evaluation."""
        raise NotImplementedError

    def means(self) -> dict[str, float]:
        """The mean of each tag of `row` over the members that have a finite number; no tag of which none has."""
        finite = {tag: [value for value in values.tolist() if math.isfinite(value)] for tag, values in self.row.items()}
        return {tag: math.fsum(values) / len(values) for tag, values in finite.items() if values}

    def stop_reason(self) -> str:
        """The reason why the run ends with this epoch; empty if it does not."""
        return ""

    def is_evaluated(self) -> bool:
        """Whether this epoch ended with an evaluation."""
        return self.score() is not None

    def headline(self) -> str:
        """Short text for the progress bar."""
        raise NotImplementedError

    def report(self) -> list[str] | None:
        """Parts of this epoch's printed line; None prints nothing."""
        raise NotImplementedError

    def histograms(self) -> dict[str, Tensor]:
        """Numbers of the first member whose distribution TensorBoard shows, taken at evaluations."""
        return {}

    def seconds_after(self) -> float:
        """Estimated seconds of work after the last epoch."""
        return 0.0

    def close(self) -> None:
        """Close the environments and end the processes that are the module's."""

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """The `EpochOptimizer`, and those of the agents that Lightning saves."""
        return [self.epoch_optimizer]

    def count_epoch(self, train: Callable[[], None]) -> None:
        """Train an epoch, as one step of the `EpochOptimizer`."""
        optimizers = self.optimizers()
        optimizer = optimizers[0] if isinstance(optimizers, list) else optimizers
        optimizer.step(closure=train)  # type: ignore[union-attr]

    def train_dataloader(self) -> DataLoader:
        return DataLoader([0])  # type: ignore[arg-type]  # a list is a dataset

    def on_fit_start(self) -> None:
        """Warn of a callback that monitors an unknown name, which Lightning detects only after the first evaluation. It
        is no error, because callbacks may log other names."""
        for callback in self.trainer.callbacks:  # type: ignore[attr-defined]
            name = getattr(callback, "monitor", None)
            likely_tag = "eval/return_greedy" if str(name).startswith("val") else str(name)  # val_loss, of habit
            if isinstance(name, str) and name not in TAGS and (hint := nearest(likely_tag, TAGS)):
                warning(f"{type(callback).__name__} has monitor {name!r}, which no run measures{hint}")

    def on_train_start(self) -> None:
        self.epochs_before = self.epoch
        if self.epoch and self.is_over():  # a run resumed at its end; before the first epoch there is no result
            self.trainer.should_stop = True

    def on_train_epoch_end(self) -> None:
        if self.stop_reason() or self.is_over():
            self.trainer.should_stop = True
        means = self.means()
        for tag, mean in means.items() if self.log_all else ():  # means of an evaluation are logged with it
            if tag not in SCORES:
                self.log(tag, mean, logger=False, batch_size=1)
        if self.loggers:
            steps = float(self.env_steps.double().mean())
            counters = {EPOCH: self.epoch, ENV_STEPS: steps, GRADIENT_STEPS: self.gradient_steps}
            for logger in self.loggers:
                logger.log_metrics(counters | means, int(steps))

    def run_state(self) -> dict[str, Any]:
        """State that a resumed run needs beside weights and optimisers."""
        return {name: getattr(self, name) for name in COUNTERS}

    def load_run_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `run_state`. Raises StateError, among others, if it does not fit this module."""
        for name in COUNTERS:
            setattr(self, name, check_like(getattr(self, name), state[name], name))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        about = {"format": FORMAT, "settings": as_dict(self.settings), "seeds": self.seeds, "whole": self.resumable}
        checkpoint[OURS] = about | self.run_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        saved_settings, own_settings = checkpoint[OURS]["settings"], as_dict(self.settings)
        of, expected = (
            f"{values['implementation']} on {values['gamename']}" for values in (saved_settings, own_settings)
        )
        if of != expected:
            raise CheckpointError(f"ckpt_path is a checkpoint of {of}; allowed for this module: one of {expected}")
        if self.restored is None or checkpoint[OURS] is not self.restored.run_state:  # else it is done
            self.load_run_state(checkpoint[OURS])

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore a checkpoint without Lightning. Raises CheckpointError if it does not fit; then this module must not
        be used any more."""
        content = checkpoint.content
        with believing(checkpoint.path):
            self.load_state_dict(check_like(self.state_dict(), content["state_dict"], "state_dict"))
            self.load_run_state(content[OURS])
            for optimizer, state in zip(self.configure_optimizers(), content["optimizer_states"], strict=True):
                optimizer.load_state_dict(state)
        self.restored = checkpoint


COUNTERS = ("epoch", "env_steps", "gradient_steps", "best")
