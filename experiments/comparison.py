"""What the scripts of several experiments share: flags, reading runs with their settings and numbers, exit status."""

import argparse
import json
from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from control.cli.errors import lines, show
from control.cli.settings import from_dict
from control.reports.files import check_writable, figure_file
from control.reports.runs import Run, find_groups
from control.reports.style import FORMATS, PLAIN, THEMES, Look
from models.settings import Kind, SettingError, check_value


class Layout(NamedTuple):
    """By what the JSON of a script is known: the ``keys`` of each object that is so many levels down."""

    keys: tuple[str, ...] = ()
    depth: int = 0


REWARD_ROWS = Layout(("every", "tests", "mean", "low", "high"), 2)
"""Of reward_networks/compare.py: comparison -> reward -> its numbers."""


def command_line(description: str, out: str) -> argparse.ArgumentParser:
    """The flags of every comparison: ``logdir``, the folders of runs, and ``--out``, the figure."""
    flags = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("logdir", nargs="+", type=Path, help="run folders, or any folder above them")
    flags.add_argument("--out", type=Path, default=Path(out), help=".png, .pdf, .svg or a folder")
    add_look(flags)
    return flags


def add_look(flags: argparse.ArgumentParser) -> None:
    """The flags of how a figure looks, as `trainer.py` has them."""
    flags.add_argument("--plot_theme", choices=THEMES, default=PLAIN.theme, help="page that the figure is for")
    flags.add_argument("--plot_format", default="", metavar="png,pdf,svg", help="formats; else that of --out")


def look_of(given: argparse.Namespace) -> Look:
    """What these flags say. Raises SettingError for a format that there is not."""
    formats = tuple(filter(None, given.plot_format.split(",")))
    if not set(formats) <= set(FORMATS):
        raise SettingError(f"plot_format is {given.plot_format!r}; allowed: {', '.join(FORMATS)}")
    return Look(given.plot_theme, formats)


def figure_to_write(setting: str, out: Path) -> Path:
    """The file that a figure is written to, in a folder that is there from now on. Raises SettingError, in the name of
    ``setting``, for a format that there is not and for what cannot be written."""
    target = figure_file(out, setting)
    check_writable(setting, target)
    return target


def run_script(action: Callable[[], None]) -> int:
    """The exit status of a script that does ``action``: 0, or 2 after the lines of what the user can put right."""
    try:
        action()
    except Exception as error:
        if not (said := lines(error)):
            raise
        for line in said:
            show(line)
        return 2
    return 0


def check_counts(given: argparse.Namespace, **least: int) -> None:
    """SettingError where a flag that is given is below its ``least``."""
    for name, bound in least.items():
        if (value := getattr(given, name)) is not None and value < bound:
            raise SettingError(f"{name} is {value}; allowed: integer, at least {bound}", name)


def check_number(name: str, value: float | list[float], **meta: Any) -> None:
    """SettingError where a number, or one of a list, is not finite or not within the bounds of ``meta``."""
    held = tuple(value) if isinstance(value, list) else value
    check_value(name, held, Kind(float, isinstance(value, list), False), {"empty": True, "longest": 1000} | meta)


def check_given(given: argparse.Namespace, layout: Layout, **least: int) -> None:
    """`check_counts`, and SettingError where the file of ``--json`` cannot be written, or is there and not of this
    ``layout``."""
    check_counts(given, **least)
    if given.json:
        allowed = "; allowed: a new file, or one of this script"
        if given.json.exists() and not given.json.is_file():
            raise SettingError(f"json is '{given.json}', which is no file{allowed}", "json")
        check_writable("json", given.json)
        try:
            numbers_in("json", given.json, layout, new=True)
        except SettingError as error:
            raise SettingError(f"{error}{allowed}", "json") from None


def numbers_in(
    setting: str, path: Path, layout: Layout, new: bool = False, script: str = "this script"
) -> dict[str, Any]:
    """The numbers in a JSON file of a ``layout``, none where it may be ``new`` and is. SettingError, in the name of
    ``setting``, where there are others."""
    if new and not path.exists():
        return {}
    line = f"{setting} is '{path}', which"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"{line} cannot be read: {error.strerror or error}", setting) from None
    except (ValueError, RecursionError):
        raise SettingError(f"{line} is no JSON", setting) from None
    if not holds(found, layout):
        raise SettingError(f"{line} holds no numbers of {script}", setting)
    return dict(found)


def holds(found: Any, layout: Layout) -> bool:
    """Whether ``found``, of a JSON, has this ``layout``."""
    if layout.depth and isinstance(found, dict):
        return all(holds(each, layout._replace(depth=layout.depth - 1)) for each in found.values())
    return isinstance(found, dict) and found.keys() >= {*layout.keys}


def are_numbers(values: Any) -> bool:
    """Whether ``values``, of a JSON, are a list of numbers and not empty."""
    return isinstance(values, list) and bool(values) and all(isinstance(each, int | float) for each in values)


def runs_of(run_dirs: Sequence[Path], implementations: Iterable[str]) -> list[tuple[Any, Run]]:
    """The runs of ``implementations`` at or below the given folders, each with its settings. Of a seed in several
    versions it is the newest.

    Raises SettingError where there is none.
    """
    wanted = list(implementations)
    found = [run for group in find_groups(run_dirs, "logdir") for run in group.runs]
    # Seeds that were members of one program share a file.
    settings = {source: _settings_of(source, wanted) for source in dict.fromkeys(run.source for run in found)}
    ours = [(settings[run.source], run) for run in found if settings[run.source] is not None]
    if not ours:
        listed = ", ".join(f"'{folder}'" for folder in run_dirs)
        raise SettingError(f"logdir is {listed}, which holds no run of {', '.join(wanted)}")
    return ours


def _settings_of(metrics: Path, implementations: Container[str]) -> Any:
    """The settings in the config.yaml beside ``metrics``; None where the run is of none of ``implementations``."""
    path = metrics.with_name("config.yaml")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        return from_dict(content) if content["implementation"] in implementations else None
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds no settings of a run"
        raise SettingError(f"{path}, which says what was trained, cannot be read: {reason}") from None


def check_seed_is_new(run: Run, others: Iterable[Run], name: str) -> None:
    """SettingError where a run's seed is among the ``others``, all of them runs of ``name``."""
    same = [other.source.parent for other in others if other.seed == run.seed]
    if same:
        raise SettingError(f"logdir holds seed {run.seed} of {name} twice, in {same[0]} and {run.source.parent}")
