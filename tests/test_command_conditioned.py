"""UDRL and RCP: what is commanded, what is remembered, what is fitted."""

import dataclasses
import math
from typing import Any

import pytest
import torch

from helpers import build, tiny
from models.losses import cross_entropy, exponential_weights
from models.spaces import Continuous, Discrete, Spaces
from models.streams import Streams
from models.trajectory import Trajectory

SPACES = Spaces((2,), Discrete(3), max_return=50.0)


def trajectory(rewards: list[list[float]], terminated: list[bool]) -> Trajectory:
    """Episodes with these rewards of one member; observation and action say which step it is."""
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
    """An agent that has seen these three."""
    agent = build(case, SPACES, [0], tiny(case, **changes))
    agent.observe(THREE)
    return agent


def remembered(agent, *names: str) -> list[list[list[float]]]:
    """Fields of every episode in memory, best or latest first."""
    return [
        [agent.memory.fields[name][0][episode.slots].tolist() for name in names] for episode in agent.memory.episodes[0]
    ]


# -- memory ----------------------------------------------------------------------------------------------------------


def test_every_step_is_remembered_with_what_was_still_to_come() -> None:
    agent = experienced_agent("UDRL", discount=0.5)
    best, middle, worst = remembered(agent, "rtg", "horizon", "cum_rew", "action")
    assert best == [[10.0], [1.0], [10.0], [0]]
    assert middle == [[1 + 0.5 * 2 + 0.25 * 3, 2 + 0.5 * 3, 3.0], [3.0, 2.0, 1.0], [6.0] * 3, [0, 1, 2]]
    assert worst == [[-2.0, -4.0], [2.0, 1.0], [-4.0] * 2, [0, 1]]


# -- commands --------------------------------------------------------------------------------------------------------


def test_udrl_commands_the_best_episodes() -> None:
    agent = experienced_agent(
        "UDRL", last_few=2
    )  # returns 6, 10, -4; the best two have mean 8, deviation 2, mean length 2
    now = agent.commands_now()
    assert now["return"].tolist() == [8.0] and now["horizon"].tolist() == [2.0]
    exploring = agent.begin(2000, Streams([1]), sample=True).command[0]
    assert agent.commands.names == ["rtg", "horizon"] and (exploring[:, 1] == 2).all()
    assert 8 <= exploring[:, 0].min() < 8.05 and 9.95 < exploring[:, 0].max() < 10
    assert exploring[:, 0].mean() == pytest.approx(9, abs=0.1)
    bound = agent.begin(5, Streams([1]), sample=False, evaluate=True).command[0]
    assert bound.tolist() == [[8.0, 2.0]] * 5
    sampled = experienced_agent("UDRL", last_few=2, eval_command="sampled")
    assert sampled.begin(50, Streams([1]), sample=False, evaluate=True).command[0, :, 0].std() > 0.1
    assert experienced_agent("UDRL", last_few=2, desire_mu_minus_std=True).commands_now()["return"].tolist() == [6.0]


def test_udrl_counts_down_and_never_asks_for_more_than_there_is() -> None:
    actor = experienced_agent("UDRL").begin(2, Streams([0]), sample=True, command={"return": 45.0, "horizon": 3.0})
    actor.advance(torch.tensor([[5.0, -20.0]]))
    assert actor.command[0].tolist() == [[40.0, 2.0], [50.0, 2.0]]
    actor.advance(torch.tensor([[0.0, 1.0]]))
    actor.advance(torch.tensor([[0.0, 1.0]]))
    assert actor.command[0].tolist() == [[40.0, 1.0], [48.0, 1.0]]  # a horizon of at least one step


def test_rcp_r_commands_around_the_best_of_the_latest_rollouts_and_holds_it() -> None:
    agent = build("RCP-R", SPACES, [0], tiny("RCP-R", discount=1.0))
    agent.observe(trajectory([[100.0]], [True]))
    agent.observe(THREE)
    deviation = torch.tensor([6.0, 10.0, -4.0]).std(correction=0).item()
    assert agent.commands.names == ["rtg"] and agent.commands_now()["return"].tolist() == [10.0]
    actor = agent.begin(4000, Streams([0]), sample=True)
    initial_command = actor.command[0, :, 0].clone()
    assert initial_command.mean() == pytest.approx(10, abs=0.3) and initial_command.std() == pytest.approx(
        deviation, rel=0.05
    )
    actor.advance(torch.ones(1, 4000))
    assert torch.equal(actor.command[0, :, 0], initial_command)


def test_rcp_a_draws_its_command_at_every_step_and_keeps_an_override() -> None:
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


def test_commands_are_scaled_as_set_or_from_the_data() -> None:
    fixed = experienced_agent("UDRL", reward_scale=0.025, horizon_scale=0.01)
    torch.testing.assert_close(fixed.commands.scale, torch.tensor([[0.025, 0.01]]))
    automatic = experienced_agent("UDRL")
    assert automatic.commands.scale.tolist() == [[5 / 16, 5 / 4]]  # largest return 10 -> 16, longest episode 3 -> 4
    assert automatic.forward(torch.zeros(1, 4, 2), torch.full((1, 4, 2), 300.0)).isfinite().all()


# -- actions ---------------------------------------------------------------------------------------------------------


def test_actions_are_drawn_from_the_policy_or_its_greatest() -> None:
    agent = experienced_agent("UDRL")
    obs, command = torch.randn(1, 1, 2).expand(1, 3000, 2), {"return": 1.0, "horizon": 2.0}
    sampled_actions = agent.begin(3000, Streams([0]), sample=True, command=command).act(obs)
    logits = agent(obs, torch.tensor([1.0, 2.0]).expand(1, 3000, 2))
    shares = sampled_actions[0].bincount(minlength=3) / 3000
    torch.testing.assert_close(shares, logits[0, 0].softmax(0), rtol=0, atol=0.035)
    assert torch.equal(agent.begin(3000, Streams([0]), sample=False, command=command).act(obs), logits.argmax(-1))


def test_continuous_actions_are_the_mean_and_noise_within_the_bounds() -> None:
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


# -- losses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["UDRL", "RCP-R", "RCP-A"])
def test_the_policy_loss_is_the_weighted_cross_entropy_of_what_was_done(case: str) -> None:
    agent = experienced_agent(case)
    if agent.value:
        agent._refresh_advantages()
    slots = agent.memory.index(0).unsqueeze(0)
    loss, plain = agent._policy_loss(slots)
    obs, action, *command = agent.memory.gather(slots, ["obs", "action", *agent.commands.names])
    step_losses = cross_entropy(agent(obs, torch.stack(command, -1)), action)
    weights = torch.ones_like(step_losses)
    if case != "UDRL":
        (by,) = agent.memory.gather(slots, ["advantage" if agent.value else "cum_rew"])
        weights = exponential_weights(by, agent.config.beta, agent.config.max_weight)
        assert weights.std() > 0
    torch.testing.assert_close(loss, (step_losses * weights).mean(1))
    torch.testing.assert_close(plain, step_losses.mean(1))
    assert plain.item() == pytest.approx(math.log(3), abs=0.6)


@pytest.mark.parametrize("bootstrap", [True, False])
def test_advantages_follow_the_value_of_a_cut_off_episode_and_not_of_an_ended_one(bootstrap: bool) -> None:
    agent = experienced_agent("RCP-A", discount=0.5, td_lambda=0.25, use_lambda_td=True, advantage_target="return",
                  advantage_command="max", bootstrap_truncation=bootstrap)  # fmt: skip
    agent._refresh_advantages()
    returns = [1 + 0.5 * 2 + 0.25 * 3, 2 + 0.5 * 3, 3.0, 10.0, -2.0, -4.0]
    with torch.no_grad():

        def value(age: float, episode: float, low: float = min(returns), high: float = max(returns)) -> float:
            raw = agent._value(torch.tensor([[[float(age), float(episode)]]])) * agent._value_scale()
            return float(raw.clamp(low, high))

        behind = value(2, 2) if bootstrap else 0.0
        # episode by episode, latest first: the third was cut off, the second and first ended
        v = [[value(age, episode) for age in range(length)] for episode, length in ((2, 2), (1, 1), (0, 3))]
    done = [[0 + 0.5 * (-4 + 0.5 * behind), -4 + 0.5 * behind], [10.0], [1 + 0.5 * (2 + 0.5 * 3), 2 + 0.5 * 3, 3.0]]
    expected = [sum(pair) for pair in zip(sum(done, []), [-x for x in sum(v, [])], strict=True)]
    order = {0.0: 2, 1.0: 1, 2.0: 0}
    advantages: dict[int, list[float]] = {}
    for episode in agent.memory.episodes[0]:
        number = order[agent.memory.fields["obs"][0][episode.slots][0, 1].item()]
        advantages[number] = agent.memory.fields["advantage"][0][episode.slots].tolist()
    assert sum((advantages[i] for i in range(3)), []) == pytest.approx(expected, abs=1e-4)
    assert agent.commands.mean.item() == pytest.approx(max(expected), abs=1e-4)


def test_the_floor_is_a_share_of_the_uniform_policy_in_sampled_actions() -> None:
    """Of a policy that is sure of action 0, a share of 0.3 among 3 actions leaves 0.7 + 0.1."""

    def shares(floor: float, sample: bool = True) -> list[float]:
        agent = experienced_agent("UDRL", policy_floor=floor)
        agent.forward = lambda obs, command: torch.tensor([50.0, 0.0, 0.0]).expand(1, 4000, 3)
        actions = agent.begin(4000, Streams([3]), sample=sample).act(torch.zeros(1, 4000, 2))
        return (torch.bincount(actions[0], minlength=3) / 4000).tolist()

    assert shares(0.3) == pytest.approx([0.8, 0.1, 0.1], abs=0.02)
    assert shares(1.0) == pytest.approx([1 / 3] * 3, abs=0.03)
    assert shares(0.0) == shares(0.3, sample=False) == [1.0, 0.0, 0.0]
