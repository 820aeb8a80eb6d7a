"""Wrappers that give Gymnasium environments a learned reward: single, vectorized, and errors."""

import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import understudy
from envs.make import make_environment
from models.proxies import files
from models.proxies.reward.config import Config
from models.spaces import Continuous, Discrete, Spaces
from proxies import written as write_synthetic
from rewards import CLIFF, SCALED, SMALL, Learners, phi_error, phi_of, random_networks, telling, written
from rounding import assert_near, gamma
from understudy import ProxyError, RewardVectorWrapper, RewardWrapper
from understudy.kinds import MODES

__all__ = ["telling"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "proxy.safetensors"


def one_by_one(path: Path, seeds: list[int], actions: np.ndarray, discount: float) -> list[list[tuple]]:
    """Reward, native reward and end of each step of single environments."""
    rows = []
    for row, seed in enumerate(seeds):
        env, env_rows = RewardWrapper(gym.make("Telling-v0"), path, discount), []
        env.reset(seed=seed)
        for action in actions[:, row]:
            _, reward, terminated, truncated, info = env.step(int(action))
            env_rows.append((reward, info["native_reward"], terminated or truncated))
            if terminated or truncated:
                env.reset()
        rows.append(env_rows)
    return rows


@pytest.mark.parametrize("autoreset", AutoresetMode)
@pytest.mark.parametrize("mode, terminal", [(2, "free"), (2, "zero"), (4, "free"), (7, "zero"), (102, "free")])
def test_vector_wrapper_equals_single_wrappers(
    mode: int, terminal: str, autoreset: AutoresetMode, telling: str, path: Path
) -> None:
    stages, flat = random_networks(telling, **{"mode": mode, "rn_terminal": terminal} | SMALL | SCALED)
    written(path, stages, flat[0])
    for seeds in ([5], [5, 6, 9]):
        actions = np.random.default_rng(1).integers(2, size=(20, len(seeds)))
        expected = one_by_one(path, seeds, actions, 0.9)
        inner = SyncVectorEnv([lambda: gym.make("Telling-v0")] * len(seeds), autoreset_mode=autoreset)
        env = RewardVectorWrapper(inner, path, 0.9)
        env.reset(seed=seeds)
        at, waits = [0] * len(seeds), [False] * len(seeds)
        for _ in range(20):
            now = np.array([actions[min(at[row], 19), row] for row in range(len(seeds))])
            _, rewards, terminated, truncated, info = env.step(now)
            done = terminated | truncated
            for row, waited in enumerate(waits):
                if waited:  # a step that only resets
                    assert rewards[row] == info["native_reward"][row] == 0 and not done[row]
                    continue
                reward, native, env_done = expected[row][at[row]]
                assert rewards[row] == pytest.approx(reward, abs=1e-5)
                assert info["native_reward"][row] == pytest.approx(native)
                assert done[row] == env_done
                at[row] += 1
            if autoreset is AutoresetMode.NEXT_STEP:
                waits = [bool(env_done) and not waited for env_done, waited in zip(done, waits, strict=True)]
            if autoreset is AutoresetMode.DISABLED and done.any():
                env.reset(options={"reset_mask": done})
        assert min(at) > 12
        env.close()


@pytest.mark.parametrize("game, gym_id, mode", [("cliff", "CliffWalking-v1", 2), ("cartpole", "CartPole-v1", 6)])
def test_wrapped_gymnasium_environments(game: str, gym_id: str, mode: int, path: Path) -> None:
    """Cells are numbers in Gymnasium and one-hot for the network."""
    stages, flat = random_networks(game, mode=mode, **CLIFF)
    written(path, stages, flat[0])
    with RewardWrapper(gym.make(gym_id), path, 0.8) as env:
        obs, _ = env.reset(seed=1)
        for action in (0, 1, 1, 0):
            next_obs, reward, _, _, info = env.step(action)
            flat_obs = np.stack(
                [gym.spaces.flatten(env.observation_space, observation) for observation in (obs, next_obs)]
            )
            x, y = phi_of(stages.parameters, flat[0], torch.from_numpy(flat_obs).float()).tolist()
            native = info["native_reward"]
            assert native in (-1, 1, -100)
            of_phi = phi_error(stages.parameters, flat[0], torch.from_numpy(flat_obs).float()).sum()
            error = of_phi + gamma(3) * (abs(native) + abs(x) + abs(y))
            assert_near(reward, native + (0.8 * y - x if mode == 2 else y), error)
            obs = next_obs


@pytest.mark.slow
def test_half_cheetah_reports_the_info_of_its_modes(path: Path) -> None:
    pytest.importorskip("mujoco", reason="needs the extra mujoco")
    stages, flat = random_networks("halfcheetah", mode=4, proxy_hidden_size=5)
    shaped_env = stages.stage(flat, Learners([0.9]))
    shaped_env.reset(torch.tensor([[3]]))
    env = RewardWrapper(gym.make("HalfCheetah-v5"), written(path, stages, flat[0]), 0.9)
    env.reset(seed=3)
    for _ in range(3):
        action = env.action_space.sample()
        reward = float(shaped_env.step(torch.from_numpy(action)[None, None]).reward)
        assert env.step(action)[1] == pytest.approx(reward, abs=1e-4)


def test_default_discount_is_from_the_search(path: Path) -> None:
    stages, flat = random_networks("cliff", mode=1, **CLIFF)

    def first_reward(**kwargs: Any) -> float:
        env = RewardWrapper(gym.make("CliffWalking-v1"), path, **kwargs)
        env.reset(seed=0)
        return float(env.step(0)[1])

    written(path, stages, flat[0], settings={"discount": 0.5})
    assert first_reward() == first_reward(discount=0.5) != first_reward(discount=0.9)
    written(path, stages, flat[0])
    for wrong in (None, 1.5, -0.1, "x", True, float("nan")):
        with pytest.raises(ProxyError, match="discount is .*; allowed: a number from 0 to 1, that of the agent$"):
            first_reward(discount=wrong)


def test_wrapper_error_messages(path: Path, telling: str) -> None:
    stages, flat = random_networks("cliff", mode=2, **CLIFF)
    written(path, stages, flat[0])
    other = write_synthetic(path.with_name("environment.safetensors")) is None or path.with_name(
        "environment.safetensors"
    )
    makes = (lambda env: RewardWrapper(gym.make(env), path, 0.9),
             lambda env: RewardVectorWrapper(SyncVectorEnv([lambda: gym.make(env)] * 2), path, 0.9))  # fmt: skip
    for make in makes:
        for env, line in (("CartPole-v1", "of 48 numbers, those of cliff; here .* 4 numbers$"),
                          ("Pendulum-v1", "here .* of 3 numbers$")):  # fmt: skip
            with pytest.raises(ProxyError, match=line) as caught:
                make(env)
            assert "\n" not in str(caught.value) and str(path) in str(caught.value)
    with pytest.raises(ProxyError, match="mdp of cartpole; allowed: a learned reward$"):
        RewardWrapper(gym.make("CartPole-v1"), other, 0.9)
    for make in (gym.make, gym.make_vec):
        with pytest.raises(ProxyError, match="is a learned reward; allowed: understudy.RewardWrapper for it$"):
            make("understudy/Synthetic-v0", proxy=path)
    stages, flat = random_networks(telling, mode=7, **SMALL)
    written(path, stages, flat[0])

    class Silent(gym.Wrapper):
        def step(self, action: Any) -> tuple:
            return *self.env.step(action)[:4], {"speed": 1.0}

    env = RewardWrapper(Silent(gym.make("Telling-v0")), path, 0.9)
    env.reset(seed=0)
    with pytest.raises(ProxyError, match=r"^the learned reward needs info\['cost'\], which this environment does not"):
        env.step(0)


class EnvironmentWithSpaces(gym.Env):
    """An environment with these spaces and any id."""

    def __init__(self, space: gym.Space, actions: int, name: str = "") -> None:
        self.observation_space, self.spec = space, gym.spec(name) if name else None
        bounds = np.full(abs(actions), 3.0, np.float32)
        self.action_space = gym.spaces.Discrete(actions) if actions > 0 else Box(-bounds, bounds)

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        return self.observation_space.sample(), {}


Box, Cells = gym.spaces.Box, gym.spaces.Discrete
NUMBERS = {size: Box(-9, 9, (size,), np.float32) for size in (4, 17, 48)}
SQUARE = Box(-9, 9, (2, 2), np.float32)


@pytest.mark.parametrize(("game", "env", "message"), [
    ("halfcheetah", (NUMBERS[17], -6, "Walker2d-v5"), "which is HalfCheetah-v5; this environment is Walker2d-v5$"),
    ("halfcheetah", (NUMBERS[4], -6), "it is for observations of 17 numbers, those of halfcheetah; here .* 4 numbers$"),
    ("halfcheetah", (NUMBERS[17], -2), ""),  # actions are no input
    ("halfcheetah", (NUMBERS[17], 3), ""),
    ("cartpole-200", (SQUARE, 2), r"here there are observations of 4 numbers in the shape \[2, 2\]$"),
    ("cliff", (Cells(48, start=1), 4), "here there are observations of 48 cells that count from 1$"),
    ("halfcheetah", (NUMBERS[17], -6, "HalfCheetah-v4"), ""),  # bounds are ignored
    ("cliff", (Cells(48), 4, "CliffWalking-v1"), ""),
    ("test:Square-v0", (SQUARE, 2), ""),
])  # fmt: skip
def test_environment_must_match_the_reward(game: str, env: tuple, message: str, path: Path) -> None:
    sizes = {"halfcheetah": 17, "cliff": 48}
    actions = Continuous((-1.0,) * 6, (1.0,) * 6) if game == "halfcheetah" else Discrete(4 if game == "cliff" else 2)
    config, spaces = Config(mode=101), Spaces((sizes.get(game, 4),), actions, info=("x_position",))
    files.save(path, torch.ones(1), config=config, spaces=spaces, game=game, description={})
    makes = (lambda: RewardWrapper(EnvironmentWithSpaces(*env), path),
             lambda: RewardVectorWrapper(SyncVectorEnv([lambda: EnvironmentWithSpaces(*env)] * 2), path))  # fmt: skip
    for make in makes:
        if not message:
            assert make().reset()[1] == {}
            continue
        with pytest.raises(ProxyError, match=message) as caught:
            make()
        assert "\n" not in str(caught.value)


def test_numpy_network_equals_torch(telling: str, path: Path) -> None:
    """phi in NumPy equals the network of the file in every mode."""
    for mode in MODES:
        stages, flat = random_networks(telling, **{"mode": mode, "proxy_hidden_layer": 2} | SMALL | SCALED)
        loaded = understudy.load(written(path, stages, flat[0]))
        obs, info = torch.randn(9, 3), torch.randn(9, 2)
        expected = phi_of(stages.parameters, flat[0], obs, info)
        phi = understudy.rewards.Phi(loaded)
        potentials = phi(obs.numpy(), info.numpy() if MODES[mode].info else np.zeros((9, 0)))
        assert potentials.dtype == np.float32
        assert_near(potentials, expected, phi_error(stages.parameters, flat[0], obs, info))
    assert RewardWrapper(gym.make("Telling-v0"), loaded, 0.9).unwrapped is not None
    assert make_environment(telling, 1, 1).spaces.info == ("speed", "cost")


def test_wrapper_passes_check_env_and_pickles() -> None:
    unwrapped = gym.make("CliffWalking-v1").unwrapped
    check_env(RewardWrapper(unwrapped, "cliff-additive-potential"), skip_render_check=True)
    wrapper = RewardWrapper(gym.make("CliffWalking-v1"), "cliff-additive-potential")
    second_wrapper = wrapper.spec.make()
    assert type(second_wrapper) is RewardWrapper
    wrapper.reset(seed=3)
    second_wrapper.reset(seed=3)
    copied = pickle.loads(pickle.dumps(wrapper))
    assert wrapper.step(0) == second_wrapper.step(0) == copied.step(0)
