"""Random numbers as pure functions of integer seeds, so that an episode is a function of its seed.

Number j of seed s is a hash of the pair (s, j), by the finaliser of SplitMix64 (Steele, Lea & Flood 2014, "Fast
Splittable Pseudorandom Number Generators"). If a bit of its argument changes, all bits of the hash may change. Do not
use it for cryptography.
"""

from typing import Any

import numpy as np

UNIFORM, RADIUS, ANGLE, AT = range(4)  # purposes of a hash, so that no two purposes have the same numbers
UNIT = 2.0**-53  # factor that scales `bits` to [0, 1)
# The source's unsigned constants as signed int64, which wraps around.
GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FACTORS = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))


def uniform(seeds: np.ndarray, n: int) -> np.ndarray:
    """Return n numbers for each of ``seeds [N, ...]`` int64: ``[N, ..., n]`` float64, uniform on [0, 1)."""
    return bits(seeds[..., None], np.arange(n), UNIFORM) * UNIT


def normal(seeds: np.ndarray, n: int) -> np.ndarray:
    """Return n standard normal numbers for each of ``seeds [N, ...]`` int64: ``[N, ..., n]`` float64 (Box & Muller
    1958). Their absolute values are below 8.6."""
    radius = bits(seeds[..., None], np.arange(n), RADIUS) * UNIT
    angle = bits(seeds[..., None], np.arange(n), ANGLE) * UNIT
    # 1 - radius is in (0, 1], whose logarithm is finite.
    return np.sqrt(-2.0 * np.log(1.0 - radius)) * np.cos(2.0 * np.pi * angle)


def bits(seeds: Any, columns: Any, use: int) -> Any:
    """Return 53 random bits, as int64, for each pair of ``seeds`` and ``columns``, which are int64 arrays or tensors
    that broadcast. ``use`` is the purpose of the bits, such as `UNIFORM`."""
    # The seed is hashed before the column is added. Both are often consecutive integers, of which many sums are equal.
    hashes = _mix(_mix(seed_hash(seeds) + use) + (columns + 1) * GOLDEN)
    return _shift(hashes, 11)


def seed_hash(seeds: Any) -> Any:
    """Return the hash of each seed alone, without a column, in the shape of ``seeds``, an int64 array or tensor."""
    return _mix(seeds + GOLDEN)


def _mix(number: Any) -> Any:
    """Apply the finaliser of SplitMix64, a bijection of the 64-bit integers, to ``number`` in place."""
    number ^= _shift(number, 30)
    number *= _FACTORS[0]
    number ^= _shift(number, 27)
    number *= _FACTORS[1]
    number ^= _shift(number, 31)
    return number


def _shift(number: Any, count: int) -> Any:
    """Shift ``number`` right by ``count`` bits and fill with zeros. For int64, ``>>`` would fill with the sign."""
    number = number >> count
    number &= (1 << (64 - count)) - 1
    return number
