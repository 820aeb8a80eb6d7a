"""Random hyperparameters for each agent, for families with the settings ``vary_hp``, ``vary`` and those in `VARIED`.
Imports no torch, so that the modules of settings can import it.

Source: Ferreira et al. 2022, appendix on varied hyperparameters, arXiv 2202.02790, and the public code.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from models.settings import setting

SHAPE = ("width", "depth")  # units of every hidden layer, and how many of these there are: `hidden_sizes`
VARIED = ("lr", "batch_size", *SHAPE)


def vary_hp() -> Any:
    """The setting of that name."""
    return setting(
        False,
        "sample what `vary` names for each agent: lr, batch size and width of layers log-uniformly in [x/3, 3x]",
    )


def vary(source: str = "") -> Any:
    """The setting of that name, with the ``source`` that its family cites."""
    return setting(VARIED, f"hyperparameters that vary_hp samples{source}", choices=VARIED)


def validate(config: Any) -> str | None:
    """The error in settings of random hyperparameters, as one line; None if there is none."""
    if config.vary_hp and set(SHAPE) & set(config.vary) and len(set(config.hidden_sizes)) > 1:
        line = f"hidden_sizes is {list(config.hidden_sizes)}, but vary_hp draws width or depth"
        return f"{line}; allowed: hidden layers of one width, or a vary without width and depth"
    return None


def draw(config: Any, seed: int) -> Any:
    """The hyperparameters of one agent; ``config`` itself unless ``vary_hp``.

    Learning rate log-uniform in [lr/3, 3 lr]; batch size and width log-uniform integers in [int(x/3), int(3x)];
    depth uniform in {h - 1, h, h + 1}, at least 1 (zero hidden layers and one are the same network in the public
    code).
    """
    return sampled(
        config,
        seed,
        lambda u: {
            "lr": config.lr / 3 * 9 ** u[0],
            "batch_size": _log_uniform(config.batch_size, u[1]),
            "width": _log_uniform(config.hidden_sizes[0], u[2]),
            "depth": max(1, len(config.hidden_sizes) - 1 + int(3 * u[3])),
        },
    )


def sampled(config: Any, seed: int, values: Callable[[list[float]], Mapping[str, float]]) -> Any:
    """``config`` with random values for the settings in ``vary``: ``values(u)`` of four numbers u, uniform on [0, 1),
    by ``seed``. Unchanged without ``vary_hp``."""
    if not config.vary_hp:
        return config
    import torch

    from models.streams import derive_seed

    generator = torch.Generator().manual_seed(derive_seed(seed, "hyperparameters"))
    sample = values(torch.rand(4, generator=generator, dtype=torch.float64).tolist())
    changes: dict[str, Any] = {name: sample[name] for name in config.vary if name not in SHAPE}
    if set(SHAPE) & set(config.vary):
        shape = {"width": config.hidden_sizes[0], "depth": len(config.hidden_sizes)}
        width, depth = (int(sample[name]) if name in config.vary else shape[name] for name in SHAPE)
        changes["hidden_sizes"] = (width,) * depth
    return dataclasses.replace(config, **changes)


def _log_uniform(base: int, u: float) -> int:
    low, high = max(1, int(base / 3)), 3 * base
    return min(high, int(low * ((high + 1) / low) ** u))


def draw_all(config: Any, seeds: Sequence[int]) -> list[Any]:
    """The hyperparameters of the members of one tensor program. Raises ValueError if their shapes differ."""
    configs_by_seed = {seed: draw(config, seed) for seed in set(seeds)}
    member_configs = [configs_by_seed[seed] for seed in seeds]
    if any(shape_of(config_of_seed) != shape_of(member_configs[0]) for config_of_seed in configs_by_seed.values()):
        raise ValueError("members of different shapes; train each group of `groups` by itself")
    return member_configs


def shape_of(member_config: Any) -> tuple[tuple[int, ...], int]:
    """The settings that members of one tensor program must share: hidden layers and batch size."""
    return member_config.hidden_sizes, member_config.batch_size


def groups(config: Any, seeds: Sequence[int]) -> list[list[int]]:
    """Group the indices of ``seeds`` by shape (`shape_of`). Agents of a group can share a tensor program."""
    group_rows: dict[tuple[tuple[int, ...], int], list[int]] = {}
    shapes = {seed: shape_of(draw(config, seed)) for seed in set(seeds)}
    for position, seed in enumerate(seeds):
        group_rows.setdefault(shapes[seed], []).append(position)
    return list(group_rows.values())
