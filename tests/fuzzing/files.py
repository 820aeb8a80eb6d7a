"""Settings files, YAML and JSON: sound ones, damaged in their structure, their values or their bytes."""

import functools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from conftest import ROOT
from control.cli.parse import as_dict, parse
from fuzzing import flag_lines
from fuzzing.flag_lines import HUGE_FLOATS, HUGE_INTEGERS, ODD, misspelt
from models.registry import implementations

PAYLOAD = 'open("EXECUTED", "w").close()\n'
"""A module that shows that it was imported, in the folder of the call, which is on Python's path."""


@functools.cache
def _valid_settings(implementation: str) -> dict[str, Any]:
    words = ["--implementation", implementation]
    for name, value in flag_lines.small(implementation).items():
        words += [f"--{name}", str(value)] if name != "implementation" else []
    return as_dict(parse(words))


@functools.cache
def _spaces() -> list[Path]:
    return sorted(ROOT.glob("experiments/*/search_*.yaml"))


def draw(rng: random.Random, folder: Path) -> tuple[list[str], list[str], str]:
    """Write a file into ``folder``. Returns the command line that reads it, what a refusal must mention one of, and the
    implementation."""
    is_json, searched = rng.random() < 0.35, rng.random() < 0.2
    if searched:
        space = rng.choice(_spaces())
        content = yaml.safe_load(space.read_text())
        implementation = next((name for name in implementations() if name.lower() == space.stem[7:]), "UDRL")
    else:
        implementation = rng.choice([*implementations()])
        content = dict(_valid_settings(implementation))
    names = [*content]
    if not searched and rng.random() < 0.5:  # few settings, so that damage hits what matters
        kept_names = {"implementation", *rng.sample(names, 3)}
        content = {name: value for name, value in content.items() if name in kept_names}
    for _ in range(rng.choice([0, 1, 1, 2])):
        _change(rng, content)
    text = json.dumps(content) if is_json else yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        text = rng.choice(JSON_TEXTS if is_json else YAML_TEXTS)(rng, text)
    data = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.25:
        data = damaged(rng, data)
    elif rng.random() < 0.06:
        data = rng.choice([text.encode("utf-16"), b"\xef\xbb\xbf" + data, text.encode("latin-1", "replace"), b"", b"\n",
                           b"\x00" * 20, data.replace(b"\n", b"\r"), data.replace(b"\n", b"\r\n"), b"null", b"3",
                           b'"x"',
                           data * 2, (b"# " + b"x" * 4000 + b"\n") * 5000, b"a: " + b"9" * 10**7])  # fmt: skip
    name = "settings.json" if is_json else rng.choice(["settings.yaml", "settings.yml", "settings"])
    (folder / name).write_bytes(data)
    (folder / "payload.py").write_text(PAYLOAD)
    argv = (
        ["--search_space", name, "--use_tune", "--implementation", implementation] if searched else ["--config", name]
    )
    if rng.random() < 0.1:
        argv.append("--help")
    return argv, [name, *names, "config", "search_space", "module"], implementation


def _change(rng: random.Random, content: dict[str, Any]) -> None:
    """Change one entry of a mapping."""
    if not content:
        return
    name = rng.choice([*content])
    edit_kind = rng.randrange(8)
    if edit_kind == 0:
        content.pop(name)
    elif edit_kind == 1:
        content[misspelt(rng, name)] = content.pop(name)
    elif edit_kind == 2:
        content[rng.choice([*content])] = content[name]
    elif edit_kind == 3 and isinstance(content[name], str):
        content[name] = misspelt(rng, content[name])
    elif edit_kind == 4:
        content["gamename"] = rng.choice(
            ["payload:CartPole-v1", "payload:Payload-v0", "payload:cartpole,x=1", ":", "a,b"]
        )
    elif edit_kind == 5:
        content[rng.choice(["command", "logdir", "ray_address", "reload", "eval_agent", "plot", "film", "report",
                            "use_tune", "config", "help", "resume", "version", "search_space", "no_record",
                            "command.return", ""])] = odd(rng)  # fmt: skip
    else:
        content[name] = odd(rng)


def odd(rng: random.Random) -> Any:
    """Any value that a file can hold."""
    plain = rng.choice([*ODD, *HUGE_INTEGERS, *HUGE_FLOATS, None, True, False, 0, -1, 1.5, [], {}, float("nan")])
    nested: Any = plain
    for _ in range(rng.choice([1, 2, 30])):
        nested = rng.choice([[nested], {"x": nested}, [nested, nested] if len(str(nested)) < 99 else [nested]])
    return rng.choice(
        [plain, plain, plain, nested, {rng.choice(ODD): plain}, [plain] * 3, {"return": plain}, ["a"] * 9999]
    )


Text = Callable[[random.Random, str], str]


def _line(rng: random.Random, text: str, line: str) -> str:
    lines = text.splitlines(keepends=True)
    lines.insert(rng.randint(0, len(lines)), line + "\n")
    return "".join(lines)


def _bomb(rng: random.Random, text: str) -> str:
    levels = rng.choice([3, 10, 30])
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, levels))
    return bomb + text


def _deep(rng: random.Random, text: str) -> str:
    depth, (opener, closer) = rng.choice([90, 1000, 3000, 100_000]), rng.choice(["[]", "{}"])
    closed = closer * depth if rng.random() < 0.7 else ""
    return rng.choice([text + f"\nseed: {opener * depth}{closed}\n", opener * depth + closed])


def _repeat_line(rng: random.Random, text: str) -> str:
    return text + rng.choice(text.splitlines(keepends=True) or ["lr: 1\n"])


YAML_TEXTS: list[Text] = [
    _bomb, _deep, _repeat_line, _repeat_line,
    lambda rng, text: _line(rng, text, rng.choice([
        "lr: &x 0.1", "lr: *x", "<<: *x", "<<: {lr: 0.1}", "<<: [{seed: 1}, {seed: 2}]", "? [a, b]\n: 1",
        "? {a: 1}\n: 2",
        "1: 2", "null: 2", "~: 1", "- 1", "---", "...", "--- !x", "%YAML 9.9", "\tlr: 1", "lr: 'x", 'lr: "\\ud800"',
        "lr: !!python/object/apply:os.system ['touch EXECUTED']", "seed: !!python/name:os.system",
        "seed: !!binary ////",
        "seed: !!int x", "seed: !!set {1, 2}", "seed: !custom 3", "seed: 2001-12-14t21:59:43.10-05:00",
        "seed: 12:30:45",
        "seed: !!timestamp 2001-12-14", "seed: 0o17", "seed: 0b11", "seed: .inf", "seed: .NaN", "seed: |\n  1\n  2",
        "seed: >\n  1", "seed: &a [*a]", "seed: &a {b: *a}", "lr: 1: 2", "lr: @", "lr: `", "lr: %", "seed : 3",
        "seed:3",
        "\x07: 1", "seed: \u2028 3", "seed: \x85", "# \ud800", "lr: 1e-3 # fine", "lr: 1e-3#", "{lr: 0.1}", "[lr, 0.1]",
        "command: {return: 1, return: 2}", "command: {}", "command: []", "command: {command: {return: 1}}",
        "command.x: 1",
        "command: {return: [1]}", "command: &c {return: *c}",
    ])),
]  # fmt: skip
JSON_TEXTS: list[Text] = [
    _deep,
    lambda rng, text: text[:-1] + "," + text[1:],  # everything twice
    lambda rng, text: text.replace("{", "{" + rng.choice(['"lr": 1, "lr": 2, ', '"a": NaN, ', '"seed": Infinity,',
    "//x\n",
                                                         "'lr': 1,", '"lr": 1,,', '"\\ud800": 1,', '"lr": "\\u0000",',
                                                         '"seed": 1e999,', f'"seed": {"9" * 5000},', '"seed": -0,',
                                                         "}"])),
    lambda rng, text: rng.choice([f"[{text}]", f"{text}{text}", f"{text}x", "[]", "[" * 99999, '"' + "x" * 999, "-",
    "tru"]),
]  # fmt: skip


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Bytes with something wrong: bits, blocks, the length."""
    if not data:
        return b"\x00"
    size = len(data)
    at, other = rng.randrange(size), rng.randrange(size)
    length = rng.choice([1, 4, 64, 512, max(1, size // 8)])
    damage_kind = rng.randrange(10)
    if damage_kind < 3:
        changed = bytearray(data)
        for place in [at, *(rng.randrange(size) for _ in range(rng.choice([0, 0, 0, 2, 40])))]:
            changed[place] ^= 1 << rng.randrange(8)
        return bytes(changed)
    block, elsewhere = data[at : at + length], data[other : other + length]
    if damage_kind == 3:
        return data[:at]
    if damage_kind == 4:
        return data[:at] + bytes(len(block)) + data[at + length :]
    if damage_kind == 5:
        return data[:at] + rng.randbytes(len(block)) + data[at + length :]
    if damage_kind == 6:
        return data[:at] + data[at + length :]
    if damage_kind == 7:
        return data[:at] + elsewhere + data[at + length :]
    if damage_kind == 8:
        return rng.choice(
            [data + rng.randbytes(length), rng.randbytes(length) + data, data + data, data + bytes(length)]
        )
    return data[:at] + rng.randbytes(length) + data[at:]
