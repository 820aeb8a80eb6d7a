"""The replay memory of the DDQN family: what goes in comes out, for every member the same way."""

import pytest
import torch
from scipy import stats
from torch import Tensor

from models.agents.ddqn.replay import Replay


def numbered(members: int, first: int, count: int, obs_size: int = 2) -> list[Tensor]:
    """``count`` transitions a member, each recognisable: number n of member m is ``1000 m + n`` in the first
    observation's first place and known numbers elsewhere."""
    number = 1000.0 * torch.arange(members)[:, None] + torch.arange(first, first + count)
    obs = number[..., None] + torch.arange(obs_size) * 0.25
    return [obs, number.long() % 3, obs + 0.125, -number, number % 2]


def contents(memory: Replay, draws: int = 4096) -> Tensor:
    """The transitions that can be drawn, ``[M, size]`` sorted numbers."""
    uniform = torch.arange(draws).div(draws).expand(memory.rows.shape[1], -1)
    return torch.stack([member.unique() for member in memory.sample(uniform)[0][:, 0]])


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("capacity", [5, 7, 1500])
def test_a_ring_of_the_latest(capacity: int, count: int) -> None:
    """Also where an insert goes around the end, and past the rows of the first allocation (1,024)."""
    memory = Replay(capacity, 2, 2)
    added = 0
    while added < 2.5 * capacity:
        memory.add(*numbered(2, added, count))
        added += count
        if added < 20 or added % 97 < count or added % capacity < 2 * count:
            assert memory.size == min(added, capacity)
            expected = torch.arange(max(0, added - capacity), added) + torch.tensor([[0.0], [1000.0]])
            assert torch.equal(contents(memory), expected)
    assert len(memory.rows) == capacity


def test_a_full_insert_replaces_everything() -> None:
    memory = Replay(4, 1, 2)
    memory.add(*numbered(1, 0, 3))
    memory.add(*numbered(1, 10, 4))
    assert contents(memory).tolist() == [[10, 11, 12, 13]]


def test_a_transition_stays_together() -> None:
    memory = Replay(50, 3, 2)
    memory.add(*numbered(3, 0, 40))
    obs, next_obs, action, reward, discount = memory.sample(torch.rand(3, 17))
    number = obs[:, 0]
    assert obs.shape == next_obs.shape == (3, 2, 17) and action.shape == (3, 17)
    assert torch.equal(number // 1000, torch.arange(3.0)[:, None].expand(3, 17))  # its own member's
    assert torch.equal(obs[:, 1], number + 0.25)
    assert torch.equal(next_obs, obs + 0.125)
    assert torch.equal(action, number % 3) and torch.equal(reward, -number) and torch.equal(discount, number % 2)


def test_nothing_is_drawn_that_never_went_in() -> None:
    memory = Replay(2000, 1, 1)
    memory.rows.fill_(torch.nan)
    memory.add(*numbered(1, 0, 3, obs_size=1))
    ends = torch.tensor([[0.0, torch.nextafter(torch.tensor(1.0), torch.tensor(0.0)).item(), 0.5]])
    assert memory.sample(ends)[0][0, 0].tolist() == [0, 2, 1]
    assert memory.sample(torch.ones(1, 1))[0].item() == 2  # were a generator to give 1.0
    assert not memory.sample(torch.rand(1, 5000))[0].isnan().any()


def test_every_transition_is_as_likely() -> None:
    memory = Replay(37, 2, 2)
    for step in range(60):
        memory.add(*numbered(2, step, 1))
    drawn = memory.sample(torch.rand(2, 37 * 400, generator=torch.Generator().manual_seed(0)))[0][:, 0]
    for m in range(2):
        counts = (drawn[m] - 1000 * m - 23).long().bincount(minlength=37)
        assert stats.chisquare(counts.numpy()).pvalue > 1e-3
    assert not torch.equal(drawn[0], drawn[1] - 1000)  # each member by its own numbers


def test_goes_on_with_some_members() -> None:
    memory = Replay(8, 4, 2)
    memory.add(*numbered(4, 0, 6))
    memory.select(torch.tensor([3, 1]))
    assert torch.equal(contents(memory) // 1000, torch.tensor([[3.0], [1.0]]).expand(2, 6))
    kept = [part[[3, 1]] for part in numbered(4, 6, 4)]
    memory.add(*kept)
    assert torch.equal(contents(memory), torch.arange(2.0, 10) + torch.tensor([[3000.0], [1000.0]]))


@pytest.mark.parametrize("added", [0, 3, 8, 11, 1700])
def test_goes_on_from_its_state(added: int) -> None:
    capacity = 8 if added < 100 else 3000
    whole = Replay(capacity, 2, 2)
    for step in range(added):
        whole.add(*numbered(2, step, 1))
    state = whole.state()
    assert state["rows"].shape[0] == min(added, capacity)  # type: ignore[attr-defined]
    resumed = Replay(capacity, 2, 2)
    resumed.load_state(state)
    for memory in (whole, resumed):
        for step in range(added, added + 5):
            memory.add(*numbered(2, step, 1))
    uniform = torch.rand(2, 50)
    for ours, theirs in zip(whole.sample(uniform), resumed.sample(uniform), strict=True):
        assert torch.equal(ours, theirs)


def test_its_state_is_a_copy() -> None:
    memory = Replay(4, 1, 2)
    memory.add(*numbered(1, 0, 4))
    rows = memory.state()["rows"]
    before = rows.clone()  # type: ignore[attr-defined]
    memory.add(*numbered(1, 9, 2))
    assert torch.equal(rows, before)  # type: ignore[arg-type]
