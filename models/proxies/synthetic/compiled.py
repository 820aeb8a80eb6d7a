"""A step of one member ``m`` of synthetic environments, compiled by Numba. Importing this requires Numba.

``world`` is `envs.compiled.World`, ``rows`` is scratch memory for `models.compiled.single`. ``action`` is a discrete
action; ``vector`` is a continuous one, empty for discrete actions.
"""

import math

import numpy as np

from models.compiled import better, single
from models.machine import exact_inlined

FORMS = ("free", "absolute", "squared", "exponential")  # ``world.form`` is an index into these


@exact_inlined
def by_target(world, m, state, action, vector, rows):
    """Return the reward of a bandit with a target, as `Program._target_reward` computes it."""
    f32, flat, size, x = np.float32, world.flat[m], world.obs_size, rows[0]
    for k in range(size):
        x[k] = (f32(state[k]) - flat[world.fixed + k]) / flat[world.fixed + size + k]
    at, total = single(world.reward, flat, rows, 0), f32(0)
    if len(vector):
        for k in range(world.actions):
            u = min(max((vector[k] - world.middle[k]) / world.half[k], f32(-1)), f32(1))
            off = u - min(max(rows[at, k], f32(-1)), f32(1))
            total += abs(off) if world.form == 1 else off * off
    else:
        best = 0
        for k in range(world.actions):
            best = k if better(rows[at, k], rows[at, best]) else best
        total = f32(0) if best == action else f32(2)
    total /= f32(world.actions)
    return f32(math.exp(f32(-4) * total)) if world.form == 3 else -total


@exact_inlined
def learned(world, m, state, action, vector, rows):
    """Do `SyntheticDynamics.step`: return reward and raw done, and replace ``state`` by the next state in place. A
    bandit's state does not change, and its done is 1."""
    flat, size = world.flat[m], world.obs_size
    out = np.float32(0)
    done = np.float32(1)
    for part in range(1 if world.bandit else 3):
        x = rows[0]
        if len(vector):
            for k in range(world.actions):
                x[k] = vector[k]
        else:
            for k in range(world.actions):
                x[k] = np.float32(k == action)
        # The state network runs last, because all three read the state before the step.
        for k in range(size):
            x[world.actions + k] = np.float32(state[k])
        if part == 0:
            out = rows[single(world.reward, flat, rows, 0), 0]
        elif part == 1:
            done = rows[single(world.done, flat, rows, 0), 0]
        else:
            output_row = single(world.state, flat, rows, 0)
            for k in range(size):
                state[k] = rows[output_row, k]
    return out, done
