"""Which settings there are: those of every run, of an implementation and of a game; and what a misspelt name meant."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from control.cli.settings import COMMAND, COMMANDS, OWN, RunConfig
from models.registry import default_configs, families_of, family, implementations, inner_agents
from models.settings import Kind, SettingError, kinds
from models.vocabulary import DEPTHS, HINTS, WIDTHS, vocabulary

FLAG_ONLY = ("config", "help", "import", "version")


@dataclass(frozen=True)
class Flag:
    """One setting as the command line knows it; ``section`` is its heading in the help."""

    name: str
    kind: Kind
    meta: Mapping[str, Any]
    default: Any
    section: str


def flags(implementation: str, game: str, given: Mapping[str, str] | None = None) -> dict[str, Flag]:
    """Every setting of an implementation by name, with its default on that game, and every parameter of the game.
    ``given`` are words that choose other defaults: ``preset`` and, for a learned proxy, ``proxy`` and ``agent``."""
    given = given or {}
    inner = given.get("agent", RunConfig.agent)
    agent, proxy = default_configs(implementation, game, given, inner)
    commands = {
        f"command.{name}": Flag(f"command.{name}", COMMAND, field.metadata, None, "evaluation")
        for name, field in COMMANDS.items()
    }
    of_agent = _flags_of(agent, f"hyperparameters of {implementation if proxy is None else inner}")
    found = _flags_of(RunConfig()) | commands
    for own in (parameters(game), _flags_of(proxy), of_agent):
        if twice := found.keys() & own.keys() - {*OWN}:
            raise RuntimeError(f"{', '.join(sorted(twice))} of {implementation}: every run has a setting of that name")
        found |= own
    return found


def flags_of_all(game: str) -> dict[str, Flag]:
    """Every setting of every implementation, and every parameter of every game."""
    from envs.names import GAMES

    found = {name: flag for other in GAMES for name, flag in parameters(other).items()}
    return found | {n: flag for implementation in implementations() for n, flag in flags(implementation, game).items()}


def parameters(game: str) -> dict[str, Flag]:
    """The parameters that a name of this game can change (`envs.names`), each with its value in ``game``."""
    from envs.names import GAMES, declared, resolve

    base_name = game.partition(",")[0]
    found = resolve(game) if base_name in GAMES or base_name in declared() else None
    if found is None or found.parameters is None:
        return {}
    section = f"parameters of {found.base_name}, which become part of gamename"
    return _flags_of(found.parameters(**found.in_use()), section)


def for_fresh_agents() -> set[str]:
    """The hyperparameters of agents that can train on a proxy."""
    return {name for agent in inner_agents() for name in kinds(family(agent).config)}


def _flags_of(config: Any, section: str = "") -> dict[str, Flag]:
    """The fields of settings, none of None; each field's own section stands below ``section``."""
    if config is None:
        return {}
    known, found = kinds(type(config)), {}
    for field in fields(config):
        where = ": ".join(filter(None, [section, field.metadata.get("section")]))
        found[field.name] = Flag(field.name, known[field.name], field.metadata, getattr(config, field.name), where)
    return found


def unknown(name: str, known: Mapping[str, Flag], implementation: str, prefix: str, game: str) -> SettingError:
    """The error for a name that is not ``known``: whose setting it is, or which one was meant."""
    from envs.names import games_with

    games = games_with(name) or games_with(name.removeprefix("no_"))
    if games and game:
        here = f"has no effect with gamename {game.partition(',')[0]}"
        return SettingError(f"{prefix}{name} {here}; it is a parameter of {', '.join(games)}")
    owners = [other for other in implementations() if name in flags(other, "")]
    if owners:
        others = ", ".join(owner for owner in owners if owner != implementation)
        here = f"{implementation} with this agent" if implementation in owners else implementation
        return SettingError(f"{prefix}{name} is a setting of {others}, not of {here}")
    if name in FLAG_ONLY:
        return SettingError(f"{prefix}{name} is no setting; allowed only as the flag --{name}")
    if name == "command" or name.startswith("command."):
        return SettingError(f"{prefix}{name} is unknown; allowed: {', '.join(f'command.{key}' for key in COMMANDS)}")
    switches = [f"no_{other}" for other, flag in known.items() if flag.default is True]
    families = families_of(implementation, RunConfig.agent)
    meanings = {other: to for other, to in (HINTS | vocabulary(families, known)).items() if to in known}
    meanings |= dict.fromkeys([*WIDTHS, *DEPTHS], "hidden_sizes") if "hidden_sizes" in known else {}
    meanings |= {other: other for other in [*known, *switches, *(FLAG_ONLY if prefix == "--" else ())]}
    close = difflib.get_close_matches(name.lower(), meanings, n=1, cutoff=0.6)
    dashes = "--" if prefix == "--" else ""
    hint = f"; did you mean '{dashes}{meanings[close[0]]}'?" if close else "; see --help"
    return SettingError(f"{prefix}{name} is unknown{hint}")
