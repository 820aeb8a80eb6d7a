"""The registry of agents is this folder.

A family is a package here with ``config.py`` (torch-free: a frozen dataclass ``Config`` of settings,
``IMPLEMENTATIONS: dict[name, overrides]``, ``ENVIRONMENT_PRESETS: dict[(name, game), overrides]``) and
``agent.py`` (class ``Agent``). Being there is enough: flags, help, errors and contract tests find it.
"""

import functools
import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from models.settings import SettingError, nearest


@functools.cache
def implementations() -> dict[str, ModuleType]:
    """Implementation name -> config module of its family. Imports no torch."""
    found: dict[str, ModuleType] = {}
    for path in sorted(Path(__file__).parent.glob("*/config.py")):
        module = importlib.import_module(f"{__name__}.{path.parent.name}.config")
        for name in module.IMPLEMENTATIONS:
            if name in found:
                raise RuntimeError(f"implementation {name} is in {found[name].__name__} and in {module.__name__}")
            found[name] = module
    return found


def family_config(name: str) -> ModuleType:
    """The config module of the family that has implementation ``name``; SettingError when there is none."""
    known = implementations()
    if name not in known:
        listed = ", ".join(known)
        raise SettingError(f"implementation is {name!r}; allowed: {listed}{nearest(name, known)}")
    return known[name]


def agent_class(name: str) -> type[Any]:
    """The ``Agent`` class of implementation ``name``. Imports torch."""
    package = family_config(name).__name__.removesuffix(".config")
    return importlib.import_module(f"{package}.agent").Agent


def default_config(name: str, game: str) -> Any:
    """``Config`` of ``name`` on ``game``: family defaults <- implementation <- what that game needs."""
    family = family_config(name)
    return family.Config(**{**family.IMPLEMENTATIONS[name], **family.ENVIRONMENT_PRESETS.get((name, game), {})})
