"""A safe reader of files written by `torch.save`.

`torch.load` with ``weights_only=True`` runs no code, but it trusts the sizes in the file: it allocates the storage
length that the pickle names, whatever the archive holds, and a tensor of stride 0 or lists that share their parts can
have any size. This reader bounds time and memory by the size of the file. It accepts plain values, lists, mappings and
tensors.
"""

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_LARGEST = 2**21  # bytes
_SHARE = 16  # the pickle may also take 1 / 16 of the file: it grows with the members, but far less than their tensors
_CHUNK = 2**20
_TYPES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
_Base: Any = pickle._Unpickler  # the Python version; the C version does not let subclasses restrict opcodes


def read_archive(file: Path) -> Any:
    """Return the content of a file written by `torch.save`, with tensors on the CPU. Checks the checksum and size of
    every part before unpickling. Raises BadZipFile, UnpicklingError, or any error that a damaged pickle causes."""
    size = file.stat().st_size
    limit = _LARGEST + size // _SHARE  # bytes of the pickle, and values and characters in the content
    with _Opened(file) as opened, zipfile.ZipFile(opened) as archive:
        parts = archive.infolist()
        if any(part.compress_type or part.compress_size != part.file_size for part in parts):
            raise zipfile.BadZipFile("its archive is compressed")
        if sum(part.file_size for part in parts) > size:
            raise zipfile.BadZipFile("its parts share their bytes")
        if broken := archive.testzip():
            raise zipfile.BadZipFile(f"its part {broken} is not what was written")
        content = _OfArchive(archive, limit).load()
    _check_extent(content, limit)
    return content


def read_legacy(file: Path) -> Any:
    """Return the content of a file in the format that `torch.save` used before zip archives: five pickles, then the
    numbers of each storage. Raises UnpicklingError, or any error that a damaged pickle causes."""
    opened = io.BytesIO(file.read_bytes())
    for _ in ("magic number", "version", "machine"):
        Unpickler(opened).load()
    reader = _OfLegacy(opened)
    content = reader.load()
    for name in Unpickler(opened).load():
        length, storage = int.from_bytes(opened.read(8), "little"), reader.storages.pop(name)
        numbers = opened.read(storage.nbytes)
        if length != len(storage) or len(numbers) != storage.nbytes:
            raise pickle.UnpicklingError(f"storage {name} is shorter or longer than it says")
        storage.view(torch.uint8).numpy()[:] = np.frombuffer(numbers, np.uint8)
    _check_extent(content, _LARGEST)
    return content


class _Opened(io.FileIO):
    """A file that limits the bytes of a single read, because zipfile reads a table of contents in one piece. Raises
    BadZipFile for a larger read."""

    def read(self, size: int | None = -1) -> bytes:
        limit = _LARGEST + os.fstat(self.fileno()).st_size // _SHARE
        if size is not None and size > limit:
            raise zipfile.BadZipFile(f"its table of contents has {size} bytes; allowed: at most {limit}")
        return super().read(size)


class Opcodes(dict[int, Any]):
    """Dispatch table of an `Unpickler`: Python's handlers for the opcodes ``codes``, plus ``functions`` by opcode. Any
    other opcode raises UnpicklingError."""

    def __init__(self, codes: Iterable[bytes], functions: Mapping[int, Any]):
        super().__init__({code: _Base.dispatch[code] for (code,) in codes} | dict(functions))

    def __missing__(self, code: int) -> Any:
        raise pickle.UnpicklingError(f"it holds opcode {code}")


_PLAIN = (
    pickle.PROTO,
    pickle.STOP,
    pickle.MARK,
    pickle.NONE,
    pickle.NEWTRUE,
    pickle.NEWFALSE,
    pickle.BININT,
    pickle.BININT1,
    pickle.BININT2,
    pickle.LONG1,
    pickle.BINFLOAT,
    pickle.BINUNICODE,
    pickle.EMPTY_TUPLE,
    pickle.TUPLE,
    pickle.TUPLE1,
    pickle.TUPLE2,
    pickle.TUPLE3,
    pickle.EMPTY_LIST,
    pickle.APPEND,
    pickle.APPENDS,
    pickle.EMPTY_DICT,
    pickle.BINPUT,
    pickle.LONG_BINPUT,
    pickle.BINGET,
    pickle.LONG_BINGET,
    pickle.GLOBAL,
    pickle.REDUCE,
    pickle.BINPERSID,
)


class Unpickler(_Base):
    """Unpickler of plain values, with only the opcodes that they need. Each opcode takes time and memory in proportion
    to its bytes."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it holds a {module}.{name}")

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._put(key, value)

    def _set_items(self) -> None:
        items = self.pop_mark()
        for key, value in zip(items[::2], items[1::2], strict=True):
            self._put(key, value)

    def _put(self, key: Any, value: Any) -> None:
        """Set ``key`` in the mapping on top of the stack. Raises UnpicklingError unless the key is text, a number or
        None: hashing nested tuples may take forever."""
        if not isinstance(self.stack[-1], dict) or not isinstance(key, str | int | float | None):
            raise pickle.UnpicklingError(f"it holds a {type(key).__name__} as a key")
        self.stack[-1][key] = value

    def _forget(self) -> None:
        """Discard attributes of a mapping, such as the version of a state_dict."""
        self.stack.pop()

    dispatch = Opcodes(_PLAIN, {pickle.SETITEM[0]: _set_item, pickle.SETITEMS[0]: _set_items, pickle.BUILD[0]: _forget})


class _OfTensors(Unpickler):
    """`Unpickler` that also rebuilds tensors, at most ``limit // 40`` of them."""

    limit, tensors = _LARGEST, 0

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return lambda: OrderedDict()  # without arguments, which it would copy
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._tensor
        if module == "torch" and name in _TYPES:
            return _TYPES[name]
        return super().find_class(module, name)

    def _tensor(
        self,
        storage: Tensor,
        offset: int,
        size: Sequence[int],
        stride: Sequence[int],
        requires_grad: Any = None,
        hooks: Any = None,
        about: Any = None,
    ) -> Tensor:
        """Return a view of ``storage``. Raises UnpicklingError if elements overlap. The last three arguments are part
        of the format, but ignored."""
        self.tensors += 1
        if len(size) > 64 or self.tensors > self.limit // 40:  # `torch.save` writes about 40 bytes for each tensor
            raise pickle.UnpicklingError(f"it holds {self.tensors} tensors, the last of {len(size)} dimensions")
        if not all(type(number) is int for number in (*size, *stride)):  # sorting nested lists may take forever
            raise pickle.UnpicklingError("it holds a tensor whose size or stride is no number")
        extent = 0
        for step, count in sorted(zip(stride, size, strict=True)):
            if count > 1 and step <= extent:
                raise pickle.UnpicklingError("it holds a tensor of elements that overlap")
            extent += step * (count - 1)
        return storage.as_strided(size, stride, offset)


class _OfArchive(_OfTensors):
    def __init__(self, archive: zipfile.ZipFile, limit: int):
        self.archive, self.limit = archive, limit
        self.root = archive.namelist()[0].partition("/")[0]
        size = archive.getinfo(f"{self.root}/data.pkl").file_size
        if size > limit:
            raise pickle.UnpicklingError(f"its part data.pkl has {size} bytes; allowed: at most {limit}")
        super().__init__(io.BytesIO(archive.read(f"{self.root}/data.pkl")))
        self.storages: dict[str, Tensor] = {}

    def persistent_load(self, pid: Any) -> Tensor:
        """Return a storage as a tensor ``[count]``, read from its part of the archive."""
        _, dtype, name, _, length = pid
        if not isinstance(name, str):
            raise pickle.UnpicklingError(f"it holds a storage named by a {type(name).__name__}")
        storage = self.storages.get(name)
        if storage is None:
            part = self.archive.getinfo(f"{self.root}/data/{name}")
            storage = self.storages[name] = torch.empty(part.file_size // dtype.itemsize, dtype=dtype)
            numbers = storage.view(torch.uint8).numpy()
            with self.archive.open(part) as opened:
                for start in range(0, len(numbers), _CHUNK):
                    numbers[start : start + _CHUNK] = np.frombuffer(opened.read(_CHUNK), np.uint8)
        if (storage.dtype, len(storage)) != (dtype, length):
            raise pickle.UnpicklingError(f"storage {name} is shorter or longer than it says")
        return storage


class _OfLegacy(_OfTensors):
    def __init__(self, opened: io.BytesIO):
        super().__init__(opened)
        self.storages: dict[str, Tensor] = {}
        self.room = len(opened.getbuffer())

    def persistent_load(self, pid: Any) -> Tensor:
        """Return a storage as zeros ``[count]``; `read_legacy` fills in its numbers later."""
        _, dtype, name, _, length, _ = pid
        if not isinstance(name, str):
            raise pickle.UnpicklingError(f"it holds a storage named by a {type(name).__name__}")
        if name not in self.storages:
            self.room -= length * dtype.itemsize
            if self.room < 0:
                raise pickle.UnpicklingError(f"storage {name} is longer than the file")
            self.storages[name] = torch.zeros(length, dtype=dtype)
        return self.storages[name]


def _check_extent(content: Any, limit: int) -> None:
    """Raise UnpicklingError if ``content`` has more than ``limit`` values and characters. A part that occurs twice
    counts twice."""
    parts, room = [content], limit
    while parts:
        part = parts.pop()
        if isinstance(part, dict):
            parts += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple):
            parts += part
        room -= 1 + (len(part) if isinstance(part, str) else 0)
        if room < 0:
            raise pickle.UnpicklingError("it holds the same parts again and again")
