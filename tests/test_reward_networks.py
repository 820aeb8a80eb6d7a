"""Learned rewards: each mode as a tensor program and as a Gymnasium wrapper, single and vectorized, and invariance of
potentials.
"""

import dataclasses
import functools
import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from control.reports.figures import FigureStyle
from control.reports.reward import _map, _number_texts, best_moves
from envs.gridmaps import CellTable
from envs.make import make_dynamics, make_environment
from envs.reward import HAND, ProxyFactory, collect_transitions
from models.proxies import fitting
from models.proxies.reward.networks import Networks
from models.streams import Streams
from proxies import written as write_synthetic
from rewards import CLIFF, SCALED, SMALL, Learners, phi_of, random_networks, telling, written
from rounding import assert_near
from understudy import ProxyError, RewardVectorWrapper, RewardWrapper
from understudy.kinds import MODES

__all__ = ["telling"]
# Of the real reward r, phi(x), phi(x') and the discount g: Ferreira et al. 2022, section 3 and appendix.
Paid = Callable[[Any, Any, Any, Any], Any]
PAID: dict[int, Paid] = {0: lambda r, x, y, g: r}
PAID |= dict.fromkeys((1, 3), lambda r, x, y, g: g * y - x)
PAID |= dict.fromkeys((2, 4), lambda r, x, y, g: r + g * y - x)
PAID |= dict.fromkeys((5, 7, 101), lambda r, x, y, g: y)
PAID |= dict.fromkeys((6, 8, 102), lambda r, x, y, g: r + y)
WITH_INFO = (3, 4, 7, 8, 101, 102)
POTENTIALS = (1, 2, 3, 4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "proxy.safetensors"


def settings_of(mode: int, **overrides: Any) -> dict[str, Any]:
    return {"mode": mode} | SMALL | SCALED | overrides


def test_modes_are_the_published_ones() -> None:
    assert set(MODES) == set(PAID)
    assert [n for n, mode in MODES.items() if mode.info] == list(WITH_INFO)
    assert [n for n, mode in MODES.items() if mode.potential] == list(POTENTIALS)
    assert [n for n, mode in MODES.items() if not mode.state] == [0, 101, 102]


def networks_of(mode: int, terminal: str, game: str, members: int) -> tuple[ProxyFactory, torch.Tensor]:
    """Random networks with up to two layers, and with bent outputs in some modes."""
    bent = {"rn_output": "symexp" if mode % 3 == 2 else "linear"}
    settings = settings_of(mode, rn_terminal=terminal, proxy_hidden_layer=mode % 3, **bent)
    return random_networks(game, members, **settings)


every_mode = pytest.mark.parametrize(
    ("mode", "terminal"), [(mode, terminal) for mode in MODES for terminal in ("free", "zero")]
)


@every_mode
def test_step_pays_the_reward_of_plain_layers(mode: int, terminal: str, telling: str) -> None:
    """Three agents with different discounts and two environments each."""
    gammas = [0.9, 0.5, 1.0]
    factory, flat = networks_of(mode, terminal, telling, 3)
    shaped_env, real = factory.environment(flat, Learners(gammas, envs=2)), make_environment(telling, 3, 2)
    seeds, generator = torch.arange(6).view(3, 2), torch.Generator().manual_seed(3)
    obs, real_obs = shaped_env.reset(seeds), real.reset(seeds)
    num_ends = 0
    for _ in range(12):
        assert torch.equal(obs, real_obs)
        actions = torch.randint(2, (3, 2), generator=generator)
        shaped_step, step = shaped_env.step(actions), real.step(actions)
        for m, e in itertools.product(range(3), range(2)):
            states = torch.stack([obs[m, e], step.obs[m, e]])
            phi, next_phi = phi_of(factory.parameters, flat[m], states, step.info[m, e].expand(2, -1)).tolist()
            if terminal == "zero" and step.terminated[m, e]:
                next_phi = 0.0
            assert_near(shaped_step.reward[m, e], PAID[mode](float(step.reward[m, e]), phi, next_phi, gammas[m]))
        if mode == 0:
            assert torch.equal(shaped_step.reward, step.reward)
        for name in ("obs", "terminated", "truncated", "info"):
            assert torch.equal(getattr(shaped_step, name), getattr(step, name)), name
        num_ends += int(step.done.sum())
        seeds = seeds + 10
        obs, real_obs = shaped_env.reset(seeds, step.done), real.reset(seeds, step.done)
    assert num_ends > 2


@every_mode
def test_wrapper_pays_the_reward_of_the_tensor_program(mode: int, terminal: str, telling: str, path: Path) -> None:
    factory, flat = networks_of(mode, terminal, telling, 1)
    env = RewardWrapper(gym.make("Telling-v0"), written(path, factory, flat[0]), discount=0.9)
    program, seed = factory.environment(flat, Learners([0.9])), 0
    env.reset(seed=seed), program.reset(torch.tensor([[seed]]))
    for action in np.random.default_rng(0).integers(2, size=20).tolist():
        obs, reward, terminated, truncated, info = env.step(action)
        step = program.step(torch.tensor([[action]]))
        assert_near(reward, step.reward[0, 0])
        assert (terminated, truncated) == (step.terminated.item(), step.truncated.item())
        assert info["native_reward"] == pytest.approx(float(obs[1])) and info["unused"] == 7.0
        if terminated or truncated:
            seed += 1
            env.reset(seed=seed), program.reset(torch.tensor([[seed]]))
    assert seed > 2


def test_inactive_rows_pay_nothing_and_snapshots_restore(telling: str) -> None:
    """Inactive rows, and episodes restored from a snapshot."""
    for mode in (2, 4, 6):
        factory, flat = random_networks(telling, 3, **settings_of(mode))
        shaped_env = factory.environment(flat, Learners([0.9, 0.5, 1.0], envs=2))
        shaped_env.reset(torch.arange(6).view(3, 2))
        active = torch.tensor([[True, False], [True, True], [False, True]])
        first = shaped_env.step(torch.ones(3, 2, dtype=torch.int64), active)
        assert not first.reward[~active].any() and first.reward[active].all()
        restored = factory.environment(flat, Learners([0.9, 0.5, 1.0], envs=2))
        restored.restore(shaped_env.snapshot())
        actions = torch.tensor([[0, 1], [1, 0], [1, 1]])
        expected = shaped_env.step(actions)
        assert torch.equal(restored.step(actions).reward, expected.reward) and expected.reward.all()


def test_table_of_a_map_equals_the_network() -> None:
    factory, flat = random_networks("cliff", 3, mode=2, rn_output_scale=2.5, **CLIFF)
    phi, cells = factory.parameters.with_weights(flat), torch.eye(48).expand(3, -1, -1)
    assert phi.table is not None
    for m in range(3):
        assert_near(phi(cells)[m], phi_of(factory.parameters, flat[m], torch.eye(48)))
    few_cells = cells[:, [5, 47, 5]]
    assert torch.equal(phi(few_cells), phi.table[:, [5, 47, 5]])


# -- potentials --------------------------------------------------------------------------------------------------------


def cliff() -> CellTable:
    dynamics = make_dynamics("cliff")
    assert isinstance(dynamics, CellTable)
    return dynamics


@pytest.mark.parametrize("mode", [1, 2, 5])
def test_zero_terminal_potential_keeps_optimal_policies(mode: int) -> None:
    """All best moves of all cells, for any network; a potential that is free at the end need not."""
    invariant_counts: dict[str, int] = {}
    for terminal in ("zero", "free"):
        factory, flat = random_networks("cliff", 4, mode=mode, rn_terminal=terminal, rn_output_scale=30.0, **CLIFF)
        invariant_counts[terminal] = 0
        for m in range(4):
            real, learned = best_moves(cliff(), factory.parameters.with_weights(flat[[m]]), 0.8, terminal == "zero")
            inside = torch.tensor([cell == "." or cell == "S" for cell in "".join(cliff().rows)])
            invariant_counts[terminal] += bool(torch.equal(real[inside], learned[inside]))
    assert invariant_counts["free"] < 4
    assert (invariant_counts["zero"] == 4) == (mode == 2)


def test_best_moves_of_the_map_are_those_by_hand(tmp_path: Path) -> None:
    factory, flat = random_networks("cliff", mode=2, **CLIFF)
    real, learned = best_moves(cliff(), factory.parameters.with_weights(0 * flat), 0.9)
    go_right, go_left, go_down, go_up = range(4)
    best = {36: [go_up], 24: [go_right], 35: [go_down], 23: [go_down], 0: [go_right, go_down]}
    for cell, moves in best.items():
        assert real[cell].nonzero()[:, 0].tolist() == moves, cell
    assert torch.equal(real, learned) and not real[12, go_left]
    style = FigureStyle(narrow=True)
    _map(cliff(), factory.parameters.with_weights(0 * flat), 0.9, tmp_path / "map.png", "", style)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["map.png", "map_narrow.png"]


def test_numbers_of_a_map_have_few_letters() -> None:
    assert _number_texts([-2.8, 0.264, -0.3, 128.4], False) == ["-3", "0", "0", "128"]
    assert _number_texts([-0.26, 4.0], False) == ["-0.3", "4.0"]
    assert _number_texts([-2.99e8, 62.4, 0.068, 0.0], True) == ["-3e8", "62", "0.07", "0"]


# -- first networks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("init, scale", [("terminal", 1.0), ("hand", 5.0)])
def test_first_network_fits_its_target(init: str, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the cliff, the holes are cells 37 to 46 and the goal is cell 47."""
    monkeypatch.setattr(fitting, "fit", functools.partial(fitting.fit, updates=400, lr=0.03, batch_size=64))
    torch.set_flush_denormal(True)
    factory, _ = random_networks("cliff", mode=1, **CLIFF)
    factory.config = dataclasses.replace(factory.config, rn_init=init, rn_output_scale=scale)
    factory.parameters = Networks(factory.config, factory.spaces)
    flat = factory.initial(Streams([3]))
    home = [min(4 - i // 12 - 1, 3) + (11 - i % 12) + (2 if i // 12 == 3 and i < 47 else 0) for i in range(48)]
    terminal = torch.tensor([0.0] * 37 + [-5.0] * 10 + [5.0])
    expected = terminal if init == "terminal" else -torch.tensor(home, dtype=torch.float32)
    phi = factory.parameters.with_weights(flat)(torch.eye(48)[None]) / scale
    reached = torch.ones(48, dtype=torch.bool)
    if init != "hand":  # no move leads out of a hole
        reached[:] = torch.tensor([bool((cliff().next_cell == cell).any()) for cell in range(48)])
    assert (phi - expected)[:, reached].abs().max() < 0.2 * (expected.max() - expected.min())


def test_first_networks_are_fitted_to_transitions_of_the_environment() -> None:
    obs, reward, terminated = collect_transitions("cliff")
    assert obs.shape == (192, 48) and terminated.sum() == 4 * 11 and (reward == -100.0).sum() == 40
    obs, reward, terminated = collect_transitions("mountaincar-continuous")
    assert obs.shape == (4096, 2) and len(obs.unique(dim=0)) > 3000
    for game, hand in HAND.items():
        states = hand.states(50)
        real = make_environment(game, 1, 1)
        assert states.shape[1:] == real.spaces.obs_shape and hand.potential(states).shape == states.shape[:1]


# -- wrappers ----------------------------------------------------------------------------------------------------------


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
    factory, flat = random_networks(telling, **{"mode": mode, "rn_terminal": terminal} | SMALL | SCALED)
    written(path, factory, flat[0])
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


def test_cells_are_one_hot_for_the_network(path: Path) -> None:
    """In Gymnasium they are numbers."""
    factory, flat = random_networks("cliff", mode=2, **CLIFF)
    written(path, factory, flat[0])
    with RewardWrapper(gym.make("CliffWalking-v1"), path, 0.8) as env:
        obs, _ = env.reset(seed=1)
        for action in (0, 1, 1, 0):
            next_obs, reward, _, _, info = env.step(action)
            x, y = phi_of(factory.parameters, flat[0], torch.eye(48)[[obs, next_obs]])
            native = info["native_reward"]
            assert native in (-1, -100)
            assert_near(reward, native + 0.8 * y - x)
            obs = next_obs


def test_default_discount_is_from_the_search(path: Path) -> None:
    factory, flat = random_networks("cliff", mode=1, **CLIFF)

    def first_reward(**kwargs: Any) -> float:
        env = RewardWrapper(gym.make("CliffWalking-v1"), path, **kwargs)
        env.reset(seed=0)
        return float(env.step(0)[1])

    written(path, factory, flat[0], settings={"discount": 0.5})
    assert first_reward() == first_reward(discount=0.5) != first_reward(discount=0.9)
    written(path, factory, flat[0])
    for wrong in (None, 1.5, -0.1, "x", True, float("nan")):
        with pytest.raises(ProxyError, match="discount is .*; allowed: a number from 0 to 1, that of the agent$"):
            first_reward(discount=wrong)


def test_wrong_files_and_environments_are_one_line_errors(path: Path, telling: str) -> None:
    factory, flat = random_networks("cliff", mode=2, **CLIFF)
    written(path, factory, flat[0])
    other = path.with_name("environment.safetensors")
    write_synthetic(other)
    with pytest.raises(ProxyError, match="mdp of cartpole; allowed: a learned reward$"):
        RewardWrapper(gym.make("CartPole-v1"), other, 0.9)
    with pytest.raises(TypeError, match="allowed: one environment, or RewardVectorWrapper$"):
        RewardWrapper(gym.make_vec("CartPole-v1", num_envs=2), other, 0.9)  # type: ignore[arg-type]
    with pytest.raises(ProxyError, match="those of cliff; here .* 4 numbers$"):
        RewardWrapper(gym.make("CartPole-v1"), path, 0.9)
    for make in (gym.make, gym.make_vec):
        with pytest.raises(ProxyError, match="is a learned reward; allowed: understudy.RewardWrapper for it$"):
            make("understudy/Synthetic-v0", proxy=path)
    factory, flat = random_networks(telling, mode=7, **SMALL)
    written(path, factory, flat[0])

    class Silent(gym.Wrapper):
        def step(self, action: Any) -> tuple:
            return *self.env.step(action)[:4], {"speed": 1.0}

    env = RewardWrapper(Silent(gym.make("Telling-v0")), path, 0.9)
    env.reset(seed=0)
    with pytest.raises(ProxyError, match=r"^the learned reward needs info\['cost'\], which this environment does not"):
        env.step(0)


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
