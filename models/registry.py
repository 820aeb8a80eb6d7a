"""Everything ``--implementation`` takes: the families in the folders of models/agents/ and models/proxies/.

A folder with a ``config.py`` that ends in ``FAMILY`` is enough (`models.family.Family`). Imports no torch, except for
`agent_class`.
"""

import dataclasses
import functools
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from models.family import Family
from models.mixture import Classes, names_in, parts, together
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


# Nearest implementations to names from other libraries and books.
_ELSEWHERE = {other: ours for ours, others in {
    "DDQN": "DQN, double DQN, C51, QR-DQN, IQN, Ape-X DQN, R2D2",
    "DuelingDDQN": "Rainbow, dueling DQN, D3QN",
    "A2C": "A3C, AC, actor-critic",
    "VPG": "REINFORCE, PG, policy gradient, vanilla policy gradient",
    "PPO": "PPO2, APPO, TRPO, IMPALA, ACKTR, ACER",
    "DDPG": "D4PG",
    "SAC": "TQC, REDQ, CrossQ, soft actor-critic",
    "UDRL": "upside-down RL, upside-down, decision transformer, DT",
    "CategoricalLatent": "Dreamer, DreamerV2, DreamerV3",
}.items() for other in others.split(", ")}  # fmt: skip


def _meant(name: str) -> str:
    return _ELSEWHERE.get(spelt(name, _ELSEWHERE), name)


def family(name: str) -> Family:
    """The family that has implementation ``name``; SettingError when there is none."""
    known = implementations()
    if name not in known:
        raise no_choice("implementation", name, known, meant=_meant(name))
    return known[name]


def as_named(names: str) -> str:
    """``names`` of implementations, separated by commas, in their canonical spelling."""
    return ",".join(spelt(name.strip(), implementations()) for name in names.split(","))


def inner_agents() -> list[str]:
    """The agents that can train on a proxy."""
    return [name for name, own in implementations().items() if own.trains_on_proxies]


def named_agents(names: str) -> list[str]:
    """The agents in ``names``, separated by commas. Raises SettingError for an agent that cannot train on a proxy, and
    for a repeated name."""
    found = [name.strip() for name in names.split(",")]
    twice = next((name for name in found if found.count(name) > 1), None)
    if twice is not None or "" in found:
        problem = "has a comma without a name" if "" in found else f"has {twice} twice"
        allowed = f"each of {', '.join(inner_agents())} once"
        raise SettingError(f"agent is {names!r}, which {problem}; allowed: {allowed}", "agent")
    for name in found:
        if name not in inner_agents():
            meant = _meant(name)
            # Agents that learn from whole episodes cannot train on proxies: suggest a similar agent, no similar name.
            others = implementations().keys() - set(inner_agents())
            meant = {"AAC": "A2C", "VPG": "PPO"}.get(meant, "" if meant in others else meant)
            raise no_choice("agent", name, inner_agents(), meant=meant)
    return found


def families_of(name: str, agent: str) -> list[str]:
    """The folders of the families whose settings a run of ``name`` has, including its agents if it learns a proxy."""
    inner = named_agents(agent) if family(name).learns_from == "evolution" else []
    own = [family(each) for each in (name, *inner)]
    return list(dict.fromkeys(one.package.rpartition(".")[2] for one in own))


def config_classes(agents: Sequence[str]) -> Classes:
    """The classes of the settings of these agents, each with the first of them that has it."""
    found: dict[type, str] = {}
    for name in agents:
        found.setdefault(family(name).config, name)
    return tuple((name, one) for one, name in found.items())


def by_family(config: Any, agents: Sequence[str]) -> list[tuple[str, dict[str, str], Any]]:
    """Of each family of the ``agents``: the first of them, field -> its name in ``config``, and the settings."""
    classes = config_classes(agents)
    names = names_in(classes)
    return [(name, names[one], own) for (name, one), own in zip(classes, parts(config), strict=True)]


def distinctive(name: str) -> set[str]:
    """The settings that tell the implementations of a family apart, of which ``name`` is one."""
    return {key for overrides in family(name).implementations.values() for key in overrides}


def config_of(config: Any, name: str, agents: Sequence[str]) -> Any:
    """The settings of agent ``name``, taken from the joint settings of all ``agents``: with the overrides of this
    implementation, and without those of the others."""
    own = family(name)
    found = next(part for part in parts(config) if type(part) is own.config)
    if sum(family(other) is own for other in agents) == 1:
        return found
    usual = {key: getattr(own.config, key) for key in distinctive(name)}
    return dataclasses.replace(found, **{**usual, **own.implementations[name]})


def agent_class(name: str) -> type[Any]:
    """The ``Agent`` class of implementation ``name``. Imports torch. Raises TypeError if it does not satisfy
    `models.contract`."""
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
    """The ``config`` of ``name`` on ``game``. Defaults of the family are overridden by the implementation, the game,
    and the ``given`` preset, if there is one. Parameters of ``game`` after a comma change no defaults. Raises
    SettingError for a preset that ``name`` does not have."""
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
    """Default settings of the agents and of the proxy (None if ``name`` learns none).

    ``given`` may choose a preset; ``agent`` names the agents that train on a proxy. ``PPO_lr`` in a preset applies to
    that family alone. Raises SettingError.
    """
    own = family(name)
    if own.learns_from != "evolution":
        return default_config(name, game, given), None
    agents = named_agents(agent)
    classes = config_classes(agents)
    values: dict[str, Any] = {**own.implementations[name], **own.proxy_defaults({**given, "agent": agent}, game)}
    if {**values, **given}.get("agents_take_turns") != "generations":
        for key in ("agents_per_proxy", "second_agents"):  # each kind of agent as often as the others
            if (values.get(key) or (1 if key == "agents_per_proxy" else len(agents))) % len(agents):
                values[key] = len(agents)
        if len(classes) > 1 and {**values, **given}.get("strategy") != "nes":  # which may compare with the mean
            values.setdefault("rank_apart", True)
    configs = []
    for first, one in classes:
        inner = family(first)
        changes = {key: value for key, value in values.items() if key in kinds(one)}
        for other in inner.implementations:
            changes |= {key: values[f"{other}_{key}"] for key in kinds(one) if f"{other}_{key}" in values}
        configs.append((first, one(**{**inner.implementations[first], **changes})))
    proxy = own.config(**{key: value for key, value in values.items() if key in kinds(own.config)})
    return together(tuple(configs)), proxy
