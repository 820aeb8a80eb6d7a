"""Three grids as tensor programs: OpenGrid, ProcMaze and ButtonGrid.

From the code of Young, Ramesh, Kirsch & Schmidhuber 2023, "The Benefits of Model-Based Generalization in Reinforcement
Learning". Cells are numbered row by row, ``row * grid_size + column``.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from envs.names import ButtonParameters, GridParameters
from envs.seeded import integers, uniform, uniform_at
from envs.tensor import TIME, ChanceDynamics, Transition

MOVES = ((0, 0), (-1, 0), (0, -1), (1, 0), (0, 1))  # (row, column) of no-op, up, left, down, right
# Columns of a state after `SEED` and `TIME`. `EXTRA` is the first of the columns that a subclass may add.
POSITION, GOAL, EXTRA = range(TIME + 1, TIME + 4)
BEST_RETURN = -1.0  # every step costs 1, and an episode has at least one step


def as_lines(cells: Sequence[str], columns: int) -> str:
    """Join the characters of cells, in row-major order, into lines of ``columns`` characters."""
    return "\n".join("".join(cells[i : i + columns]) for i in range(0, len(cells), columns))


def clipped_moves(rows: int, columns: int, moves: Sequence[tuple[int, int]] = MOVES) -> Tensor:
    """Return the next cell for each cell and each of A ``moves`` (row, column) in a grid without walls, ``[rows *
    columns, A]`` int64. A move that the border stops leads to the cell itself."""
    cells = torch.arange(rows * columns)[:, None]
    row_offset, column_offset = torch.tensor(moves).unbind(-1)  # [A] each
    row, column = cells // columns + row_offset, cells % columns + column_offset
    return row.clamp(0, rows - 1) * columns + column.clamp(0, columns - 1)


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
        self.grid_size, self.cells = grid.grid_size, grid.grid_size**2
        super().__init__(self.channels * self.cells, len(MOVES), max_episode_steps, BEST_RETURN)
        self.teleports = grid.teleport_on_termination
        self.event_probability = self.event_chance(grid.grid_size) if grid.spontaneous_termination else 0.0
        self.chances = int(grid.spontaneous_termination)  # number of random numbers in a step
        self.state_size = EXTRA + (self.cells if self.remembers_cells else 0)
        self.player_and_goal = torch.arange(2)  # their channels, if observations show both
        self._next_cell = clipped_moves(grid.grid_size, grid.grid_size)

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
        """Return the player's cell ``[..., 1]`` after a move from the cell ``position`` to the neighbour ``cell``. In a
        subclass, a wall may stop the move. ``extra_columns [..., K - 4]`` are the columns that it adds to the state."""
        return cell

    def text(self, state: Tensor) -> str:
        """Draw a state ``[K]`` as lines: ``@`` player, ``G`` goal, ``*`` player on the goal, ``#`` wall, ``.``
        others."""
        cells = list(self.ground(state))
        player, goal = int(state[POSITION]), int(state[GOAL])
        cells[goal] = "G"
        cells[player] = "*" if player == goal else "@"
        return as_lines(cells, self.grid_size)

    def ground(self, state: Tensor) -> str:
        """Return one character for each cell of a state ``[K]``, without player and goal: ``.``, or ``#`` for walls."""
        return "." * self.cells

    def advance(self, state: Tensor, actions: Tensor, chance: Tensor) -> Transition:
        """Move the player, if no wall stops it. An event happens if ``chance [..., 1]`` is below its probability."""
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
        next_state = torch.cat((seed, time + 1, position, goal, extra_columns), -1)
        return Transition(next_state, reward, terminated)


# Columns of the random numbers of a reset: start of the search in `mazes`, player, goal. Then the number of columns.
_START, _PLAYER, _GOAL, _NUM_DRAWS = range(4)
_WALL_CHANNEL, _OPEN_CHANNEL = 2, 3  # channels of the observation, after player and goal
_OPEN_MARK = 8  # added to the counts of open cells in `mazes`; more than the number of neighbours of a cell


class ProcMaze(OpenGrid):
    """A maze with exactly one path between any two open cells. Every reset samples a new maze, so the task is a
    distribution over mazes. Player and goal each start in a uniform open cell, possibly the same cell.

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
        # Player and goal are in open cell number ``ranks``, counted from 0 in each maze: the first cell with more than
        # ``ranks`` open cells up to it.
        num_open_up_to = is_open.cumsum(1)
        num_open = num_open_up_to[:, -1:]
        ranks = (random_numbers[:, [_PLAYER, _GOAL]] * num_open).long()  # [N, 2]
        places = torch.searchsorted(num_open_up_to, ranks, right=True)
        seed_and_time = torch.stack((flat_seeds, torch.zeros_like(flat_seeds)), 1)
        state = torch.cat((seed_and_time, places, is_open), 1)
        return state.view(*seeds.shape, -1)

    def observe(self, state: Tensor) -> Tensor:
        """Return four numbers for each cell, 0 or 1: player, goal, wall, open. All together ``[..., cells * 4]``."""
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
    neighbours, increments = _maze_tables(grid_size)
    cells = nowhere = grid_size * grid_size  # the number of cells is also the index of a cell outside the grid
    num_mazes = len(seeds)
    first_cell = (uniform(seeds, _START + 1)[:, _START] * cells).long()
    cell = first_cell.unsqueeze(1)  # [N, 1]
    # For each cell the number of its open neighbours, plus `_OPEN_MARK` if it is open. So a cell is expandable if its
    # count is 1. The cell nowhere is never expandable.
    count = increments[first_cell]
    count[:, nowhere] = _OPEN_MARK
    # For each cell the cell from which it was opened. This replaces a stack: it leads back from any cell to the start.
    predecessor = torch.full((num_mazes, cells + 1), nowhere)
    # Every cell except the start is entered and left at most once, which bounds the number of steps. A finished search
    # remains at nowhere until all searches finish. Mazes have columns of `uniform_at` below 0.
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
    return count[:, :cells] >= _OPEN_MARK


@lru_cache
def _maze_tables(grid_size: int) -> tuple[Tensor, Tensor]:
    """Return two tables for `mazes`, with one row per cell, and a last row for ``nowhere = grid_size ** 2``, a cell
    outside the grid.

    The first table, ``[cells + 1, 5]`` int64, has the four neighbours of a cell. A neighbour outside the grid is
    ``nowhere``, and so is the fifth entry. In the second table, ``[cells + 1, cells + 1]`` uint8, a row is added to the
    counts of all cells when its cell is opened: 1 for its neighbours, `_OPEN_MARK` for itself."""
    cells = nowhere = grid_size * grid_size
    cell_indices = torch.arange(cells)
    neighbours = torch.full((cells + 1, len(MOVES)), nowhere)
    # Without the first move, no-op. A move that the border stops leads to the cell itself.
    moves = clipped_moves(grid_size, grid_size)[:, 1:]
    neighbours[:cells, :4] = torch.where(moves == cell_indices[:, None], nowhere, moves)
    increments = torch.zeros(cells + 1, cells + 1, dtype=torch.uint8)
    increments.scatter_(1, neighbours, 1)
    increments[cell_indices, cell_indices] = _OPEN_MARK
    increments[:, nowhere] = 0
    increments[nowhere] = 0
    return neighbours, increments


class ButtonGrid(ChanceDynamics):
    """A grid whose buttons must all be switched on, over and over, without episodes.

    Stepping onto a button's cell toggles the button. When all buttons are on, the next step pays 1 and starts a new
    arrangement of player and buttons, which depends on the episode's seed alone. In rare events all buttons turn on by
    themselves, so that even an agent that never earns a reward sees a reward.

    State ``[..., 4 + 2 K]`` int64: seed, steps since the reset, row and column of the player, the cells of the K
    buttons (row * size + column, all different), the states of the K buttons (1 on, 0 off).

    Observation ``[..., 3 * size**2]``: for each cell in row-major order three numbers, 0 or 1, which say whether it
    holds the player, a button that is on, a button that is off. Episodes never terminate, and have a time limit only
    with ``max_episode_steps``. With ``spontaneous_reset`` each step has an event with probability 1 / (10 size**2). The
    event turns all buttons on or, without ``activate_on_reset``, starts a new arrangement. Raises SettingError.
    """

    def __init__(self, *values: Any, max_episode_steps: int | None = None, **parameters: Any) -> None:
        """Take the fields of `ButtonParameters`, in order (``values``) or by name (``parameters``)."""
        grid = ButtonParameters(*values, **parameters)
        grid_size, num_buttons, cells = grid.grid_size, grid.num_buttons, grid.grid_size**2
        super().__init__(3 * cells, len(MOVES), max_episode_steps)
        self._size, self._buttons, self._event_activates_all = grid_size, num_buttons, grid.activate_on_reset
        self._event_probability = 1 / (10 * cells) if grid.spontaneous_reset else 0.0
        # Every step has this many random numbers, used or not: for the event, the row, the column, each button's cell.
        self.chances = 3 + num_buttons
        self.state_size = 4 + 2 * num_buttons
        self._columns = torch.arange(1, 1 + self.chances)  # columns of step 0 in `uniform_at`; other steps follow
        # Upper bounds of the random row and column, and of each button's number in Floyd's sample (`_new_arrangement`).
        self._ranges = torch.tensor([grid_size, grid_size, *range(cells - num_buttons + 1, cells + 1)])
        self._one_step = torch.tensor([0, 1])  # added to seed and number of steps
        self._next_cell = clipped_moves(grid_size, grid_size)

    def initial(self, seeds: Tensor) -> Tensor:
        seeds = seeds.to(torch.int64)
        counters = torch.stack((seeds, torch.zeros_like(seeds)), -1)
        return self._new_arrangement(counters, self._random_numbers(counters[..., :1], counters[..., 1:]))

    def observe(self, state: Tensor) -> Tensor:
        _, row, col, cells, switches = self._split(state)
        player_index = (row * self._size + col) * 3
        button_indices = cells * 3 + 2 - switches  # the cell's second number if on, its third if off
        obs = torch.zeros(*state.shape[:-1], *self.spaces.obs_shape, device=state.device)
        return obs.scatter_(-1, torch.cat((player_index, button_indices), -1), 1.0)

    def chance_at(self, seed: Tensor, time: Tensor) -> Tensor:
        return self._random_numbers(seed, time + 1)

    def advance(self, state: Tensor, actions: Tensor, chance: Tensor) -> Transition:
        """Move the player, toggle the button that it enters, and apply the event. If all buttons were on, the step pays
        1 and starts a new arrangement. ``chance [..., 3 + K]`` holds random numbers for the event, for row and column
        of the player in a new arrangement, and for the cells of its K buttons."""
        counters, row, col, cells, switches = self._split(state)
        counters = counters + self._one_step
        old_cell = torch.add(col, row, alpha=self._size)
        # The table of next cells has a row for each cell and a column for each action.
        new_cell = torch.take(self._next_cell, torch.add(actions[..., None], old_cell, alpha=len(MOVES)))
        success = restart = switches.all(-1, keepdim=True)  # as in the original: all buttons were on before this step
        switches = switches ^ ((cells == new_cell) & (new_cell != old_cell))  # entering a button's cell toggles it
        if self._event_probability:
            event = chance[..., :1] < self._event_probability
            if self._event_activates_all:
                switches = switches | event
            else:  # the event begins a new arrangement
                restart = success | event
        next_row, next_col = new_cell // self._size, new_cell % self._size
        same_arrangement = torch.cat((counters, next_row, next_col, cells, switches), -1)
        state = torch.where(restart, self._new_arrangement(counters, chance), same_arrangement)
        never_terminated = torch.zeros_like(success[..., 0])
        return Transition(state, success[..., 0].float(), never_terminated)

    def text(self, state: Tensor) -> str:
        """Draw a state ``[4 + 2 K]`` as lines of characters: ``@`` player, ``*`` player on a button, ``o`` button that
        is off, ``O`` button that is on, ``.`` other cells."""
        _, row, col, cells, switches = self._split(state)
        characters = ["."] * self._size**2
        for cell, is_on in zip(cells.tolist(), switches.tolist(), strict=True):
            characters[cell] = "O" if is_on else "o"
        player = int(row) * self._size + int(col)
        characters[player] = "@" if characters[player] == "." else "*"
        return as_lines(characters, self._size)

    def _split(self, state: Tensor) -> tuple[Tensor, ...]:
        """Split states ``[..., 4 + 2 K]`` into seed and number of steps ``[..., 2]``, the player's row and column
        ``[..., 1]``, the cells of the K buttons, and the switches of the K buttons (1 on, 0 off)."""
        return state.split((2, 1, 1, self._buttons, self._buttons), -1)

    def _random_numbers(self, seed: Tensor, step: Tensor) -> Tensor:
        """Return the random numbers ``[..., 3 + K]`` of a ``step [..., 1]`` of an episode. Step 0 is the reset."""
        return uniform_at(seed, step * self.chances + self._columns)

    def _new_arrangement(self, counters: Tensor, random_numbers: Tensor) -> Tensor:
        """Return states with a random arrangement of player and buttons, all off. ``counters [..., 2]`` are seed and
        number of the step. The first of ``random_numbers [..., 3 + K]`` is for an event and not used here."""
        places = (random_numbers[..., 1:] * self._ranges).long()  # row, column, cells
        # Floyd's sample without replacement (Bentley & Floyd 1987). The range of each button has one number more than
        # the range of the button before it. If a button's number repeats an earlier number, it gets the last number of
        # its range. All sets of cells are equally likely. Their orders are not, but do not matter.
        cells = places[..., 2:]  # a view, so that the loop also changes ``places``
        for k in range(1, self._buttons):
            repeats = (cells[..., :k] == cells[..., k : k + 1]).any(-1)
            last_of_range = self._size**2 - self._buttons + k
            cells[..., k].masked_fill_(repeats, last_of_range)
        return torch.cat((counters, places, torch.zeros_like(cells)), -1)
