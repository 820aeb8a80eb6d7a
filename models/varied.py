"""Random hyperparameters for each member (one of M agents that train together), by the settings ``vary_hp`` and
``vary``. Modules of settings import this module, so torch is imported only in the functions that need it.

Source: Ferreira et al. 2022, appendix on varied hyperparameters, arXiv 2202.02790, and the public code.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from models.settings import setting

SHAPE = ("width", "depth")  # units of every hidden layer, and number of hidden layers; together they are `hidden_sizes`
VARIED = ("lr", "batch_size", *SHAPE)


def vary_hp() -> Any:
    """Return the field ``vary_hp`` for the settings of agents with random hyperparameters."""
    return setting(
        False,
        "sample the settings in `vary` for each agent: lr, batch size and width of layers log-uniformly in [x/3, 3x]",
    )


def vary(source: str = "") -> Any:
    """Return the field ``vary`` for these settings. ``source`` is a citation such as " [F]" at the end of its help."""
    return setting(VARIED, f"hyperparameters that vary_hp samples{source}", choices=VARIED)


def validate(config: Any) -> str | None:
    """Return one line about hidden layers whose width or depth cannot be sampled, or None without this error."""
    num_widths = len(set(config.hidden_sizes))
    if config.vary_hp and set(SHAPE) & set(config.vary) and num_widths > 1:
        line = f"hidden_sizes is {list(config.hidden_sizes)}, but vary_hp draws width or depth"
        return f"{line}; allowed: hidden layers of one width, or a vary without width and depth"
    return None


def sample_config(config: Any, seed: int) -> Any:
    """Return ``config`` with the hyperparameters of one agent, sampled by ``seed``. Without ``vary_hp``, return it
    unchanged. The learning rate is log-uniform in [lr/3, 3 lr]. Batch size and width are log-uniform integers in
    [int(x/3), 3x]. Depth is uniform in {h - 1, h, h + 1} for h hidden layers in ``config``, and at least 1."""
    if not config.vary_hp:
        return config
    lr_number, batch_number, width_number, depth_number = uniform_numbers(seed)
    width, depth = config.hidden_sizes[0], len(config.hidden_sizes)
    if "width" in config.vary:
        width = _log_uniform(width, width_number)
    if "depth" in config.vary:
        depth = max(1, depth - 1 + int(3 * depth_number))
    changes: dict[str, Any] = {}
    if "lr" in config.vary:
        changes["lr"] = config.lr / 3 * 9**lr_number  # the factor 9**u / 3 is from 1/3 to 3
    if "batch_size" in config.vary:
        changes["batch_size"] = _log_uniform(config.batch_size, batch_number)
    if set(SHAPE) & set(config.vary):
        changes["hidden_sizes"] = (width,) * depth
    return dataclasses.replace(config, **changes)


def uniform_numbers(seed: int) -> list[float]:
    """Return four uniform numbers in [0, 1) that determine the sampled hyperparameters of the agent with ``seed``."""
    import torch

    from models.streams import derive_seed

    generator = torch.Generator().manual_seed(derive_seed(seed, "hyperparameters"))
    return torch.rand(4, generator=generator, dtype=torch.float64).tolist()


def _log_uniform(base: int, u: float) -> int:
    """Return a log-uniform integer in [int(base/3), 3 base], at least 1, from a uniform number ``u`` in [0, 1)."""
    low, high = max(1, int(base / 3)), 3 * base
    return min(high, int(low * ((high + 1) / low) ** u))  # rounding may give ``high + 1``


def groups(config: Any, seeds: Sequence[int]) -> list[list[int]]:
    """Return groups of indices of ``seeds``, in order of first occurrence. The agents of a group have the same sampled
    ``hidden_sizes`` and ``batch_size``, so their weights and minibatches fit into one tensor."""
    indices_by_shape: dict[tuple[Any, Any], list[int]] = {}
    for index, seed in enumerate(seeds):
        member_config = sample_config(config, seed)
        shape = member_config.hidden_sizes, member_config.batch_size
        indices_by_shape.setdefault(shape, []).append(index)
    return list(indices_by_shape.values())
