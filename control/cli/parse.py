"""Parse the command line, or keywords in Python, to `Settings`, before torch is imported. Later sources override
earlier ones: defaults of the family, of the implementation and of the game, a file (``--config``), flags."""

import dataclasses
import os
import sys
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

from control.cli.options import FLAG_ONLY, Flag, evaluation_overrides, flags, flags_of_all, parameters, unknown_error
from control.cli.run_settings import COMMANDS, EvaluateConfig, RunConfig, TuneConfig
from control.cli.settings import Settings, agents_of, as_dict, from_dict, subcommand_in, to_yaml
from control.cli.together import check_together
from control.cli.words import NULL, Pair, as_python_number, as_word, one_word, read_value, split, words_by_setting
from models.mixture import Mixture, expand_shared
from models.registry import agent_and_proxy_defaults, families_of, family
from models.settings import SettingError, SettingErrors, check_value, format_value, kinds, names_with, raise_all
from models.vocabulary import translate

__all__ = ["RunConfig", "Settings", "as_dict", "from_dict", "parse", "settings_from", "to_yaml", "training_from"]

_CONFIGS = (RunConfig, *COMMANDS.values())
FIRST = ("implementation", "gamename")  # translated first: which other settings exist depends on these
_BASELINE_SETTINGS = ("implementation", "mode", "agent")  # settings that `_baseline_changes` replaces


def parse(argv: Sequence[str] | None = None) -> Settings:
    """Parse ``argv`` to settings. The default is the arguments of the process. Raises SettingError, with a line for
    each wrong name and value, and SystemExit(0) after ``--help`` or ``--version``."""
    pairs = split(sys.argv[1:] if argv is None else argv)
    names = [name for name, _ in pairs]
    if "version" in names:
        from control.cli.help import version

        print(f"understudy {version()}")
        sys.exit(0)
    if names.count("config") > 1:
        raise SettingError("--config is given twice; allowed: one file")
    if "use_tune" in names:
        pairs = _with_search_file(pairs)
    task = dict(pairs).get("learn")
    if task and "gamename" not in names:  # ``--learn GAME`` names the environment
        pairs = [*pairs, ("gamename", task)]
    flag_words, file_words = dict(pairs), dict[str, list[str]]()
    file = one_word("config", flag_words["config"]) if "config" in flag_words else ""
    if file:
        from control.cli.files import read_config  # loads PyYAML, which most command lines do not need

        file_words = dict(read_config(file))
    modules: list[str] = []
    for name, words in pairs:
        if name == "import":
            modules += words or [""]  # no module has the name "", which is an error
    _import_modules(modules, ())
    file_names, flag_names = {*file_words}, {*flag_words}  # `_parse` adds the settings that aliases stand for
    try:
        settings = _parse(pairs, file, file_words, file_names, flag_names)
    except SettingError as error:
        errors = list(error.errors if isinstance(error, SettingErrors) else (error,))
        for i, part in enumerate(errors):
            # The message about a setting of the file begins with the name of the file.
            if part.name in file_names - flag_names and not str(part).startswith(f"{file}: "):
                errors[i] = SettingError(f"{file}: {part}", part.name)
        raise_all(errors)
    return dataclasses.replace(settings, imports=tuple(modules))


def _parse(
    pairs: list[Pair], file: str, file_words: dict[str, list[str]], file_names: set[str], flag_names: set[str]
) -> Settings:
    """Return the settings of the flags in ``pairs`` and of the file (``file_words``, name -> words). Flags override the
    file. Adds the settings that aliases represent to ``file_names`` and ``flag_names``."""
    # Only aliases of `FIRST` can be translated yet: implementation and game determine the other aliases.
    flag_words, renamed = translate(dict(pairs), (), FIRST)
    flag_names |= flag_words.keys()
    if file:
        file_words, _ = translate(file_words, (), FIRST)
        file_names |= file_words.keys()
        file_words = _file_words_without_flag_only(file_words, flag_words)
    _import_modules((), flag_words.get("gamename", ()))
    if baseline := _baseline_changes({name: " ".join(words) for name, words in (file_words | flag_words).items()}):
        file_words = _without_names(file_words, _BASELINE_SETTINGS)
        baseline_words = {name: [as_word(value)] for name, value in baseline.items()}
        flag_words = _without_names(flag_words, _BASELINE_SETTINGS) | baseline_words
    choices = _resolve_choices(file_words | flag_words)
    _check_choices_of_file(file, file_words, flag_words)
    if "help" in flag_words:
        _print_help(file_words | flag_words, choices)
        sys.exit(0)
    if file:
        file_words, _ = _without_aliases(file_words, choices, {})
        file_names |= file_words.keys()
    flag_words, more_renamed = _without_aliases(_without_names(flag_words, FLAG_ONLY), choices, file_words)
    flag_names |= flag_words.keys()
    _print_translations(dict(pairs), renamed | more_renamed, flag_words)
    wrong: list[SettingError] = []
    valid = (choices.valid_flags, choices.implementation)
    from_flags = words_by_setting(flag_words.items(), *valid, prefix="--", game=choices.game, wrong=wrong)
    from_file = words_by_setting(file_words.items(), *valid, prefix=f"{file}: ", game=choices.game, wrong=wrong)
    if isinstance(choices.agents, Mixture):
        from_flags = expand_shared(choices.agents, from_flags)
        from_file = expand_shared(choices.agents, from_file)
    flag_names |= from_flags.keys()
    if choices.evaluating:  # the checkpoint has the other settings
        used_names = {name for name in from_file if _is_used_in_evaluation(choices.valid_flags[name])}
        used_names |= parameters(choices.game).keys() if "gamename" in from_file | from_flags else set()
        from_file = _without_names(from_file, from_file.keys() - used_names)
    return _settings(_read_values(from_file | from_flags, choices, wrong), choices, from_flags)


def _print_help(words: Mapping[str, list[str]], choices: "_Choices") -> None:
    """Print the help page for a command line with ``words`` (setting -> its words). ``help`` is one of the settings."""
    from control.cli.help import help_text

    deciding_names = [name for name, flag in choices.valid_flags.items() if flag.meta["chooses"] and words.get(name)]
    deciding_values = {name: one_word(name, words[name]) for name in deciding_names}
    deciding_values |= {"implementation": choices.implementation, "gamename": choices.game}
    command = next((name for name in COMMANDS if name in words), None)
    print(help_text(choices.valid_flags, deciding_values, words["help"], command, "implementation" not in words))


def _check_choices_of_file(file: str, file_words: Mapping[str, list[str]], flag_words: Mapping[str, list[str]]) -> None:
    """Raise SettingError if a flag changes the implementation or the preset of the file, because the other values of
    the file are for these. With ``--eval_agent`` nothing is checked, because the checkpoint decides both."""
    if "eval_agent" in flag_words:
        return
    wrong = []
    for name in ("implementation", "preset"):
        flag_text, file_text = (" ".join(words.get(name, ())) for words in (flag_words, file_words))
        if flag_text and file_text and flag_text != file_text:
            line = f"{name} is {flag_text!r}, but {file} holds the values of {file_text!r}"
            wrong.append(SettingError(f"{line}; leave out --{name} or --config"))
    raise_all(wrong)


def _read_values(words: Mapping[str, list[str]], choices: "_Choices", wrong: list[SettingError]) -> dict[str, Any]:
    """Convert words to values, by setting. Raises SettingError for all values that cannot be read or are out of range,
    and for the errors in ``wrong``. With ``--eval_agent``, ranges depend on the checkpoint and are not checked here."""
    values: dict[str, Any] = {}
    for name, value_words in words.items():
        flag = choices.valid_flags[name]
        try:
            values[name] = read_value(flag, value_words)
            if not choices.evaluating or _is_used_in_evaluation(flag):
                check_value(name, values[name], flag.kind, flag.meta)
        except SettingError as error:
            wrong.append(error)
    raise_all(wrong)
    return values


def _file_words_without_flag_only(file_words: dict[str, list[str]], flag_words: Container[str]) -> dict[str, Any]:
    """Return ``file_words`` without settings that only flags may set. Raises SettingError if the file has such a
    setting, unless its value is the default, or ``flag_words`` have it too."""
    defaults = {name: getattr(config, name) for config in _CONFIGS for name in names_with(config, "by_flag")}
    wrong = []
    for name in sorted(file_words.keys() & defaults.keys()):
        value, default = " ".join(file_words[name]), defaults[name]
        is_default = value == default or (default is None and value.lower() in NULL)
        if name not in flag_words and not is_default:
            line = f"is {format_value(value)}; a file may not choose what is written or joined: give it as --{name}"
            wrong.append(SettingError(f"{name} {line}", name))
    raise_all(wrong)
    return _without_names(file_words, defaults)


def _without_names(values: Mapping[str, Any], names: Container[str]) -> dict[str, Any]:
    """Return ``values`` without the items that have these ``names``."""
    return {name: value for name, value in values.items() if name not in names}


def _with_search_file(pairs: list[Pair]) -> list[Pair]:
    """Expand ``--use_tune --resume FOLDER`` to ``--config FOLDER/search.yaml --resume_search FOLDER``. Other flags are
    returned unchanged. Raises SettingError for a folder without a search, and for flags that would change the
    search."""
    flag_words = dict(pairs)
    is_switched_on = flag_words["use_tune"] in ([], ["true"])
    folder = " ".join(flag_words.get("resume_search") or flag_words.get("resume", []))
    has_folder = folder.lower() not in (*NULL, "true", "false")  # otherwise ``--resume`` is a switch
    if not (is_switched_on and has_folder):
        return pairs
    file = os.path.join(folder, "search.yaml")
    if not os.path.isfile(file):
        line = f"resume is {folder!r}, which has no search.yaml; allowed with --use_tune: the folder of a search"
        raise SettingError(line, "resume")
    changeable = (*sorted(names_with(TuneConfig, "changeable")), "ray_address")
    wrong_names = flag_words.keys() - {*changeable, "use_tune", "resume", "resume_search"}
    reason = f"is a setting that the search in {folder!r} has already"
    allowed = f"allowed with --resume FOLDER: {', '.join(changeable)}"
    raise_all([SettingError(f"--{name} {reason}; {allowed}", name) for name in flag_words if name in wrong_names])
    other_pairs = [(name, words) for name, words in pairs if name not in ("resume", "resume_search")]
    return [("config", [file]), ("resume_search", [folder]), *other_pairs]


def settings_from(**values: Any) -> Settings:
    """Return settings from keywords with the names of flags. Values are numbers, text, paths, None, lists or tuples.
    Commands are a mapping, as in ``command={"return": 250}``. Raises SettingError as `parse` does."""
    values = {name: as_python_number(value) for name, value in values.items()}
    values |= {
        f"command.{name}": as_python_number(value) for name, value in (values.pop("command", None) or {}).items()
    }
    values, _ = translate(values, (), FIRST)
    if values.get("gamename") is not None:
        _import_modules((), [as_word(values["gamename"])])
    if baseline := _baseline_changes({name: as_word(value) for name, value in values.items()}):
        values = _without_names(values, _BASELINE_SETTINGS) | baseline
    choices = _resolve_choices({name: [as_word(value)] for name, value in values.items() if value is not None})
    values, _ = _without_aliases(values, choices, {})
    unknown_names = [name for name in values if name not in choices.valid_flags]
    valid = (choices.valid_flags, choices.implementation)
    raise_all([unknown_error(name, *valid, prefix="", game=choices.game) for name in unknown_names])
    if isinstance(choices.agents, Mixture):
        values = expand_shared(choices.agents, values)
    return _settings(values, choices, flag_names=frozenset(values))


def training_from(**values: Any) -> Settings:
    """Return `settings_from` for a training run. Raises SettingError if a setting selects another command."""
    settings = settings_from(**values)
    if settings.subcommand is not None:
        name = settings.subcommand.flag
        value = format_value(getattr(settings.subcommand, name))
        raise SettingError(f"{name} is {value}; allowed: null, as only the command does that", name)
    return settings


def _baseline_changes(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that replace `_BASELINE_SETTINGS` if ``texts`` (setting -> text) are of a run
    ``--implementation RN --mode -1``, and print them. Empty for other runs. Such a run is a baseline of Ferreira et al.
    2022 without a learned reward: an agent gets the environment's reward plus a curiosity bonus (ICM) or, if it is
    tabular, a count-based bonus."""
    if texts.get("implementation") != "RN" or texts.get("mode") != "-1":
        return {}
    agent = agents_of("RN", texts.get("gamename", ""), {"agent": texts["agent"]} if "agent" in texts else {})
    bonus = {"count_bonus": 0.1} if family(agent).package.endswith(".tabular") else {"intrinsic": "icm"}
    changes = {"implementation": agent} | _without_names(bonus, texts)
    line = " ".join(f"--{name} {value}" for name, value in changes.items())
    print(f"--mode -1 of RN is {line} here", file=sys.stderr)
    return changes


def _without_aliases(
    values: Mapping[str, Any], choices: "_Choices", previous_words: Mapping[str, list[str]]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return ``values`` by names of settings instead of aliases, and alias -> name. An alias of a part of a setting,
    such as the width of ``hidden_sizes``, changes the value in ``previous_words``, or else the default."""

    def current_value(name: str) -> Any:
        if choices.evaluating:  # the value in the checkpoint is not yet read
            return None
        flag = choices.valid_flags[name]
        return read_value(flag, previous_words[name]) if name in previous_words else flag.default

    return translate(values, choices.families, choices.valid_flags, current_value)


def _print_translations(
    typed: Mapping[str, list[str]], renamed: Mapping[str, str], translated: Mapping[str, list[str]]
) -> None:
    """Print how aliases are translated, such as ``--env CartPole-v1 is --gamename cartpole here``, one line for each
    setting. ``typed`` and ``translated`` have the words by flag and by setting; ``renamed`` is alias -> setting."""
    alias_texts: dict[str, list[str]] = {}  # setting -> aliases with their words
    for name, words in typed.items():
        is_silent = name == "algo" and words == translated.get("implementation")  # --help has both names
        if renamed.get(name) in translated and not is_silent:
            alias_texts.setdefault(renamed[name], []).append(" ".join([f"--{name}", *words]))
    for setting, texts in alias_texts.items():
        translation = " ".join([f"--{setting}", *translated[setting]])
        print(f"{' '.join(texts)} is {translation} here", file=sys.stderr)


def _import_modules(module_words: Sequence[str], game_words: Sequence[str]) -> None:
    """Import the modules in the words of ``--import`` (``a,b``), and the module in the words of ``--gamename``
    (``module:Name``). Both are from flags or keywords, never from a file, so that a file cannot run code."""
    from envs.names import import_module

    for names in module_words:
        for module in names.split(","):
            import_module("import", module)
    import_module("gamename", " ".join(game_words))


class _Choices(NamedTuple):
    """The values that decide which settings exist, and these settings. ``evaluating`` is whether the command is
    ``--eval_agent``: the settings of all implementations are then valid. ``valid_flags`` are the settings by name, with
    defaults for these choices. ``families`` are the families whose aliases are valid (`families_of`). ``agents`` is the
    default config of the agents, None if ``evaluating``."""

    implementation: str
    game: str
    evaluating: bool
    valid_flags: Mapping[str, Flag]
    families: Sequence[str]
    agents: Any = None


def _resolve_choices(words: Mapping[str, list[str]]) -> _Choices:
    """Read from ``words`` (setting -> its words) the values that decide which settings exist: implementation, game,
    preset and agents. A preset for one game makes it the default game. Aliases of games are resolved. Raises
    SettingError."""
    from envs.names import resolve

    implementation = one_word("implementation", words.get("implementation", [RunConfig.implementation]))
    preset = one_word("preset", words["preset"]) if "preset" in words else ""
    preset_game = family(implementation).preset_game(preset)
    game = resolve(one_word("gamename", words.get("gamename", [preset_game or RunConfig.gamename])))
    if preset_game and resolve(preset_game).base_name != game.base_name:
        line = f"preset is {preset!r}, but gamename is {game.name!r}; leave out one of them"
        raise SettingError(f"{line}, or take a preset of {game.base_name}", "gamename")
    evaluating = " ".join(words.get("eval_agent", [])).lower() not in NULL
    if evaluating and "help" not in words:
        # An evaluation takes flags of every implementation, because the checkpoint decides which apply.
        return _Choices(implementation, game.name, evaluating, flags_of_all(game.name), families=())
    deciding_settings = names_with(family(implementation).config, "chooses")
    if family(implementation).learns_from == "evolution":
        deciding_settings.add("agent")
    deciding_values = {name: one_word(name, words[name]) for name in deciding_settings if name in words}
    agent_names = agents_of(implementation, game.name, deciding_values)
    agents, _ = agent_and_proxy_defaults(implementation, game.name, deciding_values, agent_names)
    valid_flags = flags(implementation, game.name, deciding_values)
    families = families_of(implementation, agent_names)
    return _Choices(implementation, game.name, evaluating, valid_flags, families, agents)


def _settings(values: dict[str, Any], choices: _Choices, flag_names: Container[str]) -> Settings:
    """Build settings from ``values`` and check their combination. Parameters of the environment become part of
    ``gamename``. ``flag_names`` are the settings from flags. Removes items from ``values``. Raises SettingError."""
    game = choices.game
    if not choices.evaluating or "gamename" in values:  # otherwise they are parameters of the checkpoint's environment
        parameter_values = {name: values.pop(name) for name in parameters(game) if name in values}
        if parameter_values:
            game = _with_parameters(parameter_values, values.get("gamename", game), flag_names)
    explicit_names = frozenset("command" if name.startswith("command.") else name for name in values)
    typed_flags = [name for name in values if name in flag_names]
    command = {name.removeprefix("command."): values.pop(name) for name in list(values) if name.startswith("command.")}
    values |= {"gamename": game, "command": command}
    if choices.evaluating:
        overrides = evaluation_overrides()
        changed = {name: values.pop(name) for name in list(values) if name in overrides}
        evaluation = {name: values[name] for name in values if name in {*kinds(RunConfig), *kinds(EvaluateConfig)}}
        defaults = Settings(RunConfig(), None, changed=changed, subcommand=subcommand_in(values))
        settings = defaults.replace(**evaluation, command=command)
    else:
        inactive_commands = [kind for kind in COMMANDS.values() if not values.get(kind.flag)]
        inactive_names = {name for command_class in inactive_commands for name in kinds(command_class)}
        settings = from_dict(_without_names(values, inactive_names))
    check_together(settings, typed_flags, choices.valid_flags)
    return dataclasses.replace(settings, explicit_names=explicit_names)


def _is_used_in_evaluation(flag: Flag) -> bool:
    """Return whether ``--eval_agent`` uses this setting of a ``--config`` file. The checkpoint has all others."""
    return flag.section == "run" or flag.command == "eval_agent"


def _with_parameters(values: Mapping[str, Any], game: str, flag_names: Container[str]) -> str:
    """Return the name ``game`` with the parameters in ``values``. If the name has other values for them, parameters
    from flags (``flag_names``) override these, and parameters from a file only if the name is not from a flag."""
    from envs.names import split_name, with_parameters

    base_game, named_parameters = split_name(game)
    game_is_from_flag = "gamename" in flag_names
    overriding = {name: value for name, value in values.items() if name in flag_names or not game_is_from_flag}
    return with_parameters(base_game, {**values, **named_parameters, **overriding}).name
