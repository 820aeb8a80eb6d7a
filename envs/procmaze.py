"""ProcMaze as a tensor program. Every reset samples a new maze, so the task is a distribution over mazes.

From the code of Young, Ramesh, Kirsch & Schmidhuber 2023, "The Benefits of Model-Based Generalization in Reinforcement
Learning". `mazes` digs many mazes at once. A seed gives the same maze alone and among other seeds.
"""

import math
from functools import lru_cache

import torch
from torch import Tensor

from envs.gridworld import EXTRA, MOVES, POSITION, OpenGrid, clipped_moves
from envs.seeded import uniform, uniform_at

# Columns of `uniform`, for the start of the search in `mazes`, the player and the goal. Then the number of columns.
_START, _PLAYER, _GOAL, _NUM_DRAWS = range(4)
_WALL_CHANNEL, _OPEN_CHANNEL = 2, 3  # channels of the observation, after player and goal
_VISITED = 8  # the mark of an open cell; more than the number of neighbours of a cell


class ProcMaze(OpenGrid):
    """A maze with exactly one path between any two open cells. Player and goal each start in a uniform open cell,
    possibly the same one.

    After the columns of `OpenGrid`, a state has one column per cell: 1 if the cell is open, 0 for a wall. The
    observation is ``[grid_size, grid_size, 4]`` flattened, 1 at the player, at the goal, at walls and at open cells.
    Walls stop moves as the border does. With G = ``grid_size``, the probability of an event is 0.1 / ((G + 1) * ceil(G
    / 2) - G mod 2), which is 1 in 100 for G = 4.
    """

    channels = 4
    remembers_cells = True

    @staticmethod
    def event_chance(grid_size: int) -> float:
        return 0.1 / ((grid_size + 1) * math.ceil(grid_size / 2) - grid_size % 2)

    def initial(self, seeds: Tensor) -> Tensor:
        flat_seeds = seeds.flatten().to(torch.int64)
        random_numbers = uniform(flat_seeds, _NUM_DRAWS)
        is_open = mazes(flat_seeds, self.grid_size)
        # Sample the ranks of player and goal, their indices among the open cells, and find the cells of these ranks.
        num_open_up_to = is_open.cumsum(1)
        num_open = num_open_up_to[:, -1:]
        ranks = (random_numbers[:, [_PLAYER, _GOAL]] * num_open).long()  # [N, 2]
        is_before = num_open_up_to[:, None] <= ranks[..., None]  # [N, 2, cells]
        places = is_before.sum(-1)  # a cell's index is the number of cells before it
        seed_and_time = torch.stack((flat_seeds, torch.zeros_like(flat_seeds)), 1)
        state = torch.cat((seed_and_time, places, is_open), 1)
        return state.view(*seeds.shape, -1)

    def observe(self, state: Tensor) -> Tensor:
        is_open = state[..., EXTRA:]
        obs = torch.zeros(*is_open.shape, self.channels, device=state.device)
        obs[..., _WALL_CHANNEL] = 1 - is_open
        obs[..., _OPEN_CHANNEL] = is_open
        places = state[..., POSITION:EXTRA]  # cells of player and goal
        indices = places * self.channels + self.player_and_goal  # channel 0 is for the player, 1 for the goal
        return obs.flatten(-2).scatter_(-1, indices, 1.0)

    def ground(self, state: Tensor) -> str:
        return "".join("." if is_open else "#" for is_open in state[EXTRA:].tolist())

    def cell_after_move(self, extra_columns: Tensor, position: Tensor, cell: Tensor) -> Tensor:
        return torch.where(extra_columns.gather(-1, cell) == 1, cell, position)


def mazes(seeds: Tensor, grid_size: int) -> Tensor:
    """Return the open cells ``[N, grid_size ** 2]`` bool of mazes dug by depth-first search, for ``seeds [N]`` int64.

    The search begins at a uniform cell. A neighbour of the current cell is expandable if it is closed and has exactly
    one open neighbour. Each step opens a uniformly chosen expandable neighbour and moves there. If there is none, the
    search moves back to the cell before, and it ends when it leaves the start in this way.
    """
    neighbours, increments = _neighbours(grid_size)
    cells = nowhere = grid_size * grid_size  # the number of cells is also the index of a cell outside the grid
    num_mazes = len(seeds)
    first_cell = (uniform(seeds, _START + 1)[:, _START] * cells).long()
    cell = first_cell.unsqueeze(1)  # [N, 1]
    # For each cell the number of its open neighbours, plus _VISITED if it is open. So a cell is expandable if its count
    # is 1. The cell nowhere is never expandable.
    count = increments[first_cell]
    count[:, nowhere] = _VISITED
    # A stack is not needed: the cells on the path back to the start are the predecessors of the current cell.
    predecessor = torch.full((num_mazes, cells + 1), nowhere)
    # Every cell except the start is entered and left at most once, which bounds the number of steps. A finished search
    # remains at nowhere until the others finish. Columns of `uniform_at` below 0 are for mazes, the others for events.
    for random_numbers in uniform_at(seeds, -1 - torch.arange(2 * cells)[:, None]):
        neighbours_of_cell = neighbours.index_select(0, cell[:, 0])
        is_expandable = count.gather(1, neighbours_of_cell[:, :4]) == 1
        num_expandable_up_to = is_expandable.cumsum(1)
        choice = (random_numbers * num_expandable_up_to[:, -1]).long().unsqueeze(1)
        # If none is expandable, the index is past the four neighbours, and the cell is nowhere.
        index = (num_expandable_up_to <= choice).sum(1, keepdim=True)
        next_cell = neighbours_of_cell.gather(1, index)
        count += increments.index_select(0, next_cell[:, 0])
        predecessor.scatter_(1, next_cell, cell)  # a finished search stays at the cell "nowhere"
        cell = torch.where(next_cell == nowhere, predecessor.gather(1, cell), next_cell)
        if (cell == nowhere).all():
            break
    return count[:, :cells] >= _VISITED


@lru_cache
def _neighbours(grid_size: int) -> tuple[Tensor, Tensor]:
    """Return two tables with one row per cell, and a last row for a cell outside the grid, ``nowhere = grid_size **
    2``. The first table, ``[cells + 1, 5]`` int64, has the four neighbours of a cell, with nowhere in place of a
    neighbour outside the grid, then nowhere as a fifth. The second, ``[cells + 1, cells + 1]`` uint8, has the numbers
    that `mazes` adds to the counts of all cells when it opens the cell of the row."""
    cells = nowhere = grid_size * grid_size
    cell_indices = torch.arange(cells)
    neighbours = torch.full((cells + 1, len(MOVES)), nowhere)
    # Without the first move, no-op. A move that the border stops leads to the cell itself.
    moves = clipped_moves(grid_size)[:, 1:]
    neighbours[:cells, :4] = torch.where(moves == cell_indices[:, None], nowhere, moves)
    increments = torch.zeros(cells + 1, cells + 1, dtype=torch.uint8)
    increments.scatter_(1, neighbours, 1)
    increments[cell_indices, cell_indices] = _VISITED
    increments[:, nowhere] = 0
    increments[nowhere] = 0
    return neighbours, increments
