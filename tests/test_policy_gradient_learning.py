"""Updates of policy gradients against plain torch, and independence of members."""

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from helpers import build, same_numbers
from models.agents.policy_gradients.agent import Agent
from models.spaces import Discrete, Spaces
from models.trajectory import Trajectory
from test_policy_gradients import LANDER, OURS, agent_of, make_trajectory, returns_to_go

IMAGES = Spaces((2, 11, 9), Discrete(3), torch.uint8)


class Plain:
    """One member with `torch.nn`, autograd and `torch.optim.Adam`, episode by episode."""

    def __init__(self, agent: Agent, m: int):
        self.config, network = agent.config, agent.network
        self.policy = self._copy(network.policy, m)
        self.critic = self._copy(network.critic, m) if network.critic else None
        config = self.config
        self.optimizers = [torch.optim.Adam(self.policy.parameters(), config.lr, eps=config.adam_eps)]
        if self.critic:
            rate = config.value_lr or config.lr
            self.optimizers.append(torch.optim.Adam(self.critic.parameters(), rate, eps=config.adam_eps))
        self.rates = [optimizer.param_groups[0]["lr"] for optimizer in self.optimizers]
        self.updates = 0

    def _copy(self, network: Any, m: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for weight, bias in network.layers():
            linear = nn.Linear(*weight.shape[1:])
            linear.weight.data, linear.bias.data = weight[m].T.detach().clone(), bias[m].detach().clone()
            layers += [linear, {"relu": nn.ReLU(), "leakyrelu": nn.LeakyReLU(0.01)}[self.config.activation]]
        return nn.Sequential(*layers[:-1])

    def flat(self, network: nn.Sequential) -> Tensor:
        return torch.cat([(p.T if p.dim() == 2 else p).detach().flatten() for p in network.parameters()])

    def values(self, obs: Tensor) -> Tensor:
        return (self.critic(obs) if self.critic else self.policy(obs)[:, -1:]).squeeze(1)

    def update(self, trajectory: Trajectory, m: int) -> dict[str, float]:
        config, obs, action, returns, weights = self.config, [], [], [], []
        for e, length in enumerate(trajectory.lengths[m].tolist()):
            steps = trajectory.obs[:length, m, e]
            rewards = (config.reward_scale * trajectory.reward[:length, m, e]).tolist()
            cut, bootstrap = bool(trajectory.truncated[length - 1, m, e]), 0.0
            with torch.no_grad():
                if config.bootstrap_truncation and cut:
                    bootstrap = float(self.values(trajectory.final_obs[m, e : e + 1]))
                value = self.values(steps).tolist() if config.baseline == "value" else [0.0] * length
            q = returns_to_go(rewards, config.discount, bootstrap)
            if config.gae_lambda is not None:
                next_values = [*value[1:], bootstrap]
                errors = [
                    r + config.discount * later - now for r, later, now in zip(rewards, next_values, value, strict=True)
                ]
                advantages = returns_to_go(errors, config.discount * config.gae_lambda)
                q = [a + v for a, v in zip(advantages, value, strict=True)]
            obs.append(steps)
            action.append(trajectory.action[:length, m, e])
            returns += q
            weights += [q_value - v for q_value, v in zip(q, value, strict=True)]
        states, actions, target = torch.cat(obs), torch.cat(action), torch.tensor(returns)
        weight = torch.tensor(weights)
        if config.baseline == "batch_mean":
            weight = weight - weight.mean()
        if config.normalize_advantage:
            weight = (weight - weight.mean()) / weight.std(correction=0)
        return self._descend(states, actions, target, weight)

    def _descend(self, states: Tensor, actions: Tensor, target: Tensor, weight: Tensor) -> dict[str, float]:
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
        losses = agent.learn()
        for m in range(2):
            expected = plain[m].update(trajectory, m)
            assert {name: value[m].item() for name, value in losses.items()} == pytest.approx(
                expected, rel=1e-5, abs=1e-5
            )
            torch.testing.assert_close(agent.network.policy.flat[m], plain[m].flat(plain[m].policy), rtol=0, atol=1e-5)
            if agent.network.critic:
                actual, expected_weights = agent.network.critic.flat[m], plain[m].flat(plain[m].critic)
                torch.testing.assert_close(actual, expected_weights, rtol=0, atol=1e-5)


def of_member(trajectory: Trajectory, m: int) -> Trajectory:
    """The trajectory of member ``m`` alone."""
    steps = int(trajectory.lengths[m].max())
    fields = {field.name: getattr(trajectory, field.name) for field in dataclasses.fields(trajectory)}
    by_episode = ("final_obs", "returns")
    return Trajectory(**{name: value[m : m + 1] if name in by_episode else value[:steps, m : m + 1]
                         for name, value in fields.items()})  # fmt: skip


def test_separate_critic_does_not_train_convolutions() -> None:
    agent = agent_of("AAC", IMAGES)
    images = torch.randint(256, (1, 5, *IMAGES.obs_shape), dtype=torch.uint8)
    for values in (agent.network(images)[1], agent.network.values(images)):
        values.square().sum().backward()
        assert agent.network.trunk.flat.grad is None and agent.network.critic.flat.grad.any()
    agent.network.logits(images).square().sum().backward()
    assert agent.network.trunk.flat.grad.any()


@pytest.mark.parametrize(("case", "spaces"), [
    ("VPG", LANDER), ("AAC-shared", LANDER), ("AAC-improved", LANDER), ("AAC-improved", IMAGES),
])  # fmt: skip
def test_members_with_different_lengths_are_independent(case: str, spaces: Spaces) -> None:
    """Bit equality with 1 to 8 chunks, and if another member has NaN rewards."""
    lengths = [[9, 3, 1, 4], [380, 300, 340, 300], [510, 490, 500, 530]]
    if spaces.is_image:
        lengths = [[9, 3, 1, 4], [70, 80, 60, 61], [140, 150, 130, 131]]
    joint_agent, sick = (agent_of(case, spaces, members=3) for _ in range(2))
    alone = [build(case, spaces, [m], joint_agent.config) for m in range(3)]
    for i in range(2):
        trajectory = make_trajectory(lengths, spaces, seed=i)
        numbers = update_agent(joint_agent, trajectory)
        for m in range(3):
            same_numbers(
                update_agent(alone[m], of_member(trajectory, m)), {k: v[m : m + 1] for k, v in numbers.items()}
            )
        trajectory.reward[0, 1, 2] = math.nan
        healthy = {name: value[[0, 2]] for name, value in update_agent(sick, trajectory).items()}
        same_numbers(healthy, {name: value[[0, 2]] for name, value in numbers.items()})
    assert all(value.isfinite().all() for value in numbers.values())


def update_agent(agent: Agent, trajectory: Trajectory) -> dict[str, Tensor]:
    """Everything that an update returns or changes."""
    logged = agent.observe(trajectory)
    weights = {name: value.detach().clone() for name, value in agent.learn().items() | agent.state_dict().items()}
    return logged | weights
