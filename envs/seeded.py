"""Random numbers as pure functions of integer seeds, so that an episode is a function of its seed.

There is no state, and the order of calls does not matter. A seed gives the same numbers alone, in a batch of seeds, and
in a block of many steps. The numbers are hashes (`understudy.hashing`), not the streams of NumPy or torch. The results
of `uniform`, `uniform_at` and `normal` for one seed are unrelated. The first of several numbers of a seed do not depend
on how many there are.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from understudy.hashing import ANGLE, AT, RADIUS, UNIFORM, UNIT, bits

_MOST_AT_ONCE = 1 << 18  # normal numbers per call, because a hash needs several copies of them in memory
_NUMPY_BELOW = 1 << 10  # number of seeds below which NumPy is twice as fast as torch


def uniform(seeds: Tensor, n: int) -> Tensor:
    """Return ``[..., n]`` float64 numbers, uniform on [0, 1) with 53 random bits each, for ``seeds [...]`` int64."""
    return _draw_unique(
        lambda seeds: _unit_numbers(seeds[..., None], torch.arange(n, device=seeds.device), UNIFORM), seeds
    )


def uniform_at(seeds: Tensor, columns: Tensor | int) -> Tensor:
    """Return one number for each pair of ``seeds [...]`` and ``columns [...]``, which broadcast: float64, uniform on
    [0, 1) with 53 random bits. Both are any int64. The random event of step t is column t of the episode's seed."""
    # Even one number must be a tensor, because Python's integers do not wrap around.
    return _unit_numbers(seeds, torch.as_tensor(columns, device=seeds.device), AT)


def normal(seeds: Tensor, n: int) -> Tensor:
    """Return standard normal numbers ``[..., n]`` float64 for ``seeds [...]`` int64 (Box & Muller 1958). All are below
    8.6 in size."""

    def draw_normal(seeds: Tensor) -> Tensor:
        columns = torch.arange(n, device=seeds.device)
        # 1 - u is in (0, 1], whose logarithm is finite.
        radius = (1.0 - _unit_numbers(seeds[..., None], columns, RADIUS)).log_().mul_(-2.0).sqrt_()
        return radius.mul_(_unit_numbers(seeds[..., None], columns, ANGLE).mul_(2.0 * math.pi).cos_())

    def draw_in_parts(seeds: Tensor) -> Tensor:
        parts = seeds.reshape(-1).split(max(1, _MOST_AT_ONCE // max(1, n)))
        return torch.cat([draw_normal(part) for part in parts]).view(*seeds.shape, n)

    return _draw_unique(draw_in_parts, seeds)


def _draw_unique(draw: Callable[[Tensor], Tensor], seeds: Tensor) -> Tensor:
    """Return ``draw(seeds)`` for ``seeds [..., M, E]``, computed only once for members with equal seeds. Hashing a
    number takes about 40 times as long as comparing two. Seeds on other devices than the CPU, and of a subclass of
    Tensor, are not compared."""
    if type(seeds) is not Tensor or seeds.device.type != "cpu" or seeds.dim() < 2 or not seeds.numel():
        return draw(seeds)
    keys, inverse = seeds[(0,) * (seeds.dim() - 2)][:, 0].unique(return_inverse=True)  # of one seed of each member
    if len(keys) == len(inverse):  # all members differ
        return draw(seeds)
    first_members = torch.empty_like(keys).scatter_(0, inverse, torch.arange(len(inverse)))  # one for each key
    unique_seeds = seeds.index_select(-2, first_members)
    if not torch.equal(unique_seeds.index_select(-2, inverse), seeds):  # other seeds of the members differ
        return draw(seeds)
    return draw(unique_seeds).index_select(-3, inverse)  # [..., M, E, n]


def _unit_numbers(seeds: Tensor, columns: Tensor, use: int) -> Tensor:
    """Return numbers in [0, 1) for pairs of seeds and columns, which broadcast. ``use`` is a purpose, such as `AT`."""
    seeds = seeds.to(torch.int64)
    if type(seeds) is Tensor and seeds.device.type == "cpu" and seeds.dim() and seeds.numel() < _NUMPY_BELOW:
        return torch.from_numpy(bits(seeds.numpy(), columns.numpy(), use) * UNIT)
    return bits(seeds, columns, use).to(torch.float64).mul_(UNIT)
