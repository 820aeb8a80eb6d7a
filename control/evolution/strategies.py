"""Evolution strategies, with ask and tell, and the archive of the best means.

    strategy = STRATEGIES[config.strategy](config, mean)
    noise = torch.randn(strategy.rows, len(mean))
    population = strategy.ask(noise)  # [P, D]
    strategy.tell(noise, fitness)  # [P], higher is better

The caller draws the noise. A failed member (see `control.evolution.fitness_shaping`) counts as worse than every sound
one (ars: as equal to the worst), and its value never enters a sum. Sums over the population are computed in float64,
the mean is stored in float32.
"""

import copy
import math
from typing import Any

import torch
from torch import Tensor

from control.evolution.fitness_shaping import (
    centred_ranks,
    failures_last,
    shared_utilities,
    transform,
    without_failures,
)
from models.proxies.search import SearchConfig
from models.state import check_like, demand


class Strategy:
    """The base class of strategies. P is the size of the population, D the number of parameters.

    ``mean [D]`` is float32. ``rows`` is the number of rows of noise for `ask`: P / 2 if mirrored, else P.
    """

    state_names: tuple[str, ...] = ("mean",)  # attributes in the state

    def __init__(self, config: SearchConfig, mean: Tensor):
        self.mean = mean.detach().to(torch.float32, copy=True)
        self.config, self.mirrored = config, config.mirrored
        self.rows = config.population // 2 if config.mirrored else config.population
        self.noise_std: float | Tensor = config.noise_std

    def ask(self, noise: Tensor) -> Tensor:
        """Standard normal ``[rows, D]`` -> population ``[P, D]``. When mirrored, row 2i adds noise i, row 2i + 1
        subtracts it."""
        offset = (noise * self.noise_std).float()
        if not self.mirrored:
            return self.mean + offset
        return torch.stack((self.mean + offset, self.mean - offset), dim=1).flatten(0, 1)

    def tell(self, noise: Tensor, fitness: Tensor, mean_score: float | None = None) -> dict[str, float]:
        """Move the mean by the ``fitness [P]`` of the population of ``noise``, unless all members have failed.

        Gives ``update_norm`` (Euclidean length), ``noise_std`` (after the move, mean over D), ``failed`` (members).
        """
        ordered = failures_last(fitness)
        failed = int((ordered == -torch.inf).sum())
        old_mean = self.mean
        if failed < len(fitness):
            self.mean = self._step(noise.double(), ordered, mean_score).float()
        return {
            "update_norm": float((self.mean.double() - old_mean.double()).norm()),
            "noise_std": float(torch.as_tensor(self.noise_std, dtype=torch.float64).mean()),
            "failed": float(failed),
        }

    def _step(self, noise: Tensor, fitness: Tensor, mean_score: float | None) -> Tensor:
        """Noise ``[rows, D]``, fitness ``[P]`` with -infinity for the failed, at least one sound -> new mean."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers that change from generation to generation; no settings."""
        return {name: copy.deepcopy(getattr(self, name)) for name in self.state_names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict` to the bit."""
        check_like(self.state_dict(), state, "strategy")
        for name in self.state_names:
            setattr(self, name, copy.deepcopy(state[name]))


class NES(Strategy):
    """The outer loop of synthetic environments: Ferreira et al. 2022, arXiv:2202.02790, and its code.

    Of each mirrored pair only the better one counts: F_i = max(plus, minus), and noise i changes sign if minus is
    strictly better. mean <- mean (1 - weight_decay) + s sum_i w_i noise_std noise_i, with the weights w of
    `control.evolution.fitness_shaping.transform` and s the learning rate ``step_size``, divided by the rows if
    ``nes_step_size``. As in the paper's code nothing is divided by noise_std or by the sum of the weights, so the
    length of a step depends on the rule. Transformations 5, 6 and 7 need ``mean_score``, the fitness of the
    mean, averaged over the workers in that code.
    """

    def _step(self, noise: Tensor, fitness: Tensor, mean_score: float | None) -> Tensor:
        sign = torch.ones(self.rows, dtype=torch.float64)
        if self.mirrored:
            plus, minus = fitness.view(self.rows, 2).unbind(1)
            sign, fitness = torch.where(minus > plus, -1.0, 1.0).double(), torch.maximum(plus, minus)
        weights = transform(self.config.score_transform, fitness, mean_score) * sign
        step = self.config.step_size / self.rows if self.config.nes_step_size else self.config.step_size
        decayed = self.mean.double() * (1 - self.config.weight_decay)
        return decayed + step * self.noise_std * (weights @ noise)


class OpenAIES(Strategy):
    """Evolution strategies with centred ranks and Adam (Salimans et al. 2017, arXiv:1703.03864, algorithm 1).

    Gradient sum_i (u_plus - u_minus) noise_i / (pairs noise_std), not mirrored sum_i u_i noise_i / (P noise_std),
    with u the centred ranks over all P; as in their code the factor 1/2 of a mirrored estimate is left to the learning
    rate ``step_size``. Weight decay takes weight_decay mean off the gradient. Adam is Kingma & Ba 2015, algorithm 1, in
    float64.
    """

    state_names = ("mean", "first_moment", "second_moment", "steps")
    betas, epsilon = (0.9, 0.999), 1e-8

    def __init__(self, config: SearchConfig, mean: Tensor):
        super().__init__(config, mean)
        self.first_moment = torch.zeros_like(self.mean, dtype=torch.float64)
        self.second_moment = torch.zeros_like(self.first_moment)
        self.steps = 0

    def gradient(self, noise: Tensor, fitness: Tensor) -> Tensor:
        """Noise ``[rows, D]`` and fitness ``[P]`` -> the direction to climb ``[D]``, weight decay included."""
        utility = centred_ranks(fitness)
        if self.mirrored:
            plus, minus = utility.view(self.rows, 2).unbind(1)
            utility = plus - minus
        climb = utility @ noise.double() / (self.rows * self.noise_std)
        return climb - self.config.weight_decay * self.mean.double()

    def _step(self, noise: Tensor, fitness: Tensor, mean_score: float | None) -> Tensor:
        gradient, (beta1, beta2) = self.gradient(noise, fitness), self.betas
        self.steps += 1
        self.first_moment = beta1 * self.first_moment + (1 - beta1) * gradient
        self.second_moment = beta2 * self.second_moment + (1 - beta2) * gradient.square()
        first, second = self.first_moment / (1 - beta1**self.steps), self.second_moment / (1 - beta2**self.steps)
        return self.mean.double() + self.config.step_size * first / (second.sqrt() + self.epsilon)


class SNES(Strategy):
    """Separable NES: a noise_std per parameter, which adapts (Schaul et al. 2011; Wierstra et al. 2014, JMLR 15).

    mean <- mean + step_size noise_std sum_i u_i noise_i
    noise_std <- noise_std exp(rate / 2 sum_i u_i (noise_i^2 - 1))

    over all P members, u their NES utilities, ``rate`` the published (3 + ln D) / (5 sqrt D); 1 is the published
    ``step_size``. Ours: equal members share their utilities, members may be mirrored, and weight decay multiplies the
    mean by 1 - weight_decay first.
    """

    state_names = ("mean", "noise_std")

    def __init__(self, config: SearchConfig, mean: Tensor):
        super().__init__(config, mean)
        self.rate = (3 + math.log(len(mean))) / (5 * math.sqrt(len(mean)))
        self.noise_std: Tensor = torch.full_like(self.mean, config.noise_std, dtype=torch.float64)

    def _step(self, noise: Tensor, fitness: Tensor, mean_score: float | None) -> Tensor:
        utility = shared_utilities(fitness)
        towards = across = utility
        if self.mirrored:
            plus, minus = utility.view(self.rows, 2).unbind(1)
            towards, across = plus - minus, plus + minus  # the square of the noise does not know its sign
        decayed = self.mean.double() * (1 - self.config.weight_decay)
        mean = decayed + self.config.step_size * self.noise_std * (towards @ noise)
        self.noise_std = self.noise_std * (self.rate / 2 * (across @ (noise.square() - 1))).exp()
        return mean


class ARS(Strategy):
    """Augmented random search (Mania, Guy & Recht 2018, arXiv:1803.07055, algorithm 1): fitness counts as it is, not by
    rank, so that a rare member that is far better moves the mean far.

    mean <- mean + step_size / (pairs std F) sum_i (F_plus - F_minus) noise_i

    The sum and the standard deviation are over the better half of the mirrored pairs, rounded up; a pair is as good as
    its better member. A failed member counts as the worst sound one. Ours: weight decay multiplies the mean by
    1 - weight_decay first.
    """

    def _step(self, noise: Tensor, fitness: Tensor, mean_score: float | None) -> Tensor:
        pairs = without_failures(fitness)[0].view(self.rows, 2)
        best = pairs.amax(1).sort(descending=True, stable=True).indices[: -(-self.rows // 2)]
        plus, minus = pairs[best].unbind(1)
        decayed = self.mean.double() * (1 - self.config.weight_decay)
        spread = pairs[best].std(correction=0)
        if not spread > 0:
            return decayed
        return decayed + self.config.step_size / (len(best) * spread) * ((plus - minus) @ noise[best])


STRATEGIES = {"nes": NES, "openai_es": OpenAIES, "snes": SNES, "ars": ARS}


class Archive:
    """The best means so far by the fitness that fresh agents gave them, best first.

    Such a fitness is a selected maximum: a mean from here is to be evaluated anew.
    """

    def __init__(self, size: int):
        self.size = size
        self.entries: list[tuple[float, int, Tensor]] = []  # (fitness, generation, mean [D])

    def offer(self, fitness: float, generation: int, mean: Tensor) -> None:
        """Keep a mean if it is among the best, of equal ones the earlier. One whose agents all failed is left out."""
        if math.isfinite(fitness):
            self.entries.append((fitness, generation, mean.clone()))
            self.entries.sort(key=lambda entry: -entry[0])  # stable
            del self.entries[self.size :]

    def state_dict(self) -> dict[str, Any]:
        return {"entries": [list(entry) for entry in self.entries]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`. Raises StateError if it holds anything else, or more means than this one."""
        entries = state["entries"]
        demand(len(entries) <= self.size, "archive", f"has {len(entries)} entries", f"at most {self.size}")
        self.entries = [tuple(check_like([0.0, 0, entries[0][2]], list(entry), "archive")) for entry in entries]
