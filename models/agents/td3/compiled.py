"""TD3 in machine code, one member after another: ``act``, ``observe`` and ``learn`` of `Agent`, and greedy play.

`models.compiled_critics` explains the arguments of compiled functions. Importing this requires Numba.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from models import compiled as nets
from models import compiled_critics as critics
from models.agents.td3.agent import Agent as Agent
from models.compiled import Replay, adam, clip, follow, forward
from models.compiled_critics import ONE, ActorCritic
from models.machine import FAST, compiled, exact_inlined

Array = np.ndarray[Any, Any]
IMPROVES = FAST  # how `improve` is compiled
remember, make_work, make_player = critics.remember, critics.make_work, critics.make_player
Player, decide = nets.Player, nets.decide


class Members(NamedTuple):
    """M members before a block of T steps in E environments. Arrays share the memory of the agent's tensors."""

    ac: ActorCritic
    replay: Replay
    episodes: Array  # [M], finished
    loss: Array  # [M]
    action_std: np.float32
    policy_std: np.float32
    policy_std_clip: np.float32
    policy_delay: int


make_members = partial(critics.make_members, Members)


@exact_inlined
def _exploring_action(agent, outputs, m, t, e, i):
    """Return coordinate ``i`` of the exploring action for ``outputs`` of the actor (`Agent._explore`)."""
    noise = agent.ac.explore[m, t, e, i] * agent.action_std
    return clip(np.tanh(outputs[i]) + noise, -ONE, ONE)


@compiled
def _write_next_values(agent, work, m, t, update):
    """Write the values of the next states to ``work.td_target [B]`` (`Agent.next_q`). The next observations must be in
    ``work.actor.acts[0]``."""
    ac = agent.ac
    # The outputs of the target actor are then in the last layer of ``work.actor.acts``.
    forward(ac.actor, ac.actor_learner.target_parameters[m], work.actor)
    outputs, max_noise = work.actor.acts[len(ac.actor.sizes) - 1], agent.policy_std_clip
    for i in range(ac.action_size):
        for column in range(len(work.td_target)):
            noise = clip(ac.next[m, t, update, i, column] * agent.policy_std, -max_noise, max_noise)
            work.critic1.acts[0, ac.obs_size + i, column] = clip(np.tanh(outputs[i, column]) + noise, -ONE, ONE)
    critics.write_next_values(ac, work, m)


@compiled
def _write_actor_gradient(agent, work, m, t, update):
    """Write the gradient of the actor's loss to ``work.actor_grad [D]`` (`Agent.actor_loss`). The actor's actions
    overwrite the actions in the first critic's inputs. Discrete TD3, which shares the caller, needs ``t`` and
    ``update``."""
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


def make_update_actor(write_actor_gradient):  # type: ignore[no-untyped-def]
    """Return the function that updates actor and target weights. ``write_actor_gradient(agent, work, m, t, update)``
    writes the gradient of the actor's loss to ``work.actor_grad``; each kind of agent has a different one."""

    @compiled
    def update_actor(agent, work, m, t, update):
        """Update actor and target weights of member ``m``, after every ``policy_delay`` updates of its critics
        (`Agent.update_actor`)."""
        ac = agent.ac
        if ac.learner.counts[m] % agent.policy_delay == 0:
            write_actor_gradient(agent, work, m, t, update)
            adam(ac.actor_learner, m, work.actor_grad)
            follow(ac.actor_learner, m, ac.tau)  # moves the weights of the target actor
            follow(ac.learner, m, ac.tau)  # moves the weights of the target critics

    return update_actor


choose = critics.make_choose(_exploring_action)
improve = critics.make_improve(_write_next_values, make_update_actor(_write_actor_gradient))
