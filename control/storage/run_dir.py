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
RESULTS = "exam.json"  # the results of all stages, in the folder of `--learn`
BANDIT = "bandit.safetensors"  # the learned environment, in the folder of `--learn`
LAST_CHECKPOINT = Path("checkpoints", "last.ckpt")  # path, in a run's folder, of the checkpoint for --resume
_VERSION = re.compile(r"version_(\d+)")
Row = tuple[list[str], Sequence[float]]  # the cells of a line of metrics.csv, as texts and as numbers


def parent(run: RunConfig, search: bool = False) -> Path:
    """Return the folder that contains the run folders ``version_K`` of a run. It is
    ``LOGDIR/GAME/EXPERIMENT/IMPLEMENTATION/NAME``. NAME is ``seed_25`` for one seed, ``seed_25-29`` for five seeds, and
    ``tune`` if the run is a hyperparameter ``search``."""
    last_seed = f"-{run.seed + run.num_seeds - 1}" if run.num_seeds > 1 else ""
    name = "tune" if search else f"seed_{run.seed}{last_seed}"
    return Path(run.logdir, safe_name(run.gamename), safe_name(run.exp_name), safe_name(run.implementation), name)


def safe_name(name: str) -> str:
    """Return ``name`` as the name of one folder, of at most 100 characters. Letters, digits and ``._+-`` remain, ``=``
    becomes ``-``, anything else (as in ``ALE/Pong-v5``) becomes ``_``. Leading dots are removed."""
    return re.sub(r"[^\w.+-]+", "_", name.replace("=", "-")).lstrip(".")[:100] or "_"


def run_folder_of(file: Path) -> Path:
    """Return the run folder that contains ``file``. For a checkpoint that was moved out of a run, return its folder."""
    return file.parent.parent if file.parent.name == "checkpoints" else file.parent


def learn_folder(path: Path) -> Path | None:
    """Return the folder of `--learn` that contains ``path``, such as its teacher's run. None if there is none."""
    return next((folder for folder in path.parents if (folder / RESULTS).is_file()), None)


def version_folders(folder: Path) -> list[Path]:
    """Return the run folders ``version_K`` in ``folder`` (`parent`), oldest first. They are runs with the same
    implementation, environment and seed. Empty if the folder does not exist."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if _VERSION.fullmatch(path.name)), key=_version_number)


def newest_run(folder: Path) -> Path | None:
    """Return the newest run folder, ``version_K`` with the highest K, in ``folder`` (`parent`); None without any."""
    run_folders = version_folders(folder)
    return run_folders[-1] if run_folders else None


def find_proxy(path: Path) -> Path | None:
    """Return the file of a proxy (a learned environment or reward) in the folder ``path`` of a run, or in the newest of
    its run folders: the winner of a search, or the bandit that ``--learn`` made. None if there is no such file."""
    from understudy.files import PROXY_FILE  # imports Gymnasium, which most command lines do not need

    for folder in (path, newest_run(path)):
        for name in (PROXY_FILE, BANDIT):
            if folder is not None and (folder / name).exists():
                return folder / name
    return None


def create(run: RunConfig, search: bool = False) -> Path:
    """Make a new run folder ``version_K`` in the folder of `parent`, and return it. K is larger than the numbers of all
    run folders there. ``search`` is whether the run is a hyperparameter search. Raises SettingError if ``logdir``
    cannot be written, and OSError if the disk is full or fails."""
    folder = parent(run, search)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        last_run = newest_run(folder)
        first_number = _version_number(last_run) + 1 if last_run else 0
        for number in itertools.count(first_number):
            path = folder / f"version_{number}"
            # mkdir is atomic: exactly one of several processes makes the folder, the others try the next number.
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                break
    except OSError as error:
        if error.errno in DISK:  # not a fault of the setting
            raise
        reason = error.strerror
        # If a file or a broken link is in the place of a folder, the message names it. The system's reason does not.
        for ancestor in (folder, *folder.parents):
            if os.path.lexists(ancestor) and not ancestor.is_dir():
                reason = f"{str(ancestor)!r} is {'a file' if ancestor.exists() else missing_reason(ancestor)}"
        problem = f"logdir is {run.logdir!r}: cannot make {str(folder)!r} ({reason})"
        raise SettingError(f"{problem}; allowed: a folder that can be written") from error
    return path


def remove_empty(folder: Path, root: Path) -> None:
    """Remove ``folder`` and the folders above it, up to ``root``, as long as they are empty."""
    with contextlib.suppress(OSError):  # a folder has files
        for path in (folder, *folder.parents):
            path.rmdir()
            if path == root:
                break


def _version_number(path: Path) -> int:
    """Return 3 for a run folder ``version_3``."""
    return int(path.name.removeprefix("version_"))


@contextlib.contextmanager
def folder_lock(folder: Path, new: bool = False) -> Iterator[None]:
    """Context manager that locks a run's folder for this process and removes incomplete files. The system releases the
    lock at the end of the process, even if it is killed. If the folder is ``new``, wait for the lock, because another
    process can hold it only for a moment.

    Raises SettingError if another process holds the lock, and UserError if the disk is full or fails during the block.
    """
    with open(folder / ".lock", "a") as file:
        try:
            do_not_wait = 0 if new else fcntl.LOCK_NB
            fcntl.flock(file, fcntl.LOCK_EX | do_not_wait)
        except BlockingIOError as error:
            checkpoint_note = "" if (folder / LAST_CHECKPOINT).exists() else ", which has no checkpoint yet"
            problem = f"resume: another process is writing {str(folder)!r}{checkpoint_note}"
            raise SettingError(f"{problem}; wait for it or stop it") from error
        for leftover in [*folder.glob(".*.tmp"), *folder.glob("checkpoints/.*.tmp")]:
            leftover.unlink()  # an incomplete file from a killed process
        try:
            yield
        except OSError as error:
            if error.errno not in DISK:
                raise
            if error.filename is None:
                error.filename = folder  # `one_line` names it
            advice = "go on with --resume" if (folder / LAST_CHECKPOINT).is_file() else "start again"
            raise UserError(f"{one_line(error)} and {advice}") from error


def is_locked(folder: Path) -> bool:
    """Return whether a process is writing to a run's folder (`folder_lock`)."""
    try:
        with open(folder / ".lock") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)  # other errors: a copied folder has no lock
    return False


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Context manager that yields a temporary file beside ``path``, and renames it to ``path`` if the block ends
    without an exception. Even after SIGKILL or with a full disk, ``path`` is the complete old or the new file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    remove = functools.partial(temporary.unlink, missing_ok=True)
    ending.exit_callbacks.append(remove)  # a process may exit without the ``finally`` below
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
    with atomic_file(path) as temporary:
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
    """Writes metrics.csv, with one row per (epoch, seed): the columns `KEYS`, then one column per TensorBoard tag, with
    empty cells for missing measurements. An existing file is continued: it keeps its columns, and new tags become
    columns after them. Raises SettingError if the file is not a table of this form."""

    def __init__(self, path: Path):
        self.path = path
        columns, rows = _read(path)
        self.columns = columns or list(KEYS)
        self._write(rows)  # removes an incomplete last line, left by a run that was killed while it wrote

    def append(self, *rows: Mapping[str, float]) -> None:
        """Append ``rows``, mappings of `KEYS` and tags to numbers, and write them at once. If a tag has no column yet,
        the file is written again with a new column."""
        new_columns: list[str] = []
        for row in rows:
            new_columns += [tag for tag in row if tag not in (*self.columns, *new_columns)]
        if new_columns:
            self.columns += new_columns
            _, rows_in_file = _read(self.path)
            self._write(rows_in_file)
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, self.columns, lineterminator="\n")
            for row in rows:
                # Numbers of Python, because csv would write the names of NumPy and torch types.
                writer.writerow({tag: int(value) if tag in KEYS else float(value) for tag, value in row.items()})

    def resume_after(self, checkpoint_rows: Sequence[Mapping[str, int]]) -> None:
        """Make the file fit the checkpoint from which the run resumes: remove the rows of later epochs, and add missing
        rows of its epoch. ``checkpoint_rows`` are the rows of this epoch, one for each seed, with `KEYS` only."""
        last_epoch = checkpoint_rows[0]["epoch"]
        _, all_rows = _read(self.path)
        # The first three numbers of a row are epoch, env_steps and seed (`KEYS`).
        rows = [(cells, numbers) for cells, numbers in all_rows if numbers[0] <= last_epoch]
        logged_seeds = {numbers[2] for _, numbers in rows if numbers[0] == last_epoch}
        self._write(rows)
        self.append(*(row for row in checkpoint_rows if row["seed"] not in logged_seeds))

    def _write(self, rows: Iterable[Row]) -> None:
        """Replace the content of the file by ``rows``, which may still be read from the old file. Fill short rows."""
        with atomic_file(self.path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.columns)
            for cells, _ in rows:
                num_missing = len(self.columns) - len(cells)
                writer.writerow(cells + [""] * num_missing)


def read_metrics(path: Path) -> dict[str, list[float]]:
    """Return the columns of a `MetricsFile` by name: integers for `KEYS`, floats for tags, NaN for empty cells."""
    return {column: values.tolist() for column, values in read_columns(path).items()}


def read_columns(path: Path) -> dict[str, "array[float]"]:
    """Return the columns of a `MetricsFile` by name, as in `read_metrics`, but as arrays with 8 bytes per number, for
    long tables. Empty if the file does not exist."""
    names, rows = _read(path)
    # "q" is int64, "d" is float64.
    columns: dict[str, array[float]] = {name: array("q" if name in KEYS else "d") for name in names}
    append_functions = [column.append for column in columns.values()]  # looked up once, because tables are long
    for _, numbers in rows:
        for append, number in zip(append_functions, numbers, strict=True):
            append(number)
    return columns


def _read(path: Path) -> tuple[list[str], Iterator[Row]]:
    """Return the names of the columns of a metrics.csv, and an iterator of its rows. Both are empty without a file."""
    lines = _lines(path)
    columns, _ = next(lines, ([], ()))  # the first line
    return columns, lines


def _lines(path: Path) -> Iterator[Row]:
    """Yield a pair ``(cells, numbers)`` for each line of a metrics.csv: the cells as texts, and as numbers. The columns
    `KEYS` are integers of at most 64 bits; an empty cell of another column is NaN. The cells of the first line are the
    names of the columns, without numbers. An incomplete last line is left out. Without a file, there are no lines.
    Raises SettingError for anything but a table of numbers."""
    if not path.exists():
        return
    place = ""  # the current line, for errors
    try:
        check_regular(path, LARGEST)
        with open(path, encoding="utf-8") as file:
            rows = csv.reader(line[:-1] for line in file if line.endswith("\n"))  # complete lines only
            columns = next(rows, [])
            has_keys = tuple(columns[: len(KEYS)]) == KEYS
            if columns and (not has_keys or len(set(columns)) < len(columns)):
                raise ValueError(f"its first line must be {','.join(KEYS)} and other names, each once")
            yield columns, ()
            for line_number, cells in enumerate(rows, start=2):
                place = f"line {line_number}: "
                if len(cells) != len(columns):
                    raise ValueError(f"{len(cells)} cells instead of {len(columns)}")
                keys = array("q", [int(cell) for cell in cells[: len(KEYS)]])  # raises OverflowError beyond 64 bits
                values = [float(cell or math.nan) for cell in cells[len(KEYS) :]]
                yield cells, [*keys, *values]
    except (OSError, ValueError, OverflowError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, UnicodeError):
            reason = "it is no text in UTF-8"
        raise SettingError(f"{str(path)!r} is no metrics.csv of numbers: {place}{reason}") from error
