"""The registry of agents is this folder.

A family is a package here with ``config.py`` (torch-free: a frozen dataclass ``Config`` of settings,
``IMPLEMENTATIONS: dict[name, overrides]``, ``ENVIRONMENT_PRESETS: dict[(name, game), overrides]``, and with a field
``preset`` also ``PRESETS: dict[preset, dict[name, overrides]]``) and ``agent.py`` (class ``Agent``). Being there is
enough: flags, help, errors and contract tests find it.

Where the code an algorithm was published with has configuration files of its own, ``config.py`` may have
``published_settings(content)``, which says the same in our names.
"""

import functools
import importlib
from collections.abc import Mapping
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
    return looked_up(name, implementations())


def looked_up(name: str, known: Mapping[str, ModuleType]) -> ModuleType:
    """The config module of implementation ``name`` among those ``known``; SettingError when there is none."""
    if name not in known:
        raise SettingError(f"implementation is {name!r}; allowed: {', '.join(known)}{nearest(name, known)}")
    return known[name]


def agent_class(name: str) -> type[Any]:
    """The ``Agent`` class of implementation ``name``. Imports torch."""
    package = family_config(name).__name__.removesuffix(".config")
    return importlib.import_module(f"{package}.agent").Agent


def default_config(name: str, game: str, given: Mapping[str, Any] | None = None) -> Any:
    """``Config`` of ``name`` on ``game``: family defaults <- implementation <- what that game needs <- the preset that
    is ``given``, where the family has any. ``game`` may have parameters behind a comma, which change none of this.
    Raises SettingError for a preset that ``name`` has not."""
    family = family_config(name)
    world = game.partition(",")[0]
    chosen = _preset(family, name, (given or {}).get("preset"))
    return family.Config(
        **{**family.IMPLEMENTATIONS[name], **family.ENVIRONMENT_PRESETS.get((name, world), {}), **chosen}
    )


def published_settings(content: Mapping[str, Any]) -> list[tuple[str, list[str]]] | None:
    """Our names and words for what a configuration file of some published code says; None where no family knows it.

    ``content`` is the file as a mapping whose values are text, as written. Raises SettingError for what a family
    knows to be wrong with it.
    """
    readers = [getattr(family, "published_settings", None) for family in dict.fromkeys(implementations().values())]
    found = (reader(content) for reader in readers if reader is not None)
    return next((pairs for pairs in found if pairs is not None), None)


def _preset(family: ModuleType, name: str, preset: Any) -> dict[str, Any]:
    if preset is None or not hasattr(family, "PRESETS"):
        return {}
    known = [family.Config.preset, *(key for key, values in family.PRESETS.items() if name in values)]
    if preset not in known:
        near = nearest(str(preset), known)
        raise SettingError(f"preset is {preset!r}; allowed for {name}: {', '.join(known)}{near}", "preset")
    return {"preset": preset} | family.PRESETS.get(preset, {}).get(name, {})
