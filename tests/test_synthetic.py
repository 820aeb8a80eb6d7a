"""Synthetic environments against three plain torch modules, their sizes as published, and where episodes start."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from envs import seeded
from envs.cartpole import CartPole
from envs.make import make_environment
from envs.synthetic import SyntheticDynamics, starts_of
from envs.tensor import TensorEnvironment
from models.proxies.synthetic.config import Config
from models.proxies.synthetic.networks import Networks
from models.spaces import Continuous, Discrete, Spaces
from models.streams import Streams

CARTPOLE = Spaces((4,), Discrete(2), max_episode_steps=500)
ACROBOT = Spaces((6,), Discrete(3), max_episode_steps=500)
PUSHED = Spaces((3,), Continuous((-2.0, -1.0), (2.0, 1.0)))
MODULES = {"relu": nn.ReLU(), "leakyrelu": nn.LeakyReLU(), "tanh": nn.Tanh(), "identity": nn.Identity(),
           "prelu": nn.PReLU()}  # fmt: skip


def config(**changes: Any) -> Config:
    return Config(**({"proxy_hidden_size": 13} | changes))


def dynamics_of(settings: Config, members: int = 3) -> SyntheticDynamics:
    networks = Networks(settings, CARTPOLE)
    program = networks.program(networks.initial(Streams(range(members))))
    return SyntheticDynamics(program, CARTPOLE, lambda seeds: CartPole().observe(CartPole().initial(seeds)))


def plain(networks: Networks, flat: Tensor, member: int, name: str) -> nn.Sequential:
    """One network of one member as torch builds it."""
    part = networks.parts[name]
    layers = part.layers(networks.split(flat)[name])
    modules: list[nn.Module] = []
    for (weight, bias), (inputs, outputs) in zip(layers, itertools.pairwise(part.sizes), strict=True):
        linear = nn.Linear(inputs, outputs)
        linear.weight.data, linear.bias.data = weight[member], bias[member, :, 0]
        modules += [linear, MODULES[networks.config.proxy_activation_fn]]
    return nn.Sequential(*modules[:-1])


def close(ours: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(ours.view_as(expected), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("envs", [1, 5])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("activation", MODULES)
@pytest.mark.parametrize("spaces", [ACROBOT, PUSHED], ids=["discrete", "continuous"])
def test_a_step_is_three_networks_of_action_and_state(spaces: Spaces, activation: str, depth: int, envs: int) -> None:
    """Of the one-hot action, or the continuous one as it is, and then the state."""
    networks = Networks(config(proxy_activation_fn=activation, proxy_hidden_layer=depth), spaces)
    flat = 1.5 * networks.initial(Streams(range(3)))
    program = networks.program(flat)
    assert program.folded == (depth == 1)
    state = torch.randn(3, envs, *spaces.obs_shape)
    action = torch.randint(3, (3, envs)) if spaces is ACROBOT else torch.randn(3, envs, 2)
    out = program.step(state, action)
    assert out.next_state.shape == state.shape and out.reward.shape == out.done.shape == (3, envs)
    x = torch.cat([nn.functional.one_hot(action, 3) if spaces is ACROBOT else action, state], 2)
    for m in range(3):
        for name, ours in (("state", out.next_state), ("reward", out.reward), ("done", out.done)):
            close(ours[m], plain(networks, flat, m, name)(x[m]))


SIZES = [(CARTPOLE, 83, "leakyrelu", 2247), (CARTPOLE, 128, "leakyrelu", 3462), (ACROBOT, 167, "prelu", 6354),
         (ACROBOT, 128, "leakyrelu", 4872)]  # fmt: skip


@pytest.mark.parametrize(("spaces", "hidden", "activation", "count"), SIZES)
def test_sizes_as_published(spaces: Spaces, hidden: int, activation: str, count: int) -> None:
    networks = Networks(Config(proxy_hidden_size=hidden, proxy_activation_fn=activation), spaces)
    assert networks.size == count and networks.initial(Streams([0])).shape == (1, count)


@pytest.mark.parametrize("init", ["torch", "normal"])
def test_initial_parameters(init: str) -> None:
    networks = Networks(config(proxy_init=init, proxy_hidden_size=50), CARTPOLE)
    split = networks.split(networks.initial(Streams(range(100))))
    for name, part in networks.parts.items():
        for (weight, bias), inputs in zip(part.layers(split[name]), part.sizes, strict=False):
            std = (3 * inputs if init == "torch" else inputs) ** -0.5
            assert weight.std().item() == pytest.approx(std, rel=0.03)
            assert (weight.abs().max() <= inputs**-0.5) == (init == "torch")
            if init == "torch":
                assert bias.abs().max() <= inputs**-0.5 and bias.std().item() == pytest.approx(std, rel=0.15)
            else:
                assert not bias.any()


def constant(settings: Config, part: str, output: Tensor) -> SyntheticDynamics:
    """Members ``[M, outputs]`` of whose networks one says the same at all times."""
    dynamics = dynamics_of(settings, len(output))
    networks, flat = dynamics.program.networks, dynamics.program.flat.clone()
    layers = networks.parts[part].layers(networks.split(flat)[part].zero_())
    layers[-1][1][:, :, 0] = output
    return SyntheticDynamics(networks.program(flat), CARTPOLE, dynamics.starts)


@pytest.mark.parametrize("raw", [False, True])
def test_an_episode_ends_above_one_half(raw: bool) -> None:
    """The published discount, with ``raw_done``, is one minus the output; else it is 0 at an end and 1 elsewhere."""
    done = torch.tensor([[0.5], [0.51], [-0.75], [1.25], [float("nan")]])
    environment, start = TensorEnvironment(constant(config(raw_done=raw), "done", done), 5, 1), torch.zeros(5, 1).long()
    environment.reset(start)
    step = environment.step(start)
    assert step.terminated[:, 0].tolist() == [False, True, False, True, False] and not step.truncated.any()
    if raw:
        assert step.discount is not None and step.discount[:4, 0].tolist() == pytest.approx([0.5, 0.49, 1.75, -0.25])
    else:
        assert step.discount is None


@pytest.mark.parametrize(("max_steps", "length"), [(None, 500), (7, 7)])
def test_the_time_limit(max_steps: int | None, length: int) -> None:
    environment = TensorEnvironment(constant(config(max_steps=max_steps), "done", torch.zeros(1, 1)), 1, 1)
    assert environment.spaces.max_episode_steps == length and environment.spaces.max_return is None
    environment.reset(start := torch.zeros(1, 1).long())
    for age in range(1, length + 1):
        step = environment.step(start)
        assert step.truncated.item() == (age == length) and not step.terminated.any()


def test_nothing_is_clipped_and_the_next_state_is_absolute() -> None:
    there = torch.tensor([[1e9, -1e9, 0.5, 0.0]])
    out = constant(config(), "state", there).program.step(torch.randn(1, 2, 4), torch.zeros(1, 2).long())
    assert torch.equal(out.next_state[0], there.expand(2, 4))


def test_a_bandit_has_episodes_of_one_step() -> None:
    dynamics = dynamics_of(config(proxy="bandit", raw_done=True))
    assert set(dynamics.program.networks.parts) == {"reward", "initial"}
    environment = TensorEnvironment(dynamics, 3, 4)
    obs, action = environment.reset(torch.arange(12).view(3, 4)), torch.randint(2, (3, 4))
    step = environment.step(action)
    assert step.terminated.all() and step.discount is None and torch.equal(step.obs, obs)
    for m in range(3):
        x = torch.cat([nn.functional.one_hot(action[m], 2), obs[m]], 1)
        close(step.reward[m], plain(dynamics.program.networks, dynamics.program.flat, m, "reward")(x))


@pytest.mark.parametrize("latent", [None, 7])
def test_a_learned_reset_is_of_the_seed_alone(latent: int | None) -> None:
    dynamics = dynamics_of(config(learned_reset=True, latent_size=latent))
    networks, seeds = dynamics.program.networks, torch.randint(2**31, (6, 3, 2))
    block = dynamics.initial(seeds)
    assert block.shape == (6, 3, 2, 4) and block.dtype == torch.float32
    noise = seeded.normal(seeds, latent or 4).float()
    for step in range(6):
        close(dynamics.initial(seeds[step]), block[step])
        for m in range(3):
            close(block[step, m], plain(networks, dynamics.program.flat, m, "initial")(noise[step, m]))
    assert (block[0, 0, 0] - block[0, 0, 1]).abs().min() > 0
    assert torch.equal(dynamics.initial(seeds.view(2, 3, 3, 2)), block.view(2, 3, 3, 2, 4))
    alone = dynamics.select(torch.tensor([2])).initial(seeds[:, 2:])
    assert torch.equal(alone, block[:, 2:])


@pytest.mark.parametrize("members", [1, 3])
def test_starts_are_the_environments_own_and_a_function_of_the_seed(members: int) -> None:
    tensors, some = make_environment("cartpole", 3, 2), torch.arange(6).view(3, 2)
    assert torch.equal(starts_of(tensors)(some), tensors.reset(some))
    real = make_environment("lunarlander", members, 2)
    starts, seeds = starts_of(real, draws=10), torch.randint(2**31, (5, 3, 100))
    found, asked = starts(seeds), torch.arange(-(-10 // (2 * members)) * 2 * members).view(-1, members, 2)
    bank = torch.cat([real.reset(block).flatten(0, 1) for block in asked])
    assert found.shape == (5, 3, 100, 8)
    assert torch.equal(found.flatten(0, -2).unique(dim=0), bank.unique(dim=0))  # all of them, and nothing else
    assert torch.equal(starts(seeds[2, 1:2, 7:8]), found[2, 1:2, 7:8])
    real.close()


def test_a_proxy_alone_is_itself_in_company_to_the_bit() -> None:
    for settings in (config(), config(proxy_hidden_layer=2, raw_done=True), config(proxy_activation_fn="tanh")):
        dynamics, state = dynamics_of(settings, 6), torch.randn(6, 1, 4)
        actions = torch.randint(2, (50, 6, 1))
        kept, theirs = dynamics.select(torch.tensor([4, 1])), state[[4, 1]]
        alone, own = dynamics.select(torch.tensor([1])), state[[1]]
        for action in actions:
            state, reward, ends, _ = dynamics.step(state, action)
            theirs, reward2, ends2, _ = kept.step(theirs, action[[4, 1]])
            own, reward1, _, discount = alone.step(own, action[[1]])
            assert torch.equal(theirs, state[[4, 1]]) and torch.equal(own, state[[1]])
            assert torch.equal(reward2, reward[[4, 1]]) and torch.equal(reward1, reward[[1]])
            assert torch.equal(ends2, ends[[4, 1]]) and (discount is None) != settings.raw_done
