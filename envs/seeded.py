"""Random numbers as pure functions of integer seeds, so that an episode is a function of its seed.

No state and no order of drawing: the numbers of one seed are the same alone, in a batch, and in a block of many steps
drawn at once. They are hashes (`understudy.hashing`), neither NumPy's nor torch's streams. `uniform`, `uniform_at`,
`normal` and `sign` of one seed are unrelated, and the first columns stay what they are when more are asked for.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from understudy.hashing import ANGLE, AT, RADIUS, UNIFORM, UNIT, bits, seed_hash

_FEW = 1 << 10  # seeds, for which NumPy takes half of torch's time


def uniform(seeds: Tensor, n: int) -> Tensor:
    """Uniform on [0, 1): ``seeds [...]`` int64, any value, to ``[..., n]`` float64 with 53 random bits each."""
    return _draw_unique(lambda seeds: _unit(seeds[..., None], torch.arange(n, device=seeds.device), UNIFORM), seeds)


def uniform_at(seeds: Tensor, columns: Tensor | int) -> Tensor:
    """Uniform on [0, 1), the given column of each seed: ``seeds [...]`` and ``columns [...]`` int64, any values, to
    their broadcast shape, float64 with 53 random bits. The chance event of step t, say, is column t of the episode."""
    # A tensor even of one number: Python's integers do not wrap around.
    return _unit(seeds, torch.as_tensor(columns, device=seeds.device), AT)


def normal(seeds: Tensor, n: int) -> Tensor:
    """Standard normal (Box & Muller 1958): ``seeds [...]`` int64 to ``[..., n]`` float64; below 8.6 in size."""

    def draw_normal(seeds: Tensor) -> Tensor:
        columns = torch.arange(n, device=seeds.device)
        # 1 - u is in (0, 1], whose logarithm is finite.
        radius = (1.0 - _unit(seeds[..., None], columns, RADIUS)).log_().mul_(-2.0).sqrt_()
        return radius.mul_(_unit(seeds[..., None], columns, ANGLE).mul_(2.0 * math.pi).cos_())

    return _draw_unique(draw_normal, seeds)


def sign(seeds: Tensor) -> Tensor:
    """-1.0 or 1.0 for each of ``seeds``, any shape, float32: the first bit of the seed's own hash."""
    return torch.where(seed_hash(seeds.to(torch.int64)) < 0, 1.0, -1.0)


def _draw_unique(draw: Callable[[Tensor], Tensor], seeds: Tensor) -> Tensor:
    """``draw(seeds)``, drawn once for the rows of the last axis but one that are equal: members that share their random
    numbers. A hash takes about 40 times as long as to see that two numbers are the same; but on another device than
    the CPU nothing is looked at."""
    if type(seeds) is not Tensor or seeds.device.type != "cpu" or seeds.dim() < 2 or not seeds.numel():
        return draw(seeds)
    keys = seeds.select(-1, 0).flatten(0, -2)[0].tolist() if seeds.dim() > 2 else seeds[:, 0].tolist()
    firsts: dict[int, int] = {}
    for place, key in enumerate(keys):
        firsts.setdefault(key, place)
    if len(firsts) == len(keys):
        return draw(seeds)
    numbers = {key: number for number, key in enumerate(firsts)}
    inverse, unique_seeds = torch.tensor([numbers[key] for key in keys]), seeds[..., list(firsts.values()), :]
    if not torch.equal(unique_seeds.index_select(-2, inverse), seeds):
        return draw(seeds)
    return draw(unique_seeds).index_select(-3, inverse)


def _unit(seeds: Tensor, columns: Tensor, use: int) -> Tensor:
    seeds = seeds.to(torch.int64)
    if type(seeds) is Tensor and seeds.device.type == "cpu" and seeds.dim() and seeds.numel() < _FEW:
        return torch.from_numpy(bits(seeds.numpy(), columns.numpy(), use) * UNIT)
    return bits(seeds, columns, use).to(torch.float64).mul_(UNIT)
