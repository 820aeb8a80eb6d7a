"""What a person sees while a run goes on: a bar with the time left and, every evaluation, one line."""

import sys
import time

import pytorch_lightning as pl
from tqdm import tqdm

from control.agent_module import AgentModule


class Progress(pl.Callback):
    """A bar over epochs on a terminal; lines at evaluations everywhere (every epoch when ``verbose``).

    Also ends the run once the mean greedy evaluation reaches ``target_return``.
    """

    def __init__(self, epochs: int, target_return: float | None, verbose: bool):
        self.epochs, self.target_return, self.verbose = epochs, target_return, verbose
        self.bar: tqdm | None = None
        self._steps, self._time, self._first, self._started = 0, 0.0, 0, 0.0

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, AgentModule)
        self._steps, self._time = int(module.env_steps.sum()), time.perf_counter()
        self._first, self._started = module.epoch, self._time
        if sys.stderr.isatty():
            self.bar = tqdm(total=self.epochs, initial=module.epoch, unit="epoch", dynamic_ncols=True, smoothing=0.05)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, AgentModule)
        row = {tag: float(values.mean()) for tag, values in module.row.items()}
        if self.bar is not None:
            self.bar.update(module.epoch - self.bar.n)
            self.bar.set_postfix_str(f"return {row['rollout/return_mean']:.0f}, loss {row['train/policy_loss']:.3f}")
        evaluated = "eval/return_greedy" in row
        if evaluated or self.verbose or module.epoch == self._first + 1:
            try:
                self._line(module, row)
            except BrokenPipeError:  # nobody reads on (head, less): end with a checkpoint
                trainer.should_stop = True
        if evaluated and self.target_return is not None and row["eval/return_greedy"] >= self.target_return:
            tqdm.write(f"greedy return {row['eval/return_greedy']:.1f} reached the target {self.target_return}")
            trainer.should_stop = True

    def _line(self, module: AgentModule, row: dict[str, float]) -> None:
        steps, now = int(module.env_steps.sum()), time.perf_counter()
        rate, self._steps, self._time = (steps - self._steps) / (now - self._time), steps, now
        left = (now - self._started) / (module.epoch - self._first) * (self.epochs - module.epoch)
        parts = [
            f"epoch {module.epoch}/{self.epochs}",
            f"{steps / 1e6:.2f} M steps",
            f"return {row['rollout/return_mean']:7.1f}",
        ]
        if "eval/return_greedy" in row:
            parts.append(f"greedy {row['eval/return_greedy']:7.1f}")
            parts.append(f"sampled {row['eval/return_sampled']:7.1f}")
        parts += [f"loss {row['train/policy_loss']:.3f}", f"{rate:,.0f} steps/s", f"{_duration(left)} left"]
        tqdm.write("  ".join(parts))
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
