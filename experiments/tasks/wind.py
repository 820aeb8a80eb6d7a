"""A grid of 7 x 10 cells whose columns have a wind of random strength (after Sutton & Barto, example 6.5)."""

import gymnasium

ROWS, COLUMNS = 7, 10
WIND = (0, 0, 0, 1, 1, 1, 2, 2, 1, 0)  # cells upward, for each column
MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))  # up, right, down, left
GOAL = (3, 7)


class Wind(gymnasium.Env):
    """A hundred moves at most; each costs 1, and the goal pays 10."""

    def __init__(self):
        """Cells are counted row by row from the upper left."""
        self.observation_space = gymnasium.spaces.Discrete(ROWS * COLUMNS)
        self.action_space = gymnasium.spaces.Discrete(len(MOVES))

    def reset(self, *, seed=None, options=None):
        """Start in a random row of the first column."""
        super().reset(seed=seed)
        self.row, self.column = int(self.np_random.integers(ROWS)), 0
        return self._cell(), {}

    def step(self, action):
        """Move, and be blown upward; a third of the time by one cell more, a third by one less."""
        down, right = MOVES[int(action)]
        wind = WIND[self.column]
        if wind:
            wind += int(self.np_random.integers(-1, 2))
        self.row = min(max(self.row + down - wind, 0), ROWS - 1)
        self.column = min(max(self.column + right, 0), COLUMNS - 1)
        arrived = (self.row, self.column) == GOAL
        return self._cell(), 9.0 if arrived else -1.0, arrived, False, {}

    def _cell(self):
        return self.row * COLUMNS + self.column


gymnasium.register("Wind-v0", entry_point=f"{__name__}:Wind", max_episode_steps=100)
