"""Convert words of the command line to values of settings, and back. Values in YAML and JSON files are read as text and
converted by the same functions, so a text means the same in a file and after a flag."""

import shlex
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from control.cli.errors import MOST
from control.cli.options import FLAG_ONLY, Flag, chosen_flags, flags_of_all, unknown
from control.cli.settings import Settings, as_dict, end_of
from models.settings import SettingError, allowed, closest, format_value, parse_value, value_error

Pair = tuple[str, list[str]]
"""The name of a setting and the words given for it, none for a bare flag."""

NULL = ("null", "none", "~", "")
_MORE = {"resume": "; it goes on with the newest run of the same settings, and --reload takes a checkpoint's weights"}
WORDS = ("untrained", "real")  # values of --film for agents that are not in a file


def split(argv: Sequence[str]) -> list[Pair]:
    """Split ``--a=1 --b --c 2 3`` into ``[("a", ["1"]), ("b", []), ("c", ["2", "3"])]``.

    ``-h`` becomes ``--help``, and hyphens in names become underscores. Raises SettingError for words before the first
    flag, a setting with one dash, and bytes that are not UTF-8.
    """
    pairs: list[Pair] = []
    for word in argv:
        if word == "-h":
            word = "--help"
        if word.startswith("-") and word[1:2].isalpha():  # not a negative number
            name, flag_names = word[1:].partition("=")[0], [*flags_of_all(""), *FLAG_ONLY]
            suggestion = closest(name, flag_names) if not pairs and name not in flag_names else name
            if suggestion in flag_names:
                raise SettingError(f"{word!r} is not a flag; did you mean '--{suggestion}'?")
        if word.startswith("--") and word[2:3] not in ("", "="):
            name, equals, value = word[2:].partition("=")
            pairs.append((name.replace("-", "_"), [value] if equals else []))
        elif pairs:
            pairs[-1][1].append(word)
        else:
            raise SettingError(f"{word!r} is not a flag; flags start with --")
    return readable(pairs)


def readable(pairs: list[Pair], where: str = "") -> list[Pair]:
    """Return ``pairs`` unchanged if they are UTF-8 without NUL, else raise SettingError. Its message begins with
    ``where``, the source of the pairs. Python represents other bytes as surrogates, which cannot be written to
    files."""
    for name, words in pairs:
        for word in (name, *words):
            if any("\ud800" <= character <= "\udfff" or character == "\0" for character in word):
                raise SettingError(f"{where}{name} is {word!a}; allowed: text in UTF-8 without NUL")
    return pairs


def one_word(name: str, words: Sequence[str]) -> str:
    """Return the only word in ``words``. Raises SettingError for none or several."""
    if not words:
        raise SettingError(f"--{name} needs a value")
    if len(words) > 1:
        raise SettingError(f"{name} is {format_value(' '.join(words))}; allowed: one value", name)
    return words[0]


def words_by_setting(
    pairs: Iterable[Pair],
    valid_flags: Mapping[str, Flag],
    implementation: str,
    prefix: str,
    game: str,
    wrong: list[SettingError],
) -> dict[str, list[str]]:
    """Return setting -> words; the last pair of a name wins. ``no_x`` is the negation of a switch ``x``.

    Appends an error to ``wrong`` for every unknown name or negation of a text that is no boolean. The errors may
    mention ``game``, and put ``prefix`` before the name: ``--``, or the name of the file.
    """
    setting_words: dict[str, list[str]] = {}
    for name, words in pairs:
        positive = name.removeprefix("no_")
        if name in valid_flags:
            setting_words[name] = words
        elif positive in valid_flags and valid_flags[positive].kind.item is bool:
            try:
                setting_words[positive] = [word(not parse_value(bool, " ".join(words) or "true"))]
            except ValueError:
                wrong.append(value_error(name, " ".join(words), valid_flags[positive].kind, {}))
        elif len(wrong) < MOST:
            wrong.append(unknown(name, valid_flags, implementation, prefix, game))
        else:
            wrong.append(SettingError(f"{prefix}{name} is unknown"))  # counted but not shown
    return setting_words


def read_value(flag: Flag, words: Sequence[str]) -> Any:
    """Convert the ``words`` after a flag to its type, without checking the range. Raises SettingError."""
    kind = flag.kind
    if not words and kind.item is bool:
        return True
    if not words:
        raise SettingError(f"--{flag.name} needs a value; allowed: {allowed(kind, flag.meta)}")
    if kind.optional and len(words) == 1 and words[0].lower() in NULL:
        return None
    items = words if kind.is_list else [one_word(flag.name, words)]
    if kind.is_list and (kind.item is not str or "choices" in flag.meta):  # other texts may contain commas
        inside = ",".join(words).strip("[]() ").removesuffix(",")
        items = inside.split(",") if inside else []
    try:
        values = tuple(parse_value(kind.item, item) for item in items)
    except ValueError:
        error = value_error(flag.name, " ".join(words), kind, flag.meta)
        raise SettingError(f"{error}{_MORE.get(flag.name, '')}", flag.name) from None
    return values if kind.is_list else values[0]


def unboxed(value: Any) -> Any:
    """Convert a scalar of an array library to a Python number. Return other values unchanged."""
    return value.item() if getattr(value, "shape", None) == () else value


def word(value: Any, separator: str = " ") -> str:
    """Return ``value`` as the text to write after a flag. Items of a list are joined by ``separator``."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return separator.join(map(word, value))
    return format_value(value) if isinstance(value, int) else str(value)  # str() refuses very long integers


def command_line(settings: Settings, without: Container[str] = ()) -> str:
    """Return the shell command for these settings. It has the settings that differ from their defaults, except
    ``without``."""
    values = as_dict(settings)
    values |= {f"command.{name}": value for name, value in values.pop("command").items()}
    run = settings.run
    valid_flags = chosen_flags(run.implementation, run.gamename, values)
    arguments, end = ["python trainer.py"], end_of(run.implementation)
    for name, value in values.items():
        if name == end and value is None:
            continue  # which `total_steps` says by itself
        flag = valid_flags[name]
        if name not in without and (flag.meta["identity"] or word(value) != word(flag.default)):
            arguments += [f"--{name}", *map(shlex.quote, map(word, value if isinstance(value, list) else [value]))]
    return " ".join(arguments)
