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
from control.cli.errors import DISK, missing_reason, one_line
from control.cli.files import check_regular
from control.cli.settings import RunConfig
from models.settings import SettingError, UserError

KEYS = ("epoch", "env_steps", "seed")
LARGEST = 500_000_000  # maximum bytes of a metrics.csv
LAST_CHECKPOINT = Path("checkpoints", "last.ckpt")  # the checkpoint, in a run's folder, from which --resume continues
_VERSION = re.compile(r"version_(\d+)")


def parent(run: RunConfig, search: bool = False) -> Path:
    """Return the folder of the run folders ``version_K`` of a run: ``LOGDIR/GAME/EXPERIMENT/IMPLEMENTATION/NAME``. NAME
    is ``seed_25`` for one seed, ``seed_25-29`` for five seeds, and ``tune`` for a hyperparameter ``search``."""
    last_seed = run.seed + run.num_seeds - 1
    seeds = f"seed_{run.seed}" if run.num_seeds == 1 else f"seed_{run.seed}-{last_seed}"
    name = "tune" if search else seeds
    return Path(run.logdir, *map(safe_name, (run.gamename, run.exp_name, run.implementation)), name)


def safe_name(name: str) -> str:
    """Return ``name`` as the name of one folder, of at most 100 characters. Letters, digits and ``._+-`` remain, ``=``
    becomes ``-``, anything else (as in ``ALE/Pong-v5``) becomes ``_``. Leading dots are removed."""
    return re.sub(r"[^\w.+-]+", "_", name.replace("=", "-")).lstrip(".")[:100] or "_"


def run_folder_of(file: Path) -> Path:
    """Return the run folder that contains ``file``. For a checkpoint that was moved out of a run, return its folder."""
    return file.parent.parent if file.parent.name == "checkpoints" else file.parent


def version_folders(folder: Path) -> list[Path]:
    """Return the run folders ``version_K`` in ``folder`` (`parent`), oldest first. They are runs with the same
    implementation, environment and seed. Empty if the folder does not exist."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in paths if _VERSION.fullmatch(path.name)), key=_version_number)


def newest(folder: Path) -> Path | None:
    """Return the newest run folder, ``version_K`` with the highest K, in ``folder`` (`parent`); None without any."""
    run_folders = version_folders(folder)
    return run_folders[-1] if run_folders else None


def find_proxy(path: Path) -> Path | None:
    """Return the file of the proxy that a search chose at its end. ``path`` is its run folder, or a folder of run
    folders; then the newest counts. None if there is no such file."""
    from understudy.files import PROXY_FILE  # imports Gymnasium, which most command lines do not need

    paths = [folder / PROXY_FILE for folder in (path, newest(path)) if folder]
    return next((path for path in paths if path.exists()), None)


def create(run: RunConfig, search: bool = False, subfolders: Sequence[str] = ("checkpoints",)) -> Path:
    """Make a new run folder ``version_K`` with ``subfolders`` and return it. If ``search``, it is for a hyperparameter
    search. Raises SettingError if ``logdir`` cannot be written, and OSError if the disk is full or fails."""
    folder = parent(run, search)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        last_run = newest(folder)
        number = _version_number(last_run) + 1 if last_run else 0
        while True:
            path = folder / f"version_{number}"
            try:  # mkdir is atomic: exactly one of several processes makes it, the others try the next number
                path.mkdir()
                break
            except FileExistsError:
                number += 1
        for name in subfolders:
            (path / name).mkdir()
    except OSError as error:
        if error.errno in DISK:
            raise
        reason = error.strerror
        for ancestor in (folder, *folder.parents):  # a file or a broken link in the path says more
            if os.path.lexists(ancestor) and not ancestor.is_dir():
                reason = f"{str(ancestor)!r} is {'a file' if ancestor.exists() else missing_reason(ancestor)}"
        problem = f"cannot make {str(folder)!r} ({reason})"
        raise SettingError(f"logdir is {run.logdir!r}: {problem}; allowed: a folder that can be written") from error
    return path


def remove_empty(folder: Path, root: Path) -> None:
    """Remove ``folder`` and the folders above it, up to ``root``, as long as they are empty."""
    for path in (folder, *folder.parents):
        try:
            path.rmdir()
        except OSError:  # it has files
            return
        if path == root:
            return


def _version_number(path: Path) -> int:
    return int(path.name.removeprefix("version_"))


@contextlib.contextmanager
def locked(folder: Path, new: bool = False) -> Iterator[None]:
    """Context manager that locks a run's folder for this process and removes incomplete files. The system releases the
    lock however the process ends. If the folder is ``new``, wait for the lock, because another process can hold it only
    for a moment.

    Raises SettingError if another process is writing there, or if a file of the run is a folder or the reverse. Raises
    UserError if the disk is full or fails during the block.
    """
    lock = folder / ".lock"
    for path in (lock, folder / "config.yaml", folder / "metrics.csv", folder / "checkpoints"):
        kind = "folder" if path.name == "checkpoints" else "file"
        is_kind = path.is_dir() if kind == "folder" else path.is_file()
        is_linked_lock = path == lock and path.is_symlink()  # it could lock a file elsewhere
        if is_linked_lock or (path.exists() and not is_kind):
            raise SettingError(f"resume: {str(path)!r} is no {kind}, as it is in the folder of a run; move it away")
    with open(lock, "a") as file:
        try:
            mode = fcntl.LOCK_EX if new else fcntl.LOCK_EX | fcntl.LOCK_NB  # LOCK_NB: do not wait
            fcntl.flock(file, mode)
        except BlockingIOError as error:
            checkpoint_note = "" if (folder / LAST_CHECKPOINT).exists() else ", which has no checkpoint yet"
            problem = f"another process is writing {str(folder)!r}{checkpoint_note}"
            raise SettingError(f"resume: {problem}; wait for it or stop it") from error
        for leftover in [*folder.glob(".*.tmp"), *folder.glob("checkpoints/.*.tmp")]:
            leftover.unlink()  # an incomplete file from a killed process
        try:
            yield
        except OSError as error:
            if error.errno not in DISK:
                raise
            error.filename = error.filename or folder  # `one_line` names it
            advice = "go on with --resume" if (folder / LAST_CHECKPOINT).is_file() else "start again"
            raise UserError(f"{one_line(error)} and {advice}") from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Context manager that yields a temporary file beside ``path``, and renames it to ``path`` if the block ends
    without an exception. Even after an exception, SIGKILL or with a full disk, ``path`` is the complete old or the
    complete new file.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    remove = functools.partial(temporary.unlink, missing_ok=True)
    ending.exit_callbacks.append(remove)  # for a process that exits without the ``finally`` below
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        remove()
        ending.exit_callbacks.remove(remove)


def atomic_write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8. At any time, ``path`` is the complete old or the complete new file."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sync_to_disk(path: Path) -> None:
    """Wait until the system has written a file and its name to the disk, so that they survive a loss of power."""
    for file_or_folder in (path, path.parent):
        descriptor = os.open(file_or_folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class MetricsFile:
    """A CSV file with one row per (epoch, seed): `KEYS`, then one column per TensorBoard tag, with empty cells for
    missing measurements. An existing file is continued: it keeps its columns, and new tags become columns after them.
    Raises SettingError if the file is not a table of this form."""

    def __init__(self, path: Path):
        self.path = path
        header, _ = next(_rows(path), ([], ()))  # the default is for a file that does not exist
        self.columns = header or list(KEYS)
        self._rewrite()  # removes an incomplete last line, if the run was killed while it wrote

    def append(self, *rows: Mapping[str, float]) -> None:
        """Append rows, each with `KEYS` and any tags. The rows are in the file when this returns. If a tag has no
        column yet, the file is written again with a new column."""
        tags = dict.fromkeys(tag for row in rows for tag in row)  # in order, each once
        new_columns = [tag for tag in tags if tag not in self.columns]
        if new_columns:
            self.columns += new_columns
            self._rewrite()
        # Numbers of Python, because csv would write the names of NumPy and torch types.
        plain_rows = [{tag: int(row[tag]) if tag in KEYS else float(row[tag]) for tag in row} for row in rows]
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, self.columns, lineterminator="\n").writerows(plain_rows)

    def resume_after(self, checkpoint_rows: Sequence[Mapping[str, int]]) -> None:
        """Prepare the file for a run that resumes from a checkpoint: sort the rows by epoch and member, remove rows of
        later epochs, and add missing rows of the checkpoint's epoch. ``checkpoint_rows`` has a row of this epoch for
        each seed, in the order of members, with `KEYS` only."""
        member_of_seed = {row["seed"]: member for member, row in enumerate(checkpoint_rows)}
        last_epoch = checkpoint_rows[0]["epoch"]
        lines: list[tuple[int, int, str]] = []  # epoch, member and text; text needs a fifth of the memory of lists
        for cells, (epoch, _, seed, *_) in itertools.islice(_rows(self.path), 1, None):  # without the header
            if epoch <= last_epoch:
                lines.append((int(epoch), member_of_seed.get(int(seed), 0), ",".join(cells)))
        lines.sort(key=lambda line: line[:2])
        self._write(text.split(",") for _, _, text in lines)
        logged = {member for epoch, member, _ in lines if epoch == last_epoch}
        self.append(*(row for member, row in enumerate(checkpoint_rows) if member not in logged))

    def _rewrite(self) -> None:
        """Write the rows of the file again, with the current columns."""
        self._write(cells for cells, _ in itertools.islice(_rows(self.path), 1, None))  # without the header

    def _write(self, rows: Iterable[list[str]]) -> None:
        """Replace the file by ``rows``, which may be read from the old file. Short rows are filled with empty cells."""
        with replacing(self.path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.columns)
            writer.writerows(cells + [""] * (len(self.columns) - len(cells)) for cells in rows)


def missing_epochs(path: Path, env_steps: Mapping[int, int], last_epoch: int) -> list[int]:
    """Return the epochs from 1 to ``last_epoch``, the epoch of a checkpoint, for which metrics.csv lacks the row of at
    least one seed. ``env_steps`` are the steps of each seed until the checkpoint. Raises SettingError for rows that do
    not belong to this run: of another seed, of an epoch below 1, a second row of a seed and an epoch, or a row of
    ``last_epoch`` with other steps than the checkpoint."""
    table, logged = read_columns(path), set[tuple[int, int]]()  # pairs (epoch, seed)
    rows = zip(*(table.get(name, ()) for name in KEYS), strict=True)
    for line, row in enumerate(rows, start=2):  # line 1 is the header
        epoch, steps, seed = map(int, row)
        expected_steps = env_steps.get(seed) if epoch == last_epoch else steps
        if seed not in env_steps or epoch < 1 or steps != expected_steps or (epoch, seed) in logged:
            problem = f"line {line} is of epoch {epoch}, seed {seed} and {steps} steps"
            text = f"{str(path)!r} is not the table of this run: {problem}"
            raise SettingError(f"{text}; move it away to go on without it")
        logged.add((epoch, seed))
    return [epoch for epoch in range(1, last_epoch + 1) if any((epoch, seed) not in logged for seed in env_steps)]


def read_metrics(path: Path) -> dict[str, list[float]]:
    """Return the columns of a `MetricsFile` by name: integers for `KEYS`, floats for tags, NaN for empty cells."""
    return {column: values.tolist() for column, values in read_columns(path).items()}


def read_columns(path: Path) -> dict[str, "array[float]"]:
    """Return the columns of a `MetricsFile` by name, as arrays with 8 bytes per number, for long tables. Empty if the
    file does not exist."""
    rows = _rows(path)
    header, _ = next(rows, ([], ()))  # the default is for a file that does not exist
    columns: dict[str, array[float]] = {name: array("q" if name in KEYS else "d") for name in header}
    append_functions = [column.append for column in columns.values()]  # looked up once, because tables are long
    for _, numbers in rows:
        for append, number in zip(append_functions, numbers, strict=True):
            append(number)
    return columns


def _rows(path: Path) -> Iterator[tuple[list[str], Sequence[float]]]:
    """Yield ``(cells, numbers)`` for each line of a metrics.csv: its texts, and the same as numbers, with NaN for empty
    cells. The first line has the names of the columns as cells, and no numbers. An incomplete last line is left out.
    Yield nothing if the file does not exist. Raises SettingError if it cannot be read or is not a table of numbers."""
    if not path.exists():
        return
    line_text = ""  # of the current row, for errors
    try:
        check_regular(path, LARGEST)
        with open(path, encoding="utf-8") as file:
            rows = csv.reader(line[:-1] for line in file if line.endswith("\n"))
            columns = next(rows, [])
            if columns and (tuple(columns[: len(KEYS)]) != KEYS or len(set(columns)) < len(columns)):
                raise ValueError(f"its first line must be {','.join(KEYS)} and other names, each once")
            yield columns, ()
            for line_number, cells in enumerate(rows, start=2):
                line_text = f"line {line_number}: "
                if len(cells) != len(columns):
                    raise ValueError(f"{len(cells)} cells instead of {len(columns)}")
                keys = array("q", [int(cell) for cell in cells[: len(KEYS)]])  # OverflowError beyond 64 bits
                yield cells, [*keys, *[float(cell or math.nan) for cell in cells[len(KEYS) :]]]
    except (OSError, ValueError, OverflowError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, UnicodeError):
            reason = "it is no text in UTF-8"
        raise SettingError(f"{str(path)!r} is no metrics.csv of numbers: {line_text}{reason}") from error
