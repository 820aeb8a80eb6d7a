"""A running window over numbers that members report one by one."""

import torch
from torch import Tensor


class RunningWindow:
    """The latest ``size`` numbers of each member, and their mean; fewer where there are fewer."""

    def __init__(self, members: int, size: int):
        self.values = torch.zeros(members, size, dtype=torch.float64)
        self.counts = torch.zeros(members, dtype=torch.int64)

    def add(self, members: Tensor, values: Tensor) -> None:
        """``values [N]`` of ``members [N]``, ascending; a member comes up as often as it has new numbers."""
        size = self.values.shape[1]
        new = torch.bincount(members, minlength=len(self.counts))
        nth = torch.arange(len(members)) - torch.searchsorted(members, members)  # of the member's own
        latest = nth >= new[members] - size
        self.values[members[latest], ((self.counts[members] + nth) % size)[latest]] = values[latest].double()
        self.counts += new

    def mean(self, members: Tensor, first: int, last: int) -> Tensor:
        """Mean of the latest entries from the ``last`` one back to before the ``first``: ``mean(m, 0, 10)`` is that of
        the latest ten. ``[N]``, NaN where there are none."""
        back = torch.arange(first, last)
        index = self.counts[members].unsqueeze(1) - 1 - back
        there = index >= 0
        values = self.values[members].gather(1, index % self.values.shape[1])
        return (values * there).sum(1) / there.sum(1)

    def select(self, members: Tensor) -> None:
        self.values, self.counts = self.values[members], self.counts[members]

    def state_dict(self) -> dict[str, Tensor]:
        return {"values": self.values, "counts": self.counts}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.values, self.counts = state["values"], state["counts"]
