"""PPO: advantages and losses by hand, gradients against autograd, and normalisation."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Normal

from helpers import loop_of, tiny
from models.agents.ppo.agent import Agent
from models.agents.ppo.config import Config
from models.losses import clipped_surrogate, clipped_value_error
from models.moments import Moments
from models.spaces import Continuous, Discrete, Spaces
from models.trajectory import discounted_returns, gae, lambda_returns
from rounding import assert_near, backpropagated, gamma

SPACES = {
    "discrete": Spaces((4,), Discrete(3), max_episode_steps=10),
    "continuous": Spaces((4,), Continuous((-1.0, 0.0), (1.0, 2.0)), max_episode_steps=10),
}
SMALL = Config(hidden_sizes=(5, 5), rollout_steps=12, batch_size=7, ppo_epochs=1, num_envs=2)


def lived(config: Config, kind: str, steps: int, seeds: Any = (0, 1), learns: bool = False) -> Agent:
    """An agent after so many steps of noise in which a tenth of the episodes end, half of those at a time limit."""
    agent, shape = Agent(config, SPACES[kind], seeds), (len(seeds), config.num_envs)
    agent.budget = steps * config.num_envs
    g = torch.Generator().manual_seed(0)
    for _ in range(steps):
        obs, next_obs = torch.randn(2, *shape, 4, generator=g)
        reward, end = torch.randn(shape, generator=g), torch.rand(shape, generator=g)
        agent.observe(obs, agent.act(obs), next_obs, reward, (end >= 0.05).float(), end < 0.1)
        if learns:
            agent.learn()
    return agent


# -- advantages --------------------------------------------------------------------------------------------------------


def test_advantages_by_hand() -> None:
    """Discount 0.5, trace 0.5. Column 0 terminates at its second step, column 1 is cut by a time limit there.

    d_2 = 4 + 0.5 * 8 - 2 = 6. Column 0: d_1 = 2 - 1 = 1, d_0 = 1 + 0.5 * 1 - 3 = -1.5, A_0 = -1.5 + 0.25 * 1 = -1.25.
    Column 1: d_1 = 2 + 0.5 * 10 - 1 = 6, which is also A_1, A_0 = -1.5 + 0.25 * 6 = 0.
    """
    reward = torch.tensor([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]])
    value = torch.tensor([[3.0, 3.0], [1.0, 1.0], [2.0, 2.0]])
    next_value = torch.tensor([[1.0, 1.0], [10.0, 10.0], [8.0, 8.0]])
    discount = torch.tensor([[0.5, 0.5], [0.0, 0.5], [0.5, 0.5]])
    done = torch.tensor([[False, False], [True, True], [False, False]])
    advantages = gae(reward, value, next_value, discount, done, 0.5)
    assert advantages.tolist() == [[-1.25, 0.0], [1.0, 6.0], [6.0, 6.0]]


@pytest.mark.parametrize("trace", [0.0, 0.7, 1.0])
def test_advantages_are_lambda_returns_less_values(trace: float) -> None:
    g = torch.Generator().manual_seed(1)
    reward, value, next_value = torch.randn(3, 9, 4, generator=g)
    next_value[:-1] = value[1:]
    all_valid, no_ends = torch.ones(9, 4, dtype=torch.bool), torch.zeros(9, 4, dtype=torch.bool)
    advantages = gae(reward, value, next_value, torch.full((9, 4), 0.9), no_ends, trace)
    torch.testing.assert_close(advantages + value, lambda_returns(reward, next_value, all_valid, 0.9, trace))


def test_without_values_they_are_returns_of_each_episode() -> None:
    g, zero = torch.Generator().manual_seed(2), torch.zeros(7, 3)
    reward, done = torch.randn(7, 3, generator=g), torch.zeros(7, 3, dtype=torch.bool)
    done[3] = True
    advantages = gae(reward, zero, zero, torch.full((7, 3), 0.9), done, 1.0)
    for part in (slice(0, 4), slice(4, 7)):
        all_valid = torch.ones_like(reward[part], dtype=torch.bool)
        torch.testing.assert_close(advantages[part], discounted_returns(reward[part], all_valid, 0.9))


# -- losses ------------------------------------------------------------------------------------------------------------


def test_the_clipped_surrogate_by_hand() -> None:
    """Clip 0.25. A ratio that has gone too far the right way has no gradient, too far the wrong way it has."""
    ratio = torch.tensor([[1.5, 0.5, 1.5, 0.5, 1.125]])
    advantage = torch.tensor([[2.0, 2.0, -2.0, -2.0, 4.0]])
    loss, derivative = clipped_surrogate(ratio, advantage, 0.25)
    assert loss.tolist() == [[-2.5, -1.0, 3.0, 1.5, -4.5]]
    assert derivative.tolist() == [[0.0, -1.0, 3.0, 0.0, -4.5]]


def test_the_clipped_value_error_by_hand() -> None:
    """Clip 1, value of then 0, goal 3: 0.5 may move; 2 counts as 1, error -2, and may move no more; -2 counts by its
    own error -5, larger than that of -1. Goal -3 is the mirror image of the last."""
    values, goal = torch.tensor([[0.5, 2.0, -2.0, 2.0]]), torch.tensor([[3.0, 3.0, 3.0, -3.0]])
    error, derivative = clipped_value_error(values, goal, torch.zeros(1, 4), 1.0)
    assert error.tolist() == [[6.25, 4.0, 25.0, 25.0]] and derivative.tolist() == [[-5.0, 0.0, -10.0, 10.0]]
    error, derivative = clipped_value_error(values, goal, torch.zeros(1, 4), None)
    assert error.tolist() == [[6.25, 1.0, 25.0, 25.0]] and derivative.tolist() == [[-5.0, -2.0, -10.0, 10.0]]


def distribution(agent: Agent, outputs: Tensor, scales: Tensor) -> Any:
    """What torch has of ``outputs [A, B]``, ``scales [A]``."""
    if isinstance(agent.spaces.actions, Discrete):
        return Categorical(logits=outputs.T)
    return Normal(outputs.T, scales.exp().expand(outputs.shape[1], -1))


def summed(values: Tensor) -> Tensor:
    """Over the coordinates of an action."""
    return values if values.dim() == 1 else values.sum(1)


@pytest.mark.parametrize("kind", SPACES)
def test_log_probabilities_and_entropies_are_those_of_torch(kind: str) -> None:
    agent = lived(dataclasses.replace(SMALL, action_std=0.7), kind, 1)
    actions, g = agent.network.actions, torch.Generator().manual_seed(3)
    outputs, width = torch.randn(2, actions.num_outputs, 6, generator=g), actions.width
    scales = 0.3 + torch.rand(2, actions.num_log_std, generator=g)
    action = torch.randint(3, (2, 1, 6), generator=g) if kind == "discrete" else torch.randn(2, width, 6, generator=g)
    judged = actions.evaluate(outputs, scales, action.float())
    for m in range(2):
        oracle = distribution(agent, outputs[m], scales[m])
        oracle_action = action[m, 0] if kind == "discrete" else action[m].T
        torch.testing.assert_close(judged.log_prob[m], summed(oracle.log_prob(oracle_action)))
        torch.testing.assert_close(judged.entropy[m].expand(6), summed(oracle.entropy()))


def oracle_loss(agent: Agent, m: int, flat: Tensor, part: Tensor) -> Tensor:
    """The loss of member ``m`` over columns ``part [W, B]`` by plain operations that autograd follows."""
    config, network = agent.config, agent.network
    actor, critic, scales = flat.split(network.part_sizes[:3])
    obs, action, rest = part.split([4, network.actions.width, 4])
    old_log_prob, advantage, goal, old_value = rest

    def forward(mlp: Any, parameters: Tensor) -> Tensor:
        x, layers = obs, mlp.layers(parameters[None])
        for i, (weight, bias) in enumerate(layers[: mlp.depth]):
            x = weight[0] @ x + bias[0]
            x = x.tanh() if i < mlp.depth - 1 else x
        return x

    policy = distribution(agent, forward(network.actor, actor), scales)
    log_prob = summed(policy.log_prob(action[0] if agent.network.actions.num_log_std == 0 else action.T))
    values, limit = forward(network.critic, critic)[0], config.clip_range_vf
    error = (values - goal).square()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    if limit is not None:
        error = torch.maximum(error, (old_value + (values - old_value).clamp(-limit, limit) - goal).square())
    ratio, clip = (log_prob - old_log_prob).exp(), config.clip_range
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    entropy = summed(policy.entropy()).mean()
    return -gain.mean() + config.vf_coef * error.mean() - config.ent_coef * entropy


@pytest.mark.parametrize("kind", SPACES)
@pytest.mark.parametrize("changes", [{}, {"clip_range_vf": 0.05}, {"action_std": 0.5}])
def test_the_gradient_is_that_of_the_whole_loss(kind: str, changes: dict[str, Any]) -> None:
    """Also where the policy has moved since the rollout, so that some ratios are clipped."""
    config = dataclasses.replace(SMALL, ent_coef=0.03, clip_range=0.1, max_grad_norm=None, **changes)
    agent = lived(config, kind, 12)
    table = agent._rollout_batch()
    g = torch.Generator().manual_seed(4)
    agent.flat_parameters[:, : agent.network.num_trained] += 0.1 * torch.randn(
        2, agent.network.num_trained, generator=g
    )
    flats = [agent.flat_parameters.data[m].clone().requires_grad_() for m in range(2)]
    losses = [oracle_loss(agent, m, flats[m][: agent.network.num_trained], table[m]) for m in range(2)]
    metrics = agent.minibatch_statistics(*agent.update_minibatch(table))
    for m in range(2):
        losses[m].backward()
        loss = metrics[m, 0] + config.vf_coef * metrics[m, 1] - config.ent_coef * metrics[m, 2]
        assert loss.item() == pytest.approx(losses[m].item(), rel=1e-4)
        assert 0 < metrics[m, 4] < 1 and metrics[m, 3] > 0
        widths = [*agent.network.actor.sizes, *agent.network.critic.sizes]
        bound = backpropagated(widths, table.shape[-1]) * flats[m].grad.abs().max()
        assert_near(agent.optimizer.mean[m], 0.1 * flats[m].grad, 0.1 * bound)


def test_the_largest_norm_is_of_both_networks_and_of_each_member() -> None:
    agents = [lived(dataclasses.replace(SMALL, max_grad_norm=norm), "continuous", 12) for norm in (None, 0.01)]
    for agent in agents:
        agent.update_minibatch(agent._rollout_batch())
    free, bound = (agent.optimizer.mean / 0.1 for agent in agents)
    assert (free.norm(dim=1) > 0.02).all()
    torch.testing.assert_close(bound.norm(dim=1), torch.full((2,), 0.01), rtol=1e-3, atol=0)
    expected = 0.01 * free / free.norm(dim=1, keepdim=True)
    assert_near(bound, expected, (gamma(free.shape[1] + 8) + 1e-6 / free.norm(dim=1, keepdim=True)) * expected.abs())


def test_passes_end_before_the_minibatch_that_is_too_far() -> None:
    """By the update of an agent of one member: whether it goes on is asked of plain operations, minibatch by minibatch.
    Adam corrects its bias by the updates that were made."""
    config = dataclasses.replace(SMALL, ppo_epochs=4, lr=0.01, max_grad_norm=None, target_kl=0.004)
    agent, plain = (
        lived(variant, "discrete", 12, (0,)) for variant in (config, dataclasses.replace(config, target_kl=None))
    )
    table, update_count, kl = plain._rollout_batch(), 0, 0.0
    parts = (part for _ in range(4) for part in plain._minibatches(table))
    for part in parts:
        logits = plain.network.actor.forward(plain.parts.actor, part[:, :4])[-1][0].T
        log_ratio = Categorical(logits=logits).log_prob(part[0, 4]) - part[0, 5]
        kl = float((log_ratio.exp() - 1 - log_ratio).mean())
        if kl > 1.5 * 0.004:
            break
        plain.update_minibatch(part)
        update_count += 1
    assert 4 < update_count < 16, "in the midst of a later pass"
    agent.learn()
    torch.testing.assert_close(agent.flat_parameters, plain.flat_parameters, rtol=1e-5, atol=1e-6)
    assert (
        agent.updates(12, torch.ones(1, dtype=torch.int64)).tolist() == [update_count] == agent.optimizer.count.tolist()
    )
    assert kl > 0.006 and agent.updates(12, torch.ones(1, dtype=torch.int64)).tolist() == [16], "since the last call"


def test_a_target_that_is_never_met_changes_nothing() -> None:
    limited, unlimited = (lived(dataclasses.replace(SMALL, ppo_epochs=3, target_kl=kl), "continuous", 24, learns=True)
                 for kl in (1e6, None))  # fmt: skip
    torch.testing.assert_close(limited.flat_parameters, unlimited.flat_parameters, rtol=1e-6, atol=1e-7)
    assert limited.optimizer.count.tolist() == [unlimited.optimizer.count] * 2
    for name, values in unlimited.logged.items():
        torch.testing.assert_close(limited.logged[name], values, rtol=1e-4, atol=1e-6, equal_nan=True)


# -- the rollout -------------------------------------------------------------------------------------------------------


def test_every_step_is_in_one_minibatch_of_a_pass() -> None:
    agent = lived(SMALL, "discrete", 12)
    table = agent._rollout_batch()
    parts = list(agent._minibatches(table))
    assert [part.shape[2] for part in parts] == [7, 7, 7, 3]
    mixed = torch.cat(parts, 2)
    assert not torch.equal(mixed, table)
    for m in range(2):
        assert sorted(map(tuple, mixed[m].T.tolist())) == sorted(map(tuple, table[m].T.tolist()))


def test_actions_are_clipped_when_executed_and_remembered_as_drawn() -> None:
    agent = Agent(dataclasses.replace(SMALL, action_std=5.0), SPACES["continuous"], [0])
    obs = torch.randn(1, 2, 4)
    action = agent.act(obs)
    agent.observe(obs, action, obs, torch.zeros(1, 2), torch.ones(1, 2), torch.zeros(1, 2, dtype=torch.bool))
    raw_actions = agent.rollout.rows()["action"].transpose(0, 1)
    assert torch.equal(action, raw_actions.clamp(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 2.0])))
    assert not torch.equal(action, raw_actions)


def test_the_learning_rate_falls_over_the_run() -> None:
    lr_factors = []
    for steps in (12, 24, 36):
        agent = lived(dataclasses.replace(SMALL, anneal_lr=True, lr=0.3), "discrete", steps)
        agent.budget = 96
        agent.learn()
        lr_factors.append(agent.lr_factor)
    assert lr_factors == [1.0, 0.75, 0.5]


def test_gradient_steps_are_counted_when_they_are_made() -> None:
    loop = loop_of("PPO", "cartpole", 1, 2, dataclasses.replace(SMALL, ppo_epochs=3), steps_per_epoch=32)
    counts = [
        loop.epoch()["train/gradient_steps"].tolist() for _ in range(3)
    ]  # rollouts end after steps 12, 24, 36 and 48
    assert counts == [[12, 12], [24, 24], [48, 48]]


def test_noise_in_tests_is_a_switch() -> None:
    obs = torch.randn(2, 5, 4)
    for noisy in (False, True):
        agent = lived(dataclasses.replace(SMALL, test_noise=noisy), "continuous", 1)
        first, second = agent.with_weights(agent.flat_parameters), agent.with_weights(agent.flat_parameters[1:])
        actions = first.act(obs)
        assert torch.equal(actions[1:], second.act(obs[1:]))
        assert torch.equal(actions, first.act(obs)) != noisy


# -- normalisation -----------------------------------------------------------------------------------------------------


def test_moments_are_those_of_all_numbers() -> None:
    values, moments = torch.randn(2, 900, 3) * 4 + 7, Moments(2, (3,), 1e-4)
    for part in values.split(9, 1):
        moments.add(part)
    torch.testing.assert_close(moments.mean.float(), values.mean(1), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(moments.scale(), 1 / values.std(1, correction=0), rtol=1e-4, atol=0)


def test_normalised_observations_and_rewards_are_remembered() -> None:
    """And play by weights alone normalises as the agent does."""
    agent = lived(dataclasses.replace(SMALL, normalize_obs=True, normalize_reward=True), "discrete", 200, learns=True)
    assert agent.obs_moments is not None and agent.return_moments is not None
    obs = 100 + torch.randn(2, 2, 4)
    agent.act(obs)
    agent.observe(
        obs, torch.zeros(2, 2), obs, torch.full((2, 2), 3.0), torch.ones(2, 2), torch.zeros(2, 2, dtype=torch.bool)
    )
    mean, scale = agent.obs_moments.mean.float(), agent.obs_moments.scale()
    last = agent.rollout.position - 2
    normalized = agent.rollout.rows()["obs"][last : last + 2].transpose(0, 1)
    torch.testing.assert_close(normalized, ((obs - mean[:, None]) * scale[:, None]).clamp(-10, 10))
    reward = agent.rollout.rows()["reward"][last : last + 2].T
    torch.testing.assert_close(reward, (3 * agent.return_moments.scale())[:, None].expand(2, 2).clamp(max=10))
    trained = agent.network.num_trained
    torch.testing.assert_close(agent.flat_parameters[:, trained : trained + 8], torch.cat([mean, scale], 1))
    weights = agent.flat_parameters.clone()
    weights[:, trained : trained + 8] = torch.tensor([0.0] * 4 + [1.0] * 4)
    far_obs = torch.randn(2, 40, 4) * 100
    assert not torch.equal(
        agent.with_weights(agent.flat_parameters).act(far_obs), agent.with_weights(weights).act(far_obs)
    )


def test_the_discounted_sum_of_rewards_begins_anew_with_an_episode() -> None:
    """Sums of rewards 1, 2, 4 and 8 with discount 1/2, whose second step ends an episode of the first environment."""
    config = dataclasses.replace(SMALL, normalize_reward=True, discount=0.5)
    agent, obs, sums = Agent(config, SPACES["discrete"], (0,)), torch.zeros(1, 2, 4), []
    for reward, done in ((1.0, False), (2.0, True), (4.0, False), (8.0, False)):
        agent.act(obs)
        agent.observe(
            obs, torch.zeros(1, 2), obs, torch.full((1, 2), reward), torch.ones(1, 2), torch.tensor([[done, False]])
        )
        sums.append(agent.discounted_sum[0].tolist())
    assert sums == [[1, 1], [0, 2.5], [4, 5.25], [10, 10.625]]


def test_normalised_rewards_lie_between_minus_10_and_10() -> None:
    agent = Agent(dataclasses.replace(SMALL, normalize_reward=True), SPACES["discrete"], (0,))
    obs, no_ends = torch.zeros(1, 2, 4), torch.zeros(1, 2, dtype=torch.bool)
    for reward in [0.0] * 400 + [1e3, -1e3, 1.0]:
        agent.act(obs)
        agent.observe(obs, torch.zeros(1, 2), obs, torch.full((1, 2), reward), torch.ones(1, 2), no_ends)
        if abs(reward) > 1:
            last = agent.rollout.rows()["reward"][agent.rollout.position - 2]
            assert last.item() == (10 if reward > 0 else -10)
    assert 0 < agent.rollout.rows()["reward"][agent.rollout.position - 1].item() < 1


def test_a_longer_run_is_told_that_its_learning_rate_has_come_to_0(capsys: pytest.CaptureFixture[str]) -> None:
    def loop(anneal: bool, epochs: int) -> Any:
        return loop_of("PPO", "cartpole", config=tiny("PPO", anneal_lr=anneal), epochs=epochs)

    for anneal, epochs in ((True, 1), (False, 2), (True, 2)):
        first = loop(anneal, 1)
        first.epoch()
        loop(anneal, epochs).load_state_dict(first.state_dict())
        warned = "anneal_lr lowers the learning rate to 0" in capsys.readouterr().out
        assert warned == (anneal and epochs == 2)
