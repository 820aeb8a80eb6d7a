"""LunarLander as Gymnasium plays it, to the bit, with less around the simulator.

A step of Gymnasium's spends nearly half its time in Python: numbers drawn and roots taken by NumPy one at a time, and
vectors of the simulator read again and again. Of a reset it is three quarters. Here each is done once and by `math`,
and every sum keeps its order.
"""

import dataclasses
import itertools
import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.envs.box2d import lunar_lander as its
from gymnasium.envs.registration import EnvSpec

ID, TESTED = "LunarLander-v3", "1.4.0"  # of Gymnasium, whose formulas these are

_HALF_WIDTH, _HALF_HEIGHT = its.VIEWPORT_W / its.SCALE / 2, its.VIEWPORT_H / its.SCALE / 2
_HEIGHT = its.VIEWPORT_H / its.SCALE
_CHUNK_X = [2 * _HALF_WIDTH / 10 * i for i in range(11)]
_LEG_DOWN, _MAIN_Y = its.LEG_DOWN / its.SCALE, its.MAIN_ENGINE_Y_LOCATION / its.SCALE
_SIDE_AWAY = {1: -1 * its.SIDE_ENGINE_AWAY / its.SCALE, 3: 1 * its.SIDE_ENGINE_AWAY / its.SCALE}
_SIDE_Y, _SCALE, _FPS, _SECONDS = its.SIDE_ENGINE_HEIGHT, its.SCALE, its.FPS, 1.0 / its.FPS

# What the simulator copies when it makes a body, so that it is put together once.
_EDGE = its.fixtureDef(shape=its.edgeShape(vertices=[(0, 0), (1, 0)]), density=0, friction=0.1)
_BODY = its.fixtureDef(
    shape=its.polygonShape(vertices=[(x / its.SCALE, y / its.SCALE) for x, y in its.LANDER_POLY]),
    density=5.0, friction=0.1, categoryBits=0x0010, maskBits=0x001, restitution=0.0,
)  # fmt: skip
_LEG = its.fixtureDef(
    shape=its.polygonShape(box=(its.LEG_W / its.SCALE, its.LEG_H / its.SCALE)),
    density=1.0, restitution=0.0, categoryBits=0x0020, maskBits=0x001,
)  # fmt: skip


def spec() -> EnvSpec | str:
    """What `gymnasium.make` is to make where nothing is drawn: this class, or Gymnasium's own where its version is not
    the one whose formulas stand here. The caller keeps the order of calls, so nothing checks it."""
    if gym.__version__ != TESTED:
        return ID
    return dataclasses.replace(gym.spec(ID), entry_point=f"{__name__}:LunarLander", order_enforce=False)


class LunarLander(its.LunarLander):
    """Four actions, no wind, no pictures. Rewards are Python's floats, where Gymnasium's are NumPy's or integers."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        gym.Env.reset(self, seed=seed)
        self._destroy()
        self.world = world = its.Box2D.b2World(gravity=(0, self.gravity))
        world.contactListener_keepref = world.contactListener = its.ContactDetector(self)
        self.game_over, self.prev_shaping = False, None
        self.helipad_x1, self.helipad_x2, self.helipad_y = _CHUNK_X[4], _CHUNK_X[6], _HEIGHT / 4
        uniform: Any = self.np_random.uniform
        height = uniform(0, _HEIGHT / 2, size=12).tolist()
        height[3:8] = [self.helipad_y] * 5
        smooth = [0.33 * (height[i - 1] + height[i] + height[i + 1]) for i in range(11)]
        points = list(zip(_CHUNK_X, smooth, strict=True))
        self.moon = moon = world.CreateStaticBody(shapes=its.edgeShape(vertices=[(0, 0), (2 * _HALF_WIDTH, 0)]))
        edge = _EDGE.shape
        for start, end in itertools.pairwise(points):
            edge.vertex1, edge.vertex2 = start, end
            moon.CreateFixture(_EDGE)
        middle, top = _HALF_WIDTH, _HEIGHT
        self.lander = lander = world.CreateDynamicBody(position=(middle, top), angle=0.0, fixtures=_BODY)
        most = its.INITIAL_RANDOM
        lander.ApplyForceToCenter((uniform(-most, most), uniform(-most, most)), True)
        self.legs = [self._leg(-1, 0.9 - 0.5, 0.9), self._leg(1, -0.9, -0.9 + 0.5)]
        return self.step(0)[0], {}

    def _leg(self, side: int, lower: float, upper: float) -> Any:
        away = side * its.LEG_AWAY / _SCALE
        leg = self.world.CreateDynamicBody(position=(_HALF_WIDTH - away, _HEIGHT), angle=side * 0.05, fixtures=_LEG)
        leg.ground_contact = False
        joint = its.revoluteJointDef(
            bodyA=self.lander, bodyB=leg, localAnchorA=(0, 0), localAnchorB=(away, _LEG_DOWN), enableMotor=True,
            enableLimit=True, maxMotorTorque=its.LEG_SPRING_TORQUE, motorSpeed=0.3 * side, lowerAngle=lower,
            upperAngle=upper,
        )  # fmt: skip
        leg.joint = self.world.CreateJoint(joint)
        return leg

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if action not in (0, 1, 2, 3):
            return super().step(action)  # which says what is wrong with it
        lander: Any = self.lander
        draw = self.np_random.random
        # `uniform(-1, 1)` draws the same number and makes the same of it.
        first, second = (2.0 * draw() - 1.0) / _SCALE, (2.0 * draw() - 1.0) / _SCALE
        fuel = 0.0
        if action:
            angle, at = lander.angle, lander.position
            sin, cos = math.sin(angle), math.cos(angle)
            if action == 2:
                along = _MAIN_Y + 2 * first
                ox, oy = sin * along + -cos * second, -cos * along - sin * second
                power, place, fuel = its.MAIN_ENGINE_POWER, (at.x + ox, at.y + oy), 0.30
            else:
                across = 3 * second + _SIDE_AWAY[action]
                ox, oy = sin * first + -cos * across, -cos * first - sin * across
                place = (at.x + ox - sin * 17 / _SCALE, at.y + oy + cos * _SIDE_Y / _SCALE)
                power, fuel = its.SIDE_ENGINE_POWER, 0.03
            lander.ApplyLinearImpulse((-ox * power, -oy * power), place, True)
        self.world.Step(_SECONDS, 6 * 30, 2 * 30)
        at, speed, angle = lander.position, lander.linearVelocity, lander.angle
        x = (at.x - _HALF_WIDTH) / _HALF_WIDTH
        y = (at.y - (self.helipad_y + _LEG_DOWN)) / _HALF_HEIGHT
        vx, vy = speed.x * _HALF_WIDTH / _FPS, speed.y * _HALF_HEIGHT / _FPS
        one, other = self.legs
        left, right = 1.0 if one.ground_contact else 0.0, 1.0 if other.ground_contact else 0.0
        obs = np.array([x, y, vx, vy, angle, 20.0 * lander.angularVelocity / _FPS, left, right], np.float32)
        shaping = (
            -100 * math.sqrt(x * x + y * y)
            - 100 * math.sqrt(vx * vx + vy * vy)
            - 100 * abs(angle)
            + 10 * left
            + 10 * right
        )
        reward = (0.0 if self.prev_shaping is None else shaping - self.prev_shaping) - fuel
        self.prev_shaping = shaping
        if not lander.awake:
            return obs, 100.0, True, False, {}
        if self.game_over or abs(x) >= 1.0:
            return obs, -100.0, True, False, {}
        return obs, reward, False, False, {}
