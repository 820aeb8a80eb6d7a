"""Lightning callbacks and a plugin for runs: progress, metrics.csv, TensorBoard, checkpoints, signals, and videos."""

import contextlib
import math
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any, TypeGuard

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback, EarlyStopping
from pytorch_lightning.callbacks import Checkpoint as CheckpointCallback
from pytorch_lightning.plugins.io import TorchCheckpointIO
from tqdm import tqdm

from control.cli.colour import paint, wrap_text
from control.cli.ending import SIGNALS, ending, print_over_bar
from control.cli.progress import Meter, RowTable, Watch
from control.films.recording import film
from control.lightning.agent import AgentModule
from control.lightning.module import RunModule
from control.reports.curves import solved_return
from control.reports.tables import number_text
from control.reports.tags import ELAPSED, EPOCH, GRADIENT_STEPS, GREEDY, SPEED, TRAINING
from control.storage import checkpoints
from control.storage.run_dir import MetricsFile, read_metrics, sync_to_disk
from models.settings import StopNow

_CLEARLY_BETTER = 0.01  # fraction of the way from the baseline to the best return (`StopWhenFlat`)
_ROWS = 25  # number of rows of the printed table, if the run is short
_ROW_SECONDS = 60.0  # maximum time between two rows
_EPOCH_SECONDS = 1.0  # time that an epoch has after Ctrl-C before it is cut short

# Lightning's callbacks accept any module, but these only a `RunModule`, hence the comments ``type: ignore``.


class Progress(Callback):
    """Shows a progress bar, and prints a table of results. In a short run the table has about `_ROWS` rows, of epochs
    with an evaluation. In a long run it has a row each minute."""

    def __init__(self) -> None:
        self._table = RowTable()
        self._row_seconds = 0.0  # time at the latest row
        self._row_fraction = -1.0  # finished fraction of the training at the latest row
        self._fraction = 0.0  # finished fraction at the start of the epoch
        self._epoch_size = 0.0  # increase of the finished fraction in the latest epoch
        self._solved_was_said = False
        self._open_meter = contextlib.ExitStack()

    def on_fit_start(self, trainer: pl.Trainer, module: RunModule) -> None:  # type: ignore[override]
        """Open the bar before the module compiles its functions."""
        label = f"before the first {module.unit}"
        self.meter = self._open_meter.enter_context(contextlib.closing(Meter(label)))
        module.watch = lambda fraction: self.meter.show(fraction, label)

    def on_train_epoch_start(self, trainer: pl.Trainer, module: RunModule) -> None:  # type: ignore[override]
        """Let the module report the progress within the epoch to the bar (``module.watch``)."""
        number = trainer.current_epoch + 1
        self._fraction = module.finished_fraction()
        is_first = number == module.epochs_before + 1
        if is_first:
            self._row_seconds = Meter.seconds()
        # The time left is estimated without the work before the first epoch and the faster epochs before the first
        # update.
        if is_first or (isinstance(module, AgentModule) and not module.gradient_steps):
            self.meter.restart(self._fraction)
        size = 1 / module.epochs if module.epochs else self._epoch_size  # probable fraction of the run in this epoch
        label = f"{module.unit} {_number_text(module, number)}"
        module.watch = lambda fraction: self.meter.show(min(1.0, self._fraction + fraction * size), label)
        module.watch(0.0)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: RunModule) -> None:  # type: ignore[override]
        """Print a row if one is due, and the reason for the end of the run, if there is one."""
        fraction, reason = module.finished_fraction(), module.stop_reason()
        self._epoch_size = fraction - self._fraction
        is_due = fraction - self._row_fraction >= 1 / _ROWS or fraction >= 1
        is_late = Meter.seconds() - self._row_seconds >= _ROW_SECONDS
        prints_all = module.settings.run.print_statements > 0
        if (is_due and module.is_evaluated()) or is_late or reason or prints_all:
            self._print_row(module, 1.0 if reason else fraction)
            self._row_fraction = fraction
        if reason:
            tqdm.write(paint(reason, "green", sys.stdout))
        elif isinstance(module, AgentModule):
            self._say_solved(module)

    def _say_solved(self, module: AgentModule) -> None:
        """At the first greedy evaluation that solves the environment, print how to end a run there."""
        run, score = module.settings.run, module.score()
        if self._solved_was_said or run.target_return is not None or module.loop.score_tag != GREEDY or score is None:
            return
        solved = solved_return(run.gamename)
        if solved is not None and score >= solved:
            self._solved_was_said = True
            if module.best < solved:  # else the run is resumed, and this was printed before
                num_seeds = len(module.seeds)
                subject = f"mean of {num_seeds} seeds solved" if num_seeds > 1 else "solved"
                text = f"{subject} at step {module.steps_a_seed():,}; --target_return {solved:g} would stop here"
                tqdm.write(paint(wrap_text(text, sys.stdout), "dim", sys.stdout))

    def _print_row(self, module: RunModule, fraction: float) -> None:
        """Print a row of the table: the epoch, the columns of the module, the speed of the epoch, and the time left."""
        self._row_seconds = Meter.seconds()
        last_epoch = _number_text(module, module.epochs or 0)
        epoch = _number_text(module, module.epoch)
        speed = module.means()[SPEED]  # 0 if the generations of a search train no agents
        times = {"steps/s": f"{speed:9,.0f}"} if speed else {}
        times["left"] = self.meter.time_left(fraction)
        if self.meter.bar is not None:  # the printed row draws it again
            self.meter.show(fraction, f"{module.unit} {epoch}")
        if module.legend and not self._table.widths:  # the first row will follow
            tqdm.write(paint(wrap_text(module.legend, sys.stdout), "dim", sys.stdout))
        tqdm.write(self._table.text({module.unit: epoch.rjust(len(last_epoch))} | module.columns() | times))
        sys.stdout.flush()

    def on_fit_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._open_meter.close()

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        self._open_meter.close()


def _number_text(module: RunModule, number: int) -> str:
    """Return the ``number`` of an epoch as text, such as ``3/10``, or ``3`` if the run has no limit of epochs."""
    return f"{number}/{module.epochs}" if module.epochs is not None else str(number)


class RunLog(Callback):
    """Writes the measurements of each epoch to ``run_dir/metrics.csv``, a row for each member (the agent of a seed),
    and to TensorBoard if it is used. A resumed run continues the file."""

    def __init__(self, run_dir: Path, module: RunModule):
        self.metrics = MetricsFile(run_dir / "metrics.csv")
        self._start = Meter.seconds()
        if module.epoch:  # the run resumes
            self.metrics.resume_after(self._keys(module))
            # The elapsed time includes the earlier parts of the run. So the start is moved back by their time.
            elapsed = read_metrics(self.metrics.path).get(ELAPSED, [])
            self._start -= max((seconds for seconds in elapsed if math.isfinite(seconds)), default=0.0)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: RunModule) -> None:  # type: ignore[override]
        """Append the epoch's measurements to metrics.csv, and add them to TensorBoard."""
        columns = {tag: column.tolist() for tag, column in module.row.items()}  # tag -> a number for each member
        counts = {GRADIENT_STEPS: module.gradient_steps}
        elapsed = Meter.seconds() - self._start
        counters = {EPOCH: module.epoch} | (counts if isinstance(module, AgentModule) else {})  # only in TensorBoard
        rows: list[dict[str, Any]] = []  # a row of metrics.csv for each member
        for member, key in enumerate(self._keys(module)):
            metrics = {tag: column[member] for tag, column in columns.items()} | {ELAPSED: elapsed}
            rows.append(key | counts | metrics)
            if module.boards:
                module.boards[member].add_scalars(counters | metrics, key["env_steps"])
        self.metrics.append(*rows)
        if module.run_board is None:
            return
        if len(module.boards) > 1:
            module.run_board.add_scalars(counters | module.means() | {ELAPSED: elapsed}, module.steps_a_seed())
        if module.is_evaluated():
            for tag, numbers in module.histograms().items():
                module.boards[0].add_histogram(tag, numbers, int(module.env_steps[0]))
            for board in (*module.boards, module.run_board):
                board.writer.flush()  # a scheduler of trials may end this process any moment

    def _keys(self, module: RunModule) -> list[dict[str, int]]:
        """Return the columns that identify each member's row of this epoch: its epoch, environment steps and seed."""
        pairs = zip(module.env_steps.tolist(), module.seeds, strict=True)
        return [{"epoch": module.epoch, "env_steps": steps, "seed": seed} for steps, seed in pairs]


class Checkpoints(CheckpointCallback):
    """Saves two checkpoints in ``folder``. ``last.ckpt``, every ``interval`` epochs and at the end, has everything that
    a resumed run needs. ``best.ckpt`` has no replay buffer. It is saved if the module's ``score`` is the best one so
    far, and still is after a second evaluation (``confirmed_score``)."""

    def __init__(self, folder: Path, interval: int):
        self.folder, self.interval = folder, interval

    def on_train_epoch_end(self, trainer: pl.Trainer, module: RunModule) -> None:  # type: ignore[override]
        """Save the checkpoints that are due, ``best.ckpt`` first, so that ``last.ckpt`` has the new best score."""
        if _is_better(module.score(), module.best):
            score = module.confirmed_score()
            if _is_better(score, module.best):
                module.best = score
                self._save(trainer, module, "best.ckpt", resumable=False)
        if module.epoch % self.interval == 0 or trainer.should_stop or module.epoch == trainer.max_epochs:
            self._save(trainer, module, "last.ckpt", resumable=True)

    def _save(self, trainer: pl.Trainer, module: RunModule, name: str, resumable: bool) -> None:
        """Save the checkpoint ``name``. If ``resumable``, it has all state that a resumed run needs."""
        module.resumable = resumable  # read by the module's `on_save_checkpoint`
        metrics_file = self.folder.parent / "metrics.csv"
        if resumable and metrics_file.exists():
            sync_to_disk(metrics_file)  # its rows must be on disk before the checkpoint that counts them
        trainer.save_checkpoint(self.folder / name)
        module.resumable = True  # the default, for checkpoints that other callbacks save


def _is_better(score: float | None, best: float) -> TypeGuard[float]:
    """Return whether a score is finite and higher than the ``best`` so far."""
    return score is not None and math.isfinite(score) and score > best


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's plugin that writes checkpoint files. Each replaces an earlier file only when it is complete. If
    ``checkpoint`` is set, loading returns its content and reads no file."""

    def __init__(self, checkpoint: checkpoints.Checkpoint | None = None):
        super().__init__()
        self.checkpoint = checkpoint

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        return checkpoints.load(path).content if self.checkpoint is None else self.checkpoint.content

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        checkpoints.save(checkpoint, path)


class StopOnSignal(Callback):
    """Ends the run after the current epoch, with a checkpoint, if one of `SIGNALS` arrives, such as Ctrl-C. A second
    signal ends it at once, and so does the first Ctrl-C if the epoch takes longer than a second; then a resumed run
    repeats the epoch. Use this as a context manager around the training and as a callback in it."""

    stop_requested = False  # set by the first signal
    unit = "epoch"

    def __init__(self) -> None:
        # Sends a second Ctrl-C to the main thread. The first one starts the timer.
        main_thread = threading.main_thread().ident
        self._timer = threading.Timer(_EPOCH_SECONDS, signal.pthread_kill, (main_thread, signal.SIGINT))
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._previous_handlers = {}
        if threading.current_thread() is threading.main_thread():  # Python lets no other thread set handlers
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous_handlers[number] = signal.signal(number, self._handle_signal)

    def __exit__(self, *exception: object) -> None:
        self._timer.cancel()
        ending.handled.clear()  # the work after training must react to the next Ctrl-C itself
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        """Request a stop after the epoch, at the first signal. Raises StopNow at the second."""
        if self.stop_requested:
            ending.orderly = False  # so a third signal ends the process at once
            ending.handled.set()  # the process need not be killed: `StopNow` ends it
            raise StopNow
        self.stop_requested = True
        limit = " or in a second" if number == signal.SIGINT else ""
        print_over_bar(f"stopping after this {self.unit}{limit}; once more to stop at once")
        if number == signal.SIGINT:  # a person waits
            self._timer.start()

    def on_train_start(self, trainer: pl.Trainer, module: RunModule) -> None:  # type: ignore[override]
        self.unit = module.unit
        # By now, Lightning has replaced our handler. Its handler would end the run without its summary.
        if signal.SIGTERM in self._previous_handlers:
            signal.signal(signal.SIGTERM, self._handle_signal)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        if self.stop_requested:
            self._timer.cancel()
            ending.handled.set()  # the process need not be killed: it ends after the checkpoint
            trainer.should_stop = True


class Recorder(Callback):
    """Records videos of greedy episodes after every ``recording_epoch_interval`` epochs."""

    def __init__(self, folder: Path):
        self.folder = folder

    def on_train_epoch_end(self, trainer: pl.Trainer, module: RunModule) -> None:  # type: ignore[override]
        """Record the epoch's videos, if some are due, and add the first one to TensorBoard if the run has it."""
        run = module.settings.run
        interval = run.recording_epoch_interval  # 0 or less for no videos
        if interval <= 0 or module.epoch % interval or not isinstance(module, AgentModule):
            return
        for i in range(run.record_n_rollouts_per_epoch):
            path = self.folder / "videos" / f"epoch_{module.epoch:04d}_{i}.mp4"
            on_board = i == 0 and module.run_board is not None
            film(module.loop, run, path, f"video {i} of epoch {module.epoch}", with_gif=on_board)
            if on_board:
                module.show_image("film", path.with_suffix(".gif"))


class StopWhenFlat(EarlyStopping):
    """Ends a training after ``patience`` evaluations in a row without a clearly better return, neither in evaluations
    nor in training episodes.

    A return is clearly better if it exceeds the best one by 1 % of the way from ``baseline``, such as the return of
    random play, to the best. After an evaluation with ``max_return``, the largest possible return, the patience is a
    quarter, and training episodes do not count. Evaluations before the first update do not count. The training does not
    end while its episodes return less than ``baseline``, because greedy actions may then be good by chance. ``watch``
    is called with the finished fraction of the training and a text about the best return.
    """

    def __init__(
        self, patience: int, watch: Watch | None = None, max_return: float | None = None, baseline: float = 0.0
    ):
        super().__init__(GREEDY, mode="max", patience=patience, check_on_train_epoch_end=True)
        self.watch, self.baseline, self.best_training_return = watch, baseline, -math.inf
        self.max_return = math.inf if max_return is None else max_return

    def _margin(self, best: float) -> float:
        """Return the difference by which a return must exceed the ``best`` one to be clearly better."""
        return _CLEARLY_BETTER * max(0.0, best - self.baseline)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "best_training_return": self.best_training_return}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.best_training_return = state_dict.get("best_training_return", -math.inf)  # not in older checkpoints

    def on_train_epoch_end(self, trainer: pl.Trainer, module: RunModule) -> None:  # type: ignore[override]
        """Adapt the attributes by which `EarlyStopping` decides to the latest returns, and report the progress."""
        if module.gradient_steps:
            best, score = float(self.best_score), float(trainer.callback_metrics[GREEDY])
            reaches_max = best < self.max_return <= score  # true only at the first such score
            # `EarlyStopping` counts a return as better if it exceeds the best one by more than this.
            self.min_delta = 0.0 if reaches_max else self._margin(best)
            training_return = float(trainer.callback_metrics.get(TRAINING, math.nan))
            is_better = training_return > self.best_training_return + self._margin(self.best_training_return)
            if is_better:
                self.best_training_return = training_return
            # Below the baseline, the agent has not begun to learn.
            if (is_better or training_return < self.baseline) and best < self.max_return:
                self.wait_count = 0
            super().on_train_epoch_end(trainer, module)
            if reaches_max:
                self.patience = math.ceil(self.patience / 4)
        if self.watch is not None:
            best, fraction = float(self.best_score), module.finished_fraction()
            if best >= self.max_return:  # no later return is better, so the training ends when the patience is used up
                fraction = max(fraction, module.epoch / (module.epoch + self.patience - self.wait_count))
            self.watch(fraction, f"best return {number_text(best)}" if math.isfinite(best) else "")
