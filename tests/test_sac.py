"""SAC: the squashed normal distribution against torch, gradients against autograd, and the temperature."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from helpers import torch_mlp
from models.agents.sac.agent import Agent
from models.agents.sac.config import Config
from models.agents.sac.gaussian import sample
from models.spaces import Continuous, Spaces
from models.streams import Streams
from rounding import FUNCTION, assert_near, gamma
from test_td3 import OBS, gradient_error, learned, live, numbers_of, perturb_targets, rows_of, torch_critics

NOW = Config(hidden_sizes=(9, 9), batch_size=7, fill=0)
SPACES = Spaces((OBS,), Continuous((-2.0, 0.0), (2.0, 10.0)))


def make_agent(config: Config = NOW, seeds: Any = (0, 1, 2)) -> Agent:
    return Agent(config, SPACES, list(seeds))


def torch_sample(outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Action ``[B, A]`` and log-probability ``[B]`` of one member, by torch's distributions."""
    mean, level = outputs.chunk(2, 1)
    normal = Normal(mean, level.clamp(-20, 2).exp())
    pre_tanh = mean + normal.stddev * noise
    squashed = TransformedDistribution(normal, [TanhTransform(cache_size=1)])
    action = squashed.transforms[0](pre_tanh)
    return action, squashed.log_prob(action).sum(1)


def action_error(outputs: Tensor, noise: Tensor) -> Tensor:
    """Error bound of actions ``[B, A]``: tanh, with a slope of at most 1, of a mean and a deviation times a number."""
    mean, level = outputs.chunk(2, 1)
    return gamma(2 * FUNCTION + 2) * (1 + mean.abs() + level.clamp(-20, 2).exp() * noise.abs())


def test_sample_equals_torch_distribution() -> None:
    g = torch.Generator().manual_seed(0)
    outputs, noise = 1.5 * torch.randn(3, 50, 4, generator=g), torch.randn(3, 50, 2, generator=g)
    actions, log_probs = sample(outputs, noise)
    for m in range(3):
        action, log_prob = torch_sample(outputs[m], noise[m])
        assert_near(actions[m], action, action_error(outputs[m], noise[m]))
        torch.testing.assert_close(log_probs[m], log_prob, rtol=1e-4, atol=1e-4)


def test_log_prob_of_saturated_action() -> None:
    """Mean 30, deviation 1, noise 0: -log(2 pi) / 2 - log(1 - tanh(30)^2), and 1 - tanh(x)^2 is 4 e^(-2 x) there; its
    slope by the mean is 2."""
    for mean in (30.0, -30.0):
        outputs = torch.tensor([[[mean, 0.0]]], requires_grad=True)
        _, log_prob = sample(outputs, torch.zeros(1, 1, 1))
        assert log_prob.item() == pytest.approx(-0.9189385 - 1.3862944 + 60, rel=1e-6)
        (gradient,) = torch.autograd.grad(log_prob.sum(), outputs)
        assert gradient.view(-1).tolist() == pytest.approx([2.0 if mean > 0 else -2.0, -1.0])


def test_clipped_deviation_has_no_gradient() -> None:
    outputs = torch.tensor([[[0.3, -21.0], [0.3, 2.5], [0.3, 1.0]]], requires_grad=True)
    action, log_prob = sample(outputs, torch.ones(1, 3, 1))
    assert action[0, 1].item() == pytest.approx(math.tanh(0.3 + 7.389056))
    (gradient,) = torch.autograd.grad(action.sum() + log_prob.sum(), outputs)
    assert gradient[0, 0, 1] == gradient[0, 1, 1] == 0 != gradient[0, 2, 1]


CASES = {
    "learned": dataclasses.replace(NOW, entropy_temperature=0.4),
    "one layer, target entropy": dataclasses.replace(NOW, hidden_sizes=(9,), activation="tanh", target_entropy=0.7),
    "fixed": dataclasses.replace(NOW, learn_temperature=False, entropy_temperature=0.2),
}


@pytest.mark.parametrize("case", CASES)
def test_gradients_equal_autograd(case: str) -> None:
    """Critics, then actor and temperature after the critics' step (Haarnoja et al. 2018, equations 5, 9 and 18)."""
    agent, config = make_agent(CASES[case]), CASES[case]
    perturb_targets(agent)
    live(agent, 30, learns=False)
    critics = [agent.critics.flat_parameters[m].clone().requires_grad_() for m in range(3)]
    actors = [agent.flat_parameters[m].clone().requires_grad_() for m in range(3)]
    losses = []
    for m in range(3):
        obs, action, next_obs, reward, discount = rows_of(agent, m)
        with torch.no_grad():
            outputs = torch_mlp(agent.network, actors[m][:-1], next_obs)
            next_action, log_prob = torch_sample(outputs, numbers_of(agent, m)["next"].T)
            next_q = torch_critics(agent, agent.critics.target_parameters[m], next_obs, next_action).min(0).values
            goal = reward + 0.99 * discount * (next_q - config.entropy_temperature * log_prob)
        losses.append((torch_critics(agent, critics[m], obs, action) - goal).square().mean(1).sum())
    agent_losses, smaller_of_first = agent.learn(), 0
    for m in range(3):
        losses[m].backward()
        assert agent_losses[m].item() == pytest.approx(losses[m].item(), rel=1e-4)
        assert_near(
            agent.critics.optimizer.mean[m], 0.1 * critics[m].grad, 0.1 * gradient_error(agent, critics[m].grad)
        )
        obs = rows_of(agent, m)[0]
        sampled_action, log_prob = torch_sample(
            torch_mlp(agent.network, actors[m][:-1], obs), numbers_of(agent, m)["now"].T
        )
        q_values = torch_critics(agent, agent.critics.flat_parameters[m], obs, sampled_action)
        smaller_of_first += int((q_values[0] < q_values[1]).sum())
        smaller = q_values.min(0).values
        loss = (config.entropy_temperature * log_prob - smaller).mean()
        target = -2.0 if config.target_entropy is None else config.target_entropy
        if config.learn_temperature:
            loss = loss - actors[m][-1] * (log_prob.detach().mean() + target)
        loss.backward()
        assert_near(agent.optimizer.mean[m], 0.1 * actors[m].grad, 0.1 * gradient_error(agent, actors[m].grad))
    assert 0 < smaller_of_first < 21, "both critics are the smaller one somewhere"
    assert (agent.optimizer.mean[:, -1] != 0).all() == config.learn_temperature


def test_metrics_by_current_weights() -> None:
    """Entropy, temperature and loss of the actor on the latest minibatch, and they change nothing."""
    agent = make_agent(dataclasses.replace(NOW, entropy_temperature=0.4, init_episodes=0))
    live(agent, 30)
    old_state = learned(agent)
    metrics = agent.metrics()
    for m in range(3):
        obs, weights = rows_of(agent, m)[0], agent.flat_parameters[m]
        action, log_prob = torch_sample(torch_mlp(agent.network, weights[:-1], obs), numbers_of(agent, m)["now"].T)
        q = torch_critics(agent, agent.critics.flat_parameters[m], obs, action).min(0).values
        alpha = weights[-1].exp()
        expected = {
            "entropy": -log_prob.mean(), "entropy_temperature": alpha, "policy_loss": (alpha * log_prob - q).mean(),
        }  # fmt: skip
        for name, value in expected.items():
            assert metrics[f"train/{name}"][m].item() == pytest.approx(value.item(), rel=1e-4), name
    for name, value in learned(agent).items():
        assert torch.equal(value, old_state[name]) and not value.requires_grad, name


def test_evaluation_is_greedy_unless_noisy() -> None:
    obs = torch.randn(3, 50, OBS, generator=torch.Generator().manual_seed(1))
    calm, noisy = (make_agent(dataclasses.replace(NOW, test_noise=test_noise)) for test_noise in (False, True))
    greedy_policy, two, three = (agent.begin(50, Streams([5, 6, 7]), sample=False) for agent in (calm, noisy, noisy))
    outputs = torch.stack([torch_mlp(calm.network, calm.flat_parameters[m, :-1], obs[m]) for m in range(3)])
    torch.testing.assert_close(greedy_policy.act(obs), calm.clip(outputs[..., :2].tanh()))
    noisy_action = two.act(obs)
    assert torch.equal(noisy_action, three.act(obs)) and not torch.equal(two.act(obs), noisy_action)
