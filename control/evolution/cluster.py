"""Ray for trials of a hyperparameter search, and for the agents of a search for proxies (learned environments or
rewards): a local instance, shut down at the end, or an existing cluster."""

import concurrent.futures
import contextlib
import functools
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from control.cli.colour import note
from control.cli.progress import Watch
from control.evolution.inner_loop import InnerLoop, Outcome
from envs.names import first_line, import_module
from models.proxies.search import SearchConfig
from models.settings import ProcessDied, UserError

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = [str(_ROOT / name) for name in ("understudy", "models", "envs", "control")]
_CONNECT_SECONDS = 5.0  # time limit for opening a socket
# Environment variables that Ray reads when it is first imported. They turn off its reports, its usage statistics, its
# copies of every metric and its daemons' messages, and give trials the priority of an ordinary run.
_VARIABLES = {
    "RAY_ENABLE_AUTO_CONNECT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_worker_niceness": "0",
    "RAY_task_oom_retries": "2",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
}
_LOCAL_STORE_BYTES = 100 * 2**20
_DEATHS = 3  # number of deaths of workers that train the same agents after which the search ends
_GRACE_SECONDS = 1.0  # time that tasks have to end before they are cancelled
START_SECONDS = 30.0  # time after which a note says that no worker or trial has started


@contextlib.contextmanager
def ray_connection(address: str | None, cpus: int) -> Iterator[None]:
    """Context manager that connects this process to Ray, and disconnects it at the end. ``address`` is ``host:port`` of
    the head of an existing cluster, or ``auto`` for the cluster of this machine. If it is None, a local instance with
    ``cpus`` cores is started, and removed at the end. Raises UserError if there is no cluster or Ray cannot start."""
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)  # variables that the user has set remain
    if address is None:  # with this value, all servers of the local instance listen only on 127.0.0.1
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    elif address != "auto":  # Ray itself looks for the cluster of this machine
        _check_reachable(address)
    import ray

    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    options: dict[str, Any] = {
        "address": address or "local",
        "log_to_driver": False,
        "logging_level": logging.CRITICAL,
        "runtime_env": {
            # Ray sends the code to every node, so that all run this version. Packages that it imports must be there.
            "py_modules": _PACKAGES,
            # A worker rounds as this process does.
            "env_vars": {"OMP_NUM_THREADS": "1", "MKL_CBWR": os.environ.get("MKL_CBWR", "AUTO")},
        },
    }
    temporary = tempfile.mkdtemp(prefix="ray-")
    if address is None:
        # Ray adds about 60 characters for its sockets, whose paths have at most 107. None is Ray's default folder.
        options["_temp_dir"] = temporary if len(temporary) < 40 else None
        options |= {"num_cpus": cpus, "include_dashboard": False, "object_store_memory": _LOCAL_STORE_BYTES}
    previous_handler = signal.getsignal(signal.SIGTERM)
    try:
        try:
            ray.init(**options)
        except Exception as error:  # Ray raises various errors, also a plain Exception
            if address is not None:
                raise _unreachable(address, first_line(error)) from error
            problem = "Ray cannot start on this machine, which may be too busy or out of memory"
            raise ProcessDied(f"{problem}: {first_line(error)}") from error
        if threading.current_thread() is threading.main_thread():  # no other thread can set a handler
            signal.signal(signal.SIGTERM, previous_handler)  # Ray's handler would exit with status 1
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(temporary, ignore_errors=True)


def _check_reachable(address: str) -> None:
    """Raise UserError if nothing listens at ``address``, ``host:port``. Ray would try for minutes to connect."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")  # brackets around an IPv6 address
    if not host or not port.isdecimal():
        raise _unreachable(address, "allowed: host:port of a cluster's head, or auto")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:  # OverflowError: a port above 65535
        raise _unreachable(address, getattr(error, "strerror", None) or str(error)) from error


def _unreachable(address: str, reason: str) -> UserError:
    """Return the error for a cluster that cannot be joined at ``address`` for a ``reason``. It names the command that
    starts or joins the cluster."""
    start = "ray start --head --port=6379" if address == "auto" else f"ray start --address={address}"
    return UserError(
        f"ray_address is {address!r}: no cluster can be joined there ({reason.rstrip('.')}); this machine must be a "
        f"node of it ({start}), see docs/tuning.md"
    )


Job = tuple[SearchConfig, str, Any, str]
"""Arguments of `InnerLoop`: the search's settings, the agents' implementation and their settings, and the game."""


class RayWorkers:
    """Trains and tests agents as `InnerLoop` does, divided among ``num_workers`` processes of one thread each.

    ``job`` has the arguments of `InnerLoop`. The processes use the cluster at ``ray_address`` or, if that is None, a
    local Ray. In a trial of a hyperparameter search, they use the search's Ray and the cores that the trial has
    reserved. If a process dies, another process trains its agents again with the same result. Nodes with different
    processors may round differently. Workers ignore Ctrl-C; an exception from a signal handler of this process ends
    `run` at once. The constructor raises UserError if no cluster can be joined or no worker can start.
    """

    def __init__(self, job: Job, num_workers: int, ray_address: str | None):
        self._job, self._num_workers = job, num_workers
        self._tasks: list[Any] = []  # Ray's tasks of the latest `run`
        cleanup = contextlib.ExitStack()
        # Also runs when the program ends, so that no temporary folder remains.
        self.close = weakref.finalize(self, cleanup.close)  # stops the workers, and Ray if it is local
        in_trial = "ray" in sys.modules and sys.modules["ray"].is_initialized()
        try:
            if not in_trial:
                cleanup.enter_context(ray_connection(ray_address, num_workers))
            cleanup.callback(_cancel, self._tasks)
            import ray

            # A task starts when ``cores`` cores are free. In a trial, tasks use the cores that the trial has reserved.
            cores = 0 if in_trial else 1
            self._remote_task: Any = ray.remote(num_cpus=cores, max_retries=_DEATHS - 1)(_work)
            # Tasks without agents start the workers and load their imports, so that errors appear now.
            self._results([self._remote_task.remote(self._job) for _ in range(num_workers)], START_SECONDS)
        except BaseException:
            self.close()
            raise

    def run(self, proxies: Tensor | None, seeds: Sequence[int], watch: Watch | None = None, **options: Any) -> Outcome:
        """Train and test agents as `InnerLoop.run` does, with a contiguous part of the agents in each worker process.
        ``options`` are further arguments of `InnerLoop.run`; ``watch`` is not called. The seconds in the result are the
        maximum over workers. Raises UserError if `_DEATHS` workers have died while they trained the same agents."""
        tasks = []
        for indices in torch.arange(len(seeds)).tensor_split(min(self._num_workers, len(seeds))):
            # Indices copy the rows. A slice would be sent with the memory of the whole tensor.
            worker_proxies = None if proxies is None else proxies.detach()[indices]
            worker_seeds = [seeds[i] for i in indices.tolist()]
            tasks.append(self._remote_task.remote(self._job, worker_proxies, worker_seeds, **options))
        outcomes = self._results(tasks)
        outcome = Outcome.concatenate(outcomes)
        outcome.train_seconds = max(worker_outcome.train_seconds for worker_outcome in outcomes)
        outcome.test_seconds = max(worker_outcome.test_seconds for worker_outcome in outcomes)
        return outcome

    def _results(self, tasks: list[Any], note_after: float | None = None) -> list[Any]:
        """Wait for Ray's ``tasks`` and return their results, in order. If a task fails, cancel the others and raise its
        error (`_error_of_task`). ``note_after`` is for tasks that end as soon as they run: if some have not ended after
        this number of seconds, a note says that they wait for free cores."""
        self._tasks[:] = tasks  # in place, because the cleanup at the end cancels the tasks in this list
        # Not `ray.get`, which would raise a signal handler's exception late, as a SystemError.
        futures = [task.future() for task in tasks]
        try:
            done, unfinished = concurrent.futures.wait(futures, note_after, FIRST_EXCEPTION)
            if unfinished and not any(future.exception() for future in done):
                note(f"waiting for {len(unfinished)} of {self._num_workers} workers: Ray starts each on a free core")
                concurrent.futures.wait(futures, return_when=FIRST_EXCEPTION)
            for number, future in enumerate(futures, start=1):
                error = future.exception() if future.done() else None
                if error is not None:
                    raise _error_of_task(error, f"worker {number} of {self._num_workers}") from None
        except BaseException:
            _cancel(self._tasks)  # their results would not be used
            raise
        return [future.result() for future in futures]


Workers = InnerLoop | RayWorkers


def make_workers(job: Job, num_workers: int = 1, ray_address: str | None = None, num_threads: int = 1) -> Workers:
    """Return an object whose method ``run`` trains and tests agents. ``job`` has the arguments of `InnerLoop`. With one
    worker, this process trains them in ``num_threads`` threads, otherwise Ray at ``ray_address`` (`RayWorkers`)."""
    if num_workers == 1:
        return InnerLoop(*job, num_threads)
    return RayWorkers(job, num_workers, ray_address)


def _work(job: Job, *arguments: Any, **options: Any) -> Outcome | None:
    """Run a task in a worker process: call `InnerLoop.run` with ``arguments`` and ``options``, in a loop with the
    arguments ``job``. Without ``arguments``, only build this loop."""
    loop = _worker_loop(*job)
    return loop.run(*arguments, **options) if arguments else None


@functools.lru_cache(maxsize=1)
def _worker_loop(*job: Any) -> InnerLoop:
    """Build the `InnerLoop` with the arguments ``job`` in a worker process, which keeps only the latest loop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    import_module("gamename", job[-1])  # the game; ``module:Env-v0`` needs an import of its module
    return InnerLoop(*job)


def _cancel(tasks: list[Any]) -> None:
    """Cancel tasks that have not ended after a second. The wait is necessary: Ray aborts this process if a task ends
    while it is cancelled ("Tried to complete task that was not pending"), and tasks often fail together."""
    import ray

    if not tasks or not ray.is_initialized():  # at the end of the program, Ray may have ended first
        return
    with contextlib.suppress(Exception):
        _, unfinished = ray.wait(tasks, num_returns=len(tasks), timeout=_GRACE_SECONDS, fetch_local=False)
        for task in unfinished:
            ray.cancel(task, force=True)


def _error_of_task(error: Any, worker: str) -> Exception:
    """Return the exception to raise for Ray's ``error`` of a task: the UserError that the task raised or, for any other
    exception, ``error`` itself, which shows its traceback. If the process of the task died or did not start, return a
    new UserError about ``worker``, such as "worker 2 of 4"."""
    from ray.exceptions import RayTaskError

    if isinstance(error, RayTaskError):
        return error.cause if isinstance(error.cause, UserError) else error
    last_line = str(error).strip().splitlines()[-1].strip()
    return UserError(
        f"{worker} died {_DEATHS} times over the same agents, or did not start ({last_line}); if memory ran out, "
        "smaller values of num_workers, population or buffer_size need less"
    )
