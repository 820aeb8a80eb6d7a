"""Faulty Gymnasium environments end with one line that names the place, the value and the expectation."""

import multiprocessing
import re
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Text, Tuple

import trainer
from envs.base import EnvironmentFault, Step
from envs.gymnasium_adapter import GymnasiumEnvironment
from envs.names import Game
from fake_runs import Shown, refused
from models.settings import SettingError

VECTOR, IMAGE = Box(-1, 1, (2,)), Box(0, 255, (32, 32, 3), np.uint8)
PARTS = Dict(a=Discrete(3), b=Box(0, 9, (2,), np.int32))
ZEROS, BLACK = np.zeros(2, np.float32), np.zeros((32, 32, 3), np.uint8)


FILE = "test_broken_environments.py"


def raising(error: BaseException) -> Any:
    raise error


LINE_OF_RAISING = raising.__code__.co_firstlineno + 1


def gives(space: gym.Space, good: Any, bad: Any) -> dict[str, Any]:
    """Observations: a good one at the reset and a bad one at the first step."""
    return {"observation_space": space, "reset": lambda env: (good, {}), "obs": bad}


# Changes to a correct environment, and the message. Functions replace `step` and `reset`, other values a part of a step
# or a space.
STEPS: dict[str, tuple[dict[str, Any], str]] = {
    "one number": ({"obs": 0.5}, "observation is an array of float64 []; expected an array of float32 [2]"),
    "ragged": ({"obs": [[1.0], 2.0]}, "inhomogeneous shape"),
    "a mapping": ({"obs": {"a": 1}}, "observation is an array of object []; expected an array of float32 [2]"),
    "NaN": ({"obs": np.float32([0, np.nan])}, "observation[1] is nan; it must be finite"),
    "a share of a byte": (gives(gym.spaces.Box(0, 255, (2,), np.uint8), np.zeros(2, np.uint8), np.float32([0, 0.5])),
                          "observation holds 0.5; expected numbers of uint8"),
    "lacks a part": (gives(PARTS, {"a": 0, "b": [0, 0]}, {"b": [0, 0]}), "KeyError: 'a'"),
    "not a mapping": (gives(PARTS, {"a": 0, "b": [0, 0]}, (0, 1)), "TypeError: tuple indices must be"),
    "beyond the last": (gives(PARTS, {"a": 0, "b": [0, 0]}, {"a": 3, "b": [0, 0]}),
                        "observation['a'] is 3; expected a cell from 0 to 2"),
    "below in a part": (gives(Tuple([PARTS]), [{"a": 0, "b": [0, 0]}], [{"a": -1, "b": [0, 0]}]),
                        "observation[0]['a'] is -1; expected a cell from 0 to 2"),
    "below in one of two": (gives(MultiDiscrete([3, 2]), [0, 0], [0, -1]),
                            "observation is [0, -1]; expected a cell from [0 0] to [2 1]"),
    "below the first": (gives(Discrete(3), 0, -1), "observation is -1; expected a cell from 0 to 2"),
    "above the last": (gives(Discrete(3, start=1), 1, 4), "observation is 4; expected a cell from 1 to 3"),
    "two cells": (gives(Discrete(3), 0, np.array([0, 1])), "observation is [0 1]; expected a cell from 0 to 2"),
    "rewards": ({"reward": np.ones(2)}, "reward is array([1., 1.]); expected a number"),
    "reward as text": ({"reward": "-2"}, "reward is '-2'; expected a number"),
    "complex reward": ({"reward": np.complex128(1j)}, "expected a number"),
    "ended by text": ({"terminated": "False"}, "terminated is 'False'; expected a number"),
    "reward of NaN": ({"reward": np.nan}, "reward is nan; it must be finite"),
    "reward of 400 digits": ({"reward": 10**400}, "; expected a number"),
    "terminated twice": ({"terminated": np.ones(2, bool)}, "terminated is array([ True,  True]); expected a number"),
    "four values": ({"step": lambda env: (ZEROS, 1.0, False, {})},
                    "(expected 5, got 4); step() returns observation, reward, terminated, truncated and info"),
    "its own mistake": ({"step": lambda env: [(a, b) for a, b in [(1, 2, 3)]]}, "ValueError: too many values"),
    "a library's mistake": ({"step": lambda env: np.linalg.inv(np.eye(2)[:1])}, f"must be square ({FILE}:"),
    "exits": ({"step": lambda env: sys.exit(0)}, "SystemExit: 0"),
    "without end": ({"step": lambda env: env.step(0)}, "RecursionError: maximum recursion depth exceeded"),
}  # fmt: skip
RESETS: dict[str, tuple[dict[str, Any], str]] = {
    "no pair": ({"reset": lambda env: ZEROS}, "info is np.float32(0.0); reset() returns observation and info"),
    "no pair of three numbers": ({"observation_space": Box(-1, 1, (3,)), "reset": lambda env: np.zeros(3, np.float32)},
                                 "; reset() returns observation and info"),
    "no pair of one cell": ({"observation_space": Discrete(3), "reset": lambda env: 0},
                            "int object; reset() returns observation and info"),
    "raises": ({"reset": lambda env: raising(RuntimeError("lost"))}, f"RuntimeError: lost ({FILE}:{LINE_OF_RAISING})"),
    "its own mistake": ({"reset": lambda env: [(a, b) for a, b in [(1, 2, 3)]]}, f"to unpack (expected 2) ({FILE}:"),
    "infinite": ({"reset": lambda env: (ZEROS + np.inf, {})}, "observation[0] is inf; it must be finite"),
}  # fmt: skip


OTHER = "is not supported; allowed: Discrete, MultiDiscrete or MultiBinary with at most 4096 combinations, or Box"
SPACES: dict[str, tuple[dict[str, Any], str]] = {
    "no observations": ({"observation_space": Box(-1, 1, (0,))}, "(0,), float32) cannot be flattened to numbers"),
    "no space": ({"observation_space": "Box"}, "its observation space Box cannot be flattened to numbers"),
    "too wide": ({"action_space": Box(-3e38, 3e38, (1,))}, OTHER),
    "unbounded": ({"action_space": Box(-np.inf, np.inf, (2,))}, OTHER),
    "text": ({"action_space": Text(5)}, OTHER),
    "many bits": ({"action_space": MultiBinary(13)}, OTHER),
    "a sequence": ({"observation_space": Sequence(Discrete(2))}, "cannot be flattened to numbers"),
}  # fmt: skip
FAULTS = STEPS | RESETS | SPACES | {
    "honest": ({}, ""),
    "interrupts": ({"step": lambda env: raising(KeyboardInterrupt())}, "environment broken: KeyboardInterrupt: Key"),
    "never ends": ({"terminated": False}, ""),
    "lacks a number": ({"info": {"a": 1}}, "KeyError: 'b'"),
    "tells NaN": ({"info": {"a": 1, "b": np.nan}}, "info[1] is nan; it must be finite"),
    "cannot close": ({"close": lambda env: sys.exit(1)}, ""),
    "cannot draw": ({"render": lambda env: sys.exit(1)}, "broken cannot be drawn: SystemExit: 1"),
    "draws nothing": ({"render": lambda env: np.zeros((1, 0, 3), np.uint8)}, "broken drew no picture"),
}  # fmt: skip


class Broken(gym.Env):
    """Faults as the table says, in episodes with an odd seed. Episodes have one step."""

    metadata = {"render_modes": ["rgb_array"]}

    def __init__(self, fault: str, render_mode: str | None = None):
        self.does = {"step": None, "reset": lambda env: (ZEROS, {}), "close": lambda env: None,
                     "render": lambda env: BLACK, "made": lambda env: None} | FAULTS[fault][0]  # fmt: skip
        self.observation_space = self.does.get("observation_space", VECTOR)
        self.action_space = self.does.get("action_space", Discrete(2))
        self.does["made"](self)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.odd = seed % 2
        return self.does["reset"](self)

    def step(self, action: Any) -> Any:
        if self.does["step"] and self.odd:
            return self.does["step"](self)
        parts = {"obs": ZEROS, "reward": 1.0, "terminated": True, "truncated": False, "info": {}} | self.does
        return tuple(parts[name] for name in ("obs", "reward", "terminated", "truncated", "info"))

    def render(self) -> Any:
        return self.does["render"](self)

    def close(self) -> Any:
        return self.does["close"](self)


ID = f"{__name__}:Broken-v0"
gym.register("Broken-v0", Broken)
gym.register("Exits-v0", Broken, kwargs={"fault": "exits"})


def game(fault: str, *info: str) -> Game:
    return Game("broken", ID, None, {"fault": fault}, info=info)


def start_environment(fault: str, *info: str) -> GymnasiumEnvironment:
    environment = GymnasiumEnvironment(game(fault, *info), 1, 1)
    environment.reset(torch.tensor([[7]]))
    return environment


def one_step(environment: Any, envs: int = 1) -> Step:
    return environment.step(torch.zeros(1, envs, dtype=torch.int64))


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("fault", [*STEPS, *RESETS, "lacks a number", "tells NaN"])
def test_faults_of_steps_and_resets(fault: str) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        one_step(start_environment(fault, *(() if fault in STEPS | RESETS else ("a", "b"))))
    line, step = str(caught.value), 0 if fault in RESETS else 1
    assert line.startswith(f"environment broken, step {step} of the episode with seed 7: ") and "\n" not in line
    assert FAULTS[fault][1] in line


def test_steps_are_counted_from_the_start_of_the_episode() -> None:
    fault = next(name for name, (does, _) in FAULTS.items() if "step" in does)
    environment = GymnasiumEnvironment(game(fault), 1, 1)
    environment.reset(torch.tensor([[8]]))  # with an even seed this fault does not occur
    one_step(environment)
    environment.reset(torch.tensor([[7]]))
    with pytest.raises(EnvironmentFault, match="step 1 of the episode with seed 7"):
        one_step(environment)


@pytest.mark.parametrize("fault", SPACES)
def test_unsupported_spaces(fault: str) -> None:
    with pytest.raises(SettingError) as caught:
        GymnasiumEnvironment(game(fault), 1, 1)
    line = str(caught.value)
    assert line.startswith("gamename is 'broken': ") and FAULTS[fault][1] in line and "\n" not in line


def test_render_and_close_faults(capsys: Shown) -> None:
    for fault in ("cannot draw", "draws nothing"):
        environment = GymnasiumEnvironment(game(fault), 1, 1, render=True)
        environment.reset(torch.tensor([[0]]))
        with pytest.raises(EnvironmentFault, match=FAULTS[fault][1]):
            environment.frame(0, 0)
    GymnasiumEnvironment(game("cannot close"), 1, 1).close()
    assert capsys.readouterr().err == "warning: environment broken could not be closed: SystemExit: 1\n"


def test_keyboard_interrupt_is_no_fault() -> None:
    with pytest.raises(KeyboardInterrupt):
        one_step(start_environment("interrupts"))


HONEST = {
    "obs": ([0.5, 1], (0.5, 1), np.array([0.5, 1]), torch.tensor([0.5, 1]), np.ma.array([0.5, 1])),
    "reward": (1, True, np.float64(1), np.int8(1), np.bool_(True), np.array(1.0), np.array([1]), torch.tensor(1.0)),
    "terminated": (1, np.bool_(True), np.array(True), np.array([1])),
}


@pytest.mark.parametrize("name", HONEST)
def test_equivalent_types_are_accepted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in HONEST[name]:
        monkeypatch.setitem(FAULTS, "honest", ({name: value}, ""))
        step = one_step(start_environment("honest"))
        assert step.obs.tolist() == [[[0.5, 1.0] if name == "obs" else [0.0, 0.0]]]
        assert (step.reward.item(), step.terminated.item(), step.truncated.item()) == (1.0, True, False)


@pytest.mark.parametrize("extra_flags", [[], ["--num_workers", "2"]], ids=["here", "worker"])
def test_run_ends_with_message(extra_flags: list[str], logdir: Any, capsys: Shown) -> None:
    argv = ["--gamename", f"{__name__}:Exits-v0", "--logdir", str(logdir), "--logger", "none", *extra_flags]
    previous_children = multiprocessing.active_children()
    line = refused(trainer.main, argv, "SystemExit: 0", capsys, run_started=True)
    assert re.fullmatch(
        rf"error: environment \S+:Exits-v0, step 1 of the episode with seed \d+: SystemExit: 0 \({FILE}:\d+\)\n", line
    )
    assert set(multiprocessing.active_children()) <= set(previous_children)
