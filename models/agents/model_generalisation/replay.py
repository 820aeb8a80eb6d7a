"""What was seen, to learn from again: transitions of M members in lock-step, bits as bytes."""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor


@dataclass
class Batch:
    """Transitions: ``obs`` and ``next_obs [M, B, O]`` float32, ``action [M, B]`` int64, ``reward [M, B]``
    float32, ``going_on [M, B]`` float32, 0 behind the end of an episode and else 1."""

    obs: Tensor
    next_obs: Tensor
    action: Tensor
    reward: Tensor
    going_on: Tensor


Columns = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""Shape and dtype of a row's parts by name."""


class Ring:
    """The latest ``capacity`` rows of each member in tables ``[M, capacity, ...]``, one for each of ``columns``. All
    memory is asked for at once, and by most systems taken as it fills."""

    def __init__(self, capacity: int, members: int, columns: Columns, device: torch.device):
        self.capacity, self.members, self.device = capacity, members, device
        self.tables = {
            name: torch.empty(members, capacity, *shape, dtype=dtype, device=device)
            for name, (shape, dtype) in columns.items()
        }
        self.position = self.size = 0
        # A tensor, so that a captured graph of operations sees it grow.
        self._filled = torch.zeros((), device=device)
        self._first = (torch.arange(members, device=device) * capacity).unsqueeze(1)

    def add(self, **row: Tensor) -> None:
        """Insert one row ``[M, ...]`` a member."""
        for name, value in row.items():
            self.tables[name][:, self.position] = value
        self.position = (self.position + 1) % self.capacity
        if self.size < self.capacity:
            self.size += 1
            self._filled.fill_(self.size)

    def sample(self, uniform: Tensor) -> dict[str, Tensor]:
        """Rows ``[M, B, ...]`` by ``uniform [M, B]`` in [0, 1): each is any of the filled ones, also more than once."""
        index = (uniform * self._filled).to(torch.int64)
        # Rounding may reach the number of rows itself.
        flat = (torch.minimum(index, (self._filled - 1).to(torch.int64)) + self._first).view(-1)
        return {
            name: table.flatten(0, 1).index_select(0, flat).unflatten(0, uniform.shape)
            for name, table in self.tables.items()
        }

    def state(self) -> dict[str, object]:
        """Everything, with only the rows in use."""
        rows = {name: table[:, : self.size].clone() for name, table in self.tables.items()}
        return {"rows": rows, "position": self.position}

    def load_state(self, state: dict) -> None:
        for name, rows in state["rows"].items():
            self.tables[name][:, : rows.shape[1]] = rows
            self.size = rows.shape[1]
        self.position = state["position"]
        self._filled.fill_(self.size)


def row_bytes(columns: Columns) -> int:
    """What one row of one member takes."""
    return sum(prod(shape) * dtype.itemsize for shape, dtype in columns.values())


class Replay(Ring):
    """Transitions. A row holds the observations (bytes where they are ``bits``), the reward, and the action, which is
    stored as its complement, below zero, where the episode ended with it: 2 O + 5 bytes for up to 128 actions."""

    def __init__(self, capacity: int, members: int, obs_size: int, actions: int, bits: bool, device: torch.device):
        super().__init__(capacity, members, self.columns(obs_size, actions, bits), device)

    @staticmethod
    def columns(obs_size: int, actions: int, bits: bool) -> Columns:
        """What a row holds."""
        kind = torch.bool if bits else torch.float32
        return {"obs": ((obs_size,), kind), "next_obs": ((obs_size,), kind), "reward": ((), torch.float32),
                "action": ((), torch.int8 if actions <= 128 else torch.int64)}  # fmt: skip

    def remember(self, obs: Tensor, action: Tensor, next_obs: Tensor, reward: Tensor, going_on: Tensor) -> None:
        """Insert one transition a member: ``[M, O]``, ``[M]``, ``[M, O]``, ``[M]``, ``[M]`` bool."""
        self.add(obs=obs, action=torch.where(going_on, action, ~action), next_obs=next_obs, reward=reward)

    def batch(self, uniform: Tensor) -> Batch:
        """A `Batch` by ``uniform [M, B]`` in [0, 1)."""
        rows = self.sample(uniform)
        coded = rows["action"].to(torch.int64)
        going_on = coded >= 0
        return Batch(
            rows["obs"].float(),
            rows["next_obs"].float(),
            torch.where(going_on, coded, ~coded),
            rows["reward"],
            going_on.float(),
        )


class StateReplay(Ring):
    """States like ``like [K]``, whole numbers in two bytes. The first ``skip`` columns are not kept."""

    def __init__(self, capacity: int, members: int, like: Tensor, skip: int, device: torch.device):
        self.skip, self.dtype = skip, like.dtype
        super().__init__(capacity, members, self.columns(like, skip), device)

    @staticmethod
    def columns(like: Tensor, skip: int) -> Columns:
        """What a row holds."""
        # No number is larger than a world has cells, 10,000 at most.
        return {"state": ((len(like) - skip,), like.dtype if like.is_floating_point() else torch.int16)}

    def remember(self, state: Tensor) -> None:
        """Insert one state ``[M, K]`` a member."""
        self.add(state=state[:, self.skip :])

    def batch(self, uniform: Tensor) -> Tensor:
        """States ``[M, B, K]`` by ``uniform [M, B]``, zeros for what is not kept."""
        return torch.nn.functional.pad(self.sample(uniform)["state"].to(self.dtype), (self.skip, 0))
