"""Everything ``--implementation`` takes: the families in the folders of models/agents/ and models/proxies/.

A folder with a ``config.py`` that ends in ``FAMILY`` is enough (`models.family.Family`). Imports no torch, except for
`agent_class`.
"""

import dataclasses
import functools
import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.family import Family
from models.settings import SettingError, kinds, no_choice, spelt


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


# What other libraries have, and what comes nearest here.
_ELSEWHERE = {"A2C": "AAC", "A3C": "AAC", "DQN": "DDQN", "DDPG": "TD3", "REINFORCE": "VPG", "PG": "VPG"}


def family(name: str) -> Family:
    """The family that has implementation ``name``; SettingError when there is none."""
    known = implementations()
    if name not in known:
        meant = _ELSEWHERE.get(name.upper(), name)
        raise no_choice("implementation", name, known, meant=meant)
    return known[name]


def as_named(names: str) -> str:
    """``names`` of implementations, one or several with commas between them, each in its own spelling."""
    return ",".join(spelt(name.strip(), implementations()) for name in names.split(","))


def inner_agents() -> list[str]:
    """The agents that can train on a proxy."""
    return [name for name, own in implementations().items() if own.trains_on_proxies]


def named_agents(names: str) -> list[str]:
    """The agents of ``names``, one or several with commas between them. Raises SettingError for one that cannot train
    on a proxy, and for agents of several families."""
    found = [name.strip() for name in names.split(",")]
    for name in found:
        if name not in inner_agents():
            raise no_choice("agent", name, inner_agents())
    families = {family(name).package.rpartition(".")[2] for name in found}
    if len(families) > 1:
        kin = [name for name in inner_agents() if family(name) is family(found[0])]
        raise SettingError(f"agent is {names!r}; allowed beside {found[0]}: {', '.join(kin)}", "agent")
    return found


def families_of(name: str, agent: str) -> list[str]:
    """The folders of the families whose settings a run of ``name`` has, with that ``agent`` where it learns a proxy."""
    own = [family(name)] + ([family(named_agents(agent)[0])] if family(name).learns_from == "evolution" else [])
    return [one.package.rpartition(".")[2] for one in own]


def as_implementation(config: Any, name: str) -> Any:
    """``config`` with what implementation ``name`` changes, and without what others of its family do."""
    own = family(name)
    changed = {key for overrides in own.implementations.values() for key in overrides}
    return dataclasses.replace(
        config, **{**{key: getattr(own.config, key) for key in changed}, **own.implementations[name]}
    )


def agent_class(name: str) -> type[Any]:
    """The ``Agent`` class of implementation ``name``. Imports torch. TypeError where it lacks what it must have."""
    from models.contract import Agent, EpisodeAgent, InnerAgent, StepAgent

    own = family(name)
    found: type[Any] = importlib.import_module(f"{own.package}.agent").Agent
    needed: dict[type[Any], tuple[str, ...]] = {
        Agent: ("action_kinds", "begin"),
        EpisodeAgent: ("observe", "learn", "main_loss"),
        StepAgent: ("act", "observe", "learn", "learning"),
        InnerAgent: ("with_weights", "select"),
    }
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
    return found


def default_config(name: str, game: str, given: Mapping[str, Any] | None = None) -> Any:
    """The ``config`` of ``name`` on ``game``: the family's defaults <- the implementation's <- what that game needs <-
    the preset that is ``given``, where the family has any. ``game`` may have parameters behind a comma, which change
    none of this. Raises SettingError for a preset that ``name`` has not."""
    own = family(name)
    values = {**own.implementations[name], **own.environment_presets.get((name, game.partition(",")[0]), {})}
    preset = (given or {}).get("preset")
    if own.presets and preset is not None:
        known = [own.config.preset, *(key for key, by_name in own.presets.items() if name in by_name)]
        if preset not in known:
            raise no_choice("preset", preset, known, f" for {name}")
        values |= {"preset": preset, **own.presets.get(preset, {}).get(name, {})}
    return own.config(**values)


def default_configs(name: str, game: str, given: Mapping[str, Any], agent: str) -> tuple[Any, Any]:
    """Settings of the agent and, where ``name`` learns a proxy, of that (else None), before anything given is applied.

    ``given`` may choose a preset; ``agent`` is the one that trains on a proxy. Raises SettingError.
    """
    own = family(name)
    if own.learns_from != "evolution":
        return default_config(name, game, given), None
    agent = named_agents(agent)[0]
    inner = family(agent)
    values = {**own.implementations[name], **own.proxy_defaults(given, game)}
    changes = {key: value for key, value in values.items() if key in kinds(inner.config)}
    proxy = own.config(**{key: value for key, value in values.items() if key in kinds(own.config)})
    return inner.config(**{**inner.implementations[agent], **changes}), proxy
