"""The best means of a search."""

import math
from typing import Any

from torch import Tensor


class Archive:
    """The best means so far by the fitness that fresh agents gave them, best first.

    Such a fitness is a selected maximum: a mean from here is to be evaluated anew.
    """

    def __init__(self, size: int):
        self.size = size
        self.entries: list[tuple[float, int, Tensor]] = []  # (fitness, generation, mean [D])

    def offer(self, fitness: float, generation: int, mean: Tensor) -> None:
        """Keep a mean if it is among the best, of equal ones the earlier. One whose agents all failed is left out."""
        if not math.isfinite(fitness):
            return
        self.entries.append((fitness, generation, mean.clone()))
        self.entries.sort(key=lambda entry: -entry[0])  # stable
        del self.entries[self.size :]

    def state_dict(self) -> dict[str, Any]:
        return {"entries": [list(entry) for entry in self.entries]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.entries = [(fitness, generation, mean) for fitness, generation, mean in state["entries"]]
