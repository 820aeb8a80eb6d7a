"""Learned rewards for tests: a small environment that tells numbers in its info, and random networks of every mode."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from envs import names
from envs.names import Game
from envs.reward import ProxyFactory
from models.proxies import files
from models.proxies.reward.config import Config
from models.proxies.reward.networks import Networks
from models.streams import Streams
from proxies import outputs_of

SEEN, TOLD = 3, ("speed", "cost")
SCALED: dict[str, Any] = {"rn_input_center": (0.5, -1.0, 0.0), "rn_input_spread": (2.0, 0.5, 3.0)}
SMALL: dict[str, Any] = {"proxy_hidden_size": 5, "proxy_activation_fn": "tanh", "rn_output_scale": -1.7}
CLIFF: dict[str, Any] = {"proxy_hidden_size": 7, "proxy_activation_fn": "prelu"}


class Telling(gym.Env):
    """Three numbers move by the action. An episode terminates where the first is beyond 1, and is cut after 6 steps."""

    observation_space = gym.spaces.Box(-10, 10, (SEEN,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.state, self.age = self.np_random.uniform(-0.5, 0.5, SEEN).astype(np.float32), 0
        return self.state.copy(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, float]]:
        self.age += 1
        self.state = (self.state + np.float32([0.5, -0.3, 0.1]) * (1 if action else -0.5)).astype(np.float32)
        info = {"speed": float(self.state[0] - self.age), "cost": float(action) + 0.25, "unused": 7.0}
        return self.state.copy(), float(self.state[1]), bool(self.state[0] > 1), self.age >= 6, info


gym.register("Telling-v0", Telling)


@pytest.fixture
def telling(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of that environment, of which a step hands out two of the three numbers."""
    monkeypatch.setitem(names.GAMES, "telling", Game("telling", "Telling-v0", info=TOLD))
    yield "telling"


@dataclass
class Learners:
    """As much of agents as learned rewards look at."""

    discount: list[float]
    envs: int = 1
    config: Any = None
    device = torch.device("cpu")

    @property
    def members(self) -> int:
        return len(self.discount)

    def discounts(self) -> Tensor:
        return torch.tensor(self.discount)


def random_networks(game: str, members: int = 1, seed: int = 0, **settings: Any) -> tuple[ProxyFactory, Tensor]:
    """Random networks ``[M, D]`` of ``settings`` for a game."""
    factory = ProxyFactory(Config(**settings), game)
    return factory, 2 * factory.initial(Streams(range(seed, seed + members)))


def written(path: Path, factory: ProxyFactory, flat: Tensor, **description: Any) -> Path:
    """The file of one network ``[D]``."""
    files.save(path, flat, config=factory.config, spaces=factory.spaces, game=factory.game, description=description)
    return path


def phi_of(networks: Networks, flat: Tensor, obs: Tensor, info: Tensor | None = None) -> Tensor:
    """phi ``[N]`` of ``obs [N, S]`` and ``info [N, I]`` by plain layers from the tensors of a file."""
    config = networks.config
    if config.mode == 0:
        return torch.zeros(len(obs))
    tensors, mode = networks.named_tensors(flat), networks.mode
    obs = obs - torch.tensor(config.rn_input_center) if config.rn_input_center else obs
    obs = obs / torch.tensor(config.rn_input_spread) if config.rn_input_spread else obs
    x = torch.cat([obs] * mode.state + ([info] if mode.info and info is not None else []), 1)
    biases = {name.replace("weight", "bias"): torch.zeros(len(weight)) for name, weight in tensors.items()}
    outputs = outputs_of(biases | tensors, config, "reward", x)[:, 0]
    phi = float(networks.output_scale(flat[None])) * outputs
    return phi.sign() * (phi.abs().exp() - 1) if config.rn_output == "symexp" else phi
