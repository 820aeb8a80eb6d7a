"""SAC: the squashed normal distribution against torch, gradients against autograd, and the temperature."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from helpers import torch_mlp
from models.agents.sac.agent import Agent
from models.agents.sac.config import Config
from models.agents.sac.gaussian import output_gradient, sample
from models.spaces import Continuous, Spaces
from models.streams import Streams
from rounding import FUNCTION, assert_near, gamma
from test_td3 import OBS, gradient_error, live, numbers_of, perturb_targets, rows_of, torch_critics

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
    outputs, noise = 1.5 * torch.randn(3, 4, 50, generator=g), torch.randn(3, 2, 50, generator=g)
    samples = sample(outputs, noise)
    for m in range(3):
        action, log_prob = torch_sample(outputs[m].T, noise[m].T)
        assert_near(samples.action[m].T, action, action_error(outputs[m].T, noise[m].T))
        torch.testing.assert_close(samples.log_prob[m], log_prob, rtol=1e-4, atol=1e-4)


def test_log_prob_of_saturated_action() -> None:
    """Mean 30, deviation 1, noise 0: -log(2 pi) / 2 - log(1 - tanh(30)^2), and 1 - tanh(x)^2 is 4 e^(-2 x) there; its
    slope by the mean is 2."""
    samples = sample(torch.tensor([[[30.0], [0.0]]]), torch.zeros(1, 1, 1))
    assert samples.log_prob.item() == pytest.approx(-0.9189385 - 1.3862944 + 60, rel=1e-6)
    gradient = output_gradient(samples, torch.zeros(1, 1, 1), torch.ones(1, 1, 1))
    assert gradient.view(-1).tolist() == pytest.approx([2.0, -1.0])


def test_clipped_deviation_has_no_gradient() -> None:
    samples = sample(torch.tensor([[[0.3, 0.3, 0.3], [-21.0, 2.5, 1.0]]]), torch.ones(1, 1, 3))
    assert samples.std[0, 0, 1].item() == pytest.approx(7.389056)
    gradient = output_gradient(samples, torch.ones(1, 1, 3), torch.ones(1, 1, 1))[0, 1]
    assert gradient[0] == gradient[1] == 0 != gradient[2]


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
        assert agent.metrics()["train/entropy"][m].item() == pytest.approx(-log_prob.mean().item(), rel=1e-4)
    assert 0 < smaller_of_first < 21, "both critics are the smaller one somewhere"
    assert (agent.optimizer.mean[:, -1] != 0).all() == config.learn_temperature


def test_evaluation_is_greedy_unless_noisy() -> None:
    obs = torch.randn(3, 50, OBS, generator=torch.Generator().manual_seed(1))
    calm, noisy = (make_agent(dataclasses.replace(NOW, test_noise=test_noise)) for test_noise in (False, True))
    greedy_policy, two, three = (agent.begin(50, Streams([5, 6, 7]), sample=False) for agent in (calm, noisy, noisy))
    outputs = torch.stack([torch_mlp(calm.network, calm.flat_parameters[m, :-1], obs[m]) for m in range(3)])
    torch.testing.assert_close(greedy_policy.act(obs), calm.clip(outputs[..., :2].tanh()))
    noisy_action = two.act(obs)
    assert torch.equal(noisy_action, three.act(obs)) and not torch.equal(two.act(obs), noisy_action)
