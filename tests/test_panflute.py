"""PanFlute: its rules by hand, its reward rates, and a plain Python version beside it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from envs.panflute import PanFlute
from envs.tensor import TensorEnvironment
from hashed import (
    check_a_block_is_tick_by_tick,
    check_alone_is_as_in_company,
    check_form,
    check_refused,
    plain_uniform_at,
    random_actions,
    reward_rate,
    seeds_with_event,
)

ROLLOUTS = 5_000


def played(dynamics: PanFlute, actions: list[int], seed: int = 0) -> tuple[list[list[int]], list[float]]:
    environment = TensorEnvironment(dynamics, 1, 1)
    assert not environment.reset(torch.tensor([[seed]])).any()
    steps = [environment.step(torch.tensor([[action]])) for action in actions]
    return [step.obs[0, 0].int().tolist() for step in steps], [step.reward.item() for step in steps]


def test_notes_move_to_the_ends_and_pay_the_step_after() -> None:
    seen, rewards = played(PanFlute(3, spontaneous_reward=False), [2, 1, 0, 0, 2])
    assert seen == [
        [0, 0, 0, 1, 0, 0],
        [0, 1, 0, 0, 1, 0],
        [1, 0, 1, 0, 0, 1],
        [1, 0, 0, 0, 0, 0],
        [0, 0, 0, 1, 0, 0],
    ]
    assert rewards == [0, 0, 0, 1, 0]


def test_chance_that_is_given_decides_on_events() -> None:
    """An event of three pipes has probability 1/9. Action 1 plays the second pipe, places 1 and 2 of 0 to 5."""
    state = torch.tensor([4, 7, 0, 0, 0, 1, 0, 0]).expand(1, 2, 8)
    after, reward, *_ = PanFlute(3).advance(
        state, torch.ones(1, 2, dtype=torch.int64), torch.tensor([[[0.11], [0.12]]])
    )
    assert after.tolist() == [[[4, 8, 1, 1, 1, 0, 1, 1], [4, 8, 0, 1, 0, 0, 1, 0]]] and not reward.any()
    assert PanFlute(3).chances == 1 and PanFlute(3, spontaneous_reward=False).chances == 0


@pytest.mark.parametrize("actions", [[0, 1, 2, 0, 0], [2, 1, 1, 0, 0], [2, 0, 1, 0, 0]])
def test_other_orders_pay_nothing(actions: list[int]) -> None:
    assert not any(played(PanFlute(3, spontaneous_reward=False), actions)[1])


def test_an_event_fills_the_ends_after_the_shift() -> None:
    seeds = seeds_with_event(1, 1 / 9).tolist()
    seed = next(seed for seed in seeds if plain_uniform_at(seed, 2) >= 1 / 9)
    seen, rewards = played(PanFlute(3), [1, 0], seed)
    assert seen == [[1, 1, 1, 0, 0, 1], [1, 0, 1, 0, 0, 0]]
    assert rewards == [0, 1]
    seen, rewards = played(PanFlute(3, spontaneous_reward=False), [1, 0], seed)
    assert seen == [[0, 1, 0, 0, 0, 0], [1, 0, 1, 0, 0, 0]]
    assert rewards == [0, 0]


def script(n: int) -> Tensor:
    """Pipes n - 1, n - 2, ..., 0 over and over: ``[100, ROLLOUTS]``."""
    return (n - 1 - torch.arange(100) % n)[:, None].expand(-1, ROLLOUTS)


def close(rate: float, error: float, published: float) -> bool:
    """Within three standard errors of the difference; the published rate is of as many rollouts, of equal error."""
    return abs(rate - published) < 3 * 2**0.5 * error


@pytest.mark.parametrize(("n", "published"), [(3, 0.1419), (5, 0.0398), (8, 0.01556)])
def test_reward_rate_of_random_play(n: int, published: float) -> None:
    rate, error = reward_rate(PanFlute(n), random_actions(PanFlute(n), 100, ROLLOUTS))
    assert close(rate, error, published)
    # Step t pays for an event at step t - 1, else for the right n notes, from the (n + 1)-th step on.
    exact = (99 / n**2 + (100 - n) * (1 - n**-2) * n**-n) / 100
    assert abs(rate - exact) < 3 * error


@pytest.mark.parametrize(("n", "published"), [(3, 0.4029), (5, 0.2219), (8, 0.1338)])
def test_reward_rate_of_the_script(n: int, published: float) -> None:
    rate, error = reward_rate(PanFlute(n), script(n))
    assert close(rate, error, published)
    paid = (100 - 1) // n
    assert abs(rate - (99 / n**2 + paid * (1 - n**-2)) / 100) < 3 * error
    assert reward_rate(PanFlute(n, spontaneous_reward=False), script(n)[:, :2])[0] == pytest.approx(paid / 100)


def test_event_rate() -> None:
    """Of three pipes the last is never played: its end is reached by events alone."""
    environment, events = TensorEnvironment(PanFlute(3), 1, 1000), []
    environment.reset(torch.arange(1000)[None])
    for _ in range(100):
        events.append(environment.step(torch.zeros(1, 1000, dtype=torch.int64)).obs[0, :, -1])
    drawn, chance = torch.stack(events), 1 / 9
    sigma = (chance * (1 - chance)) ** 0.5
    assert abs(drawn.mean().item() - chance) < 4 * sigma / 100_000**0.5
    for lag in (1, 2, 3):
        both = (drawn[lag:] * drawn[:-lag]).mean().item()
        assert abs(both - chance**2) < 4 * chance / (drawn.numel() - 1000 * lag) ** 0.5


def plain_step(
    pipes: list[list[int]], action: int, seed: int, step: int, spontaneous: bool
) -> tuple[list[list[int]], float]:
    reward = float(all(pipe[-1] for pipe in pipes))
    event = spontaneous and plain_uniform_at(seed, step) < 1 / len(pipes) ** 2
    pipes = [[int(i == action), *pipe[:-1]] for i, pipe in enumerate(pipes)]
    return [[*pipe[:-1], 1] for pipe in pipes] if event else pipes, reward


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.lists(st.integers(0, 7), max_size=40))
def test_every_step_equals_plain_pythons(n: int, spontaneous: bool, seed: int, actions: list[int]) -> None:
    environment = TensorEnvironment(PanFlute(n, spontaneous), 1, 1)
    environment.reset(torch.tensor([[seed]]))
    pipes = [[0] * (i + 1) for i in range(n)]
    for t, number in enumerate(actions, 1):
        action = number % n
        step = environment.step(torch.tensor([[action]]))
        pipes, reward = plain_step(pipes, action, seed, t, spontaneous)
        assert step.obs[0, 0].tolist() == sum(pipes, []) and step.reward.item() == reward
        assert environment.state[0, 0].tolist() == [seed, t, *sum(pipes, [])]


@pytest.mark.parametrize("limit", [None, 40])
def test_form(limit: int | None) -> None:
    check_form(PanFlute(8, max_episode_steps=limit), limit)
    assert PanFlute().spaces.obs_shape == (15,) and PanFlute(8).spaces.obs_shape == (36,)
    assert PanFlute(8).spaces.actions.n == 8


def test_an_episode_is_a_function_of_its_seed_and_actions() -> None:
    check_alone_is_as_in_company(PanFlute(4), 60)
    check_a_block_is_tick_by_tick(PanFlute())


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"num_pipes": 0}, "num_pipes is 0; allowed: integer, at least 1, at most 100"),
        ({"num_pipes": 101}, "num_pipes is 101; allowed: integer, at least 1, at most 100"),
        ({"num_pipes": 2.0}, "num_pipes is 2.0; allowed: integer, at least 1, at most 100"),
        ({"spontaneous_reward": 1}, "spontaneous_reward is 1; allowed: true or false"),
        ({"max_episode_steps": 0}, "max_episode_steps is 0; allowed: integer, at least 1; or null"),
    ],
)
def test_settings_out_of_range(settings: dict, line: str) -> None:
    check_refused(PanFlute, settings, line)
