"""Policy gradients against published numbers, hand-computed tables and plain torch, and independence of members."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from helpers import CASES, build, config_of, on_policy, torch_network
from models.agents.policy_gradients.agent import CHUNK, Agent, join_episodes, make_batch
from models.losses import entropy_loss, policy_gradient, value_loss
from models.spaces import Discrete, Spaces
from models.streams import Streams
from models.trajectory import Trajectory, discounted_returns

FIXTURE = Path(__file__).parent / "fixtures" / "policy_gradient_batch.npz"
LANDER = Spaces((8,), Discrete(4))
OURS = [case for case in CASES if on_policy(CASES[case][0])]
SMALL: dict[str, Any] = {"hidden_sizes": (13, 9), "value_hidden_sizes": (11, 7), "conv_channels": (4, 8)}


def agent_of(case: str, spaces: Spaces = LANDER, members: int = 1, **changes: Any) -> Agent:
    return build(case, spaces, list(range(members)), config_of(case, **SMALL | changes))


def make_trajectory(lengths: list[list[int]], seed: int = 0) -> Trajectory:
    """Random episodes of these ``lengths [M][E]``; every other one is truncated. Padding is NaN."""
    steps = torch.tensor(lengths)
    T, (M, E), g = int(steps.max()), steps.shape, torch.Generator().manual_seed(seed)
    valid = torch.arange(T).view(T, 1, 1) < steps
    last, odd = torch.arange(T).view(T, 1, 1) == steps - 1, torch.arange(E) % 2 == 1
    obs = torch.randn(T, M, E, *LANDER.obs_shape, generator=g)
    final = torch.randn(M, E, *LANDER.obs_shape, generator=g)
    obs[~valid] = math.nan
    reward = torch.randn(T, M, E, generator=g).masked_fill(~valid, math.nan)
    action = torch.randint(LANDER.actions.n, (T, M, E), generator=g)
    return Trajectory(obs, action, reward, last & ~odd, last & odd, valid, final, reward.nan_to_num(0).sum(0))


def test_losses_equal_published() -> None:
    """Four episodes of the lander (450 experiences, discount 0.9) and the notebook's losses: vanilla, with baseline,
    entropy, and actor-critic with values of 1."""
    fixture = np.load(FIXTURE)
    lengths = fixture["lengths"].tolist()

    def padded(name: str) -> Tensor:
        """Episodes side by side, ``[T, 1, 4, ...]``."""
        return nn.utils.rnn.pad_sequence(torch.tensor(fixture[name]).split(lengths)).unsqueeze(1)

    reward, obs, action = padded("rewards").double(), padded("states"), padded("actions")
    valid = torch.arange(max(lengths)).view(-1, 1, 1) < torch.tensor(lengths)
    no_ends = torch.zeros_like(valid)
    trajectory = Trajectory(obs, action, reward, no_ends, no_ends, valid, obs[-1], reward.sum(0))
    batch = make_batch(trajectory)
    batch.returns = join_episodes(discounted_returns(reward, valid, 0.9), valid, batch.obs.shape[1])
    assert batch.counts == [450] and torch.equal(batch.obs[0, :450], torch.tensor(fixture["states"]))

    scores = torch.zeros(1, 512, 4, dtype=torch.float64)
    scores[0, :450] = torch.tensor(fixture["scores"])
    baseline = batch.returns[:, :450].mean()
    ones = torch.ones_like(batch.returns)

    def summed(loss: Any, *fields: Tensor) -> float:
        """Over chunks of 256, and at once: the same."""
        parts = zip(*(field.split(CHUNK, dim=1) for field in (*fields, batch.mean_weight)), strict=True)
        total = float(sum(loss(*part) for part in parts))
        assert total == pytest.approx(float(loss(*(field[:, :450] for field in fields), None)), rel=1e-6)
        return total

    vanilla = summed(policy_gradient, scores, batch.action, batch.returns)
    compared = summed(policy_gradient, scores, batch.action, batch.returns - baseline)
    entropy = summed(lambda s, share: entropy_loss(s, 1.0, share), scores)
    policy = summed(policy_gradient, scores, batch.action, batch.returns - ones)
    value = summed(lambda v, q, share: value_loss(v, q, 1.0, share), ones, batch.returns)
    assert [vanilla, compared, entropy] == pytest.approx([-35.535522, -2.4665009, -0.7927002], abs=1e-3)
    assert policy + value == pytest.approx(975.230895, abs=1e-3)
    assert [policy, value] == pytest.approx([-37.294701, 1012.525696], abs=1e-3)
    assert float(baseline) == pytest.approx(-18.798148, abs=1e-3)


def two_episodes() -> Trajectory:
    """Rewards 1, 2, 4 and then 8; at discount 0.5 the returns to come are 3, 4, 4 and 8."""
    trajectory = make_trajectory([[3, 1]])
    trajectory.reward[:, 0] = torch.tensor([[1.0, 8.0], [2.0, math.nan], [4.0, math.nan]])
    return trajectory


# Discount 0.5 and lambda 0.5; every value is 10. The second episode is truncated and bootstraps 0.5 * 10. A TD error is
# r + 0.5 V' - 10, and a generalized advantage an error plus a quarter of the next advantage.
THIRD = 4 - 10.0
SECOND = 2 + 5 - 10 + THIRD / 4
FIRST = 1 + 5 - 10 + SECOND / 4


@pytest.mark.parametrize(("case", "changes", "weights"), [
    # The baseline is the mean over experiences, 19 / 4, not over episodes.
    ("VPG", {}, [3.0, 4.0, 4.0, 8.0]), ("EPG", {}, [3.0, 4.0, 4.0, 8.0]),
    ("BPG", {}, [-1.75, -0.75, -0.75, 3.25]), ("CPG", {}, [-1.75, -0.75, -0.75, 3.25]),
    ("AAC", {"bootstrap_truncation": False}, [-7.0, -6.0, -6.0, -2.0]),
    ("AAC", {"bootstrap_truncation": True}, [-7.0, -6.0, -6.0, 3.0]),
    ("AAC", {"bootstrap_truncation": False, "gae_lambda": 0.5}, [FIRST, SECOND, THIRD, -2.0]),
    ("AAC", {"bootstrap_truncation": True, "gae_lambda": 0.5}, [FIRST, SECOND, THIRD, 3.0]),
])  # fmt: skip
def test_advantages_by_hand(case: str, changes: dict[str, Any], weights: list[float]) -> None:
    agent = agent_of(case, discount=0.5, **changes)
    if case == "AAC":
        with torch.no_grad():
            agent.network.critic.flat.zero_()
            agent.network.critic.layers()[-1][1].fill_(10.0)
    logged = agent.observe(two_episodes())
    assert agent.batch is not None and agent.batch.advantages[0, :4].tolist() == weights
    assert agent.batch.mean_weight[0, :5].tolist() == [0.25] * 4 + [0.0]
    if case == "AAC":  # targets of values
        assert agent.batch.returns[0, :4].tolist() == [advantage + 10 for advantage in weights]
    baseline = {"BPG": 4.75, "CPG": 4.75, "AAC": 10.0}.get(case)
    expected = {} if baseline is None else {"baseline": baseline}
    if case == "AAC":  # constant values
        expected |= {"advantage_mean": sum(weights) / 4, "explained_variance": 0.0}
    assert {name: value.item() for name, value in logged.items()} == pytest.approx(expected)


def test_advantages_of_scaled_rewards_are_normalized() -> None:
    """Values 1, 2, 3 and 4, and 6 after the truncated episode; discount 0.5, lambda 0.5 and rewards times 2."""
    changes = {"gae_lambda": 0.5, "bootstrap_truncation": True, "reward_scale": 2.0, "normalize_advantage": True}
    agent, trajectory = agent_of("AAC", discount=0.5, **changes), two_episodes()
    trajectory.obs[..., 0] = torch.tensor([[[1.0, 4.0]], [[2.0, math.nan]], [[3.0, math.nan]]])
    trajectory.final_obs[0, 1, 0] = 6.0
    agent.network.values = lambda obs: obs[..., 0]  # type: ignore[method-assign]
    agent.observe(trajectory)
    third = 8 - 3
    second = 4 + 1.5 - 2 + third / 4
    advantages = np.array([2 + 1 - 1 + second / 4, second, third, 16 + 3 - 4])
    assert agent.batch.returns[0, :4].tolist() == (advantages + [1, 2, 3, 4]).tolist()
    expected = torch.tensor((advantages - advantages.mean()) / advantages.std()).float()
    torch.testing.assert_close(agent.batch.advantages[0, :4], expected)
    same = make_trajectory([[3, 5]])
    same.reward.fill_(2.0)
    agent = agent_of("VPG", discount=0.0, normalize_advantage=True)
    agent.observe(same)
    assert not agent.batch.advantages.any()


def test_actions_follow_the_softmax() -> None:
    agent, obs = agent_of("CPG", members=2), torch.randn(2, 1, 8).expand(2, 4000, 8)
    logits = agent.network.logits(obs)
    actions = agent.begin(4000, Streams([1, 2]), sample=True).act(obs)
    for m in range(2):
        shares = actions[m].bincount(minlength=4) / 4000
        torch.testing.assert_close(shares, logits[m, 0].softmax(0), rtol=0, atol=0.035)
    assert torch.equal(agent.begin(4000, Streams([1, 2]), sample=False).act(obs), logits.argmax(-1))


# -- updates -----------------------------------------------------------------------------------------------------------


IMAGES = Spaces((2, 11, 9), Discrete(3), torch.uint8)


class Plain:
    """One member with `torch.nn`, autograd and `torch.optim.Adam`."""

    def __init__(self, agent: Agent, m: int):
        self.config, network = agent.config, agent.network
        activation = {"relu": nn.ReLU(), "leakyrelu": nn.LeakyReLU(0.01)}[self.config.activation]
        self.policy = torch_network(network.policy, m, activation)
        self.critic = torch_network(network.critic, m, activation) if network.critic else None
        config = self.config
        self.optimizers = [torch.optim.Adam(self.policy.parameters(), config.lr, eps=config.adam_eps)]
        if self.critic:
            rate = config.value_lr or config.lr
            self.optimizers.append(torch.optim.Adam(self.critic.parameters(), rate, eps=config.adam_eps))
        self.rates = [optimizer.param_groups[0]["lr"] for optimizer in self.optimizers]
        self.updates = 0

    def flat(self, network: nn.Sequential) -> Tensor:
        return torch.cat([(p.T if p.dim() == 2 else p).detach().flatten() for p in network.parameters()])

    def values(self, obs: Tensor) -> Tensor:
        return (self.critic(obs) if self.critic else self.policy(obs)[:, -1:]).squeeze(1)

    def update(self, states: Tensor, actions: Tensor, target: Tensor, weight: Tensor) -> dict[str, float]:
        """One update by the targets of values and the advantages."""
        config = self.config
        if config.anneal_lr:
            for optimizer, rate in zip(self.optimizers, self.rates, strict=True):
                optimizer.param_groups[0]["lr"] = rate * max(0.0, 1 - self.updates / config.epochs)
        policy = torch.distributions.Categorical(logits=self.policy(states)[:, :4])
        losses = {"policy_loss": -(weight * policy.log_prob(actions)).mean()}
        entropy = policy.entropy().mean() / math.log(4)
        if config.beta:
            losses["entropy_loss"] = -config.beta * entropy
        if config.baseline == "value":
            losses["value_loss"] = config.delta * (self.values(states) - target).square().mean()
        total = sum(losses.values())
        norms = self._step(total, self.optimizers)
        for _ in range(config.value_steps):
            self._step(config.delta * (self.values(states) - target).square().mean(), self.optimizers[1:])
        self.updates += 1
        losses |= {
            "total_loss": total,
            "entropy_share": entropy,
            "entropy": entropy * math.log(4),
            "grad_norm": norms[0],
        }
        return {name: loss.item() for name, loss in losses.items()}

    def _step(self, loss: Any, optimizers: list[Any]) -> list[Tensor]:
        """Gradient norms of each optimizer before clipping."""
        norms = []
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            parameters = optimizer.param_groups[0]["params"]
            norms.append(nn.utils.clip_grad_norm_(parameters, self.config.max_grad_norm or math.inf))
            optimizer.step()
        return norms


@pytest.mark.parametrize("case", [*OURS, "AAC-more-value-steps"])
def test_updates_equal_torch(case: str) -> None:
    """Two members with 700 and 60 experiences. A large epsilon keeps Adam from amplifying rounding errors."""
    changes = {"value_steps": 3} if case == "AAC-more-value-steps" else {}
    case = "AAC-improved" if changes else case
    agent = agent_of(
        case, members=2, adam_eps=1e-3, lr=1e-2, max_episodes=5, batch_episodes=1, discount=0.97, **changes
    )
    plain = [Plain(agent, m) for m in range(2)]
    for i in range(3):
        trajectory = make_trajectory([[250, 250, 200], [10, 20, 30]], seed=i)
        agent.observe(trajectory)
        batch, losses = agent.batch, agent.learn()
        for m, count in enumerate(batch.counts):
            columns = (batch.obs, batch.action, batch.returns, batch.advantages)
            expected = plain[m].update(*(column[m, :count] for column in columns))
            actual_losses = {name: value[m].item() for name, value in losses.items()}
            assert actual_losses == pytest.approx(expected, rel=1e-5, abs=1e-5)
            torch.testing.assert_close(agent.network.policy.flat[m], plain[m].flat(plain[m].policy), rtol=0, atol=1e-5)
            if agent.network.critic:
                actual, expected_weights = agent.network.critic.flat[m], plain[m].flat(plain[m].critic)
                torch.testing.assert_close(actual, expected_weights, rtol=0, atol=1e-5)


def test_separate_critic_does_not_train_convolutions() -> None:
    agent = agent_of("AAC", IMAGES)
    images = torch.randint(256, (1, 5, *IMAGES.obs_shape), dtype=torch.uint8)
    for values in (agent.network(images)[1], agent.network.values(images)):
        values.square().sum().backward()
        assert agent.network.trunk.flat.grad is None and agent.network.critic.flat.grad.any()
    agent.network.logits(images).square().sum().backward()
    assert agent.network.trunk.flat.grad.any()
