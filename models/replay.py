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


_FIRST_SLOTS = 4096  # slots of a member when the first episode is stored


@dataclass(eq=False)
class Episode:
    """An episode of L steps: ``steps {name: [L, ...]}``, the ``score`` that ranks episodes, and ``extras``, tensors
    about the whole episode. After an `EpisodeMemory` has stored the steps, ``steps`` is empty, and ``slots [L]`` int64
    are the positions of the steps in the memory."""

    steps: Mapping[str, Tensor]
    score: float
    extras: dict[str, Tensor]

    def __post_init__(self) -> None:
        first_field, *_ = self.steps.values()
        # Not yet positions: until an `EpisodeMemory` stores the episode, only their number L has a meaning.
        self.slots = torch.empty(len(first_field), dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.slots)


class EpisodeMemory:
    """Replay buffer of whole episodes of M members. ``fields`` hold the steps in N slots, ``{name: [M, N, ...]}``. A
    slot is a position on the axis N. An episode is a list of slots, so that no data is moved when an episode is
    removed.

    With ``order`` "sorted" the episodes with the highest scores are kept, best first; with "recent" the latest ones,
    latest first. ``capacity`` is the largest number of "steps" or "episodes" (``unit``) of each member. Episodes are
    removed as a whole, and at least one is kept, however long. Storage starts small and doubles.
    """

    def __init__(self, members: int, capacity: int, unit: str = "steps", order: str = "sorted"):
        self.members, self.capacity, self.unit, self.order = members, capacity, unit, order
        self.clear()

    def clear(self) -> None:
        """Remove all episodes and storage."""
        self.fields: dict[str, Tensor] = {}
        self.episodes: list[list[Episode]] = [[] for _ in range(self.members)]
        self._free_slots = [torch.empty(0, dtype=torch.int64) for _ in range(self.members)]

    def add(self, member: int, batch: Sequence[Episode]) -> None:
        """Insert the episodes ``batch`` of one member, oldest first. Then keep the first episodes in ``order`` that fit
        into ``capacity``, and remove all others, new or old."""
        merged = [*reversed(batch), *self.episodes[member]]  # latest first; a sort keeps this order for equal scores
        if self.order == "sorted":
            merged.sort(key=lambda episode: -episode.score)
        kept_episodes: list[Episode] = []
        total = 0
        for episode in merged:
            total += len(episode) if self.unit == "steps" else 1
            if kept_episodes and total > self.capacity:
                break
            kept_episodes.append(episode)
        kept_set = set(kept_episodes)  # episodes are compared by identity
        freed_slots = [episode.slots for episode in self.episodes[member] if episode not in kept_set]
        self._free_slots[member] = torch.cat([self._free_slots[member], *freed_slots])
        self.episodes[member] = kept_episodes
        for episode in batch:
            if episode in kept_set:
                self._store(member, episode)

    def _store(self, member: int, episode: Episode) -> None:
        """Move the steps of an episode to free slots: set ``episode.slots`` and empty ``episode.steps``. If there are
        too few free slots, first double the storage of all members, repeatedly if necessary."""
        steps, count = episode.steps, len(episode)
        if not self.fields:
            self.fields = {name: value.new_zeros(self.members, 0, *value.shape[1:]) for name, value in steps.items()}
        while len(self._free_slots[member]) < count:
            self._grow()
        free_slots = self._free_slots[member]
        episode.slots, self._free_slots[member] = free_slots[:count], free_slots[count:]
        for name, values in steps.items():
            self.fields[name][member].index_copy_(0, episode.slots, values)
        episode.steps = {}

    def _grow(self) -> None:
        """Double the storage of all members. The first time, allocate it."""
        for name, values in self.fields.items():
            old_size = values.shape[1]
            new_size = max(_FIRST_SLOTS, 2 * old_size)
            self.fields[name] = values.new_zeros(self.members, new_size, *values.shape[2:])
            self.fields[name][:, :old_size] = values
        new_slots = torch.arange(old_size, new_size)  # all fields have the same size
        self._free_slots = [torch.cat([slots, new_slots]) for slots in self._free_slots]

    def index(self, member: int) -> Tensor:
        """Return the slots (positions in ``fields``) of all steps of a member, ``[steps]``, ordered as ``episodes``."""
        return torch.cat([episode.slots for episode in self.episodes[member]])

    def column(self, name: str) -> list[Tensor]:
        """Return one field of all steps, a tensor ``[steps, ...]`` for each member, in the order of `index`."""
        return [values.index_select(0, self.index(m)) for m, values in enumerate(self.fields[name])]

    def set_column(self, name: str, values: Tensor) -> None:
        """Overwrite the field ``name`` of all steps with ``values [total steps, ...]``: the steps of all members, one
        member after the other, in the order of `index`."""
        indices = [self.index(m) for m in range(self.members)]
        for m, member_values in enumerate(values.split([len(index) for index in indices])):
            self.fields[name][m].index_copy_(0, indices[m], member_values)

    def sample(self, streams: Streams, updates: int, batch: int, by: str = "step") -> Tensor:
        """Sample ``updates`` minibatches of B = ``batch`` steps with replacement. Return the slots of these steps
        (positions in ``fields``), ``[updates, M, B]``.

        ``by`` "step" samples all steps with equal probability, as in the public code of Srivastava et al. 2019 (arXiv
        1912.02877). "episode" first samples an episode, then one of its steps, as in algorithm 2 of that paper.
        """
        indices = [self.index(m) for m in range(self.members)]
        if by == "step":
            positions = streams.integers([len(index) for index in indices], updates, batch)
        else:
            positions = self._sample_from_episodes(streams, updates, batch)
        return torch.stack([indices[m][positions[m]] for m in range(self.members)], dim=1)

    def _sample_from_episodes(self, streams: Streams, updates: int, batch: int) -> Tensor:
        """Sample episodes with equal probability, and one step of each. Return the positions of these steps in `index`,
        ``[M, updates, batch]``."""
        episode_indices = streams.integers([len(episodes) for episodes in self.episodes], updates, batch)
        fractions = streams.uniform(updates, batch)  # position of the step as a fraction of the episode's length
        positions = []
        for m, episodes in enumerate(self.episodes):
            lengths = torch.tensor([len(episode) for episode in episodes])
            starts = lengths.cumsum(0) - lengths
            length, start = lengths[episode_indices[m]], starts[episode_indices[m]]
            offset = (fractions[m] * length).long().minimum(length - 1)  # rounding may give ``length``
            positions.append(start + offset)
        return torch.stack(positions)

    def gather(self, slots: Tensor, names: Sequence[str]) -> list[Tensor]:
        """Return the fields ``names``, ``[M, B, ...]`` each, of the steps at ``slots [M, B]`` (from `sample`)."""
        num_slots = self.fields[names[0]].shape[1]
        # `flatten` joins members and slots to one axis [M * N]. There, the slots of member m begin at m * N.
        first_slots = torch.arange(self.members).unsqueeze(1) * num_slots
        flat_slots = (slots + first_slots).flatten()
        fields = [self.fields[name].flatten(0, 1) for name in names]
        return [field.index_select(0, flat_slots).unflatten(0, slots.shape) for field in fields]

    def state_dict(self) -> dict[str, Any]:
        """Return all episodes as plain tensors and lists, without slots. ``members`` is empty before the first ones."""
        members = []
        for m, episodes in enumerate(self.episodes):
            if episodes:
                member = {
                    "steps": {name: values[m].index_select(0, self.index(m)) for name, values in self.fields.items()},
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
            total = sum(lengths)
            template = {
                "steps": {key: values[0].expand(total, *values.shape[1:]) for key, values in example.steps.items()},
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
