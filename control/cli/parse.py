"""Parse the command line, or keywords in Python, to `Settings`, before torch is imported. Later sources override
earlier ones: defaults of the family, of the implementation and of the game, a file (``--config``), flags."""

import dataclasses
import os
import re
import sys
from collections.abc import Collection, Container, Mapping, Sequence
from typing import Any

from control.cli import options
from control.cli.options import FLAG_ONLY, check_together, parameters
from control.cli.run_settings import COMMANDS, EvaluateConfig, RunConfig, TuneConfig
from control.cli.settings import DECIDING, Settings, agents_of, defaults_for, settings_with, subcommand_in
from control.cli.words import NULL, Flags, Pair, Words, as_word, check_text, one_word, pairs_of, read_value, read_values
from models.mixture import expand_shared
from models.registry import canonical_names, family, implementations
from models.settings import SettingError, field_types, format_value, match_spelling, names_with, raise_all
from models.vocabulary import translate, vocabulary


def parse(argv: Sequence[str]) -> Settings:
    """Return the settings for the command line ``argv``, such as ``["--implementation", "PPO"]``. Raises SettingError,
    with a line for each wrong name and value. ``--help`` and ``--version`` print their text and raise SystemExit(0)."""
    from envs.names import import_module

    pairs = split(argv)
    words = dict(pairs)  # if a flag is repeated, the last one counts
    if "version" in words:
        from control.cli.help import version

        print(f"understudy {version()}")
        sys.exit(0)
    if [name for name, _ in pairs].count("config") > 1:
        raise SettingError("--config is given twice; allowed: one file")
    if "use_tune" in words:
        words = _with_search_file(words)
    modules: list[str] = []  # [a, b, c] for --import a,b --import c
    for name, module_words in pairs:
        if name == "import":
            modules += ",".join(module_words).split(",")
    for module in modules:
        import_module("import", module)
    file = one_word("config", words["config"]) if "config" in words else ""
    flag_words = {name: value_words for name, value_words in words.items() if name not in FLAG_ONLY}
    settings = _settings_from_words(flag_words, "--", file, words.get("help"))
    return dataclasses.replace(settings, imports=tuple(modules))


def split(argv: Sequence[str]) -> list[Pair]:
    """Split the words of a command line into pairs of a name and its words: ``--a=1 --b --c 2 3`` becomes ``[("a",
    ["1"]), ("b", []), ("c", ["2", "3"])]``. ``-h`` becomes ``--help``, and hyphens in names become underscores. Raises
    SettingError for words before the first flag and for bytes that are not UTF-8."""
    pairs: list[Pair] = []
    for word in argv:
        flag, equals, value = word.partition("=")
        if word == "-h":
            flag = "--help"
        name = flag.removeprefix("--")
        if flag.startswith("--") and name:
            underscored = re.sub(r"(?<=\w)-", "_", name)  # a hyphen at the start remains
            pairs.append((underscored, [value] if equals else []))
        elif pairs:
            pairs[-1][1].append(word)  # to the words of the last flag
        else:
            raise SettingError(f"{word!r} is not a flag; flags start with --{_flag_hint(word)}")
    check_text(pairs)
    return pairs


def _flag_hint(word: str) -> str:
    """Return the end of the error message for a ``word`` that follows no flag: for ``ppo``, it is ``"; did you mean
    '--implementation PPO'?"``. It names ``--help`` if the word names neither an implementation nor an environment."""
    from envs.names import GAMES

    implementation, game = match_spelling(word, implementations()), match_spelling(word, GAMES)
    if implementation in implementations():
        return f"; did you mean '--implementation {implementation}'?"
    if game in GAMES or re.fullmatch(r"\S+-v\d+", game):  # a Gymnasium id
        return f"; did you mean '--gamename {game}'?"
    return ", and --help lists them"


def settings_from(**values: Any) -> Settings:
    """Return the settings for keywords with the names of flags, such as ``implementation="PPO", lr=1e-3``. Values are
    numbers, text, paths, None, lists or tuples. The goals of an agent that follows commands are a mapping, as in
    ``command={"return": 250}``. Raises SettingError as `parse` does."""
    return _settings_from_words(dict(pairs_of(values)), prefix="")


def training_from(**values: Any) -> Settings:
    """Return the settings of a training run for keywords, as `settings_from` does. Raises SettingError also if a
    keyword selects a command other than training, such as ``plot``."""
    settings = settings_from(**values)
    if settings.subcommand is not None:
        name = settings.subcommand.flag
        value = format_value(getattr(settings.subcommand, name))
        raise SettingError(f"{name} is {value}; allowed: null, as only the command does that", name)
    return settings


def _settings_from_words(
    flag_words: Words, prefix: str, file: str = "", help_words: Sequence[str] | None = None
) -> Settings:
    """Return the settings for flags or keywords and for a file. Raises SettingError for wrong names and values.

    Args:
        flag_words: The words of each flag or keyword, such as ``{"lr": ["0.01"]}``.
        prefix: The text before unknown names in messages: ``--`` for flags, "" for keywords.
        file: The path of ``--config``, or "". Flags override the settings in the file.
        help_words: The words after ``--help``. If they are not None, print the help and raise SystemExit(0).
    """
    from envs.names import import_module

    file_words: Words = {}
    if file:
        from control.cli.files import read_config  # loads PyYAML, which most command lines do not need

        file_words = read_config(file)
    aliases: dict[str, str] = {}  # setting -> the alias that the user typed, for messages
    if _is_set("learn", flag_words):  # ``--learn GAME`` names the environment
        if "gamename" in flag_words:
            raise SettingError("gamename and learn are one setting; give learn", "gamename")
        flag_words = {**flag_words, "gamename": flag_words["learn"]}
        aliases["gamename"] = "learn"
    try:
        # Only aliases of `DECIDING` can be translated yet, because these settings decide which other aliases exist.
        typed_words = flag_words
        flag_words, renamed = translate(flag_words, (), DECIDING)  # ``renamed``: alias -> setting
        file_words, _ = translate(file_words, (), DECIDING)
        # The environment ``module:Name-v0`` is in a module. A file may not name it, because an import runs code.
        import_module("gamename", _text_of("gamename", flag_words))
        file_words, flag_words = _translate_baseline(file_words, flag_words)
        if help_words is not None:
            _print_help({**file_words, **flag_words}, help_words)
            sys.exit(0)
        defaults = _defaults({**file_words, **flag_words})
        valid_flags = options.flags_of_settings(defaults)  # now all settings are known, and with them all aliases

        def current_value(name: str) -> Any:  # for aliases of a part of a setting, such as a width of ``hidden_sizes``
            flag = valid_flags[name]
            return read_value(flag, file_words[name]) if name in file_words else flag.default

        file_words, _ = translate(file_words, defaults.families, valid_flags, current_value)
        file_words = _checked_file(file, file_words, flag_words, defaults, valid_flags)
        flag_words, more_renamed = translate(flag_words, defaults.families, valid_flags, current_value)
        renamed |= more_renamed
        aliases |= {setting: alias for alias, setting in renamed.items()}
        if prefix and renamed:
            _print_translations(typed_words, renamed, flag_words)
        if _is_set("eval_agent", flag_words):  # other flags are for the agent in the checkpoint, which is loaded later
            valid_names = valid_flags.keys() | {f"no_{name}" for name in valid_flags}
            words_for_agent = _without(flag_words, valid_names)
            flag_words = _without(flag_words, words_for_agent)
            changed = {name: [as_word(word) for word in words] for name, words in words_for_agent.items()}
            defaults = dataclasses.replace(defaults, changed=changed)
        file_words = _without(file_words, flag_words)  # flags override the file
        file_values, file_errors = _read(file_words, defaults, valid_flags, f"{file}: ")
        flag_values, flag_errors = _read(flag_words, defaults, valid_flags, prefix)
        raise_all([*file_errors, *flag_errors])
        flag_values = expand_shared(defaults.agent, flag_values)  # ``lr`` may become ``DDQN_lr`` and ``PPO_lr``
        file_values = expand_shared(defaults.agent, file_values)
        return _build_settings({**file_values, **flag_values}, defaults, valid_flags, flag_values.keys())
    except SettingError as error:
        only_in_file = file_words.keys() - flag_words.keys()
        raise_all([_rename_for_user(part, aliases, file, only_in_file) for part in error.errors])
        raise  # never reached, because `raise_all` raises; mypy does not know that


def _without(words: Words, names: Container[str]) -> dict[str, list[Any]]:
    """Return ``words`` (setting -> words) without the settings in ``names``."""
    return {name: setting_words for name, setting_words in words.items() if name not in names}


def _text_of(name: str, words: Words) -> str:
    """Return the words of a setting as one text, "64 64" for ``{"hidden_sizes": ["64", "64"]}``; "" without any."""
    return as_word(words.get(name, []))


def _is_set(name: str, words: Words) -> bool:
    """Return whether ``words`` (setting -> words) have a value for ``name``, other than null and the empty text."""
    return _text_of(name, words).lower() not in NULL


def _rename_for_user(error: SettingError, aliases: Mapping[str, str], file: str, file_names: set[str]) -> SettingError:
    """Return ``error`` with the names that the user typed. ``aliases`` maps a setting to the alias that was typed for
    it, such as ``{"discount": "gamma"}``. If the error is about one of ``file_names``, the settings that only the file
    has, the message begins with the path ``file``."""
    message = str(error)
    if aliases:
        names = re.compile(rf"\b({'|'.join(aliases)})\b(?!\.)")  # no name before a dot, as in a path seed.yaml
        message = names.sub(lambda match: aliases[match[0]], message)
    if error.name in file_names and not message.startswith(f"{file}: "):
        message = f"{file}: {message}"
    return SettingError(message, error.name)


def _with_search_file(words: Words) -> dict[str, list[str]]:
    """Prepare to resume a search of hyperparameters: in the words of a command line (flag -> words), replace
    ``--use_tune --resume FOLDER`` by ``--use_tune --config FOLDER/search.yaml --resume_search FOLDER``. Raises
    SettingError if the folder is not of a search, or if a flag would change a setting that must not change."""
    is_switched_on = words["use_tune"] in ([], ["true"])  # [] is the bare flag
    folder = _text_of("resume_search" if _is_set("resume_search", words) else "resume", words)
    has_folder = folder.lower() not in (*NULL, "true", "false")  # true and false: ``--resume`` as a switch
    if not (is_switched_on and has_folder):
        return dict(words)
    file = os.path.join(folder, "search.yaml")
    if not os.path.isfile(file):
        problem = f"resume is {folder!r}, which has no search.yaml"
        raise SettingError(f"{problem}; allowed with --use_tune: the folder of a search", "resume")
    changeable = [*sorted(names_with(TuneConfig, "changeable")), "ray_address"]
    other_words = _without(words, ("resume", "resume_search"))
    errors: list[SettingError] = []
    for name in _without(other_words, [*changeable, "use_tune"]):
        problem = f"--{name} is a setting that the search in {folder!r} has already"
        errors.append(SettingError(f"{problem}; allowed with --resume FOLDER: {', '.join(changeable)}", name))
    raise_all(errors)
    return {"config": [file], "resume_search": [folder], **other_words}


def _translate_baseline(file_words: Words, flag_words: Words) -> tuple[Words, Words]:
    """Translate ``--implementation RN --mode -1`` to the settings of an agent, such as ``--implementation DDQN
    --intrinsic icm``, and print them on stderr. Return the words of the file and of the flags, which are unchanged for
    other runs.

    RN learns a reward network, but mode -1 is a baseline of Ferreira et al. 2022 without one: an agent gets the
    environment's reward plus a curiosity bonus (ICM) or, if it is tabular, a count-based bonus.
    """
    words = {**file_words, **flag_words}
    if _text_of("implementation", words) != "RN" or _text_of("mode", words) != "-1":
        return file_words, flag_words
    agent_choice = {"agent": _text_of("agent", words)} if "agent" in words else {}
    agent = agents_of("RN", _text_of("gamename", words), agent_choice)
    is_tabular = family(agent).package.endswith(".tabular")
    bonus, bonus_value = ("count_bonus", "0.1") if is_tabular else ("intrinsic", "icm")
    added_words = {"implementation": [agent]}
    if bonus not in words:
        added_words[bonus] = [bonus_value]
    line = " ".join(f"--{name} {_text_of(name, added_words)}" for name in added_words)
    print(f"--mode -1 of RN is {line} here", file=sys.stderr)
    removed_names = ("implementation", "mode", "agent")
    return _without(file_words, removed_names), {**_without(flag_words, removed_names), **added_words}


def _defaults(words: Words) -> Settings:
    """Return the default settings for the implementation, game, preset and agents in ``words`` (setting -> words). If
    the preset is for a certain game, that is the default game. With ``--eval_agent``, the settings of the agent are
    None, because the checkpoint has them. Raises SettingError for a wrong value, or if preset and game do not fit."""
    from envs.names import resolve

    implementation = one_word("implementation", words.get("implementation", [RunConfig.implementation]))
    preset = one_word("preset", words["preset"]) if "preset" in words else ""
    preset_game = family(implementation).preset_game(preset)  # None for a preset that is for all games
    game = resolve(one_word("gamename", words.get("gamename", [preset_game or RunConfig.gamename])))
    if preset_game and resolve(preset_game).base_name != game.base_name:
        problem = f"preset is {preset!r}, but gamename is {game.name!r}"
        raise SettingError(f"{problem}; leave out one of them, or take a preset of {game.base_name}", "gamename")
    if _is_set("eval_agent", words):
        return Settings(RunConfig(implementation=implementation, gamename=game.name), agent=None)
    deciding_names = {"agent", *names_with(family(implementation).config, "chooses")}  # others depend on these
    choices = {name: one_word(name, words[name]) for name in deciding_names if name in words}
    return defaults_for({**choices, "implementation": implementation, "gamename": game.name})


def _print_help(words: Words, help_words: Sequence[str]) -> None:
    """Print the help page for a command line. ``help_words`` are the words after ``--help``. The other flags, ``words``
    (flag -> words), select the page, such as the page of ``--plot``."""
    from control.cli.help import help_text, in_colours

    # ``--help PPO`` is short for ``--implementation PPO --help``. An ``--implementation`` in ``words`` overrides it.
    if len(help_words) == 1 and canonical_names(help_words[0]) in implementations():
        words, help_words = {"implementation": [canonical_names(help_words[0])], **words}, []
    defaults = _defaults(_without(words, ["eval_agent"]))  # with ``eval_agent``, there would be no settings of an agent
    command = next((name for name in COMMANDS if name in words), None)
    print(in_colours(help_text(defaults, help_words, command, is_default="implementation" not in words)))


def _checked_file(
    file: str, file_words: Words, flag_words: Words, defaults: Settings, valid_flags: Flags
) -> dict[str, list[Any]]:
    """Return the settings in a ``file`` (setting -> words) without settings that only flags may set, such as
    ``logdir``, because the file may be from somebody else. Raises SettingError for such a setting, unless a flag sets
    it too or the file has its default. Also raises it if a flag changes the file's implementation or preset, for which
    its other values are. With ``--eval_agent``, settings that are in the checkpoint are left out."""
    remaining = dict(file_words)
    errors: list[SettingError] = []
    if _is_set("eval_agent", flag_words):
        for name in file_words:
            flag = valid_flags.get(name)
            is_used = flag is not None and (flag.section == "run" or flag.command == "eval_agent")
            if not is_used and name not in parameters(defaults.run.gamename):
                del remaining[name]
    else:
        for name in ("implementation", "preset"):
            flag_text, file_text = _text_of(name, flag_words), _text_of(name, file_words)
            if flag_text and file_text and flag_text != file_text:
                problem = f"{name} is {flag_text!r}, but {file} holds the values of {file_text!r}"
                errors.append(SettingError(f"{problem}; leave out --{name} or --config"))
    for name in sorted(remaining):
        flag = valid_flags.get(name)
        if flag is None or not flag.meta["by_flag"]:
            continue
        text = as_word(remaining.pop(name))
        is_default = text == as_word(flag.default) or (flag.default is None and text.lower() in NULL)
        if name not in flag_words and not is_default:
            problem = f"{file}: {name} is {format_value(text)}; a file may not choose what is written or joined"
            errors.append(SettingError(f"{problem}: give it as --{name}", name))
    raise_all(errors)
    return remaining


def _print_translations(typed: Words, renamed: Mapping[str, str], translated: Words) -> None:
    """Tell the user how aliases are translated, with a line for each setting, such as ``--env CartPole-v1 is --gamename
    cartpole here``. Then ``typed`` is ``{"env": ["CartPole-v1"]}``, ``renamed`` is ``{"env": "gamename"}`` and
    ``translated`` is ``{"gamename": ["cartpole"]}``. The line says if an alias is another setting for other agents."""
    alias_texts: dict[str, list[str]] = {}  # setting -> its typed aliases with their words, as "--env CartPole-v1"
    differences: dict[str, str] = {}  # setting -> end of its line
    usual_settings = vocabulary((), field_types(RunConfig))  # alias -> setting, without the aliases of any algorithm
    for name, words in typed.items():
        setting = renamed.get(name, "")
        if setting in translated:  # false for a name that is no alias
            alias_texts.setdefault(setting, []).append(" ".join([f"--{name}", *words]))
            if name in usual_settings and usual_settings[name] != setting:  # num_epochs of PPO is not ``epochs``
                differences[setting] = f", not --{usual_settings[name]}"
    for setting, texts in alias_texts.items():
        translation = " ".join([f"--{setting}", *translated[setting]])
        print(f"{' '.join(texts)} is {translation} here{differences.get(setting, '')}", file=sys.stderr)


def _read(words: Words, source: Settings, valid_flags: Flags, prefix: str) -> tuple[dict[str, Any], list[SettingError]]:
    """Convert the ``words`` of settings, such as ``{"lr": ["0.01"]}``, to values, such as ``{"lr": 0.01}``. Return the
    values and a list of errors. Errors about unknown names begin with ``prefix`` and name the game in ``source``."""

    def unknown_error(name: str) -> SettingError:
        return options.unknown_error(name, valid_flags, source.run.implementation, prefix, source.run.gamename)

    return read_values(words, valid_flags, unknown_error)


def changes_of(settings: Settings, source: Settings) -> dict[str, Any]:
    """Return setting -> value for the settings that the user of ``--eval_agent`` has changed (``settings.changed``),
    such as ``{"lr": 0.01}``. ``source`` has the settings of the checkpoint, or of agents on the proxy. Raises
    SettingError for unknown names and wrong values."""
    valid_flags = options.flags_of_settings(source)
    words, renamed = translate(settings.changed, source.families, valid_flags)
    _print_translations(settings.changed, renamed, words)
    values, errors = _read(words, source, valid_flags, "--")
    raise_all(errors)
    return values


def _build_settings(
    values: Mapping[str, Any], defaults: Settings, valid_flags: Flags, flag_names: Collection[str]
) -> Settings:
    """Build settings from ``values`` (setting -> value) and check their combination. Parameters of the environment
    become part of ``gamename``, as in ``procmaze,grid_size=5``. ``flag_names`` are the names in ``values`` that are
    from flags, and not from a file. Raises SettingError for values that conflict or have no effect."""
    from envs.names import split_name, with_parameters

    game = defaults.run.gamename
    parameter_values = {name: values[name] for name in parameters(game) if name in values}
    if parameter_values:
        base_game, values_in_name = split_name(values.get("gamename", game))
        if "gamename" in flag_names:  # a name from a flag overrides parameters in a file
            values_from_flags = {name: value for name, value in parameter_values.items() if name in flag_names}
            game = with_parameters(base_game, parameter_values | values_in_name | values_from_flags).name
        else:
            game = with_parameters(base_game, values_in_name | parameter_values).name
    values = {name: value for name, value in values.items() if name not in parameter_values}
    typed_flags = [name for name in values if name in flag_names]
    # Of the name "command.return" of a goal, only the part "command" is kept.
    explicit_names = {name.partition(".")[0] for name in (*values, *defaults.changed)}
    values["gamename"] = game
    subcommand = subcommand_in(values)
    if isinstance(subcommand, EvaluateConfig):  # the checkpoint has the settings of the agent
        settings = dataclasses.replace(defaults, subcommand=subcommand).with_values(values)
    else:
        # ``defaults`` are for a part of the values. Defaults of a search also depend on others, such as ``start_from``.
        settings = settings_with(defaults_for(values), values)
    check_together(settings, typed_flags, valid_flags)
    return dataclasses.replace(settings, explicit_names=frozenset(explicit_names))
