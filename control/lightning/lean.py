"""Imports Lightning and Numba without slow modules that runs do not need, or not yet.

torchmetrics, which Lightning imports for one class, imports scipy.signal only to add a name that newer versions do not
have, and matplotlib for types and the style of its figures. Lightning uses two names of torch's compiler: a class, to
check whether a module is compiled, and a decorator that keeps the compiler away from logging. torch imports its export
without using it. Numba imports scipy.linalg to see whether it is installed. During these imports, stubs (`_LazyModule`)
with these names replace the modules. An access to any other name imports the real module. The stubs are removed
afterwards, so later imports get the real modules.
"""

import contextlib
import importlib
import importlib.util
import sys
import types
from collections.abc import Iterator
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import Any


class _LazyModule(types.ModuleType):
    """A stub for a module. An access to a name that the stub does not have imports the module in its place."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # accessed by the import system
            raise AttributeError(name)
        return getattr(self.import_module(), name)

    def import_module(self) -> types.ModuleType:
        """Import the module in place of the stub, if no earlier access has done so."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)


class _RealParents:
    """Import hook that replaces the stub of a package by the package itself before one of its submodules is imported,
    as torchvision does. Otherwise the package is removed from ``sys.modules`` in the middle of that import."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        parent = sys.modules.get(name.rpartition(".")[0])
        if not isinstance(parent, _LazyModule):
            return None
        parent.import_module()
        if name in sys.modules:  # imported by its package
            return importlib.util.spec_from_loader(name, _Imported(sys.modules[name]))
        return importlib.util.find_spec(name)


class _Imported(Loader):
    """Loader that returns a module that is already imported, unchanged."""

    def __init__(self, module: types.ModuleType):
        self.module, self.module_spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return self.module

    def exec_module(self, module: types.ModuleType) -> None:
        module.__spec__ = self.module_spec


class _Compiled(type):
    """Metaclass of the stub for the compiler's class. Until the compiler is imported, no module is an instance."""

    def __instancecheck__(cls, module: object) -> bool:
        compiler = sys.modules.get("torch._dynamo")
        return compiler is not None and isinstance(module, compiler.OptimizedModule)


@contextlib.contextmanager
def _style(name: Any) -> Iterator[None]:
    """Context manager, and so decorator, that sets a style of matplotlib, which is imported when it is entered."""
    from matplotlib import style

    with style.context(name):
        yield


_STUBS: dict[str, dict[str, Any]] = {
    "matplotlib": {},
    "matplotlib.axes": {"Axes": object},
    "matplotlib.colors": {"Colormap": object},
    "matplotlib.pyplot": {"Figure": object, "style": SimpleNamespace(context=_style)},
    "scipy.signal": {"hamming": None},
    "torch._dynamo": {
        "OptimizedModule": _Compiled("OptimizedModule", (), {}),
        "disable": lambda function, *_, **__: function,
    },
    "torch.export": {},
}
_STUBS_OF_NUMBA: dict[str, dict[str, Any]] = {"scipy.linalg": {}, "scipy.linalg.cython_blas": {}}


@contextlib.contextmanager
def _stubbed(values_by_module: dict[str, dict[str, Any]]) -> Iterator[None]:
    """Context manager that replaces modules by stubs with the given values, ``{module: {name: value}}``, unless they
    are already imported or their package is not installed."""
    stubs: dict[str, _LazyModule] = {}
    packages = {name.partition(".")[0] for name in values_by_module}
    installed = {package for package in packages if importlib.util.find_spec(package)}
    for name, values in values_by_module.items():
        if name in sys.modules or name.partition(".")[0] not in installed:
            continue
        stub = stubs[name] = sys.modules[name] = _LazyModule(name)
        vars(stub).update(values, __path__=[])  # packages have one; `_RealParents` finds their submodules
        parent, _, leaf = name.rpartition(".")
        if parent in stubs:
            setattr(stubs[parent], leaf, stub)
    sys.meta_path.insert(0, _RealParents)  # type: ignore[arg-type]
    try:
        yield
    finally:
        sys.meta_path.remove(_RealParents)  # type: ignore[arg-type]
        for name, module in stubs.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]


def load() -> None:
    """Import Lightning, if that has not been done."""
    if "pytorch_lightning" not in sys.modules:
        with _stubbed(_STUBS):
            importlib.import_module("pytorch_lightning")


def load_numba() -> None:
    """Import Numba with all it needs to load machine code, if that has not been done. Otherwise the first function does
    so, among a training's objects, which the search for garbage then goes through again and again."""
    if "numba" not in sys.modules:
        with _stubbed(_STUBS_OF_NUMBA):
            from numba.core.registry import cpu_target

            cpu_target.typing_context.refresh()
            cpu_target.target_context.refresh()
