"""TD3 for discrete actions in machine code, one member after another: ``act``, ``observe`` and ``learn`` of `Agent`,
and greedy play.

`models.compiled_critics` explains the arguments of compiled functions.
"""

from collections import namedtuple
from functools import partial
from typing import Any

import numpy as np

from models import compiled as nets
from models import compiled_critics as critics
from models.agents.td3 import compiled as td3
from models.agents.td3_discrete.agent import ANNEALING_UPDATES, FINAL_SHARE
from models.agents.td3_discrete.agent import Agent as Agent
from models.compiled import argmax, is_better, nan_to_zero, outputs_row
from models.compiled_critics import ONE
from models.machine import compiled

remember, make_work, make_player = critics.remember, critics.make_work, critics.make_player
Player, decide = nets.Player, nets.decide
_FIXED, _ANNEALED, _LEARNED = range(3)  # indices of the choices of the setting ``gumbel_temperature``
_ANNEALED_SHARE, _ANNEALING_UPDATES = np.float32(1 - FINAL_SHARE), np.float32(ANNEALING_UPDATES)


# The last weight of the actor is the logarithm of the temperature.
Members: Any = namedtuple(  # type: ignore[misc]
    "Members",
    [
        *td3.Members._fields,
        "act_gumbel",  # [M, T, A, E], Gumbel noise on logits
        "next_gumbel",  # [M, T, U, A, B], Gumbel noise on the target actor's logits
        "gumbel",  # [M, T, U, A, B], Gumbel noise on the actor's logits in its update
        "gumbel_softmax_hard",  # whether vectors are one-hot, with the gradient of the softmax
        "gumbel_temperature",  # `_FIXED`, `_ANNEALED` or `_LEARNED`
        "gumbel_softmax_temp",  # the initial temperature
    ],
)
make_members = partial(critics.make_members, Members)


@compiled
def _temperature(agent, m, params):
    """Return the temperature of member ``m`` for its actor or target actor ``params [D]`` (`Agent.temperature`)."""
    if agent.gumbel_temperature == _LEARNED:  # the last parameter is its logarithm
        return np.exp(params[len(params) - 1])
    if agent.gumbel_temperature == _FIXED:
        return agent.gumbel_softmax_temp
    progress = min(np.float32(agent.learner.counts[m]) / _ANNEALING_UPDATES, ONE)
    return agent.gumbel_softmax_temp * (ONE - _ANNEALED_SHARE * progress)


@compiled
def _gumbel_softmax(logits, gumbel, column, temperature, probs):
    """Sample an action vector from the Gumbel-softmax: write ``softmax((logits + gumbel[:, column]) / temperature)``
    for ``logits [A]`` and ``gumbel [A, columns]`` to ``probs[:, column]``. Return the index of the largest probability,
    the first if several are equal."""
    num_actions = len(probs)
    max_z = (logits[0] + gumbel[0, column]) / temperature
    for i in range(num_actions):
        z = (logits[i] + gumbel[i, column]) / temperature
        probs[i, column] = z
        max_z = z if is_better(z, max_z) else max_z
    total = np.float32(0)
    for i in range(num_actions):
        probs[i, column] = np.exp(probs[i, column] - max_z)
        total += probs[i, column]
    for i in range(num_actions):
        probs[i, column] = probs[i, column] / total
    return argmax(probs[:, column], num_actions)


@compiled
def _sample_vectors(agent, work, m, t, update, is_target):
    """Sample action vectors of the actor or, if ``is_target``, of the target actor, from the logits in the last layer
    of ``work.actor.acts`` (`Agent._sample_vectors`). Write the probabilities to ``work.probs [A, B]``, and the vectors
    to the first critic's inputs. `critics.make_delayed_improve` describes the arguments."""
    learner, logits = agent.actor_learner, work.actor.acts[len(agent.actor.sizes) - 1]
    params = learner.target_parameters[m] if is_target else learner.flat_parameters[m]
    gumbel = agent.next_gumbel[m, t, update] if is_target else agent.gumbel[m, t, update]
    temperature = _temperature(agent, m, params)
    for column in range(len(work.td_target)):
        largest = _gumbel_softmax(logits[:, column], gumbel, column, temperature, work.probs)
        for i in range(agent.action_size):
            coordinate = np.float32(i == largest) if agent.gumbel_softmax_hard else work.probs[i, column]
            work.critic1.acts[0, agent.obs_size + i, column] = coordinate


def choose(agent, work, m, t, e, obs, state):
    """Return the exploring action (`TwinCriticAgent.act`): the index of the largest number in an action vector, which
    is written to ``agent.action_vector[m, e]``."""
    best = 0
    num_actions, params, vector = agent.action_size, agent.actor_learner.flat_parameters[m], agent.action_vector[m, e]
    if nets.is_learning(agent.replay, agent.episodes[m], nets.count_rows(agent.replay, t)):
        row = outputs_row(agent.actor, params, obs, work.scratch)
        # The noise is ``[A, 1]``, so the sample is written to column 0 of ``work.action_probs``.
        gumbel, temperature = agent.act_gumbel[m, t, :, e : e + 1], _temperature(agent, m, params)
        largest = _gumbel_softmax(work.scratch[row], gumbel, 0, temperature, work.action_probs)
        for i in range(num_actions):
            coordinate = np.float32(i == largest) if agent.gumbel_softmax_hard else work.action_probs[i, 0]
            vector[i] = nan_to_zero(coordinate + agent.explore[m, t, e, i] * agent.action_std)
            best = i if vector[i] > vector[best] else best
        return best
    # The member does not learn yet: the 1 of a one-hot vector is at the largest of A uniform numbers.
    for i in range(num_actions):
        best = i if agent.random[m, t, e, i] > agent.random[m, t, e, best] else best
    for i in range(num_actions):
        vector[i] = np.float32(i == best)
    return best


@compiled
def _write_output_gradient(agent, work, m, t, update):
    """Write the gradient of the actor's loss: d loss / d logits to the last layer of ``work.actor.grads``, d loss / d
    log temperature to the last number of ``work.actor_grad``. `critics.make_delayed_improve` explains arguments."""
    params, depth = agent.actor_learner.flat_parameters[m], len(agent.actor.sizes) - 1
    obs_size, num_actions, batch_size = agent.obs_size, agent.action_size, len(work.td_target)
    temperature, logits = _temperature(agent, m, params), work.actor.acts[depth]
    gumbel = agent.gumbel[m, t, update]
    # Backpropagation through the softmax. A one-hot vector has the same gradient (straight-through).
    log_temperature_grad = np.float32(0)
    for column in range(batch_size):
        mean_q_grad = np.float32(0)  # a mean weighted by the probabilities
        for i in range(num_actions):
            mean_q_grad += work.probs[i, column] * work.critic1.grads[0, obs_size + i, column]
        for i in range(num_actions):
            q_grad = work.critic1.grads[0, obs_size + i, column]
            logit_grad = work.probs[i, column] * (mean_q_grad - q_grad) / temperature
            # z = (logits + gumbel) / T, so dz / d log T = -z, and d loss / dz = T d loss / d logits.
            log_temperature_grad -= logit_grad * (logits[i, column] + gumbel[i, column])
            work.actor.grads[depth, i, column] = logit_grad
    is_learned = agent.gumbel_temperature == _LEARNED
    work.actor_grad[len(params) - 1] = log_temperature_grad if is_learned else np.float32(0)


improve = critics.make_delayed_improve(_sample_vectors, _write_output_gradient, clips_target=False)
