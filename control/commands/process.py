"""Configuration of the process of a command: threads, precision, warnings. Imports no Lightning."""

import logging
import os
import threading
import warnings

from control.cli.colour import note
from control.cli.errors import DISK
from control.cli.settings import RunConfig
from control.loops.process import configure_torch


def configure_process(run: RunConfig) -> None:
    """Set threads, precision and filters of warnings of this process for ``run``. Call it before any computation."""
    configure_torch(run.num_threads, run.matmul_precision)
    cores = os.cpu_count() or 1
    if run.num_workers > cores and run.ray_address is None:
        note(f"num_workers is {run.num_workers}, and this machine has {cores} cores: the processes share them")
    # Lightning warns that data loaders and loggers are unusual, which is on purpose.
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    warnings.filterwarnings("ignore", ".*(dataloader|num_workers|DataLoader|pkg_resources).*", UserWarning)
    threading.excepthook = _thread_failed


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    """Print the exception of a thread, except disk errors of TensorBoard's, which its next write raises again."""
    is_disk_error = isinstance(failed.exc_value, OSError) and failed.exc_value.errno in DISK
    if not is_disk_error:
        threading.__excepthook__(failed)
