"""Environments. ``gymnasium.make("envs:SyntheticCartPole-v0")`` imports this package, which registers its ids.

Registration needs Gymnasium, which is too heavy to be loaded here. So it is done at once where Gymnasium is there
already, and else as soon as somebody has loaded it. ``import envs.registration`` loads it and registers in any case.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _RegisterAfterGymnasium(MetaPathFinder):
    """Finds Gymnasium where everybody else does, and has its loader register our ids last."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "gymnasium":
            return None
        others = (finder.find_spec(name, path, target) for finder in list(sys.meta_path) if finder is not self)
        spec = next(filter(None, others), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            # Not when it was found: many look for a package only to know whether it is installed.
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            importlib.import_module("envs.registration")

        spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


if "gymnasium" in sys.modules:
    importlib.import_module("envs.registration")
else:
    sys.meta_path.insert(0, _RegisterAfterGymnasium())
