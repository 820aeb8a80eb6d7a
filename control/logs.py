"""Where an epoch's numbers go: TensorBoard, metrics.csv, and checkpoints. Lightning callbacks."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.callbacks import Checkpoint as CheckpointCallback
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from control.agent_module import AgentModule
from control.run_config import as_dict
from control.run_dir import MetricsFile, read_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GREEDY = "eval/return_greedy"


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
        assert isinstance(module, AgentModule)
        columns = {tag: values.tolist() for tag, values in module.row.items()}
        self.last |= columns
        steps = module.env_steps.tolist()
        rows = []
        for m, (seed, writer) in enumerate(zip(self.seeds, self.writers, strict=True)):
            values = {tag: column[m] for tag, column in columns.items()} | {"gradient_steps": module.gradient_steps}
            rows.append({"epoch": module.epoch, "env_steps": steps[m], "seed": seed} | values)
            for tag, value in (values | {"env_steps": steps[m]}).items():
                writer.add_scalar(tag, value, module.epoch)
        self.metrics.append(*rows)
        if GREEDY in columns and module.commanded:
            self._scatter(module)

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

    def _scatter(self, module: AgentModule) -> None:
        """`command/obtained_vs_commanded`: what the exploration episodes since the last evaluation were asked for and
        got."""
        commanded = torch.cat([c for c, _ in module.commanded], dim=1)
        obtained = torch.cat([o for _, o in module.commanded], dim=1)
        for m, writer in enumerate(self.writers):
            writer.add_figure(
                "command/obtained_vs_commanded",
                _command_scatter(commanded[m].numpy(), obtained[m].numpy()),
                module.epoch,
            )
        module.commanded = []

    def finish(self, module: AgentModule) -> None:
        """Settings and final metrics for TensorBoard's HPARAMS page, then close."""
        from torch.utils.tensorboard.summary import hparams

        settings = {name: value if isinstance(value, bool | int | float | str) else str(value)
                    for name, value in as_dict(module.settings).items()}  # fmt: skip
        for m, writer in enumerate(self.writers):
            final = {"hparam/" + tag.replace("/", "_"): self.last[tag][m]
                     for tag in (GREEDY, "eval/return_sampled", "rollout/return_mean") if tag in self.last}  # fmt: skip
            experiment, start, end = hparams(settings, final)
            for summary in (experiment, start, end):
                writer._get_file_writer().add_summary(summary)
            for tag, value in final.items():
                writer.add_scalar(tag, value, module.epoch)
            writer.close()


def _command_scatter(commanded: np.ndarray, obtained: np.ndarray) -> "Figure":
    """Obtained over commanded returns ``[N]``, with the diagonal an obedient agent keeps to."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4, 4), dpi=80, layout="constrained")
    axis = figure.subplots()
    low, high = min(commanded.min(), obtained.min()), max(commanded.max(), obtained.max())
    axis.plot([low, high], [low, high], color="0.7", linewidth=1)
    axis.scatter(commanded, obtained, s=8, alpha=0.5)
    axis.set_xlabel("commanded return")
    axis.set_ylabel("obtained return")
    return figure


class Checkpoints(CheckpointCallback):
    """``last.ckpt`` every so many epochs and at the end, with all that a resumed run needs; ``best.ckpt`` by the mean
    greedy evaluation over members, weights and optimiser only."""

    def __init__(self, folder: Path, every: int):
        self.folder, self.every = folder, every

    def on_train_epoch_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, AgentModule)
        greedy = module.row.get(GREEDY)
        if greedy is not None and _better(greedy, module.best):
            module.best = float(greedy.mean())
            self._save(trainer, module, "best.ckpt", keep_memory=False)
        if module.epoch % self.every == 0 or trainer.should_stop or module.epoch == trainer.max_epochs:
            self._save(trainer, module, "last.ckpt", keep_memory=True)

    def _save(self, trainer: pl.Trainer, module: AgentModule, name: str, keep_memory: bool) -> None:
        module.keep_memory = keep_memory
        trainer.save_checkpoint(self.folder / name)
        module.keep_memory = True


def _better(greedy: Tensor, best: float) -> bool:
    mean = float(greedy.mean())
    return math.isfinite(mean) and mean > best
