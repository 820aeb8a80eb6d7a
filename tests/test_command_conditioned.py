"""UDRL and RCP: commands, memory, actions and losses."""

import dataclasses
import math
from typing import Any

import pytest
import torch

from helpers import build, tiny
from models.agents.command_conditioned.commands import rank
from models.losses import cross_entropy, exponential_weights
from models.registry import family
from models.spaces import Continuous, Discrete, Spaces
from models.streams import Streams
from models.trajectory import Trajectory

SPACES = Spaces((2,), Discrete(3), max_return=50.0)


def trajectory(rewards: list[list[float]], terminated: list[bool]) -> Trajectory:
    """Episodes of one member with these rewards; observations and actions encode step and episode."""
    lengths = torch.tensor([len(episode) for episode in rewards])
    steps, count = int(lengths.max()), len(rewards)
    reward = torch.tensor([episode + [0.0] * (steps - len(episode)) for episode in rewards]).T
    age = torch.arange(steps)[:, None].expand(steps, count)
    last, ends = age == lengths - 1, torch.tensor(terminated)
    obs = torch.stack([age, torch.arange(count).expand(steps, count)], -1).float()
    parts = (field[:, None] for field in (obs, age % 3, reward, last & ends, last & ~ends, age < lengths))
    final = torch.stack([lengths, torch.arange(count)], -1).float()
    return Trajectory(*parts, final[None], reward.sum(0)[None])


THREE = trajectory([[1.0, 2.0, 3.0], [10.0], [0.0, -4.0]], [True, True, False])


def experienced_agent(case: str, **changes: Any) -> Any:
    """An agent after the three episodes."""
    agent = build(case, SPACES, [0], tiny(case, **changes))
    agent.observe(THREE)
    return agent


def ranking_agent(**changes: Any) -> Any:
    """An agent with ranks as commands after the three episodes."""
    return experienced_agent("UDRL", **{**family("UDRL").presets["ranks"]["UDRL"], **changes})


def remembered(agent, *names: str) -> list[list[list[float]]]:
    """Fields of every episode in memory, in its order."""
    return [[episode.steps[name].tolist() for name in names] for episode in agent.memory.episodes[0]]


def test_memory_fields_by_hand() -> None:
    agent = experienced_agent("UDRL", discount=0.5)
    best, middle, worst = remembered(agent, "rtg", "horizon", "cum_rew", "action")
    assert best == [[10.0], [1.0], [10.0], [0]]
    assert middle == [[1 + 0.5 * 2 + 0.25 * 3, 2 + 0.5 * 3, 3.0], [3.0, 2.0, 1.0], [6.0] * 3, [0, 1, 2]]
    assert worst == [[-2.0, -4.0], [2.0, 1.0], [-4.0] * 2, [0, 1]]


def test_udrl_commands_come_from_the_best_episodes() -> None:
    agent = experienced_agent("UDRL", last_few=2)  # the best returns 6 and 10 have mean 8, deviation 2, mean length 2
    means = agent.mean_commands()
    assert means["return"].tolist() == [8.0] and means["horizon"].tolist() == [2.0]
    longer = experienced_agent("UDRL", last_few=3)
    longer.observe(trajectory([[1.0] * 4], [True]))  # mean length of the best three: 8 / 3, rounded
    assert longer.mean_commands()["horizon"].tolist() == [3.0]
    exploring = agent.begin(2000, Streams([1]), sample=True).command[0]
    assert agent.commands.names == ["rtg", "horizon"] and (exploring[:, 1] == 2).all()
    assert 8 <= exploring[:, 0].min() < 8.05 and 9.95 < exploring[:, 0].max() < 10
    assert exploring[:, 0].mean() == pytest.approx(9, abs=0.1)
    bound = agent.begin(5, Streams([1]), sample=False, evaluate=True).command[0]
    assert bound.tolist() == [[8.0, 2.0]] * 5
    sampled = experienced_agent("UDRL", last_few=2, eval_command="sampled")
    assert sampled.begin(50, Streams([1]), sample=False, evaluate=True).command[0, :, 0].std() > 0.1
    assert experienced_agent("UDRL", last_few=2, desire_mu_minus_std=True).mean_commands()["return"].tolist() == [6.0]


def test_udrl_commands_count_down() -> None:
    actor = experienced_agent("UDRL").begin(2, Streams([0]), sample=True, command={"return": 45.0, "horizon": 3.0})
    actor.advance(torch.tensor([[5.0, -20.0]]))
    assert actor.command[0].tolist() == [[40.0, 2.0], [50.0, 2.0]]
    actor.advance(torch.tensor([[0.0, 1.0]]))
    actor.advance(torch.tensor([[0.0, 1.0]]))
    assert actor.command[0].tolist() == [[40.0, 1.0], [48.0, 1.0]]  # a horizon of at least one step


def test_commanded_return_has_the_horizon_of_such_episodes() -> None:
    agent = experienced_agent("UDRL")  # returns -4, 6 and 10 of 2, 3 and 1 steps
    for wanted, length in ((-9.0, 2.0), (-4.0, 2.0), (6.0, 3.0), (8.0, 2.0), (99.0, 1.0)):
        policy = agent.begin(2, Streams([1]), sample=True, command={"return": wanted})
        assert policy.current_command()["horizon"].tolist() == [[length] * 2]
    agent.observe(trajectory([[6.0] * 1, [6.0, 0.0], [3.0, 3.0]], [True] * 3))  # 6 has lengths 3, 1, 2 and 2
    assert agent.commands.matching_horizon(6.0).tolist() == [2.0]
    fixed = agent.begin(2, Streams([1]), sample=True, command={"return": 6.0, "horizon": 9.0})
    assert fixed.current_command()["horizon"].tolist() == [[9.0] * 2]
    many = experienced_agent("UDRL")
    many.observe(trajectory([[float(i)] * 2 for i in range(20, 80)], [True] * 60))
    assert many.commands.group_returns[0, 0] == pytest.approx((-4 + 6 + 10 + 40) / 4)  # 63 episodes in 16 groups
    assert many.commands.group_lengths[0, 0] == pytest.approx((2 + 3 + 1 + 2) / 4)


def test_rcp_r_commands_come_from_the_latest_returns() -> None:
    agent = build("RCP-R", SPACES, [0], tiny("RCP-R", discount=1.0))
    agent.observe(trajectory([[100.0]], [True]))
    agent.observe(THREE)
    deviation = torch.tensor([6.0, 10.0, -4.0]).std(correction=0).item()
    assert agent.commands.names == ["rtg"] and agent.mean_commands()["return"].tolist() == [10.0]
    actor = agent.begin(4000, Streams([0]), sample=True)
    initial_command = actor.command[0, :, 0].clone()
    assert initial_command.mean() == pytest.approx(10, abs=0.3)
    assert initial_command.std() == pytest.approx(deviation, rel=0.05)
    actor.advance(torch.ones(1, 4000))
    assert torch.equal(actor.command[0, :, 0], initial_command)


def test_rcp_a_samples_a_command_at_every_step() -> None:
    agent = build("RCP-A", SPACES, [0])
    agent.commands.mean.fill_(3.0)
    agent.commands.spread.fill_(2.0)
    actor = agent.begin(3000, Streams([0]), sample=True)
    obs = torch.zeros(1, 3000, 2)
    actor.act(obs)
    first = actor.command.clone()
    actor.act(obs)
    assert (actor.command != first).float().mean() > 0.99
    assert actor.command.mean() == pytest.approx(3, abs=0.15) and actor.command.std() == pytest.approx(2, rel=0.05)
    fixed = agent.begin(4, Streams([0]), sample=True, command={"advantage": 7.0})
    fixed.act(obs[:, :4])
    assert (fixed.command == 7.0).all()


def test_rank_by_hand() -> None:
    levels = torch.tensor([0.1, 0.3, 0.5, 0.9])
    returns = torch.tensor([[-1.0, 0.0, 0.5, 1.0, 3.0, 3.5, 4.0, 99.0]])
    table = torch.tensor([[0.05, 0.1, 0.2, 0.3, 0.7, 0.8, 0.95, 0.95]])
    for quantiles in ([0.0, 1.0, 2.0, 4.0], [1.0, 0.0, 4.0, 2.0]):  # the second ones cross
        torch.testing.assert_close(rank(returns, torch.tensor(quantiles).expand(1, 8, 4), levels), table)
    # Equal quantiles: a step from the level below them to the highest of theirs.
    steps = rank(torch.tensor([[0.5, 1.0]]), torch.tensor([0.0, 1.0, 1.0, 2.0]).expand(1, 2, 4), levels)
    torch.testing.assert_close(steps, torch.tensor([[0.2, 0.5]]))
    torch.testing.assert_close(
        rank(torch.tensor([[2.0, 3.0]]), torch.full((1, 2, 4), 3.0), levels)[0], table[0, [0, 7]]
    )


def test_rank_commands_have_their_range() -> None:
    agent = ranking_agent(rank_min=0.6, rank_max=0.8, eval_rank=0.7)
    assert agent.commands.names == ["rank"] and agent.mean_commands()["rank"].tolist() == pytest.approx([0.7])
    exploring = agent.begin(2000, Streams([1]), sample=True)
    first = exploring.command.clone()
    assert 0.6 <= first.min() < 0.601 and 0.799 < first.max() <= 0.8
    exploring.act(torch.zeros(1, 2000, 2)), exploring.advance(torch.ones(1, 2000))
    assert torch.equal(exploring.command, first)  # constant along an episode
    evaluated = agent.begin(3, Streams([1]), sample=False, evaluate=True)
    assert evaluated.current_command()["rank"].tolist() == [[pytest.approx(0.7)] * 3]
    torch.testing.assert_close(
        agent.commands.network_inputs(evaluated.command), torch.full((1, 3, 1), 1.0)
    )  # 5 (0.7 - 0.5)
    ranks = ranking_agent(rank_min=0.6, rank_low_share=0.25).begin(4000, Streams([1]), sample=True).command
    is_low = ranks < 0.6
    assert is_low.float().mean() == pytest.approx(0.25, abs=0.03)
    assert ranks[is_low].mean() == pytest.approx(0.3, abs=0.02) and ranks[is_low].min() < 0.01
    assert ranks[~is_low].mean() == pytest.approx((0.6 + 0.95) / 2, abs=0.01) and ranks.max() > 0.949
    asked = agent.begin(3, Streams([1]), sample=True, command={"rank": 0.4})
    assert asked.current_command()["rank"].tolist() == [[pytest.approx(0.4)] * 3]


def with_quantiles(agent: Any, quantiles: list[float]) -> Any:
    """``agent`` with these quantiles, in units of reward, in every state."""
    scaled = torch.tensor(quantiles) / agent._value_scale()
    agent._quantiles = lambda obs: scaled.expand(*obs.shape[:2], len(quantiles))
    return agent


def test_return_is_replaced_by_its_rank_in_every_state() -> None:
    agent = with_quantiles(ranking_agent(quantile_levels=(0.2, 0.6), discount=0.5), [-2.0, 8.0])
    policy = agent.begin(3, Streams([1]), sample=False, evaluate=True, command={"return": 3.0})
    ranks = []
    for reward in ([1.0, 3.5, 0.0], [0.0, 0.0, 0.0]):
        policy.act(torch.zeros(1, 3, 2))
        ranks.append(policy.current_command()["rank"][0].tolist())
        policy.advance(torch.tensor([reward]))
    # The returns to go after a step are (3 - 1) / 0.5, (3 - 3.5) / 0.5 and 3 / 0.5.
    assert ranks == [pytest.approx([0.4] * 3), pytest.approx([0.44, 0.24, 0.52])]


def test_policy_learns_ranks_of_current_quantiles() -> None:
    agent = ranking_agent(quantile_levels=(0.2, 0.6), discount=1.0)
    rows = torch.arange(6).unsqueeze(0)  # returns-to-go -4, -4; 10; 6, 5, 3
    for quantiles, ranks in (([0.0, 10.0], [0.1, 0.1, 0.8, 0.44, 0.4, 0.32]), ([-4.0, 0.0], [0.2] * 2 + [0.8] * 4)):
        with_quantiles(agent, quantiles)
        obs, action = agent.memory.gather(rows, ["obs", "action"])
        expected = cross_entropy(agent(obs, torch.tensor(ranks)[None, :, None]), action).mean(1)
        for loss in agent._policy_loss(rows):
            torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("bootstrap", [True, False])
def test_target_returns_bootstrap_truncated_episodes(bootstrap: bool) -> None:
    """discount 0.5, lambda 0.25, and the value 2 in all states: the mean of quantiles -2 (weight 0.6) and 8 (0.4)."""
    agent = ranking_agent(discount=0.5, td_lambda=0.25, quantile_levels=(0.4, 0.8),
                          bootstrap_truncation=bootstrap)  # fmt: skip
    # Before the first update of the quantile network, in memory: returns of rewards alone, the latest episode first.
    assert remembered(agent, "rtg") == [[[-2.0, -4.0]], [[10.0]], [[1 + 0.5 * 2 + 0.25 * 3, 2 + 0.5 * 3, 3.0]]]
    agent.optimizers[1].param_groups[0]["step_count"] = 1  # the network has been trained
    with_quantiles(agent, [-2.0, 8.0])
    cut = -4 + 0.5 * (2 if bootstrap else 0)  # the third episode is truncated
    long = [0.0, 2 + 0.5 * (0.75 * 2 + 0.25 * 3), 3.0]
    long[0] = 1 + 0.5 * (0.75 * 2 + 0.25 * long[1])
    table = [[long[0], 10.0, 0.5 * (0.75 * 2 + 0.25 * cut)], [long[1], 0.0, cut], [3.0, 0.0, 0.0]]
    torch.testing.assert_close(agent._returns_to_go(THREE)[:, 0], torch.tensor(table))
    with_quantiles(agent, [90.0, 90.0])  # clamped to the largest return in memory, 10
    assert agent._returns_to_go(THREE)[1, 0, 2] == pytest.approx(-4 + 0.5 * (10 if bootstrap else 0))


def test_averaged_weights_act() -> None:
    agent = ranking_agent(average_decay=0.75, num_grad_steps=1)
    average = agent.policy.flat.detach().clone()
    obs, command = torch.randn(1, 4, 2), torch.full((1, 4, 1), 0.9)
    for _ in range(3):
        agent.learn()
        average = 0.75 * average + 0.25 * agent.policy.flat.detach()
        torch.testing.assert_close(agent.averaged[0].flat, average)
    assert not torch.equal(agent.averaged_forward(obs, command), agent(obs, command))
    with torch.no_grad():
        agent.policy.flat.copy_(agent.averaged[0].flat)
    torch.testing.assert_close(agent.averaged_forward(obs, command), agent(obs, command))
    assert any(name.startswith("averaged") for name in agent.state_dict())


def test_command_scale_is_fixed_or_follows_the_reach() -> None:
    fixed = experienced_agent("UDRL", reward_scale=0.025, horizon_scale=0.01)
    torch.testing.assert_close(fixed.commands.scale, torch.tensor([[0.025, 0.01]]))
    automatic = experienced_agent("UDRL")
    assert automatic.commands.scale.tolist() == [[5 / 16, 5 / 4]]  # largest return 10 -> 16, longest episode 3 -> 4
    assert automatic.forward(torch.zeros(1, 4, 2), torch.full((1, 4, 2), 300.0)).isfinite().all()


def test_discrete_actions_follow_the_softmax() -> None:
    agent = experienced_agent("UDRL")
    obs, command = torch.randn(1, 1, 2).expand(1, 3000, 2), {"return": 1.0, "horizon": 2.0}
    sampled_actions = agent.begin(3000, Streams([0]), sample=True, command=command).act(obs)
    logits = agent(obs, torch.tensor([1.0, 2.0]).expand(1, 3000, 2))
    shares = sampled_actions[0].bincount(minlength=3) / 3000
    torch.testing.assert_close(shares, logits[0, 0].softmax(0), rtol=0, atol=0.035)
    assert torch.equal(agent.begin(3000, Streams([0]), sample=False, command=command).act(obs), logits.argmax(-1))


def test_continuous_actions_are_clipped_and_noisy() -> None:
    spaces = Spaces((2,), Continuous((-1.0, 0.0), (1.0, 10.0)))
    agent = build("UDRL", spaces, [0], tiny("UDRL", action_noise=0.5))
    agent.observe(dataclasses.replace(THREE, action=torch.zeros(3, 1, 3, 2)))
    obs = torch.randn(1, 1, 2).expand(1, 5000, 2)
    greedy = agent.begin(5000, Streams([0]), sample=False, command={"return": 1.0, "horizon": 1.0}).act(obs)
    mean = agent(obs, torch.ones(1, 5000, 2)).clamp(-1, 1) * torch.tensor([1.0, 5.0]) + torch.tensor([0.0, 5.0])
    torch.testing.assert_close(greedy, mean)
    noisy = agent.begin(5000, Streams([0]), sample=True, command={"return": 1.0, "horizon": 1.0}).act(obs)
    if mean.abs()[0, 0, 0] < 0.3:
        assert (noisy - greedy)[..., 0].std() == pytest.approx(0.15, rel=0.05)  # 0.3 * 0.5 half-widths of 1
    assert noisy[..., 1].min() >= 0 and noisy[..., 1].max() <= 10 and (noisy - greedy)[..., 1].std() > 0.5


@pytest.mark.parametrize("case", ["UDRL", "RCP-R", "RCP-A"])
def test_policy_loss_is_weighted_cross_entropy(case: str) -> None:
    agent = experienced_agent(case)
    if agent.config.desire_advantage:
        agent._refresh_advantages()
    rows = torch.arange(6).unsqueeze(0)
    loss, plain = agent._policy_loss(rows)
    obs, action, *command = agent.memory.gather(rows, ["obs", "action", *agent.commands.names])
    step_losses = cross_entropy(agent(obs, torch.stack(command, -1)), action)
    weights = torch.ones_like(step_losses)
    if case != "UDRL":
        (by,) = agent.memory.gather(rows, ["advantage" if agent.config.desire_advantage else "cum_rew"])
        weights = exponential_weights(by, agent.config.beta, agent.config.max_weight)
        assert weights.std() > 0
    torch.testing.assert_close(loss, (step_losses * weights).mean(1))
    torch.testing.assert_close(plain, step_losses.mean(1))
    assert plain.item() == pytest.approx(math.log(3), abs=0.6)


@pytest.mark.parametrize("bootstrap", [True, False])
@torch.no_grad()
def test_advantages_bootstrap_truncated_episodes(bootstrap: bool) -> None:
    agent = experienced_agent("RCP-A", discount=0.5, td_lambda=0.25, use_lambda_td=True, advantage_target="return",
                  advantage_command="max", bootstrap_truncation=bootstrap)  # fmt: skip
    agent._refresh_advantages()

    def value(age: float, episode: float) -> float:
        """Within the range of returns."""
        raw = agent._scaled_value(torch.tensor([[[float(age), float(episode)]]])) * agent._value_scale()
        return float(raw.clamp(-4.0, 10.0))

    last = value(2, 2) if bootstrap else 0.0  # the third episode is truncated, the others terminate
    returns = [[1 + 0.5 * (2 + 0.5 * 3), 2 + 0.5 * 3, 3.0], [10.0], [0.5 * (-4 + 0.5 * last), -4 + 0.5 * last]]
    expected = [[g - value(age, episode) for age, g in enumerate(gs)] for episode, gs in enumerate(returns)]
    for episode in agent.memory.episodes[0]:
        number = int(episode.steps["obs"][0, 1])
        advantages = episode.steps["advantage"].tolist()
        assert advantages == pytest.approx(expected[number], abs=1e-4)
    assert agent.commands.mean.item() == pytest.approx(max(sum(expected, [])), abs=1e-4)


def test_policy_floor_is_the_share_of_random_actions() -> None:
    """A deterministic policy with floor 0.3 and 3 actions has probability 0.7 + 0.1."""

    def shares(floor: float, sample: bool = True) -> list[float]:
        agent = experienced_agent("UDRL", policy_floor=floor)
        agent.forward = lambda obs, command: torch.tensor([50.0, 0.0, 0.0]).expand(1, 4000, 3)
        actions = agent.begin(4000, Streams([3]), sample=sample).act(torch.zeros(1, 4000, 2))
        return (torch.bincount(actions[0], minlength=3) / 4000).tolist()

    assert shares(0.3) == pytest.approx([0.8, 0.1, 0.1], abs=0.02)
    assert shares(1.0) == pytest.approx([1 / 3] * 3, abs=0.03)
    assert shares(0.0) == shares(0.3, sample=False) == [1.0, 0.0, 0.0]


def test_settings_of_evaluations_have_an_effect_on_recorded_episodes() -> None:
    """Without episodes in training, evaluations still sample actions and, if commands are sampled, ranks."""

    def unused(**changes: Any) -> set[str]:
        return set(tiny("UDRL-ranks", dataset="minari:lander/random-v0", **changes).ineffective())

    assert unused().isdisjoint(("action_noise", "policy_floor"))
    assert {"rank_min", "rank_max", "training_rollouts_per_worker"} <= unused(eval_command="lower_bound")
    assert unused(eval_command="sampled").isdisjoint(("rank_min", "rank_max"))
