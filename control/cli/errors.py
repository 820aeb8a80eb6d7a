"""Error messages for users. Errors that the user can correct are shown as one line without a traceback; every other
error is a bug and keeps its traceback. Imports no torch."""

import errno
import os
import sys

from control.cli.colour import paint, wrap_text
from models.settings import SettingError, UserError, shorten

PROJECT_MODULES = ("control", "envs", "models", "trainer", "understudy")
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # errors of a full or broken disk
# Extras of pyproject.toml and the modules that they install. The extra ``train`` installs all other modules.
_MODULES_OF_EXTRA = {
    "tune": ("ray", "optuna"),
    "bohb": ("hpbandster", "ConfigSpace"),
    "mujoco": ("mujoco",),
    "doom": ("vizdoom",),
    "bench": ("stable_baselines3",),
    "data": ("minari", "h5py"),
    "loggers": ("wandb", "mlflow", "trackio"),
    "onnx": ("onnx",),
    "hub": ("huggingface_hub",),
}
MAX_LINES = 20  # maximum number of lines with errors that a command prints
# EBUSY: a file that is a mount point, as in a container, cannot be replaced.
_ACCESS_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG, errno.EBUSY, errno.ESTALE)


def user_messages(error: BaseException) -> list[str] | None:
    """Return the messages of an error that the user can correct (`one_line`), a line for each wrong setting, at most
    `MAX_LINES`. Return None if the error is a bug."""
    if not isinstance(error, SettingError):
        line = one_line(error)
        return None if line is None else [line]
    lines = [_printable(str(setting_error)) for setting_error in error.errors[:MAX_LINES]]
    if len(error.errors) > MAX_LINES:
        lines[-1] += f" (and {len(error.errors) - MAX_LINES} settings more)"
    return lines


def one_line(error: BaseException) -> str | None:
    """Return the message of an error that the user can correct, as one line: a UserError, a full disk, a file without
    access, too little memory, or a missing Python module. Return None for any other error, which is a bug."""
    understudy = sys.modules.get("understudy")  # not imported here: it is slow to load
    if isinstance(error, UserError) or (understudy is not None and isinstance(error, understudy.ProxyError)):
        return _printable(str(error))
    if isinstance(error, OSError) and error.errno in DISK:
        problem = "disk full" if error.errno == errno.ENOSPC else error.strerror
        place = f" at {str(error.filename)!r}" if error.filename is not None else ""
        return _printable(f"{problem}{place}; make room")
    if isinstance(error, OSError) and error.errno in _ACCESS_ERRORS and error.filename is not None:
        path = error.filename2 or error.filename  # ``filename2`` is the target of a rename
        return _printable(f"cannot use {str(path)!r}: {error.strerror}")
    is_torch_allocation = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    if isinstance(error, MemoryError) or is_torch_allocation:
        return "out of memory; fewer num_seeds, a smaller batch_size or buffer_size and narrower networks need less"
    if isinstance(error, ModuleNotFoundError) and error.name:
        module = error.name.split(".")[0]
        if module not in PROJECT_MODULES:
            extras = [name for name, modules in _MODULES_OF_EXTRA.items() if module in modules]
            install = f"in the project's folder: pip install -e '.[{extras[0] if extras else 'train'}]'"
            return f"the Python module '{module}' is not installed; {install}"
    return None


def _printable(line: str) -> str:
    """Return a message as one line of at most 1500 characters, with words of at most 300. It may contain user input, so
    characters that are not printable, such as escape sequences of terminals, are written as ``\\x1b``."""
    words = [shorten(word, limit=300) for word in line.split()]
    text = shorten(" ".join(words), limit=1500)
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)  # without the quotes


def missing_reason(path: str | os.PathLike[str]) -> str:
    """Return the reason why ``path`` cannot be read, for a message, such as ``no such file or folder``."""
    if os.path.islink(path):
        return f"a symbolic link to {os.readlink(path)!r}, where nothing is"
    try:
        os.stat(path)
    except OSError as error:
        if error.errno != errno.ENOENT and error.strerror:
            return error.strerror
    return "no such file or folder"


def show(line: str) -> None:
    """Print the error message ``line`` on stderr, red on a terminal."""
    print(paint(wrap_text(f"error: {line}", sys.stderr), "red", sys.stderr), file=sys.stderr)
