"""Gymnasium environments stepped by several processes, in lock-step and with the same results as by one.

Each worker holds a contiguous part of the ``M * E`` environments in an adapter of its own. Numbers travel
through shared memory, the pipe carries only "go" and "done": a round trip costs some tens of microseconds.
"""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from envs.base import EnvironmentFault, Replayed, Step
from envs.gymnasium_adapter import GymnasiumEnvironment
from envs.names import Game
from models.spaces import Spaces

_JOIN_SECONDS = 5.0


class ParallelEnvironment(Replayed):
    """``members * envs`` environments over ``num_workers`` processes; see `envs.base.Environment`.

    A worker that dies, or whose environment faults, raises EnvironmentFault; after a death all workers are gone.
    Workers end with `close`, and with this process however it ends. Scripts that make one need the usual
    ``if __name__ == "__main__"`` guard.
    """

    def __init__(self, game: Game, members: int, envs: int, num_workers: int) -> None:
        self.game, self.members, self.envs = game, members, envs
        self._workers: list[tuple[Any, Connection]] = []
        # Faulty settings are found here, where they can be told in one line.
        single = GymnasiumEnvironment(game, 1, 1)
        self.spaces: Spaces = single.spaces
        single.close()
        rows = members * envs
        context = _context()
        layout = _layout(self.spaces, len(game.info), rows)
        self._shared = _raw_arrays(context, layout)
        self._views = _views(self._shared, layout)
        bounds = np.linspace(0, rows, min(num_workers, rows) + 1).astype(int).tolist()
        for start, stop in zip(bounds[:-1], bounds[1:], strict=True):
            ours, theirs = context.Pipe()
            arguments = (theirs, game, start, stop, self._shared, layout)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours))

    def reset(self, seeds: Tensor, where: Tensor | None = None) -> Tensor:
        self._note_reset(seeds, where)
        self._views["seeds"][:] = seeds.reshape(-1).numpy()
        self._views["active"][:] = True if where is None else where.reshape(-1).numpy()
        self._all("reset")
        return self._take("obs")

    def step(self, actions: Tensor, active: Tensor | None = None) -> Step:
        self._note_step(actions, active)
        self._views["actions"][:] = actions.detach().numpy().reshape(self._views["actions"].shape)
        self._views["active"][:] = True if active is None else active.reshape(-1).numpy()
        self._all("step")
        return Step(**{key: self._take(key) for key in _told(self.game)})

    def close(self) -> None:
        for _, pipe in self._workers:
            pipe.close()
        deadline = time.monotonic() + _JOIN_SECONDS
        for process, _ in self._workers:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode != 0:
                _kill_group(process.pid)
                process.join()
            process.close()
        self._workers = []

    def _take(self, key: str) -> Tensor:
        view = self._views[key]
        return torch.from_numpy(view.copy()).view(self.members, self.envs, *view.shape[1:])

    def _all(self, order: str) -> None:
        """Have every worker carry out the order; the first fault is raised when all have answered."""
        if not self._workers:
            raise EnvironmentFault(f"environment {self.game.name}: its workers are closed")
        for _, pipe in self._workers:
            # A broken pipe shows again, with a name, when the answer is awaited.
            with contextlib.suppress(OSError):
                pipe.send(order)
        faults = [fault for fault in map(self._answer, range(len(self._workers))) if fault]
        if any(died for _, died in faults):
            self.close()
        if faults:
            raise EnvironmentFault(faults[0][0])

    def _answer(self, index: int) -> tuple[str, bool] | None:
        """None when all is well, else (message, whether the worker is gone)."""
        process, pipe = self._workers[index]
        try:
            # The pipe alone would not do: a program that an environment has started may hold its far end open.
            if pipe not in multiprocessing.connection.wait([pipe, process.sentinel]):
                raise EOFError
            message = pipe.recv()
        except (EOFError, OSError):
            process.join(_JOIN_SECONDS)
            which = f"worker {index + 1} of {len(self._workers)}"
            return f"environment {self.game.name}: {which} died (exit code {process.exitcode})", True
        return (message, False) if message else None


def _serve(pipe: Connection, game: Game, start: int, stop: int, shared: dict[str, Any], layout: "_Layout") -> None:
    """A worker's life: carry out orders on rows ``start .. stop`` until the pipe is closed at the other end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    if hasattr(os, "setsid"):
        os.setsid()  # so that what an environment starts can be ended with its worker
    torch.set_num_threads(1)
    views = {key: view[start:stop] for key, view in _views(shared, layout).items()}
    environment = None
    with contextlib.suppress(EOFError, OSError):
        while True:
            order = pipe.recv()
            try:
                if environment is None:
                    environment = GymnasiumEnvironment(game, 1, stop - start)
                _carry_out(order, environment, views)
                pipe.send("")
            except (EnvironmentFault, ValueError) as fault:
                pipe.send(str(fault))
    if environment is not None:
        environment.close()


def _kill_group(pid: int) -> None:
    """Kill a worker and every program its environments have started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(pid, signal.SIGKILL)
        else:
            os.kill(pid, signal.SIGTERM)


def _carry_out(order: str, environment: GymnasiumEnvironment, views: dict[str, np.ndarray]) -> None:
    active = torch.from_numpy(views["active"])[None]
    if order == "reset":
        views["obs"][:] = environment.reset(torch.from_numpy(views["seeds"])[None], active)[0].numpy()
        return
    step = environment.step(torch.from_numpy(views["actions"])[None], active)
    for key in _told(environment.game):
        views[key][:] = getattr(step, key)[0].numpy()


def _told(game: Game) -> list[str]:
    """The fields of a `Step` that travel."""
    return ["obs", "reward", "terminated", "truncated"] + ["info"] * bool(game.info)


_Layout = dict[str, tuple[Any, tuple[int, ...]]]


def _layout(spaces: Spaces, infos: int, rows: int) -> _Layout:
    """Key -> (dtype, shape) of every shared array."""
    obs = np.uint8 if spaces.is_image else np.float32
    action = np.int64 if spaces.action_dtype == torch.int64 else np.float32
    scalars = {"reward": np.float32, "terminated": np.bool_, "truncated": np.bool_, "active": np.bool_}
    return {
        "obs": (obs, (rows, *spaces.obs_shape)),
        "actions": (action, (rows, *spaces.action_shape)),
        "seeds": (np.int64, (rows,)),
        "info": (np.float32, (rows, infos)),
        **{key: (dtype, (rows,)) for key, dtype in scalars.items()},
    }


def _raw_arrays(context: Any, layout: _Layout) -> dict[str, Any]:
    # An array of no numbers takes a byte too: nothing can be viewed in none.
    return {
        key: context.RawArray("b", max(1, int(np.dtype(dtype).itemsize * np.prod(shape))))
        for key, (dtype, shape) in layout.items()
    }


def _views(shared: dict[str, Any], layout: _Layout) -> dict[str, np.ndarray]:
    return {key: np.ndarray(layout[key][1], layout[key][0], buffer=raw) for key, raw in shared.items()}


def _context() -> Any:
    """Workers fork from a clean server that has imported torch once; never from this process and its threads."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["envs.workers"])
    return context
