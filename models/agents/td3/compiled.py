"""TD3 in machine code, one member after another: ``act``, ``observe`` and ``learn`` of `Agent`, and greedy play.

`control.loops.compiled` compiles `choose`, `remember`, `improve` and `decide` into its loops. In compiled functions,
``agent`` is `Members`, ``ac`` its `ActorCritic`, ``work`` is `Work`, ``m`` a member, ``t`` a step of the block, ``e``
an environment. Importing this requires Numba.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from models import compiled as nets
from models import compiled_critics as critics
from models.agents.td3.agent import Agent
from models.compiled import adam, clip, follow, forward, nan_to_zero, outputs_row, scale_action
from models.compiled_critics import ONE, ActorCritic
from models.machine import FAST, compiled

Array = np.ndarray[Any, Any]
IMPROVES = FAST  # how `improve` is compiled
remember, make_work, make_player = critics.remember, critics.make_work, critics.make_player
Player, decide = nets.Player, nets.decide


class Members(NamedTuple):
    """M members before a block of T steps in E environments. Arrays share the memory of the agent's tensors."""

    ac: ActorCritic
    episodes: Array  # [M], finished
    loss: Array  # [M]
    action_std: np.float32
    policy_std: np.float32
    policy_std_clip: np.float32
    policy_delay: int


def make_members(agent: Agent, random_numbers: dict[str, torch.Tensor], steps: int, loss: torch.Tensor) -> Members:
    """Return the record of M members for compiled code, before a block of T = ``steps`` steps with ``random_numbers``,
    ``[M, T, ...]`` each. Compiled code writes into ``loss [M]``. Reserves rows in the replay buffer."""
    config = agent.config
    return Members(
        ac=critics.make_actor_critic(agent, random_numbers, steps),
        episodes=agent.episodes.numpy(),
        loss=loss.numpy(),
        action_std=np.float32(config.action_std),
        policy_std=np.float32(config.policy_std),
        policy_std_clip=np.float32(config.policy_std_clip),
        policy_delay=config.policy_delay,
    )


def choose(agent, work, m, t, e, obs, state):
    """Choose the exploring action of member ``m`` at step ``t`` of the block in environment ``e``, for ``obs [O]``
    (`TwinCriticAgent.act`). It is random until the member learns. Write it to ``work.continuous_action [A]`` in the
    environment's units, and to ``ac.action_vector[m, e]`` in [-1, 1]. Return 0 in place of a discrete action."""
    ac = agent.ac
    learning = nets.is_learning(ac.replay, agent.episodes[m], nets.count_rows(ac.replay, t))
    row = outputs_row(ac.actor, ac.actor_learner.flat_parameters[m], obs, work.scratch) if learning else 0
    for i in range(ac.action_size):
        if learning:
            noise = ac.action_noise[m, t, e, i] * agent.action_std
            scaled = clip(np.tanh(work.scratch[row, i]) + noise, -ONE, ONE)
        else:
            scaled = np.float32(2) * ac.random_uniform[m, t, e, i] - ONE
        ac.action_vector[m, e, i] = nan_to_zero(scaled)
        work.continuous_action[i] = scale_action(ac.bounds, ac.action_vector[m, e, i], i)
    return 0


@compiled
def _write_target_actions(agent, work, m, t, update):
    """Write the target actor's actions with clipped noise to the inputs of both critics (`Agent._target_action`), for
    the observations in ``work.actor.acts[0]``. ``update`` is the index of the update after step ``t`` of the block."""
    ac = agent.ac
    forward(ac.actor, ac.actor_learner.target_parameters[m], work.actor)
    outputs, max_noise = work.actor.acts[len(ac.actor.sizes) - 1], agent.policy_std_clip
    for i in range(ac.action_size):
        for column in range(len(work.td_target)):
            noise = clip(ac.next_noise[m, t, update, i, column] * agent.policy_std, -max_noise, max_noise)
            target_action = clip(np.tanh(outputs[i, column]) + noise, -ONE, ONE)
            work.critic1.acts[0, ac.obs_size + i, column] = target_action
            work.critic2.acts[0, ac.obs_size + i, column] = target_action


@compiled
def _write_actor_gradient(agent, work, m, t, update):
    """Write the gradient of the actor's loss of member ``m`` to ``work.actor_grad [D]`` (`Agent.actor_loss`). The loss
    is minus the mean value of the actor's actions according to the first critic. These actions overwrite the actions in
    ``work.critic1.acts[0]``, the inputs of this critic. ``t`` and ``update`` are for discrete actions."""
    ac, batch_size, depth = agent.ac, len(work.td_target), len(agent.ac.actor.sizes) - 1
    critics.run_actor(ac, work, m)
    for i in range(ac.action_size):
        for column in range(batch_size):
            work.critic1.acts[0, ac.obs_size + i, column] = np.tanh(work.actor.acts[depth, i, column])
    critics.q1_gradient(ac, work, m)
    for i in range(ac.action_size):
        row = ac.obs_size + i  # of the action in the critic's inputs
        for column in range(batch_size):
            action, q_grad = work.critic1.acts[0, row, column], work.critic1.grads[0, row, column]
            work.actor.grads[depth, i, column] = -q_grad * (ONE - action * action)
    critics.actor_backward(ac, work, m)


def make_improve(write_target_actions, write_actor_gradient):  # type: ignore[no-untyped-def]
    """Return `improve`, the updates of TD3 with two functions of its kind: for the target actor's actions, and for the
    gradient of the actor."""

    def improve(agent, work, m, t):
        """Make the updates of member ``m`` after step ``t`` of the block, if it has enough experience
        (`TwinCriticAgent.learn`). Update critics and Adam's state in ``ac.learner``; after every ``policy_delay``
        updates, also the actor in ``ac.actor_learner`` and all target weights. Write the critics' loss to
        ``agent.loss[m]``."""
        ac, num_rows = agent.ac, nets.count_rows(agent.ac.replay, t + 1)
        if not nets.is_learning(ac.replay, agent.episodes[m], num_rows):
            return
        for update in range(ac.replay.uniform.shape[2]):
            critics.sample_next_obs(ac, work, m, t, update, num_rows)
            write_target_actions(agent, work, m, t, update)
            critics.write_next_values(ac, work, m)
            agent.loss[m] = critics.update_critics(ac, work, m)
            if ac.learner.counts[m] % agent.policy_delay == 0:
                write_actor_gradient(agent, work, m, t, update)
                adam(ac.actor_learner, m, work.actor_grad)
                follow(ac.actor_learner, m, ac.tau)
                follow(ac.learner, m, ac.tau)

    return improve


improve = make_improve(_write_target_actions, _write_actor_gradient)
