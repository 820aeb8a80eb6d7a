"""Settings of the process of a command, before anything is computed in it. Imports no Lightning."""

import logging
import os
import threading
import warnings

from control.cli.colour import note
from control.cli.errors import DISK
from control.cli.settings import RunConfig
from control.loops.process import configure_torch


def prepare(run: RunConfig) -> None:
    """Settings of this process, before anything is computed in it."""
    configure_torch(run.num_threads, run.matmul_precision)
    if run.num_workers > (cores := os.cpu_count() or 1) and run.ray_address is None:
        note(f"num_workers is {run.num_workers}, and this machine has {cores} cores: the processes share them")
    # Lightning's advice is about data loaders and loggers that are as they are on purpose.
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="pytorch_lightning")
    warnings.filterwarnings("ignore", ".*(dataloader|num_workers|DataLoader|pkg_resources).*", UserWarning)
    threading.excepthook = _thread_failed


def _thread_failed(failed: threading.ExceptHookArgs) -> None:
    """TensorBoard's thread hands an error of the disk to whoever writes next, who ends the run with a line."""
    if not (isinstance(failed.exc_value, OSError) and failed.exc_value.errno in DISK):
        threading.__excepthook__(failed)
