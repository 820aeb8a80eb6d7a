"""Grid worlds: mazes against published statistics, and steps by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import hashed
from envs.gridworld import EXTRA, GOAL, POSITION, OpenGrid, ProcMaze
from envs.seeded import uniform_at
from envs.tensor import SEED, TIME
from models.spaces import Discrete, Spaces

NOOP, UP, LEFT, DOWN, RIGHT = range(5)
MAZES = 20_000


def is_near(values: Tensor, expected: float, theirs_n: int = MAZES, rounding: float = 0.0) -> bool:
    """Whether the mean is within three standard errors of both samples, plus rounding of the published number."""
    samples = values.double()
    error = 3 * (samples.var().item() * (1 / len(samples) + 1 / theirs_n)) ** 0.5
    return abs(samples.mean().item() - expected) <= error + rounding


# The published code: open cells and player on goal in 20 000 mazes, mean and maximum of the shortest path in 4 000.
PUBLISHED = {4: (11.442, 0.087, 3.472, 10), 5: (17.151, 0.056, 4.937, 15)}


@pytest.mark.parametrize("size", PUBLISHED)
def test_mazes_match_published(size: int) -> None:
    state = ProcMaze(size).initial(torch.arange(MAZES).view(1, MAZES))[0]
    is_open = state[:, EXTRA:].view(-1, size, size).bool()
    count, (open_mean, same_place, path_mean, longest) = is_open.sum((1, 2)), PUBLISHED[size]
    assert is_near(count, open_mean, rounding=0.0005)
    assert is_near(state[:, POSITION] == state[:, GOAL], same_place, rounding=0.0005)
    for place in (state[:, POSITION], state[:, GOAL]):
        rank = (state[:, EXTRA:].cumsum(1).gather(1, place[:, None])[:, 0] - 0.5) / count
        assert is_near(rank, 0.5)
    passages = (is_open[:, 1:] & is_open[:, :-1]).sum((1, 2)) + (is_open[:, :, 1:] & is_open[:, :, :-1]).sum((1, 2))
    assert torch.equal(passages, count - 1), "mazes are trees"
    moves = shortest_paths(state, is_open)
    assert is_near(moves, path_mean, 4000, 0.0005)
    assert (moves >= longest).any() and (moves > longest).double().mean() < 0.001


def shortest_paths(state: Tensor, is_open: Tensor) -> Tensor:
    """Moves from the player to the goal ``[20 000]``. Asserts that all open cells are reachable."""
    reached = F.one_hot(state[:, POSITION], is_open[0].numel()).view(is_open.shape).float()
    cross = torch.tensor([[0.0, 1, 0], [1, 1, 1], [0, 1, 0]]).view(1, 1, 3, 3)
    moves = torch.zeros(len(state))
    for _ in range(is_open[0].numel()):
        moves += 1 - reached.flatten(1).gather(1, state[:, GOAL, None])[:, 0]
        reached = (F.conv2d(reached[:, None], cross, padding=1)[:, 0] > 0).float() * is_open
    assert torch.equal(reached.bool(), is_open)
    return moves


def maze_state(picture: str, seed: int = 0, time: int = 0) -> Tensor:
    """``[1, 1, K]`` of a picture: # wall, . open, P player, G goal, B both."""
    cells = "".join(picture.split())
    place = {mark: next(i for i, cell in enumerate(cells) if cell in (mark, "B")) for mark in "PG"}
    return torch.tensor([[[seed, time, place["P"], place["G"], *(int(cell != "#") for cell in cells)]]])


def walk(world: ProcMaze | OpenGrid, state: Tensor, actions: list[int]) -> list[tuple[int, float, bool]]:
    """After each action: the player's cell, the reward, and terminated."""
    return [(state[POSITION], *rest) for state, *rest in hashed.walk(world, state, actions)]


def test_walls_stop_moves_and_the_goal_ends_the_episode() -> None:
    world = ProcMaze(3, spontaneous_termination=False)
    state = maze_state("P.G  #.#  ...")
    moves = walk(world, state, [UP, LEFT, DOWN, NOOP, RIGHT, DOWN, UP, RIGHT, LEFT, LEFT])
    assert [cell for cell, *_ in moves] == [0, 0, 0, 0, 1, 4, 1, 2, 1, 0]
    assert [reward for _, reward, _ in moves] == [-1.0] * 10
    assert [terminated for *_, terminated in moves] == [False] * 8 + [True, False]
    assert walk(world, maze_state("B.. ### ###"), [RIGHT]) == [(1, -1.0, True)]
    next_state = world.step(maze_state("P.G  #.#  ...", seed=-7, time=41), torch.tensor([[RIGHT]]))[0]
    assert next_state.dtype == torch.int64 and next_state[0, 0].tolist() == [-7, 42, 1, 2, 1, 1, 1, 0, 1, 0, 1, 1, 1]


def test_observations_are_one_hot_by_cell() -> None:
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
    """The first step with an event, not 0 and with no event before or after it."""
    events = uniform_at(torch.tensor(seed), torch.arange(5000)) < chance
    return next(t for t in range(1, 4999) if events[t - 1 : t + 2].tolist() == [False, True, False])


@pytest.mark.parametrize("teleport", [True, False])
def test_events_come_after_the_move(teleport: bool) -> None:
    """Termination depends on the state before the move; then the move and the event."""
    world = ProcMaze(3, teleport_on_termination=teleport)
    time = time_of_event(0.1 / 7, seed=5)
    state = maze_state("P..  #.#  ..G", seed=5, time=time - 1)
    moves = walk(world, state, [RIGHT, RIGHT, LEFT])
    if teleport:
        assert moves == [(1, -1.0, False), (8, -1.0, False), (7, -1.0, True)]
    else:
        assert moves == [(1, -1.0, False), (2, -1.0, True), (1, -1.0, False)]
    # On the goal: it terminates, and teleports back or not.
    state = maze_state("...  #.#  ..B", seed=5, time=time)
    assert walk(world, state, [LEFT]) == [(8 if teleport else 7, -1.0, True)]
    # Without an event it terminates too.
    assert walk(world, maze_state("...  #.#  ..B", seed=5, time=time - 1), [LEFT]) == [(7, -1.0, True)]


@pytest.mark.parametrize(("world", "chance"), [
    (ProcMaze(2), 0.1 / 3), (ProcMaze(3), 0.1 / 7), (ProcMaze(4), 0.01), (ProcMaze(5), 0.1 / 17), (OpenGrid(4), 0.025),
])  # fmt: skip
def test_events_have_their_probability(world: ProcMaze | OpenGrid, chance: float) -> None:
    assert world.event_probability == pytest.approx(chance, rel=1e-12)
    # The player does nothing, so an event is a teleport.
    cells = [1, 1] + [0] * (world.cells - 2) if isinstance(world, ProcMaze) else []
    state = torch.tensor([0, 0, 0, 1, *cells]).repeat(100, 400, 1)
    state[..., SEED] = torch.arange(100)[:, None]
    state[..., TIME] = torch.arange(400)
    next_state, _, terminated, _ = world.step(state, torch.zeros(100, 400, dtype=torch.int64))
    events = (next_state[..., POSITION] == 1).flatten()
    assert not terminated.any() and is_near(events, chance, 10**12)
    assert events.sum() > 100
    quiet = type(world)(4, spontaneous_termination=False)
    assert quiet.event_probability == 0


def test_borders_stop_moves_in_the_open_grid() -> None:
    world = OpenGrid(3, spontaneous_termination=False)
    moves = walk(world, torch.tensor([[[0, 0, 0, 8]]]), [UP, LEFT, RIGHT, RIGHT, RIGHT, DOWN, DOWN, DOWN, UP])
    assert [cell for cell, *_ in moves] == [0, 0, 1, 2, 2, 5, 8, 8, 5]
    assert [terminated for *_, terminated in moves] == [False] * 7 + [True, True]
    assert {reward for _, reward, _ in moves} == {-1.0}
    time = time_of_event(0.1 / 3, seed=2)
    state = torch.tensor([[[2, time, 0, 8]]])
    assert walk(OpenGrid(3), state, [RIGHT, UP]) == [(8, -1.0, False), (5, -1.0, True)]
    assert walk(OpenGrid(3, teleport_on_termination=False), state, [RIGHT, UP]) == [(1, -1.0, True), (1, -1.0, False)]


def test_initial_states_of_the_open_grid_are_uniform() -> None:
    state = OpenGrid(4).initial(torch.arange(16_000).view(4, 4000))
    assert (state[..., GOAL] == 15).all() and not state[..., TIME].any()
    assert torch.equal(state[..., SEED], torch.arange(16_000).view(4, 4000))
    counts = torch.bincount(state[..., POSITION].flatten(), minlength=16)
    assert len(counts) == 16 and (counts - 1000).abs().max() < 4 * (1000 * 15 / 16) ** 0.5
