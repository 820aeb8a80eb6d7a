"""Read files from users: regular files of limited size, and settings in YAML or JSON, which are small mappings of names
to text. Any other content raises an error of one line."""

import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from control.cli.errors import absent
from control.cli.originals import from_original, is_original
from control.cli.settings import RETURN_COMMANDS
from control.cli.words import NULL, Pair, readable, word
from models.settings import SettingError, format_value

LARGEST = 100_000  # bytes of a file of settings; a run's config.yaml has about 2,000
DEEPEST = 5  # levels of nesting; name: {choice: [[64, 64], ...]} of a search space has four


def check_regular(path: str | os.PathLike[str], max_bytes: int) -> None:
    """Raise OSError with a ``strerror`` for a missing file, a pipe, a device or a file of more than ``max_bytes``
    bytes. Folders pass. Opens nothing, because opening a pipe may block."""
    about = os.stat(path)
    if not stat.S_ISREG(about.st_mode) and not stat.S_ISDIR(about.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if about.st_size > max_bytes:
        raise OSError(errno.EINVAL, f"too large; allowed: at most {max_bytes // 1000:,} kB", str(path))


def read_text(path: str | os.PathLike[str], max_bytes: int, encoding: str = "utf-8") -> str:
    """Return the text of a regular file of at most ``max_bytes`` bytes. Raises OSError as `check_regular` does, and
    UnicodeDecodeError."""
    check_regular(path, max_bytes)
    with open(path, "rb") as file:
        return file.read(max_bytes).decode(encoding)


def read_json(path: str | os.PathLike[str], max_bytes: int = 10**7) -> Any:
    """Return the content of a JSON file. Raises OSError as `read_text` does, and ValueError for text that is not
    JSON."""
    try:
        return json.loads(read_text(path, max_bytes))
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def read_config(path: str) -> list[Pair]:
    """Read the settings in a YAML or JSON file as pairs. ``command: {return: 250}`` becomes ``command.return``. Files
    of the original scripts are translated (`control.cli.originals`). Raises SettingError."""
    content = read_mapping("config", path, "name: value", empty=True)
    try:
        content = from_original(content) if is_original(content) else content
    except SettingError as error:
        raise SettingError(f"{path}: {error}") from error
    return readable(list(_flatten(content, path)), f"{path}: ")


def read_mapping(setting: str, path: str, line: str, empty: bool = False) -> dict[str, Any]:
    """Read a mapping from a YAML file or a ``.json`` file. Numbers are not parsed but returned as text. If ``empty``,
    the file may be empty.

    Raises SettingError for any other content. Its message names ``setting``, the flag with the path, and shows ``line``
    as an example of a correct line.
    """

    def mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        unique_names: set[str] = set()
        for name, _ in pairs:
            if name in unique_names:
                raise SettingError(f"{path}: {name} is given twice")
            unique_names.add(name)
        return dict(pairs)

    class Loader(yaml.BaseLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise SettingError(f"{path}: *{self.peek_event().anchor} is an alias; write the value itself")
            return super().compose_node(parent, index)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            node_values = super().construct_mapping(node, deep)
            return (
                node_values
                if len(node_values) == len(node.value)
                else mapping([(key.value, None) for key, _ in node.value])
            )

    try:
        text = read_text(path, LARGEST, "utf-8-sig")
        content: Any
        if path.lower().endswith(".json"):
            content = json.loads(text, object_pairs_hook=mapping, parse_int=str, parse_float=str, parse_constant=str)
        else:
            content = yaml.load(text, Loader)
        if _depth(content) > DEEPEST:
            raise RecursionError
    except RecursionError:
        problem = f"nested more than {DEEPEST} deep"
    except FileNotFoundError:
        problem = absent(path)
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "not a text file"
    except json.JSONDecodeError as error:
        problem = f"not valid JSON, line {error.lineno}: {error.msg}"
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where, reason = f", line {mark.line + 1}" if mark else "", getattr(error, "problem", None) or "unreadable"
        problem = f"not valid YAML{where}: {reason}"
    else:
        if isinstance(content, dict) or (empty and content is None):
            return content or {}
        problem = f"allowed: a mapping, one '{line}' a line"
    raise SettingError(f"{setting} is {path!r}: {problem}")


def _depth(content: Any) -> int:
    """Return how deep mappings and lists are nested; 0 for a plain value."""
    inner = content.values() if isinstance(content, dict) else content
    return 1 + max(map(_depth, inner), default=0) if isinstance(content, dict | list) else 0


def _flatten(mapping: Mapping[str, Any], path: str) -> Iterator[Pair]:
    for name, value in mapping.items():
        if name == "command" and isinstance(value, dict):
            yield from _flatten({f"command.{key}": item for key, item in value.items()}, path)
        elif name == "command" and value not in (None, *NULL):
            raise SettingError(
                f"{path}: command is {format_value(word(value))}; allowed: a mapping of {', '.join(RETURN_COMMANDS)}"
            )
        elif isinstance(value, dict):
            raise SettingError(f"{path}: {name} is a mapping; settings are flat, one 'name: value' a line")
        elif name != "command":
            yield name, [word(item) for item in value] or ["[]"] if isinstance(value, list) else [word(value)]
