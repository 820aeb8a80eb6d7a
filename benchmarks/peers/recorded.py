"""What the peers' scripts share: CartPole that writes down its episodes, and what a run leaves for the comparison.

Each script is run by its library's own interpreter. For every line ``FOLDER ALGORITHM STEPS`` on its input it prints
the id of a new process and, once that has ended, its exit status. The process trains with seed 1, or goes on where
FOLDER holds a checkpoint. It writes ``curve.csv`` there, a line ``steps,return`` per training episode; in the end
``weights``, a digest; and into ``log`` each time a line ``begun``, ``resumed at N`` or ``unreadable NAME``.
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


def say(folder: Path, line: str) -> None:
    with open(folder / "log", "a") as file:
        file.write(line + "\n")


class Recorded(gymnasium.Wrapper):
    """CartPole-v1 that appends its episodes to the curve of ``folder``, from environment step ``steps`` on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.curve, self.steps, self.total = folder / "curve.csv", 0, 0.0

    def go_on_from(self, steps: int) -> None:
        """Forget the episodes after a checkpoint."""
        self.steps = steps
        lines = self.curve.read_text().splitlines() if self.curve.exists() else []
        kept_lines = [line for line in lines if int(line.split(",")[0]) <= steps]
        self.curve.write_text("".join(f"{line}\n" for line in kept_lines))

    def reset(self, **kwargs):
        self.total = 0.0
        return super().reset(**kwargs)

    def step(self, action):
        transition = super().step(action)
        self.steps, self.total = self.steps + 1, self.total + float(transition[1])
        if transition[2] or transition[3]:
            with open(self.curve, "a") as file:
                file.write(f"{self.steps},{self.total:g}\n")
        return transition


def finish(folder: Path, tensors: Iterable[torch.Tensor]) -> None:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    (folder / "weights").write_text(digest.hexdigest())


def serve(main: Callable[[Path, str, int], None]) -> None:
    """Each process is a copy of this one, which has imported everything and nothing else; without seeds of its own it
    would draw other numbers than the next."""
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
