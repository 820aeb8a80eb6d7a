"""PanFlute: reward rates, and parity with plain Python."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.panflute import PanFlute
from envs.tensor import TensorEnvironment
from hashed import plain_uniform_at, random_actions, reward_rate

ROLLOUTS = 5_000


@pytest.mark.parametrize(("n", "random", "scripted"), [(3, 0.1419, 0.4029), (5, 0.0398, 0.2219), (8, 0.01556, 0.1338)])
def test_reward_rates_match_published(n: int, random: float, scripted: float) -> None:
    """For random actions, and for pipes n - 1, ..., 0 in turn, both with as many rollouts as published."""
    script = (n - 1 - torch.arange(100) % n)[:, None].expand(-1, ROLLOUTS)
    reward_count = (100 - 1) // n
    # Step t pays for an event at step t - 1, else for the right n notes, from the (n + 1)-th step on.
    by_chance, by_notes = 99 / n**2, (100 - n) * (1 - n**-2) * n**-n
    for actions, published, exact in (
        (random_actions(PanFlute(n), 100, ROLLOUTS), random, by_chance + by_notes),
        (script, scripted, by_chance + reward_count * (1 - n**-2)),
    ):
        rate, error = reward_rate(PanFlute(n), actions)
        assert abs(rate - published) < 3 * 2**0.5 * error and abs(rate - exact / 100) < 3 * error
    assert reward_rate(PanFlute(n, spontaneous_reward=False), script[:, :2])[0] == pytest.approx(reward_count / 100)


def plain_step(
    pipes: list[list[int]], action: int, seed: int, step: int, spontaneous: bool
) -> tuple[list[list[int]], float]:
    reward = float(all(pipe[-1] for pipe in pipes))
    event = spontaneous and plain_uniform_at(seed, step) < 1 / len(pipes) ** 2
    pipes = [[int(i == action), *pipe[:-1]] for i, pipe in enumerate(pipes)]
    return [[*pipe[:-1], 1] for pipe in pipes] if event else pipes, reward


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), st.booleans(), st.integers(-(2**63), 2**63 - 1), st.lists(st.integers(0, 7), max_size=40))
def test_steps_equal_plain_python(n: int, spontaneous: bool, seed: int, actions: list[int]) -> None:
    environment = TensorEnvironment(PanFlute(n, spontaneous), 1, 1)
    environment.reset(torch.tensor([[seed]]))
    pipes = [[0] * (i + 1) for i in range(n)]
    for t, number in enumerate(actions, 1):
        action = number % n
        step = environment.step(torch.tensor([[action]]))
        pipes, reward = plain_step(pipes, action, seed, t, spontaneous)
        assert step.obs[0, 0].tolist() == sum(pipes, []) and step.reward.item() == reward
        assert environment.state[0, 0].tolist() == [seed, t, *sum(pipes, [])]
