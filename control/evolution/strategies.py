"""Evolution strategies with an ask-tell interface, and the archive of the best means.

    strategy = STRATEGIES[config.strategy](config, mean)
    noise = torch.randn(strategy.rows, len(mean))
    population = strategy.ask(noise)  # [P, D]
    strategy.tell(noise, fitness)  # [P], higher is better

The members of the population are P perturbed copies of the mean ``[D]``. If mirrored, each row of noise is added for
one member and subtracted for another, which form a pair. A failed member (see `control.evolution.fitness_shaping`)
counts as worse than every valid one (ars: as equal to the worst), and no sum contains its fitness. Sums over the
population are computed in float64, the mean is stored in float32.
"""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from control.evolution import fitness_shaping as shaping
from models.proxies.search import SearchConfig
from models.state import Stateful, check_like, require


class Strategy(Stateful, ABC):
    """The base class of evolution strategies: they move a ``mean [D]`` of D parameters (float32) towards perturbed
    copies with a higher fitness. The P copies are the population.

    The caller samples the noise for `ask`, in ``rows`` rows. This is P / 2 if ``config.mirrored``, else P.
    """

    saved: ClassVar[tuple[str, ...]] = ("mean",)  # attributes that change from generation to generation

    def __init__(self, config: SearchConfig, mean: Tensor):
        self.mean = mean.detach().to(torch.float32, copy=True)
        self.config, self.mirrored = config, config.mirrored
        self.rows = config.population // 2 if config.mirrored else config.population
        self.noise_std: float | Tensor = config.noise_std

    def ask(self, noise: Tensor) -> Tensor:
        """Return the population ``[P, D]``, copies of the mean perturbed by standard normal ``noise [rows, D]``. If
        mirrored, copy 2i adds row i of the noise, and copy 2i + 1 subtracts it."""
        offset = (noise * self.noise_std).float()
        if not self.mirrored:
            return self.mean + offset
        return torch.stack((self.mean + offset, self.mean - offset), dim=1).flatten(0, 1)

    def tell(self, noise: Tensor, fitness: Tensor, mean_score: float | None = None) -> dict[str, float]:
        """Update the mean by the ``fitness [P]`` of the population ``ask(noise)``. ``mean_score`` is the fitness of the
        mean, which some strategies need. If all members have failed (NaN or infinite fitness), nothing changes.

        Return ``update_norm`` (Euclidean length of the update), ``noise_std`` (after the update, mean over D) and
        ``failed`` (number of failed members).
        """
        fitness = shaping.mask_failures(fitness)
        num_failed = int((fitness == -torch.inf).sum())
        old_mean = self.mean
        if num_failed < len(fitness):
            self.mean = self._step(noise.double(), fitness, mean_score).float()
        return {
            "update_norm": float((self.mean.double() - old_mean.double()).norm()),
            "noise_std": float(torch.as_tensor(self.noise_std, dtype=torch.float64).mean()),
            "failed": float(num_failed),
        }

    @abstractmethod
    def _step(self, noise: Tensor, fitness: Tensor, mean_score: float | None) -> Tensor:
        """Compute the new mean ``[D]`` in float64, by the formula of the class, and update the strategy's other state.
        Arguments are as in `tell`, but ``noise`` is float64, and failed members have the fitness -infinity. At least
        one member has not failed."""


class NES(Strategy):
    """The outer loop of synthetic environments (Ferreira et al. 2022, arXiv:2202.02790, and the paper's code).

    mean <- mean (1 - weight_decay) + s sum_i w_i noise_std noise_i

    w are the weights of `control.evolution.fitness_shaping.transform`. s is the learning rate ``step_size``, divided by
    the number of rows if ``nes_step_size``. Only the better member of each mirrored pair counts: F_i = max(plus,
    minus), and noise i changes sign if minus is strictly better. As in the paper's code, nothing is divided by
    noise_std or by the sum of the weights, so the length of a step depends on the transformation. Transformations 5, 6
    and 7 need ``mean_score``; in the paper's code, it is an average over the workers.
    """

    def _step(self, noise: Tensor, fitness: Tensor, mean_score: float | None) -> Tensor:
        """Return the mean ``[D]`` after a step along the noise of the better members, weighted by their fitness."""
        sign = torch.ones(self.rows, dtype=torch.float64)
        if self.mirrored:  # only the better member of a pair counts
            plus, minus = fitness.view(self.rows, 2).unbind(1)
            sign = torch.where(minus > plus, -1.0, 1.0).double()
            fitness = torch.maximum(plus, minus)
        weights = shaping.transform(self.config.score_transform, fitness, mean_score) * sign
        step_size = self.config.step_size / self.rows if self.config.nes_step_size else self.config.step_size
        decayed = self.mean.double() * (1 - self.config.weight_decay)
        return decayed + step_size * self.noise_std * (weights @ noise)


class OpenAIES(Strategy):
    """Evolution strategies with centred ranks and Adam (Salimans et al. 2017, arXiv:1703.03864, algorithm 1).

    The gradient is sum_i (u_plus - u_minus) noise_i / (pairs noise_std) if mirrored, otherwise
    sum_i u_i noise_i / (P noise_std). u are the centred ranks over all P members. As in the authors' code, the factor
    1/2 of a mirrored estimate is left to the learning rate ``step_size``. Weight decay subtracts weight_decay mean from
    the gradient. Adam is Kingma & Ba 2015, algorithm 1, in float64.
    """

    saved = ("mean", "first_moment", "second_moment", "steps")
    betas, epsilon = (0.9, 0.999), 1e-8

    def __init__(self, config: SearchConfig, mean: Tensor):
        super().__init__(config, mean)
        self.first_moment = torch.zeros_like(self.mean, dtype=torch.float64)
        self.second_moment = torch.zeros_like(self.first_moment)
        self.steps = 0

    def gradient(self, noise: Tensor, fitness: Tensor) -> Tensor:
        """Estimate the gradient ``[D]`` of the fitness by the formula of the class, and subtract weight decay.
        ``fitness [P]`` is the fitness of the population ``ask(noise)``."""
        utility = shaping.centred_ranks(fitness)
        if self.mirrored:
            plus, minus = utility.view(self.rows, 2).unbind(1)
            utility = plus - minus
        gradient = utility @ noise.double() / (self.rows * self.noise_std)
        return gradient - self.config.weight_decay * self.mean.double()

    def _step(self, noise: Tensor, fitness: Tensor, mean_score: float | None) -> Tensor:
        """Return the mean ``[D]`` after a step of Adam along the estimated gradient."""
        gradient = self.gradient(noise, fitness)
        beta1, beta2 = self.betas
        self.steps += 1
        self.first_moment = beta1 * self.first_moment + (1 - beta1) * gradient
        self.second_moment = beta2 * self.second_moment + (1 - beta2) * gradient.square()
        first_corrected = self.first_moment / (1 - beta1**self.steps)
        second_corrected = self.second_moment / (1 - beta2**self.steps)
        return self.mean.double() + self.config.step_size * first_corrected / (second_corrected.sqrt() + self.epsilon)


class SNES(Strategy):
    """Separable NES: adapts a noise_std for each parameter (Schaul et al. 2011; Wierstra et al. 2014, JMLR 15).

    mean <- mean + step_size noise_std sum_i u_i noise_i
    noise_std <- noise_std exp(std_rate / 2 sum_i u_i (noise_i^2 - 1))

    The sums are over all P members, and u are their NES utilities. As published, ``std_rate`` is (3 + ln D) / (5 sqrt
    D), and ``step_size`` should be 1. Additions to the published method: equal members share their utilities, members
    may be mirrored, and weight decay first multiplies the mean by 1 - weight_decay.
    """

    saved = ("mean", "noise_std")

    def __init__(self, config: SearchConfig, mean: Tensor):
        super().__init__(config, mean)
        self.std_rate = (3 + math.log(len(mean))) / (5 * math.sqrt(len(mean)))
        self.noise_std: Tensor = torch.full_like(self.mean, config.noise_std, dtype=torch.float64)

    def _step(self, noise: Tensor, fitness: Tensor, mean_score: float | None) -> Tensor:
        """Return the mean ``[D]`` after a step along the noise, weighted by utilities. Also adapt ``noise_std``."""
        utility = shaping.shared_utilities(fitness)
        weights_of_noise = weights_of_square = utility
        if self.mirrored:  # both members of a pair have the same squared noise
            plus, minus = utility.view(self.rows, 2).unbind(1)
            weights_of_noise, weights_of_square = plus - minus, plus + minus
        decayed = self.mean.double() * (1 - self.config.weight_decay)
        new_mean = decayed + self.config.step_size * self.noise_std * (weights_of_noise @ noise)
        gradient_of_log_std = weights_of_square @ (noise.square() - 1)
        self.noise_std = self.noise_std * (self.std_rate / 2 * gradient_of_log_std).exp()
        return new_mean


class ARS(Strategy):
    """Augmented random search (Mania, Guy & Recht 2018, arXiv:1803.07055, algorithm 1). It uses fitness itself, not
    ranks, so a rare member with a far better fitness moves the mean far.

    mean <- mean + step_size / (pairs std F) sum_i (F_plus - F_minus) noise_i

    The sum, the number of pairs and the standard deviation are over the better half of the mirrored pairs, rounded up.
    A pair is as good as its better member. A failed member counts as equal to the worst valid member. Addition to the
    published method: weight decay first multiplies the mean by 1 - weight_decay.
    """

    def _step(self, noise: Tensor, fitness: Tensor, mean_score: float | None) -> Tensor:
        """Return the mean ``[D]`` after a step along the noise of the better half of the mirrored pairs."""
        valid_fitness, _ = shaping.replace_failures(fitness)
        pairs = valid_fitness.view(self.rows, 2)  # fitness of the members with added and with subtracted noise
        num_best = math.ceil(self.rows / 2)  # half of the pairs
        best_rows = pairs.amax(1).sort(descending=True, stable=True).indices[:num_best]
        best_pairs = pairs[best_rows]
        plus, minus = best_pairs.unbind(1)
        decayed = self.mean.double() * (1 - self.config.weight_decay)
        std = best_pairs.std(correction=0)
        if not std > 0:  # all members of the best pairs are equal
            return decayed
        return decayed + self.config.step_size / (num_best * std) * ((plus - minus) @ noise[best_rows])


STRATEGIES: dict[str, type[Strategy]] = {"nes": NES, "openai_es": OpenAIES, "snes": SNES, "ars": ARS}


class ArchiveEntry(NamedTuple):
    """The ``mean [D]`` of a search in a generation, and its fitness."""

    fitness: float
    generation: int
    mean: Tensor


class Archive:
    """Keeps the ``size`` best means of a search, best first. The fitness of the best mean is the maximum of many noisy
    values, and so too high: evaluate the mean again."""

    def __init__(self, size: int):
        self.size = size
        self.entries: list[ArchiveEntry] = []

    def offer(self, fitness: float, generation: int, mean: Tensor) -> None:
        """Add the ``mean [D]`` of a generation if it is among the best. Of two means with the same ``fitness``, the
        earlier mean is better. A mean with NaN or infinite fitness is not added."""
        if math.isfinite(fitness):
            self.entries.append(ArchiveEntry(fitness, generation, mean.clone()))
            self.entries.sort(key=lambda entry: entry.fitness, reverse=True)  # stable: equal entries keep their order
            del self.entries[self.size :]

    def state_dict(self) -> dict[str, Any]:
        return {"entries": [list(entry) for entry in self.entries]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`. Raises StateError if it is malformed or has more than ``size`` means."""
        entries = state["entries"]
        require(len(entries) <= self.size, "archive", f"has {len(entries)} entries", f"at most {self.size}")
        example = [0.0, 0, entries[0][2]] if entries else []  # fitness, generation, and a mean of the right size
        self.entries = [ArchiveEntry(*check_like(example, list(entry), "archive")) for entry in entries]
