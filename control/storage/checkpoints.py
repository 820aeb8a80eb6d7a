"""Checkpoints: written whole or not at all, read without pickle's powers, checked before they are believed."""

import os
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pytorch_lightning.plugins.io import TorchCheckpointIO

from control.cli.errors import DISK, absent
from control.cli.settings import Settings, from_dict
from control.storage.run_dir import replacing, versions
from models.settings import SettingError, UserError

OURS = "understudy"
FORMAT = 2  # 2: one module of all agents, training state with named columns of replay, blocks of noise
_ALLOWED = "a .ckpt file that trainer.py wrote"
_WRITER_SIGNS = ("inline_container", "iostream", "PytorchStreamWriter", "failed writing")


class CheckpointError(UserError):
    """A checkpoint that is missing, damaged, from elsewhere, or could not be written."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoint files, each replaced in one step, so that the previous one survives a full disk or a
    kill. ``known`` is a checkpoint that was read already and is handed over, not read again."""

    def __init__(self, known: "Checkpoint | None" = None):
        self.known = known

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        known, self.known = self.known, None
        if known is None or Path(path) != known.path:
            return super().load_checkpoint(path, *args, **kwargs)
        content = dict(known.content)
        known.content.clear()  # Lightning lets go of its own once everything is restored
        return content

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        try:
            with replacing(Path(path)) as temporary:
                torch.save(checkpoint, temporary)
        except (OSError, RuntimeError) as error:
            # torch's zip writer hides why it could not write (ENOSPC, for one) behind its own RuntimeErrors
            hidden = isinstance(error, RuntimeError) and any(sign in str(error) for sign in _WRITER_SIGNS)
            if not hidden and not (isinstance(error, OSError) and error.errno in DISK):
                raise
            reason = "the disk is full or failing" if hidden else _reason(error)
            what = f"could not be written ({reason}); the previous one is kept: make room and go on with --resume"
            raise _error(path, what) from error


class Checkpoint(NamedTuple):
    """A checkpoint of ours: the settings of its run, the seeds of its members, and everything Lightning keeps."""

    path: Path
    settings: Settings
    seeds: list[int]
    content: dict[str, Any]

    @property
    def run_state(self) -> dict[str, Any]:
        """What `RunModule` added of its own."""
        return self.content[OURS]


def load(path: str | os.PathLike[str], resume: bool = False) -> Checkpoint:
    """Read a checkpoint with ``weights_only=True``; CheckpointError where it is none of ours. A folder means the best
    checkpoint of that run (the newest, where it holds several versions), or its last where no evaluation has been.
    ``resume`` also demands what only a ``last.ckpt`` has: memory and random streams."""
    file = _file(Path(path))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's advice on pickles we refuse anyway
            content = torch.load(file, map_location="cpu", weights_only=True)
    except PermissionError:
        raise
    except Exception as error:  # of a damaged file anything can come
        raise _damaged(file, error, resume) from error
    if not isinstance(content, dict) or not isinstance(content.get(OURS), dict):
        raise _error(file, f"was not written by this program; allowed: {_ALLOWED}")
    ours = content[OURS]
    if ours.get("format") != FORMAT:
        raise _error(file, f"has format {ours.get('format')}; this version reads format {FORMAT}")
    if resume and not ours["whole"]:
        raise _error(file, "holds weights but no memory, so no run can resume from it; --reload takes it")
    try:
        found = Checkpoint(file, from_dict(ours["settings"]), list(ours["seeds"]), content)
        assert isinstance(ours["epoch"], int) and content["state_dict"]
    except (KeyError, TypeError, AttributeError, AssertionError, SettingError) as error:
        raise _damaged(file, error, resume) from error
    return found


def kept(*folders: Path) -> Path | None:
    """The checkpoint that stands for a run: of the first of these folders that has one the best, or the last where no
    evaluation has been."""
    paths = (folder / name for folder in folders for name in ("best.ckpt", "last.ckpt"))
    return next((path for path in paths if path.is_file()), None)


def _file(path: Path) -> Path:
    """The checkpoint that a file or folder stands for."""
    if path.is_dir():
        found = kept(path, *(run / "checkpoints" for run in (path, *reversed(versions(path)))))
        if found is None:
            raise CheckpointError(f"folder {str(path)!r} holds no checkpoint; allowed: {_ALLOWED}, or a run's folder")
        return found
    if not path.exists():
        near = sorted(path.parent.glob("*.ckpt"))
        what = f"is {absent(path)}" if path.is_symlink() else "does not exist"
        raise _error(path, what + (f"; there is {near[0].name!r} beside it" if near else ""))
    return path


def _error(path: Any, what: str) -> CheckpointError:
    return CheckpointError(f"checkpoint {str(path)!r} {what}")


def _damaged(file: Path, error: Exception, resume: bool) -> CheckpointError:
    reason = "it holds no plain tensors" if "eights" in str(error)[:20] else _reason(error)
    best = file.with_name("best.ckpt")
    way_out = f"; {str(best)!r} may serve with --reload" if resume and best.exists() else ""
    return _error(file, f"is damaged or not a checkpoint ({reason}); allowed: {_ALLOWED}{way_out}")


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error).strip().split("\n")[0] or type(error).__name__)[:120]
