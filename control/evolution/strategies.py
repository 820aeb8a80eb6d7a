"""Evolution strategies: a generation of candidates around a centre, and a step of the centre towards the good ones.

    strategy = make_strategy("nes", centre, population=32, ...)
    candidates = strategy.ask(torch.randn(strategy.rows, len(centre)))  # [P, D]
    strategy.tell(fitness)  # [P], higher is better

Noise is the caller's, so the strategies draw no random numbers. A failed member (see
`control.evolution.fitness_shaping`) counts as worse than every sound one and its value is
never computed with. Sums over the population are taken in float64, the centre is kept in float32.
"""

import math
from typing import Any, Protocol

import torch
from torch import Tensor

from control.evolution.fitness_shaping import centred_ranks, failures_last, shared_utilities, transform
from models.settings import Kind, SettingError, check_value


class Strategy(Protocol):
    """What the three strategies have in common. P candidates a generation, D parameters."""

    centre: Tensor  # [D], float32
    population: int  # P
    rows: int  # rows of noise that `ask` wants: P / 2 when mirrored, else P

    def ask(self, noise: Tensor) -> Tensor:
        """Standard normal ``[rows, D]`` -> candidates ``[P, D]``. When mirrored, row 2i adds noise i, row 2i + 1
        subtracts it. Changes nothing but which noise `tell` answers for, so it may be repeated."""

    def tell(self, fitness: Tensor, centre_score: float | None = None) -> dict[str, float]:
        """Fitness ``[P]`` of the candidates last asked for: moves the centre. With all members failed everything
        stays as it is.

        Returns ``update_norm`` (Euclidean length of the move), ``noise_std`` (after it, mean over D) and ``failed``
        (members). Raises RuntimeError without an `ask` before, ValueError for a wrong shape.
        """

    def state_dict(self) -> dict[str, Any]:
        """Tensors and numbers that change as it goes; neither settings nor the noise of a generation under way: ask
        again with the same noise after a restart."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict` to the bit. Raises ValueError for that of another strategy or size."""


class _Sampling:
    """Candidates, failures and state; what to do with a generation is `_step`."""

    kept: tuple[str, ...] = ("centre",)  # attributes in the state

    def __init__(
        self,
        centre: Tensor,
        *,
        population: int,
        noise_std: float,
        step_size: float,
        mirrored: bool = True,
        weight_decay: float = 0.0,
    ):
        if population < 1 or (mirrored and population % 2):
            what = "even integer, at least 2, when mirrored" if mirrored else "integer, at least 1"
            raise SettingError(f"population is {population}; allowed: {what}", "population")
        self.centre = centre.detach().to(torch.float32, copy=True)
        self.population, self.mirrored = population, mirrored
        self.rows = population // 2 if mirrored else population
        self.noise_std: float | Tensor = noise_std
        self.step_size, self.weight_decay = step_size, weight_decay
        self._noise: Tensor | None = None

    def ask(self, noise: Tensor) -> Tensor:
        _check_shape("noise", noise, (self.rows, len(self.centre)))
        self._noise = noise.detach().clone()
        offset = (noise.detach() * self.noise_std).to(self.centre)
        if not self.mirrored:
            return self.centre + offset
        return torch.stack((self.centre + offset, self.centre - offset), dim=1).flatten(0, 1)

    def tell(self, fitness: Tensor, centre_score: float | None = None) -> dict[str, float]:
        if self._noise is None:
            raise RuntimeError("tell without ask: no candidates this fitness could belong to")
        _check_shape("fitness", fitness, (self.population,))
        # P numbers are quicker and summed in a fixed order on the CPU, wherever the parameters are.
        ordered = failures_last(fitness.detach().cpu())
        failed = int((ordered == -torch.inf).sum())
        before = self.centre
        if failed < self.population:
            self.centre = self._step(self._noise.to(before.device, torch.float64), ordered, centre_score).to(before)
        self._noise = None
        return {
            "update_norm": float((self.centre.double() - before.double()).norm()),
            "noise_std": float(torch.as_tensor(self.noise_std, dtype=torch.float64).mean()),
            "failed": float(failed),
        }

    def _step(self, noise: Tensor, fitness: Tensor, centre_score: float | None) -> Tensor:
        """Noise ``[rows, D]``, fitness ``[P]`` with -infinity for the failed, at least one sound -> new centre."""
        raise NotImplementedError

    def _decayed(self) -> Tensor:
        return self.centre.double() * (1 - self.weight_decay)

    def state_dict(self) -> dict[str, Any]:
        return {name: _copy(getattr(self, name)) for name in self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if set(state) != set(self.kept):
            raise ValueError(f"state holds {sorted(state)}; expected {sorted(self.kept)}")
        for name in self.kept:
            mine = getattr(self, name)
            if isinstance(mine, Tensor):
                _check_shape(name, state[name], tuple(mine.shape))
        for name in self.kept:
            mine = getattr(self, name)
            setattr(self, name, state[name].to(mine, copy=True) if isinstance(mine, Tensor) else state[name])
        self._noise = None


class NES(_Sampling):
    """The outer loop of synthetic environments: Ferreira et al. 2022, arXiv:2202.02790, and its code.

    Of each mirrored pair only the better one counts: F_i = max(plus, minus), and noise i changes sign where minus is
    strictly better. centre <- centre (1 - weight_decay) + s sum_i w_i noise_std noise_i, with the weights w of
    `control.evolution.fitness_shaping.transform` and s the step size, divided by the rows if `nes_step_size`. As in the
    paper's code nothing is divided by noise_std or by the sum of the weights, so the length of a step depends on the
    rule. Transformations 5, 6 and 7 need ``centre_score``, there the mean over the workers.
    """

    def __init__(self, centre: Tensor, *, score_transform: int = 3, nes_step_size: bool = False, **settings: Any):
        super().__init__(centre, **settings)
        self.score_transform, self.nes_step_size = score_transform, nes_step_size

    def _step(self, noise: Tensor, fitness: Tensor, centre_score: float | None) -> Tensor:
        sign = torch.ones(self.rows, dtype=torch.float64)
        if self.mirrored:
            plus, minus = fitness.view(self.rows, 2).unbind(1)
            sign, fitness = torch.where(minus > plus, -1.0, 1.0).double(), torch.maximum(plus, minus)
        weights = transform(self.score_transform, fitness, centre_score) * sign
        step = self.step_size / self.rows if self.nes_step_size else self.step_size
        return self._decayed() + step * self.noise_std * (weights.to(noise.device) @ noise)


class OpenAIES(_Sampling):
    """Evolution strategies with centred ranks and Adam (Salimans et al. 2017, arXiv:1703.03864, algorithm 1).

    Gradient sum_i (u_plus - u_minus) noise_i / (pairs noise_std), not mirrored sum_i u_i noise_i / (P noise_std),
    with u the centred ranks over all P; as in their code the factor 1/2 of a mirrored estimate is left to the step
    size. Weight decay takes weight_decay centre off the gradient. Adam is Kingma & Ba 2015, algorithm 1, in float64.
    """

    kept = ("centre", "mean", "square", "steps")
    betas, epsilon = (0.9, 0.999), 1e-8

    def __init__(self, centre: Tensor, **settings: Any):
        super().__init__(centre, **settings)
        self.mean = torch.zeros_like(self.centre, dtype=torch.float64)
        self.square = torch.zeros_like(self.mean)
        self.steps = 0

    def gradient(self, noise: Tensor, fitness: Tensor) -> Tensor:
        """Noise ``[rows, D]`` and fitness ``[P]`` -> the direction to climb ``[D]``, weight decay included."""
        utility = centred_ranks(fitness)
        if self.mirrored:
            plus, minus = utility.view(self.rows, 2).unbind(1)
            utility = plus - minus
        climb = utility.to(noise.device) @ noise.double() / (self.rows * self.noise_std)
        return climb - self.weight_decay * self.centre.double()

    def _step(self, noise: Tensor, fitness: Tensor, centre_score: float | None) -> Tensor:
        gradient, (beta1, beta2) = self.gradient(noise, fitness), self.betas
        self.steps += 1
        self.mean = beta1 * self.mean + (1 - beta1) * gradient
        self.square = beta2 * self.square + (1 - beta2) * gradient.square()
        mean, square = self.mean / (1 - beta1**self.steps), self.square / (1 - beta2**self.steps)
        return self.centre.double() + self.step_size * mean / (square.sqrt() + self.epsilon)


class SNES(_Sampling):
    """Separable NES: a noise_std per parameter, which adapts (Schaul et al. 2011; Wierstra et al. 2014, JMLR 15).

    centre <- centre + step_size noise_std sum_i u_i noise_i
    noise_std <- noise_std exp(sigma_step_size / 2 sum_i u_i (noise_i^2 - 1))

    over all P members, u their NES utilities. ``sigma_step_size`` defaults to the published (3 + ln D) / (5 sqrt D),
    and 1 is the published ``step_size``. Ours: equal members share their utilities, members may be mirrored, and
    weight decay multiplies the centre by 1 - weight_decay first.
    """

    kept = ("centre", "noise_std")

    def __init__(self, centre: Tensor, *, sigma_step_size: float | None = None, **settings: Any):
        super().__init__(centre, **settings)
        size = len(self.centre)
        default = (3 + math.log(size)) / (5 * math.sqrt(size))
        self.sigma_step_size = default if sigma_step_size is None else sigma_step_size
        self.noise_std: Tensor = torch.full_like(self.centre, settings["noise_std"], dtype=torch.float64)

    def _step(self, noise: Tensor, fitness: Tensor, centre_score: float | None) -> Tensor:
        utility = shared_utilities(fitness).to(noise.device)
        towards = across = utility
        if self.mirrored:
            plus, minus = utility.view(self.rows, 2).unbind(1)
            towards, across = plus - minus, plus + minus  # the square of the noise does not know its sign
        centre = self._decayed() + self.step_size * self.noise_std * (towards @ noise)
        self.noise_std = self.noise_std * (self.sigma_step_size / 2 * (across @ (noise.square() - 1))).exp()
        return centre


STRATEGIES = {"nes": NES, "openai_es": OpenAIES, "snes": SNES}
_RANGES: dict[str, tuple[type, dict[str, Any]]] = {
    "strategy": (str, {"choices": tuple(STRATEGIES)}),
    "population": (int, {"minimum": 1}),
    "noise_std": (float, {"above": 0}),
    "step_size": (float, {"above": 0}),
    "score_transform": (int, {"minimum": 0, "maximum": 7}),
    "weight_decay": (float, {"minimum": 0, "below": 1}),
}


def make_strategy(
    name: str,
    centre: Tensor,
    *,
    population: int,
    noise_std: float,
    step_size: float,
    score_transform: int,
    mirrored: bool,
    weight_decay: float,
    nes_step_size: bool,
) -> Strategy:
    """``nes``, ``openai_es`` or ``snes`` around ``centre [D]``; only ``nes`` looks at `score_transform` and
    `nes_step_size`. Raises SettingError for a setting out of range and for an odd population when mirrored."""
    settings = {"population": population, "noise_std": noise_std, "step_size": step_size, "weight_decay": weight_decay}
    for setting, value in {"strategy": name, "score_transform": score_transform, **settings}.items():
        item, allowed = _RANGES[setting]
        check_value(setting, value, Kind(item, False, False), allowed)
    settings["mirrored"] = mirrored
    if name == "nes":
        return NES(centre, score_transform=score_transform, nes_step_size=nes_step_size, **settings)
    return STRATEGIES[name](centre, **settings)


def _check_shape(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}; expected {shape}")


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value
