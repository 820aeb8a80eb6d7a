"""A safe reader of files written by `torch.save`.

`torch.load` with ``weights_only=True`` runs no code, but it trusts the sizes in the file. It allocates as much memory
as the pickle says, even if the archive contains less, and a small file can describe huge tensors (by a stride of 0) or
huge lists (by lists that share their items). This reader bounds time and memory by the size of the file. It accepts
plain values, lists, mappings and tensors.
"""

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

_MAX_PICKLE = 2**21  # bytes; see `_pickle_limit`
_CHUNK = 2**20  # bytes read at once
_DTYPES = {  # class of a storage in the pickle -> dtype
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
    """Return the content of a file written by `torch.save`, with tensors on the CPU. The file is a zip archive, whose
    parts are a pickle and the numbers of each tensor. Their checksums and sizes are checked before unpickling. Raises
    BadZipFile, UnpicklingError, or any error that a damaged pickle causes."""
    file_size = file.stat().st_size
    limit = _pickle_limit(file_size)
    with _LimitedFile(file) as stream, zipfile.ZipFile(stream) as archive:
        parts = archive.infolist()
        if any(part.compress_type or part.compress_size != part.file_size for part in parts):
            raise zipfile.BadZipFile("its archive is compressed")
        if sum(part.file_size for part in parts) > file_size:  # a small file could describe large parts that overlap
            raise zipfile.BadZipFile("its parts share their bytes")
        if broken := archive.testzip():
            raise zipfile.BadZipFile(f"its part {broken} is not what was written")
        root = archive.namelist()[0].partition("/")[0]  # the folder of all parts, named by the writer
        pickle_size = archive.getinfo(f"{root}/data.pkl").file_size
        if pickle_size > limit:
            raise pickle.UnpicklingError(f"its part data.pkl has {pickle_size} bytes; allowed: at most {limit}")

        def read_storage(name: str, dtype: torch.dtype, count: int) -> Tensor:
            """Return all numbers of a storage. The caller compares their number with ``count``."""
            part = archive.getinfo(f"{root}/data/{name}")
            storage = torch.empty(part.file_size // dtype.itemsize, dtype=dtype)
            data = storage.view(torch.uint8).numpy()
            with archive.open(part) as part_stream:
                for start in range(0, len(data), _CHUNK):
                    data[start : start + _CHUNK] = np.frombuffer(part_stream.read(_CHUNK), np.uint8)
            return storage

        pickle_stream = io.BytesIO(archive.read(f"{root}/data.pkl"))
        content = _TensorUnpickler(pickle_stream, limit, read_storage).load()
    _check_extent(content, limit)
    return content


def _pickle_limit(file_size: int) -> int:
    """Return the largest number of bytes of the pickle in a file of ``file_size`` bytes. It is also the largest number
    of values and characters in the pickle."""
    # A pickle is longer for more members (agents trained together), but it is far smaller than their tensors.
    return _MAX_PICKLE + file_size // 16


def read_legacy(file: Path) -> Any:
    """Return the content of a file in the format that `torch.save` used before zip archives: five pickles, then the
    numbers of each storage. Raises UnpicklingError, or any error that a damaged pickle causes."""
    stream = io.BytesIO(file.read_bytes())
    num_bytes_left = len(stream.getbuffer())

    def make_storage(name: str, dtype: torch.dtype, count: int) -> Tensor:
        """Return a storage of zeros, whose numbers are read later: in the file, they come after all pickles. Raises
        UnpicklingError if the storages together are longer than the file."""
        nonlocal num_bytes_left
        num_bytes_left -= count * dtype.itemsize
        if num_bytes_left < 0:
            raise pickle.UnpicklingError(f"storage {name} is longer than the file")
        return torch.zeros(count, dtype=dtype)

    for _ in ("magic number", "version", "machine"):  # three pickles that are not used
        Unpickler(stream).load()
    unpickler = _TensorUnpickler(stream, _MAX_PICKLE, make_storage)
    content = unpickler.load()
    storage_names = Unpickler(stream).load()
    for name in storage_names:
        length = int.from_bytes(stream.read(8), "little")  # the file has it before the numbers
        storage = unpickler.storages.pop(name)
        data = stream.read(storage.nbytes)
        if length != len(storage) or len(data) != storage.nbytes:
            raise pickle.UnpicklingError(f"storage {name} is shorter or longer than it says")
        storage.view(torch.uint8).numpy()[:] = np.frombuffer(data, np.uint8)  # the tensors in ``content`` are views
    _check_extent(content, _MAX_PICKLE)
    return content


class _LimitedFile(io.FileIO):
    """A file that limits the bytes of a single read. zipfile reads the table of contents of an archive in one piece,
    whose size a damaged file may state wrongly. `read` raises BadZipFile for more bytes."""

    def read(self, size: int | None = -1) -> bytes:
        limit = _pickle_limit(os.fstat(self.fileno()).st_size)
        if size is not None and size > limit:
            raise zipfile.BadZipFile(f"its table of contents has {size} bytes; allowed: at most {limit}")
        return super().read(size)


class Opcodes(dict[int, Any]):
    """Dispatch table of an `Unpickler`, opcode -> handler. ``names`` are opcodes that Python's handlers execute: names
    of constants in `pickle`, separated by spaces. ``handlers`` are added. Any other opcode raises UnpicklingError."""

    def __init__(self, names: str, handlers: Mapping[int, Any]):
        # A constant in `pickle` is a byte string with one byte; [0] is its value.
        codes = [getattr(pickle, name)[0] for name in names.split()]
        super().__init__({code: _Base.dispatch[code] for code in codes} | dict(handlers))

    def __missing__(self, code: int) -> Any:
        raise pickle.UnpicklingError(f"it holds opcode {code}")


_PLAIN = (
    "PROTO STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE EMPTY_TUPLE TUPLE TUPLE1 "
    "TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT BINPUT LONG_BINPUT BINGET LONG_BINGET GLOBAL REDUCE BINPERSID"
)


class Unpickler(_Base):
    """Unpickler of plain values, with only the opcodes that they need. The time and the memory that an opcode takes are
    proportional to its bytes. Raises UnpicklingError for other opcodes and for any class or function."""

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

    def _discard(self) -> None:
        """Discard the attributes of a mapping, such as the version of a state_dict (opcode BUILD)."""
        self.stack.pop()

    dispatch = Opcodes(
        _PLAIN, {pickle.SETITEM[0]: _set_item, pickle.SETITEMS[0]: _set_items, pickle.BUILD[0]: _discard}
    )


class _TensorUnpickler(Unpickler):
    """`Unpickler` that also rebuilds up to ``limit // 40`` tensors. A tensor is a view of a storage.
    ``load_storage(name, dtype, count)`` returns a storage, a tensor ``[count]``, and is called once for each name."""

    def __init__(self, stream: io.BytesIO, limit: int, load_storage: Callable[[str, torch.dtype, int], Tensor]):
        super().__init__(stream)
        self.limit, self.load_storage = limit, load_storage
        self.num_tensors = 0
        self.storages: dict[str, Tensor] = {}

    def persistent_load(self, pid: Any) -> Tensor:
        """Return a storage. ``pid`` is ("storage", dtype, name, device, count); in the older format, a None follows.
        Raises UnpicklingError if the storage has another dtype or count."""
        _, dtype, name, _, count, *_ = pid
        if not isinstance(name, str):
            raise pickle.UnpicklingError(f"it holds a storage named by a {type(name).__name__}")
        if name not in self.storages:
            self.storages[name] = self.load_storage(name, dtype, count)
        storage = self.storages[name]
        if (storage.dtype, len(storage)) != (dtype, count):
            raise pickle.UnpicklingError(f"storage {name} is shorter or longer than it says")
        return storage

    def find_class(self, module: str, name: str) -> Any:
        """Return the constructor of an OrderedDict or a tensor, or the dtype of a storage; refuse anything else."""
        if (module, name) == ("collections", "OrderedDict"):
            return lambda: OrderedDict()  # without arguments: a small file could have it copy one list many times
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._rebuild_tensor
        if module == "torch" and name in _DTYPES:
            return _DTYPES[name]
        return super().find_class(module, name)

    def _rebuild_tensor(
        self,
        storage: Tensor,
        offset: int,
        size: Sequence[int],
        stride: Sequence[int],
        requires_grad: Any = None,
        hooks: Any = None,
        metadata: Any = None,
    ) -> Tensor:
        """Return a view of ``storage``, with ``size`` and ``stride`` for each axis. The last three arguments are part
        of the format, but ignored. Raises UnpicklingError for too many tensors or dimensions. Also raises it if
        elements overlap in memory, because a small file could then describe a huge tensor."""
        self.num_tensors += 1
        # torch permits 64 dimensions; `torch.save` writes about 40 bytes for each tensor.
        if len(size) > 64 or self.num_tensors > self.limit // 40:
            raise pickle.UnpicklingError(f"it holds {self.num_tensors} tensors, the last of {len(size)} dimensions")
        if not all(type(number) is int for number in (*size, *stride)):  # sorting nested lists may take forever
            raise pickle.UnpicklingError("it holds a tensor whose size or stride is no number")
        last_offset = 0  # offset of the last element along the axes so far
        for step, count in sorted(zip(stride, size, strict=True)):  # axes by ascending stride
            # A step along this axis must lead past all elements of the axes before.
            if count > 1 and step <= last_offset:
                raise pickle.UnpicklingError("it holds a tensor of elements that overlap")
            last_offset += step * (count - 1)
        return storage.as_strided(size, stride, offset)


def _check_extent(content: Any, limit: int) -> None:
    """Raise UnpicklingError if ``content`` has more than ``limit`` values and characters. A list that occurs in two
    places counts twice, because a small file can describe a huge structure of repeated lists."""
    stack, num_left = [content], limit
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            stack += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            stack += value
        num_left -= 1 + (len(value) if isinstance(value, str) else 0)
        if num_left < 0:
            raise pickle.UnpicklingError("it holds the same parts again and again")
