"""What this machine has left."""

from pathlib import Path

import torch


def available_memory(accelerator: str = "cpu") -> int | None:
    """Bytes that can still be had, of the processor's memory or of the first GPU's; None where the system does not
    say."""
    if accelerator == "gpu":
        return torch.cuda.mem_get_info()[0]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None
