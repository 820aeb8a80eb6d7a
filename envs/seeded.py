"""Random numbers as pure functions of integer seeds, so that an episode is a function of its seed.

A seed gives the same numbers alone, in a batch of seeds, and in a block of many steps. The numbers are hashes
(`understudy.hashing`), not the streams of NumPy or torch. The results of `uniform`, `uniform_at` and `normal` for one
seed are unrelated. The first of several numbers of a seed do not depend on how many there are.
"""

import math

import torch
from torch import Tensor

from understudy.hashing import ANGLE, AT, RADIUS, UNIFORM, UNIT, bits

_MOST_AT_ONCE = 1 << 18  # normal numbers per call, because a hash needs several copies of them in memory
_NUMPY_BELOW = 1 << 10  # number of seeds below which NumPy is twice as fast as torch


def uniform(seeds: Tensor, n: int) -> Tensor:
    """Return n numbers for each of ``seeds [...]`` int64: ``[..., n]`` float64, uniform on [0, 1)."""
    unique_seeds, group_of_member = _unique_members(seeds)
    numbers = _unit_numbers(unique_seeds[..., None], torch.arange(n, device=seeds.device), UNIFORM)
    return numbers if group_of_member is None else numbers.index_select(-3, group_of_member)


def integers(seeds: Tensor, n: int) -> Tensor:
    """Return one integer for each of ``seeds [...]`` int64: ``[...]`` int64, uniform in [0, n)."""
    return (uniform(seeds, 1)[..., 0] * n).long()


def uniform_at(seeds: Tensor, columns: Tensor | int) -> Tensor:
    """Return one number for each pair of ``seeds [...]`` and ``columns [...]``, which broadcast: float64, uniform on
    [0, 1) with 53 random bits. Both are any int64. The random event of step t is column t of the episode's seed."""
    # A single column must be a tensor too, because Python's integers do not wrap around.
    return _unit_numbers(seeds, torch.as_tensor(columns, device=seeds.device), AT)


def normal(seeds: Tensor, n: int) -> Tensor:
    """Return n standard normal numbers for each of ``seeds [..., M, E]`` int64, as ``[..., M, E, n]`` float64 (Box &
    Muller 1958)."""
    # Members with the same seeds have the same numbers, which are computed once.
    unique_seeds, group_of_member = _unique_members(seeds)
    columns = torch.arange(n, device=seeds.device)
    parts = []
    for part in unique_seeds.reshape(-1, 1).split(max(1, _MOST_AT_ONCE // max(1, n))):
        # 1 - u is in (0, 1], whose logarithm is finite.
        radius = (1.0 - _unit_numbers(part, columns, RADIUS)).log_().mul_(-2.0).sqrt_()
        parts.append(radius.mul_(_unit_numbers(part, columns, ANGLE).mul_(2.0 * math.pi).cos_()))
    numbers = torch.cat(parts).view(*unique_seeds.shape, n)
    return numbers if group_of_member is None else numbers.index_select(-3, group_of_member)


def _unique_members(seeds: Tensor) -> tuple[Tensor, Tensor | None]:
    """Find members with the same seeds, so that their numbers are computed only once: hashing a seed takes about 40
    times as long as comparing two seeds. From ``seeds [..., M, E]``, return the seeds ``[..., groups, E]`` of one
    member of each group of equal members, and the group of each member ``[M]``, or ``seeds`` and None if no members are
    equal."""
    # Comparisons need the values of a plain tensor. On a GPU they would wait for the device.
    if type(seeds) is not Tensor or seeds.device.type != "cpu" or seeds.dim() < 2 or not seeds.numel():
        return seeds, None
    # Members are compared first by one seed of each, then by all of their seeds.
    one_seed_per_member = seeds[..., 0].reshape(-1, seeds.shape[-2])[0]  # [M]
    unique_values, group_of_member = one_seed_per_member.unique(return_inverse=True)
    num_members, num_groups = len(group_of_member), len(unique_values)
    if num_groups == num_members:
        return seeds, None
    # One member of each group. Any of them will do, because the members of a group should have equal seeds.
    member_of_group = torch.empty_like(unique_values).scatter_(0, group_of_member, torch.arange(num_members))
    unique_seeds = seeds.index_select(-2, member_of_group)
    if not torch.equal(unique_seeds.index_select(-2, group_of_member), seeds):
        return seeds, None
    return unique_seeds, group_of_member


def _unit_numbers(seeds: Tensor, columns: Tensor, use: int) -> Tensor:
    """Return one number in [0, 1) for each pair of ``seeds`` and ``columns``, which broadcast. ``use`` is a constant
    for the purpose of the numbers, such as `AT`: different constants give unrelated numbers."""
    seeds = seeds.to(torch.int64)
    is_plain = type(seeds) is Tensor and seeds.device.type == "cpu"
    # Without an axis, NumPy would return a number instead of an array.
    if is_plain and seeds.dim() and seeds.numel() < _NUMPY_BELOW:
        return torch.from_numpy(bits(seeds.numpy(), columns.numpy(), use) * UNIT)
    return bits(seeds, columns, use).to(torch.float64).mul_(UNIT)
