"""The registry of implementations, the choices of ``--implementation``: all families in models/agents/ and
models/proxies/.

To register a family, create a folder with a ``config.py`` that defines ``FAMILY`` (`models.family.Family`). Only
`agent_class` imports torch.
"""

import dataclasses
import functools
import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from models.family import Family
from models.mixture import Classes, make_mixture, names_in, parts
from models.settings import SettingError, kinds, no_choice, spelt


@functools.cache
def implementations() -> dict[str, Family]:
    """Return implementation name -> family. Implementations that learn a proxy are last."""
    families: dict[str, Family] = {}
    for kind in ("agents", "proxies"):
        for path in sorted((Path(__file__).parent / kind).glob("*/config.py")):
            family_spec: Family = importlib.import_module(f"models.{kind}.{path.parent.name}.config").FAMILY
            for name in family_spec.implementations:
                if name in families:
                    raise RuntimeError(
                        f"implementation {name} is in {families[name].package} and in {family_spec.package}"
                    )
                families[name] = family_spec
    return families


# Names from other libraries and books -> the nearest implementation here, for suggestions in error messages.
_ELSEWHERE = {
    other: name
    for name, aliases in {
        "DDQN": "DQN, double DQN, C51, QR-DQN, IQN, Ape-X DQN, R2D2",
        "DuelingDDQN": "Rainbow, dueling DQN, D3QN",
        "A2C": "A3C, AC, actor-critic",
        "VPG": "REINFORCE, PG, policy gradient, vanilla policy gradient",
        "PPO": "PPO2, APPO, TRPO, IMPALA, ACKTR, ACER",
        "DDPG": "D4PG",
        "SAC": "TQC, REDQ, CrossQ, soft actor-critic",
        "UDRL": "upside-down RL, upside-down, decision transformer, DT",
        "CategoricalLatent": "Dreamer, DreamerV2, DreamerV3",
    }.items()
    for other in aliases.split(", ")
}


def _resolve(name: str) -> str:
    return _ELSEWHERE.get(spelt(name, _ELSEWHERE), name)


def family(name: str) -> Family:
    """Return the family of implementation ``name``. Raises SettingError if there is none."""
    names = implementations()
    if name not in names:
        raise no_choice("implementation", name, names, guess=_resolve(name))
    return names[name]


def as_named(names: str) -> str:
    """Return ``names`` of implementations, separated by commas, in their canonical spelling."""
    return ",".join(spelt(name.strip(), implementations()) for name in names.split(","))


def inner_agents() -> list[str]:
    """Return the names of all agents that can train on a proxy."""
    return [name for name, family_spec in implementations().items() if family_spec.trains_on_proxies]


def named_agents(names: str) -> list[str]:
    """Split ``names`` of agents at commas. Raises SettingError if an agent cannot train on a proxy, and for an empty or
    repeated name."""
    agents = [name.strip() for name in names.split(",")]
    duplicate = next((name for name in agents if agents.count(name) > 1), None)
    if duplicate is not None or "" in agents:
        problem = "has a comma without a name" if "" in agents else f"has {duplicate} twice"
        allowed = f"each of {', '.join(inner_agents())} once"
        raise SettingError(f"agent is {names!r}, which {problem}; allowed: {allowed}", "agent")
    for name in agents:
        if name not in inner_agents():
            resolved = _resolve(name)
            # Agents that learn from whole episodes cannot train on proxies: suggest a similar agent, no similar name.
            other_names = implementations().keys() - set(inner_agents())
            resolved = {"AAC": "A2C", "VPG": "PPO"}.get(resolved, "" if resolved in other_names else resolved)
            raise no_choice("agent", name, inner_agents(), guess=resolved)
    return agents


def families_of(name: str, agent: str) -> list[str]:
    """Return the folder names of all families with settings in a run of ``name``. If ``name`` learns a proxy, they
    include the families of the agents in ``agent``."""
    inner = named_agents(agent) if family(name).learns_from == "evolution" else []
    family_specs = [family(agent_name) for agent_name in (name, *inner)]
    return list(dict.fromkeys(family_spec.package.rpartition(".")[2] for family_spec in family_specs))


def config_classes(agents: Sequence[str]) -> Classes:
    """Return the classes of the settings of ``agents`` without repetition, each with the first agent that has it."""
    classes: dict[type, str] = {}
    for name in agents:
        classes.setdefault(family(name).config, name)
    return tuple((name, config_class) for config_class, name in classes.items())


def by_family(config: Any, agents: Sequence[str]) -> list[tuple[str, dict[str, str], Any]]:
    """Return a tuple for each family among ``agents``: its first agent, field -> name of the field in ``config``, and
    its settings. ``config`` are the joint settings of all ``agents``."""
    classes = config_classes(agents)
    names = names_in(classes)
    return [
        (name, names[config_class], part) for (name, config_class), part in zip(classes, parts(config), strict=True)
    ]


def distinctive(name: str) -> set[str]:
    """Return the settings in which the implementations of a family differ. ``name`` is one of them."""
    return {key for overrides in family(name).implementations.values() for key in overrides}


def config_of(config: Any, name: str, agents: Sequence[str]) -> Any:
    """Return the settings of agent ``name`` from the joint settings ``config`` of all ``agents``.

    If several of ``agents`` share its family, settings that the family's implementations override have the values of
    implementation ``name``.
    """
    family_spec = family(name)
    part = next(part for part in parts(config) if type(part) is family_spec.config)
    if sum(family(other) is family_spec for other in agents) == 1:
        return part
    defaults = {key: getattr(family_spec.config, key) for key in distinctive(name)}
    return dataclasses.replace(part, **{**defaults, **family_spec.implementations[name]})


def agent_class(name: str) -> type[Any]:
    """Return the ``Agent`` class of implementation ``name``. Imports torch. Raises TypeError if the class does not
    satisfy `models.contract`."""
    from models.contract import Agent, EpisodeAgent, InnerAgent, StepAgent

    family_spec = family(name)
    agent: type[Any] = importlib.import_module(f"{family_spec.package}.agent").Agent
    required: dict[type[Any], tuple[str, ...]] = {
        Agent: ("action_kinds", "begin"),
        EpisodeAgent: ("observe", "learn", "main_loss"),
        StepAgent: ("act", "observe", "learn", "learning"),
        InnerAgent: ("with_weights", "select"),
    }
    by_step = InnerAgent if family_spec.trains_on_proxies else StepAgent
    base = EpisodeAgent if family_spec.learns_from == "episodes" else by_step
    where = f"{agent.__module__}.{agent.__name__}"
    if not issubclass(agent, base):
        raise TypeError(f"{where} is no {base.__name__}, but its family learns from {family_spec.learns_from}")
    must = {name: kind for kind, names in required.items() if issubclass(base, kind) for name in names}
    if lacks := [name for name, kind in must.items() if getattr(agent, name, None) is getattr(kind, name, None)]:
        text = f"every {base.__name__} must have {', '.join(must)} (models/contract.py)"
        raise TypeError(f"{where} has no {', '.join(lacks)}; {text}")
    of_config = "schedule" if base is EpisodeAgent else "num_envs"
    if not hasattr(family_spec.config, of_config):
        raise TypeError(f"{family_spec.config.__module__}.Config has no {of_config} (models/family.py)")
    return agent


def default_config(name: str, game: str, choices: Mapping[str, Any] | None = None) -> Any:
    """Return the default settings of ``name`` on ``game``: the family's defaults, overridden by the implementation's,
    the game's and those in the preset of ``choices``, if it has one. Parameters of ``game`` after a comma change no
    defaults. Raises SettingError for a preset that ``name`` does not have."""
    family_spec = family(name)
    values = {
        **family_spec.implementations[name],
        **family_spec.environment_presets.get((name, game.partition(",")[0]), {}),
    }
    preset = (choices or {}).get("preset")
    if family_spec.presets and preset is not None:
        presets = [family_spec.config.preset, *(key for key, by_name in family_spec.presets.items() if name in by_name)]
        if preset not in presets:
            raise no_choice("preset", preset, presets, f" for {name}")
        values |= {"preset": preset, **family_spec.presets.get(preset, {}).get(name, {})}
    return family_spec.config(**values)


def default_configs(name: str, game: str, choices: Mapping[str, Any], agent: str) -> tuple[Any, Any]:
    """Return the default settings of the agents and of the proxy (None if ``name`` learns none).

    ``choices`` may contain a preset. ``agent`` names the agents that train on a proxy, separated by commas. ``PPO_lr``
    in a preset applies only to PPO's family. Raises SettingError for an unknown agent or preset.
    """
    family_spec = family(name)
    if family_spec.learns_from != "evolution":
        return default_config(name, game, choices), None
    agents = named_agents(agent)
    classes = config_classes(agents)
    values: dict[str, Any] = {
        **family_spec.implementations[name],
        **family_spec.proxy_defaults({**choices, "agent": agent}, game),
    }
    if {**values, **choices}.get("agents_take_turns") != "generations":
        for key in ("agents_per_proxy", "second_agents"):  # equally many agents of each kind
            if (values.get(key) or (1 if key == "agents_per_proxy" else len(agents))) % len(agents):
                values[key] = len(agents)
        if len(classes) > 1 and {**values, **choices}.get("strategy") != "nes":  # nes may compare with the mean instead
            values.setdefault("rank_apart", True)
    configs = []
    for first, config_class in classes:
        inner = family(first)
        changes = {key: value for key, value in values.items() if key in kinds(config_class)}
        for other in inner.implementations:
            changes |= {key: values[f"{other}_{key}"] for key in kinds(config_class) if f"{other}_{key}" in values}
        configs.append((first, config_class(**{**inner.implementations[first], **changes})))
    proxy = family_spec.config(**{key: value for key, value in values.items() if key in kinds(family_spec.config)})
    return make_mixture(tuple(configs)), proxy
