"""Worlds whose chance is given from outside, and on devices other than the CPU."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from envs.gridworld import ButtonGrid, OpenGrid, ProcMaze
from envs.make import make_dynamics, make_environment
from envs.names import GAMES
from envs.panflute import PanFlute
from envs.seeded import uniform_at
from envs.tensor import SEED, TIME, ChanceDynamics, TensorEnvironment
from hashed import random_actions
from models.settings import SettingError

WORLDS: dict[str, Callable[[], ChanceDynamics]] = {
    "mazes": lambda: ProcMaze(4),
    "mazes whose events end them": lambda: ProcMaze(3, teleport_on_termination=False),
    "mazes without events": lambda: ProcMaze(3, spontaneous_termination=False),
    "open": lambda: OpenGrid(5),
    "buttons": lambda: ButtonGrid(3, 2),
    "buttons anew": lambda: ButtonGrid(4, 5, activate_on_reset=False),
    "buttons without events": lambda: ButtonGrid(2, 1, spontaneous_reset=False),
    "pipes": lambda: PanFlute(3),
    "pipes without events": lambda: PanFlute(3, spontaneous_reward=False),
}


@pytest.mark.parametrize("world", WORLDS)
def test_events_are_those_of_seed_and_time_or_as_given(world: str) -> None:
    """The numbers are all that a step takes of seed and time: other seeds with the same numbers go the same way."""
    dynamics = WORLDS[world]()
    state = dynamics.initial(torch.arange(1200).view(3, 400))
    shifted_state = torch.cat((torch.full((3, 400, 2), 5), state[..., 2:]), -1)
    # Steps of buttons and pipes are counted from 1, their numbers from 1 too.
    first = 0 if isinstance(dynamics, ProcMaze | OpenGrid) else 1
    for time in range(20):
        assert (state[..., TIME] == time).all()
        actions = random_actions(dynamics, 3, 400, seed=time)
        columns = (time + first) * dynamics.chances + torch.arange(dynamics.chances)
        if dynamics.chances > 1:
            columns = columns + 1
        chance = uniform_at(state[..., SEED, None], columns)
        seeded_step, chance_step = dynamics.step(state, actions), dynamics.advance(shifted_state, actions, chance)
        assert torch.equal(seeded_step[0][..., 2:], chance_step[0][..., 2:])
        assert (
            torch.equal(seeded_step[1], chance_step[1])
            and torch.equal(seeded_step[2], chance_step[2])
            and seeded_step[3] is chance_step[3] is None
        )
        assert (chance_step[0][..., SEED] == 5).all() and (chance_step[0][..., TIME] == 6 + time).all()
        state, shifted_state = seeded_step[0], chance_step[0]


@pytest.mark.parametrize("world", WORLDS)
def test_another_device_is_never_left(world: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On tensors without numbers: to mix devices raises there, as does to look at a value."""
    dynamics, device = WORLDS[world](), torch.device("lazy", 0)
    columns = dynamics.initial(torch.zeros(1, 1, dtype=torch.int64)).shape[-1]
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        for name, value in vars(dynamics).copy().items():
            if isinstance(value, Tensor):
                setattr(dynamics, name, mode.from_tensor(value))
        # Starts are drawn on the CPU, and with a look at values.
        monkeypatch.setattr(dynamics, "initial", lambda seeds: torch.zeros(*seeds.shape, columns, dtype=torch.int64))
        environment = TensorEnvironment(dynamics, 3, 2, device)
        active_mask = torch.ones(3, 2, dtype=torch.bool)
        for mask in (None, active_mask):
            assert environment.reset(torch.zeros(3, 2, dtype=torch.int64), mask).device == device
        actions = torch.zeros(3, 2, dtype=torch.int64, device=device)
        for active in (None, active_mask.to(device)):
            step = environment.step(actions, active)
            tensors = (step.obs, step.reward, step.terminated, step.truncated, environment.state, environment.age)
            assert {value.device for value in tensors} == {device}
        moved, state = dynamics.to(device), torch.zeros(4, 3, 2, columns, dtype=torch.int64, device=device)
        chance = torch.rand(4, 3, 2, dynamics.chances, device=device)
        outcome = moved.advance(state, torch.zeros(4, 3, 2, dtype=torch.int64, device=device), chance)
        assert {value.device for value in outcome[:3]} == {device} and outcome[0].shape == state.shape
        with pytest.raises(RuntimeError, match="device"):
            dynamics.step(state[0], actions)


def test_games_that_are_no_tensor_programs_stay_on_the_cpu() -> None:
    with pytest.raises(SettingError) as error:
        make_environment("lunarlander", 1, 1, device=torch.device("cuda"))
    assert str(error.value) == "gamename is 'lunarlander': it is played on the CPU only, not on cuda"
    assert [name for name in GAMES if isinstance(make_dynamics(name), ChanceDynamics)] == [
        name for name in GAMES if (dynamics := make_dynamics(name)) is not None and dynamics.spaces.binary
    ]
