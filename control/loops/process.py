"""How this process computes, and what its machine has left. Imports no Lightning, so that workers start quickly."""

import contextlib
import ctypes
import functools
import platform
import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def configure_torch(threads: int = 1, matmul_precision: str = "highest") -> None:
    """Threads, the precision of matrix products, and denormal numbers that are zero: before anything is computed, else
    the same member would come out differently in another process. The latter is a setting of the thread that calls:
    Adam's moments of units that never fire again fade into denormal numbers, which processors handle slowly."""
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(matmul_precision)
    torch.set_flush_denormal(True)
    _keep_memory()


@functools.cache
def _keep_memory() -> None:
    """Have glibc keep what is freed: it hands large blocks back, and the page faults of getting them anew were a fifth
    of an update of thirty members. Elsewhere nothing happens."""
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL("libc.so.6")
        # The second alone would do harm: it ends glibc's own raising of the first.
        if libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30):
            libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def available_memory(accelerator: str) -> int | None:
    """Bytes left of the processor's memory or of the first GPU's; None where the system does not say."""
    if accelerator == "gpu":
        return torch.cuda.mem_get_info()[0]
    return min([*_free_here(), *_free_in_groups()], default=None)


def _free_here() -> Iterator[int]:
    """What is left of the machine's memory, and of what this process may have (``ulimit -v``)."""
    with contextlib.suppress(OSError):
        found = re.search(r"^MemAvailable: *(\d+) kB$", (_PROC / "meminfo").read_text(), re.MULTILINE)
        yield from [int(found[1]) * 1024] if found else []
        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        if most != resource.RLIM_INFINITY:
            yield most - int((_PROC / "self/statm").read_text().split()[0]) * resource.getpagesize()


def _free_in_groups() -> Iterator[int]:
    """What the control groups of a container leave; a file's pages in memory are given up when they are needed."""
    with contextlib.suppress(OSError):
        for line in (_PROC / "self/cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            root, names = _GROUPS, ("memory.max", "memory.current", r"^(?:in)?active_file (\d+)$")
            if kinds:
                root /= "memory"
                names = "memory.limit_in_bytes", "memory.usage_in_bytes", r"^total_(?:in)?active_file (\d+)$"
            inner = root / path.strip("/")
            for group in (inner, *inner.parents) if not kinds or "memory" in kinds.split(",") else ():
                with contextlib.suppress(OSError, ValueError):  # of other groups; "max" is no number
                    most, used = (int((group / name).read_text()) for name in names[:2])
                    files = re.findall(names[2], (group / "memory.stat").read_text(), re.MULTILINE)
                    yield most - used + sum(map(int, files))
