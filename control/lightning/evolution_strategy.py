"""The callback that runs the outer loop of a search: an evolution strategy with its noise, population and archive."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from control.cli.colour import note
from control.cli.settings import convert_values
from control.cli.words import flags_of
from control.evolution.strategies import STRATEGIES, Archive
from models.proxies.search import SearchConfig
from models.settings import UserError
from models.state import Stateful, check_like, require
from models.streams import Streams, derive_seed

# A generation is flat if all its proxies have the same fitness and do not solve the task.
RESTART_EVERY = 5  # number of consecutive flat generations after which a search starts from another mean
FLAT_LIMIT = 20  # number of consecutive flat generations after which a search ends


class EvolutionStrategy(Stateful, pl.Callback):
    """The callback that searches for a proxy (a learned environment or reward) by an evolution strategy, which moves
    the mean of a proxy module. An epoch is a generation.

    Before each epoch, the callback samples noise and sets ``module.population [P, D]``: P proxies near the mean with D
    parameters each. The module trains and tests fresh agents on them. After this evaluation, the callback reads
    ``module.fitness [P]`` and ``module.selection_fitness [P]``, and moves the mean. Subclasses may replace `start`,
    `ask` and `tell`, and extend the state by `state_dict` and `load_state_dict`.

    The module is a `ProxyModule`, or another module with the methods ``search_vector``, ``set_mean``, ``proxies``,
    ``first_mean``, ``another_mean``, ``has_solved`` and ``population_solves``. With ``quit_when_solved``, the first
    mean that solves the task is not moved, as published.

    :param seed: seed of the perturbations.
    :param config: the settings of a run, instead of ``settings``.
    :param settings: settings of the outer loop, by their names in `SearchConfig`: ``strategy``, ``population``,
        ``noise_std``, ``step_size``, ``mirrored``, ``weight_decay``, ``score_transform``, ``keep_best``, ... Other
        settings have their defaults.
    :raises SettingError: A name in ``settings`` is unknown, or a value is out of range.
    """

    saved = ("generation", "flat_generations", "restarts", "archive")

    def __init__(self, seed: int = 0, config: SearchConfig | None = None, **settings: Any):
        if config is None:
            config = SearchConfig(**convert_values(settings, flags_of(SearchConfig())))
        self.config, self.seed = config, seed
        self.strategy: Any = None  # a `Strategy`, created in `start`, because it needs the number of parameters
        self.archive = Archive(self.config.keep_best)
        self.noise = torch.zeros(0)  # noise of the current generation, [rows, K]
        self.generation = 0  # number of the latest evaluated generation
        self.flat_generations = 0  # number of successive flat generations up to the latest generation
        self.restarts = 0  # number of restarts; a restart doubles noise_std

    @property
    def mean(self) -> Tensor:
        """Return the mean, ``[K]``. K is the number of parameters that the search changes, out of all D."""
        return self.strategy.mean

    def start(self, mean: Tensor, generation: int) -> None:
        """Begin the search, or begin it again, at the ``mean [K]`` of the searched parameters: create the strategy. It
        has the settings of ``generation`` (from 1), which change in the search's second phase. ``noise_std`` is doubled
        for every restart so far."""
        config = self.config.generation_settings(generation)
        config = dataclasses.replace(config, noise_std=config.noise_std * 2**self.restarts)
        self.strategy = STRATEGIES[config.strategy](config, mean)

    def ask(self, generation: int) -> Tensor:
        """Return the population of a generation, ``[P, K]`` with the K searched parameters. Its perturbations depend
        only on the seed and the generation."""
        streams = Streams.from_name([self.seed], f"perturbations of generation {generation}")  # a single stream
        self.noise = streams.normal(self.strategy.rows, len(self.strategy.mean))[0]
        return self.strategy.ask(self.noise)

    def tell(self, fitness: Tensor, mean_fitness: float | None) -> Mapping[str, float]:
        """Move the mean by the ``fitness [P]`` of the latest population: higher is better, NaN if agents diverged.
        ``mean_fitness`` is the fitness of the mean, None if it was not evaluated. Return numbers for the log."""
        return self.strategy.tell(self.noise, fitness, mean_fitness)

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {} if self.strategy is None else {"strategy": self.strategy.state_dict()}
        return super().state_dict() | state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a `state_dict`, equal to the bit. Raises StateError if it does not fit the settings."""
        super().load_state_dict(state_dict)
        if "strategy" in state_dict:
            mean = state_dict["strategy"]["mean"]
            require(isinstance(mean, Tensor) and mean.dim() == 1, "strategy.mean", "is no vector", "a vector")
            self.start(mean, max(self.generation, 1))
            self.strategy.load_state_dict(state_dict["strategy"])

    def check_fits(self, module: Any) -> None:
        """Raise StateError if this callback's state, loaded from a checkpoint, is of a module with another number of
        parameters than ``module``."""
        check_like(module.search_vector(), self.mean, "mean")
        for entry in self.archive.entries:
            check_like(module.mean.detach()[0], entry.mean, "archive")

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Begin the search at the module's first mean. In a resumed run, the strategy is restored already; then raise
        StateError if it does not fit the module."""
        if self.strategy is None:
            module.set_mean(module.first_mean())
            self.start(module.search_vector(), generation=1)
        else:
            self.check_fits(module)
        # The strategy's mean has the K parameters that the search changes, the module's mean has all D.
        module.set_mean(module.proxies(self.mean))

    def on_train_epoch_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Set the module's population. Before the first generation of the second phase, start the strategy again at the
        current mean, with the settings of that phase."""
        generation = trainer.current_epoch + 1
        if trainer.current_epoch == self.config.second_phase:
            self.start(self.mean, generation)
            self.archive.entries.clear()  # their fitness is not comparable with later fitness
            self.flat_generations = 0
        module.population = module.proxies(self.ask(generation))

    def on_validation_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Offer the mean to the archive. Then move it by the fitness of the generation, unless the search ends because
        the mean solves the task. In a flat generation, all proxies have the same fitness, and cannot be ranked. After
        every `RESTART_EVERY` flat generations in a row, restart the search instead. Raises UserError after `FLAT_LIMIT`
        of them in a row, or if the mean is not finite."""
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        self.generation = trainer.current_epoch + 1
        self._archive_mean(module)
        if module.has_solved():
            return
        finite = module.fitness[module.fitness.isfinite()]
        all_equal = len(finite) > 1 and bool((finite == finite[0]).all())
        is_flat = all_equal and not module.population_solves()
        self.flat_generations = self.flat_generations + 1 if is_flat else 0
        duration = f"for {self.flat_generations} generations"
        problem = f"{duration} all proxies have had the same fitness, so there is nothing to climb"
        if self.flat_generations == FLAT_LIMIT:
            advice = "another start (start_from), a larger inner_steps, noise_std or test_limit may help"
            raise UserError(f"{problem} and the search stops; metrics and checkpoint are kept: {advice}")
        if is_flat and self.flat_generations % RESTART_EVERY == 0:
            self._restart(module, problem)
        else:
            metrics = self.tell(module.selection_fitness, module.mean_fitness)
            module.row |= {f"search/{name}": torch.tensor([number]) for name, number in metrics.items()}
        module.set_mean(module.proxies(self.mean))
        if not self.mean.isfinite().all():
            problem = f"the mean is no longer finite (generation {self.generation}), so the search stops"
            advice = "a smaller step_size or noise_std may help"
            raise UserError(f"{problem}; the checkpoint of the generation before is kept: {advice}")

    def _archive_mean(self, module: Any) -> None:
        """Add the mean to the archive of the best means, if it was evaluated. First remove means that were tested with
        another time limit, because their fitness is not comparable."""
        if module.mean_fitness is None:
            return
        archive = self.archive
        settings_of = self.config.generation_settings  # generation -> its settings, such as the time limit of tests
        test_limit = settings_of(self.generation).test_limit
        comparable = [entry for entry in archive.entries if settings_of(entry.generation).test_limit == test_limit]
        if len(comparable) < len(archive.entries):
            archive.entries = comparable
            module.best = -math.inf  # so that the next score is the best, and is saved
        archive.offer(module.mean_fitness, self.generation, module.proxies(self.mean))

    def _restart(self, module: Any, problem: str) -> None:
        """Restart the search with twice the noise, from a new random mean or, if ``start_from`` is set, from the
        current mean. Print a note that begins with ``problem``, the text about the reason."""
        self.restarts += 1  # `start` doubles the noise for each restart
        mean, mean_text = self.mean, "its current mean"
        if self.config.start_from is None:
            seed = derive_seed(self.seed, f"another start in generation {self.generation}")
            mean, mean_text = module.another_mean(seed), "a new mean"
        self.start(mean, self.generation)
        noise_std = float(torch.as_tensor(self.strategy.noise_std).mean())
        note(
            f"{problem}: the search starts from {mean_text} with noise_std {noise_std:.3g}; a larger "
            "inner_steps or test_limit may help"
        )
