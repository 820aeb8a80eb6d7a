"""The outer loop of a search: a Lightning callback that moves the mean of a population by its members' fitness."""

from typing import Protocol

import pytorch_lightning as pl
import torch
from torch import Tensor

from control.evolution.archive import Archive
from control.evolution.strategies import Strategy
from models.proxies.search import SearchConfig
from models.settings import UserError
from models.streams import Streams


class Search(Protocol):
    """What `Evolution` reads and writes of the module it serves. D parameters, P members of the population."""

    config: SearchConfig
    seeds: list[int]  # of the run, one
    epoch: int  # the generation, from 1; 0 before the first
    strategy: Strategy
    archive: Archive
    solved: bool  # whether the latest mean that was scored reaches ``solved_reward``
    population: Tensor  # [P, D], which an epoch is to train agents on
    fitness: Tensor  # [P], which its validation leaves behind,
    mean_fitness: float | None  # and that of the mean itself, in the generations where it is due
    row: dict[str, Tensor]  # numbers of the epoch, [1] each

    def first_mean(self) -> Tensor:
        """Where a new search starts, ``[D]``."""

    def start_from(self, mean: Tensor) -> None:
        """Begin the search at ``mean [D]``, with a new strategy."""

    def take_mean(self) -> None:
        """Take the mean over from the strategy."""


class Evolution(pl.Callback):
    """Asks the strategy before every epoch and tells it after the epoch's validation: an epoch is a generation, and
    its validation is the fitness of the population.

    The callback holds nothing. A generation's perturbations and agents follow from the seed of the run and its number
    alone, so nothing of a generation under way needs to be kept. With ``quit_when_solved`` the run ends *before* the
    update of the first mean whose fresh agents reach ``solved_reward``, as published.
    """

    # Lightning's callbacks serve any module; this one serves a `Search`, hence the ignores.

    def on_train_start(self, trainer: pl.Trainer, module: Search) -> None:  # type: ignore[override]
        if module.epoch == 0:
            module.start_from(module.first_mean())
        module.take_mean()

    def on_train_epoch_start(self, trainer: pl.Trainer, module: Search) -> None:  # type: ignore[override]
        strategy, generation = module.strategy, trainer.current_epoch + 1
        streams = Streams.named(module.seeds, f"perturbations of generation {generation}")
        module.population = strategy.ask(streams.normal(strategy.rows, len(strategy.mean))[0])

    def on_train_epoch_end(self, trainer: pl.Trainer, module: Search) -> None:  # type: ignore[override]
        fitness, config = module.mean_fitness, module.config
        if fitness is not None:
            module.archive.offer(fitness, module.epoch, module.strategy.mean)
            module.solved = config.solved_reward is not None and fitness >= config.solved_reward
        if module.solved and config.quit_when_solved:
            trainer.should_stop = True
            return
        told = module.strategy.tell(module.fitness, fitness)
        module.row |= {f"es/{name}": torch.tensor([value]) for name, value in told.items()}
        module.take_mean()
        if not module.strategy.mean.isfinite().all():
            raise UserError(
                f"the mean is no longer finite (generation {module.epoch}), so the search stops; the checkpoint of "
                "the generation before is kept: a smaller step_size or noise_std may help"
            )
