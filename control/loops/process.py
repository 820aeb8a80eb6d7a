"""Settings of this process: threads, precision, memory, warnings. Imports no Lightning, so workers start quickly."""

import ctypes
import functools
import logging
import os
import platform
import sys
import threading
import warnings

import torch

from control.cli.colour import note
from control.cli.errors import DISK
from control.cli.settings import RunConfig

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # options of `mallopt`, from malloc.h


def configure_process(run: RunConfig) -> None:
    """Set threads, precision and filters of warnings of the process of a command. Call this before any computation."""
    configure_torch(run.num_threads, run.matmul_precision)
    cores = os.cpu_count() or 1
    if run.num_workers > cores and run.ray_address is None:
        note(f"num_workers is {run.num_workers}, and this machine has {cores} cores: the processes share them")
    # Lightning warns that data loaders and loggers are unusual, which is on purpose.
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    warnings.filterwarnings("ignore", ".*(dataloader|num_workers|DataLoader|pkg_resources).*", UserWarning)
    threading.excepthook = _thread_failed


def _thread_failed(arguments: threading.ExceptHookArgs) -> None:
    """Print the exception that has ended a thread (a `threading.excepthook`), unless it is a disk error. TensorBoard
    writes in a thread, and the next write of the main thread raises the same error."""
    is_disk_error = isinstance(arguments.exc_value, OSError) and arguments.exc_value.errno in DISK
    if not is_disk_error:
        threading.__excepthook__(arguments)


def configure_torch(threads: int = 1, matmul_precision: str = "highest") -> None:
    """Set torch's number of ``threads`` and its precision of matrix products, and make the calling thread round
    denormal numbers to zero. Processors are slow with these numbers, and Adam's moments of units that never fire again
    decay to them. Call this before any computation; otherwise a member's numbers could differ between processes."""
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
        was_set = libc.mallopt(_M_MMAP_THRESHOLD, 1 << 30)  # 1 GiB
        if was_set:
            libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)  # the largest int: never
