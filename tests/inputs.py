"""Hypothesis strategies of valid, invalid and damaged inputs: command lines, settings files, checkpoints, and
synthetic environments."""

import copy
import functools
import io
import json
import math
import os
import pickle
import random
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml
from hypothesis import assume
from hypothesis import strategies as st
from safetensors import torch as safetensors_torch
from torch import Tensor

from conftest import ROOT
from control.cli.options import Flag, flags, flags_of_all
from control.cli.parse import as_dict, parse
from envs.names import GAMES
from helpers import SMALL_POLICY_RUN, SMALL_RUN, SMALL_SEARCH, SMALL_STEP_RUN, on_policy
from models.registry import family, implementations
from models.settings import Kind, bounds, kinds

Draw = Callable[[st.SearchStrategy[Any]], Any]
choose = st.sampled_from

UNICODE = ["é", "日本語", "🦜", "\u202egnp", "a\u0301", "\ufeff", "٣", "½", "\u200b", "\udcff"]
ODD = ["", " ", "-", "--", "---", "=", "--=", "null", "~", "true", "no", "[]", "{}", "[[1]]", "1,2", "1 2", "a\nb",
       "\x1b[31mred\x1b[0m", "a\x00b", "%s%n", "{0}", "$HOME", "'", '"', "\\", "*", "..", "/", "&a",
       "!!python/object/apply:os.system", "0x10", "1e3", "1_000", "+5", "-0", "5.0", "1e400", "nan", "-inf",
       *UNICODE]  # fmt: skip
HUGE = [2**31, 2**53, 2**63 - 1, 2**64, 10**24, "9" * 400, "9" * 5000, -(2**63), 10**6, "1e308", "-1e308", "5e-324",
        "0." + "1" * 400, "1e39", "-0.0"]  # fmt: skip
PAYLOAD = 'open("EXECUTED", "w").close()\n'
"""A module that leaves a file if it is imported."""


class Content(bytes):
    """Bytes with a short representation for reports."""

    def __repr__(self) -> str:
        return f"{len(self)} bytes, {self[:300]!r}"


# -- values ------------------------------------------------------------------------------------------------------------


def values_of(kind: Kind, meta: Any) -> st.SearchStrategy[Any]:
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
        low, high = (
            limits.get(*names) for names in (("minimum", limits.get("above")), ("maximum", limits.get("below")))
        )
        if kind.item is int:
            item = st.integers(low, high)
        else:
            item = st.floats(low, high, exclude_min="above" in limits, exclude_max="below" in limits)
    if kind.is_list:
        item = st.lists(item, min_size=1, max_size=3).map(tuple)
    return st.none() | item if kind.optional else item


_PLAIN = choose([*ODD, *HUGE, None, True, False, 0, -1, 1.5, [], {}, math.nan]).map(copy.copy)
ANYTHING = _PLAIN | st.recursive(
    _PLAIN, lambda part: st.lists(part, max_size=3) | st.dictionaries(choose(ODD), part, max_size=2)
)
"""Any value that a file can hold."""


@st.composite
def misspelt(draw: Draw, word: str) -> str:
    at, letter = draw(st.integers(0, max(0, len(word) - 1))), draw(choose("abcxyz_-0 ü"))
    other_case = word.replace("_", "-") if "_" in word else word.upper()
    return draw(choose([word[:at] + word[at + 1 :], word[:at] + letter + word[at:], word[:at] + letter + word[at + 1 :],
                        other_case, word[: at + 1]]))  # fmt: skip


@st.composite
def damaged(draw: Draw, data: bytes) -> bytes:
    """Bytes with damaged bits, blocks or length."""
    place = st.integers(0, max(0, len(data) - 1))
    at, length = draw(place), draw(choose([1, 4, 64, 512, max(1, len(data) // 8)]))
    noise, end = random.Random(draw(st.integers(0, 999))).randbytes(length), at + length
    way = draw(choose(["bits", "bits", "cut", "zeros", "noise", "gap", "more", "twice"]))
    if way == "bits":
        changed = bytearray(data or b"\x00")
        for _ in range(draw(choose([1, 1, 1, 3, 41]))):
            changed[draw(place)] ^= 1 << draw(st.integers(0, 7))
        return Content(changed)
    return Content({
        "cut": data[:at], "zeros": data[:at] + bytes(len(data[at:end])) + data[end:], "more": data + noise,
        "noise": data[:at] + noise[: len(data[at:end])] + data[end:], "gap": data[:at] + data[end:], "twice": data * 2,
    }[way])  # fmt: skip


# -- command lines -----------------------------------------------------------------------------------------------------

# With the settings of helpers.py, a run takes a second.
MODEL_RUN = {"gamename": "procmaze", "total_steps": 40, "steps_per_epoch": 20, "eval_steps": 10, "eval_episodes": 4,
             "training_start_time": 10, "batch_size": 4, "hidden_sizes": "8,8,8", "buffer_size": 50}  # fmt: skip
PATH_FLAGS = ("logdir", "reload", "eval_agent", "search_space", "plot", "plot_out", "film", "film_out", "report",
              "report_out", "config")  # fmt: skip
_NO_FLAGS = [*ODD, "--seed", "--help", "-h", "-seed", "--config", "lr=3", "--lr=", "--no_", "--no_seed",
             "--no_no_record", "--command.", "--command.x", "--command", "--version=3", "--a=b=c", "-" * 500,
             "--" + "x" * 5000]  # fmt: skip
_GAMES = sorted({*GAMES} - {"takecover", "halfcheetah", "hopper", "swimmer", "carracing"})


def small(implementation: str) -> dict[str, Any]:
    """Settings that make a run of an implementation short; none for an unknown implementation."""
    if implementation not in implementations():
        return {}
    implementation_family = family(implementation)
    if implementation_family.learns_from == "evolution":
        tests = {"test_every": 20} if implementation == "RN" else {}
        return SMALL_SEARCH | {"generations": 1, "population": 2, "deploy_steps": 60} | tests
    if implementation_family.learns_from == "steps":
        if "total_steps" in (setting_kinds := kinds(implementation_family.config)):
            return MODEL_RUN
        lacks = {"batch_size", "hidden_sizes", "buffer_size", "init_episodes"} - {*setting_kinds}
        values = {name: value for name, value in SMALL_STEP_RUN.items() if name not in lacks}
        return values | {"epochs": 1, "eval_every": 1}
    return SMALL_POLICY_RUN | {"max_episodes": 6} if on_policy(implementation) else SMALL_RUN | {"epochs": 1}


def words_of(values: Mapping[str, Any]) -> list[str]:
    return [word for name, value in values.items() for word in (f"--{name}", str(value))]


def shortened(argv: list[str], implementation: str = "UDRL") -> list[str]:
    """``argv`` with flags that make the run short, except flags it has already. ``implementation`` is the run's unless
    a flag names another."""
    pairs = [word[2:].partition("=") for word in argv if word.startswith("--")]
    names = {name.removeprefix("no_") for name, _, _ in pairs}
    if names & {"eval_agent", "plot", "film", "report", "help", "version", "preset", "use_tune"}:
        return argv
    next_words = zip(argv, [*argv[1:], ""], strict=True)
    choices = [value for name, _, value in pairs if name == "implementation" and value]
    choices += [value for word, value in next_words if word == "--implementation"]
    extra = small([*choices, implementation][0])
    return argv + words_of({name: value for name, value in extra.items() if name not in names | {"implementation"}})


@st.composite
def games(draw: Draw) -> str:
    """Names of environments with parameters, most of them wrong."""
    name, value = draw(choose(_GAMES)), draw(choose([*ODD, *map(str, HUGE)]))
    key = draw(choose(["grid_size", "num_buttons", "spontaneous_termination", "max_episode_steps", value]))
    return draw(misspelt(name) | choose([
        f"{name},{key}={value}", f"procmaze,{key}={value}", f"buttongrid,{key}={value}", f"{name},", f",{name}", ":",
        f"{name},{key}", f"procmaze,grid_size=5,grid_size={value}", f"nomodule:{name}", f"os:{name}", f"{name}-v99999",
        "ALE/Pong-v5", "Blackjack-v1", "HalfCheetah-v5", "takecover", "probe-9", value, "a" * 300, "CartPole-v٣",
    ]))  # fmt: skip


SOUND_GAMES = choose([*_GAMES, "procmaze,grid_size=3", "buttongrid,num_buttons=1,grid_size=4", "CartPole-v1",
                      "panflute,spontaneous_reward=false", "Acrobot-v1", "LunarLander-v3", "Taxi-v3"])  # fmt: skip


def paths(shelf: Path) -> st.SearchStrategy[str]:
    """Paths of many kinds; the writable ones are below the folder of the call."""
    inside = [str(path) for path in sorted(shelf.rglob("*"))]
    return choose(inside) | choose([
        str(shelf), "missing", "missing/deep/er", "a" * 300, "b/" * 2500, "", ".", "/dev/null", "/dev/zero",
        "/proc/self/mem", "/dev/null/x", "a\x00b", "~nobody", inside[0] + "/x", "x.ckpt", "x.yaml", "x.png",
        "cartpole-bandit", "cartpole-mpd", *UNICODE,
    ])  # fmt: skip


def _flag_text(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_flag_text, value))
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def right_words(flag: Flag, shelf: Path) -> st.SearchStrategy[list[str]]:
    """Words after a flag: a valid, small value."""
    if flag.name in PATH_FLAGS:
        return paths(shelf).map(lambda path: [path])
    if flag.name == "gamename":
        return SOUND_GAMES.map(lambda name: [name])
    if flag.kind.item is bool:
        return choose([[], ["true"], ["false"], ["yes"], ["off"]])
    meta = dict(flag.meta)
    if flag.kind.item in (int, float) and not meta.get("choices"):
        least = meta.get("minimum", meta.get("above")) or 0
        if meta.get("below") is None:
            meta["maximum"] = max(least, min(20, meta["maximum"] if meta.get("maximum") is not None else 20))
        if meta.get("above") is None:
            meta["minimum"] = least
    return values_of(flag.kind, meta).map(lambda value: [_flag_text(value)])


@st.composite
def wrong_words(draw: Draw, flag: Flag, shelf: Path) -> list[str]:
    """Words after a flag: none, too many, out of range, or absurd."""
    edges = [flag.meta[edge] for edge in ("above", "minimum", "below", "maximum") if flag.meta.get(edge) is not None]
    edge = draw(choose(edges or [0]))
    near_edges = [edge, edge - 1, edge + 1, -edge, math.nextafter(edge, math.inf), math.nextafter(edge, -math.inf)]
    text = choose([str(choice) for choice in flag.meta.get("choices") or ["x"]]).flatmap(misspelt)
    single = choose(ODD) | choose(HUGE) | choose(near_edges) | text | paths(shelf)
    lengths = choose([0, 2, 17, 2000]).map(lambda count: [",".join(["8"] * count)])
    return draw(single.map(lambda value: [str(value)]) | lengths | st.lists(choose(ODD), max_size=2))


@functools.cache
def _flags(implementation: str) -> Mapping[str, Flag]:
    return flags(implementation, "") if implementation else flags_of_all("")


@st.composite
def lines(draw: Draw, shelf: Path) -> tuple[list[str], list[str]]:
    """A command line and the names of its settings."""
    if draw(st.integers(0, 15)) == 0:
        return draw(st.lists(choose(_NO_FLAGS), min_size=1, max_size=6)), []
    implementation = draw(choose([*implementations()]))
    path = paths(shelf).map(lambda path: [path])
    mode = draw(choose([
        "", "", "", "", "", "", "eval_agent", "plot", "report", "use_tune", "search_space", "config", "help", "version",
    ]))  # fmt: skip
    parts: list[tuple[str, list[str]]] = (
        [("implementation", [implementation])] if draw(choose([True] * 6 + [False])) else []
    )
    if mode in ("use_tune", "search_space"):
        parts += [("use_tune", []), *([(mode, draw(path))] if mode == "search_space" else [])]
    elif mode:
        parts = [] if mode in ("eval_agent", "plot", "report") else parts
        words = draw(st.lists(paths(shelf), max_size=3) if mode in ("plot", "report") else path)
        parts.append((mode, [] if mode in ("help", "version") else words))
    if draw(st.booleans()):
        parts.append(("gamename", [draw(SOUND_GAMES | games())]))
    all_flags = _flags(implementation if draw(choose([True] * 9 + [False])) else "")
    for _ in range(draw(choose([0, 1, 1, 2, 3, 5]))):
        flag = all_flags[draw(choose([*all_flags]))]
        parts.append((flag.name, draw(right_words(flag, shelf) | right_words(flag, shelf) | wrong_words(flag, shelf))))
    if draw(st.integers(0, 15)) == 0:
        parts.append((draw(choose([*all_flags]).flatmap(misspelt)), ["1"]))
    argv: list[str] = []
    for name, words in draw(st.permutations(parts)):
        with_sign, negated = words and draw(st.integers(0, 4)) == 0, not words and draw(st.integers(0, 9)) == 0
        argv += [f"--{name}={words[0]}", *words[1:]] if with_sign else [f"--{'no_' * negated}{name}", *words]
    return argv, [name for name, _ in parts]


# -- settings files ----------------------------------------------------------------------------------------------------

_YAML_LINES = [
    "lr: &x 0.1", "lr: *x", "<<: {lr: 0.1}", "? [a, b]\n: 1", "null: 2", "- 1", "---", "\tlr: 1", "lr: 'x",
    "lr: !!python/object/apply:os.system ['touch EXECUTED']", "seed: !!binary ////", "seed: !custom 3", "seed: 0o17",
    "seed: .NaN", "seed: |\n  1\n  2", "seed: &a [*a]", "lr: 1: 2", "lr: @", "\x07: 1", "command: []",
    "command: {return: 1, return: 2}", "command.x: 1", "seed: " + "[" * 3000 + "]" * 3000, "seed: " + "{" * 3000,
    "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30)),
]  # fmt: skip
_JSON_STARTS = ['"lr": 1, "lr": 2, ', '"a": NaN, ', "//x\n", '"lr": 1,,', '"\\ud800": 1,', '"lr": "\\u0000",',
                '"seed": 1e999,', f'"seed": {"9" * 5000},', '"seed": ' + "[" * 3000, "}"]  # fmt: skip


_ADDITIONS = st.dictionaries(choose([
    "gamename", "command", "logdir", "ray_address", "reload", "eval_agent", "plot", "film", "report", "use_tune",
    "config", "help", "resume", "version", "search_space", "no_record", "command.return", "",
]), ANYTHING, min_size=1, max_size=1)  # fmt: skip


@functools.cache
def _sound_settings(implementation: str) -> dict[str, Any]:
    return as_dict(parse(words_of({"implementation": implementation} | small(implementation))))


_SEARCH_SPACES = sorted(ROOT.glob("experiments/*/search_*.yaml"))


@st.composite
def settings_files(draw: Draw) -> tuple[str, bytes, list[str], list[str]]:
    """Name and content of a file of settings or of a search space, the command line that reads it, and names of which
    an error must mention one."""
    is_json, searched, implementation = draw(st.booleans()), draw(choose([False] * 4 + [True])), "UDRL"
    if searched:
        space = draw(choose(_SEARCH_SPACES))
        implementation = next((name for name in implementations() if name.lower() == space.stem[7:]), "UDRL")
        content = yaml.safe_load(space.read_text())
    else:
        content = dict(_sound_settings(draw(choose([*implementations()]))))
    names = [*content]
    if not searched and draw(st.booleans()):  # few settings, so that damage matters more
        few_names = {"implementation", *draw(st.lists(choose(names), min_size=3, max_size=3))}
        content = {name: value for name, value in content.items() if name in few_names}
    for _ in range(draw(choose([0, 1, 1, 2]))):
        content = draw(edited(content)) | draw(st.just({}) | _ADDITIONS)
    try:
        text = json.dumps(content) if is_json else yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    except (TypeError, yaml.YAMLError):  # tensors, which no file of settings can hold
        assume(False)
    if draw(st.booleans()):
        line = draw(choose(_JSON_STARTS if is_json else _YAML_LINES))
        text = text.replace("{", "{" + line) if is_json else f"{text}{line}\n"
    data = text.encode("utf-8", "surrogatepass")
    coded = choose([text.encode("utf-16", "surrogatepass"), b"\xef\xbb\xbf" + data, b"", b"\x00" * 20, b"3",
                    data.replace(b"\n", b"\r\n"), (b"# " + b"x" * 4000 + b"\n") * 5000])  # fmt: skip
    data = draw(choose([st.just(data)] * 10 + [damaged(data)] * 3 + [coded]).flatmap(lambda way: way))
    name = "settings.json" if is_json else draw(choose(["settings.yaml", "settings.yml", "settings"]))
    reading = ["--search_space", name, "--use_tune", "--implementation", implementation]
    argv = (reading if searched else ["--config", name]) + draw(choose([[]] * 9 + [["--help"]]))
    return name, Content(data), argv, [name, *names, "config", "search_space", "module"]


# -- contents of files -------------------------------------------------------------------------------------------------


def leaves(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """Paths to all parts of nested dictionaries and lists."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, item in items:
        yield from leaves(item, (*path, key))


def item_at(contents: Any, path: tuple) -> Any:
    return functools.reduce(lambda part, key: part[key], path, contents)


def changed_at(contents: Any, path: tuple, value: Any) -> Any:
    """A copy of ``contents`` with ``value`` at ``path``; the rest is shared."""
    if not path:
        return value
    inner = changed_at(contents[path[0]], path[1:], value)
    if isinstance(contents, dict):
        return type(contents)(contents | {path[0]: inner})
    return type(contents)([*contents[: path[0]], inner, *contents[path[0] + 1 :]])


@st.composite
def wrong(draw: Draw, value: Any) -> Any:
    """An invalid replacement of ``value``."""
    if isinstance(value, Tensor) and value.numel() and draw(choose([True] * 4 + [False])):
        spoilt = value.clone()
        if value.is_floating_point():
            spoilt.view(-1)[draw(st.integers(0, value.numel() - 1))] = draw(choose([math.nan, math.inf, -math.inf]))
        other = torch.float64 if value.dtype != torch.float64 else torch.int32
        return draw(st.just(spoilt) | choose([
            value[None], value.flatten()[:-1], value.to(other), torch.zeros(0), value.numpy().tolist(),
            torch.empty(value.shape, device="meta"),
        ]))  # fmt: skip
    return draw(ANYTHING | choose([None, -1, "x", [], {}, torch.zeros(3), 2**70, 10**400, math.nan, "true", 1.5]))


@st.composite
def edited(draw: Draw, contents: Any) -> Any:
    """Nested contents with one part removed, renamed, doubled, replaced or swapped."""
    assume(contents)
    path = draw(choose([*leaves(contents)]))
    value, way = item_at(contents, path), draw(choose(["wrong", "wrong", "out", "renamed", "doubled", "swapped"]))
    if way == "swapped":
        other = draw(
            choose([other for other in leaves(contents) if other[: len(path)] != path[: len(other)]] or [path])
        )
        return changed_at(changed_at(contents, path, item_at(contents, other)), other, value)
    holder = item_at(contents, path[:-1])
    if way == "wrong" or not isinstance(holder, dict):
        name_of_code = isinstance(value, str) and draw(st.booleans())
        return changed_at(contents, path, draw(misspelt(value) if name_of_code else wrong(value)))
    new = draw(misspelt(path[-1]) if isinstance(path[-1], str) else choose([-1, "x", 99]))
    rest = {key: part for key, part in holder.items() if key != path[-1] or way == "doubled"}
    return changed_at(contents, path[:-1], rest if way == "out" else rest | {new: value})


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


@st.composite
def checkpoints(draw: Draw, data: bytes) -> tuple[bytes, bool]:
    """A changed checkpoint, and whether its bytes are damaged. With new checksums it is another checkpoint."""
    way = draw(choose(["bytes"] * 4 + ["content"] * 4 + ["code", "old format"]))
    if way == "bytes":
        return draw(damaged(data)), True
    contents = torch.load(io.BytesIO(data), weights_only=True)
    if way == "content":
        return Content(saved(draw(edited(contents)))), False
    if way == "old format":
        return Content(saved(contents, _use_new_zipfile_serialization=False)), False
    code, path = Harm("EXECUTED"), draw(choose([*leaves(contents)]))
    with_code = changed_at(contents, path, draw(choose([code, [code], {"x": code}])))
    return Content(draw(choose([saved(with_code), saved(code), pickle.dumps(contents | {"x": code})]))), False


def header_and_tensors(data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The metadata and the tensors of a safetensors file."""
    size = int.from_bytes(data[:8], "little")
    return json.loads(json.loads(data[8 : 8 + size])["__metadata__"]["understudy"]), safetensors_torch.load(data)


@st.composite
def proxies(draw: Draw, data: bytes) -> tuple[bytes, bool]:
    """A changed proxy file, and whether it is damaged. Without a digest it is another file."""
    if draw(st.integers(0, 2)) == 0:
        return draw(damaged(data)), True
    header, tensors = header_and_tensors(data)
    if not (sealed := draw(choose([False, False, True]))):
        del header["digest"]
    contents = draw(edited({"header": header, "tensors": tensors}))
    try:
        text = json.dumps(contents.get("header", {}))
        new = safetensors_torch.save(contents.get("tensors", {}), {"understudy": text})
    except Exception:  # contents that no file can hold
        assume(False)
    return Content(new), sealed
