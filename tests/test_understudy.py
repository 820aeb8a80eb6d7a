"""Learned environments in Gymnasium, single and vectorized, against the tensor program of the trainer."""

import importlib
import pickle
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import understudy
from conftest import ROOT
from envs.make import make_environment
from envs.names import GAMES, CartPoleParameters, RepeatParameters
from envs.synthetic import starts_of
from envs.tensor import TensorEnvironment
from helpers import output_of
from models.proxies import files
from proxies import KINDS, dynamics_of, written
from rounding import assert_near
from understudy import ProxyError, program
from understudy.env import SyntheticEnv, make_synthetic
from understudy.kinds import KINDS as FILE_KINDS
from understudy.proxy import BOUND

ANY = "understudy/Synthetic-v0"


def write_proxy(folder: Path, kind: str, scale: float = 3.0) -> str:
    written(folder / f"{kind}.safetensors", kind, scale=scale)
    return str(folder / f"{kind}.safetensors")


warnings_are_errors = pytest.mark.filterwarnings("error")  # check_env warns about doubtful properties


@pytest.mark.parametrize("code", ["import understudy; module = ''", "module = 'understudy:'"])
def test_gymnasium_id_imports_neither_torch_nor_the_trainer(code: str, tmp_path: Path) -> None:
    """Even if a project has packages with the names of ours."""
    for package in ("models", "envs", "control"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise ImportError('somebody else')")
    code = (
        f"import sys; sys.path.append({str(ROOT)!r})\n"
        f"{code}; import gymnasium\n"
        "print(gymnasium.make(module + 'understudy/SyntheticCartPoleMDP-v0').reset(seed=3)[0].tolist())\n"
        "print({'torch', 'models', 'envs', 'control'} & set(sys.modules))\n"
    )
    assert output_of(code, cwd=tmp_path) == f"{SyntheticEnv('cartpole-mdp').reset(seed=3)[0].tolist()}\nset()\n"


def test_a_proxy_is_printed_in_one_line() -> None:
    proxy = understudy.load("cartpole-bandit")
    size = sum(tensor.size for tensor in proxy.tensors.values())
    assert repr(proxy) == f"Proxy('{proxy.path}'): bandit of cartpole, {size:,} parameters"


def test_registered_ids_make_the_shipped_proxies() -> None:
    shipped = {name for name in understudy.pretrained() if not FILE_KINDS[understudy.load(name).kind].used_by}
    assert {kwargs["proxy"] for kwargs in understudy.IDS.values() if kwargs} == shipped
    for name, kwargs in understudy.IDS.items():
        spec = gym.spec(name)
        assert (spec.kwargs, spec.max_episode_steps) == (kwargs, None) and name.startswith("understudy/Synthetic")
        if kwargs:
            assert gym.make(name).unwrapped.proxy.path == understudy.pretrained()[kwargs["proxy"]]
    assert gym.make("understudy/SyntheticCartPoleMDP-v0").spec.max_episode_steps == 200
    environment = make_environment("understudy:understudy/SyntheticCartPoleMDP-v0", 2, 3)
    assert (environment.spaces.obs_shape, environment.spaces.max_episode_steps) == ((4,), 200)
    environment.reset(torch.arange(6).view(2, 3))
    assert environment.step(torch.ones(2, 3, dtype=torch.int64)).obs.isfinite().all()


def test_environment_names_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "payload.py").write_text(f"open({str(tmp_path / 'harmed')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    written(tmp_path / "foreign.safetensors", game="payload:CartPole-v1")
    with pytest.raises(ProxyError, match="no file has a module imported; import payload yourself first"):
        gym.make("understudy/Synthetic-v0", proxy=tmp_path / "foreign.safetensors")
    assert not (tmp_path / "harmed").exists()
    importlib.import_module("payload")
    gym.make("understudy/Synthetic-v0", proxy=tmp_path / "foreign.safetensors").reset()
    del sys.modules["payload"]  # monkeypatch would put it back
    written(tmp_path / "lost.safetensors", game="Lost-v0")
    with pytest.raises(ProxyError, match="first states are those of 'Lost-v0', which cannot be made"):
        gym.make(ANY, proxy=tmp_path / "lost.safetensors")
    plain = (None, RepeatParameters, CartPoleParameters)  # Gymnasium's environments without parameters
    fixed = {name: game for name, game in GAMES.items() if game.parameters in plain}
    gym_ids = {name: game.gym_id for name, game in fixed.items() if game.gym_id}
    images = {"takecover", "carracing"}
    assert program.IDS == {name: gym_id for name, gym_id in gym_ids.items() if name not in images}


@pytest.mark.parametrize("actions", [[0, 2], [0.0, 1.0], [0]])
def test_step_and_reset_refuse_wrong_arguments(tmp_path: Path, actions: list[float]) -> None:
    path = write_proxy(tmp_path, "mdp")
    env, vector_env = SyntheticEnv(path), gym.make_vec(ANY, num_envs=2, proxy=path)
    for environment in (env, vector_env):
        with pytest.raises(gym.error.ResetNeeded):
            environment.step(np.array([0, 1]))
        environment.reset()
    with pytest.raises(ValueError, match=r"action is .* allowed: Discrete\(2\)"):
        vector_env.step(np.array(actions))
    for action in (2, -1, 0.5, [0]):
        with pytest.raises(ValueError, match=r"allowed: Discrete\(2\)"):
            env.step(action)
    continuous_env = SyntheticEnv(write_proxy(tmp_path, "mdp-continuous"))
    continuous_env.reset()
    continuous_env.step([3.0])  # actions out of bounds are clipped
    for wrong in ([0.0, 0.0], [np.nan]):
        with pytest.raises(ValueError, match="allowed: Box"):
            continuous_env.step(wrong)
    with pytest.raises(ProxyError, match="autoreset_mode is 'Disabled'"):
        gym.make_vec(ANY, proxy=path, autoreset_mode="Disabled")
    with pytest.raises(ValueError, match="seed has 2 numbers; allowed: 3"):
        gym.make_vec(ANY, num_envs=3, proxy=path).reset(seed=[1, 2])
    assert not np.array_equal(vector_env.reset(seed=[5, 7])[0], vector_env.reset(seed=5)[0])


@pytest.mark.parametrize(
    "name",
    [name for name in program.IDS if GAMES[name].dynamics]
    + ["mountaincar-continuous,action_repeat=2", "cartpole,physics_spread=3.0"],
)
def test_real_starts_equal_the_trainers(name: str) -> None:
    seeds = torch.arange(-3, 69).view(4, 6, 3)
    starts = starts_of(make_environment(name, 6, 3))(seeds).numpy()
    assert_near(program.real_starts(name)(seeds.numpy()), starts, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_equal_the_tensor_program(tmp_path: Path, kind: str) -> None:
    env = gym.make(ANY, proxy=write_proxy(tmp_path, kind))
    assert env.spec is not None and env.spec.max_episode_steps == (None if kind.startswith("bandit") else 7)
    env.action_space.seed(0)
    dynamics = dynamics_of(files.load(env.unwrapped.proxy.path))
    seeds = torch.arange(40).view(1, 40)
    firsts = torch.from_numpy(env.unwrapped.program.first_states(seeds.numpy()))
    assert_near(firsts, dynamics.initial(seeds[None])[0])
    tensors = TensorEnvironment(dynamics, 1, 1)
    ends = []
    for episode in range(12):
        obs, _ = env.reset(seed=5 if episode == 0 else None)
        tensors.set_state(torch.from_numpy(obs)[None, None])
        done = False
        while not done:
            action = env.action_space.sample()
            obs, reward, terminated, truncated, info = env.step(action)
            expected = tensors.step(torch.as_tensor(action)[None, None])
            assert_near(obs, expected.obs[0, 0])
            assert_near(reward, expected.reward[0, 0])
            assert obs.dtype == np.float32 and isinstance(reward, float) and info == {}
            assert terminated is expected.terminated.item()
            assert truncated == (expected.truncated.item() and not kind.startswith("bandit"))
            tensors.state = torch.from_numpy(obs)[None, None]
            done = terminated or truncated
        ends.append((terminated, truncated))
    assert set(ends) >= ({(True, False)} if kind.startswith("bandit") else {(True, False), (False, True)})


@warnings_are_errors
@pytest.mark.parametrize("kind", KINDS)
def test_seed_determines_the_episode(tmp_path: Path, kind: str) -> None:
    path = write_proxy(tmp_path, kind)
    env = gym.make(ANY, proxy=path).unwrapped
    check_env(env)

    def starts(env: gym.Env, seed: int) -> np.ndarray:
        return np.stack([env.reset(seed=seed)[0], *(env.reset()[0] for _ in range(70))])

    first = starts(env, 1)
    assert np.array_equal(first, starts(env, 1)) and np.array_equal(first, starts(SyntheticEnv(path), 1))
    assert not (first == starts(env, 2)).all(1).any()
    assert len(np.unique(first, axis=0)) == 71


@pytest.mark.parametrize("kind", KINDS)
def test_pickled_environment_continues_identically(tmp_path: Path, kind: str) -> None:
    path = write_proxy(tmp_path, kind)
    for env in (gym.make(ANY, proxy=path), gym.make_vec(ANY, num_envs=3, proxy=path)):
        pickle.loads(pickle.dumps(env)).reset()
        env.action_space.seed(0)
        env.reset(seed=5)
        env.step(env.action_space.sample())
        copy = pickle.loads(pickle.dumps(env))
        for _ in range(10):
            action = env.action_space.sample()
            for original, restored in zip(env.step(action)[:4], copy.step(action)[:4], strict=True):
                np.testing.assert_array_equal(original, restored)
            if isinstance(env, gym.Env):
                np.testing.assert_array_equal(env.reset()[0], copy.reset()[0])


@pytest.mark.parametrize(("limit", "length"), [(None, 7), (3, 3), (100, 7)])
def test_make_shortens_but_never_extends_the_time_limit(tmp_path: Path, limit: int | None, length: int) -> None:
    path = write_proxy(tmp_path, "mdp", scale=0.1)
    for make, action in ((gym.make, 0), (gym.make_vec, np.array([0]))):
        env = make(ANY, proxy=path, max_episode_steps=limit)  # type: ignore[operator]
        env.reset(seed=0)
        assert [bool(env.step(action)[3]) for _ in range(length)] == [False] * (length - 1) + [True]


@warnings_are_errors
@pytest.mark.parametrize("scale", [1e4, 1e15, 3e38])
@pytest.mark.parametrize("kind", ["mdp", "mdp-deep", "mdp-learned-reset", "bandit"])
def test_outputs_of_huge_networks_are_finite(tmp_path: Path, kind: str, scale: float) -> None:
    path = write_proxy(tmp_path, kind, scale)
    raw, state = dynamics_of(files.load(path)), torch.ones(1, 1, 4)
    for _ in range(9):
        state, reward, *_ = raw.step(state, torch.tensor([[1]]))
    bounded = kind in ("bandit", "mdp-deep") or scale < 1e10
    assert bounded or not state.isfinite().all()  # the tensor program does not bound them
    env, vector_env = gym.make(ANY, proxy=path), gym.make_vec(ANY, num_envs=5, proxy=path)
    check_env(env.unwrapped)
    outputs = [env.reset(seed=0)[0], vector_env.reset(seed=0)[0]]
    for _ in range(30):
        obs, pay, terminated, truncated, _ = env.step(1)
        outputs += [obs, np.float64(pay), *vector_env.step(np.ones(5, np.int64))[:2]]
        if terminated or truncated:
            outputs.append(env.reset()[0])
    assert all((np.abs(output) <= BOUND).all() for output in outputs)  # false for NaN
    if kind not in ("bandit", "mdp-deep") and scale < 1e30:  # larger ones give NaN, which becomes 0
        assert any((np.abs(output) == BOUND).any() for output in outputs)


@warnings_are_errors
@pytest.mark.parametrize(("kind", "mode"), [
    pytest.param(kind, mode, marks=[pytest.mark.slow] * (i > 1 and mode is AutoresetMode.SAME_STEP))  # of no network
    for i, kind in enumerate(KINDS) for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP)
])  # fmt: skip
def test_vector_environment_equals_single_ones(tmp_path: Path, kind: str, mode: AutoresetMode) -> None:
    path, n = write_proxy(tmp_path, kind), 6
    vector_env = gym.make_vec(ANY, num_envs=n, proxy=path, autoreset_mode=mode.value)
    sync_env = SyncVectorEnv([lambda: make_synthetic(path)] * n, autoreset_mode=mode)
    assert vector_env.metadata["autoreset_mode"] is mode and type(vector_env.unwrapped).__name__ == "SyntheticVectorEnv"
    assert vector_env.observation_space == sync_env.observation_space
    assert vector_env.action_space == sync_env.action_space
    assert_same_step(vector_env.reset(seed=11), sync_env.reset(seed=11))
    vector_env.action_space.seed(0)
    end_counts = np.zeros(2, int)
    for step in range(60):
        if step in (30, 40):
            seed = None if step == 30 else [5, None, 6, 7, None, 8]
            assert_same_step(vector_env.reset(seed=seed), sync_env.reset(seed=seed))
        actions = vector_env.action_space.sample()
        vector_step, sync_step = vector_env.step(actions), sync_env.step(actions)
        assert_same_step(vector_step, sync_step)
        for env, state in zip(sync_env.envs, vector_env.unwrapped._state, strict=True):
            env.unwrapped._state[:] = state  # else rounding errors add up
        end_counts += vector_step[2].sum(), vector_step[3].sum()
    assert (end_counts[0] > 50 and end_counts[1] == 0) if kind.startswith("bandit") else end_counts.min() > 0


def assert_same_step(actual: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    """Observations and rewards differ by rounding alone, ends and infos are equal."""
    for value, expected_value in zip(actual[:-1], expected[:-1], strict=True):
        assert value.dtype in (np.bool_, np.float32)
        assert_near(value, expected_value)
    assert actual[-1].keys() == expected[-1].keys()
    if actual[-1]:
        assert np.array_equal(actual[-1]["_final_obs"], expected[-1]["_final_obs"])
        for value, expected_value in zip(actual[-1]["final_obs"], expected[-1]["final_obs"], strict=True):
            assert (value is None) == (expected_value is None)
            if value is not None:
                assert_near(value, expected_value)
