"""Episodes of unequal length as one table of experiences a member, in chunks of one shape.

A matrix product or a sum rounds by how many rows it has. Members play different numbers of steps, so their tables are
padded to whole chunks. A member's sums then do not depend on the number of chunks of other members.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from models.trajectory import Trajectory, padded

CHUNK = 256  # experiences; large enough for matrix products, small enough to waste little on padding


@dataclass
class Batch:
    """N experiences of each member: episode after episode, each in order, then padding to whole chunks.

    ``obs [M, N, *O]``, ``action [M, N]``, ``returns [M, N]`` (targets of the values), ``weights [M, N]`` (factors of
    the actions' log-probabilities), ``share [M, N]`` (1 / the member's number of experiences, 0 for
    padding); ``counts`` are these numbers.
    """

    obs: Tensor
    action: Tensor
    returns: Tensor
    weights: Tensor
    share: Tensor
    counts: list[int]

    def chunks(self) -> Iterator["Batch"]:
        """Parts of `CHUNK` experiences a member."""
        fields = (self.obs, self.action, self.returns, self.weights, self.share)
        for obs, action, returns, weights, share in zip(*(field.split(CHUNK, dim=1) for field in fields), strict=True):
            yield Batch(obs, action, returns, weights, share, self.counts)

    def by_member(self, function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
        """``function`` of each member's real ``values [M, N]``, ``[n] -> [n]`` or ``[n] -> []``: ``[M, N]`` with zeros
        at the end, or ``[M]``."""
        results = [function(row[:count]) for row, count in zip(values, self.counts, strict=True)]
        return torch.stack(results) if results[0].dim() == 0 else padded(results, values.shape[1])


def table(values: Tensor, valid: Tensor, rows: int) -> Tensor:
    """``values [T, M, E, ...]`` of ``valid`` steps, episode after episode and then zeros: ``[M, rows, ...]``."""
    return padded([values[:, m].transpose(0, 1)[valid[:, m].T] for m in range(values.shape[1])], rows)


def pack(trajectory: Trajectory) -> Batch:
    """The real steps of a trajectory; returns and weights are 0 still."""
    counts = trajectory.valid.sum((0, 2)).tolist()
    rows = -(-max(counts) // CHUNK) * CHUNK
    obs, action = (table(values, trajectory.valid, rows) for values in (trajectory.obs, trajectory.action))
    share = padded([torch.full((count,), 1 / count) for count in counts], rows)
    return Batch(obs, action, torch.zeros_like(share), torch.zeros_like(share), share, counts)


def unpack(values: Tensor, valid: Tensor) -> Tensor:
    """``values [M, N]`` of packed steps back at their places in ``[T, M, E]``, zeros elsewhere."""
    out = values.new_zeros(valid.shape)
    for m, row in enumerate(values):
        where = valid[:, m].T
        out[:, m].T[where] = row[: int(where.sum())]
    return out
