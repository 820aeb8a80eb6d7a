"""Ornstein-Uhlenbeck action noise: against a plain loop, and in agents."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import test_sac
import test_td3
from models.action_noise import OrnsteinUhlenbeck
from models.off_policy import TwinCriticAgent
from rounding import FUNCTION, UNIT, assert_near, gamma
from test_td3 import OBS, live

DRIFTING: dict[str, Any] = {"noise_type": "ornstein-uhlenbeck", "num_envs": 2}
AGENTS = {
    "TD3": lambda **changes: test_td3.make_agent(
        dataclasses.replace(test_td3.NOW, **(DRIFTING | {"action_std": 0.7} | changes))
    ),
    "SAC": lambda **changes: test_sac.make_agent(dataclasses.replace(test_sac.NOW, **(DRIFTING | changes))),
}


# A level decays by 0.9985 a step and rounds some four times, so errors add up to some 4 / 0.0015 roundings of levels
# that, with a deviation of 1.83, stay below 8.
LEVEL = gamma(4 / 0.0015) * 8


def by_hand(normal: np.ndarray, done: np.ndarray, sigma: float) -> np.ndarray:
    """The noise of ``normal [T]`` as stable-baselines3 computes it, reset after each ``done [T]``."""
    levels, level = [], 0.0
    for number, end in zip(normal, done, strict=True):
        level = level + 0.15 * (0.0 - level) * 0.01 + sigma * np.sqrt(0.01) * number
        levels.append(level)
        level = 0.0 if end else level
    return np.array(levels)


def test_process_equals_plain_loop() -> None:
    g = torch.Generator().manual_seed(0)
    normal, done = torch.randn(300, 3, 2, 4, generator=g), torch.rand(300, 3, 2, generator=g) < 0.02
    process, noises = OrnsteinUhlenbeck(3, 2, 4), []
    for numbers, end in zip(normal, done, strict=True):
        noises.append(0.6 * process.next(numbers))
        process.reset_finished(end)
    actual, indices = torch.stack(noises).double(), [(m, e, a) for m in range(3) for e in range(2) for a in range(4)]
    for m, e, a in indices:
        expected = by_hand(normal[:, m, e, a].double().numpy(), done[:, m, e].numpy(), 0.6)
        assert_near(actual[:, m, e, a], expected, LEVEL * 0.6)
    assert done.any(0).all()


def test_process_deviation() -> None:
    process, normal = OrnsteinUhlenbeck(1, 4000, 1), torch.Generator().manual_seed(1)
    deviations = [process.next(torch.randn(1, 4000, 1, generator=normal)).std().item() for _ in range(2000)]
    assert [deviations[0], deviations[99], deviations[-1]] == pytest.approx([0.1, 0.93, 1.83], rel=0.04)


@pytest.mark.parametrize("name", AGENTS)
def test_agents_explore_with_noise(name: str) -> None:
    """With weights of 0 TD3's action is the noise and SAC's is tanh of it."""
    drifting, white = AGENTS[name](), AGENTS[name](noise_type="normal")
    drifting.flat_parameters.data.zero_()
    raw_actions, normal, ends = [], [], []
    for step in range(120):
        for agent in (drifting, white):
            live(agent, 1, learns=False, first=step)
        raw_actions.append(drifting.action_vectors)
        normal.append(white.random_numbers["explore"])
        ends.append(episode_ends(drifting, step))
    actions, numbers, done = (torch.stack(series).double().numpy() for series in (raw_actions, normal, ends))
    for m, e, a in np.ndindex(actions.shape[1:]):
        noise = by_hand(numbers[:, m, e, a], done[:, m, e] > 0, 0.7 if name == "TD3" else 1.0)
        expected = np.clip(noise, -1, 1) if name == "TD3" else np.tanh(noise)
        # The first step, before anything is remembered, is at random.
        assert_near(actions[1:, m, e, a], expected[1:], LEVEL + FUNCTION * UNIT)
    assert done.any(0).all()


def episode_ends(agent: TwinCriticAgent, step: int) -> Tensor:
    """Which episodes ``[M, E]`` `live` ends at a step."""
    generators = [torch.Generator().manual_seed(1000 * seed + step) for seed in agent.seeds]
    samples = [
        (torch.randn(2, agent.envs, OBS, generator=g), torch.rand(2, agent.envs, generator=g)) for g in generators
    ]
    return torch.stack([uniform[1] < 0.1 for _, uniform in samples])
