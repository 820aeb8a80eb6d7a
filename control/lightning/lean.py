"""Imports Lightning and Numba without slow modules that runs do not need, or not yet.

torchmetrics, which Lightning imports for a class, imports scipy.signal and matplotlib. Lightning uses two names of
torch's compiler, and torch imports its export without using it. Numba imports scipy.linalg to see whether it is
installed. During the import of Lightning or Numba, stubs replace these modules. The stubs have only the names that the
importing code uses. They are removed afterwards, so later imports get the modules themselves.
"""

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

_STUBS: dict[str, dict[str, Any]] = {
    "matplotlib": {"axes": SimpleNamespace(Axes=object), "colors": SimpleNamespace(Colormap=object)},
    "matplotlib.axes": {"Axes": object},
    "matplotlib.pyplot": {"Figure": object, "style": SimpleNamespace(context=lambda name: lambda function: function)},
    "scipy.signal": {"hamming": None},
    "torch._dynamo": {
        "OptimizedModule": type("OptimizedModule", (), {}),  # no module is an instance of this class
        "disable": lambda function, *_, **__: function,
    },
    "torch.export": {},
}
_STUBS_OF_NUMBA: dict[str, dict[str, Any]] = {"scipy.linalg": {}, "scipy.linalg.cython_blas": {}}


@contextlib.contextmanager
def _stub_modules(contents: dict[str, dict[str, Any]]) -> Iterator[None]:
    """Context manager in which imports of slow modules get stubs, unless the modules are imported already. A stub has
    only the names that the importing code uses: ``contents`` is module -> name -> object."""
    stubs = {name: ModuleType(name) for name in contents if name not in sys.modules}
    for name, stub in stubs.items():
        vars(stub).update(contents[name])
    sys.modules.update(stubs)
    try:
        yield
    finally:
        for name in stubs:
            del sys.modules[name]


def load() -> None:
    """Import Lightning, unless it is imported already, without slow modules that runs do not need (`_STUBS`)."""
    if "pytorch_lightning" not in sys.modules:
        has_torchvision = importlib.util.find_spec("torchvision") is not None  # it needs the modules themselves
        with _stub_modules({} if has_torchvision else _STUBS):
            importlib.import_module("pytorch_lightning")


def load_numba() -> None:
    """Import Numba without scipy, unless it is imported already, and prepare it to load machine code. Call this before
    `gc.freeze`, so that later garbage collections do not visit all of Numba's objects."""
    if "numba" not in sys.modules:
        with _stub_modules(_STUBS_OF_NUMBA):
            from numba.core.registry import cpu_target

            # Both calls fill tables that Numba otherwise fills at the first compiled function.
            cpu_target.typing_context.refresh()
            cpu_target.target_context.refresh()
