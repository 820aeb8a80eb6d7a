"""Random numbers: one stream per member, so that a member draws the same numbers alone as in company."""

import hashlib
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

_NOISE_BLOCK = 128


def derive_seed(seed: int, name: str) -> int:
    """A 32-bit seed for the stream `name` of the run `seed`; unrelated for different names."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:4], "little")


def numbered_seed(seed: int, number: int) -> int:
    """A 63-bit seed for the `number`-th of many things of one kind of the run `seed`, such as the tests after its
    episodes."""
    return (seed * 1_000_003 + number) % 2**63


class Streams:
    """M independent generators. Everything drawn leads with the member axis.

    Draw in blocks, not call by call: a draw costs M generator calls whatever its size. Work whose amount depends
    on the company a member keeps (a rollout lasts as long as its longest episode) draws from a `fork`.
    """

    def __init__(self, seeds: Sequence[int]):
        self.generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]

    @classmethod
    def named(cls, seeds: Sequence[int], name: str) -> "Streams":
        """The streams called `name` of the runs `seeds`."""
        return cls([derive_seed(seed, name) for seed in seeds])

    def __len__(self) -> int:
        return len(self.generators)

    def uniform(self, *shape: int) -> Tensor:
        """Uniform on [0, 1), ``[M, *shape]``."""
        return torch.stack([torch.rand(shape, generator=g) for g in self.generators])

    def normal(self, *shape: int) -> Tensor:
        """Standard normal, ``[M, *shape]``."""
        return torch.stack([torch.randn(shape, generator=g) for g in self.generators])

    def gumbel(self, *shape: int) -> Tensor:
        """Standard Gumbel, ``[M, *shape]``: ``argmax(logits + gumbel)`` is a draw from softmax(logits)."""
        tiny = torch.finfo(torch.float32).tiny
        return torch.stack([-(-torch.rand(shape, generator=g).clamp_min(tiny).log()).log() for g in self.generators])

    def integers(self, highs: int | Sequence[int], *shape: int) -> Tensor:
        """Uniform integers below `highs` (one number, or one per member), ``[M, *shape]`` int64."""
        bounds = [highs] * len(self) if isinstance(highs, int) else highs
        return torch.stack(
            [torch.randint(high, shape, generator=g) for high, g in zip(bounds, self.generators, strict=True)]
        )

    def episode_seeds(self, *shape: int) -> Tensor:
        """Seeds for environment resets, ``[M, *shape]`` int64 in [0, 2**31)."""
        return self.integers(2**31 - 1, *shape)

    def fork(self) -> "Streams":
        """New streams seeded by one draw from each of these."""
        return Streams(self.integers(2**31 - 1).tolist())

    def of(self, members: Tensor) -> "Streams":
        """The streams of ``members`` (indices), which stay shared with these."""
        chosen = Streams(())
        chosen.generators = [self.generators[m] for m in members.tolist()]
        return chosen

    def select(self, members: Sequence[int]) -> None:
        """Go on with the streams of ``members`` only."""
        self.generators = [self.generators[m] for m in members]

    def get_state(self) -> Tensor:
        """The state of all generators as one uint8 tensor ``[M, bytes]``."""
        return torch.stack([g.get_state() for g in self.generators])

    def set_state(self, state: Tensor) -> None:
        for generator, row in zip(self.generators, state, strict=True):
            generator.set_state(row.clone())


class Noise:
    """Noise ``[M, *shape]`` step after step, drawn a block of steps at a time."""

    def __init__(self, draw: Callable[..., Tensor], *shape: int):
        self._draw, self._shape = draw, shape
        self._left: Iterator[Tensor] = iter(())

    def __call__(self) -> Tensor:
        block = next(self._left, None)
        if block is None:
            self._left = iter(self._draw(_NOISE_BLOCK, *self._shape).unbind(1))
            block = next(self._left)
        return block
