"""Validation of state from a file against the state of the current program."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_NOT_NEGATIVE = ("square", "second_moment", "noise_std")


class StateError(ValueError):
    """A piece of state that this program cannot have written. ``str(e)`` names it and the expected one."""


def like(own: Any, found: Any, name: str = "state") -> Any:
    """Return ``found`` if it can replace ``own``. Raises StateError for the first piece that cannot.

    Mappings have the same keys, lists the same length, tensors the same shape and dtype; whole numbers are not below
    zero and floats not NaN, nor are squares and spreads, by their names. Tensors may hold NaN: a member that has
    diverged does not end the others.
    """
    if isinstance(own, Mapping):
        demand(isinstance(found, Mapping), name, f"is {_kind(found)}", _kind(own))
        demand(set(own) == set(found), name, f"has {_listed(found)}", _listed(own))
        for key, value in own.items():
            like(value, found[key], f"{name}.{key}")
        return found
    demand(_kind(found) == _kind(own), name, f"is {_kind(found)}", _kind(own))
    if isinstance(own, list | tuple):
        for i, (mine, theirs) in enumerate(zip(own, found, strict=True)):
            like(mine, theirs, f"{name}[{i}]")
    elif isinstance(own, Tensor):
        counts = own.dtype == torch.int64 or name.rpartition(".")[2].startswith(_NOT_NEGATIVE)
        demand(not (counts and bool((found < 0).any())), name, "is below 0", "0 and above")
    elif isinstance(own, int | float):
        demand(found >= 0 if isinstance(own, int) else found == found, name, f"is {found}", "a count or a number")
    return found


def demand(holds: bool, name: str, found: str, allowed: str) -> None:
    """StateError of these words unless something ``holds``."""
    if not holds:
        raise StateError(f"{name} {found[:200]}; allowed: {allowed[:200]}")


def _listed(names: Any) -> str:
    return ", ".join(map(str, names)) or "nothing"


def _kind(value: Any) -> str:
    """The type of a value; of tensors and lists their size too."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return f"a list of {len(value)}" if isinstance(value, list | tuple) else type(value).__name__
