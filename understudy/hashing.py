"""Random numbers as pure functions of integer seeds, so that an episode is a function of its seed.

Column j of seed s hashes the pair (s, j) with the finaliser of SplitMix64 (Steele, Lea & Flood 2014, "Fast Splittable
Pseudorandom Number Generators"). The numbers are those of `envs.seeded`, which explains them. Not for secrets.
"""

import numpy as np

_UNIFORM, _RADIUS, _ANGLE = 0, 1, 2  # what a hash is for: apart, so that no two uses share numbers
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def uniform(seeds: np.ndarray, n: int) -> np.ndarray:
    """Uniform on [0, 1): ``seeds [...]`` int64, at least one axis, to ``[..., n]`` float64 with 53 random bits each."""
    return _unit(seeds, n, _UNIFORM)


def normal(seeds: np.ndarray, n: int) -> np.ndarray:
    """Standard normal (Box & Muller 1958): ``seeds [...]`` int64 to ``[..., n]`` float64; below 8.6 in size."""
    # 1 - u is in (0, 1], whose logarithm is finite.
    radius = np.sqrt(-2.0 * np.log(1.0 - _unit(seeds, n, _RADIUS)))
    return radius * np.cos(2.0 * np.pi * _unit(seeds, n, _ANGLE))


def _unit(seeds: np.ndarray, n: int, use: int) -> np.ndarray:
    # The seed is hashed before the column is added: seeds are often neighbours, and so are columns.
    rows = _mix(_mix(seeds.astype(np.uint64) + _GOLDEN) + np.uint64(use))
    columns = np.arange(1, n + 1, dtype=np.uint64) * _GOLDEN
    return (_mix(rows[..., None] + columns) >> np.uint64(11)) * 2.0**-53


def _mix(number: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser, a bijection of the 64-bit integers."""
    number = (number ^ (number >> np.uint64(30))) * _FACTORS[0]
    number = (number ^ (number >> np.uint64(27))) * _FACTORS[1]
    return number ^ (number >> np.uint64(31))
