"""Tabular agents in machine code, one member after another: ``act``, ``observe`` and ``learn`` of `Agent`, and greedy
play.

`control.loops.compiled` compiles `choose`, `remember`, `improve` and `decide` into its loops. Its docstring describes
the arguments of all functions here.
"""

from collections import namedtuple
from typing import NamedTuple

import numpy as np
import torch

from models.agents.tabular.agent import Agent
from models.compiled import argmax, epsilon, make_record
from models.contract import AgentPolicy
from models.machine import Array, compiled, exact

MAX, REDRAWN, EXECUTED = range(3)  # indices of the choices of the setting ``backup``


class Members(NamedTuple):
    """M members before a block of T steps in E environments, with S cells and A actions. Arrays share the memory of the
    agent's tensors; unused arrays are empty."""

    flat_parameters: Array  # [M, S * A], action values
    visits: Array  # [M, S * A], number of visits, for the count bonus
    planned: Array  # [M, E], the next actions; A if none is chosen yet
    cell: Array  # [M, E], cells before the current step
    lr: Array  # [M], learning rates
    lr_factor: Array  # [T], factors on the learning rates
    discount: Array  # [M], discounts of later rewards
    episodes: Array  # [M], number of finished episodes
    loss: Array  # [M], squared TD error of the latest update
    explore: Array  # [M, T, E], uniform numbers, compared with epsilon
    action: Array  # [M, T, E], random actions
    ties: Array  # [M, T, E, A], uniform numbers that break ties
    next_explore: Array  # ``explore`` for the action of the update
    next_action: Array  # ``action`` for the action of the update
    next_ties: Array  # ``ties`` for the action of the update
    epsilon_by_episode: Array  # epsilon by number of finished episodes; empty if ``epsilon_by_step`` is not
    epsilon_by_step: Array  # epsilon at each step of the block; empty if the schedule counts episodes
    num_states: int  # S, number of cells
    num_actions: int  # A
    backup: int  # `MAX`, `REDRAWN` or `EXECUTED`
    count_bonus: float
    truncation_ends: bool
    init_episodes: int  # finished episodes before the first update


# Scratch memory of one member, whose fields `make_work` describes.
Work = namedtuple("Work", "continuous_action cell_indices entries next_cells reward discount done")


def make_members(agent: Agent, random_numbers: dict[str, torch.Tensor], steps: int, loss: torch.Tensor) -> Members:
    """Return `Members` for a block of T = ``steps`` steps with ``random_numbers``, ``[M, T, ...]`` each. Compiled code
    writes into ``loss [M]``."""
    # Arrays of the same types in place of random numbers that the settings do not need: ties, and SARSA's next actions.
    no_ties = torch.empty(0, 0, 0, 0)
    placeholders = {"next_explore": random_numbers["explore"], "next_action": random_numbers["action"]}
    placeholders |= {"ties": no_ties, "next_ties": no_ties}
    unused_array = np.empty((0, 0), np.int64)
    return make_record(  # type: ignore[no-any-return]
        Members,
        agent,
        placeholders | random_numbers,
        visits=unused_array if agent.visits is None else agent.visits.numpy(),
        planned=unused_array if agent.planned is None else agent.planned.numpy(),
        cell=np.zeros((agent.members, agent.envs), np.int64),
        loss=loss.numpy(),
        lr_factor=np.array([agent.lr_factor_at(agent.steps + t) for t in range(steps)], np.float32),
        **agent.upcoming_epsilon(steps),
        count_bonus=float(agent.config.count_bonus),  # float64, as in torch
    )


def make_work(agent: Members) -> Work:
    """Allocate memory for the current step of one member in E environments."""
    envs = agent.explore.shape[2]
    return Work(
        continuous_action=np.empty(0, np.float32),  # actions are discrete
        cell_indices=np.arange(agent.num_states, dtype=np.float32),  # like the observations that multiply them
        entries=np.zeros(envs, np.int64),  # indices in [0, S * A) of the values to update
        next_cells=np.zeros(envs, np.int64),  # cells after the step
        reward=np.zeros(envs, np.float32),
        discount=np.zeros(envs, np.float32),
        done=np.zeros(envs, np.bool_),
    )


class Player(NamedTuple):
    """Greedy policy of M members, for `decide`."""

    rows: Array  # [M * S, A], action values of the S cells of member 0, then of member 1, and so on
    cell_indices: Array  # [S], 0, 1, 2, ...
    widest: int  # width of the scratch memory of `decide`: not used
    action_size: int  # length of a continuous action: 0


def make_player(policy: AgentPolicy) -> Player:
    """Return the greedy ``policy`` for compiled code."""
    num_states = policy.agent.num_states
    rows = policy.flat_parameters.detach().numpy().reshape(policy.members * num_states, -1)
    return Player(rows, np.arange(num_states, dtype=np.float32), widest=1, action_size=0)


@compiled
def _one_hot_cell(obs, cell_indices):
    """Return the cell of a one-hot observation ``obs [S]``. ``cell_indices [S]`` are 0, 1, 2, ..., so the sum of
    products is the cell, exactly in any order of the sum."""
    total = np.float32(0)
    for i in range(len(cell_indices)):
        total += obs[i] * cell_indices[i]
    return int(total)


@exact
def _cell(state, obs, cell_indices):
    """Return the index of the agent's cell. A ``state [K]`` of one number is the cell itself, as in a grid world.
    Otherwise the cell is computed from the one-hot ``obs [S]`` and ``cell_indices [S]``, 0, 1, 2, ..."""
    return int(state[0]) if len(state) == 1 else _one_hot_cell(obs, cell_indices)


@exact
def _greedy_action(values, num_actions, ties, m, t, e, cell):
    """Return the best of the ``num_actions`` actions of member ``m`` in ``cell`` according to ``values [M, S * A]``
    (`best_actions`). Of equally good actions, it is the action with the largest tie breaker in ``ties [M, T, E, A]`` at
    step ``t`` in environment ``e``, or the first if ``ties`` is empty."""
    cell_values = values[m, cell * num_actions : (cell + 1) * num_actions]
    best = argmax(cell_values, num_actions)
    for action in range(ties.shape[3]):
        if cell_values[action] == cell_values[best] and ties[m, t, e, action] > ties[m, t, e, best]:
            best = action
    return best


def choose(agent, work, m, t, e, obs, state):
    """Return the planned action, if there is one, else an epsilon-greedy action (`Agent.act`). The current cell, which
    is the row of the table, is kept in ``agent.cell[m, e]``."""
    agent.cell[m, e] = _cell(state, obs, work.cell_indices)
    if agent.backup == EXECUTED and agent.planned[m, e] < agent.num_actions:  # ``num_actions``: none is planned
        return agent.planned[m, e]
    if agent.explore[m, t, e] < epsilon(agent, m, t):
        return agent.action[m, t, e]
    return _greedy_action(agent.flat_parameters, agent.num_actions, agent.ties, m, t, e, agent.cell[m, e])


def remember(agent, work, m, t, e, obs, action, next_obs, state, reward, discount, done):
    """Store the step in the arrays of ``work``, for `improve` (`Agent.observe`). ``state`` is after the step."""
    work.entries[e] = agent.cell[m, e] * agent.num_actions + action
    work.next_cells[e] = _cell(state, next_obs, work.cell_indices)
    work.reward[e] = reward
    work.discount[e] = np.float32(0) if done and agent.truncation_ends else discount
    work.done[e] = done


def improve(agent, work, m, t):
    """Update the table by the step in each environment, which is in ``work`` (`Agent.learn`). Before the member has
    finished ``init_episodes`` episodes, no value changes, and ``agent.loss[m]`` is NaN."""
    envs = len(work.entries)
    if len(agent.visits):  # count bonus
        for e in range(envs):
            agent.visits[m, work.entries[e]] += 1
        for e in range(envs):
            work.reward[e] += np.float32(agent.count_bonus / (np.sqrt(agent.visits[m, work.entries[e]]) + 1e-9))
    values, num_actions = agent.flat_parameters, agent.num_actions
    for e in range(envs):
        cell = work.next_cells[e]
        if agent.backup != MAX and agent.next_explore[m, t, e] < epsilon(agent, m, t):
            action = agent.next_action[m, t, e]
        else:  # ``next_ties`` is empty with `MAX`
            action = _greedy_action(values, num_actions, agent.next_ties, m, t, e, cell)
        if agent.backup == EXECUTED:  # ``num_actions``: none is planned
            agent.planned[m, e] = num_actions if work.done[e] else action
        old_value = values[m, work.entries[e]]
        discounted_q = work.discount[e] * agent.discount[m] * values[m, cell * num_actions + action]
        error = discounted_q + work.reward[e] - old_value
        if agent.episodes[m] >= agent.init_episodes:
            agent.loss[m] = error * error
            values[m, work.entries[e]] = error * (agent.lr[m] * agent.lr_factor[t]) + old_value
        else:
            agent.loss[m] = np.nan


def decide(player, m, obs, state, scratch, continuous_action):
    """Return the best action (`Agent.policy_actions`)."""
    row = m * len(player.cell_indices) + _cell(state, obs, player.cell_indices)
    return argmax(player.rows[row], player.rows.shape[1])
