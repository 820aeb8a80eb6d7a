"""A store with two goods: how many of each are ordered every evening?"""

import gymnasium
import numpy as np

PRICES = np.array([10.0, 25.0])  # euros
COSTS = np.array([4.0, 12.0])
LOTS = np.array([8, 3])  # units of an order
SHELF = np.array([40, 15])  # units; what does not fit is thrown away
STORAGE = 0.1  # of the cost, each day
DELIVERY = 6.0  # euros, for each order


class Store(gymnasium.Env):
    """One hundred days; the reward is the profit of a day, in tens of euros."""

    def __init__(self):
        """Nine actions: no, one or two lots of the first good, times the same of the second."""
        self.observation_space = gymnasium.spaces.Box(0, 100, (6,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(9)

    def reset(self, *, seed=None, options=None):
        """Start with half-filled shelves."""
        super().reset(seed=seed)
        self.stock = SHELF // 2
        self.delivery = np.zeros(2, int)
        self.day = int(self.np_random.integers(7))
        self.trend = self.np_random.uniform(0.5, 1.5)
        return self._observation(), {}

    def step(self, action):
        """Receive yesterday's order, sell, and order for tomorrow."""
        orders = np.array(divmod(int(action), 3))
        self.stock = np.minimum(self.stock + self.delivery, SHELF)
        self.delivery = orders * LOTS
        self.day = (self.day + 1) % 7
        weekend = 1.8 if self.day >= 5 else 1.0
        demand = self.np_random.poisson(np.array([5.0, 2.0]) * self.trend * weekend)
        sold = np.minimum(demand, self.stock)
        self.stock = self.stock - sold
        costs = (COSTS * (self.delivery + STORAGE * self.stock)).sum() + DELIVERY * (orders > 0).sum()
        profit = (PRICES * sold).sum() - costs
        return self._observation(), float(profit) / 10, False, False, {}

    def _observation(self):
        """The two stocks, the two deliveries of tomorrow, the day of the week and the season's demand in per cent."""
        return np.array([*self.stock, *self.delivery, self.day, 50 * self.trend], np.float32)


gymnasium.register("Store-v0", entry_point=f"{__name__}:Store", max_episode_steps=100)
