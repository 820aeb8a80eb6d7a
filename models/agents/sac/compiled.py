"""SAC in machine code, one member after another: ``act``, ``observe`` and ``learn`` of `Agent`, and greedy play.

`control.loops.compiled` compiles `choose`, `remember`, `improve` and `decide` into its loops. In compiled functions,
``agent`` is `Members`, ``ac`` its `ActorCritic`, ``work`` is `Work`, ``m`` a member, ``t`` a step of the block, ``e``
an environment. Importing this requires Numba.
"""

from math import log
from typing import Any, NamedTuple

import numpy as np
import torch

from models import compiled as nets
from models import compiled_critics as critics
from models.agents.sac.agent import Agent
from models.agents.sac.gaussian import LOG_STD_BOUNDS
from models.compiled import adam, clip, follow, forward, nan_to_zero, outputs_row, scale_action
from models.compiled_critics import ONE, ActorCritic
from models.losses import HALF_LOG_TWO_PI
from models.machine import FAST, compiled

Array = np.ndarray[Any, Any]
IMPROVES = FAST  # how `improve` is compiled
remember, make_work, make_player = critics.remember, critics.make_work, critics.make_player
Player, decide = nets.Player, nets.decide
_MIN_LOG_STD, _MAX_LOG_STD = np.float32(LOG_STD_BOUNDS[0]), np.float32(LOG_STD_BOUNDS[1])
_HALF, _TWO, _LOG_2, _HALF_LOG_2PI = (np.float32(number) for number in (0.5, 2, log(2), HALF_LOG_TWO_PI))


class Members(NamedTuple):
    """M members before a block of T steps in E environments. Arrays share the memory of the agent's tensors. The last
    weight of the actor is log alpha; it has no target weights."""

    ac: ActorCritic
    episodes: Array  # [M], finished
    loss: Array  # [M]
    now_noise: Array  # [M, T, U, A, B], normal numbers that sample actions in the minibatch's states
    target_entropy: np.float32
    learn_temperature: bool


def make_members(agent: Agent, random_numbers: dict[str, torch.Tensor], steps: int, loss: torch.Tensor) -> Members:
    """Return the record of M members for compiled code, before a block of T = ``steps`` steps with ``random_numbers``,
    ``[M, T, ...]`` each. Compiled code writes into ``loss [M]``. Reserves rows in the replay buffer."""
    return Members(
        ac=critics.make_actor_critic(agent, random_numbers, steps),
        episodes=agent.episodes.numpy(),
        loss=loss.numpy(),
        now_noise=random_numbers["now"].numpy(),
        target_entropy=np.float32(agent.target_entropy),
        learn_temperature=agent.config.learn_temperature,
    )


def choose(agent, work, m, t, e, obs, state):
    """Sample the action of member ``m`` at step ``t`` of the block in environment ``e``, for ``obs [O]``
    (`TwinCriticAgent.act`). It is uniformly random until the member learns. Write it to ``work.continuous_action [A]``
    in the environment's units, and to ``ac.action_vector[m, e]`` in [-1, 1]. Return 0 in place of a discrete action."""
    ac = agent.ac
    learning = nets.is_learning(ac.replay, agent.episodes[m], nets.count_rows(ac.replay, t))
    row = outputs_row(ac.actor, ac.actor_learner.flat_parameters[m], obs, work.scratch) if learning else 0
    for i in range(ac.action_size):
        if learning:
            std = np.exp(clip(work.scratch[row, ac.action_size + i], _MIN_LOG_STD, _MAX_LOG_STD))
            scaled = np.tanh(work.scratch[row, i] + std * ac.action_noise[m, t, e, i])
        else:
            scaled = _TWO * ac.random_uniform[m, t, e, i] - ONE
        ac.action_vector[m, e, i] = nan_to_zero(scaled)
        work.continuous_action[i] = scale_action(ac.bounds, ac.action_vector[m, e, i], i)
    return 0


@compiled
def _sample_actions(ac, work, noise):
    """Sample actions by standard normal ``noise [A, B]`` (`gaussian.sample`) from the actor's outputs in the last layer
    of ``work.actor.acts``. Write them to the inputs of both critics, after the place of the observations. Write
    standard deviations to ``work.std [A, B]``, and log-probabilities to ``work.log_prob [B]``."""
    outputs = work.actor.acts[len(ac.actor.sizes) - 1]
    for column in range(len(work.log_prob)):
        work.log_prob[column] = np.float32(0)
    for i in range(ac.action_size):
        for column in range(len(work.log_prob)):
            log_std = clip(outputs[ac.action_size + i, column], _MIN_LOG_STD, _MAX_LOG_STD)
            std = np.exp(log_std)
            pre_tanh = outputs[i, column] + std * noise[i, column]
            normal_log_prob = -_HALF * noise[i, column] * noise[i, column] - log_std - _HALF_LOG_2PI
            # log(1 - tanh(x)^2), computed as 2 (log 2 - |x| - log(1 + e^(-2 |x|))): no x overflows.
            magnitude = abs(pre_tanh)
            log_tanh_derivative = -_TWO * (np.log1p(np.exp(-_TWO * magnitude)) + magnitude - _LOG_2)
            action = np.tanh(pre_tanh)
            work.log_prob[column] += normal_log_prob - log_tanh_derivative
            work.std[i, column] = std
            work.critic1.acts[0, ac.obs_size + i, column] = action
            work.critic2.acts[0, ac.obs_size + i, column] = action


@compiled
def _write_actor_gradient(agent, work, m, noise):
    """Write the gradient of the losses of actor and temperature of member ``m`` to ``work.actor_grad [D]``
    (`Agent.update_actor`, `Agent.actor_loss`). The actor's loss is the mean of ``alpha log pi(a|s) - min Q(s, a)``. Its
    actions a are sampled by ``noise [A, B]``, and overwrite the actions in the inputs of both critics."""
    ac, params, depth = agent.ac, agent.ac.actor_learner.flat_parameters[m], len(agent.ac.actor.sizes) - 1
    obs_size, action_size, batch_size = ac.obs_size, ac.action_size, len(work.log_prob)
    critics.run_actor(ac, work, m)
    _sample_actions(ac, work, noise)
    critics.min_q_gradient(ac, work, m)
    log_alpha_at = len(params) - 1  # after the network's weights
    log_prob_grad = np.exp(params[log_alpha_at]) / np.float32(batch_size)
    for i in range(action_size):
        for column in range(batch_size):
            action = work.critic1.acts[0, obs_size + i, column]
            q_grad = work.critic1.grads[0, obs_size + i, column] + work.critic2.grads[0, obs_size + i, column]
            # d log-probability / d mean = 2 action, because d log(1 - tanh(x)^2) / dx = -2 tanh(x).
            mean_grad = -q_grad * (ONE - action * action) + _TWO * log_prob_grad * action
            # d pre_tanh / d log_std = std * noise, and the log-probability contains -log_std.
            log_std_grad = mean_grad * work.std[i, column] * noise[i, column] - log_prob_grad
            log_std = work.actor.acts[depth, action_size + i, column]
            is_within_bounds = _MIN_LOG_STD <= log_std and log_std <= _MAX_LOG_STD
            work.actor.grads[depth, i, column] = mean_grad
            work.actor.grads[depth, action_size + i, column] = log_std_grad if is_within_bounds else np.float32(0)
    critics.actor_backward(ac, work, m)
    log_prob_sum = np.float32(0)
    for column in range(batch_size):
        log_prob_sum += work.log_prob[column]
    entropy = -log_prob_sum / np.float32(batch_size)
    work.actor_grad[log_alpha_at] = entropy - agent.target_entropy if agent.learn_temperature else np.float32(0)


def improve(agent, work, m, t):
    """Make the updates of member ``m`` after step ``t`` of the block, if it has enough experience
    (`TwinCriticAgent.learn`). Update critics, their targets and Adam's state in ``ac.learner``, and actor and
    temperature in ``ac.actor_learner``. Write the critics' loss to ``agent.loss[m]``."""
    ac, num_rows = agent.ac, nets.count_rows(agent.ac.replay, t + 1)
    if not nets.is_learning(ac.replay, agent.episodes[m], num_rows):
        return
    params = ac.actor_learner.flat_parameters[m]
    for update in range(ac.replay.uniform.shape[2]):
        critics.sample_next_obs(ac, work, m, t, update, num_rows)
        forward(ac.actor, params, work.actor)
        _sample_actions(ac, work, ac.next_noise[m, t, update])
        critics.write_next_values(ac, work, m)  # to ``work.td_target``
        alpha = np.exp(params[len(params) - 1])
        for column in range(len(work.log_prob)):  # the value of the next state includes its entropy
            work.td_target[column] -= alpha * work.log_prob[column]
        agent.loss[m] = critics.update_critics(ac, work, m)  # replaces the values in ``work.td_target`` by TD targets
        _write_actor_gradient(agent, work, m, agent.now_noise[m, t, update])
        adam(ac.actor_learner, m, work.actor_grad)
        follow(ac.learner, m, ac.tau)
