"""State of objects in checkpoints: how it is saved, and checked when it is loaded from a file."""

import math
import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

_NOT_NEGATIVE = ("square", "second_moment", "noise_std")  # prefixes of names of tensors whose numbers are at least 0


class StateError(ValueError):
    """The error about a value in a checkpoint that this program cannot have written, with the value that it expects."""


class Stateful:
    """Base class of objects with a state in checkpoints. ``saved`` names the attributes in `state_dict`: tensors,
    dictionaries of tensors, numbers, and objects with a method `state_dict`."""

    saved: ClassVar[tuple[str, ...]] = ()

    def state_dict(self) -> dict[str, Any]:
        """Return the attributes in ``saved`` by name. An object with a `state_dict` is replaced by its result."""
        state = {}
        for name in self.saved:
            value = getattr(self, name)
            state[name] = value.state_dict() if hasattr(value, "state_dict") else value
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`. Raises StateError if it does not fit the current state."""
        for name in self.saved:
            current_value = getattr(self, name)
            if hasattr(current_value, "load_state_dict"):
                current_value.load_state_dict(state[name])
                continue
            value = check_like(current_value, state[name], f"{type(self).__name__}.{name}")
            if isinstance(value, Tensor):
                current_value.copy_(value)
            else:
                setattr(self, name, value)


def check_like(template: Any, value: Any, name: str = "state") -> Any:
    """Check a state from a file: return ``value`` if it can replace ``template``, the current state. Raises StateError
    about the first item that does not fit: mappings must have the same keys, lists the same length, tensors the same
    shape and dtype. ``name`` is what the message calls ``value``; its items are ``name.key`` and ``name[i]``.

    Integers, int64 tensors, and tensors whose name begins as in ``_NOT_NEGATIVE`` must be at least 0. A float must not
    be NaN. Tensors may contain NaN, because the other members can go on after a member has diverged.
    """
    if isinstance(template, Mapping):
        require(isinstance(value, Mapping), name, f"is {_describe_type(value)}", _describe_type(template))
        require(set(template) == set(value), name, f"has {', '.join(map(str, value))}", ", ".join(map(str, template)))
        for key, template_item in template.items():
            check_like(template_item, value[key], f"{name}.{key}")
        return value
    value_type, allowed_type = _describe_type(value), _describe_type(template)  # including shape, dtype and length
    require(value_type == allowed_type, name, f"is {value_type}", allowed_type)
    if isinstance(template, list | tuple):
        for i, (template_item, item) in enumerate(zip(template, value, strict=True)):
            check_like(template_item, item, f"{name}[{i}]")
    elif isinstance(template, Tensor):
        last_name = name.rpartition(".")[2]
        if template.dtype == torch.int64 or last_name.startswith(_NOT_NEGATIVE):
            require(not bool((value < 0).any()), name, "is below 0", "0 and above")
    elif isinstance(template, int):
        require(value >= 0, name, f"is {value}", "0 and above")
    elif isinstance(template, float):
        require(not math.isnan(value), name, f"is {value}", "a number")
    return value


def require(holds: bool, name: str, problem: str, allowed: str) -> None:
    """Raise StateError unless ``holds``. The message is "optimizer.count is below 0; allowed: 0 and above" for the name
    "optimizer.count", the problem "is below 0" and ``allowed`` "0 and above"."""
    if not holds:
        raise StateError(f"{name} {problem[:200]}; allowed: {allowed[:200]}")


def _describe_type(value: Any) -> str:
    """Return the type of a value as text: "float32 [2, 3]" for a tensor, "a list of 3", else the name of the type."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return type(value).__name__


def read_archive(file: Path) -> Any:
    """Return the content of a file written by `torch.save`: plain values, lists, mappings, and tensors on the CPU.
    Raises UnpicklingError for a file with other content, and any error for a damaged file."""
    if zipfile.is_zipfile(file):  # the format before PyTorch 1.6 is no archive
        with zipfile.ZipFile(file) as archive:
            # torch.save does not compress. Compressed parts of a file from elsewhere could fill the memory.
            unpacked_size = sum(part.file_size for part in archive.infolist())
            if unpacked_size > file.stat().st_size:
                raise zipfile.BadZipFile("its parts are longer than the file")
            damaged_part = archive.testzip()  # compares checksums, which torch.load does not
            if damaged_part:
                raise zipfile.BadZipFile(f"its part {damaged_part} is not what was written")
    try:
        with warnings.catch_warnings(action="ignore"):  # warnings about other formats
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # torch's message is about arguments of torch.load
        raise pickle.UnpicklingError("it holds more than tensors and plain values") from error
