"""For tests of environments whose chance is a hash of seed and step: the hash in plain Python, and shared checks."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from envs.seeded import uniform_at
from envs.tensor import Dynamics, TensorEnvironment
from models.settings import SettingError

_GOLDEN = 0x9E3779B97F4A7C15


def _mix(number: int) -> int:
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB % 2**64
    return number ^ (number >> 31)


def plain_uniform_at(seed: int, column: int) -> float:
    """`envs.seeded.uniform_at` of one seed, any integer, and one column."""
    own = _mix((seed + _GOLDEN) % 2**64)
    return (_mix((_mix((own + 3) % 2**64) + (column + 1) * _GOLDEN) % 2**64) >> 11) / 2**53


def seeds_with_event(column: int, chance: float) -> Tensor:
    """Those of the first 100,000 seeds whose number of that column is below ``chance``."""
    seeds = torch.arange(100_000)
    return seeds[uniform_at(seeds, column) < chance]


def random_actions(dynamics: Dynamics, *shape: int, seed: int = 0) -> Tensor:
    return torch.randint(dynamics.spaces.actions.n, shape, generator=torch.Generator().manual_seed(seed))


def reward_rate(dynamics: Dynamics, actions: Tensor) -> tuple[float, float]:
    """Mean reward a step of the actions ``[T, E]`` from the reset on, and its standard error over the E rollouts."""
    environment = TensorEnvironment(dynamics, 1, actions.shape[1])
    environment.reset(torch.arange(actions.shape[1])[None])
    rates = torch.stack([environment.step(action[None]).reward[0] for action in actions]).double().mean(0)
    return rates.mean().item(), rates.std().item() / len(rates) ** 0.5


def check_alone_is_as_in_company(dynamics: Dynamics, steps: int) -> None:
    """Some of ``[5, 7]`` episodes again by themselves, twice over, one of them after another episode."""
    seeds, actions = torch.arange(35).view(5, 7) - 9, random_actions(dynamics, steps, 5, 7)
    batch = TensorEnvironment(dynamics, 5, 7)
    alone = {(m, e): TensorEnvironment(dynamics, 1, 1) for m, e in [(0, 0), (2, 3), (4, 6)]}
    alone[2, 3].reset(torch.tensor([[77]]))
    alone[2, 3].step(actions[0, :1, :1])
    start = batch.reset(seeds)
    for (m, e), one in alone.items():
        assert torch.equal(one.reset(seeds[m : m + 1, e : e + 1])[0, 0], start[m, e])
    for action in actions:
        together = batch.step(action)
        for (m, e), one in alone.items():
            single = one.step(action[m : m + 1, e : e + 1])
            assert torch.equal(one.state[0, 0], batch.state[m, e])
            for key in ("obs", "reward", "terminated", "truncated"):
                assert torch.equal(getattr(single, key)[0, 0], getattr(together, key)[m, e])
    assert (batch.state[..., 0] == seeds).all() and (batch.state[..., 1] == steps).all()
    # Company of episodes that differ, or the comparison would say nothing.
    assert len(batch.state[..., 2:].flatten(0, 1).unique(dim=0)) > 20


def check_a_block_is_tick_by_tick(dynamics: Dynamics) -> None:
    seeds = torch.arange(30).view(5, 3, 2) * 7919
    block = dynamics.initial(seeds)
    assert torch.equal(dynamics.observe(block), torch.stack([dynamics.observe(state) for state in block]))
    for tick, state in zip(seeds, block, strict=True):
        assert torch.equal(dynamics.initial(tick), state)
        one, two = TensorEnvironment(dynamics, 3, 2), TensorEnvironment(dynamics, 3, 2)
        assert torch.equal(one.set_state(state), two.reset(tick))
        action = torch.ones(3, 2, dtype=torch.int64)
        assert torch.equal(one.step(action).obs, two.step(action).obs)


def check_form(dynamics: Dynamics, limit: int | None) -> None:
    """Shapes and dtypes, zeros and ones, no end but the limit, and nothing written into."""
    environment = TensorEnvironment(dynamics, 2, 3)
    assert dynamics.spaces.max_episode_steps == limit and dynamics.select(torch.tensor([1])) is dynamics
    kept = [environment.reset(torch.arange(6).view(2, 3)), environment.state]
    before = [each.clone() for each in kept]
    assert kept[0].shape == (2, 3, *dynamics.spaces.obs_shape) and kept[0].dtype == dynamics.spaces.obs_dtype
    for t in range(1, 101):
        step = environment.step(random_actions(dynamics, 2, 3, seed=t))
        assert (step.obs.shape, step.obs.dtype) == (kept[0].shape, torch.float32)
        assert ((step.obs == 0) | (step.obs == 1)).all()
        assert environment.state.dtype == torch.int64 and environment.state.shape == kept[1].shape
        assert (step.reward.shape, step.reward.dtype) == ((2, 3), torch.float32)
        assert step.terminated.dtype == torch.bool and not step.terminated.any() and step.discount is None
        assert (step.truncated == (limit is not None and t >= limit)).all()
    assert all(torch.equal(one, other) for one, other in zip(before, kept, strict=True))


def check_refused(kind: Callable[..., Dynamics], settings: dict[str, Any], line: str) -> None:
    """That these settings, the first of them, are refused in that line."""
    with pytest.raises(SettingError) as error:
        kind(**settings)
    assert str(error.value) == line and error.value.name == next(iter(settings))
