"""Gymnasium environments stepped by several processes in lock-step, with the same results as in one process.

Each worker steps a contiguous part of the ``M * E`` environments in a separate `GymnasiumEnvironment`. Observations,
actions and rewards are in shared memory. Pipes carry only orders ("reset" or "step") and answers, and a round trip
takes tens of microseconds.
"""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import time
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from envs.base import EnvironmentFault, ReplayedEnvironment, Step
from envs.gymnasium_adapter import GymnasiumEnvironment
from envs.names import Game, first_line
from models.settings import ProcessDied, UserError
from models.spaces import Spaces

_JOIN_SECONDS = 5.0
_SHARED_STEP_FIELDS = {"obs", "reward", "terminated", "truncated", "info"}  # fields of a `Step` in shared memory


class ParallelEnvironment(ReplayedEnvironment):
    """``members * envs`` environments over ``num_workers`` processes. Interface: `envs.base.Environment`.

    Raises EnvironmentFault if an environment faults or a worker dies. If a worker dies, all workers are closed. Raises
    ProcessDied if the server process that starts the workers dies while starting one. Workers end with `close`, or when
    this process ends for any reason. Scripts that use this class need the usual ``if __name__ == "__main__"`` guard.
    """

    def __init__(self, game: Game, members: int, envs: int, num_workers: int) -> None:
        self.game, self.members, self.envs = game, members, envs
        self._workers: list[tuple[Any, Connection]] = []  # the process and the pipe of each worker
        # Raise errors about settings in this process, so that they are one line.
        environment = GymnasiumEnvironment(game, 1, 1)
        self.spaces: Spaces = environment.spaces
        environment.close()
        rows, context = members * envs, _context()
        self._shared = {
            "obs": torch.zeros(rows, *self.spaces.obs_shape, dtype=self.spaces.obs_dtype),
            "actions": torch.zeros(rows, *self.spaces.action_shape, dtype=self.spaces.action_dtype),
            "seeds": torch.zeros(rows, dtype=torch.int64),
            "reward": torch.zeros(rows),
            **{key: torch.zeros(rows, dtype=torch.bool) for key in ("active", "terminated", "truncated")},
        }
        if game.info:
            self._shared["info"] = torch.zeros(rows, len(game.info))
        for tensor in self._shared.values():
            tensor.share_memory_()
        num_processes = min(num_workers, rows)
        for i in range(num_processes):
            parent_pipe, worker_pipe = context.Pipe()
            worker_tensors = {key: tensor.tensor_split(num_processes)[i] for key, tensor in self._shared.items()}
            process = context.Process(target=_serve, args=(worker_pipe, game, worker_tensors), daemon=True)
            try:
                process.start()
            except (EOFError, OSError) as error:
                self.close()
                line = f"worker {i + 1} of {num_processes} cannot start: the process that starts it died"
                raise ProcessDied(f"environment {game.name}: {line}") from error
            worker_pipe.close()
            self._workers.append((process, parent_pipe))

    def reset(self, seeds: Tensor, where: Tensor | None = None) -> Tensor:
        self._record_reset(seeds, where)
        self._shared["seeds"][:] = seeds.flatten()
        self._command_workers("reset", where)
        return self._read_shared("obs")

    def step(self, actions: Tensor, active: Tensor | None = None) -> Step:
        self._record_step(actions, active)
        self._shared["actions"][:] = actions.detach().flatten(0, 1)
        self._command_workers("step", active)
        return Step(**{key: self._read_shared(key) for key in self._shared.keys() & _SHARED_STEP_FIELDS})

    def close(self) -> None:
        """Close the pipes, which ends the workers. Kill workers that have not ended after five seconds."""
        for _, pipe in self._workers:
            pipe.close()
        deadline = time.monotonic() + _JOIN_SECONDS
        for process, _ in self._workers:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode != 0:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)  # also programs that its environments have started
                process.join()
            process.close()
        self._workers = []

    def _read_shared(self, key: str) -> Tensor:
        """Return a copy ``[M, E, ...]`` of a shared tensor."""
        return self._shared[key].clone().unflatten(0, (self.members, self.envs))

    def _command_workers(self, order: str, where: Tensor | None) -> None:
        """Send ``order``, "reset" or "step", to every worker, for the environments in ``where [M, E]`` (None: all), and
        wait for all answers. Raises EnvironmentFault about the first fault. If a worker has died, close all workers."""
        self._shared["active"][:] = True if where is None else where.flatten()
        if not self._workers:
            raise EnvironmentFault(f"environment {self.game.name}: its workers are closed")
        for _, pipe in self._workers:
            # `_receive_answer` reports a broken pipe, with the number of the worker.
            with contextlib.suppress(OSError):
                pipe.send(order)
        answers = [self._receive_answer(i) for i in range(len(self._workers))]
        faults = [fault for fault in answers if fault is not None]
        if any(died for _, died in faults):
            self.close()
        if faults:
            message, _ = faults[0]
            raise EnvironmentFault(message)

    def _receive_answer(self, index: int) -> tuple[str, bool] | None:
        """Wait for the answer of a worker. Return None if it succeeded, otherwise the error message and whether the
        worker has died."""
        process, pipe = self._workers[index]
        worker_name = f"environment {self.game.name}: worker {index + 1} of {len(self._workers)}"
        try:
            # Waiting for the pipe alone is not enough: a program started by an environment may hold its other end open.
            if pipe not in multiprocessing.connection.wait([pipe, process.sentinel]):
                raise EOFError
            message = pipe.recv()
        except (EOFError, OSError):
            process.join(_JOIN_SECONDS)
            return f"{worker_name} died (exit code {process.exitcode})", True
        return (message, False) if message else None


def _serve(pipe: Connection, game: Game, tensors: dict[str, Tensor]) -> None:
    """Run a worker process: carry out orders, "reset" or "step", from ``pipe`` until its other end is closed. The
    answer to an order is an error message, or an empty text after success.

    ``tensors`` are the worker's rows ``[rows, ...]`` of the shared tensors, with seeds and actions to read, and results
    to write."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    os.setsid()  # so that the parent can also kill programs that an environment has started
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    torch.set_num_threads(1)
    tensors = {key: tensor[None] for key, tensor in tensors.items()}  # views [1, rows, ...], as if of one member
    environment = None
    with contextlib.suppress(EOFError, OSError):
        while True:
            order = pipe.recv()
            try:
                if environment is None:
                    environment = GymnasiumEnvironment(game, *tensors["active"].shape)
                if order == "reset":
                    tensors["obs"][:] = environment.reset(tensors["seeds"], tensors["active"])
                else:
                    step = environment.step(tensors["actions"], tensors["active"])
                    for key in tensors.keys() & _SHARED_STEP_FIELDS:
                        tensors[key][:] = getattr(step, key)
                pipe.send("")
            except BaseException as error:  # the parent handles signals, so every error is the environment's
                message = str(error) if isinstance(error, UserError) else ""
                pipe.send(message or f"environment {game.name}: {type(error).__name__}: {first_line(error)}")
    if environment is not None:
        environment.close()


def _context() -> Any:
    """Return a multiprocessing context. Its processes fork from a server that has imported torch once, never from this
    process, which has threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["envs.workers"])
    for start in (resource_tracker.ensure_running, forkserver.ensure_running):
        # When a terminal is closed, for example, all of its processes get a signal. Then this process writes a
        # checkpoint, and the servers must survive until the end of that. They inherit the mask of blocked signals.
        previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        start()
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
    return context
