"""Damaged checkpoints: bytes, records of the archive with checksums that are right again, and contents."""

import copy
import io
import os
import pickle
import random
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from fuzzing.files import damaged, odd
from fuzzing.flag_lines import misspelt

_EPISODES = {"eval_every": 1, "checkpoint_every": 1}
# Name -> settings of a run of two epochs, and those of one that is an epoch longer.
RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "UDRL": (_EPISODES | {"epochs": 2}, {"epochs": 3}),
    "two UDRL": (_EPISODES | {"epochs": 2, "num_seeds": 2}, {"epochs": 3}),
    "RCP-A": (_EPISODES | {"implementation": "RCP-A", "epochs": 2}, {"epochs": 3}),
    "CPG": (_EPISODES | {"implementation": "CPG", "max_episodes": 6}, {"max_episodes": 9}),
    "AAC": (_EPISODES | {"implementation": "AAC", "max_episodes": 6}, {"max_episodes": 9}),
    "DDQN": (_EPISODES | {"implementation": "DDQN", "epochs": 2}, {"epochs": 3}),
    "ER": ({"implementation": "ER", "checkpoint_every": 1}, {"total_steps": 60}),
    "Gaussian": ({"implementation": "GaussianLatent", "num_features": 3, "checkpoint_every": 1}, {"total_steps": 60}),
    "SE": ({"implementation": "SE", "proxy": "bandit", "generations": 2, "eval_every": 1}, {"generations": 3}),
}  # fmt: skip


def draw(rng: random.Random, intact_data: bytes) -> tuple[str, bytes, bool]:
    """What was done to a checkpoint, what it is now, and whether it must give the sound one's numbers or be refused: an
    archive that was written anew, with checksums of its new content, is another checkpoint."""
    if rng.random() < 0.4:
        return "bytes", damaged(rng, intact_data), True
    name, change = rng.choice([*CHANGES.items()])
    return name, change(rng, intact_data), change in (_without_record, _renamed_record, _repacked, _more_records)


def records(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def archive(contents: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """An archive whose checksums are right."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive_file:
        for name, content in contents.items():
            archive_file.writestr(name, content)
    return file.getvalue()


def _a_record(rng: random.Random, data: bytes) -> tuple[dict[str, bytes], str]:
    entries = records(data)
    return entries, rng.choice([name for name in entries if entries[name]])


def _flipped_record(rng: random.Random, data: bytes) -> bytes:
    entries, name = _a_record(rng, data)
    content = bytearray(entries[name])
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return archive(entries | {name: bytes(content)})


def _damaged_record(rng: random.Random, data: bytes) -> bytes:
    entries, name = _a_record(rng, data)
    return archive(entries | {name: damaged(rng, entries[name])})


def _swapped_records(rng: random.Random, data: bytes) -> bytes:
    entries, name = _a_record(rng, data)
    alike = [
        other for other in entries if len(entries[other]) == len(entries[name]) and entries[other] != entries[name]
    ]
    other = rng.choice(alike or [*entries])
    return archive(entries | {name: entries[other], other: entries[name]})


def _without_record(rng: random.Random, data: bytes) -> bytes:
    entries, name = _a_record(rng, data)
    return archive({other: content for other, content in entries.items() if other != name})


def _renamed_record(rng: random.Random, data: bytes) -> bytes:
    entries, name = _a_record(rng, data)
    return archive({misspelt(rng, other) if other == name else other: record for other, record in entries.items()})


def _repacked(rng: random.Random, data: bytes) -> bytes:
    entries = list(records(data).items())
    rng.shuffle(entries)
    return archive(dict(entries), rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))


def _more_records(rng: random.Random, data: bytes) -> bytes:
    entries, name = _a_record(rng, data)
    return archive(entries | {f"{name}{rng.randrange(9)}": rng.randbytes(30), "../../EXECUTED": b"x"})


def content(data: bytes) -> dict[str, Any]:
    checkpoint: dict[str, Any] = torch.load(io.BytesIO(data), weights_only=True)
    return checkpoint


def saved(contents: Any, **kwargs: Any) -> bytes:
    file = io.BytesIO()
    torch.save(contents, file, **kwargs)
    return file.getvalue()


def leaves(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """Paths to everything in nested dictionaries and lists, themselves included."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, item in items:
        yield from leaves(item, (*path, key))


def _place(contents: Any, path: tuple) -> Any:
    for key in path[:-1]:
        contents = contents[key]
    return contents


def _put(contents: Any, path: tuple, value: Any) -> None:
    *parent_path, last = path
    holder = _place(contents, path)
    if isinstance(holder, tuple):
        changed = list(holder)
        changed[last] = value
        _put(contents, tuple(parent_path), tuple(changed))
    else:
        holder[last] = value


def wrong(rng: random.Random, value: Any) -> Any:
    """Something that must not stand in the place of ``value``."""
    if isinstance(value, Tensor) and rng.random() < 0.8:
        if value.is_floating_point() and value.numel() and rng.random() < 0.5:
            spoilt = value.clone()
            spoilt.view(-1)[rng.randrange(value.numel())] = rng.choice([float("nan"), float("inf"), -float("inf")])
            return spoilt
        other = torch.float64 if value.dtype != torch.float64 else torch.int32
        return rng.choice([
            value[None], value.flatten()[:-1], value.repeat(2,
            *[1] * (value.dim() - 1)) if value.dim() else value[None],
            value.to(other), value.to(torch.complex64), torch.zeros(0),
            value.to_sparse() if value.dim() else value[None],
            value.numpy().tolist(), value.t() if value.dim() == 2 and value.shape[0] != value.shape[1] else value[None],
            torch.empty(value.shape, device="meta"), value.to(torch.bool) if value.dtype != torch.bool else value.int(),
        ])  # fmt: skip
    if isinstance(value, bool):
        return rng.choice(["true", None, [], 2, -1])
    if isinstance(value, int | float) and rng.random() < 0.6:
        return rng.choice(
            [-value - 1, str(value), None, [value], 2**63, 10**400, float("nan"), float("inf"), torch.tensor(1)]
        )
    return rng.choice([odd(rng), None, -1, "x", [], {}, torch.zeros(3), 2**70])


def _edited(rng: random.Random, data: bytes) -> bytes:
    """One thing in the content replaced by another kind of thing."""
    now = content(data)
    path = rng.choice([*leaves(now)])
    _put(now, path, wrong(rng, _place(now, path)[path[-1]]))
    return saved(now)


def _edited_tensor(rng: random.Random, data: bytes) -> bytes:
    now = content(data)
    path = rng.choice([path for path in leaves(now) if isinstance(_place(now, path)[path[-1]], Tensor)])
    _put(now, path, wrong(rng, _place(now, path)[path[-1]]))
    return saved(now)


def _other_keys(rng: random.Random, data: bytes) -> bytes:
    """A key taken out, added or misspelt."""
    now = content(data)
    path = rng.choice([path for path in leaves(now) if isinstance(_place(now, path), dict)])
    holder, key = _place(now, path), path[-1]
    edit_kind = rng.randrange(3)
    old_value = copy.copy(holder[key])
    if edit_kind != 1:
        del holder[key]
    if edit_kind:
        holder[misspelt(rng, key) if isinstance(key, str) else rng.choice([-1, "x", 99])] = old_value
    return saved(now)


def _swapped_tensors(rng: random.Random, data: bytes) -> bytes:
    """Two tensors of other shapes in each other's place."""
    now = content(data)
    places = [path for path in leaves(now) if isinstance(_place(now, path)[path[-1]], Tensor)]
    first_path = rng.choice(places)
    first_tensor = _place(now, first_path)[first_path[-1]]
    other_paths = [path for path in places if _place(now, path)[path[-1]].shape != first_tensor.shape]
    if other_paths:
        other = rng.choice(other_paths)
        _put(now, first_path, _place(now, other)[other[-1]])
        _put(now, other, first_tensor)
    return saved(now)


class _Code:
    """What runs a command when it is unpickled with pickle's powers."""

    def __reduce__(self) -> tuple:
        return os.system, ("touch EXECUTED",)


def _with_code(rng: random.Random, data: bytes) -> bytes:
    now, code = content(data), _Code()
    if rng.random() < 0.3:
        return rng.choice([pickle.dumps(code), pickle.dumps(now | {"x": code}), saved(code), saved([code])])
    path = rng.choice([*leaves(now)])
    _put(now, path, rng.choice([code, [code], {"x": code}]))
    return saved(now, _use_new_zipfile_serialization=rng.random() < 0.8)


def _no_checkpoint(rng: random.Random, data: bytes) -> bytes:
    other = {"state_dict": content(data)["state_dict"]}
    return rng.choice([
        b"", b"\n", b"PK\x03\x04", b"not a checkpoint", rng.randbytes(5000), archive({}), archive({"a": b"b"}),
        pickle.dumps({"a": 1}), saved({}), saved([1]), saved(torch.zeros(3)), saved(None), saved(other),
        saved({"understudy": {}}),
        saved({"understudy": {"format": 2}}), b"\x89PNG\r\n", archive({"archive/data.pkl": b"."}),
        pickle.dumps(10**1000),
        archive({"archive/data.pkl": b"\x80\x02" + b"(" * 10**6 + b"."}), b"\x80\x02." * 99, saved({"understudy": 3}),
    ])  # fmt: skip


CHANGES: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "a bit of a record": _flipped_record, "a damaged record": _damaged_record, "records swapped": _swapped_records,
    "no record": _without_record, "a renamed record": _renamed_record, "repacked": _repacked,
    "more records": _more_records,
    "content": _edited, "a tensor": _edited_tensor, "keys": _other_keys, "tensors swapped": _swapped_tensors,
    "code": _with_code, "no checkpoint": _no_checkpoint,
    "the old format": lambda rng, data: saved(content(data), _use_new_zipfile_serialization=False),
}  # fmt: skip
