"""Where trials run: a Ray started here and ended with the search, or a cluster that is already there."""

import contextlib
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from models.settings import SettingError, UserError

_PACKAGES = Path(__file__).resolve().parent.parent
_REACH_SECONDS = 5.0
_ANSWER_SECONDS = 20.0
# Read by Ray when it is first imported. Its reports, its usage statistics and its copies of every metric are off, and
# trials have the priority of an ordinary run, not the lowest but four.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_worker_niceness": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
}
_LOCAL_STORE_BYTES = 100 * 2**20


@contextlib.contextmanager
def connected(address: str | None, cpus: int) -> Iterator[None]:
    """Ray for the length of the block: a local one with ``cpus``, or the cluster at ``address``.

    Raises UserError, one line, where the cluster cannot be reached. A cluster is left as it was found; the temporary
    files of a local Ray go with it.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if address is not None:
        _reach(address)
    import ray

    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    # The code travels with the search, so that every node runs this very version; what it imports must be there.
    code = {"py_modules": [str(_PACKAGES / name) for name in ("models", "envs", "control")],
            "env_vars": {"OMP_NUM_THREADS": "1", "MKL_CBWR": "AUTO"}}  # fmt: skip
    common: dict[str, Any] = {"runtime_env": code, "log_to_driver": False, "logging_level": logging.CRITICAL}
    temporary = tempfile.mkdtemp(prefix="ray-") if address is None else None
    try:
        if address is None:
            ray.init(address="local", num_cpus=cpus, include_dashboard=False, object_store_memory=_LOCAL_STORE_BYTES,
                     **_where(temporary), **common)  # fmt: skip
        else:
            _join(address, common)
        yield
    finally:
        ray.shutdown()
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)


def _where(temporary: str | None) -> dict[str, Any]:
    # Ray makes sockets some 60 characters further down, and the path of a socket ends at 107.
    return {"_temp_dir": temporary} if temporary and len(temporary) < 40 else {}


def _reach(address: str) -> None:
    """Ask from outside first: where no cluster answers, Ray in this process would go on asking for minutes."""
    if address != "auto":
        host, _, port = address.rpartition(":")
        if not host or "/" in host or not port.isdecimal() or int(port) > 65535:
            raise SettingError(f"ray_address is {address!r}; allowed: host:port of a cluster's head, or auto")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_SECONDS).close()
        except OSError as error:
            raise _unreachable(address, error.strerror or str(error)) from error
    where = [] if address == "auto" else ["--address", address]
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", *where]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise _unreachable(address, f"no answer of a Ray head in {_ANSWER_SECONDS:.0f} s") from error
    if asked.returncode:
        said = [line for line in (asked.stdout + asked.stderr).splitlines() if line.strip()]
        raise _unreachable(address, said[-1] if said else "ray status failed")


def _join(address: str, common: dict[str, Any]) -> None:
    import ray

    try:
        ray.init(address=address, **common)
    # Ray raises ConnectionError, RuntimeError, ValueError or its own, by what went wrong with the cluster.
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise _unreachable(address, lines[0]) from error


def _unreachable(address: str, reason: str) -> UserError:
    start = "ray start --head --port=6379" if address == "auto" else f"ray start --address={address}"
    return UserError(
        f"ray_address is {address!r}: no cluster can be joined there ({reason.rstrip('.')}); this machine must be a "
        f"node of it ({start}), see docs/tuning.md"
    )
