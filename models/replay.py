"""Replay buffers of M members (independent agents): of steps, and of whole episodes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from models.state import check_like, require
from models.streams import Streams

Columns = Mapping[str, tuple[tuple[int, ...], torch.dtype]]
"""Name of a column -> shape and dtype of its entries: ``{"obs": ((4,), torch.float32), "reward": ((), ...)}``."""

_FIRST_ROWS = 1024


class ReplayBuffer:
    """Ring buffer of the latest ``capacity`` steps (rows) of each of ``members`` members (independent agents). One
    write position serves all, so every member adds the same number of rows. Settings allow a capacity of at most 2**24,
    because a uniform number, which chooses a row, has 24 random bits.

    ``columns`` are the fields of a step. Columns of one dtype are adjacent in one table ``[rows, M, width]``: an insert
    is one contiguous block per table, a minibatch one `index_select`. If ``grows``, a table starts small and doubles as
    it fills, so that a short training uses little memory. Otherwise, all memory is allocated at once.
    """

    def __init__(
        self, columns: Columns, capacity: int, members: int, device: torch.device | None = None, grows: bool = False
    ):
        self.columns, self.capacity, self.members = dict(columns), capacity, members
        # For each dtype: the names of its columns, how many numbers each of them has, and the table.
        self._names: dict[torch.dtype, list[str]] = {}
        for name, (_, dtype) in columns.items():
            self._names.setdefault(dtype, []).append(name)
        self._widths: dict[torch.dtype, list[int]] = {}
        self._tables: dict[torch.dtype, Tensor] = {}
        rows = min(capacity, _FIRST_ROWS) if grows else capacity
        for dtype, names in self._names.items():
            self._widths[dtype] = [prod(columns[name][0]) for name in names]
            self._tables[dtype] = torch.empty(rows, members, sum(self._widths[dtype]), dtype=dtype, device=device)
        self.size = self.position = 0  # number of filled rows, and index of the next row to write
        self._member_indices = torch.arange(members, device=device).unsqueeze(1)

    def add(self, **values: Tensor) -> None:
        """Insert E rows for each member, at most ``capacity``: ``values`` has every column as ``[M, E, ...]``. At the
        end of the tables, continue at their beginning."""
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
        """Make room for ``count`` more rows of each member, and return the tables ``[rows, M, width]``, one per dtype.
        The caller must write the rows from `position` on, continue at row 0 after the last row, and call `advance`."""
        if self.size < self.capacity:
            self._grow(self.size + count)
        return list(self._tables.values())

    def advance(self, count: int) -> None:
        """Advance `position` and `size` after ``count`` rows of each member have been written."""
        self.position = (self.position + count) % self.capacity
        self.size = min(self.size + count, self.capacity)

    def _concatenate(self, dtype: torch.dtype, values: Mapping[str, Tensor]) -> Tensor:
        """Concatenate the columns of ``dtype`` to rows of its table: ``values {name: [I, J, ...]}`` -> ``[I, J,
        width]`` for any I and J. This is the inverse of `_split`."""
        # With the additional axis, a column of numbers [I, J] becomes [I, J, 1].
        return torch.cat([values[name].unsqueeze(-1).flatten(2) for name in self._names[dtype]], 2)

    def _grow(self, rows_needed: int) -> None:
        """Replace tables with fewer than ``rows_needed`` rows by larger tables, of at most ``capacity`` rows."""
        for dtype, table in self._tables.items():
            if min(rows_needed, self.capacity) > len(table):
                num_rows = min(self.capacity, max(rows_needed, 2 * len(table)))
                larger_table = table.new_empty(num_rows, *table.shape[1:])
                larger_table[: len(table)] = table
                self._tables[dtype] = larger_table

    def sample(self, uniform: Tensor) -> dict[str, Tensor]:
        """Sample a minibatch of B filled rows of each member with replacement, ``{column: [M, B, ...]}``, by the random
        numbers ``uniform [M, B]`` float32 in [0, 1)."""
        row_indices = (uniform * self.size).to(torch.int64).clamp_(max=self.size - 1)  # rounding may give ``size``
        indices = row_indices.mul_(self.members).add_(self._member_indices).view(-1)  # rows of [rows * M, width]
        rows = {}
        for dtype, table in self._tables.items():
            rows[dtype] = table.flatten(0, 1).index_select(0, indices).view(*uniform.shape, -1)  # [M, B, width]
        return self._split(rows)

    def rows(self) -> dict[str, Tensor]:
        """Return all filled rows, ``{column: [size, M, ...]}``, in no particular order."""
        return self._split({dtype: table[: self.size] for dtype, table in self._tables.items()})

    def _split(self, rows: Mapping[torch.dtype, Tensor]) -> dict[str, Tensor]:
        """Split ``rows [I, J, width]`` of each table into columns, ``{name: [I, J, ...]}``, the inverse of
        `_concatenate`. Columns with one number in a row are copies, other columns views."""
        columns = {}
        for dtype, names in self._names.items():
            for name, column in zip(names, rows[dtype].split(self._widths[dtype], -1), strict=True):
                shape, _ = self.columns[name]
                columns[name] = column.unflatten(-1, shape) if shape else column.squeeze(-1).contiguous()
        return columns

    def state_dict(self) -> dict[str, Any]:
        """Return copies of all filled ``rows``, ``{column: [size, M, ...]}``, and the next ``position`` to write."""
        return {"rows": {name: rows.clone() for name, rows in self.rows().items()}, "position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the result of `state_dict`. Raises StateError if its rows or its position do not fit this buffer."""
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
        self._grow(size)
        for dtype, table in self._tables.items():
            table[:size] = self._concatenate(dtype, rows)
        self.size, self.position = size, position


@dataclass(eq=False)
class Episode:
    """An episode of L steps in an `EpisodeMemory`."""

    steps: dict[str, Tensor]  # fields of the steps, {name: [L, ...]}; views of the memory's columns once it is stored
    score: float  # ranks the episodes of a memory; higher is better
    extras: dict[str, Tensor]  # tensors about the whole episode, by name

    def __len__(self) -> int:
        first_field, *_ = self.steps.values()
        return len(first_field)


class EpisodeMemory:
    """Replay buffer of whole episodes of M members (independent agents). ``columns[m]`` are the N steps of member m,
    ``{name: [N, ...]}``, one episode after another, ordered as ``episodes[m]``.

    With ``order`` "sorted", the episodes with the highest scores are kept, best first; with "recent", the latest
    episodes, latest first. ``capacity`` is the largest number of steps or episodes (``unit``) of each member. Episodes
    are removed as a whole, and at least one is kept, however long.
    """

    def __init__(self, members: int, capacity: int, unit: str = "steps", order: str = "sorted"):
        self.members, self.capacity, self.unit, self.order = members, capacity, unit, order
        self.clear()

    def clear(self) -> None:
        """Remove all episodes."""
        self.columns: list[dict[str, Tensor]] = [{} for _ in range(self.members)]
        self.episodes: list[list[Episode]] = [[] for _ in range(self.members)]

    def add(self, member: int, batch: Sequence[Episode]) -> None:
        """Insert the episodes ``batch`` of one member, oldest first. Then keep as many episodes as fit into
        ``capacity``, beginning with the first in ``order``, and remove all others."""
        episodes = [*reversed(batch), *self.episodes[member]]  # latest first; a sort keeps this order for equal scores
        if self.order == "sorted":
            episodes.sort(key=lambda episode: -episode.score)
        kept_episodes: list[Episode] = []
        total = 0
        for episode in episodes:
            total += len(episode) if self.unit == "steps" else 1
            if kept_episodes and total > self.capacity:
                break
            kept_episodes.append(episode)
        self.episodes[member] = kept_episodes
        if not kept_episodes:
            return
        lengths = [len(episode) for episode in kept_episodes]
        for name in kept_episodes[0].steps:
            column = torch.cat([episode.steps[name] for episode in kept_episodes])
            self.columns[member][name] = column
            for episode, values in zip(kept_episodes, column.split(lengths), strict=True):
                episode.steps[name] = values  # a view, so that the old tensor can be freed

    def column(self, name: str) -> list[Tensor]:
        """Return one field of all steps, a tensor ``[N, ...]`` for each member."""
        return [columns[name] for columns in self.columns]

    def set_column(self, name: str, values: Tensor) -> None:
        """Overwrite the field ``name`` of all steps with ``values``, the steps of all members in turn, ``[N, ...]``."""
        columns = self.column(name)
        num_steps = [len(column) for column in columns]
        for column, member_values in zip(columns, values.split(num_steps), strict=True):
            column.copy_(member_values)

    def sample(self, streams: Streams, updates: int, batch: int, by: str = "step") -> Tensor:
        """Sample ``updates`` minibatches of B = ``batch`` steps with replacement, by the random generators ``streams``.
        Return the indices of these steps in ``columns``, ``[updates, M, B]``.

        ``by`` "step" samples all steps with equal probability, as in the public code of Srivastava et al. 2019 (arXiv
        1912.02877). "episode" first samples an episode, then one of its steps, as in algorithm 2 of that paper.
        """
        if by == "step":
            num_steps = [sum(len(episode) for episode in episodes) for episodes in self.episodes]
            return streams.integers(num_steps, updates, batch).transpose(0, 1)
        num_episodes = [len(episodes) for episodes in self.episodes]
        episode_indices = streams.integers(num_episodes, updates, batch)  # [M, updates, B]
        fractions = streams.uniform(updates, batch)  # position of the step as a fraction of the episode's length
        rows = []
        for m, episodes in enumerate(self.episodes):
            lengths = torch.tensor([len(episode) for episode in episodes])
            starts = lengths.cumsum(0) - lengths
            length, start = lengths[episode_indices[m]], starts[episode_indices[m]]  # [updates, B]
            offset = (fractions[m] * length).long().minimum(length - 1)  # rounding may give ``length``
            rows.append(start + offset)
        return torch.stack(rows, dim=1)

    def gather(self, rows: Tensor, names: Sequence[str]) -> list[Tensor]:
        """Return fields of a minibatch, ``[M, B, ...]`` each. ``rows [M, B]`` are indices of steps from `sample`."""
        fields = []
        for name in names:
            batches = [column.index_select(0, rows[m]) for m, column in enumerate(self.column(name))]
            fields.append(torch.stack(batches))
        return fields

    def state_dict(self) -> dict[str, Any]:
        """Return all episodes as plain tensors and lists, ``{"members": [...]}``, an empty list if there are none. The
        entry of a member has its columns as ``steps``, and ``lengths``, ``scores`` and ``extras`` of its episodes."""
        members = []
        for columns, episodes in zip(self.columns, self.episodes, strict=True):
            if episodes:
                member = {
                    "steps": {name: column.clone() for name, column in columns.items()},
                    "lengths": [len(episode) for episode in episodes],
                    "scores": [episode.score for episode in episodes],
                    "extras": [episode.extras for episode in episodes],
                }
                members.append(member)
        return {"members": members}

    def load_state_dict(self, state: dict[str, Any], example: Episode) -> None:
        """Replace all episodes by the result of `state_dict`. Raises StateError if its fields differ in name, shape or
        dtype from the fields of the episode ``example``."""
        self.clear()
        require(len(state["members"]) in (0, self.members), "memory", "lacks members", f"all {self.members}")
        for member, saved in enumerate(state["members"]):
            lengths, name = saved["lengths"], f"memory of member {member}"
            require(min(lengths) > 0, name, f"has lengths {lengths}", "1 and above")
            # A state with this member's lengths, and with the names, shapes and dtypes that the fields must have.
            template_steps = {}
            for field, values in example.steps.items():
                template_steps[field] = values[0].expand(sum(lengths), *values.shape[1:])
            template = {
                "steps": template_steps,
                "lengths": lengths,
                "scores": [0.0] * len(lengths),
                "extras": [example.extras] * len(lengths),
            }
            check_like(template, saved, name)
            values_by_episode = {field: values.split(lengths) for field, values in saved["steps"].items()}
            batch = []
            for i in reversed(range(len(lengths))):  # `add` takes the oldest episode first
                steps = {field: values[i] for field, values in values_by_episode.items()}
                batch.append(Episode(steps, saved["scores"][i], saved["extras"][i]))
            self.add(member, batch)
