"""Convert words of the command line to values of settings, and back. Values in YAML and JSON files and keywords in
Python become words too, and are converted by the same functions. So a text has the same meaning everywhere."""

import re
import shlex
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, Self

from control.cli.options import Flag, flags_for_values
from control.cli.settings import RETURN_COMMANDS, Settings, as_dict, end_setting
from models.settings import SettingError, allowed, format_value, parse_value, value_error

Pair = tuple[str, list[str]]
"""The name of a setting and its words, which are empty for a bare flag."""

NULL = ("null", "none", "~", "")
# Setting -> end of the message for a value of the wrong type.
_HINTS = {"resume": "; it goes on with the newest run of the same settings, and --reload takes a checkpoint's weights"}
FILM_WORDS = ("untrained", "real")  # values of --film for agents that are not in a file


class _ValueWord(str):
    """The word for a number, a bool or None that comes from Python or from a JSON file. It is the text that a user
    would write on the command line, such as ``null`` for None. Messages show the ``value`` instead."""

    def __new__(cls, text: str, value: Any) -> Self:
        return super().__new__(cls, text)

    def __init__(self, text: str, value: Any):
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)


def split(argv: Sequence[str]) -> list[Pair]:
    """Split the arguments of a command line into pairs: ``--a=1 --b --c 2 3`` becomes ``[("a", ["1"]), ("b", []), ("c",
    ["2", "3"])]``. ``-h`` becomes ``--help``, and hyphens in names become underscores. Raises SettingError for words
    before the first flag and for bytes that are not UTF-8."""
    pairs: list[Pair] = []
    for word in argv:
        if word == "-h":
            word = "--help"
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--")
        if flag.startswith("--") and name:
            underscored = re.sub(r"(?<=\w)-", "_", name)  # but a hyphen at the start remains
            pairs.append((underscored, [value] if equals else []))
        elif pairs:
            _, words = pairs[-1]
            words.append(word)
        else:
            raise SettingError(f"{word!r} is not a flag; flags start with --")
    check_text(pairs)
    return pairs


def check_text(pairs: Sequence[Pair], source: str = "") -> None:
    """Raise SettingError, which begins with ``source``, unless ``pairs`` are UTF-8 without NUL."""
    for name, words in pairs:
        for word in (name, *words):
            # Python represents bytes that are not UTF-8 as surrogates, which cannot be written to files.
            if any("\ud800" <= character <= "\udfff" or character == "\0" for character in word):
                raise SettingError(f"{source}{name} is {word!a}; allowed: text in UTF-8 without NUL")


def pairs_of(values: Mapping[str, Any]) -> Iterator[Pair]:
    """Yield a pair ``(name, words)`` for each of the ``values``, the content of a file or keywords. Items of
    ``command`` become ``command.return`` and so on. Raises SettingError for any other nested mapping."""
    for name, value in values.items():
        if name == "command" and isinstance(value, Mapping):
            yield from pairs_of({f"command.{key}": item for key, item in value.items()})
        elif name == "command":  # it is not a mapping, so it must be null, which yields no pair
            if value not in (None, *NULL):
                value_text = format_value(as_word(value))
                raise SettingError(f"command is {value_text}; allowed: a mapping of {', '.join(RETURN_COMMANDS)}")
        elif isinstance(value, Mapping):
            raise SettingError(f"{name} is a mapping; settings are flat, one 'name: value' a line")
        elif isinstance(value, list | tuple):
            words = [as_word(item) for item in value]
            yield name, words or ["[]"]  # no words would mean a bare flag, so an empty list gets a word
        else:
            yield name, [as_word(value)]


def one_word(name: str, words: Sequence[str]) -> str:
    """Return the only word in ``words``. Raises SettingError for none or several."""
    if not words:
        raise SettingError(f"--{name} needs a value", name)
    if len(words) > 1:
        raise SettingError(f"{name} is {format_value(' '.join(words))}; allowed: one value", name)
    return words[0]


def read_value(flag: Flag, words: Sequence[str]) -> Any:
    """Convert the ``words`` after a flag to a value of its type: True for no word after a switch, None for ``null`` and
    the like if the type allows it, a tuple for a list, else a single value. Lists may be written ``64,64``, ``64 64``
    or ``[64, 64]``. Raises SettingError if the words do not fit the type. The range of the value is not checked."""
    kind = flag.kind
    if not words and kind.item is bool:
        return True
    if not words:
        raise SettingError(f"--{flag.name} needs a value; allowed: {allowed(kind, flag.meta)}")
    if kind.optional and len(words) == 1 and words[0].lower() in NULL:
        return None
    # The word "null" stands for no value. This setting needs one, so the word must not become the text "null".
    if words == ["null"] and kind.item is str and not kind.is_list:
        raise value_error(flag.name, words[0], kind, flag.meta)
    items = _list_items(flag, words) if kind.is_list else [one_word(flag.name, words)]
    try:
        values = tuple(parse_value(kind.item, item) for item in items)
    except ValueError:
        value: Any = " ".join(words)  # for the message: as the user wrote it
        if len(words) == 1:
            value = words[0]
        elif all(isinstance(word, _ValueWord) for word in words):  # a list of numbers in Python or in a file
            value = tuple(words)
        error = value_error(flag.name, value, kind, flag.meta)
        raise SettingError(f"{error}{_HINTS.get(flag.name, '')}", flag.name) from None
    return values if kind.is_list else values[0]


def _list_items(flag: Flag, words: Sequence[str]) -> Sequence[str]:
    """Return the items of a list that is written as ``words``: ``64,64``, ``64 64`` and ``[64, 64]`` all become
    ``["64", "64"]``. In a list of any texts, such as paths, each word is an item."""
    if flag.kind.item is str and not flag.meta["choices"]:  # a comma may be part of the text
        return words
    text = ",".join(words).strip("[]() ").removesuffix(",")
    return text.split(",") if text else []


def as_word(value: Any, separator: str = " ") -> str:
    """Return ``value`` as the text to write after a flag. Items of a list are joined by ``separator``."""
    if getattr(value, "shape", None) == ():  # a number of an array library
        value = value.item()
    if isinstance(value, list | tuple):
        return separator.join(map(as_word, value))
    if value is None:
        return _ValueWord("null", value)
    if isinstance(value, bool):
        return _ValueWord("true" if value else "false", value)
    if isinstance(value, int | float):
        return _ValueWord(format_value(value), value)  # str() refuses very long integers
    return str(value)


def command_line(settings: Settings, without: Container[str] = ()) -> str:
    """Return the shell command for these settings. It has the settings that identify a run, such as ``seed`` (their
    property ``identity``), and the settings that differ from their defaults, except names in ``without``."""
    run, values = settings.run, as_dict(settings)
    for name, value in values.pop("command").items():  # of commands to the agent
        values[f"command.{name}"] = value
    valid_flags = flags_for_values(run.implementation, run.gamename, values)
    words = ["python trainer.py"]
    for name, value in values.items():
        is_implied = name == end_setting(run.implementation) and value is None  # such as null epochs with `total_steps`
        if is_implied or name in without:
            continue
        flag = valid_flags[name]
        if flag.meta["identity"] or as_word(value) != as_word(flag.default):
            items = value if isinstance(value, list) else [value]
            words += [f"--{name}", *(shlex.quote(as_word(item)) for item in items)]
    return " ".join(words)
