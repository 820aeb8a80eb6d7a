"""Actor, twin critics and replay buffer in machine code: the part that TD3, discrete TD3 and SAC share
(`TwinCriticAgent`).

In compiled functions, ``agent`` is `Members` of such an agent, which has the fields of `ActorCritic` and further
fields. ``update`` is the index of an update after step ``t``, and ``i`` a coordinate of an action vector.
control/loops/compiled.py describes all other arguments.
"""

from collections import namedtuple
from typing import Any, NamedTuple

import numpy as np
import torch

from models import compiled as nets
from models.contract import AgentPolicy
from models.machine import Array, compiled, inlined
from models.off_policy import TwinCriticAgent
from models.tiles import copy

ONE = np.float32(1)


class ActorCritic(NamedTuple):
    """Actor, twin critics and replay buffer of M members (agents that train together) at the start of a block of T
    steps in E environments. Arrays share the memory of the agent's tensors. U is the number of updates per step, B the
    batch size, A the length of an action vector."""

    actor: nets.Net
    actor_learner: nets.Learner  # the actor's weights, then other weights of some agents, such as SAC's log alpha
    critic1: nets.Net  # the parameters of both critics are in one array
    critic2: nets.Net
    learner: nets.Learner  # trains both critics
    random: Array  # [M, T, E, A], uniform numbers for random actions
    explore: Array  # [M, T, E, A], normal noise on actions
    next: Array  # [M, T, U, A, B], normal noise on actions in the next states
    action_vector: Array  # [M, E, A], action vectors of the current step in [-1, 1], for the replay buffer
    bounds: nets.Bounds
    obs_size: int
    action_size: int  # A
    discount: np.float32
    tau: np.float32
    twins: bool  # whether the second critic is used
    replay: nets.Replay
    episodes: Array  # [M], number of finished episodes
    loss: Array  # [M], critics' loss of the latest update


# Scratch memory of one member, whose fields `make_work` describes.
Work = namedtuple(
    "Work",
    "scratch continuous_action actor critic1 critic2 actor_grad grad td_target sample std log_prob probs action_probs",
)


def make_members(
    record: Any, agent: TwinCriticAgent, random_numbers: dict[str, torch.Tensor], steps: int, loss: torch.Tensor
) -> Any:
    """Return the state of ``agent`` for compiled code at the start of a block of T = ``steps`` steps, and reserve rows
    in the replay buffer. It is a named tuple of the class ``record``, the agent's `Members`. ``random_numbers``, ``[M,
    T, ...]`` each, are the numbers of the block. Compiled code writes the critics' loss into ``loss [M]``."""
    critics, critic = agent.critics, agent.critics.network
    target_parameters: Any = getattr(agent, "target_parameters", agent.flat_parameters)  # SAC has no target actor
    return nets.make_record(
        record,
        agent,
        random_numbers,
        actor=nets.make_net(agent.network),
        actor_learner=nets.make_learner(agent.flat_parameters, target_parameters, agent.optimizer),
        critic1=nets.make_net(critic),
        critic2=nets.make_net(critic, begin=critic.size),
        learner=nets.make_learner(critics.flat_parameters, critics.target_parameters, critics.optimizer),
        action_vector=np.empty((agent.members, agent.envs, agent.action_size), np.float32),
        bounds=nets.make_bounds(agent.spaces.actions),
        twins=critics.twins,
        replay=nets.make_replay(agent, random_numbers["replay"], steps),
        loss=loss.numpy(),
    )


def make_work(agent: Any) -> Work:
    """Allocate scratch memory for one member. ``agent`` is `Members`."""
    batch_size, action_size = agent.replay.uniform.shape[3], agent.action_size
    actor = nets.make_layers(agent.actor, batch_size)
    return Work(
        scratch=np.empty((2, agent.actor.widest), np.float32),  # memory of `forward_one`
        continuous_action=np.empty(len(agent.bounds.low), np.float32),  # action in the environment's units
        actor=actor,
        critic1=nets.make_layers(agent.critic1, batch_size),
        critic2=nets.make_layers(agent.critic2, batch_size),
        actor_grad=np.zeros(agent.actor_learner.flat_parameters.shape[1], np.float32),
        grad=np.zeros(agent.learner.flat_parameters.shape[1], np.float32),  # gradient of both critics
        td_target=np.empty(batch_size, np.float32),
        # Rows: obs, action vector, next_obs, reward, discount.
        sample=np.zeros((agent.replay.table.shape[2], actor.acts.shape[2]), np.float32),
        std=np.empty((action_size, batch_size), np.float32),  # standard deviations of sampled actions
        log_prob=np.empty(batch_size, np.float32),  # log-probabilities of sampled actions
        probs=np.empty((action_size, batch_size), np.float32),  # samples of the Gumbel-softmax
        action_probs=np.empty((action_size, 1), np.float32),  # the sample of an action
    )


def make_choose(exploring_action):  # type: ignore[no-untyped-def]
    """Return the function `choose`, by which an agent with continuous actions explores. ``exploring_action(agent,
    outputs, m, t, e, i)`` returns coordinate ``i`` of its action in [-1, 1] for ``outputs`` of the actor."""

    def choose(agent, work, m, t, e, obs, state):
        """Write the exploring action for ``obs [O]`` to ``work.continuous_action [A]`` in the environment's units, and
        to ``agent.action_vector[m, e]`` in [-1, 1] (mirrors `TwinCriticAgent.act`). Return 0 as discrete action."""
        row = 0
        is_learning = nets.is_learning(agent.replay, agent.episodes[m], nets.count_rows(agent.replay, t))
        if is_learning:  # other members act at random, without the actor
            row = nets.outputs_row(agent.actor, agent.actor_learner.flat_parameters[m], obs, work.scratch)
        for i in range(agent.action_size):
            if is_learning:
                coordinate = exploring_action(agent, work.scratch[row], m, t, e, i)
            else:
                coordinate = np.float32(2) * agent.random[m, t, e, i] - ONE
            agent.action_vector[m, e, i] = nets.nan_to_zero(coordinate)
            work.continuous_action[i] = nets.scale_action(agent.bounds, agent.action_vector[m, e, i], i)
        return 0

    return choose


def make_player(policy: AgentPolicy) -> nets.Player | None:
    """Return ``policy`` for compiled code, or None if it is not greedy but samples its actions."""
    if policy.streams is not None:
        return None
    agent = policy.agent
    return nets.make_actor_player(agent.network, policy.flat_parameters, agent.spaces.actions, squashes=True)


def remember(agent, work, m, t, e, obs, action, next_obs, state, reward, discount, done):
    """Write a step into the replay buffer as obs, action vector, next_obs, reward, discount (mirrors
    `TwinCriticAgent.observe`)."""
    row = agent.replay.table[nets.new_row(agent.replay, t, e), m]
    position = nets.write_values(row, 0, obs)
    position = nets.write_values(row, position, agent.action_vector[m, e])
    position = nets.write_values(row, position, next_obs)
    row[position], row[position + 1] = reward, discount


@inlined
def run_actor_on_next_obs(agent, work, params):
    """Run the actor with parameters ``params [D]`` on the next observations of the minibatch in ``work.sample``. Its
    outputs are written to the last layer of ``work.actor.acts``."""
    copy(work.sample, agent.obs_size + agent.action_size, work.actor.acts[0], 0, agent.obs_size)
    nets.forward(agent.actor, params, work.actor)


@compiled
def write_next_values(agent, work, m):
    """Write the target critics' values of the next states to ``work.td_target [B]`` (mirrors
    `TwinCritics.target_values`). The caller has run the actor on the next observations, which are still its inputs, and
    written the next actions to the first critic's inputs."""
    batch_size, depth = len(work.td_target), len(agent.critic1.sizes) - 1
    # Inputs of the critics are observations, then actions. Copy the observations to the first critic, then all inputs
    # to the second critic.
    copy(work.actor.acts[0], 0, work.critic1.acts[0], 0, agent.obs_size)
    copy(work.critic1.acts[0], 0, work.critic2.acts[0], 0, agent.obs_size + agent.action_size)
    target_params = agent.learner.target_parameters[m]
    nets.forward(agent.critic1, target_params, work.critic1)
    if agent.twins:
        nets.forward(agent.critic2, target_params, work.critic2)
    for column in range(batch_size):
        value1, value2 = work.critic1.acts[depth, 0, column], work.critic2.acts[depth, 0, column]
        # NaN counts as smallest; it is the only value that differs from itself.
        is_second = agent.twins and (value2 < value1 or value2 != value2)
        work.td_target[column] = value2 if is_second else value1


@compiled
def update_critics(agent, work, m):
    """Make a step of both critics of member ``m`` towards the TD targets (mirrors `OffPolicyAgent.critic_loss`). Return
    the loss before the step. ``work.td_target [B]`` must hold the values of the next states, and is replaced by the
    targets. The observations of the minibatch remain in both critics' inputs."""
    pair_size, td_target = agent.obs_size + agent.action_size, work.td_target
    reward_at = pair_size + agent.obs_size
    for column in range(len(td_target)):
        # Read the next value before the sample. In another order, the compiler rounds the target differently.
        next_value = td_target[column]
        # The discount is 0 after a termination.
        reward, discount = work.sample[reward_at, column], work.sample[reward_at + 1, column]
        td_target[column] = reward + agent.discount * discount * next_value
    # The first rows of the minibatch, observations and actions, are the inputs of the critics.
    copy(work.sample, 0, work.critic1.acts[0], 0, pair_size)
    copy(work.sample, 0, work.critic2.acts[0], 0, pair_size)
    params, grad = agent.learner.flat_parameters[m], work.grad
    loss = _critic_gradient(agent.critic1, params, work.critic1, grad, td_target)
    if agent.twins:
        loss += _critic_gradient(agent.critic2, params, work.critic2, grad, td_target)
    nets.adam(agent.learner, m, grad)
    return loss


@compiled
def _critic_gradient(net, params, layers, grad, td_target):
    """Return the mean squared error of the values of one critic and the targets ``td_target [B]``, and write its
    gradient to this critic's positions in ``grad [2 D]``. ``net`` is the critic, and ``params [2 D]`` are a member's
    parameters of both critics. The critic's inputs must be in ``layers.acts[0]``."""
    nets.forward(net, params, layers)
    depth, batch_size, total = len(net.sizes) - 1, len(td_target), np.float32(0)
    for column in range(batch_size):
        error = layers.acts[depth, 0, column] - td_target[column]
        total += error * error
        layers.grads[depth, 0, column] = error * np.float32(2 / batch_size)
    nets.backward(net, params, layers, grad, need_grad=True, need_input_grad=False)
    return total / np.float32(batch_size)


@inlined
def run_actor(agent, work, m):
    """Run the actor of member ``m`` on the observations that `update_critics` has written to the critics' inputs."""
    copy(work.critic1.acts[0], 0, work.actor.acts[0], 0, agent.obs_size)
    nets.forward(agent.actor, agent.actor_learner.flat_parameters[m], work.actor)


@inlined
def actor_backward(agent, work, m):
    """Write the gradient of the actor's weights to ``work.actor_grad [D]``, by backpropagation from the gradient of its
    outputs in the last layer of ``work.actor.grads``."""
    params = agent.actor_learner.flat_parameters[m]
    nets.backward(agent.actor, params, work.actor, work.actor_grad, need_grad=True, need_input_grad=False)


def make_delayed_improve(write_vectors, write_output_gradient, clips_target):  # type: ignore[no-untyped-def]
    """Return the function `improve` (`make_improve`) of TD3 and discrete TD3, which update the actor and the target
    networks only every ``policy_delay`` updates of the critics.

    :param write_vectors: ``write_vectors(agent, work, m, t, update, is_target)`` converts the outputs of the actor, or
        of the target actor if ``is_target``, to action vectors, and writes them to the first critic's inputs.
    :param write_output_gradient: ``write_output_gradient(agent, work, m, t, update)`` computes the gradient of the
        actor's outputs, in the last layer of ``work.actor.grads``, from d Q / d inputs in ``work.critic1.grads[0]``.
    :param clips_target: Whether action vectors of the target actor are clipped to [-1, 1] after noise is added.
    """

    @compiled
    def delayed_update(agent, work, m, t, update):
        """Make an update of member ``m`` (mirrors `OffPolicyAgent.update`). Return the critics' loss."""
        batch_size, max_noise, vectors = len(work.td_target), agent.policy_std_clip, work.critic1.acts[0]
        run_actor_on_next_obs(agent, work, agent.actor_learner.target_parameters[m])
        write_vectors(agent, work, m, t, update, True)
        for i in range(agent.action_size):
            for column in range(batch_size):
                noise = nets.clip(agent.next[m, t, update, i, column] * agent.policy_std, -max_noise, max_noise)
                vector = vectors[agent.obs_size + i, column] + noise
                vectors[agent.obs_size + i, column] = nets.clip(vector, -ONE, ONE) if clips_target else vector
        write_next_values(agent, work, m)
        loss = update_critics(agent, work, m)
        if agent.learner.counts[m] % agent.policy_delay == 0:
            run_actor(agent, work, m)
            write_vectors(agent, work, m, t, update, False)  # overwrites the actions of the minibatch
            # The actor maximises the mean of the first critic's values. Without ``need_grad``, ``work.grad`` is unused.
            params = agent.learner.flat_parameters[m]
            nets.forward(agent.critic1, params, work.critic1)
            for column in range(batch_size):
                work.critic1.grads[len(agent.critic1.sizes) - 1, 0, column] = np.float32(1 / batch_size)
            nets.backward(agent.critic1, params, work.critic1, work.grad, need_grad=False, need_input_grad=True)
            write_output_gradient(agent, work, m, t, update)
            actor_backward(agent, work, m)
            nets.adam(agent.actor_learner, m, work.actor_grad)
            nets.follow(agent.actor_learner, m, agent.tau)
            nets.follow(agent.learner, m, agent.tau)
        return loss

    return nets.make_improve(delayed_update)
