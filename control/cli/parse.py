"""Parse the command line, or keywords in Python, to `Settings`, before torch is imported. Later sources override
earlier ones: defaults of the family, of the implementation and of the game, a file (``--config``), flags."""

import dataclasses
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from control.cli import options
from control.cli.errors import MAX_LINES, single_errors
from control.cli.options import FLAG_ONLY, Flag, parameters
from control.cli.run_settings import COMMANDS, RunConfig, TuneConfig
from control.cli.settings import Settings, agents_of, defaults_for, settings_with, subcommand_in
from control.cli.together import check_together
from control.cli.words import NULL, as_word, one_word, pairs_of, read_value, split
from models.mixture import expand_shared
from models.registry import canonical_names, families_of, family, implementations
from models.settings import SettingError, check_value, format_value, names_with, raise_all
from models.vocabulary import translate

Words = Mapping[str, list[Any]]
"""Name of a setting -> its words on the command line or in a file."""

FIRST = ("implementation", "gamename")  # translated first: which other settings exist depends on these


def parse(argv: Sequence[str]) -> Settings:
    """Parse the words of a command line, ``argv``, to settings. Raises SettingError, with a line for each wrong name
    and value. Prints the text of ``--help`` or ``--version`` and then raises SystemExit(0)."""
    from envs.names import import_module

    pairs = split(argv)
    names = [name for name, _ in pairs]
    if "version" in names:
        from control.cli.help import version

        print(f"understudy {version()}")
        sys.exit(0)
    if names.count("config") > 1:
        raise SettingError("--config is given twice; allowed: one file")
    words = dict(pairs)  # of a repeated flag, the last words count
    if "use_tune" in words:
        words = _with_search_file(words)
    imports: list[str] = []  # such as ["a,b", "c"] for --import a,b --import c
    for name, module_words in pairs:
        if name == "import":
            imports += module_words or [""]  # "" raises the error for a missing name
    for word in imports:
        for module in word.split(","):
            import_module("import", module)
    file = one_word("config", words["config"]) if "config" in words else ""
    flag_words = {name: value_words for name, value_words in words.items() if name not in FLAG_ONLY}
    settings = _settings_from_words(flag_words, "--", file, words.get("help"))
    return dataclasses.replace(settings, imports=tuple(imports))


def settings_from(**values: Any) -> Settings:
    """Return settings from keywords with the names of flags. Values are numbers, text, paths, None, lists or tuples.
    Commands are a mapping, as in ``command={"return": 250}``. Raises SettingError as `parse` does."""
    return _settings_from_words(dict(pairs_of(values)), prefix="")


def training_from(**values: Any) -> Settings:
    """Return settings of a training run from keywords, as `settings_from` does. Raises SettingError also if a keyword
    selects a command other than training, such as ``plot``."""
    settings = settings_from(**values)
    if settings.subcommand is not None:
        name = settings.subcommand.flag
        value = format_value(getattr(settings.subcommand, name))
        raise SettingError(f"{name} is {value}; allowed: null, as only the command does that", name)
    return settings


def _settings_from_words(
    flag_words: Words, prefix: str, file: str = "", help_words: Sequence[str] | None = None
) -> Settings:
    """Return the settings for ``flag_words``, the words of flags or keywords. They override the words in ``file``, the
    path of ``--config`` ("" for none). Messages put ``prefix`` before unknown names: ``--`` for flags, "" for keywords.
    If ``help_words``, the words after ``--help``, are not None, print the help and raise SystemExit(0). Raises
    SettingError for wrong names and values."""
    from envs.names import import_module

    file_words: Words = {}
    if file:
        from control.cli.files import read_config  # loads PyYAML, which most command lines do not need

        file_words = read_config(file)
    aliases: dict[str, str] = {}  # setting -> the name that the user typed, for messages
    game_to_learn = as_word(flag_words.get("learn", []))  # "" without the flag; "" and "null" are in `NULL`
    if game_to_learn.lower() not in NULL and "gamename" not in flag_words:  # ``--learn GAME`` names the environment
        flag_words = {**flag_words, "gamename": flag_words["learn"]}
        aliases["gamename"] = "learn"
    try:
        # Only aliases of `FIRST` can be translated yet: implementation and game determine the other aliases.
        typed_words = flag_words
        flag_words, renamed = translate(flag_words, (), FIRST)  # ``renamed``: alias -> setting
        file_words, _ = translate(file_words, (), FIRST)
        # Only flags and keywords have modules imported, so that a file cannot run code.
        import_module("gamename", as_word(flag_words.get("gamename", [])))  # of a game ``module:Name-v0``
        all_words = {**file_words, **flag_words}
        is_rn = as_word(all_words.get("implementation", [])) == "RN"
        if is_rn and as_word(all_words.get("mode", [])) == "-1":
            removed, added_words = _baseline_of_rewards(all_words)
            file_words = {name: words for name, words in file_words.items() if name not in removed}
            flag_words = {name: words for name, words in flag_words.items() if name not in removed} | added_words
        if help_words is not None:
            _print_help({**file_words, **flag_words}, help_words)
            sys.exit(0)
        choices = _resolve_choices({**file_words, **flag_words})
        if file:
            file_words = _translate_file(file, file_words, flag_words, choices)

        def current_value(name: str) -> Any:
            """Return the value of a setting in the file, or else the default. It is needed for aliases that change a
            part of the setting, such as a width of ``hidden_sizes``."""
            if choices.defaults is None:  # the value is in the checkpoint, which is not yet read
                return None
            flag = choices.valid_flags[name]
            return read_value(flag, file_words[name]) if name in file_words else flag.default

        flag_words, more_renamed = translate(flag_words, choices.families, choices.valid_flags, current_value)
        renamed |= more_renamed
        aliases |= {setting: alias for alias, setting in renamed.items()}
        if prefix and renamed:
            _print_translations(typed_words, renamed, flag_words)
        file_words = {name: words for name, words in file_words.items() if name not in flag_words}
        file_values, file_errors = _read(file_words, choices, f"{file}: ")
        flag_values, flag_errors = _read(flag_words, choices, prefix)
        raise_all([*file_errors, *flag_errors])
        return _build_settings({**file_values, **flag_values}, choices, flag_values.keys())
    except SettingError as error:
        only_in_file = file_words.keys() - flag_words.keys()
        raise_all([_in_words_of_user(part, aliases, file, only_in_file) for part in single_errors(error)])
        raise  # never reached, because `raise_all` has raised; mypy does not know that


def _in_words_of_user(error: SettingError, aliases: Mapping[str, str], file: str, file_names: set[str]) -> SettingError:
    """Return ``error`` with the names that the user typed. ``aliases`` maps a setting to its typed alias. The message
    begins with the path ``file`` if the setting is in ``file_names``, the names that only the file has."""
    line = str(error)
    if aliases:
        names = re.compile(rf"\b({'|'.join(aliases)})\b(?!\.)")  # but not a name before a dot, as in a path seed.yaml
        line = names.sub(lambda match: aliases[match[0]], line)
    if error.name in file_names and not line.startswith(f"{file}: "):
        line = f"{file}: {line}"
    return SettingError(line, error.name)


def _with_search_file(words: Words) -> dict[str, list[str]]:
    """Replace ``--resume FOLDER`` in a command line with ``--use_tune`` by ``--config FOLDER/search.yaml
    --resume_search FOLDER``. Return ``words`` unchanged if ``--use_tune`` is off, or if no folder is named. Raises
    SettingError for a folder without a search, and for flags that would change the search."""
    is_switched_on = words["use_tune"] in ([], ["true"])  # [] is the bare flag
    folder = " ".join(words.get("resume_search") or words.get("resume", []))
    has_folder = folder.lower() not in (*NULL, "true", "false")  # these words are values of ``--resume`` as a switch
    if not (is_switched_on and has_folder):
        return dict(words)
    file = os.path.join(folder, "search.yaml")
    if not os.path.isfile(file):
        line = f"resume is {folder!r}, which has no search.yaml; allowed with --use_tune: the folder of a search"
        raise SettingError(line, "resume")
    changeable = (*sorted(names_with(TuneConfig, "changeable")), "ray_address")
    other_words = {name: value for name, value in words.items() if name not in ("resume", "resume_search")}
    wrong: list[SettingError] = []
    for name in other_words:
        if name not in (*changeable, "use_tune"):
            line = f"--{name} is a setting that the search in {folder!r} has already"
            wrong.append(SettingError(f"{line}; allowed with --resume FOLDER: {', '.join(changeable)}", name))
    raise_all(wrong)
    return {"config": [file], "resume_search": [folder], **other_words}


def _baseline_of_rewards(words: Words) -> tuple[set[str], dict[str, list[str]]]:
    """Translate a run with ``--implementation RN --mode -1``, given the ``words`` of all its settings. Return the names
    of the settings to remove, and the words of the settings to add. Print the added settings on stderr.

    Such a run is a baseline of Ferreira et al. 2022 without a learned reward: an agent gets the environment's reward
    plus a curiosity bonus (ICM) or, if it is tabular, a count-based bonus.
    """
    agent_choice = {"agent": as_word(words["agent"])} if "agent" in words else {}
    agent = agents_of("RN", as_word(words.get("gamename", [])), agent_choice)
    is_tabular = family(agent).package.endswith(".tabular")
    name, value = ("count_bonus", "0.1") if is_tabular else ("intrinsic", "icm")
    added_words = {"implementation": [agent]}
    if name not in words:
        added_words[name] = [value]
    line = " ".join(f"--{name} {value}" for name, (value,) in added_words.items())
    print(f"--mode -1 of RN is {line} here", file=sys.stderr)
    return {"implementation", "mode", "agent"}, added_words


class _Choices(NamedTuple):
    """The values that decide which settings exist, and these settings."""

    game: str
    valid_flags: Mapping[str, Flag]  # the settings by name, with defaults for these choices
    implementation: str
    families: Sequence[str] = ()  # of agents, whose aliases are valid (`families_of`)
    # Default settings. None if the command is ``--eval_agent``, and only then: its settings are in the checkpoint, and
    # `valid_flags` are of all implementations.
    defaults: Settings | None = None

    def uses(self, flag: Flag) -> bool:
        """Return whether the command uses the setting of ``flag``. ``--eval_agent`` uses only settings of the section
        ``run`` and its special settings, because the others are in the checkpoint."""
        evaluates_agent = self.defaults is None
        return not evaluates_agent or flag.section == "run" or flag.command == "eval_agent"


def _resolve_choices(words: Words) -> _Choices:
    """Read from ``words`` the values that decide which settings exist: implementation, game, preset and agents. If the
    preset is for one game, this is the default game. Aliases of games are resolved. With ``--eval_agent``, preset and
    agents are in the checkpoint, so the result has the settings of all implementations and no defaults. Raises
    SettingError for a wrong value, or if preset and game do not fit."""
    from envs.names import resolve

    implementation = one_word("implementation", words.get("implementation", [RunConfig.implementation]))
    preset = one_word("preset", words["preset"]) if "preset" in words else ""
    preset_game = family(implementation).preset_game(preset)
    game = resolve(one_word("gamename", words.get("gamename", [preset_game or RunConfig.gamename])))
    if preset_game and resolve(preset_game).base_name != game.base_name:
        line = f"preset is {preset!r}, but gamename is {game.name!r}; leave out one of them"
        raise SettingError(f"{line}, or take a preset of {game.base_name}", "gamename")
    evaluates_agent = as_word(words.get("eval_agent", [])).lower() not in NULL  # "" without the flag is in `NULL`
    if evaluates_agent:
        return _Choices(game.name, options.flags_of_all(game.name), implementation)
    # The settings of this implementation on which defaults of others depend, such as ``preset``.
    deciding_settings = names_with(family(implementation).config, "chooses")
    if family(implementation).learns_from == "evolution":
        deciding_settings.add("agent")
    deciding_values = {name: one_word(name, words[name]) for name in deciding_settings if name in words}
    defaults = defaults_for({**deciding_values, "implementation": implementation, "gamename": game.name})
    families = families_of(implementation, defaults.run.agent)
    valid_flags = options.flags_of_settings(defaults, game.name)
    return _Choices(game.name, valid_flags, implementation, families, defaults)


def _print_help(words: Words, help_words: Sequence[str]) -> None:
    """Print the help page for a command line. ``words`` are of its other flags, which select the page, and
    ``help_words`` follow ``--help``."""
    from control.cli.help import help_text, in_colours

    # ``--help PPO`` is short for ``--implementation PPO --help``. An ``--implementation`` in ``words`` overrides it.
    if len(help_words) == 1 and canonical_names(help_words[0]) in implementations():
        words, help_words = {"implementation": [canonical_names(help_words[0])], **words}, []
    # The page of ``--eval_agent`` has settings of one implementation, too.
    choices = _resolve_choices({name: value for name, value in words.items() if name != "eval_agent"})
    deciding_values = {"implementation": choices.implementation, "gamename": choices.game}
    for name, flag in choices.valid_flags.items():
        if flag.meta["chooses"] and words.get(name):
            deciding_values.setdefault(name, one_word(name, words[name]))
    commands = [name for name in COMMANDS if name in words]
    command = commands[0] if commands else None
    is_default = "implementation" not in words
    print(in_colours(help_text(choices.valid_flags, deciding_values, help_words, command, is_default)))


def _translate_file(file: str, file_words: Words, flag_words: Words, choices: _Choices) -> Words:
    """Return the words of a file by names of settings, without settings that only flags may set and settings that the
    command does not use.

    Raises SettingError if a flag changes the implementation or the preset of the file, because its other values are for
    these. Also raises SettingError for a setting that only flags may set, unless its value is the default, or
    ``flag_words`` have it too.
    """
    wrong = []
    evaluates_agent = choices.defaults is None  # its implementation and preset are in the checkpoint
    for name in () if evaluates_agent else ("implementation", "preset"):
        flag_text, file_text = as_word(flag_words.get(name, [])), as_word(file_words.get(name, []))
        if flag_text and file_text and flag_text != file_text:
            line = f"{name} is {flag_text!r}, but {file} holds the values of {file_text!r}"
            wrong.append(SettingError(f"{line}; leave out --{name} or --config"))
    raise_all(wrong)
    # A width, an alias of one part of ``hidden_sizes``, needs the default for the other part.
    agent = None if choices.defaults is None else choices.defaults.agent
    file_words, _ = translate(
        file_words, choices.families, choices.valid_flags, lambda name: getattr(agent, name, None)
    )
    for config in (RunConfig, *COMMANDS.values()):
        for name in sorted(names_with(config, "by_flag") & file_words.keys()):
            text, default = as_word(file_words.pop(name)), getattr(config, name)
            is_default = text == default or (default is None and text.lower() in NULL)
            if name not in flag_words and not is_default:
                line = f"is {format_value(text)}; a file may not choose what is written or joined: give it as --{name}"
                wrong.append(SettingError(f"{file}: {name} {line}", name))
    raise_all(wrong)
    if evaluates_agent:  # the file may be of a training run, whose settings are in the checkpoint
        unused = {flag.name for flag in choices.valid_flags.values() if not choices.uses(flag)}
        if "gamename" in file_words or "gamename" in flag_words:  # not the checkpoint's environment
            unused -= parameters(choices.game).keys()
        file_words = {name: words for name, words in file_words.items() if name not in unused}
    return file_words


def _print_translations(typed: Words, renamed: Mapping[str, str], translated: Words) -> None:
    """Print how aliases are translated, such as ``--env CartPole-v1 is --gamename cartpole here``, one line for each
    setting. ``typed`` maps a flag as the user typed it to its words, ``translated`` maps a setting to its words, and
    ``renamed`` maps an alias to its setting."""
    alias_texts: dict[str, list[str]] = {}  # setting -> aliases with their words
    for name, words in typed.items():
        if renamed.get(name) in translated:  # false for a name that is no alias
            alias_texts.setdefault(renamed[name], []).append(" ".join([f"--{name}", *words]))
    for setting, texts in alias_texts.items():
        translation = " ".join([f"--{setting}", *translated[setting]])
        print(f"{' '.join(texts)} is {translation} here", file=sys.stderr)


def _read(words: Words, choices: _Choices, prefix: str) -> tuple[dict[str, Any], list[SettingError]]:
    """Convert ``words`` to values. Return setting -> value, and a list of errors. ``no_x`` sets a switch ``x`` to the
    opposite.

    There is an error for every unknown name, whose message begins with ``prefix``, and for every value that cannot be
    read or is out of range. With ``--eval_agent``, ranges depend on the checkpoint and are not checked here.
    """
    values: dict[str, Any] = {}
    errors: list[SettingError] = []
    for name, value_words in words.items():
        flag = choices.valid_flags.get(name)
        switch = choices.valid_flags.get(name.removeprefix("no_"))
        try:
            if flag is not None:
                values[name] = read_value(flag, value_words)
                if choices.uses(flag):
                    check_value(name, values[name], flag.kind, flag.meta)
            elif switch is not None and switch.kind.item is bool:
                negation = dataclasses.replace(switch, name=name)  # errors name ``no_x``
                values[switch.name] = not read_value(negation, value_words)
            elif len(errors) >= MAX_LINES:  # it will only be counted, so a slow search for similar names is useless
                errors.append(SettingError(f"{prefix}{name} is unknown"))
            else:
                valid_flags, implementation = choices.valid_flags, choices.implementation
                errors.append(options.unknown_error(name, valid_flags, implementation, prefix, choices.game))
        except SettingError as error:
            errors.append(error)
    if choices.defaults is not None:  # ``lr`` may become ``DDQN_lr`` and ``PPO_lr``
        values = expand_shared(choices.defaults.agent, values)
    return values, errors


def _build_settings(values: Mapping[str, Any], choices: _Choices, flag_names: Collection[str]) -> Settings:
    """Build settings from ``values`` (setting -> value) and check their combination. Parameters of the environment
    become part of ``gamename``. ``flag_names`` are the names in ``values`` that are from flags, and not from a file.
    Raises SettingError for values that conflict or have no effect."""
    from envs.names import split_name, with_parameters

    game = choices.game
    evaluates_agent = choices.defaults is None
    # With ``--eval_agent`` alone, parameters are of the checkpoint's environment, which is not yet known.
    if not evaluates_agent or "gamename" in values:
        parameter_values = {name: values[name] for name in parameters(game) if name in values}
        values = {name: value for name, value in values.items() if name not in parameter_values}
        if parameter_values:
            # The name may have parameters too, as in ``procmaze,grid_size=5``. If a flag gives the name, they override
            # parameters from the file, and parameters from flags override them. Otherwise, parameters from the file and
            # from flags override those in the name.
            base_game, parameters_in_name = split_name(values.get("gamename", game))
            is_named_by_flag = "gamename" in flag_names
            overriding = {
                name: value for name, value in parameter_values.items() if not is_named_by_flag or name in flag_names
            }
            game = with_parameters(base_game, {**parameter_values, **parameters_in_name, **overriding}).name
    explicit_names = {name.partition(".")[0] for name in values}  # "command" for any command to the agent
    typed_flags = [name for name in values if name in flag_names]
    command = {name.removeprefix("command."): value for name, value in values.items() if name.startswith("command.")}
    command = {name: value for name, value in command.items() if value is not None}
    values = {**values, "gamename": game, "command": command}
    subcommand = subcommand_in(values)
    if choices.defaults is None:
        changed = {name: values[name] for name in options.evaluation_overrides() if name in values}
        values = {name: value for name, value in values.items() if name not in changed}
        settings = Settings(RunConfig(), None, changed=changed, subcommand=subcommand).with_values(values)
    else:
        defaults = choices.defaults
        if defaults.proxy is not None:  # defaults of a search depend on more settings, such as ``start_from``
            defaults = defaults_for(values)
        settings = settings_with(dataclasses.replace(defaults, subcommand=subcommand), values)
    check_together(settings, typed_flags, choices.valid_flags)
    return dataclasses.replace(settings, explicit_names=frozenset(explicit_names))
