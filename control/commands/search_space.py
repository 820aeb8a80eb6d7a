"""Search spaces of ``--use_tune``: hyperparameters and their ranges (docs/tuning.md). Imports neither torch nor ray."""

import contextlib
import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from control.cli.files import error_prefix, read_mapping
from control.cli.options import flags, unknown_error
from control.cli.settings import Settings, as_dict, from_dict
from control.cli.words import Flag, Flags, as_word, read_value
from models.registry import family
from models.settings import INTEGER, MAX_ITEMS, SettingError, field_types, names_with, setting, width
from models.vocabulary import translate

KINDS: dict[str, tuple[str, tuple[type, ...]]] = {
    "choice": ("a list", ()),
    "uniform": ("[low, high]", (float, float)),
    "loguniform": ("[low, high], both above 0", (float, float)),
    "randint": ("[low, high], whole numbers, both included", (int, int)),
    "lograndint": ("[low, high], whole numbers above 0, both included", (int, int)),
    "logspace": ("[exponent, exponent, count]: powers of ten on a grid", (float, float, int)),
    "log1m": ("[low, high] of 1 minus the value, both above 0", (float, float)),
}
"""Kind of dimension -> a description of its value in the file, and the types of the numbers of a range."""

# Default spaces are files experiments/FAMILY/search_IMPLEMENTATION.yaml. RCP-R and RCP-A share search_rcp.yaml, tables
# search_tabular.yaml. Searches for a proxy may have files for a kind of proxy or an agent: search_se-bandit.yaml,
# search_rn-td3.yaml.
_EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
_FOLDERS = {"synthetic": "synthetic_environments", "reward": "reward_networks"}
SHAPE = {
    "width": width(1, "units of every hidden layer"),
    "depth": setting(1, "number of hidden layers", minimum=1, maximum=MAX_ITEMS),
}
"""Parts of ``hidden_sizes``, which a space may have instead of ``hidden_sizes`` itself."""


@dataclass(frozen=True)
class Dimension:
    """A hyperparameter of a search. ``kind`` is a key of `KINDS`, such as ``loguniform``. ``values`` are its choices,
    or the two ends of its range (for ``log1m``, the range of 1 minus the hyperparameter). A grid has the kind
    ``loguniform`` and ``count`` points; otherwise ``count`` is 0."""

    name: str
    kind: str
    values: tuple[Any, ...]
    count: int = 0

    @property
    def labels(self) -> list[Any]:
        """The values in a form that search algorithms accept, with lists and null as text."""
        return [value if isinstance(value, bool | int | float | str) else as_word(value) for value in self.values]

    def decode(self, raw: Any) -> Any:
        """Convert the suggestion ``raw`` of a search algorithm, a label or a number in the range, to a value of the
        setting. A number is rounded to six digits for readability, or to the nearest point of a grid."""
        if self.kind == "choice":
            return self.values[self.labels.index(raw)]
        value = self.clamp(raw)
        if self.kind == "log1m":
            return float(f"{1 - value:.6g}")
        if not self.count:
            return value
        first_exponent, last_exponent = map(math.log10, self.values)
        step = (last_exponent - first_exponent) / (self.count - 1)
        nearest_point = round((math.log10(value) - first_exponent) / step)
        return float(f"{10 ** (first_exponent + nearest_point * step):.6g}")

    def clamp(self, raw: float) -> float:
        """Return the value in the range of this hyperparameter that is nearest to ``raw``, a suggestion of a search
        algorithm. It is rounded to an integer or, for floats, to six digits."""
        low, high = self.values
        value = round(raw) if self.kind.endswith("randint") else float(f"{raw:.6g}")
        return min(max(value, low), high)


@dataclass(frozen=True)
class Space:
    """The hyperparameters of a search, ``dimensions``, by name. ``source`` is the path of the file of the space."""

    dimensions: dict[str, Dimension]
    source: str
    entries: Mapping[str, Any] = field(default_factory=dict)  # setting -> entry of the file, {"uniform": ["0", "1"]}

    def decode(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Convert a suggestion of a search algorithm (setting -> ``raw`` value) to setting -> value."""
        return {name: dimension.decode(raw[name]) for name, dimension in self.dimensions.items()}

    def clamp(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Return a suggestion of a search algorithm (setting -> ``raw`` value) with numbers clamped to their ranges."""
        ranges = {name: dimension for name, dimension in self.dimensions.items() if dimension.kind != "choice"}
        return raw | {name: dimension.clamp(raw[name]) for name, dimension in ranges.items()}


def search_space(settings: Settings) -> Space:
    """Return the search space in the file of ``--search_space``. Without this flag, return the default space for the
    implementation, without hyperparameters that other flags or ``--config`` set. Raises SettingError for a wrong entry
    of the file; the message has file, hyperparameter, value and allowed values."""
    user_path = settings.subcommand.search_space  # None without the flag
    path = user_path or str(_default_file(settings))
    # Settings that determine which other settings exist.
    choices = {name: str(getattr(settings.proxy, name)) for name in names_with(settings.proxy, "chooses")}
    choices["agent"] = settings.run.agent
    valid_flags = flags(settings.run.implementation, settings.run.gamename, choices)
    if "hidden_sizes" in valid_flags:
        section = valid_flags["hidden_sizes"].section
        for name, shape_field in SHAPE.items():  # width and depth
            valid_flags[name] = Flag(name, INTEGER, shape_field.metadata, None, section)
    entries = read_mapping("search_space", path, "name: choices or range")
    with error_prefix(path):
        entries, _ = translate(entries, settings.families, valid_flags)  # aliases become names of settings
        if not user_path:
            set_names = set(settings.explicit_names)
            if "hidden_sizes" in set_names:
                set_names.update(SHAPE)  # the user also set width and depth
            entries = {name: entry for name, entry in entries.items() if name not in set_names}
        dimensions = {name: _dimension(name, entry, settings, valid_flags) for name, entry in entries.items()}
        if not dimensions:
            reason = "" if user_path else "; flags or --config set all of it"
            raise SettingError(f"nothing is left to search{reason}")
    return Space(dimensions, path, entries)


def trial_settings(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """Return the settings of a training run with the hyperparameters ``values`` (setting -> value), without settings of
    the hyperparameter search. Raises SettingError if the values conflict."""
    trial_values = as_dict(dataclasses.replace(settings, subcommand=None))
    if settings.proxy is not None:
        trial_values["num_seeds"] = 1  # a trial runs one search for each seed, one after another
    searched_values = with_hidden_sizes(values, settings)
    trial = from_dict(trial_values | searched_values)
    # `from_dict` does not know the features that the environment lacks, and which settings are part of the comparison.
    explicit_names = settings.explicit_names | searched_values.keys()
    return dataclasses.replace(trial, missing_features=settings.missing_features, explicit_names=explicit_names)


def with_hidden_sizes(values: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """Return ``values`` (setting -> value) with ``hidden_sizes`` instead of ``width`` and ``depth`` (`SHAPE`). If only
    one of these is in ``values``, the other is from ``settings``. ``values`` with all of them raise SettingError."""
    translated, _ = translate(values, (), field_types(type(settings.agent)), lambda name: getattr(settings.agent, name))
    return translated


def _default_file(settings: Settings) -> Path:
    """Return the file of the default space, such as ``experiments/ddqn/search_ddqn.yaml``. If the implementation
    learns a proxy, a file for the kind of proxy, such as ``search_se-bandit.yaml``, takes precedence, and then a file
    for the agent. Raises SettingError if there is no file."""
    implementation, agent, proxy = settings.run.implementation, settings.run.agent, settings.proxy
    package = family(implementation).package.rpartition(".")[2]  # its last part
    folder = _EXPERIMENTS / _FOLDERS.get(package, package)
    name = implementation.lower()
    endings = [] if proxy is None else [f"{name}-{proxy.proxy}", f"{name}-{agent.lower()}"]
    endings += [name, name.partition("-")[0], package]  # such as "rcp-r", "rcp" and "command_conditioned"
    for ending in endings:  # the first existing file counts
        path = folder / f"search_{ending}.yaml"
        if path.exists():
            return path
    raise SettingError(f"search_space: there is none for {implementation}; give a file with --search_space")


def _dimension(name: str, entry: Any, settings: Settings, valid_flags: Flags) -> Dimension:
    """Return the dimension for the setting ``name``. Its ``entry`` in the file is a list of choices, or a kind of
    `KINDS` with arguments, such as ``{"uniform": ["0", "1"]}``. Raises SettingError for a wrong entry or value."""
    implementation = settings.run.implementation
    if name not in valid_flags:
        raise unknown_error(name, valid_flags, implementation, prefix="", game="")
    flag = valid_flags[name]
    is_tunable = name in names_with(settings.proxy, "tunable")  # a setting of the search for a proxy
    if not (is_tunable or flag.section.startswith("hyperparameters") or name == "seed"):
        raise SettingError(f"{name} is no hyperparameter of {implementation}; give it as a flag")
    kind, arguments = _kind_and_arguments(name, entry, flag)
    values: list[Any]
    count = 0
    if kind == "choice":
        values = [_read_choice(name, choice, flag) for choice in arguments]
    else:
        *values, count = _read_range(name, kind, arguments)
    setting_values = [1 - value for value in values] if kind == "log1m" else values
    # `replace` raises the error if a value is out of range or conflicts with other settings.
    settings_of_values = [settings.replace(**with_hidden_sizes({name: value}, settings)) for value in setting_values]
    if name not in SHAPE and kind != "log1m":
        values = [changed.value(name) for changed in settings_of_values]  # converted to the type of the setting
    if kind == "logspace":
        kind = "loguniform"  # a grid is a range with a ``count``
    return Dimension(name, kind, tuple(dict.fromkeys(values)), count)


def _read_choice(name: str, choice: Any, flag: Flag) -> Any:
    """Return the value of the setting ``name`` for one of the choices in a file. A ``choice`` is text, or a list of
    texts if the setting is a list. Raises SettingError if it does not fit the setting."""
    words = choice if isinstance(choice, list) and flag.type.is_list else [choice]
    if not all(isinstance(word, str) for word in words):
        expected = "list of values" if flag.type.is_list else "single value"
        raise SettingError(f"{name}: the choice {choice!r} is not a {expected}")
    return read_value(flag, words)


def _kind_and_arguments(name: str, entry: Any, flag: Flag) -> tuple[str, list[Any]]:
    """Return the kind of a dimension (`KINDS`) and its arguments, such as ``("uniform", ["0", "1"])``, from the
    ``entry`` of the setting ``name``. Raises SettingError for a wrong entry or an unsuitable kind."""
    if isinstance(entry, list):
        entry = {"choice": entry}
    ranges: list[str] = []  # the kinds of ranges for the type of this setting
    if flag.type.item in (int, float) and not flag.type.is_list:
        suffix = "randint" if flag.type.item is int else ""
        ranges = [kind for kind in KINDS if kind != "choice" and kind.endswith(suffix)]
    if not isinstance(entry, dict) or len(entry) != 1:
        allowed = " or ".join(["a list of choices", *ranges])
        raise SettingError(f"{name} is {entry!r}; allowed: {allowed}, with its numbers")
    ((kind, arguments),) = entry.items()  # the only item
    if kind not in ("choice", *ranges):
        raise SettingError(f"{name}: {kind!r} is unknown here; allowed: {', '.join(['choice', *ranges])}")
    if not isinstance(arguments, list) or not arguments:
        allowed, _ = KINDS[kind]
        raise SettingError(f"{name}: {kind} is {arguments!r}; allowed: {allowed}")
    return kind, arguments


def _read_range(name: str, kind: str, arguments: list[Any]) -> tuple[float, float, int]:
    """Return ``(low, high, count)`` for a range: its ends, and the number of points of a grid, 0 for other ranges.
    ``arguments`` are the texts in the file. Raises SettingError if they are not valid."""
    allowed, types = KINDS[kind]
    with contextlib.suppress(ValueError, TypeError, OverflowError):  # not numbers: raise the error below
        low, high, *counts = [number_type(text) for number_type, text in zip(types, arguments, strict=True)]
        if kind == "logspace":  # a grid, whose ends are exponents
            low, high = 10.0**low, 10.0**high
        count = counts[0] if counts else 0
        is_ordered = -math.inf < low < high < math.inf
        has_logarithm = low > 0 or not kind.startswith("log")
        if is_ordered and has_logarithm and (count >= 2 or not counts):  # a grid has two points or more
            return low, high, count
    text = ", ".join(map(str, arguments))
    raise SettingError(f"{name}: {kind} is [{text}]; allowed: {allowed}, the lower first")
