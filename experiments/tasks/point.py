"""A point with inertia that two thrusters push to a target in a field of wind."""

import gymnasium
import numpy as np

STEP = 0.1  # seconds
DRAG = 0.2


class Point(gymnasium.Env):
    """Two hundred steps; the reward is 1 at the target and falls with the distance and the thrust."""

    def __init__(self):
        """Two actions, the thrust along each axis."""
        self.observation_space = gymnasium.spaces.Box(-20, 20, (6,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        """Start at rest, with a random target and wind."""
        super().reset(seed=seed)
        self.position = self.np_random.uniform(-3, 3, 2)
        self.velocity = np.zeros(2)
        self.wind = self.np_random.uniform(-0.4, 0.4, 2)
        return self._observation(), {}

    def step(self, action):
        """Push the point for a tenth of a second."""
        thrust = np.clip(action, -1, 1)
        self.velocity = self.velocity + STEP * (2 * thrust + self.wind - DRAG * self.velocity)
        self.position = np.clip(self.position + STEP * self.velocity, -20, 20)
        distance = float(np.linalg.norm(self.position))
        reward = 1 / (1 + 10 * distance**2) - 0.1 * distance - 0.05 * float(np.square(thrust).sum())
        return self._observation(), reward, False, False, {}

    def _observation(self):
        """The position relative to the target, the velocity and the wind."""
        return np.array([*self.position, *self.velocity, *self.wind], np.float32)


gymnasium.register("Point-v0", entry_point=f"{__name__}:Point", max_episode_steps=200)
