"""The evolution callback by itself, on a bowl whose best point is known."""

from dataclasses import replace

import pytest
import pytorch_lightning as pl
import torch
from torch import nn
from torch.utils.data import DataLoader

from control.lightning.evolution import Archive, Evolution
from models.proxies.synthetic.config import Config

BEST = torch.linspace(-1, 1, 12)


class Bowl(pl.LightningModule):
    """What the callback sees of a population, with ``-|x - BEST|^2`` for fitness."""

    def __init__(self, config: Config, centre_every: int = 1):
        super().__init__()
        self.automatic_optimization = False
        self.centre = nn.Parameter(torch.zeros(1, 12), requires_grad=False)
        self.every, self.epoch, self.row = centre_every, 0, {}
        self.evolution = Evolution(config, 3, self.centre[0])
        self.seen: list[torch.Tensor] = []
        self.failing = torch.zeros(config.population, dtype=torch.bool)

    def first_centre(self) -> torch.Tensor:
        return torch.full((12,), 0.5)

    def value(self, points: torch.Tensor) -> torch.Tensor:
        return -(points - BEST).square().sum(-1)

    def training_step(self, batch, batch_idx) -> None:
        self.epoch = self.current_epoch + 1

    def validation_step(self, batch, batch_idx) -> None:
        self.seen.append(self.candidates.clone())
        self.fitness = self.value(self.candidates).masked_fill(self.failing, torch.nan)
        due = (self.epoch - 1) % self.every == 0
        self.centre_score = float(self.value(self.centre[0])) if due else None

    def configure_optimizers(self) -> list:
        return []

    def train_dataloader(self) -> DataLoader:
        return DataLoader([0])  # type: ignore[arg-type]

    val_dataloader = train_dataloader


def search(module: Bowl, generations: int) -> Bowl:
    trainer = pl.Trainer(
        max_epochs=generations, accelerator="cpu", logger=False, callbacks=[module.evolution],
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(module)
    return module


@pytest.mark.parametrize(
    ("strategy", "step", "within"), [("nes", 0.5, 0.5), ("openai_es", 0.05, 0.2), ("snes", 1.0, 0.2)]
)
@pytest.mark.parametrize("mirrored", [True, False])
def test_finds_the_bottom_of_a_bowl(strategy: str, step: float, within: float, mirrored: bool) -> None:
    config = Config(strategy=strategy, step_size=step, population=24, noise_std=0.1, mirrored=mirrored)
    module = search(Bowl(config), 100)
    start = (module.first_centre() - BEST).norm()
    assert (module.centre[0] - BEST).norm() < within * start
    best = module.evolution.archive.entries[0]
    assert best[0] == pytest.approx(float(module.value(best[2])), abs=1e-5)


def test_candidates_are_the_centre_and_pairs_around_it() -> None:
    module = search(Bowl(Config(population=8, noise_std=0.1)), 1)
    pairs = module.seen[0].view(4, 2, 12)
    torch.testing.assert_close(pairs.mean(1), module.first_centre().expand(4, 12))
    assert float((pairs[:, 0] - module.first_centre()).std()) == pytest.approx(0.1, abs=0.03)


def test_ends_before_the_update_of_the_first_centre_that_solves() -> None:
    config = Config(population=24, noise_std=0.1, step_size=0.05, solved_reward=-0.2, quit_when_solved=True)
    module = search(Bowl(config), 100)
    assert module.epoch < 100 and module.evolution.solved
    assert float(module.value(module.centre[0])) >= -0.2
    assert module.evolution.archive.entries[0][1] == module.epoch
    goes_on = search(Bowl(replace(config, quit_when_solved=False)), 100)
    assert goes_on.epoch == 100


def test_goes_on_from_its_state_as_if_nothing_had_been() -> None:
    config = Config(population=8, noise_std=0.1, step_size=0.05)
    whole, first = search(Bowl(config), 6), search(Bowl(config), 3)
    second = Bowl(config)
    second.evolution.load_resume_state(first.evolution.resume_state())
    second.epoch = 3
    second.evolution.on_train_start(None, second)  # type: ignore[arg-type]
    assert torch.equal(second.centre, first.centre)

    class At:
        should_stop = False

    for generation in (3, 4, 5):
        at = At()
        at.current_epoch = generation  # type: ignore[attr-defined]
        second.evolution.on_train_epoch_start(at, second)  # type: ignore[arg-type]
        assert torch.equal(second.candidates, whole.seen[generation])
        second.epoch = generation + 1
        second.validation_step(None, 0)
        second.evolution.on_train_epoch_end(at, second)  # type: ignore[arg-type]
    assert torch.equal(second.centre, whole.centre)


def test_failed_members_move_nothing_when_all_fail_and_never_spread_nan() -> None:
    config = Config(population=8, noise_std=0.1, step_size=0.05)
    module = Bowl(config)
    module.failing[:] = True
    assert torch.equal(search(module, 3).centre[0], module.first_centre())
    assert float(module.row["es/failed"]) == 8
    some = Bowl(config)
    some.failing[[0, 5]] = True
    assert search(some, 3).centre.isfinite().all()
    assert not torch.equal(some.centre[0], some.first_centre())


def test_the_archive_keeps_the_best_and_of_equal_ones_the_earlier() -> None:
    archive = Archive(2)
    for generation, score in enumerate([1.0, 3.0, 2.0, 3.0]):
        archive.offer(score, generation, torch.full((2,), float(generation)))
    assert [(score, generation) for score, generation, _ in archive.entries] == [(3.0, 1), (3.0, 3)]
    again = Archive(2)
    again.load_state_dict(archive.state_dict())
    assert torch.equal(again.entries[1][2], torch.full((2,), 3.0))
