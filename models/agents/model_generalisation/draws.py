"""Random numbers of a tick by name, drawn for many ticks at once."""

from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from models.streams import Streams

_NUMBERS = 1 << 16  # of a member in a block, about
_MOST = 128  # ticks in a block

Shapes = Mapping[str, tuple[int, ...]]


class Draws:
    """What one tick needs. ``wanted`` says for each kind (uniform, normal, gumbel: methods of `Streams`) which names
    have which shapes, without the member axis.

    How many ticks are drawn at once follows from the shapes alone, so a member's numbers do not depend on its company.
    Numbers are drawn on the CPU and moved to ``device``.
    """

    def __init__(self, seeds: Sequence[int], wanted: Mapping[str, Shapes], device: torch.device):
        self.streams = Streams.named(seeds, "model generalisation")
        self.wanted, self.device = wanted, device
        self._counts = {kind: sum(map(prod, shapes.values())) for kind, shapes in wanted.items()}
        self._ticks = max(1, min(_MOST, _NUMBERS // max(1, sum(self._counts.values()))))
        self._used = self._ticks  # of the block, which is not drawn yet
        self._before = self.streams.get_state()
        self._block: dict[str, Tensor] = {}

    @property
    def names(self) -> list[str]:
        return [name for shapes in self.wanted.values() for name in shapes]

    def tick(self) -> dict[str, Tensor]:
        """The numbers of the next tick, ``[M, *shape]`` each."""
        if self._used == self._ticks:
            self._draw()
        tick, self._used = self._used, self._used + 1
        return {name: block[:, tick] for name, block in self._block.items()}

    def _draw(self) -> None:
        self._before = self.streams.get_state()
        self._block = {}
        for kind, shapes in self.wanted.items():
            numbers = getattr(self.streams, kind)(self._ticks, self._counts[kind]).to(self.device)
            parts = numbers.split([prod(shape) for shape in shapes.values()], 2)
            for (name, shape), part in zip(shapes.items(), parts, strict=True):
                self._block[name] = part.unflatten(2, shape)
        self._used = 0

    def state(self) -> dict[str, object]:
        """What to go on from."""
        return {"before": self._before, "used": self._used if self._block else None}

    def load_state(self, state: dict) -> None:
        self.streams.set_state(state["before"])
        if state["used"] is not None:
            self._draw()
            self._used = state["used"]
