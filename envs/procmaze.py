"""ProcMaze as a tensor program: another random maze at every reset, so the task is the distribution over mazes.

Young, Ramesh, Kirsch & Schmidhuber 2023, "The Benefits of Model-Based Generalization in Reinforcement Learning", as
their code has it. Mazes, places and events come from `envs.seeded`, not from JAX's stream: the same seed starts another
maze there. `mazes` digs any number of mazes at once; a maze is the same alone and among others.
"""

from functools import lru_cache

import torch
from torch import Tensor

from envs.gridworld import MOVES, OWN, POSITION, OpenGrid, clipped_moves
from envs.seeded import uniform, uniform_at

_START, _PLAYER, _GOAL, _DRAWS = range(4)  # columns of `uniform`
_WALL_SEEN, _OPEN_SEEN = 2, 3  # channels of the observation, after player and goal
_VISITED = 8  # more than all neighbours of a cell


class ProcMaze(OpenGrid):
    """A maze with one way between any two open cells; player and goal each uniform over them, possibly on one cell.

    Beyond the columns of `OpenGrid` a state has 1 for open and 0 for wall of every cell. The observation is
    ``[grid_size, grid_size, 4]`` flattened, 0 or 1: player, goal, wall, open. Walls stop a move as the border does.
    The chance of an event is 0.1 / ((G + 1) * ceil(G / 2) - G mod 2) for G = ``grid_size``, 1 in 100 for 4.
    """

    channels = 4
    remembers_cells = True

    @staticmethod
    def event_chance(grid_size: int) -> float:
        return 0.1 / ((grid_size + 1) * -(-grid_size // 2) - grid_size % 2)

    def initial(self, seeds: Tensor) -> Tensor:
        flat = seeds.flatten().to(torch.int64)
        draws = uniform(flat, _DRAWS)
        is_open = mazes(flat, self.grid_size)
        # The places are numbered among the open cells: that many of them come before.
        ordinal = is_open.cumsum(1)
        rank = (draws[:, [_PLAYER, _GOAL]] * ordinal[:, -1:]).long()
        places = (ordinal[:, None] <= rank[..., None]).sum(-1)
        state = torch.cat((flat[:, None], torch.zeros_like(flat)[:, None], places, is_open), 1)
        return state.view(*seeds.shape, -1)

    def observe(self, state: Tensor) -> Tensor:
        is_open = state[..., OWN:]
        obs = torch.zeros(*is_open.shape, self.channels, device=state.device)
        obs[..., _WALL_SEEN], obs[..., _OPEN_SEEN] = 1 - is_open, is_open
        return obs.flatten(-2).scatter_(-1, state[..., POSITION:OWN] * self.channels + self.player_and_goal, 1.0)

    def ground(self, state: Tensor) -> str:
        return "".join("." if is_open else "#" for is_open in state[OWN:].tolist())

    def entered(self, extra_columns: Tensor, position: Tensor, cell: Tensor) -> Tensor:
        return torch.where(extra_columns.gather(-1, cell) == 1, cell, position)


def mazes(seeds: Tensor, grid_size: int) -> Tensor:
    """The open cells of mazes dug by depth-first search: ``seeds [N]`` int64 to bool ``[N, grid_size ** 2]``.

    From a uniform start the search opens a uniformly chosen neighbour that is on the grid, closed, and has exactly one
    open neighbour itself; where there is none it goes back the way it came, until it is back at the start.
    """
    neighbours, adds = _neighbours(grid_size)
    cells = grid_size * grid_size
    nowhere, n = cells, len(seeds)
    cell = (uniform(seeds, _START + 1)[:, _START] * cells).long()[:, None]
    # Open neighbours of each cell, and _VISITED more where it is open itself; the cell nowhere never qualifies.
    count = adds[cell[:, 0]]
    count[:, nowhere] = _VISITED
    # The stack of the search is the way back to the start, so that each cell's predecessor says all of it.
    predecessor = torch.full((n, cells + 1), nowhere)
    # Every cell but the start is entered and left once. A maze that is done stays nowhere while others go on.
    # Columns below 0 are the maze's, those from 0 on the events'.
    for draw in uniform_at(seeds, -1 - torch.arange(2 * cells)[:, None]):
        around = neighbours.index_select(0, cell[:, 0])
        expandable = (count.gather(1, around[:, :4]) == 1).cumsum(1)
        choice = (draw * expandable[:, -1]).long()[:, None]
        # Past the last neighbour, which is nowhere, if none is expandable.
        next_cell = around.gather(1, (expandable <= choice).sum(1, keepdim=True))
        count += adds.index_select(0, next_cell[:, 0])
        predecessor.scatter_(1, next_cell, cell)
        cell = torch.where(next_cell == nowhere, predecessor.gather(1, cell), next_cell)
        if (cell == nowhere).all():
            break
    return count[:, :cells] >= _VISITED


@lru_cache
def _neighbours(grid_size: int) -> tuple[Tensor, Tensor]:
    """Of each cell, and of ``nowhere = grid_size ** 2`` as the last row: its four neighbours and nowhere as a fifth
    ``[cells + 1, 5]`` int64 (nowhere for those off the grid), and what opening it adds to each cell's count
    ``[cells + 1, cells + 1]`` uint8."""
    cells = nowhere = grid_size * grid_size
    cell_indices = torch.arange(cells)
    neighbours = torch.full((cells + 1, len(MOVES)), nowhere)
    # A move that the border stops leads to the cell itself.
    moves = clipped_moves(grid_size)[:, 1:]
    neighbours[:cells, :4] = torch.where(moves == cell_indices[:, None], nowhere, moves)
    adds = torch.zeros(cells + 1, cells + 1, dtype=torch.uint8)
    adds.scatter_(1, neighbours, 1)
    adds[cell_indices, cell_indices] = _VISITED
    adds[:, nowhere] = 0
    adds[nowhere] = 0
    return neighbours, adds
