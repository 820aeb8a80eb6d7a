"""The replay of the model-generalisation family: what a row takes, what it gives back, and which rows are drawn."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from envs.make import make_dynamics
from models.agents.model_generalisation.replay import Replay, Ring, StateReplay

CPU = torch.device("cpu")
PARTS = ("obs", "next_obs", "action", "reward", "going_on")


def transitions(count: int, members: int, obs: int, actions: int, bits: bool = True) -> list[dict[str, Tensor]]:
    """Rows as `Replay.remember` takes them."""
    g = torch.Generator().manual_seed(count)
    rows = []
    for _ in range(count):
        seen = torch.randn(2, members, obs, generator=g)
        seen = (seen > 0).float() if bits else seen
        rows.append(
            {
                "obs": seen[0],
                "action": torch.randint(actions, (members,), generator=g),
                "next_obs": seen[1],
                "reward": torch.randn(members, generator=g),
                "going_on": torch.rand(members, generator=g) > 0.5,
            }
        )
    return rows


def every_row(ring: Ring) -> Tensor:
    """Uniform numbers, the middle of each row's share, that draw all rows one after the other."""
    return ((torch.arange(ring.size) + 0.5) / ring.size).expand(ring.members, -1)


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("obs", "bits", "actions", "taken"), [
    (64, True, 5, 2 * 64 + 5), (15, True, 128, 2 * 15 + 5), (15, True, 129, 2 * 15 + 4 + 8),
    (4, False, 2, 2 * 4 * 4 + 5),
])  # fmt: skip
def test_a_row_takes_a_byte_a_bit_and_five(obs: int, bits: bool, actions: int, taken: int) -> None:
    replay = Replay(10, 2, obs, actions, bits, CPU)
    assert sum(table.element_size() * table[0, 0].numel() for table in replay.tables.values()) == taken
    assert replay.tables["obs"].dtype == replay.tables["next_obs"].dtype == (torch.bool if bits else torch.float32)


def test_thirty_members_of_a_hundred_thousand_rows_fit_in_400_megabytes() -> None:
    """Observations of 64 bits, as ProcMaze's of size 4; twice in float32 they would be 1.5 GB alone."""
    tables = Replay(1, 1, 64, 5, True, CPU).tables.values()
    assert 30 * 100_000 * sum(table.element_size() * table.numel() for table in tables) <= 400e6


def test_states_take_two_bytes_a_column_without_seed_and_time() -> None:
    """Position, goal and sixteen cells of a maze of size 4."""
    dynamics = make_dynamics("procmaze,grid_size=4")
    assert dynamics is not None
    states = dynamics.initial(torch.arange(2**31 - 9, 2**31 - 2)[None, :])  # [1, 7, K], whose seeds are large
    replay = StateReplay(10, 7, states[0, 0], 2, CPU)
    assert replay.tables["state"].element_size() * replay.tables["state"][0, 0].numel() == 2 * 18
    replay.remember(states[0])
    found = replay.batch(torch.zeros(7, 1))[:, 0]
    assert found.dtype == torch.int64 and torch.equal(found[:, 2:], states[0, :, 2:]) and not found[:, :2].any()
    assert torch.equal(dynamics.observe(found), dynamics.observe(states[0]))


def test_states_that_are_no_whole_numbers_are_kept_as_they_are() -> None:
    state = torch.randn(3, 4, dtype=torch.float64)
    replay = StateReplay(2, 3, state[0], 0, CPU)
    replay.remember(state)
    assert torch.equal(replay.batch(torch.rand(3, 6)), state[:, None].expand(3, 6, 4))


# -- rows --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [True, False])
def test_rows_come_back_as_they_were(bits: bool) -> None:
    rows = transitions(7, 3, 6, 128, bits)
    replay = Replay(7, 3, 6, 128, bits, CPU)
    for row in rows:
        replay.remember(**row)
    batch = replay.batch(every_row(replay))
    for name in PARTS:
        assert torch.equal(getattr(batch, name), torch.stack([row[name] for row in rows], 1).to(getattr(batch, name)))
    assert batch.obs.dtype == batch.reward.dtype == batch.going_on.dtype == torch.float32
    assert batch.action.dtype == torch.int64


@pytest.mark.parametrize(("actions", "action"), [(5, 0), (5, 4), (128, 127), (1000, 999)])
def test_an_action_is_stored_below_zero_where_the_episode_ended(actions: int, action: int) -> None:
    replay = Replay(1, 2, 1, actions, True, CPU)
    replay.remember(
        torch.zeros(2, 1), torch.full((2,), action), torch.zeros(2, 1), torch.zeros(2), torch.tensor([True, False])
    )
    assert replay.tables["action"][:, 0].tolist() == [action, -action - 1]
    batch = replay.batch(torch.zeros(2, 1))
    assert batch.action[:, 0].tolist() == [action, action] and batch.going_on[:, 0].tolist() == [1.0, 0.0]


@given(st.integers(1, 9), st.integers(0, 25), st.integers(1, 3), st.data())
def test_it_holds_the_latest_rows_and_draws_each_by_its_share(
    capacity: int, count: int, members: int, data: Any
) -> None:
    """A ring, against a list of the latest rows; a number in the share of row i draws that one and no other."""
    rows = transitions(count, members, 2, 3)
    replay = Replay(capacity, members, 2, 3, True, CPU)
    for row in rows:
        replay.remember(**row)
    latest: list[Any] = [None] * min(capacity, count)
    for i, row in enumerate(rows):
        latest[i % capacity] = row
    assert replay.size == len(latest)
    if not latest:
        return
    places = data.draw(st.lists(st.integers(0, len(latest) - 1), min_size=1, max_size=6))
    within = data.draw(st.floats(0.01, 0.99))
    uniform = (torch.tensor(places) + within) / len(latest)
    batch = replay.batch(uniform.expand(members, -1))
    for at, place in enumerate(places):
        for name in PARTS:
            assert torch.equal(getattr(batch, name)[:, at], latest[place][name].to(getattr(batch, name)))


@pytest.mark.parametrize("filled", [1, 3, 7, 10, 100_000])
def test_the_first_and_the_last_number_draw_the_first_and_the_last_row(filled: int) -> None:
    """0, and the largest below 1, whose product with the number of rows may be rounded up to it."""
    ring = Ring(100_000, 2, {"row": ((), torch.int64)}, CPU)
    ring.load_state({"rows": {"row": torch.arange(filled).expand(2, -1)}, "position": filled % 100_000})
    ends = torch.tensor([0.0, 1 - 2**-24]).expand(2, -1)
    assert ring.sample(ends)["row"].tolist() == [[0, filled - 1]] * 2


def test_members_draw_their_own_rows() -> None:
    ring = Ring(4, 3, {"row": ((), torch.int64)}, CPU)
    for i in range(4):
        ring.add(row=torch.tensor([i, 10 + i, 20 + i]))
    uniform = torch.tensor([[0.1, 0.9], [0.3, 0.3], [0.6, 0.1]])
    assert ring.sample(uniform)["row"].tolist() == [[0, 3], [11, 11], [22, 20]]


@pytest.mark.parametrize("count", [0, 3, 5, 8])
def test_goes_on_from_its_state(count: int) -> None:
    rows = transitions(count + 7, 2, 3, 4)
    whole, resumed = (Replay(5, 2, 3, 4, True, CPU) for _ in range(2))
    for row in rows[:count]:
        whole.remember(**row)
    resumed.load_state(whole.state())
    for row in rows[count:]:
        for replay in (whole, resumed):
            replay.remember(**row)
        ours, theirs = (dataclasses.asdict(replay.batch(every_row(replay))) for replay in (whole, resumed))
        assert all(torch.equal(ours[name], theirs[name]) for name in PARTS)


def test_a_state_is_not_changed_by_what_comes_after() -> None:
    rows = transitions(4, 2, 3, 4)
    replay = Replay(2, 2, 3, 4, True, CPU)
    for row in rows[:2]:
        replay.remember(**row)
    state = replay.state()
    before = {name: table.clone() for name, table in state["rows"].items()}  # type: ignore[attr-defined]
    for row in rows[2:]:
        replay.remember(**row)
    assert all(torch.equal(before[name], table) for name, table in state["rows"].items())  # type: ignore[attr-defined]
