"""Hyperparameters drawn per agent, and which agents can share one tensor program."""

import dataclasses
from collections.abc import Sequence

import torch

from models.agents.ddqn.config import Config
from models.streams import derive_seed


def draw(config: Config, seed: int) -> Config:
    """The hyperparameters of one agent; ``config`` itself unless ``vary_hp``.

    Learning rate log-uniform in [lr/3, 3 lr]; batch size and width log-uniform integers in [int(x/3), int(3x)];
    depth uniform in {h - 1, h, h + 1}, at least 1 (zero hidden layers and one are the same network in the public
    code). Source: Ferreira et al. 2022, appendix on varied hyperparameters, and the public code.
    """
    if not config.vary_hp:
        return config
    generator = torch.Generator().manual_seed(derive_seed(seed, "hyperparameters"))
    u = torch.rand(4, generator=generator, dtype=torch.float64).tolist()
    drawn: dict[str, float | int] = {
        "lr": config.lr / 3 * 9 ** u[0],
        "batch_size": _log_uniform(config.batch_size, u[1]),
        "hidden_size": _log_uniform(config.hidden_size, u[2]),
        "hidden_layer": max(1, config.hidden_layer - 1 + int(3 * u[3])),
    }
    return dataclasses.replace(config, **{name: drawn[name] for name in config.vary})  # type: ignore[arg-type]


def _log_uniform(base: int, u: float) -> int:
    low, high = max(1, int(base / 3)), 3 * base
    return min(high, int(low * ((high + 1) / low) ** u))


@dataclasses.dataclass(frozen=True)
class Shape:
    """What members of one tensor program have in common: width, batch size and depth."""

    hidden_size: int
    batch_size: int
    hidden_layer: int


def shape_of(own: Config) -> Shape:
    """The shape of an agent with hyperparameters ``own``."""
    return Shape(own.hidden_size, own.batch_size, own.hidden_layer)


def groups(config: Config, seeds: Sequence[int]) -> list[list[int]]:
    """Positions in ``seeds`` of the agents that can share a tensor program: those of one shape."""
    found: dict[Shape, list[int]] = {}
    for position, seed in enumerate(seeds):
        found.setdefault(shape_of(draw(config, seed)), []).append(position)
    return list(found.values())
