"""Gymnasium environments stepped by several processes in lock-step, with the same results as in one process.

Each worker steps a contiguous part of the ``M * E`` environments. Pipes carry the orders ("reset" or "step") with seeds
or actions, and the answers. A round trip takes tens of microseconds.
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

import numpy as np
import torch
from torch import Tensor

from envs.base import EnvironmentFault, ReplayedEnvironment, Step
from envs.gymnasium_adapter import GymnasiumEnvironment
from envs.names import Game, first_line
from models.settings import ProcessDied, UserError
from models.spaces import Spaces

_JOIN_SECONDS = 5.0


class ParallelEnvironment(ReplayedEnvironment):
    """``members * envs`` instances of one Gymnasium environment, stepped by ``num_workers`` processes. Interface:
    `envs.base.Environment`. Raises EnvironmentFault if an environment faults or a worker dies, and ProcessDied if the
    server process dies that starts the workers. Workers end with `close`, or when this process ends for any reason.
    Scripts need the usual ``if __name__ == "__main__"`` guard."""

    def __init__(self, game: Game, members: int, envs: int, num_workers: int) -> None:
        self.game, self.members, self.envs = game, members, envs
        self._workers: list[tuple[Any, Connection]] = []  # the process and the pipe of each worker
        # Raise errors about settings in this process, so that they are one line.
        environment = GymnasiumEnvironment(game, 1, 1)
        self.spaces: Spaces = environment.spaces
        environment.close()
        context, num_processes = _context(), min(num_workers, members * envs)
        for number, rows in enumerate(torch.arange(members * envs).tensor_split(num_processes), start=1):
            parent_pipe, worker_pipe = context.Pipe()
            process = context.Process(target=_serve, args=(worker_pipe, game, len(rows)), daemon=True)
            try:
                process.start()
            except (EOFError, OSError) as error:
                self.close()
                line = f"worker {number} of {num_processes} cannot start: the process that starts it died"
                raise ProcessDied(f"environment {game.name}: {line}") from error
            worker_pipe.close()  # the copy of this process, so that the pipe ends with the worker
            self._workers.append((process, parent_pipe))

    def reset(self, seeds: Tensor, mask: Tensor | None = None) -> Tensor:
        self._record_reset(seeds, mask)
        return self._command_workers("reset", seeds, mask)["obs"]

    def step(self, actions: Tensor, active: Tensor | None = None) -> Step:
        self._record_step(actions, active)
        return Step(**self._command_workers("step", actions.detach(), active))

    def close(self) -> None:
        """Close the pipes, which ends the workers. After five seconds, kill workers that still run. Also kill the
        programs that environments have started in such a worker, or in one that has crashed."""
        for _, pipe in self._workers:
            pipe.close()
        deadline = time.monotonic() + _JOIN_SECONDS
        for process, _ in self._workers:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode != 0:  # None if it still runs, another number if it has crashed
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)  # the worker and the programs of its environments
                process.join()
            process.close()
        self._workers = []

    def _command_workers(self, order: str, values: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        """Make all workers reset or step their environments, and wait for the results. ``order`` is "reset" or "step",
        ``values [M, E, ...]`` are the seeds or the actions, and ``mask [M, E]`` selects environments (None: all).
        Return the results by name, such as ``{"obs": [M, E, *O]}``."""
        if not self._workers:
            raise EnvironmentFault(f"environment {self.game.name}: its workers are closed")
        if mask is None:
            mask = torch.ones(self.members, self.envs, dtype=torch.bool)
        num_workers = len(self._workers)
        values_by_worker = np.array_split(values.flatten(0, 1).numpy(), num_workers)
        masks = np.array_split(mask.flatten().numpy(), num_workers)
        for (_, pipe), worker_values, worker_mask in zip(self._workers, values_by_worker, masks, strict=True):
            with contextlib.suppress(OSError):  # `_receive` raises the error about a broken pipe
                pipe.send((order, worker_values, worker_mask))
        answers = [self._receive(i) for i in range(num_workers)]
        for answer in answers:
            if isinstance(answer, str):  # an error message
                raise EnvironmentFault(answer)
        fields = {}
        for name in answers[0]:
            rows = np.concatenate([answer[name] for answer in answers])  # [M * E, ...]
            fields[name] = torch.from_numpy(rows).unflatten(0, (self.members, self.envs))
        return fields

    def _receive(self, index: int) -> Any:
        """Return the answer of the worker with this ``index``: an error message, or the fields of its result. If the
        worker has died, close all workers and raise EnvironmentFault."""
        process, pipe = self._workers[index]
        try:
            # `wait` returns the ready objects: the pipe if there is an answer, the sentinel if the process has ended.
            # The pipe alone may never be ready, because a program that an environment has started may hold it open.
            if pipe not in multiprocessing.connection.wait([pipe, process.sentinel]):
                raise EOFError  # the process has ended without an answer
            return pipe.recv()
        except (EOFError, OSError) as error:
            process.join(_JOIN_SECONDS)
            line = f"worker {index + 1} of {len(self._workers)} died (exit code {process.exitcode})"
            self.close()
            raise EnvironmentFault(f"environment {self.game.name}: {line}") from error


def _serve(pipe: Connection, game: Game, rows: int) -> None:
    """Run a worker process with ``rows`` environments until the other end of ``pipe`` is closed.

    A message from the pipe is ``(order, values, mask)``. The order is "reset" with seeds ``values [rows]``, or "step"
    with actions ``values [rows, ...]``, for the environments with True in ``mask [rows]``. The answer is the result as
    arrays, ``{name: [rows, ...]}``, or an error message.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    os.setsid()  # so that the parent can also kill programs that an environment has started
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # unblock the signals that `_context` has blocked
    torch.set_num_threads(1)
    environment = None
    with contextlib.suppress(EOFError, OSError):
        while True:
            order, values, mask = pipe.recv()
            # The environments of the worker count as one member: [1, rows, ...].
            seeds_or_actions, active = torch.from_numpy(values)[None], torch.from_numpy(mask)[None]
            try:
                if environment is None:
                    environment = GymnasiumEnvironment(game, 1, rows)
                if order == "reset":
                    result: dict[str, Any] = {"obs": environment.reset(seeds_or_actions, active)}
                else:
                    result = vars(environment.step(seeds_or_actions, active))
                fields = {name: value[0].numpy() for name, value in result.items() if value is not None}
                pipe.send(fields)
            except BaseException as error:  # the parent handles signals, so every error is the environment's
                message = f"environment {game.name}: {type(error).__name__}: {first_line(error)}"
                if isinstance(error, UserError) and str(error):
                    message = str(error)
                pipe.send(message)
    if environment is not None:
        environment.close()


def _context() -> Any:
    """Return the multiprocessing context that starts workers. They fork from a server process that has imported torch
    once, never from this process, which has threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["envs.workers"])
    # When a terminal is closed, for example, all of its processes get a signal. Then this process writes a checkpoint,
    # and the two servers must survive until the end of that. They inherit the mask of blocked signals. It is set anew
    # for the second server, because starting the first server unblocks signals.
    for start_server in (resource_tracker.ensure_running, forkserver.ensure_running):
        previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        start_server()
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
    return context
