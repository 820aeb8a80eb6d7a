"""From the command line to `Settings`, before torch is imported.

Merged in this order: the family's defaults, the implementation's, what the game needs, YAML (``--config``), flags.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from control.cli.options import (
    NULL,
    Flag,
    flags,
    flags_of_all,
    for_fresh_agents,
    named,
    one_word,
    parameters,
    read_config,
    read_values,
    split,
)  # fmt: skip
from control.cli.settings import RunConfig, Settings, as_dict, build, check_command, from_dict, to_yaml
from models.proxies.shipped import pretrained
from models.registry import family, learns_from
from models.settings import SettingError, nearest

__all__ = ["RunConfig", "Settings", "as_dict", "from_dict", "parse", "to_yaml"]

CONFLICTS = [("eval_agent", "use_tune"), ("eval_agent", "plot"), ("use_tune", "plot"), ("resume", "reload"),
             ("eval_agent", "resume"), ("eval_agent", "reload"), ("use_tune", "resume")]  # fmt: skip
# A flag of these sections does nothing unless the one named here is given too.
SWITCHES = {"evaluation": "eval_agent", "tuning": "use_tune", "figures": "plot"}
# Words that choose other defaults: of an agent the first, of a stand-in and its agent all.
CHOOSING = ("preset", "proxy", "agent")
# Settings of a run that another way of learning has no use for, and what it has instead.
REPLACED: dict[str, dict[str, str]] = {
    "evolution": {"epochs": "generations", "steps_per_epoch": "inner_steps", "eval_every": "center_every",
                  "eval_episodes": "test_episodes", "reload": "", "time_limit": "test_limit"},
    "episodes": {"steps_per_epoch": "", "agent": "implementation"},
    "steps": {"agent": "implementation"},
}  # fmt: skip
MUST_EXIST = ("eval_agent", "reload", "search_space", "plot")


def parse(argv: Sequence[str] | None = None) -> Settings:
    """The settings that ``argv`` (the process's own by default) asks for.

    Raises SettingError, one line, for whatever is wrong, and SystemExit(0) after ``--help`` or ``--version``.
    """
    typed = split(sys.argv[1:] if argv is None else argv)
    asked = dict(typed)
    if "version" in asked:
        print(f"understudy {version()}")
        raise SystemExit(0)
    if [name for name, _ in typed].count("config") > 1:
        raise SettingError("--config is given twice; allowed: one file")
    file = one_word("config", asked["config"]) if "config" in asked else ""
    written = read_config(file) if file else []
    typed = [(name, words) for name, words in typed if name not in ("config", "help")]
    first = dict(written) | asked
    with _naming(file, dict(written), asked):
        implementation, game = _which(first, asked)
        _check_choice(file, dict(written), asked)
        choosing = CHOOSING if learns_from(implementation) == "evolution" else CHOOSING[:1]
        choices = {name: one_word(name, first[name]) for name in choosing if name in first}
    if "help" in asked:
        from control.cli.help import help_text

        print(help_text(flags(implementation, game, choices), implementation))
        raise SystemExit(0)
    evaluating = " ".join(first.get("eval_agent", [])).lower() not in NULL
    known = flags_of_all(game) if evaluating else flags(implementation, game, choices)
    world = game.partition(",")[0]
    from_flags = named(typed, known, implementation, "--", world)
    from_file = named(written, known, implementation, f"{file}: ", world)
    if not evaluating or "gamename" in first:
        with _naming(file, dict(from_file), dict(from_flags)):
            name = one_word("gamename", first.get("gamename", [game]))
            game = _with_parameters(game, name, "gamename" in asked, from_file, from_flags)
    words = from_file | from_flags
    if evaluating:
        words = {name: words[name] for name in words if name in from_flags or _for_evaluation(known[name])}
    with _naming(file, words, from_flags):
        values = read_values(words, known)
        settings = _settings(values, game, evaluating)
        _check_together(settings, from_flags, known)
    return settings


@contextlib.contextmanager
def _naming(file: str, words: Container[str], from_flags: Container[str]) -> Iterator[None]:
    """Errors about a setting that the file gave, and no flag, with the file's name in front."""
    try:
        yield
    except SettingError as error:
        if error.name in words and error.name not in from_flags:
            raise SettingError(f"{file}: {error}", error.name) from error
        raise


def _which(words: Mapping[str, list[str]], asked: Container[str]) -> tuple[str, str]:
    """Implementation and game, which decide what else there is. A game's other names give its own; a preset that is
    for one game chooses it. ``asked`` are the words that are flags."""
    from envs.names import resolve

    implementation = one_word("implementation", words.get("implementation", [RunConfig.implementation]))
    preset = one_word("preset", words["preset"]) if "preset" in words else ""
    meant = family(implementation).preset_game(preset)
    game = resolve(one_word("gamename", words.get("gamename", [meant or RunConfig.gamename])))
    if meant and resolve(meant).world != game.world:
        flag = next((f"--{name}" for name in ("gamename", "preset") if name in asked), "gamename")
        raise SettingError(
            f"preset is {preset!r}, but gamename is {game.name!r}; leave out {flag}, or take a preset of {game.world}",
            "" if flag.startswith("--") else "gamename",
        )
    return implementation, game.name


def _with_parameters(
    game: str, name: str, typed: bool, from_file: dict[str, list[str]], from_flags: dict[str, list[str]]
) -> str:
    """``game`` with the parameters that file and flags give it, which are taken out of these.

    ``name`` is how it was named; where that was ``typed``, parameters in it go before those of the file.
    """
    from envs.names import taken_apart, with_parameters

    known = parameters(game)
    of_file, of_flags = ({key: words.pop(key) for key in known if key in words} for words in (from_file, from_flags))
    if not of_file and not of_flags:
        return game
    plain, of_name = taken_apart(name)
    values = read_values(of_file, known)
    values = values | of_name if typed else of_name | values
    return with_parameters(plain, values | read_values(of_flags, known)).name


def _settings(values: dict[str, Any], game: str, evaluating: bool) -> Settings:
    given = frozenset("command" if name.startswith("command.") else name for name in values)
    command = {name: values.pop(name) for name in list(values) if name.startswith("command.")}
    command = {name.removeprefix("command."): value for name, value in command.items()}
    values["gamename"] = game
    if evaluating:
        fresh = for_fresh_agents()
        changed = {name: value for name, value in values.items() if name in fresh}
        run = {name: value for name, value in values.items() if hasattr(RunConfig, name)}
        return Settings(build(RunConfig(), run), None, check_command(command), given, changed=changed)
    return dataclasses.replace(from_dict(values | {"command": command}), given=given)


def _for_evaluation(flag: Flag) -> bool:
    return flag.section in ("run", "evaluation")


def _check_choice(file: str, written: Mapping[str, list[str]], asked: Mapping[str, list[str]]) -> None:
    """The values in a file are meant for the implementation and preset that it names: no flag may choose others."""
    # The world of one of the original's JSON files is told by several of its values.
    for name in ("implementation", "preset", *(("gamename",) if file.endswith(".json") else ())):
        if "eval_agent" not in asked and name in written and name in asked and written[name] != asked[name]:
            raise SettingError(
                f"{name} is {' '.join(asked[name])!r}, but {file} holds the values of {' '.join(written[name])!r}; "
                f"leave out --{name} or --config"
            )


def _check_together(settings: Settings, typed: Collection[str], known: Mapping[str, Flag]) -> None:
    """What no single setting can know: conflicts, flags without effect, files that are not there."""
    run = settings.run
    if run.seed + run.num_seeds > 2**63:
        raise SettingError(
            f"seed is {run.seed}; allowed with num_seeds {run.num_seeds}: at most {2**63 - run.num_seeds}"
        )
    if run.exp_name in (".", ".."):
        raise SettingError(f"exp_name is {run.exp_name!r}; allowed: the name of a folder", "exp_name")
    for one, other in CONFLICTS:
        if getattr(run, one) and getattr(run, other):
            raise SettingError(f"--{one} and --{other} exclude each other")
    fresh = for_fresh_agents()
    own = family(run.implementation)
    replaced = {} if run.eval_agent else {**REPLACED[own.learns_from], **own.replaced}
    ineffective = {} if run.eval_agent else own.ineffective(settings.agent)
    for name in typed:
        if name in replaced:
            near = f"; did you mean '--{replaced[name]}'?" if replaced[name] else ""
            raise SettingError(f"--{name} has no effect with {run.implementation}{near}", name)
        if name in ineffective:
            raise SettingError(f"--{name} has no effect: {ineffective[name]}", name)
        switch = SWITCHES.get(known[name].section)
        if switch and not getattr(run, switch) and not name.startswith("command."):
            raise SettingError(f"--{name} has no effect without --{switch}")
        if run.eval_agent and not _for_evaluation(known[name]) and name not in fresh:
            raise SettingError(f"--{name} has no effect with --eval_agent: the checkpoint holds it")
    for name in MUST_EXIST:
        value = getattr(run, name)
        for path in (value,) if isinstance(value, str) else value or ():
            if not Path(path).exists() and not (name == "eval_agent" and path in pretrained()):
                near = nearest(path, pretrained()) if name == "eval_agent" else ""
                raise SettingError(f"{name} is {path!r}: no such file or folder{near}", name)


def version() -> str:
    """The installed version, or that of the source tree where nothing is installed."""
    from importlib import metadata

    try:
        return metadata.version("understudy")
    except metadata.PackageNotFoundError:
        import tomllib

        pyproject = Path(__file__).parents[2] / "pyproject.toml"
        return tomllib.loads(pyproject.read_text())["project"]["version"] if pyproject.exists() else "unknown"
