"""Shared parts of the peers' scripts: a CartPole that records its episodes, and the files of a run.

Every script runs under its library's interpreter. For each input line ``FOLDER ALGORITHM STEPS`` it prints the id of a
new process and, after its end, the exit status. The process trains with seed 1, or resumes from a checkpoint in FOLDER.
It writes ``curve.csv`` there, a line ``steps,return`` per training episode (ours: rows of metrics.csv); at the end
``weights``, a digest; and at every start a line ``begun`` or ``resumed ...`` in ``log``, after lines
``unreadable NAME ...``.
"""

import hashlib
import os
import random
import sys
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

import gymnasium
import numpy as np
import torch


def write_log(folder: Path, line: str) -> None:
    """Append a line to the file ``log``."""
    with open(folder / "log", "a") as file:
        file.write(line + "\n")


class RecordedCartPole(gymnasium.Wrapper):
    """CartPole-v1 that appends a line per episode to the curve of ``folder``. ``steps`` counts environment steps."""

    def __init__(self, folder: Path) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.curve, self.steps, self.total = folder / "curve.csv", 0, 0.0

    def resume_at(self, steps: int) -> None:
        """Set the step count to a checkpoint's, and delete later episodes from the curve."""
        self.steps = steps
        lines = self.curve.read_text().splitlines() if self.curve.exists() else []
        earlier_lines = [line for line in lines if int(line.split(",")[0]) <= steps]
        self.curve.write_text("".join(f"{line}\n" for line in earlier_lines))

    def reset(self, **kwargs):
        self.total = 0.0
        return super().reset(**kwargs)

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        self.steps, self.total = self.steps + 1, self.total + float(reward)
        if terminated or truncated:
            with open(self.curve, "a") as file:
                file.write(f"{self.steps},{self.total:g}\n")
        return obs, reward, terminated, truncated, info


def write_weights(folder: Path, tensors: Iterable[torch.Tensor]) -> None:
    """Write a digest of the trained weights to the file ``weights``."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    (folder / "weights").write_text(digest.hexdigest())


def serve(main: Callable[[Path, str, int], None]) -> None:
    """Fork a process per input line and run ``main(folder, algorithm, steps)`` in it. The fork saves the imports.
    Global random generators are reseeded, so that only the library's seeds can make runs equal."""
    for line in sys.stdin:
        folder, algorithm, steps = line.split()
        pid = os.fork()
        if pid == 0:
            with open(Path(folder, "output"), "a") as output:
                os.dup2(output.fileno(), 1)
                os.dup2(output.fileno(), 2)
            random.seed()
            np.random.seed()
            try:
                main(Path(folder), algorithm, int(steps))
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
