"""The base class of all LightningModules: counters, rows of metrics, and checkpoints of a run."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from control.cli.progress import Watch
from control.cli.settings import Settings, as_dict
from control.lightning.board import Board
from control.reports.tags import AGENT_CHARTS, ENV_STEPS, EPOCH, GRADIENT_STEPS, SCORES, SEARCH_CHARTS
from control.storage.checkpoints import FORMAT, OURS, Checkpoint, CheckpointError, checked_content
from models.optim import LeanOptimizer
from models.state import Stateful, check_like


class EpochOptimizer(LeanOptimizer):
    """An optimizer without weights. Its only step in an epoch calls the closure, which trains the whole epoch, because
    a step through Lightning takes as long as a small update. So Lightning's ``global_step`` counts epochs. Its learning
    rate is a copy of the agents' rate for `LearningRateMonitor`."""

    def __init__(self) -> None:
        super().__init__([torch.zeros(1)], {"lr": 0.0})  # torch requires a parameter; it is never changed

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        assert closure is not None
        return closure()


class RunModule(pl.LightningModule, Stateful, ABC):
    """The base class of LightningModules of this project: a run that trains M members, which are independent learners.

    A Lightning epoch has one batch, so that Lightning's overhead occurs once per epoch. A subclass trains an epoch in
    `train_epoch`, and sets ``epoch`` and a new ``row`` there: the measurements of the epoch, ``{tag: [M]}``, NaN for
    missing ones. ``env_steps [M]`` and ``gradient_steps`` count from the start of the run; ``best`` is the best `score`
    so far. Loggers get the mean of each measurement over members, at the mean number of environment steps.

    :param settings: The settings of the run.
    """

    unit = "epoch"  # unit of the progress bar
    validate_every = 1  # epochs between validations
    evaluations = 1  # minimum number of evaluations in a run
    steps_kind = "environment"  # the kind of steps that `env_steps` counts, as the summary of a run names it
    legend = ""  # a line that explains the printed table
    saved: ClassVar[tuple[str, ...]] = ("epoch", "env_steps", "gradient_steps", "best")  # attributes in `run_state`

    def __init__(self, settings: Settings):
        super().__init__()
        self.automatic_optimization = False
        self.save_hyperparameters(as_dict(settings))
        self.settings = settings
        self.seeds = list(range(settings.run.seed, settings.run.seed + settings.run.num_seeds))  # one of each member
        self.epochs = settings.epochs  # number of epochs of the run; None for no limit
        self.total_steps = settings.total_steps  # environment steps of each member in the run; None for no limit
        self.row: dict[str, Tensor] = {}  # measurements of the current epoch, {tag: [M]}
        self.epoch = 0  # number of the current epoch, from 1; 0 before the first one. A resumed run restores it
        self.epochs_before = 0  # `epoch` at the start of this process; above 0 only in a resumed run
        self.env_steps = torch.zeros(settings.run.num_seeds, dtype=torch.int64)
        self.gradient_steps = 0
        self.best = -math.inf
        self.restored: Checkpoint | None = None  # the checkpoint from which the run resumes
        self.verbose = True  # whether progress and results are printed, and not only warnings
        self.log_all = True  # whether Lightning logs every measurement, which takes half a millisecond each
        self.epoch_optimizer = EpochOptimizer()
        self.board_folder: Path | None = None  # folder of TensorBoard's event files; None is the run folder
        self.boards: list[Board] = []  # TensorBoard's log of each member; empty without TensorBoard (`open_boards`)
        self.run_board: Board | None = None  # TensorBoard's log of the means over members; of one member: its log
        self.watch: Watch | None = None  # called with the progress of an epoch, or of the work before the first one
        self.resumable = True  # whether the next checkpoint must contain all state for a resumed run

    def is_over(self) -> bool:
        return self.finished_fraction() >= 1

    def finished_fraction(self) -> float:
        """Return the finished fraction of the training, from 0 to 1, by epochs or by steps, whichever is larger."""
        by_steps = int(self.env_steps.min()) / self.total_steps if self.total_steps else 0.0
        by_epochs = self.epoch / self.epochs if self.epochs else 0.0
        return min(1.0, max(by_steps, by_epochs))

    def steps_a_seed(self) -> int:
        """Return the mean of `env_steps` over seeds, rounded."""
        return round(float(self.env_steps.double().mean()))

    @abstractmethod
    def score(self) -> float | None:
        """Return the score by which best.ckpt is chosen (higher is better), or None if this epoch has no evaluation."""

    def confirmed_score(self) -> float | None:
        """Return the mean of the `score` and of a second evaluation, if the module makes one. Called if the score is
        the best so far, because the best of many noisy scores is too high."""
        return self.score()

    def means(self) -> dict[str, float]:
        """Return the mean of each measurement in `row` over the members with a finite number, ``{tag: mean}``. Tags
        without a finite number are left out."""
        finite = {tag: column[column.isfinite()].tolist() for tag, column in self.row.items()}  # tag -> numbers
        return {tag: math.fsum(numbers) / len(numbers) for tag, numbers in finite.items() if numbers}

    def stop_reason(self) -> str:
        """Return the reason for ending the run with this epoch; empty if it continues."""
        return ""

    def is_evaluated(self) -> bool:
        return self.score() is not None

    @abstractmethod
    def columns(self) -> dict[str, str]:
        """Return this epoch's row of the printed table, heading of a column -> text."""

    def histograms(self) -> dict[str, Tensor]:
        """Return the first member's numbers for TensorBoard's histograms, by tag. Called at evaluations."""
        return {}

    def open_boards(self, folder: Path) -> None:
        """Open TensorBoard's event files in ``folder``. Several seeds have subfolders ``seed_N``, and their means the
        subfolder ``mean``."""
        for seed, steps in zip(self.seeds, self.env_steps.tolist(), strict=True):
            board = Board(folder if len(self.seeds) == 1 else folder / f"seed_{seed}", steps)
            board.add_settings(self.settings, seed, steps)
            board.add_charts(SEARCH_CHARTS if self.settings.proxy is not None else AGENT_CHARTS)
            self.boards.append(board)
        self.run_board = self.boards[0] if len(self.seeds) == 1 else Board(folder / "mean", self.steps_a_seed())

    def show_image(self, tag: str, path: Path) -> None:
        """Add the picture or GIF ``path`` to the run in TensorBoard, if it uses TensorBoard."""
        if self.run_board is not None:
            self.run_board.add_image(tag, path, self.steps_a_seed())

    def show_text(self, tag: str, text: str) -> None:
        """Add a text about all members to the run in TensorBoard, if it uses TensorBoard."""
        if self.run_board is not None:
            self.run_board.writer.add_text(tag, text, self.steps_a_seed())

    def close(self) -> None:
        """Close the event files. Subclasses also close their environments and end their processes."""
        for board in self.boards:
            board.writer.close()
        if self.run_board is not None:
            self.run_board.writer.close()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the `EpochOptimizer`. Subclasses add the agents' optimisers that Lightning saves."""
        return [self.epoch_optimizer]

    @abstractmethod
    def train_epoch(self) -> None:
        """Train an epoch. Set ``epoch`` and ``row``, and advance the counters ``env_steps`` and ``gradient_steps``."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Train an epoch (`train_epoch`) as one step of the `EpochOptimizer`, so that Lightning counts it."""
        optimizers = self.optimizers()
        epoch_optimizer = optimizers[0] if isinstance(optimizers, list) else optimizers
        epoch_optimizer.step(closure=self.train_epoch)  # type: ignore[union-attr]

    def train_dataloader(self) -> DataLoader:
        """Return data of one batch, which nothing uses."""
        return DataLoader([0])  # type: ignore[arg-type]  # a list is a dataset

    val_dataloader = test_dataloader = train_dataloader

    def on_train_start(self) -> None:
        self.epochs_before = self.epoch
        # A run that is resumed after its last epoch ends here. A new run always trains an epoch, to have a result.
        if self.epoch and self.is_over():
            self.trainer.should_stop = True

    def on_train_epoch_end(self) -> None:
        """Stop the trainer if training is complete. Log the `means` to all loggers and, if ``log_all``, for Lightning's
        callbacks."""
        if self.stop_reason() or self.is_over():
            self.trainer.should_stop = True
        means = self.means()
        for tag, mean in means.items():
            if self.log_all and tag not in SCORES:  # scores are logged by the evaluation
                self.log(tag, mean, logger=False, batch_size=1)  # for callbacks
        steps = float(self.env_steps.double().mean())
        counters = {EPOCH: self.epoch, ENV_STEPS: steps, GRADIENT_STEPS: self.gradient_steps}
        for logger in self.loggers:
            logger.log_metrics(counters | means, int(steps))

    def run_state(self) -> dict[str, Any]:
        """Return the state that a resumed run needs in addition to weights and optimisers."""
        return Stateful.state_dict(self)

    def load_run_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `run_state`. Raises StateError or another exception if it does not fit this module."""
        Stateful.load_state_dict(self, state)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add this program's part, under the key `OURS`, to a checkpoint of Lightning."""
        header = {"format": FORMAT, "settings": as_dict(self.settings), "seeds": self.seeds, "whole": self.resumable}
        checkpoint[OURS] = header | self.run_state()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore this program's part of a checkpoint that Lightning loads, unless `restore` has done it before. Raises
        CheckpointError for a checkpoint of another agent or environment."""
        state, run = checkpoint[OURS], self.settings.run
        saved = f"{state['settings']['implementation']} on {state['settings']['gamename']}"
        expected = f"{run.implementation} on {run.gamename}"
        if saved != expected:
            raise CheckpointError(f"ckpt_path is a checkpoint of {saved}; allowed for this module: one of {expected}")
        if self.restored is None or state is not self.restored.run_state:
            self.load_run_state(state)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restore all state in a checkpoint, before Lightning does, so that errors come early. After a CheckpointError,
        this module is unusable, because it may be restored in part."""
        content = checkpoint.content
        with checked_content(checkpoint.path):
            self.load_state_dict(check_like(self.state_dict(), content["state_dict"], "state_dict"))
            self.load_run_state(content[OURS])
            for optimizer, state in zip(self.configure_optimizers(), content["optimizer_states"], strict=True):
                optimizer.load_state_dict(state)
        self.restored = checkpoint
