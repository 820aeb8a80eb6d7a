"""Random streams on another device than the CPU: numbers are hashes of a member's seed and of their place."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from models.state import demand, like
from models.streams import Streams, derive_seed, in_step
from understudy.hashing import bits

_DRAWS = 4  # what the hashes are for, apart from the uses of `understudy.hashing`
_KEPT = 29  # of 53 bits are too many for a float32
CPU = torch.device("cpu")
BLOCK = 32  # steps whose numbers are drawn at once, for tens of thousands of members


class HashedStreams(Streams):
    """M streams on ``device``. No generator is asked member by member, so a draw is a dozen operations on tensors
    whatever M is. A member's numbers are a function of its seed and of how many were drawn before.

    They are other numbers than those of `Streams` of the same seeds. Only what is drawn between steps is here: uniform
    numbers and integers.
    """

    def __init__(self, seeds: Sequence[int], device: torch.device):
        self.generators, self.device = [], device
        self.seeds = torch.tensor([int(seed) for seed in seeds], dtype=torch.int64)
        self.keys, self.drawn = self.seeds.to(device), 0

    def __len__(self) -> int:
        return len(self.keys)

    def _bits(self, *shape: int) -> Tensor:
        """53 random bits each, ``[M, *shape]`` int64."""
        places = torch.arange(self.drawn, self.drawn + torch.Size(shape).numel(), device=self.keys.device)
        self.drawn += len(places)
        found: Tensor = bits(self.keys.unsqueeze(1), places, _DRAWS)
        return found.view(len(self), *shape)

    def uniform(self, *shape: int) -> Tensor:
        return (self._bits(*shape) >> _KEPT).float() * 2.0 ** -(53 - _KEPT)

    def integers(self, highs: int | Sequence[int], *shape: int) -> Tensor:
        if not isinstance(highs, int):
            raise NotImplementedError("bounds of each member")
        return self._bits(*shape).remainder_(highs)

    def normal(self, *shape: int) -> Tensor:
        raise NotImplementedError("normal numbers")

    gumbel = normal

    def permutations(self, count: int) -> Tensor:
        raise NotImplementedError("permutations")

    def fork(self) -> Streams:
        raise NotImplementedError("forks")

    def of(self, members: Tensor) -> Streams:
        raise NotImplementedError("some of the streams")

    def select(self, members: Sequence[int]) -> None:
        self.seeds = self.seeds[torch.tensor(members, dtype=torch.int64)]
        self.keys = self.seeds.to(self.device)

    def standing(self) -> Callable[[], Tensor]:
        """For seeds and how many numbers were drawn, ``[M, 2]`` int64 on the CPU."""
        state = torch.stack([self.seeds, torch.full((len(self),), self.drawn)], 1)
        return lambda: state

    def set_state(self, state: Tensor) -> None:
        like(self.get_state(), state, "random streams")
        drawn = state[:, 1].unique().tolist()
        demand(len(drawn) <= 1, "random streams", f"have drawn {drawn}", "one number")
        self.seeds, self.drawn = state[:, 0].clone(), drawn[0] if drawn else 0
        self.keys = self.seeds.to(self.device)


def streams_on(device: torch.device, seeds: Sequence[int], name: str) -> Streams:
    """The streams called ``name`` of the runs ``seeds``: generators on the CPU, hashes elsewhere."""
    if device == CPU:
        return in_step(seeds, name)
    return HashedStreams([derive_seed(seed, name) for seed in seeds], device)
