"""Environments that break their word: at the start, in the middle of an episode, for ever or once."""

import random
from pathlib import Path
from typing import Any

from fuzzing.flag_lines import small
from helpers import on_policy

# The rest of the module is a table of what its environment does wrong.
MODULE = """
import os, sys, time
import gymnasium as gym
import numpy as np
from gymnasium.spaces import *

WHEN = {when}


class Faulty(gym.Env):
    metadata = {{"render_modes": ["rgb_array"]}}

    def __init__(self, render_mode=None):
        self.observation_space = Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = Discrete(2)
        self.count = self.t = 0
        {init}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        obs, info = np.full(3, (seed or 0) % 7 / 7, np.float32), {{}}
        self.count += 1
        if self.count >= WHEN:
            {reset}
        return obs, info

    def step(self, action):
        self.t += 1
        self.count += 1
        obs = np.full(3, np.tanh(self.t / 9), np.float32)
        reward, terminated, truncated, info = 1.0, self.t >= 8, False, {{}}
        if self.count >= WHEN:
            {step}
        return obs, reward, terminated, truncated, info

    def render(self):
        {render}
        return np.zeros((16, 16, 3), np.uint8)

    def close(self):
        {close}


gym.register("Faulty-v0", Faulty)
{module}
"""
_VALUES = ["None", "float('nan')", "float('inf')", "-float('inf')", "1e308", "10**400", "'text'", "b'x'", "[]",
           "[1.0]", "(1, 2)",
           "np.array([1.0])", "np.array([1.0, 2.0])", "np.float64(1)", "np.int64(3)", "True", "1j", "object()", "{}",
           "2**70",
           "np.array('x')", "np.ma.masked", "np.zeros((0,))", "np.timedelta64(3)", "-0.0"]  # fmt: skip
_OBSERVATIONS = ["np.zeros(())", "np.zeros(1, np.float32)", "np.zeros(4, np.float32)", "np.zeros((3, 1), np.float32)",
                 "np.zeros((1, 3), np.float32)", "0.5", "[0.1, 0.2, 0.3]", "(0, 0, 0)", "obs.astype(np.complex64)",
                 "obs.astype(np.float64) * 1e300", "obs.astype(str)", "obs.astype(object)", "obs * np.nan",
                 "obs + np.inf",
                 "obs + 1e30", "{'x': obs}", "obs.tolist() + [1]", "np.array([obs, obs])", "obs[::-1]",
                 "obs.astype(np.int64)",
                 "np.ma.array(obs, mask=True)", "obs > 0", "memoryview(obs)", "iter(obs)",
                 "obs.astype(np.float16)"]  # fmt: skip
_ENDS = ["raise RuntimeError('on fire\\nsecond line')", "raise ValueError('x' * 5000)", "raise Exception",
         "raise MemoryError",
         "raise KeyboardInterrupt", "raise SystemExit", "raise SystemExit(0)", "sys.exit('bye')", "raise GeneratorExit",
         "raise StopIteration", "raise OSError(28, 'No space left on device')", "raise PermissionError(13, 'no', '/x')",
         "raise BrokenPipeError", "raise UnicodeDecodeError('utf-8', b'x', 0, 1, 'r')", "raise EOFError",
         "raise AssertionError",
         "raise ImportError('no', name='nothing')",
         "import nothing_at_all",
         "(lambda f: f(f))(lambda f: f(f))", "os._exit(0)", "os._exit(3)", "os.kill(os.getpid(), 9)", "os.abort()",
         "time.sleep(600)", "[0] * 10**12", "print('x' * 10**6)", "sys.stdout.close()", "os.chdir('/')",
         "np.seterr(all='raise')",
         "raise RuntimeError('\\x1b[31mred')", "1 / 0", "sys.setrecursionlimit(60)"]  # fmt: skip
_SPACES = ["self.action_space = Discrete(1)", "self.action_space = Discrete(2, start=7)",
           "self.action_space = Discrete(10**9)",
           "self.action_space = MultiDiscrete([2, 2])", "self.action_space = Box(-1, 1, (2,))",
           "self.action_space = Box(0, 0, (1,))",
           "self.action_space = Box(-np.inf, np.inf, (1,))", "self.action_space = Box(0, 1, (0,))",
           "self.action_space = None",
           "self.action_space = Box(np.array([0., 1.]), np.array([1., 1.]))",
           "self.action_space = Box(0, 9, (1,), np.int64)",
           "self.action_space = Text(4)", "self.action_space = Dict({})", "self.action_space = Tuple([])",
           "del self.action_space",
           "self.action_space = Box(0, 1, (3, 2))", "self.action_space = Box(-1e38, 1e38, (1,))",
           "self.action_space = 3",
           "self.observation_space = Box(-1, 1, ())", "self.observation_space = Box(-1, 1, (0,))",
           "self.observation_space = None",
           "self.observation_space = Discrete(3)", "self.observation_space = Text(9)",
           "self.observation_space = Dict({})",
           "self.observation_space = Dict({'a': Discrete(3), 'b': Box(0, 1, (2,))})",
           "self.observation_space = MultiBinary(3)",
           "self.observation_space = Sequence(Discrete(2))",
           "self.observation_space = Box(0, 255, (8, 8, 3), np.uint8)",
           "self.observation_space = Box(0, 255, (8, 8, 5), np.uint8)",
           "self.observation_space = Box(0, 1, (10**6, 10**6))",
           "self.observation_space = Box(0, 1, (10**5, 10**5), np.uint8)", "self.observation_space = Discrete(10**9)",
           "self.observation_space = Graph(Discrete(2), Discrete(2))", "del self.observation_space",
           "self.observation_space = 3",
           "raise RuntimeError('no')", "raise SystemExit", "self.metadata = None", "self.metadata = {}",
           "self.spec = None",
           "self.observation_space = Box(-1, 1, (3,), np.float64)", "self.observation_space = Box(0, 0, (3,))",
           "1 / 0"]  # fmt: skip
_ODD_RETURNS = ["return obs", "return None", "return obs, {}", "return obs, 1.0, True, {}",
                "return obs, 1.0, True, False, {}, {}",
                "return 3", "return ''", "return obs, None", "return iter([obs, 1.0, False, False, {}])"]  # fmt: skip
_MODULES = ["raise RuntimeError('not today')", "raise SystemExit", "raise KeyboardInterrupt", "import nothing_at_all",
            "x = (",
            "gym.registry.clear()", "gym.register('Faulty-v0', 'nothing:Nothing')",
            "gym.register('Faulty-v0', Faulty, max_episode_steps=0)",
            "gym.register('Faulty-v0', Faulty, max_episode_steps='x')",
            "gym.register('Faulty-v0', Faulty, kwargs={'x': 1})",
            "gym.register('Faulty-v0', lambda **kwargs: None)", "gym.register('Faulty-v0', lambda **kwargs: 3)",
            "print('hello' * 100)", "sys.exit(5)", "gym.register('Faulty-v0', Faulty, additional_wrappers=(3,))",
            "gym.register('Faulty-v0', Faulty, max_episode_steps=-5)"]  # fmt: skip
_PICTURES = ["return None", "return 'x'", "return np.zeros((16, 16))", "return np.zeros((16, 16, 3))", "return [1]",
             "return np.zeros((0, 0, 3), np.uint8)", "return np.zeros((16, 16, 9), np.uint8)",
             "raise RuntimeError('no screen')",
             "return np.zeros((7, 5, 3), np.uint8)", "raise SystemExit",
             "return np.zeros((16, 16, 3), np.float64) * np.nan"]  # fmt: skip


def draw(rng: random.Random, folder: Path) -> tuple[str, list[str]]:
    """Write a module with an environment into ``folder``. Returns its fault and the command line of a run with it."""
    places = {name: "pass" for name in ("init", "reset", "step", "render", "close", "module")}
    where = rng.choice(["init", "reset", "reset", "step", "step", "step", "step", "step", "render", "close", "module"])
    if where == "init":
        fault = rng.choice(_SPACES)
    elif where == "render":
        fault = rng.choice(_PICTURES)
    elif where == "module":
        fault = rng.choice(_MODULES)
    else:
        changed = rng.choice(
            ["obs", "info"] if where == "reset" else ["obs", "reward", "terminated", "truncated", "info"]
        )
        value = rng.choice(_OBSERVATIONS if changed == "obs" and rng.random() < 0.8 else _VALUES)
        fault = rng.choice(
            [f"{changed} = {value}", f"{changed} = {value}", rng.choice(_ENDS), rng.choice(_ODD_RETURNS)]
        )
        if where == "step" and rng.random() < 0.12:
            fault = rng.choice(["terminated = False", "terminated = True", "reward = np.random.randn() * 1e30",
            "obs += self.count",
                                "terminated = truncated = True", "truncated = self.t > 2", "reward = -1e38",
                                "self.t = 0"])  # fmt: skip
        if where == "close" and not fault.startswith(("raise", "1 /", "import", "print", "sys")):
            fault = "raise RuntimeError('cannot close')"
    places[where] = fault
    start_count = rng.choice([0, 1, 2, 5, 40])
    (folder / "faulty.py").write_text(MODULE.format(when=start_count, **places))
    # What ends the process leaves nobody to tell, unless it is a worker's.
    deadly = fault.startswith(("os._exit", "os.kill", "os.abort"))
    implementation = rng.choice(["UDRL", "CPG", "RCP-R"] if deadly else ["UDRL", "CPG", "DDQN", "RCP-R", "ER", "SE"])
    values: dict[str, Any] = small(implementation) | {"implementation": implementation, "gamename": "faulty:Faulty-v0"}
    if where == "render":
        values["record"] = "true"
    if implementation != "SE" and (deadly or rng.random() < 0.15):
        values["num_workers"] = 2
    if rng.random() < 0.15:
        values["time_limit"] = rng.choice([1, 3, 2**31])
    if not on_policy(implementation) and implementation in ("UDRL", "RCP-R"):
        values["epochs"] = 2
    words = [word for name, value in values.items() for word in (f"--{name}", str(value))]
    return f"{fault} in {where}, from count {start_count}", words
