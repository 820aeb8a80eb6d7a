"""Run folders, ``LOGDIR/GAME/EXPERIMENT/IMPLEMENTATION/seed_N/version_K``, and the file of metrics in each. Every run
has a separate folder, even if many processes create folders at the same time. Imports no torch."""

import contextlib
import csv
import fcntl
import functools
import itertools
import math
import os
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from control.cli.ending import ending
from control.cli.errors import DISK, absent, one_line
from control.cli.files import check_regular
from control.cli.settings import RunConfig
from models.settings import SettingError, UserError

KEYS = ("epoch", "env_steps", "seed")
LARGEST = 500_000_000  # maximum bytes of a metrics.csv
LAST = Path("checkpoints", "last.ckpt")  # the checkpoint, in a run's folder, from which --resume continues
_VERSION = re.compile(r"version_(\d+)")


def parent(run: RunConfig, search: bool = False) -> Path:
    """The folder that holds all versions of a run: ``seed_25``; ``seed_25-29`` where it trains five members from
    seed 25; ``tune`` for a hyperparameter ``search``."""
    last = run.seed + run.num_seeds - 1
    name = f"seed_{run.seed}" if run.num_seeds == 1 else f"seed_{run.seed}-{last}"
    name = "tune" if search else name
    return Path(run.logdir, *map(safe_name, (run.gamename, run.exp_name, run.implementation)), name)


def safe_name(name: str) -> str:
    """Return ``name`` as the name of one folder, of at most 100 characters. Letters, digits and ``._+-`` remain, ``=``
    becomes ``-``, anything else (as in ``ALE/Pong-v5``) becomes ``_``. Leading dots are removed."""
    return re.sub(r"[^\w.+-]+", "_", name.replace("=", "-")).lstrip(".")[:100] or "_"


def home(file: Path) -> Path:
    """Return the run folder of a checkpoint or of another file in it. If a checkpoint was moved, return its folder."""
    return file.parent.parent if file.parent.name == "checkpoints" else file.parent


def versions(folder: Path) -> list[Path]:
    """Return the run folders in a folder named by `parent`, oldest first."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in paths if _VERSION.fullmatch(path.name)), key=_number)


def newest(folder: Path) -> Path | None:
    """Return the run folder with the highest version in a folder named by `parent`; None if there is none."""
    return versions(folder)[-1] if versions(folder) else None


def winner(where: Path) -> Path | None:
    """Return the file of the proxy that a search left in its run folder, or in the newest version below ``where``; None
    if there is none."""
    from understudy.files import IN_RUN  # imports Gymnasium, which most command lines do not need

    paths = [folder / IN_RUN for folder in (where, newest(where)) if folder]
    return next((path for path in paths if path.exists()), None)


def create(run: RunConfig, search: bool = False) -> Path:
    """Make and return the run's own new folder, with ``checkpoints`` and ``videos`` inside; a search's is empty. Raises
    SettingError where ``logdir`` cannot be written."""
    folder = parent(run, search)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        number = _number(last) + 1 if (last := newest(folder)) else 0
        # mkdir is atomic: exactly one of several processes creates the folder, and the others try the next number.
        while True:
            path = folder / f"version_{number}"
            try:
                path.mkdir()
                break
            except FileExistsError:
                number += 1
        for name in () if search else ("checkpoints", "videos"):
            (path / name).mkdir()
    except OSError as error:
        if error.errno in DISK:
            raise
        reason = error.strerror
        for part in (folder, *folder.parents):
            if os.path.lexists(part) and not part.is_dir():
                reason = f"{str(part)!r} is {'a file' if part.exists() else absent(part)}"
        raise SettingError(
            f"logdir is {run.logdir!r}: cannot make {str(folder)!r} ({reason}); allowed: a folder that can be written"
        ) from error
    return path


def _number(path: Path) -> int:
    return int(path.name.removeprefix("version_"))


@contextlib.contextmanager
def locked(folder: Path, new: bool = False) -> Iterator[None]:
    """Context manager that locks a run's folder for this process and removes half-written files. The system releases
    the lock however the process ends. If the folder is ``new``, wait for the lock, because another process can hold it
    only for a moment.

    Raises SettingError if another process is writing there, or if a file of the run is a folder or the reverse. Raises
    UserError if the disk is full or fails during the block.
    """
    lock = folder / ".lock"
    for path in (lock, folder / "config.yaml", folder / "metrics.csv", folder / "checkpoints"):
        kind = "folder" if path.name == "checkpoints" else "file"
        if lock.is_symlink() or path.exists() and not (path.is_dir() if kind == "folder" else path.is_file()):
            raise SettingError(f"resume: {str(path)!r} is no {kind}, as it is in the folder of a run; move it away")
    with open(lock, "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if new else fcntl.LOCK_NB))
        except BlockingIOError as error:
            checkpoint_note = "" if (folder / LAST).exists() else ", which has no checkpoint yet"
            problem = f"another process is writing {str(folder)!r}{checkpoint_note}"
            raise SettingError(f"resume: {problem}; wait for it or stop it") from error
        for leftover in [*folder.glob(".*.tmp"), *folder.glob("checkpoints/.*.tmp")]:
            leftover.unlink()  # half a file from a killed process
        try:
            yield
        except OSError as error:
            if error.errno not in DISK:
                raise
            error.filename = error.filename or folder
            advice = "go on with --resume" if (folder / LAST).is_file() else "start again"
            raise UserError(f"{one_line(error)} and {advice}") from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Context manager that yields a temporary file beside ``path``, and renames it to ``path`` if the block ends
    without an exception. Whatever happens (an exception, SIGKILL, a full disk), ``path`` is the whole old or the whole
    new file.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    remove = functools.partial(temporary.unlink, missing_ok=True)
    ending.exit_callbacks.append(remove)
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        remove()
        ending.exit_callbacks.remove(remove)


def atomic_write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8 so that ``path`` never holds half of it."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def synced(path: Path) -> None:
    """Wait until the system has written a file and its name to the disk."""
    for place in (path, path.parent):
        descriptor = os.open(place, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class MetricsFile:
    """A CSV file with one row per (epoch, seed): `KEYS`, then one column per TensorBoard tag, with empty cells for
    missing measurements. An existing file is continued: it keeps its columns, and new tags are added after them. Raises
    SettingError if the file is not a table of this form."""

    def __init__(self, path: Path):
        self.path = path
        self.columns = _header(path)
        self._write(self._cells())  # removes an incomplete last line, if the run was killed while it wrote

    def append(self, *rows: Mapping[str, float]) -> None:
        """Append rows, each with `KEYS` and any tags. They are written to the file, not buffered, before the return."""
        new = [tag for tag in dict.fromkeys(tag for row in rows for tag in row) if tag not in self.columns]
        if new:
            self.columns += new
            self._write(self._cells())
        # Plain numbers, because csv would write the names of NumPy and torch types.
        plain = [{tag: int(row[tag]) if tag in KEYS else float(row[tag]) for tag in row} for row in rows]
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self.columns, lineterminator="\n").writerows(plain)

    def go_on_after(self, counted: Sequence[Mapping[str, int]]) -> None:
        """Prepare the file for a run that resumes from a checkpoint: order the rows, remove rows of later epochs, and
        add missing rows of the checkpoint's epoch. ``counted`` has a row of this epoch for each seed, with `KEYS`
        only."""
        order, last = {row["seed"]: i for i, row in enumerate(counted)}, counted[0]["epoch"]
        table = read_columns(self.path)
        epochs, seeds = (table.get(name, array("q")) for name in ("epoch", "seed"))
        places = [i for i, epoch in enumerate(epochs) if epoch <= last]
        places.sort(key=lambda i: (epochs[i], order.get(int(seeds[i]), 0)))
        lines = [",".join(cells) for cells in self._cells()]  # text needs a fifth of the memory of lists
        self._write(lines[i].split(",") for i in places)
        complete = {seeds[i] for i in places if epochs[i] == last}
        self.append(*(row for row in counted if row["seed"] not in complete))

    def _cells(self) -> Iterator[list[str]]:
        """Yield the cells of each row of the file."""
        return (cells for cells, _ in itertools.islice(_rows(self.path), 1, None))

    def _write(self, rows: Iterable[list[str]]) -> None:
        """Replace the file by ``rows``, which may be read from it meanwhile. Rows with too few cells get empty
        cells."""
        with replacing(self.path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.columns)
            writer.writerows(cells + [""] * (len(self.columns) - len(cells)) for cells in rows)


def missing_epochs(path: Path, env_steps: Mapping[int, int], last: int) -> list[int]:
    """Return the epochs from 1 to ``last`` without a row for every seed in metrics.csv. ``last`` is the epoch of a
    checkpoint, ``env_steps`` (seed -> steps) are its numbers of steps. Raises SettingError for rows that do not belong
    to this run."""
    table, logged_keys = read_columns(path), set()
    for number, row in enumerate(zip(*(table.get(name, ()) for name in KEYS), strict=True), 2):
        epoch, steps, seed = map(int, row)
        expected_steps = env_steps.get(seed) if epoch == last else steps
        if seed not in env_steps or epoch < 1 or steps != expected_steps or (epoch, seed) in logged_keys:
            row_text = f"line {number} is of epoch {epoch}, seed {seed} and {steps} steps"
            raise SettingError(
                f"{str(path)!r} is not the table of this run: {row_text}; move it away to go on without it"
            )
        logged_keys.add((epoch, seed))
    return [epoch for epoch in range(1, last + 1) if any((epoch, seed) not in logged_keys for seed in env_steps)]


def read_metrics(path: Path) -> dict[str, list[float]]:
    """Return the columns of a `MetricsFile` by name: integers for `KEYS`, floats for tags, NaN for empty cells."""
    return {column: values.tolist() for column, values in read_columns(path).items()}


def read_columns(path: Path) -> dict[str, "array[float]"]:
    """Return the result of `read_metrics` as arrays with 8 bytes per number, for long tables."""
    rows = _rows(path)
    header, _ = next(rows, ([], ()))
    columns: dict[str, array[float]] = {name: array("q" if name in KEYS else "d") for name in header}
    add = [column.append for column in columns.values()]
    for _, numbers in rows:
        for append, number in zip(add, numbers, strict=True):
            append(number)
    return columns


def _header(path: Path) -> list[str]:
    """Return the names of the columns. If the file is empty or does not exist, return `KEYS`."""
    return next(_rows(path), ([], ()))[0] or list(KEYS)


def _rows(path: Path) -> Iterator[tuple[list[str], Sequence[float]]]:
    """Yield the names of the columns, without numbers, then the cells and the numbers of each row. Yield nothing if the
    file does not exist. An incomplete last line is left out. Raises SettingError if the file cannot be read or is not a
    table of numbers."""
    if not path.exists():
        return
    where = ""
    try:
        check_regular(path, LARGEST)
        lines = csv.reader(_lines(path))
        columns = next(lines, [])
        if columns and (tuple(columns[: len(KEYS)]) != KEYS or len(set(columns)) < len(columns)):
            raise ValueError(f"its first line must be {','.join(KEYS)} and other names, each once")
        yield columns, ()
        for number, cells in enumerate(lines, 2):
            where = f"line {number}: "
            if len(cells) != len(columns):
                raise ValueError(f"{len(cells)} cells instead of {len(columns)}")
            keys = array("q", [int(cell) for cell in cells[: len(KEYS)]])  # OverflowError beyond 64 bits
            yield cells, [*keys, *[float(cell or math.nan) for cell in cells[len(KEYS) :]]]
    except UnicodeError as error:
        raise SettingError(f"{str(path)!r} is no metrics.csv of numbers: it is no text in UTF-8") from error
    except (OSError, ValueError, OverflowError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingError(f"{str(path)!r} is no metrics.csv of numbers: {where}{reason}") from error


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file without their line ends. An incomplete last line is left out."""
    with open(path, encoding="utf-8") as file:
        yield from (line[:-1] for line in file if line.endswith("\n"))
