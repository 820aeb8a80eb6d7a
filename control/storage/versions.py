"""With what a run was made: versions, processor and commit, as `versions.json` in its folder. Imports no torch."""

import contextlib
import functools
import importlib.metadata
import json
import os
import platform
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
    """The versions of this process by name, and what it runs on; only packages that are installed."""
    versions_by_name = {
        "understudy": f"{version()}{_commit()}",
        "Python": platform.python_version(),
        "system": platform.platform(),
    }
    versions_by_name["processor"] = f"{_processor()}, {os.cpu_count()} cores"
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions_by_name[name] = importlib.metadata.version(name)
    return versions_by_name


def write_versions(folder: Path, epoch: int) -> None:
    """Add the versions of this process to those of a run, from ``epoch`` on, unless they are the last ones' again."""
    previous_versions = [entry for entry in read_versions(folder) if int(entry["from"]) < epoch]
    if not previous_versions or {**previous_versions[-1], "from": ""} != {**versions(), "from": ""}:
        text = json.dumps([*previous_versions, {"from": str(epoch)} | versions()], indent=1)
        atomic_write_text(folder / FILE, text + "\n")


def read_versions(folder: Path) -> list[dict[str, str]]:
    """The versions that a run has been made with, each with the epoch it begins ``from``; none where none are known."""
    try:
        entries = read_json(folder / FILE)
        return [{str(name): str(value) for name, value in entry.items()} for entry in entries if int(entry["from"]) > 0]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []


def _commit() -> str:
    """The commit of this checkout, marked where files have changed since; nothing where there is none."""
    if not (_ROOT / ".git").exists():
        return ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        words = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--exclude=*"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=5, stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            return f", commit {done.stdout.strip()}"
    return ""


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
