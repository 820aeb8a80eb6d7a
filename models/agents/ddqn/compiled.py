"""DDQN in machine code, one member after another: ``act``, ``observe`` and ``learn`` of `Agent`, and greedy play.

`control.loops.compiled` compiles `choose`, `remember`, `improve` and `decide` into its loops. Importing this requires
Numba.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from models.agents.ddqn.agent import Agent, Greedy
from models.agents.ddqn.networks import DuelingQNetwork
from models.compiled import (
    NO_NET,
    Learner,
    Net,
    adam,
    backward,
    better,
    epsilon,
    follow,
    forward,
    layers_of,
    learner,
    net,
    row_of,
    single,
)
from models.machine import FAST, compiled, exact_inlined
from models.mlp import MLP
from models.tiles import ZERO, copy
from models.vectors import LANES, load, splat, store, total, where_better, where_less

Array = np.ndarray[Any, Any]
NUMBERS = ("explore", "action", "replay")  # names in `Agent.noise`
IMPROVES = FAST  # how `improve` is compiled


class Members(NamedTuple):
    """M members before a block of T steps. Arrays share the memory of the agent's tensors."""

    dueling: bool
    over_batch: bool
    body: Net  # the network; if dueling, the part that computes features
    value: Net
    advantage: Net
    q_learner: Learner
    episodes: Array  # [M], finished
    loss: Array  # [M]
    table: Array  # [rows, M, 2 O + 3]: obs, next_obs, action, reward, discount
    position: int  # next row to write
    replay_size: int
    capacity: int
    explore: Array  # [M, T, E], uniform numbers, compared with epsilon
    action: Array  # [M, T, E], random actions
    replay: Array  # [M, T, U, B], uniform numbers for the minibatches of U updates per step
    by_episode: Array  # epsilon by number of finished episodes
    by_step: Array  # epsilon at each step of the block; empty if the schedule counts episodes
    obs_size: int
    actions: int
    discount: np.float32
    tau: np.float32
    init_episodes: int
    fill: int


class Work(NamedTuple):
    """Scratch memory for one member. ``columns`` is B rounded up to whole vectors (`layers_of`)."""

    rows: Array  # [4, widest], for `single`
    vector: Array  # a continuous action: empty
    # Memory of `forward` and `backward` for each network.
    body: Array
    body_kept: Array
    body_back: Array
    value: Array
    value_kept: Array
    value_back: Array
    advantage: Array
    advantage_kept: Array
    advantage_back: Array
    q: Array  # [A, columns], action values, later d loss / d q
    online_q: Array  # [A, columns], of next_obs
    td_target: Array  # [1, columns], TD targets
    sample: Array  # [2 O + 4, columns], rows of the table, then their weights in the loss: 1 / B, 0 in padding
    grad: Array  # [D]


def members(agent: Agent, random_numbers: dict[str, torch.Tensor], steps: int, loss: torch.Tensor) -> Members:
    """Return the state before T = ``steps`` steps with random ``random_numbers``, ``[M, T, ...]`` each."""
    network, config, replay_buffer, envs = agent.network, agent.config, agent.replay_buffer, agent.envs
    (table,) = replay_buffer.reserve(steps * envs)
    dueling = isinstance(network, DuelingQNetwork)
    by_episode, by_step = agent._epsilon.upcoming(agent.episodes, agent.steps, steps, envs, agent.budget)
    return Members._make(
        (
            dueling,
            isinstance(network, DuelingQNetwork) and network.over_batch,
            *_nets(network),
            learner(agent.flat_parameters, agent.target_parameters, agent.optimizer),
            agent.episodes.numpy(),
            loss.numpy(),
            table.numpy(),
            replay_buffer.position,
            replay_buffer.size,
            replay_buffer.capacity,
            *(random_numbers[name].numpy() for name in NUMBERS),
            by_episode,
            by_step,
            agent.obs_size,
            agent.num_actions,
            np.float32(config.discount),
            np.float32(config.tau),
            config.init_episodes,
            max(1, config.fill),
        )
    )


def _nets(network: MLP | DuelingQNetwork) -> tuple[Net, Net, Net]:
    """Return body, value and advantage; the last two are placeholders if not dueling."""
    if isinstance(network, DuelingQNetwork):
        first, second = network.features.size, network.features.size + network.value.size
        return net(network.features), net(network.value, first), net(network.advantage, second)
    return net(network), NO_NET, NO_NET


class Player(NamedTuple):
    """Greedy policy of M members, for `decide`."""

    dueling: bool
    body: Net
    value: Net
    advantage: Net
    flat_parameters: Array  # [M, D]
    actions: int
    widest: int
    vector: int  # length of a continuous action: 0


def player(policy: Greedy) -> Player:
    network = policy.network
    nets = _nets(network)
    actions = int((nets[2] if isinstance(network, DuelingQNetwork) else nets[0]).sizes[-1])
    widest = max(mlp.widest for mlp in nets)
    return Player(
        isinstance(network, DuelingQNetwork), *nets, policy.flat_parameters.detach().numpy(), actions, widest, 0
    )


def work(a: Members) -> Work:
    """Allocate scratch memory for one thread."""
    batch = a.replay.shape[3]
    widest = max(a.body.widest, a.value.widest, a.advantage.widest)
    rows, vector = np.empty((4, widest), np.float32), np.empty(0, np.float32)
    layers = [layers_of(mlp, batch) for mlp in (a.body, a.value, a.advantage) for _ in range(3)]
    columns = layers[0].shape[2]
    counts = a.actions, a.actions, 1, 2 * a.obs_size + 4
    q, online_q, td_target, sample = (np.zeros((count, columns), np.float32) for count in counts)
    sample[-1, :batch] = 1 / batch
    return Work._make(
        (
            rows,
            vector,
            *layers,
            q,
            online_q,
            td_target,
            sample,
            np.zeros(a.q_learner.flat_parameters.shape[1], np.float32),
        )
    )


@exact_inlined
def best_of(net, flat, obs, rows):
    """Return the greedy action for ``obs [O]`` (`Greedy.act`). ``rows [4, widest]`` is scratch memory."""
    for k in range(len(obs)):
        rows[0, k] = obs[k]
    q = single(net.body, flat, rows, 0)
    if net.dueling:
        for k in range(net.value.sizes[0]):
            rows[2, k] = rows[q, k]
        value = rows[single(net.value, flat, rows, 2), 0]
        q = single(net.advantage, flat, rows, q)
        mean = np.float32(0)
        for k in range(net.actions):
            mean += rows[q, k]
        mean = mean / np.float32(net.actions)
        for k in range(net.actions):
            rows[q, k] = value + rows[q, k] - mean
    best = 0
    for k in range(1, net.actions):
        best = k if better(rows[q, k], rows[q, best]) else best
    return best


def choose(a, w, m, t, e, obs, state):
    """Return the exploring action in environment e (`Agent.act`)."""
    if a.explore[m, t, e] < epsilon(a, m, t):
        return a.action[m, t, e]
    return best_of(a, a.q_learner.flat_parameters[m], obs, w.rows)


def remember(a, w, m, t, e, obs, action, next_obs, state, reward, discount, done):
    """Write the step of environment e into the replay buffer (`Agent.observe`)."""
    row, size = (a.position + t * a.explore.shape[2] + e) % a.capacity, a.obs_size
    for k in range(size):
        a.table[row, m, k] = obs[k]
        a.table[row, m, size + k] = next_obs[k]
    a.table[row, m, 2 * size] = np.float32(action)
    a.table[row, m, 2 * size + 1] = reward
    a.table[row, m, 2 * size + 2] = discount


@compiled
def _values(a, w, flat):
    """Run `network.forward` with parameters ``flat [D]``, from observations in ``w.body[0]`` to values in ``w.q``."""
    forward(a.body, flat, w.body, w.body_kept)
    depth, batch = len(a.body.sizes) - 1, a.replay.shape[3]
    out = w.body[depth]
    if not a.dueling:
        copy(out, 0, w.q, 0, a.actions)
        return
    for i in range(a.value.sizes[0]):
        for j in range(batch):
            w.value[0, i, j] = out[i, j]
            w.advantage[0, i, j] = out[i, j]
    forward(a.value, flat, w.value, w.value_kept)
    forward(a.advantage, flat, w.advantage, w.advantage_kept)
    share, mean_sum = np.float32(a.actions), np.float32(0)
    for j in range(batch):
        mean = np.float32(0)
        for k in range(a.actions):
            mean += w.advantage[2, k, j]
        mean = mean / share
        mean_sum += mean
        for k in range(a.actions):
            w.q[k, j] = w.value[2, 0, j] + w.advantage[2, k, j] - (np.float32(0) if a.over_batch else mean)
    if a.over_batch:
        for j in range(batch):
            for k in range(a.actions):
                w.q[k, j] -= mean_sum / np.float32(batch)


@compiled
def _backward(a, w, flat):
    """Run `network.backward`, from d loss / d q in ``w.q`` to the gradient in ``w.grad``."""
    depth, batch = len(a.body.sizes) - 1, a.replay.shape[3]
    if not a.dueling:
        copy(w.q, 0, w.body_back[depth], 0, a.actions)
        backward(a.body, flat, w.body, w.body_kept, w.body_back, w.grad, True, False)
        return
    gradient_sum, share = np.float32(0), np.float32(a.actions)
    for j in range(batch):
        summed = np.float32(0)
        for k in range(a.actions):
            summed += w.q[k, j]
        w.value_back[2, 0, j] = summed
        gradient_sum += summed / share
    for j in range(batch):
        mean_gradient = gradient_sum / np.float32(batch) if a.over_batch else w.value_back[2, 0, j] / share
        for k in range(a.actions):
            w.advantage_back[2, k, j] = w.q[k, j] - mean_gradient
    backward(a.value, flat, w.value, w.value_kept, w.value_back, w.grad, True, True)
    backward(a.advantage, flat, w.advantage, w.advantage_kept, w.advantage_back, w.grad, True, True)
    for i in range(a.value.sizes[0]):
        for j in range(batch):
            w.body_back[depth, i, j] = w.value_back[0, i, j] + w.advantage_back[0, i, j]
    backward(a.body, flat, w.body, w.body_kept, w.body_back, w.grad, True, False)


def improve(a, w, m, t):
    """Make the updates after step t, once the member may learn (`Agent.learn`)."""
    _, _, updates, batch = a.replay.shape
    replay_size = min(a.replay_size + (t + 1) * a.explore.shape[2], a.capacity)
    if a.episodes[m] < a.init_episodes or replay_size < a.fill:
        return
    size, flat_parameters, target_parameters = (
        a.obs_size,
        a.q_learner.flat_parameters[m],
        a.q_learner.target_parameters[m],
    )
    action_row, reward_row, lasts, share = 2 * size, 2 * size + 1, 2 * size + 2, 2 * size + 3  # rows of w.sample
    for u in range(updates):
        for j in range(batch):
            row = row_of(a.replay[m, t, u, j], a.replay[m, t, u, j - 1], replay_size)
            for k in range(share):
                w.sample[k, j] = a.table[row, m, k]
        copy(w.sample, size, w.body[0], 0, size)
        _values(a, w, flat_parameters)
        copy(w.q, 0, w.online_q, 0, a.actions)
        _values(a, w, target_parameters)
        for j in range(0, w.q.shape[1], LANES):
            max_q, next_q = load(w.online_q, 0, j), load(w.q, 0, j)
            for k in range(1, a.actions):
                value = load(w.online_q, k, j)
                next_q = where_better(value, max_q, load(w.q, k, j), next_q)
                max_q = where_better(value, max_q, value, max_q)
            store(w.td_target, 0, j, load(w.sample, reward_row, j) + a.discount * load(w.sample, lasts, j) * next_q)
        copy(w.sample, 0, w.body[0], 0, size)
        _values(a, w, flat_parameters)
        loss = splat(ZERO)
        for j in range(0, w.q.shape[1], LANES):
            action, now = load(w.sample, action_row, j), load(w.q, 0, j)
            for k in range(1, a.actions):
                now = where_less(action, np.float32(k - 0.5), now, load(w.q, k, j))
            error = now - load(w.td_target, 0, j)
            part = error * load(w.sample, share, j)
            loss += part * error
            for k in range(a.actions):
                gradient = where_less(action, np.float32(k + 0.5), np.float32(2) * part, ZERO)
                store(w.q, k, j, where_less(action, np.float32(k - 0.5), ZERO, gradient))
        _backward(a, w, flat_parameters)
        adam(a.q_learner, m, w.grad)
        follow(a.q_learner, m, a.tau)
        a.loss[m] = total(loss)


def decide(p, m, obs, state, rows, vector):
    """Return the greedy action of member m (`Greedy.act`)."""
    return best_of(p, p.flat_parameters[m], obs, rows)
