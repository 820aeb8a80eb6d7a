"""Damaged files of synthetic environments: bytes, the description in the header, tensors."""

import json
import random
from collections.abc import Callable
from typing import Any

import numpy as np
from safetensors import numpy as safetensors_numpy
from safetensors import safe_open

from fuzzing.checkpoints import _place, _put, leaves
from fuzzing.files import damaged, odd
from fuzzing.flag_lines import misspelt

Parts = tuple[dict[str, Any], dict[str, np.ndarray]]


def parts(path: str) -> Parts:
    """The header and the tensors of a file."""
    with safe_open(path, "np") as file:
        return json.loads(file.metadata()["understudy"]), {name: file.get_tensor(name) for name in file.keys()}


def serialize(header: Any, tensors: dict[str, np.ndarray]) -> bytes:
    text = header if isinstance(header, str) else json.dumps(header)
    return safetensors_numpy.save(tensors, {"understudy": text})


def draw(
    rng: random.Random, intact_data: bytes, header: dict[str, Any], tensors: dict[str, np.ndarray]
) -> tuple[str, bytes, bool]:
    """What was done to a file, what it is now, and whether it must give the sound file's numbers or be refused: without
    a digest it is another file."""
    if rng.random() < 0.35:
        return "bytes", damaged(rng, intact_data), True
    name, change = rng.choice([*CHANGES.items()])
    copy = json.loads(json.dumps(header))
    if has_digest := rng.random() < 0.3:
        name += " under the old digest"
    else:
        copy.pop("digest", None)
    return name, change(rng, copy, {key: tensors[key].copy() for key in tensors}), has_digest


def _value(rng: random.Random, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> bytes:
    path = rng.choice([*leaves(header)])
    now = _place(header, path)[path[-1]]
    numbers = [-1, 0, 10**400, 2**63, 2**62, 1e308, float("nan"), float("inf"), 1.5, str(now), [now], True]
    _put(header, path, rng.choice(numbers) if isinstance(now, int | float) else odd(rng))
    return serialize(header, tensors)


def _game(rng: random.Random, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> bytes:
    header["game"] = rng.choice(["payload:CartPole-v1", "acrobot", "pendulum", "nothing", "", "cartpole,x=1",
    "procmaze",
                                 "procmaze,grid_size=99", "CartPole-v1", "a" * 400, "x\ny", "carracing",
                                 "probe-1"])  # fmt: skip
    return serialize(header, tensors)


def _spaces(rng: random.Random, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> bytes:
    header["spaces"] |= rng.choice([
        {"max_episode_steps": float("nan")}, {"max_episode_steps": 2**62}, {"max_episode_steps": 1},
        {"max_return": "x"},
        {"max_return": float("nan")}, {"max_return": 10**400}, {"obs_shape": [4, 4]}, {"obs_shape": [2**40]},
        {"obs_shape": []}, {"actions": {"n": 3}}, {"actions": {"n": 2**40}}, {"actions": {"low": [0.0], "high": [1.0]}},
        {"actions": {"n": 2, "low": [0.0]}}, {"actions": {}}, {"extra": 1}, {"obs_shape": [True] * 4},
        {"max_return": True},
    ])  # fmt: skip
    return serialize(header, tensors)


def _settings(rng: random.Random, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> bytes:
    """Settings of the search and of its agents, in their two places."""
    settings = header["description"].setdefault("settings", {})
    where = rng.choice([settings, header["config"]])
    name = rng.choice([*where, "ray_address", "logdir", "resume", "use_tune", "agent", "lr", "x"])
    where[name] = rng.choice([odd(rng), -1, "9" * 400, 10**400, "payload:x", None, "DDQN", float("nan"), 2**62])
    return serialize(header, tensors)


def _keys(rng: random.Random, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> bytes:
    path = rng.choice([path for path in leaves(header) if isinstance(_place(header, path), dict)])
    holder = _place(header, path)
    old_value = holder.pop(path[-1])
    if rng.random() < 0.5:
        holder[misspelt(rng, path[-1])] = old_value
    return serialize(header, tensors)


def _tensor(rng: random.Random, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> bytes:
    name = rng.choice([*tensors])
    tensor = tensors[name]
    edit_kind = rng.randrange(8)
    if edit_kind == 0:
        tensors.pop(name)
    elif edit_kind == 1:
        tensors[misspelt(rng, name)] = tensors.pop(name)
    elif edit_kind == 2:
        tensors[f"{name}x"] = tensor
    elif edit_kind == 3:
        tensor.flat[rng.randrange(tensor.size)] = rng.choice([np.nan, np.inf, -np.inf])
    elif edit_kind == 4:
        tensors[name] = tensor.astype(rng.choice(["float64", "float16", "int32", "bool"]))
    elif edit_kind == 5:
        tensors[name] = tensor.reshape(-1) if tensor.ndim > 1 else tensor[None]
    elif edit_kind == 6:
        tensors[name] = np.ascontiguousarray(np.concatenate([tensor, tensor]))
    else:
        other = rng.choice([*tensors])
        tensors[name], tensors[other] = tensors[other], tensor
    return serialize(header, tensors)


def _header(rng: random.Random, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> bytes:
    text = json.dumps(header)
    return serialize(rng.choice([
        "", "null", "[]", "3", "{}", "[" * 100_000, text[:-1], text + "x", text.replace(":", ""), '"x"', "\x00",
        '{"format": 1}',
        text[:-1] + ', "format": 1}', text[:-1] + ', "format": 2}', text.replace("1", "9" * 5000, 1), '{"format": NaN}',
    ]), tensors)  # fmt: skip


def _frame(rng: random.Random, header: dict[str, Any], tensors: dict[str, np.ndarray]) -> bytes:
    """The eight bytes of length and the library's own header."""
    data = serialize(header, tensors)
    size = int.from_bytes(data[:8], "little")
    other = rng.choice([0, 1, size - 1, size + 8, 2**31, 2**63 - 1, 2**64 - 1, len(data)])
    text = data[8 : 8 + size]
    changed = rng.choice([text.replace(b"F32", b"F64", 1), text.replace(b"data_offsets", b"data_offset", 1),
                          text.replace(b"[0,", b"[4,", 1), text.replace(b"weight", b"bias", 1)])  # fmt: skip
    return rng.choice(
        [other.to_bytes(8, "little") + data[8:], len(changed).to_bytes(8, "little") + changed + data[8 + size :]]
    )


CHANGES: dict[str, Callable[..., bytes]] = {
    "a value": _value, "the game": _game, "spaces": _spaces, "settings": _settings, "keys": _keys, "a tensor": _tensor,
    "the header": _header, "the frame": _frame,
}  # fmt: skip
