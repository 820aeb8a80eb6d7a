"""The available settings: of every run, of an implementation and of a game; and suggestions for misspelt names."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from control.cli.settings import CHOOSING, COMMAND, COMMANDS, OWN, RunConfig, agents_of
from models.mixture import shared
from models.registry import default_configs, families_of, family, implementations, inner_agents
from models.settings import Kind, SettingError, closest, kinds
from models.vocabulary import DEPTHS, HINTS, WIDTHS, vocabulary

FLAG_ONLY = ("config", "help", "import", "version")
_ELSEWHERE = {
    "env_kwargs": "register an id with these arguments in a module of yours, and give --gamename my_module:MyEnv-v0"
}


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
    inner = agents_of(implementation, game, given)
    agent, proxy = default_configs(implementation, game, given, inner)
    commands = {
        f"command.{name}": Flag(f"command.{name}", COMMAND, field.metadata, None, "evaluation")
        for name, field in COMMANDS.items()
    }
    section = f"hyperparameters of {implementation if proxy is None else inner}"
    of_agent = _of_all(agent, section) | _flags_of(agent, section)
    found = _flags_of(RunConfig(agent=inner)) | commands
    for own in (parameters(game), _flags_of(proxy), of_agent):
        if twice := found.keys() & own.keys() - {*OWN}:
            raise RuntimeError(f"{', '.join(sorted(twice))} of {implementation}: every run has a setting of that name")
        found |= own
    return found


def chosen_flags(implementation: str, game: str, values: Mapping[str, Any]) -> dict[str, Flag]:
    """`flags` with the defaults that depend on some of ``values``, such as the preset. Settings that choose defaults
    keep their usual default."""
    chosen = {name: values[name] for name in CHOOSING if name in values}
    plain, found = flags(implementation, game), flags(implementation, game, chosen)
    found |= {name: plain[name] for name in CHOOSING if name in plain}
    agent = agents_of(implementation, game, {name: value for name, value in chosen.items() if name != "agent"})
    return found | {"agent": replace(found["agent"], default=agent)}


def _of_all(agents: Any, section: str) -> dict[str, Flag]:
    """Settings that apply to several families at once, with their common default, if there is one."""
    own, found = _flags_of(agents, section), {}
    for name, names in shared(agents).items() if agents is not None else ():
        first = own[names[0]]
        default = first.default if all(own[other].default == first.default for other in names) else None
        meta = {**first.meta, "help": f"{' and '.join(names)} at once"}
        found[name] = Flag(name, first.kind, meta, default, section)
    return found


def flags_of_all(game: str) -> dict[str, Flag]:
    """Every setting of every implementation, and every parameter of every game."""
    from envs.names import GAMES

    found = {name: flag for other in GAMES for name, flag in parameters(other).items()}
    inner = {"agent": RunConfig.agent}  # so that no environment has to be made to choose agents
    found |= {n: flag for one in implementations() for n, flag in flags(one, game, inner).items()}
    for agent in inner_agents():
        own = _flags_of(family(agent).config(), f"hyperparameters of {agent}")
        found |= {f"{agent}_{name}": replace(flag, name=f"{agent}_{name}") for name, flag in own.items()}
    return found


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
    """The hyperparameters of agents that can train on a proxy, by their names and by those in company."""
    own = {agent: kinds(family(agent).config) for agent in inner_agents()}
    return {called for agent, names in own.items() for name in names for called in (name, f"{agent}_{name}")}


def for_evaluation() -> set[str]:
    """`for_fresh_agents`, and the parameters of every environment, in which a checkpoint may be evaluated."""
    from envs.names import GAMES, declared, resolve

    return for_fresh_agents() | {name for game in (*GAMES, *declared()) for name in resolve(game).in_use()}


def _flags_of(config: Any, section: str = "") -> dict[str, Flag]:
    """The flags of a config's fields (none for None), with their sections below ``section``."""
    if config is None:
        return {}
    known, found = kinds(type(config)), {}
    for field in fields(config):
        where = ": ".join(filter(None, [section, field.metadata.get("section")]))
        found[field.name] = Flag(field.name, known[field.name], field.metadata, getattr(config, field.name), where)
    return found


def of_other_games(name: str, game: str, prefix: str = "--") -> SettingError:
    """The error for a parameter (or ``no_`` and its name) that the ``game`` has not."""
    from envs.names import games_with

    others = ", ".join(games_with(name) or games_with(name.removeprefix("no_")))
    here = f"has no effect with gamename {game.partition(',')[0]}"
    return SettingError(f"{prefix}{name} {here}; it is a parameter of {others}")


def unknown(name: str, known: Mapping[str, Flag], implementation: str, prefix: str, game: str) -> SettingError:
    """The error for a name that is not ``known``: whose setting it is, or which one was meant."""
    from envs.names import games_with

    if game and (games_with(name) or games_with(name.removeprefix("no_"))):
        return of_other_games(name, game, prefix)
    owners = [other for other in implementations() if name in flags(other, "")]
    if owners:
        others = ", ".join(owner for owner in owners if owner != implementation)
        here = f"{implementation} with this agent" if implementation in owners else implementation
        return SettingError(f"{prefix}{name} is a setting of {others}, not of {here}")
    if name in FLAG_ONLY:
        return SettingError(f"{prefix}{name} is no setting; allowed only as the flag --{name}")
    if name == "command" or name.startswith("command."):
        return SettingError(f"{prefix}{name} is unknown; allowed: {', '.join(f'command.{key}' for key in COMMANDS)}")
    if name in _ELSEWHERE:
        return SettingError(f"{prefix}{name} is unknown; {_ELSEWHERE[name]}")
    switches = [f"no_{other}" for other, flag in known.items() if flag.default is True]
    families = families_of(implementation, known["agent"].default)
    meanings = {other: to for other, to in (HINTS | vocabulary(families, known)).items() if to in known}
    meanings |= dict.fromkeys([*WIDTHS, *DEPTHS], "hidden_sizes") if "hidden_sizes" in known else {}
    meanings |= {other: other for other in [*known, *switches, *(FLAG_ONLY if prefix == "--" else ())]}
    owner, _, own = name.partition("_")
    close = own if owner in implementations() and own in known else closest(name, meanings)
    dashes = "--" if prefix == "--" else ""
    hint = f"; did you mean '{dashes}{meanings[close]}'?" if close else "; see --help"
    return SettingError(f"{prefix}{name} is unknown{hint}")
