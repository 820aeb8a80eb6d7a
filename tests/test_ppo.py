"""PPO: advantages and losses by hand, gradients against autograd, minibatches and normalization."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical

from helpers import loop_of, tiny
from models.agents.ppo.agent import Agent, Batch
from models.agents.ppo.config import Config
from models.layers import ConvolutionalTrunk
from models.losses import clipped_surrogate, clipped_value_loss
from models.settings import SettingError
from models.spaces import Continuous, Discrete, Spaces
from models.streams import Streams
from models.trajectory import gae
from test_off_policy import live

SPACES = {
    "discrete": Spaces((4,), Discrete(3), max_episode_steps=10),
    "continuous": Spaces((4,), Continuous((-1.0, 0.0), (1.0, 2.0)), max_episode_steps=10),
}
NO_ENDS = torch.zeros(1, 2, dtype=torch.bool)
SMALL = Config(hidden_sizes=(5, 5), rollout_steps=12, batch_size=7, ppo_epochs=1, num_envs=2)


def observe(agent: Agent, obs: Tensor, reward: float, done: Tensor = NO_ENDS) -> Tensor:
    """One step of every environment; returns the actions."""
    action, shape = agent.act(obs), obs.shape[:2]
    agent.observe(obs, action, obs, torch.full(shape, reward), torch.ones(shape), done.expand(shape))
    return action


def run_agent(config: Config, kind: str, steps: int, seeds: Any = (0, 1), learns: bool = False) -> Agent:
    """An agent after ``steps`` random steps. A tenth of them end an episode, half of these at a time limit."""
    agent = Agent(config, SPACES[kind], seeds)
    agent.budget = steps * config.num_envs
    live(agent, steps, learns)
    return agent


def test_gae_by_hand() -> None:
    """Discount 0.5, trace 0.5. Column 0 terminates at its second step, column 1 is cut by a time limit there.

    d_2 = 4 + 0.5 * 8 - 2 = 6. Column 0: d_1 = 2 - 1 = 1, d_0 = 1 + 0.5 * 1 - 3 = -1.5, A_0 = -1.5 + 0.25 * 1 = -1.25.
    Column 1: d_1 = 2 + 0.5 * 10 - 1 = 6, which is also A_1, A_0 = -1.5 + 0.25 * 6 = 0.
    """
    reward = torch.tensor([[[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]]])
    value = torch.tensor([[[3.0, 3.0], [1.0, 1.0], [2.0, 2.0]]])
    next_value = torch.tensor([[[1.0, 1.0], [10.0, 10.0], [8.0, 8.0]]])
    discount = torch.tensor([[[0.5, 0.5], [0.0, 0.5], [0.5, 0.5]]])
    done = torch.tensor([[[False, False], [True, True], [False, False]]])
    advantages = gae(reward, value, next_value, discount, done, 0.5)
    assert advantages.tolist() == [[[-1.25, 0.0], [1.0, 6.0], [6.0, 6.0]]]


def test_clipped_surrogate_by_hand() -> None:
    """Clip 0.25. There is no gradient if the ratio is beyond the clip in the direction of the advantage. A ratio of 1
    has the full gradient."""
    ratio = torch.tensor([[1.5], [0.5], [1.5], [0.5], [1.125], [1.0]], requires_grad=True)  # minibatches of one
    advantage = torch.tensor([[2.0], [2.0], [-2.0], [-2.0], [4.0], [3.0]])
    loss = clipped_surrogate(ratio, advantage, 0.25)
    assert loss.tolist() == [-2.5, -1.0, 3.0, 1.5, -4.5, -3.0]
    (gradient,) = torch.autograd.grad(loss.sum(), ratio)
    assert gradient.view(-1).tolist() == [0.0, -2.0, 2.0, 0.0, -4.0, -3.0]
    assert clipped_surrogate(ratio.view(1, 6), advantage.view(1, 6), 0.25).item() == pytest.approx(-6.5 / 6)


def test_clipped_value_loss_by_hand() -> None:
    """Clip 1, old value 0, return 3: 0.5 is inside; 2 counts as 1, error -2, without gradient; -2 counts by its
    error -5, larger than the clipped one. Return -3 mirrors the last case."""
    values = torch.tensor([[0.5], [2.0], [-2.0], [2.0]], requires_grad=True)  # minibatches of one
    returns, old_values = torch.tensor([[3.0], [3.0], [3.0], [-3.0]]), torch.zeros(4, 1)
    for clip, losses, gradients in (
        (1.0, [6.25, 4.0, 25.0, 25.0], [-5.0, 0.0, -10.0, 10.0]),
        (None, [6.25, 1.0, 25.0, 25.0], [-5.0, -2.0, -10.0, 10.0]),
    ):
        loss = clipped_value_loss(values, returns, old_values, clip)
        (gradient,) = torch.autograd.grad(loss.sum(), values)
        assert loss.tolist() == losses and gradient.view(-1).tolist() == gradients


def test_target_kl_stops_updates() -> None:
    """Against plain updates that stop before the first minibatch with a larger divergence."""
    config = dataclasses.replace(SMALL, ppo_epochs=4, lr=0.01, max_grad_norm=None, target_kl=0.004)
    agent, plain = (
        run_agent(variant, "discrete", 12, (1,)) for variant in (config, dataclasses.replace(config, target_kl=None))
    )
    batch, update_count, kl = plain.rollout_batch(), 0, 0.0
    minibatches = (minibatch for _ in range(4) for minibatch in plain._minibatches(batch))
    for minibatch in minibatches:
        logits = plain.network.actor(plain.network.views(plain.flat_parameters).actor, minibatch.obs)[0]
        log_ratio = Categorical(logits=logits).log_prob(minibatch.action[0, :, 0]) - minibatch.log_prob[0]
        kl = float((log_ratio.exp() - 1 - log_ratio).mean())
        if kl > 1.5 * 0.004:
            break
        plain.update(minibatch, torch.ones(1, dtype=torch.bool))
        update_count += 1
    assert 4 < update_count < 16, "in the midst of a later pass"
    agent.learn()
    torch.testing.assert_close(agent.flat_parameters, plain.flat_parameters, rtol=1e-5, atol=1e-6)
    assert (
        agent.updates(12, torch.ones(1, dtype=torch.int64)).tolist() == [update_count] == agent.optimizer.count.tolist()
    )
    assert kl > 0.006 and agent.updates(12, torch.ones(1, dtype=torch.int64)).tolist() == [16], "since the last call"


def test_minibatches_partition_rollout() -> None:
    agent = run_agent(SMALL, "discrete", 12)
    batch = agent.rollout_batch()
    minibatches = list(agent._minibatches(batch))
    assert [minibatch.obs.shape[1] for minibatch in minibatches] == [7, 7, 7, 3]
    shuffled = Batch(*(torch.cat(columns, 1) for columns in zip(*minibatches, strict=True)))
    assert not torch.equal(shuffled.obs, batch.obs)
    for m in range(2):
        steps, shuffled_steps = (
            torch.cat([column[m].reshape(24, -1) for column in each], 1).tolist() for each in (batch, shuffled)
        )
        assert sorted(steps) == sorted(shuffled_steps)


def test_annealed_learning_rate_falls_linearly() -> None:
    lr_factors = []
    for steps in (12, 24, 36):
        agent = run_agent(dataclasses.replace(SMALL, anneal_lr=True, lr=0.3), "discrete", steps)
        agent.budget = 96
        agent.learn()
        lr_factors.append(agent.lr_factor)
    assert lr_factors == [1.0, 0.75, 0.5]


def test_gradient_steps_count_minibatches() -> None:
    loop = loop_of("PPO", "cartpole", 1, 2, dataclasses.replace(SMALL, ppo_epochs=3), steps_per_epoch=32)
    counts = [loop.epoch()["train/gradient_steps"].tolist() for _ in range(3)]  # rollouts end every 12 steps
    assert counts == [[12, 12], [24, 24], [48, 48]]


def test_evaluation_is_noisy_only_with_test_noise() -> None:
    obs = torch.randn(2, 5, 4)
    for noisy in (False, True):
        agent = run_agent(dataclasses.replace(SMALL, test_noise=noisy), "continuous", 1)
        first, second = agent.with_weights(agent.flat_parameters), agent.with_weights(agent.flat_parameters[1:])
        actions = first.act(obs)
        assert torch.equal(actions[1:], second.act(obs[1:]))
        assert torch.equal(actions, first.act(obs)) != noisy


def test_rollout_stores_normalized_observations_and_rewards() -> None:
    agent = run_agent(
        dataclasses.replace(SMALL, normalize_obs=True, normalize_reward=True), "discrete", 200, learns=True
    )
    assert agent.obs_moments is not None and agent.return_moments is not None
    obs = 100 + torch.randn(2, 2, 4)
    observe(agent, obs, 3.0)
    mean, scale = agent.obs_moments.mean.float(), agent.obs_moments.scale()
    last = agent.rollout.position - 2
    normalized = agent.rollout.rows()["obs"][last : last + 2].transpose(0, 1)
    torch.testing.assert_close(normalized, ((obs - mean[:, None]) * scale[:, None]).clamp(-10, 10))
    reward = agent.rollout.rows()["reward"][last : last + 2].T
    torch.testing.assert_close(reward, (3 * agent.return_moments.scale())[:, None].expand(2, 2).clamp(max=10))
    trained = sum(agent.network.view_sizes[:4])
    torch.testing.assert_close(agent.flat_parameters[:, trained : trained + 8], torch.cat([mean, scale], 1))
    weights = agent.flat_parameters.clone()
    weights[:, trained : trained + 8] = torch.tensor([0.0] * 4 + [1.0] * 4)
    far_obs = torch.randn(2, 40, 4) * 100
    actions = [agent.with_weights(parameters).act(far_obs) for parameters in (agent.flat_parameters, weights)]
    assert not torch.equal(*actions)


def test_discounted_sum_resets_after_episode() -> None:
    """Rewards 1, 2, 4 and 8 with discount 1/2; the second step ends an episode of the first environment."""
    config = dataclasses.replace(SMALL, normalize_reward=True, discount=0.5)
    agent, sums = Agent(config, SPACES["discrete"], (0,)), []
    for reward, done in ((1.0, False), (2.0, True), (4.0, False), (8.0, False)):
        observe(agent, torch.zeros(1, 2, 4), reward, torch.tensor([[done, False]]))
        sums.append(agent.discounted_sum[0].tolist())
    assert sums == [[1, 1], [0, 2.5], [4, 5.25], [10, 10.625]]


def test_normalized_rewards_are_clipped() -> None:
    agent = Agent(dataclasses.replace(SMALL, normalize_reward=True), SPACES["discrete"], (0,))
    rewards = []
    for reward in [0.0] * 400 + [1e3, -1e3, 1.0]:
        observe(agent, torch.zeros(1, 2, 4), reward)
        rewards.append(agent.rollout.rows()["reward"][agent.rollout.position - 1].item())
    assert rewards[-3:-1] == [10, -10] and 0 < rewards[-1] < 1


@pytest.mark.parametrize(("anneal", "epochs"), [(True, 1), (False, 2), (True, 2)])
def test_warning_if_annealed_run_continues(anneal: bool, epochs: int, capsys: pytest.CaptureFixture[str]) -> None:
    first, longer = (
        loop_of("PPO", "cartpole", config=tiny("PPO", anneal_lr=anneal), epochs=count) for count in (1, epochs)
    )
    first.epoch()
    longer.load_state_dict(first.state_dict())
    warned = "anneal_lr has lowered the learning rate to 0" in capsys.readouterr().out
    assert warned == (anneal and epochs == 2)


def test_policy_and_values_share_convolutions() -> None:
    """Policy and values share convolutions. A member learns the same alone as beside another, to the bit."""
    spaces = Spaces((2, 11, 9), Discrete(3), torch.uint8, max_episode_steps=10)
    config = dataclasses.replace(SMALL, conv_channels=(4, 8), rollout_steps=6)
    joint, alone = Agent(config, spaces, [0, 1]), Agent(config, spaces, [1])
    trunk = ConvolutionalTrunk(spaces, (4, 8), Streams([0]))
    first, (actor, critic, _, weights, *_) = joint.flat_parameters.clone(), joint.network.views(joint.flat_parameters)
    images = torch.randint(256, (13, 2, 2, 2, 11, 9), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert weights.shape == (2, trunk.flat.shape[1])
    expected = joint.network.critic(critic, trunk(images[0], weights)).squeeze(2)
    assert torch.equal(joint.network.value(joint.flat_parameters, images[0]), expected)
    best = joint.network.actor(actor, trunk(images[0], weights)).argmax(2)
    assert torch.equal(joint.begin(2, Streams([0, 1])).act(images[0]), best)
    for obs, next_obs in zip(images[:12], images[1:], strict=True):
        for agent, rows in ((joint, slice(None)), (alone, slice(1, 2))):
            done, reward = torch.zeros(len(agent.seeds), 2, dtype=torch.bool), obs[rows].float().mean((2, 3, 4))
            agent.observe(obs[rows], agent.act(obs[rows]), next_obs[rows], reward, torch.ones_like(reward), done)
            agent.learn()
    assert torch.equal(joint.flat_parameters[1:], alone.flat_parameters)
    changed = joint.network.views(joint.flat_parameters - first).trunk
    assert changed.count_nonzero(1).min() > trunk.flat.shape[1] // 2
    assert joint.rollout.rows()["obs"].dtype == torch.uint8
    for changes in ({"normalize_obs": True}, {"intrinsic": "rnd"}):
        with pytest.raises(SettingError, match="but the environment shows images; allowed: false and none$"):
            Agent(dataclasses.replace(config, **changes), spaces, [0])
