"""The evolution callback by itself, under a plain Lightning trainer, on a bowl whose best point is known."""

from dataclasses import replace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from control.evolution.archive import Archive
from control.evolution.strategies import make_strategy
from control.lightning.evolution import Evolution
from models.proxies.search import SearchConfig

BEST, START = torch.linspace(-1, 1, 12), torch.full((12,), 0.5)
SMALL = SearchConfig(population=8, noise_std=0.1, step_size=0.05)


class Bowl(pl.LightningModule):
    """What the callback needs of a population, with ``-|x - BEST|^2`` for fitness."""

    def __init__(self, config: SearchConfig):
        super().__init__()
        self.automatic_optimization = False
        self.config, self.seeds, self.epoch, self.row = config, [3], 0, {}
        self.archive, self.solved = Archive(config.keep_best), False
        self.start_from(torch.zeros(12))
        self.seen: list[torch.Tensor] = []
        self.failing = torch.zeros(config.population, dtype=torch.bool)

    def first_mean(self) -> torch.Tensor:
        return START

    def start_from(self, mean: torch.Tensor) -> None:
        self.strategy = make_strategy(self.config, mean)

    def take_mean(self) -> None:
        self.mean = self.strategy.mean.clone()

    def value(self, points: torch.Tensor) -> torch.Tensor:
        return -(points - BEST).square().sum(-1)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.epoch = self.current_epoch + 1

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.seen.append(self.population.clone())
        self.fitness = self.value(self.population).masked_fill(self.failing, torch.nan)
        self.mean_fitness = float(self.value(self.mean))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["search"] = self.epoch, self.strategy.state_dict(), self.archive.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.epoch, strategy, archive = checkpoint["search"]
        self.strategy.load_state_dict(strategy)
        self.archive.load_state_dict(archive)

    def configure_optimizers(self) -> list:
        return []

    def train_dataloader(self) -> DataLoader:
        return DataLoader([0])  # type: ignore[arg-type]

    val_dataloader = train_dataloader


def search(module: Bowl, generations: int, folder: Any = None, resume: bool = False) -> Bowl:
    trainer = pl.Trainer(
        max_epochs=generations, accelerator="cpu", logger=False, callbacks=[Evolution()], enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(module, ckpt_path=folder / "search.ckpt" if resume else None)
    if folder:
        trainer.save_checkpoint(folder / "search.ckpt")
    return module


CASES = [("nes", 0.5, 0.5), ("openai_es", 0.05, 0.2), ("snes", 1.0, 0.2)]


@pytest.mark.parametrize(("strategy", "step", "within"), CASES)
@pytest.mark.parametrize("mirrored", [True, False])
def test_finds_the_bottom_of_a_bowl(strategy: str, step: float, within: float, mirrored: bool) -> None:
    own = {"strategy": strategy, "step_size": step, "population": 24, "mirrored": mirrored, "center_every": 1}
    module = search(Bowl(replace(SMALL, **own)), 100)
    assert (module.mean - BEST).norm() < within * (START - BEST).norm()
    best = module.archive.entries[0]
    assert best[0] == pytest.approx(float(module.value(best[2])), abs=1e-5)


def test_the_population_is_pairs_around_the_mean() -> None:
    module = search(Bowl(SMALL), 1)
    pairs = module.seen[0].view(4, 2, 12)
    torch.testing.assert_close(pairs.mean(1), START.expand(4, 12))
    assert float((pairs[:, 0] - START).std()) == pytest.approx(0.1, abs=0.03)


def test_ends_with_the_first_mean_that_solves() -> None:
    config = replace(SMALL, population=24, solved_reward=-0.2, quit_when_solved=True)
    module = search(Bowl(config), 100)
    assert module.epoch < 100 and module.solved and float(module.value(module.mean)) >= -0.2
    assert module.archive.entries[0][1] == module.epoch
    assert search(Bowl(replace(config, quit_when_solved=False)), 100).epoch == 100


def test_resume_is_exact(tmp_path: Any) -> None:
    whole = search(Bowl(SMALL), 6)
    search(Bowl(SMALL), 3, tmp_path)
    second = search(Bowl(SMALL), 6, tmp_path, resume=True)
    assert second.epoch == 6 and torch.equal(second.mean, whole.mean)
    assert all(map(torch.equal, second.seen, whole.seen[3:]))


def test_failed_members_never_spread_nan() -> None:
    module, some = Bowl(SMALL), Bowl(SMALL)
    module.failing[:] = True
    assert torch.equal(search(module, 3).mean, START) and float(module.row["es/failed"]) == 8
    some.failing[[0, 5]] = True
    assert search(some, 3).mean.isfinite().all() and not torch.equal(some.mean, START)


def test_the_archive_keeps_the_best() -> None:
    archive = Archive(2)
    for generation, fitness in enumerate([1.0, 3.0, 2.0, 3.0]):
        archive.offer(fitness, generation, torch.full((2,), float(generation)))
    assert [(fitness, generation) for fitness, generation, _ in archive.entries] == [(3.0, 1), (3.0, 3)]
    again = Archive(2)
    again.load_state_dict(archive.state_dict())
    assert torch.equal(again.entries[1][2], torch.full((2,), 3.0))
