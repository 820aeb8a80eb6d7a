"""Q-learning and SARSA: updates by hand, exploration, varied hyperparameters, and the values of Cliff."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from control.commands.proxy_agents import agent_settings
from envs.gridmaps import MAPS
from helpers import config_of, loop_of
from models.agents.tabular.agent import Agent, sample_config
from models.agents.tabular.config import FAMILY, Config
from models.proxies import files
from models.registry import default_config, search_defaults
from models.spaces import Discrete, Spaces
from models.streams import Streams

CELLS, ACTIONS = 3, 2
SPACES = Spaces((CELLS,), Discrete(ACTIONS), one_hot=True)
GREEDY = Config(lr=0.5, discount=0.5, eps_init=0.0, eps_min=0.0, random_ties=False)


def make_agent(config: Config = GREEDY, seeds: Any = (0, 1), spaces: Spaces = SPACES) -> Agent:
    return Agent(config, spaces, list(seeds))


def one_hot_obs(*cells: int, size: int = CELLS) -> Tensor:
    """One cell of each member, ``[M, 1, size]``."""
    return torch.eye(size)[list(cells)].unsqueeze(1)


def tables(agent: Agent) -> list[Any]:
    """``[member][cell][action]``."""
    return agent.flat_parameters.view(agent.members, -1, ACTIONS).tolist()


def column(*values: float) -> Tensor:
    return torch.tensor(values).unsqueeze(1)


def step(agent: Agent, obs: Tensor, action: Any, next_obs: Tensor, reward: Any, discount: Any, done: Any) -> Tensor:
    """One step of every member with the given actions; returns the loss."""
    agent.act(obs)
    agent.observe(obs, column(*action).long(), next_obs, column(*reward), column(*discount), column(*done).bool())
    return agent.learn()


def test_ties_are_random_except_on_maps_with_results() -> None:
    """Also of agents that train on a proxy of the map; a file of settings without the name has the map's default."""
    published = {game for game, values in FAMILY.game_defaults.items() if not values["random_ties"]}
    assert published == {*MAPS, "cliffwalking"}
    for game, expected in (("cliff", False), ("cliffwalking", False), ("FrozenLake-v1", True), ("Taxi-v3", True)):
        for name in FAMILY.implementations:
            assert default_config(name, game).random_ties == expected
            joint, _ = search_defaults("RN", game, {"preset": "paper"}, f"{name},DDQN")
            assert joint.random_ties == expected
    assert search_defaults("RN", "cliffwalking", {}, "QLearning")[0].random_ties  # a preset's value
    shipped = files.load("cliff-additive-potential")
    assert not agent_settings(shipped, "SARSA", {}).random_ties


def test_annealed_learning_rate_falls_linearly_to_zero() -> None:
    """With alpha = 1/2, a reward of 1 moves a value of 0 by 1/2 in the first of four steps, then by 3/8, 2/8, 1/8."""
    agent = make_agent(dataclasses.replace(GREEDY, anneal_lr=True, discount=0.0), seeds=[0])
    agent.budget = 4
    changes, rates = [], []
    for _ in range(4):
        agent.flat_parameters.zero_()
        step(agent, one_hot_obs(0), [0], one_hot_obs(1), [1], [1], [0])
        changes.append(agent.flat_parameters[0, 0].item())
        rates.append(agent.status()["train/learning_rate"].item())
    assert changes == rates == [1 / 2, 3 / 8, 2 / 8, 1 / 8]


def test_updates_by_hand() -> None:
    """alpha = gamma = 1/2. Member 0 moves from cell 0 by action 1 to cell 2, whose values are (4, 6): from 2 by half of
    3 + 6 / 2 - 2 = 4 to 4. For member 1 the episode terminates: by half of 3 - 2 = 1 to 2.5. The loss is the squared
    error. Then both move from cell 2 by action 0 to cell 2 with reward 1: member 0 from 4 by half of 1 + 6 / 2 - 4 = 0;
    member 1 from 8 by half of 1 + 8 / 2 - 8 = -3 to 6.5."""
    agent = make_agent()
    agent.flat_parameters.view(2, CELLS, ACTIONS).copy_(
        torch.tensor([[[0, 2.0], [0, 0], [4, 6]], [[0, 2.0], [0, 0], [8, 6]]])
    )
    loss = step(agent, one_hot_obs(0, 0), (1, 1), one_hot_obs(2, 2), (3.0, 3.0), (1.0, 0.0), (0, 1))
    assert loss.tolist() == [16, 1]
    assert tables(agent) == [[[0, 4], [0, 0], [4, 6]], [[0, 2.5], [0, 0], [8, 6]]]
    loss = step(agent, one_hot_obs(2, 2), (0, 0), one_hot_obs(2, 2), (1.0, 1.0), (1.0, 1.0), (0, 1))
    assert loss.tolist() == [0, 9]
    assert tables(agent) == [[[0, 4], [0, 0], [4, 6]], [[0, 2.5], [0, 0], [6.5, 6]]]


@pytest.mark.parametrize("next_cell", [1, 0], ids=["other cell", "same cell"])
@pytest.mark.parametrize("backup", ["redrawn", "executed"])
def test_sarsa_backs_up_a_redrawn_or_the_executed_action(backup: str, next_cell: int) -> None:
    """Rewards are 0 and both cells have values 10 and 20, so that an update by a half shows the action of the backup.
    With epsilon 1/2, action 1 has probability 3/4. "executed" plays that action next; "redrawn" draws both actions
    independently."""
    config = Config(lr=1.0, backup=backup, discount=0.5, eps_init=0.5, eps_min=0.5)
    agent = make_agent(config, range(50), Spaces((2,), Discrete(2), one_hot=True))
    obs, next_obs = (one_hot_obs(*[cell] * 50, size=2) for cell in (0, next_cell))
    zero = torch.zeros(50, 1)
    backups, played, last = [], [], []
    for _ in range(40):
        agent.flat_parameters.view(50, 2, 2)[:] = torch.tensor([10.0, 20.0])
        action = agent.act(obs)
        agent.observe(obs, action, next_obs, zero, zero + 1, zero > 0)
        agent.learn()
        value = agent.flat_parameters.view(50, 2, 2)[:, 0].gather(1, action)[:, 0]  # half of 10 or of 20
        assert set(value.tolist()) <= {5, 10}
        backups.append(value == 10)
        last.append(action[:, 0] == 1)
        agent.flat_parameters.view(50, 2, 2)[:] = torch.tensor([10.0, 20.0])
        played.append(agent.act(next_obs)[:, 0] == 1)
        if agent.planned is not None:
            agent.planned.fill_(2)
    backup_actions = torch.stack(backups)
    assert backup_actions.float().mean() == pytest.approx(0.75, abs=0.04)
    for actions in (last, played):
        same = (backup_actions == torch.stack(actions)).float().mean()
        # The standard deviation of a share of 2,000 draws is 0.011.
        chance = pytest.approx(0.75**2 + 0.25**2, abs=0.04)
        assert same == (1 if backup == "executed" and actions is played else chance)


def test_ties_are_broken_at_random_or_by_order() -> None:
    first, any_ = make_agent(), make_agent(dataclasses.replace(GREEDY, random_ties=True), range(30))
    assert first.act(one_hot_obs(0, 1)).tolist() == [[0], [0]]
    actions = torch.stack([any_.act(one_hot_obs(*[0] * 30)) for _ in range(40)])
    assert actions.float().mean() == pytest.approx(0.5, abs=0.05)
    any_.flat_parameters.view(30, CELLS, ACTIONS)[:, :, 1] = 1e-6
    assert (torch.stack([any_.act(one_hot_obs(*[0] * 30)) for _ in range(40)]) == 1).all()
    policy = any_.begin(1, Streams(range(30)))
    any_.flat_parameters.zero_()
    assert (policy.act(one_hot_obs(*[0] * 30)) == 0).all()  # a test takes the first


def test_varied_hyperparameters_are_uniform_and_used() -> None:
    config = Config(vary_hp=True)
    configs = [sample_config(config, seed) for seed in range(300)]
    for name in ("lr", "discount"):
        values = torch.tensor([getattr(member_config, name) for member_config in configs])
        assert 0.1 <= values.min() < 0.12 and 0.98 < values.max() <= 1
        assert values.mean() == pytest.approx(0.55, abs=0.05)
    assert all(sample_config(Config(vary_hp=True, vary=("discount",)), seed).lr == config.lr for seed in range(3))
    agent = make_agent(config, range(3))
    assert agent.discounts().tolist() == pytest.approx([sample_config(config, seed).discount for seed in range(3)])
    assert make_agent(Config(), range(2)).discounts().tolist() == pytest.approx([0.99, 0.99])


def test_q_learning_solves_cliff_as_fast_as_published() -> None:
    """With the published settings the greedy return is optimal, -12, from about 1,400 steps on."""
    loop = loop_of("QLearning", "cliff", 1, 32, config_of("QLearning", "cliff"), steps_per_epoch=500)
    solved = []
    for _ in range(5):
        loop.epoch()
        solved.append((loop.evaluate(1).returns == -12).float().mean().item())
    assert solved[0] < 0.2 and solved[4] > 0.9
