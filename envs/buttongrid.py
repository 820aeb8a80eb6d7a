"""ButtonGrid as a tensor program: switch all buttons of a grid on, over and over, without episodes.

Stepping onto a button's cell toggles the button. When all buttons are on, the next step pays 1 and starts a new
arrangement of player and buttons, which depends on the episode's seed alone. In rare events all buttons turn on by
themselves, so that even an agent that never earns a reward sees one.
"""

from typing import Any

import torch
from torch import Tensor

from envs.gridworld import MOVES, as_lines, clipped_moves
from envs.names import ButtonParameters
from envs.seeded import uniform_at
from envs.tensor import ChanceDynamics


class ButtonGrid(ChanceDynamics):
    """State ``[..., 4 + 2 K]`` int64: seed, steps since the reset, row and column of the player, the cells of the K
    buttons (row * size + column, all different), the states of the K buttons (1 on, 0 off).

    Observation ``[..., 3 * size**2]``: for each cell in row-major order three numbers, 0 or 1, which say whether it
    holds the player, a button that is on, a button that is off. Episodes never terminate, and have a time limit only
    with ``max_episode_steps``. With ``spontaneous_reset`` each step has an event with probability 1 / (10 size**2). The
    event turns all buttons on or, without ``activate_on_reset``, starts a new arrangement. Raises SettingError.
    """

    def __init__(self, *values: Any, max_episode_steps: int | None = None, **parameters: Any) -> None:
        """Take the fields of `ButtonParameters`, in order (``values``) or by name (``parameters``)."""
        grid = ButtonParameters(*values, **parameters)
        grid_size, num_buttons = grid.grid_size, grid.num_buttons
        cells = grid_size**2
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
        self._next_cell = clipped_moves(grid_size)
        self._next_row, self._next_col = self._next_cell // grid_size, self._next_cell % grid_size

    def initial(self, seeds: Tensor) -> Tensor:
        seeds = seeds.to(torch.int64)
        counters = torch.stack((seeds, torch.zeros_like(seeds)), -1)
        return self._new_arrangement(counters, self._random_numbers(counters[..., :1], counters[..., 1:]))

    def observe(self, state: Tensor) -> Tensor:
        _, row, col, cells, on = self._parts(state)
        player_index = (row * self._size + col) * 3
        button_indices = cells * 3 + 2 - on  # the cell's second number if on, its third if off
        obs = torch.zeros(*state.shape[:-1], *self.spaces.obs_shape, device=state.device)
        return obs.scatter_(-1, torch.cat((player_index, button_indices), -1), 1.0)

    def chance_at(self, seed: Tensor, time: Tensor) -> Tensor:
        return self._random_numbers(seed, time + 1)

    def advance(self, state: Tensor, actions: Tensor, chance: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """See `envs.tensor.ChanceDynamics.advance`. ``chance [..., 3 + K]`` holds random numbers for the event, for row
        and column of the player, and for the cells of the K buttons."""
        counters, row, col, cells, on = self._parts(state)
        counters = counters + self._one_step
        old_cell = torch.add(col, row, alpha=self._size)
        # Index into tables of next cells, which have a row for each cell and a column for each action.
        move = torch.add(actions[..., None], old_cell, alpha=len(MOVES))
        new_cell = torch.take(self._next_cell, move)
        success = restart = on.all(-1, keepdim=True)  # as in the original: all buttons were on before this step
        on = on ^ ((cells == new_cell) & (new_cell != old_cell))  # entering a button's cell toggles it
        if self._event_probability:
            event = chance[..., :1] < self._event_probability
            if self._event_activates_all:
                on = on | event
            else:  # the event begins a new arrangement
                restart = success | event
        next_row, next_col = torch.take(self._next_row, move), torch.take(self._next_col, move)
        same_arrangement = torch.cat((counters, next_row, next_col, cells, on), -1)
        state = torch.where(restart, self._new_arrangement(counters, chance), same_arrangement)
        success = success[..., 0]
        return state, success.float(), torch.zeros_like(success), None

    def text(self, state: Tensor) -> str:
        """Return a state ``[4 + 2 K]`` as lines of characters: ``@`` player, ``*`` player on a button, ``o`` button
        that is off, ``O`` button that is on, ``.`` other cells."""
        _, row, col, cells, on = self._parts(state)
        characters = ["."] * self._size**2
        for cell, is_on in zip(cells.tolist(), on.tolist(), strict=True):
            characters[cell] = "O" if is_on else "o"
        player = int(row) * self._size + int(col)
        characters[player] = "@" if characters[player] == "." else "*"
        return as_lines(characters, self._size)

    def _parts(self, state: Tensor) -> tuple[Tensor, ...]:
        """Split a state: seed and number of steps, row, column, cells of the buttons, states of the buttons."""
        return state.split((2, 1, 1, self._buttons, self._buttons), -1)

    def _random_numbers(self, seed: Tensor, number: Tensor) -> Tensor:
        """Return the random numbers ``[..., 3 + K]`` of step ``number [..., 1]``. Step 0 is the reset."""
        return uniform_at(seed, number * self.chances + self._columns)

    def _new_arrangement(self, counters: Tensor, random_numbers: Tensor) -> Tensor:
        """Return states with a new arrangement of player and buttons, and all buttons off. ``counters [..., 2]`` are
        seed and number of the step. The first of its ``random_numbers [..., 3 + K]``, for an event, is not used."""
        numbers = (random_numbers[..., 1:] * self._ranges).long()  # row, column, cells
        # Floyd's sample without replacement (Bentley & Floyd 1987). Button k's range has one number more than button k
        # - 1's. If its number repeats an earlier one, the last number of its range takes its place. All sets of cells
        # are equally likely. Their orders are not, but do not matter.
        cells = numbers[..., 2:]  # a view, in which the loop replaces numbers
        for k in range(1, self._buttons):
            duplicate = (cells[..., :k] == cells[..., k : k + 1]).any(-1)
            cells[..., k].masked_fill_(duplicate, self._size**2 - self._buttons + k)
        return torch.cat((counters, numbers, torch.zeros_like(cells)), -1)
