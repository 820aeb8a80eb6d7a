"""Search spaces: which hyperparameters are varied, and between what values. Imports neither torch nor ray.

A file has one line per hyperparameter, with a list of choices or one range:

    lr: {logspace: [-4, -2, 101]}
    batch_size: [512, 768, 1024]
    hidden_sizes: [[32], [64, 128]]
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control.cli.options import Flag, flags
from control.cli.settings import RunConfig, Settings, as_dict, from_dict
from control.cli.words import named, read_mapping, read_value, word
from envs.names import games_with
from models.registry import family
from models.settings import SettingError, nearest

RANGES = {
    "uniform": "[low, high]",
    "loguniform": "[low, high], both above 0",
    "randint": "[low, high], whole numbers, both included",
    "lograndint": "[low, high], whole numbers above 0, both included",
    "logspace": "[exponent, exponent, count]: powers of ten on a grid",
}
"""Kinds of ranges, each with the numbers that follow it."""

# A published space is found by its file: experiments/FAMILY/search_IMPLEMENTATION.yaml, where "RCP-R" may share "rcp".
_EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


@dataclass(frozen=True)
class Dimension:
    """One hyperparameter and its values: the choices, or the ends of a range; ``count`` points of a logspace grid."""

    name: str
    kind: str
    values: tuple[Any, ...]
    count: int = 0

    @property
    def labels(self) -> list[Any]:
        """The choices in a form that search algorithms accept: lists and null as text."""
        return [value if isinstance(value, bool | int | float | str) else word(value) for value in self.values]

    def decode(self, raw: Any) -> Any:
        """The setting that a label or a number stands for; numbers are rounded to six digits, to be readable."""
        if self.kind == "choice":
            return self.values[self.labels.index(raw)]
        return self._on_grid(self.clamp(raw)) if self.count else self.clamp(raw)

    def clamp(self, raw: float) -> float:
        """The nearest value within the ends of the range."""
        low, high = self.values
        value = round(raw) if self.kind.endswith("randint") else float(f"{raw:.6g}")
        return min(max(value, low), high)

    def _on_grid(self, value: float) -> float:
        first, last = (math.log10(end) for end in self.values)
        step = (last - first) / (self.count - 1)
        index = round((math.log10(value) - first) / step)
        return float(f"{10 ** (first + index * step):.6g}")


@dataclass(frozen=True)
class Space:
    """A search space whose values have all been checked against the settings."""

    dimensions: tuple[Dimension, ...]
    source: str

    def __getitem__(self, name: str) -> Dimension:
        return next(dimension for dimension in self.dimensions if dimension.name == name)

    @property
    def names(self) -> list[str]:
        return [dimension.name for dimension in self.dimensions]

    def decode(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that a searcher's suggestion stands for."""
        return {dimension.name: dimension.decode(raw[dimension.name]) for dimension in self.dimensions}

    def clamp(self, raw: dict[str, Any]) -> dict[str, Any]:
        """A suggestion with its numbers brought back into their ranges."""
        ranges = {d.name: d.clamp(raw[d.name]) for d in self.dimensions if d.kind != "choice"}
        return raw | ranges


def search_space(settings: Settings) -> Space:
    """The space of ``--search_space``, or the published one without what flags or ``--config`` have fixed.

    Raises SettingError: one line with file, hyperparameter, value and what is allowed.
    """
    given = settings.run.search_space
    path = Path(given) if given else _published(settings.run.implementation)
    known = flags(settings.run.implementation, settings.run.gamename)
    dimensions = []
    for name, entry in read_mapping("search_space", str(path), "name: choices or range").items():
        if not given and name in settings.given:
            continue
        try:
            dimensions.append(_dimension(name, entry, settings, known))
        except SettingError as error:
            raise SettingError(f"{path}: {error}") from None
    if not dimensions:
        raise SettingError(
            f"{path}: nothing is left to search" + ("" if given else "; all of it is set by flags or --config")
        )
    return Space(tuple(dimensions), str(path))


def trial_settings(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """The settings of one ordinary run with these hyperparameters and nothing of the search.

    Raises SettingError where the values do not go together.
    """
    fields = dataclasses.fields(RunConfig)
    tuning = {field.name: field.default for field in fields if field.metadata["section"] == "tuning"}
    return from_dict(as_dict(settings) | tuning | dict(values))


def _published(implementation: str) -> Path:
    folder = _EXPERIMENTS / family(implementation).package.rpartition(".")[2]
    name = implementation.lower()
    for path in (folder / f"search_{name}.yaml", folder / f"search_{name.split('-')[0]}.yaml"):
        if path.exists():
            return path
    raise SettingError(f"search_space: none is published for {implementation}; give a file with --search_space")


def _dimension(name: str, entry: Any, settings: Settings, known: Mapping[str, Flag]) -> Dimension:
    if games := games_with(name):
        raise SettingError(f"{name} is no hyperparameter but a parameter of {', '.join(games)}; give it as a flag")
    if name not in named([(name, ["true"])], known, settings.run.implementation, ""):
        raise SettingError(f"{name} is no setting; write {name.removeprefix('no_')}: [true, false]")
    if not known[name].section.startswith("hyperparameters") and name != "seed":
        raise SettingError(f"{name} is no hyperparameter of {settings.run.implementation}; give it as a flag")
    kind, arguments = ("choice", entry) if isinstance(entry, list) else _range(name, entry)
    if kind == "choice":
        return Dimension(name, kind, _choices(name, arguments, settings, known))
    return _numeric(name, kind, arguments, settings, known)


def _range(name: str, entry: Any) -> tuple[str, list[Any]]:
    if not isinstance(entry, dict) or len(entry) != 1:
        raise SettingError(
            f"{name} is {entry!r}; allowed: a list of choices, or one of {', '.join(RANGES)} with its numbers"
        )
    ((kind, arguments),) = entry.items()
    if kind not in (*RANGES, "choice"):
        raise SettingError(f"{name}: {kind!r} is unknown; allowed: choice, {', '.join(RANGES)}{nearest(kind, RANGES)}")
    if not isinstance(arguments, list):
        raise SettingError(f"{name}: {kind} is {arguments!r}; allowed: {RANGES.get(kind, 'a list')}")
    return kind, arguments


def _choices(name: str, entries: list[Any], settings: Settings, known: Mapping[str, Flag]) -> tuple[Any, ...]:
    if not entries:
        raise SettingError(f"{name} has no choices")
    values = []
    for entry in entries:
        words = entry if isinstance(entry, list) else [entry]
        if not all(isinstance(word, str) for word in words) or (isinstance(entry, list) and not known[name].kind.many):
            raise SettingError(
                f"{name}: the choice {entry!r} is not a {'list of values' if known[name].kind.many else 'single value'}"
            )
        values.append(_checked(name, read_value(known[name], words), settings))
    return tuple(dict.fromkeys(values))


def _numeric(name: str, kind: str, arguments: list[Any], settings: Settings, known: Mapping[str, Flag]) -> Dimension:
    wanted = known[name].kind
    if wanted.many or wanted.item not in (int, float):
        raise SettingError(f"{name} is no number; give a list of choices instead of {kind}")
    whole = kind.endswith("randint")
    if wanted.item is int and not whole:
        raise SettingError(f"{name} is a whole number; use randint or lograndint instead of {kind}")
    problem = SettingError(
        f"{name}: {kind} is [{', '.join(map(str, arguments))}]; allowed: {RANGES[kind]}, the lower first"
    )
    number: Callable[[str], float] = int if whole else float
    try:
        low, high, *rest = map(number, arguments[:2])
        count = int(arguments[2]) if kind == "logspace" else 0
    except (ValueError, IndexError, TypeError):
        raise problem from None
    if (
        len(arguments) != (3 if kind == "logspace" else 2)
        or not -math.inf < low < high < math.inf
        or (kind == "logspace" and count < 2)
    ):
        raise problem
    if kind == "logspace":
        if max(abs(low), abs(high)) > 300:
            raise problem
        low, high = 10.0**low, 10.0**high
    if kind.startswith("log") and low <= 0:
        raise problem
    ends = tuple(_checked(name, end, settings) for end in (low, high))
    return Dimension(name, kind, ends, count)


def _checked(name: str, value: Any, settings: Settings) -> Any:
    """The value as the settings hold it (lists as tuples); SettingError where they refuse it."""
    changed = settings.replace(**{name: value})
    return getattr(changed.run if hasattr(changed.run, name) else changed.agent, name)
