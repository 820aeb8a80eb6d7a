"""TD3 in machine code, one member after another: ``act``, ``observe`` and ``learn`` of `Agent`, and greedy play.

`models.compiled_critics` explains the arguments of compiled functions.
"""

from collections import namedtuple
from functools import partial
from typing import Any

import numpy as np

from models import compiled as nets
from models import compiled_critics as critics
from models.agents.td3.agent import Agent as Agent
from models.compiled import clip
from models.compiled_critics import ONE, ActorCritic
from models.machine import compiled, exact_inlined

remember, make_work, make_player = critics.remember, critics.make_work, critics.make_player
Player, decide = nets.Player, nets.decide


# `ActorCritic` with the settings that only this agent has.
Members: Any = namedtuple(  # type: ignore[misc]
    "Members", [*ActorCritic._fields, "action_std", "policy_std", "policy_std_clip", "policy_delay"]
)
make_members = partial(critics.make_members, Members)


@exact_inlined
def _exploring_action(agent, outputs, m, t, e, i):
    """Return coordinate ``i`` of the exploring action of member ``m`` in environment ``e`` at step ``t``, in [-1, 1],
    for the actor's ``outputs [A]`` (`Agent._explore`)."""
    noise = agent.explore[m, t, e, i] * agent.action_std
    return clip(np.tanh(outputs[i]) + noise, -ONE, ONE)


@compiled
def _write_actions(agent, work, m, t, update, is_target):
    """Convert the actor's outputs for a minibatch to actions (`Agent._actions`), and write them to the first critic's
    inputs ``work.critic1.acts[0]``. `critics.make_delayed_improve` describes the arguments."""
    outputs = work.actor.acts[len(agent.actor.sizes) - 1]  # [A, B]
    for i in range(agent.action_size):
        for column in range(len(work.td_target)):
            work.critic1.acts[0, agent.obs_size + i, column] = np.tanh(outputs[i, column])


@compiled
def _write_output_gradient(agent, work, m, t, update):
    """Write the gradient of the actor's loss with respect to its outputs, from the gradient of the first critic's
    values with respect to the actions (`Agent.actor_loss`). `critics.make_delayed_improve` describes the arguments."""
    for i in range(agent.action_size):
        row = agent.obs_size + i  # row of the action in the critic's inputs
        for column in range(len(work.td_target)):
            action, q_grad = work.critic1.acts[0, row, column], work.critic1.grads[0, row, column]
            work.actor.grads[len(agent.actor.sizes) - 1, i, column] = -q_grad * (ONE - action * action)


choose = critics.make_choose(_exploring_action)
improve = critics.make_delayed_improve(_write_actions, _write_output_gradient, clips_target=True)
