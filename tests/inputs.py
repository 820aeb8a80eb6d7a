"""Hypothesis strategies of valid, invalid and damaged command lines and settings files, and hostile files."""

import functools
import io
import json
import math
import os
import random
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from hypothesis import strategies as st

from control.cli.options import flags
from control.cli.parse import parse
from control.cli.settings import as_dict
from control.cli.words import Flag
from envs.names import GAMES
from models.registry import implementations
from models.settings import SMALLEST, FieldType, bounds

Draw = Callable[[st.SearchStrategy[Any]], Any]
choose = st.sampled_from

ODD = ["", " ", "-", "--", "---", "=", "null", "~", "true", "no", "[]", "{}", "1,2", "1 2", "a\nb", "\x1b[31mred",
       "a\x00b", "%s%n", "{0}", "$HOME", "'", "\\", "*", "..", "/", "&a", "!!python/object/apply:os.system", "0x10",
       "1e3", "1_000", "+5", "-0", "1e400", "nan", "-inf", "é", "日本語", "🦜", "\u202egnp", "\ufeff", "½",
       "\udcff"]  # fmt: skip
HUGE = [2**31, 2**63 - 1, 2**64, 10**24, "9" * 5000, -(2**63), "1e308", "-1e308", "5e-324", "1e39", "-0.0"]
ANYTHING = st.recursive(
    choose([*ODD, *HUGE, None, True, 0, -1, 1.5, math.nan]),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(choose(ODD), part, max_size=2),
)
"""Any value that a file can hold."""


class Content(bytes):
    """Bytes with a short representation for reports."""

    def __repr__(self) -> str:
        return f"{len(self)} bytes, {self[:300]!r}"


# -- values ------------------------------------------------------------------------------------------------------------


def values_of(kind: FieldType, meta: Any) -> st.SearchStrategy[Any]:
    """Values that a field accepts."""
    if meta.get("choices"):
        item: st.SearchStrategy[Any] = choose(meta["choices"])
    elif kind.item is bool:
        item = st.booleans()
    elif kind.item is str:
        item = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")))
        item = item.filter(lambda text: text.strip() not in ("", ".", "..") and len(text.encode()) <= 100)
    else:
        limits = bounds(kind, meta)
        low, high = limits.get("minimum", limits.get("above")), limits.get("maximum", limits.get("below"))
        if kind.item is int:
            item = st.integers(low, high)
        else:
            item = st.floats(low, high, exclude_min="above" in limits, exclude_max="below" in limits)
            item = item.filter(lambda number: number == 0 or abs(number) >= SMALLEST)
    if kind.is_list:
        item = st.lists(item, min_size=1, max_size=3).map(tuple)
    return st.none() | item if kind.optional else item


@st.composite
def misspelt(draw: Draw, word: str) -> str:
    at, letter = draw(st.integers(0, max(0, len(word) - 1))), draw(choose("abcxyz_-0 ü"))
    return draw(choose([word[:at] + word[at + 1 :], word[:at] + letter + word[at:], word.upper(), word[: at + 1]]))


@st.composite
def damaged(draw: Draw, data: bytes) -> bytes:
    """Bytes with damaged bits, blocks or length."""
    place = st.integers(0, max(0, len(data) - 1))
    at, length = draw(place), draw(choose([1, 4, 64, 512, max(1, len(data) // 8)]))
    noise, end = random.Random(draw(st.integers(0, 999))).randbytes(length), at + length
    flipped = bytearray(data or b"\x00")
    flipped[at] ^= 1 << draw(st.integers(0, 7))
    zeros = data[:at] + bytes(len(data[at:end])) + data[end:]
    return Content(draw(choose([flipped, data[:at], zeros, data[:at] + noise + data[end:], data[:at] + data[end:],
                                data + noise])))  # fmt: skip


# -- command lines -----------------------------------------------------------------------------------------------------

PATH_FLAGS = ("logdir", "reload", "eval_agent", "search_space", "plot", "plot_out", "film", "film_out", "report",
              "report_out", "config")  # fmt: skip
_NO_FLAGS = [*ODD, "--seed", "--help", "-seed", "--config", "--lr=", "--no_", "--no_seed", "--command.", "--version=3",
             "--a=b=c", "--" + "x" * 5000]  # fmt: skip
_GAMES = sorted({*GAMES} - {"takecover", "halfcheetah", "hopper", "swimmer", "carracing"})
SOUND_GAMES = choose([*_GAMES, "procmaze,grid_size=3", "CartPole-v1", "LunarLander-v3", "Taxi-v3"])
ODD_GAMES = choose(_GAMES).flatmap(misspelt) | choose([
    "procmaze,grid_size=-1", "procmaze,grid_size=x", "procmaze,grid_size=5,grid_size=6", "cartpole,x=1", "cartpole,",
    ",cartpole", ":", "nomodule:CartPole-v1", "os:CartPole-v1", "CartPole-v99999", "ALE/Pong-v5", "a" * 300, *ODD,
])  # fmt: skip


def paths(shelf: Path) -> st.SearchStrategy[str]:
    """Paths of many kinds; the writable ones are below the folder of the call."""
    inside = [str(path) for path in sorted(shelf.rglob("*"))]
    return choose([
        *inside, str(shelf), "missing", "missing/deep/er", "a" * 300, "b/" * 2500, "/dev/null", "/dev/zero",
        "/proc/self/mem", "/dev/null/x", "~nobody", "x.ckpt", "x.yaml", "x.png", "cartpole-bandit", "cartpole-mpd",
        *ODD,
    ])  # fmt: skip


def right_words(flag: Flag, shelf: Path) -> st.SearchStrategy[list[str]]:
    """Words after a flag: a valid, small value."""
    if flag.name in PATH_FLAGS:
        return paths(shelf).map(lambda path: [path])
    if flag.name == "gamename":
        return SOUND_GAMES.map(lambda name: [name])
    if flag.type.item is bool:
        return choose([[], ["true"], ["false"]])
    limits = bounds(flag.type, flag.meta)
    least = max(0, limits.get("minimum", limits.get("above", 0)))
    small_meta = {**flag.meta, "minimum": least} if "above" not in limits else dict(flag.meta)
    if "below" not in limits:
        small_meta["maximum"] = max(least, min(20, limits.get("maximum", 20)))
    meta = flag.meta if flag.type.item is str or flag.meta.get("choices") else small_meta
    return values_of(flag.type, meta).map(lambda value: [_flag_text(value)])


def _flag_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_flag_text, value))
    return "null" if value is None else str(value)


def wrong_words(flag: Flag, shelf: Path) -> st.SearchStrategy[list[str]]:
    """Words after a flag: none, too many, out of range, or absurd."""
    edges = [flag.meta[edge] for edge in ("above", "minimum", "below", "maximum") if flag.meta.get(edge) is not None]
    near_edges = [
        number for edge in edges or [0] for number in (edge, edge - 1, edge + 1, math.nextafter(edge, math.inf))
    ]
    single = choose([*ODD, *HUGE, *near_edges, ",".join(["8"] * 2000)]).map(lambda value: [str(value)])
    return single | paths(shelf).map(lambda path: [path]) | st.lists(choose(ODD), max_size=2)


@functools.cache
def _flags(implementation: str) -> Mapping[str, Flag]:
    names = [implementation] if implementation else implementations()
    return {name: flag for other in names for name, flag in flags(other).items()}


@st.composite
def lines(draw: Draw, shelf: Path) -> tuple[list[str], list[str]]:
    """A command line and the names of its settings."""
    if draw(st.integers(0, 15)) == 0:
        return draw(st.lists(choose(_NO_FLAGS), min_size=1, max_size=6)), []
    implementation = draw(choose([*implementations()]))
    parts: list[tuple[str, list[str]]] = [("implementation", [implementation])]
    command = draw(choose([""] * 6 + ["eval_agent", "plot", "report", "use_tune", "config", "help", "version"]))
    if command in ("eval_agent", "plot", "report", "config"):
        parts = [(command, [draw(paths(shelf))])]
    elif command:
        parts.append((command, []))
    if draw(st.booleans()):
        parts.append(("gamename", [draw(SOUND_GAMES | ODD_GAMES)]))
    all_flags = _flags(draw(choose([implementation] * 9 + [""])))
    for _ in range(draw(choose([0, 1, 1, 2, 3, 5]))):
        flag = all_flags[draw(choose([*all_flags]))]
        parts.append((flag.name, draw(right_words(flag, shelf) | right_words(flag, shelf) | wrong_words(flag, shelf))))
    if draw(st.integers(0, 15)) == 0:
        parts.append((draw(choose([*all_flags]).flatmap(misspelt)), ["1"]))
    argv: list[str] = []
    for name, words in draw(st.permutations(parts)):
        with_sign = words and draw(st.integers(0, 4)) == 0
        argv += [f"--{name}={words[0]}", *words[1:]] if with_sign else [f"--{name}", *words]
    return argv, [name for name, _ in parts]


# -- settings files ----------------------------------------------------------------------------------------------------

_YAML_LINES = [
    "lr: &x 0.1", "<<: {lr: 0.1}", "? [a, b]\n: 1", "null: 2", "- 1", "---", "\tlr: 1", "lr: 'x", "seed: !!binary ////",
    "lr: !!python/object/apply:os.system ['touch EXECUTED']", "seed: .NaN", "seed: &a [*a]", "lr: 1: 2", "\x07: 1",
    "command: {return: 1, return: 2}", "seed: " + "[" * 3000 + "]" * 3000,
    "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30)),
]  # fmt: skip


@st.composite
def edited(draw: Draw, content: dict[str, Any]) -> dict[str, Any]:
    """Settings of which one is removed, renamed or replaced."""
    name = draw(choose([*content]))
    value, others = content[name], {key: part for key, part in content.items() if key != name}
    way = draw(choose(["wrong", "wrong", "removed", "renamed"]))
    if way == "wrong":
        others[name] = draw(ANYTHING | misspelt(value) if isinstance(value, str) else ANYTHING)
    if way == "renamed":
        others[draw(misspelt(name))] = value
    return others


@functools.cache
def _sound_settings(implementation: str) -> dict[str, Any]:
    return as_dict(parse(["--implementation", implementation]))


@st.composite
def settings_files(draw: Draw) -> tuple[str, bytes, list[str], list[str]]:
    """Name and content of a file of settings, the command line that reads it, and names of which an error must mention
    one."""
    name = draw(choose(["settings.yaml", "settings.json", "settings"]))
    content = dict(_sound_settings(draw(choose([*implementations()]))))
    names = [*content]
    for _ in range(draw(choose([0, 1, 1, 2]))):
        content = draw(edited(content))
    text = json.dumps(content) if name.endswith("json") else yaml.safe_dump(content, sort_keys=False)
    if not name.endswith("json"):
        text += draw(choose([""] * 9 + _YAML_LINES)) + "\n"
    data = text.encode("utf-8", "surrogatepass")
    data = draw(st.just(data) | st.just(data) | damaged(data) | choose([b"", b"\xef\xbb\xbf" + data, b"\x00" * 20]))
    return name, Content(data), ["--config", name], [name, *names, "config", "module"]


# -- hostile files -----------------------------------------------------------------------------------------------------


def archive(contents: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """An archive with valid checksums."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive_file:
        for name, content in contents.items():
            archive_file.writestr(name, content)
    return file.getvalue()


def saved(contents: Any, **kwargs: Any) -> bytes:
    file = io.BytesIO()
    torch.save(contents, file, **kwargs)
    return file.getvalue()


class Harm:
    """Touches ``path`` if something unpickles it."""

    def __init__(self, path: Path | str):
        self.path = path

    def __reduce__(self) -> tuple:
        return os.system, (f"touch {self.path}",)


def nested(levels: int, kind: Callable[[list[Any]], Any] = list) -> Any:
    """A structure with shared parts and 2 ** levels leaves."""
    part: Any = "x"
    for _ in range(levels):
        part = kind([part, part])
    return part
