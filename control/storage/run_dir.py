"""Run folders, ``LOGDIR/GAME/EXPERIMENT/IMPLEMENTATION/seed_N/version_K``, and the metrics kept in each. A run owns its
folder: creating one never touches another, however many processes do it at once. Imports no torch."""

import contextlib
import csv
import errno
import fcntl
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from control.cli.errors import DISK, absent
from control.cli.settings import RunConfig
from models.settings import SettingError

KEYS = ("epoch", "env_steps", "seed")
_VERSION = re.compile(r"version_(\d+)")


def parent(run: RunConfig) -> Path:
    """The folder that holds all versions of a run: ``seed_25``; ``seed_25-29`` where it trains five members from
    seed 25; ``tune`` where it is a search."""
    last = run.seed + run.num_seeds - 1
    name = f"seed_{run.seed}" if run.num_seeds == 1 else f"seed_{run.seed}-{last}"
    name = "tune" if run.use_tune else name
    return Path(run.logdir, *map(safe_name, (run.gamename, run.exp_name, run.implementation)), name)


def safe_name(name: str) -> str:
    """``name`` as one folder: letters, digits and ``._+=-`` stay, anything else (as in ``ALE/Pong-v5``) is ``_``."""
    return re.sub(r"[^\w.+=-]+", "_", name).lstrip(".")[:100] or "_"


def versions(folder: Path) -> list[Path]:
    """The runs in a folder made by `parent`, oldest first."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in found if _VERSION.fullmatch(path.name)), key=_number)


def newest(folder: Path) -> Path | None:
    """The run with the highest version in a folder made by `parent`."""
    return versions(folder)[-1] if versions(folder) else None


def create(run: RunConfig) -> Path:
    """Make and return the run's own new folder, with ``checkpoints`` and ``videos`` inside; a search's is empty. Raises
    SettingError where ``logdir`` cannot be written."""
    folder = parent(run)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        number = _number(last) + 1 if (last := newest(folder)) else 0
        # mkdir is atomic: of several processes exactly one makes the folder and the others go on to the next number.
        while True:
            path = folder / f"version_{number}"
            try:
                path.mkdir()
                break
            except FileExistsError:
                number += 1
        for name in () if run.use_tune else ("checkpoints", "videos"):
            (path / name).mkdir()
    except OSError as error:
        if error.errno in DISK:
            raise
        links = [part for part in (folder, *folder.parents) if part.is_symlink() and not part.exists()]
        reason = f"{str(links[0])!r} is {absent(links[0])}" if links else error.strerror
        if not links and error.errno in (errno.EEXIST, errno.ENOTDIR):
            reason = "part of the path is a file"
        raise SettingError(
            f"logdir is {run.logdir!r}: cannot make {str(folder)!r} ({reason}); allowed: a folder that can be written"
        ) from error
    return path


def _number(path: Path) -> int:
    return int(path.name.removeprefix("version_"))


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run's folder for one process; the system lets go of it however the process ends. Raises SettingError where
    another process is writing there."""
    with open(folder / ".lock", "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SettingError(f"resume: another process is writing {str(folder)!r}; wait for it or stop it") from error
        for left in [*folder.glob(".*.tmp"), *folder.glob("checkpoints/.*.tmp")]:
            left.unlink()  # half a file of a process that was killed
        yield


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` that takes its place once the block has ended well. Whatever happens (an
    exception, SIGKILL, a full disk), ``path`` is the whole old file or the whole new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def atomic_write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8 so that ``path`` never holds half of it."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


class MetricsFile:
    """A CSV file with a row per (epoch, seed): `KEYS`, then one column a TensorBoard tag, empty where not measured. An
    existing file is continued. Its columns come first; tags it does not know add columns."""

    def __init__(self, path: Path):
        self.path = path
        columns, rows = _read_rows(path)
        self.columns = columns or list(KEYS)
        self._write(rows)  # which mends the last line of a run that was killed while it wrote

    def append(self, *rows: Mapping[str, float]) -> None:
        """Add rows, each with `KEYS` and any tags, and hand them to the system before returning."""
        new = [tag for tag in dict.fromkeys(tag for row in rows for tag in row) if tag not in self.columns]
        if new:
            self.columns += new
            self._write(_read_rows(self.path)[1])
        # NumPy and torch scalars would be written by their own names.
        plain = [{tag: int(row[tag]) if tag in KEYS else float(row[tag]) for tag in row} for row in rows]
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self.columns, lineterminator="\n").writerows(plain)

    def truncate_after(self, epoch: int) -> None:
        """Forget the rows of epochs after ``epoch``, for a run that goes on from its checkpoint."""
        self._write([row for row in _read_rows(self.path)[1] if int(row["epoch"]) <= epoch])

    def _write(self, rows: Sequence[Mapping[str, str]]) -> None:
        with replacing(self.path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


def read_metrics(path: Path) -> dict[str, list[float]]:
    """Columns of a `MetricsFile`: whole numbers for `KEYS`, floats for tags, NaN where nothing was measured."""
    columns, rows = _read_rows(path)
    return {
        column: [int(row[column]) if column in KEYS else float(row[column] or math.nan) for row in rows]
        for column in columns
    }


def _read_rows(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Header and rows, without a last line that was cut off; nothing where there is no file."""
    if not path.exists():
        return [], []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    reader = csv.DictReader(line for line in lines if line.endswith("\n"))
    return list(reader.fieldnames or ()), list(reader)
