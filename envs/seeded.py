"""Random numbers as pure functions of integer seeds, so that an episode is a function of its seed.

No state and no order of drawing: the numbers of one seed are the same alone, in a batch, and in a block of many steps
drawn at once. Column j of seed s hashes the pair (s, j) with the finaliser of SplitMix64 (Steele, Lea & Flood 2014,
"Fast Splittable Pseudorandom Number Generators"), which passes a difference in any bit on to all bits. Not NumPy's or
torch's streams, and not for secrets. `uniform`, `uniform_at`, `normal` and `sign` of one seed are unrelated, and the
first columns stay what they are when more are asked for.
"""

import math

import torch
from torch import Tensor

_UNIFORM, _RADIUS, _ANGLE, _AT = 0, 1, 2, 3  # what a hash is for: apart, so that no two uses share numbers
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # int64 tensors wrap around like unsigned ones
_FACTORS = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))


def uniform(seeds: Tensor, n: int) -> Tensor:
    """Uniform on [0, 1): ``seeds [...]`` int64, any value, to ``[..., n]`` float64 with 53 random bits each."""
    return _unit(seeds[..., None], _first(n, seeds), _UNIFORM)


def uniform_at(seeds: Tensor, columns: Tensor | int) -> Tensor:
    """Uniform on [0, 1), the given column of each seed: ``seeds [...]`` and ``columns [...]`` int64, any values, to
    their broadcast shape, float64 with 53 random bits. The chance event of step t, say, is column t of the episode."""
    # A tensor even of one number: Python's integers do not wrap around.
    return _unit(seeds, torch.as_tensor(columns, device=seeds.device), _AT)


def normal(seeds: Tensor, n: int) -> Tensor:
    """Standard normal (Box & Muller 1958): ``seeds [...]`` int64 to ``[..., n]`` float64; below 8.6 in size."""
    columns = _first(n, seeds)
    # 1 - u is in (0, 1], whose logarithm is finite.
    radius = (-2.0 * (1.0 - _unit(seeds[..., None], columns, _RADIUS)).log()).sqrt()
    return radius * (2.0 * math.pi * _unit(seeds[..., None], columns, _ANGLE)).cos()


def sign(seeds: Tensor) -> Tensor:
    """-1.0 or 1.0 for each of ``seeds``, any shape, float32: the first bit of the seed's own hash."""
    return (_shift(_own(seeds), 63) * 2 - 1).float()


def _first(n: int, seeds: Tensor) -> Tensor:
    return torch.arange(n, device=seeds.device)


def _unit(seeds: Tensor, columns: Tensor, use: int) -> Tensor:
    # The seed is hashed before the column is added: seeds are often neighbours, and so are columns.
    rows = _mix(_own(seeds) + use)
    return _shift(_mix(rows + (columns + 1) * _GOLDEN), 11).to(torch.float64) * 2.0**-53


def _own(seeds: Tensor) -> Tensor:
    """The hash of a seed by itself, of no column."""
    return _mix(seeds.to(torch.int64) + _GOLDEN)


def _mix(number: Tensor) -> Tensor:
    """SplitMix64's finaliser, a bijection of the 64-bit integers."""
    number = (number ^ _shift(number, 30)) * _FACTORS[0]
    number = (number ^ _shift(number, 27)) * _FACTORS[1]
    return number ^ _shift(number, 31)


def _shift(number: Tensor, bits: int) -> Tensor:
    """Shift right that fills with zeros; torch's own keeps the sign."""
    return (number >> bits) & ((1 << (64 - bits)) - 1)
