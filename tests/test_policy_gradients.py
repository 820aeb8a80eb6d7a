"""Policy gradients against published numbers and hand-computed tables."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from helpers import CASES, build, config_of, on_policy
from models.agents.policy_gradients.agent import Agent
from models.agents.policy_gradients.batch import CHUNK, pack, table
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


def make_trajectory(lengths: list[list[int]], spaces: Spaces = LANDER, seed: int = 0) -> Trajectory:
    """Random episodes of these ``lengths [M][E]``; every other one is truncated. Padding is NaN."""
    steps = torch.tensor(lengths)
    T, (M, E), g = int(steps.max()), steps.shape, torch.Generator().manual_seed(seed)
    valid = torch.arange(T).view(T, 1, 1) < steps
    last, odd = torch.arange(T).view(T, 1, 1) == steps - 1, torch.arange(E) % 2 == 1
    if spaces.is_image:
        obs = torch.randint(256, (T, M, E, *spaces.obs_shape), generator=g, dtype=torch.uint8)
        final = torch.randint(256, (M, E, *spaces.obs_shape), generator=g, dtype=torch.uint8)
    else:
        obs = torch.randn(T, M, E, *spaces.obs_shape, generator=g)
        final = torch.randn(M, E, *spaces.obs_shape, generator=g)
        obs[~valid] = math.nan
    reward = torch.randn(T, M, E, generator=g).masked_fill(~valid, math.nan)
    action = torch.randint(spaces.actions.n, (T, M, E), generator=g)
    return Trajectory(obs, action, reward, last & ~odd, last & odd, valid, final, reward.nan_to_num(0).sum(0))


def returns_to_go(rewards: Any, discount: float, behind: float = 0.0) -> list[float]:
    """A plain loop."""
    out: list[float] = []
    for reward in reversed(list(rewards)):
        behind = float(reward) + discount * behind
        out.insert(0, behind)
    return out


def test_returns_equal_published() -> None:
    """The notebook's exercise: 100 rewards, discount 0.9."""
    rewards = np.random.RandomState(42).randint(-10, 10, 100)
    assert rewards[:10].tolist() == [-4, 9, 4, 0, -3, -4, 8, 0, 0, -7] and rewards.sum() == -99
    reward = torch.tensor(rewards, dtype=torch.float64).view(100, 1, 1)
    q = discounted_returns(reward, torch.ones(100, 1, 1, dtype=torch.bool), 0.9).flatten().numpy()
    published = {
        0: -3.2479587406860144, 1: 0.8356013992377616, 2: -9.071554000846932, 3: -14.523948889829924,
        10: -22.362390159396647, 25: -0.5941956613405119, 50: -24.028850748842736, 75: -32.706665605163806,
        95: -15.4916, 96: -18.324, 97: -10.36, 98: -0.4, 99: -6.0,
    }  # fmt: skip
    assert np.abs(q[list(published)] - list(published.values())).max() < 1e-9
    assert abs(q.mean() + 9.607683713338261) < 1e-9
    assert (q.argmin(), q.argmax()) == (85, 19)
    assert abs(q[85] + 41.09291240965317) < 1e-9 and abs(q[19] - 19.09854006354154) < 1e-9
    assert np.abs(q - returns_to_go(rewards, 0.9)).max() < 1e-9


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
    batch = pack(trajectory)
    batch.returns = table(discounted_returns(reward, valid, 0.9), valid, batch.obs.shape[1])
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
    expected = {} if baseline is None else {"baseline": baseline, "advantage_mean": sum(weights) / 4}
    if case == "AAC":  # constant values
        expected["explained_variance"] = 0.0
    assert {name: value.item() for name, value in logged.items()} == pytest.approx(expected)


def test_equal_advantages_normalize_to_zero() -> None:
    same = make_trajectory([[3, 5]])
    same.reward.fill_(2.0)
    agent = agent_of("VPG", discount=0.0, normalize_advantage=True)
    agent.observe(same)
    assert not agent.batch.advantages.any()


def test_actions_follow_policy() -> None:
    agent, envs, times = agent_of("CPG", members=2), 320, 125
    obs = torch.randn(2, 1, 8, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        probability = (3 * agent.network.logits(obs)).softmax(-1).squeeze(1)
        for part in agent.network.policy.layers()[-1]:
            part.mul_(3)
    actor = agent.begin(envs, Streams([1, 2]), sample=True)
    actions = torch.cat([actor.act(obs.expand(-1, envs, -1)) for _ in range(times)], 1)
    for m in range(2):
        share = actions[m].bincount(minlength=4) / (envs * times)
        deviation = (probability[m] * (1 - probability[m]) / (envs * times)).sqrt()
        assert ((share - probability[m]).abs() < 4 * deviation).all()
    greedy = agent.begin(3, Streams([1, 2]), sample=False).act(obs.expand(-1, 3, -1))
    assert torch.equal(greedy, probability.argmax(-1, keepdim=True).expand(-1, 3))
