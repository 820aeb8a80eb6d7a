"""Compiled pieces of small agents: fully connected networks of one member (one of M agents that train together), Adam,
replay buffer, actions.

A step of a tiny agent is about a hundred operations on a few thousand numbers. On tensors of all members, each
operation costs a call of torch. Compiled code runs one member after another and costs only the arithmetic. Docstrings
name the readable method that a function mirrors; tests/test_compiled.py compares the two. Importing this module
requires Numba.

Arguments of compiled functions are NumPy arrays and named tuples of them. These names have one meaning:

    net                    architecture of a network (`Net`)
    params [D]             parameters of one member, of all its networks
    layers                 memory of a network for a minibatch (`Layers`)
    scratch [rows, widest] memory of a network for one example
    m, e, t                index of a member, of an environment of the member, of a step in the block
    i                      index of a coordinate of an action, or of a number in an observation
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from models.machine import Array, compiled, exact, inlined
from models.mlp import MLP
from models.optim import MemberAdam
from models.spaces import Continuous, Discrete
from models.tiles import (
    ACTIVATIONS,
    IDENTITY,
    PRELU,
    ZERO,
    Layer,
    activate,
    input_gradient,
    layer_forward,
    slope_gradient,
    weight_gradient,
)
from models.vectors import LANES, TILE, address, entry, read_vector, store
from understudy import policy

CLIP_LIMIT = np.float32(policy.CLIP_LIMIT)  # largest absolute value of normalised numbers


class Net(NamedTuple):
    """An `MLP` of L layers, and the positions of its parameters in a member's flat parameters ``[D]``."""

    sizes: Array  # [L + 1] int64: inputs, hidden widths, outputs
    weights: Array  # [L] int64, position of the first weight of each layer
    biases: Array  # [L] int64, position of the first bias of each layer
    transposed: Array  # [L] bool, whether a weight is stored as [in, out] instead of [out, in]
    activation: int  # activation of hidden layers, a value of `ACTIVATIONS`
    leak: np.float32  # slope of leakyrelu below 0
    slope_position: int  # position of prelu's learned slope
    widest: int  # the largest of sizes


@functools.lru_cache(64)  # results can be shared, because nobody writes into their arrays
def make_net(mlp: MLP, begin: int = 0) -> Net:
    """Return the `Net` of ``mlp``. Its parameters begin at position ``begin`` of a member's flat parameters."""
    weights, biases, position = [], [], begin
    for num_in, num_out in itertools.pairwise(mlp.sizes):  # the weights of a layer, then its biases
        weights.append(position)
        biases.append(position + num_in * num_out)
        position += (num_in + 1) * num_out
    return Net(
        sizes=np.array(mlp.sizes, np.int64),
        weights=np.array(weights, np.int64),
        biases=np.array(biases, np.int64),
        transposed=np.array(mlp._transposed),
        activation=ACTIVATIONS[mlp.activation],
        leak=np.float32(mlp.leak),
        slope_position=position,  # the position after the last bias
        widest=max(mlp.sizes),
    )


NO_NET = make_net(MLP([1, 1], "identity"))  # placeholder for a network that an agent does not have


class Layers(NamedTuple):
    """Memory of `forward` and `backward` for one network: ``[L + 1, widest, columns]``. A column is one example."""

    acts: Array  # activations; layer 0 are the inputs
    preacts: Array  # values before the activation, only with prelu
    grads: Array  # d loss / d activations


def make_layers(net: Net, batch_size: int) -> Layers:
    """Allocate zeroed memory for a batch of ``batch_size`` examples, one in each column. The number of columns is
    rounded up to whole tiles of ``TILE`` columns. Inputs and gradients must remain 0 in the additional columns, because
    gradients of weights are sums over all columns."""
    columns = math.ceil(batch_size / TILE) * TILE
    shape = 3, len(net.sizes), net.widest, columns  # the three arrays of `Layers`
    size = math.prod(shape)
    # Arrays that begin at a line of the processor's cache, which has 64 bytes or 16 numbers, save up to an eighth of
    # the time. So up to 16 numbers are skipped until the first address that is a multiple of 64.
    memory = np.zeros(size + 16, np.float32)
    first = -memory.ctypes.data % 64 // 4
    acts, preacts, grads = memory[first : first + size].reshape(shape)
    return Layers(acts, preacts, grads)


@exact
def is_better(x, y):
    """Return whether an argmax prefers the number x to y. NaN counts as the largest number, as in torch."""
    return x > y or (x != x and y == y)  # x is NaN and y is not: only NaN differs from itself


@inlined
def _layer(net, index):
    """Return layer ``index`` of ``net`` as a `Layer`."""
    num_in, num_out = net.sizes[index], net.sizes[index + 1]
    # The weight matrix is stored row by row, as [in, out] if transposed, otherwise as [out, in].
    in_stride, out_stride = (num_out, 1) if net.transposed[index] else (1, num_in)
    return Layer(num_in, num_out, net.weights[index], net.biases[index], in_stride, out_stride)


@compiled
def forward(net, params, layers):
    """Forward pass of a minibatch through the network ``net`` with a member's parameters ``params [D]`` (mirrors
    `MLP.forward`). The inputs are in ``layers.acts[0] [inputs, columns]``, one example in each column. Write the
    activations of layer l to ``acts[l]``, so the outputs to ``acts[L]`` with L layers. With prelu, also write the
    values before the activation to ``preacts[l]``."""
    acts, preacts = layers.acts, layers.preacts
    depth, num_columns = len(net.sizes) - 1, acts.shape[2]
    leak = params[net.slope_position] if net.activation == PRELU else net.leak
    for column in range(0, num_columns, TILE):  # a tile of columns runs through all layers while it is in the cache
        for i in range(depth):
            activation = net.activation if i < depth - 1 else IDENTITY  # the last layer has none
            layer_forward(_layer(net, i), params, acts[i], acts[i + 1], preacts[i + 1], column, activation, leak)


@compiled
def backward(net, params, layers, grad, need_grad, need_input_grad):
    """Backward pass after `forward` (mirrors `MLP.backward`), from d loss / d outputs in ``layers.grads[L]``. Write
    d loss / d activations of hidden layer l to ``layers.grads[l]`` and, if ``need_input_grad``, d loss / d inputs to
    ``layers.grads[0]``. If ``need_grad``, write d loss / d parameters to the positions of ``net`` in ``grad [D]``."""
    acts, preacts, act_grads = layers.acts, layers.preacts, layers.grads
    depth, slope_grad = len(net.sizes) - 1, ZERO
    leak = params[net.slope_position] if net.activation == PRELU else net.leak
    last = 0 if need_input_grad else 1
    for i in range(depth, last - 1, -1):  # the index in ``acts``: from the outputs to the first hidden layer or inputs
        num_units = net.sizes[i]
        activation = net.activation if i else IDENTITY  # inputs have no activation
        # Four units at a time: the gradient of their activations, then of the weights and biases that compute these
        # units, while their rows are in the cache.
        for first in range(0, num_units, 4):
            end = min(first + 4, num_units)
            if i < depth:  # the gradient of the outputs is an argument
                layer_above = _layer(net, i)
                input_gradient(
                    layer_above, params, act_grads[i + 1], acts[i], act_grads[i], first, end, activation, leak
                )
                if activation == PRELU:
                    slope_grad += slope_gradient(act_grads[i], preacts[i], first, end, leak)
            if need_grad and i:
                weight_gradient(_layer(net, i - 1), acts[i - 1], act_grads[i], grad, first, end)
    if need_grad and net.activation == PRELU:
        grad[net.slope_position] = slope_grad


@compiled
def forward_one(net, params, scratch, row):
    """Run the network ``net`` of one member with parameters ``params [D]`` on one example (mirrors `MLP.forward`). Its
    inputs are in row ``row`` of ``scratch [rows, widest]``. Return the index of the row that holds the outputs. Layers
    alternate between the rows ``row`` and ``row ^ 1`` (0 and 1, or 2 and 3) and overwrite both."""
    depth = len(net.sizes) - 1
    leak = params[net.slope_position] if net.activation == PRELU else net.leak
    for layer in range(depth):
        num_in, num_out = net.sizes[layer], net.sizes[layer + 1]
        weight, bias = net.weights[layer], net.biases[layer]  # positions of the first weight and the first bias
        x = scratch[row]
        output_row = row ^ 1
        if net.transposed[layer]:  # weights of adjacent outputs are adjacent in memory
            vector_end = num_out - num_out % LANES
            for o in range(0, vector_end, LANES):  # 16 outputs together
                sums = read_vector(address(params, bias + o))
                for i in range(num_in):
                    sums += entry(x, i) * read_vector(address(params, weight + i * num_out + o))
                store(sums, scratch, output_row, o)
            for o in range(vector_end, num_out):  # the remaining outputs
                total = entry(params, bias + o)
                for i in range(num_in):
                    total += x[i] * entry(params, weight + i * num_out + o)
                scratch[output_row, o] = total
        else:  # weights of adjacent inputs are adjacent in memory
            for o in range(num_out):
                total = ZERO
                for i in range(num_in):
                    total += entry(params, weight + o * num_in + i) * x[i]
                scratch[output_row, o] = total + entry(params, bias + o)
        if layer < depth - 1:
            for o in range(num_out):
                scratch[output_row, o] = activate(scratch[output_row, o], net.activation, leak)
        row = output_row
    return row


@compiled
def outputs_row(net, params, obs, scratch, moments_at=-1):
    """Run a network with a member's parameters ``params [D]`` on ``obs [O]``, in rows 0 and 1 of ``scratch [rows,
    widest]``. Return the index of the row that holds its outputs. Observations are first normalised by the moments at
    position ``moments_at`` in ``params``, unless it is -1 (`normalize`)."""
    for i in range(len(obs)):
        scratch[0, i] = normalize(params, moments_at, obs, i)
    return forward_one(net, params, scratch, 0)


@compiled
def normalize(params, moments_at, obs, i):
    """Return number ``i`` of ``obs [O]``, unchanged if ``moments_at`` is -1. Otherwise, it is normalised and clipped:
    means ``[O]``, then factors ``[O]`` that scale to variance 1, begin at ``moments_at`` in ``params [D]``."""
    if moments_at < 0:
        return obs[i]
    return clip((obs[i] - params[moments_at + i]) * params[moments_at + len(obs) + i], -CLIP_LIMIT, CLIP_LIMIT)


@compiled
def argmax(values, count):
    """Return the index of the largest of the first ``count`` numbers in ``values``, the first if several are equal.
    NaN counts as the largest number, as in torch."""
    best = 0
    for i in range(1, count):
        best = i if is_better(values[i], values[best]) else best
    return best


def make_record(record: Any, agent: Any, random_numbers: Mapping[str, Tensor], **fields: Any) -> Any:
    """Return the state of an ``agent`` for compiled code, a named tuple of the class ``record``, such as `Members` in
    models/agents/ppo/compiled.py. The value of a field is looked up by its name in ``fields``, ``random_numbers``, the
    attributes of ``agent`` and its settings, in this order. A setting with choices becomes its index among these."""
    metadata = {field.name: field.metadata for field in dataclasses.fields(agent.config)}
    for name in set(record._fields) - fields.keys():
        if name in random_numbers:
            fields[name] = random_numbers[name].numpy()
        elif hasattr(agent, name):
            fields[name] = as_argument(getattr(agent, name))
        else:
            value, choices = getattr(agent.config, name), metadata[name]["choices"]
            fields[name] = choices.index(value) if choices else as_argument(value)
    return record(**fields)


def as_argument(value: Any) -> Any:
    """Convert a value for compiled code: a tensor becomes an array that shares its memory, a float becomes float32, and
    None becomes -1. Return any other value unchanged."""
    if isinstance(value, Tensor):
        return value.detach().numpy()
    if value is None:
        return np.float32(-1)
    return np.float32(value) if isinstance(value, float) else value


class Learner(NamedTuple):
    """Weights of M members, their target networks, and Adam's state. The arrays share the memory of agent's tensors."""

    flat_parameters: Array  # [M, D]
    target_parameters: Array  # [M, D]
    mean: Array  # [M, D], mean of gradients
    square: Array  # [M, D], mean of squared gradients
    counts: Array  # [M], number of updates
    lr: Array  # [M], learning rates


def make_learner(flat_parameters: Tensor, target_parameters: Tensor, optimizer: MemberAdam) -> Learner:
    """Return the `Learner` of networks with weights ``[M, D]`` that ``optimizer`` trains."""
    tensors = flat_parameters, target_parameters, optimizer.mean, optimizer.square, optimizer.count, optimizer.lr
    return Learner(*map(as_argument, tensors))


@compiled
def adam(learner, m, grad):
    """Make a step of Adam on the weights of member ``m`` with gradient ``grad [D]`` (mirrors `MemberAdam.update`)."""
    learner.counts[m] += 1
    count, params, mean, square = learner.counts[m], learner.flat_parameters[m], learner.mean[m], learner.square[m]
    # The bias corrections: 1 / (1 - beta1^count), and the square root of 1 - beta2^count.
    factor1, root_correction2 = np.float32(1 / (1 - 0.9**count)), np.float32((1 - 0.999**count) ** 0.5)
    step_size = learner.lr[m] * factor1
    beta1, beta2, eps = np.float32(0.9), np.float32(0.999), np.float32(1e-8)
    mean_weight, square_weight = np.float32(1 - 0.9), np.float32(1 - 0.999)  # weights of the new gradient
    for i in range(len(grad)):
        mean[i] = mean[i] * beta1 + grad[i] * mean_weight
        square[i] = square[i] * beta2 + grad[i] * grad[i] * square_weight
        params[i] -= mean[i] / (np.sqrt(square[i]) / root_correction2 + eps) * step_size


@compiled
def follow(learner, m, tau):
    """Update the target network of a member: ``(1 - tau) target + tau weights`` (mirrors `polyak_update`)."""
    target_parameters, flat_parameters = learner.target_parameters[m], learner.flat_parameters[m]
    for i in range(len(target_parameters)):
        target_parameters[i] += tau * (flat_parameters[i] - target_parameters[i])


@exact
def epsilon(agent, m, t):
    """Return epsilon, the probability of a random action, of member ``m`` at step ``t`` of a block of steps, from one
    of two arrays (`EpsilonGreedy.upcoming_epsilon`): by step or, if that is empty, by number of finished episodes."""
    if len(agent.epsilon_by_step) > 0:
        return agent.epsilon_by_step[t]
    return agent.epsilon_by_episode[agent.episodes[m]]


@compiled
def clip(x, low, high):
    """Return the number x, clipped to [``low``, ``high``]. NaN is returned unchanged."""
    if x < low:
        return low
    return high if x > high else x


class Replay(NamedTuple):
    """Replay buffer of M members at the start of a block of T steps in E environments. U is the number of updates per
    step, B the batch size."""

    table: Array  # [rows, M, width], one transition of a member in each row; shares the memory of the `ReplayBuffer`
    position: int  # next row to write
    size: int
    capacity: int
    envs: int  # E, the number of rows that a step adds
    uniform: Array  # [M, T, U, B], uniform numbers that choose the minibatches
    init_episodes: int  # finished episodes before the first update
    fill: int  # rows before the first update


def make_replay(agent: Any, uniform: Tensor, steps: int) -> Replay:
    """Return the replay buffer of ``agent`` (`OffPolicyAgent`) for compiled code, with space for T = ``steps`` more
    steps. The uniform random numbers ``uniform [M, T, U, B]`` choose the minibatches."""
    buffer = agent.replay_buffer
    (table,) = buffer.reserve(steps * agent.envs)  # a single table, because all columns are float32
    return Replay(
        table=table.numpy(),
        position=buffer.position,
        size=buffer.size,
        capacity=buffer.capacity,
        envs=agent.envs,
        uniform=uniform.numpy(),
        init_episodes=agent.config.init_episodes,
        fill=max(1, agent.config.fill),  # a minibatch needs at least one row
    )


@compiled
def new_row(replay, t, e):
    """Return the index of the row in the `Replay` ring buffer for step ``t`` of the block in environment ``e``."""
    return (replay.position + t * replay.envs + e) % replay.capacity


@compiled
def count_rows(replay, num_steps):
    """Return the number of filled rows of the `Replay` buffer after ``num_steps`` steps of the block."""
    return min(replay.size + num_steps * replay.envs, replay.capacity)


@compiled
def is_learning(replay, episodes, num_rows):
    """Return whether a member has enough experience to learn (mirrors `OffPolicyAgent.learning_members`): after
    ``episodes`` finished episodes, with ``num_rows`` rows in its `Replay` buffer."""
    return episodes >= replay.init_episodes and num_rows >= replay.fill


@compiled
def write_values(row, position, values):
    """Write ``values [N]`` to a ``row`` of a replay buffer from ``position`` on. Return the position after them."""
    for i in range(len(values)):
        row[position + i] = values[i]
    return position + len(values)


@compiled
def sample_minibatch(replay, m, uniform, num_rows, sample):
    """Sample B of the first ``num_rows`` rows of member ``m`` with replacement, by random numbers ``uniform [B]`` in
    [0, 1) (mirrors `ReplayBuffer.sample`). Write them to the columns of ``sample [width, columns]``."""
    for column in range(len(uniform)):
        row = min(np.int64(uniform[column] * np.float32(num_rows)), num_rows - 1)  # rounding may give ``num_rows``
        for i in range(replay.table.shape[2]):
            sample[i, column] = replay.table[row, m, i]


def make_improve(update):  # type: ignore[no-untyped-def]
    """Return the function `improve`, which makes all updates after a step of an `OffPolicyAgent`. It samples the
    minibatches. ``update(agent, work, m, t, i)`` makes update ``i`` of member ``m`` after step ``t`` with the minibatch
    in ``work.sample [width, columns]``, and returns its loss."""

    def improve(agent, work, m, t):
        """Make the updates of member ``m`` after step ``t``, if it may learn (mirrors `OffPolicyAgent.learn`)."""
        replay, num_rows = agent.replay, count_rows(agent.replay, t + 1)
        updates_per_step = replay.uniform.shape[2]
        if is_learning(replay, agent.episodes[m], num_rows):
            for i in range(updates_per_step):
                sample_minibatch(replay, m, replay.uniform[m, t, i], num_rows, work.sample)
                agent.loss[m] = update(agent, work, m, t, i)

    return improve


class Bounds(NamedTuple):
    """The range of continuous actions in the environment's units: arrays ``[A]``, empty if actions are discrete."""

    centre: Array  # middle of the range
    half_range: Array  # half the size of the range
    low: Array
    high: Array


def make_bounds(actions: Discrete | Continuous) -> Bounds:
    """Return the bounds of ``actions``, empty arrays if they are discrete."""
    if isinstance(actions, Discrete):
        no_numbers = np.empty(0, np.float32)
        return Bounds(no_numbers, no_numbers, no_numbers, no_numbers)
    low, high = np.array(actions.low, np.float32), np.array(actions.high, np.float32)
    return Bounds((low + high) / 2, (high - low) / 2, low, high)


@compiled
def nan_to_zero(x):
    """Return the number x, or 0 if it is NaN, the only value that differs from itself."""
    return x if x == x else ZERO


@compiled
def clip_action(bounds, x, i):
    """Clip ``x``, coordinate ``i`` of an action, to its `Bounds`."""
    return min(max(x, bounds.low[i]), bounds.high[i])


@compiled
def scale_action(bounds, x, i):
    """Scale ``x`` in [-1, 1], coordinate ``i`` of an action, to its `Bounds` (mirrors `TwinCriticAgent.clip`)."""
    return clip_action(bounds, bounds.centre[i] + x * bounds.half_range[i], i)


@compiled
def gaussian_action(bounds, scales, x, i):
    """Return coordinate ``i`` of the environment's action for ``x``, an output of a Gaussian policy (mirrors
    `Gaussian.clip`). If ``scales``, it is first scaled from [-1, 1] to its `Bounds`; then it is clipped to them."""
    if scales:
        x = bounds.centre[i] + bounds.half_range[i] * x
    return clip_action(bounds, nan_to_zero(x), i)


class Player(NamedTuple):
    """Greedy policy of M members with a network ``actor``. `decide` computes its actions."""

    actor: Net
    flat_parameters: Array  # [M, D]
    bounds: Bounds
    squashes: bool  # whether continuous actions are tanh of the outputs, scaled to the bounds
    scales: bool  # otherwise, whether the outputs are scaled to the bounds; in both cases actions are clipped
    moments_at: int  # position in ``flat_parameters`` of the moments of observations, -1 without them (`normalize`)
    widest: int  # width of the scratch memory of `decide`
    action_size: int  # length of a continuous action, 0 for discrete actions


def make_actor_player(
    mlp: MLP,
    flat_parameters: Tensor,
    actions: Discrete | Continuous,
    squashes: bool,
    scales: bool = False,
    moments_at: int = -1,
) -> Player:
    """Return the greedy policy of actors with the architecture ``mlp`` for compiled code. It shares the memory of the
    weights ``flat_parameters [M, D]``. `Player` describes the other arguments."""
    actor, bounds = make_net(mlp), make_bounds(actions)
    weights = flat_parameters.detach().numpy()
    return Player(actor, weights, bounds, squashes, scales, moments_at, actor.widest, action_size=len(bounds.low))


def decide(player, m, obs, state, scratch, continuous_action):
    """Return the greedy discrete action of member ``m`` for ``obs [O]``. A continuous action is written to
    ``continuous_action [A]`` instead, in the environment's units, and 0 is returned. Overwrites ``scratch [2,
    widest]``. ``state``, the environment's, is for other kinds of players."""
    row = outputs_row(player.actor, player.flat_parameters[m], obs, scratch, player.moments_at)
    if player.action_size == 0:
        return argmax(scratch[row], player.actor.sizes[-1])
    for i in range(player.action_size):
        if player.squashes:
            continuous_action[i] = scale_action(player.bounds, nan_to_zero(np.tanh(scratch[row, i])), i)
        else:
            continuous_action[i] = gaussian_action(player.bounds, player.scales, scratch[row, i], i)
    return 0
