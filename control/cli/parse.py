"""Parse the command line, or keywords in Python, to `Settings`, before torch is imported. Later sources override
earlier ones: defaults of the family, of the implementation and of the game, a file (``--config``), flags."""

import dataclasses
import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from control.cli import options
from control.cli.options import FLAG_ONLY, parameters
from control.cli.run_settings import COMMANDS, EvaluateConfig, RunConfig, TuneConfig
from control.cli.settings import DECIDING, Settings, agents_of, defaults_for, settings_with, subcommand_in
from control.cli.together import check_together
from control.cli.words import NULL, Flags, Pair, Words, as_word, check_text, one_word, pairs_of, read_value, read_values
from models.mixture import expand_shared
from models.registry import canonical_names, family, implementations
from models.settings import SettingError, field_types, format_value, match_spelling, names_with, raise_all
from models.vocabulary import translate, vocabulary


def parse(argv: Sequence[str]) -> Settings:
    """Parse the words of a command line, ``argv``, to settings. Raises SettingError, with a line for each wrong name
    and value. With ``--help`` or ``--version``, prints its text and raises SystemExit(0)."""
    from envs.names import import_module

    pairs = split(argv)
    words = dict(pairs)  # if a flag is repeated, its last words count
    if "version" in words:
        from control.cli.help import version

        print(f"understudy {version()}")
        sys.exit(0)
    if [name for name, _ in pairs].count("config") > 1:
        raise SettingError("--config is given twice; allowed: one file")
    if "use_tune" in words:
        words = _with_search_file(words)
    imports = [",".join(module_words) for name, module_words in pairs if name == "import"]
    modules = ",".join(imports).split(",") if imports else []  # [a, b, c] for --import a,b --import c
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
        flag, equals, value = ("--help" if word == "-h" else word).partition("=")
        name = flag.removeprefix("--")
        if flag.startswith("--") and name:
            underscored = re.sub(r"(?<=\w)-", "_", name)  # a hyphen at the start remains
            pairs.append((underscored, [value] if equals else []))
        elif pairs:
            pairs[-1][1].append(word)
        else:
            raise SettingError(f"{word!r} is not a flag; flags start with --{_flag_hint(word)}")
    check_text(pairs)
    return pairs


def _flag_hint(word: str) -> str:
    """Return a question about the flag that a word without a flag may belong to, such as ``"; did you mean
    '--implementation PPO'?"`` for ``ppo``. It is "" if the word names neither an implementation nor an environment."""
    from envs.names import GAMES

    implementation, game = match_spelling(word, implementations()), match_spelling(word, GAMES)
    if implementation in implementations():
        return f"; did you mean '--implementation {implementation}'?"
    if game in GAMES or re.fullmatch(r"\S+-v\d+", game):  # a Gymnasium id
        return f"; did you mean '--gamename {game}'?"
    return ""


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
    path of ``--config`` ("" without a file). In messages, ``prefix`` precedes unknown names: ``--`` for flags, "" for
    keywords. If ``help_words``, the words after ``--help``, are not None, print the help and raise SystemExit(0).
    Raises SettingError for wrong names and values."""
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
        # Only flags and keywords have modules imported, so that a file cannot run code.
        import_module("gamename", _text_of("gamename", flag_words))  # the module of a game ``module:Name-v0``
        all_words = {**file_words, **flag_words}
        if _text_of("implementation", all_words) == "RN" and _text_of("mode", all_words) == "-1":
            removed, added_words = _baseline_of_rewards(all_words)
            file_words = {name: words for name, words in file_words.items() if name not in removed}
            flag_words = {name: words for name, words in flag_words.items() if name not in removed} | added_words
        if help_words is not None:
            _print_help({**file_words, **flag_words}, help_words)
            sys.exit(0)
        defaults = _defaults({**file_words, **flag_words})
        valid_flags = options.flags_of_settings(defaults)

        def current_value(name: str) -> Any:
            """Return the value of a setting in the file, or else the default. Aliases that change a part of a setting,
            such as a width of ``hidden_sizes``, need it."""
            flag = valid_flags[name]
            return read_value(flag, file_words[name]) if name in file_words else flag.default

        if file:
            file_words, _ = translate(file_words, defaults.families, valid_flags, current_value)
            file_words = _checked_file(file, file_words, flag_words, defaults, valid_flags)
        flag_words, more_renamed = translate(flag_words, defaults.families, valid_flags, current_value)
        renamed |= more_renamed
        aliases |= {setting: alias for alias, setting in renamed.items()}
        if prefix and renamed:
            _print_translations(typed_words, renamed, flag_words)
        if _is_set("eval_agent", flag_words):
            valid_names = valid_flags.keys() | {f"no_{name}" for name in valid_flags}
            changed = {name: [*map(as_word, words)] for name, words in flag_words.items() if name not in valid_names}
            flag_words = {name: words for name, words in flag_words.items() if name in valid_names}
            defaults = dataclasses.replace(defaults, changed=changed)
        file_words = {name: words for name, words in file_words.items() if name not in flag_words}
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


def _text_of(name: str, words: Words) -> str:
    """Return the words of the setting ``name`` as one text. It is "" if ``words`` do not have the setting."""
    return as_word(words.get(name, []))


def _is_set(name: str, words: Words) -> bool:
    """Return whether ``words`` have a value for the setting ``name``, other than null and the empty text."""
    return _text_of(name, words).lower() not in NULL


def _rename_for_user(error: SettingError, aliases: Mapping[str, str], file: str, file_names: set[str]) -> SettingError:
    """Return ``error`` with the names that the user typed. ``aliases`` maps a setting to its typed alias. If the
    setting of the error is in ``file_names``, the names that only the file has, the message begins with the path
    ``file``."""
    message = str(error)
    if aliases:
        names = re.compile(rf"\b({'|'.join(aliases)})\b(?!\.)")  # no name before a dot, as in a path seed.yaml
        message = names.sub(lambda match: aliases[match[0]], message)
    if error.name in file_names and not message.startswith(f"{file}: "):
        message = f"{file}: {message}"
    return SettingError(message, error.name)


def _with_search_file(words: Words) -> dict[str, list[str]]:
    """Return the words of a command line that has ``--use_tune``, with ``--resume FOLDER`` replaced by ``--config
    FOLDER/search.yaml --resume_search FOLDER``. Raises SettingError if the folder is not the folder of a search, or if
    a flag would change a setting that must not change."""
    is_switched_on = words["use_tune"] in ([], ["true"])  # [] is the bare flag
    folder = _text_of("resume_search" if _is_set("resume_search", words) else "resume", words)
    has_folder = folder.lower() not in (*NULL, "true", "false")  # true and false: ``--resume`` as a switch
    if not (is_switched_on and has_folder):
        return dict(words)
    file = os.path.join(folder, "search.yaml")
    if not os.path.isfile(file):
        raise SettingError(
            f"resume is {folder!r}, which has no search.yaml; allowed with --use_tune: the folder of a search", "resume"
        )
    changeable = (*sorted(names_with(TuneConfig, "changeable")), "ray_address")
    other_words = {name: value for name, value in words.items() if name not in ("resume", "resume_search")}
    fixed_names = [name for name in other_words if name not in (*changeable, "use_tune")]
    allowed = ", ".join(changeable)
    errors = [
        SettingError(
            f"--{name} is a setting that the search in {folder!r} has already; allowed with --resume FOLDER: {allowed}",
            name,
        )
        for name in fixed_names
    ]
    raise_all(errors)
    return {"config": [file], "resume_search": [folder], **other_words}


def _baseline_of_rewards(words: Words) -> tuple[set[str], dict[str, list[str]]]:
    """Translate a run with ``--implementation RN --mode -1``, whose settings have the ``words`` (setting -> words).
    Return the names of the settings to remove, and the words of the settings to add. Print the added settings on
    stderr.

    Such a run is a baseline of Ferreira et al. 2022 without a learned reward: an agent gets the environment's reward
    plus a curiosity bonus (ICM) or, if it is tabular, a count-based bonus.
    """
    agent_choice = {"agent": _text_of("agent", words)} if "agent" in words else {}
    agent = agents_of("RN", _text_of("gamename", words), agent_choice)
    is_tabular = family(agent).package.endswith(".tabular")
    bonus, value = ("count_bonus", "0.1") if is_tabular else ("intrinsic", "icm")
    added_words = {"implementation": [agent]}
    if bonus not in words:
        added_words[bonus] = [value]
    line = " ".join(f"--{name} {_text_of(name, added_words)}" for name in added_words)
    print(f"--mode -1 of RN is {line} here", file=sys.stderr)
    return {"implementation", "mode", "agent"}, added_words


def _defaults(words: Words) -> Settings:
    """Return the default settings for the implementation, game, preset and agents in ``words``. If the preset is for a
    certain game, that is the default game. With ``--eval_agent``, the settings of the agent are None, because the
    checkpoint has them. Raises SettingError for a wrong value, or if preset and game do not fit."""
    from envs.names import resolve

    implementation = one_word("implementation", words.get("implementation", [RunConfig.implementation]))
    preset = one_word("preset", words["preset"]) if "preset" in words else ""
    preset_game = family(implementation).preset_game(preset)
    game = resolve(one_word("gamename", words.get("gamename", [preset_game or RunConfig.gamename])))
    if preset_game and resolve(preset_game).base_name != game.base_name:
        raise SettingError(
            f"preset is {preset!r}, but gamename is {game.name!r}; leave out one of them, or take a preset of "
            f"{game.base_name}",
            "gamename",
        )
    if _is_set("eval_agent", words):
        return Settings(RunConfig(implementation=implementation, gamename=game.name), agent=None)
    # Names of other settings on which defaults depend, such as ``preset``.
    names = {"agent", *names_with(family(implementation).config, "chooses")}
    choices = {name: one_word(name, words[name]) for name in names if name in words}
    return defaults_for({**choices, "implementation": implementation, "gamename": game.name})


def _print_help(words: Words, help_words: Sequence[str]) -> None:
    """Print the help page for a command line. ``words`` (flag -> words) are its other flags, which select the page, and
    ``help_words`` are the words after ``--help``."""
    from control.cli.help import help_text, in_colours

    # ``--help PPO`` is short for ``--implementation PPO --help``. An ``--implementation`` in ``words`` overrides it.
    if len(help_words) == 1 and canonical_names(help_words[0]) in implementations():
        words, help_words = {"implementation": [canonical_names(help_words[0])], **words}, []
    # The page of ``--eval_agent`` also has the settings of an implementation.
    defaults = _defaults({name: value for name, value in words.items() if name != "eval_agent"})
    command = next((name for name in COMMANDS if name in words), None)
    print(in_colours(help_text(defaults, help_words, command, is_default="implementation" not in words)))


def _checked_file(
    file: str, file_words: Words, flag_words: Words, defaults: Settings, valid_flags: Flags
) -> dict[str, list[Any]]:
    """Return the words of a file (setting -> words) without settings that only flags may set (their property
    ``by_flag``). Raises SettingError for such a setting, unless its value is the default or ``flag_words`` have it too.
    Also raises it if a flag changes the implementation or the preset of the file, because the other values of the file
    are for these.

    With ``--eval_agent``, the file may be the file of a training run. Its settings that are in the checkpoint are left
    out.
    """
    remaining = dict(file_words)
    wrong: list[SettingError] = []
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
                wrong.append(
                    SettingError(
                        f"{name} is {flag_text!r}, but {file} holds the values of {file_text!r}; "
                        f"leave out --{name} or --config"
                    )
                )
    for name in sorted(remaining):
        flag = valid_flags.get(name)
        if flag is None or not flag.meta["by_flag"]:
            continue
        text = as_word(remaining.pop(name))
        is_default = text == as_word(flag.default) or (flag.default is None and text.lower() in NULL)
        if name not in flag_words and not is_default:
            wrong.append(
                SettingError(
                    f"{file}: {name} is {format_value(text)}; a file may not choose what is written or joined: "
                    f"give it as --{name}",
                    name,
                )
            )
    raise_all(wrong)
    return remaining


def _print_translations(typed: Words, renamed: Mapping[str, str], translated: Words) -> None:
    """Print how aliases are translated, with a line for each setting, such as ``--env CartPole-v1 is --gamename
    cartpole here``. ``typed`` maps a flag as the user typed it to its words, ``translated`` maps a setting to its
    words, and ``renamed`` maps an alias to its setting. If an alias is another setting for other agents, the line says
    so."""
    alias_texts: dict[str, list[str]] = {}  # setting -> aliases with their words
    differences: dict[str, str] = {}  # setting -> end of its line
    usual_settings = vocabulary((), field_types(RunConfig))  # without the meanings of a family
    for name, words in typed.items():
        setting = renamed.get(name, "")
        if setting in translated:  # false for a name that is no alias
            alias_texts.setdefault(setting, []).append(" ".join([f"--{name}", *words]))
            if usual_settings.get(name, setting) != setting:  # num_epochs of PPO is not ``epochs``
                differences[setting] = f", not --{usual_settings[name]}"
    for setting, texts in alias_texts.items():
        translation = " ".join([f"--{setting}", *translated[setting]])
        print(f"{' '.join(texts)} is {translation} here{differences.get(setting, '')}", file=sys.stderr)


def _read(words: Words, source: Settings, valid_flags: Flags, prefix: str) -> tuple[dict[str, Any], list[SettingError]]:
    """Convert ``words`` (setting -> words) to values. Return setting -> value, and a list of errors (`read_values`).
    Messages about unknown names begin with ``prefix``, and name the implementation and the game in ``source``."""
    names = (source.run.implementation, prefix, source.run.gamename)
    return read_values(words, valid_flags, lambda name: options.unknown_error(name, valid_flags, *names))


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
        base_game, from_name = split_name(values.get("gamename", game))
        from_flags = {name: value for name, value in parameter_values.items() if name in flag_names}
        # A name from a flag overrides parameters from a file, and a name from the file does not.
        from_file_and_name = parameter_values | from_name if "gamename" in flag_names else from_name | parameter_values
        game = with_parameters(base_game, from_file_and_name | from_flags).name
    values = {name: value for name, value in values.items() if name not in parameter_values}
    typed_flags = [name for name in values if name in flag_names]
    explicit_names = {name.partition(".")[0] for name in (*values, *defaults.changed)}  # "command" for any command
    values["gamename"] = game
    subcommand = subcommand_in(values)
    if isinstance(subcommand, EvaluateConfig):  # the checkpoint has the settings of the agent
        settings = dataclasses.replace(defaults, subcommand=subcommand).with_values(values)
    else:
        # ``defaults`` are for a part of the values. Defaults of a search also depend on others, such as ``start_from``.
        settings = settings_with(defaults_for(values), values)
    check_together(settings, typed_flags, valid_flags)
    return dataclasses.replace(settings, explicit_names=frozenset(explicit_names))
