"""Settings: dataclass fields that carry their help text and their range, so both have one home.

    @dataclass(frozen=True)
    class Config:
        lr: float = setting(3.5e-4, "Adam step size", above=0)
        hidden_sizes: tuple[int, ...] = setting((32, 128), "units of each layer", minimum=1)

A field is a `bool`, `int`, `float` or `str`, a ``tuple[X, ...]`` of one of them, or either of these ``| None``.
"""

import dataclasses
import difflib
import functools
import math
import types
import typing
from collections.abc import Iterable
from typing import Any


class UserError(Exception):
    """Something the person at the keyboard can put right. ``str(e)`` is one clear line, shown without a traceback."""


class SettingError(UserError, ValueError):
    """A setting that is unknown, of the wrong type, out of range or at odds with another."""


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
) -> Any:
    """A dataclass field with help and range. Bounds and choices hold for each item of a tuple; None is never
    bounded. ``above`` and ``below`` exclude the bound itself; ``empty`` permits the empty tuple."""
    bounds = {"above": above, "minimum": minimum, "below": below, "maximum": maximum}
    metadata = {"help": help, "choices": tuple(choices) if choices is not None else None, "empty": empty, **bounds}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Kind:
    """A field's type taken apart: ``tuple[int, ...] | None`` is ``Kind(int, many=True, optional=True)``."""

    item: type
    many: bool
    optional: bool


@functools.cache
def kinds(config_class: type) -> dict[str, Kind]:
    """Name -> Kind of every field, in order."""
    hints = typing.get_type_hints(config_class)
    return {field.name: _kind(hints[field.name]) for field in dataclasses.fields(config_class)}


def _kind(hint: Any) -> Kind:
    optional = False
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        (hint,) = (part for part in typing.get_args(hint) if part is not types.NoneType)
        optional = True
    if typing.get_origin(hint) is tuple:
        return Kind(typing.get_args(hint)[0], True, optional)
    return Kind(hint, False, optional)


def check(config: Any) -> None:
    """Hold every field of a dataclass instance against its type and range.

    Raises SettingError ("lr is -1.0; allowed: greater than 0") at the first that fails; NaN and infinity always do.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if not _fits(value, kinds(type(config))[field.name], field.metadata):
            raise refused(type(config), field.name, value)


def refused(config_class: type, name: str, value: Any) -> SettingError:
    """The error for a value that the field may not have."""
    (field,) = (f for f in dataclasses.fields(config_class) if f.name == name)
    shown = list(value) if isinstance(value, tuple) else value
    near = nearest(value, field.metadata.get("choices") or ()) if isinstance(value, str) else ""
    return SettingError(f"{name} is {shown!r}; allowed: {allowed(config_class, name)}{near}")


def allowed(config_class: type, name: str) -> str:
    """What a field accepts, in words: "integer, at least 1", "list of numbers, greater than 0; or null"."""
    kind = kinds(config_class)[name]
    (field,) = (f for f in dataclasses.fields(config_class) if f.name == name)
    meta = field.metadata
    words = {bool: "true or false", int: "integer", float: "number", str: "text"}
    plural = {bool: "true or false", int: "integers", float: "numbers", str: "texts"}
    parts = [f"list of {plural[kind.item]}" if kind.many else words[kind.item]]
    if meta.get("choices"):
        one_of = ", ".join(map(str, meta["choices"]))
        parts = [f"list of {one_of}" if kind.many else one_of]
    parts += [
        f"{phrase} {meta[bound]}"
        for bound, phrase in _PHRASES.items()
        if meta.get(bound) is not None
    ]
    if kind.item is float and parts[0] == "number" and len(parts) > 1:
        parts = parts[1:]
    return ", ".join(parts) + ("; or null" if kind.optional else "")


_PHRASES = {"above": "greater than", "minimum": "at least", "below": "less than", "maximum": "at most"}


def nearest(name: str, names: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` with the closest of ``names``, or ``""`` when none is close."""
    by_lower = {other.lower(): other for other in names}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.55)
    return f"; did you mean '{by_lower[close[0]]}'?" if close else ""


def _fits(value: Any, kind: Kind, meta: Any) -> bool:
    if value is None:
        return kind.optional
    if kind.many:
        return (
            isinstance(value, tuple)
            and (len(value) > 0 or bool(meta.get("empty")))
            and all(_item_fits(item, kind.item, meta) for item in value)
        )
    return _item_fits(value, kind.item, meta)


def _item_fits(value: Any, item: type, meta: Any) -> bool:
    if item is float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return False
    elif type(value) is not item:
        return False
    if meta.get("choices") and value not in meta["choices"]:
        return False
    above, minimum, below, maximum = (meta.get(bound) for bound in ("above", "minimum", "below", "maximum"))
    return not (
        (above is not None and not value > above)
        or (minimum is not None and not value >= minimum)
        or (below is not None and not value < below)
        or (maximum is not None and not value <= maximum)
    )
