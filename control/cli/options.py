"""Lists of the available settings for a run, an implementation and a game; and suggestions for misspelt names."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from control.cli.run_settings import COMMANDS, Command
from control.cli.settings import COMMAND, RETURN_COMMANDS, RunConfig, agents_of
from models.mixture import shared_settings
from models.registry import agent_and_proxy_defaults, families_of, family, implementations, inner_agents
from models.settings import Kind, SettingError, closest, kinds, names_with
from models.vocabulary import DEPTHS, HINTS, WIDTHS, vocabulary

FLAG_ONLY = ("config", "help", "import", "version")
_ELSEWHERE = {
    "env_kwargs": "register an id with these arguments in a module of yours, and give --gamename my_module:MyEnv-v0"
}


@dataclass(frozen=True)
class Flag:
    """One setting as the command line knows it; ``section`` is its heading in the help. ``owner`` is the class of the
    config that has it, None for a returned command."""

    name: str
    kind: Kind
    meta: Mapping[str, Any]
    default: Any
    section: str
    owner: type | None = None

    @property
    def command(self) -> str:
        """The flag of the command that this setting belongs to; "" for training."""
        return self.owner.flag if self.owner is not None and issubclass(self.owner, Command) else ""

    @property
    def required_flags(self) -> str:
        """The flags of which it needs one to have an effect, as text; "" if it needs none."""
        return " or ".join(f"--{name}" for name in self.meta["needs"])


def flags(implementation: str, game: str, choices: Mapping[str, str] | None = None) -> dict[str, Flag]:
    """Return name -> `Flag` for every setting of an implementation and every parameter of the game. Defaults are for
    this game. ``choices`` select other defaults: ``preset`` and, for a learned proxy, ``proxy``, ``agent`` and
    ``mode``. Raises RuntimeError if two declarations have one name."""
    choices = choices or {}
    inner = agents_of(implementation, game, choices)
    agent, proxy = agent_and_proxy_defaults(implementation, game, choices, inner)
    commands = {
        f"command.{name}": Flag(f"command.{name}", COMMAND, field.metadata, None, "evaluation")
        for name, field in RETURN_COMMANDS.items()
    }
    section = f"hyperparameters of {implementation if proxy is None else inner}"
    of_agent = _of_all(agent, section) | flags_of(agent, section)
    all_flags = flags_of(RunConfig(agent=inner)) | commands
    for command_class in COMMANDS.values():
        all_flags |= flags_of(command_class())
    for flag_group in (parameters(game), flags_of(proxy), of_agent):
        if duplicates := all_flags.keys() & flag_group.keys() - names_with(RunConfig, "family_default"):
            raise RuntimeError(
                f"{', '.join(sorted(duplicates))} of {implementation}: every run has a setting of that name"
            )
        all_flags |= flag_group
    return all_flags


def chosen_flags(implementation: str, game: str, values: Mapping[str, Any]) -> dict[str, Flag]:
    """`flags` with the defaults that depend on some of ``values``, such as the preset. Settings that choose defaults
    keep their usual default."""
    plain = flags(implementation, game)
    choosing = {name: flag for name, flag in plain.items() if flag.meta["chooses"]}
    choices = {name: values[name] for name in choosing if name in values}
    all_flags = flags(implementation, game, choices) | choosing
    agent = agents_of(implementation, game, {name: value for name, value in choices.items() if name != "agent"})
    return all_flags | {"agent": replace(all_flags["agent"], default=agent)}


def _of_all(agents: Any, section: str) -> dict[str, Flag]:
    """Settings that apply to several families at once, with their common default, if there is one."""
    agent_flags, shared_flags = flags_of(agents, section), {}
    for name, names in shared_settings(agents).items() if agents is not None else ():
        first = agent_flags[names[0]]
        default = first.default if all(agent_flags[other].default == first.default for other in names) else None
        meta = {**first.meta, "help": f"{' and '.join(names)} at once"}
        shared_flags[name] = Flag(name, first.kind, meta, default, section)
    return shared_flags


def flags_of_all(game: str) -> dict[str, Flag]:
    """Return every setting of every implementation and every parameter of every game, as `flags` does. Settings of
    agents that train on proxies also have their names with a prefix, such as ``PPO_lr``."""
    from envs.names import GAMES

    all_flags = {name: flag for other in GAMES for name, flag in parameters(other).items()}
    inner = {"agent": RunConfig.agent}  # else an environment would be built to choose the agents
    all_flags |= {
        n: flag for implementation in implementations() for n, flag in flags(implementation, game, inner).items()
    }
    for agent in inner_agents():
        agent_flags = flags_of(family(agent).config(), f"hyperparameters of {agent}")
        all_flags |= {f"{agent}_{name}": replace(flag, name=f"{agent}_{name}") for name, flag in agent_flags.items()}
    return all_flags


def parameters(game: str) -> dict[str, Flag]:
    """Return the parameters that the name of this game can set (`envs.names`), with their values in ``game`` as
    defaults."""
    from envs.names import GAMES, declared_games, resolve

    base_name = game.partition(",")[0]
    resolved_game = resolve(game) if base_name in GAMES or base_name in declared_games() else None
    if resolved_game is None or resolved_game.parameters is None:
        return {}
    section = f"parameters of {resolved_game.base_name}, which become part of gamename"
    return flags_of(resolved_game.parameters(**resolved_game.parameter_values()), section)


def for_fresh_agents() -> set[str]:
    """Return the hyperparameters of all agents that can train on a proxy, with and without prefix: ``lr``,
    ``PPO_lr``."""
    kinds_by_agent = {agent: kinds(family(agent).config) for agent in inner_agents()}
    return {called for agent, names in kinds_by_agent.items() for name in names for called in (name, f"{agent}_{name}")}


def for_evaluation() -> set[str]:
    """Return `for_fresh_agents` and the parameters of every environment, because a checkpoint may be evaluated in
    another environment."""
    from envs.names import GAMES, declared_games, resolve

    return for_fresh_agents() | {
        name for game in (*GAMES, *declared_games()) for name in resolve(game).parameter_values()
    }


def flags_of(config: Any, section: str = "") -> dict[str, Flag]:
    """The flags of a config's fields (none for None), with their sections below ``section``."""
    if config is None:
        return {}
    field_kinds, config_flags = kinds(type(config)), {}
    for field in fields(config):
        where = ": ".join(filter(None, [section, field.metadata.get("section")]))
        config_flags[field.name] = Flag(
            field.name, field_kinds[field.name], field.metadata, getattr(config, field.name), where, type(config)
        )
    return config_flags


def of_other_games(name: str, game: str, prefix: str = "--") -> SettingError:
    """Return the error for a parameter (or ``no_`` and its name) that ``game`` lacks."""
    from envs.names import games_with

    other_games = ", ".join(games_with(name) or games_with(name.removeprefix("no_")))
    problem = f"has no effect with gamename {game.partition(',')[0]}"
    return SettingError(f"{prefix}{name} {problem}; it is a parameter of {other_games}")


def unknown(name: str, valid_flags: Mapping[str, Flag], implementation: str, prefix: str, game: str) -> SettingError:
    """Return the error for a name that is not in ``valid_flags``. It says which implementation or game has this
    setting, or suggests a similar name."""
    from envs.names import games_with

    if game and (games_with(name) or games_with(name.removeprefix("no_"))):
        return of_other_games(name, game, prefix)
    owners = [other for other in implementations() if name in flags(other, "")]
    if owners:
        other_owners = ", ".join(owner for owner in owners if owner != implementation)
        subject = f"{implementation} with this agent" if implementation in owners else implementation
        return SettingError(f"{prefix}{name} is a setting of {other_owners}, not of {subject}")
    if name in FLAG_ONLY:
        return SettingError(f"{prefix}{name} is no setting; allowed only as the flag --{name}")
    if name == "command" or name.startswith("command."):
        return SettingError(
            f"{prefix}{name} is unknown; allowed: {', '.join(f'command.{key}' for key in RETURN_COMMANDS)}"
        )
    if name in _ELSEWHERE:
        return SettingError(f"{prefix}{name} is unknown; {_ELSEWHERE[name]}")
    switches = [f"no_{other}" for other, flag in valid_flags.items() if flag.default is True]
    families = families_of(implementation, valid_flags["agent"].default)
    meanings = {other: to for other, to in (HINTS | vocabulary(families, valid_flags)).items() if to in valid_flags}
    meanings |= dict.fromkeys([*WIDTHS, *DEPTHS], "hidden_sizes") if "hidden_sizes" in valid_flags else {}
    meanings |= {other: other for other in [*valid_flags, *switches, *(FLAG_ONLY if prefix == "--" else ())]}
    owner, _, base_name = name.partition("_")
    close = base_name if owner in implementations() and base_name in valid_flags else closest(name, meanings)
    dashes = "--" if prefix == "--" else ""
    hint = f"; did you mean '{dashes}{meanings[close]}'?" if close else "; see --help"
    return SettingError(f"{prefix}{name} is unknown{hint}")
