"""Files that figures are written to: their names, whether they can be written, and the numbers beside them."""

import json
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from control.reports.runs import Array
from control.reports.style import FORMATS, PLAIN, Look
from control.storage.run_dir import atomic_write_text
from models.settings import SettingError


def show(text: str, numbers: Any, draw: Callable[[Path], None], target: Path, setting: str = "out") -> None:
    """Print the table ``text``, have ``draw`` write the figure ``target``, and put the numbers beside it as JSON.

    Raises SettingError, in the name of ``setting`` and before anything is printed, where these cannot be written.
    """
    numbers_path = target.with_suffix(".json")
    check_writable(setting, target, numbers_path)
    print(text)
    draw(target)
    write_numbers(numbers_path, numbers)
    print(f"\nFigure:  {target}\nNumbers: {numbers_path}")


def write_numbers(path: Path, numbers: Any) -> None:
    """Write JSON that is read and compared line by line: a list of numbers is one line."""
    text = json.dumps(numbers, indent=2)
    text = re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda match: "[" + re.sub(r"\s+", " ", match[1]) + "]", text)
    atomic_write_text(path, text + "\n")


def numbers_text(curves: Mapping[str, tuple[Array, Array]], selected_tags: Collection[str]) -> dict[str, Any]:
    """The curves of the tags ``selected_tags`` for JSON, to five digits: ``{tag: {"env_steps": [G], "seeds": [[G],
    ...]}}``."""
    return {
        tag: {
            "env_steps": [round(step) for step in steps.tolist()],
            "seeds": [[float(f"{value:.5g}") for value in row] for row in values.tolist()],
        }
        for tag, (steps, values) in curves.items()
        if tag in selected_tags
    }


def figure_file(out: Path, setting: str = "plot_out") -> Path:
    """The file that ``out`` means: itself, or `plot.png` in the folder that it is or will be. Raises SettingError, in
    the name of ``setting``, for a format that is none of `FORMATS`."""
    if out.is_dir() or not (out.suffix or out.is_file()):
        return out / "plot.png"
    if out.suffix[1:].lower() not in FORMATS:
        allowed = ", ".join(f".{suffix}" for suffix in FORMATS)
        raise SettingError(f"{setting} is '{out}'; allowed: a folder, or a file ending in {allowed}")
    return out


def figure_files(out: Path, look: Look = PLAIN) -> tuple[Path, Path]:
    """The figure of ``out`` and its numbers. Of several formats it is the first that ``look`` names."""
    target = figure_file(out)
    if look.formats and target.suffix[1:].lower() not in look.formats:
        target = target.with_suffix(f".{look.formats[0]}")
    return target, target.with_suffix(".json")


def sheet_file(target: Path, form: str, name: str = "") -> Path:
    """The file of the sheet of that ``name`` in a format. A suffix that the user wrote is kept as it is."""
    end = target.suffix if target.suffix[1:].lower() == form else f".{form}"
    return target.with_name(f"{target.stem}{f'_{name}' if name else ''}{end}")


def check_writable(setting: str, *paths: Path) -> None:
    """SettingError, in the name of ``setting``, where a file cannot be written. Makes folders, and leaves no file."""
    try:
        for path in paths:
            path.parent.mkdir(parents=True, exist_ok=True)
            new = not path.exists()
            if path.is_symlink() if new else not path.is_file():
                raise OSError(f"'{path}' is {'a link to nothing' if new else 'no regular file'}")
            path.open("ab").close()
            if new:
                path.unlink()
    except OSError as error:
        raise SettingError(f"{setting} is '{paths[0]}', which cannot be written: {error.strerror or error}") from None
