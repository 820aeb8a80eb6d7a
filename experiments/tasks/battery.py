"""A factory's battery: buy power when it is cheap, and cut the peaks that the grid bills.

Observations are in raw units: kilowatt-hours, kilowatts, euros per megawatt-hour.
"""

import math

import gymnasium
import numpy as np

CAPACITY = 4000.0  # kWh
POWERS = (-1000.0, -500.0, 0.0, 500.0, 1000.0)  # kW, positive charges
EFFICIENCY = 0.95  # each way
PEAK, PEAK_PRICE = 1800.0, 0.4  # kW; euros for each kW above, each hour
HOURS = 168


class Battery(gymnasium.Env):
    """One week of hours; the reward is what the battery saves, in euros."""

    def __init__(self):
        """Five powers; hour of the day, day, charge, demand, sun, price and the price's daily mean."""
        high = np.array([24, 7, CAPACITY, 4000, 1500, 900, 300], np.float32)
        low = np.array([0, 0, 0, 0, 0, -200, 0], np.float32)
        self.observation_space = gymnasium.spaces.Box(low, high)
        self.action_space = gymnasium.spaces.Discrete(len(POWERS))

    def reset(self, *, seed=None, options=None):
        """Start on a Monday with a random charge, price level and weather."""
        super().reset(seed=seed)
        self.hour = 0
        self.charge = self.np_random.uniform(0, CAPACITY)
        self.level = self.np_random.uniform(60, 180)
        self.sunshine = self.np_random.uniform(0.2, 1)
        self.shock = 0.0
        self._market()
        return self._observation(), {}

    def step(self, action):
        """Charge or discharge for an hour, and pay less or more for it than without the battery."""
        power = POWERS[int(action)]
        if power > 0:
            power = min(power, (CAPACITY - self.charge) / EFFICIENCY)
            self.charge += power * EFFICIENCY
        else:
            power = -min(-power, self.charge * EFFICIENCY)
            self.charge += power / EFFICIENCY
        self.charge = min(max(self.charge, 0.0), CAPACITY)
        without = self.demand - self.sun
        reward = self._bill(without) - self._bill(without + power)
        self.hour += 1
        self._market()
        return self._observation(), reward, False, False, {}

    def _bill(self, load):
        """Euros for an hour of this load in kW; what is sold to the grid earns four fifths of the price."""
        price = self.price if load > 0 else 0.8 * self.price
        return load * price / 1000 + PEAK_PRICE * max(load - PEAK, 0)

    def _market(self):
        """Draw this hour's demand, sun and price."""
        hour, day = self.hour % 24, self.hour // 24 % 7
        noise = self.np_random.normal(size=3)
        self.shock = 0.8 * self.shock + 12 * noise[0]
        if hour == 0:
            self.sunshine = min(max(self.sunshine + 0.2 * noise[1], 0.1), 1)
        daylight = max(math.sin(math.pi * (hour - 6) / 12), 0)
        self.sun = 1200 * self.sunshine * daylight
        work = 1.0 if day < 5 and 7 <= hour < 19 else 0.35
        self.demand = min(max(2000 * work + 150 * noise[2], 0), 4000)
        shape = math.exp(-(((hour - 8) / 2) ** 2)) + 1.5 * math.exp(-(((hour - 19) / 2.5) ** 2)) - 0.8 * daylight
        self.price = min(max(self.level * (1 + 0.6 * shape) + self.shock, -200), 900)

    def _observation(self):
        """The seven numbers, in their units."""
        values = [self.hour % 24, self.hour // 24 % 7, self.charge, self.demand, self.sun, self.price, self.level]
        return np.array(values, np.float32)


gymnasium.register("Battery-v0", entry_point=f"{__name__}:Battery", max_episode_steps=HOURS)
