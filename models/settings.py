"""Settings: dataclass fields with help text and range, so that both are defined in one place.

    @dataclass(frozen=True)
    class Config:
        lr: float = setting(3.5e-4, "Adam's learning rate", above=0)
        hidden_sizes: tuple[int, ...] = setting((32, 128), "units of each layer", minimum=1)

A field is a `bool`, `int`, `float` or `str`, a ``tuple[X, ...]`` of one of them, or either of these ``| None``. All
ranges are finite: `RANGES` has the bounds that a field does not set.
"""

import dataclasses
import difflib
import importlib.util
import math
import operator
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

RANGES: dict[type, dict[str, float]] = {
    int: {"minimum": -(10**9), "maximum": 10**9},
    float: {"minimum": -(10**9), "maximum": 10**9},
    str: {"maximum": 4096},  # bytes, of the longest path
}
"""Bounds of a field that sets none on that side."""
SMALLEST = 1e-30
"""The least absolute value of a number except 0; single precision ends at 1e-38."""
LONGEST = 16
"""The largest number of items of a list."""


class UserError(Exception):
    """An error that the user can correct. ``str(e)`` is one clear line, shown without a traceback."""

    status = 2  # exit status of a command that ends with this error


class ProcessDied(UserError):
    """A helper process of the command was killed or crashed. The same command may succeed the next time."""

    status = 1


class StopNow(BaseException):
    """Raised at the second signal to stop. It replaces KeyboardInterrupt, which Lightning would turn into exit status
    1."""


class SettingError(UserError, ValueError):
    """The error about a setting that is unknown, of the wrong type, out of range or in conflict with another. Its text
    is ``line``. ``name`` is the setting at fault, or empty if there are several; the caller uses it to name the file
    with the value."""

    def __init__(self, line: str, name: str = ""):
        super().__init__(line)
        self.name = name


class SettingErrors(SettingError):
    """Several SettingErrors as one; ``str(e)`` has a line for each of ``errors``."""

    def __init__(self, errors: Sequence[SettingError]):
        super().__init__("\n".join(map(str, errors)))
        self.errors = tuple(errors)


def raise_all(errors: Sequence[SettingError]) -> None:
    """Raise the only error, or several as one SettingErrors. Do nothing without errors."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise SettingErrors(errors)


HAS_NUMBA = importlib.util.find_spec("numba") is not None  # which compiles to machine code

FACTS: dict[str, Any] = {
    "by_flag": False,  # only flags and keywords may set it, because files come from elsewhere
    "changeable": False,  # a resumed run or search may have another value
    "chooses": False,  # it chooses the defaults of other settings
    "commands": (),  # commands other than training that use this setting of a run
    "exists": False,  # the path of something that exists
    "family_default": False,  # a family may declare this setting of a run with its own default
    "fit": True,  # a supervised fit uses this setting of a search
    "hparam": True,  # TensorBoard lists it among the hyperparameters
    "identity": False,  # a printed command always has it
    "later": False,  # added after the first proxy files, which omit it at its default so that they stay the same
    "needs": (),  # settings of which one must differ from its default
    "only_with": "",  # property of the environment (`models.family.PARTS`) without which it has no effect
    "outcome": True,  # False: it concerns speed or output, so a resumed run may change it and a proxy's file omits it
    "part": "",  # component of the agent that it configures
    "perturbed": False,  # PBT may change it while training continues
    "replaced": {},  # kind of learning (`models.family.Family`) without this setting -> the setting to use, or ""
    "tunable": True,  # a search space may have it
    "usual": True,  # the short help shows it
}
"""Properties of settings with their defaults. Lists of settings follow from them (`names_with`)."""


def setting(
    default: Any,
    help: str,
    *,
    above: float | None = None,
    minimum: float | None = None,
    below: float | None = None,
    maximum: float | None = None,
    choices: Iterable[Any] | None = None,
    empty: bool = False,
    section: str = "",
    longest: int = LONGEST,
    **facts: Any,
) -> Any:
    """Return a dataclass field with help, range and `FACTS` as its metadata. Bounds and choices hold for each item of a
    tuple, which has at most ``longest`` items; None is never bounded. ``above`` and ``below`` exclude the bound itself.
    For text ``maximum`` counts the bytes in UTF-8, as file systems do. ``empty`` permits the empty tuple and the empty
    text. ``section`` is the heading in ``--help``. Raises TypeError for an unknown fact."""
    if unknown := facts.keys() - FACTS.keys():
        raise TypeError(f"{', '.join(unknown)}: no fact of a setting; allowed: {', '.join(FACTS)}")
    metadata = {"help": help, "choices": tuple(choices or ()), "empty": empty, "section": section, "longest": longest}
    metadata |= {"above": above, "minimum": minimum, "below": below, "maximum": maximum}
    return dataclasses.field(default=default, metadata={**metadata, **FACTS, **facts})


def names_with(config: Any, fact: str, value: Any = True) -> set[str]:
    """Return the names of settings with ``value`` for ``fact`` (a key of `FACTS`), in ``config``, which is an instance,
    a class or None. None has no settings."""
    fields = dataclasses.fields(config) if config is not None else ()
    return {field.name for field in fields if field.metadata[fact] == value}


def width(default: Any, help: str, **metadata: Any) -> Any:
    """Return a `setting` for the number of units or channels of a layer."""
    return setting(default, help, minimum=1, maximum=65_536, **metadata)


def machine_code(**facts: Any) -> Any:
    """Return a `setting` for whether agents are trained in machine code."""
    text = "train agents in machine code if there is any for these settings (needs Numba); off: in torch"
    return setting(HAS_NUMBA, text, hparam=False, family_default=True, **facts)


def nonlinearity(default: str, source: str = "", extra_choices: tuple[str, ...] = ("prelu",), but: str = "") -> Any:
    """Return a `setting` for the activation of hidden layers. All agents with a network allow four names;
    ``extra_choices`` are additional ones. In the help text, ``but`` names layers with a fixed activation, and
    ``source`` is a citation."""
    citation = f" [{source}]" if source else ""
    choices = ("relu", "leakyrelu", "tanh", "identity", *extra_choices)
    return setting(default, f"activation of the hidden layers{but}{citation}", choices=choices)


@dataclasses.dataclass(frozen=True)
class Kind:
    """The parts of a field's type: ``tuple[int, ...] | None`` is ``Kind(int, is_list=True, optional=True)``."""

    item: type
    is_list: bool
    optional: bool


INTEGER = Kind(int, is_list=False, optional=False)
OPTIONAL_INTEGER = Kind(int, is_list=False, optional=True)
_NOUNS = {bool: "true or false", int: "integer", float: "number", str: "text"}
_SWITCH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "above": ("greater than", operator.gt),
    "minimum": ("at least", operator.ge),
    "below": ("less than", operator.lt),
    "maximum": ("at most", operator.le),
}
_KINDS: dict[type, dict[str, Kind]] = {}


def kinds(config_class: type) -> Mapping[str, Kind]:
    """Return field name -> Kind for the fields of a dataclass, in order; empty for ``NoneType``. Results are cached,
    because `typing.get_type_hints` is slow."""
    if config_class is type(None):
        return {}
    if config_class not in _KINDS:
        hints = typing.get_type_hints(config_class)
        _KINDS[config_class] = {field.name: _kind(hints[field.name]) for field in dataclasses.fields(config_class)}
    return _KINDS[config_class]


def _kind(hint: Any) -> Kind:
    """Return the Kind of a type hint: ``X``, ``tuple[X, ...]``, or one of them with ``| None``."""
    optional = typing.get_origin(hint) in (types.UnionType, typing.Union)
    if optional:
        (hint,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
    if typing.get_origin(hint) is tuple:
        item, _ = typing.get_args(hint)  # the second argument is the ellipsis
        return Kind(item, is_list=True, optional=optional)
    return Kind(hint, is_list=False, optional=optional)


def check(config: Any) -> None:
    """Check every field of a dataclass instance against its type and range. Raises one SettingError ("lr is -1.0;
    allowed: number, greater than 0") about all fields that fail. NaN and infinity always fail, empty text unless the
    field permits it."""
    errors = []
    for field in dataclasses.fields(config):
        try:
            check_value(field.name, getattr(config, field.name), kinds(type(config))[field.name], field.metadata)
        except SettingError as error:
            errors.append(error)
    raise_all(errors)


def check_value(name: str, value: Any, kind: Kind, meta: Mapping[str, Any]) -> None:
    """Raise SettingError, with ``name`` in its message, if ``value`` does not fit its type ``kind`` and the range in
    ``meta``, the metadata of `setting`."""
    if value is None and kind.optional:
        return
    items = value if kind.is_list else (value,)
    longest = meta.get("longest", LONGEST)
    right_length = isinstance(items, tuple) and (items or meta.get("empty")) and len(items) <= longest
    if not right_length or not all(_fits(item, kind.item, meta) for item in items):
        raise value_error(name, value, kind, meta)


def bounds(kind: Kind, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the bounds of each item of a field, ``{"minimum": 0, ...}``, including the default bounds in `RANGES`.
    Empty for choices and bools."""
    if meta.get("choices"):
        return {}
    field_bounds = {name: meta[name] for name in _BOUNDS if meta.get(name) is not None}
    strict_name = {"minimum": "above", "maximum": "below"}  # a strict bound also replaces the default on its side
    defaults = {
        name: bound for name, bound in RANGES.get(kind.item, {}).items() if strict_name[name] not in field_bounds
    }
    return defaults | field_bounds


def value_error(name: str, value: Any, kind: Kind, meta: Mapping[str, Any]) -> SettingError:
    """Return the SettingError for a ``value`` that is not allowed, as text or as a Python object. It states the value
    and the allowed values, including the default bounds in `RANGES` if the value exceeds them."""
    choices = [choice for choice in meta.get("choices", ()) if isinstance(choice, str)]
    hint = nearest(value, choices) if isinstance(value, str) else ""
    items = value if isinstance(value, tuple) else (value,)
    number = _as_number(value)
    if kind.item is int and isinstance(value, str | float) and number is not None and number % 1 == 0:  # such as 1e3
        hint = f"; did you mean {int(number)}?" if _fits(int(number), int, meta) else ""
    note = ""
    if not all(_in_range(item, kind, {}) for item in items):  # beyond the default bounds
        meta = {**meta, **bounds(kind, meta)}
        if kind.item is float and any(0 < abs(_as_number(item) or 0) < SMALLEST for item in items):
            note = f", of size {SMALLEST:g} at least where not 0"
    if len(items) > meta.get("longest", LONGEST):
        note = f", {meta.get('longest', LONGEST)} of them at most"
    return SettingError(f"{name} is {format_value(value)}{allowed_clause(hint, allowed(kind, meta))}{note}", name)


def choice_error(name: str, value: Any, choices: Iterable[str], where: str = "", guess: Any = None) -> SettingError:
    """Return the SettingError for a ``value`` of setting ``name`` that is not in ``choices``. It suggests the choice
    nearest to ``guess`` (None: to the value). ``where`` follows "allowed", such as " for PPO"."""
    names = list(choices)
    guess = value if guess is None else guess
    hint = nearest(guess, names) if isinstance(guess, str) else ""
    return SettingError(f"{name} is {format_value(value)}{allowed_clause(hint, ', '.join(names), where)}", name)


def parse_value(item: type, text: str) -> Any:
    """Parse ``text`` as type ``item`` (bool, int, float or str). Integers may be written as ``1e5`` or ``0x10``, bools
    as in `_SWITCH`. Raises ValueError, also for NaN and infinities."""
    if item is int:
        if re.fullmatch(r"[+-]?[0-9.]+[eE]\+?[0-9]{1,2}", text) and float(text) % 1 == 0:
            return int(float(text))
        return int(text, 10 if text.isdecimal() else 0)  # base 0 reads a prefix, but rejects 007
    value = _SWITCH.get(text.strip().lower()) if item is bool else item(text)
    if value is None or (item is float and not math.isfinite(value)):
        raise ValueError(text)
    return value


def format_value(value: Any) -> str:
    """Return a value as text for an error message: its `repr`, with tuples as lists, shortened if it is long."""
    try:
        return shorten(repr(list(value) if isinstance(value, tuple) else value), 60)
    except ValueError:  # `repr` of an integer with more than 4,300 digits
        return "a number of thousands of digits"


def shorten(text: str, limit: int) -> str:
    """Return ``text``; if it has more than ``limit`` characters, replace its middle by three dots."""
    return text if len(text) <= limit else f"{text[: limit // 2]}...{text[-limit // 3 :]}"


def allowed(kind: Kind, meta: Mapping[str, Any]) -> str:
    """Return the allowed values of a field in words, such as "integer, at least 1" or "list of numbers, each greater
    than 0; or null". The default bounds in `RANGES` are left out."""
    unit = " bytes" if kind.item is str else ""
    conditions = [f"{words} {meta[name]}{unit}" for name, (words, _) in _BOUNDS.items() if meta.get(name) is not None]
    if kind.item is str and not meta.get("choices") and not meta.get("empty"):
        conditions.append("not empty")
    noun = ", ".join(map(str, meta.get("choices", ()))) or _NOUNS[kind.item]
    if kind.is_list:
        conditions = [f"each {condition}" for condition in conditions]
        noun = f"list of {noun}s" if noun in _NOUNS.values() else f"list of {noun}"
    return ", ".join(filter(None, [noun, *conditions])) + ("; or null" if kind.optional else "")


def nearest(name: str, names: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` with the closest of ``names``, or ``""`` if none is close."""
    close = closest(name, names)
    return f"; did you mean '{close}'?" if close else ""


def allowed_clause(hint: str, allowed_text: str, where: str = "") -> str:
    """Return the end of an error message: the suggestion ``hint`` (from `nearest`, may be ""), then the allowed
    values. ``where`` follows "allowed", such as " for PPO". After a suggestion, a list of more than `LONGEST` is left
    out."""
    if hint and allowed_text.count(",") >= LONGEST:
        return f"{hint} All{where}: --help"
    return f"{hint} Allowed{where}: {allowed_text}" if hint else f"; allowed{where}: {allowed_text}"


def closest(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar of ``names``, ignoring case: an equal name, else the shortest that begins with ``name``
    (with ``name_`` if it has three letters or fewer), else the closest by `difflib`. None if no name is close."""
    by_lower = {other.lower(): other for other in names}
    lower = name.lower()
    if lower in by_lower:
        return by_lower[lower]
    extended = sorted((other for other in by_lower if other.startswith(lower + "_" * (len(lower) < 4))), key=len)
    candidates = extended or difflib.get_close_matches(lower, by_lower, n=1, cutoff=0.7)
    return by_lower[candidates[0]] if candidates else None


def match_spelling(name: str, names: Iterable[str]) -> str:
    """Return the element of ``names`` that equals ``name`` apart from case, blanks, dashes and underscores. Return
    ``name`` itself if it is in ``names``, or if there is no unique match."""
    names = list(names)
    if name in names:
        return name
    matches = [other for other in names if _without_separators(other) == _without_separators(name)]
    return matches[0] if len(matches) == 1 else name


def _without_separators(name: str) -> str:
    """Return ``name`` in lower case, without blanks, dashes and underscores."""
    return name.lower().translate(_SEPARATORS)


_SEPARATORS = str.maketrans("", "", " -_")


def _fits(value: Any, item: type, meta: Mapping[str, Any]) -> bool:
    """Return whether ``value``, not a list, has type ``item`` and the range and choices in ``meta``."""
    # An int is allowed for a float, but a bool is not a number, although `bool` is a subclass of `int`.
    if type(value) is not item and not (item is float and type(value) is int):
        return False
    if isinstance(value, float) and not math.isfinite(value):
        return False
    if isinstance(value, str) and not value.strip() and not meta.get("empty"):
        return False
    if meta.get("choices") and value not in meta["choices"]:
        return False
    return _in_range(value, Kind(item, is_list=False, optional=False), meta)


def _in_range(value: Any, kind: Kind, meta: Mapping[str, Any]) -> bool:
    """Return whether ``value`` is within its `bounds`: a number (also as text), or the bytes of text in a text field.
    True for other values, which have no bounds."""
    is_text = kind.item is str and isinstance(value, str)
    number = len(value.encode(errors="replace")) if is_text else _as_number(value)
    if number is None or kind.item is bool:
        return True
    if kind.item is float and 0 < abs(number) < SMALLEST:
        return False
    return all(_BOUNDS[name][1](number, bound) for name, bound in bounds(kind, meta).items())  # [1] is the comparison


def _as_number(value: Any) -> float | None:
    """Return ``value``, a number or text, as a number. An int remains an int; anything else becomes a float. None for
    NaN and if it is no number."""
    try:
        number = value if type(value) is int else float(value)
    except OverflowError:
        return math.inf
    except (ValueError, TypeError):
        return None
    return number if number == number else None  # None for NaN; `math.isnan` fails for large integers
