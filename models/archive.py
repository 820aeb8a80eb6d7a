"""Read files written by `torch.save` without running code from them."""

import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch


def read_archive(file: Path) -> Any:
    """Return the content of a file written by `torch.save`: plain values, lists, mappings, and tensors on the CPU.
    Raises UnpicklingError for a file with other content, and any error for a damaged one."""
    if zipfile.is_zipfile(file):  # the format before PyTorch 1.6 is no archive
        with zipfile.ZipFile(file) as archive:
            # torch.save does not compress. Compressed parts of a file from elsewhere could fill the memory.
            if sum(part.file_size for part in archive.infolist()) > file.stat().st_size:
                raise zipfile.BadZipFile("its parts are longer than the file")
            # torch.load does not compare checksums.
            if broken := archive.testzip():
                raise zipfile.BadZipFile(f"its part {broken} is not what was written")
    try:
        with warnings.catch_warnings(action="ignore"):  # about other formats
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # torch's message is about arguments of torch.load
        raise pickle.UnpicklingError("it holds more than tensors and plain values") from error
