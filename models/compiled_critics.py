"""Twin critics and replay buffer in machine code: the part that TD3, discrete TD3 and SAC share (`TwinCriticAgent`).

In compiled functions, ``agent`` is `Members` of one of these kinds, ``critics`` its `Critics`, ``work`` its `Work`,
``critic_work`` its `CriticWork`, ``m`` a member, ``t`` a step of the block, ``e`` an environment. Importing this
requires Numba.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from models.compiled import (
    Learner,
    Net,
    adam,
    backward,
    forward,
    make_layers,
    make_learner,
    make_net,
    row_of,
    single,
)
from models.machine import compiled
from models.off_policy import ActorPolicy, TwinCriticAgent

Array = np.ndarray[Any, Any]
ONE = np.float32(1)


class Critics(NamedTuple):
    """Twin critics and replay buffer of M members before a block of T steps in E environments. Arrays share the memory
    of the agent's tensors. U is the number of updates per step, B the batch size, A the length of an action vector."""

    critic1: Net  # the parameters of both critics are in one array
    critic2: Net
    learner: Learner
    table: Array  # [rows, M, 2 O + A + 2], the replay buffer: obs, action vector, next_obs, reward, discount
    position: int  # next row to write
    replay_size: int
    capacity: int
    replay_uniform: Array  # [M, T, U, B], uniform numbers that choose the minibatches
    action_vector: Array  # [M, E, A], action vectors of the current step, for the replay buffer
    obs_size: int
    action_size: int  # A
    discount: np.float32
    tau: np.float32
    twin: bool  # whether the second critic is used
    init_episodes: int  # finished episodes before the first update
    fill: int  # rows in the replay buffer before the first update


class CriticWork(NamedTuple):
    """Scratch memory of the critics of one member. ``columns`` is B rounded up to whole vectors (`make_layers`)."""

    # Memory of `forward` and `backward` for each critic, [L + 1, widest, columns].
    acts1: Array
    preacts1: Array
    act_grads1: Array
    acts2: Array
    preacts2: Array
    act_grads2: Array
    td_target: Array  # [B]
    minibatch: Array  # [B], row numbers in the table
    grad: Array  # [2 D], of both critics


def make_critics(agent: TwinCriticAgent, random_numbers: dict[str, torch.Tensor], steps: int) -> Critics:
    """Return the state before T = ``steps`` steps with ``random_numbers``, ``[M, T, ...]`` each. Reserves rows in the
    replay buffer."""
    config, buffer, critics, critic = agent.config, agent.replay_buffer, agent.critics, agent.critics.network
    (table,) = buffer.reserve(steps * agent.envs)  # a single table, because all columns are float32
    return Critics(
        critic1=make_net(critic),
        critic2=make_net(critic, begin=critic.size),
        learner=make_learner(critics.flat_parameters, critics.target_parameters, critics.optimizer),
        table=table.numpy(),
        position=buffer.position,
        replay_size=buffer.size,
        capacity=buffer.capacity,
        replay_uniform=random_numbers["replay"].numpy(),
        action_vector=np.empty((agent.members, agent.envs, agent.action_size), np.float32),
        obs_size=agent.obs_size,
        action_size=agent.action_size,
        discount=np.float32(config.discount),
        tau=np.float32(config.tau),
        twin=critics.twins,
        init_episodes=config.init_episodes,
        fill=max(1, config.fill),  # a minibatch needs at least one row
    )


def make_critic_work(critics: Critics) -> CriticWork:
    """Allocate scratch memory for one thread."""
    batch_size = critics.replay_uniform.shape[3]
    # Three for each network: acts, preacts, act_grads.
    layers = [make_layers(net, batch_size) for net in (critics.critic1, critics.critic2) for _ in range(3)]
    td_target, minibatch = np.empty(batch_size, np.float32), np.empty(batch_size, np.int64)
    grad = np.zeros(critics.learner.flat_parameters.shape[1], np.float32)
    return CriticWork._make((*layers, td_target, minibatch, grad))


# -- acting ------------------------------------------------------------------------------------------------------------


class Bounds(NamedTuple):
    """The range of continuous actions in the environment's units: arrays ``[A]``."""

    centre: Array  # middle of the range
    half_range: Array  # half of its size
    low: Array
    high: Array


def make_bounds(agent: TwinCriticAgent) -> Bounds:
    """Return the bounds of the agent's actions. They share the memory of its tensors."""
    return Bounds(agent.centre.numpy(), agent.half_range.numpy(), agent.low.numpy(), agent.high.numpy())


class Player(NamedTuple):
    """Greedy policy of M members with continuous actions, for `decide`."""

    actor: Net
    flat_parameters: Array  # [M, D]
    bounds: Bounds
    widest: int  # width of the scratch memory of `decide`
    action_size: int  # A


def make_player(policy: ActorPolicy) -> Player | None:
    """Return the policy of an agent with continuous actions for compiled code, or None if it samples actions. Its
    weights share the policy's memory."""
    if policy.streams is not None:
        return None
    agent, actor = policy.agent, make_net(policy.agent.network)
    flat_parameters = policy.flat_parameters.detach().numpy()
    return Player(actor, flat_parameters, make_bounds(agent), widest=actor.widest, action_size=agent.action_size)


def decide(player, m, obs, state, scratch, continuous_action):
    """Write the greedy action of member ``m`` of a `Player` for ``obs [O]`` to ``continuous_action [A]``, in the
    environment's units (`ActorPolicy.act`). Return 0. Overwrites ``scratch [2, widest]``."""
    row = actor_outputs(player, player.flat_parameters[m], obs, scratch)
    for i in range(player.action_size):
        continuous_action[i] = environment_action(player.bounds, nan_to_zero(np.tanh(scratch[row, i])), i)
    return 0


@compiled
def nan_to_zero(x):
    """Return the number x, or 0 if it is NaN, the only value that differs from itself."""
    return x if x == x else np.float32(0)


@compiled
def clamp(x, limit):
    """Return x, clipped to [-``limit``, ``limit``]. NaN is returned unchanged."""
    return -limit if x < -limit else limit if x > limit else x


@compiled
def environment_action(bounds, scaled, i):
    """Return coordinate ``i`` of the environment's action for the number ``scaled`` in [-1, 1]
    (`TwinCriticAgent.clip`). ``bounds`` is `Bounds`."""
    return min(max(bounds.centre[i] + scaled * bounds.half_range[i], bounds.low[i]), bounds.high[i])


@compiled
def actor_outputs(agent, params, obs, scratch):
    """Run the actor with a member's parameters ``params [D]`` on ``obs [O]``. Return the index of the row of ``scratch
    [2, widest]`` that contains its outputs. ``agent`` is `Members` or `Player`."""
    for i in range(len(obs)):
        scratch[0, i] = obs[i]
    return single(agent.actor, params, scratch, 0)


@compiled
def filled_rows(critics, num_steps):
    """Return the number of rows in the replay buffer after ``num_steps`` steps of the block."""
    return min(critics.replay_size + num_steps * critics.action_vector.shape[1], critics.capacity)


@compiled
def is_learning(agent, m, num_rows):
    """Return whether member ``m`` may learn, with ``num_rows`` rows in the replay buffer
    (`OffPolicyAgent.learning`)."""
    return agent.episodes[m] >= agent.critics.init_episodes and num_rows >= agent.critics.fill


def remember(agent, work, m, t, e, obs, action, next_obs, state, reward, discount, done):
    """Write step ``t`` of member ``m`` in environment ``e`` into the replay buffer (`TwinCriticAgent.observe`). Its row
    is ``obs``, the action in ``critics.action_vector[m, e]``, ``next_obs, reward, discount``."""
    critics = agent.critics
    row = (critics.position + t * critics.action_vector.shape[1] + e) % critics.capacity
    obs_size, next_obs_at = critics.obs_size, critics.obs_size + critics.action_size
    for i in range(obs_size):
        critics.table[row, m, i] = obs[i]
        critics.table[row, m, next_obs_at + i] = next_obs[i]
    for i in range(critics.action_size):
        critics.table[row, m, obs_size + i] = critics.action_vector[m, e, i]
    critics.table[row, m, next_obs_at + obs_size] = reward
    critics.table[row, m, next_obs_at + obs_size + 1] = discount


# -- learning ----------------------------------------------------------------------------------------------------------


@compiled
def sample_next_obs(critics, critic_work, m, t, update, num_rows, obs):
    """Choose the rows ``critic_work.minibatch [B]`` of the update with index ``update`` after step ``t``, among
    ``num_rows`` rows (`ReplayBuffer.sample`). Write their next observations to ``obs [O, columns]``."""
    uniforms = critics.replay_uniform[m, t, update]
    for column in range(len(critic_work.minibatch)):  # index -1 is the last number
        critic_work.minibatch[column] = row_of(uniforms[column], uniforms[column - 1], num_rows)
    next_obs_at = critics.obs_size + critics.action_size  # a row: obs, action vector, next_obs, reward, discount
    for column in range(len(critic_work.minibatch)):
        row = critic_work.minibatch[column]
        for i in range(critics.obs_size):
            obs[i, column] = critics.table[row, m, next_obs_at + i]


@compiled
def write_next_values(critics, critic_work, m, next_obs):
    """Write the smaller of both target critics' values to ``critic_work.td_target [B]``, without twins the first one's
    (`TwinCritics.target_values`), for the observations ``next_obs [O, columns]`` and the actions in both ``acts1[0]``
    and ``acts2[0]``, after the place of the observations."""
    batch_size, depth = len(critic_work.td_target), len(critics.critic1.sizes) - 1
    for i in range(critics.obs_size):
        for column in range(batch_size):
            critic_work.acts1[0, i, column] = next_obs[i, column]
            critic_work.acts2[0, i, column] = next_obs[i, column]
    target_params = critics.learner.target_parameters[m]
    forward(critics.critic1, target_params, critic_work.acts1, critic_work.preacts1)
    if critics.twin:
        forward(critics.critic2, target_params, critic_work.acts2, critic_work.preacts2)
    for column in range(batch_size):
        value1, value2 = critic_work.acts1[depth, 0, column], critic_work.acts2[depth, 0, column]
        is_second = critics.twin and (value2 < value1 or value2 != value2)  # NaN counts as smallest
        critic_work.td_target[column] = value2 if is_second else value1


@compiled
def update_critics(critics, critic_work, m):
    """Make a step of both critics towards the TD targets (`TwinCriticAgent.critic_loss`), for values of the next states
    in ``critic_work.td_target [B]``, which are replaced by the targets ``reward + discount * value``. Leave the
    observations of the minibatch in both ``acts1[0]`` and ``acts2[0]``. Return the sum of the critics' mean squared
    errors before the step."""
    next_obs_at = critics.obs_size + critics.action_size  # a row: obs, action vector, next_obs, reward, discount
    reward_at, td_target = next_obs_at + critics.obs_size, critic_work.td_target
    for column in range(len(td_target)):
        row, next_value = critic_work.minibatch[column], td_target[column]  # read first: the order decides the rounding
        reward, discount = critics.table[row, m, reward_at], critics.table[row, m, reward_at + 1]
        td_target[column] = reward + critics.discount * discount * next_value
        for i in range(next_obs_at):  # obs and action
            critic_work.acts1[0, i, column] = critics.table[row, m, i]
            critic_work.acts2[0, i, column] = critics.table[row, m, i]
    params, grad = critics.learner.flat_parameters[m], critic_work.grad
    acts, preacts, act_grads = critic_work.acts1, critic_work.preacts1, critic_work.act_grads1
    loss = _critic_gradient(critics.critic1, params, acts, preacts, act_grads, grad, td_target)
    if critics.twin:
        acts, preacts, act_grads = critic_work.acts2, critic_work.preacts2, critic_work.act_grads2
        loss += _critic_gradient(critics.critic2, params, acts, preacts, act_grads, grad, td_target)
    adam(critics.learner, m, grad)
    return loss


@compiled
def _critic_gradient(net, params, acts, preacts, act_grads, grad, td_target):
    """Return a critic's mean squared error to ``td_target [B]``, and write its gradient to the critic's positions of
    ``grad [2 D]`` (`TwinCriticAgent.critic_loss`). ``acts[0]`` are pairs of observation and action; all else is
    overwritten."""
    forward(net, params, acts, preacts)
    depth, batch_size, total = len(net.sizes) - 1, len(td_target), np.float32(0)
    for column in range(batch_size):
        error = acts[depth, 0, column] - td_target[column]
        total += error * error
        act_grads[depth, 0, column] = error * np.float32(2 / batch_size)
    backward(net, params, acts, preacts, act_grads, grad, need_grad=True, need_input_grad=False)
    return total / np.float32(batch_size)


@compiled
def copy_obs(critics, critic_work, obs):
    """Copy the observations of the minibatch, which `update_critics` left, to ``obs [O, columns]``."""
    for i in range(critics.obs_size):
        for column in range(len(critic_work.td_target)):
            obs[i, column] = critic_work.acts1[0, i, column]


@compiled
def q1_gradient(critics, critic_work, m):
    """Write the gradient of the first critic's mean value of the pairs in ``critic_work.acts1[0]`` with respect to
    these to ``critic_work.act_grads1[0]`` (`TwinCritics.first`)."""
    depth, params = len(critics.critic1.sizes) - 1, critics.learner.flat_parameters[m]
    acts, preacts, act_grads = critic_work.acts1, critic_work.preacts1, critic_work.act_grads1
    batch_size = len(critic_work.td_target)
    forward(critics.critic1, params, acts, preacts)
    for column in range(batch_size):
        act_grads[depth, 0, column] = np.float32(1 / batch_size)
    # False, True: compute the gradient of the inputs, but not of the parameters, so ``grad`` is not written.
    backward(critics.critic1, params, acts, preacts, act_grads, critic_work.grad, False, True)


@compiled
def min_q_gradient(critics, critic_work, m):
    """Write the gradient of the mean of the smaller of both critics' values with respect to the pairs in ``acts1[0]``
    and, equally, ``acts2[0]``: the sum of ``act_grads1[0]`` and ``act_grads2[0]`` (`Agent.actor_loss`)."""
    depth, params = len(critics.critic1.sizes) - 1, critics.learner.flat_parameters[m]
    batch_size = len(critic_work.td_target)
    acts1, preacts1, act_grads1 = critic_work.acts1, critic_work.preacts1, critic_work.act_grads1
    acts2, preacts2, act_grads2 = critic_work.acts2, critic_work.preacts2, critic_work.act_grads2
    forward(critics.critic1, params, acts1, preacts1)
    forward(critics.critic2, params, acts2, preacts2)
    share = np.float32(1 / batch_size)
    for column in range(batch_size):
        is_first = acts1[depth, 0, column] <= acts2[depth, 0, column]
        act_grads1[depth, 0, column] = share if is_first else np.float32(0)
        act_grads2[depth, 0, column] = np.float32(0) if is_first else share
    # False, True: compute the gradient of the inputs, but not of the parameters, so ``grad`` is not written.
    backward(critics.critic1, params, acts1, preacts1, act_grads1, critic_work.grad, False, True)
    backward(critics.critic2, params, acts2, preacts2, act_grads2, critic_work.grad, False, True)
