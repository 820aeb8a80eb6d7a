"""Convert words of the command line to values of settings, and back. Values in YAML and JSON files and keywords in
Python are converted by the same functions. So a text has the same meaning everywhere."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from control.cli.errors import MAX_LINES
from control.cli.run_settings import RETURN_COMMAND_TYPE, RETURN_COMMANDS, Command
from models.settings import (
    FieldType,
    SettingError,
    allowed,
    check_value,
    field_types,
    format_value,
    parse_value,
    value_error,
)

Pair = tuple[str, list[Any]]
"""The name of a setting and its words, which are empty for a bare flag. From Python or from a JSON file, there may be
numbers, bools and None among the words."""
Words = Mapping[str, list[Any]]
"""Setting -> its words on the command line or in a file, such as ``{"lr": ["1e-3"]}``."""

NULL = ("null", "none", "~", "")
_PROXIES = "a proxy of understudy/pretrained, such as cartpole-bandit"
# Setting -> the values that it takes, for messages.
EXPECTED = dict.fromkeys(("plot", "report"), "folders of runs, such as exp_dir/cartpole/debug")
EXPECTED |= {
    "config": "a file of settings, such as settings.yaml",
    "eval_agent": f"the folder of a run, a checkpoint, or {_PROXIES}",
    "film": f"folders of runs, checkpoints, or {_PROXIES}",
    "gamename": "an environment, such as cartpole or CartPole-v1",
    "implementation": "an algorithm, such as PPO",
    "learn": "an environment, such as CartPole-v1",
}
# Setting -> end of the message for a value of the wrong type.
_HINTS = {"resume": "; it goes on with the newest run of the same settings, and --reload takes a checkpoint's weights"}
FILM_WORDS = ("untrained", "real")  # values of --film for agents that are not in a file


@dataclass(frozen=True)
class Flag:
    """A setting on the command line.

    ``meta`` has its help text, bounds and properties (`models.settings.PROPERTIES`), and ``section`` is its heading in
    the help. ``owner`` is the dataclass that has the setting as a field, such as `RunConfig`. It is None for a goal of
    the agent, such as ``command.return``, and for a setting that agents of several algorithms share.
    """

    name: str
    type: FieldType
    meta: Mapping[str, Any]
    default: Any
    section: str
    owner: Any = None

    @property
    def command(self) -> str:
        """The command that this setting belongs to, such as ``plot`` for ``plot_out``; "" for training."""
        return self.owner.flag if self.owner is not None and issubclass(self.owner, Command) else ""

    @property
    def comma_separates(self) -> bool:
        """Whether a comma separates items of a list. In a list of other texts, such as paths, it is part of an item."""
        return self.type.item is not str or bool(self.meta["choices"])


Flags = Mapping[str, Flag]
"""Flags by name."""


def check_text(pairs: Sequence[Pair], source: str = "") -> None:
    """Raise SettingError unless names and words in ``pairs`` are UTF-8 without NUL. ``source`` begins its message."""
    for name, words in pairs:
        for word in (name, *words):
            text = word if isinstance(word, str) else as_word(word)
            # Python represents bytes that are not UTF-8 as surrogates, which cannot be written to files.
            if re.search("[\0\ud800-\udfff]", text):
                raise SettingError(f"{source}{name} is {word!a}; allowed: text in UTF-8 without NUL")


def pairs_of(values: Mapping[str, Any]) -> Iterator[Pair]:
    """Convert the content of a file, or keywords, to pairs like flags: ``{"lr": 0.1, "command": {"return": 250}}``
    becomes ``("lr", [0.1])`` and ``("command.return", [250])``. Raises SettingError for other mappings."""
    for name, value in values.items():
        if name == "command" and isinstance(value, Mapping):
            yield from pairs_of({f"command.{key}": item for key, item in value.items()})
        elif name == "command":  # it is not a mapping, so it must be null, which yields no pair
            if value not in (None, *NULL):
                problem = f"command is {format_value(value)}"
                raise SettingError(f"{problem}; allowed: a mapping of {', '.join(RETURN_COMMANDS)}")
        elif isinstance(value, Mapping):
            raise SettingError(f"{name} is a mapping; settings are flat, one 'name: value' a line")
        elif isinstance(value, list | tuple):
            yield name, list(value) or ["[]"]  # no words would mean a bare flag, so an empty list gets a word
        else:
            yield name, [value]


def flags_of(config: Any, section: str = "") -> dict[str, Flag]:
    """Return name -> `Flag` for each field of a config, a dataclass, with the field's value as default. The section of
    a flag joins ``section`` and the field's section: ``hyperparameters of PPO: network``. Empty for None."""
    if config is None:
        return {}
    types = field_types(type(config))
    config_flags: dict[str, Flag] = {}
    for field in fields(config):
        name, default = field.name, getattr(config, field.name)
        sections = (section, field.metadata.get("section"))
        heading = ": ".join(text for text in sections if text)
        config_flags[name] = Flag(name, types[name], field.metadata, default, heading, type(config))
    return config_flags


def command_flags() -> dict[str, Flag]:
    """Return name -> `Flag` for the goals of agents that follow commands, such as ``command.return``."""
    metadata = {f"command.{goal}": field.metadata for goal, field in RETURN_COMMANDS.items()}
    return {name: Flag(name, RETURN_COMMAND_TYPE, meta, None, "evaluation") for name, meta in metadata.items()}


def read_values(
    words: Words, valid_flags: Flags, unknown_error: Callable[[str], SettingError]
) -> tuple[dict[str, Any], list[SettingError]]:
    """Convert the ``words`` of settings, such as ``{"lr": ["0.01"], "no_record": []}``, to values, such as ``{"lr":
    0.01, "record": False}``. Return the values, and a list of errors: one for each wrong value, and
    ``unknown_error(name)`` for each name that is not in ``valid_flags``."""
    values: dict[str, Any] = {}
    errors: list[SettingError] = []
    for name, value_words in words.items():
        switch = valid_flags.get(name.removeprefix("no_"))
        try:
            if name in valid_flags:
                values[name] = read_value(valid_flags[name], value_words)
            elif switch is not None and switch.type.item is bool:
                negation = replace(switch, name=name)  # errors name ``no_x``
                values[switch.name] = not read_value(negation, value_words)
            elif len(errors) >= MAX_LINES:  # the error is only counted, so a slow search for similar names is useless
                errors.append(SettingError(f"{name} is unknown"))
            else:
                errors.append(unknown_error(name))
        except SettingError as error:
            errors.append(error)
    return values, errors


def one_word(name: str, words: Sequence[Any], allowed_values: str = "one value") -> str:
    """Return the only word of the setting ``name`` as text. Raises SettingError if ``words`` have no word, or more than
    one. For no word, the message states ``allowed_values``."""
    if len(words) == 1:
        return as_word(words[0])
    if words:
        raise SettingError(f"{name} is {format_value(as_word(words))}; allowed: one value", name)
    raise SettingError(f"--{name} needs a value; allowed: {EXPECTED.get(name, allowed_values)}", name)


def read_value(flag: Flag, words: Sequence[Any]) -> Any:
    """Convert the ``words`` after a flag to a value of its type: ``["0.01"]`` to 0.01. No word after a switch means
    True. ``null`` and the other words in `NULL` mean None, if the type allows it. A list, written ``64,64``, ``64 64``
    or ``[64, 64]``, becomes a tuple. Raises SettingError for a wrong type, or for a value out of range."""
    field_type = flag.type
    if not words and field_type.item is bool:
        return True
    if not words or (len(words) > 1 and not field_type.is_list):
        one_word(flag.name, words, allowed(field_type, flag.meta))  # raises, because there is not exactly one word
    items = [as_word(word) for word in words]
    user_value: Any = " ".join(items)  # the value in messages: as the user wrote it
    if not any(isinstance(word, str) for word in words):  # numbers in Python
        user_value = words[0] if len(words) == 1 else tuple(words)
    if field_type.optional and items[0].lower() in NULL and len(items) == 1:
        return None
    # The word "null" stands for no value. This setting needs a value, so the word must not become the text "null".
    if items == ["null"] and field_type.item is str and not field_type.is_list:
        raise value_error(flag.name, user_value, field_type, flag.meta)
    if field_type.is_list and flag.comma_separates:
        text = ",".join(items).strip("[]() ").removesuffix(",")  # "64,64" for each way to write the list
        items = text.split(",") if text else []
    try:
        values = tuple(parse_value(field_type.item, item) for item in items)
    except ValueError:
        error = value_error(flag.name, user_value, field_type, flag.meta)
        raise SettingError(f"{error}{_HINTS.get(flag.name, '')}", flag.name) from None
    value = values if field_type.is_list else values[0]
    check_value(flag.name, value, field_type, flag.meta)
    return value


def as_word(value: Any, separator: str = " ") -> str:
    """Return ``value`` as text for the command line. Items of a list are joined by ``separator``."""
    if getattr(value, "shape", None) == ():  # a number of an array library
        value = value.item()
    if isinstance(value, list | tuple):
        return separator.join(map(as_word, value))
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return format_value(value)  # not str(), which refuses very long integers
    return str(value)
