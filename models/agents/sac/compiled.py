"""SAC in machine code, one member after another: ``act``, ``observe`` and ``learn`` of `Agent`, and greedy play.

`control.loops.compiled` compiles `choose`, `remember`, `improve` and `decide` into its loops. In compiled functions,
``agent`` is `Members`, ``work`` is `Work`, ``m`` a member, ``t`` a step of the block, ``e`` an environment. Importing
this requires Numba.
"""

from math import log
from typing import Any, NamedTuple

import numpy as np
import torch

from models.agents.sac.agent import Agent
from models.agents.sac.gaussian import LOG_STD_BOUNDS
from models.compiled import Learner, Net, adam, backward, follow, forward, make_layers, make_learner, make_net
from models.compiled_critics import (
    ONE,
    Bounds,
    Critics,
    CriticWork,
    Player,
    actor_outputs,
    copy_obs,
    decide,
    environment_action,
    filled_rows,
    is_learning,
    make_bounds,
    make_critic_work,
    make_critics,
    make_player,
    min_q_gradient,
    nan_to_zero,
    remember,
    sample_next_obs,
    update_critics,
    write_next_values,
)
from models.losses import HALF_LOG_TWO_PI
from models.machine import FAST, compiled

__all__ = ["IMPROVES", "Agent", "Members", "Player", "Work", "choose", "decide", "improve", "make_members",
           "make_player", "make_work", "remember"]  # fmt: skip
Array = np.ndarray[Any, Any]
IMPROVES = FAST  # how `improve` is compiled
_MIN_LOG_STD, _MAX_LOG_STD = np.float32(LOG_STD_BOUNDS[0]), np.float32(LOG_STD_BOUNDS[1])
_HALF, _TWO, _LOG_2, _HALF_LOG_2PI = (np.float32(number) for number in (0.5, 2, log(2), HALF_LOG_TWO_PI))


class Members(NamedTuple):
    """M members before a block of T steps in E environments. Arrays share the memory of the agent's tensors."""

    critics: Critics
    actor: Net
    actor_learner: Learner  # the actor's weights, then log alpha; it has no target weights
    episodes: Array  # [M], finished
    loss: Array  # [M]
    random_uniform: Array  # [M, T, E, A], uniform numbers for random actions
    action_noise: Array  # [M, T, E, A], normal numbers that sample actions
    next_noise: Array  # [M, T, U, A, B], normal numbers that sample actions in the next states
    now_noise: Array  # [M, T, U, A, B], normal numbers that sample actions in the minibatch's states
    bounds: Bounds
    target_entropy: np.float32
    learn_temperature: bool


class Work(NamedTuple):
    """Scratch memory for one member. ``columns`` is B rounded up to whole vectors (`make_layers`)."""

    critics: CriticWork
    scratch: Array  # [2, widest], for `single`
    continuous_action: Array  # [A], the action in the environment's units
    # Memory of `forward` and `backward`, [L + 1, widest, columns].
    actor_acts: Array
    actor_preacts: Array
    actor_act_grads: Array
    actor_grad: Array  # [D]
    std: Array  # [A, B], standard deviations of sampled actions
    log_prob: Array  # [B], log-probabilities of sampled actions


def make_members(agent: Agent, random_numbers: dict[str, torch.Tensor], steps: int, loss: torch.Tensor) -> Members:
    """Return the state before T = ``steps`` steps with ``random_numbers``, ``[M, T, ...]`` each. Compiled code writes
    into ``loss [M]``. Reserves rows in the replay buffer."""
    return Members(
        critics=make_critics(agent, random_numbers, steps),
        actor=make_net(agent.network),
        actor_learner=make_learner(agent.flat_parameters, agent.flat_parameters, agent.optimizer),
        episodes=agent.episodes.numpy(),
        loss=loss.numpy(),
        random_uniform=random_numbers["random"].numpy(),
        action_noise=random_numbers["explore"].numpy(),
        next_noise=random_numbers["next"].numpy(),
        now_noise=random_numbers["now"].numpy(),
        bounds=make_bounds(agent),
        target_entropy=np.float32(agent.target_entropy),
        learn_temperature=agent.config.learn_temperature,
    )


def make_work(agent: Members) -> Work:
    """Allocate scratch memory for one thread."""
    critics = agent.critics
    batch_size, action_size = critics.replay_uniform.shape[3], critics.action_size
    layers = [make_layers(agent.actor, batch_size) for _ in range(3)]
    return Work(
        critics=make_critic_work(critics),
        scratch=np.empty((2, agent.actor.widest), np.float32),
        continuous_action=np.empty(action_size, np.float32),
        actor_acts=layers[0],
        actor_preacts=layers[1],
        actor_act_grads=layers[2],
        actor_grad=np.zeros(agent.actor_learner.flat_parameters.shape[1], np.float32),
        std=np.empty((action_size, batch_size), np.float32),
        log_prob=np.empty(batch_size, np.float32),
    )


@compiled
def _clamp_log_std(log_std):
    """Return the logarithm of a standard deviation, clipped to `LOG_STD_BOUNDS`. NaN is returned unchanged."""
    return _MIN_LOG_STD if log_std < _MIN_LOG_STD else _MAX_LOG_STD if log_std > _MAX_LOG_STD else log_std


def choose(agent, work, m, t, e, obs, state):
    """Sample the action of member ``m`` at step ``t`` in environment ``e``, for ``obs [O]`` (`TwinCriticAgent.act`). It
    is uniformly random until the member learns. Write it to ``work.continuous_action [A]`` in the environment's units,
    and to ``critics.action_vector[m, e]`` in [-1, 1]. Return 0: there is no discrete action."""
    action_size = agent.critics.action_size
    learning = is_learning(agent, m, filled_rows(agent.critics, t))
    params = agent.actor_learner.flat_parameters[m]
    row = actor_outputs(agent, params, obs, work.scratch) if learning else 0
    for i in range(action_size):
        if learning:
            std = np.exp(_clamp_log_std(work.scratch[row, action_size + i]))
            scaled = np.tanh(work.scratch[row, i] + std * agent.action_noise[m, t, e, i])
        else:
            scaled = _TWO * agent.random_uniform[m, t, e, i] - ONE
        agent.critics.action_vector[m, e, i] = nan_to_zero(scaled)
        work.continuous_action[i] = environment_action(agent.bounds, agent.critics.action_vector[m, e, i], i)
    return 0


@compiled
def _sample_actions(agent, work, params, noise):
    """Run the actor with a member's parameters ``params [D]`` on the observations in ``work.actor_acts[0]``, and sample
    actions by standard normal ``noise [A, B]`` (`gaussian.sample`). Write the actions to the inputs of both critics,
    and ``work.std`` and ``work.log_prob``."""
    critic_work, obs_size, action_size = work.critics, agent.critics.obs_size, agent.critics.action_size
    forward(agent.actor, params, work.actor_acts, work.actor_preacts)
    outputs = work.actor_acts[len(agent.actor.sizes) - 1]
    for column in range(len(work.log_prob)):
        work.log_prob[column] = np.float32(0)
    for i in range(action_size):
        for column in range(len(work.log_prob)):
            log_std = _clamp_log_std(outputs[action_size + i, column])
            std = np.exp(log_std)
            pre_tanh = outputs[i, column] + std * noise[i, column]
            normal_log_prob = -_HALF * noise[i, column] * noise[i, column] - log_std - _HALF_LOG_2PI
            # log(1 - tanh(x)^2), computed as 2 (log 2 - |x| - log(1 + e^(-2 |x|))): no x overflows.
            magnitude = abs(pre_tanh)
            log_tanh_derivative = -_TWO * (np.log1p(np.exp(-_TWO * magnitude)) + magnitude - _LOG_2)
            action = np.tanh(pre_tanh)
            work.log_prob[column] += normal_log_prob - log_tanh_derivative
            work.std[i, column] = std
            critic_work.acts1[0, obs_size + i, column] = action
            critic_work.acts2[0, obs_size + i, column] = action


@compiled
def _write_actor_gradient(agent, work, m, params, noise):
    """Write the gradient of the losses of actor and temperature of member ``m`` to ``work.actor_grad [D]``
    (`Agent.update_actor`, `Agent.actor_loss`). The actor's loss is the mean of ``alpha log pi(a|s) - min Q(s, a)``
    over actions a sampled by ``noise [A, B]``, which overwrite the actions in the inputs of both critics."""
    critic_work, obs_size, action_size = work.critics, agent.critics.obs_size, agent.critics.action_size
    depth, batch_size = len(agent.actor.sizes) - 1, len(work.log_prob)
    acts, preacts, act_grads = work.actor_acts, work.actor_preacts, work.actor_act_grads
    copy_obs(agent.critics, critic_work, acts[0])
    _sample_actions(agent, work, params, noise)
    min_q_gradient(agent.critics, critic_work, m)
    log_alpha_at = len(params) - 1  # after the network's weights
    log_prob_grad = np.exp(params[log_alpha_at]) / np.float32(batch_size)
    for i in range(action_size):
        for column in range(batch_size):
            action = critic_work.acts1[0, obs_size + i, column]
            q_grad = critic_work.act_grads1[0, obs_size + i, column] + critic_work.act_grads2[0, obs_size + i, column]
            # d log-probability / d mean = 2 action, because d log(1 - tanh(x)^2) / dx = -2 tanh(x).
            mean_grad = -q_grad * (ONE - action * action) + _TWO * log_prob_grad * action
            # d pre_tanh / d log_std = std * noise, and the log-probability contains -log_std.
            log_std_grad = mean_grad * work.std[i, column] * noise[i, column] - log_prob_grad
            log_std = acts[depth, action_size + i, column]
            is_within_bounds = _MIN_LOG_STD <= log_std and log_std <= _MAX_LOG_STD
            act_grads[depth, i, column] = mean_grad
            act_grads[depth, action_size + i, column] = log_std_grad if is_within_bounds else np.float32(0)
    backward(agent.actor, params, acts, preacts, act_grads, work.actor_grad, need_grad=True, need_input_grad=False)
    log_prob_sum = np.float32(0)
    for column in range(batch_size):
        log_prob_sum += work.log_prob[column]
    entropy = -log_prob_sum / np.float32(batch_size)
    work.actor_grad[log_alpha_at] = entropy - agent.target_entropy if agent.learn_temperature else np.float32(0)


def improve(agent, work, m, t):
    """Make the updates of member ``m`` after step ``t``, if it may learn yet (`TwinCriticAgent.learn`). Write the
    critics' weights, target weights and Adam's state in ``agent.critics.learner``, those of actor and temperature in
    ``agent.actor_learner``, and the critics' loss to ``agent.loss[m]``."""
    critics, num_rows = agent.critics, filled_rows(agent.critics, t + 1)
    if not is_learning(agent, m, num_rows):
        return
    params = agent.actor_learner.flat_parameters[m]
    for update in range(critics.replay_uniform.shape[2]):
        sample_next_obs(critics, work.critics, m, t, update, num_rows, work.actor_acts[0])
        _sample_actions(agent, work, params, agent.next_noise[m, t, update])
        write_next_values(critics, work.critics, m, work.actor_acts[0])
        alpha = np.exp(params[len(params) - 1])
        for column in range(len(work.log_prob)):
            work.critics.td_target[column] -= alpha * work.log_prob[column]
        agent.loss[m] = update_critics(critics, work.critics, m)
        _write_actor_gradient(agent, work, m, params, agent.now_noise[m, t, update])
        adam(agent.actor_learner, m, work.actor_grad)
        follow(critics.learner, m, critics.tau)
