"""Lightning callbacks of our own command: metrics.csv and TensorBoard, checkpoints, signals, and videos."""

import math
import signal
import sys
from pathlib import Path
from types import FrameType

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.callbacks import Checkpoint as CheckpointCallback
from torch.utils.tensorboard import SummaryWriter

from control.cli.settings import as_dict
from control.lightning.agent import AgentModule
from control.lightning.module import RunModule
from control.loops.recording import record
from control.reports.figures import command_figure
from control.reports.tags import tags
from control.storage.run_dir import MetricsFile, read_metrics
from models.streams import Streams


class RunLog(Callback):
    """Writes each epoch's row, one line a member, to metrics.csv and, unless told not to, to TensorBoard (x axis:
    epochs). With several members each has its own TensorBoard folder, ``seed_N`` inside the run's."""

    def __init__(self, run_dir: Path, seeds: list[int], resumed_epoch: int | None = None, tensorboard: bool = True):
        self.seeds = seeds
        self.metrics = MetricsFile(run_dir / "metrics.csv")
        if resumed_epoch is not None:
            self.metrics.truncate_after(resumed_epoch)
        purge = None if resumed_epoch is None else resumed_epoch + 1
        folders = [run_dir] if len(seeds) == 1 else [run_dir / f"seed_{seed}" for seed in seeds]
        self.writers = [SummaryWriter(str(folder), purge_step=purge) for folder in folders if tensorboard]
        self.last = self._latest(read_metrics(self.metrics.path)) if resumed_epoch is not None else {}

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, RunModule)
        columns = {tag: values.tolist() for tag, values in module.row.items()}
        self.last |= {tag: column for tag, column in columns.items() if not any(map(math.isnan, column))}
        steps = module.env_steps.tolist()
        rows = []
        for m, seed in enumerate(self.seeds):
            values = {"gradient_steps": module.gradient_steps} | {tag: column[m] for tag, column in columns.items()}
            rows.append({"epoch": module.epoch, "env_steps": steps[m], "seed": seed} | values)
            for tag, value in (values | {"env_steps": steps[m]}).items() if self.writers else ():
                if not math.isnan(value):
                    self.writers[m].add_scalar(tag, value, module.epoch)
        self.metrics.append(*rows)
        if self.writers and module.is_evaluated():
            self._draw(module)

    def _draw(self, module: RunModule) -> None:
        for tag, numbers in module.histograms().items():
            self.writers[0].add_histogram(tag, numbers, module.epoch)
        episodes = module.loop.commanded if isinstance(module, AgentModule) else []
        if episodes:
            commanded, obtained = (torch.cat(part, 1).numpy() for part in zip(*episodes, strict=True))
            for m, writer in enumerate(self.writers):
                figure = command_figure(commanded[m], obtained[m])
                writer.add_figure("command/obtained_vs_commanded", figure, module.epoch)
        for writer in self.writers:
            writer.flush()  # a scheduler of trials may end this process any moment

    def _latest(self, columns: dict[str, list[float]]) -> dict[str, list[float]]:
        """The last number of every tag that each seed has one of, for a run that goes on."""
        latest = {}
        for tag, values in columns.items():
            by_seed = {
                int(seed): value for seed, value in zip(columns["seed"], values, strict=True) if not math.isnan(value)
            }
            if by_seed.keys() == set(self.seeds):
                latest[tag] = [by_seed[seed] for seed in self.seeds]
        return latest

    def finish(self, module: RunModule) -> None:
        """Settings and final metrics for TensorBoard's HPARAMS page, then close."""
        from torch.utils.tensorboard.summary import hparams

        settings = {name: value if isinstance(value, bool | int | float | str) else str(value)
                    for name, value in as_dict(module.settings).items()}  # fmt: skip
        for m, writer in enumerate(self.writers):
            final = {"hparam/" + tag.replace("/", "_"): self.last[tag][m]
                     for tag in tags("return", "score") if tag in self.last}  # fmt: skip
            experiment, start, end = hparams(settings, final)
            for summary in (experiment, start, end):
                writer._get_file_writer().add_summary(summary)
            for tag, value in final.items():
                writer.add_scalar(tag, value, module.epoch)
            writer.close()


class Checkpoints(CheckpointCallback):
    """``last.ckpt`` every so many epochs and at the end, with all that a resumed run needs; ``best.ckpt`` by the
    module's score, without what only a resumed run needs."""

    def __init__(self, folder: Path, every: int):
        self.folder, self.every = folder, every

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, RunModule)
        score = module.score()
        if score is not None and math.isfinite(score) and score > module.best:
            module.best = score
            self._save(trainer, module, "best.ckpt", whole=False)
        if module.epoch % self.every == 0 or trainer.should_stop or module.epoch == trainer.max_epochs:
            self._save(trainer, module, "last.ckpt", whole=True)

    def _save(self, trainer: pl.Trainer, module: RunModule, name: str, whole: bool) -> None:
        module.whole = whole
        trainer.save_checkpoint(self.folder / name)
        module.whole = True


class StopNow(BaseException):
    """The second Ctrl-C. Lightning would answer a KeyboardInterrupt with exit status 1."""


class StopOnSignal(Callback):
    """Ctrl-C and SIGTERM end the run after the epoch under way, with a checkpoint; a second Ctrl-C ends it at once."""

    asked = False

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise StopNow
        self.asked = True
        print("\nstopping after this epoch; once more to stop at once", file=sys.stderr, flush=True)

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        # Lightning has put a handler around ours by now that would end the run without its summary.
        signal.signal(signal.SIGTERM, self._ask)

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        trainer.should_stop |= self.asked


class Recorder(Callback):
    """Videos of greedy episodes every ``recording_epoch_interval`` epochs."""

    def __init__(self, folder: Path):
        self.folder = folder

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, RunModule)
        run = module.settings.run
        every = run.recording_epoch_interval
        if every > 0 and module.epoch % every == 0 and isinstance(module, AgentModule):
            for i in range(run.record_n_rollouts_per_epoch):
                path = self.folder / "videos" / f"epoch_{module.epoch:04d}_{i}.mp4"
                film(module, path, f"video {i} of epoch {module.epoch}")


def film(module: AgentModule, path: Path, name: str, sample: bool = False) -> float:
    """Write a video of one episode of the first member and return its return. Seeds come from ``name`` alone: a run
    that records learns the same as one that does not."""
    run, streams = module.settings.run, Streams.named(module.seeds, name)
    policy = module.loop.policy(streams.fork(), sample)
    return record(policy, run.gamename, path, streams.episode_seeds(1)[: policy.members], run.time_limit)
