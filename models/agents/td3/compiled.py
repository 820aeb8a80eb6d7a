"""TD3 in machine code, one member after another: ``act``, ``observe`` and ``learn`` of `Agent`, and greedy play.

`control.loops.compiled` compiles `choose`, `remember`, `improve` and `decide` into its loops. Importing this requires
Numba.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from models.agents.td3.agent import Agent
from models.compiled import Learner, Net, adam, backward, follow, forward, layers_of, learner, net, row_of, single
from models.machine import FAST, compiled
from models.off_policy import ActorPolicy
from models.spaces import Continuous

Array = np.ndarray[Any, Any]
NUMBERS = ("random", "explore", "replay", "next")  # names in `Agent.noise`
IMPROVES = FAST  # how `improve` is compiled
_ONE = np.float32(1)


class Members(NamedTuple):
    """M members before a block of T steps. Arrays share the memory of the agent's tensors."""

    actor: Net
    first: Net  # the two critics; their parameters are in one array
    second: Net
    actor_learner: Learner
    critics: Learner
    episodes: Array  # [M], finished
    loss: Array  # [M]
    table: Array  # [rows, M, 2 O + A + 2]: obs, action vector, next_obs, reward, discount
    position: int  # next row to write
    replay_size: int
    capacity: int
    random: Array  # [M, T, E, A], uniform numbers for random actions
    explore: Array  # [M, T, E, A], normal noise on actions
    replay: Array  # [M, T, U, B], uniform numbers for the minibatches of U updates per step
    next: Array  # [M, T, U, A, B], normal noise on target actions
    obs_size: int
    vector: int  # A
    centre: Array  # [A], middle of each action's range
    reach: Array  # [A], half of its size
    low: Array
    high: Array
    discount: np.float32
    tau: np.float32
    action_std: np.float32
    policy_std: np.float32
    policy_std_clip: np.float32
    policy_delay: int
    twin: bool  # whether the second critic is used
    init_episodes: int
    fill: int


class Work(NamedTuple):
    """Scratch memory for one member."""

    rows: Array  # [2, widest], for `single`
    vector: Array  # [A], the action in the environment's units
    scaled_action: Array  # [E, A], the same in [-1, 1], for the replay buffer
    # Memory of `forward` and `backward` for each network.
    actor: Array
    actor_kept: Array
    actor_back: Array
    first: Array
    first_kept: Array
    first_back: Array
    second: Array
    second_kept: Array
    second_back: Array
    td_target: Array  # [B], TD targets
    batch: Array  # [B], the minibatch: row numbers
    grad: Array  # [D]
    critic_grad: Array  # [2 D]


def members(agent: Agent, random_numbers: dict[str, torch.Tensor], steps: int, loss: torch.Tensor) -> Members:
    """Return the state before T = ``steps`` steps with random ``random_numbers``, ``[M, T, ...]`` each."""
    config, replay_buffer, critics = agent.config, agent.replay_buffer, agent.critics
    (table,) = replay_buffer.reserve(steps * agent.envs)
    critic = critics.network
    bounds = [value.numpy() for value in (agent.centre, agent.half_range, agent.low, agent.high)]
    floats = (config.discount, config.tau, config.action_std, config.policy_std, config.policy_std_clip)
    return Members._make(
        (
            net(agent.network),
            net(critic),
            net(critic, critic.size),
            learner(agent.flat_parameters, agent.target_parameters, agent.optimizer),
            learner(critics.flat_parameters, critics.target_parameters, critics.optimizer),
            agent.episodes.numpy(),
            loss.numpy(),
            table.numpy(),
            replay_buffer.position,
            replay_buffer.size,
            replay_buffer.capacity,
            *(random_numbers[name].numpy() for name in NUMBERS),
            agent.obs_size,
            agent.action_size,
            *bounds,
            *(np.float32(value) for value in floats),
            config.policy_delay,
            critics.twins,
            config.init_episodes,
            max(1, config.fill),
        )
    )


def work(a: Members) -> Work:
    """Allocate scratch memory for one thread."""
    envs, batch = a.explore.shape[2], a.replay.shape[3]
    layers = [layers_of(mlp, batch) for mlp in (a.actor, a.first, a.second) for _ in range(3)]
    row, vectors = np.empty((2, a.actor.widest), np.float32), np.empty((envs, a.vector), np.float32)
    batch_arrays = np.empty(batch, np.float32), np.empty(batch, np.int64)
    grads = (
        np.zeros(a.actor_learner.flat_parameters.shape[1], np.float32),
        np.zeros(a.critics.flat_parameters.shape[1], np.float32),
    )
    return Work._make((row, np.empty(a.vector, np.float32), vectors, *layers, *batch_arrays, *grads))


class Player(NamedTuple):
    """Greedy policy of M members, for `decide`."""

    actor: Net
    flat_parameters: Array  # [M, D]
    centre: Array
    reach: Array
    low: Array
    high: Array
    widest: int
    vector: int


def player(policy: ActorPolicy) -> Player | None:
    """Return the compiled policy, or None if it samples actions or the agent is of another class."""
    agent = policy.agent
    if policy.streams is not None or type(agent) is not Agent or not isinstance(agent.spaces.actions, Continuous):
        return None
    actor, bounds = net(agent.network), (agent.centre, agent.half_range, agent.low, agent.high)
    arrays = [tensor.numpy() for tensor in (policy.flat_parameters.detach(), *bounds)]
    return Player._make((actor, *arrays, actor.widest, agent.action_size))


@compiled
def _finite(x):
    """Return x, or 0 if it is NaN (`Tensor.nan_to_num`)."""
    return x if x == x else np.float32(0)


@compiled
def _executed(a, vector, k):
    """Return coordinate k of the environment's action (`TwinCriticAgent.clip`)."""
    return min(max(a.centre[k] + vector * a.reach[k], a.low[k]), a.high[k])


@compiled
def _bound(x, limit):
    return -limit if x < -limit else limit if x > limit else x


@compiled
def _outputs(a, flat, obs, rows):
    """Run the actor on ``obs``. Return the index of the row of ``rows`` with its outputs."""
    for k in range(len(obs)):
        rows[0, k] = obs[k]
    return single(a.actor, flat, rows, 0)


@compiled
def _is_learning(a, m, replay_size):
    """Return whether member m may learn (`OffPolicyAgent.learning`)."""
    return a.episodes[m] >= a.init_episodes and replay_size >= a.fill


def choose(a, w, m, t, e, obs, state):
    """Write the exploring action of environment e to ``w.vector`` (`TwinCriticAgent.act`). Return 0."""
    envs = a.explore.shape[2]
    is_learning = _is_learning(a, m, min(a.replay_size + t * envs, a.capacity))
    at = _outputs(a, a.actor_learner.flat_parameters[m], obs, w.rows) if is_learning else 0
    for k in range(a.vector):
        if is_learning:
            x = _bound(np.tanh(w.rows[at, k]) + a.explore[m, t, e, k] * a.action_std, _ONE)
        else:
            x = np.float32(2) * a.random[m, t, e, k] - _ONE
        w.scaled_action[e, k] = _finite(x)
        w.vector[k] = _executed(a, w.scaled_action[e, k], k)
    return 0


def remember(a, w, m, t, e, obs, action, next_obs, state, reward, discount, done):
    """Write the step of environment e into the replay buffer (`TwinCriticAgent.observe`)."""
    row, size, pair = (a.position + t * a.explore.shape[2] + e) % a.capacity, a.obs_size, a.obs_size + a.vector
    for k in range(size):
        a.table[row, m, k] = obs[k]
        a.table[row, m, pair + k] = next_obs[k]
    for k in range(a.vector):
        a.table[row, m, size + k] = w.scaled_action[e, k]
    a.table[row, m, pair + size] = reward
    a.table[row, m, pair + size + 1] = discount


@compiled
def _goals(a, w, m, t, u):
    """Write TD targets to ``w.td_target`` (`TwinCriticAgent.update`, `Agent.next_q`), then observations and actions of
    the minibatch to ``w.first[0]`` and ``w.second[0]``."""
    size, pair, depth = a.obs_size, a.obs_size + a.vector, len(a.first.sizes) - 1
    batch = len(w.td_target)
    for j in range(batch):
        row = w.batch[j]
        for k in range(size):
            w.actor[0, k, j] = a.table[row, m, pair + k]
    forward(a.actor, a.actor_learner.target_parameters[m], w.actor, w.actor_kept)
    outputs = w.actor[len(a.actor.sizes) - 1]
    for k in range(size):
        for j in range(batch):
            w.first[0, k, j] = w.actor[0, k, j]
            w.second[0, k, j] = w.actor[0, k, j]
    for k in range(a.vector):
        for j in range(batch):
            noise = _bound(a.next[m, t, u, k, j] * a.policy_std, a.policy_std_clip)
            x = _bound(np.tanh(outputs[k, j]) + noise, _ONE)
            w.first[0, size + k, j] = x
            w.second[0, size + k, j] = x
    targets = a.critics.target_parameters[m]
    forward(a.first, targets, w.first, w.first_kept)
    if a.twin:
        forward(a.second, targets, w.second, w.second_kept)
    for j in range(batch):
        row, first, second = w.batch[j], w.first[depth, 0, j], w.second[depth, 0, j]
        least = second if a.twin and (second < first or second != second) else first
        w.td_target[j] = a.table[row, m, pair + size] + a.discount * a.table[row, m, pair + size + 1] * least
        for k in range(pair):
            w.first[0, k, j] = a.table[row, m, k]
            w.second[0, k, j] = a.table[row, m, k]


@compiled
def _descend(net, flat, acts, pre_activations, gradients, grad, td_target):
    """Write the gradient of a critic's mean squared error to ``grad``, and return the error (`TwinCritics.update`)."""
    forward(net, flat, acts, pre_activations)
    depth, batch, total = len(net.sizes) - 1, len(td_target), np.float32(0)
    for j in range(batch):
        error = acts[depth, 0, j] - td_target[j]
        total += error * error
        gradients[depth, 0, j] = error * np.float32(2 / batch)
    backward(net, flat, acts, pre_activations, gradients, grad, True, False)
    return total / np.float32(batch)


@compiled
def _climb(a, w, m):
    """Write the gradient of the actor's loss to ``w.grad`` (`Agent._actor_gradient`), on the observations in
    ``w.first[0]``."""
    size, batch, last, depth = a.obs_size, len(w.td_target), len(a.actor.sizes) - 1, len(a.first.sizes) - 1
    for k in range(size):
        for j in range(batch):
            w.actor[0, k, j] = w.first[0, k, j]
    forward(a.actor, a.actor_learner.flat_parameters[m], w.actor, w.actor_kept)
    for k in range(a.vector):
        for j in range(batch):
            w.first[0, size + k, j] = np.tanh(w.actor[last, k, j])
    forward(a.first, a.critics.flat_parameters[m], w.first, w.first_kept)
    for j in range(batch):
        w.first_back[depth, 0, j] = np.float32(1 / batch)
    backward(a.first, a.critics.flat_parameters[m], w.first, w.first_kept, w.first_back, w.critic_grad, False, True)
    for k in range(a.vector):
        for j in range(batch):
            x = w.first[0, size + k, j]
            w.actor_back[last, k, j] = -w.first_back[0, size + k, j] * (_ONE - x * x)
    backward(a.actor, a.actor_learner.flat_parameters[m], w.actor, w.actor_kept, w.actor_back, w.grad, True, False)


def improve(a, w, m, t):
    """Make the updates after step t, once the member may learn (`TwinCriticAgent.learn`)."""
    replay_size = min(a.replay_size + (t + 1) * a.explore.shape[2], a.capacity)
    if not _is_learning(a, m, replay_size):
        return
    for u in range(a.replay.shape[2]):
        for j in range(len(w.batch)):
            w.batch[j] = row_of(a.replay[m, t, u, j], a.replay[m, t, u, j - 1], replay_size)
        _goals(a, w, m, t, u)
        critics = a.critics.flat_parameters[m]
        loss = _descend(a.first, critics, w.first, w.first_kept, w.first_back, w.critic_grad, w.td_target)
        if a.twin:
            loss += _descend(a.second, critics, w.second, w.second_kept, w.second_back, w.critic_grad, w.td_target)
        a.loss[m] = loss
        adam(a.critics, m, w.critic_grad)
        if a.critics.counts[m] % a.policy_delay == 0:
            _climb(a, w, m)
            adam(a.actor_learner, m, w.grad)
            follow(a.actor_learner, m, a.tau)
            follow(a.critics, m, a.tau)


def decide(p, m, obs, state, rows, vector):
    """Write the greedy action of member m to ``vector`` (`ActorPolicy.act`). Return 0."""
    at = _outputs(p, p.flat_parameters[m], obs, rows)
    for k in range(p.vector):
        vector[k] = _executed(p, _finite(np.tanh(rows[at, k])), k)
    return 0
