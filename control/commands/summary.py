"""The end of a command's summary: paths, and commands to type next."""

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from control.cli.colour import paint
from control.cli.settings import Settings

Command = Sequence[object]  # the words after the interpreter
TRAINER = Path(__file__).parents[2] / "trainer.py"


def command(settings: Settings, *words: object) -> Command:
    """Return ``words`` as a command of ``trainer.py``, with ``--import`` for modules that the run needed."""
    module_of_game, _, _ = settings.run.gamename.rpartition(":")  # "" for a game without a module
    modules = dict.fromkeys([*settings.imports, module_of_game])  # each once
    imports = ",".join(filter(None, modules))
    import_words = ("--import", imports) if imports else ()
    return (TRAINER, *import_words, *words)


def show_next(lines: Sequence[tuple[str, object]], commands: Sequence[Command]) -> None:
    """Print ``lines`` of name and value, then ``commands`` that can be pasted into a shell in this folder. A command
    begins with ``tensorboard``, or is the words after ``python``. Paths in this folder are printed relative to it."""
    width = max(12, *(len(name) + 2 for name, _ in lines)) if lines else 12  # of the column of names
    summary_lines = (f"  {paint(f'{name:<{width}}', 'cyan', sys.stdout)}{value}" for name, value in lines)
    print(*summary_lines, *([paint("next:", "bold", sys.stdout)] if commands else []), sep="\n")
    working_dir = Path.cwd()
    for words in commands:
        program, *arguments = words if words[0] == "tensorboard" else ("python", *words)
        command_words = [
            word.relative_to(working_dir) if isinstance(word, Path) and word.is_relative_to(working_dir) else word
            for word in (_program(str(program)), *arguments)
        ]
        print(f"  {shlex.join(map(str, command_words))}", flush=True)


def _program(name: str) -> str | Path:
    """Return ``name`` if the shell finds this Python environment's program under it, else the program's path."""
    program_path = Path(sys.executable) if name == "python" else Path(sys.executable).with_name(name)
    return name if shutil.which(name) == str(program_path) else program_path
