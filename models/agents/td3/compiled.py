"""TD3 in machine code, one member after another: ``act``, ``observe`` and ``learn`` of `Agent`, and greedy play.

`control.loops.compiled` compiles `choose`, `remember`, `improve` and `decide` into its loops. In compiled functions,
``agent`` is `Members`, ``work`` is `Work`, ``m`` a member, ``t`` a step of the block, ``e`` an environment. Importing
this requires Numba.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from models.agents.td3.agent import Agent
from models.compiled import (
    Learner,
    Net,
    adam,
    backward,
    follow,
    forward,
    make_layers,
    make_learner,
    make_net,
    row_of,
    single,
)
from models.machine import FAST, compiled
from models.off_policy import ActorPolicy
from models.spaces import Continuous

Array = np.ndarray[Any, Any]
NUMBERS = ("random", "explore", "replay", "next")  # names in `Agent.noise`
IMPROVES = FAST  # how `improve` is compiled
_ONE = np.float32(1)


class Members(NamedTuple):
    """M members before a block of T steps in E environments. Arrays share the memory of the agent's tensors."""

    actor: Net
    critic1: Net  # the parameters of both critics are in one array
    critic2: Net
    actor_learner: Learner
    critic_learner: Learner
    episodes: Array  # [M], finished
    loss: Array  # [M]
    table: Array  # [rows, M, 2 O + A + 2], the replay buffer: obs, action vector, next_obs, reward, discount
    position: int  # next row to write
    replay_size: int
    capacity: int
    random_uniform: Array  # [M, T, E, A], uniform numbers for random actions
    action_noise: Array  # [M, T, E, A], normal noise on actions
    replay_uniform: Array  # [M, T, U, B], uniform numbers that choose the minibatches of U updates per step
    target_noise: Array  # [M, T, U, A, B], normal noise on target actions
    scaled_action: Array  # [M, E, A], actions of the current step in [-1, 1], for the replay buffer
    obs_size: int
    action_size: int  # A
    centre: Array  # [A], middle of each action's range
    half_range: Array  # [A], half of its size
    low: Array  # [A]
    high: Array  # [A]
    discount: np.float32
    tau: np.float32
    action_std: np.float32
    policy_std: np.float32
    policy_std_clip: np.float32
    policy_delay: int
    twin: bool  # whether the second critic is used
    init_episodes: int  # finished episodes before the first update
    fill: int  # rows in the replay buffer before the first update


class Work(NamedTuple):
    """Scratch memory for one member. ``columns`` is B rounded up to whole vectors (`make_layers`)."""

    scratch: Array  # [2, widest], for `single`
    continuous_action: Array  # [A], the action in the environment's units
    # Memory of `forward` and `backward` for each network, [L + 1, widest, columns].
    actor_acts: Array
    actor_preacts: Array
    actor_act_grads: Array
    critic1_acts: Array
    critic1_preacts: Array
    critic1_act_grads: Array
    critic2_acts: Array
    critic2_preacts: Array
    critic2_act_grads: Array
    td_target: Array  # [B]
    minibatch: Array  # [B], row numbers in the table
    actor_grad: Array  # [D]
    critic_grad: Array  # [2 D], of both critics


def make_members(agent: Agent, random_numbers: dict[str, torch.Tensor], steps: int, loss: torch.Tensor) -> Members:
    """Return the state before T = ``steps`` steps with ``random_numbers``, ``[M, T, ...]`` each. Compiled code writes
    into ``loss [M]``. Reserves rows in the replay buffer."""
    config, buffer, critics, critic = agent.config, agent.replay_buffer, agent.critics, agent.critics.network
    (table,) = buffer.reserve(steps * agent.envs)  # a single table, because all columns are float32
    # Groups of values, in the order of the fields of `Members`.
    nets = make_net(agent.network), make_net(critic), make_net(critic, begin=critic.size)
    learners = (
        make_learner(agent.flat_parameters, agent.target_parameters, agent.optimizer),
        make_learner(critics.flat_parameters, critics.target_parameters, critics.optimizer),
    )
    arrays = agent.episodes.numpy(), loss.numpy(), table.numpy()
    counts = buffer.position, buffer.size, buffer.capacity
    numbers = [random_numbers[name].numpy() for name in NUMBERS]
    scaled_action = np.empty((agent.members, agent.envs, agent.action_size), np.float32)
    bounds = [value.numpy() for value in (agent.centre, agent.half_range, agent.low, agent.high)]
    sizes = agent.obs_size, agent.action_size
    floats = (config.discount, config.tau, config.action_std, config.policy_std, config.policy_std_clip)
    float32s = map(np.float32, floats)
    fill = max(1, config.fill)  # a minibatch needs at least one row
    settings = config.policy_delay, critics.twins, config.init_episodes, fill
    return Members._make(
        (*nets, *learners, *arrays, *counts, *numbers, scaled_action, *sizes, *bounds, *float32s, *settings)
    )


def make_work(agent: Members) -> Work:
    """Allocate scratch memory for one thread."""
    batch_size, action_size = agent.replay_uniform.shape[3], agent.action_size
    scratch = np.empty((2, agent.actor.widest), np.float32)
    continuous_action = np.empty(action_size, np.float32)
    # Three for each network: acts, preacts, act_grads.
    layers = [make_layers(net, batch_size) for net in (agent.actor, agent.critic1, agent.critic2) for _ in range(3)]
    td_target, minibatch = np.empty(batch_size, np.float32), np.empty(batch_size, np.int64)
    actor_grad = np.zeros(agent.actor_learner.flat_parameters.shape[1], np.float32)
    critic_grad = np.zeros(agent.critic_learner.flat_parameters.shape[1], np.float32)
    return Work._make((scratch, continuous_action, *layers, td_target, minibatch, actor_grad, critic_grad))


class Player(NamedTuple):
    """Greedy policy of M members, for `decide`."""

    actor: Net
    flat_parameters: Array  # [M, D]
    centre: Array  # [A], like the next three; see `Members`
    half_range: Array
    low: Array
    high: Array
    widest: int  # width of the scratch memory of `decide`
    action_size: int  # A


def make_player(policy: ActorPolicy) -> Player | None:
    """Return the policy for compiled code, or None if it samples actions or the agent is of another class. Its weights
    share the policy's memory."""
    agent = policy.agent
    if policy.streams is not None or type(agent) is not Agent or not isinstance(agent.spaces.actions, Continuous):
        return None
    actor, bounds = make_net(agent.network), (agent.centre, agent.half_range, agent.low, agent.high)
    arrays = [tensor.numpy() for tensor in (policy.flat_parameters.detach(), *bounds)]
    return Player._make((actor, *arrays, actor.widest, agent.action_size))


@compiled
def _nan_to_zero(x):
    """Return the number x, or 0 if it is NaN, the only value that differs from itself."""
    return x if x == x else np.float32(0)


@compiled
def _environment_action(bounds, scaled, i):
    """Return coordinate ``i`` of the environment's action for the number ``scaled`` in [-1, 1]
    (`TwinCriticAgent.clip`). ``bounds`` is `Members` or `Player`."""
    return min(max(bounds.centre[i] + scaled * bounds.half_range[i], bounds.low[i]), bounds.high[i])


@compiled
def _clamp(x, limit):
    """Return x, clipped to [-``limit``, ``limit``]. NaN is returned unchanged."""
    return -limit if x < -limit else limit if x > limit else x


@compiled
def _actor_outputs(agent, params, obs, scratch):
    """Run the actor with a member's parameters ``params [D]`` on ``obs [O]``. Return the index of the row of ``scratch
    [2, widest]`` that contains its outputs. ``agent`` is `Members` or `Player`."""
    for i in range(len(obs)):
        scratch[0, i] = obs[i]
    return single(agent.actor, params, scratch, 0)


@compiled
def _is_learning(agent, m, replay_size):
    """Return whether member ``m`` may learn, with ``replay_size`` rows in the replay buffer
    (`OffPolicyAgent.learning`)."""
    return agent.episodes[m] >= agent.init_episodes and replay_size >= agent.fill


def choose(agent, work, m, t, e, obs, state):
    """Choose the exploring action of member ``m`` at step ``t`` in environment ``e``, for ``obs [O]``
    (`TwinCriticAgent.act`). It is random until the member learns. Write it to ``work.continuous_action [A]`` in the
    environment's units, and to ``agent.scaled_action[m, e]`` in [-1, 1]. Return 0: there is no discrete action."""
    envs = agent.action_noise.shape[2]
    is_learning = _is_learning(agent, m, min(agent.replay_size + t * envs, agent.capacity))
    params = agent.actor_learner.flat_parameters[m]
    row = _actor_outputs(agent, params, obs, work.scratch) if is_learning else 0
    for i in range(agent.action_size):
        if is_learning:
            noise = agent.action_noise[m, t, e, i] * agent.action_std
            scaled = _clamp(np.tanh(work.scratch[row, i]) + noise, _ONE)
        else:
            scaled = np.float32(2) * agent.random_uniform[m, t, e, i] - _ONE
        agent.scaled_action[m, e, i] = _nan_to_zero(scaled)
        work.continuous_action[i] = _environment_action(agent, agent.scaled_action[m, e, i], i)
    return 0


def remember(agent, work, m, t, e, obs, action, next_obs, state, reward, discount, done):
    """Write step ``t`` of member ``m`` in environment ``e`` into the replay buffer (`TwinCriticAgent.observe`). Its row
    is ``obs``, the action in ``agent.scaled_action[m, e]``, ``next_obs, reward, discount``."""
    row = (agent.position + t * agent.action_noise.shape[2] + e) % agent.capacity
    obs_size, next_obs_at = agent.obs_size, agent.obs_size + agent.action_size
    for i in range(obs_size):
        agent.table[row, m, i] = obs[i]
        agent.table[row, m, next_obs_at + i] = next_obs[i]
    for i in range(agent.action_size):
        agent.table[row, m, obs_size + i] = agent.scaled_action[m, e, i]
    agent.table[row, m, next_obs_at + obs_size] = reward
    agent.table[row, m, next_obs_at + obs_size + 1] = discount


@compiled
def _write_td_targets(agent, work, m, t, update):
    """Write the TD targets of the rows ``work.minibatch [B]`` to ``work.td_target [B]``, for member ``m``
    (`TwinCriticAgent.update`, `Agent.next_q`). ``update`` is the index of the update after step ``t``. Also write their
    observations and actions to the inputs of both critics, ``work.critic1_acts[0]`` and ``work.critic2_acts[0]``.
    Overwrites the other activations in ``work``."""
    obs_size, batch_size, depth = agent.obs_size, len(work.td_target), len(agent.critic1.sizes) - 1
    next_obs_at = obs_size + agent.action_size  # a row: obs, action vector, next_obs, reward, discount
    reward_at = next_obs_at + obs_size
    for column in range(batch_size):
        row = work.minibatch[column]
        for i in range(obs_size):
            work.actor_acts[0, i, column] = agent.table[row, m, next_obs_at + i]
    forward(agent.actor, agent.actor_learner.target_parameters[m], work.actor_acts, work.actor_preacts)
    outputs = work.actor_acts[len(agent.actor.sizes) - 1]
    for i in range(obs_size):
        for column in range(batch_size):
            work.critic1_acts[0, i, column] = work.actor_acts[0, i, column]
            work.critic2_acts[0, i, column] = work.actor_acts[0, i, column]
    for i in range(agent.action_size):
        for column in range(batch_size):
            noise = _clamp(agent.target_noise[m, t, update, i, column] * agent.policy_std, agent.policy_std_clip)
            target_action = _clamp(np.tanh(outputs[i, column]) + noise, _ONE)
            work.critic1_acts[0, obs_size + i, column] = target_action
            work.critic2_acts[0, obs_size + i, column] = target_action
    target_params = agent.critic_learner.target_parameters[m]
    forward(agent.critic1, target_params, work.critic1_acts, work.critic1_preacts)
    if agent.twin:
        forward(agent.critic2, target_params, work.critic2_acts, work.critic2_preacts)
    for column in range(batch_size):
        row = work.minibatch[column]
        value1, value2 = work.critic1_acts[depth, 0, column], work.critic2_acts[depth, 0, column]
        next_q = value2 if agent.twin and (value2 < value1 or value2 != value2) else value1  # NaN counts as smallest
        reward, discount = agent.table[row, m, reward_at], agent.table[row, m, reward_at + 1]
        work.td_target[column] = reward + agent.discount * discount * next_q
        for i in range(next_obs_at):  # obs and action
            work.critic1_acts[0, i, column] = agent.table[row, m, i]
            work.critic2_acts[0, i, column] = agent.table[row, m, i]


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
def _write_actor_gradient(agent, work, m):
    """Write the gradient of the actor's loss of member ``m`` to ``work.actor_grad [D]`` (`Agent.actor_loss`). The
    loss is the negative mean of the first critic's values of the actor's actions. The observations are in
    ``work.critic1_acts[0]``, and the actor's actions overwrite the actions there."""
    obs_size, batch_size = agent.obs_size, len(work.td_target)
    actor_depth, critic_depth = len(agent.actor.sizes) - 1, len(agent.critic1.sizes) - 1
    actor_params, critic_params = agent.actor_learner.flat_parameters[m], agent.critic_learner.flat_parameters[m]
    acts, preacts, act_grads = work.actor_acts, work.actor_preacts, work.actor_act_grads
    critic_acts, critic_preacts, critic_act_grads = work.critic1_acts, work.critic1_preacts, work.critic1_act_grads
    for i in range(obs_size):
        for column in range(batch_size):
            acts[0, i, column] = critic_acts[0, i, column]
    forward(agent.actor, actor_params, acts, preacts)
    for i in range(agent.action_size):
        for column in range(batch_size):
            critic_acts[0, obs_size + i, column] = np.tanh(acts[actor_depth, i, column])
    forward(agent.critic1, critic_params, critic_acts, critic_preacts)
    for column in range(batch_size):
        critic_act_grads[critic_depth, 0, column] = np.float32(1 / batch_size)
    # False, True: compute the gradient of the inputs, but not of the parameters, so ``critic_grad`` is not written.
    backward(agent.critic1, critic_params, critic_acts, critic_preacts, critic_act_grads, work.critic_grad, False, True)
    for i in range(agent.action_size):
        for column in range(batch_size):
            action = critic_acts[0, obs_size + i, column]
            act_grads[actor_depth, i, column] = -critic_act_grads[0, obs_size + i, column] * (_ONE - action * action)
    backward(
        agent.actor, actor_params, acts, preacts, act_grads, work.actor_grad, True, False
    )  # of the parameters only


def improve(agent, work, m, t):
    """Make the updates of member ``m`` after step ``t``, if it may learn yet (`TwinCriticAgent.learn`). Write the
    critics' weights and Adam's state in ``agent.critic_learner`` and, after every ``policy_delay`` updates, the actor's
    in ``agent.actor_learner`` and both target networks. Write the critics' loss to ``agent.loss[m]``."""
    replay_size = min(agent.replay_size + (t + 1) * agent.action_noise.shape[2], agent.capacity)
    if not _is_learning(agent, m, replay_size):
        return
    for update in range(agent.replay_uniform.shape[2]):
        uniforms = agent.replay_uniform[m, t, update]
        for column in range(len(work.minibatch)):  # index -1 is the last number
            work.minibatch[column] = row_of(uniforms[column], uniforms[column - 1], replay_size)
        _write_td_targets(agent, work, m, t, update)
        params, grad, td_target = agent.critic_learner.flat_parameters[m], work.critic_grad, work.td_target
        acts, preacts, act_grads = work.critic1_acts, work.critic1_preacts, work.critic1_act_grads
        loss = _critic_gradient(agent.critic1, params, acts, preacts, act_grads, grad, td_target)
        if agent.twin:
            acts, preacts, act_grads = work.critic2_acts, work.critic2_preacts, work.critic2_act_grads
            loss += _critic_gradient(agent.critic2, params, acts, preacts, act_grads, grad, td_target)
        agent.loss[m] = loss
        adam(agent.critic_learner, m, work.critic_grad)
        if agent.critic_learner.counts[m] % agent.policy_delay == 0:
            _write_actor_gradient(agent, work, m)
            adam(agent.actor_learner, m, work.actor_grad)
            follow(agent.actor_learner, m, agent.tau)
            follow(agent.critic_learner, m, agent.tau)


def decide(player, m, obs, state, scratch, continuous_action):
    """Write the greedy action of member ``m`` of a `Player` for ``obs [O]`` to ``continuous_action [A]``, in the
    environment's units (`ActorPolicy.act`). Return 0. Overwrites ``scratch [2, widest]``."""
    row = _actor_outputs(player, player.flat_parameters[m], obs, scratch)
    for i in range(player.action_size):
        continuous_action[i] = _environment_action(player, _nan_to_zero(np.tanh(scratch[row, i])), i)
    return 0
