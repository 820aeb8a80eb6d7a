"""The settings that exist for a command, an implementation and a game, as flags. Also errors for misspelt names."""

import shlex
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

from control.cli.run_settings import COMMANDS, RETURN_COMMANDS, RunConfig
from control.cli.settings import Settings, agents_of, as_dict, defaults_for, end_setting
from control.cli.words import Flag, Flags, as_word, command_flags, flags_of
from models.mixture import shared_settings
from models.registry import families_of, implementations
from models.settings import SettingError, closest
from models.vocabulary import DEPTHS, HINTS, WIDTHS, vocabulary

FLAG_ONLY = ("config", "help", "import", "version")
_COUNTERPARTS = {"start_from": "teacher"}  # setting of an implementation -> similar flag of a command, for messages


def flags(
    implementation: str, game: str = RunConfig.gamename, choices: Mapping[str, str] | None = None
) -> dict[str, Flag]:
    """Return name -> `Flag` for every setting of an implementation and every parameter of the game, with the defaults
    for this game. ``choices`` are values of other settings that decide defaults, such as ``preset`` and ``agent``."""
    return flags_of_settings(defaults_for({**(choices or {}), "implementation": implementation, "gamename": game}))


def flags_of_settings(defaults: Settings) -> dict[str, Flag]:
    """Return name -> `Flag` for all settings in ``defaults``, of every command and of the game, with default values."""
    run, agent, proxy = defaults.run, defaults.agent, defaults.proxy
    agent_name = run.implementation if proxy is None else run.agent
    section = f"hyperparameters of {agent_name}"
    agent_flags = flags_of(agent, section)
    # Settings of agents of several families at once, such as ``lr`` for ``DDQN_lr`` and ``PPO_lr``. They have the
    # default of the families, or None if their defaults differ.
    shared_flags: dict[str, Flag] = {}
    for name, prefixed_names in shared_settings(agent).items():
        first, *others = [agent_flags[prefixed] for prefixed in prefixed_names]
        default = first.default if all(other.default == first.default for other in others) else None
        meta = {**first.meta, "help": f"{' and '.join(prefixed_names)} at once"}
        shared_flags[name] = Flag(name, first.type, meta, default, section)
    # Of a run's settings, only these have defaults that depend on other settings.
    all_flags = {**flags_of(RunConfig(agent=run.agent, epochs=run.epochs)), **command_flags()}
    for command_class in COMMANDS.values():
        all_flags |= flags_of(command_class())
    return {**all_flags, **parameters(run.gamename), **flags_of(proxy), **shared_flags, **agent_flags}


def command_line(settings: Settings, without: Container[str] = ()) -> str:
    """Return the shell command that runs these settings, such as ``python trainer.py --implementation PPO ...``. It has
    the settings that identify a run, such as ``seed`` (their property ``identity``), and the settings that differ from
    their defaults, except names in ``without``."""
    run, values = settings.run, as_dict(settings)
    values |= {f"command.{name}": value for name, value in values.pop("command").items()}
    valid_flags = flags_for_values(run.implementation, run.gamename, values)
    words = ["python trainer.py"]
    for name, value in values.items():
        is_implied = name == end_setting(run.implementation) and value is None  # such as null epochs with `total_steps`
        if is_implied or name in without:
            continue
        flag = valid_flags[name]
        if flag.meta["identity"] or as_word(value) != as_word(flag.default):
            items = value if isinstance(value, list) else [value]
            words += [f"--{name}", *(shlex.quote(as_word(item)) for item in items)]
    return " ".join(words)


def flags_for_values(implementation: str, game: str, values: Mapping[str, Any]) -> dict[str, Flag]:
    """Return name -> `Flag` for every setting of a run with the chosen ``values`` (setting -> value).

    Some settings, such as ``preset``, ``proxy`` and ``agent``, decide the defaults of others. The other flags have the
    defaults that follow from the ``values`` of these settings. The deciding flags have the defaults of a run without
    flags, except for ``agent``, whose default follows from the preset.
    """
    deciding_flags = {name: flag for name, flag in flags(implementation, game).items() if flag.meta["chooses"]}
    choices = {name: values[name] for name in deciding_flags if name in values}
    all_flags = {**flags(implementation, game, choices), **deciding_flags}
    # `flags` cannot tell the default agents of a preset that is made for several agents together, such as "broad".
    choices_without_agent = {name: value for name, value in choices.items() if name != "agent"}
    default_agents = agents_of(implementation, game, choices_without_agent)
    all_flags["agent"] = replace(all_flags["agent"], default=default_agents)
    return all_flags


def parameters(game: str) -> dict[str, Flag]:
    """Return name -> `Flag` for the parameters of an environment, such as ``grid_size``. Defaults are the values in its
    name, as in ``procmaze,grid_size=5``, or else the usual ones. Empty for a game without parameters."""
    from envs.names import GAMES, resolve

    base_name, _, _ = game.partition(",")
    parameters_class = GAMES[base_name].parameters if base_name in GAMES else None
    if parameters_class is None:
        return {}
    section = f"parameters of {base_name}, which become part of gamename"
    return flags_of(parameters_class(**resolve(game).parameter_values()), section)


def unknown_error(name: str, valid_flags: Flags, implementation: str, prefix: str, game: str) -> SettingError:
    """Return the error for a name that is not in ``valid_flags``. It says which game or implementation has the setting,
    that the name exists only as a flag, which ``command.return`` etc. exist, or suggests a similar name. The message
    begins with ``prefix``: ``--`` for a flag, ``FILE: `` for a file, "" for a keyword. An empty ``game`` has no
    parameters."""
    from envs.names import games_with

    games = games_with(name.removeprefix("no_"))  # the games that have a parameter with this name
    base_name, _, _ = game.partition(",")
    if game and games and base_name not in games:
        problem = f"has no effect with gamename {base_name}; it is a parameter of {', '.join(games)}"
        return SettingError(f"{prefix}{name} {problem}")
    owners = [other for other in implementations() if _has_setting(other, name)]
    if owners:
        other_owners = ", ".join(owner for owner in owners if owner != implementation)
        # An implementation that learns a proxy may have the setting only with another agent.
        subject = f"{implementation} with this agent" if implementation in owners else implementation
        counterpart = valid_flags.get(_COUNTERPARTS.get(name, ""))
        hint = f"; with --{counterpart.command}, it is --{counterpart.name}" if counterpart else ""
        return SettingError(f"{prefix}{name} is a setting of {other_owners}, not of {subject}{hint}")
    if name in FLAG_ONLY:
        return SettingError(f"{prefix}{name} is no setting; allowed only as the flag --{name}")
    if name == "command" or name.startswith("command."):
        commands = ", ".join(f"command.{key}" for key in RETURN_COMMANDS)
        return SettingError(f"{prefix}{name} is unknown; allowed: {commands}")
    dashes = "--" if prefix == "--" else ""
    similar_setting = _similar_setting(name, valid_flags, implementation, FLAG_ONLY if dashes else ())
    hint = f"; did you mean '{dashes}{similar_setting}'?" if similar_setting else "; see --help"
    return SettingError(f"{prefix}{name} is unknown{hint}")


def _has_setting(implementation: str, name: str) -> bool:
    """Return whether an ``implementation`` has a setting with this name or alias."""
    its_flags = flags(implementation, choices={"agent": RunConfig.agent})
    return vocabulary(families_of(implementation, RunConfig.agent), its_flags).get(name, name) in its_flags


def _similar_setting(name: str, valid_flags: Flags, implementation: str, other_names: Sequence[str]) -> str | None:
    """Return the setting that the user may mean with the unknown ``name``, such as ``discount`` for ``gama``, maybe
    with a value. It is in ``valid_flags`` or ``other_names``. Return None if no name or alias is similar."""
    agent, _, setting = name.partition("_")
    if agent in implementations() and setting in valid_flags:  # PPO_lr exists only in runs of several agents
        return setting
    aliases = dict(vocabulary(families_of(implementation, valid_flags["agent"].default), valid_flags))
    if name in HINTS:
        aliases[name] = HINTS[name]
    aliases |= dict.fromkeys([*WIDTHS, *DEPTHS], "hidden_sizes")
    suggestions: dict[str, str] = {}  # name or alias -> the setting to suggest for it
    for alias, suggestion in aliases.items():
        if suggestion.partition(" ")[0] in valid_flags:  # a value may follow, as in "accelerator gpu"
            suggestions[alias] = suggestion
    negations = [f"no_{flag.name}" for flag in valid_flags.values() if flag.default is True]
    suggestions |= {original: original for original in [*valid_flags, *negations, *other_names]}
    similar_name = closest(name, suggestions)
    return suggestions[similar_name] if similar_name else None
