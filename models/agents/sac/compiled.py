"""SAC in machine code, one member after another: ``act``, ``observe`` and ``learn`` of `Agent`, and greedy play.

`models.compiled_critics` explains the arguments of compiled functions.
"""

from collections import namedtuple
from functools import partial
from math import log
from typing import Any

import numpy as np

from models import compiled as nets
from models import compiled_critics as critics
from models.agents.sac.agent import LOG_STD_BOUNDS
from models.agents.sac.agent import Agent as Agent
from models.compiled import backward, clip, forward
from models.compiled_critics import ONE, ActorCritic
from models.losses import HALF_LOG_TWO_PI
from models.machine import compiled, exact_inlined
from models.tiles import copy

remember, make_work, make_player = critics.remember, critics.make_work, critics.make_player
Player, decide = nets.Player, nets.decide
_MIN_LOG_STD, _MAX_LOG_STD = np.float32(LOG_STD_BOUNDS[0]), np.float32(LOG_STD_BOUNDS[1])
_HALF, _TWO, _LOG_2, _HALF_LOG_2PI = (np.float32(number) for number in (0.5, 2, log(2), HALF_LOG_TWO_PI))


# The last weight of the actor is log alpha; it has no target weights. ``now`` are normal numbers [M, T, U, A, B], which
# sample actions in the minibatch's states.
Members: Any = namedtuple(  # type: ignore[misc]
    "Members", [*ActorCritic._fields, "now", "target_entropy", "learn_temperature"]
)
make_members = partial(critics.make_members, Members)


@exact_inlined
def _exploring_action(agent, outputs, m, t, e, i):
    """Sample coordinate ``i`` of the action of member ``m`` in environment ``e`` at step ``t``, in [-1, 1], from the
    actor's ``outputs [2 A]``: means, then logarithms of standard deviations (`Agent._explore`)."""
    std = np.exp(clip(outputs[agent.action_size + i], _MIN_LOG_STD, _MAX_LOG_STD))
    return np.tanh(outputs[i] + std * agent.explore[m, t, e, i])


@compiled
def _sample_actions(agent, work, noise):
    """Sample actions for the minibatch from the outputs of the actor, which has run on it, by standard normal ``noise
    [A, B]`` (`agent.sample`). Write the actions to the first critic's inputs, the standard deviations to ``work.std [A,
    B]``, and the log-probabilities to ``work.log_prob [B]``."""
    outputs = work.actor.acts[len(agent.actor.sizes) - 1]
    for column in range(len(work.log_prob)):
        work.log_prob[column] = np.float32(0)
    for i in range(agent.action_size):
        for column in range(len(work.log_prob)):
            log_std = clip(outputs[agent.action_size + i, column], _MIN_LOG_STD, _MAX_LOG_STD)
            std = np.exp(log_std)
            pre_tanh = outputs[i, column] + std * noise[i, column]
            normal_log_prob = -_HALF * noise[i, column] * noise[i, column] - log_std - _HALF_LOG_2PI
            # log(1 - tanh(x)^2), computed as 2 (log 2 - |x| - log(1 + e^(-2 |x|))): no x overflows.
            magnitude = abs(pre_tanh)
            log_tanh_derivative = -_TWO * (np.log1p(np.exp(-_TWO * magnitude)) + magnitude - _LOG_2)
            work.log_prob[column] += normal_log_prob - log_tanh_derivative
            work.std[i, column] = std
            work.critic1.acts[0, agent.obs_size + i, column] = np.tanh(pre_tanh)


@compiled
def _write_actor_gradient(agent, work, m, noise):
    """Write the gradient of the losses of actor and temperature to ``work.actor_grad [D]`` (`Agent.finish_update`). The
    first critic's inputs have the observations. Actions, sampled by normal ``noise [A, B]``, overwrite the others."""
    params, depth = agent.actor_learner.flat_parameters[m], len(agent.actor.sizes) - 1
    obs_size, action_size, batch_size = agent.obs_size, agent.action_size, len(work.log_prob)
    critics.run_actor(agent, work, m)  # writes the outputs from which actions are sampled
    _sample_actions(agent, work, noise)
    copy(work.critic1.acts[0], obs_size, work.critic2.acts[0], obs_size, action_size)
    # The gradient of the mean of the smaller value of both critics is the sum of the gradients of their inputs.
    critic_params, value_layer = agent.learner.flat_parameters[m], len(agent.critic1.sizes) - 1
    forward(agent.critic1, critic_params, work.critic1)
    forward(agent.critic2, critic_params, work.critic2)
    share = np.float32(1 / batch_size)  # d mean / d the smaller value
    for column in range(batch_size):
        is_first = work.critic1.acts[value_layer, 0, column] <= work.critic2.acts[value_layer, 0, column]
        work.critic1.grads[value_layer, 0, column] = share if is_first else np.float32(0)
        work.critic2.grads[value_layer, 0, column] = np.float32(0) if is_first else share
    backward(agent.critic1, critic_params, work.critic1, work.grad, need_grad=False, need_input_grad=True)
    backward(agent.critic2, critic_params, work.critic2, work.grad, need_grad=False, need_input_grad=True)
    log_alpha_at = len(params) - 1  # the position after the network's weights
    log_prob_grad = np.exp(params[log_alpha_at]) / np.float32(batch_size)
    for i in range(action_size):
        for column in range(batch_size):
            action = work.critic1.acts[0, obs_size + i, column]
            q_grad = work.critic1.grads[0, obs_size + i, column] + work.critic2.grads[0, obs_size + i, column]
            # d action / d mean = 1 - action^2, because the action is a tanh. d log-probability / d mean = 2 action,
            # because d log(1 - tanh(x)^2) / dx = -2 tanh(x).
            mean_grad = -q_grad * (ONE - action * action) + _TWO * log_prob_grad * action
            # d pre_tanh / d log_std = std * noise, and the log-probability contains -log_std.
            log_std_grad = mean_grad * work.std[i, column] * noise[i, column] - log_prob_grad
            log_std = work.actor.acts[depth, action_size + i, column]
            is_within_bounds = _MIN_LOG_STD <= log_std and log_std <= _MAX_LOG_STD
            work.actor.grads[depth, i, column] = mean_grad
            work.actor.grads[depth, action_size + i, column] = log_std_grad if is_within_bounds else np.float32(0)
    critics.actor_backward(agent, work, m)
    log_prob_sum = np.float32(0)
    for column in range(batch_size):
        log_prob_sum += work.log_prob[column]
    entropy = -log_prob_sum / np.float32(batch_size)
    # d loss of the temperature / d log alpha (`temperature_loss`).
    work.actor_grad[log_alpha_at] = entropy - agent.target_entropy if agent.learn_temperature else np.float32(0)


@compiled
def _write_next_values(agent, work, m, t, update):
    """Write the values of the next states of the minibatch, ``min Q_target(s', a') - alpha log pi(a'|s')``, to
    ``work.td_target [B]``, for update ``update`` of member ``m`` at step ``t`` (`Agent.next_q`)."""
    params = agent.actor_learner.flat_parameters[m]
    critics.run_actor_on_next_obs(agent, work, params)
    _sample_actions(agent, work, agent.next[m, t, update])
    critics.write_next_values(agent, work, m)
    alpha = np.exp(params[len(params) - 1])
    for column in range(len(work.log_prob)):
        work.td_target[column] -= alpha * work.log_prob[column]


@compiled
def _update(agent, work, m, t, update):
    """Update critics, actor, temperature and target critics of member ``m`` on the minibatch in ``work.sample``, in
    update ``update`` after step ``t`` (`TwinCriticAgent.update`). Return the critics' loss."""
    _write_next_values(agent, work, m, t, update)
    loss = critics.update_critics(agent, work, m)
    _write_actor_gradient(agent, work, m, agent.now[m, t, update])
    nets.adam(agent.actor_learner, m, work.actor_grad)
    nets.follow(agent.learner, m, agent.tau)
    return loss


choose = critics.make_choose(_exploring_action)
improve = nets.make_improve(_update)
