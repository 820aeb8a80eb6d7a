"""A production line of two ageing machines with a buffer between them: when is a machine serviced?

A state is a number: 8 wears of the first machine (7 is broken), 8 of the second, 9 fillings of the buffer, 576 in all.
"""

import gymnasium

BROKEN, BUFFER = 7, 8
BREAK = (0.0, 0.0, 0.01, 0.03, 0.08, 0.15, 0.3)  # chance in a shift, for each wear
SERVICE, REPAIR, PRICE, STORAGE = 4.0, 20.0, 10.0, 0.3


class Line(gymnasium.Env):
    """Two hundred shifts; the reward is the profit."""

    def __init__(self):
        """Actions: run both machines, service the first, service the second, service both."""
        self.observation_space = gymnasium.spaces.Discrete((BROKEN + 1) ** 2 * (BUFFER + 1))
        self.action_space = gymnasium.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        """Start with machines of random wear and a buffer that is half full."""
        super().reset(seed=seed)
        self.wear = [int(self.np_random.integers(BROKEN)) for _ in range(2)]
        self.buffer = BUFFER // 2
        return self._cell(), {}

    def step(self, action):
        """Service or run each machine for a shift; the second takes its parts from the buffer."""
        parts, cost = self._shift(0, int(action) & 1)
        capacity, more_cost = self._shift(1, int(action) & 2)
        sold = min(capacity, self.buffer)
        self.buffer = min(self.buffer - sold + parts, BUFFER)
        reward = PRICE * sold - STORAGE * self.buffer - cost - more_cost
        return self._cell(), reward, False, False, {}

    def _shift(self, machine, serviced):
        """Return the parts that a machine makes, and what its service or repair costs."""
        wear = self.wear[machine]
        luck = self.np_random.random()
        if serviced:  # a repair takes three shifts, on average
            broken = wear == BROKEN
            if luck < (1 / 3 if broken else 0.9):
                self.wear[machine] = 0
            return 0, REPAIR if broken else SERVICE
        if wear == BROKEN:
            return 0, 0.0
        if luck < BREAK[wear]:
            self.wear[machine] = BROKEN
            return 0, 0.0
        if luck > 0.75:
            self.wear[machine] = min(wear + 1, BROKEN - 1)
        return (2 if wear < 3 else 1), 0.0  # worn machines are slow

    def _cell(self):
        """The number of the state."""
        first, second = self.wear
        return (first * (BROKEN + 1) + second) * (BUFFER + 1) + self.buffer


gymnasium.register("Line-v0", entry_point=f"{__name__}:Line", max_episode_steps=200)
