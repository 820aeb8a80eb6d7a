"""The registry of all families in models/agents/ and models/proxies/. A family is a folder with the code and settings
of related algorithms. An implementation is one of these algorithms: DDQN and DuelingDDQN are implementations of the
family ddqn. The names of implementations are the choices of ``--implementation``.

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
from models.mixture import Classes, family_configs, make_mixture, names_in
from models.settings import SettingError, choice_error, field_types, match_spelling


@functools.cache
def implementations() -> dict[str, Family]:
    """Return implementation -> its family, such as ``{"DDQN": Family(...), "DuelingDDQN": Family(...), ...}``, from the
    ``config.py`` of all families. Implementations that learn a proxy (an environment or reward) are last."""
    families: dict[str, Family] = {}
    for kind in ("agents", "proxies"):
        for path in sorted((Path(__file__).parent / kind).glob("*/config.py")):
            family_spec: Family = importlib.import_module(f"models.{kind}.{path.parent.name}.config").FAMILY
            families |= dict.fromkeys(family_spec.implementations, family_spec)
    return families


def family(name: str) -> Family:
    """Return the family of implementation ``name``. Raises SettingError if there is no such implementation."""
    families = implementations()
    if name not in families:
        raise choice_error("implementation", name, families)
    return families[name]


def canonical_names(names: str) -> str:
    """Return ``names`` of implementations in their usual spelling: ``ppo, ddqn`` becomes ``PPO,DDQN``. Unknown names
    are kept."""
    return ",".join(match_spelling(name.strip(), implementations()) for name in names.split(","))


def inner_agents() -> list[str]:
    """Return the names of all agents that can train on a proxy."""
    return [name for name, family_spec in implementations().items() if family_spec.trains_on_proxies]


def parse_agents(names: str) -> list[str]:
    """Split the value of the setting ``agent``, such as "PPO,DDQN", into names of inner agents, which train on a proxy
    (a learned environment or reward). Raises SettingError for an agent that cannot train on a proxy, and for an empty
    or repeated name."""
    agents = [name.strip() for name in names.split(",")]
    duplicates = [name for name in agents if agents.count(name) > 1]
    if duplicates or "" in agents:
        problem = "has an empty name" if "" in agents else f"has {duplicates[0]} twice"
        allowed = f"each of {', '.join(inner_agents())} once"
        raise SettingError(f"agent is {names!r}, which {problem}; allowed: {allowed}", "agent")
    for name in agents:
        if name not in inner_agents():
            raise choice_error("agent", name, inner_agents())
    return agents


def families_of(name: str, agent: str) -> list[str]:
    """Return the folder names of the families whose settings belong to a run of implementation ``name``, such as
    ``["ddqn"]``. If ``name`` learns a proxy, they include the families of the inner agents in ``agent`` ("PPO,DDQN"),
    which train on the proxy. No family is repeated."""
    inner_names = parse_agents(agent) if family(name).learns_from == "evolution" else []
    packages = [family(implementation).package for implementation in (name, *inner_names)]
    folders = [package.rpartition(".")[2] for package in packages]  # models.agents.ddqn -> ddqn
    return list(dict.fromkeys(folders))


def config_classes(agents: Sequence[str]) -> Classes:
    """Return a pair for each family of ``agents``: its first agent, and the class of its settings. For DDQN,
    DuelingDDQN and PPO, these are ``(("DDQN", ddqn.Config), ("PPO", ppo.Config))``."""
    first_agents: dict[type, str] = {}
    for name in agents:
        first_agents.setdefault(family(name).config, name)
    return tuple((first_agent, config_class) for config_class, first_agent in first_agents.items())


def family_parts(config: Any, agents: Sequence[str]) -> list[tuple[str, dict[str, str], Any]]:
    """Split the joint settings ``config`` of all ``agents`` (`models.mixture`) by family. Return three items for each
    family: its first agent; the names of its fields in ``config``, such as ``{"lr": "PPO_lr"}``; its settings."""
    names_by_class = names_in(config_classes(agents))
    parts = []
    for (first_agent, config_class), family_config in zip(config_classes(agents), family_configs(config), strict=True):
        parts.append((first_agent, names_by_class[config_class], family_config))
    return parts


def overridden_names(name: str) -> set[str]:
    """Return the settings whose defaults differ between the implementations in the family of ``name``: DDPG and TD3,
    for example, differ in ``policy_delay``."""
    return set().union(*family(name).implementations.values())  # keys of the overrides of each implementation


def config_of(config: Any, name: str, agents: Sequence[str]) -> Any:
    """Return the settings of agent ``name`` from the joint settings ``config`` of all ``agents``.

    Agents of one family, such as DDQN and DuelingDDQN, have the same values in ``config``. If there are several of
    them, the settings that tell them apart (`overridden_names`) get the default values of implementation ``name``.
    """
    family_spec = family(name)
    (family_config,) = [other for other in family_configs(config) if type(other) is family_spec.config]
    agents_of_family = [other for other in agents if family(other) is family_spec]
    if len(agents_of_family) == 1:
        return family_config
    defaults = {setting_name: getattr(family_spec.config, setting_name) for setting_name in overridden_names(name)}
    defaults |= family_spec.implementations[name]
    return dataclasses.replace(family_config, **defaults)


def agent_class(name: str) -> type[Any]:
    """Return the ``Agent`` class of implementation ``name`` (`models.contract`). Imports torch."""
    agent: type[Any] = importlib.import_module(f"{family(name).package}.agent").Agent
    return agent


def default_config(name: str, game: str, choices: Mapping[str, Any] | None = None) -> Any:
    """Return the default settings of implementation ``name`` on ``game``. A source in this list overrides the sources
    before it:

    - the family's defaults,
    - ``implementations[name]`` of the family,
    - its ``game_defaults`` of the game,
    - its ``environment_presets`` of this implementation and game,
    - its ``presets``, if ``choices``, the settings that the user has chosen, contain a ``preset``,
    - its ``environment_presets`` of this implementation, game and preset.

    ``game`` may have parameters after a comma ("procmaze,grid_size=5"), which change no defaults. Raises SettingError
    for a preset that ``name`` does not have.
    """
    family_spec = family(name)
    game_name = game.partition(",")[0]
    values = {**family_spec.implementations[name], **family_spec.game_defaults.get(game_name, {})}
    values |= family_spec.environment_presets.get((name, game_name), {})
    preset = (choices or {}).get("preset")
    if family_spec.presets and preset is not None:
        allowed_presets = [family_spec.config.preset]  # the default preset changes nothing, and is not in ``presets``
        allowed_presets += [key for key, overrides in family_spec.presets.items() if name in overrides]
        if preset not in allowed_presets:
            raise choice_error("preset", preset, allowed_presets, f" for {name}")
        values["preset"] = preset
        if preset in family_spec.presets:
            values |= family_spec.presets[preset][name]
            values |= family_spec.environment_presets.get((name, game_name, preset), {})
    return family_spec.config(**values)


def search_defaults(name: str, game: str, choices: Mapping[str, Any], agent: str) -> tuple[Any, Any]:
    """Return the default settings of implementation ``name``, which learns a proxy (a learned environment or reward) of
    ``game``, as two objects: the joint settings of the inner agents, which train on the proxy (`make_mixture`), and the
    settings of the proxy.

    ``choices`` are the settings that the user has chosen, such as a preset. ``agent`` names the inner agents
    ("PPO,DDQN"). A setting such as ``PPO_lr`` in a preset applies only to the family of PPO. Raises SettingError for an
    unknown agent or preset.
    """
    family_spec = family(name)
    agents = parse_agents(agent)
    values: dict[str, Any] = dict(family_spec.implementations[name])
    values |= family_spec.proxy_defaults({**choices, "agent": agent}, game)
    if len(agents) > 1:
        values |= _defaults_for_several_agents(agents, values, {**values, **choices}, family_spec.config)
    configs = tuple((agent, _family_config(agent, game, values)) for agent, _ in config_classes(agents))
    proxy_values = {field: value for field, value in values.items() if field in field_types(family_spec.config)}
    return make_mixture(configs), family_spec.config(**proxy_values)


def _defaults_for_several_agents(
    agents: Sequence[str], values: Mapping[str, Any], chosen_values: Mapping[str, Any], config_class: type
) -> dict[str, Any]:
    """Return setting -> default for settings of a search whose defaults depend on its number of ``agents``.

    ``config_class`` is the class of the search's settings. ``values`` are the defaults for the implementation and
    game that differ from the class. ``chosen_values`` are ``values``, overridden by the user's choices."""
    if chosen_values.get("agents_take_turns") == "generations":
        return {}
    defaults: dict[str, Any] = {}
    # Each implementation trains the same number of agents on a proxy, so their sum is a multiple of len(agents).
    for setting_name in ("agents_per_proxy", "second_agents"):
        num_agents = values.get(setting_name, getattr(config_class, setting_name))
        if num_agents is not None and num_agents % len(agents) > 0:
            defaults[setting_name] = len(agents)
    # Some score transforms of nes compare a score with the mean, which is not possible with ``rank_apart``.
    has_several_families = len(config_classes(agents)) > 1
    if has_several_families and chosen_values.get("strategy") != "nes" and "rank_apart" not in values:
        defaults["rank_apart"] = True
    return defaults


def _family_config(agent: str, game: str, values: Mapping[str, Any]) -> Any:
    """Return the default settings of implementation ``agent`` for training on a proxy of ``game``. ``values`` (setting
    -> value) override them; settings that the agent's family does not have are ignored. A value for an implementation
    of the family (``PPO_lr``) takes precedence over a general value (``lr``)."""
    family_spec = family(agent)
    game_name = game.partition(",")[0]  # name without parameters
    config_values = {**family_spec.implementations[agent], **family_spec.defaults_on_proxies}
    config_values |= family_spec.game_defaults.get(game_name, {})
    for prefix in ("", *(f"{implementation}_" for implementation in family_spec.implementations)):
        for field in field_types(family_spec.config):  # first ``lr``, later ``PPO_lr``, which replaces its value
            if prefix + field in values:
                config_values[field] = values[prefix + field]
    return family_spec.config(**config_values)
