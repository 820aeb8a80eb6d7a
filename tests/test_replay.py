"""The replay buffer: what goes in comes out, for every member the same way, whatever the columns."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from models.replay import NUMBERS, Columns, ReplayBuffer, row_bytes, rows_of_two

FLOAT = torch.float32
KINDS: dict[str, Columns] = {
    "numbers": {"obs": ((2,), FLOAT), "next_obs": ((2,), FLOAT), "action": ((), FLOAT), "reward": ((), FLOAT)},
    "bits": {"obs": ((2,), FLOAT), "bit": ((3,), torch.bool), "action": ((), torch.int8), "reward": ((), FLOAT)},
    "matrices": {"obs": ((2,), FLOAT), "picture": ((2, 3), torch.uint8), "wide": ((4,), torch.float64)},
}


def numbered(kind: str, members: int, first: int, count: int) -> dict[str, Tensor]:
    """``count`` rows a member, each recognisable: number n of member m is ``1000 m + n`` in the first place of the
    observation, and every other column follows from it."""
    number = 1000.0 * torch.arange(members)[:, None] + torch.arange(first, first + count)
    rows = {"obs": number[..., None] + torch.arange(2) * 0.25}
    for name, (shape, dtype) in KINDS[kind].items():
        if name != "obs":
            spread = number.view(*number.shape, *[1] * len(shape)) * (1 + len(name)) + torch.arange(len(name)).sum()
            rows[name] = (spread.expand(*number.shape, *shape) % (2 if dtype == torch.bool else 97)).to(dtype)
    return {name: rows[name] for name in KINDS[kind]}


def make_buffer(kind: str = "numbers", capacity: int = 50, members: int = 2, grows: bool = True) -> ReplayBuffer:
    return ReplayBuffer(KINDS[kind], capacity, members, grows=grows)


def contents(buffer: ReplayBuffer, draws: int = 4096) -> Tensor:
    """The rows that can be drawn, ``[M, size]`` sorted numbers."""
    uniform = torch.arange(draws).div(draws).expand(buffer.members, -1)
    return torch.stack([member.unique() for member in buffer.sample(uniform)["obs"][..., 0]])


@pytest.mark.parametrize("grows", [True, False])
@pytest.mark.parametrize(("capacity", "count"), [(5, 1), (5, 3), (5, 5), (7, 3), (1500, 7)])
def test_it_holds_the_latest_rows(capacity: int, count: int, grows: bool) -> None:
    """Also where an insert goes around the end, and past the rows of the first allocation (1,024)."""
    buffer = make_buffer(capacity=capacity, grows=grows)
    added = 0
    while added < 2.5 * capacity:
        buffer.add(**numbered("numbers", 2, added, count))
        added += count
        if added < 20 or added % 97 < count or added % capacity < 2 * count:
            assert buffer.size == min(added, capacity)
            expected = torch.arange(max(0, added - capacity), added) + torch.tensor([[0.0], [1000.0]])
            assert torch.equal(contents(buffer), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_stays_together_and_keeps_its_dtypes(kind: str) -> None:
    buffer = make_buffer(kind, members=3)
    rows = numbered(kind, 3, 0, 40)
    buffer.add(**rows)
    batch = buffer.sample(torch.rand(3, 17))
    number = (batch["obs"][..., 0] % 1000).long()
    assert list(batch) != [] and batch.keys() == rows.keys()
    for name, (shape, dtype) in KINDS[kind].items():
        assert batch[name].shape == (3, 17, *shape) and batch[name].dtype == dtype
        assert all(torch.equal(batch[name][m], rows[name][m, number[m]]) for m in range(3))  # its own member's
        assert torch.equal(buffer.rows()[name].transpose(0, 1), rows[name])
        if not shape:
            assert batch[name].is_contiguous()
    assert row_bytes(KINDS[kind]) == {"numbers": 24, "bits": 16, "matrices": 46}[kind]


@pytest.mark.parametrize("size", [1, 3, 7, 10, 100_000])
def test_the_first_and_the_last_number_draw_the_first_and_the_last_row(size: int) -> None:
    """0, the largest below 1, whose product with the number of rows may be rounded up to it, and even 1."""
    buffer = ReplayBuffer({"row": ((), torch.int64)}, 100_000, 2)
    buffer.load_state_dict({"rows": {"row": torch.arange(size)[:, None].expand(-1, 2)}, "position": size % 100_000})
    ends = torch.tensor([0.0, 1 - 2**-24, 1.0]).expand(2, -1)
    assert buffer.sample(ends)["row"].tolist() == [[0, size - 1, size - 1]] * 2


@pytest.mark.parametrize("size", [2**24 + 1, 2**24 + 12_345, 10**8 + 7, 10**9])
def test_every_row_beyond_the_numbers_of_24_bits_is_drawn(size: int) -> None:
    """The two numbers that choose a row are those of its first place among the 2**48 pairs; one pair less chooses the
    row before it. So each row has its share of the pairs."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.cat([torch.tensor([0, 1, size - 1]), torch.randint(size, (5000,), generator=generator)]).tolist()
    for offset in (0, -1):
        pairs = [max(0, -(-row * 2**48 // size) + offset) for row in rows]
        parts = zip(*(divmod(pair, 2**24) for pair in pairs), strict=True)
        first, second = (torch.tensor(part).div(2**24).float() for part in parts)
        uniform = torch.stack([second, first], 1)  # a batch of two for every row
        indices = rows_of_two(uniform, size)[:, 1].tolist()
        assert indices == [max(0, row + offset) for row in rows]
        row_of = pytest.importorskip("models.compiled").row_of
        assert [row_of(np.float32(primary), np.float32(two), size) for two, primary in uniform.tolist()] == indices


def test_a_buffer_of_more_than_2_24_rows_draws_each() -> None:
    """The same numbers draw other rows as soon as there is one row more than they can tell apart."""
    buffer = ReplayBuffer({"row": ((), torch.uint8)}, NUMBERS + 3, 1)
    (table,) = buffer.reserve(1)
    table[:, 0, 0] = torch.arange(NUMBERS + 3).remainder_(251)
    uniform = torch.tensor([[0.0, 1 - 2**-24]])
    buffer.added(NUMBERS)
    assert buffer.sample(uniform)["row"].tolist() == [[0, (NUMBERS - 1) % 251]]
    buffer.added(3)
    assert buffer.size == NUMBERS + 3
    # Parts are of 1 + 3 / 2**24 rows: the end of the first is in row 1, the beginning of the last in row 2**24 + 1.
    assert buffer.sample(uniform)["row"].tolist() == [[1, (NUMBERS + 1) % 251]]


def test_members_draw_their_own_rows() -> None:
    buffer = ReplayBuffer({"row": ((), torch.int64)}, 4, 3)
    for i in range(4):
        buffer.add(row=torch.tensor([[i], [10 + i], [20 + i]]))
    uniform = torch.tensor([[0.1, 0.9], [0.3, 0.3], [0.6, 0.1]])
    assert buffer.sample(uniform)["row"].tolist() == [[0, 3], [11, 11], [22, 20]]


@given(st.integers(1, 9), st.integers(1, 25), st.integers(1, 3), st.data())
def test_each_row_is_drawn_by_its_share(capacity: int, count: int, members: int, data: Any) -> None:
    """Against a list of the latest rows; a number in the share of row i draws that one and no other."""
    buffer = make_buffer("bits", capacity, members)
    latest: list[Any] = [None] * min(capacity, count)
    for i in range(count):
        latest[i % capacity] = numbered("bits", members, i, 1)
        buffer.add(**latest[i % capacity])
    places = data.draw(st.lists(st.integers(0, len(latest) - 1), min_size=1, max_size=6))
    within = data.draw(st.floats(0.01, 0.99))
    batch = buffer.sample(((torch.tensor(places) + within) / len(latest)).expand(members, -1))
    for at, place in enumerate(places):
        assert all(torch.equal(batch[name][:, at], rows[:, 0]) for name, rows in latest[place].items())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("added", [0, 3, 8, 11, 1700])
def test_goes_on_from_its_state(added: int, kind: str) -> None:
    capacity, count = (8, 1) if added < 100 else (3000, 17)
    full_buffer, resumed = make_buffer(kind, capacity), make_buffer(kind, capacity)
    for step in range(0, added, count):
        full_buffer.add(**numbered(kind, 2, step, count))
    state = full_buffer.state_dict()
    assert all(len(rows) == min(added, capacity) for rows in state["rows"].values())
    previous_rows = {name: rows.clone() for name, rows in state["rows"].items()}
    resumed.load_state_dict(state)
    for buffer in (full_buffer, resumed):
        for step in range(added, added + 9):
            buffer.add(**numbered(kind, 2, step, 1))
    uniform = torch.rand(2, 50)
    for expected, actual in zip(full_buffer.sample(uniform).values(), resumed.sample(uniform).values(), strict=True):
        assert torch.equal(expected, actual)
    assert all(torch.equal(rows, previous_rows[name]) for name, rows in state["rows"].items())  # it is a copy
