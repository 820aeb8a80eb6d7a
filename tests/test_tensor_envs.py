"""Tensor environments: parity with Gymnasium, independence of members, seeded random numbers, and repeated actions."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from envs import seeded
from envs.classic_control import CartPole
from envs.gymnasium_adapter import GymnasiumEnvironment
from envs.make import make_dynamics, make_environment
from envs.names import GAMES, resolve
from envs.tensor import TensorEnvironment
from envs.wrappers import RepeatAction
from hashed import random_actions
from helpers import seeds_of
from models.spaces import Discrete
from understudy import hashing

GAME_IDS = {
    "cartpole": "CartPole-v1",
    "cartpole-200": "CartPole-v0",
    "acrobot": "Acrobot-v1",
    "mountaincar": "MountainCar-v0",
    "mountaincar-continuous": "MountainCarContinuous-v0",
    "pendulum": "Pendulum-v1",
}


def make_tensor_env(name: str, members: int = 1, envs: int = 1, **limit: Any) -> TensorEnvironment:
    environment = make_environment(name, members, envs, **limit)
    assert isinstance(environment, TensorEnvironment)
    return environment


def make_gym_env(name: str, state: Tensor | None = None, **limit: Any) -> gym.Env:
    """Gymnasium's environment at the start of an episode, in ``state`` if given."""
    env = gym.make(GAME_IDS[name], disable_env_checker=True, **limit)
    env.reset(seed=0)
    if state is not None:
        set_gym_state(env, state)
    return env


def set_gym_state(env: gym.Env, state: Tensor) -> None:
    inner: Any = env.unwrapped
    inner.state = state[: len(inner.state)].numpy().copy()


def same_state(name: str, state: Tensor, gym_env: gym.Env) -> None:
    """States equal up to rounding, angles of Acrobot up to whole turns."""
    gym_state = np.array(gym_env.unwrapped.state)  # type: ignore[attr-defined]
    difference = state[: len(gym_state)].numpy() - gym_state
    if name == "acrobot":
        difference[:2] = [math.remainder(angle, 2 * math.pi) for angle in difference[:2]]
    assert (np.abs(difference) <= 1e-12 * np.maximum(1, np.abs(gym_state))).all()


def step_both(name: str, environment: TensorEnvironment, gym_env: gym.Env, action: Tensor) -> bool:
    """One step of both, which must agree; returns whether the episode ended."""
    discrete = isinstance(environment.spaces.actions, Discrete)
    obs, gym_reward, *flags = gym_env.step(int(action) if discrete else action[0, 0].numpy())[:4]
    step = environment.step(action)
    same_state(name, environment.state[0, 0], gym_env)
    step_obs, reward = step.obs[0, 0].numpy(), np.float32(gym_reward)
    assert step_obs.dtype == obs.dtype == np.float32
    # One ulp, or float64 rounding of numbers of about 1.
    assert (np.abs(step_obs - obs) <= np.maximum(np.spacing(np.abs(obs)), 1e-12)).all()
    assert step.reward.dtype == torch.float32
    assert abs(step.reward.numpy()[0, 0] - reward) <= (0 if discrete else np.spacing(abs(reward)))
    assert [bool(step.terminated), bool(step.truncated)] == flags and step.discount is None
    return bool(step.done)


def number(size: float) -> st.SearchStrategy[float]:
    return st.floats(-size, size)


CAR = st.tuples(st.floats(-1.2, 0.6), number(0.07))
STATES = {
    "cartpole": st.tuples(number(2.4), number(10), number(0.21), number(10)),
    "acrobot": st.tuples(number(math.pi), number(math.pi), number(4 * math.pi), number(9 * math.pi)),
    "mountaincar": CAR,
    "mountaincar-continuous": CAR,
    "pendulum": st.tuples(number(50), number(8)),
}


@pytest.mark.parametrize("name", STATES)
def test_one_step_equals_gymnasium(name: str) -> None:
    """From any state, with torques beyond the bounds of the pendulum."""
    environment, gym_env = make_tensor_env(name), make_gym_env(name)
    actions = environment.spaces.actions
    discrete = isinstance(actions, Discrete)
    choices = st.integers(0, actions.n - 1) if isinstance(actions, Discrete) else number(1 if "car" in name else 2.5)

    @settings(max_examples=200, deadline=None)
    @given(STATES[name], choices)
    def check(values: tuple[float, ...], action: float) -> None:
        gym_env.reset(seed=0)
        state = torch.tensor(values, dtype=environment.state.dtype)
        set_gym_state(gym_env, state)
        environment.set_state(state[None, None])
        step_both(name, environment, gym_env, torch.tensor([[action]] if discrete else [[[action]]]))

    check()


@settings(max_examples=100, deadline=None)
@given(STATES["cartpole"], st.integers(0, 1), st.lists(st.floats(0.1, 20), min_size=5, max_size=5))
def test_cartpole_physics_equal_gymnasium(state: tuple[float, ...], action: int, numbers: list[float]) -> None:
    names = ("gravity", "cart_mass", "pole_mass", "half_length", "force")
    physics = dict(zip(names, numbers, strict=True))
    dynamics, gym_env = CartPole(**physics), make_gym_env("cartpole")
    gym_env.reset(seed=0)
    cart: Any = gym_env.unwrapped
    cart.gravity, cart.masscart, cart.masspole, cart.length, cart.force_mag = numbers
    cart.total_mass, cart.polemass_length = cart.masscart + cart.masspole, cart.masspole * cart.length
    cart.state = np.array(state)
    _, reward, terminated, _, _ = gym_env.step(action)
    next_state, *_ = result = dynamics.step(
        torch.tensor(state, dtype=torch.float64)[None, None], torch.tensor([[action]])
    )
    same_state("cartpole", next_state[0, 0], gym_env)
    assert (result[1].item(), result[2].item()) == (reward, terminated)


def test_physics_spread_is_log_uniform() -> None:
    varied = CartPole(physics_spread=2.0, half_length=0.8)
    starts = varied.initial(torch.arange(4000)[None])
    middle = torch.tensor([9.8, 1.0, 0.1, 0.8], dtype=torch.float64)
    factors = (starts[0, :, 4:] / middle).log() / math.log(2)
    for column in factors.T:
        assert stats.kstest(column.numpy(), stats.uniform(-1, 2).cdf).pvalue > 1e-3
    assert np.abs(np.corrcoef(factors.T.numpy()) - np.eye(4)).max() < 0.06
    assert torch.equal(varied.observe(starts), starts[..., :4].float())
    state, actions = starts[:, :5], torch.tensor([[0, 1, 1, 0, 1]])
    next_state = varied.step(state, actions)[0]
    assert torch.equal(next_state[..., 4:], state[..., 4:])
    for i, episode_physics in enumerate(starts[0, :5, 4:].tolist()):
        physics = dict(zip(("gravity", "cart_mass", "pole_mass", "half_length"), episode_physics, strict=True))
        alone = CartPole(**physics).step(state[:, i : i + 1, :4], actions[:, i : i + 1])[0]
        torch.testing.assert_close(alone[0, 0], next_state[0, i, :4], rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(("column", "bound"), [(0, 2.4), (2, 12 * 2 * math.pi / 360)])
@pytest.mark.parametrize("side", [-1, 1])
def test_cartpole_bounds_are_inclusive(column: int, bound: float, side: int) -> None:
    for size, out in ((np.nextafter(bound, 0), False), (bound, False), (np.nextafter(bound, 9), True)):
        state = torch.zeros(4, dtype=torch.float64)
        state[column] = side * size
        environment, gym_env = make_tensor_env("cartpole"), make_gym_env("cartpole", state)
        environment.set_state(state[None, None])
        assert environment.step(torch.tensor([[1]])).terminated.item() is gym_env.step(1)[2] is out


def choose_action(policy: str, environment: TensorEnvironment, generator: torch.Generator) -> Tensor:
    """A random action, or a good one, which accelerates in the direction of movement."""
    state, actions = environment.state[0, 0], environment.spaces.actions
    if isinstance(actions, Discrete):
        if policy == "random":
            return torch.randint(actions.n, (1, 1), generator=generator)
        return torch.tensor([[2 if state[1] >= 0 else 0]])
    high = actions.high[0]
    if policy == "random":
        return (torch.rand(1, 1, 1, generator=generator) * 2 - 1) * high
    return torch.full((1, 1, 1), math.copysign(high, state[1]) * (0.9 if state[0] < 0 else 1.0))


def test_last_step_may_terminate_and_truncate() -> None:
    environment = make_environment("cartpole", 1, 1, time_limit=1)
    state = torch.tensor([2.39, 10.0, 0.0, 0.0], dtype=torch.float64)
    environment.set_state(state[None, None])
    gym_env = make_gym_env("cartpole", state, max_episode_steps=1)
    assert gym_env.step(1)[2:4] == (True, True)
    step = environment.step(torch.tensor([[1]]))
    assert step.terminated.item() and step.truncated.item()


def test_inactive_rows_do_not_change() -> None:
    environment = make_tensor_env("acrobot", 2, 3, time_limit=30)
    first_obs = environment.reset(seeds_of(2, 3))
    active = torch.tensor([[True, False, True], [False, True, False]])
    state, age = environment.state, environment.age
    for action in random_actions(environment.dynamics, 30, 2, 3):
        step = environment.step(action, active)
        assert torch.equal(environment.state[~active], state[~active]) and not environment.age[~active].any()
        assert torch.equal(step.obs[~active], first_obs[~active])
        assert not step.reward[~active].any() and not step.done[~active].any()
    assert (environment.state != state).any(-1)[active].all() and (environment.age == age + 30 * active).all()
    new_obs = environment.reset(seeds_of(2, 3, 50), mask=~active)
    assert torch.equal((new_obs != step.obs).any(-1), ~active)
    assert torch.equal(environment.age, 30 * active)
    assert not environment.step(action, ~active).done[active].any()  # though they are at the time limit


@pytest.mark.parametrize(
    ("name", "best"), [("procmaze", -1.0), ("buttongrid", None), ("cartpole", None), ("mountaincar", None)]
)
def test_time_limit_0_means_no_limit(name: str, best: float | None) -> None:
    """Nor is there a bound on returns that depends on the limit."""
    environment = make_environment(name, 1, 1, time_limit=0)
    assert environment.spaces.max_episode_steps is None and environment.spaces.max_return == best
    environment.close()
    rendered_env = make_environment(name, 1, 1, render=True, time_limit=0)
    rendered_env.reset(torch.tensor([[0]]))
    assert not any(rendered_env.step(torch.tensor([[1]])).truncated.any() for _ in range(501))
    rendered_env.close()


UNIFORM = {
    "cartpole": [(-0.05, 0.05)] * 4,
    "acrobot": [(-0.1, 0.1)] * 4,
    "mountaincar": [(-0.6, -0.4), (0, 0)],
    "mountaincar-continuous,action_repeat=2": [(-0.6, -0.4), (0, 0)],
    "pendulum": [(-math.pi, math.pi), (-1, 1)],
}


@pytest.mark.parametrize("name", UNIFORM)
def test_initial_states_are_uniform(name: str) -> None:
    dynamics = make_dynamics(name)
    assert dynamics is not None
    state = dynamics.initial(seeds_of(500, 20))
    for column, (low, high) in zip(state.flatten(0, 1).double().T, UNIFORM[name], strict=False):
        if low == high:
            assert (column == low).all()
        else:
            assert stats.kstest(column.numpy(), stats.uniform(low, high - low).cdf).pvalue > 1e-3
    assert torch.equal(dynamics.initial(torch.tensor([[777]])), state[38:39, 17:18])
    assert torch.equal(make_tensor_env(name).reset(torch.tensor([[777]])), dynamics.observe(state[38:39, 17:18]))


DRAWS = {"uniform": (seeded.uniform, stats.uniform, 1 / 2, 1 / 12), "normal": (seeded.normal, stats.norm, 0.0, 1.0)}


@pytest.mark.parametrize("first", [0, 2**31 - 20_000, -(2**63)])
@pytest.mark.parametrize("kind", DRAWS)
def test_seeded_numbers_have_their_distribution(kind: str, first: int) -> None:
    draw, distribution, mean, variance = DRAWS[kind]
    samples = draw(torch.arange(20_000) + first, 5)
    assert samples.shape == (20_000, 5) and samples.dtype == torch.float64
    sigma = (variance / samples.numel()) ** 0.5
    assert abs(samples.mean().item() - mean) < 4 * sigma and abs(samples.var().item() / variance - 1) < 0.02
    for column in samples.T:
        assert stats.kstest(column.numpy(), distribution.cdf).pvalue > 1e-3
    for sample, other in ((samples[:-1], samples[1:]), (samples[:, :-1], samples[:, 1:]), (samples[:-8], samples[8:])):
        pair = torch.stack((sample.flatten(), other.flatten()))
        for numbers in (pair, (pair - mean).square()):
            assert abs(torch.corrcoef(numbers)[0, 1].item()) < 4 / sample.numel() ** 0.5
    assert kind == "normal" or (samples.min() >= 0 and samples.max() < 1)
    assert torch.equal(draw(torch.tensor(first + 7), 3), samples[7, :3]) and draw(torch.tensor(7), 0).shape == (0,)


@pytest.mark.parametrize("kind", DRAWS)
@pytest.mark.parametrize("last", [11, 12])  # with 12, only the first seeds of members agree
def test_seeded_numbers_of_shared_seeds(kind: str, last: int) -> None:
    draw = DRAWS[kind][0]
    two = torch.tensor([[[3, 11], [5, 6]], [[7, 8], [9, 10]]])  # [B, M, E]
    seeds = two[:, [0, 1, 0, 0, 1]].clone()
    seeds[0, 2, 1] = last
    samples = draw(seeds, 3)
    assert samples.shape == (2, 5, 2, 3)
    for place in range(5):
        assert torch.equal(samples[:, place : place + 1], draw(seeds[:, place : place + 1], 3))
    assert torch.equal(draw(seeds[0], 3), samples[0])


def test_seed_hash_is_splitmix64() -> None:
    """The first outputs of the published generator from seed 1234567."""
    state = 1234567 + hashing.GOLDEN * torch.arange(3)
    assert [number % 2**64 for number in hashing.seed_hash(state).tolist()] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


# -- repeated actions --------------------------------------------------------------------------------------------------


REPEAT_NAMES = ["mountaincar", "mountaincar-continuous", "pendulum"]


@pytest.mark.parametrize("force", [-7.0, 1.5])
def test_forces_are_clipped(force: float) -> None:
    """Within float32 rounding: Gymnasium adds the clipped force in float64."""
    environment = make_tensor_env("mountaincar-continuous")
    environment.reset(torch.tensor([[3]]))
    obs, reward, *_ = make_gym_env("mountaincar-continuous", environment.state[0, 0]).step(np.float32([force]))
    step = environment.step(torch.full((1, 1, 1), force))
    assert np.allclose(step.obs[0, 0].numpy(), obs, 1e-6, 1e-9) and step.reward.item() == np.float32(reward)


@pytest.mark.parametrize("name", GAME_IDS)
def test_spaces_equal_gymnasium_adapter(name: str) -> None:
    repeats = [f"{name},action_repeat=2", f"{name},action_repeat=7"] if name in REPEAT_NAMES else []
    for repeated in (name, *repeats):
        assert make_tensor_env(repeated).spaces == GymnasiumEnvironment(resolve(repeated), 1, 1).spaces
    assert resolve(GAME_IDS[name]) is GAMES[name]


@pytest.mark.parametrize("times", [2, 7])
@pytest.mark.parametrize("policy", ["random", "good"])
@pytest.mark.parametrize("name", REPEAT_NAMES)
def test_repeated_actions_equal_gymnasium_with_wrapper(name: str, policy: str, times: int) -> None:
    """The last decision may have fewer repetitions."""
    step_limit = 71 if policy == "random" or name == "pendulum" else 999
    environment = make_tensor_env(f"{name},action_repeat={times}", time_limit=step_limit)
    environment.reset(torch.tensor([[5]]))
    gym_env = RepeatAction(make_gym_env(name, environment.state[0, 0], max_episode_steps=step_limit), times)
    generator = torch.Generator().manual_seed(times)
    while not step_both(name, environment, gym_env, choose_action(policy, environment, generator)):
        if name == "pendulum":
            set_gym_state(gym_env, environment.state[0, 0])
    if policy == "random" or name == "pendulum":
        assert int(environment.age) == math.ceil(step_limit / times)
        assert gym_env.env._elapsed_steps == step_limit  # type: ignore[attr-defined]
    else:
        assert int(environment.age) < step_limit / times


def test_batch_rows_repeat_independently() -> None:
    """Rows end at different repetitions."""
    name = "mountaincar,action_repeat=3"
    batch = make_environment(name, 4, 5)
    assert isinstance(batch, TensorEnvironment)
    state = torch.zeros(4, 5, 3, dtype=torch.float64)
    state[..., 0], state[..., 1] = torch.linspace(0.3, 0.5, 20).view(4, 5), 0.04
    batch.set_state(state)
    action, alone = torch.full((4, 5), 2), []
    joint_step = batch.step(action)
    for member_state in state.view(20, 1, 1, 3):
        single = make_tensor_env(name)
        single.set_state(member_state)
        step = single.step(torch.tensor([[2]]))
        alone.append((*step.obs.flatten().tolist(), float(step.reward), bool(step.terminated)))
    obs, reward, terminated = joint_step.obs.view(20, 2), joint_step.reward.flatten(), joint_step.terminated.flatten()
    assert alone == [(*o, r, t) for o, r, t in zip(obs.tolist(), reward.tolist(), terminated.tolist(), strict=True)]
    assert set(reward[terminated].tolist()) == {-1.0, -2.0, -3.0} and not terminated.all()
