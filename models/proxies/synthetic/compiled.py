"""A step of one member ``m`` of synthetic environments, compiled by Numba. Importing this requires Numba.

``world`` is `envs.compiled.World`, ``scratch`` is memory for `models.compiled.single`, which returns the row with the
outputs. ``action`` is a discrete action; ``continuous_action`` is empty if actions are discrete.
"""

import math

import numpy as np

from models.compiled import better, single
from models.machine import exact_inlined
from models.proxies.synthetic.config import FORMS

_ABSOLUTE, _EXPONENTIAL = FORMS.index("absolute"), FORMS.index("exponential")  # values of ``world.form``


@exact_inlined
def target_reward(world, m, state, action, continuous_action, scratch):
    """Return the reward of a bandit for an action in ``state`` (`Program._target_reward`). A target network computes
    the best action in this state, and the reward falls with the distance from it (`understudy.kinds.FORMS`).

    The distance is the mean of absolute or squared differences. Continuous actions are compared in shares of half their
    range, discrete ones as one-hot vectors, whose differences sum up to 2 if the actions differ. In ``world.flat``, the
    centre and spread of the target's inputs begin at position ``world.fixed``."""
    f32, flat, size, inputs = np.float32, world.flat[m], world.obs_size, scratch[0]
    for k in range(size):
        inputs[k] = (f32(state[k]) - flat[world.fixed + k]) / flat[world.fixed + size + k]
    output_row = single(world.reward, flat, scratch, 0)
    distance = f32(0)
    if len(continuous_action):
        for k in range(world.actions):
            scaled_action = min(max((continuous_action[k] - world.middle[k]) / world.half[k], f32(-1)), f32(1))
            difference = scaled_action - min(max(scratch[output_row, k], f32(-1)), f32(1))
            distance += abs(difference) if world.form == _ABSOLUTE else difference * difference
    else:
        best = 0
        for k in range(world.actions):
            best = k if better(scratch[output_row, k], scratch[output_row, best]) else best
        distance = f32(0) if best == action else f32(2)
    distance /= f32(world.actions)
    return f32(math.exp(f32(-4) * distance)) if world.form == _EXPONENTIAL else -distance


@exact_inlined
def network_step(world, m, state, action, continuous_action, scratch):
    """Make a step of member ``m`` in a synthetic environment (`SyntheticDynamics.step`). Return the reward and the
    output of the done network, and replace ``state`` by the next state. In a bandit it does not change, and done is
    1."""
    flat, size = world.flat[m], world.obs_size
    reward = np.float32(0)
    done = np.float32(1)
    for network in range(1 if world.bandit else 3):  # reward, done, state
        inputs = scratch[0]  # [action, state]; written again for each network, because the previous one overwrote it
        if len(continuous_action):
            for k in range(world.actions):
                inputs[k] = continuous_action[k]
        else:
            for k in range(world.actions):
                inputs[k] = np.float32(k == action)
        # The state network runs last, because all three read the state before the step.
        for k in range(size):
            inputs[world.actions + k] = np.float32(state[k])
        if network == 0:
            output_row = single(world.reward, flat, scratch, 0)
            reward = scratch[output_row, 0]
        elif network == 1:
            output_row = single(world.done, flat, scratch, 0)
            done = scratch[output_row, 0]
        else:
            output_row = single(world.state, flat, scratch, 0)
            for k in range(size):
                state[k] = scratch[output_row, k]
    return reward, done
