"""PPO in machine code, one member after another: ``act``, ``observe`` and ``learn`` of `Agent`, and greedy play.

`control.loops.compiled` compiles `choose`, `remember`, `improve` and `decide` into its loops. Its docstring describes
the arguments of all functions here. ``params [D]`` are the parameters of a member. Networks compute matrices ``[rows,
columns]`` with a step of the minibatch in each column. Only some settings are supported (`can_compile`).
"""

from collections import namedtuple
from typing import NamedTuple

import numpy as np
import torch

from models import compiled as nets
from models.agents.ppo.agent import Agent
from models.contract import AgentPolicy
from models.machine import Array, compiled
from models.moments import EPS, Moments

Player, decide = nets.Player, nets.decide
# Positions in ``statistics``, in the order of the names in `Agent.logged`.
POLICY_LOSS, VALUE_LOSS, ENTROPY, APPROX_KL, CLIP_FRACTION, EXPLAINED_VARIANCE, GRAD_NORM = range(7)
_ONE, _HALF_LOG_2PI = np.float32(1), np.float32(0.9189385332046727)  # log(2 pi) / 2


class RunningMoments(NamedTuple):
    """`models.moments.Moments` of M members, of arrays of N numbers. N is 0 if nothing is normalised."""

    num_arrays: Array  # [M], number of arrays so far
    mean: Array  # [M, N]
    square: Array  # [M, N]


class Members(NamedTuple):
    """M members before a block of T steps in E environments. Arrays share the memory of the agent's tensors.

    N is the number of rows of a rollout, A of actions, or of the numbers of a continuous action; W is 1 for discrete
    actions, else A.
    """

    actor: nets.Net
    critic: nets.Net
    scales_at: int  # position in ``flat_parameters`` of the logarithms of standard deviations
    moments_at: int  # position in ``flat_parameters`` of the moments of observations (`nets.normalize`), or -1
    flat_parameters: Array  # [M, D]
    mean: Array  # [M, D], means of gradients in `LockstepAdam`
    square: Array  # [M, D], means of squared gradients in `LockstepAdam`
    update_count: int  # number of updates so far, equal for all members
    lr: Array  # [M], learning rates
    episodes: Array  # [M], number of finished episodes
    loss: Array  # [M], loss of the latest rollout
    statistics: Array  # [M, 7], statistics of the latest rollout, at the positions `POLICY_LOSS` to `GRAD_NORM`
    table: Array  # [N, M, 2 O + W + 3], the rollout: obs, next_obs, action, reward, discount, done
    reward_at: int  # position of the reward in a row of the table
    steps: int  # number of steps before the block
    rollout_steps: int  # number of steps of a rollout
    action: Array  # [M, T, E, A], Gumbel or normal noise
    raw_action: Array  # [M, E, A], continuous actions of the current step before clipping
    obs_moments: RunningMoments  # moments of observations
    return_moments: RunningMoments  # moments of ``discounted_sum``
    discounted_sum: Array  # [M, E], discounted sums of rewards
    orders: Array  # [M, R, passes, N], permutations for R rollouts that end in the block; N is 0 if unshuffled
    lr_factors: Array  # [R], factors on the learning rate
    batch_size: int
    obs_size: int
    num_actions: int  # A
    action_size: int  # A for continuous actions, else 0
    bounds: nets.Bounds
    discount_lambda: np.float32  # discount * gae_lambda
    # Settings; -1 takes the place of None.
    discount: np.float32
    adam_eps: np.float32
    ppo_epochs: int
    clip_range: np.float32
    clip_range_vf: np.float32
    vf_coef: np.float32
    ent_coef: np.float32
    max_grad_norm: np.float32
    normalize_advantage: bool
    scale_actions: bool


# Scratch memory of one member, whose fields `make_work` describes.
Work = namedtuple(
    "Work",
    "scratch continuous_action actor critic value next_value log_prob advantage returns minibatch minibatch_advantage "
    "grad statistics",
)


def can_compile(agent: Agent) -> bool:
    """Return whether compiled code supports the agent's settings."""
    config = agent.config
    return not (config.test_noise or config.target_kl is not None or agent.spaces.is_image)


def make_members(agent: Agent, random_numbers: dict[str, torch.Tensor], steps: int, loss: torch.Tensor) -> Members:
    """Return `Members` for a block of T = ``steps`` steps with ``random_numbers``, ``[M, T, ...]`` each. Compiled code
    writes into ``loss [M]``. Also samples the permutations for the rollouts that end in the block."""
    network, config = agent.network, agent.config
    (table,) = agent.rollout.reserve(steps * agent.envs)  # a single table, because all columns are float32
    first_rollout = agent.steps // agent.rollout_steps
    num_rollouts = (agent.steps + steps) // agent.rollout_steps - first_rollout
    rollouts = range(first_rollout, first_rollout + num_rollouts)
    lr_factors = [agent.lr_factor_at(rollout * agent.rollout_steps) for rollout in rollouts]
    agent.loss = loss
    statistics = torch.full((agent.members, GRAD_NORM + 1), torch.nan)
    # Without a limit on the gradient, ``agent.logged`` has no ``grad_norm``, which is the last position.
    for position, (name, values) in enumerate(agent.logged.items()):
        statistics[:, position] = values
        agent.logged[name] = statistics[:, position]  # shares memory, for the compiled code
    bounds, adam = nets.make_bounds(agent.spaces.actions), agent.optimizer
    action_size = len(bounds.low)
    return nets.make_record(  # type: ignore[no-any-return]
        Members,
        agent,
        random_numbers,
        actor=nets.make_net(network.actor),
        critic=nets.make_net(network.critic, begin=network.actor.size),
        scales_at=network.actor.size + network.critic.size,
        moments_at=network.moments_at,
        mean=adam.mean.numpy(),
        square=adam.square.numpy(),
        update_count=adam.count,
        lr=np.array(adam.lr, np.float64),
        statistics=statistics.numpy(),
        table=table.numpy(),
        reward_at=2 * agent.spaces.obs_shape[0] + max(action_size, 1),
        raw_action=np.empty((agent.members, agent.envs, action_size), np.float32),
        obs_moments=_running_moments(agent.obs_moments, agent.members),
        return_moments=_running_moments(agent.return_moments, agent.members),
        orders=_sample_orders(agent, num_rollouts),
        lr_factors=np.array(lr_factors, np.float64),
        obs_size=agent.spaces.obs_shape[0],
        num_actions=network.actions.num_outputs,
        action_size=action_size,
        bounds=bounds,
        discount_lambda=np.float32(config.discount * config.gae_lambda),
    )


def _running_moments(moments: Moments | None, members: int) -> RunningMoments:
    """Return arrays that share the memory of ``moments``, or arrays without numbers."""
    if moments is None:
        return RunningMoments(np.empty(members), np.empty((members, 0)), np.empty((members, 0)))
    tensors = moments.count.view(members), moments.mean.view(members, -1), moments.square.view(members, -1)
    return RunningMoments._make(tensor.numpy() for tensor in tensors)


def _sample_orders(agent: Agent, num_rollouts: int) -> Array:
    """Sample the field ``orders`` of `Members`, which is empty if a minibatch is a whole rollout."""
    is_shuffled = agent.batch_size < agent.rollout_size
    num_rows, passes = agent.rollout_size if is_shuffled else 0, agent.config.ppo_epochs
    orders = np.empty((agent.members, num_rollouts, passes, num_rows), np.int64)
    if is_shuffled:
        for rollout in range(num_rollouts):
            for epoch in range(passes):
                orders[:, rollout, epoch] = agent.shuffling.permutations(num_rows).numpy()
    return orders


def make_work(agent: Members) -> Work:
    """Allocate scratch memory for one member."""
    num_rows, batch_size = len(agent.table), agent.batch_size
    return Work(
        scratch=np.empty((2, agent.actor.widest), np.float32),  # memory of `forward_one`
        continuous_action=np.empty(agent.action_size, np.float32),  # the action after clipping
        actor=nets.make_layers(agent.actor, batch_size),
        critic=nets.make_layers(agent.critic, batch_size),
        value=np.empty(num_rows, np.float32),
        next_value=np.empty(num_rows, np.float32),
        log_prob=np.empty(num_rows, np.float32),
        advantage=np.empty(num_rows, np.float32),
        returns=np.empty(num_rows, np.float32),
        minibatch=np.empty(batch_size, np.int64),  # row numbers in the rollout
        minibatch_advantage=np.empty(batch_size, np.float32),
        grad=np.zeros_like(agent.flat_parameters[0]),
        statistics=np.zeros_like(agent.statistics[0]),  # sums over the minibatches of a pass
    )


def make_player(policy: AgentPolicy) -> nets.Player | None:
    """Return a greedy policy for compiled code. Return None if the policy samples actions."""
    network = policy.agent.network
    if policy.streams is not None:
        return None
    options = {"squashes": False, "scales": policy.agent.config.scale_actions, "moments_at": network.moments_at}
    return nets.make_actor_player(network.actor, policy.flat_parameters, network.spaces.actions, **options)


@compiled
def _add_to_moments(moments, m, i, values):
    """Update mean and square of number ``i`` of member ``m`` in ``moments`` (`RunningMoments`) by ``values [E]``
    (`Moments.add`). The caller updates ``num_arrays``, once for all numbers of an array."""
    total, square = 0.0, 0.0
    for e in range(len(values)):
        total += values[e]
    batch_mean, count = total / len(values), moments.num_arrays[m] + len(values)
    for e in range(len(values)):
        square += (values[e] - batch_mean) * (values[e] - batch_mean)
    difference = batch_mean - moments.mean[m, i]
    moments.mean[m, i] += difference * (len(values) / count)
    moments.square[m, i] += square + difference * difference * (moments.num_arrays[m] * len(values) / count)


@compiled
def _moments_scale(moments, m, i):
    """Return the factor that scales number ``i`` of member ``m`` in ``moments`` to variance 1 (`Moments.scale`)."""
    return np.float32(1 / np.sqrt(moments.square[m, i] / moments.num_arrays[m] + EPS))


def begin_step(agent, work, m, obs):
    """Update the moments of member ``m`` by ``obs [E, O]``, and copy them to its parameters (`Agent.act`)."""
    if agent.moments_at >= 0:
        params = agent.flat_parameters[m]
        for i in range(agent.obs_size):
            _add_to_moments(agent.obs_moments, m, i, obs[:, i])
        agent.obs_moments.num_arrays[m] += len(obs)
        for i in range(agent.obs_size):
            params[agent.moments_at + i] = np.float32(agent.obs_moments.mean[m, i])
            params[agent.moments_at + agent.obs_size + i] = _moments_scale(agent.obs_moments, m, i)


def choose(agent, work, m, t, e, obs, state):
    """Sample an action with the noise in ``agent.action`` (`Agent.act`). Return a discrete action. A continuous action
    is written to ``work.continuous_action``, and before clipping to ``agent.raw_action[m, e]``."""
    params = agent.flat_parameters[m]
    # The outputs are in ``work.scratch[row]``.
    row = nets.outputs_row(agent.actor, params, obs, work.scratch, agent.moments_at)
    if agent.action_size:
        for i in range(agent.action_size):
            std = np.exp(params[agent.scales_at + i])
            agent.raw_action[m, e, i] = work.scratch[row, i] + std * agent.action[m, t, e, i]
            x = agent.raw_action[m, e, i]
            work.continuous_action[i] = nets.gaussian_action(agent.bounds, agent.scale_actions, x, i)
        return 0
    for action in range(agent.num_actions):  # the argmax of logits plus Gumbel noise is a sample of their softmax
        work.scratch[row, action] += agent.action[m, t, e, action]
    return nets.argmax(work.scratch[row], agent.num_actions)


def remember(agent, work, m, t, e, obs, action, next_obs, state, reward, discount, done):
    """Write the step into the rollout (`Agent.observe`), with normalised observations and a continuous action before
    clipping. `improve` normalises the rewards of all environments together."""
    envs, params = agent.action.shape[2], agent.flat_parameters[m]
    rollout_step = (agent.steps + t) % agent.rollout_steps
    row = agent.table[rollout_step * envs + e, m]
    for i in range(agent.obs_size):
        row[i] = nets.normalize(params, agent.moments_at, obs, i)
        row[agent.obs_size + i] = nets.normalize(params, agent.moments_at, next_obs, i)
    position = 2 * agent.obs_size
    if agent.action_size:
        position = nets.write_values(row, position, agent.raw_action[m, e])
    else:
        row[position] = np.float32(action)
        position += 1
    row[position], row[position + 1], row[position + 2] = reward, discount, np.float32(done)


@compiled
def _normalize_rewards(agent, m, t):
    """Divide the rewards of step ``t`` by the running deviation of their discounted sums (`Agent.observe`)."""
    sums = agent.discounted_sum[m]
    first_row = (agent.steps + t) % agent.rollout_steps * len(sums)
    reward_at = agent.reward_at  # discount and done follow
    for e in range(len(sums)):
        sums[e] = sums[e] * agent.discount + agent.table[first_row + e, m, reward_at]
    _add_to_moments(agent.return_moments, m, 0, sums)
    agent.return_moments.num_arrays[m] += len(sums)
    scale = _moments_scale(agent.return_moments, m, 0)
    for e in range(len(sums)):
        row = agent.table[first_row + e, m]
        row[reward_at] = nets.clip(row[reward_at] * scale, -nets.CLIP_LIMIT, nets.CLIP_LIMIT)
        if row[reward_at + 2] > 0:
            sums[e] = np.float32(0)


@compiled
def _run_network(agent, net, layers, m, minibatch, count, obs_at):
    """Run the network ``net`` of member ``m`` in its memory ``layers`` (`nets.Layers`): on the observations (``obs_at``
    0) or the next observations (``obs_at`` O) of the rows ``minibatch[:count]`` of the rollout, in other columns on 0.
    """
    for i in range(agent.obs_size):
        for column in range(count):
            layers.acts[0, i, column] = agent.table[minibatch[column], m, obs_at + i]
        for column in range(count, layers.acts.shape[2]):
            layers.acts[0, i, column] = np.float32(0)
    nets.forward(net, agent.flat_parameters[m], layers)


@compiled
def _log_prob(agent, work, params, row, m, column):
    """Return the log-probability of the action of member ``m`` in ``row`` of the rollout, with the parameters ``params
    [D]`` (`Categorical.log_prob`, `Gaussian.log_prob`). The actor's outputs for this row are in ``column`` of the last
    layer of ``work.actor.acts``. Logits are replaced by log-probabilities."""
    outputs, action_at = work.actor.acts[len(agent.actor.sizes) - 1], 2 * agent.obs_size
    if agent.action_size:
        log_prob = np.float32(0)
        for i in range(agent.action_size):
            log_std = params[agent.scales_at + i]
            z = (agent.table[row, m, action_at + i] - outputs[i, column]) / np.exp(log_std)
            log_prob -= np.float32(0.5) * z * z + log_std + _HALF_LOG_2PI
        return log_prob
    max_logit = outputs[0, column]
    for action in range(1, agent.num_actions):
        max_logit = outputs[action, column] if outputs[action, column] > max_logit else max_logit
    exp_sum = np.float32(0)
    for action in range(agent.num_actions):
        exp_sum += np.exp(outputs[action, column] - max_logit)
    log_normalizer = max_logit + np.log(exp_sum)
    for action in range(agent.num_actions):
        outputs[action, column] -= log_normalizer
    return outputs[int(agent.table[row, m, action_at]), column]


@compiled
def _evaluate_rollout(agent, work, m):
    """Write log-probabilities, values, and values of the next observations of all N rows of the rollout to ``work``,
    with the weights before the updates (`Agent.rollout_batch`)."""
    params, num_rows, value_layer = agent.flat_parameters[m], len(work.value), len(agent.critic.sizes) - 1
    for first in range(0, num_rows, agent.batch_size):  # pieces of ``count`` rows fit into the memory for minibatches
        count = min(agent.batch_size, num_rows - first)
        for column in range(count):
            work.minibatch[column] = first + column
        _run_network(agent, agent.actor, work.actor, m, work.minibatch, count, 0)
        _run_network(agent, agent.critic, work.critic, m, work.minibatch, count, 0)
        for column in range(count):
            work.log_prob[first + column] = _log_prob(agent, work, params, first + column, m, column)
            work.value[first + column] = work.critic.acts[value_layer, 0, column]
        _run_network(agent, agent.critic, work.critic, m, work.minibatch, count, agent.obs_size)
        for column in range(count):
            work.next_value[first + column] = work.critic.acts[value_layer, 0, column]


@compiled
def _write_advantages(agent, work, m):
    """Write advantages and returns of all rows of the rollout of member ``m`` to ``work`` (`models.trajectory.gae`)."""
    num_rows, envs = len(work.value), agent.action.shape[2]
    reward_at = agent.reward_at  # discount and done follow
    for row in range(num_rows - 1, -1, -1):  # backwards; the next step of an environment is ``envs`` rows later
        reward, discount = agent.table[row, m, reward_at], agent.table[row, m, reward_at + 1]
        done = agent.table[row, m, reward_at + 2]
        td_target = reward + agent.discount * discount * work.next_value[row]
        advantage = td_target - work.value[row]
        if row + envs < num_rows and done == 0:
            advantage += agent.discount_lambda * discount * work.advantage[row + envs]
        work.advantage[row] = advantage
        work.returns[row] = advantage + work.value[row]


@compiled
def _explained_variance(work):
    """Return 1 - Var[return - value] / Var[return] over the rollout; return - value is the advantage."""
    num_rows, mean, mean_error = np.float32(len(work.value)), np.float32(0), np.float32(0)
    for row in range(len(work.value)):
        mean += work.returns[row]
        mean_error += work.advantage[row]
    mean, mean_error = mean / num_rows, mean_error / num_rows
    variance, error_variance = np.float32(0), np.float32(0)
    for row in range(len(work.value)):
        variance += (work.returns[row] - mean) * (work.returns[row] - mean)
        error_variance += (work.advantage[row] - mean_error) * (work.advantage[row] - mean_error)
    return _ONE - error_variance / variance


@compiled
def _write_minibatch_advantages(agent, work, count):
    """Write the advantages of the rows ``work.minibatch[:count]`` to ``work.minibatch_advantage``. With
    ``normalize_advantage``, they are normalised over the minibatch (`models.losses.standardize`)."""
    mean, square_sum = np.float32(0), np.float32(0)
    for column in range(count):
        work.minibatch_advantage[column] = work.advantage[work.minibatch[column]]
        mean += work.minibatch_advantage[column]
    if not agent.normalize_advantage or count == 1:
        return
    mean /= np.float32(count)
    for column in range(count):
        work.minibatch_advantage[column] -= mean
        square_sum += work.minibatch_advantage[column] * work.minibatch_advantage[column]
    deviation = np.sqrt(square_sum / np.float32(count - 1)) + np.float32(1e-8)
    for column in range(count):
        work.minibatch_advantage[column] /= deviation


@compiled
def _categorical_gradient(agent, log_probs, gradient, column, taken_action, log_prob_grad, entropy_grad):
    """Write d loss / d logits to ``column`` of ``gradient [A, columns]`` and return the entropy of the policy. The same
    column of ``log_probs`` has its log-probabilities. ``log_prob_grad`` is d loss / d log-probability of
    ``taken_action``, ``entropy_grad`` is d loss / d entropy."""
    entropy = np.float32(0)
    for action in range(agent.num_actions):
        entropy -= np.exp(log_probs[action, column]) * log_probs[action, column]
    # d log p(taken) / d logit(a) is -p(a), plus 1 if a is taken. d entropy / d logit(a) is -p(a) (log p(a) + entropy).
    for action in range(agent.num_actions):
        log_p = log_probs[action, column]
        gradient[action, column] = -np.exp(log_p) * (log_prob_grad + entropy_grad * (log_p + entropy))
    gradient[taken_action, column] += log_prob_grad
    return entropy


@compiled
def _gaussian_gradient(agent, work, m, column, log_prob_grad):
    """Write d loss / d mean of the action in ``column`` of the minibatch to the last layer of ``work.actor.grads``, and
    add d loss / d log_std to ``work.grad``. ``log_prob_grad`` is d loss / d log-probability (`Gaussian.log_prob`)."""
    params, last, row = agent.flat_parameters[m], len(agent.actor.sizes) - 1, work.minibatch[column]
    for i in range(agent.action_size):
        std = np.exp(params[agent.scales_at + i])
        mean, action = work.actor.acts[last, i, column], agent.table[row, m, 2 * agent.obs_size + i]
        z = (action - mean) / std
        work.actor.grads[last, i, column] = log_prob_grad * z / std
        work.grad[agent.scales_at + i] += log_prob_grad * (z * z - _ONE)


@compiled
def _policy_loss(agent, work, m, count, row_weight):
    """Return the clipped loss of the policy minus the weighted entropy (`clipped_surrogate`), as a mean over the first
    ``count`` columns of the minibatch; ``row_weight`` is 1 / ``count``. Write its gradient with respect to the actor's
    outputs to the last layer of ``work.actor.grads``, and with respect to the logarithms of standard deviations to
    ``work.grad``. Replace logits in ``work.actor.acts`` by log-probabilities."""
    params, last = agent.flat_parameters[m], len(agent.actor.sizes) - 1
    outputs, gradient, loss, entropy = work.actor.acts[last], work.actor.grads[last], np.float32(0), np.float32(0)
    low, high = _ONE - agent.clip_range, _ONE + agent.clip_range  # bounds of the ratio
    entropy_sum, kl_sum, num_clipped = np.float32(0), np.float32(0), np.float32(0)
    entropy_grad = -agent.ent_coef * row_weight  # d loss / d entropy
    gradient[:] = np.float32(0)
    for i in range(agent.action_size):  # the entropy of continuous actions is equal in all columns
        work.grad[agent.scales_at + i] = entropy_grad * np.float32(count)
        entropy += np.float32(0.5) + _HALF_LOG_2PI + params[agent.scales_at + i]
    for column in range(count):
        row = work.minibatch[column]
        log_ratio = _log_prob(agent, work, params, row, m, column) - work.log_prob[row]
        ratio = np.exp(log_ratio)
        kl_sum += ratio - _ONE - log_ratio  # `approximate_kl`
        num_clipped += np.float32(abs(ratio - _ONE) > agent.clip_range)
        surrogate = ratio * work.minibatch_advantage[column]
        clipped_surrogate = nets.clip(ratio, low, high) * work.minibatch_advantage[column]
        is_unclipped = surrogate <= clipped_surrogate  # the smaller value counts; a clipped ratio has no gradient
        log_prob_grad = -surrogate * row_weight if is_unclipped else np.float32(0)  # d loss / d log-probability
        loss -= surrogate if is_unclipped else clipped_surrogate
        if agent.action_size:
            _gaussian_gradient(agent, work, m, column, log_prob_grad)
        else:
            taken_action = int(agent.table[row, m, 2 * agent.obs_size])  # a row: obs, next_obs, action, ...
            entropy = _categorical_gradient(agent, outputs, gradient, column, taken_action, log_prob_grad, entropy_grad)
        entropy_sum += entropy
    work.statistics[POLICY_LOSS] += loss * row_weight
    work.statistics[ENTROPY] += entropy_sum * row_weight
    work.statistics[APPROX_KL] += kl_sum * row_weight
    work.statistics[CLIP_FRACTION] += num_clipped * row_weight
    return (loss - agent.ent_coef * entropy_sum) * row_weight


@compiled
def _value_loss(agent, work, count, row_weight):
    """Return the squared error of values times ``vf_coef`` (`clipped_value_loss`), as a mean over the first ``count``
    columns; ``row_weight`` is 1 / ``count``. Write d loss / d value to the last layer of ``work.critic.grads``."""
    last, loss = len(agent.critic.sizes) - 1, np.float32(0)
    gradient = work.critic.grads[last]
    gradient[:] = np.float32(0)
    for column in range(count):
        row, value = work.minibatch[column], work.critic.acts[last, 0, column]
        error, is_unclipped = value - work.returns[row], True
        squared_error = error * error
        if agent.clip_range_vf >= 0:  # -1: no limit
            change, limit = value - work.value[row], agent.clip_range_vf
            clipped_change = nets.clip(change, -limit, limit)
            clipped_error = work.value[row] + clipped_change - work.returns[row]
            # The larger error counts. The error of the clipped value has no gradient.
            is_unclipped = clipped_change == change or squared_error >= clipped_error * clipped_error
            squared_error = squared_error if is_unclipped else clipped_error * clipped_error
        loss += squared_error
        gradient[0, column] = np.float32(2) * error * (agent.vf_coef * row_weight) if is_unclipped else np.float32(0)
    work.statistics[VALUE_LOSS] += loss * row_weight
    return loss * row_weight * agent.vf_coef


@compiled
def _clip_and_step(agent, work, m, update_number, lr_factor):
    """Clip the norm of the gradient ``work.grad [D]`` (`clip_gradients`). Then make step ``update_number`` (from 1) of
    `LockstepAdam`, with the learning rate times ``lr_factor``."""
    grad = work.grad
    if agent.max_grad_norm >= 0:  # -1: no limit
        square_sum = np.float32(0)
        for i in range(len(grad)):
            square_sum += grad[i] * grad[i]
        norm = np.sqrt(square_sum)
        work.statistics[GRAD_NORM] += norm
        scale = agent.max_grad_norm / (norm + np.float32(1e-6))  # 1e-6 as in torch's `clip_grad_norm_`
        scale = _ONE if scale > _ONE else scale
        for i in range(len(grad)):
            grad[i] *= scale
    params, mean, square = agent.flat_parameters[m], agent.mean[m], agent.square[m]
    # Adam's decay rates are 0.9 and 0.999. Step size and root include the corrections of the bias.
    size = np.float32(lr_factor * agent.lr[m] / (1 - 0.9**update_number))
    root, eps = np.float32((1 - 0.999**update_number) ** 0.5), agent.adam_eps
    mean_weight, square_weight = np.float32(1 - 0.9), np.float32(1 - 0.999)  # weights of the new gradient
    for i in range(len(grad)):
        mean[i] += mean_weight * (grad[i] - mean[i])
        square[i] = np.float32(0.999) * square[i] + square_weight * grad[i] * grad[i]
        params[i] -= size * mean[i] / (np.sqrt(square[i]) / root + eps)


@compiled
def _minibatch_loss(agent, work, m, count):
    """Return the loss on the rows ``work.minibatch[:count]`` of the rollout. Write its gradient to ``work.grad``."""
    params, row_weight = agent.flat_parameters[m], _ONE / np.float32(count)
    _run_network(agent, agent.actor, work.actor, m, work.minibatch, count, obs_at=0)
    _run_network(agent, agent.critic, work.critic, m, work.minibatch, count, obs_at=0)
    _write_minibatch_advantages(agent, work, count)
    loss = _policy_loss(agent, work, m, count, row_weight) + _value_loss(agent, work, count, row_weight)
    nets.backward(agent.actor, params, work.actor, work.grad, need_grad=True, need_input_grad=False)
    nets.backward(agent.critic, params, work.critic, work.grad, need_grad=True, need_input_grad=False)
    # The gradient of parameters that are not trained is 0. It is set for each minibatch, because the clipping of a
    # gradient of NaN makes it NaN.
    for i in range(agent.scales_at + agent.action_size, len(work.grad)):
        work.grad[i] = np.float32(0)
    return loss


def improve(agent, work, m, t):
    """Normalise the rewards of step ``t``, and make all passes over the rollout of member ``m`` if the step completes
    it (`Agent.learn`). Write loss and statistics of the last pass to ``agent``, as means over its minibatches."""
    if agent.return_moments.mean.shape[1]:  # empty if rewards are not normalised
        _normalize_rewards(agent, m, t)
    if (agent.steps + t + 1) % agent.rollout_steps:  # ``agent.steps`` counts the steps before this block
        return
    # Index of this rollout among the rollouts that end in the current block of steps.
    rollouts_before_block = agent.steps // agent.rollout_steps
    rollout = (agent.steps + t + 1) // agent.rollout_steps - rollouts_before_block - 1
    num_rows = len(work.value)
    num_minibatches = (num_rows + agent.batch_size - 1) // agent.batch_size  # rounded up
    _evaluate_rollout(agent, work, m)
    _write_advantages(agent, work, m)
    updates = agent.update_count + rollout * agent.ppo_epochs * num_minibatches
    explained_variance = _explained_variance(work)
    for epoch in range(agent.ppo_epochs):
        loss = np.float32(0)
        work.statistics[:] = np.float32(0)
        for first in range(0, num_rows, agent.batch_size):
            count = min(agent.batch_size, num_rows - first)
            for column in range(count):
                # ``orders`` is empty if a minibatch is the whole rollout, whose rows then keep their order.
                row = agent.orders[m, rollout, epoch, first + column] if agent.orders.shape[3] else column
                work.minibatch[column] = row
            loss += _minibatch_loss(agent, work, m, count)
            updates += 1
            _clip_and_step(agent, work, m, updates, agent.lr_factors[rollout])
        agent.loss[m] = loss / np.float32(num_minibatches)
    for i in range(len(work.statistics)):
        agent.statistics[m, i] = work.statistics[i] / np.float32(num_minibatches)
    agent.statistics[m, EXPLAINED_VARIANCE] = explained_variance
