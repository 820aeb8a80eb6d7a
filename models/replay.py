"""The replay buffer: named columns of the latest rows of M members that advance in lockstep."""

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor

from models.state import require

Columns = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape and dtype of the columns of a row, by name: () for a number, else the shape of a vector or an array."""

_FIRST_ROWS = 1024


class ReplayBuffer:
    """The latest ``capacity`` rows of each of ``members`` members. One write position serves all, so every member adds
    the same number of rows. Settings allow a capacity of at most 2**24, because a uniform number, which chooses a row,
    has 24 random bits.

    Columns of one dtype are adjacent in one table ``[rows, M, width]``: an insert is one contiguous block per table, a
    minibatch one `index_select`. If ``grows``, a table starts small and doubles as it fills, so that a short training
    uses little memory. Otherwise all memory is allocated at once, and its address never changes.
    """

    def __init__(
        self, columns: Columns, capacity: int, members: int, device: torch.device | None = None, grows: bool = False
    ):
        self.columns, self.capacity, self.members = dict(columns), capacity, members
        self._names: dict[torch.dtype, list[str]] = {}  # for each dtype, its columns
        for name, (_, dtype) in columns.items():
            self._names.setdefault(dtype, []).append(name)
        self._widths: dict[torch.dtype, list[int]] = {}  # for each dtype, how many numbers these columns have
        self._tables: dict[torch.dtype, Tensor] = {}
        rows = min(capacity, _FIRST_ROWS) if grows else capacity
        for dtype, names in self._names.items():
            self._widths[dtype] = [prod(columns[name][0]) for name in names]
            self._tables[dtype] = torch.empty(rows, members, sum(self._widths[dtype]), dtype=dtype, device=device)
        self.size = self.position = 0  # number of filled rows, and index of the next row to write
        self._member_indices = torch.arange(members, device=device).unsqueeze(1)

    def add(self, **values: Tensor) -> None:
        """Insert E rows for each member, at most ``capacity``; every column is passed as ``[M, E, ...]``. At the end of
        the tables, continue at their beginning."""
        first_column, *_ = values.values()
        count = first_column.shape[1]
        self.reserve(count)
        for dtype, table in self._tables.items():
            new_rows = self._concatenate(dtype, values).transpose(0, 1)  # [E, M, width]
            num_before_end = min(count, len(table) - self.position)
            table[self.position : self.position + num_before_end] = new_rows[:num_before_end]
            if num_before_end < count:
                table[: count - num_before_end] = new_rows[num_before_end:]
        self.advance(count)

    def reserve(self, count: int) -> list[Tensor]:
        """Make room for ``count`` more rows of each member, and return the tables ``[rows, M, width]``. The caller may
        write rows from index `position` on. The row after the last one is the first. Then it must call `advance`."""
        if self.size < self.capacity:
            self._grow(self.size + count)
        return list(self._tables.values())

    def advance(self, count: int) -> None:
        """Advance `position` and `size` after ``count`` rows of each member have been written."""
        self.position = (self.position + count) % self.capacity
        self.size = min(self.size + count, self.capacity)

    def _concatenate(self, dtype: torch.dtype, values: Mapping[str, Tensor]) -> Tensor:
        """Concatenate the columns of one dtype along the last axis: ``values {name: [I, J, ...]}`` -> ``[I, J,
        width]``."""
        # The additional axis gives a number ``[I, J]`` the width 1, and does not change the width of other columns.
        return torch.cat([values[name].unsqueeze(-1).flatten(2) for name in self._names[dtype]], 2)

    def _grow(self, rows_needed: int) -> None:
        """Replace tables of less than ``rows_needed`` rows (at most ``capacity``) by larger ones with the same rows."""
        for dtype, table in self._tables.items():
            if min(rows_needed, self.capacity) > len(table):
                num_rows = min(self.capacity, max(rows_needed, 2 * len(table)))
                larger_table = table.new_empty(num_rows, *table.shape[1:])
                larger_table[: len(table)] = table
                self._tables[dtype] = larger_table

    def sample(self, uniform: Tensor) -> dict[str, Tensor]:
        """Sample B filled rows of each member with replacement, ``{column: [M, B, ...]}``. ``uniform [M, B]`` float32
        in [0, 1) are the random numbers."""
        row_indices = (uniform * self.size).to(torch.int64).clamp_(max=self.size - 1)  # rounding may give ``size``
        indices = row_indices.mul_(self.members).add_(self._member_indices).view(-1)  # in a table [rows * M, width]
        columns: dict[str, Tensor] = {}
        for dtype, table in self._tables.items():
            rows = table.flatten(0, 1).index_select(0, indices)  # [M * B, width]
            columns |= self._split(dtype, rows.view(*uniform.shape, -1))
        return columns

    def rows(self) -> dict[str, Tensor]:
        """Return all filled rows, ``{column: [size, M, ...]}``, in no particular order."""
        columns: dict[str, Tensor] = {}
        for dtype, table in self._tables.items():
            columns |= self._split(dtype, table[: self.size])
        return columns

    def _split(self, dtype: torch.dtype, rows: Tensor) -> dict[str, Tensor]:
        """Split ``rows [I, J, width]`` of the table of ``dtype`` into its columns, ``{name: [I, J, ...]}``. Vectors are
        views, numbers are copies."""
        columns = {}
        for name, part in zip(self._names[dtype], rows.split(self._widths[dtype], -1), strict=True):
            shape, _ = self.columns[name]
            if not shape:  # a number
                columns[name] = part.squeeze(-1).contiguous()
            else:
                columns[name] = part if len(shape) == 1 else part.unflatten(-1, shape)
        return columns

    def state_dict(self) -> dict[str, Any]:
        """Return copies of all filled rows, and the position of the next write."""
        return {"rows": {name: rows.clone() for name, rows in self.rows().items()}, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`. Raises StateError if its rows do not fit the columns, the number of
        members or the capacity, or if its position is impossible."""
        rows, position = state["rows"], state["position"]
        first_column, *_ = rows.values()
        size = len(first_column)  # number of saved rows
        saved_shapes = {name: (tuple(column.shape), column.dtype) for name, column in rows.items()}
        shapes = {name: ((size, self.members, *shape), dtype) for name, (shape, dtype) in self.columns.items()}
        require(saved_shapes == shapes, "replay", f"has {saved_shapes}", f"{shapes}")
        # Only a full buffer can continue in the middle: it overwrites its oldest rows.
        positions = range(self.capacity) if size == self.capacity else (size,)
        is_valid = size <= self.capacity and position in positions
        require(is_valid, "replay", f"goes on at {position} of {size}", f"{positions}")
        self.size = size
        self._grow(size)
        for dtype, table in self._tables.items():
            table[: self.size] = self._concatenate(dtype, rows)
        self.position = position
