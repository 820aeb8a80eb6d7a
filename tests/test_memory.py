"""Episode memory against a plain list, and sampling."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.memory import Episode, EpisodeMemory
from models.streams import Streams


class Plain:
    """The memory as lists of (number, length, score)."""

    def __init__(self, capacity: int, unit: str, order: str):
        self.capacity, self.unit, self.order = capacity, unit, order
        self.episodes: list[tuple[int, int, float]] = []

    def add(self, batch: list[tuple[int, int, float]]) -> None:
        self.episodes = batch[::-1] + self.episodes
        if self.order == "sorted":
            self.episodes.sort(key=lambda episode: -episode[2])
        while len(self.episodes) > 1 and self.size() > self.capacity:
            self.episodes.pop()

    def size(self) -> int:
        return sum(length for _, length, _ in self.episodes) if self.unit == "steps" else len(self.episodes)


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
        numbers, places = memory.fields["number"][member][stored.slots], memory.fields["place"][member][stored.slots]
        assert places.tolist() == list(range(len(stored))) and len(set(numbers.tolist())) == 1
        assert stored.extras["last"].tolist() == [int(numbers[0]), len(stored)]
        assert torch.equal(memory.fields["obs"][member][stored.slots], numbers[:, None].float().expand(-1, 2))
        episodes.append((int(numbers[0]), len(stored), stored.score))
    if episodes:
        firsts = memory.first_slots(member)
        assert memory.fields["number"][member][firsts].tolist() == [number for number, _, _ in episodes]
        assert not memory.fields["place"][member][firsts].any()
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
    plain = [Plain(capacity, unit, order), Plain(capacity, unit, order)]
    for member, scored_lengths in (
        pair for batch_pair in zip(first, second, strict=False) for pair in enumerate(batch_pair)
    ):
        batch = []
        for length, score in scored_lengths:
            batch.append((number, length, score))
            number += 1
        memory.add(member, [episode(*fields) for fields in batch])
        plain[member].add(batch)
        for m in range(2):
            assert contents(memory, m) == plain[m].episodes
    for m in range(2):
        slots = [slot for stored in memory.episodes[m] for slot in stored.slots.tolist()]
        assert len(set(slots)) == len(slots) and not set(slots) & set(memory._free_slots[m].tolist())


def test_storage_is_reused() -> None:
    memory = EpisodeMemory(1, 100, "steps", "recent")
    for number in range(2000):
        memory.add(0, [episode(number, 50, 0.0)])
    assert memory.fields["number"].shape[1] <= 4096


@pytest.mark.parametrize("by", ["step", "episode"])
def test_samples_are_in_memory(by: str) -> None:
    memory = EpisodeMemory(2, 30, "steps", "recent")
    for number in range(40):
        memory.add(0, [episode(number, 1 + number % 9, 0.0)])
        memory.add(1, [episode(1000 + number, 1 + number % 4, 0.0)])
    slots = memory.sample(Streams([0, 1]), 20, 33, by)
    assert slots.shape == (20, 2, 33)
    for numbers, places in (memory.gather(update, ["number", "place"]) for update in slots):
        for m in range(2):
            lengths = {number: length for number, length, _ in contents(memory, m)}
            pairs = zip(numbers[m].tolist(), places[m].tolist(), strict=True)
            assert all(place < lengths[number] for number, place in pairs)


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


def test_columns_are_in_order_of_episodes() -> None:
    memory = EpisodeMemory(2, 100, "steps", "recent")
    memory.add(0, [episode(0, 3, 0.0), episode(1, 1, 0.0)])
    memory.add(1, [episode(2, 5, 0.0)])
    assert [column.tolist() for column in memory.column("number")] == [[1, 0, 0, 0], [2] * 5]
    memory.set_column("place", 10 * torch.cat(memory.column("place")))
    assert memory.fields["place"][1][memory.episodes[1][0].slots].tolist() == [0, 10, 20, 30, 40]
    assert memory.fields["place"][0][memory.episodes[0][1].slots].tolist() == [0, 10, 20]
