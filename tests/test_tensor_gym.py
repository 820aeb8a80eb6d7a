"""Grid worlds as Gymnasium environments: the standard check, steps and rendering."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from envs.make import make_dynamics
from envs.tensor import TensorEnvironment
from models.settings import SettingError

SMALL: dict[str, dict[str, Any]] = {
    "understudy/ProcMaze-v0": {"grid_size": 4},
    "understudy/OpenGrid-v0": {"grid_size": 3},
    "understudy/ButtonGrid-v0": {"grid_size": 4},
    "understudy/PanFlute-v0": {"num_pipes": 3},
    "understudy/HoleRoomLarge-v0": {},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SMALL)
def test_environments_pass_the_check_of_gymnasium(name: str) -> None:
    check_env(gym.make(name, **SMALL[name]).unwrapped, skip_render_check=True)


@pytest.mark.parametrize("name", SMALL)
def test_steps_equal_dynamics(name: str) -> None:
    env = gym.make(name, **SMALL[name], max_episode_steps=60)
    obs, _ = env.reset(seed=3)
    inner: Any = env.unwrapped
    state = TensorEnvironment(inner.dynamics, 1, 1)
    state_obs = state.set_state(inner._state)
    for action in np.random.default_rng(0).integers(env.action_space.n, size=60):
        flat = gym.spaces.flatten(env.observation_space, obs)
        assert np.array_equal(flat, state_obs[0, 0].numpy()) and obs in env.observation_space
        obs, reward, terminated, truncated, _ = env.step(action)
        step = state.step(torch.tensor([[int(action)]]))
        state_obs = step.obs
        assert (reward, terminated) == (float(step.reward), bool(step.terminated))
        if terminated or truncated:
            break


def test_picture_of_a_maze_equals_its_observation() -> None:
    env = gym.make("understudy/ProcMaze-v0", grid_size=4, render_mode="ansi")
    obs, _ = env.reset(seed=1)
    lines = env.render().splitlines()
    player, goal, wall, is_open = obs.reshape(4, 4, 4).transpose(2, 0, 1)
    symbols = np.array([list(line) for line in lines])
    assert np.array_equal(symbols == "#", wall == 1) and np.array_equal(symbols == "#", is_open == 0)
    assert np.array_equal(np.isin(symbols, ["@", "*"]), player == 1)
    assert np.array_equal(symbols == "*", (player == 1) & (goal == 1))


def test_pictures_of_buttons_and_pipes_show_their_states() -> None:
    buttons = make_dynamics("buttongrid")
    assert buttons is not None
    state = torch.tensor([0, 0, 1, 2, 5, 12, 99, 0, 0, 1])
    lines = buttons.text(state).splitlines()  # type: ignore[attr-defined]
    assert lines[0][5] == "o" and lines[1][2] == "*" and lines[9][9] == "O" and "".join(lines).count(".") == 97
    flute = gym.make("understudy/PanFlute-v0", num_pipes=3, spontaneous_reward=False, render_mode="ansi")
    flute.reset(seed=0)
    for action in (2, 1):
        flute.step(action)
    assert flute.render() == "  .\n O.\n.O."


def test_invalid_parameters_and_calls_are_refused() -> None:
    with pytest.raises(SettingError, match="grid_size is 1; allowed: integer, at least 2"):
        gym.make("understudy/ProcMaze-v0", grid_size=1)
    with pytest.raises(TypeError, match="grid_sise"):
        gym.make("understudy/ProcMaze-v0", grid_sise=4)
    env = gym.make("understudy/PanFlute-v0", disable_env_checker=True)
    for use in (lambda: env.step(0), env.render):
        with pytest.raises(gym.error.ResetNeeded):
            use()
    env.reset(seed=0)
    with pytest.raises(gym.error.InvalidAction, match="action is 7"):
        env.step(7)
