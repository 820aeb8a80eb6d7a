"""Grid worlds: mazes against a plain search and the published task's statistics, and steps worked by hand."""

import math
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from envs.gridworld import EXTRA, GOAL, POSITION, OpenGrid
from envs.procmaze import ProcMaze, mazes
from envs.seeded import uniform, uniform_at
from envs.tensor import SEED, TIME
from models.spaces import Discrete, Spaces

NOOP, UP, LEFT, DOWN, RIGHT = range(5)
MAZES = 20_000

Place = tuple[int, int]


def around(cell: Place, size: int) -> list[Place]:
    row, column = cell
    neighbours = [(row - 1, column), (row, column - 1), (row + 1, column), (row, column + 1)]
    return [(r, c) for r, c in neighbours if 0 <= r < size and 0 <= c < size]


def searched(seed: int, size: int) -> list[Place]:
    """The depth-first search with an explicit stack, on the same random numbers: the t-th pop has column -1 - t."""
    seeds = torch.tensor(seed)
    numbers = uniform_at(seeds, -1 - torch.arange(2 * size * size)).tolist()
    start = divmod(int(uniform(seeds, 1).item() * size * size), size)
    stack, visited, pops = [start], {start}, 0
    while stack:
        cell = stack.pop()
        fresh = [n for n in around(cell, size) if n not in visited]
        expandable = [n for n in fresh if sum(m in visited for m in around(n, size)) == 1]
        if expandable:
            next_cell = expandable[int(numbers[pops] * len(expandable))]
            visited.add(next_cell)
            stack += [cell, next_cell]
        pops += 1
    return sorted(visited)


def cells_of(is_open: Tensor, size: int) -> list[Place]:
    return [divmod(cell, size) for cell in is_open.nonzero()[:, 0].tolist()]


@pytest.mark.parametrize(("size", "count"), [(2, 30), (3, 100), (4, 300), (5, 100), (10, 8), (12, 3)])
def test_mazes_equal_a_plain_search_cell_for_cell(size: int, count: int) -> None:
    seeds = torch.arange(count) * 7919 - 5
    for seed, is_open in zip(seeds.tolist(), mazes(seeds, size), strict=True):
        assert cells_of(is_open, size) == searched(seed, size)


@settings(max_examples=40, deadline=None)
@given(st.integers(-(2**63), 2**63 - 1), st.integers(2, 7))
def test_any_seed_alone_has_the_maze_it_has_in_company(seed: int, size: int) -> None:
    alone = mazes(torch.tensor([seed]), size)
    assert torch.equal(mazes(torch.tensor([3, seed, 4, seed]), size)[1::2], alone.expand(2, -1))
    assert cells_of(alone[0], size) == searched(seed, size)


@cache
def sample_mazes(size: int) -> tuple[Tensor, Tensor]:
    """Initial states of 20 000 episodes, and the open cells ``[20 000, size, size]``."""
    state = ProcMaze(size).initial(torch.arange(MAZES).view(1, MAZES))[0]
    return state, state[:, EXTRA:].view(-1, size, size).bool()


def is_near(values: Tensor, expected: float, theirs_n: int = MAZES, rounding: float = 0.0) -> bool:
    """Whether the mean of ``values`` is within three standard errors of both samples, and the other's rounding."""
    samples = values.double()
    error = 3 * (samples.var().item() * (1 / len(samples) + 1 / theirs_n)) ** 0.5
    return abs(samples.mean().item() - expected) <= error + rounding


# Of 20 000 mazes of the published code; rounding is half of the last digit known.
OPEN_MEANS = {4: 11.442, 5: 17.151}
OPEN_SHARES = {
    4: {7: 0.0157, 10: 0.04545, 11: 0.389, 12: 0.54985},
    5: {9: 0.0025, 14: 0.002, 15: 0.037, 16: 0.137, 17: 0.447, 18: 0.363, 19: 0.012},
}
SAME_PLACE = {4: 0.087, 5: 0.056}
RANDOM_RETURNS = {4: (-35.36, 0.24), 5: (-50.66, 0.27)}
# 4 000 mazes; the mean, and the shares of 0, 1, ... moves.
WAYS = {4: (3.472, 10), 5: (4.937, 15)}
WAY_SHARES = (0.097, 0.152, 0.159, 0.136, 0.141, 0.107, 0.081, 0.056, 0.035, 0.024, 0.013)


@pytest.mark.parametrize("size", [4, 5])
def test_open_cells_and_places_are_distributed_as_published(size: int) -> None:
    state, is_open = sample_mazes(size)
    count = is_open.sum((1, 2))
    assert is_near(count, OPEN_MEANS[size], rounding=0.0005)
    assert set(count.tolist()) == set(OPEN_SHARES[size])
    for cells, share in OPEN_SHARES[size].items():
        assert is_near(count == cells, share, rounding=0.0005), cells
    position, goal = state[:, POSITION], state[:, GOAL]
    assert is_near(position == goal, SAME_PLACE[size], rounding=0.0005)
    for place in (position, goal):
        assert state.gather(1, EXTRA + place[:, None]).all()
        rank = (state[:, EXTRA:].cumsum(1).gather(1, place[:, None])[:, 0] - 0.5) / count
        assert is_near(rank, 0.5)


def ways(size: int) -> Tensor:
    """Moves from the player to the goal by breadth-first search ``[20 000]``; all open cells must be reached."""
    state, is_open = sample_mazes(size)
    cells = torch.arange(size * size)
    reached = (state[:, POSITION, None] == cells).view(is_open.shape)
    moves = torch.full((MAZES,), -1)
    for way in range(size * size):
        at_goal = reached.flatten(1).gather(1, state[:, GOAL, None])[:, 0]
        moves = torch.where((moves < 0) & at_goal, way, moves)
        spread = reached.clone()
        spread[:, 1:] |= reached[:, :-1]
        spread[:, :-1] |= reached[:, 1:]
        spread[:, :, 1:] |= reached[:, :, :-1]
        spread[:, :, :-1] |= reached[:, :, 1:]
        reached = spread & is_open
    assert torch.equal(reached, is_open)
    return moves


@pytest.mark.parametrize("size", [4, 5])
def test_mazes_are_trees_with_ways_as_long_as_published(size: int) -> None:
    is_open = sample_mazes(size)[1]
    passages = (is_open[:, 1:] & is_open[:, :-1]).sum((1, 2)) + (is_open[:, :, 1:] & is_open[:, :, :-1]).sum((1, 2))
    assert torch.equal(passages, is_open.sum((1, 2)) - 1)
    moves, (mean, longest) = ways(size), WAYS[size]
    assert moves.min() == 0 and is_near(moves, mean, 4000, 0.0005)
    # Longer ones are so rare that 4 000 mazes may well have none.
    assert (moves >= longest).any() and (moves > longest).double().mean() < 0.001
    for way, share in enumerate(WAY_SHARES if size == 4 else ()):
        assert is_near(moves == way, share, 4000, 0.0005), way


@pytest.mark.parametrize("size", [4, 5])
def test_random_players_return_what_was_published(size: int) -> None:
    world, state, generator = ProcMaze(size), sample_mazes(size)[0][None], torch.Generator().manual_seed(size)
    total, going = torch.zeros(1, MAZES), torch.ones(1, MAZES, dtype=torch.bool)
    for _ in range(100):
        state, reward, terminated, _ = world.step(state, torch.randint(5, (1, MAZES), generator=generator))
        total += reward * going
        going &= ~terminated
    mean, error = RANDOM_RETURNS[size]
    assert abs(total.mean() - mean) < 3 * math.hypot(error, total.std() / MAZES**0.5)


def maze_state(picture: str, seed: int = 0, time: int = 0) -> Tensor:
    """``[1, 1, K]`` of a picture: # wall, . open, P player, G goal, B both."""
    cells = "".join(picture.split())
    place = {mark: next(i for i, cell in enumerate(cells) if cell in (mark, "B")) for mark in "PG"}
    return torch.tensor([[[seed, time, place["P"], place["G"], *(int(cell != "#") for cell in cells)]]])


def walk(world: ProcMaze | OpenGrid, state: Tensor, actions: list[int]) -> list[tuple[int, float, bool]]:
    """After each action: the player's cell, the reward, and terminated."""
    transitions = []
    for action in actions:
        state, reward, terminated, discount = world.step(state, torch.tensor([[action]]))
        assert discount is None and reward.dtype == torch.float32
        transitions.append((int(state[0, 0, POSITION]), reward.item(), bool(terminated)))
    return transitions


def test_walls_and_borders_stop_and_the_step_after_the_goal_terminates() -> None:
    world = ProcMaze(3, spontaneous_termination=False)
    state = maze_state("P.G  #.#  ...")
    moves = walk(world, state, [UP, LEFT, DOWN, NOOP, RIGHT, DOWN, UP, RIGHT, LEFT, LEFT])
    assert [cell for cell, *_ in moves] == [0, 0, 0, 0, 1, 4, 1, 2, 1, 0]
    assert [reward for _, reward, _ in moves] == [-1.0] * 10
    assert [terminated for *_, terminated in moves] == [False] * 8 + [True, False]
    assert walk(world, maze_state("B.. ### ###"), [RIGHT]) == [(1, -1.0, True)]
    next_state = world.step(maze_state("P.G  #.#  ...", seed=-7, time=41), torch.tensor([[RIGHT]]))[0]
    assert next_state.dtype == torch.int64 and next_state[0, 0].tolist() == [-7, 42, 1, 2, 1, 1, 1, 0, 1, 0, 1, 1, 1]


def test_observation_by_hand() -> None:
    obs = ProcMaze(2).observe(maze_state("P. #G"))
    # Player, goal, wall, open of each cell, row by row.
    expected = [1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 1]
    assert obs.dtype == torch.float32 and obs[0, 0].tolist() == expected
    assert ProcMaze(2).observe(maze_state("#. #B"))[0, 0].tolist()[12:] == [1, 1, 0, 1]
    assert OpenGrid(2).observe(torch.tensor([[[0, 0, 2, 3]]]))[0, 0].tolist() == [0, 0, 1, 0]
    limited = Spaces((64,), Discrete(5), torch.float32, 100, -1.0, binary=True)
    assert ProcMaze(4, max_episode_steps=100).spaces == limited
    assert OpenGrid(5).spaces == Spaces((25,), Discrete(5), torch.float32, None, -1.0, binary=True)


def time_of_event(chance: float, seed: int) -> int:
    """The first step, not 0 and no event right after it, whose event happens."""
    events = uniform_at(torch.tensor(seed), torch.arange(5000)) < chance
    return next(t for t in range(1, 4999) if events[t - 1 : t + 2].tolist() == [False, True, False])


@pytest.mark.parametrize("teleport", [True, False])
def test_order_of_events_within_a_step(teleport: bool) -> None:
    """Terminated is what was before the move, then the move, then the event: one that teleports shows in the next."""
    world = ProcMaze(3, teleport_on_termination=teleport)
    time = time_of_event(0.1 / 7, seed=5)
    state = maze_state("P..  #.#  ..G", seed=5, time=time - 1)
    moves = walk(world, state, [RIGHT, RIGHT, LEFT])
    if teleport:
        assert moves == [(1, -1.0, False), (8, -1.0, False), (7, -1.0, True)]
    else:
        assert moves == [(1, -1.0, False), (2, -1.0, True), (1, -1.0, False)]
    # On the goal already: it terminates and is moved back there, or only terminates.
    state = maze_state("...  #.#  ..B", seed=5, time=time)
    assert walk(world, state, [LEFT]) == [(8 if teleport else 7, -1.0, True)]
    # Without an event it terminates just the same.
    assert walk(world, maze_state("...  #.#  ..B", seed=5, time=time - 1), [LEFT]) == [(7, -1.0, True)]


@pytest.mark.parametrize(("world", "chance"), [
    (ProcMaze(2), 0.1 / 3), (ProcMaze(3), 0.1 / 7), (ProcMaze(4), 0.01), (ProcMaze(5), 0.1 / 17), (OpenGrid(4), 0.025),
])  # fmt: skip
def test_events_happen_at_their_rate(world: ProcMaze | OpenGrid, chance: float) -> None:
    assert world.chance == pytest.approx(chance, rel=1e-12)
    # Two open cells, far enough apart for no-ops: whoever moved was teleported.
    cells = [1, 1] + [0] * (world.cells - 2) if isinstance(world, ProcMaze) else []
    state = torch.tensor([0, 0, 0, 1, *cells]).repeat(100, 400, 1)
    state[..., SEED] = torch.arange(100)[:, None]
    state[..., TIME] = torch.arange(400)
    next_state, _, terminated, _ = world.step(state, torch.zeros(100, 400, dtype=torch.int64))
    events = (next_state[..., POSITION] == 1).flatten()
    assert not terminated.any() and is_near(events, chance, 10**12)
    assert events.sum() > 100
    quiet = type(world)(4, spontaneous_termination=False)
    assert quiet.chance == 0


def test_opengrid_by_hand() -> None:
    world = OpenGrid(3, spontaneous_termination=False)
    moves = walk(world, torch.tensor([[[0, 0, 0, 8]]]), [UP, LEFT, RIGHT, RIGHT, RIGHT, DOWN, DOWN, DOWN, UP])
    assert [cell for cell, *_ in moves] == [0, 0, 1, 2, 2, 5, 8, 8, 5]
    assert [terminated for *_, terminated in moves] == [False] * 7 + [True, True]
    assert {reward for _, reward, _ in moves} == {-1.0}
    time = time_of_event(0.1 / 3, seed=2)
    state = torch.tensor([[[2, time, 0, 8]]])
    assert walk(OpenGrid(3), state, [RIGHT, UP]) == [(8, -1.0, False), (5, -1.0, True)]
    assert walk(OpenGrid(3, teleport_on_termination=False), state, [RIGHT, UP]) == [(1, -1.0, True), (1, -1.0, False)]


def test_opengrid_starts_anywhere_and_its_goal_is_the_last_cell() -> None:
    state = OpenGrid(4).initial(torch.arange(16_000).view(4, 4000))
    assert (state[..., GOAL] == 15).all() and not state[..., TIME].any()
    assert torch.equal(state[..., SEED], torch.arange(16_000).view(4, 4000))
    counts = torch.bincount(state[..., POSITION].flatten(), minlength=16)
    assert len(counts) == 16 and (counts - 1000).abs().max() < 4 * (1000 * 15 / 16) ** 0.5


def test_uniform_at_is_uniform_and_of_its_seed_and_column_alone() -> None:
    seeds, columns = torch.arange(1000)[:, None], torch.arange(-10, 10)
    drawn_at = uniform_at(seeds, columns)
    assert drawn_at.shape == (1000, 20) and drawn_at.dtype == torch.float64
    assert drawn_at.min() >= 0 and drawn_at.max() < 1 and is_near(drawn_at.flatten(), 0.5, 10**12)
    assert torch.equal(uniform_at(torch.tensor(999), torch.tensor(-10)), drawn_at[999, 0])
    assert torch.equal(uniform_at(torch.arange(20), columns), drawn_at[:20].diagonal())
    assert len(torch.cat((drawn_at, uniform(seeds[:, 0], 20))).unique()) == 40_000
    correlation = torch.corrcoef(torch.cat((drawn_at, uniform(seeds[:, 0], 5)), 1).T) - torch.eye(25)
    assert correlation.abs().max() < 4.5 / 1000**0.5
