"""Environments in several processes: the same numbers as in one process, and no process left behind."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

from conftest import ROOT
from envs.base import EnvironmentFault
from envs.gymnasium_adapter import GymnasiumEnvironment
from envs.make import make_environment
from envs.names import Game
from envs.workers import ParallelEnvironment
from helpers import STEPPED_PENDULUM, seeds_of
from models.settings import SettingError

FIELDS = ("obs", "reward", "terminated", "truncated")


class Mortal(gym.Env):
    """Starts another program. Action 1 gives a NaN reward, action 2 kills the process."""

    observation_space = gym.spaces.Box(-1, 1e7, (2,))
    action_space = gym.spaces.Discrete(3)
    engine = None

    def reset(self, *, seed=None, options=None):
        # Like a game engine, it inherits all descriptors and outlives its parent.
        self.engine = subprocess.Popen(["sleep", "60"], close_fds=False)
        return np.float32([self.engine.pid, os.getpid()]), {}

    def step(self, action):
        if action == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return np.zeros(2, np.float32), float("nan") if action == 1 else 0.0, False, False, {"pid": os.getpid(), "a": 7}

    def close(self):
        if self.engine:
            self.engine.kill()
            self.engine.wait()


gym.register("Mortal-v0", Mortal)


def all_gone(pids, seconds=10.0):
    """Whether the processes end in time; zombies count as ended."""

    def alive(pid):
        with contextlib.suppress(FileNotFoundError):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"

    deadline = time.monotonic() + seconds
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(alive, pids))


def pids_of(environment):
    return [process.pid for process, _ in environment._workers]


@pytest.mark.parametrize("name", ["lunarlander", STEPPED_PENDULUM])
def test_two_workers_equal_one_process(name):
    previous_children = multiprocessing.active_children()
    serial, parallel = make_environment(name, 3, 3, num_workers=1), make_environment(name, 3, 3, num_workers=2)
    assert isinstance(parallel, ParallelEnvironment) and serial.spaces == parallel.spaces
    assert torch.equal(serial.reset(seeds_of(3, 3)), parallel.reset(seeds_of(3, 3)))
    generator = torch.Generator().manual_seed(0)
    for t in range(30):
        active = torch.rand(3, 3, generator=generator) < 0.8
        force, engine = torch.rand(3, 3, 1, generator=generator) * 4 - 2, torch.randint(4, (3, 3), generator=generator)
        actions = force if name == STEPPED_PENDULUM else engine
        serial_step, parallel_step = serial.step(actions, active), parallel.step(actions, active)
        assert all(torch.equal(getattr(serial_step, key), getattr(parallel_step, key)) for key in FIELDS)
        if t == 15:
            first = parallel_step.obs.clone()
            assert torch.equal(serial.reset(seeds_of(3, 3, 90), active), parallel.reset(seeds_of(3, 3, 90), active))
            assert torch.equal(first, parallel_step.obs)
    pids = pids_of(parallel)
    parallel.close()
    assert all_gone(pids) and set(multiprocessing.active_children()) <= set(previous_children)
    with pytest.raises(EnvironmentFault, match="closed"):
        parallel.reset(seeds_of(3, 3))


def test_workers_return_info_and_their_fault_or_death_ends_all():
    """With more workers than environments, of which two start."""
    game = Game("mortal", f"{__name__}:Mortal-v0", info=("a", "pid"))
    for make in (GymnasiumEnvironment, lambda *size: ParallelEnvironment(*size, 5)):
        environment = make(game, 1, 2)
        engines, steppers = environment.reset(seeds_of(1, 2, 40))[0].int().T.tolist()
        info = environment.step(torch.tensor([[0, 0]]), torch.tensor([[True, False]])).info
        assert info.dtype == torch.float32 and info.tolist() == [[[7.0, steppers[0]], [0.0, 0.0]]]
        if make is GymnasiumEnvironment:
            environment.close()
            environment.close()
    with pytest.raises(EnvironmentFault, match="^environment mortal, step 1 .* seed 41: reward is nan"):
        environment.step(torch.tensor([[0, 1]]))
    pids = pids_of(environment)
    assert pids == steppers
    with pytest.raises(EnvironmentFault, match=r"^environment mortal: worker 2 of 2 died \(exit code -9\)$"):
        environment.step(torch.tensor([[0, 2]]))
    assert all_gone(pids + engines)


def test_invalid_settings_start_no_process():
    previous_children = multiprocessing.active_children()
    with pytest.raises(SettingError, match="cannot be made"):
        ParallelEnvironment(Game("cartpole", "CartPole-v1", None, {"no_such": 1}), 1, 2, 2)
    assert set(multiprocessing.active_children()) <= set(previous_children)


PARENT = """
import time, torch
import gymnasium.envs.classic_control
from envs.make import make_environment
if __name__ == "__main__":
    environment = make_environment("gymnasium.envs.classic_control:MountainCar-v0", 1, 2, num_workers=2)
    environment.reset(torch.zeros(1, 2, dtype=torch.int64))
    print(*(process.pid for process, _ in environment._workers), flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("blow", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_workers_end_with_their_parent(blow, tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as parent:  # fmt: skip
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2 and not all_gone(pids, 0)
        parent.send_signal(blow)
        parent.wait(60)
    assert all_gone(pids)
