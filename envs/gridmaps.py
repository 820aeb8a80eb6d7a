"""Small maps as tensor programs: the grids of Ferreira et al. 2022, and Gymnasium's CliffWalking.

They are deterministic, and every episode starts in the same cell. Cells are numbered row by row, ``row * columns +
column``. An observation is the cell of the player, one-hot ``[S]``.
"""

import torch
from torch import Tensor

from envs.gridworld import as_lines, clipped_moves
from envs.tensor import Dynamics, Transition
from models.settings import SettingError
from models.spaces import Discrete, Spaces

START, GOAL, HOLE, WALL = "SGO#"
# From the code of Ferreira, Nierhoff, Saelinger & Hutter 2022, "Learning Synthetic Environments and Reward Networks for
# Reinforcement Learning".
MAPS = {
    "cliff": ("............", "............", "............", "SOOOOOOOOOOG"),
    "emptyroom22": ("S.", ".G"),
    "emptyroom23": ("S..", "..G"),
    "emptyroom33": ("S..", "...", "..G"),
    "wallroom": ("S.#..", "..#..", ".....", "..#..", "..#.G"),
    "holeroom": ("S.O..", "..O..", ".....", "..O..", "..O.G"),
    "holeroomlarge": ("S.O.O..", "..O.O..", ".......", "..O.O..", "..O.O.G"),
    "holeroomlargeshifted": ("S.O....", "..O.O..", "..O.O..", "..O.O..", "....O.G"),
}
# Rewards for entering an ordinary cell, the goal, and a hole.
_CLIFF_REWARDS = (-1.0, 0.0, -100.0)
_ROOM_REWARDS = (-0.01, 1.0, -1.0)
_MOVES = {"up": (-1, 0), "right": (0, 1), "down": (1, 0), "left": (0, -1)}


class CellTable(Dynamics):
    """Base class of dynamics on a map, for S cells and A actions. The state ``[..., 1]`` int64 is the player's cell. In
    the tables ``next_cell``, ``reward`` and ``terminated``, ``[S * A]``, ``s * A + a`` is for action a in cell s."""

    actions: tuple[str, ...]  # names of moves

    def __init__(self, rows: tuple[str, ...], max_episode_steps: int | None, max_return: float | None) -> None:
        """Compute the tables of a map. ``rows`` are its lines, such as ``("S.", ".G")``."""
        self.rows, self._cells = rows, "".join(rows)
        size, actions = len(self._cells), Discrete(len(self.actions))
        self.spaces = Spaces((size,), actions, torch.float32, max_episode_steps, max_return, one_hot=True)
        self._one_hot = torch.eye(size)
        neighbours = clipped_moves(len(rows), len(rows[0]), [_MOVES[move] for move in self.actions]).tolist()
        # Next cell, reward and terminated of each action in each cell.
        outcomes = [self.move_outcome(cell, neighbour) for cell in range(size) for neighbour in neighbours[cell]]
        next_cells, rewards, terminated = zip(*outcomes, strict=True)
        self.next_cell, self.reward = torch.tensor(next_cells), torch.tensor(rewards)
        self.terminated = torch.tensor(terminated)

    def move_outcome(self, cell: int, neighbour: int) -> tuple[int, float, bool]:
        """Return the next cell, the reward, and terminated, for a move from ``cell`` to ``neighbour``. A move that the
        border stops has ``cell`` itself as its neighbour."""
        raise NotImplementedError

    def initial(self, seeds: Tensor) -> Tensor:
        return torch.full((*seeds.shape, 1), self._cells.index(START), device=seeds.device)

    def observe(self, state: Tensor) -> Tensor:
        return torch.embedding(self._one_hot, state.squeeze(-1))

    def step(self, state: Tensor, actions: Tensor) -> Transition:
        index = torch.add(actions, state.squeeze(-1), alpha=len(self.actions))  # cell * A + action
        next_state = torch.take(self.next_cell, index).unsqueeze(-1)
        return Transition(next_state, torch.take(self.reward, index), torch.take(self.terminated, index))

    def values(self, reward: Tensor, discount: float) -> tuple[Tensor, Tensor]:
        """Compute optimal values by 2,000 sweeps of value iteration, for ``reward [S, A]`` of each move in each cell,
        and a ``discount``. Return the values of cells ``[S]`` and of moves ``[S, A]``."""
        next_cell = self.next_cell.view(reward.shape)
        continues = ~self.terminated.view(reward.shape)
        discounts = continues.to(reward.dtype) * discount
        value = reward.new_zeros(len(reward))
        for _ in range(2000):
            value = (reward + discounts * value[next_cell]).amax(1)
        return value, reward + discounts * value[next_cell]

    def text(self, state: Tensor) -> str:
        """Draw a state ``[1]`` as lines: ``@`` player, ``G`` goal, ``*`` player on the goal, ``#`` wall, ``O`` hole."""
        cells = list(self._cells.replace(START, "."))
        player = int(state[0])
        cells[player] = "*" if cells[player] == GOAL else "@"
        return as_lines(cells, len(self.rows[0]))


class GridMap(CellTable):
    """A map of `MAPS` by its name. The border and walls stop a move. Entering the goal or a hole ends the episode. The
    reward depends on the cell after the step."""

    actions = ("right", "left", "down", "up")

    def __init__(self, map_name: str = "cliff", max_episode_steps: int | None = None) -> None:
        if map_name not in MAPS:
            raise SettingError(f"map_name is {map_name!r}; allowed: {', '.join(MAPS)}", "map_name")
        is_cliff = map_name == "cliff"
        self._rewards = _CLIFF_REWARDS if is_cliff else _ROOM_REWARDS
        # The path around the cliff has 13 steps, the last of which costs nothing. A room's goal pays 1, and steps cost.
        super().__init__(MAPS[map_name], max_episode_steps, max_return=-12.0 if is_cliff else 1.0)

    def move_outcome(self, cell: int, neighbour: int) -> tuple[int, float, bool]:
        step_reward, goal_reward, hole_reward = self._rewards
        next_cell = cell if self._cells[neighbour] == WALL else neighbour
        place = self._cells[next_cell]
        reward = {GOAL: goal_reward, HOLE: hole_reward}.get(place, step_reward)
        return next_cell, reward, place in (GOAL, HOLE)


class CliffWalking(CellTable):
    """Gymnasium's CliffWalking-v1, not slippery (Sutton & Barto, "Reinforcement Learning", example 6.6), on the map
    ``cliff``. A step off the cliff pays -100 and moves the player to the start. All other steps pay -1, including the
    step to the goal, which ends the episode. Actions are up, right, down, left."""

    actions = ("up", "right", "down", "left")

    def __init__(self, max_episode_steps: int | None = None) -> None:
        super().__init__(MAPS["cliff"], max_episode_steps, max_return=-13.0)  # 13 steps around the cliff

    def move_outcome(self, cell: int, neighbour: int) -> tuple[int, float, bool]:
        if self._cells[neighbour] == HOLE:
            return self._cells.index(START), -100.0, False
        return neighbour, -1.0, self._cells[neighbour] == GOAL
