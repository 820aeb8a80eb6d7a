"""Checkpoints: written atomically, read without running pickled code, and checked before use."""

import contextlib
import errno
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from control.cli.errors import missing_reason
from control.cli.settings import Settings, from_dict
from control.storage.run_dir import atomic_file, find_proxy, version_folders
from envs.names import first_line
from models.settings import UserError
from models.state import read_archive

OURS = "understudy"
FORMAT = 9  # the only format that this version reads
_ALLOWED = "a .ckpt file that trainer.py wrote"
_SHOWN = 12  # maximum number of runs that an error message lists
_MOST_FOLDERS = 10_000  # maximum number of folders in which to look for runs
_MOST_CHARACTERS = 120  # maximum length of another program's message in an error
# Words in the messages of torch's zip writer after a failed write.
_WRITER_SIGNS = ("inline_container", "iostream", "PytorchStreamWriter", "failed writing")


class CheckpointError(UserError):
    """A checkpoint is missing, damaged, or was written by another program."""


class Checkpoint(NamedTuple):
    """A checkpoint of this program: its file, the settings of its run, and the content that Lightning saved."""

    path: Path
    settings: Settings
    content: dict[str, Any]

    @property
    def search_state(self) -> dict[str, Any]:
        """The state that holds the ``archive`` of a search, its best means: the state of the callback
        `EvolutionStrategy` or, in a supervised fit, `run_state`. Raises KeyError if neither has an archive."""
        callback_states: dict[str, dict[str, Any]] = self.content["callbacks"]
        for state in (*callback_states.values(), self.run_state):
            if "archive" in state:
                return state
        raise KeyError("archive")

    @property
    def run_state(self) -> dict[str, Any]:
        """The part of the content that this program added to Lightning's, such as ``epoch`` and ``best``."""
        return self.content[OURS]


def save(content: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a checkpoint atomically, so that the previous file survives a full disk or a kill. Raises OSError."""
    try:
        with atomic_file(Path(path)) as temporary:
            torch.save(content, temporary)
    except RuntimeError as error:  # torch's zip writer raises it without the system's reason
        if not any(sign in str(error) for sign in _WRITER_SIGNS):
            raise
        raise OSError(errno.EIO, "disk full or failing", str(path)) from error


def load(path: str | os.PathLike[str], resume: bool = False) -> Checkpoint:
    """Read a checkpoint from a file or a folder. Of a run's folder, read the best checkpoint, or the last one if there
    was no evaluation. Of a folder with several runs ``version_K``, read it from the newest run that has one. With
    ``resume``, the checkpoint must also have replay buffers and random streams, which only a ``last.ckpt`` has. Raises
    CheckpointError if there is no valid checkpoint of this program."""
    file = Path(path)
    if file.is_dir():
        file = _checkpoint_in(file)
    elif not file.is_file():
        problem = "is no file" if file.exists() else f"does not exist ({missing_reason(file)})"
        nearby_files = sorted(file.parent.glob("*.ckpt"))
        if nearby_files:
            problem += f"; there is {nearby_files[0].name!r} beside it"
        raise CheckpointError(f"checkpoint {str(file)!r} {problem}")
    with checked_content(file, resume):
        checkpoint = _read(file)
        if resume and not checkpoint.run_state["whole"]:  # such as best.ckpt
            raise CheckpointError(f"checkpoint {str(file)!r} holds weights but no memory, so no run can resume from it")
    return checkpoint


def _checkpoint_in(folder: Path) -> Path:
    """Return the checkpoint in ``folder``, which contains checkpoints, is a run's folder, or contains run folders, of
    which the newest with a checkpoint counts. Otherwise raise CheckpointError, which names runs in deeper folders."""
    runs = [folder, *reversed(version_folders(folder))]
    file = find_checkpoint(folder, *(run / "checkpoints" for run in runs))
    if file:
        return file
    runs_below = _runs_below(folder)
    if runs_below:
        problem = f"folder {str(folder)!r} is no run, but has {len(runs_below)} below it"
        raise CheckpointError(f"{problem}; allowed: one of {', '.join(runs_below[:_SHOWN])}")
    raise CheckpointError(f"folder {str(folder)!r} holds no checkpoint; allowed: {_ALLOWED}, or a run's folder")


def _runs_below(folder: Path) -> list[str]:
    """Return the runs below ``folder`` that have a checkpoint or a proxy, as sorted paths relative to ``folder``. For a
    run of ``--learn`` without a proxy, return the checkpoint of its teacher. The search stops after `_MOST_FOLDERS`
    folders, because the user may have named any folder."""
    runs = []
    for run_path, subfolders, _ in itertools.islice(os.walk(folder), _MOST_FOLDERS):
        run = Path(run_path)
        if not run.name.startswith("version_"):
            continue
        has_result = find_checkpoint(run / "checkpoints") or find_proxy(run)
        paths = [run] if has_result else [*run.glob("*.ckpt")]
        if paths:
            runs += [str(path.relative_to(folder)) for path in paths]
            subfolders.clear()  # `os.walk` does not enter them, nor the runs of teachers in them
    return sorted(runs)


def _read(file: Path) -> Checkpoint:
    """Read a checkpoint file. Its checksums and sizes are checked before it is unpickled. Raises CheckpointError for a
    checkpoint of another program or format, and other exceptions for a damaged file."""
    content = read_archive(file)
    if not isinstance(content, dict) or not isinstance(content.get(OURS), dict):
        problem = f"was not written by this program; allowed: {_ALLOWED}"
    elif content[OURS].get("format") != FORMAT:
        problem = f"was written by another version: its format is {content[OURS].get('format')}, not {FORMAT}"
    elif not isinstance(content.get("loops", {}), dict):  # Lightning's counters
        problem = "is damaged (its loops are no mapping)"
    else:
        return Checkpoint(file, from_dict(content[OURS]["settings"]), content)
    raise CheckpointError(f"checkpoint {str(file)!r} {problem}")


@contextlib.contextmanager
def checked_content(file: Path, resume: bool = True) -> Iterator[None]:
    """Context manager for code that uses the content of a checkpoint ``file``. Exceptions in its block become a
    CheckpointError, except errors of the machine, such as a lack of memory. If the run's other checkpoint (best or
    last) is sound, the message names it; with ``resume``, it suggests a new run from that one by ``--reload``."""
    try:
        yield
    except Exception as error:  # a damaged file can cause any exception
        text = str(error)
        if isinstance(error, PermissionError | MemoryError) or "can't allocate memory" in text:
            raise
        if isinstance(error, CheckpointError):
            message = text
        elif isinstance(error, UserError):
            message = f"checkpoint {str(file)!r} cannot be used: {text}"
        else:
            # The text of a KeyError is the missing key.
            reason = f"it has no {text}" if isinstance(error, KeyError) else first_line(error)[:_MOST_CHARACTERS]
            message = f"checkpoint {str(file)!r} is damaged or not a checkpoint ({reason}); allowed: {_ALLOWED}"
        other = file.with_name("best.ckpt" if file.name == "last.ckpt" else "last.ckpt")
        with contextlib.suppress(Exception):
            _read(other)  # raises if it cannot be read
            message += f"; {str(other)!r} {'may serve with --reload' if resume else 'is sound'}"
        raise CheckpointError(message) from error


def find_checkpoint(*folders: Path) -> Path | None:
    """Return the best or else the last checkpoint in the first of ``folders`` that has one. None if there is none."""
    files = [folder / name for folder in folders for name in ("best.ckpt", "last.ckpt")]
    return next((file for file in files if file.is_file()), None)
