"""The settings that exist for a command, an implementation and a game, as flags, with the errors for misspelt names,
conflicts, missing files, and flags without effect. Imports no torch."""

import os
import shlex
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from control.cli.errors import missing_reason
from control.cli.run_settings import COMMANDS, RETURN_COMMANDS, RunConfig
from control.cli.settings import Settings, agents_of, as_dict, defaults_for, end_setting, ineffective, replaced_settings
from control.cli.words import EXPECTED, FILM_WORDS, Flag, Flags, as_word, command_flags, flags_of
from models.mixture import shared_settings
from models.registry import families_of, implementations
from models.settings import SettingError, closest, names_with, raise_all
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
        first, *other_flags = [agent_flags[prefixed] for prefixed in prefixed_names]
        default = first.default if all(flag.default == first.default for flag in other_flags) else None
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
            items = [] if value is True else value if isinstance(value, list) else [value]
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


def check_together(settings: Settings, typed: Collection[str], valid_flags: Flags) -> None:
    """Raise SettingError if settings conflict, if files are missing, or if a flag has no effect. ``typed`` are the
    names of the flags that the user typed, and ``valid_flags`` has the `Flag` of each."""
    run = settings.run
    if run.resume and run.reload:
        raise SettingError("--resume and --reload exclude each other")
    check_effects(dict(flags_without_effect(settings, typed, valid_flags)), settings)
    errors = [*_missing_files(run), *_missing_files(settings.subcommand)]
    if run.exp_name in (".", ".."):
        errors.append(SettingError(f"exp_name is {run.exp_name!r}; allowed: the name of a folder", "exp_name"))
    raise_all(errors)


def check_effects(without_effect: Mapping[str, str], settings: Settings | None = None) -> None:
    """Raise SettingError if any setting is in ``without_effect``, which maps a setting to the end of its message: the
    message for ``{"lr": " with --plot"}`` is ``--lr has no effect with --plot``. For a switch that is off in
    ``settings``, the message names the flag ``--no_NAME``."""
    errors: list[SettingError] = []
    for name, message_end in without_effect.items():
        is_off = settings is not None and any(getattr(config, name, None) is False for config in settings.configs)
        flag = f"--no_{name}" if is_off else f"--{name}"
        errors.append(SettingError(f"{flag} has no effect{message_end}", name))
    raise_all(errors)


def _missing_files(config: Any) -> Iterator[SettingError]:
    """Yield an error for each file in a config that does not exist. Words that a setting accepts instead of a file,
    such as ``real`` for ``--film``, are no files."""
    for name in names_with(config, "exists"):  # the settings whose values are paths
        value = getattr(config, name)  # a path, several paths, or None
        paths = [value] if isinstance(value, str) else dict.fromkeys(value or ())  # without repetitions
        for path in paths:
            if not os.path.exists(path) and path not in _words_for(name):
                yield SettingError(f"{name} is {path!r}: {missing_hint(name, path)}", name)


def missing_hint(name: str, path: str) -> str:
    """Return the end of the message about the missing file ``path`` of the setting ``name``, such as ``no such file or
    folder; did you mean 'settings.yaml'?``."""
    reason = missing_reason(path)
    paths = path.split(",")
    if len(paths) > 1 and all(os.path.exists(one_path) for one_path in paths):
        return f"{reason}; separate paths by spaces: {' '.join(paths)}"
    folder, base = os.path.split(path)
    words = [] if folder else _words_for(name)  # these words are no paths, so they have no folder
    files = [file.name for file in sorted(Path(folder).glob("*")) if file.exists()]  # without links to nothing
    similar = closest(base, [*words, *files])
    if similar:
        return f"{reason}; did you mean {os.path.join(folder, similar)!r}?"
    hint = f"; allowed: {EXPECTED[name]}" if name in EXPECTED and not folder else ""
    return f"{reason}{hint}"


def _words_for(name: str) -> list[str]:
    """Return the words that the setting ``name`` accepts instead of a file, such as ``cartpole-bandit``."""
    if name not in ("eval_agent", "film"):
        return []
    from understudy import pretrained  # imports Gymnasium, which most command lines do not need

    return [*pretrained(), *FILM_WORDS] if name == "film" else list(pretrained())


def flags_without_effect(settings: Settings, typed: Collection[str], valid_flags: Flags) -> Iterator[tuple[str, str]]:
    """Yield a pair for each ``typed`` flag that has no effect in combination with the other settings: its name and the
    end of the error message, such as ``("lr", " with --plot")``. Of several reasons, only the first is yielded."""
    run = settings.run
    command = settings.subcommand.flag if settings.subcommand else ""
    trains = command in ("", "use_tune")
    replacements = replaced_settings(run.implementation) if trains else {}
    reasons = ineffective(settings) if trains else {}
    for name in typed:
        flag = valid_flags[name]
        if name == flag.command and name != command:  # the flag of a command, but its value does not select the command
            if flag.type.item is not bool:  # --no_use_tune is allowed, but not --plot "$FOLDER" without this variable
                yield name, ": it is empty"
        elif flag.command and flag.command != command:
            yield name, f" without --{flag.command}"
        elif command and not _uses_setting(command, flag):
            hint = ""
            if command == "eval_agent" and name == "eval_episodes":
                hint = "; did you mean '--num_eval_episodes'?"
            elif command == "eval_agent" and flag.section != "run":
                hint = ": the file that is evaluated holds it"
            yield name, f" with --{command}{hint}"
        elif flag.meta["needs"] and not _has_needed_setting(settings, flag):
            needed_flags = [f"--{needed_name}" for needed_name in flag.meta["needs"]]
            yield name, f" without {' or '.join(needed_flags)}"
        elif name in replacements:
            hint = f"; did you mean '--{replacements[name]}'?" if replacements[name] else ""
            yield name, f" with {run.implementation}{hint}"
        elif name in reasons:
            yield name, f": {reasons[name]}"


def _uses_setting(command: str, flag: Flag) -> bool:
    """Return whether a ``command`` other than training uses the setting of ``flag``."""
    if flag.command or flag.owner is RunConfig:  # a setting of a command or of every run
        return command in (flag.command, *flag.meta["commands"])
    if flag.owner is None:  # a command to the agent
        return command in ("use_tune", "eval_agent")
    return command == "use_tune"  # a setting of an agent, a proxy or an environment


def _has_needed_setting(settings: Settings, flag: Flag) -> bool:
    """Return whether a setting that the ``flag`` needs (its property ``needs``) differs from its default."""
    for config in (settings.run, settings.subcommand):
        for name in flag.meta["needs"]:
            if hasattr(config, name) and getattr(config, name) != getattr(type(config), name):
                return True
    return False
