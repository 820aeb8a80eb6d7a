"""MuJoCo's environments: parity of steps and information with Gymnasium."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from envs.make import make_environment
from envs.names import GAMES

pytest.importorskip("mujoco", reason="needs the extra mujoco")
GAME_IDS = {"halfcheetah": "HalfCheetah-v5", "hopper": "Hopper-v5", "swimmer": "Swimmer-v5"}


@pytest.mark.parametrize("name", GAME_IDS)
def test_steps_equal_gymnasium(name: str) -> None:
    game, gym_env = GAMES[name], gym.make(GAME_IDS[name])
    environment = make_environment(name, 1, 2)
    assert game.gym_id == GAME_IDS[name] and environment.spaces.max_episode_steps == 1000
    reset_obs = environment.reset(torch.tensor([[3, 4]]))
    obs, _ = gym_env.reset(seed=4)
    assert np.array_equal(reset_obs[0, 1].numpy(), obs.astype(np.float32))
    gym_env.action_space.seed(0)
    for _ in range(20):
        action = gym_env.action_space.sample()
        step = environment.step(torch.from_numpy(np.stack((0 * action, action)))[None])
        obs, reward, terminated, _, info = gym_env.step(action)
        assert np.array_equal(step.obs[0, 1].numpy(), obs.astype(np.float32))
        assert step.reward[0, 1].item() == np.float32(reward) and bool(step.terminated[0, 1]) == terminated
        assert set(game.info) == set(info) and step.info is not None
        assert step.info[0, 1].tolist() == [np.float32(info[key]) for key in game.info]
    environment.close()


@pytest.mark.parametrize("name", GAME_IDS)
def test_make_prints_nothing(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    make_environment(name, 1, 1).close()
    assert capfd.readouterr() == ("", "")
