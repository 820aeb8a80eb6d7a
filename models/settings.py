"""Settings: dataclass fields with a help text and a range, so that both are defined in one place.

    @dataclass(frozen=True)
    class Config:
        lr: float = setting(3.5e-4, "Adam's learning rate", above=0)
        hidden_sizes: tuple[int, ...] = setting((32, 128), "units of each layer", minimum=1)

The type of a field is X, ``tuple[X, ...]``, or one of these ``| None``; X is `bool`, `int`, `float` or `str`. All
ranges are finite. `RANGES` has the bounds of fields that set none. In arguments, ``field_type`` is the type of a field,
and ``meta`` its metadata from `setting`.
"""

import dataclasses
import difflib
import importlib.util
import math
import operator
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

SMALLEST = 1.17549435e-38
"""Smallest size of a number other than 0. Networks have numbers of 32 bits, which are denormal or 0 below it."""
RANGES: dict[type, dict[str, float]] = {
    int: {"minimum": -(10**9), "maximum": 10**9},
    float: {"minimum": -(10**9), "maximum": 10**9},
    str: {"maximum": 4096},  # bytes, of the longest path
}
"""Type -> bounds of its fields, unless a field sets another bound on the same side."""
MAX_ITEMS = 16
"""The largest number of items of a list."""


class UserError(Exception):
    """An error that the user can correct. ``str(e)`` is one clear line, shown without a traceback."""

    status = 2  # exit status of a command that ends with this error


class ProcessDied(UserError):
    """The error that a worker process was killed or crashed. The same command may succeed the next time."""

    status = 1


class StopNow(BaseException):
    """Raised at the second signal to stop, because Lightning would turn a KeyboardInterrupt into exit status 1."""


class SettingError(UserError, ValueError):
    """The error about a setting that is unknown, of the wrong type, out of range or in conflict with another.

    :param line: The message.
    :param name: The setting at fault, by which the caller finds the file that contains the value. Empty if several.
    :param parts: Several errors that this error contains; ``line`` has a line for each. Empty for a single error.
    """

    def __init__(self, line: str, name: str = "", parts: Sequence["SettingError"] = ()):
        super().__init__(line)
        self.name, self._parts = name, parts

    @property
    def errors(self) -> Sequence["SettingError"]:
        """The parts of this error, or only itself."""
        return self._parts or (self,)


def rename_setting(error: SettingError, name: str, typed_name: str) -> SettingError:
    """Return ``error``, about setting ``name``, with the name ``typed_name`` that the user typed, such as an alias."""
    # Only the first occurrence in the message is surely the name: "lr is -1.0; allowed: ...".
    return SettingError(str(error).replace(name, typed_name, 1), typed_name)


def raise_all(errors: Sequence[SettingError]) -> None:
    """Raise the only item of ``errors``, or a single error that contains all items. Do nothing if it is empty."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise SettingError("\n".join(map(str, errors)), parts=tuple(errors))


HAS_NUMBA = importlib.util.find_spec("numba") is not None  # Numba compiles to machine code

PROPERTIES: dict[str, Any] = {
    "by_flag": False,  # only flags and keywords may set it: a file may be from somebody else
    "changeable": False,  # a resumed run or search may have another value
    "chooses": False,  # other settings have defaults that depend on it
    "commands": (),  # commands other than training that use this setting of a run
    "exists": False,  # it is the path of something that must exist
    "family_default": False,  # a family may declare this setting of a run with a different default
    "fit": True,  # a supervised fit uses this setting of a search
    "hparam": True,  # TensorBoard lists it among the hyperparameters
    "identity": False,  # a printed command always includes it
    "later": False,  # newer than the first proxy files; at its default, a file omits it, as those files do
    "needs": (),  # names of settings; it has no effect if all of them have their defaults
    "only_with": "",  # property of the environment (`models.family.PARTS`) without which it has no effect
    "outcome": True,  # False: it concerns speed or output, so a resumed run may change it and a proxy's file omits it
    "part": "",  # component of the agent that it configures
    "perturbed": False,  # PBT may change it while training continues
    "replaced": {},  # ``learns_from`` of families without this setting -> the setting to use instead, or ""
    "tunable": True,  # a search space may contain it
    "usual": True,  # the short help shows it
}
"""Further properties of a setting, with their defaults. `names_with` lists the settings with a property."""


def setting(
    default: Any,
    help: str,
    *,
    above: float | None = None,
    minimum: float | None = None,
    below: float | None = None,
    maximum: float | None = None,
    choices: Iterable[Any] | None = None,
    allow_empty: bool = False,
    section: str = "",
    max_items: int = MAX_ITEMS,
    **properties: Any,
) -> Any:
    """Return a dataclass field for a setting. Its metadata holds the help, the bounds and further ``properties``;
    `PROPERTIES` has their names and defaults. Raises TypeError for an unknown property.

    Bounds and choices hold for each item of a tuple, which has at most ``max_items`` items. None is always allowed if
    the type allows it. ``above`` and ``below`` exclude the bound itself. For text, ``maximum`` counts the bytes in
    UTF-8, as file systems do. ``allow_empty`` permits the empty tuple and the empty text. ``section`` is the heading in
    ``--help``."""
    if unknown := properties.keys() - PROPERTIES.keys():
        raise TypeError(f"{', '.join(unknown)}: no property of a setting; allowed: {', '.join(PROPERTIES)}")
    bounds = {"above": above, "minimum": minimum, "below": below, "maximum": maximum}
    form = {"choices": tuple(choices or ()), "allow_empty": allow_empty, "max_items": max_items}
    metadata = {"help": help, "section": section, **bounds, **form, **PROPERTIES, **properties}
    return dataclasses.field(default=default, metadata=metadata)


def names_with(config: Any, name: str, value: Any = True) -> set[str]:
    """Return the settings in ``config`` with this value of the property ``name``: ``names_with(config, "by_flag")`` are
    the settings that only flags may set. ``config`` is an instance, a class, or None, which has no settings."""
    fields = dataclasses.fields(config) if config is not None else ()
    return {field.name for field in fields if field.metadata[name] == value}


def width(default: Any, help: str, **metadata: Any) -> Any:
    """Return a `setting` for the number of units or channels of a layer."""
    return setting(default, help, minimum=1, maximum=65_536, **metadata)


def machine_code(**properties: Any) -> Any:
    """Return a `setting` for whether agents are trained in machine code."""
    text = "train agents in machine code if there is any for these settings (needs Numba); off: in torch"
    return setting(HAS_NUMBA, text, hparam=False, family_default=True, **properties)


def nonlinearity(default: str, source: str = "", extra_choices: tuple[str, ...] = ("prelu",), scope: str = "") -> Any:
    """Return a `setting` for the activation of hidden layers: relu, leakyrelu, tanh, identity or ``extra_choices``. Its
    help is "activation of the hidden layers", then the text ``scope``, such as ", except tanh in the last layer", and
    the citation ``source``, such as "F"."""
    citation = f" [{source}]" if source else ""
    choices = ("relu", "leakyrelu", "tanh", "identity", *extra_choices)
    return setting(default, f"activation of the hidden layers{scope}{citation}", choices=choices)


@dataclasses.dataclass(frozen=True)
class FieldType:
    """The type of a field: ``tuple[int, ...] | None`` is ``FieldType(int, is_list=True, optional=True)``."""

    item: type  # bool, int, float or str
    is_list: bool
    optional: bool  # whether None is allowed


INTEGER = FieldType(int, is_list=False, optional=False)
OPTIONAL_INTEGER = FieldType(int, is_list=False, optional=True)
_NOUNS = {bool: "true or false", int: "integer", float: "number", str: "text"}
_SWITCH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
# Config class -> the result of `field_types`, because `typing.get_type_hints` is slow.
_FIELD_TYPES: dict[type, dict[str, FieldType]] = {}
_BOUNDS = {"above": "greater than", "minimum": "at least", "below": "less than", "maximum": "at most"}  # bound -> words
_COMPARISONS = {"above": operator.gt, "minimum": operator.ge, "below": operator.lt, "maximum": operator.le}


def field_types(config_class: type) -> Mapping[str, FieldType]:
    """Return field name -> FieldType for the fields of a dataclass, in order. ``NoneType`` has no fields."""
    if config_class is types.NoneType:
        return {}
    if config_class not in _FIELD_TYPES:
        hints = typing.get_type_hints(config_class)
        fields = dataclasses.fields(config_class)
        _FIELD_TYPES[config_class] = {field.name: _field_type(hints[field.name]) for field in fields}
    return _FIELD_TYPES[config_class]


def _field_type(hint: Any) -> FieldType:
    """Return the FieldType of a type hint: ``X``, ``tuple[X, ...]``, or one of them with ``| None``."""
    optional = typing.get_origin(hint) in (types.UnionType, typing.Union)
    if optional:
        (hint,) = [alternative for alternative in typing.get_args(hint) if alternative is not types.NoneType]
    if typing.get_origin(hint) is tuple:
        item, _ = typing.get_args(hint)  # the second argument is the ellipsis
        return FieldType(item, is_list=True, optional=optional)
    return FieldType(hint, is_list=False, optional=optional)


def check(config: Any) -> None:
    """Check every field of a dataclass instance against its type and range. Raises one SettingError about all fields
    that fail, with lines such as "lr is -1.0; allowed: number, greater than 0"."""
    errors = []
    for field in dataclasses.fields(config):
        try:
            check_value(field.name, getattr(config, field.name), field_types(type(config))[field.name], field.metadata)
        except SettingError as error:
            errors.append(error)
    raise_all(errors)


def check_value(name: str, value: Any, field_type: FieldType, meta: Mapping[str, Any]) -> None:
    """Raise SettingError about the setting ``name`` if ``value`` does not fit its ``field_type`` or the range in
    ``meta``, its metadata from `setting`."""
    if value is None and field_type.optional:
        return
    items = value if field_type.is_list else (value,)
    min_items = 0 if meta.get("allow_empty") else 1
    max_items = meta.get("max_items", MAX_ITEMS)
    has_allowed_length = isinstance(items, tuple) and min_items <= len(items) <= max_items
    if not (has_allowed_length and all(_fits(item, field_type, meta) for item in items)):
        raise value_error(name, value, field_type, meta)


def bounds(field_type: FieldType, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bounds on each item of a field, such as ``{"above": 0, "maximum": 10**9}``, including the default
    bounds in `RANGES`. Fields with choices and bools have no bounds."""
    if meta.get("choices"):
        return {}
    field_bounds = {name: meta[name] for name in _BOUNDS if meta.get(name) is not None}
    defaults = dict(RANGES.get(field_type.item, {}))
    for strict_name, name in (("above", "minimum"), ("below", "maximum")):
        if strict_name in field_bounds:  # it replaces the default bound on its side
            defaults.pop(name, None)
    return defaults | field_bounds


def value_error(name: str, value: Any, field_type: FieldType, meta: Mapping[str, Any]) -> SettingError:
    """Return the SettingError about a ``value``, a text or a Python object, that setting ``name`` does not allow. It
    states the value and the allowed values, such as "lr is -1.0; allowed: number, greater than 0", and may suggest a
    similar value. It states the default bounds in `RANGES` only if the value exceeds them."""
    hint = ""
    if field_type.item is int and isinstance(value, str | float):
        hint = _integer_hint(value, field_type, meta)
    elif isinstance(value, str):
        hint = nearest(value, [choice for choice in meta.get("choices", ()) if isinstance(choice, str)])
    items = value if isinstance(value, tuple) else (value,)
    comparable_types = (str,) if field_type.item is str else (int, float)
    comparable_items = [item for item in items if type(item) in comparable_types]
    default_bounds = bounds(field_type, {})
    if not all(_is_within(item, default_bounds) for item in comparable_items):
        meta = {**meta, **bounds(field_type, meta)}  # now `allowed` states the default bounds
    max_items = meta.get("max_items", MAX_ITEMS)
    note = f", {max_items} of them at most" if len(items) > max_items else ""
    if any(isinstance(item, float) and 0 < abs(item) < SMALLEST for item in items):
        note += f", at least {SMALLEST} in size unless it is 0"
    return SettingError(f"{name} is {format_value(value)}{allowed_clause(hint, allowed(field_type, meta))}{note}", name)


def _integer_hint(value: str | float, field_type: FieldType, meta: Mapping[str, Any]) -> str:
    """Return the suggestion ``"; did you mean 1000?"`` if ``value`` is an allowed integer such as 1e3, else ``""``."""
    try:
        number = float(value)
    except ValueError:
        return ""
    if number % 1 == 0 and _fits(int(number), field_type, meta):  # the remainder of infinities is NaN
        return f"; did you mean {int(number)}?"
    return ""


def choice_error(name: str, value: Any, choices: Iterable[str], scope: str = "", guess: Any = None) -> SettingError:
    """Return the SettingError about a ``value`` of setting ``name`` that is not in ``choices``. It suggests the choice
    nearest to ``guess``, by default ``value``. The text ``scope``, such as " for PPO", follows the word "allowed"."""
    names = list(choices)
    if guess is None:
        guess = value
    hint = nearest(guess, names) if isinstance(guess, str) else ""
    return SettingError(f"{name} is {format_value(value)}{allowed_clause(hint, ', '.join(names), scope)}", name)


def parse_value(item: type, text: str) -> Any:
    """Parse ``text`` as type ``item`` (bool, int, float or str). Integers may be written as ``1e5`` or ``0x10``, bools
    as in `_SWITCH`. Raises ValueError, also for NaN and infinities."""
    if item is int:
        has_exponent = re.fullmatch(r"[+-]?[0-9.]+[eE]\+?[0-9]{1,2}", text)  # 1e5 or 2.5e+3
        if has_exponent and float(text) % 1 == 0:
            return int(float(text))
        return int(text, 10 if text.isdecimal() else 0)  # base 0 reads prefixes such as 0x, but rejects 007
    if item is bool:
        word = text.strip().lower()
        if word not in _SWITCH:
            raise ValueError(text)
        return _SWITCH[word]
    value = item(text)
    if item is float and not math.isfinite(value):
        raise ValueError(text)
    return value


def format_value(value: Any) -> str:
    """Return a value as text for an error message: its `repr`, with a tuple as a list, shortened if it is long."""
    if isinstance(value, tuple):
        value = list(value)
    try:
        return shorten(repr(value), 60)
    except ValueError:  # `repr` of an integer with more than 4,300 digits
        return "a number of thousands of digits"


def shorten(text: str, limit: int) -> str:
    """Return ``text`` if it has at most ``limit`` characters. Otherwise return its first ``limit // 2`` and its last
    ``limit // 3`` characters, with three dots between them."""
    return text if len(text) <= limit else f"{text[: limit // 2]}...{text[-limit // 3 :]}"


def allowed(field_type: FieldType, meta: Mapping[str, Any]) -> str:
    """Return the allowed values of a field in words, such as "integer, at least 1" or "list of numbers, each greater
    than 0; or null". Default bounds (`RANGES`) are left out."""
    choices = meta.get("choices", ())
    unit = " bytes" if field_type.item is str else ""
    conditions = [f"{words} {meta[name]}{unit}" for name, words in _BOUNDS.items() if meta.get(name) is not None]
    if field_type.item is str and not choices and not meta.get("allow_empty"):
        conditions.append("not empty")
    noun = ", ".join(map(str, choices)) if choices else _NOUNS[field_type.item]
    if field_type.is_list:
        conditions = [f"each {condition}" for condition in conditions]
        noun = f"list of {noun}" if choices else f"list of {noun}s"
    null = "; or null" if field_type.optional else ""
    return ", ".join([noun, *conditions]) + null


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the suggestion ``"; did you mean 'x'?"`` of the name x in ``names`` that is closest, ``""`` if none is."""
    similar_name = closest(name, names)
    return f"; did you mean '{similar_name}'?" if similar_name else ""


def allowed_clause(hint: str, allowed_text: str, scope: str = "") -> str:
    """Return the end of an error message, "; allowed for PPO: a, b": the suggestion ``hint`` from `nearest` (may be
    ""), then ``scope`` (" for PPO") and ``allowed_text`` ("a, b"). After a suggestion, a list of more than `MAX_ITEMS`
    values is replaced by a reference to ``--help``."""
    if not hint:
        return f"; allowed{scope}: {allowed_text}"
    if allowed_text.count(",") >= MAX_ITEMS:
        return f"{hint} All{scope}: --help"
    return f"{hint} Allowed{scope}: {allowed_text}"


def closest(name: str, names: Iterable[str]) -> str | None:
    """Return the element of ``names`` that is most similar to ``name``, ignoring case: an equal name, else the shortest
    name that begins with ``name`` (and an underscore, if ``name`` has three letters or fewer), else the closest name
    according to `difflib`. Return None if no name is close."""
    by_lower = {other.lower(): other for other in names}
    lower = name.lower()
    if lower in by_lower:
        return by_lower[lower]
    prefix = lower if len(lower) > 3 else f"{lower}_"
    longer_names = [other for other in by_lower if other.startswith(prefix)]
    if longer_names:
        return by_lower[min(longer_names, key=len)]
    cutoff = 0.7 if len(lower) > 3 else 0.6  # a name of three letters may have one wrong letter
    close_names = difflib.get_close_matches(lower, by_lower, n=1, cutoff=cutoff)
    return by_lower[close_names[0]] if close_names else None


def match_spelling(name: str, names: Iterable[str]) -> str:
    """Return the element of ``names`` that equals ``name`` apart from case, blanks, dashes and underscores. If ``name``
    itself is in ``names``, or if not exactly one element matches, return ``name`` unchanged."""
    names = list(names)
    if name in names:
        return name
    letters = re.sub("[ _-]", "", name.lower())
    matches = [other for other in names if re.sub("[ _-]", "", other.lower()) == letters]
    return matches[0] if len(matches) == 1 else name


def _fits(value: Any, field_type: FieldType, meta: Mapping[str, Any]) -> bool:
    """Return whether ``value``, one item, has the type in ``field_type`` and fits range and choices in ``meta``."""
    # `type` and not `isinstance`, because a bool is no number here, although `bool` is a subclass of `int`.
    allowed_types = (float, int) if field_type.item is float else (field_type.item,)
    if type(value) not in allowed_types:
        return False
    if isinstance(value, float) and (not math.isfinite(value) or 0 < abs(value) < SMALLEST):
        return False
    if isinstance(value, str) and not value.strip() and not meta.get("allow_empty"):
        return False
    if meta.get("choices"):
        return value in meta["choices"]
    return _is_within(value, bounds(field_type, meta))


def _is_within(value: Any, limits: Mapping[str, Any]) -> bool:
    """Return whether ``value`` is within ``limits`` (`bounds`), such as ``{"minimum": 0}``. Text counts in bytes."""
    size = len(value.encode(errors="replace")) if isinstance(value, str) else value
    return all(_COMPARISONS[name](size, limit) for name, limit in limits.items())
