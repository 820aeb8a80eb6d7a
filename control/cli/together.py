"""Checks of combinations of settings: conflicts, flags without effect, missing files. Imports no torch."""

import os
from collections.abc import Collection, Iterator, Mapping

from control.cli.errors import absent
from control.cli.options import Flag, for_evaluation
from control.cli.run_settings import RunConfig
from control.cli.settings import Settings, ineffective, replaced_in
from control.cli.words import WORDS
from models.settings import SettingError, kinds, names_with, nearest, raise_all

PER_CORE = 4  # threads or trials; more only slow each other down


def check_together(settings: Settings, typed: Collection[str], valid_flags: Mapping[str, Flag]) -> None:
    """Raise SettingError if settings conflict, or if some of the ``typed`` flags have no effect."""
    run = settings.run
    if run.seed + run.num_seeds > 2**63:
        raise SettingError(
            f"seed is {run.seed}; allowed with num_seeds {run.num_seeds}: at most {2**63 - run.num_seeds}"
        )
    max_value = max(8, PER_CORE * (os.cpu_count() or 1))
    for name in ("num_threads",) if run.ray_address else ("num_threads", "max_concurrent_trials"):
        if (value := getattr(run, name, None) or getattr(settings.subcommand, name, None) or 0) > max_value:
            machine = f"on this machine, which has {os.cpu_count()} cores"
            raise SettingError(f"{name} is {value}; allowed: at most {max_value} {machine}", name)
    if run.exp_name in (".", ".."):
        raise SettingError(f"exp_name is {run.exp_name!r}; allowed: the name of a folder", "exp_name")
    if run.resume and run.reload:
        raise SettingError("--resume and --reload exclude each other")
    for name in names_with(run, "commands", ()) if settings.subcommand else ():
        if getattr(run, name):
            raise SettingError(f"--{settings.subcommand.flag} and --{name} exclude each other")
    raise_all(
        [SettingError(f"--{name} has no effect{reason}", name) for name, reason in _idle(settings, typed, valid_flags)]
    )
    for config in (run, settings.subcommand):
        for name in names_with(config, "exists"):
            value = getattr(config, name) or ()
            for path in (value,) if isinstance(value, str) else value:
                _check_exists(name, path)


def _check_exists(name: str, path: str) -> None:
    """Raise SettingError if a setting's path is neither a file, nor another word that the setting accepts."""
    if os.path.exists(path):
        return
    shipped: Collection[str] = ()
    if name in ("eval_agent", "film"):
        from understudy import pretrained  # with Gymnasium, which most command lines need not load

        shipped = [*pretrained(), *(WORDS if name == "film" else ())]
    if path not in shipped:
        raise SettingError(f"{name} is {path!r}: {absent(path)}{nearest(path, shipped)}", name)


def _idle(settings: Settings, typed: Collection[str], valid_flags: Mapping[str, Flag]) -> Iterator[tuple[str, str]]:
    """The ``typed`` flags without effect beside the other settings, each with the reason."""
    run, command = settings.run, settings.subcommand.flag if settings.subcommand else ""
    replacements = {} if command and command != "use_tune" else replaced_in(run.implementation)
    idle = {} if command and command != "use_tune" else ineffective(settings)
    for name in typed:
        flag = valid_flags[name]
        if flag.command and flag.command != command:
            if name != flag.command:
                yield name, f" without --{flag.command}"
            elif flag.kind.item is not bool:  # empty text, such as an empty shell variable
                yield name, ": it is empty"
        elif command and not _used_by(command, flag):
            if command == "eval_agent":
                hint = (
                    "; did you mean '--num_eval_episodes'?" if name == "eval_episodes" else ": the checkpoint holds it"
                )
                yield name, f" with --eval_agent{'' if flag.section == 'run' else hint}"
            else:
                yield name, f" with --{command}"
        elif flag.required_flags and not _has_needed(settings, flag):
            yield name, f" without {flag.required_flags}"
        elif name in replacements:
            hint = f"; did you mean '--{replacements[name]}'?" if replacements[name] else ""
            yield name, f" with {run.implementation}{hint}"
        elif name in idle:
            yield name, f": {idle[name]}"
        elif name == "num_threads" and run.num_threads > 1 and run.num_workers > 1 and settings.proxy is not None:
            yield name, f" with --num_workers {run.num_workers}, whose processes have a thread each"


def _used_by(command: str, flag: Flag) -> bool:
    """Whether a command other than training uses a setting."""
    if flag.command or flag.owner is RunConfig:
        return command in (flag.command, *flag.meta["commands"])
    if flag.owner is None:  # a command to the agent
        return command in ("use_tune", "eval_agent")
    return command == "use_tune" or command == "eval_agent" and flag.name in for_evaluation()


def _has_needed(settings: Settings, flag: Flag) -> bool:
    """Whether one of the settings that a setting needs differs from its default."""
    parts = [part for part in (settings.run, settings.subcommand) if part is not None]
    changed = {name for part in parts for name in kinds(type(part)) if getattr(part, name) != getattr(type(part), name)}
    return bool(changed & {*flag.meta["needs"]})
