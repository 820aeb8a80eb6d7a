"""ButtonGrid as a tensor program: switch all buttons of a grid on, over and over, without episodes.

The player moves on a grid with buttons on some of its cells; stepping onto a button's cell toggles it. The step after
all buttons are on pays 1 and starts a new arrangement. Rare events switch all buttons on, so that a reward is seen even
by who never earns one. A task of model-based generalisation: the arrangement is another every time.

Chance is a hash of the episode's seed and of the number of the step (`envs.seeded.uniform_at`), so an episode is a
function of its seed and its actions alone, the arrangements within it too.
"""

import torch
from torch import Tensor

from envs.gridworld import MOVES, as_lines, move
from envs.seeded import uniform_at
from models.settings import INTEGER, OPTIONAL_INTEGER, SWITCH, check_value
from models.spaces import Discrete, Spaces


class ButtonGrid:
    """State ``[..., 4 + 2 K]`` int64: seed, steps since the reset, row, column, the K buttons' cells (row * size +
    column, all different), the K buttons' states (1 on).

    Observation ``[..., 3 * size**2]`` of zeros and ones: for each cell in row-major order, whether it holds the player,
    a button that is on, a button that is off. Never terminates; there is no time limit unless ``max_episode_steps``.
    ``grid_size`` is 2 to 100, ``num_buttons`` 1 to the number of cells. With ``spontaneous_reset`` an event comes with
    probability 1 / (10 size**2) at each step; it switches all buttons on, or, without ``activate_on_reset``, starts a
    new arrangement. Raises SettingError.
    """

    def __init__(
        self,
        grid_size: int = 10,
        num_buttons: int = 3,
        spontaneous_reset: bool = True,
        activate_on_reset: bool = True,
        max_episode_steps: int | None = None,
    ) -> None:
        check_value("grid_size", grid_size, INTEGER, {"minimum": 2, "maximum": 100})
        cells = grid_size**2
        check_value("num_buttons", num_buttons, INTEGER, {"minimum": 1, "maximum": cells})
        check_value("spontaneous_reset", spontaneous_reset, SWITCH, {})
        check_value("activate_on_reset", activate_on_reset, SWITCH, {})
        check_value("max_episode_steps", max_episode_steps, OPTIONAL_INTEGER, {"minimum": 1})
        self.spaces = Spaces((3 * cells,), Discrete(len(MOVES)), torch.float32, max_episode_steps)
        self._size, self._buttons, self._activate = grid_size, num_buttons, activate_on_reset
        self._chance = 1 / (10 * cells) if spontaneous_reset else 0.0
        # Numbers drawn at every step, whether used or not: of the event, the row, the column, each button's cell.
        self._columns = torch.arange(1, 4 + num_buttons)
        self._ranges = torch.tensor([grid_size, grid_size, *range(cells - num_buttons + 1, cells + 1)])

    def initial(self, seeds: Tensor) -> Tensor:
        """A cell for the player, uniform; cells for the buttons, uniform without replacement; all buttons off."""
        seeds = seeds.to(torch.int64)
        steps = torch.zeros_like(seeds)
        return self._fresh(seeds, steps, self._draws(seeds, steps))

    def observe(self, state: Tensor) -> Tensor:
        _, _, row, col, cells, on = self._parts(state)
        ones = torch.cat(((row * self._size + col)[..., None] * 3, cells * 3 + 2 - on), -1)
        return torch.zeros(*state.shape[:-1], *self.spaces.obs_shape).scatter_(-1, ones, 1.0)

    def step(self, state: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        seeds, steps, old_row, old_col, cells, on = self._parts(state)
        steps = steps + 1
        draws = self._draws(seeds, steps)
        event = draws[..., 0] < self._chance
        success = on.all(-1)
        row, col = move(old_row, old_col, actions, self._size)
        moved = (row != old_row) | (col != old_col)
        on = on ^ (moved[..., None] & (cells == (row * self._size + col)[..., None]))
        again = success
        if self._activate:
            on = on | event[..., None]
        else:
            again = success | event
        state = torch.cat((torch.stack((seeds, steps, row, col), -1), cells, on), -1)
        state = torch.where(again[..., None], self._fresh(seeds, steps, draws), state)
        return state, success.float(), torch.zeros_like(success), None

    def text(self, state: Tensor) -> str:
        """A state ``[4 + 2 K]`` as lines: ``@`` the player, ``*`` on a button, ``o`` a button that is off, ``O`` on."""
        _, _, row, col, cells, on = self._parts(state)
        shown = ["."] * self._size**2
        for cell, lit in zip(cells.tolist(), on.tolist(), strict=True):
            shown[cell] = "O" if lit else "o"
        player = int(row) * self._size + int(col)
        shown[player] = "@" if shown[player] == "." else "*"
        return as_lines(shown, self._size)

    def keep(self, members: Tensor) -> "ButtonGrid":
        return self

    def _parts(self, state: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        head, cells, on = state.split((4, self._buttons, self._buttons), -1)
        seeds, steps, row, col = head.unbind(-1)
        return seeds, steps, row, col, cells, on

    def _draws(self, seeds: Tensor, steps: Tensor) -> Tensor:
        """The numbers ``[..., 3 + K]`` of a step; step 0 is the reset."""
        return uniform_at(seeds[..., None], steps[..., None] * len(self._columns) + self._columns)

    def _fresh(self, seeds: Tensor, steps: Tensor, draws: Tensor) -> Tensor:
        """The state of a new arrangement from the numbers of a step."""
        numbers = (draws[..., 1:] * self._ranges).long()
        # Floyd's sample without replacement (Bentley & Floyd 1987): a number taken already stands for the last of
        # its range, which no earlier one could be. The set is uniform; its order is not, and does not matter.
        cells = numbers[..., 2:]
        for k in range(1, self._buttons):
            last = self._ranges[2 + k] - 1
            taken = (cells[..., :k] == cells[..., k : k + 1]).any(-1)
            cells[..., k] = torch.where(taken, last, cells[..., k])
        return torch.cat((torch.stack((seeds, steps), -1), numbers, torch.zeros_like(cells)), -1)
