"""Synthetic environments: published sizes, ends and starts of episodes; test_understudy_files.py tests steps."""

from typing import Any

import pytest
import torch
from torch import Tensor

from envs.classic_control import CartPole
from envs.make import make_environment
from envs.synthetic import SyntheticDynamics, sample_observations, starts_of
from envs.tensor import TensorEnvironment
from models.proxies.synthetic.config import Config
from models.proxies.synthetic.networks import Networks
from models.spaces import Continuous, Discrete, Spaces
from models.streams import Streams
from rounding import assert_near

CARTPOLE = Spaces((4,), Discrete(2), max_episode_steps=500)
ACROBOT = Spaces((6,), Discrete(3), max_episode_steps=500)


def config(**changes: Any) -> Config:
    return Config(**({"proxy_hidden_size": 13} | changes))


def dynamics_of(settings: Config, members: int = 3) -> SyntheticDynamics:
    networks = Networks(settings, CARTPOLE)
    program = networks.with_weights(networks.initial(Streams(range(members))))
    return SyntheticDynamics(program, CARTPOLE, lambda seeds: CartPole().observe(CartPole().initial(seeds)))


def test_normal_initial_weights_have_their_distribution() -> None:
    """By default they are those of `MLP`."""
    networks = Networks(config(proxy_init="normal", proxy_hidden_size=50), CARTPOLE)
    split = networks.split(networks.initial(Streams(range(100))))
    for name, part in networks.mlps.items():
        for (weight, bias), inputs in zip(part.layers(split[name]), part.sizes, strict=False):
            assert weight.std().item() == pytest.approx(inputs**-0.5, rel=0.03)
            assert weight.abs().max() > inputs**-0.5 and not bias.any()


def constant(settings: Config, part: str, output: Tensor) -> SyntheticDynamics:
    """Members with a constant ``output [M, outputs]`` of network ``part``."""
    dynamics = dynamics_of(settings, len(output))
    networks, flat = dynamics.program.networks, dynamics.program.flat.clone()
    layers = networks.mlps[part].layers(networks.split(flat)[part].zero_())
    layers[-1][1][:, :, 0] = output
    return SyntheticDynamics(networks.with_weights(flat), CARTPOLE, dynamics.starts)


@pytest.mark.parametrize("raw", [False, True])
def test_episode_ends_above_one_half(raw: bool) -> None:
    """With ``raw_done`` the discount is one minus the output, as published."""
    done = torch.tensor([[0.5], [0.51], [-0.75], [1.25], [float("nan")]])
    environment, start = TensorEnvironment(constant(config(raw_done=raw), "done", done), 5, 1), torch.zeros(5, 1).long()
    environment.reset(start)
    step = environment.step(start)
    assert step.terminated[:, 0].tolist() == [False, True, False, True, False] and not step.truncated.any()
    if raw:
        assert step.discount is not None and step.discount[:4, 0].tolist() == pytest.approx([0.5, 0.49, 1.75, -0.25])
    else:
        assert step.discount is None


def test_low_done_bias_prevents_ends() -> None:
    free, bound = (config(done_bias=bias, max_steps=7, proxy_init="normal") for bias in (0.0, -5.0))
    states, action = torch.randn(20, 50, 4), torch.zeros(20, 50).long()
    first, second = (dynamics_of(settings, 20).program.step(states, action) for settings in (free, bound))
    assert torch.equal(first.next_state, second.next_state) and torch.equal(first.reward, second.reward)
    assert_near(first.done - 5, second.done)
    assert (first.done > 0.5).any() and not (second.done > 0.5).any()


def test_bandits_have_no_discount() -> None:
    dynamics = dynamics_of(config(proxy="bandit", raw_done=True))
    *_, terminated, discount = dynamics.step(torch.randn(3, 4, 4), torch.randint(2, (3, 4)))
    assert terminated.all() and discount is None


WIDE = Spaces((3,), Continuous((-1.0, -2.0), (1.0, 6.0)), max_episode_steps=9)


@pytest.mark.parametrize("spaces", [WIDE, ACROBOT])
@pytest.mark.parametrize(("form", "max_reward"), [("absolute", 0.0), ("squared", 0.0), ("exponential", 1.0)])
def test_target_action_pays_most(form: str, max_reward: float, spaces: Spaces) -> None:
    """A new target gives 0, and its inputs have mean 0 and variance 1."""
    settings = config(proxy="bandit", reward_form=form, first_states="table", table_size=40)
    networks, obs = Networks(settings, spaces), 5 + 2 * torch.randn(3, 50, *spaces.obs_shape)
    flat = networks.fill_table(networks.initial(Streams(range(3))), 5 + 2 * torch.randn(3, 60, *spaces.obs_shape))
    first = networks.target(flat).act(obs)
    middle = torch.tensor([0.0, 2.0]) if spaces is WIDE else first.flatten()[0]
    assert torch.equal(first, middle.expand_as(first))
    flat[:, : networks.num_searched] = torch.randn(3, networks.num_searched)
    program = networks.with_weights(flat)
    best, rewards, one_hot = networks.target(flat).act(obs), {}, torch.eye(3)
    for action in (best, first, best.roll(1, 1)):
        rewards[action] = program.step(obs, action).reward
        difference = (action - best) / torch.tensor([1.0, 4.0]) if spaces is WIDE else one_hot[action] - one_hot[best]
        expected = -(difference.abs() if form == "absolute" else difference.square()).mean(-1)
        assert_near(rewards[action], (4 * expected).exp() if form == "exponential" else expected)
        alone = networks.with_weights(flat[1:2]).step(obs[1:2], action[1:2]).reward
        assert torch.equal(alone, rewards[action][1:2])
    torch.testing.assert_close(rewards.pop(best), torch.full((3, 50), max_reward))
    assert all((reward <= max_reward).all() and reward.mean() < max_reward - 0.1 for reward in rewards.values())
    if spaces is WIDE:
        low, high = torch.tensor(WIDE.actions.low), torch.tensor(WIDE.actions.high)
        assert torch.equal(best, best.clamp(low, high)) and (best == low).any() and (best == high).any()
    fixed = networks.fixed_tensors(flat)
    assert networks.size - networks.num_searched == sum(view[0].numel() for view in fixed.values())
    normalized_table = (fixed["states.table"] - fixed["target.center"][:, None]) / fixed["target.spread"][:, None]
    assert normalized_table.mean().abs() < 0.1 and normalized_table.std().item() == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize(("game", "limits"), [
    ("pendulum", (1, 1, 8)), ("mountaincar-continuous", (1.2, 0.07)), ("MountainCar-v0", (1.2, 0.07)),
])  # fmt: skip
def test_sampled_observations_cover_the_bounds(game: str, limits: tuple[float, ...]) -> None:
    streams = Streams(range(2))
    states = sample_observations(game, streams, 2000)
    assert states is not None and states.shape == (2, 2000, len(limits)) and not torch.equal(*states)
    assert states.abs().amax((0, 1)).tolist() == pytest.approx(limits, rel=0.01)
    assert (states.std((0, 1)) / torch.tensor(limits) > 0.4).all()
    assert sample_observations("cartpole", streams, 5) is None


@pytest.mark.parametrize("members", [1, 3])
def test_starts_come_from_the_environment(members: int) -> None:
    tensors, few_seeds = make_environment("cartpole", 3, 2), torch.arange(6).view(3, 2)
    assert torch.equal(starts_of(tensors)(few_seeds), tensors.reset(few_seeds))
    real = make_environment("lunarlander", members, 2)
    starts, seeds = starts_of(real, draws=10), torch.randint(2**31, (5, 3, 100))
    start_states, bank_seeds = starts(seeds), torch.arange(-(-10 // (2 * members)) * 2 * members).view(-1, members, 2)
    bank = torch.cat([real.reset(block).flatten(0, 1) for block in bank_seeds])
    assert start_states.shape == (5, 3, 100, 8)
    assert torch.equal(start_states.flatten(0, -2).unique(dim=0), bank.unique(dim=0))
    assert torch.equal(starts(seeds[2, 1:2, 7:8]), start_states[2, 1:2, 7:8])
    real.close()


def test_one_hot_observations_show_the_largest_number() -> None:
    real = make_environment("emptyroom23", 2, 3)
    networks = Networks(Config(proxy_hidden_size=8), real.spaces)
    program = networks.with_weights(networks.initial(Streams([0, 1])))
    world = SyntheticDynamics(program, real.spaces, starts_of(real))
    state = world.step(world.initial(torch.arange(6).view(2, 3)), torch.zeros(2, 3, dtype=torch.int64))[0]
    obs = world.observe(state)
    assert world.spaces.one_hot and not torch.equal(obs, state)
    assert torch.equal(obs.argmax(-1), state.argmax(-1))
    assert torch.equal(obs.sort(-1).values, torch.eye(6)[5].expand(2, 3, 6))
