"""OpenGrid as a tensor program. `envs.procmaze` builds on it: five moves that the border stops, a goal, and a rare
event that ends the search for the goal.

From the code of Young, Ramesh, Kirsch & Schmidhuber 2023, "The Benefits of Model-Based Generalization in Reinforcement
Learning". Cells are numbered row by row, ``row * grid_size + column``.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from envs.names import GridParameters
from envs.seeded import integers
from envs.tensor import TIME, ChanceDynamics

MOVES = ((0, 0), (-1, 0), (0, -1), (1, 0), (0, 1))  # (row, column) of no-op, up, left, down, right
# Columns of a state after `SEED` and `TIME`. `EXTRA` is the first of the columns that a subclass may add.
POSITION, GOAL, EXTRA = range(TIME + 1, TIME + 4)
BEST_RETURN = -1.0  # every step costs 1, and an episode has at least one


def as_lines(cells: Sequence[str], columns: int) -> str:
    """Join the characters of cells, in row-major order, into lines."""
    return "\n".join("".join(cells[i : i + columns]) for i in range(0, len(cells), columns))


def clipped_moves(grid_size: int) -> Tensor:
    """Return the next cell for each cell and move in a grid without walls, ``[grid_size ** 2, 5]`` int64. A move that
    the border stops leads to the cell itself."""
    cells = torch.arange(grid_size * grid_size)
    coordinates = torch.stack((cells // grid_size, cells % grid_size), -1)  # [cells, 2]
    coordinates = coordinates[:, None] + torch.tensor(MOVES)  # [cells, 5, 2]
    row, col = coordinates.clamp(0, grid_size - 1).unbind(-1)
    return row * grid_size + col


class OpenGrid(ChanceDynamics):
    """A grid without walls. Episodes start at a uniform cell, possibly the goal, which is the bottom right cell.

    States ``[..., K]`` int64 start with the columns `SEED`, `TIME`, `POSITION` and `GOAL`; a subclass may add columns.
    The observation is ``[grid_size, grid_size]`` flattened, 1 for the player's cell and 0 for all others.

    Every step pays -1. A step terminates if the player was on the goal *before* it moved. So one observation shows the
    player on the goal, and the return of a path of d moves is -(d + 1). With ``spontaneous_termination``, an event
    follows a move with probability `event_chance`. The event moves the player to the goal or, without
    ``teleport_on_termination``, ends the episode. Raises SettingError.
    """

    channels = 1  # numbers per cell in the observation
    remembers_cells = False  # whether states have one column per cell, after the four columns above

    def __init__(self, *values: Any, max_episode_steps: int | None = None, **parameters: Any) -> None:
        """Take the fields of `GridParameters`, in order (``values``) or by name (``parameters``)."""
        grid = GridParameters(*values, **parameters)
        grid_size, spontaneous_termination = grid.grid_size, grid.spontaneous_termination
        super().__init__(self.channels * grid_size * grid_size, len(MOVES), max_episode_steps, BEST_RETURN)
        self.grid_size, self.teleports = grid_size, grid.teleport_on_termination
        self.event_probability = self.event_chance(grid_size) if spontaneous_termination else 0.0
        self.chances = int(spontaneous_termination)  # number of random numbers in a step
        self.cells = grid_size * grid_size
        self.state_size = EXTRA + (self.cells if self.remembers_cells else 0)
        self.player_and_goal = torch.arange(2)  # their channels, if observations show both
        self._next_cell = clipped_moves(grid_size)

    @staticmethod
    def event_chance(grid_size: int) -> float:
        """Return the probability of an event in a step: 0.1 / ``grid_size``."""
        return 0.1 / grid_size

    def initial(self, seeds: Tensor) -> Tensor:
        seeds = seeds.to(torch.int64)
        time = torch.zeros_like(seeds)
        position = integers(seeds, self.cells)
        goal = torch.full_like(seeds, self.cells - 1)
        return torch.stack((seeds, time, position, goal), -1)

    def observe(self, state: Tensor) -> Tensor:
        obs = torch.zeros(*state.shape[:-1], *self.spaces.obs_shape, device=state.device)
        return obs.scatter_(-1, state[..., POSITION : POSITION + 1], 1.0)

    def cell_after_move(self, extra_columns: Tensor, position: Tensor, cell: Tensor) -> Tensor:
        """Return the player's cell ``[..., 1]`` after a move from ``position`` to ``cell``, which may be a wall in a
        subclass. ``extra_columns [..., K - 4]`` are the columns that a subclass adds to the state."""
        return cell

    def text(self, state: Tensor) -> str:
        """Return a state ``[K]`` as ``grid_size`` lines of characters: ``@`` player, ``G`` goal, ``*`` player on the
        goal, ``#`` wall, ``.`` other cells."""
        cells = list(self.ground(state))
        player, goal = int(state[POSITION]), int(state[GOAL])
        cells[goal] = "G"
        cells[player] = "*" if player == goal else "@"
        return as_lines(cells, self.grid_size)

    def ground(self, state: Tensor) -> str:
        """Return one character for each cell of a state ``[K]``, as if player and goal were not there."""
        return "." * self.cells

    def advance(self, state: Tensor, actions: Tensor, chance: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        seed, time, old_position, goal, extra_columns = state.split((1, 1, 1, 1, state.shape[-1] - EXTRA), -1)
        terminated = (old_position == goal)[..., 0]
        # The table has a row for each cell and a column for each action.
        index = torch.add(actions[..., None], old_position, alpha=len(MOVES))
        neighbour = torch.take(self._next_cell, index)
        position = self.cell_after_move(extra_columns, old_position, neighbour)
        if self.chances:
            event = chance < self.event_probability
            if self.teleports:
                position = torch.where(event, goal, position)
            else:
                terminated = terminated | event[..., 0]
        reward = torch.full(actions.shape, -1.0, device=state.device)
        return torch.cat((seed, time + 1, position, goal, extra_columns), -1), reward, terminated, None
