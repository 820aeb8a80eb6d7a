"""Shared parts of the experiments' scripts: flags, reading runs with settings and numbers, exit status."""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from control.cli.errors import show, user_messages
from control.cli.parse import parse
from control.cli.settings import from_dict
from control.commands.search_space import Dimension, search_space, with_hidden_sizes
from control.reports.figures import DEFAULT_STYLE, FORMATS, THEMES, FigureStyle, check_writable, figure_file
from control.reports.runs import Run, find_groups
from models.settings import FieldType, SettingError, check_value

TRAINER = Path(__file__).resolve().parents[1] / "trainer.py"


class Layout(NamedTuple):
    """Structure by which a script recognises its JSON: every object ``depth`` levels down has these ``keys``. With
    depth 1 and the key ``mean``, ``{"DDQN": {"mean": 3.0}}`` is such a file."""

    keys: tuple[str, ...] = ()
    depth: int = 0


REWARD_ROWS = Layout(("every", "tests", "mean", "low", "high"), 2)
"""Of reward_networks/compare.py: comparison -> reward -> its numbers."""


def script_flags(description: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help begins with ``description`` as it is written."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def command_line(description: str, out: str) -> argparse.ArgumentParser:
    """Return a parser with ``logdir`` (run folders), ``--out`` (the figure) and the flags of `add_look`."""
    flags = script_flags(description)
    flags.add_argument("logdir", nargs="+", type=Path, help="run folders, or any folder above them")
    flags.add_argument("--out", type=Path, default=Path(out), help=".png, .pdf, .svg or a folder")
    add_look(flags)
    return flags


def add_look(flags: argparse.ArgumentParser) -> None:
    """Add the flags for a figure's theme and formats, as in `trainer.py`, and for a second figure on telephones."""
    flags.add_argument("--plot_theme", choices=THEMES, default=DEFAULT_STYLE.theme, help="page that the figure is for")
    flags.add_argument("--plot_format", default="", metavar="png,pdf,svg", help="formats; else that of --out")
    flags.add_argument("--narrow", action="store_true", help="also write NAME_narrow, for telephones")


def style_of(options: argparse.Namespace) -> FigureStyle:
    """Return the values of the flags of `add_look`. Raises SettingError for an unknown format."""
    formats = tuple(filter(None, options.plot_format.split(",")))
    if not set(formats) <= set(FORMATS):
        raise SettingError(f"plot_format is {options.plot_format!r}; allowed: {', '.join(FORMATS)}")
    return FigureStyle(options.plot_theme, formats, narrow=options.narrow)


def figure_to_write(setting: str, out: Path) -> Path:
    """Return the file of a figure. Raises SettingError about ``setting`` if its format or the file is impossible."""
    target = figure_file(out, setting)
    check_writable(setting, target)
    return target


def run_search(logdir: Path, game: str, exp_name: str, seed: int, flags: Sequence[str]) -> Path:
    """Run a search for a synthetic environment with trainer.py, or resume it if it was stopped. Return its folder."""
    search_flags = f"""--implementation SE --gamename {game} --exp_name {exp_name} --seed {seed} --keep_best 1
        --retest_agents 1 --report_agents 1 --no_record --resume"""
    command = [sys.executable, str(TRAINER), *search_flags.split(), "--logdir", str(logdir), *flags]
    folder = logdir / game / exp_name / "SE" / f"seed_{seed}" / "version_0"
    status = subprocess.run(command, stdout=subprocess.DEVNULL).returncode
    # Status 1 is also the verdict about a finished search whose winner is no better than random play.
    if status != 0 and not (status == 1 and (folder / "scores.json").exists()):
        raise subprocess.CalledProcessError(status, command)
    return folder


def sample_settings(flags: Sequence[str], count: int, seed: int) -> list[dict[str, Any]]:
    """Sample ``count`` settings of an agent from a search space, like a random search of Ray Tune. The ``flags`` choose
    the agent, its game and perhaps the file of the space."""
    settings, generator = parse(["--use_tune", *flags]), np.random.default_rng(seed)
    dimensions = search_space(settings).dimensions.values()
    samples = []
    for _ in range(count):
        sample = {dimension.name: _sample(dimension, generator) for dimension in dimensions}
        samples.append(with_hidden_sizes(sample, settings))
    return samples


def _sample(dimension: Dimension, generator: np.random.Generator) -> Any:
    """Sample a choice, or a number from a uniform or log-uniform distribution."""
    if dimension.kind == "choice":
        return dimension.values[generator.integers(len(dimension.values))]
    low, high = dimension.values
    if dimension.kind.endswith("randint"):
        high += 1  # the largest integer is included
    share = generator.random()
    if dimension.kind in ("uniform", "randint"):
        number = low + (high - low) * share
    else:
        number = low * (high / low) ** share
    if dimension.kind == "log1m":
        return 1 - number
    return int(number) if dimension.kind.endswith("randint") else number


def run_script(action: Callable[[], None]) -> int:
    """Run ``action`` and return the exit status: 0, or 2 after printing an error that the user can correct."""
    try:
        action()
    except Exception as error:
        messages = user_messages(error)
        if not messages:  # a mistake in the program
            raise
        for line in messages:
            show(line)
        return 2
    return 0


def check_counts(options: argparse.Namespace, **smallest_values: int) -> None:
    """Raise SettingError if a flag is below its smallest value, such as ``agents=1``. Flags that are None pass."""
    for name, smallest in smallest_values.items():
        value = getattr(options, name)
        if value is not None and value < smallest:
            raise SettingError(f"{name} is {value}; allowed: integer, at least {smallest}", name)


def check_number(name: str, value: float | list[float], **bounds: Any) -> None:
    """Raise SettingError if a number of the flag ``name`` is not finite or not in ``bounds``, such as ``above=0``."""
    is_list = isinstance(value, list)
    frozen_value = tuple(value) if isinstance(value, list) else value
    check_value(name, frozen_value, FieldType(float, is_list, False), {"allow_empty": True, "max_items": 1000} | bounds)


def check_options(options: argparse.Namespace, layout: Layout, **smallest_values: int) -> None:
    """Run `check_counts`. Raise SettingError if the file of ``--json`` cannot be written or has another ``layout``."""
    check_counts(options, **smallest_values)
    if options.json:
        allowed = "; allowed: a new file, or one of this script"
        if options.json.exists() and not options.json.is_file():
            raise SettingError(f"json is '{options.json}', which is no file{allowed}", "json")
        check_writable("json", options.json)
        try:
            numbers_in("json", options.json, layout, new=True)
        except SettingError as error:
            raise SettingError(f"{error}{allowed}", "json") from None


def numbers_in(
    setting: str, path: Path, layout: Layout, new: bool = False, script: str = "this script"
) -> dict[str, Any]:
    """Return the content of a JSON file of this ``layout``; ``{}`` if it does not exist and may be ``new``. Raises
    SettingError, in the name of ``setting``, for any other file."""
    if new and not path.exists():
        return {}
    line = f"{setting} is '{path}', which"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"{line} cannot be read: {error.strerror or error}", setting) from None
    except (ValueError, RecursionError):
        raise SettingError(f"{line} is no JSON", setting) from None
    if not holds(content, layout):
        raise SettingError(f"{line} holds no numbers of {script}", setting)
    return dict(content)


def holds(content: Any, layout: Layout) -> bool:
    """Return whether ``content``, from a JSON, has this ``layout``."""
    if not isinstance(content, dict):
        return False
    if layout.depth:
        return all(holds(child, layout._replace(depth=layout.depth - 1)) for child in content.values())
    return content.keys() >= {*layout.keys}


def runs_of(run_dirs: Sequence[Path], implementations: Iterable[str]) -> list[tuple[Any, Run]]:
    """Return all runs of ``implementations`` at or below the folders, as pairs of settings and run. If a seed has
    several versions, the newest counts.

    Raises SettingError if there are no runs.
    """
    names, settings_of_files, matching_runs = list(implementations), {}, []
    for group in find_groups(run_dirs, "logdir"):
        for run in group.runs:
            if run.source not in settings_of_files:  # seeds that train side by side share a file
                settings_of_files[run.source] = _settings_of(run.source, names)
            if settings_of_files[run.source] is not None:
                matching_runs.append((settings_of_files[run.source], run))
    if not matching_runs:
        listed = ", ".join(f"'{folder}'" for folder in run_dirs)
        raise SettingError(f"logdir is {listed}, which holds no run of {', '.join(names)}")
    return matching_runs


def _settings_of(metrics: Path, implementations: Container[str]) -> Any:
    """Return the settings in the config.yaml beside the file ``metrics``; None if the run has another implementation.
    Raises SettingError for a missing or damaged file."""
    path = metrics.with_name("config.yaml")
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        return from_dict(content) if content["implementation"] in implementations else None
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds no settings of a run"
        raise SettingError(f"{path}, which says what was trained, cannot be read: {reason}") from None


def check_seed_is_new(run: Run, other_runs: Iterable[Run], name: str) -> None:
    """Raise SettingError if one of ``other_runs`` has the seed of ``run``. ``name`` is their implementation."""
    same = [other.source.parent for other in other_runs if other.seed == run.seed]
    if same:
        raise SettingError(f"logdir holds seed {run.seed} of {name} twice, in {same[0]} and {run.source.parent}")
