"""Random numbers: one stream (random generator) per member, so that a member has the same numbers alone and among
others.

M is the number of members (independent agents, one per seed), E of environments of each, T of steps. A block is the
random numbers of T steps, sampled in one call, which costs much less than T calls.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from models.spaces import Continuous, Discrete
from models.state import check_like, require

Shapes = Mapping[str, tuple[int, ...]]
Draw = tuple[Callable[["Streams", int, int], Tensor], Shapes]
"""A sampler ``(streams, steps, count) -> [M, steps, count]``, and the names and shapes of the numbers of one step that
it samples. For example, ``(Streams.uniform, {"explore": (4,), "replay": (1, 32)})`` samples 36 numbers a step."""


def derive_seed(seed: int, name: str) -> int:
    """Return a 32-bit seed for the stream ``name``, such as "weights", of a run with this ``seed``: a hash of both."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:4], "little")


def numbered_seed(seed: int, number: int) -> int:
    """Return a 63-bit seed for item ``number`` in a sequence, such as the evaluations of one run."""
    return (seed * 1_000_003 + number) % 2**63  # seeds share no result for numbers below a million


class Streams:
    """M random generators, one for each member (independent agent), which is the first axis of all sampled numbers. If
    their amount depends on other members, as in a rollout until the longest episode ends, sample from a `fork`."""

    device = torch.device("cpu")  # device of the sampled numbers

    def __init__(self, seeds: Sequence[int]):
        self.generators = [torch.Generator().manual_seed(int(seed)) for seed in seeds]

    @classmethod
    def from_name(cls, seeds: Sequence[int], name: str) -> "Streams":
        """Return streams for members with these ``seeds``. Streams of one seed with different names, such as "weights"
        and "exploration", are independent."""
        return cls([derive_seed(seed, name) for seed in seeds])

    def __len__(self) -> int:
        return len(self.generators)

    def map_generators(self, sample: Callable[[torch.Generator], Tensor]) -> Tensor:
        """Call ``sample`` with the generator of each member, and stack the results: ``[M, ...]``."""
        return torch.stack([sample(generator) for generator in self.generators])

    def uniform(self, *shape: int) -> Tensor:
        """Sample uniform numbers in [0, 1), ``[M, *shape]``."""
        return self.map_generators(lambda generator: torch.rand(shape, generator=generator))

    def normal(self, *shape: int) -> Tensor:
        """Sample standard normal numbers, ``[M, *shape]``."""
        return self.map_generators(lambda generator: torch.randn(shape, generator=generator))

    def gumbel(self, *shape: int) -> Tensor:
        """Sample standard Gumbel noise, ``[M, *shape]``: ``argmax(logits + gumbel)`` samples from softmax(logits)."""
        tiny = torch.finfo(torch.float32).tiny  # replaces 0, whose logarithm is infinite

        def sample(generator: torch.Generator) -> Tensor:
            exponential = -torch.rand(shape, generator=generator).clamp_min(tiny).log()
            return -exponential.log()

        return self.map_generators(sample)

    def integers(self, highs: int | Sequence[int], *shape: int) -> Tensor:
        """Sample uniform integers in [0, highs), ``[M, *shape]`` int64. ``highs`` is one bound, or one per member."""
        if isinstance(highs, int):
            return self.map_generators(lambda generator: torch.randint(highs, shape, generator=generator))
        samples = []
        for high, generator in zip(highs, self.generators, strict=True):
            samples.append(torch.randint(high, shape, generator=generator))
        return torch.stack(samples)

    def permutations(self, count: int) -> Tensor:
        """Sample a permutation of 0 .. ``count`` - 1 for each member, ``[M, count]`` int64."""
        return self.map_generators(lambda generator: torch.randperm(count, generator=generator))

    def episode_seeds(self, *shape: int) -> Tensor:
        """Sample seeds for environment resets, ``[M, *shape]`` int64 in [0, 2**31 - 1)."""
        return self.integers(2**31 - 1, *shape)

    def fork(self) -> "Streams":
        """Return new streams with seeds that are sampled from these streams, which advance."""
        return Streams(self.integers(2**31 - 1).tolist())

    def subset(self, members: Tensor) -> "Streams":
        """Return the streams of ``members`` (indices ``[M']``), which share their generators with ``self``."""
        member_streams = Streams(())
        member_streams.generators = [self.generators[m] for m in members.tolist()]
        return member_streams

    def get_state(self) -> Tensor:
        """Return the state of all generators as one uint8 tensor ``[M, bytes]``."""
        return torch.stack([generator.get_state() for generator in self.generators])

    def set_state(self, state: Tensor) -> None:
        """Restore the result of `get_state`. Raises StateError for another shape."""
        check_like(self.get_state(), state, "random generators")
        for generator, generator_state in zip(self.generators, state, strict=True):
            generator.set_state(generator_state.clone())

    def state_dict(self) -> dict[str, Any]:
        return {"generators": self.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.set_state(state["generators"])


class SharedStreams(Streams):
    """Streams for members of which many have the same seed. These share a generator, which saves time, and get the same
    numbers as from `Streams`. All members must sample together: no `subset`, and no bound per member in `integers`."""

    def __init__(self, seeds: Sequence[int]):
        unique_seeds = list(dict.fromkeys(seeds))
        super().__init__(unique_seeds)
        index_by_seed = {seed: index for index, seed in enumerate(unique_seeds)}
        self._generator_index = torch.tensor([index_by_seed[seed] for seed in seeds])  # [M], one index per member

    def __len__(self) -> int:
        return len(self._generator_index)

    def map_generators(self, sample: Callable[[torch.Generator], Tensor]) -> Tensor:
        return super().map_generators(sample).index_select(0, self._generator_index)


def lockstep_streams(seeds: Sequence[int], name: str) -> Streams:
    """Return the streams ``name`` for members that always sample together, with shared generators if seeds repeat."""
    streams_class = Streams if len(set(seeds)) == len(seeds) else SharedStreams
    return streams_class.from_name(seeds, name)


def random_actions(actions: Discrete | Continuous, streams: Streams, envs: int) -> Tensor:
    """Sample uniform actions, ``[M, E]`` int64 (discrete) or ``[M, E, A]`` within the bounds, E = ``envs``."""
    if isinstance(actions, Discrete):
        return streams.integers(actions.n, envs)
    low, high = torch.tensor(actions.low), torch.tensor(actions.high)
    return low + (high - low) * streams.uniform(envs, actions.size)


def integers_below(n: int) -> Callable[[Streams, int, int], Tensor]:
    """Return a sampler for `Draw` of integers in [0, n), each from one uniform number."""

    def sample(streams: Streams, steps: int, count: int) -> Tensor:
        return (streams.uniform(steps, count) * n).to(torch.int64).clamp_(max=n - 1)  # rounding may give n

    return sample


class Blocks:
    """Base class of random numbers for consecutive steps, sampled from ``streams`` in blocks. A block has the numbers
    of T steps, ``{name: [M, T, ...]}``. The next block can be sampled in advance (`prepare`)."""

    def __init__(self, streams: Streams):
        self.streams = streams
        self.number = -1  # number of the current block; -1 before the first block
        self.block: dict[str, Tensor] = {}  # the current block, ``{name: [M, T, ...]}``; empty before block 0
        self.block_start = streams.get_state()  # state ``[M, bytes]`` of the streams before the current block
        # The state of the streams before the next block, and the next block, if it is already sampled.
        self._next: tuple[Tensor, dict[str, Tensor]] | None = None
        self._step_values: dict[str, Sequence[Tensor]] | None = None  # the current block, split by step at first use

    def draw_block(self) -> dict[str, Tensor]:
        """Sample a block, the numbers of T steps: ``{name: [M, T, ...]}``."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Sample the next block in advance. Another thread may call this while the current block is in use."""
        if self._next is None:
            self._next = self.streams.get_state(), self.draw_block()

    def next_block(self) -> None:
        """Move to the next block. Sample it first, unless `prepare` has sampled it."""
        self.prepare()
        assert self._next is not None
        self.block_start, self.block = self._next
        self._next = self._step_values = None
        self.number += 1

    def random_numbers_at(self, step: int) -> dict[str, Tensor]:
        """Return the random numbers of a step of the current block, counted from its start, ``{name: [M, ...]}``."""
        if self._step_values is None:
            self._step_values = {name: values.unbind(1) for name, values in self.block.items()}  # T tensors each
        return {name: values[step] for name, values in self._step_values.items()}

    def seek(self, start_state: Tensor, number: int) -> None:
        """Return to block ``number``, by sampling it again from ``start_state``, the state of the streams before it
        (`block_start`). Number -1 is the position before the first block."""
        self.streams.set_state(start_state)
        self.block, self.block_start, self._next = {}, start_state, None
        if number >= 0:
            self.next_block()
        self.number = number


class NoiseBlocks(Blocks):
    """Random numbers for the steps of agents, used one step after another, in `Blocks` of ``steps`` steps. Each item of
    ``draws`` (`Draw`) is a sampler, called once per block, and the names and shapes of its numbers."""

    STEPS = 128

    def __init__(self, streams: Streams, draws: Sequence[Draw], steps: int = STEPS, device: torch.device | None = None):
        super().__init__(streams)
        self.draws, self.steps, self.device = draws, steps, device
        self._used = steps  # used steps of the current block; at first all, so that the first step moves to block 0

    def next(self) -> dict[str, Tensor]:
        """Return the random numbers of the next step, ``{name: [M, *shape]}``."""
        if self._used == self.steps:
            self.next_block()
        self._used += 1
        return self.random_numbers_at(self._used - 1)

    def take(self, max_steps: int, max_joined_steps: int = 0) -> dict[str, Tensor]:
        """Return the random numbers of the next T steps, ``{name: [M, T, *shape]}``, and count these steps as used. T
        is at most ``max_steps``. The steps are the rest of the current block, or the next block if the current block is
        used up. Further blocks follow as long as the total with a whole block is at most ``max_joined_steps``."""
        slices: list[dict[str, Tensor]] = []  # one for each block
        num_steps = 0
        while True:
            if self._used == self.steps:
                self.next_block()
            start = self._used
            self._used = min(self.steps, start + max_steps - num_steps)
            slices.append({name: values[:, start : self._used] for name, values in self.block.items()})
            num_steps += self._used - start
            if num_steps == max_steps or num_steps + self.steps > max_joined_steps:
                break
        if len(slices) == 1:
            return {name: values.contiguous() for name, values in slices[0].items()}
        return {name: torch.cat([values[name] for values in slices], 1) for name in slices[0]}

    def draw_block(self) -> dict[str, Tensor]:
        block = {}
        for sample, shapes in self.draws:
            counts = [prod(shape) for shape in shapes.values()]
            samples = sample(self.streams, self.steps, sum(counts)).to(self.device)  # [M, T, sum of counts]
            for (name, shape), values in zip(shapes.items(), samples.split(counts, dim=2), strict=True):
                # The copy by `contiguous` costs the main thread no time if another thread calls `prepare`.
                block[name] = values.unflatten(2, shape).contiguous()
        return block

    def next_block(self) -> None:
        super().next_block()
        self._used = 0

    def get_ready(self) -> None:
        """Call `prepare` if all steps of the current block are used. Another thread may call this."""
        if self._used == self.steps:
            self.prepare()

    def state_dict(self) -> dict[str, Any]:
        """Return ``streams``, the state of the streams before the current block, and ``used``, the number of used steps
        of the block (None before the first block)."""
        return {"streams": self.block_start, "used": self._used if self.block else None}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`, by sampling the current block again. ``number`` starts again at 0."""
        used_steps = state["used"]
        if used_steps is None:
            self.seek(state["streams"], -1)
            self._used = self.steps  # the first step moves to a new block
        else:
            require(used_steps in range(self.steps + 1), "a block of noise", f"has {used_steps} used", f"{self.steps}")
            self.seek(state["streams"], 0)
            self._used = used_steps
