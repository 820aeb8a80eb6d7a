"""What the peers' scripts share: CartPole that writes down its episodes, and what a run leaves for the comparison.

Each script is called ``SCRIPT FOLDER ALGORITHM STEPS`` by its library's own interpreter. It trains with seed 1, or goes
on where FOLDER holds a checkpoint. It writes ``curve.csv`` there, a line ``steps,return`` per training episode; in the
end ``weights``, a digest; and into ``log`` each time a line ``begun``, ``resumed at N`` or ``unreadable NAME``.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import gymnasium
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
        kept = [line for line in lines if int(line.split(",")[0]) <= steps]
        self.curve.write_text("".join(f"{line}\n" for line in kept))

    def reset(self, **how):
        self.total = 0.0
        return super().reset(**how)

    def step(self, action):
        found = super().step(action)
        self.steps, self.total = self.steps + 1, self.total + float(found[1])
        if found[2] or found[3]:
            with open(self.curve, "a") as file:
                file.write(f"{self.steps},{self.total:g}\n")
        return found


def finish(folder: Path, tensors: Iterable[torch.Tensor]) -> None:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    (folder / "weights").write_text(digest.hexdigest())
