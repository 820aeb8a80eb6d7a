"""Objectives of a search: the fitness of proxies from the results of agents that trained on them."""

from typing import Any, Protocol

import torch
from torch import Tensor


class Tested(Protocol):
    """Results of N agents: ``scores [N]``, mean returns of the tests after training; ``lengths [N, K]`` of these test
    episodes; ``steps [N]`` of training; ``curve [N, T]``, mean returns of tests during training, every ``test_every``
    steps. Returns are NaN for agents that failed."""

    @property
    def scores(self) -> Tensor: ...
    @property
    def lengths(self) -> Tensor: ...
    @property
    def steps(self) -> Tensor: ...
    @property
    def curve(self) -> Tensor: ...


def final(outcome: Tested, config: Any) -> Tensor:
    """Return the mean return of the tests after training, minus ``survival_bonus`` for each of their steps (Mania et
    al. 2018, arXiv 1803.07055)."""
    return outcome.scores - config.survival_bonus * outcome.lengths.to(outcome.scores.dtype).mean(1)


def average(outcome: Tested, config: Any) -> Tensor:
    """Return the mean over the tests during training, from ``average_from`` steps on. A solved test counts
    ``solved_bonus`` more. The mean is high if agents solve a task early and keep it solved."""
    first = -(-config.average_from // config.test_every) - 1 if config.average_from else 0
    counted = outcome.curve[:, max(0, first) :]
    if config.solved_bonus:
        counted = counted + config.solved_bonus * (counted >= config.solved_reward)
    return counted.mean(1)


def auc(outcome: Tested, config: Any) -> Tensor:
    """Return the area under the curve of test returns over training steps, in return times steps [F]. Between two
    tests, the later one counts."""
    return outcome.curve.sum(1) * config.test_every


def threshold(outcome: Tested, config: Any) -> Tensor:
    """Return minus the number of training steps, minus ``unsolved_weight`` for each point of return that the final test
    is below ``solved_reward`` [F]."""
    missing = (config.solved_reward - outcome.scores).clamp(min=0)
    return -outcome.steps.to(missing.dtype) - config.unsolved_weight * missing


def objective(outcome: Tested, config: Any) -> Tensor:
    """Return the fitness ``[N]``, computed by the function above with the name ``config.objective``
    (`models.proxies.search.OBJECTIVES`)."""
    fitness: Tensor = globals()[config.objective](outcome, config)
    return fitness


def first_stable(curve: Tensor, solved: float) -> Tensor:
    """Return the index of the first test from which on an agent solves all tests, ``[N]`` int64, for ``curve [N, T]``;
    T if it does not solve the last one."""
    unsolved = ~(curve >= solved)  # NaN too
    positions = torch.arange(1, curve.shape[1] + 1)
    return (unsolved * positions).amax(1)


def stays_solved(curve: Tensor, solved: float) -> Tensor:
    """Return whether agents solve every test in the second half of ``curve [N, T]``, ``[N]`` bool."""
    return (curve[:, curve.shape[1] // 2 :] >= solved).all(1)


def first(curve: Tensor, solved: float) -> Tensor:
    """Return the index of the first test that each agent solves, ``[N]`` int64; T if it solves none."""
    reached = curve >= solved
    return torch.where(reached.any(1), reached.int().argmax(1), curve.shape[1])
