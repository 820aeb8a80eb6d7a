"""DDQN in machine code, one member after another: ``act``, ``observe`` and ``learn`` of `Agent`, and greedy play.

`control.loops.compiled` compiles `choose`, `remember`, `improve` and `decide` into its loops. Its docstring describes
the arguments of all functions here. ``params [D]`` are the weights of a member. Minibatches are matrices ``[rows,
columns]`` with a transition in each column.
"""

from collections import namedtuple
from typing import NamedTuple

import numpy as np
import torch

from models import compiled as nets
from models.agents.ddqn.agent import Agent, DuelingQNetwork
from models.compiled import Learner, Net, Replay
from models.contract import AgentPolicy
from models.machine import Array, compiled, exact_inlined
from models.mlp import MLP
from models.tiles import ZERO, copy, total
from models.vectors import LANES, load, store, where_less, zeros


class QNetwork(NamedTuple):
    """Q-networks of M members. Also their greedy policy, for `decide`."""

    flat_parameters: Array  # [M, D]
    num_actions: int
    widest: int  # the largest width of a layer
    trunk: Net  # the network; if dueling, the part that computes features
    dueling: bool = False
    over_batch: bool = False  # dueling: subtract the mean advantage of the minibatch, not of each observation
    value: Net = nets.NO_NET  # a placeholder if not dueling, as ``advantage``
    advantage: Net = nets.NO_NET
    action_size: int = 0  # length of a continuous action


class Members(NamedTuple):
    """M members before a block of T steps in E environments. Arrays share the memory of the agent's tensors."""

    network: QNetwork
    q_learner: Learner
    episodes: Array  # [M], number of finished episodes
    loss: Array  # [M], loss of the latest update
    replay: Replay  # a row: obs, action, next_obs, reward, discount
    explore: Array  # [M, T, E], uniform numbers, compared with epsilon
    action: Array  # [M, T, E], random actions
    epsilon_by_episode: Array  # epsilon by number of finished episodes; empty if ``epsilon_by_step`` is not
    epsilon_by_step: Array  # epsilon at each step of the block; empty if the schedule counts episodes
    obs_size: int
    discount: np.float32
    tau: np.float32


Work = namedtuple("Work", "scratch continuous_action trunk value advantage q online_q td_target sample grad")


def make_members(agent: Agent, random_numbers: dict[str, torch.Tensor], steps: int, loss: torch.Tensor) -> Members:
    """Return `Members` for a block of T = ``steps`` steps with ``random_numbers``, ``[M, T, ...]`` each. Compiled code
    writes into ``loss [M]``. Reserves rows in the replay buffer."""
    return nets.make_record(  # type: ignore[no-any-return]
        Members,
        agent,
        random_numbers,
        network=_make_network(agent.network, agent.flat_parameters),
        q_learner=nets.make_learner(agent.flat_parameters, agent.target_parameters, agent.optimizer),
        loss=loss.numpy(),
        replay=nets.make_replay(agent, random_numbers["replay"], steps),
        **agent.upcoming_epsilon(steps),
    )


def _make_network(network: MLP | DuelingQNetwork, flat_parameters: torch.Tensor) -> QNetwork:
    """Convert ``network`` for compiled code. The result shares the memory of the weights ``flat_parameters [M, D]``."""
    weights = nets.as_argument(flat_parameters)
    if not isinstance(network, DuelingQNetwork):
        net = nets.make_net(network)
        return QNetwork(weights, int(net.sizes[-1]), net.widest, trunk=net)
    # A row of ``flat_parameters`` holds the parameters of the features, the value and the advantage, in this order.
    value_begin = network.features.size
    trunk, value = nets.make_net(network.features), nets.make_net(network.value, begin=value_begin)
    advantage = nets.make_net(network.advantage, begin=value_begin + network.value.size)
    return QNetwork(
        weights,
        num_actions=int(advantage.sizes[-1]),
        widest=max(trunk.widest, value.widest, advantage.widest),
        trunk=trunk,
        dueling=True,
        over_batch=network.over_batch,
        value=value,
        advantage=advantage,
    )


Player = QNetwork


def make_player(policy: AgentPolicy) -> Player:
    """Return the greedy ``policy`` for compiled code."""
    return _make_network(policy.agent.network, policy.flat_parameters)


def make_work(agent: Members) -> Work:
    """Allocate scratch memory for one member. Column b of an array of a minibatch belongs to sample b. Columns of zeros
    fill the last vector of the processor."""
    network = agent.network
    batch_size = agent.replay.uniform.shape[3]
    layers = [nets.make_layers(net, batch_size) for net in (network.trunk, network.value, network.advantage)]
    num_columns = layers[0].acts.shape[2]
    # Rows: obs, action, next_obs, reward, discount, and the weight of each column in the loss: 1 / B, 0 in padding.
    sample = np.zeros((2 * agent.obs_size + 4, num_columns), np.float32)
    sample[-1, :batch_size] = 1 / batch_size
    return Work(
        scratch=np.empty((4, network.widest), np.float32),  # memory of `forward_one`
        continuous_action=np.empty(0, np.float32),  # actions are discrete
        trunk=layers[0],
        value=layers[1],
        advantage=layers[2],
        q=np.zeros((network.num_actions, num_columns), np.float32),  # action values, later d loss / d q
        online_q=np.zeros((network.num_actions, num_columns), np.float32),  # online values of next_obs
        td_target=np.zeros((1, num_columns), np.float32),
        sample=sample,
        grad=np.zeros(agent.q_learner.flat_parameters.shape[1], np.float32),
    )


@exact_inlined
def _greedy_action(network, m, obs, scratch):
    """Return the greedy action of member ``m`` for ``obs [O]`` (`Agent.policy_actions`). ``network`` (`QNetwork`) runs
    in the rows of ``scratch [4, widest]``: the network of the state value in rows 2 and 3, all else in rows 0 and 1."""
    params = network.flat_parameters[m]
    # ``scratch[row]`` contains the outputs of the trunk: action values or, if dueling, features.
    row = nets.outputs_row(network.trunk, params, obs, scratch)
    if network.dueling:  # replace ``scratch[row]`` by the action values, value + advantage - mean advantage
        for i in range(network.value.sizes[0]):
            scratch[2, i] = scratch[row, i]
        value_row = nets.forward_one(network.value, params, scratch, 2)
        value = scratch[value_row, 0]
        row = nets.forward_one(network.advantage, params, scratch, row)
        mean = np.float32(0)
        for action in range(network.num_actions):
            mean += scratch[row, action]
        mean = mean / np.float32(network.num_actions)
        for action in range(network.num_actions):
            scratch[row, action] = value + scratch[row, action] - mean
    return nets.argmax(scratch[row], network.num_actions)


def choose(agent, work, m, t, e, obs, state):
    """Return the epsilon-greedy action (`Agent.act`)."""
    if agent.explore[m, t, e] < nets.epsilon(agent, m, t):
        return agent.action[m, t, e]
    return _greedy_action(agent.network, m, obs, work.scratch)


def remember(agent, work, m, t, e, obs, action, next_obs, state, reward, discount, done):
    """Write the step into the replay buffer as obs, action, next_obs, reward, discount (`Agent.observe`)."""
    row = agent.replay.table[nets.new_row(agent.replay, t, e), m]
    action_at = nets.write_values(row, 0, obs)
    row[action_at] = np.float32(action)
    position = nets.write_values(row, action_at + 1, next_obs)
    row[position], row[position + 1] = reward, discount


@compiled
def _write_q_values(agent, work, params):
    """Compute the action values ``work.q [A, columns]`` of the observations in ``work.trunk.acts[0] [O, columns]``,
    with a member's weights ``params [D]`` (`DuelingQNetwork`, or `MLP.forward` if not dueling)."""
    network = agent.network
    nets.forward(network.trunk, params, work.trunk)
    depth, batch_size = len(network.trunk.sizes) - 1, agent.replay.uniform.shape[3]
    trunk_outputs = work.trunk.acts[depth]  # action values or, if dueling, features
    if not network.dueling:
        copy(trunk_outputs, 0, work.q, 0, network.num_actions)
        return
    # The features are the inputs of both networks.
    copy(trunk_outputs, 0, work.value.acts[0], 0, network.value.sizes[0])
    copy(trunk_outputs, 0, work.advantage.acts[0], 0, network.value.sizes[0])
    nets.forward(network.value, params, work.value)
    nets.forward(network.advantage, params, work.advantage)
    # Value and advantage have two layers, so their outputs are ``acts[2]``.
    num_actions, mean_sum = np.float32(network.num_actions), np.float32(0)
    for column in range(batch_size):
        mean = np.float32(0)
        for action in range(network.num_actions):
            mean += work.advantage.acts[2, action, column]
        mean = mean / num_actions
        mean_sum += mean
        for action in range(network.num_actions):
            value, advantage = work.value.acts[2, 0, column], work.advantage.acts[2, action, column]
            # The mean over the batch is not known yet; the next loop subtracts it.
            work.q[action, column] = value + advantage - (np.float32(0) if network.over_batch else mean)
    if network.over_batch:
        for column in range(batch_size):
            for action in range(network.num_actions):
                work.q[action, column] -= mean_sum / np.float32(batch_size)


@compiled
def _q_backward(agent, work, params):
    """Backpropagate from d loss / d action values in ``work.q [A, columns]``, and write the gradient of a member's
    weights ``params [D]`` to ``work.grad [D]``. `_write_q_values` has written the activations to ``work``."""
    network = agent.network
    depth, batch_size = len(network.trunk.sizes) - 1, agent.replay.uniform.shape[3]
    if not network.dueling:
        copy(work.q, 0, work.trunk.grads[depth], 0, network.num_actions)
        nets.backward(network.trunk, params, work.trunk, work.grad, need_grad=True, need_input_grad=False)
        return
    value_grads, advantage_grads = work.value.grads, work.advantage.grads
    # Value and advantage have two layers, so the gradients of their outputs are ``grads[2]``. With q = value +
    # advantage - mean advantage, the gradient of the value is the sum of the gradients of all q. The gradient of an
    # advantage is the gradient of its q minus the mean of these gradients, over the batch too with ``over_batch``.
    mean_gradient_sum, num_actions = np.float32(0), np.float32(network.num_actions)
    for column in range(batch_size):
        column_sum = np.float32(0)
        for action in range(network.num_actions):
            column_sum += work.q[action, column]
        value_grads[2, 0, column] = column_sum
        mean_gradient_sum += column_sum / num_actions
    for column in range(batch_size):
        if network.over_batch:
            mean_gradient = mean_gradient_sum / np.float32(batch_size)
        else:
            mean_gradient = value_grads[2, 0, column] / num_actions
        for action in range(network.num_actions):
            advantage_grads[2, action, column] = work.q[action, column] - mean_gradient
    nets.backward(network.value, params, work.value, work.grad, need_grad=True, need_input_grad=True)
    nets.backward(network.advantage, params, work.advantage, work.grad, need_grad=True, need_input_grad=True)
    for i in range(network.value.sizes[0]):  # the features, which are inputs of both networks
        for column in range(batch_size):
            work.trunk.grads[depth, i, column] = value_grads[0, i, column] + advantage_grads[0, i, column]
    nets.backward(network.trunk, params, work.trunk, work.grad, need_grad=True, need_input_grad=False)


@compiled
def _write_td_targets(agent, work, m):
    """Write the TD targets of member ``m`` for the minibatch in ``work.sample`` to ``work.td_target [1, columns]``
    (`Agent.next_q`). Overwrites ``work.q`` and ``work.online_q``."""
    params, target_params = agent.q_learner.flat_parameters[m], agent.q_learner.target_parameters[m]
    obs_size = agent.obs_size
    reward_row, discount_row = 2 * obs_size + 1, 2 * obs_size + 2  # rows after obs, action and next_obs
    copy(work.sample, obs_size + 1, work.trunk.acts[0], 0, obs_size)  # next_obs
    _write_q_values(agent, work, params)
    copy(work.q, 0, work.online_q, 0, agent.network.num_actions)
    _write_q_values(agent, work, target_params)
    # ``online_q`` now has the values of the online network, ``q`` has the values of the target network.
    for column in range(agent.replay.uniform.shape[3]):
        best = 0
        for action in range(1, agent.network.num_actions):
            best = action if nets.is_better(work.online_q[action, column], work.online_q[best, column]) else best
        # Read the next value before the sample. In another order, the compiler rounds the target differently.
        next_q = work.q[best, column]
        reward, discount = work.sample[reward_row, column], work.sample[discount_row, column]
        work.td_target[0, column] = reward + agent.discount * discount * next_q


@compiled
def _replace_q_by_gradient(agent, work):
    """Return the mean squared TD error of the action values ``work.q [A, columns]`` for the minibatch in
    ``work.sample``, and replace these values by d loss / d value (`Agent.critic_loss`)."""
    # Rows of ``work.sample``: obs, action, next_obs, reward, discount, weight. Columns: the transitions.
    action_row, weight_row = agent.obs_size, 2 * agent.obs_size + 3
    loss = zeros()
    for column in range(0, work.q.shape[1], LANES):  # vectors of 16 columns
        taken_action, taken_q = load(work.sample, action_row, column), load(work.q, 0, column)
        # ``where_less(x, y, a, b)`` is a if x < y, else b. Actions are stored as float32, so they are compared with
        # the numbers halfway between them. This loop ends with the value of the taken action, because each pass
        # replaces the value if the taken action is ``action`` or higher.
        for action in range(1, agent.network.num_actions):
            taken_q = where_less(taken_action, np.float32(action - 0.5), taken_q, load(work.q, action, column))
        error = taken_q - load(work.td_target, 0, column)
        weighted_error = error * load(work.sample, weight_row, column)
        loss += weighted_error * error
        # The gradient is 0 for all actions except the taken one. The first line makes it 0 if the taken action is
        # higher than ``action``, and the second line if it is lower.
        for action in range(agent.network.num_actions):
            gradient = where_less(taken_action, np.float32(action + 0.5), np.float32(2) * weighted_error, ZERO)
            store(where_less(taken_action, np.float32(action - 0.5), ZERO, gradient), work.q, action, column)
    return total(loss)


@compiled
def _update(agent, work, m, t, i):
    """Update the network and the target network of member ``m`` on the minibatch in ``work.sample`` (`Agent.update`).
    Return the loss. ``t`` and ``i``, the numbers of step and update, are not used."""
    params = agent.q_learner.flat_parameters[m]
    _write_td_targets(agent, work, m)
    copy(work.sample, 0, work.trunk.acts[0], 0, agent.obs_size)  # the observations are the inputs of the network
    _write_q_values(agent, work, params)
    loss = _replace_q_by_gradient(agent, work)
    _q_backward(agent, work, params)
    nets.adam(agent.q_learner, m, work.grad)
    nets.follow(agent.q_learner, m, agent.tau)
    return loss


improve = nets.make_improve(_update)


def decide(player, m, obs, state, scratch, continuous_action):
    """Return the best action according to the `QNetwork` ``player`` (`Agent.policy_actions`)."""
    return _greedy_action(player, m, obs, scratch)
