"""How this process computes. Imports no Lightning, so that worker processes start quickly."""

import torch


def settle() -> None:
    """One thread, and denormal numbers are zero: before anything is computed, else the same member would come out
    differently in another process. The latter is a setting of the thread that calls.

    Adam's moments of units that never fire again fade into denormal numbers, which processors handle slowly.
    """
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
