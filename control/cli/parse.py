"""Parse the command line, or keywords in Python, to `Settings`, before torch is imported. Later sources override
earlier ones: defaults of the family, of the implementation, of the game, a file (``--config``), flags."""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from control.cli.options import FLAG_ONLY, Flag, flags, flags_of_all, for_evaluation, parameters, unknown
from control.cli.settings import BY_FLAG, CHOOSING, RunConfig, Settings, agents_of, as_dict, from_dict, to_yaml
from control.cli.together import FOR_EVALUATION, MODES, check_together
from control.cli.words import NULL, Pair, one_word, read_value, split, unboxed, word, words_by_setting
from models.mixture import spread
from models.registry import default_configs, families_of, family
from models.settings import SettingError, check_value, format_value, raise_all
from models.vocabulary import DEPTHS, WIDTHS, translate, vocabulary

__all__ = ["RunConfig", "Settings", "as_dict", "from_dict", "parse", "settings_from", "to_yaml", "training_from"]

RESUMED = ("num_samples", "max_concurrent_trials", "ray_address")  # settings that a resumed search may change
FIRST = ("implementation", "gamename")  # the set of valid settings depends on them


def parse(argv: Sequence[str] | None = None) -> Settings:
    """Parse ``argv`` (by default ``sys.argv[1:]``) to settings. Raises SettingError, with a line for each wrong name
    and value, and SystemExit(0) after ``--help`` or ``--version``."""
    typed = _of_search(split(sys.argv[1:] if argv is None else argv))
    flag_values = dict(typed)
    if "version" in flag_values:
        from control.cli.help import version

        print(f"understudy {version()}")
        raise SystemExit(0)
    if [name for name, _ in typed].count("config") > 1:
        raise SettingError("--config is given twice; allowed: one file")
    file, written = one_word("config", flag_values["config"]) if "config" in flag_values else "", []
    if file:
        from control.cli.files import read_config  # loads PyYAML, which most command lines do not need

        written = read_config(file)
    modules = [word for name, words in typed if name == "import" for word in words or [""]]
    _import(modules, ())
    flag_values, _ = translate(flag_values, (), FIRST, _no_value)
    with _naming(file, dict(written), ()):
        in_file, _ = translate(dict(written), (), FIRST, _no_value)
    for name in sorted(in_file.keys() & BY_FLAG):
        value, default = " ".join(in_file[name]), getattr(RunConfig, name)
        if name not in flag_values and value != default and not (default is None and value.lower() in NULL):
            line = f"is {format_value(value)}; a file may not choose what is written or joined: give it as --{name}"
            raise SettingError(f"{file}: {name} {line}", name)
    in_file = {name: words for name, words in in_file.items() if name not in BY_FLAG}
    _import((), flag_values.get("gamename", ()))
    in_file, flag_values = _baseline(in_file, flag_values)
    with _naming(file, in_file, flag_values):
        choice = _choose(in_file | flag_values, flag_values)
    for name in ("implementation", "preset"):  # other settings in the file are meant for the file's choice of these
        file_value, other = in_file.get(name), flag_values.get(name)
        if file_value and other and file_value != other and "eval_agent" not in flag_values:
            raise SettingError(
                f"{name} is {' '.join(other)!r}, but {file} holds the values of {' '.join(file_value)!r}; "
                f"leave out --{name} or --config"
            )
    if "help" in flag_values:
        from control.cli.help import help_text

        words = in_file | flag_values
        choices = {
            name: one_word(name, words[name]) for name in CHOOSING if words.get(name) and name in choice.valid_flags
        }
        choices |= {"implementation": choice.implementation, "gamename": choice.game}
        command = next((mode for mode in MODES if mode in flag_values), None)
        print(help_text(choice.valid_flags, choices, flag_values["help"], command))
        raise SystemExit(0)
    valid_flags = choice.valid_flags
    with _naming(file, in_file, ()):
        in_file, _ = _by_our_names(in_file, choice, {})
    flag_values = {name: words for name, words in flag_values.items() if name not in FLAG_ONLY}
    flag_values, _ = _by_our_names(flag_values, choice, in_file)
    _tell(typed, flag_values, choice)
    wrong: list[SettingError] = []
    from_flags = choice.spread_values(
        words_by_setting(flag_values.items(), valid_flags, choice.implementation, "--", choice.game, wrong)
    )
    from_file = words_by_setting(in_file.items(), valid_flags, choice.implementation, f"{file}: ", choice.game, wrong)
    words = choice.spread_values(from_file) | from_flags
    if choice.evaluating:
        game_flags = parameters(choice.game) if "gamename" in words else {}
        words = {
            n: words[n] for n in words if n in from_flags or n in game_flags or valid_flags[n].section in FOR_EVALUATION
        }
    values: dict[str, Any] = {}
    for name, value_words in words.items():
        try:
            with _naming(file, words, from_flags):
                values[name] = read_value(valid_flags[name], value_words)
                if not choice.evaluating or valid_flags[name].section in FOR_EVALUATION:  # else the checkpoint decides
                    check_value(name, values[name], valid_flags[name].kind, valid_flags[name].meta)
        except SettingError as error:
            wrong.append(error)
    raise_all(wrong)
    with _naming(file, words, from_flags):
        return dataclasses.replace(_settings(values, choice, from_flags), imports=tuple(modules))


def _of_search(typed: list[Pair]) -> list[Pair]:
    """Expand ``--use_tune --resume FOLDER`` to the settings of the search in that folder. Raises SettingError for a
    folder without a search, and for flags that would change the search."""
    flag_values = dict(typed)
    words = flag_values.get("resume_search") or flag_values.get("resume", [])
    folder = " ".join(words)
    if flag_values.get("use_tune") not in ([], ["true"]) or folder.lower() in (*NULL, "true", "false"):
        return typed
    file = os.path.join(folder, "search.yaml")
    if not os.path.isfile(file):
        line = f"resume is {folder!r}, which has no search.yaml; allowed with --use_tune: the folder of a search"
        raise SettingError(line, "resume")
    for name in flag_values:
        if name not in (*RESUMED, "use_tune", "resume", "resume_search"):
            allowed = f"allowed with --resume FOLDER: {', '.join(RESUMED)}"
            raise SettingError(f"--{name} is a setting that the search in {folder!r} has already; {allowed}", name)
    other_pairs = [pair for pair in typed if pair[0] not in ("resume", "resume_search")]
    return [("config", [file]), ("resume_search", [folder]), *other_pairs]


def about_the_bare_command() -> str:
    """Return a hint about the default training run, for calls without flags."""
    run = RunConfig()
    return (
        f"training {run.implementation} on {run.gamename} for {run.epochs:,} epochs, which takes about half an hour; "
        "Ctrl-C ends it with a checkpoint, and --help shows what there is to choose"
    )


def settings_from(**values: Any) -> Settings:
    """Return settings from keywords with the names of flags. Values are numbers, text or paths, None, lists or tuples;
    commands are a mapping, as in ``command={"return": 250}``. Raises SettingError as `parse` does."""
    values = {name: unboxed(value) for name, value in values.items()}
    values |= {f"command.{name}": unboxed(value) for name, value in (values.pop("command", None) or {}).items()}
    values, _ = translate(values, (), FIRST, _no_value)
    words = {name: [word(value)] for name, value in values.items() if value is not None}
    _import((), words.get("gamename", ()))
    _, values = _baseline({}, values)
    choice = _choose({name: [word(value)] for name, value in values.items() if value is not None}, values)
    values, _ = _by_our_names(values, choice, {})
    for name in values:
        if name not in choice.valid_flags:
            raise unknown(name, choice.valid_flags, choice.implementation, "", choice.game)
    values = choice.spread_values(values)
    return _settings(values, choice, frozenset(values))


def training_from(**values: Any) -> Settings:
    """Return `settings_from` for a training run. Raises SettingError if a setting selects another command."""
    settings = settings_from(**values)
    for mode in MODES:
        if getattr(settings.run, mode):
            value = format_value(getattr(settings.run, mode))
            raise SettingError(f"{mode} is {value}; allowed: null, as only the command does that", mode)
    return settings


def _baseline(in_file: dict[str, Any], flag_values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Translate ``--implementation RN --mode -1`` to a run of the agent alone, and print the translation. It is a
    baseline of Ferreira et al. 2022: the environment's reward plus ICM or, for tabular agents, a count-based bonus.
    Returns the settings of the file and of the flags, unchanged if they are for another run."""
    texts = {name: word(value) for name, value in (in_file | flag_values).items()}
    if texts.get("implementation") != "RN" or texts.get("mode") != "-1":
        return in_file, flag_values
    agent = agents_of("RN", texts.get("gamename", ""), {"agent": texts["agent"]} if "agent" in texts else {})
    bonus = {"count_bonus": 0.1} if family(agent).package.endswith(".tabular") else {"intrinsic": "icm"}
    changes = {"implementation": agent} | {name: value for name, value in bonus.items() if name not in texts}
    line = " ".join(f"--{name} {value}" for name, value in changes.items())
    print(f"--mode -1 of RN is {line} here", file=sys.stderr)
    in_words = any(isinstance(value, list) for value in (in_file | flag_values).values())
    flag_values = flag_values | {name: [word(value)] if in_words else value for name, value in changes.items()}
    in_file = {name: value for name, value in in_file.items() if name not in ("implementation", "mode", "agent")}
    return in_file, {name: value for name, value in flag_values.items() if name not in ("mode", "agent")}


def _by_our_names(
    values: Mapping[str, Any], choice: "_Choice", previous_words: Mapping[str, list[str]]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Translate aliases in ``values`` to names of settings. Returns the values, and alias -> name.

    A part of a setting, such as the width of ``hidden_sizes``, changes the value in ``previous_words`` or else the
    default.
    """

    def current_value(name: str) -> Any:
        flag = choice.valid_flags[name]
        return read_value(flag, previous_words[name]) if name in previous_words else flag.default

    return translate(values, choice.families, choice.valid_flags, _no_value if choice.evaluating else current_value)


def _tell(typed: Sequence[Pair], translated: Mapping[str, list[str]], choice: "_Choice") -> None:
    """Print the translation of flags that are aliases, one line for each setting."""
    words = vocabulary(choice.families, {*choice.valid_flags, *FIRST})
    parts = [name for name in (*WIDTHS, *DEPTHS) if name not in choice.valid_flags]
    flag_texts: dict[str, list[str]] = {}
    for name, values in dict(typed).items():
        setting_name = words.get(name, "hidden_sizes" if name in parts else name)
        if setting_name != name and setting_name in translated:
            flag_texts.setdefault(setting_name, []).append(" ".join([f"--{name}", *values]))
    for setting_name, texts in flag_texts.items():
        print(
            f"{' '.join(texts)} is {' '.join([f'--{setting_name}', *translated[setting_name]])} here", file=sys.stderr
        )


def _no_value(name: str) -> None:
    return None


def _import(modules: Sequence[str], game: Sequence[str]) -> None:
    """Import ``modules`` and the module in a name ``module:Name`` of ``game``. Both are words of flags or keywords,
    never from a file, so a file from elsewhere cannot run code."""
    from envs.names import import_module

    for module in ",".join(modules).split(",") if modules else ():
        import_module("import", module)
    import_module("gamename", " ".join(game))


@contextlib.contextmanager
def _naming(file: str, words: Container[str], from_flags: Container[str]) -> Iterator[None]:
    """Put the name of ``file`` before errors about a setting that is in ``words`` but not ``from_flags``."""
    try:
        yield
    except SettingError as error:
        if error.name in words and error.name not in from_flags:
            raise SettingError(f"{file}: {error}", error.name) from error
        raise


class _Choice(NamedTuple):
    """The valid settings with their defaults, and the choices that they depend on. ``agents`` is the default config of
    the agent or agents; None if ``evaluating``."""

    implementation: str
    game: str
    evaluating: bool
    valid_flags: Mapping[str, Flag]
    families: Sequence[str]
    agents: Any = None

    def spread_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``values`` with values for several families copied to the setting of each
        (`models.mixture.spread`)."""
        return dict(values) if self.agents is None else spread(self.agents, values)


def _choose(words: Mapping[str, list[str]], flag_names: Container[str]) -> _Choice:
    """Return the choices in ``words``; ``flag_names`` are the settings that flags set. Aliases of games are resolved. A
    preset for one game is the default for ``gamename``. Raises SettingError if they conflict."""
    from envs.names import resolve

    implementation = one_word("implementation", words.get("implementation", [RunConfig.implementation]))
    preset = one_word("preset", words["preset"]) if "preset" in words else ""
    preset_game = family(implementation).preset_game(preset)
    game = resolve(one_word("gamename", words.get("gamename", [preset_game or RunConfig.gamename])))
    if preset_game and resolve(preset_game).base_name != game.base_name:
        flag = next((f"--{name}" for name in ("gamename", "preset") if name in flag_names), "gamename")
        raise SettingError(
            f"preset is {preset!r}, but gamename is {game.name!r}; "
            f"leave out {flag}, or take a preset of {game.base_name}",
            "" if flag.startswith("--") else "gamename",
        )
    evaluating = " ".join(words.get("eval_agent", [])).lower() not in NULL
    if evaluating and "help" not in words:
        return _Choice(implementation, game.name, True, flags_of_all(game.name), ())
    choosing = CHOOSING if family(implementation).learns_from == "evolution" else CHOOSING[:1]
    choices = {name: one_word(name, words[name]) for name in choosing if name in words}
    agent = agents_of(implementation, game.name, choices)
    families, agents = families_of(implementation, agent), default_configs(implementation, game.name, choices, agent)[0]
    return _Choice(implementation, game.name, evaluating, flags(implementation, game.name, choices), families, agents)


def _settings(values: dict[str, Any], choice: _Choice, flag_names: Container[str]) -> Settings:
    """Build settings from ``values`` and check them; ``flag_names`` are the settings that flags set. Raises
    SettingError."""
    game = choice.game
    if not choice.evaluating or "gamename" in values:
        game = _with_parameters(values, game, flag_names)
    explicit_names = frozenset("command" if name.startswith("command.") else name for name in values)
    typed = [name for name in values if name in flag_names]
    command = {name.removeprefix("command."): values.pop(name) for name in list(values) if name.startswith("command.")}
    values |= {"gamename": game, "command": command}
    if choice.evaluating:
        evaluation_settings = for_evaluation()
        changed = {name: values.pop(name) for name in list(values) if name in evaluation_settings}
        run = {name: values[name] for name in values if hasattr(RunConfig, name)}
        settings = Settings(RunConfig(), None, changed=changed).replace(**run, command=command)
    else:
        settings = from_dict(values)
    check_together(settings, typed, choice.valid_flags)
    return dataclasses.replace(settings, explicit_names=explicit_names)


def _with_parameters(values: dict[str, Any], game: str, flag_names: Container[str]) -> str:
    """Return the name ``game`` with the parameters of the environment in ``values``, which are removed from there.

    Parameters from flags (``flag_names``) override parameters in the game's name. Parameters from a file override them
    only if the name is from the file too.
    """
    from envs.names import taken_apart, with_parameters

    parameter_values = {name: values.pop(name) for name in parameters(game) if name in values}
    if not parameter_values:
        return game
    plain, of_name = taken_apart(values.get("gamename", game))
    last = {
        name: value for name, value in parameter_values.items() if name in flag_names or "gamename" not in flag_names
    }
    return with_parameters(plain, parameter_values | of_name | last).name
