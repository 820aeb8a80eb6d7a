"""Functions of tensors fused by torch.compile, where a compiler is there."""

import os
import shutil
from collections.abc import Callable
from typing import Any

import torch

from models.settings import SettingError

_COMPILERS = ("g++", "clang++", "c++")


def compiled(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """``function`` as one program of fixed shapes, compiled when it is first called, which takes half a minute; on a
    GPU a captured graph of operations. It rounds otherwise than ``function`` itself.

    Raises SettingError where the processor's code has no C++ compiler to go to.
    """
    if device.type == "cpu" and not (os.environ.get("CXX") or any(map(shutil.which, _COMPILERS))):
        raise SettingError(
            "compile is True, but no C++ compiler is on the PATH; allowed here: false (Debian and Ubuntu: "
            "apt-get install g++)",
            "compile",
        )
    return torch.compile(
        function, fullgraph=True, dynamic=False, mode="default" if device.type == "cpu" else "reduce-overhead"
    )
