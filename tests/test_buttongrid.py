"""ButtonGrid: distributions, and parity with plain Python."""

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from envs.gridworld import ButtonGrid
from envs.tensor import TensorEnvironment
from hashed import plain_uniform_at, random_actions, reward_rate


def plain_arrangement(size: int, buttons: int, seed: int, step: int) -> list[int]:
    """Row, column, cells and states from the random numbers of a step."""
    draws = [plain_uniform_at(seed, step * (3 + buttons) + 2 + i) for i in range(2 + buttons)]
    cells: list[int] = []
    for draw, n in zip(draws[2:], range(size**2 - buttons + 1, size**2 + 1), strict=True):
        cell = int(draw * n)
        cells.append(n - 1 if cell in cells else cell)
    return [int(draws[0] * size), int(draws[1] * size), *cells, *[0] * buttons]


PUBLISHED = [(4, 0.01085, 0.00013), (5, 0.00626, 0.00010), (10, 0.00107, 0.00005)]


@pytest.mark.parametrize(("size", "published", "their_error"), PUBLISHED)
def test_random_reward_rate_matches_published(size: int, published: float, their_error: float) -> None:
    dynamics = ButtonGrid(size)
    rate, error = reward_rate(dynamics, random_actions(dynamics, 100, 5_000))
    assert abs(rate - published) < 3 * (error**2 + their_error**2) ** 0.5


def arranged(dynamics: ButtonGrid, within: bool, number: int) -> Tensor:
    """Arrangements ``[number, K']`` of initial states, or after a success in the third step."""
    seeds = torch.arange(number)[None]
    state = dynamics.initial(seeds)
    if within:
        buttons = (state.shape[-1] - 4) // 2
        state = torch.cat((seeds[..., None], torch.full_like(state[..., :1], 2), state[..., 2:]), -1)
        state[..., -buttons:] = 1
        state = dynamics.step(state, torch.zeros_like(seeds))[0]
    assert (state[0, :, 0] == seeds[0]).all() and (state[..., 1] == 3 * within).all()
    return state[0, :, 2:]


@pytest.mark.parametrize("within", [False, True])
def test_arrangements_are_uniform(within: bool) -> None:
    """9 x 36 combinations of player and buttons on a grid of 3 x 3."""
    row, col, first_cell, second_cell, *on = arranged(ButtonGrid(3, 2), within, 50_000).unbind(-1)
    assert not torch.stack(on).any() and (first_cell != second_cell).all()
    low, high = torch.minimum(first_cell, second_cell), torch.maximum(first_cell, second_cell)
    counts = torch.bincount(((row * 3 + col) * 9 + low) * 9 + high, minlength=9**3)
    possible = [(p * 9 + a) * 9 + b for p in range(9) for a, b in combinations(range(9), 2)]
    assert counts[possible].sum() == 50_000
    assert stats.chisquare(counts[possible]).pvalue > 1e-3
    full = arranged(ButtonGrid(3, 9), within, 100)[:, 2:11]
    assert (full.sort(-1).values == torch.arange(9)).all()


def plain_observation(size: int, place: list[int]) -> list[float]:
    row, col, *rest = place
    cells, on = rest[: len(rest) // 2], rest[len(rest) // 2 :]
    states = dict(zip(cells, on, strict=True))
    return [
        float(value)
        for cell in range(size**2)
        for value in (cell == row * size + col, states.get(cell) == 1, states.get(cell) == 0)
    ]


def plain_step(
    dynamics: tuple[int, int, bool, bool], place: list[int], action: int, seed: int, step: int
) -> tuple[list[int], float]:
    size, buttons, spontaneous, activate = dynamics
    row, col, *rest = place
    cells, on = rest[:buttons], rest[buttons:]
    success = all(on)
    row_move, col_move = [(0, 0), (-1, 0), (0, -1), (1, 0), (0, 1)][action]
    new = min(max(row + row_move, 0), size - 1), min(max(col + col_move, 0), size - 1)
    if new != (row, col) and new[0] * size + new[1] in cells:
        on[cells.index(new[0] * size + new[1])] ^= 1
    event = spontaneous and plain_uniform_at(seed, step * (3 + buttons) + 1) < 1 / (10 * size**2)
    if event and activate:
        on = [1] * buttons
    if success or (event and not activate):
        return plain_arrangement(size, buttons, seed, step), float(success)
    return [*new, *cells, *on], 0.0


DYNAMICS = st.tuples(st.integers(2, 5), st.integers(1, 4), st.booleans(), st.booleans())


@settings(max_examples=100, deadline=None)
@given(DYNAMICS, st.integers(-(2**63), 2**63 - 1), st.lists(st.integers(0, 4), max_size=50))
def test_steps_equal_plain_python(dynamics: tuple[int, int, bool, bool], seed: int, actions: list[int]) -> None:
    environment = TensorEnvironment(ButtonGrid(*dynamics), 1, 1)
    place = plain_arrangement(*dynamics[:2], seed, 0)
    assert environment.reset(torch.tensor([[seed]]))[0, 0].tolist() == plain_observation(dynamics[0], place)
    for t, action in enumerate(actions, 1):
        step = environment.step(torch.tensor([[action]]))
        place, reward = plain_step(dynamics, place, action, seed, t)
        assert environment.state[0, 0].tolist() == [seed, t, *place]
        assert step.obs[0, 0].tolist() == plain_observation(dynamics[0], place) and step.reward.item() == reward
