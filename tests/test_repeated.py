"""Environments that repeat each action, against Gymnasium with a wrapper."""

import math

import numpy as np
import pytest
import torch

from envs.gymnasium_adapter import GymnasiumEnvironment
from envs.make import make_environment
from envs.names import GAMES, resolve
from envs.tensor import TensorEnvironment
from envs.wrappers import RepeatAction
from models.settings import SettingError
from test_tensor_envs import GAME_IDS, choose_action, make_gym_env, make_tensor_env, set_gym_state, step_both

NAMES = ["mountaincar", "mountaincar-continuous", "pendulum"]


@pytest.mark.parametrize("force", [-7.0, 1.5])
def test_forces_are_clipped(force: float) -> None:
    """Within float32 rounding: Gymnasium adds the clipped force in float64."""
    environment = make_tensor_env("mountaincar-continuous")
    environment.reset(torch.tensor([[3]]))
    obs, reward, *_ = make_gym_env("mountaincar-continuous", environment.state[0, 0]).step(np.float32([force]))
    step = environment.step(torch.full((1, 1, 1), force))
    assert np.allclose(step.obs[0, 0].numpy(), obs, 1e-6, 1e-9) and step.reward.item() == np.float32(reward)


@pytest.mark.parametrize("name", NAMES)
def test_spaces_equal_gymnasium_adapter(name: str) -> None:
    for repeated in (name, f"{name},action_repeat=2", f"{name},action_repeat=7"):
        assert make_tensor_env(repeated).spaces == GymnasiumEnvironment(resolve(repeated), 1, 1).spaces
    assert resolve(GAME_IDS[name]) is GAMES[name]


@pytest.mark.parametrize("times", [2, 7])
@pytest.mark.parametrize("policy", ["random", "good"])
@pytest.mark.parametrize("name", NAMES)
def test_repeated_actions_equal_gymnasium_with_wrapper(name: str, policy: str, times: int) -> None:
    """The last decision may have fewer repetitions."""
    step_limit = 71 if policy == "random" or name == "pendulum" else 999
    environment = make_tensor_env(f"{name},action_repeat={times}", time_limit=step_limit)
    environment.reset(torch.tensor([[5]]))
    gym_env = RepeatAction(make_gym_env(name, environment.state[0, 0], max_episode_steps=step_limit), times)
    generator = torch.Generator().manual_seed(times)
    while not step_both(name, environment, gym_env, choose_action(name, policy, environment, generator)):
        if name == "pendulum":
            set_gym_state(gym_env, environment.state[0, 0])
    if policy == "random" or name == "pendulum":
        assert int(environment.age) == math.ceil(step_limit / times)
        assert gym_env.env._elapsed_steps == step_limit  # type: ignore[attr-defined]
    else:
        assert int(environment.age) < step_limit / times


def test_time_limit_counts_repetitions() -> None:
    """MountainCar pays -1 for each repetition."""
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


def test_frames_with_repeated_actions() -> None:
    name = "mountaincar-continuous,action_repeat=4"
    environment = make_environment(name, 1, 1, render=True, time_limit=10)
    assert isinstance(environment, GymnasiumEnvironment) and environment.spaces.max_episode_steps == 3
    environment.reset(torch.tensor([[0]]))
    steps = [environment.step(torch.full((1, 1, 1), 0.5)) for _ in range(3)]
    rewards = [step.reward.item() for step in steps]
    assert rewards == pytest.approx([-0.1, -0.1, -0.05]) and steps[-1].truncated.all()
    assert environment.frame(0, 0).shape[2] == 3
    environment.close()


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


def test_invalid_action_repeat() -> None:
    for text in ("0", "1001", "1.5"):
        with pytest.raises(SettingError, match=f"action_repeat is .*{text}.*; allowed: integer, at least 1, at most"):
            resolve(f"pendulum,action_repeat={text}")
