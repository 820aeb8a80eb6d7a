"""Rules that end a training, worked by hand."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from control.loops.steps import EndedEpisodes
from control.loops.stopping import Plateau, RunningWindow, Solved

ONE_ENV: Any = SimpleNamespace(agent=SimpleNamespace(envs=1))


def finished_episodes(returns: dict[int, float], tick: int = 1_000) -> EndedEpisodes:
    """One episode of each of these members."""
    members = torch.tensor(list(returns))
    return EndedEpisodes(
        members, torch.tensor(list(returns.values())), torch.ones_like(members), torch.full_like(members, tick)
    )


NAN, INF = float("nan"), float("inf")
RISING, FALLING, UP = [10.0, 20.0, 30.0, 40.0, 36.0, 35.0], [9.0, 5.0, 10.0, 12.0, 8.0], [1.0, 2.0, 3.0, 4.0]
# rule, returns of its episodes, and how many of them end the training
BY_HAND: list[tuple[Any, list[float], int | None]] = [
    # The published settings stop after 21 episodes at the earliest.
    (Plateau(1, 10, 0.01, initial=10), [7.0] * 40, 21),
    # number 2, initial 1: entries 10, 20 | 30, 40 | 36, 35, with means 15, 25, 35, 38, 35.5 of neighbours. After
    # episode 4 the latest 35 are far from 15; after 5, 38 from 25; after 6, 35.5 differs from 35 by 0.5 / 35 = 1.43 %.
    (Plateau(1, 2, 0.0143, initial=1), RISING, 6),
    (Plateau(1, 2, 0.0142, initial=1), RISING, None),
    # |38 - 25| / 25 = 0.52 already after episode 5, and |35 - 15| / 15 = 1.33 after 4.
    (Plateau(1, 2, 0.53, initial=1), RISING, 5),
    (Plateau(1, 2, 1.34, initial=1), RISING, 4),
    # Fewer entries before than number: after episode 4 the mean of 2, 3, 4 is held against the 1.0 alone before them,
    # so that it is three times as large; a difference of 2.01 passes and 1.99 does not.
    (Plateau(1, 3, 2.01, initial=0), UP, 4),
    (Plateau(1, 3, 1.99, initial=0), UP, None),
    # With nothing to compare with it goes on, though not even the number of episodes holds it back.
    (Plateau(1, 3, 1e9, initial=-3), [1.0] * 10, 4),
    # Negative returns and zeros.
    *((Plateau(1, 1, 0.01, initial=1), returns, through)
      for returns, through in (([-5.0] * 3, 3), ([-5.0, -5.0, -4.0], None), ([0.0] * 3, 3))),
    # A return that is no number is never flat; once it has left the window of the four latest, all is as before.
    *((Plateau(1, 2, 0.5, initial=0), [bad] * 20, None) for bad in (NAN, INF, -INF)),
    *((Plateau(1, 2, 0.5, initial=0), [bad, 1.0, 1.0, 1.0, 1.0], 5) for bad in (NAN, INF, -INF)),
    # The floor is in steps, ten an episode.
    (Plateau(1, 2, 0.1, initial=1, floor=100), [3.0] * 40, 10),
    (Plateau(1, 2, 0.1, initial=1, floor=101), [3.0] * 40, 11),
    # number 3: means 9, 7, 8, 9, 10 of the latest three at most; the first does not count for initial 1.
    (Solved(1, 3, 9.0, initial=1), FALLING, 4),
    (Solved(1, 3, 9.0, initial=0), FALLING, 1),
    (Solved(1, 3, 9.5, initial=0), FALLING, 5),
    (Solved(1, 3, 10.01, initial=0), FALLING, None),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "returns", "through"), BY_HAND)
def test_rules_by_hand(rule: Any, returns: list[float], through: int | None) -> None:
    for i, value in enumerate(returns, start=1):
        if rule(ONE_ENV, finished_episodes({0: value}, tick=i * 10)).item():
            assert i == through
            return
    assert through is None


def test_the_floor_counts_steps_of_all_environments() -> None:
    ten_envs: Any = SimpleNamespace(agent=SimpleNamespace(envs=10))
    rule = Plateau(1, 1, 0.1, initial=0, floor=100)
    through = [rule(ten_envs, finished_episodes({0: 3.0}, tick=tick)).item() for tick in (8, 9, 10)]
    assert through == [False, False, True]


def test_members_are_judged_by_themselves() -> None:
    rule, flat = Plateau(3, 2, 0.01, initial=1), [5.0, 5.0, 5.0]
    for value in flat:
        assert not rule(ONE_ENV, finished_episodes({0: value, 2: value})).any()
    assert not rule(ONE_ENV, finished_episodes({1: 5.0})).any()  # its first episode
    assert rule(ONE_ENV, finished_episodes({1: 5.0, 2: 5.0})).tolist() == [False, True]  # 2 and 4 episodes
    assert rule(ONE_ENV, finished_episodes({2: 99.0})).tolist() == [False]
    assert [rule(ONE_ENV, finished_episodes({1: 5.0})).item() for _ in range(2)] == [False, True]


def test_solved_by_tests_asks_once_for_each_member_of_a_tick_and_keeps() -> None:
    tested_members: list[list[int]] = []

    def test(interaction: Any, members: Tensor) -> Tensor:
        tested_members.append(members.tolist())
        return members.double() * 10

    rule = Solved(3, 2, 10.0, initial=1, test=test)
    assert not rule(ONE_ENV, finished_episodes({0: 1e9, 1: 1e9})).any()  # returns are not what counts
    assert rule(ONE_ENV, finished_episodes({0: 1e9, 1: -1e9})).tolist() == [False, True]
    two_episodes = EndedEpisodes(torch.tensor([2, 2]), torch.zeros(2), torch.ones(2), torch.tensor([3, 3]))
    assert rule(ONE_ENV, two_episodes).tolist() == [True, True]  # two episodes of one member in one tick
    assert tested_members == [[0, 1], [0, 1], [2]]
    assert rule(ONE_ENV, finished_episodes({1: 0.0})).tolist() == [True]  # (10 + 10) / 2


def test_several_episodes_of_a_member_in_one_tick_all_count() -> None:
    recent = RunningWindow(2, 3)
    recent.add(torch.tensor([0, 0, 1]), torch.tensor([1.0, 2.0, 7.0]))
    everybody = torch.tensor([0, 1])
    assert recent.counts.tolist() == [2, 1]
    assert recent.mean(everybody, 3).tolist() == [1.5, 7.0]
    recent.add(torch.tensor([0, 0, 0, 0, 0, 1, 1]), torch.tensor([9.0, 9.0, 3.0, 4.0, 5.0, 8.0, 9.0]))
    assert recent.counts.tolist() == [7, 3]
    assert recent.mean(everybody, 3).tolist() == [4.0, 8.0]
    assert recent.mean(everybody, 1).tolist() == [5.0, 9.0]
    assert recent.mean(everybody, 2, skip=1).tolist() == [3.5, 7.5]
    assert RunningWindow(1, 4).mean(torch.tensor([0]), 4).isnan().all()
