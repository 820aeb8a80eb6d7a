"""Whole episodes side by side: every step is kept once, from the first to the last."""

from itertools import product

import torch
from torch import Tensor

from control.loops.rollout import Episodes, rollout
from envs.base import Step
from models.contract import RandomPolicy
from models.spaces import Continuous, Discrete, Spaces
from models.streams import Streams
from models.trajectory import Trajectory

TERMINATES, TRUNCATES = 10_000, 20_000


class Scripted:
    """Episodes as long as their seed says (modulo 10000). A step pays 100 * seed + age; the observation is the age."""

    spaces = Spaces((1,), Discrete(3))

    def __init__(self, members: int, envs: int):
        self.members, self.envs = members, envs
        self.age = torch.full((members, envs), -1)
        self.seeds = torch.zeros(members, envs, dtype=torch.int64)
        self.steps_taken = torch.zeros(members, envs, dtype=torch.int64)

    def reset(self, seeds: Tensor, where: Tensor | None = None) -> Tensor:
        assert where is not None
        self.seeds, self.age = torch.where(where, seeds, self.seeds), torch.where(where, 0, self.age)
        return self.age.float()[..., None]

    def step(self, actions: Tensor, active: Tensor | None = None) -> Step:
        assert active is not None and actions.shape == (self.members, self.envs)
        self.steps_taken += active
        reward = torch.where(active, 100.0 * (self.seeds % 10_000) + self.age, 0.0)
        self.age = self.age + active
        done = active & (self.age == self.seeds % 10_000)
        return Step(
            self.age.float()[..., None], reward, done & (self.seeds < TRUNCATES), done & (self.seeds >= TRUNCATES)
        )

    def close(self) -> None:
        pass


class Watching:
    """Acts ``age % 3``, and remembers what it was told."""

    def __init__(self) -> None:
        self.rewards: list[Tensor] = []

    def act(self, obs: Tensor) -> Tensor:
        return obs[..., 0].long() % 3

    def advance(self, reward: Tensor) -> None:
        self.rewards.append(reward.clone())


LENGTHS = [[3, 1, 5], [2, 4, 1]]
SEEDS = torch.tensor(LENGTHS) + torch.tensor([TERMINATES, TERMINATES, TRUNCATES])


def scripted_rollout() -> tuple[Trajectory, Scripted, Watching]:
    environment, actor = Scripted(2, 4), Watching()
    trajectory = rollout(actor, environment, SEEDS)
    assert isinstance(trajectory, Trajectory)
    return trajectory, environment, actor


def test_every_step_is_kept_once_from_the_first_to_the_last() -> None:
    trajectory, environment, actor = scripted_rollout()
    assert torch.equal(trajectory.valid, torch.arange(5)[:, None, None] < torch.tensor(LENGTHS))
    assert trajectory.lengths.tolist() == LENGTHS
    assert environment.steps_taken[:, :3].tolist() == LENGTHS and environment.steps_taken[:, 3].sum() == 0
    assert torch.equal(torch.stack(actor.rewards), trajectory.reward)
    for m, e in product(range(2), range(3)):
        length = LENGTHS[m][e]
        ages = list(range(length))
        assert trajectory.obs[:length, m, e, 0].tolist() == ages
        assert trajectory.action[:length, m, e].tolist() == [age % 3 for age in ages]
        assert trajectory.reward[:, m, e].tolist() == [100.0 * length + age for age in ages] + [0.0] * (5 - length)
        assert trajectory.final_obs[m, e].item() == length
        assert trajectory.returns[m, e] == trajectory.reward[:, m, e].sum()
        # at the last step and apart
        last, all_false = [step == length - 1 for step in range(5)], [False] * 5
        assert trajectory.terminated[:, m, e].tolist() == (all_false if e == 2 else last)
        assert trajectory.truncated[:, m, e].tolist() == (last if e == 2 else all_false)


def test_without_keeping_returns_and_lengths_are_the_same() -> None:
    trajectory, _, _ = scripted_rollout()
    episodes = rollout(Watching(), Scripted(2, 4), SEEDS, keep=False)
    assert isinstance(episodes, Episodes)
    assert torch.equal(episodes.returns, trajectory.returns) and torch.equal(episodes.lengths, trajectory.lengths)


def test_random_actions_cover_the_space_evenly() -> None:
    discrete = RandomPolicy(Spaces((1,), Discrete(3)), 3000, Streams([0, 1])).act(torch.zeros(2, 3000, 1))
    assert discrete.dtype == torch.int64 and (discrete[0].bincount(minlength=3) > 850).all()
    box = Continuous((-2.0, 0.0), (2.0, 1.0))
    continuous = RandomPolicy(Spaces((1,), box), 3000, Streams([0, 1])).act(torch.zeros(2, 3000, 1))
    assert continuous.shape == (2, 3000, 2)
    torch.testing.assert_close(continuous.amin((0, 1)), torch.tensor([-2.0, 0.0]), rtol=0, atol=0.01)
    torch.testing.assert_close(continuous.amax((0, 1)), torch.tensor([2.0, 1.0]), rtol=0, atol=0.01)
