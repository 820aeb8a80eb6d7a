"""TD3 and its discrete form: every gradient against autograd, delays, noise, waiting, tests."""

import dataclasses
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import torch_mlp
from models.agents.td3.agent import Agent
from models.agents.td3.config import Config
from models.agents.td3_discrete.agent import Agent as DiscreteAgent
from models.agents.td3_discrete.config import Config as DiscreteConfig
from models.off_policy import TwinCriticAgent
from models.spaces import Continuous, Discrete, Spaces
from models.streams import Streams
from proxies import PLAIN
from rounding import Stack, assert_near, backpropagated, gamma, steps

OBS, LOW, HIGH = 4, (-2.0, 0.0), (2.0, 10.0)
SMALL: dict[str, Any] = {"hidden_sizes": (9, 9), "batch_size": 7, "init_episodes": 0, "fill": 0}
NOW, DISCRETE = Config(**SMALL), DiscreteConfig(**SMALL)


def make_agent(config: Any = NOW, seeds: Any = (0, 1, 2)) -> TwinCriticAgent:
    if isinstance(config, DiscreteConfig):
        return DiscreteAgent(config, Spaces((OBS,), Discrete(3)), list(seeds))
    return Agent(config, Spaces((OBS,), Continuous(LOW, HIGH)), list(seeds))


def live(agent: TwinCriticAgent, steps: int, learns: bool = True, first: int = 0) -> None:
    """So many steps of each member's own experience, from step ``first`` on; half of the episodes' ends are
    terminations."""
    for step in range(first, first + steps):
        alone = []
        for seed in agent.seeds:
            g = torch.Generator().manual_seed(1000 * seed + step)
            alone.append((*torch.randn(2, agent.envs, OBS, generator=g), *torch.rand(2, agent.envs, generator=g)))
        obs, next_obs, reward, end = (torch.stack(parts) for parts in zip(*alone, strict=True))
        agent.observe(obs, agent.act(obs), next_obs, reward, (end >= 0.05).float(), end < 0.1)
        if learns:
            agent.learn()


def perturb_targets(agent: TwinCriticAgent) -> None:
    """Targets that are not the networks they follow."""
    g = torch.Generator().manual_seed(0)
    for target in (agent.critics.target_parameters, getattr(agent, "target", None)):
        if target is not None:
            target.data += 0.3 * torch.randn(target.shape, generator=g)


def learned(agent: TwinCriticAgent) -> dict[str, Tensor]:
    parts = {"actor": agent.optimizer, "critics": agent.critics.optimizer}
    states = {
        f"{part} {name}": value for part, optimizer in parts.items() for name, value in optimizer.state_dict().items()
    }
    return {name: value.clone() for name, value in (states | dict(agent.state_dict())).items()}


# -- gradients against autograd ----------------------------------------------------------------------------------------


def numbers_of(agent: TwinCriticAgent, m: int) -> dict[str, Tensor]:
    """The random numbers of member ``m``'s next update."""
    return {name: agent.random_numbers[name][m, 0] for name in agent.update_numbers}


def rows_of(agent: TwinCriticAgent, m: int) -> tuple[Tensor, ...]:
    """The batch of member ``m``'s next update: obs, action, next obs, reward, discount."""
    rows = agent.replay_buffer.sample(agent.random_numbers["replay"][:, 0])
    pair, next_obs, reward, discount = (rows[name][m] for name in ("pair", "next_obs", "reward", "discount"))
    return pair[:, :OBS], pair[:, OBS:], next_obs, reward, discount


def torch_actor(agent: TwinCriticAgent, weights: Tensor, obs: Tensor, gumbel: Tensor) -> Tensor:
    """Actions ``[B, A]`` of one member's actor."""
    outputs, config = torch_mlp(agent.network, weights[: agent.network.size], obs), agent.config
    if not isinstance(config, DiscreteConfig):
        return outputs.tanh()
    heat = {"fixed": config.gumbel_softmax_temp, "learned": weights[-1].exp()}[config.gumbel_temperature]
    soft = F.softmax((outputs + gumbel.T) / heat, 1)
    hard = F.one_hot(soft.argmax(1), 3) - soft.detach() + soft  # its value is hard, its gradient soft
    return hard if config.gumbel_softmax_hard else soft


def torch_critics(agent: TwinCriticAgent, weights: Tensor, obs: Tensor, action: Tensor) -> Tensor:
    """Both values ``[2, B]`` of one member."""
    pair = torch.cat([obs, action], 1)
    return torch.stack([torch_mlp(agent.critics.network, flat, pair)[:, 0] for flat in weights.chunk(2)])


def torch_losses(agent: Any, critics: Tensor, actor: Tensor, m: int) -> Tensor:
    """The critics' loss of member ``m`` (Fujimoto et al. 2018, algorithm 1)."""
    config, numbers = agent.config, numbers_of(agent, m)
    obs, action, next_obs, reward, discount = rows_of(agent, m)
    with torch.no_grad():
        next_action = torch_actor(agent, agent.target[m], next_obs, numbers.get("next_gumbel", obs))
        noise = config.policy_std * numbers["next"].T
        next_action = next_action + noise.clamp(-config.policy_std_clip, config.policy_std_clip)
        if not isinstance(config, DiscreteConfig):
            next_action = next_action.clamp(-1, 1)
        next_q = torch_critics(agent, agent.critics.target[m], next_obs, next_action).min(0).values
    error = torch_critics(agent, critics, obs, action) - (reward + config.discount * discount * next_q)
    return error.square().mean(1).sum()


def gradient_error(agent: TwinCriticAgent, gradient: Tensor) -> float:
    """Error bound of a gradient through the actor and a critic. Its terms are taken to be as large as its largest
    number."""
    widths = [*agent.network.sizes, *agent.critics.network.sizes]
    return backpropagated(widths, agent.config.batch_size) * float(gradient.abs().max())


def critic_bounds(agent: TwinCriticAgent, weights: Tensor, pair: Tensor, error: Tensor | float = 0.0) -> list[Stack]:
    """Error bounds of both critics of one member at pairs ``[B, in]``."""
    network = agent.critics.network
    layers = [[(w[0], b[0, :, 0]) for w, b in network.layers(flat[None])[: network.depth]] for flat in weights.chunk(2)]
    return [Stack(critic_layers, PLAIN[network.activation], pair, error) for critic_layers in layers]


GRADIENTS = {
    "continuous": dataclasses.replace(NOW, hidden_sizes=(9, 9), policy_std=0.4, policy_std_clip=0.3),
    "continuous-prelu": dataclasses.replace(NOW, hidden_sizes=(9, 9), activation="prelu"),
    "continuous-one-layer": dataclasses.replace(NOW, hidden_sizes=(9,), activation="tanh"),
    "continuous-narrow": dataclasses.replace(NOW, hidden_sizes=(5,), activation="leakyrelu"),
    "soft": dataclasses.replace(DISCRETE, gumbel_softmax_temp=0.7, activation="tanh"),
    "hard": dataclasses.replace(DISCRETE, gumbel_softmax_hard=True, gumbel_softmax_temp=1.4),
    "learned": dataclasses.replace(DISCRETE, gumbel_temperature="learned", gumbel_softmax_temp=0.6, hidden_sizes=(9,)),
}  # fmt: skip


@pytest.mark.parametrize("case", GRADIENTS)
def test_the_gradients_are_those_of_the_losses(case: str) -> None:
    """The critics' towards the goal, then the actor's up the first critic, after its step."""
    agent: Any = make_agent(dataclasses.replace(GRADIENTS[case], policy_delay=1))
    perturb_targets(agent)
    live(agent, 30, learns=False)
    actors = [agent.flat_parameters[m].clone().requires_grad_() for m in range(3)]
    critics = [agent.critics.flat_parameters[m].clone().requires_grad_() for m in range(3)]
    losses = [torch_losses(agent, critics[m], actors[m], m) for m in range(3)]
    agent_losses, logged = agent.learn(), agent.metrics()
    for m in range(3):
        losses[m].backward()
        assert agent_losses[m].item() == pytest.approx(losses[m].item(), rel=1e-5)
        assert_near(
            agent.critics.optimizer.mean[m], 0.1 * critics[m].grad, 0.1 * gradient_error(agent, critics[m].grad)
        )
        obs = rows_of(agent, m)[0]
        action = torch_actor(agent, actors[m], obs, numbers_of(agent, m).get("gumbel", obs))
        torch_critics(agent, agent.critics.flat_parameters[m], obs, action)[0].mean().neg().backward()
        assert actors[m].grad is not None and actors[m].grad.abs().max() > 1e-4
        assert_near(agent.optimizer.mean[m], 0.1 * actors[m].grad, 0.1 * gradient_error(agent, actors[m].grad))
        if "train/entropy" in logged:
            logits = torch_mlp(agent.network, actors[m][: agent.network.size], obs)
            exact = torch.distributions.Categorical(logits=logits).entropy().mean().item()
            assert logged["train/entropy"][m].item() == pytest.approx(exact, rel=1e-4) and exact < 0.9999 * math.log(3)
    assert ("train/entropy" in logged) == isinstance(agent.spaces.actions, Discrete)


def test_the_smaller_critic_and_its_gradient() -> None:
    agent = make_agent(dataclasses.replace(NOW, activation="tanh"))
    g = torch.Generator().manual_seed(3)
    agent.critics.flat_parameters.data.normal_(generator=g)  # so that each is the smaller one somewhere
    pairs = torch.randn(3, OBS + 2, 40, generator=g)
    values, slopes = agent.critics.min_q_gradient(pairs)
    for m in range(3):
        x = pairs[m].T.clone().requires_grad_()
        q_values = torch_critics(agent, agent.critics.flat_parameters[m], x[:, :OBS], x[:, OBS:])
        assert 0 < (q_values[0] < q_values[1]).sum() < 40
        smaller = q_values.min(0).values
        smaller.mean().backward()
        bounds = critic_bounds(agent, agent.critics.flat_parameters[m], pairs[m].T)
        assert_near(values[m], smaller, torch.cat([bound.error for bound in bounds], 1).amax(1))
        downs = torch.stack([bound.backward(torch.full((40, 1), 1 / 40))[1] for bound in bounds])
        assert_near(slopes[m], x.grad.T, downs.amax(0).T)


@pytest.mark.parametrize("case", GRADIENTS)
def test_the_value_of_a_state_is_that_of_what_a_test_does_there(case: str) -> None:
    agent: Any = make_agent(GRADIENTS[case])
    perturb_targets(agent)
    obs = torch.randn(3, 40, OBS, generator=torch.Generator().manual_seed(4))
    values = agent.state_values(obs)
    for m in range(3):
        outputs = torch_mlp(agent.network, agent.flat_parameters[m][: agent.network.size], obs[m])
        done = F.one_hot(outputs.argmax(1), 3).float() if agent.action_size == 3 else outputs.tanh()
        expected = torch_critics(agent, agent.critics.target[m], obs[m], done).min(0).values
        error = gamma(steps(*agent.network.sizes))  # of actions up to 1
        bounds = critic_bounds(agent, agent.critics.target[m], torch.cat([obs[m], done], 1), error)
        assert_near(values[m], expected, torch.cat([bound.error for bound in bounds], 1).amax(1))


# -- delays and waiting ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [NOW, DISCRETE], ids=["continuous", "discrete"])
def test_actor_and_targets_move_at_every_policy_delay_th_update_of_a_member(config: Any) -> None:
    """Member m ends its first episode at tick 2 m, so that all count their own updates."""
    agent: Any = make_agent(dataclasses.replace(config, policy_delay=3, init_episodes=1))
    perturb_targets(agent)
    obs, updates = torch.randn(3, 1, OBS, generator=torch.Generator().manual_seed(1)), [0, 0, 0]
    for tick in range(10):
        old_values = learned(agent)
        done = torch.tensor([[tick == 2 * m] for m in range(3)])
        agent.observe(obs, agent.act(obs), 0.9 * obs, torch.ones(3, 1), torch.ones(3, 1), done)
        loss, now = agent.learn(), learned(agent)
        for m in range(3):
            active = tick >= 2 * m
            updates[m] += active
            assert loss[m].isnan() == (not active) == agent.metrics()["train/q_mean"][m].isnan()
            is_due = active and updates[m] % 3 == 0
            for name, value in now.items():
                moves = active if name.startswith("critics") and "target" not in name else is_due
                if name.rpartition(" ")[2] != "lr":
                    assert torch.equal(value[m], old_values[name][m]) == (not moves), (tick, m, name)
            if is_due:
                towards = 0.995 * old_values["target"][m] + 0.005 * now["online"][m]
                assert_near(
                    now["target"][m], towards, gamma(3) * (old_values["target"][m].abs() + now["online"][m].abs())
                )
    assert agent.critics.optimizer.count.tolist() == [10, 8, 6] and agent.optimizer.count.tolist() == [3, 2, 2]


def test_acts_at_random_until_it_learns() -> None:
    agent = make_agent(dataclasses.replace(NOW, fill=300, action_std=0.0))
    live(agent, 300, learns=False)
    action = agent.replay_buffer.rows()["pair"][:, :, OBS:]
    assert action.amin() < -0.97 and action.amax() > 0.97 and abs(action.mean()) < 0.05
    obs = torch.randn(3, 1, OBS)
    assert torch.equal(agent.act(obs), agent.begin(1, Streams([1, 2, 3]), sample=False).act(obs))


# -- actions -----------------------------------------------------------------------------------------------------------


def test_noise_is_in_shares_of_half_the_range_and_actions_keep_to_it() -> None:
    agent = make_agent(dataclasses.replace(NOW, num_envs=4000, buffer_size=20_000, action_std=0.3))
    agent.flat_parameters.data.zero_()  # the middle of the range
    live(agent, 1, learns=False)
    action = agent.act(torch.zeros(3, 4000, OBS))
    for a, (low, high) in enumerate(zip(LOW, HIGH, strict=True)):
        assert action[..., a].mean().item() == pytest.approx((low + high) / 2, abs=0.02 * (high - low))
        assert action[..., a].std().item() == pytest.approx(0.3 * (high - low) / 2, rel=0.02)
        assert action[..., a].amin() == low and action[..., a].amax() == high


def test_discrete_does_the_largest_of_the_noisy_vector_that_it_remembers() -> None:
    agent = make_agent(dataclasses.replace(DISCRETE, action_std=1.0))
    live(agent, 5, learns=False)  # the first of which is at random
    obs = torch.randn(3, 1, OBS)
    action = agent.act(obs)
    agent.observe(obs, action, obs, torch.zeros(3, 1), torch.ones(3, 1), torch.zeros(3, 1, dtype=torch.bool))
    vector = agent.replay_buffer.rows()["pair"][-1, :, OBS:]
    assert torch.equal(vector.argmax(1), action[:, 0])
    noise = agent.random_numbers["explore"][:, 0]
    assert_near((vector - noise).sum(1), torch.ones(3), gamma(2 * vector.shape[1]) * (1 + 2 * noise.abs().sum(1)))
    first = agent.replay_buffer.rows()["pair"][0, :, OBS:]
    assert sorted(first[0].tolist()) == [0, 0, 1]


def test_annealed_temperature() -> None:
    """Linearly from 2 to 0.1 over 2,000 updates of each member's own."""
    agent: Any = make_agent(dataclasses.replace(DISCRETE, gumbel_softmax_temp=2.0, gumbel_temperature="annealed"))
    for counts, expected in (([0, 1000, 2000], [2.0, 1.05, 0.1]), ([500, 9000, 1], [1.525, 0.1, 1.99905])):
        agent.critics.optimizer.count = torch.tensor(counts)
        assert agent.temperature(agent.flat_parameters).view(-1).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("config", [NOW, DISCRETE], ids=["continuous", "discrete"])
def test_tests_are_greedy_unless_they_are_to_be_noisy(config: Any) -> None:
    obs = torch.randn(3, 50, OBS)
    calm, noisy = (
        make_agent(dataclasses.replace(config, test_noise=test_noise, action_std=0.5)) for test_noise in (False, True)
    )
    policies = [agent.begin(50, Streams([5, 6, 7]), sample=False) for agent in (calm, calm, noisy, noisy)]
    actions = [policy.act(obs) for policy in policies]
    outputs = torch.stack(
        [torch_mlp(calm.network, calm.flat_parameters[m, : calm.network.size], obs[m]) for m in range(3)]
    )
    greedy = outputs.argmax(2) if config is DISCRETE else calm.clip(outputs.tanh())
    torch.testing.assert_close(actions[0], greedy)
    assert torch.equal(actions[0], actions[1]) and torch.equal(actions[2], actions[3])
    assert not torch.equal(actions[0], actions[2]) and not torch.equal(policies[2].act(obs), actions[2])
    assert torch.equal(calm.with_weights(calm.flat_parameters[:2]).act(obs[:2]), actions[0][:2])


# -- members -----------------------------------------------------------------------------------------------------------
