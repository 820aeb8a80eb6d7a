"""MountainCar, its continuous form and Pendulum against Gymnasium's, with every action taken once and several times."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from envs.gymnasium_adapter import GymnasiumEnvironment
from envs.make import make_dynamics, make_environment
from envs.names import GAMES, resolve
from envs.tensor import TensorEnvironment
from envs.wrappers import RepeatAction
from models.settings import SettingError
from models.spaces import Discrete

GAME_IDS = {
    "mountaincar": "MountainCar-v0",
    "mountaincar-continuous": "MountainCarContinuous-v0",
    "pendulum": "Pendulum-v1",
}
NAMES = list(GAME_IDS)


def make_tensor_env(name: str, **limit: int) -> TensorEnvironment:
    environment = make_environment(name, 1, 1, **limit)  # type: ignore[arg-type]
    assert isinstance(environment, TensorEnvironment)
    return environment


def put(env: gym.Env, state: Tensor) -> None:
    """Gymnasium's environment in our state, in the dtype that it keeps itself."""
    env.unwrapped.state = state[:2].numpy().copy()  # type: ignore[attr-defined]


def theirs_of(name: str, times: int = 1, **limit: int) -> gym.Env:
    env = gym.make(GAME_IDS[name], disable_env_checker=True, **limit)  # type: ignore[arg-type]
    env.reset(seed=0)
    return RepeatAction(env, times)


def both_step(environment: TensorEnvironment, gym_env: gym.Env, action: Tensor) -> bool:
    """One step of both, which must be the same; whether it was the last."""
    native = int(action) if isinstance(environment.spaces.actions, Discrete) else action[0, 0].numpy()
    obs, gym_reward, *flags = gym_env.step(native)[:4]
    step = environment.step(action)
    state, other = environment.state[0, 0, :2].numpy(), np.array(gym_env.unwrapped.state)  # type: ignore[attr-defined]
    assert np.abs(state - other).max() <= 1e-12 * max(1, np.abs(other).max())
    step_obs = step.obs[0, 0].numpy()
    assert step_obs.dtype == obs.dtype == np.float32
    # An ulp, or less than float64 rounding of numbers about 1 where the number itself is next to nothing.
    assert (np.abs(step_obs - obs) <= np.maximum(np.spacing(np.abs(obs)), 1e-12)).all()
    reward = np.float32(gym_reward)
    assert abs(step.reward.numpy()[0, 0] - reward) <= np.spacing(abs(reward))
    assert [bool(step.terminated), bool(step.truncated)] == flags and step.discount is None
    return bool(step.done)


def choose_action(name: str, policy: str, environment: TensorEnvironment, generator: torch.Generator) -> Tensor:
    """A random action, or one that swings up."""
    position, speed = environment.state[0, 0, :2].tolist()
    if isinstance(environment.spaces.actions, Discrete):
        uphill = 2 if speed >= 0 else 0
        return torch.tensor([[uphill]]) if policy == "good" else torch.randint(3, (1, 1), generator=generator)
    high = environment.spaces.actions.high[0]
    if policy == "random":
        return (torch.rand(1, 1, 1, generator=generator) * 2 - 1) * high
    return torch.full((1, 1, 1), math.copysign(high, speed) * (0.9 if position < 0 else 1.0))


def number(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high)


CAR = st.tuples(number(-1.2, 0.6), number(-0.07, 0.07))
STATES = {"mountaincar": CAR, "mountaincar-continuous": CAR, "pendulum": st.tuples(number(-50, 50), number(-8, 8))}


@pytest.mark.parametrize("name", NAMES)
def test_one_step_equals_gymnasiums(name: str) -> None:
    """Of any state; torques on the bounds and beyond them too."""
    environment, gym_env = make_tensor_env(name), theirs_of(name)
    discrete = isinstance(environment.spaces.actions, Discrete)
    high = 1.0 if "car" in name else 2.5
    actions = st.integers(0, 2) if discrete else number(-high, high)

    @settings(max_examples=150, deadline=None)
    @given(STATES[name], actions)
    def check(state: tuple[float, float], action: float) -> None:
        gym_env.reset(seed=0)
        start = torch.tensor(state, dtype=environment.state.dtype)
        put(gym_env, start)
        environment.set_state(start[None, None])
        both_step(environment, gym_env, torch.tensor([[action]] if discrete else [[[action]]]))

    check()


@pytest.mark.parametrize("policy", ["random", "good"])
@pytest.mark.parametrize("name", NAMES)
def test_whole_episodes_equal_gymnasiums(name: str, policy: str) -> None:
    """Up to the time limit, or to the goal. An upright pendulum lets rounding grow, so Gymnasium is given our state
    once it is found equal."""
    generator, environment, gym_env = torch.Generator().manual_seed(0), make_tensor_env(name), theirs_of(name)
    environment.reset(torch.tensor([[1]]))
    put(gym_env, environment.state[0, 0])
    while not both_step(environment, gym_env, choose_action(name, policy, environment, generator)):
        if name == "pendulum":
            put(gym_env, environment.state[0, 0])
    limit = environment.spaces.max_episode_steps
    assert limit in (200, 999)
    assert environment.age < limit if policy == "good" and name != "pendulum" else environment.age == limit


def test_forces_within_the_bounds_are_gymnasiums_to_the_bit() -> None:
    """The continuous car keeps its state in float32 there, and so do we: nothing parts the two in 999 steps."""
    environment, gym_env = make_tensor_env("mountaincar-continuous"), theirs_of("mountaincar-continuous")
    environment.reset(torch.tensor([[3]]))
    put(gym_env, environment.state[0, 0])
    generator = torch.Generator().manual_seed(1)
    for _ in range(999):
        action = choose_action("mountaincar-continuous", "random", environment, generator)
        obs, reward, *_ = gym_env.step(action[0, 0].numpy())
        step = environment.step(action)
        assert np.array_equal(step.obs[0, 0].numpy(), obs) and step.reward.item() == np.float32(reward)


def test_forces_beyond_the_bounds_are_cut() -> None:
    """Within float32 rounding: Gymnasium adds what it cut in float64."""
    for force in (-7.0, 1.5):
        environment, gym_env = make_tensor_env("mountaincar-continuous"), theirs_of("mountaincar-continuous")
        environment.reset(torch.tensor([[3]]))
        put(gym_env, environment.state[0, 0])
        obs, reward, *_ = gym_env.step(np.float32([force]))
        step = environment.step(torch.full((1, 1, 1), force))
        assert np.allclose(step.obs[0, 0].numpy(), obs, 1e-6, 1e-9) and step.reward.item() == np.float32(reward)


@pytest.mark.parametrize("name", NAMES)
def test_spaces_are_those_of_the_adapter(name: str) -> None:
    for repeated in (name, f"{name},action_repeat=2", f"{name},action_repeat=7"):
        assert make_tensor_env(repeated).spaces == GymnasiumEnvironment(resolve(repeated), 1, 1).spaces
    assert resolve(GAME_IDS[name]) is GAMES[name]


@pytest.mark.parametrize("times", [2, 7])
@pytest.mark.parametrize("policy", ["random", "good"])
@pytest.mark.parametrize("name", NAMES)
def test_repeated_actions_equal_gymnasiums_with_a_wrapper(name: str, policy: str, times: int) -> None:
    """Through the last decision, which may have fewer repetitions, and to the goal."""
    step_limit = 71 if policy == "random" or name == "pendulum" else 999
    environment = make_tensor_env(f"{name},action_repeat={times}", time_limit=step_limit)
    gym_env = theirs_of(name, times, max_episode_steps=step_limit)
    environment.reset(torch.tensor([[5]]))
    put(gym_env, environment.state[0, 0])
    generator = torch.Generator().manual_seed(times)
    while not both_step(environment, gym_env, choose_action(name, policy, environment, generator)):
        if name == "pendulum":
            put(gym_env, environment.state[0, 0])
    if policy == "random" or name == "pendulum":
        assert int(environment.age) == math.ceil(step_limit / times)
        assert gym_env.env._elapsed_steps == step_limit  # type: ignore[attr-defined]
    else:
        assert int(environment.age) < step_limit / times


def test_an_episode_has_the_steps_it_has_without_repetition() -> None:
    """MountainCar pays -1 for each."""
    for name, limit, decisions in (("mountaincar,action_repeat=3", None, 67), ("mountaincar,action_repeat=3", 10, 4),
                                   ("mountaincar,action_repeat=5", 10, 2), ("mountaincar,action_repeat=7", 2, 1),
                                   ("mountaincar", 10, 10)):  # fmt: skip
        environment = make_environment(name, 2, 1, time_limit=limit)
        assert environment.spaces.max_episode_steps == decisions
        environment.reset(torch.tensor([[0], [1]]))
        steps = [environment.step(torch.ones(2, 1, dtype=torch.int64)) for _ in range(decisions)]
        assert steps[-1].truncated.all() and not any(step.done.any() for step in steps[:-1])
        assert (sum(step.reward for step in steps) == -(limit or 200)).all()
    endless = make_environment("mountaincar,action_repeat=3", 1, 1, time_limit=0)
    endless.reset(torch.tensor([[0]]))
    assert endless.spaces.max_episode_steps is None
    assert all(endless.step(torch.tensor([[1]])).reward == -3 for _ in range(100))
    assert make_tensor_env("mountaincar-continuous,action_repeat=2").spaces.max_episode_steps == 500


def test_frames_are_of_the_same_episodes() -> None:
    name = "mountaincar-continuous,action_repeat=4"
    environment = make_environment(name, 1, 1, render=True, time_limit=10)
    assert isinstance(environment, GymnasiumEnvironment) and environment.spaces.max_episode_steps == 3
    environment.reset(torch.tensor([[0]]))
    steps = [environment.step(torch.full((1, 1, 1), 0.5)) for _ in range(3)]
    rewards = [step.reward.item() for step in steps]
    assert rewards == pytest.approx([-0.1, -0.1, -0.05]) and steps[-1].truncated.all()
    assert environment.frame(0, 0).shape[2] == 3
    environment.close()


def test_a_batch_repeats_each_row_by_itself() -> None:
    """Rows that end at different repetitions, against each alone."""
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


@pytest.mark.parametrize(("name", "column", "low", "high"), [
    ("mountaincar", 0, -0.6, -0.4), ("mountaincar-continuous,action_repeat=2", 0, -0.6, -0.4),
    ("pendulum", 0, -math.pi, math.pi), ("pendulum", 1, -1, 1),
])  # fmt: skip
def test_initial_states_are_uniform(name: str, column: int, low: float, high: float) -> None:
    dynamics = make_dynamics(name)
    assert dynamics is not None
    state = dynamics.initial(torch.arange(10_000).view(500, 20))[..., column].flatten().double()
    assert stats.kstest(state.numpy(), stats.uniform(low, high - low).cdf).pvalue > 1e-3
    other_columns = [i for i in range(state.dim()) if "car" in name and i != column]
    assert not dynamics.initial(torch.arange(50)[:, None])[..., other_columns].any()


def test_a_bad_number_of_repetitions_is_one_line() -> None:
    for text in ("0", "1001", "1.5"):
        with pytest.raises(SettingError, match=f"action_repeat is .*{text}.*; allowed: integer, at least 1, at most"):
            resolve(f"pendulum,action_repeat={text}")
