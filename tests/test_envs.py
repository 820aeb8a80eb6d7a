"""Names of environments, the Gymnasium adapter, its wrappers and MuJoCo. test_workers.py tests parallel workers."""

import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from control.cli.parse import parse
from envs import wrappers
from envs.base import EnvironmentFault
from envs.gymnasium_adapter import GymnasiumEnvironment
from envs.make import make_environment
from envs.names import GAMES, Game, has_cells, import_module, is_continuous, resolve
from helpers import STEPPED_PENDULUM, seeds_of
from models import spaces as our
from models.settings import SettingError
from models.streams import Streams, random_actions


class Scripted(gym.Env):
    """Any spaces; step t pays ``rewards[t]`` and shows ``observations[t]``."""

    metadata = {"render_modes": []}

    def __init__(self, obs_space=None, action_space=None, rewards=(1.0, 2.0, 4.0), observations=None, render_mode=None):
        self.observation_space = obs_space or Box(-10, 10, (2,))
        self.action_space = action_space or Discrete(3, start=5)
        self.rewards, self.observations = rewards, observations
        self.actions = []

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.observation_space.sample() if self.observations is None else self.observations[0], {}

    def step(self, action):
        self.actions.append(action)
        reward = self.rewards[self.t]
        self.t += 1
        obs = self.observation_space.sample() if self.observations is None else self.observations[self.t]
        return obs, reward, self.t == len(self.rewards), False, {}


gym.register("Scripted-v0", Scripted)


def scripted(members=1, envs=1, wrappers=(), **kwargs):
    return GymnasiumEnvironment(Game("scripted", "Scripted-v0", None, kwargs, wrappers), members, envs)


def cartpole(members, envs):
    """The adapter instead of the tensor program."""
    return GymnasiumEnvironment(GAMES["cartpole"], members, envs)


def no_ops(members=1, envs=1):
    return torch.zeros(members, envs, dtype=torch.int64)


def record(environment, first_seed, steps=40):
    """Observations, rewards and ends; each environment stops after its first episode."""
    history = [environment.reset(seeds_of(environment.members, environment.envs, first_seed))]
    active = torch.ones(environment.members, environment.envs, dtype=torch.bool)
    streams = Streams([first_seed] * environment.members)
    for _ in range(steps):
        step = environment.step(random_actions(environment.spaces.actions, streams, environment.envs), active)
        history += [step.obs, step.reward, step.done]
        active = active & ~step.done
    return history


def same(first, other):
    return len(first) == len(other) and all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("name", ["lunarlander", "lunarlander-sparse", "acrobot", STEPPED_PENDULUM])
def test_episode_depends_on_seed_and_actions_alone(name):
    """After another episode, in a batch, alone, and in Gymnasium."""
    batch, alone = make_environment(name, 2, 3), make_environment(name, 1, 1)
    record(alone, 100, 25)
    gym_env = gym.make(resolve(name).gym_id) if name in ("lunarlander", STEPPED_PENDULUM) else None
    obs, single = batch.reset(seeds_of(2, 3))[1, 2], alone.reset(torch.tensor([[5]]))[0, 0]
    assert torch.equal(obs, single)
    assert gym_env is None or np.array_equal(single.numpy(), gym_env.reset(seed=5)[0])
    streams = Streams([0, 1])
    for _ in range(30):
        actions = random_actions(batch.spaces.actions, streams, 3)
        step, single = batch.step(actions), alone.step(actions[1:, 2:])
        assert torch.equal(step.obs[1, 2], single.obs[0, 0]) and step.reward[1, 2] == single.reward[0, 0]
        if gym_env is not None:
            obs, reward, *_ = gym_env.step(actions[1, 2].numpy() if name == STEPPED_PENDULUM else actions[1, 2].item())
            assert np.array_equal(single.obs[0, 0].numpy(), obs) and single.reward.item() == np.float32(reward)


def test_inactive_environments_do_not_move():
    environment = cartpole(2, 2)
    initial_obs = environment.reset(seeds_of(2, 2))
    active = torch.tensor([[True, False], [False, True]])
    step = environment.step(torch.ones(2, 2, dtype=torch.int64), active)
    copies = [tensor.clone() for tensor in (initial_obs, step.obs, step.reward, step.terminated)]
    moved = (step.obs != initial_obs).any(-1)
    assert torch.equal(moved, active)
    assert torch.equal(step.reward, active.float())
    reset_obs = environment.reset(seeds_of(2, 2, 50), mask=~active)
    assert torch.equal((reset_obs != step.obs).any(-1), ~active)
    environment.step(no_ops(2, 2))
    assert same(copies, [initial_obs, step.obs, step.reward, step.terminated]), "nothing is overwritten"


def test_sparse_reward_is_the_return_at_the_end():
    environment = scripted(wrappers=("SparseReward",), rewards=(1.0, 2.0, 4.0))
    for first_seed in (0, 1):
        environment.reset(seeds_of(1, 1, first_seed))
        rewards = [environment.step(no_ops()).reward.item() for _ in range(3)]
        assert rewards == [0.0, 0.0, 7.0]
    truncated = wrappers.SparseReward(gym.make("Scripted-v0", max_episode_steps=2))
    truncated.reset()
    steps = [truncated.step(5)[1:4] for _ in range(2)]
    assert steps == [(0.0, False, False), (3.0, True, False)]  # terminated: no reward can follow the whole return


BOX = Box(np.float32([[-1, 0], [0, -2]]), np.float32([[1, 1], [3, 2]]))


@pytest.mark.parametrize(("space", "flat", "flat_action", "env_action"), [
    (Discrete(3, start=5), our.Discrete(3), 2, 7),
    (BOX, our.Continuous((-1.0, 0.0, 0.0, -2.0), (1.0, 1.0, 3.0, 2.0)), [0.5, 0.25, 1, -1], [[0.5, 0.25], [1, -1]]),
    (Box(-5, 3, (2,), np.int16), our.Continuous((-5.0, -5.0), (3.0, 3.0)), [-1.7, 2.4], [-2, 2]),
    (MultiDiscrete([3, 4], start=[1, -2]), our.Discrete(12), 7, [2, 1]),
    (MultiBinary((2, 2)), our.Discrete(16), 6, [[0, 1], [1, 0]]),
])  # fmt: skip
def test_actions_are_unflattened(space, flat, flat_action, env_action):
    environment = scripted(action_space=space)
    assert environment.spaces.actions == flat
    environment.reset(seeds_of(1, 1))
    actions = torch.tensor([[flat_action]])
    environment.step(actions)
    actions.zero_()
    taken = environment._envs[0].unwrapped.actions[0]
    assert taken in space and np.array_equal(taken, env_action)


@pytest.mark.parametrize(("space", "sample", "expected"), [
    (Discrete(4, start=5), 7, [0, 0, 1, 0]),
    (Tuple([Discrete(2), Box(-1, 1, (1,))]), (1, np.float32([0.5])), [0, 1, 0.5]),
    (Dict(a=Discrete(2), b=Box(0, 1, (2, 1))), {"a": 0, "b": np.float32([[0.25], [1]])}, [1, 0, 0.25, 1]),
    (Box(0, 255, (3,), np.uint8), np.uint8([1, 2, 255]), [1, 2, 255]),
    (Box(0, 10, (2, 1, 3), np.uint8), np.uint8([[[1, 2, 3]], [[4, 5, 6]]]), [1, 2, 3, 4, 5, 6]),
])  # fmt: skip
def test_observations_are_flattened(space, sample, expected):
    environment = scripted(obs_space=space, observations=[sample] * 4)
    obs = environment.reset(seeds_of(1, 1))
    assert environment.spaces.obs_shape == (len(expected),) and obs.dtype == torch.float32
    assert obs[0, 0].tolist() == expected
    assert environment.spaces.one_hot is isinstance(space, Discrete)


@pytest.mark.parametrize("layout", ["grey", "one channel", "colour", "screen"])
def test_images_become_stacks_of_gray_frames(layout):
    frames = [np.full((64, 96), value, np.uint8) for value in (10, 20, 30, 40)]
    frames[3][:32] = 200
    space = Box(0, 255, (64, 96), np.uint8)
    if layout != "grey":
        channels = 1 if layout == "one channel" else 3
        frames = [np.repeat(frame[..., None], channels, axis=2) for frame in frames]
        space = Box(0, 255, (64, 96, channels), np.uint8)
    if layout == "screen":
        frames = [{"screen": frame, "health": np.float32([100])} for frame in frames]
        space = Dict(screen=space, health=Box(0, 200, (1,)))
    environment = scripted(obs_space=space, observations=frames)
    obs = environment.reset(seeds_of(1, 1))
    assert environment.spaces.obs_shape == (8, 32, 32) and obs.dtype == torch.uint8
    assert (obs == 10).all()
    for _ in range(3):
        obs = environment.step(no_ops()).obs[0, 0]
    assert obs[:7].float().mean((1, 2)).tolist() == [10, 10, 10, 10, 10, 20, 30]
    assert (obs[7, :16] == 200).all() and (obs[7, 16:] == 40).all()


def test_step_before_reset_is_a_fault():
    with pytest.raises(EnvironmentFault, match="before its first reset"):
        scripted(1, 3).step(no_ops(1, 3))


def test_frame_is_a_picture_of_one_environment(monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "")
    environment = make_environment("cartpole", 1, 2, num_workers=2, render=True)
    environment.reset(seeds_of(1, 2))
    frame = environment.frame(0, 1)
    assert frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3 and frame.std() > 0
    with pytest.raises(
        SettingError, match=r"^scripted cannot be filmed: its render modes are \[\]; allowed: .*'rgb_array'$"
    ):
        GymnasiumEnvironment(Game("scripted", "Scripted-v0"), 1, 1, render=True)
    gym.register("Undrawn-v0", lambda: None)
    with pytest.raises(SettingError, match="^undrawn cannot be filmed: it takes no render_mode; allowed"):
        GymnasiumEnvironment(Game("undrawn", "Undrawn-v0"), 1, 1, render=True)


@pytest.mark.parametrize(("name", "gym_id", "note"), [
    *((name, game.gym_id, False) for name, game in GAMES.items()),
    ("Blackjack-v1", "Blackjack-v1", False),
    ("gymnasium.envs.classic_control:CartPole-v1", "gymnasium.envs.classic_control:CartPole-v1", False),
    ("LunarLander-v2", "LunarLander-v3", True), ("CliffWalking-v0", "CliffWalking-v1", True),
    ("HalfCheetah-v2", "HalfCheetah-v5", True), ("halfcheetah-V2", "HalfCheetah-v5", True),
    ("cart_pole", "CartPole-v1", False), ("PROBE_1", "", False),
    ("frozen_lake", "FrozenLake-v1", True), ("CartPole-200", "CartPole-v0", False),
])  # fmt: skip
def test_names_resolve_to_gymnasium_ids(name, gym_id, note, capsys):
    import_module("gamename", name)
    resolved = resolve(name)
    assert resolved.gym_id == gym_id and resolved is GAMES.get(name, resolved)
    assert all(hasattr(wrappers, wrapper) for wrapper in resolved.wrappers)
    assert capsys.readouterr().err == (f"note: gamename {name} is now {gym_id}\n" if note else "")


def test_is_continuous_agrees_with_the_spaces():
    playable_names = [name for name, game in GAMES.items() if game.dynamics]
    for name in (*playable_names, STEPPED_PENDULUM, "CartPole-v1"):
        actions = make_environment(name, 1, 1).spaces.actions
        assert is_continuous(name) == isinstance(actions, our.Continuous), name
    assert is_continuous("halfcheetah") and not is_continuous("NoSuch-v0")
    assert has_cells("FrozenLake-v1") and not has_cells("cartpole") and not has_cells("NoSuch-v0")


@pytest.mark.parametrize(("game", "agent"), [("cliff", "QLearning"), ("pendulum", "TD3"), ("cartpole", "DDQN")])
def test_a_reward_search_has_an_agent_that_can_play(game, agent):
    assert parse(["--implementation", "RN", "--gamename", game]).run.agent == agent


def test_missing_module_or_package_is_an_error(monkeypatch):
    for module in ("vizdoom", "vizdoom.gymnasium_wrapper"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SettingError, match=r"'takecover': it needs vizdoom; install it: pip install -e '\.\[doom\]'$"):
        make_environment("takecover", 1, 1)
    monkeypatch.setitem(sys.modules, "Box2D", None)
    for package, module in (("gymnasium.envs.box2d", "lunar_lander"), ("envs", "lunarlander")):
        monkeypatch.delitem(sys.modules, f"{package}.{module}", raising=False)
        monkeypatch.delattr(sys.modules.get(package), module, raising=False)
    with pytest.raises(SettingError, match="'lunarlander': it needs box2d"):
        make_environment("lunarlander", 1, 1)


def test_takecover_episodes_depend_on_the_seed(tmp_path, monkeypatch):
    pytest.importorskip("vizdoom", reason="needs the extra doom")
    monkeypatch.chdir(tmp_path)  # the engine writes its settings here
    environment = make_environment("takecover", 1, 1)
    assert environment.spaces.obs_shape == (8, 32, 32) and environment.spaces.actions == our.Discrete(3)
    assert environment.spaces.max_episode_steps == 2100 // 4  # each action is repeated four times
    first, other, repeated = (record(environment, seed, 12) for seed in (4, 5, 4))
    environment.close()
    assert same(first, repeated) and not same(first, other)
    assert first[0].float().std() > 5
    assert all(reward.item() == 4.0 for reward in first[2::3])


MUJOCO_IDS = {"halfcheetah": "HalfCheetah-v5", "hopper": "Hopper-v5", "swimmer": "Swimmer-v5"}


@pytest.mark.parametrize("name", MUJOCO_IDS)
def test_steps_of_mujoco_equal_gymnasium(name: str) -> None:
    pytest.importorskip("mujoco", reason="needs the extra mujoco")
    game, gym_env = GAMES[name], gym.make(MUJOCO_IDS[name])
    environment = make_environment(name, 1, 2)
    assert game.gym_id == MUJOCO_IDS[name] and environment.spaces.max_episode_steps == 1000
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


@pytest.mark.parametrize("name", MUJOCO_IDS)
def test_mujoco_prints_nothing(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mujoco", reason="needs the extra mujoco")
    make_environment(name, 1, 1).close()
    assert capfd.readouterr() == ("", "")
