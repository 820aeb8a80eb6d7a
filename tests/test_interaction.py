"""Loops of steps and of episodes: transitions, episode seeds, selected members and resuming."""

from typing import Any

import gymnasium as gym
import pytest
import torch
from torch import Tensor

import control.loops.rollout
from control.loops.rollout import FunctionPolicy, rollout
from control.loops.steps import BLOCK, EndedEpisodes, StepLoop
from envs.base import Environment
from envs.make import make_environment
from envs.synthetic import SyntheticDynamics, starts_of
from envs.tensor import TensorEnvironment
from helpers import STEPPED_CAR, step_loop
from models.contract import RandomPolicy
from models.proxies.synthetic.config import Config as ProxyConfig
from models.proxies.synthetic.networks import Networks
from models.spaces import Continuous, Discrete, Spaces
from models.streams import Streams


def synthetic(members: int, envs: int, bandit: bool = False) -> TensorEnvironment:
    """Synthetic CartPole with learned first states. The first member's episodes last 30 steps, others differ."""
    real = make_environment("cartpole", 1, 1)
    settings = ProxyConfig(proxy="bandit" if bandit else "mdp", proxy_hidden_size=8, learned_reset=True, max_steps=30)
    networks = Networks(settings, real.spaces)
    flat = 2 * networks.initial(Streams(range(members)))
    if not bandit:
        networks.mlps["done"].layers(networks.split(flat)["done"])[-1][1][0] -= 9
    return TensorEnvironment(
        SyntheticDynamics(networks.with_weights(flat), real.spaces, starts_of(real)), members, envs
    )


gym.register("CliffWithoutLimit-v0", "gymnasium.envs.toy_text.cliffwalking:CliffWalkingEnv")


class Recorder:
    """An agent that plays given actions and records the transitions."""

    device, knows_dynamics, acts_on_stale = torch.device("cpu"), False, False

    def __init__(self, actions: Tensor):
        self.actions, (_, self.members, self.envs) = actions, actions.shape
        self.transitions: list[tuple[Tensor, ...]] = []
        self.acted_on: list[Tensor] = []

    def act(self, obs: Tensor) -> Tensor:
        self.acted_on.append(obs.clone())
        return self.actions[len(self.acted_on) - 1]

    def observe(self, *parts: Tensor) -> None:
        self.transitions.append(tuple(part.clone() for part in parts))

    def learn(self) -> Tensor:
        return torch.zeros(self.members)


def recorded(
    name: str, ticks: int, members: int = 2, envs: int = 2
) -> tuple[Recorder, list[EndedEpisodes | None], StepLoop]:
    if name in ("synthetic", "bandit"):
        environment: Environment = synthetic(members, envs, name == "bandit")
    else:
        environment = make_environment(name, members, envs)
    actions = torch.randint(2, (ticks, members, envs), generator=torch.Generator().manual_seed(0))
    recorder = Recorder(actions)
    interaction = StepLoop(recorder, environment, Streams.from_name(range(members), "episodes"))
    return recorder, [interaction.step() for _ in range(ticks)], interaction


@pytest.mark.parametrize("name", ["cartpole", "synthetic", "bandit", STEPPED_CAR])
def test_transitions_are_consecutive(name: str) -> None:
    """Observations are consecutive except after an end: the transition has the last observation of the old episode,
    and the agent acts on the first of the new one."""
    ticks = 230 if name == STEPPED_CAR else 80
    recorder, all_ended, _ = recorded(name, ticks)
    returns, lengths, counted = torch.zeros(2, 2), torch.zeros(2, 2), 0
    for t, (obs, action, next_obs, reward, _, done) in enumerate(recorder.transitions):
        assert torch.equal(obs, recorder.acted_on[t]) and torch.equal(action, recorder.actions[t])
        if t + 1 < ticks:
            same = (next_obs == recorder.acted_on[t + 1]).all(-1)
            assert torch.equal(same, ~done)
        returns, lengths, finished = returns + reward, lengths + 1, all_ended[t]
        assert (finished is not None) == bool(done.any())
        if finished is not None:
            where = done.nonzero(as_tuple=True)
            assert torch.equal(finished.members, where[0]) and (finished.steps == t + 1).all()
            assert torch.equal(finished.returns, returns[where])
            assert torch.equal(finished.lengths, lengths[where].long())
            returns, lengths, counted = returns * ~done, lengths * ~done, counted + len(where[0])
    assert counted >= 4


@pytest.mark.parametrize(("name", "discount"), [("probe-1", 0.0), ("probe-truncated", 1.0), ("cartpole", 0.0)])
def test_discount_is_0_after_termination_and_1_after_truncation(name: str, discount: float) -> None:
    recorder, _, _ = recorded(name, 60)
    at_ends = torch.cat([transition[4][transition[5]] for transition in recorder.transitions])
    assert len(at_ends) > 4 and (at_ends == discount).all()
    assert all((transition[4][~transition[5]] == 1).all() for transition in recorder.transitions)


def test_loss_of_an_epoch_is_the_mean_since_learning_began() -> None:
    loop, single_steps = (step_loop("DDQN", "cartpole") for _ in range(2))
    losses = []
    for _ in range(60):
        single_steps.step()
        losses.append(single_steps.loss.double())
    torch.testing.assert_close(loop.epoch(60)["loss"], torch.stack(losses, 1).nanmean(1))
    assert losses[0].isnan().all() and losses[-1].isfinite().all()


def test_episodes_start_from_different_seeds() -> None:
    _, _, interaction = recorded("cartpole", 0)
    starts, firsts = starts_of(make_environment("cartpole", 1, 1)), []
    interaction.agent.actions = torch.zeros(300, 2, 2, dtype=torch.int64)
    for _ in range(300):
        previous_seeds = interaction.seeds
        finished = interaction.step()
        fresh = interaction.seeds != previous_seeds
        if finished is not None:
            assert interaction.obs is not None and torch.equal(interaction.obs[fresh], starts(interaction.seeds)[fresh])
            firsts += interaction.seeds[fresh].tolist()
    assert len(firsts) == len(set(firsts)) > 80


def test_seed_blocks_without_end_are_skipped() -> None:
    """The first member's episodes have one step, the other's last more than two blocks of seeds."""
    limit = 2 * BLOCK + 44
    real = make_environment("cartpole", 1, 1)
    networks = Networks(ProxyConfig(proxy_hidden_size=3, max_steps=limit), real.spaces)
    proxies = torch.zeros(2, networks.size)
    networks.mlps["done"].layers(networks.split(proxies)["done"])[-1][1][0] = 1.0
    results = []
    for members in ([0, 1], [1]):
        dynamics = SyntheticDynamics(networks.with_weights(proxies[members]), real.spaces, starts_of(real))
        recorder = Recorder(torch.zeros(limit, len(members), 1, dtype=torch.int64))
        environment = TensorEnvironment(dynamics, len(members), 1)
        interaction = StepLoop(recorder, environment, Streams.from_name(members, "episodes"))
        first, finished = interaction.seeds, [interaction.step() for _ in range(limit)][-1]
        assert finished is not None and finished.lengths[-1] == limit and not torch.equal(interaction.seeds, first)
        results.append((interaction.seeds[-1], interaction.obs[-1]))  # type: ignore[index]
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])


def test_snapshot_keeps_actions_of_current_episode() -> None:
    environment: Any = make_environment(STEPPED_CAR, 2, 1, time_limit=8)
    recorder = Recorder(torch.zeros(29, 2, 1, dtype=torch.int64))
    interaction = StepLoop(recorder, environment, Streams.from_name([0, 1], "episodes"))
    for tick in range(1, 30):
        interaction.step()
        assert len(environment._actions) == tick % 8
    assert environment.snapshot()["actions"].shape == (5, 2, 1)


class Watching:
    """Acts by the third number, and remembers rewards."""

    def __init__(self) -> None:
        self.rewards: list[Tensor] = []

    def act(self, obs: Tensor) -> Tensor:
        return (obs[..., 2] > 0).long()

    def advance(self, reward: Tensor) -> None:
        self.rewards.append(reward.clone())
        assert len(self.rewards) <= 30, "a step after the time limit"


def test_an_episode_without_a_time_limit_is_truncated(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(control.loops.rollout, "LONG", 30)
    environment = make_environment("CliffWithoutLimit-v0", 1, 2)
    always_up = FunctionPolicy(lambda obs: torch.zeros(len(obs), dtype=torch.long))
    trajectory = rollout(always_up, environment, torch.arange(2).view(1, 2))
    assert trajectory.lengths.tolist() == [[30, 30]] and trajectory.truncated[-1].all()
    assert not trajectory.truncated[:-1].any() and not trajectory.terminated.any()
    assert "ends after 30 steps; --time_limit N" in capsys.readouterr().out


def test_trajectory_has_every_step_of_episodes_played_alone() -> None:
    environment, policy, seeds = synthetic(8, 4), Watching(), torch.arange(24).view(8, 3)
    trajectory = rollout(policy, environment, seeds)
    assert torch.equal(torch.stack(policy.rewards), trajectory.reward)
    assert torch.equal(environment.age[:, :3], trajectory.lengths) and not environment.age[:, 3].any()
    assert trajectory.lengths.unique().numel() > 2 and trajectory.truncated.any() and trajectory.terminated.any()
    for e in range(3):
        alone, running, total = synthetic(8, 1), torch.ones(8, 1, dtype=torch.bool), torch.zeros(8, 1)
        obs = alone.reset(seeds[:, e : e + 1])
        for t in range(len(trajectory.valid)):
            action, row = policy.act(obs), (t, slice(None), slice(e, e + 1))
            step = alone.step(action)
            total = total + step.reward * running
            assert torch.equal(trajectory.valid[row], running)
            assert torch.equal(trajectory.terminated[row], step.terminated & running)
            assert torch.equal(trajectory.truncated[row], step.truncated & running)
            assert torch.equal(trajectory.action[row][running], action[running])
            torch.testing.assert_close(trajectory.reward[row], step.reward * running)
            torch.testing.assert_close(trajectory.obs[row][running], obs[running])
            ended = running & step.done
            torch.testing.assert_close(trajectory.final_obs[:, e : e + 1][ended], step.obs[ended])
            obs, running = step.obs, running & ~step.done
        assert not running.any()
        torch.testing.assert_close(trajectory.returns[:, e : e + 1], total)


def test_random_actions_cover_the_space_evenly() -> None:
    discrete = RandomPolicy(Spaces((1,), Discrete(3)), 3000, Streams([0, 1])).act(torch.zeros(2, 3000, 1))
    assert discrete.dtype == torch.int64 and (discrete[0].bincount(minlength=3) > 850).all()
    box = Continuous((-2.0, 0.0), (2.0, 1.0))
    continuous = RandomPolicy(Spaces((1,), box), 3000, Streams([0, 1])).act(torch.zeros(2, 3000, 1))
    assert continuous.shape == (2, 3000, 2)
    torch.testing.assert_close(continuous.amin((0, 1)), torch.tensor([-2.0, 0.0]), rtol=0, atol=0.01)
    torch.testing.assert_close(continuous.amax((0, 1)), torch.tensor([2.0, 1.0]), rtol=0, atol=0.01)
