"""PPO in machine code, one member after another: ``act``, ``observe`` and ``learn`` of `Agent`, and greedy play.

`control.loops.compiled` compiles `choose`, `remember`, `improve` and `decide` into its loops. Only some settings are
supported (`can_compile`). Importing this requires Numba.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from models.agents.ppo.actions import Gaussian
from models.agents.ppo.agent import Agent
from models.agents.ppo.networks import Play
from models.compiled import Net, backward, better, forward, layers_of, net, single
from models.machine import FAST, compiled

Array = np.ndarray[Any, Any]
IMPROVES = FAST  # how `improve` is compiled
_ONE, _HALF_LOG = np.float32(1), np.float32(0.9189385332046727)  # log(2 pi) / 2


class Members(NamedTuple):
    """M members before a block of T steps. Arrays share the memory of the agent's tensors."""

    actor: Net
    critic: Net
    scales: int  # position of the logarithms of standard deviations
    flat_parameters: Array  # [M, D]
    mean: Array  # [M, D], of `LockstepAdam`
    square: Array
    update_count: int  # number of updates so far, equal for all members
    lr: Array  # [M]
    eps: float
    episodes: Array  # [M], finished
    loss: Array  # [M]
    table: Array  # [N, M, 2 O + W + 3], the rollout: obs, next_obs, action (W numbers), reward, discount, done
    steps: int  # before the block
    rollout_steps: int  # of a rollout
    noise: Array  # [M, T, E, A], Gumbel or normal
    orders: Array  # [M, R, passes, N], permutations for R rollouts that end in the block; N is 0 if unshuffled
    shares: Array  # [R], factors on the learning rate
    passes: int
    batch: int  # size of a minibatch
    obs_size: int
    actions: int
    vector: int  # A of continuous actions, else 0
    low: Array
    high: Array
    discount: np.float32
    gae_lambda: np.float32  # discount * gae_lambda
    clip: np.float32
    clip_value: np.float32  # negative for none
    vf_coef: np.float32
    ent_coef: np.float32
    max_norm: np.float32  # negative for none
    normalize: bool


class Work(NamedTuple):
    """Scratch memory for one member. N is the length of the rollout table."""

    rows: Array  # [2, widest], for `single`
    vector: Array  # [A], a continuous action after clipping
    raw_action: Array  # [E, A], before clipping
    # Memory of `forward` and `backward` for each network.
    actor: Array
    actor_kept: Array
    actor_back: Array
    critic: Array
    critic_kept: Array
    critic_back: Array
    value: Array  # [N], like the next four
    next_value: Array
    log_prob: Array
    advantage: Array
    returns: Array
    batch: Array  # [B], the minibatch: row numbers
    minibatch_advantage: Array  # [B]
    grad: Array  # [D]


def can_compile(agent: Agent) -> bool:
    """Return whether compiled code supports the agent's settings."""
    config = agent.config
    return not (config.normalize_obs or config.normalize_reward or config.test_noise or config.target_kl is not None)


def members(agent: Agent, numbers: dict[str, torch.Tensor], steps: int, loss: torch.Tensor) -> Members:
    """Return the state before T = ``steps`` steps with random ``numbers``, ``[M, T, ...]`` each. Samples
    permutations for the rollouts that these steps complete."""
    network, config, actions = agent.network, agent.config, agent.network.actions
    (table,) = agent.rollout.reserve(steps * agent.envs)
    full = (agent.steps + steps) // agent.rollout_steps - agent.steps // agent.rollout_steps
    batch, passes = agent._batch_size(), config.ppo_epochs
    shape = (agent.members, full, passes, agent.rollout_size if batch < agent.rollout_size else 0)
    orders = np.empty(shape, np.int64)
    if shape[3]:
        for r in range(full):
            for k in range(passes):
                orders[:, r, k] = agent.shuffling.permutations(agent.rollout_size).numpy()
    first = agent.steps // agent.rollout_steps
    shares = [agent.lr_factor_at((first + r) * agent.rollout_steps) for r in range(full)]
    agent.loss = loss
    vector = actions.num_outputs if isinstance(actions, Gaussian) else 0
    bounds = (actions.low, actions.high) if isinstance(actions, Gaussian) else (torch.empty(0), torch.empty(0))
    limits = [-1.0 if value is None else value for value in (config.clip_range_vf, config.max_grad_norm)]
    floats = (
        config.discount,
        config.discount * config.gae_lambda,
        config.clip_range,
        limits[0],
        config.vf_coef,
        config.ent_coef,
        limits[1],
    )
    adam, lr = agent.optimizer, np.array(agent.optimizer.lr, np.float64)
    return Members._make(
        (
            net(network.actor),
            net(network.critic, network.actor.size),
            network.actor.size + network.critic.size,
            agent.flat_parameters.detach().numpy(),
            adam.mean.numpy(),
            adam.square.numpy(),
            adam.count,
            lr,
            float(adam.eps),
            agent.episodes.numpy(),
            loss.numpy(),
            table.numpy(),
            agent.steps,
            agent.rollout_steps,
            numbers["action"].numpy(),
            orders,
            np.array(shares, np.float64),
            passes,
            batch,
            agent.spaces.obs_shape[0],
            actions.num_outputs,
            vector,
            *(value.numpy() for value in bounds),
            *(np.float32(value) for value in floats),
            config.normalize_advantage,
        )
    )


def work(a: Members) -> Work:
    """Allocate scratch memory for one thread."""
    layers = [layers_of(mlp, a.batch) for mlp in (a.actor, a.critic) for _ in range(3)]
    rows, vector = np.empty((2, a.actor.widest), np.float32), np.empty(a.vector, np.float32)
    raw_action = np.empty((a.noise.shape[2], a.vector), np.float32)
    of_rollout = [np.empty(len(a.table), np.float32) for _ in range(5)]
    batch, minibatch_advantage = np.empty(a.batch, np.int64), np.empty(a.batch, np.float32)
    return Work._make(
        (
            rows,
            vector,
            raw_action,
            *layers,
            *of_rollout,
            batch,
            minibatch_advantage,
            np.zeros_like(a.flat_parameters[0]),
        )
    )


class Player(NamedTuple):
    """Greedy policy of M members, for `decide`."""

    actor: Net
    flat_parameters: Array  # [M, D]
    actions: int
    low: Array
    high: Array
    widest: int
    vector: int


def player(policy: Play) -> Player | None:
    """Return the compiled policy, or None if it samples actions or normalises observations."""
    network, actions = policy.network, policy.network.actions
    if policy.streams is not None or policy.parts.mean.shape[1]:
        return None
    bounds = (actions.low, actions.high) if isinstance(actions, Gaussian) else (torch.empty(0), torch.empty(0))
    actor, size = net(network.actor), actions.num_outputs
    arrays = [tensor.detach().numpy() for tensor in (policy.flat_parameters, *bounds)]
    return Player(actor, arrays[0], size, arrays[1], arrays[2], actor.widest, len(arrays[1]))


@compiled
def _outputs(net, flat, obs, rows):
    """Run the actor on ``obs``. Return the index of the row of ``rows`` with its outputs."""
    for k in range(len(obs)):
        rows[0, k] = obs[k]
    return single(net, flat, rows, 0)


@compiled
def _executed(a, x, k):
    """Return coordinate k of the clipped action (`Gaussian.clip`)."""
    return min(max(x if x == x else np.float32(0), a.low[k]), a.high[k])


def choose(a, w, m, t, e, obs, state):
    """Sample the action in environment e (`Agent.act`). Continuous: write it to ``w.vector``, return 0."""
    flat = a.flat_parameters[m]
    at = _outputs(a.actor, flat, obs, w.rows)
    if a.vector:
        for k in range(a.vector):
            w.raw_action[e, k] = w.rows[at, k] + np.exp(flat[a.scales + k]) * a.noise[m, t, e, k]
            w.vector[k] = _executed(a, w.raw_action[e, k], k)
        return 0
    best = 0
    for k in range(a.actions):
        w.rows[at, k] += a.noise[m, t, e, k]
        best = k if better(w.rows[at, k], w.rows[at, best]) else best
    return best


def remember(a, w, m, t, e, obs, action, next_obs, state, reward, discount, done):
    """Write the step of environment e into the rollout (`Agent.observe`)."""
    row, size = ((a.steps + t) % a.rollout_steps) * a.noise.shape[2] + e, a.obs_size
    for k in range(size):
        a.table[row, m, k] = obs[k]
        a.table[row, m, size + k] = next_obs[k]
    width = max(a.vector, 1)
    for k in range(a.vector):
        a.table[row, m, 2 * size + k] = w.raw_action[e, k]
    if not a.vector:
        a.table[row, m, 2 * size] = np.float32(action)
    a.table[row, m, 2 * size + width] = reward
    a.table[row, m, 2 * size + width + 1] = discount
    a.table[row, m, 2 * size + width + 2] = np.float32(done)


@compiled
def _columns(a, acts, m, batch, count, first):
    """Write observations of rows ``batch[:count]`` to ``acts[0]``, and 0 to its padding. In the table they begin at
    column ``first``."""
    for k in range(a.obs_size):
        for j in range(count):
            acts[0, k, j] = a.table[batch[j], m, first + k]
        for j in range(count, acts.shape[2]):
            acts[0, k, j] = np.float32(0)


@compiled
def _log_prob(a, w, flat, row, m, j):
    """Return the log-probability of the action in ``row``, from the actor's outputs in column j
    (`Categorical.evaluate`, `Gaussian.evaluate`). For discrete actions, also replace these outputs by
    log-probabilities."""
    out, at = w.actor[len(a.actor.sizes) - 1], 2 * a.obs_size
    if a.vector:
        log_prob = np.float32(0)
        for k in range(a.vector):
            scale = flat[a.scales + k]
            off = (a.table[row, m, at + k] - out[k, j]) / np.exp(scale)
            log_prob -= np.float32(0.5) * off * off + scale + _HALF_LOG
        return log_prob
    max_score = out[0, j]
    for k in range(1, a.actions):
        max_score = out[k, j] if out[k, j] > max_score else max_score
    normalizer = np.float32(0)
    for k in range(a.actions):
        normalizer += np.exp(out[k, j] - max_score)
    normalizer = max_score + np.log(normalizer)
    for k in range(a.actions):
        out[k, j] -= normalizer
    return out[int(a.table[row, m, at]), j]


@compiled
def _judge(a, w, m):
    """Compute log-probabilities, values, advantages and value targets of the rollout, in ``w`` (see
    `Agent._rollout_batch`)."""
    flat, rows, envs, last = a.flat_parameters[m], len(w.value), a.noise.shape[2], len(a.critic.sizes) - 1
    for first in range(0, rows, a.batch):
        count = min(a.batch, rows - first)
        for j in range(count):
            w.batch[j] = first + j
        _columns(a, w.actor, m, w.batch, count, 0)
        forward(a.actor, flat, w.actor, w.actor_kept)
        for j in range(count):
            w.log_prob[first + j] = _log_prob(a, w, flat, first + j, m, j)
        _columns(a, w.critic, m, w.batch, count, 0)
        forward(a.critic, flat, w.critic, w.critic_kept)
        for j in range(count):
            w.value[first + j] = w.critic[last, 0, j]
        _columns(a, w.critic, m, w.batch, count, a.obs_size)
        forward(a.critic, flat, w.critic, w.critic_kept)
        for j in range(count):
            w.next_value[first + j] = w.critic[last, 0, j]
    at = 2 * a.obs_size + max(a.vector, 1)
    for row in range(rows - 1, -1, -1):
        ahead = a.table[row, m, at + 1]
        advantage = a.table[row, m, at] + a.discount * ahead * w.next_value[row] - w.value[row]
        if row + envs < rows and a.table[row, m, at + 2] == 0:
            advantage += a.gae_lambda * ahead * w.advantage[row + envs]
        w.advantage[row] = advantage
        w.returns[row] = advantage + w.value[row]


@compiled
def _advantages(a, w, count):
    """Write the minibatch's advantages to ``w.minibatch_advantage``, normalised as in `Agent.update_minibatch`."""
    mean, square = np.float32(0), np.float32(0)
    for j in range(count):
        w.minibatch_advantage[j] = w.advantage[w.batch[j]]
        mean += w.minibatch_advantage[j]
    if not a.normalize or count == 1:
        return
    mean /= np.float32(count)
    for j in range(count):
        w.minibatch_advantage[j] -= mean
        square += w.minibatch_advantage[j] * w.minibatch_advantage[j]
    deviation = np.sqrt(square / np.float32(count - 1)) + np.float32(1e-8)
    for j in range(count):
        w.minibatch_advantage[j] /= deviation


@compiled
def _of_policy(a, w, m, count, share):
    """Return the policy's loss. Write its gradients to ``w.actor_back`` (outputs) and ``w.grad`` (scales)."""
    flat, last, at = a.flat_parameters[m], len(a.actor.sizes) - 1, 2 * a.obs_size
    out, gradient, loss, of_entropy = w.actor[last], w.actor_back[last], np.float32(0), -a.ent_coef * share
    entropy = np.float32(0)
    for k in range(a.vector):
        w.grad[a.scales + k] = of_entropy * np.float32(count)
        entropy += np.float32(0.5) + _HALF_LOG + flat[a.scales + k]
    for j in range(count):
        row = w.batch[j]
        ratio = np.exp(_log_prob(a, w, flat, row, m, j) - w.log_prob[row])
        free = ratio * w.minibatch_advantage[j]
        cut = _ONE - a.clip if ratio < _ONE - a.clip else _ONE + a.clip if ratio > _ONE + a.clip else ratio
        bound = cut * w.minibatch_advantage[j]
        unclipped = free <= bound
        pull = -free * share if unclipped else np.float32(0)
        loss -= free if unclipped else bound
        for k in range(a.vector):
            deviation = np.exp(flat[a.scales + k])
            off = (a.table[row, m, at + k] - out[k, j]) / deviation
            gradient[k, j] = pull * off / deviation
            w.grad[a.scales + k] += pull * (off * off - _ONE)
        if not a.vector:
            entropy = np.float32(0)
            for k in range(a.actions):
                entropy -= np.exp(out[k, j]) * out[k, j]
            for k in range(a.actions):
                gradient[k, j] = -np.exp(out[k, j]) * (pull + of_entropy * (out[k, j] + entropy))
            gradient[int(a.table[row, m, at]), j] += pull
        loss -= a.ent_coef * entropy
    for k in range(a.actions):
        for j in range(count, gradient.shape[1]):
            gradient[k, j] = np.float32(0)
    return loss * share


@compiled
def _of_values(a, w, count, share):
    """Return the weighted loss of values. Write its gradient to ``w.critic_back`` (`clipped_value_error`)."""
    last, loss = len(a.critic.sizes) - 1, np.float32(0)
    gradient = w.critic_back[last]
    for j in range(count):
        row, value = w.batch[j], w.critic[last, 0, j]
        error, free = value - w.returns[row], True
        squared_error = error * error
        if a.clip_value >= 0:
            moved = value - w.value[row]
            cut = -a.clip_value if moved < -a.clip_value else a.clip_value if moved > a.clip_value else moved
            other = w.value[row] + cut - w.returns[row]
            free = cut == moved or squared_error >= other * other
            squared_error = squared_error if free else other * other
        loss += squared_error
        gradient[0, j] = np.float32(2) * error * (a.vf_coef * share) if free else np.float32(0)
    for j in range(count, gradient.shape[1]):
        gradient[0, j] = np.float32(0)
    return loss * share * a.vf_coef


@compiled
def _move(a, w, m, count, share):
    """Run `clip_norm`, then the ``count``-th `LockstepAdam.update` of member m, on ``w.grad``."""
    if a.max_norm >= 0:
        square = np.float32(0)
        for k in range(len(w.grad)):
            square += w.grad[k] * w.grad[k]
        scale = a.max_norm / (np.sqrt(square) + np.float32(1e-6))
        scale = _ONE if scale > _ONE else scale
        for k in range(len(w.grad)):
            w.grad[k] *= scale
    flat_parameters, mean, square_of = a.flat_parameters[m], a.mean[m], a.square[m]
    size = np.float32(share * a.lr[m] / (1 - 0.9**count))
    root, eps = np.float32((1 - 0.999**count) ** 0.5), np.float32(a.eps)
    mean_weight, two = np.float32(1 - 0.9), np.float32(1 - 0.999)
    for k in range(len(w.grad)):
        mean[k] += mean_weight * (w.grad[k] - mean[k])
        square_of[k] = np.float32(0.999) * square_of[k] + two * w.grad[k] * w.grad[k]
        flat_parameters[k] -= size * mean[k] / (np.sqrt(square_of[k]) / root + eps)


def improve(a, w, m, t):
    """Make all passes over the rollout if step t completes it (`Agent.learn`)."""
    if (a.steps + t + 1) % a.rollout_steps:
        return
    r, rows = (a.steps + t + 1) // a.rollout_steps - a.steps // a.rollout_steps - 1, len(w.value)
    pieces = (rows + a.batch - 1) // a.batch
    _judge(a, w, m)
    flat, count = a.flat_parameters[m], a.update_count + r * a.passes * pieces
    for k in range(a.passes):
        loss = np.float32(0)
        for piece in range(pieces):
            first = piece * a.batch
            size = min(a.batch, rows - first)
            for j in range(size):
                w.batch[j] = a.orders[m, r, k, first + j] if a.orders.shape[3] else j
            share = _ONE / np.float32(size)
            _columns(a, w.actor, m, w.batch, size, 0)
            _columns(a, w.critic, m, w.batch, size, 0)
            forward(a.actor, flat, w.actor, w.actor_kept)
            forward(a.critic, flat, w.critic, w.critic_kept)
            _advantages(a, w, size)
            loss += _of_policy(a, w, m, size, share) + _of_values(a, w, size, share)
            backward(a.actor, flat, w.actor, w.actor_kept, w.actor_back, w.grad, True, False)
            backward(a.critic, flat, w.critic, w.critic_kept, w.critic_back, w.grad, True, False)
            count += 1
            _move(a, w, m, count, a.shares[r])
        a.loss[m] = loss / np.float32(pieces)


def decide(p, m, obs, state, rows, vector):
    """Return the greedy action of member m (`Play.act`). Continuous: write it to ``vector``, return 0."""
    at = _outputs(p.actor, p.flat_parameters[m], obs, rows)
    if p.vector:
        for k in range(p.vector):
            vector[k] = _executed(p, rows[at, k], k)
        return 0
    best = 0
    for k in range(1, p.actions):
        best = k if better(rows[at, k], rows[at, best]) else best
    return best
