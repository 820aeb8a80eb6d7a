"""Tabular agents in machine code, one member after another: ``act``, ``observe`` and ``learn`` of `Agent`, and greedy
play.

`control.loops.compiled` compiles `choose`, `remember`, `improve` and `decide` into its loops. Importing this requires
Numba.
"""

from typing import Any, NamedTuple

import numpy as np
import torch

from models.agents.tabular.agent import Agent, Greedy
from models.compiled import epsilon
from models.machine import EXACT, INLINE, compiled, exact
from models.vectors import entry

Array = np.ndarray[Any, Any]
BACKUPS = {"max": 0, "redrawn": 1, "executed": 2}
MAX, EXECUTED = 0, 2
IMPROVES = EXACT | INLINE  # how `improve` is compiled
_SIDES = np.array([2, -1], np.float32)  # numbers above and below every epsilon


class Members(NamedTuple):
    """M members before a block of T steps. Arrays share the memory of the agent's tensors; unused arrays are
    empty."""

    flat_parameters: Array  # [M, S * A]
    visits: Array  # [M, S * A]
    planned: Array  # [M, E], the next actions; A if none is chosen yet
    lr: Array  # [M]
    discounts: Array  # [M]
    episodes: Array  # [M], finished
    loss: Array  # [M]
    explore: Array  # [M, T, E], compared with epsilon
    action: Array  # [M, T, E], random actions
    ties: Array  # [M, T, E, A]
    next_explore: Array  # this and the next two: the same for the action of the update
    next_action: Array
    next_ties: Array
    by_episode: Array  # epsilon by number of finished episodes
    by_step: Array  # epsilon at each step of the block; empty if the schedule counts episodes
    states: int
    actions: int
    backup: int  # a value of BACKUPS
    bonus: float
    truncation_ends: bool
    init_episodes: int


class Work(NamedTuple):
    """The current step of one member in E environments."""

    vector: Array  # a continuous action: empty
    cell_indices: Array  # [S], 0, 1, 2, ...
    cell: Array  # [E], cells before the step
    entries: Array  # [E], indices of the values to update
    next_cells: Array  # [E], cells after the step
    reward: Array  # [E]
    discount: Array  # [E]
    done: Array  # [E]


def members(agent: Agent, random_numbers: dict[str, torch.Tensor], steps: int, loss: torch.Tensor) -> Members:
    """Return the state before T = ``steps`` steps with random ``random_numbers``, ``[M, T, ...]`` each."""
    config, empty = agent.config, np.empty((0, 0), np.int64)
    by_episode, by_step = agent._epsilon.upcoming(agent.episodes, agent.steps, steps, agent.envs, agent.budget)
    arrays: dict[str, Array] = {}
    for form in ("", "next "):
        explore = random_numbers.get(form + "explore", random_numbers["explore"])
        # With a constant epsilon, these are bools. True becomes -1, which is below epsilon; False becomes 2.
        arrays[form + "explore"] = (
            _SIDES[explore.numpy().view(np.uint8)] if explore.dtype == torch.bool else explore.numpy()
        )
        arrays[form + "action"] = random_numbers.get(form + "action", random_numbers["action"]).numpy()
        arrays[form + "ties"] = random_numbers.get(form + "ties", torch.empty(0, 0, 0, 0)).numpy()
    return Members._make(
        (
            agent.flat_parameters.numpy(),
            empty if agent.visits is None else agent.visits.numpy(),
            empty if agent.planned is None else agent.planned.numpy(),
            agent._lr,
            agent._discounts,
            agent.episodes.numpy(),
            loss.numpy(),
            *arrays.values(),
            by_episode,
            by_step,
            agent.num_states,
            agent.num_actions,
            BACKUPS[config.backup],
            config.count_bonus or 0.0,
            config.truncation_ends,
            config.init_episodes,
        )
    )


def work(a: Members) -> Work:
    envs = a.explore.shape[2]
    int_arrays, floats = [np.zeros(envs, np.int64) for _ in range(3)], [np.zeros(envs, np.float32) for _ in range(2)]
    cell_indices = np.arange(a.states, dtype=np.float32)
    return Work._make((np.empty(0, np.float32), cell_indices, *int_arrays, *floats, np.zeros(envs, np.bool_)))


class Player(NamedTuple):
    """Greedy policy of M members, for `decide`."""

    flat_parameters: Array  # [M * S, A]
    cell_indices: Array  # [S], 0, 1, 2, ...
    widest: int
    vector: int


def player(policy: Greedy) -> Player:
    return Player(policy.rows, policy.row_lookup.cell_indices, 1, 0)


@compiled
def _cell(obs, cell_indices):
    """Return the cell of a one-hot observation (`RowLookup`). A sum of integers is exact in any order."""
    total = np.float32(0)
    for k in range(len(cell_indices)):
        total += obs[k] * cell_indices[k]
    return int(total)


@exact
def _at(state, obs, cell_indices):
    """Return the current cell. On a map, ``state`` is the cell's number; otherwise compute it from ``obs``."""
    return int(state[0]) if len(state) == 1 else _cell(obs, cell_indices)


@exact
def _first(flat_parameters, row, first, actions):
    """Return the first of the best actions, according to the values of ``row`` from column ``first`` on. NaN counts as
    the largest number (`better`). Without NaN there are no branches, because processors predict them badly here."""
    best, top = 0, entry(flat_parameters, row, first)
    no_nan = top == top
    for k in range(1, actions):
        value = entry(flat_parameters, row, first + k)
        no_nan = no_nan & (value == value)
        greater = value > top
        best, top = k if greater else best, value if greater else top
    if not no_nan:
        best = 0
        while entry(flat_parameters, row, first + best) == entry(flat_parameters, row, first + best):
            best += 1
    return best


@exact
def _best(flat_parameters, actions, ties, m, t, e, cell):
    """Return the best action in one cell, as `best_actions` does."""
    first = cell * actions
    best = _first(flat_parameters, m, first, actions)
    for k in range(ties.shape[3]):
        if flat_parameters[m, first + k] == flat_parameters[m, first + best] and ties[m, t, e, k] > ties[m, t, e, best]:
            best = k
    return best


def choose(a, w, m, t, e, obs, state):
    """Return the exploring action in environment e (`Agent.act`)."""
    w.cell[e] = _at(state, obs, w.cell_indices)
    if a.backup == EXECUTED and a.planned[m, e] < a.actions:
        return a.planned[m, e]
    if a.explore[m, t, e] < epsilon(a, m, t):
        return a.action[m, t, e]
    return _best(a.flat_parameters, a.actions, a.ties, m, t, e, w.cell[e])


def remember(a, w, m, t, e, obs, action, next_obs, state, reward, discount, done):
    """Store the step of environment e in ``w`` (`Agent.observe`)."""
    w.entries[e], w.next_cells[e] = w.cell[e] * a.actions + action, _at(state, next_obs, w.cell_indices)
    w.reward[e], w.discount[e] = reward, np.float32(0) if done and a.truncation_ends else discount
    w.done[e] = done


def improve(a, w, m, t):
    """Update a value for each environment, after step t (`Agent.learn`)."""
    envs = len(w.entries)
    if len(a.visits):
        for e in range(envs):
            a.visits[m, w.entries[e]] += 1
        for e in range(envs):
            w.reward[e] += np.float32(a.bonus / (np.sqrt(a.visits[m, w.entries[e]]) + 1e-9))
    for e in range(envs):
        cell = w.next_cells[e]
        if a.backup == MAX:
            action = _best(a.flat_parameters, a.actions, a.next_ties, m, t, e, cell)
        else:
            explores = a.next_explore[m, t, e] < epsilon(a, m, t)
            action = (
                a.next_action[m, t, e] if explores else _best(a.flat_parameters, a.actions, a.next_ties, m, t, e, cell)
            )
            if a.backup == EXECUTED:
                a.planned[m, e] = a.actions if w.done[e] else action
        old = a.flat_parameters[m, w.entries[e]]
        discounted_q = w.discount[e] * a.discounts[m] * a.flat_parameters[m, cell * a.actions + action]
        error = discounted_q + w.reward[e] - old
        a.loss[m] = error * error
        if a.episodes[m] >= a.init_episodes:
            a.flat_parameters[m, w.entries[e]] = error * a.lr[m] + old
        else:
            a.loss[m] = np.nan


def decide(p, m, obs, state, rows, vector):
    """Return the greedy action of member m (`Greedy.act`)."""
    return _first(
        p.flat_parameters, m * len(p.cell_indices) + _at(state, obs, p.cell_indices), 0, p.flat_parameters.shape[1]
    )
