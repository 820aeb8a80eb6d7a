"""TD3 in machine code, one member after another: ``act``, ``observe`` and ``learn`` of `Agent`, and greedy play.

`control.loops.compiled` compiles `choose`, `remember`, `improve` and `decide` into its loops. In compiled functions,
``agent`` is `Members`, ``work`` is `Work`, ``m`` a member, ``t`` a step of the block, ``e`` an environment. Importing
this requires Numba.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from models.agents.td3.agent import Agent
from models.compiled import Learner, Net, adam, backward, follow, forward, make_layers, make_learner, make_net
from models.compiled_critics import (
    ONE,
    Bounds,
    Critics,
    CriticWork,
    Player,
    actor_outputs,
    clamp,
    copy_obs,
    decide,
    environment_action,
    filled_rows,
    is_learning,
    make_bounds,
    make_critic_work,
    make_critics,
    make_player,
    nan_to_zero,
    q1_gradient,
    remember,
    sample_next_obs,
    update_critics,
    write_next_values,
)
from models.machine import FAST, compiled

__all__ = ["IMPROVES", "Agent", "Members", "Player", "Work", "choose", "decide", "improve", "make_members",
           "make_player", "make_work", "remember"]  # fmt: skip
Array = np.ndarray[Any, Any]
IMPROVES = FAST  # how `improve` is compiled


class Members(NamedTuple):
    """M members before a block of T steps in E environments. Arrays share the memory of the agent's tensors."""

    critics: Critics
    actor: Net
    actor_learner: Learner
    episodes: Array  # [M], finished
    loss: Array  # [M]
    random_uniform: Array  # [M, T, E, A], uniform numbers for random actions
    action_noise: Array  # [M, T, E, A], normal noise on actions
    target_noise: Array  # [M, T, U, A, B], normal noise on target actions
    bounds: Bounds
    action_std: np.float32
    policy_std: np.float32
    policy_std_clip: np.float32
    policy_delay: int


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


def make_members(agent: Agent, random_numbers: dict[str, torch.Tensor], steps: int, loss: torch.Tensor) -> Members:
    """Return the state before T = ``steps`` steps with ``random_numbers``, ``[M, T, ...]`` each. Compiled code writes
    into ``loss [M]``. Reserves rows in the replay buffer."""
    config = agent.config
    return Members(
        critics=make_critics(agent, random_numbers, steps),
        actor=make_net(agent.network),
        actor_learner=make_learner(agent.flat_parameters, agent.target_parameters, agent.optimizer),
        episodes=agent.episodes.numpy(),
        loss=loss.numpy(),
        random_uniform=random_numbers["random"].numpy(),
        action_noise=random_numbers["explore"].numpy(),
        target_noise=random_numbers["next"].numpy(),
        bounds=make_bounds(agent),
        action_std=np.float32(config.action_std),
        policy_std=np.float32(config.policy_std),
        policy_std_clip=np.float32(config.policy_std_clip),
        policy_delay=config.policy_delay,
    )


def make_work(agent: Members) -> Work:
    """Allocate scratch memory for one thread."""
    critics = agent.critics
    layers = [make_layers(agent.actor, critics.replay_uniform.shape[3]) for _ in range(3)]
    return Work(
        critics=make_critic_work(critics),
        scratch=np.empty((2, agent.actor.widest), np.float32),
        continuous_action=np.empty(critics.action_size, np.float32),
        actor_acts=layers[0],
        actor_preacts=layers[1],
        actor_act_grads=layers[2],
        actor_grad=np.zeros(agent.actor_learner.flat_parameters.shape[1], np.float32),
    )


def choose(agent, work, m, t, e, obs, state):
    """Choose the exploring action of member ``m`` at step ``t`` in environment ``e``, for ``obs [O]``
    (`TwinCriticAgent.act`). It is random until the member learns. Write it to ``work.continuous_action [A]`` in the
    environment's units, and to ``critics.action_vector[m, e]`` in [-1, 1]. Return 0: there is no discrete action."""
    learning = is_learning(agent, m, filled_rows(agent.critics, t))
    params = agent.actor_learner.flat_parameters[m]
    row = actor_outputs(agent, params, obs, work.scratch) if learning else 0
    for i in range(agent.critics.action_size):
        if learning:
            noise = agent.action_noise[m, t, e, i] * agent.action_std
            scaled = clamp(np.tanh(work.scratch[row, i]) + noise, ONE)
        else:
            scaled = np.float32(2) * agent.random_uniform[m, t, e, i] - ONE
        agent.critics.action_vector[m, e, i] = nan_to_zero(scaled)
        work.continuous_action[i] = environment_action(agent.bounds, agent.critics.action_vector[m, e, i], i)
    return 0


@compiled
def _write_target_actions(agent, work, m, t, update):
    """Write the target actor's actions with clipped noise for the observations in ``work.actor_acts[0]`` to the inputs
    of both critics (`Agent._target_action`). ``update`` is the index of the update after step ``t``."""
    obs_size, critic_work = agent.critics.obs_size, work.critics
    forward(agent.actor, agent.actor_learner.target_parameters[m], work.actor_acts, work.actor_preacts)
    outputs = work.actor_acts[len(agent.actor.sizes) - 1]
    for i in range(agent.critics.action_size):
        for column in range(len(critic_work.td_target)):
            noise = clamp(agent.target_noise[m, t, update, i, column] * agent.policy_std, agent.policy_std_clip)
            target_action = clamp(np.tanh(outputs[i, column]) + noise, ONE)
            critic_work.acts1[0, obs_size + i, column] = target_action
            critic_work.acts2[0, obs_size + i, column] = target_action


@compiled
def _write_actor_gradient(agent, work, m):
    """Write the gradient of the actor's loss of member ``m`` to ``work.actor_grad [D]`` (`Agent.actor_loss`). The
    loss is the negative mean of the first critic's values of the actor's actions, which overwrite the actions in
    ``work.critics.acts1[0]``."""
    critic_work, obs_size, batch_size = work.critics, agent.critics.obs_size, len(work.critics.td_target)
    depth, params = len(agent.actor.sizes) - 1, agent.actor_learner.flat_parameters[m]
    acts, preacts, act_grads = work.actor_acts, work.actor_preacts, work.actor_act_grads
    copy_obs(agent.critics, critic_work, acts[0])
    forward(agent.actor, params, acts, preacts)
    for i in range(agent.critics.action_size):
        for column in range(batch_size):
            critic_work.acts1[0, obs_size + i, column] = np.tanh(acts[depth, i, column])
    q1_gradient(agent.critics, critic_work, m)
    for i in range(agent.critics.action_size):
        for column in range(batch_size):
            action = critic_work.acts1[0, obs_size + i, column]
            act_grads[depth, i, column] = -critic_work.act_grads1[0, obs_size + i, column] * (ONE - action * action)
    backward(agent.actor, params, acts, preacts, act_grads, work.actor_grad, need_grad=True, need_input_grad=False)


def improve(agent, work, m, t):
    """Make the updates of member ``m`` after step ``t``, if it may learn yet (`TwinCriticAgent.learn`). Write the
    critics' weights and Adam's state in ``agent.critics.learner`` and, after every ``policy_delay`` updates, the
    actor's in ``agent.actor_learner`` and both target networks. Write the critics' loss to ``agent.loss[m]``."""
    critics, num_rows = agent.critics, filled_rows(agent.critics, t + 1)
    if not is_learning(agent, m, num_rows):
        return
    for update in range(critics.replay_uniform.shape[2]):
        sample_next_obs(critics, work.critics, m, t, update, num_rows, work.actor_acts[0])
        _write_target_actions(agent, work, m, t, update)
        write_next_values(critics, work.critics, m, work.actor_acts[0])
        agent.loss[m] = update_critics(critics, work.critics, m)
        if critics.learner.counts[m] % agent.policy_delay == 0:
            _write_actor_gradient(agent, work, m)
            adam(agent.actor_learner, m, work.actor_grad)
            follow(agent.actor_learner, m, critics.tau)
            follow(critics.learner, m, critics.tau)
