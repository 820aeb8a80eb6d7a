"""A wind turbine of 5 megawatts: pitch the blades and set the torque of the generator.

In weak wind the rotor must turn at the speed at which blades catch most, in strong wind the blades must let wind pass.
"""

import math

import gymnasium
import numpy as np

RADIUS, DENSITY, INERTIA = 63.0, 1.225, 4.4e7  # m, kg/m3, kg m2
RATED_SPEED, RATED_POWER = 1.27, 5.0  # rad/s, MW
MAX_PITCH, MAX_TORQUE = 30.0, 4700.0  # degrees, kNm
PITCH_RATE, TORQUE_RATE = 8.0, 1500.0  # each second
TOWER_MASS, TOWER_STIFFNESS, TOWER_DAMPING = 4e5, 1.6e6, 4e4
SUBSTEPS = 10  # of a second


def power_coefficient(ratio, pitch):
    """The share of the wind's power that blades catch (Heier), from the tip speed ratio and the pitch in degrees."""
    inverse = 1 / (ratio + 0.08 * pitch) - 0.035 / (pitch**3 + 1)
    return max(0.5176 * (116 * inverse - 0.4 * pitch - 5) * math.exp(-21 * inverse) + 0.0068 * ratio, 0.0)


class Turbine(gymnasium.Env):
    """Four minutes of gusty wind; the reward of a second is megawatts, less wear of the tower and overload."""

    def __init__(self):
        """Wind (m/s), rotor speed (rpm), pitch, torque, power (kW), bend of the tower (mm) and its speed (mm/s)."""
        low = np.array([0, 0, 0, 0, 0, -5000, -20000], np.float32)
        high = np.array([40, 30, MAX_PITCH, MAX_TORQUE, 20000, 5000, 20000], np.float32)
        self.observation_space = gymnasium.spaces.Box(low, high)
        self.action_space = gymnasium.spaces.Box(
            np.array([0, 0], np.float32), np.array([MAX_PITCH, MAX_TORQUE], np.float32)
        )

    def reset(self, *, seed=None, options=None):
        """Start with a turning rotor in wind of 6 to 18 m/s."""
        super().reset(seed=seed)
        self.mean_wind = self.wind = self.np_random.uniform(6, 18)
        self.speed = self.np_random.uniform(0.7, 1.2)
        self.pitch, self.torque = self.np_random.uniform(0, 10), self.np_random.uniform(0, 1500)
        self.bend = self.bend_speed = 0.0
        return self._observation(), {}

    def step(self, action):
        """Move pitch and torque towards the commanded values for a second."""
        target_pitch = min(max(float(action[0]), 0), MAX_PITCH)
        target_torque = min(max(float(action[1]), 0), MAX_TORQUE)
        gust = 0.6 * self.np_random.normal()
        self.wind = min(max(self.wind + 0.05 * (self.mean_wind - self.wind) + gust, 3), 35)
        dt = 1 / SUBSTEPS
        for _ in range(SUBSTEPS):
            self.pitch += min(max(target_pitch - self.pitch, -PITCH_RATE * dt), PITCH_RATE * dt)
            self.torque += min(max(target_torque - self.torque, -TORQUE_RATE * dt), TORQUE_RATE * dt)
            coefficient = power_coefficient(self.speed * RADIUS / self.wind, self.pitch)
            caught = 0.5 * DENSITY * math.pi * RADIUS**2 * self.wind**3 * coefficient
            brake = 1000 * self.torque if self.speed > 0.4 else 0.0
            self.speed = max(self.speed + dt * (caught / max(self.speed, 0.2) - brake) / INERTIA, 0.1)
            force = 1.2 * caught / self.wind - TOWER_STIFFNESS * self.bend - TOWER_DAMPING * self.bend_speed
            self.bend_speed += dt * force / TOWER_MASS
            self.bend += dt * self.bend_speed
        power = self._power()
        overload = max(power - RATED_POWER, 0)
        reward = power - 3 * overload - 2 * self.bend_speed**2
        runaway = self.speed > 1.5 * RATED_SPEED
        if runaway:
            reward -= 200
        return self._observation(), reward, runaway, False, {}

    def _power(self):
        """Electric power in MW; under 0.4 rad/s the generator is off."""
        return self.torque * self.speed / 1000 if self.speed > 0.4 else 0.0

    def _observation(self):
        """The seven numbers, in their units."""
        rpm = self.speed * 30 / math.pi
        values = [self.wind, rpm, self.pitch, self.torque, 1000 * self._power()]
        return np.array([*values, 1000 * self.bend, 1000 * self.bend_speed], np.float32)


gymnasium.register("Turbine-v0", entry_point=f"{__name__}:Turbine", max_episode_steps=240)
