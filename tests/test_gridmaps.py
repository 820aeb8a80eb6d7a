"""Grid maps: steps by hand, optimal returns, and parity of CliffWalking with Gymnasium."""

import gymnasium as gym
import numpy as np
import pytest
import torch

import hashed
from envs.gridmaps import MAPS, CliffWalking, GridMap
from envs.gymnasium_adapter import GymnasiumEnvironment
from envs.make import make_dynamics, make_environment
from envs.names import GAMES
from models.spaces import Discrete, Spaces

RIGHT, LEFT, DOWN, UP = range(4)
# Time limit, moves and return of the best episode.
PUBLISHED = {
    "cliff": (50, 13, -12.0), "emptyroom22": (10, 2, 0.99), "emptyroom23": (15, 3, 0.98), "emptyroom33": (20, 4, 0.97),
    "wallroom": (30, 8, 0.93), "holeroom": (30, 8, 0.93), "holeroomlarge": (30, 10, 0.91),
    "holeroomlargeshifted": (30, 18, 0.83),
}  # fmt: skip


def walk(world: GridMap | CliffWalking, actions: list[int], first: int | None = None) -> list[tuple[int, float, bool]]:
    """After each action: the cell, the reward, and terminated."""
    state = world.initial(torch.tensor([[5]])) if first is None else torch.tensor([[[first]]])
    return [(cell, *rest) for (cell,), *rest in hashed.walk(world, state, actions)]


@pytest.mark.parametrize("name", MAPS)
def test_spaces_equal_gymnasium(name: str) -> None:
    dynamics, cells = make_dynamics(name), sum(map(len, MAPS[name]))
    assert dynamics is not None
    bound = GAMES[name].max_return
    assert dynamics.spaces == Spaces((cells,), Discrete(4), torch.float32, PUBLISHED[name][0], bound, one_hot=True)
    assert GymnasiumEnvironment(GAMES[name], 1, 1).spaces == dynamics.spaces
    obs = dynamics.observe(torch.arange(cells).view(1, cells, 1))
    assert torch.equal(obs[0], torch.eye(cells))


@pytest.mark.parametrize("name", MAPS)
def test_optimal_returns(name: str) -> None:
    """By breadth-first search over cells and actions."""
    world = GridMap(name)
    returns, moves = {int(world.initial(torch.tensor(0))): 0.0}, 0
    final_returns: list[float] = []
    while not final_returns:
        moves += 1
        ahead: dict[int, float] = {}
        for cell, so_far in returns.items():
            for action in range(4):
                [(next_cell, reward, terminated)] = walk(world, [action], cell)
                if not terminated:
                    ahead[next_cell] = so_far + reward
                elif reward != min(world._rewards):
                    final_returns.append(so_far + reward)
        returns = ahead
    assert (moves, round(max(final_returns), 6)) == PUBLISHED[name][1:]
    assert max(final_returns) <= GAMES[name].max_return  # type: ignore[operator]


def test_walls_stop_and_holes_end() -> None:
    walls, holes = GridMap("wallroom"), GridMap("holeroom")
    right_twice = [RIGHT, RIGHT]
    assert walk(walls, right_twice) == [(1, -0.01, False), (1, -0.01, False)]
    assert walk(holes, right_twice) == [(1, -0.01, False), (2, -1, True)]
    to_goal = [DOWN, DOWN, RIGHT, RIGHT, RIGHT, RIGHT, DOWN, DOWN]
    for world in (walls, holes):
        assert walk(world, to_goal)[1:3] == [(10, -0.01, False), (11, -0.01, False)]
        assert walk(world, to_goal)[-2:] == [(19, -0.01, False), (24, 1, True)]
    assert walk(walls, [DOWN, UP], 7 - 5 - 1) == [(6, -0.01, False), (1, -0.01, False)]
    # Through the gap of the wall.
    assert walk(walls, [UP, DOWN, DOWN], 12) == [(12, -0.01, False)] * 3


def test_cliffwalking_equals_gymnasium() -> None:
    """Every action in every cell, and an episode through the adapter."""
    world, gym_env = CliffWalking(), gym.make("CliffWalking-v1").unwrapped
    for cell in range(48):
        for action in range(4):
            [(_, next_cell, reward, terminated)] = gym_env.P[cell][action]  # type: ignore[attr-defined]
            assert walk(world, [action], cell) == [(next_cell, reward, terminated)]
    environment, adapter = make_environment("cliffwalking", 2, 3), GymnasiumEnvironment(GAMES["cliffwalking"], 2, 3)
    assert environment.spaces == adapter.spaces and environment.spaces.one_hot
    seeds, generator = torch.arange(6).view(2, 3), torch.Generator().manual_seed(0)
    assert torch.equal(environment.reset(seeds), adapter.reset(seeds))
    for step in range(200):
        action = torch.randint(4, (2, 3), generator=generator)
        native_step, other = environment.step(action), adapter.step(action)
        for key in ("obs", "reward", "terminated", "truncated"):
            assert torch.equal(getattr(native_step, key), getattr(other, key))
        assert native_step.done.all() == (step == 199)


def test_maps_are_gymnasium_environments() -> None:
    env = gym.make("understudy/Cliff-v0", render_mode="ansi")
    assert env.spec is not None and env.spec.max_episode_steps == 50
    assert env.reset(seed=0)[0] == 36
    assert env.render() == "............\n" * 3 + "@OOOOOOOOOOG"
    assert env.step(UP)[:4] == (24, -1.0, False, False)
    walls = gym.make("understudy/WallRoom-v0", render_mode="ansi")
    walls.reset(seed=0)
    walls.step(DOWN)
    assert walls.render() == "..#..\n@.#..\n.....\n..#..\n..#.G"
    cliff = make_environment("cliff", 1, 1, render=True)
    assert isinstance(cliff, GymnasiumEnvironment) and cliff.reset(torch.tensor([[1]]))[0, 0].argmax() == 36
    assert cliff.frame(0, 0).shape == (96, 288, 3) and len(np.unique(cliff.frame(0, 0).reshape(-1, 3), axis=0)) == 4
    cliff.close()
