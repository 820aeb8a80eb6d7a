"""Checks of combinations of settings: conflicts, flags without effect, missing files. Imports no torch."""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from control.cli.errors import absent
from control.cli.options import Flag, for_evaluation
from control.cli.run_settings import RunConfig
from control.cli.settings import Settings, check_exclusive, ineffective, replaced_in
from control.cli.words import WORDS
from models.settings import SettingError, kinds, names_with, nearest, raise_all

PER_CORE = 4  # threads or trials; more only slow each other down
ONE_THREAD_EACH = " with --num_workers {}, whose processes have a thread each"


def check_together(settings: Settings, typed: Collection[str], valid_flags: Mapping[str, Flag]) -> None:
    """Raise SettingError if settings conflict, if files are missing, or if some of the ``typed`` flags have no
    effect."""
    run, command = settings.run, settings.subcommand
    raise_all([*_wrong_values(settings)])
    check_exclusive([name for name in ("resume", "reload") if getattr(run, name)])
    if command is not None:
        for_training = sorted(names_with(run, "commands", ()))
        check_exclusive([command.flag, *(name for name in for_training if getattr(run, name))])
    check_effects(_without_effect(settings, typed, valid_flags))
    raise_all([*_missing_files(run), *_missing_files(command)])


def check_effects(reasons: Iterable[tuple[str, str]]) -> None:
    """Raise SettingError for flags without effect, from pairs of name and reason. A reason is the end of the message,
    such as " with --plot" or ": vary_hp is off"."""
    raise_all([SettingError(f"--{name} has no effect{reason}", name) for name, reason in reasons])


def _wrong_values(settings: Settings) -> Iterator[SettingError]:
    """Yield errors for values whose range depends on other settings or on the machine, and for a name of an experiment
    that is no folder's name."""
    run, cores = settings.run, os.cpu_count() or 1
    if run.seed + run.num_seeds > 2**63:
        max_seed = 2**63 - run.num_seeds
        yield SettingError(f"seed is {run.seed}; allowed with num_seeds {run.num_seeds}: at most {max_seed}")
    max_value = max(8, PER_CORE * cores)
    counts = {"num_threads": run.num_threads}
    if not run.ray_address:  # a cluster may have more cores than this machine
        counts["max_concurrent_trials"] = getattr(settings.subcommand, "max_concurrent_trials", None) or 0
    for name, count in counts.items():
        if count > max_value:
            line = f"{name} is {count}; allowed: at most {max_value} on this machine, which has {cores} cores"
            yield SettingError(line, name)
    if run.exp_name in (".", ".."):
        yield SettingError(f"exp_name is {run.exp_name!r}; allowed: the name of a folder", "exp_name")


def _missing_files(config: Any) -> Iterator[SettingError]:
    """Yield an error for each path in a config that is neither a file, nor another word that the setting accepts."""
    for name in names_with(config, "exists"):
        value = getattr(config, name) or ()
        for path in (value,) if isinstance(value, str) else value:
            if os.path.exists(path):
                continue
            words: Collection[str] = ()
            if name in ("eval_agent", "film"):
                from understudy import pretrained  # with Gymnasium, which most command lines need not load

                words = [*pretrained(), *(WORDS if name == "film" else ())]
            if path not in words:
                yield SettingError(f"{name} is {path!r}: {absent(path)}{nearest(path, words)}", name)


def _without_effect(
    settings: Settings, typed: Collection[str], valid_flags: Mapping[str, Flag]
) -> Iterator[tuple[str, str]]:
    """Yield the ``typed`` flags that have no effect in combination with the other settings, each with the reason."""
    run, command = settings.run, settings.subcommand.flag if settings.subcommand else ""
    trains = command in ("", "use_tune")
    replacements = replaced_in(run.implementation) if trains else {}
    idle = ineffective(settings) if trains else {}
    for name in typed:
        flag = valid_flags[name]
        if flag.command and flag.command != command:
            if name != flag.command:
                yield name, f" without --{flag.command}"
            elif flag.kind.item is not bool:  # empty text, such as an empty shell variable
                yield name, ": it is empty"
        elif command and not _used_by(command, flag):
            yield name, f" with --{command}{_checkpoint_hint(flag) if command == 'eval_agent' else ''}"
        elif flag.required_flags and not _has_needed(settings, flag):
            yield name, f" without {flag.required_flags}"
        elif name in replacements:
            hint = f"; did you mean '--{replacements[name]}'?" if replacements[name] else ""
            yield name, f" with {run.implementation}{hint}"
        elif name in idle:
            yield name, f": {idle[name]}"
        elif name == "num_threads" and run.num_threads > 1 and run.num_workers > 1 and settings.proxy is not None:
            yield name, ONE_THREAD_EACH.format(run.num_workers)


def _checkpoint_hint(flag: Flag) -> str:
    """Return the end of the message for a flag that ``--eval_agent`` does not use."""
    if flag.section == "run":
        return ""
    return "; did you mean '--num_eval_episodes'?" if flag.name == "eval_episodes" else ": the checkpoint holds it"


def _used_by(command: str, flag: Flag) -> bool:
    """Return whether a command other than training uses a setting."""
    if flag.command or flag.owner is RunConfig:
        return command in (flag.command, *flag.meta["commands"])
    if flag.owner is None:  # a command to the agent
        return command in ("use_tune", "eval_agent")
    return command == "use_tune" or (command == "eval_agent" and flag.name in for_evaluation())


def _has_needed(settings: Settings, flag: Flag) -> bool:
    """Return whether one of the settings that a setting needs differs from its default."""
    changed: set[str] = set()
    for config in (settings.run, settings.subcommand):
        changed |= {name for name in kinds(type(config)) if getattr(config, name) != getattr(type(config), name)}
    return bool(changed & {*flag.meta["needs"]})
