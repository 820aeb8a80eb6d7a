"""Actor, twin critics and replay buffer in machine code: the part that TD3, discrete TD3 and SAC share
(`TwinCriticAgent`).

In compiled functions, ``agent`` is `Members` of one of these kinds, ``ac`` its `ActorCritic`, ``work`` is `Work`, ``m``
a member, ``t`` a step of the block, ``e`` an environment, ``update`` the index of an update after step ``t``. Importing
this requires Numba.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from models import compiled as nets
from models.machine import compiled
from models.off_policy import ActorPolicy, TwinCriticAgent
from models.tiles import copy

Array = np.ndarray[Any, Any]
ONE = np.float32(1)


class ActorCritic(NamedTuple):
    """Actor, twin critics and replay buffer of M members before a block of T steps in E environments. Arrays share the
    memory of the agent's tensors. U is the number of updates per step, B the batch size, A the length of an action
    vector."""

    actor: nets.Net
    actor_learner: nets.Learner  # the actor's weights, then those that a kind of agent adds
    critic1: nets.Net  # the parameters of both critics are in one array
    critic2: nets.Net
    learner: nets.Learner  # of both critics
    replay: nets.Replay  # a row: obs, action vector, next_obs, reward, discount
    random: Array  # [M, T, E, A], uniform numbers for random actions
    explore: Array  # [M, T, E, A], normal noise on actions
    next: Array  # [M, T, U, A, B], normal noise on actions in the next states
    action_vector: Array  # [M, E, A], action vectors of the current step, for the replay buffer
    bounds: nets.Bounds
    obs_size: int
    action_size: int  # A
    discount: np.float32
    tau: np.float32
    twins: bool  # whether the second critic is used


class Work(NamedTuple):
    """Scratch memory for one member."""

    scratch: Array  # [2, widest], for `single`
    continuous_action: Array  # [A], the action in the environment's units; empty if actions are discrete
    actor: nets.Layers
    critic1: nets.Layers
    critic2: nets.Layers
    actor_grad: Array  # [D]
    grad: Array  # [2 D], of both critics
    td_target: Array  # [B]
    minibatch: Array  # [B], row numbers in the table
    std: Array  # [A, B], standard deviations of sampled actions
    log_prob: Array  # [B], log-probabilities of sampled actions
    probs: Array  # [A, B], samples of the Gumbel-softmax
    action_probs: Array  # [A, 1], the sample of an action


def make_members(
    record: Any, agent: TwinCriticAgent, random_numbers: dict[str, torch.Tensor], steps: int, loss: torch.Tensor
) -> Any:
    """Return a named tuple of the class ``record`` (`Members` of a kind of agent) for compiled code that makes the next
    T = ``steps`` steps. ``random_numbers`` for these steps are ``{name: [M, T, ...]}``. Compiled code writes into
    ``loss [M]``. Reserves rows for the steps in the replay buffer."""
    critics, critic = agent.critics, agent.critics.network
    target_parameters: Any = getattr(agent, "target_parameters", agent.flat_parameters)  # SAC has no target actor
    actor_critic = nets.make_record(
        ActorCritic,
        agent,
        random_numbers,
        actor=nets.make_net(agent.network),
        actor_learner=nets.make_learner(agent.flat_parameters, target_parameters, agent.optimizer),
        critic1=nets.make_net(critic),
        critic2=nets.make_net(critic, begin=critic.size),
        learner=nets.make_learner(critics.flat_parameters, critics.target_parameters, critics.optimizer),
        replay=nets.make_replay(agent, random_numbers["replay"], steps),
        action_vector=np.empty((agent.members, agent.envs, agent.action_size), np.float32),
        bounds=nets.make_bounds(agent.spaces.actions),
        twins=critics.twins,
    )
    return nets.make_record(record, agent, random_numbers, ac=actor_critic, loss=loss.numpy())


def make_work(agent: Any) -> Work:
    """Allocate scratch memory for one thread, which trains one member after another. ``agent`` is `Members`."""
    ac: ActorCritic = agent.ac
    batch_size, action_size = ac.replay.uniform.shape[3], ac.action_size
    return Work(
        scratch=np.empty((2, ac.actor.widest), np.float32),
        continuous_action=np.empty(len(ac.bounds.low), np.float32),
        actor=nets.make_layers(ac.actor, batch_size),
        critic1=nets.make_layers(ac.critic1, batch_size),
        critic2=nets.make_layers(ac.critic2, batch_size),
        actor_grad=np.zeros(ac.actor_learner.flat_parameters.shape[1], np.float32),
        grad=np.zeros(ac.learner.flat_parameters.shape[1], np.float32),
        td_target=np.empty(batch_size, np.float32),
        minibatch=np.empty(batch_size, np.int64),
        std=np.empty((action_size, batch_size), np.float32),
        log_prob=np.empty(batch_size, np.float32),
        probs=np.empty((action_size, batch_size), np.float32),
        action_probs=np.empty((action_size, 1), np.float32),
    )


def make_choose(exploring_action):  # type: ignore[no-untyped-def]
    """Return `choose` for continuous actions. ``exploring_action(agent, outputs, m, t, e, i)`` returns coordinate ``i``
    of an exploring action in [-1, 1] for ``outputs`` of the actor."""

    def choose(agent, work, m, t, e, obs, state):
        """Choose the exploring action for ``obs [O]`` (`TwinCriticAgent.act`). It is random until the member learns.
        Write it to ``work.continuous_action [A]`` in the environment's units, and to ``ac.action_vector[m, e]`` in
        [-1, 1]. Return 0 in place of a discrete action."""
        ac = agent.ac
        learning = nets.is_learning(ac.replay, agent.episodes[m], nets.count_rows(ac.replay, t))
        row = nets.outputs_row(ac.actor, ac.actor_learner.flat_parameters[m], obs, work.scratch) if learning else 0
        for i in range(ac.action_size):
            if learning:
                scaled = exploring_action(agent, work.scratch[row], m, t, e, i)
            else:
                scaled = np.float32(2) * ac.random[m, t, e, i] - ONE
            ac.action_vector[m, e, i] = nets.nan_to_zero(scaled)
            work.continuous_action[i] = nets.scale_action(ac.bounds, ac.action_vector[m, e, i], i)
        return 0

    return choose


def make_player(policy: ActorPolicy) -> nets.Player | None:
    """Return the greedy ``policy`` for compiled code, or None if it samples its actions."""
    if policy.streams is not None:
        return None
    agent = policy.agent
    return nets.make_actor_player(agent.network, policy.flat_parameters, agent.spaces.actions, squashes=True)


def remember(agent, work, m, t, e, obs, action, next_obs, state, reward, discount, done):
    """Write the step into the replay buffer (`TwinCriticAgent.observe`). The row consists of ``obs``, the action vector
    in ``ac.action_vector[m, e]``, ``next_obs``, ``reward`` and ``discount``. Other arguments are not used."""
    ac, table, row = agent.ac, agent.ac.replay.table, nets.new_row(agent.ac.replay, t, e)
    obs_size, next_obs_at = ac.obs_size, ac.obs_size + ac.action_size
    for i in range(obs_size):
        table[row, m, i] = obs[i]
        table[row, m, next_obs_at + i] = next_obs[i]
    for i in range(ac.action_size):
        table[row, m, obs_size + i] = ac.action_vector[m, e, i]
    table[row, m, next_obs_at + obs_size] = reward
    table[row, m, next_obs_at + obs_size + 1] = discount


def make_improve(write_next_values, update_actor):  # type: ignore[no-untyped-def]
    """Return `improve`, the updates of an agent by two functions of its kind with the arguments ``(agent, work, m, t,
    update)``. The first one writes the values of the next states to ``work.td_target``. The second one updates the
    actor and all target weights after an update of the critics."""

    def improve(agent, work, m, t):
        """Make the updates of member ``m`` after step ``t``, if it has enough experience (`TwinCriticAgent.learn`).
        Update critics and Adam's state in ``ac.learner``, and the actor in ``ac.actor_learner``. Write the critics'
        loss to ``agent.loss[m]``."""
        ac, num_rows = agent.ac, nets.count_rows(agent.ac.replay, t + 1)
        if not nets.is_learning(ac.replay, agent.episodes[m], num_rows):
            return
        for update in range(ac.replay.uniform.shape[2]):  # U updates per step
            sample_next_obs(ac, work, m, t, update, num_rows)
            write_next_values(agent, work, m, t, update)
            agent.loss[m] = update_critics(ac, work, m)
            update_actor(agent, work, m, t, update)

    return improve


@compiled
def sample_next_obs(ac, work, m, t, update, num_rows):
    """Choose the minibatch of member ``m`` for update number ``update`` after step ``t`` of the block. Write B row
    numbers of the replay buffer, each below ``num_rows``, to ``work.minibatch [B]`` (`ReplayBuffer.sample`). Write the
    next observations in these rows to the actor's inputs."""
    for column in range(len(work.minibatch)):
        work.minibatch[column] = nets.sample_row(ac.replay.uniform[m, t, update, column], num_rows)
    next_obs_at = ac.obs_size + ac.action_size  # a row: obs, action vector, next_obs, reward, discount
    for column in range(len(work.minibatch)):
        row = work.minibatch[column]
        for i in range(ac.obs_size):
            work.actor.acts[0, i, column] = ac.replay.table[row, m, next_obs_at + i]


@compiled
def write_next_values(ac, work, m):
    """Write the values of the next states of member ``m`` to ``work.td_target [B]``: the smaller value of both target
    critics, or the value of the first one without twins (`TwinCritics.target_values`). The next observations are read
    from the actor's inputs. The next actions must already be in both critics' inputs, after the rows for
    observations."""
    batch_size, depth = len(work.td_target), len(ac.critic1.sizes) - 1
    copy(work.actor.acts[0], 0, work.critic1.acts[0], 0, ac.obs_size)
    copy(work.actor.acts[0], 0, work.critic2.acts[0], 0, ac.obs_size)
    target_params = ac.learner.target_parameters[m]
    nets.forward(ac.critic1, target_params, work.critic1)
    if ac.twins:
        nets.forward(ac.critic2, target_params, work.critic2)
    for column in range(batch_size):
        value1, value2 = work.critic1.acts[depth, 0, column], work.critic2.acts[depth, 0, column]
        is_second = ac.twins and (value2 < value1 or value2 != value2)  # NaN counts as smallest
        work.td_target[column] = value2 if is_second else value1


@compiled
def update_critics(ac, work, m):
    """Make a step of both critics of member ``m`` towards the TD targets (`TwinCriticAgent.critic_loss`), with Adam's
    state and weights in ``ac.learner``. Return the sum of the critics' mean squared errors before the step.
    ``work.td_target [B]`` must hold the values of the next states, and is replaced by the targets ``reward + discount *
    value``. The discount is the agent's, and 0 after a termination. The observations of the minibatch remain in both
    critics' inputs."""
    next_obs_at = ac.obs_size + ac.action_size  # a row: obs, action vector, next_obs, reward, discount
    reward_at, td_target, table = next_obs_at + ac.obs_size, work.td_target, ac.replay.table
    for column in range(len(td_target)):
        # Read the next value before the table. In another order, the compiler rounds the target differently.
        row, next_value = work.minibatch[column], td_target[column]
        reward, continues = table[row, m, reward_at], table[row, m, reward_at + 1]  # continues: 0 after a termination
        td_target[column] = reward + ac.discount * continues * next_value
        for i in range(next_obs_at):  # obs and action
            work.critic1.acts[0, i, column] = table[row, m, i]
            work.critic2.acts[0, i, column] = table[row, m, i]
    params, grad = ac.learner.flat_parameters[m], work.grad
    loss = _critic_gradient(ac.critic1, params, work.critic1, grad, td_target)
    if ac.twins:
        loss += _critic_gradient(ac.critic2, params, work.critic2, grad, td_target)
    nets.adam(ac.learner, m, grad)
    return loss


@compiled
def _critic_gradient(net, params, layers, grad, td_target):
    """Return a critic's mean squared error to ``td_target [B]``, and write its gradient to the critic's positions of
    ``grad [2 D]`` (`TwinCriticAgent.critic_loss`). The inputs in ``layers`` are pairs of observation and action."""
    nets.forward(net, params, layers)
    depth, batch_size, total = len(net.sizes) - 1, len(td_target), np.float32(0)
    for column in range(batch_size):
        error = layers.acts[depth, 0, column] - td_target[column]
        total += error * error
        layers.grads[depth, 0, column] = error * np.float32(2 / batch_size)
    nets.backward(net, params, layers, grad, need_grad=True, need_input_grad=False)
    return total / np.float32(batch_size)


@compiled
def run_actor(ac, work, m):
    """Run the actor of member ``m`` on the observations of the minibatch, which `update_critics` has written to the
    inputs of the first critic. The actor's outputs are then the last layer of ``work.actor.acts``."""
    copy(work.critic1.acts[0], 0, work.actor.acts[0], 0, ac.obs_size)
    nets.forward(ac.actor, ac.actor_learner.flat_parameters[m], work.actor)


@compiled
def actor_backward(ac, work, m):
    """Backpropagate d loss / d outputs, which the caller has written to the last layer of ``work.actor.grads``, through
    the actor of member ``m``. Write the gradient of its weights to ``work.actor_grad [D]``."""
    params = ac.actor_learner.flat_parameters[m]
    nets.backward(ac.actor, params, work.actor, work.actor_grad, need_grad=True, need_input_grad=False)


@compiled
def q1_gradient(ac, work, m):
    """Compute the gradient of the mean, over the batch, of the first critic's values of member ``m``
    (`TwinCritics.first_values`). Write it to ``work.critic1.grads[0]``. It is the gradient with respect to the critic's
    inputs, pairs of observation and action, which must be in ``work.critic1.acts[0]``."""
    depth, params = len(ac.critic1.sizes) - 1, ac.learner.flat_parameters[m]
    batch_size = len(work.td_target)
    nets.forward(ac.critic1, params, work.critic1)
    for column in range(batch_size):
        work.critic1.grads[depth, 0, column] = np.float32(1 / batch_size)
    nets.backward(ac.critic1, params, work.critic1, work.grad, need_grad=False, need_input_grad=True)
