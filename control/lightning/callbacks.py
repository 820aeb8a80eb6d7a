"""Where an epoch's numbers go: TensorBoard, metrics.csv, and checkpoints. Lightning callbacks."""

import math
from pathlib import Path

import pytorch_lightning as pl
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.callbacks import Checkpoint as CheckpointCallback
from torch.utils.tensorboard import SummaryWriter

from control.cli.settings import as_dict
from control.lightning.module import RunModule
from control.reports.tags import tags
from control.storage.run_dir import MetricsFile, read_metrics


class RunLog(Callback):
    """Writes each epoch's row, one line a member, to metrics.csv and to TensorBoard (x axis: epochs).

    With several members each has its own TensorBoard folder, ``seed_N`` inside the run's.
    """

    def __init__(self, run_dir: Path, seeds: list[int], resumed_epoch: int | None):
        self.run_dir, self.seeds = run_dir, seeds
        self.metrics = MetricsFile(run_dir / "metrics.csv")
        if resumed_epoch is not None:
            self.metrics.truncate_after(resumed_epoch)
        purge = None if resumed_epoch is None else resumed_epoch + 1
        folders = [run_dir] if len(seeds) == 1 else [run_dir / f"seed_{seed}" for seed in seeds]
        self.writers = [SummaryWriter(str(folder), purge_step=purge) for folder in folders]
        self.last = self._latest(read_metrics(self.metrics.path)) if resumed_epoch is not None else {}

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, RunModule)
        columns = {tag: values.tolist() for tag, values in module.row.items()}
        self.last |= {tag: column for tag, column in columns.items() if not any(map(math.isnan, column))}
        steps = module.env_steps.tolist()
        rows = []
        for m, (seed, writer) in enumerate(zip(self.seeds, self.writers, strict=True)):
            values = {"gradient_steps": module.gradient_steps} | {tag: column[m] for tag, column in columns.items()}
            rows.append({"epoch": module.epoch, "env_steps": steps[m], "seed": seed} | values)
            for tag, value in (values | {"env_steps": steps[m]}).items():
                if not math.isnan(value):
                    writer.add_scalar(tag, value, module.epoch)
        self.metrics.append(*rows)
        self._draw(module)

    def _draw(self, module: RunModule) -> None:
        for tag, figures in module.figures().items():
            for writer, figure in zip(self.writers, figures, strict=True):
                writer.add_figure(tag, figure, module.epoch)
        if module.is_evaluated():
            for tag, numbers in module.histograms().items():
                self.writers[0].add_histogram(tag, numbers, module.epoch)

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
            self._save(trainer, module, "best.ckpt", keep_memory=False)
        if module.epoch % self.every == 0 or trainer.should_stop or module.epoch == trainer.max_epochs:
            self._save(trainer, module, "last.ckpt", keep_memory=True)

    def _save(self, trainer: pl.Trainer, module: RunModule, name: str, keep_memory: bool) -> None:
        module.keep_memory = keep_memory
        trainer.save_checkpoint(self.folder / name)
        module.keep_memory = True
