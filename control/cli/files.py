"""Read files from users: regular files of limited size, and settings in YAML or JSON.

A file of settings is a small mapping of names to text. Any other content raises an error with a message of one line.
"""

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from typing import Any

import yaml

from control.cli.options import missing_hint
from control.cli.originals import is_original, translate_original
from control.cli.words import check_text, pairs_of
from models.settings import SettingError, raise_all

MAX_BYTES = 100_000  # maximum size of a file of settings; a run's config.yaml has about 2,000 bytes


def check_regular(path: str | os.PathLike[str], max_bytes: int) -> None:
    """Raise OSError with a ``strerror`` for a missing file, a pipe, a device or a file of more than ``max_bytes``,
    without opening it, because opening a pipe may block. A folder passes, because ``open`` has a clear error for it."""
    status = os.stat(path)  # raises the error for a missing file
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    if status.st_size > max_bytes:
        raise OSError(errno.EINVAL, f"too large; allowed: at most {max_bytes // 1000:,} kB", str(path))


def read_text(path: str | os.PathLike[str], max_bytes: int, encoding: str = "utf-8") -> str:
    """Return the text of a regular file. Raises OSError as `check_regular` does, and UnicodeDecodeError."""
    check_regular(path, max_bytes)
    with open(path, "rb") as file:
        return file.read(max_bytes).decode(encoding)


def read_json(path: str | os.PathLike[str], max_bytes: int = 10**7) -> Any:
    """Return the content of a JSON file. Raises OSError as `read_text` does, and ValueError for any other text."""
    try:
        return json.loads(read_text(path, max_bytes))
    except RecursionError as error:
        raise ValueError("nested too deep") from error


@contextlib.contextmanager
def error_prefix(path: str) -> Iterator[None]:
    """Context manager that puts ``path: `` before the message of each SettingError that is raised in its block."""
    try:
        yield
    except SettingError as error:
        raise_all([SettingError(f"{path}: {part}") for part in error.errors])
    except RecursionError as error:
        raise SettingError(f"{path}: nested too deep") from error


def read_config(path: str) -> dict[str, list[str]]:
    """Read the settings in a YAML or JSON file. Return setting -> words, such as ``{"lr": ["1e-3"], "hidden_sizes":
    ["64", "64"]}``. ``command: {return: 250}`` becomes the setting ``command.return``. Files of the original scripts
    are translated (`control.cli.originals`). Raises SettingError if the file is no mapping of settings to values."""
    content = read_mapping("config", path, "name: value", allow_empty=True)
    with error_prefix(path):
        if is_original(content):
            content = translate_original(content)
        pairs = list(pairs_of(content))
    check_text(pairs, f"{path}: ")
    return dict(pairs)


def read_mapping(setting: str, path: str, example: str, allow_empty: bool = False) -> dict[str, Any]:
    """Read a mapping from a YAML file or a ``.json`` file, with numbers as text. If ``allow_empty``, an empty file is
    an empty mapping. Raises SettingError for other content. The message names the ``setting`` whose value is ``path``,
    and shows ``example``, a correct line such as ``name: value``."""
    try:
        text = read_text(path, MAX_BYTES, "utf-8-sig")  # this encoding skips a byte order mark
        with error_prefix(path):
            if path.lower().endswith(".json"):
                content = json.loads(
                    text, object_pairs_hook=_unique_names, parse_int=str, parse_float=str, parse_constant=str
                )
            else:
                content = yaml.load(text, _TextLoader)
        if content is None and allow_empty:  # YAML without content is None
            return {}
        if isinstance(content, dict):
            return content
        problem = f"allowed: a mapping, one '{example}' a line"
    except FileNotFoundError:
        problem = missing_hint(setting, path)
    except (OSError, UnicodeDecodeError) as error:
        problem = getattr(error, "strerror", None) or "not a text file"
    except json.JSONDecodeError as error:
        problem = f"not valid JSON, line {error.lineno}: {error.msg}"
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)  # position of the error, if PyYAML knows it
        place = f", line {mark.line + 1}" if mark else ""
        problem = f"not valid YAML{place}: {getattr(error, 'problem', None) or 'unreadable'}"
    raise SettingError(f"{setting} is {path!r}: {problem}")


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return ``dict(pairs)`` for pairs of a name and a value. Raises SettingError for a repeated name."""
    mapping: dict[str, Any] = {}
    for name, value in pairs:
        if name in mapping:
            raise SettingError(f"{name} is given twice")
        mapping[name] = value
    return mapping


class _TextLoader(yaml.BaseLoader):
    """Loader of YAML that returns all values as text. It raises SettingError for aliases and repeated names."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node, except an alias, which could make a small file large."""
        if self.check_event(yaml.AliasEvent):
            raise SettingError(f"*{self.peek_event().anchor} is an alias; write the value itself")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Construct the mapping of a node, unless a name is repeated."""
        node_values = super().construct_mapping(node, deep)
        if len(node_values) < len(node.value):  # a later entry has replaced an earlier one of the same name
            _unique_names([(key.value, None) for key, _ in node.value])  # raises the error about the repeated name
        return node_values
