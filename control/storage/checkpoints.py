"""Checkpoints: written whole or not at all, read without pickle's powers, checked before they are believed."""

import contextlib
import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from control.cli.errors import absent
from control.cli.settings import Settings, from_dict
from control.storage.run_dir import replacing, versions, winner
from models.archive import read_archive
from models.settings import UserError

OURS = "understudy"
FORMAT = 4  # the only one that is read
_ALLOWED = "a .ckpt file that trainer.py wrote"
_SHOWN = 12  # runs that a line names
_MOST_FOLDERS = 10_000
_WRITER_SIGNS = ("inline_container", "iostream", "PytorchStreamWriter", "failed writing")


class CheckpointError(UserError):
    """A checkpoint that is missing, damaged or from elsewhere."""


class Checkpoint(NamedTuple):
    """A checkpoint of ours: the settings of its run, and everything Lightning keeps."""

    path: Path
    settings: Settings
    content: dict[str, Any]

    @property
    def search_state(self) -> dict[str, Any]:
        """The state of a search's `EvolutionStrategy`, or of a fit, whose ``archive`` holds the best means. Raises
        KeyError if the checkpoint holds none."""
        states = [state for state in (*self.content["callbacks"].values(), self.run_state) if "archive" in state]
        if not states:
            raise KeyError("archive")
        state: dict[str, Any] = states[0]
        return state

    @property
    def run_state(self) -> dict[str, Any]:
        """What our runs added of their own."""
        return self.content[OURS]


def save(content: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a file in one step, so that the one before survives a full disk or a kill. OSError where it cannot be."""
    try:
        with replacing(Path(path)) as temporary:
            torch.save(content, temporary)
    except RuntimeError as error:  # of torch's zip writer, which hides why it could not write
        if not any(sign in str(error) for sign in _WRITER_SIGNS):
            raise
        raise OSError(errno.EIO, "disk full or failing", str(path)) from error


def load(path: str | os.PathLike[str], resume: bool = False) -> Checkpoint:
    """Read a checkpoint; CheckpointError where it is none of ours. A folder means the best
    checkpoint of that run (the newest, where it holds several versions), or its last where no evaluation has been.
    ``resume`` also demands what only a ``last.ckpt`` has: memory and random streams."""
    file = _file(Path(path))
    with believing(file, resume):
        checkpoint = _read(file)
        if resume and not checkpoint.run_state["whole"]:
            raise _error(file, "holds weights but no memory, so no run can resume from it")
    return checkpoint


def _read(file: Path) -> Checkpoint:
    """A checkpoint whose archive is whole. Its checksums and sizes are checked before anything is unpickled."""
    content = read_archive(file)
    if not isinstance(content, dict) or not isinstance(content.get(OURS), dict):
        raise _error(file, f"was not written by this program; allowed: {_ALLOWED}")
    run_state = content[OURS]
    if run_state.get("format") != FORMAT:
        raise _error(file, f"has format {run_state.get('format')}; this version reads format {FORMAT}")
    return Checkpoint(file, from_dict(run_state["settings"]), content)


@contextlib.contextmanager
def believing(file: Path, resume: bool = True) -> Iterator[None]:
    """Make a CheckpointError of whatever goes wrong with what ``file`` says. It names the run's other checkpoint where
    that is sound. Errors of the machine, such as a lack of memory, pass."""
    try:
        yield
    except Exception as error:  # of a damaged file anything can come
        text = str(error)
        if isinstance(error, PermissionError | MemoryError) or "can't allocate memory" in text:
            raise
        if isinstance(error, CheckpointError):
            line = text
        elif isinstance(error, UserError):
            line = f"checkpoint {str(file)!r} cannot be used: {text}"
        else:
            reason = f"it has no {text}" if isinstance(error, KeyError) else text.strip().split("\n")[0][:120]
            reason = reason or type(error).__name__
            line = f"checkpoint {str(file)!r} is damaged or not a checkpoint ({reason}); allowed: {_ALLOWED}"
        other = file.with_name("best.ckpt" if file.name == "last.ckpt" else "last.ckpt")
        with contextlib.suppress(Exception):
            _read(other)
            line += f"; {str(other)!r} {'may serve with --reload' if resume else 'is sound'}"
        raise CheckpointError(line) from error


def find_checkpoint(*folders: Path) -> Path | None:
    """The checkpoint that stands for a run: of the first of these folders that has one the best, or the last where no
    evaluation has been."""
    paths = (folder / name for folder in folders for name in ("best.ckpt", "last.ckpt"))
    return next((path for path in paths if path.is_file()), None)


def _file(path: Path) -> Path:
    """The checkpoint that a file or folder stands for."""
    if path.is_dir():
        checkpoint_path = find_checkpoint(path, *(run / "checkpoints" for run in (path, *reversed(versions(path)))))
        if checkpoint_path is None and (runs := _runs_below(path)):
            names = ", ".join(runs[:_SHOWN]) + (f" and {len(runs) - _SHOWN} more" if len(runs) > _SHOWN else "")
            raise CheckpointError(
                f"folder {str(path)!r} is no run, but has {len(runs)} below it; allowed: one of {names}"
            )
        if checkpoint_path is None:
            raise CheckpointError(f"folder {str(path)!r} holds no checkpoint; allowed: {_ALLOWED}, or a run's folder")
        return checkpoint_path
    if not path.is_file():
        nearby_files = sorted(path.parent.glob("*.ckpt"))
        problem = "is no file" if path.exists() else f"does not exist ({absent(path)})"
        raise _error(path, problem + (f"; there is {nearby_files[0].name!r} beside it" if nearby_files else ""))
    return path


def _runs_below(folder: Path) -> list[str]:
    """The runs with a checkpoint or a proxy in the folder of an experiment, an environment or all, as paths in it. Ends
    after `_MOST_FOLDERS`, as any folder may be asked about."""
    runs = []
    for path, names, _ in itertools.islice(os.walk(folder), _MOST_FOLDERS):
        run = Path(path)
        if run.name.startswith("version_") and (find_checkpoint(run / "checkpoints") or winner(run)):
            runs.append(str(run.relative_to(folder)))
            names.clear()
    return sorted(runs)


def _error(path: Any, problem: str) -> CheckpointError:
    return CheckpointError(f"checkpoint {str(path)!r} {problem}")
