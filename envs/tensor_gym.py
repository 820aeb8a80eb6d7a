"""This project's tensor programs as Gymnasium environments, for agents of other projects and for pictures.

    gymnasium.make("understudy/ProcMaze-v0", grid_size=4, render_mode="rgb_array")

The dynamics need a method ``text(state [K]) -> str``. A picture has a coloured square for each character.
"""

import importlib
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box

from models.spaces import Discrete

_SEEDS = 2**62  # number of different seeds of episodes
_PIXELS = 24  # side of a square
# RGB colours of characters.
_COLOURS = {
    ".": (238, 238, 238),
    "#": (70, 70, 70),
    "@": (0, 114, 178),
    "G": (0, 158, 115),
    "*": (213, 94, 0),
    "o": (240, 200, 160),
    "O": (230, 159, 0),
    " ": (255, 255, 255),
}


class TensorGym(gym.Env[Any, np.int64]):
    """One environment with the ``dynamics`` of a class ``module:class``, such as ``envs.gridworld:ProcMaze``, built
    with ``parameters``. It never truncates, because Gymnasium applies the time limit of the id. Observations are
    float32 vectors within [0, 1], or the index of a cell, if the dynamics are one-hot."""

    metadata = {"render_modes": ["ansi", "rgb_array"], "render_fps": 8}

    def __init__(self, dynamics: str, render_mode: str | None = None, **parameters: Any) -> None:
        module, _, name = dynamics.partition(":")
        self.dynamics = getattr(importlib.import_module(module), name)(**parameters)
        spaces = self.dynamics.spaces
        assert isinstance(spaces.actions, Discrete)
        self.observation_space: gym.Space[Any] = Box(0.0, 1.0, spaces.obs_shape, np.float32)
        if spaces.one_hot:
            self.observation_space = gym.spaces.Discrete(spaces.obs_shape[0])
        self.action_space = gym.spaces.Discrete(spaces.actions.n)
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._state = self.dynamics.initial(torch.tensor([[int(self.np_random.integers(_SEEDS))]]))
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise gym.error.InvalidAction(f"action is {action!r}; allowed: {self.action_space}")
        self._state, reward, terminated, _ = self.dynamics.step(self._state, torch.tensor([[int(action)]]))
        return self._observation(), float(reward), bool(terminated), False, {}

    def render(self) -> Any:
        """Draw the state as coloured squares ``[H, W, 3]`` uint8 (``rgb_array``), or as text (``ansi`` or None)."""
        text = self.dynamics.text(self._state[0, 0])
        if self.render_mode != "rgb_array":
            return text
        lines = text.splitlines()
        colours = np.array([_COLOURS[character] for line in lines for character in line], np.uint8)
        squares = colours.reshape(len(lines), -1, 3)
        return squares.repeat(_PIXELS, 0).repeat(_PIXELS, 1)

    def _observation(self) -> Any:
        obs = self.dynamics.observe(self._state)[0, 0].numpy()
        # A copy, because ``obs`` may share memory with the state.
        return int(obs.argmax()) if self.dynamics.spaces.one_hot else obs.copy()
