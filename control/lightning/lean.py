"""Imports Lightning without two slow modules that runs do not need.

torchmetrics, of which Lightning needs a class, imports scipy.signal to give it a name that newer versions lack. From
torch's compiler Lightning takes a class, to see whether a module is compiled, and a decorator, which keeps the compiler
off its logging. While Lightning is imported, both modules are `_Later`: they have these names and become the real
modules when anything else is asked of them. Afterwards they are gone, and whoever imports the real ones gets them.
"""

import contextlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any


class _Later(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # accessed by the import system
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


class _Compiled(type):
    """Metaclass of a stand-in for the compiler's class: no module is compiled before the compiler is imported."""

    def __instancecheck__(cls, module: object) -> bool:
        compiler = sys.modules.get("torch._dynamo")
        return compiler is not None and isinstance(module, compiler.OptimizedModule)


def _as_it_is(function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
    return function


_NAMES: dict[str, dict[str, Any]] = {
    "scipy.signal": {"hamming": None},
    "torch._dynamo": {"OptimizedModule": _Compiled("OptimizedModule", (), {}), "disable": _as_it_is},
}


@contextlib.contextmanager
def _instead(names: dict[str, dict[str, Any]]) -> Iterator[None]:
    stubs = {}
    for name, values in names.items():
        if name in sys.modules or importlib.util.find_spec(name.partition(".")[0]) is None:
            continue
        stubs[name] = sys.modules[name] = _Later(name)
        vars(stubs[name]).update(values)
    try:
        yield
    finally:
        for name, module in stubs.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


def load() -> None:
    """Import Lightning, if that has not been done."""
    if "pytorch_lightning" not in sys.modules:
        with _instead(_NAMES):
            importlib.import_module("pytorch_lightning")
