"""Objectives of a search: the fitness of proxies from the results of agents that trained on them."""

from typing import Any, Protocol

import torch
from torch import Tensor


class Tested(Protocol):
    """Results of N agents: mean return of the tests after training ``scores [N]`` and their ``lengths [N, K]``,
    training ``steps [N]``, and ``curve [N, T]``, the mean returns of tests during training, every ``test_every`` steps.
    NaN for agents that failed."""

    @property
    def scores(self) -> Tensor: ...
    @property
    def lengths(self) -> Tensor: ...
    @property
    def steps(self) -> Tensor: ...
    @property
    def curve(self) -> Tensor: ...


def final(outcome: Tested, config: Any) -> Tensor:
    """The return of the tests after training, less ``survival_bonus`` for each of their steps (Mania et al. 2018, arXiv
    1803.07055)."""
    return outcome.scores - config.survival_bonus * outcome.lengths.to(outcome.scores.dtype).mean(1)


def average(outcome: Tested, config: Any) -> Tensor:
    """The mean test return during a training of fixed length, from ``average_from`` steps on, plus ``solved_bonus`` for
    each solved test. It is high if agents solve a task early and keep it solved."""
    first = -(-config.average_from // config.test_every) - 1 if config.average_from else 0
    counted = outcome.curve[:, max(0, first) :]
    if config.solved_bonus:
        counted = counted + config.solved_bonus * (counted >= config.solved_reward)
    return counted.mean(1)


def auc(outcome: Tested, config: Any) -> Tensor:
    """The area under the curve of test returns over training steps, in return times steps [F]. Between two tests the
    later one counts."""
    return outcome.curve.sum(1) * config.test_every


def threshold(outcome: Tested, config: Any) -> Tensor:
    """Minus the steps until solved, and ``unsolved_weight`` for each point of return that is missing at the end [F]."""
    missing = (config.solved_reward - outcome.scores).clamp(min=0)
    return -outcome.steps.to(missing.dtype) - config.unsolved_weight * missing


def objective(outcome: Tested, config: Any) -> Tensor:
    """The fitness ``[N]`` by the function above that ``config.objective`` names; `models.proxies.search.OBJECTIVES`
    lists these."""
    fitness: Tensor = globals()[config.objective](outcome, config)
    return fitness


def first_stable(curve: Tensor, solved: float) -> Tensor:
    """Index of the test from which on each agent stays solved, ``[N]`` int64 of ``curve [N, T]``; T for never."""
    unsolved = ~(curve >= solved)  # NaN too
    positions = torch.arange(1, curve.shape[1] + 1)
    return (unsolved * positions).amax(1)


def staying(curve: Tensor, solved: float) -> Tensor:
    """Which agents ``[N]`` bool are solved at every test of the second half of ``curve [N, T]``."""
    return (curve[:, curve.shape[1] // 2 :] >= solved).all(1)


def first(curve: Tensor, solved: float) -> Tensor:
    """Index of the first test at which each agent is solved, ``[N]`` int64; T for never."""
    reached = curve >= solved
    return torch.where(reached.any(1), reached.int().argmax(1), curve.shape[1])
