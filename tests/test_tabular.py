"""Q-learning and SARSA: updates worked by hand, exploration, hyperparameters of their own, and the values of Cliff."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from control.cli.settings import RunConfig, Settings
from control.loops.build import build_loop
from envs.make import make_dynamics
from helpers import config_of, loop_of
from models.agents.tabular.agent import Agent, sample_config
from models.agents.tabular.config import Config
from models.settings import SettingError
from models.spaces import Discrete, Spaces
from models.streams import Streams

CELLS, ACTIONS = 3, 2
SPACES = Spaces((CELLS,), Discrete(ACTIONS), one_hot=True)
GREEDY = Config(lr=0.5, discount=0.5, eps_init=0.0, eps_min=0.0)


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


def take(agent: Agent, obs: Tensor, action: Any, next_obs: Tensor, reward: Any, discount: Any, done: Any) -> Tensor:
    """One step of every member with a given action; the loss."""
    agent.act(obs)
    agent.observe(obs, column(*action).long(), next_obs, column(*reward), column(*discount), column(*done).bool())
    return agent.learn()


def test_updates_worked_by_hand() -> None:
    """alpha = gamma = 1/2. Member 0 goes from cell 0 by action 1 to cell 2, whose values are (4, 6): from 2 by half of
    3 + 6 / 2 - 2 = 4 to 4. Member 1 does the same and the episode terminates: by half of 3 - 2 = 1 to 2.5. The loss is
    the square of the error. Then both go from cell 2 by action 0 to cell 2 itself with reward 1: member 0 from 4 by
    half of 1 + 6 / 2 - 4 = 0; member 1 from 8 by half of 1 + 8 / 2 - 8 = -3 to 6.5."""
    agent = make_agent()
    agent.flat_parameters.view(2, CELLS, ACTIONS).copy_(
        torch.tensor([[[0, 2.0], [0, 0], [4, 6]], [[0, 2.0], [0, 0], [8, 6]]])
    )
    loss = take(agent, one_hot_obs(0, 0), (1, 1), one_hot_obs(2, 2), (3.0, 3.0), (1.0, 0.0), (0, 1))
    assert loss.tolist() == [16, 1]
    assert tables(agent) == [[[0, 4], [0, 0], [4, 6]], [[0, 2.5], [0, 0], [8, 6]]]
    loss = take(agent, one_hot_obs(2, 2), (0, 0), one_hot_obs(2, 2), (1.0, 1.0), (1.0, 1.0), (0, 1))
    assert loss.tolist() == [0, 9]
    assert tables(agent) == [[[0, 4], [0, 0], [4, 6]], [[0, 2.5], [0, 0], [6.5, 6]]]


@pytest.mark.parametrize("ends", [False, True])
def test_after_a_time_limit_the_values_go_on_unless_it_ends_them(ends: bool) -> None:
    agent = make_agent(dataclasses.replace(GREEDY, truncation_ends=ends))
    agent.flat_parameters.fill_(8.0)
    take(agent, one_hot_obs(0, 0), (1, 1), one_hot_obs(2, 2), (3.0, 3.0), (1.0, 1.0), (0, 1))
    # 8 and half of 3 + 8 / 2 - 8 = -1, or of 3 - 8 = -5
    assert [rows[0][1] for rows in tables(agent)] == [7.5, 5.5 if ends else 7.5]


def test_the_bonus_of_a_visit() -> None:
    """b / sqrt(n) for the n-th visit of a cell and action, with b = 4: 4, 4 / sqrt(2), and 4 for another action."""
    agent = make_agent(dataclasses.replace(GREEDY, count_bonus=4.0, lr=1.0, discount=0.0), (0,))
    values = [
        take(agent, one_hot_obs(0), (action,), one_hot_obs(1), (1.0,), (1.0,), (0,)) * 0
        + agent.flat_parameters[0, action]
        for action in (0, 0, 1)
    ]
    assert [value.item() for value in values] == pytest.approx([5, 1 + 4 / 2**0.5, 5])
    assert agent.visits is not None and agent.visits.tolist() == [[2, 1, 0, 0, 0, 0]]


def test_several_environments_are_learned_from_one_after_another() -> None:
    """Both go by action 0 from cell 0 to cell 0 with reward 2: 0 -> 1, then 1 by half of 2 + 1 / 2 - 1 to 1.75."""
    agent = make_agent(dataclasses.replace(GREEDY, num_envs=2), (0,))
    obs = one_hot_obs(0, 0).transpose(0, 1)
    agent.observe(obs, agent.act(obs), obs, torch.full((1, 2), 2.0), torch.ones(1, 2), torch.zeros(1, 2).bool())
    assert agent.learn().tolist() == [2.25]
    assert agent.flat_parameters[0, 0] == 1.75


# -- SARSA -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backup", ["redrawn", "executed"])
def test_sarsa_follows_the_action_that_it_draws(backup: str) -> None:
    """Rewards are 0 and the values of cell 1 are 10 and 20, so a half of what is followed by action 0 or 1 says which
    it was. With epsilon 1/2 it is action 0 a quarter of the time; executed, it is what is then done in cell 1, and
    else it is that by chance alone."""
    agent = make_agent(
        Config(backup=backup, discount=0.5, eps_init=0.5, eps_min=0.5),
        range(50),
        Spaces((2,), Discrete(2), one_hot=True),
    )
    followed, done = [], []
    for _ in range(40):
        agent.flat_parameters.view(50, 2, 2)[:] = torch.tensor([[0.0, 0.0], [10, 20]])
        take(
            agent,
            one_hot_obs(*[0] * 50, size=2),
            [0] * 50,
            one_hot_obs(*[1] * 50, size=2),
            [0.0] * 50,
            [1.0] * 50,
            [0] * 50,
        )
        followed.append(agent.flat_parameters.view(50, 2, 2)[:, 0, 0] / 10)  # 0.5 or 1 of action 0 or 1
        done.append(agent.act(one_hot_obs(*[1] * 50, size=2))[:, 0])
        if agent.planned is not None:
            agent.planned.fill_(2)
    was, did = torch.stack(followed) == 1, torch.stack(done) == 1
    assert set(torch.stack(followed).unique().tolist()) == {0.5, 1}
    assert was.float().mean() == pytest.approx(0.75, abs=0.04)
    same = (was == did).float().mean()
    assert same == 1 if backup == "executed" else same == pytest.approx(0.75**2 + 0.25**2, abs=0.04)


def test_sarsa_draws_the_next_action_by_numbers_apart_from_this_one_s() -> None:
    """All is in cell 1, whose values are 10 and 20. With epsilon 1/2 an action is the second 3/4 of the time. If both
    were drawn by the same numbers, the one followed would be the one done; as it is, that is chance."""
    config = Config(backup="redrawn", discount=0.5, eps_init=0.5, eps_min=0.5)
    agent, obs = make_agent(config, range(50), Spaces((2,), Discrete(2), one_hot=True)), one_hot_obs(*[1] * 50, size=2)
    same = []
    for _ in range(40):
        agent.flat_parameters.view(50, 2, 2)[:] = torch.tensor([[0.0, 0.0], [10, 20]])
        action = agent.act(obs)
        zero = torch.zeros(50, 1)
        agent.observe(obs, action, obs, zero, zero + 1, zero > 0)
        agent.learn()
        value = agent.flat_parameters.view(50, 2, 2)[:, 1].gather(1, action)[:, 0]  # half of 10 or of 20
        assert set(value.unique().tolist()) <= {5, 10}
        same.append((value == 10) == (action[:, 0] == 1))
    # a share of 2,000 draws has a standard deviation of 0.011
    assert torch.stack(same).float().mean() == pytest.approx(0.75**2 + 0.25**2, abs=0.04)


def test_no_action_is_carried_into_the_next_episode() -> None:
    agent = make_agent(Config(backup="executed"), (0, 1))
    take(agent, one_hot_obs(0, 0), (0, 0), one_hot_obs(1, 1), (0.0, 0.0), (1.0, 1.0), (0, 1))
    assert agent.planned is not None
    assert (agent.planned < ACTIONS).flatten().tolist() == [True, False]


# -- exploration and ties ----------------------------------------------------------------------------------------------


def test_of_equal_values_the_first_or_any() -> None:
    first, any_ = make_agent(), make_agent(dataclasses.replace(GREEDY, random_ties=True), range(30))
    assert first.act(one_hot_obs(0, 1)).tolist() == [[0], [0]]
    actions = torch.stack([any_.act(one_hot_obs(*[0] * 30)) for _ in range(40)])
    assert actions.float().mean() == pytest.approx(0.5, abs=0.05)
    any_.flat_parameters.view(30, CELLS, ACTIONS)[:, :, 1] = 1e-6
    assert (torch.stack([any_.act(one_hot_obs(*[0] * 30)) for _ in range(40)]) == 1).all()
    policy = any_.begin(1, Streams(range(30)))
    any_.flat_parameters.zero_()
    assert (policy.act(one_hot_obs(*[0] * 30)) == 0).all()  # a test takes the first


@pytest.mark.parametrize("decay", [0.5, 1.0])
def test_random_actions_are_as_many_as_epsilon_says(decay: float) -> None:
    """Members that have finished 0 and 3 episodes, of epsilon 0.8 falling by half to 0.2."""
    agent = make_agent(dataclasses.replace(GREEDY, eps_init=0.8, eps_min=0.8 if decay == 1 else 0.2, eps_decay=decay))
    agent.episodes = torch.tensor([0, 3])
    action_means = torch.stack([agent.act(one_hot_obs(0, 0))[:, 0] for _ in range(2000)]).float().mean(0)
    assert action_means.tolist() == pytest.approx([0.4, 0.4 if decay == 1 else 0.1], abs=0.04)
    assert agent.metrics()["train/epsilon"].tolist() == pytest.approx([0.8, 0.8 if decay == 1 else 0.2])


# -- members -----------------------------------------------------------------------------------------------------------


def test_hyperparameters_of_their_own() -> None:
    config = Config(vary_hp=True)
    configs = [sample_config(config, seed) for seed in range(300)]
    for name in ("lr", "discount"):
        values = torch.tensor([getattr(member_config, name) for member_config in configs])
        assert 0.1 <= values.min() < 0.12 and 0.98 < values.max() <= 1
        assert values.mean() == pytest.approx(0.55, abs=0.05)
    assert all(
        member_config.lr == config.lr
        for member_config in (sample_config(Config(vary_hp=True, vary=("discount",)), s) for s in range(3))
    )
    agent = make_agent(config, range(3))
    assert agent.discounts().tolist() == pytest.approx([sample_config(config, seed).discount for seed in range(3)])
    assert make_agent(Config(), range(2)).discounts().tolist() == pytest.approx([0.8, 0.8])


def test_a_one_hot_observation_is_a_row_of_its_member_s_table() -> None:
    obs = torch.eye(CELLS)[torch.tensor([[0, 2, 1], [1, 0, 2]])]
    agent = make_agent()
    agent.flat_parameters.copy_(torch.arange(12.0).view(2, 6))
    assert agent.values(obs)[..., 0].tolist() == [[0, 4, 2], [8, 6, 10]]
    assert agent.with_weights(agent.flat_parameters[[1, 1, 0]]).act(obs[[0, 0, 0]]).tolist() == [[1] * 3] * 3


def test_an_environment_without_cells_is_refused() -> None:
    run = RunConfig(implementation="QLearning", gamename="cartpole")
    with pytest.raises(SettingError, match="'cartpole', whose observations are no cells; QLearning takes one-hot"):
        build_loop(Settings(run, Config()))


# -- Cliff -------------------------------------------------------------------------------------------------------------


def true_values(game: str, discount: float) -> Tensor:
    """Values ``[S, A]`` by iteration to their fixed point, of the game's own steps."""
    dynamics = make_dynamics(game)
    assert dynamics is not None and isinstance(dynamics.spaces.actions, Discrete)
    cells, actions = dynamics.spaces.obs_shape[0], dynamics.spaces.actions.n
    state = torch.arange(cells).view(cells, 1, 1).expand(cells, actions, 1)
    next_state, reward, terminated, _ = dynamics.step(state, torch.arange(actions).expand(cells, actions))
    values = torch.zeros(cells, actions, dtype=torch.float64)
    for _ in range(200):
        values = reward + discount * ~terminated * values.amax(1)[next_state[..., 0]]
    return values


def test_q_learning_finds_the_values_of_cliff() -> None:
    """At lr 1 a value is exact once those that follow are. Random actions see to it that the cells above the cliff and
    the start are entered often enough. Cells 37 to 47 end an episode, and nobody acts there."""
    config = config_of("QLearning", eps_init=0.5, eps_min=0.5)
    loop = loop_of("QLearning", "cliff", 1, 16, config, steps_per_epoch=6000)
    loop.epoch()
    values = loop.agents[0].flat_parameters.view(16, 48, 4)
    assert (values[:, 37:] == 0).all()
    true, edge_cells = true_values("cliff", 0.8).float(), [*range(24, 37)]
    assert (true[edge_cells].amax(1) > -5 * (1 - 0.8**13)).all() and true[35].argmax() == 2 and true[35, 2] == 0
    is_exact = (values[:, edge_cells].amax(2) - true[edge_cells].amax(1)).abs().amax(1) < 1e-4
    assert is_exact.float().mean() > 0.9
    assert (loop.evaluate(1).returns == -12).all()


def test_q_learning_solves_cliff_as_soon_as_published() -> None:
    """With the published settings the greedy return is -12, the best there is, from about 1,400 steps on."""
    loop = loop_of("QLearning", "cliff", 1, 32, config_of("QLearning"), steps_per_epoch=500)
    solved = []
    for _ in range(5):
        loop.epoch()
        solved.append((loop.evaluate(1).returns == -12).float().mean().item())
    assert solved[0] < 0.2 and solved[4] > 0.9
