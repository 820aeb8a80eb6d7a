"""Everything ``--implementation`` takes: the families in the folders of models/agents/ and models/proxies/.

A folder with a ``config.py`` that ends in ``FAMILY`` is enough (`models.family.Family`). Imports no torch, except for
`agent_class`.
"""

import functools
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.family import Family, Overrides
from models.settings import SettingError, kinds, nearest


@functools.cache
def implementations() -> dict[str, Family]:
    """Every implementation's name -> its family; those that learn a proxy come last."""
    found: dict[str, Family] = {}
    for kind in ("agents", "proxies"):
        for path in sorted((Path(__file__).parent / kind).glob("*/config.py")):
            one: Family = importlib.import_module(f"models.{kind}.{path.parent.name}.config").FAMILY
            for name in one.implementations:
                if name in found:
                    raise RuntimeError(f"implementation {name} is in {found[name].package} and in {one.package}")
                found[name] = one
    return found


def family(name: str) -> Family:
    """The family that has implementation ``name``; SettingError when there is none."""
    known = implementations()
    if name not in known:
        line = f"implementation is {name!r}; allowed: {', '.join(known)}{nearest(name, known)}"
        raise SettingError(line, "implementation")
    return known[name]


def learns_from(name: str) -> str:
    """``episodes``, ``steps`` or ``evolution``: which loop trains an implementation."""
    return family(name).learns_from


def inner_agents() -> list[str]:
    """The agents that can train on a proxy."""
    return [name for name, own in implementations().items() if own.trains_on_proxies]


def agent_class(name: str) -> type[Any]:
    """The ``Agent`` class of implementation ``name``. Imports torch. TypeError for a class that lacks something that
    `models.contract` asks for."""
    own = family(name)
    found: type[Any] = importlib.import_module(f"{own.package}.agent").Agent
    _check_agent(own, found)
    return found


def _check_agent(own: Family, found: type[Any]) -> None:
    from models.contract import Agent, EpisodeAgent, InnerAgent, StepAgent

    needed: dict[type[Any], tuple[str, ...]] = {
        Agent: ("action_kinds", "begin"), EpisodeAgent: ("observe", "learn", "main_loss"),
        StepAgent: ("act", "observe", "learn", "learning"), InnerAgent: ("with_weights", "select"),
    }  # fmt: skip
    by_step = InnerAgent if own.trains_on_proxies else StepAgent
    base = EpisodeAgent if own.learns_from == "episodes" else by_step
    where = f"{found.__module__}.{found.__name__}"
    if not issubclass(found, base):
        raise TypeError(f"{where} is no {base.__name__}, but its family learns from {own.learns_from}")
    must = {name: kind for kind, names in needed.items() if issubclass(base, kind) for name in names}
    if lacks := [name for name, kind in must.items() if getattr(found, name, None) is getattr(kind, name, None)]:
        text = f"every {base.__name__} must have {', '.join(must)} (models/contract.py)"
        raise TypeError(f"{where} has no {', '.join(lacks)}; {text}")
    of_config = "schedule" if base is EpisodeAgent else "num_envs"
    if not hasattr(own.config, of_config):
        raise TypeError(f"{own.config.__module__}.Config has no {of_config} (models/family.py)")


def default_config(name: str, game: str, given: Mapping[str, Any] | None = None) -> Any:
    """The ``config`` of ``name`` on ``game``: the family's defaults <- the implementation's <- what that game needs <-
    the preset that is ``given``, where the family has any. ``game`` may have parameters behind a comma, which change
    none of this. Raises SettingError for a preset that ``name`` has not."""
    own = family(name)
    of_game = own.environment_presets.get((name, game.partition(",")[0]), {})
    return own.config(**{**own.implementations[name], **of_game, **_preset(own, name, (given or {}).get("preset"))})


def default_configs(name: str, game: str, given: Mapping[str, Any], agent: str) -> tuple[Any, Any]:
    """Settings of the agent and, where ``name`` learns a proxy, of that (else None), before anything given is applied.

    ``given`` may choose a preset; ``agent`` is the one that trains on a proxy. Raises SettingError.
    """
    if learns_from(name) != "evolution":
        return default_config(name, game, given), None
    if agent not in inner_agents():
        near = nearest(agent, inner_agents())
        raise SettingError(f"agent is {agent!r}; allowed: {', '.join(inner_agents())}{near}", "agent")
    own, inner = family(name), family(agent)
    values = {**own.implementations[name], **own.proxy_defaults(given, game)}
    changes = {key: value for key, value in values.items() if key in kinds(inner.config)}
    proxy = own.config(**{key: value for key, value in values.items() if key in kinds(own.config)})
    return inner.config(**{**inner.implementations[agent], **changes}), proxy


def _preset(own: Family, name: str, preset: Any) -> Overrides:
    if preset is None or not own.presets:
        return {}
    known = [own.config.preset, *(key for key, values in own.presets.items() if name in values)]
    if preset not in known:
        near = nearest(str(preset), known)
        raise SettingError(f"preset is {preset!r}; allowed for {name}: {', '.join(known)}{near}", "preset")
    return {"preset": preset, **own.presets.get(preset, {}).get(name, {})}
