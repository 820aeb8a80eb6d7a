"""Checks of combinations of settings: conflicts, flags without effect, and missing files. Imports no torch."""

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from control.cli.errors import missing_reason
from control.cli.run_settings import RunConfig
from control.cli.settings import Settings, ineffective, replaced_settings
from control.cli.words import EXPECTED, FILM_WORDS, Flag, Flags
from models.settings import SettingError, closest, names_with, raise_all


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
