"""Probe environments: dynamics and true values."""

import pytest
import torch

from envs.make import make_environment
from envs.names import GAMES
from helpers import seeds_of
from probes import PROBES, TARGET


def best_actions(environment, obs):
    side = obs[..., 0] if environment.dynamics.probe.shows == "sign" else torch.ones(obs.shape[:-1])
    return (TARGET * side)[..., None] if environment.dynamics.probe.continuous else (side > 0).long()


def random_actions(environment, generator):
    shape = (environment.members, environment.envs)
    if environment.dynamics.probe.continuous:
        return torch.rand(*shape, 1, generator=generator) * 2 - 1
    return torch.randint(2, shape, generator=generator)


def play(environment, choose, first_seed=0):
    """Observations before each step and rewards, both ``[T, M, E]``, and the last step."""
    obs = environment.reset(seeds_of(environment.members, environment.envs, first_seed))
    observations, rewards = [], []
    while True:
        observations.append(obs[..., 0])
        step = environment.step(choose(obs))
        rewards.append(step.reward)
        obs = step.obs
        if step.done.all():
            return torch.stack(observations), torch.stack(rewards), step
        assert not step.done.any()


@pytest.mark.parametrize("name", PROBES)
def test_best_and_random_returns(name):
    environment = make_environment(name, 2, 4000)
    _, best, step = play(environment, lambda obs: best_actions(environment, obs))
    assert best.sum(0).mean().item() == pytest.approx(environment.dynamics.probe.best_return, abs=0.05)
    assert best.sum(0).max().item() == GAMES[name].max_return == environment.spaces.max_return
    assert len(best) == environment.spaces.max_episode_steps
    assert step.truncated.all()  # the limit is the length
    assert torch.equal(step.terminated, torch.full_like(step.terminated, not environment.dynamics.probe.truncates))
    generator = torch.Generator().manual_seed(0)
    _, chance, _ = play(environment, lambda obs: random_actions(environment, generator))
    assert chance.sum(0).mean().item() == pytest.approx(environment.dynamics.probe.random_return, abs=0.08)
    if name in ("probe-4", "probe-5", "probe-truncated"):
        assert not play(environment, lambda obs: 1 - best_actions(environment, obs))[1].any()


@pytest.mark.parametrize("name", PROBES)
def test_values_solve_bellman_equation(name):
    environment, discount, probe = make_environment(name, 1, 8), 0.9, PROBES[name]
    observations, rewards, step = play(environment, lambda obs: best_actions(environment, obs))
    value = probe.value(step.obs[..., 0], discount) if probe.truncates else torch.zeros(1, 8)
    for obs, reward in zip(observations.flip(0), rewards.flip(0), strict=True):
        value = reward + discount * value
        assert torch.allclose(value, probe.value(obs, discount))
