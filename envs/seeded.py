"""Random numbers as pure functions of integer seeds, so that an episode is a function of its seed.

There is no state, and the order of calls does not matter: a seed gives the same numbers alone, in a batch, and in a
block of many steps. They are hashes (`understudy.hashing`), not the streams of NumPy or torch. `uniform`, `uniform_at`,
`normal` and `sign` of one seed are unrelated. The first columns do not depend on the number of columns.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from understudy.hashing import ANGLE, AT, RADIUS, UNIFORM, UNIT, bits, seed_hash

_MOST_AT_ONCE = 1 << 18  # numbers that are computed together, because a hash needs several copies of them in memory
_NUMPY_BELOW = 1 << 10  # number of seeds below which NumPy takes half of torch's time


def uniform(seeds: Tensor, n: int) -> Tensor:
    """Return ``[..., n]`` float64 numbers, uniform on [0, 1) with 53 random bits each, for ``seeds [...]`` int64."""
    return _draw_unique(lambda seeds: _unit(seeds[..., None], torch.arange(n, device=seeds.device), UNIFORM), seeds)


def uniform_at(seeds: Tensor, columns: Tensor | int) -> Tensor:
    """Return one number per seed and column, float64, uniform on [0, 1) with 53 random bits. ``seeds [...]`` and
    ``columns [...]`` are int64 and broadcast; any values are allowed. The random event of step t, for example, is
    column t of the episode's seed."""
    # Even one number must be a tensor, because Python's integers do not wrap around.
    return _unit(seeds, torch.as_tensor(columns, device=seeds.device), AT)


def normal(seeds: Tensor, n: int) -> Tensor:
    """Return standard normal numbers ``[..., n]`` float64 for ``seeds [...]`` int64 (Box & Muller 1958). All are below
    8.6 in size."""

    def draw_normal(seeds: Tensor) -> Tensor:
        columns = torch.arange(n, device=seeds.device)
        # 1 - u is in (0, 1], whose logarithm is finite.
        radius = (1.0 - _unit(seeds[..., None], columns, RADIUS)).log_().mul_(-2.0).sqrt_()
        return radius.mul_(_unit(seeds[..., None], columns, ANGLE).mul_(2.0 * math.pi).cos_())

    def draw_in_parts(seeds: Tensor) -> Tensor:
        parts = seeds.reshape(-1).split(max(1, _MOST_AT_ONCE // max(1, n)))
        return torch.cat([draw_normal(part) for part in parts]).view(*seeds.shape, n)

    return _draw_unique(draw_in_parts, seeds)


def sign(seeds: Tensor) -> Tensor:
    """Return -1.0 or 1.0, float32, for each of ``seeds`` of any shape: the first bit of the seed's hash."""
    return torch.where(seed_hash(seeds.to(torch.int64)) < 0, 1.0, -1.0)


def _draw_unique(draw: Callable[[Tensor], Tensor], seeds: Tensor) -> Tensor:
    """Return ``draw(seeds)``, computed only once for members with equal seeds (equal rows of the last axis but one).
    Hashing a number takes about 40 times as long as comparing two. Seeds on other devices than the CPU are not
    compared."""
    if type(seeds) is not Tensor or seeds.device.type != "cpu" or seeds.dim() < 2 or not seeds.numel():
        return draw(seeds)  # also for a subclass of Tensor
    first_block = seeds[(0,) * (seeds.dim() - 2)]  # [M, E]
    keys = first_block[:, 0].tolist()  # one seed per member, compared first
    first_index: dict[int, int] = {}  # seed -> the first member with it
    for index, key in enumerate(keys):
        first_index.setdefault(key, index)
    if len(first_index) == len(keys):  # all different
        return draw(seeds)
    unique_index = {key: index for index, key in enumerate(first_index)}
    inverse = torch.tensor([unique_index[key] for key in keys])
    unique_seeds = seeds[..., list(first_index.values()), :]
    if not torch.equal(unique_seeds.index_select(-2, inverse), seeds):
        return draw(seeds)
    return draw(unique_seeds).index_select(-3, inverse)  # [..., M, E, n]


def _unit(seeds: Tensor, columns: Tensor, use: int) -> Tensor:
    """Return numbers in [0, 1) for pairs of seeds and columns, which broadcast (`understudy.hashing.bits`)."""
    seeds = seeds.to(torch.int64)
    if type(seeds) is Tensor and seeds.device.type == "cpu" and seeds.dim() and seeds.numel() < _NUMPY_BELOW:
        return torch.from_numpy(bits(seeds.numpy(), columns.numpy(), use) * UNIT)
    return bits(seeds, columns, use).to(torch.float64).mul_(UNIT)
