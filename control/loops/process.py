"""Settings of torch and memory for this process. Imports no Lightning, so that workers start quickly."""

import ctypes
import functools
import platform
import sys

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def configure_torch(threads: int = 1, matmul_precision: str = "highest") -> None:
    """Set torch's number of threads and its precision of matrix products, and make it flush denormal numbers to zero.

    Call this before any computation; otherwise a member's numbers could differ between processes. Flushing applies only
    to the calling thread. It saves time: Adam's moments of units that never fire again decay to slow denormal numbers.
    """
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(matmul_precision)
    torch.set_flush_denormal(True)
    _keep_memory()


@functools.cache
def _keep_memory() -> None:
    """Make glibc keep freed memory. By default it returns large blocks to the system, and the page faults of new blocks
    took a fifth of the time of an update of thirty members. No effect without glibc."""
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL("libc.so.6")
        # The trim threshold alone would do harm, because setting it stops glibc from raising the mmap threshold.
        if libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30):
            libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)
