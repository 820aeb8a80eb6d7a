"""Where trials and populations run: a Ray started here and ended with them, or a cluster that is already there."""

import concurrent.futures
import contextlib
import dataclasses
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.settings import SettingError, UserError

if TYPE_CHECKING:
    from concurrent.futures import Future

    from torch import Tensor

    from control.evolution.inner_loop import Outcome

_PACKAGES = Path(__file__).resolve().parents[2]
_REACH_SECONDS = 5.0
_ANSWER_SECONDS = 20.0
# Read by Ray when it is first imported. Its reports, its usage statistics and its copies of every metric are off, and
# trials have the priority of an ordinary run, not the lowest but four. Nor does a call after its end start another, and
# what its daemons would print here, such as a page on a worker that died, is skipped.
_ENVIRONMENT = {
    "RAY_ENABLE_AUTO_CONNECT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_DEDUP_LOGS": "1",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
    "RAY_worker_niceness": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
}
_LOCAL_STORE_BYTES = 100 * 2**20
_DEATHS = 3  # of a worker over the same agents, before it is no accident
_NOTICE_SECONDS = 60.0


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


@contextlib.contextmanager
def _cores_for(num_workers: int, address: str | None) -> Iterator[int]:
    """Ray for the length of the block; gives the cores each worker is to ask it for."""
    if "ray" in sys.modules and sys.modules["ray"].is_initialized():
        _check_cores(num_workers, _all_cores(), "the search's Ray")
        yield 0  # a trial, which has reserved them
        return
    if address is None:
        _check_cores(num_workers, os.cpu_count() or 1, "this machine")
    with connected(address, num_workers):
        if address is not None:
            _check_cores(num_workers, _all_cores(), f"the cluster at {address}")
        yield 1


def _all_cores() -> int:
    import ray

    return int(ray.cluster_resources().get("CPU", 0))


def _check_cores(num_workers: int, cores: int, where: str) -> None:
    if num_workers > cores:
        raise SettingError(
            f"num_workers is {num_workers}; allowed: at most {cores}, the cores of {where}", "num_workers"
        )


class RayWorkers:
    """`control.evolution.workers.Workers` in ``num_workers`` processes, each with one thread on a core of its own.

    Their Ray is started here, or is the cluster at ``ray_address``; in a trial of a search it is the search's, and
    the workers use the cores that the trial has reserved. A worker that dies is replaced and its agents start over,
    with the same result, which follows from proxies and seeds alone; nodes with other processors may round otherwise.
    Workers ignore Ctrl-C, which is for whoever calls `run`: what a signal handler raises comes out of there at once.
    Raises SettingError for more workers than cores, and UserError (one line) where the cluster cannot be joined or a
    worker cannot start.
    """

    def __init__(
        self, config: Any, agent: str, agent_config: Any, game: str, num_workers: int, ray_address: str | None = None
    ):
        self._job = (config, agent, agent_config, game)
        self._actors: list[Any] = []
        self._started: list[Any] = []
        ending = contextlib.ExitStack()
        # At the end of the program too, so that no temporary folder outlives it.
        self._end = weakref.finalize(self, ending.close)
        try:
            self._cores = ending.enter_context(_cores_for(num_workers, ray_address))
            ending.callback(_kill, self._actors)
            for place in range(num_workers):
                self._start(place)
            self._await_start()
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers, once they have started."""
        return [started.future().result() for started in list(self._started)]

    def run(
        self, proxies: "Tensor | None", seeds: Sequence[int], *, steps: int | None = None,
        test_limit: int | None = None, rule: str | None = None, drawn: bool = False,
    ) -> "Outcome":  # fmt: skip
        """See `control.evolution.inner_loop.InnerLoop.run`. Each worker gets one contiguous part of the agents.

        ``train_seconds`` and ``test_seconds`` are the slowest worker's. Raises what `InnerLoop.run` raises, and
        UserError, one line, where a worker has died three times over the same agents.
        """
        from control.evolution.inner_loop import Outcome

        count = min(len(self._actors), len(seeds))
        bounds = [len(seeds) * i // count for i in range(count + 1)]

        def send(part: int) -> "Future[Outcome]":
            rows = slice(bounds[part], bounds[part + 1])
            # A slice would travel with all the memory it is a slice of.
            mine = None if proxies is None else proxies[rows].detach().clone()
            return self._actors[part].run.remote(mine, list(seeds[rows]), steps, test_limit, rule, drawn).future()

        parts = self._gather(send, count)
        train, test = (max(getattr(part, name) for part in parts) for name in ("train_seconds", "test_seconds"))
        return dataclasses.replace(Outcome.joined(parts), train_seconds=train, test_seconds=test)

    def close(self) -> None:
        """End the workers, and the Ray that was started for them; a cluster stays as it was found."""
        self._end()

    def _gather(self, send: "Callable[[int], Future[Outcome]]", count: int) -> "list[Outcome]":
        """The results of all parts, in order. By futures: Ray's own waiting makes a SystemError of what a signal
        handler raises, and only when the tasks are done."""
        from ray.exceptions import RayError, RayTaskError

        waiting = {send(part): part for part in range(count)}
        results: dict[int, Outcome] = {}
        deaths = [0] * count
        while waiting:
            done, _ = concurrent.futures.wait(waiting, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                part = waiting.pop(future)
                try:
                    results[part] = future.result()
                except RayTaskError as error:
                    raise _own(error) from None
                except RayError:
                    deaths[part] += 1
                    if deaths[part] == _DEATHS:
                        raise UserError(
                            f"worker {part + 1} of {len(self._actors)} died {_DEATHS} times over the same agents, most "
                            "likely because memory ran out; smaller values of num_workers, population or rb_size need "
                            "less"
                        ) from None
                    self._start(part)
                    waiting[send(part)] = part
        return [results[part] for part in range(count)]

    def _start(self, place: int) -> None:
        """A new worker in that place."""
        import ray

        from control.evolution.workers import WorkerProcess

        _kill(self._actors[place : place + 1])
        actor: Any = ray.remote(WorkerProcess)
        actor = actor.options(num_cpus=self._cores, max_restarts=0).remote(*self._job)
        self._actors[place : place + 1] = [actor]
        self._started[place : place + 1] = [actor.start.remote()]

    def _await_start(self) -> None:
        from ray.exceptions import RayError, RayTaskError

        futures = [started.future() for started in self._started]
        _, missing = concurrent.futures.wait(futures, timeout=_NOTICE_SECONDS)
        if missing:
            print(f"waiting for free cores: {len(missing)} of {len(futures)} workers have none yet", file=sys.stderr)
        try:
            for future in futures:
                future.result()
        except RayTaskError as error:
            raise _own(error) from None
        except RayError as error:
            raise UserError(f"a worker cannot start: {str(error).strip().splitlines()[-1].strip()}") from error


def _kill(actors: list[Any]) -> None:
    import ray

    for actor in actors if ray.is_initialized() else []:  # at the end of the program Ray may have gone first
        with contextlib.suppress(Exception):
            ray.kill(actor)


def _own(error: Any) -> Exception:
    """What a worker raised: as it was where the user can put it right, else with the worker's traceback."""
    return error.cause if isinstance(error.cause, UserError) else error
