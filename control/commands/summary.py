"""The end of a command's summary: paths, and commands to type next."""

import math
import re
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from control.cli.colour import paint, print_named
from control.cli.options import command_line
from control.cli.settings import Settings

Command = Sequence[object]  # the words of a shell command: the file trainer.py and its flags, or tensorboard and flags
TRAINER = Path(__file__).parents[2] / "trainer.py"
_NAME_WIDTH = 12  # smallest width of the column of names, so that the summaries of commands look alike


def command(settings: Settings, *words: object) -> Command:
    """Return the command of ``trainer.py`` with the flags and values ``words``, such as ``("--eval_agent", folder)``.
    It also has ``--import`` for the modules that the run with these ``settings`` needed."""
    modules = dict.fromkeys(settings.imports)  # without repetitions
    module_of_game, _, _ = settings.run.gamename.rpartition(":")  # the module of ``module:Name-v0``
    if module_of_game:
        modules[module_of_game] = None
    import_words = ("--import", ",".join(modules)) if modules else ()
    return (TRAINER, *import_words, *words)


def resume_command(settings: Settings, **changes: Any) -> Command:
    """Return the command that continues the run with these ``settings``, with ``changes`` of some of them."""
    # Without a value of the user, the program determines these, also when it resumes the run.
    automatic = {"implementation"} if settings.subcommand else {"checkpoint_every", "compiled"}
    omitted = {"resume", "reload", *(automatic - settings.explicit_names)}
    if settings.subcommand:
        omitted.add("gamename")
    _, _, *flags = shlex.split(command_line(settings.replace(**changes), omitted))  # the first words: python trainer.py
    return command(settings, *flags, "--resume")


def path_text(value: object, folder: Path | None = None) -> str:
    """Return ``value`` as text. A path inside ``folder`` becomes relative to it. Any other path inside the working
    directory becomes relative to the working directory."""
    if isinstance(value, Path):
        for base in (folder, Path.cwd()):
            if base and base != value and value.is_relative_to(base):
                return str(value.relative_to(base))
    return str(value)


def show_next(lines: Sequence[tuple[str, object]], commands: Sequence[Command], folder: Path | None = None) -> None:
    """Print the end of a command's output: ``lines`` of a summary, such as ``("checkpoint", path)``, and ``commands``
    to type next, which can be pasted into a shell. Paths inside ``folder`` become relative to it in the lines."""
    width = max([_NAME_WIDTH, *(len(name) + 2 for name, _ in lines)])  # width of the column of names
    for name, value in lines:
        print_named(f"  {name}", path_text(value, folder), width + 2)
    if commands:
        print(paint("next:", "bold", sys.stdout))
    for words in commands:
        if words[0] == "tensorboard":
            program, program_path, arguments = "tensorboard", Path(sys.executable).with_name("tensorboard"), words[1:]
        else:
            program, program_path, arguments = "python", Path(sys.executable), words
        if shutil.which(program) != str(program_path):  # the shell finds another program of this name, or none
            program = path_text(program_path)
        print(_wrapped_command([program, *map(path_text, arguments)]), flush=True)


def _wrapped_command(words: Sequence[str]) -> str:
    """Return an indented shell command. On a terminal, lines that do not fit are broken before a flag."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else math.inf
    lines = [f"  {shlex.quote(words[0])}"]
    for flag_and_value in re.split(" (?=--)", shlex.join(words[1:])):  # such as "--seed 3"
        if len(lines[-1]) + len(flag_and_value) + 3 > width:  # a space before it and " \\" after it
            lines[-1] += " \\"
            lines.append(f"    {flag_and_value}")
        else:
            lines[-1] += f" {flag_and_value}"
    return "\n".join(lines)
