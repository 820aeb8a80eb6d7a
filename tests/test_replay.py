"""Replay buffers of steps and of episodes: contents, sampling and state."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from models.replay import Columns, Episode, EpisodeMemory, ReplayBuffer
from models.streams import Streams

FLOAT = torch.float32
KINDS: dict[str, Columns] = {
    "numbers": {"obs": ((2,), FLOAT), "next_obs": ((2,), FLOAT), "action": ((), FLOAT), "reward": ((), FLOAT)},
    "bits": {"obs": ((2,), FLOAT), "bit": ((3,), torch.bool), "action": ((), torch.int8), "reward": ((), FLOAT)},
    "matrices": {"obs": ((2,), FLOAT), "picture": ((2, 3), torch.uint8), "wide": ((4,), torch.float64)},
}


def numbered(kind: str, members: int, first: int, count: int) -> dict[str, Tensor]:
    """Number n of member m is ``1000 m + n`` in the first observation column; other columns depend on it."""
    number = 1000.0 * torch.arange(members)[:, None] + torch.arange(first, first + count)
    rows = {"obs": number[..., None] + torch.arange(2) * 0.25}
    for name, (shape, dtype) in KINDS[kind].items():
        if name != "obs":
            spread = number.view(*number.shape, *[1] * len(shape)) * (1 + len(name)) + torch.arange(len(name)).sum()
            rows[name] = (spread.expand(*number.shape, *shape) % (2 if dtype == torch.bool else 97)).to(dtype)
    return {name: rows[name] for name in KINDS[kind]}


def make_buffer(kind: str = "numbers", capacity: int = 50, members: int = 2, grows: bool = True) -> ReplayBuffer:
    return ReplayBuffer(KINDS[kind], capacity, members, grows=grows)


@pytest.mark.parametrize("size", [1, 3, 7, 10, 100_000])
def test_boundaries_of_sampling(size: int) -> None:
    """0, the largest float below 1, which may round up to the number of rows, and 1."""
    buffer = ReplayBuffer({"row": ((), torch.int64)}, 100_000, 2)
    buffer.load_state_dict({"rows": {"row": torch.arange(size)[:, None].expand(-1, 2)}, "position": size % 100_000})
    ends = torch.tensor([0.0, 1 - 2**-24, 1.0]).expand(2, -1)
    assert buffer.sample(ends)["row"].tolist() == [[0, size - 1, size - 1]] * 2


@given(st.sampled_from([*KINDS]), st.integers(1, 9), st.integers(1, 25), st.integers(1, 3), st.integers(1, 4),
       st.booleans(), st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=6))  # fmt: skip
@example("numbers", 1500, 300, 2, 7, True, [0.0, 0.3, 0.6842, 0.99])  # more rows than the first allocation, 1,024
def test_rows_are_the_latest(
    kind: str, capacity: int, inserts: int, members: int, count: int, grows: bool, places: list[float]
) -> None:
    buffer, count = make_buffer(kind, capacity, members, grows), min(count, capacity)
    for i in range(inserts):
        buffer.add(**numbered(kind, members, i * count, count))
    added, size = inserts * count, min(inserts * count, capacity)
    assert buffer.size == size
    rows = [int(place * size) for place in places]
    batch = buffer.sample(((torch.tensor(rows) + 0.5) / size).expand(members, -1))
    for at, row in enumerate(rows):
        number = row + (added - 1 - row) // capacity * capacity  # of the latest row that was written there
        for name, expected in numbered(kind, members, number, 1).items():
            assert torch.equal(batch[name][:, at], expected[:, 0]) and batch[name].dtype == expected.dtype


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("added", [0, 3, 8, 11, 1700])
def test_state_round_trip(added: int, kind: str) -> None:
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
    assert all(torch.equal(rows, previous_rows[name]) for name, rows in state["rows"].items())


def episode(number: int, length: int, score: float) -> Episode:
    """Every step has the number of its episode and its index."""
    steps = {
        "number": torch.full((length,), number),
        "place": torch.arange(length),
        "obs": torch.full((length, 2), float(number)),
    }
    return Episode(steps, score, {"last": torch.tensor([number, length])})


def contents(memory: EpisodeMemory, member: int) -> list[tuple[int, int, float]]:
    """Episodes read from their steps; asserts that every episode is complete."""
    episodes = []
    for stored in memory.episodes[member]:
        numbers, places = stored.steps["number"], stored.steps["place"]
        assert places.tolist() == list(range(len(stored))) and len(set(numbers.tolist())) == 1
        assert stored.extras["last"].tolist() == [int(numbers[0]), len(stored)]
        assert torch.equal(stored.steps["obs"], numbers[:, None].float().expand(-1, 2))
        episodes.append((int(numbers[0]), len(stored), stored.score))
    for name, column in memory.columns[member].items():
        assert torch.equal(column, torch.cat([stored.steps[name] for stored in memory.episodes[member]]))
    return episodes


batches = st.lists(
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from([-1.0, 0.0, 0.5, 2.0])), max_size=6), max_size=8
)


@given(
    batches, batches, st.integers(1, 60), st.sampled_from(["steps", "episodes"]), st.sampled_from(["sorted", "recent"])
)
def test_memory_equals_plain_list(first, second, capacity: int, unit: str, order: str) -> None:
    """Best or latest first, complete episodes within capacity, at least one, each member separately."""
    memory = EpisodeMemory(2, capacity, unit, order)
    number = 0
    plain: list[list[tuple[int, int, float]]] = [[], []]  # number, length and score of episodes
    for member, scored_lengths in (
        pair for batch_pair in zip(first, second, strict=False) for pair in enumerate(batch_pair)
    ):
        batch = []
        for length, score in scored_lengths:
            batch.append((number, length, score))
            number += 1
        memory.add(member, [episode(*fields) for fields in batch])
        merged = batch[::-1] + plain[member]
        if order == "sorted":
            merged.sort(key=lambda fields: -fields[2])
        while len(merged) > 1 and capacity < (sum(fields[1] for fields in merged) if unit == "steps" else len(merged)):
            merged.pop()
        plain[member] = merged
        for m in range(2):
            assert contents(memory, m) == plain[m]


@pytest.mark.parametrize(("by", "expected"), [("step", [1 / 20, 4 / 20, 15 / 20]), ("episode", [1 / 3, 1 / 3, 1 / 3])])
def test_sampling_is_uniform(by: str, expected: list[float]) -> None:
    memory = EpisodeMemory(1, 100, "steps", "recent")
    memory.add(0, [episode(0, 1, 0.0), episode(1, 4, 0.0), episode(2, 15, 0.0)])
    draws = 30_000
    numbers, places = memory.gather(memory.sample(Streams([0]), 1, draws, by)[0], ["number", "place"])
    counts = torch.zeros(3, 15).index_put((numbers[0], places[0]), torch.ones(draws), accumulate=True)
    expected_counts = torch.zeros(3, 15)
    for number, length in enumerate([1, 4, 15]):
        expected_counts[number, :length] = expected[number] / length * draws
    real = expected_counts > 0
    assert counts[~real].sum() == 0
    chi_square = ((counts - expected_counts)[real].square() / expected_counts[real]).sum()
    assert 4 < chi_square < 44  # 19 degrees of freedom: 0.9999 and 0.001
