"""The file ``versions.json`` in a run's folder: versions of software, processor and commit. Imports no torch."""

import contextlib
import functools
import importlib.metadata
import json
import os
import platform
import re
import subprocess
from pathlib import Path

from control.cli.files import read_json
from control.cli.help import version
from control.storage.run_dir import atomic_write_text

FILE = "versions.json"
PACKAGES = ("torch", "pytorch-lightning", "gymnasium", "numpy", "numba", "box2d", "mujoco", "ray")
_ROOT = Path(__file__).parents[2]


@functools.cache
def versions() -> dict[str, str]:
    """Return name -> version for this program, Python, the system and installed packages, and the ``processor``."""
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):  # Linux has a file with the model name
        cpu_info = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        model = re.search(r"^model name\s*:(.*)", cpu_info, re.MULTILINE)
        processor = model[1].strip() if model else processor
    versions_by_name = {
        "understudy": f"{version()}{_commit()}",
        "Python": platform.python_version(),
        "system": platform.platform(),
        "processor": f"{processor}, {os.cpu_count()} cores",
    }
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions_by_name[name] = importlib.metadata.version(name)
    return versions_by_name


def write_versions(folder: Path, epoch: int) -> None:
    """Store in ``versions.json`` that the software of this process trains the run from ``epoch`` on. Entries from this
    epoch or later are removed. An entry is added unless the last remaining entry has the same versions."""
    entries = [entry for entry in read_versions(folder) if int(entry["from"]) < epoch]
    last_versions = {name: value for name, value in entries[-1].items() if name != "from"} if entries else {}
    if last_versions != versions():
        entries.append({"from": str(epoch), **versions()})
    atomic_write_text(folder / FILE, json.dumps(entries, indent=1) + "\n")


def read_versions(folder: Path) -> list[dict[str, str]]:
    """Return the entries of ``versions.json`` in order: name -> version as in `versions`, and ``from``, the first epoch
    for which they are valid. Empty if the file is missing or malformed."""
    try:
        entries = [entry for entry in read_json(folder / FILE) if int(entry["from"]) > 0]  # epochs count from 1
        return [{str(name): str(value) for name, value in entry.items()} for entry in entries]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []


def _commit() -> str:
    """Return ``, commit HASH`` for this checkout, marked as dirty if files have changed. Empty without a checkout."""
    if not (_ROOT / ".git").exists():
        return ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        # Without any tag ("--exclude=*"), git describes a commit by its hash ("--always").
        command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--exclude=*"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=5, stdin=subprocess.DEVNULL)
        if result.returncode == 0:
            return f", commit {result.stdout.strip()}"
    return ""
