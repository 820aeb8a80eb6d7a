"""Random numbers: one stream per member, so that a member draws the same numbers alone as in company."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor

from models.spaces import Continuous, Discrete
from models.state import check_like, demand

Shapes = Mapping[str, tuple[int, ...]]
Draw = tuple[Callable[["Streams", int, int], Tensor], Shapes]


def derive_seed(seed: int, name: str) -> int:
    """A 32-bit seed for the stream `name` of the run `seed`; unrelated for different names."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:4], "little")


def numbered_seed(seed: int, number: int) -> int:
    """A 63-bit seed for the `number`-th of many things of one kind, such as the tests after episodes of one run."""
    return (seed * 1_000_003 + number) % 2**63


class Streams:
    """M independent generators. Everything drawn leads with the member axis.

    Draw in blocks, not call by call: a draw costs M generator calls whatever its size. Work whose amount depends
    on the company a member keeps (a rollout lasts as long as its longest episode) draws from a `fork`.
    """

    device = torch.device("cpu")  # of the drawn numbers

    def __init__(self, seeds: Sequence[int]):
        self.generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]

    @classmethod
    def from_name(cls, seeds: Sequence[int], name: str) -> "Streams":
        """The streams called `name` of the runs `seeds`."""
        derived = {seed: derive_seed(seed, name) for seed in set(seeds)}
        return cls([derived[seed] for seed in seeds])

    def __len__(self) -> int:
        return len(self.generators)

    def map_generators(self, draw: Callable[[torch.Generator], Tensor]) -> Tensor:
        """Call ``draw`` with the generator of each member: ``[M, ...]``."""
        return torch.stack([draw(generator) for generator in self.generators])

    def uniform(self, *shape: int) -> Tensor:
        """Uniform on [0, 1), ``[M, *shape]``."""
        return self.map_generators(lambda g: torch.rand(shape, generator=g))

    def normal(self, *shape: int) -> Tensor:
        """Standard normal, ``[M, *shape]``."""
        return self.map_generators(lambda g: torch.randn(shape, generator=g))

    def gumbel(self, *shape: int) -> Tensor:
        """Standard Gumbel, ``[M, *shape]``: ``argmax(logits + gumbel)`` is a draw from softmax(logits)."""
        tiny = torch.finfo(torch.float32).tiny
        return self.map_generators(lambda g: -(-torch.rand(shape, generator=g).clamp_min(tiny).log()).log())

    def integers(self, highs: int | Sequence[int], *shape: int) -> Tensor:
        """Uniform integers below `highs` (one number, or one per member), ``[M, *shape]`` int64."""
        if isinstance(highs, int):
            return self.map_generators(lambda g: torch.randint(highs, shape, generator=g))
        bounds = zip(highs, self.generators, strict=True)
        return torch.stack([torch.randint(high, shape, generator=g) for high, g in bounds])

    def permutations(self, count: int) -> Tensor:
        """The numbers below ``count`` in random order, ``[M, count]`` int64."""
        return self.map_generators(lambda g: torch.randperm(count, generator=g))

    def episode_seeds(self, *shape: int) -> Tensor:
        """Seeds for environment resets, ``[M, *shape]`` int64 in [0, 2**31)."""
        return self.integers(2**31 - 1, *shape)

    def fork(self) -> "Streams":
        """New streams seeded by one draw from each of these."""
        return Streams(self.integers(2**31 - 1).tolist())

    def of(self, members: Tensor) -> "Streams":
        """The streams of ``members`` (indices). Their generators are shared with these streams."""
        member_streams = Streams(())
        member_streams.generators = [self.generators[m] for m in members.tolist()]
        return member_streams

    def select(self, members: Sequence[int]) -> None:
        """Go on with the streams of ``members`` only."""
        self.generators = [self.generators[m] for m in members]

    def get_state(self) -> Tensor:
        """The state of all generators as one uint8 tensor ``[M, bytes]``."""
        return self.standing()()

    def standing(self) -> Callable[[], Tensor]:
        """A function that returns the current `get_state` when it is called later. Cheap, because most are never
        called."""
        states = [generator.get_state() for generator in self.generators]
        return lambda: torch.stack(states)

    def set_state(self, state: Tensor) -> None:
        check_like(self.get_state(), state, "random generators")
        for generator, row in zip(self.generators, state, strict=True):
            generator.set_state(row.clone())


class SharedStreams(Streams):
    """Streams in which many members have the same seed. One generator draws for all of them, in a fraction of the time,
    the same numbers as `Streams`. All members draw together."""

    def __init__(self, seeds: Sequence[int]):
        numbers = {seed: number for number, seed in enumerate(dict.fromkeys(seeds))}
        super().__init__(list(numbers))
        self._of = torch.tensor([numbers[seed] for seed in seeds])  # the generator of each member

    def __len__(self) -> int:
        return len(self._of)

    def map_generators(self, draw: Callable[[torch.Generator], Tensor]) -> Tensor:
        return super().map_generators(draw).index_select(0, self._of)

    def standing(self) -> Callable[[], Tensor]:
        get_states, of = super().standing(), self._of
        return lambda: get_states().index_select(0, of)

    def integers(self, highs: int | Sequence[int], *shape: int) -> Tensor:
        if not isinstance(highs, int):
            raise NotImplementedError("bounds of each member")
        return super().integers(highs, *shape)

    def of(self, members: Tensor) -> Streams:
        raise NotImplementedError("some of the streams")

    def select(self, members: Sequence[int]) -> None:
        used, self._of = self._of[torch.tensor(members, dtype=torch.int64)].unique(return_inverse=True)
        super().select(used.tolist())

    def set_state(self, state: Tensor) -> None:
        check_like(self.get_state(), state, "random generators")
        for generator, row in zip(self._of.tolist(), state, strict=True):
            self.generators[generator].set_state(row.clone())


def in_step(seeds: Sequence[int], name: str) -> Streams:
    """`Streams.from_name`, for members that draw together for as long as they live."""
    return (Streams if len(set(seeds)) == len(seeds) else SharedStreams).from_name(seeds, name)


def random_actions(actions: Discrete | Continuous, streams: Streams, envs: int) -> Tensor:
    """Uniform actions ``[M, E]`` or ``[M, E, A]``."""
    if isinstance(actions, Discrete):
        return streams.integers(actions.n, envs)
    low, high = torch.tensor(actions.low), torch.tensor(actions.high)
    return low + (high - low) * streams.uniform(envs, actions.size)


def uniforms(streams: Streams, steps: int, count: int) -> Tensor:
    """A draw of `NoiseBlocks`: uniform numbers, of streams of any kind."""
    return streams.uniform(steps, count)


def integers_below(n: int) -> Callable[[Streams, int, int], Tensor]:
    """A draw of `NoiseBlocks`: uniform integers below ``n``, each by one uniform number."""
    return lambda streams, steps, count: (streams.uniform(steps, count) * n).to(torch.int64).clamp_(max=n - 1)


class Blocks:
    """Random numbers for one step after another, drawn by ``streams`` for so many of them at once. The block after the
    present one can be drawn early."""

    def __init__(self, streams: Streams):
        self.streams = streams
        self._begin(-1)

    def _begin(self, number: int) -> None:
        self.number = number  # of the present block; -1 before the first
        # The current block, and the next one if it is drawn, each with the state of the streams before it.
        self._blocks: list[tuple[Callable[[], Tensor], dict[str, Tensor]]] = [(self.streams.standing(), {})]
        self._by_step: Mapping[str, Sequence[Any]] | None = None  # the present one, split when it is first needed

    def draw_block(self) -> dict[str, Tensor]:
        """The numbers of T steps by name, ``[M, T, ...]`` each."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Draw the next block, as another thread may do while the present one is used."""
        if len(self._blocks) == 1:
            self._blocks.append((self.streams.standing(), self.draw_block()))

    def turn(self) -> None:
        """Go on to the next block."""
        self.prepare()
        del self._blocks[0]
        self.number, self._by_step = self.number + 1, None

    @property
    def block(self) -> dict[str, Tensor]:
        """The present one; empty before the first."""
        return self._blocks[0][1]

    def row(self, step: int) -> dict[str, Any]:
        """The numbers ``[M, ...]`` of one step of the present block."""
        if self._by_step is None:
            self._by_step = self._split()
        return {name: steps[step] for name, steps in self._by_step.items()}

    def _split(self) -> Mapping[str, Sequence[Any]]:
        return {name: block.unbind(1) for name, block in self.block.items()}

    def select(self, members: Tensor) -> None:
        """Go on with ``members`` (indices ``[M']``) only."""
        self.streams.select(members.tolist())
        self._blocks = [
            (partial(_rows, start_state, members), {name: column[members] for name, column in block.items()})
            for start_state, block in self._blocks
        ]
        self._by_step = None

    def began(self) -> Tensor:
        """The state of the streams before the present block."""
        return self._blocks[0][0]()

    def seek(self, began: Tensor, number: int) -> None:
        """Go to block ``number``, which starts at the state ``began`` of the streams."""
        self.streams.set_state(began)
        self._begin(max(number, 0) - 1)
        if number >= 0:
            self.turn()


def _rows(state: Callable[[], Tensor], members: Tensor) -> Tensor:
    return state()[members]


class NoiseBlocks(Blocks):
    """`Blocks` of ``steps`` that are used up in order.

    ``draws`` are functions such as `Streams.uniform`, each with the names and shapes of its numbers of a step. They are
    called one after another; the numbers of one call are adjacent.
    """

    STEPS = 128

    def __init__(self, streams: Streams, draws: Sequence[Draw], steps: int = STEPS, device: torch.device | None = None):
        super().__init__(streams)
        self.draws, self.steps, self.device = draws, steps, device
        self._used = steps  # of the block, which is not drawn yet

    def next(self) -> dict[str, Tensor]:
        """The numbers of the next step, ``[M, *shape]`` each."""
        if self._used == self.steps:
            self.turn()
        self._used += 1
        return self.row(self._used - 1)

    def ahead(self, max_steps: int, joined: int = 0) -> dict[str, Tensor]:
        """The numbers of the next T steps, ``[M, T, *shape]`` by name. T is the rest of the current block, or a whole
        block, plus further blocks while there are at most ``joined`` steps; at most ``max_steps``."""
        parts: list[dict[str, Tensor]] = []
        done_steps = 0
        while not parts or done_steps < max_steps and done_steps + self.steps <= joined:
            if self._used == self.steps:
                self.turn()
            first, self._used = self._used, min(self.steps, self._used + max_steps - done_steps)
            parts.append({name: block[:, first : self._used] for name, block in self.block.items()})
            done_steps += self._used - first
        if len(parts) == 1:
            return {name: part.contiguous() for name, part in parts[0].items()}
        return {name: torch.cat([part[name] for part in parts], 1) for name in parts[0]}

    def draw_block(self) -> dict[str, Tensor]:
        block = {}
        for draw, shapes in self.draws:
            counts = [prod(shape) for shape in shapes.values()]
            numbers = draw(self.streams, self.steps, sum(counts)).to(self.device)
            for (name, shape), part in zip(shapes.items(), numbers.split(counts, 2), strict=True):
                block[name] = part.unflatten(2, shape).contiguous()  # here, because another thread may run this
        return block

    def turn(self) -> None:
        super().turn()
        self._used = 0

    def get_ready(self) -> None:
        """Draw the numbers of the next step. Another thread may do so while the current numbers are used."""
        if self._used == self.steps:
            self.prepare()

    def state_dict(self) -> dict[str, Any]:
        return {"streams": self.began(), "used": self._used if self.block else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        used = state["used"]
        demand(used is None or used in range(self.steps + 1), "a block of noise", f"has {used} used", f"{self.steps}")
        self.seek(state["streams"], -1 if used is None else 0)
        self._used = self.steps if used is None else used
