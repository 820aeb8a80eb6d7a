"""DDQN: an update by hand, gradients against autograd, exploration, waiting for experience, and varied members."""

import dataclasses
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from models.agents.ddqn.agent import Agent
from models.agents.ddqn.config import Config
from models.spaces import Discrete, Spaces
from models.varied import sample_config
from rounding import assert_near
from test_off_policy import OBS, learned, live

ACTIONS = 3
SPACES = Spaces((OBS,), Discrete(ACTIONS))
NOW = Config(hidden_sizes=(9,), batch_size=7, init_episodes=0, feature_dim=6)  # learns from its first step


def make_agent(config: Config = NOW, seeds: Any = (0, 1, 2), spaces: Spaces = SPACES) -> Agent:
    return Agent(config, spaces, list(seeds))


def set_action_values(agent: Agent, flat: Tensor, values: list[list[list[float]]]) -> None:
    """Sets parameters so that one-hot states have action values ``[member][state][action]``."""
    (first, bias), (last, last_bias) = agent.network.layers(flat)
    first.copy_(torch.eye(2).expand_as(first))
    last.copy_(torch.tensor(values).transpose(1, 2))
    bias.zero_(), last_bias.zero_()


def test_update_by_hand() -> None:
    """Two states, two actions, linear networks: hidden = state, Q(s, .) = column s of the last weight.

    Member 0 moves from state 0 by action 1 to state 1 with reward 1 and discount 1. Online Q(s1) = (5, 3), so the best
    action is 0, with target value 10 (the target's best is 20). Goal 1 + 0.5 * 10 = 6, value 2, error -4, loss 16.
    Member 1 does the same with reward -3 and discount 0: goal -3, value -1, error 2, loss 4.
    d loss / d Q(s0, a1) is twice the error: -8 and 4. With h = (1, 0) and the last weight's row (2, 3) or (-1, 0.5):
    d/d last weight[1] = -8 h = (-8, 0); d/d last bias[1] = -8; d/d hidden = -8 (2, 3) = (-16, -24), also the gradient
    of the first bias and of the first weight's column of state 0. For member 1: (4, 0), 4, (-4, 2).
    """
    config = Config(
        hidden_sizes=(2,), activation="identity", batch_size=5, init_episodes=0, discount=0.5, lr=0.125, tau=0.25
    )
    agent = make_agent(config, (0, 1), Spaces((2,), Discrete(2)))
    set_action_values(agent, agent.flat_parameters.data, [[[1, 2], [5, 3]], [[0, -1], [4, 0.5]]])
    set_action_values(agent, agent.target_parameters.data, [[[0, 0], [10, 20]], [[0, 0], [10, 20]]])
    online, target = agent.flat_parameters.data.clone(), agent.target_parameters.data.clone()
    state = torch.eye(2)[:, None]
    zero, next_state = state[:1].expand(2, 1, 2), state[1:].expand(2, 1, 2)
    agent.act(zero)
    action, reward, discount = torch.ones(2, 1).long(), torch.tensor([[1.0], [-3.0]]), torch.tensor([[1.0], [0.0]])
    agent.observe(zero, action, next_state, reward, discount, torch.zeros(2, 1, dtype=torch.bool))
    assert agent.learn().tolist() == pytest.approx([16, 4], rel=1e-6)
    gradient = torch.full_like(online, torch.nan)
    (first, bias), (last, last_bias) = agent.network.layers(gradient)
    first.copy_(torch.tensor([[[-16, 0], [-24, 0]], [[-4, 0], [2, 0]]]))
    bias[..., 0] = torch.tensor([[-16.0, -24], [-4, 2]])
    last.copy_(torch.tensor([[[0, 0], [-8, 0]], [[0, 0], [4, 0]]]))
    last_bias[..., 0] = torch.tensor([[0.0, -8], [0, 4]])
    torch.testing.assert_close(agent.optimizer.mean, 0.1 * gradient)  # 1 - beta1 = 0.1
    # Adam's first step is its step size against the gradient's sign; tau is a quarter.
    assert_near(agent.flat_parameters.data, online - 0.125 * gradient.sign())
    expected = target + 0.25 * (agent.flat_parameters.data - target)
    assert_near(agent.target_parameters.data, expected)


HEADS = {
    "plain": {}, "dueling": {"head": "dueling"}, "dueling-batch": {"head": "dueling", "dueling_mean": "batch"},
}  # fmt: skip


@pytest.mark.parametrize("head", HEADS)
def test_metrics_by_current_weights(head: str) -> None:
    """On the minibatch of the latest update, sampled again; NaN before learning, and they change nothing."""
    agent = make_agent(dataclasses.replace(NOW, fill=25, **HEADS[head]))
    names = ("train/q_mean", "train/explained_variance", "train/grad_norm")
    assert all(agent.metrics()[name].isnan().all() for name in names)
    live(agent, 24)
    assert all(agent.metrics()[name].isnan().all() for name in names)
    live(agent, 6, first=24)
    old_state = learned(agent)
    metrics = agent.metrics()
    for name, value in learned(agent).items():
        assert torch.equal(value, old_state[name]) and not value.requires_grad, name
    batch = agent.replay_buffer.sample(agent.random_numbers["replay"][:, -1])
    chosen_q = agent.values(batch["obs"]).gather(2, batch["action"].long().unsqueeze(2))
    torch.testing.assert_close(metrics["train/q_mean"], chosen_q.mean((1, 2)))
    agent.update({"replay": agent.random_numbers["replay"][:, -1]})
    gradient = (agent.optimizer.mean - 0.9 * old_state["actor mean"]) / 0.1  # by Adam's mean of gradients
    torch.testing.assert_close(metrics["train/grad_norm"], gradient.norm(dim=1), rtol=1e-3, atol=1e-5)


def test_novelty_of_metrics_trains_nothing() -> None:
    agent = make_agent(dataclasses.replace(NOW, intrinsic="rnd"))
    live(agent, 10)
    assert agent.curiosity is not None
    old_weights = agent.curiosity.weights.clone()
    assert agent.metrics()["train/q_mean"].isfinite().all()
    assert torch.equal(agent.curiosity.weights, old_weights)


def test_epsilon_decays_by_episodes() -> None:
    agent = make_agent(dataclasses.replace(NOW, eps_init=0.8, eps_decay=0.5, eps_min=0.11))
    expected = [0.8, 0.4, 0.2, 0.11, 0.11]
    for episodes in ([0, 1, 2], [3, 4, 500], [2, 0, 4]):
        agent.episodes = torch.tensor(episodes)
        assert agent.epsilon().tolist() == pytest.approx([expected[min(k, 4)] for k in episodes])


def test_epsilon_decays_by_steps() -> None:
    """Linear from 1 to 0.2 over half of 80 steps, two at a time: 20 ticks, then level."""
    agent = make_agent(dataclasses.replace(NOW, num_envs=2, eps_fraction=0.5, eps_min=0.2))
    agent.budget = 80
    obs, epsilons = torch.zeros(3, 2, OBS), []
    for _ in range(30):
        agent.act(obs)
        epsilons.append(agent.epsilon()[1].item())
    assert epsilons == pytest.approx([1 - 0.8 * min(1, tick / 20) for tick in range(30)], abs=1e-6)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0])
def test_epsilon_greedy_frequencies(epsilon: float) -> None:
    steps, config = 500, dataclasses.replace(NOW, eps_init=epsilon, eps_min=epsilon, num_envs=4)
    agent, obs = make_agent(config, (0, 1)), torch.randn(2, 4, OBS)
    greedy = agent.with_weights(agent.flat_parameters).act(obs)
    actions = torch.stack([agent.act(obs) for _ in range(steps)])
    if epsilon == 0:
        assert torch.equal(actions, greedy.expand(steps, 2, 4))
        return
    for m in range(2):
        for env in range(4):
            expected = torch.full((ACTIONS,), steps * epsilon / ACTIONS, dtype=torch.float64)
            expected[greedy[m, env]] += steps * (1 - epsilon)
            counts = actions[:, m, env].bincount(minlength=ACTIONS)
            assert stats.chisquare(counts.numpy(), expected.numpy()).pvalue > 1e-4
    assert not torch.equal(actions[:, 0], actions[:, 1]) and not torch.equal(actions[:, :, 0], actions[:, :, 1])


VARIED = dataclasses.replace(NOW, vary_hp=True, hidden_sizes=(9, 9), activation="tanh", lr=1e-2)


@pytest.mark.parametrize("head", HEADS)
def test_varied_member_equals_plain_agent(head: str) -> None:
    config = dataclasses.replace(VARIED, **HEADS[head])
    for seed in range(3):
        varied = make_agent(config, [seed])
        plain = make_agent(dataclasses.replace(sample_config(config, seed), vary_hp=False), [seed])
        for agent in (varied, plain):
            live(agent, 20)
        assert plain.member_configs == [dataclasses.replace(varied.member_configs[0], vary_hp=False)]
        for name, value in learned(varied).items():
            assert torch.equal(value, learned(plain)[name]), (seed, name)
