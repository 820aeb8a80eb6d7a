"""What a person sees while a run goes on: a bar with the time left and, every evaluation, one line."""

import sys
import time

import pytorch_lightning as pl
from tqdm import tqdm

from control.lightning.module import RunModule


class Progress(pl.Callback):
    """A bar over epochs on a terminal, and a line everywhere whenever the module has something to report."""

    def __init__(self) -> None:
        self.bar: tqdm | None = None
        self._steps, self._time, self._first, self._started = 0, 0.0, 0, 0.0

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, RunModule)
        self._steps, self._time = int(module.env_steps.sum()), time.perf_counter()
        self._first, self._started = module.epoch, self._time
        if sys.stderr.isatty():
            self.bar = tqdm(
                total=module.epochs, initial=module.epoch, unit=module.unit, dynamic_ncols=True, smoothing=0.05
            )

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, RunModule)
        if self.bar is not None:
            self.bar.update(module.epoch - self.bar.n)
            self.bar.set_postfix_str(module.headline())
        parts = module.report()
        if parts is not None:
            try:
                self._line(module, parts)
            except BrokenPipeError:  # nobody reads on (head, less): end with a checkpoint
                trainer.should_stop = True
        if module.reached_target():
            tqdm.write(f"{module.score_name} {module.score():.1f} reached the target {module.target}")

    def _line(self, module: RunModule, parts: list[str]) -> None:
        steps, now = int(module.env_steps.sum()), time.perf_counter()
        rate, self._steps, self._time = (steps - self._steps) / (now - self._time), steps, now
        left = (now - self._started) / (module.epoch - self._first) * (module.epochs - module.epoch)
        done = f"{module.unit} {module.epoch}/{module.epochs}"
        tqdm.write("  ".join([done, *parts, f"{rate:,.0f} steps/s", f"{_duration(left)} left"]))
        sys.stdout.flush()

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self._close()

    def on_exception(self, trainer: pl.Trainer, module: pl.LightningModule, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
