"""Everything ``--implementation`` takes: agents (folders of models/agents/) and stand-ins (of models/proxies/).

A stand-in trains with an inner agent; its folder's ``config.py`` says LEARNS_FROM = "evolution" and has ``presets``.
Imports no torch.
"""

import functools
import importlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from models import agents
from models.settings import SettingError, kinds, nearest


@functools.cache
def stand_ins() -> dict[str, ModuleType]:
    """Implementation name -> config module, of those that learn an environment rather than act in one."""
    found: dict[str, ModuleType] = {}
    for path in sorted((Path(__file__).parent / "proxies").glob("*/config.py")):
        module = importlib.import_module(f"models.proxies.{path.parent.name}.config")
        found |= dict.fromkeys(module.IMPLEMENTATIONS, module)
    return found


def implementations() -> dict[str, ModuleType]:
    """Every implementation's name -> config module of its family."""
    return agents.implementations() | stand_ins()


def family_config(name: str) -> ModuleType:
    """The config module of the family that has implementation ``name``; SettingError when there is none."""
    return agents.looked_up(name, implementations())


def learns_from(name: str) -> str:
    """``episodes``, ``steps`` or ``evolution``: which loop runs an implementation."""
    return getattr(family_config(name), "LEARNS_FROM", "episodes")


def inner_agents() -> list[str]:
    """The agents that can train on a stand-in: those that learn step by step, unless a family says INNER = False."""
    families = agents.implementations().items()
    return [name for name, family in families if learns_from(name) == "steps" and getattr(family, "INNER", True)]


def default_configs(name: str, game: str, given: Mapping[str, Any], agent: str) -> tuple[Any, Any]:
    """Settings of the agent and, for a stand-in, of the stand-in (else None), before anything given is applied.

    ``given`` may choose a preset; ``agent`` is a stand-in's inner agent. Raises SettingError.
    """
    if name not in stand_ins():
        return agents.default_config(name, game, given), None
    if agent not in inner_agents():
        raise SettingError(
            f"agent is {agent!r}; allowed: {', '.join(inner_agents())}{nearest(agent, inner_agents())}", "agent"
        )
    family = family_config(name)
    values = family.IMPLEMENTATIONS[name] | family.presets(given, game)
    own = {key: value for key, value in values.items() if key in kinds(family.Config)}
    inner = agents.family_config(agent)
    changes = {key: value for key, value in values.items() if key in kinds(inner.Config)}
    return inner.Config(**(inner.IMPLEMENTATIONS[agent] | changes)), family.Config(**own)
