"""Episodes of unequal length as one table of experiences (steps) per member, split into chunks of one shape.

The rounding of a matrix product or a sum depends on its number of rows. Members play different numbers of steps, so
tables are padded to whole chunks. A member's results then do not depend on the other members' numbers of steps.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from models.trajectory import Trajectory, stack_padded

CHUNK = 256  # experiences; large enough for matrix products, small enough to waste little on padding


@dataclass
class Batch:
    """N experiences of each member: one episode after another, then zeros up to a whole number of chunks.

    ``obs [M, N, *O]``, ``action [M, N]``, ``returns [M, N]`` (targets of the values), ``advantages [M, N]`` (factors on
    the log-probabilities of actions), ``mean_weight [M, N]`` (1 / the member's number of experiences, 0 for padding).
    ``counts`` are the members' numbers of experiences.
    """

    obs: Tensor
    action: Tensor
    returns: Tensor
    advantages: Tensor
    mean_weight: Tensor
    counts: list[int]

    def chunks(self) -> Iterator["Batch"]:
        """Yield parts of `CHUNK` experiences per member, with ``counts`` and ``mean_weight`` of the whole batch."""
        fields = (self.obs, self.action, self.returns, self.advantages, self.mean_weight)
        split_fields = [field.split(CHUNK, dim=1) for field in fields]
        for obs, action, returns, advantages, mean_weight in zip(*split_fields, strict=True):
            yield Batch(obs, action, returns, advantages, mean_weight, self.counts)

    def by_member(self, function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
        """Apply ``function`` to the n numbers of each member in ``values [M, N]`` that are no padding. If it returns n
        numbers, the result is ``[M, N]``, padded with zeros. If it returns a single number, the result is ``[M]``."""
        results = [function(row[:count]) for row, count in zip(values, self.counts, strict=True)]
        returns_number = results[0].dim() == 0
        return torch.stack(results) if returns_number else stack_padded(results, values.shape[1])


def table(values: Tensor, valid: Tensor, rows: int) -> Tensor:
    """Return ``values [T, M, E, ...]`` of the steps that are ``valid [T, M, E]`` as a table ``[M, rows, ...]``: one
    episode after another, then zeros."""
    # Transposed from [T, E, ...] to [E, T, ...], so that the mask selects one episode after another.
    member_values = [values[:, m].transpose(0, 1)[valid[:, m].T] for m in range(values.shape[1])]
    return stack_padded(member_values, rows)


def pack(trajectory: Trajectory) -> Batch:
    """Return the valid steps of a trajectory as a batch. The caller must set returns and advantages, which are 0."""
    counts = trajectory.valid.sum((0, 2)).tolist()  # [T, M, E] -> [M]
    num_chunks = -(-max(counts) // CHUNK)  # rounded up
    rows = num_chunks * CHUNK
    obs, action = (table(values, trajectory.valid, rows) for values in (trajectory.obs, trajectory.action))
    mean_weight = stack_padded([torch.full((count,), 1 / count) for count in counts], rows)
    return Batch(obs, action, torch.zeros_like(mean_weight), torch.zeros_like(mean_weight), mean_weight, counts)


def unpack(values: Tensor, valid: Tensor) -> Tensor:
    """Return ``values [M, N]`` of experiences, in the order of `table`, as numbers of steps ``[T, M, E]``: at the
    ``valid [T, M, E]`` steps, and zeros elsewhere."""
    out = values.new_zeros(valid.shape)
    for m, row in enumerate(values):
        member_valid = valid[:, m].T  # [E, T], so that the mask selects one episode after another
        member_out = out[:, m].T  # a view of ``out``
        member_out[member_valid] = row[: int(member_valid.sum())]
    return out
