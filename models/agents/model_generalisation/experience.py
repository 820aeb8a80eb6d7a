"""Replay buffers: transitions, with bits stored as bytes, or states of the environment."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from models.replay import Columns, ReplayBuffer


@dataclass
class Batch:
    """Transitions: ``obs`` and ``next_obs [M, B, O]`` float32, ``action [M, B]`` int64, ``reward`` and ``continues
    [M, B]`` float32, which is 0 after termination and else 1."""

    obs: Tensor
    next_obs: Tensor
    action: Tensor
    reward: Tensor
    continues: Tensor


class Transitions(ReplayBuffer):
    """A replay buffer of observations, rewards and actions. Observations are stored as bytes if they are ``bits``. An
    action that ended the episode is stored as its complement, below zero. So a row takes 2 O + 5 bytes for up to 128
    actions."""

    @staticmethod
    def layout(obs_size: int, actions: int, bits: bool) -> Columns:
        obs = ((obs_size,), torch.bool if bits else torch.float32)
        action = ((), torch.int8 if actions <= 128 else torch.int64)
        return {"obs": obs, "next_obs": obs, "reward": ((), torch.float32), "action": action}

    def observe(self, obs: Tensor, action: Tensor, next_obs: Tensor, reward: Tensor, continues: Tensor) -> None:
        """Insert transitions ``[M, 1, ...]``; ``continues`` is bool."""
        self.add(obs=obs, next_obs=next_obs, reward=reward, action=torch.where(continues, action, ~action))

    def batch(self, uniform: Tensor) -> Batch:
        """Transitions by ``uniform [M, B]`` in [0, 1)."""
        rows = self.sample(uniform)
        coded = rows["action"].to(torch.int64)
        continues = coded >= 0
        obs, next_obs = (rows[name].to(torch.float32).contiguous() for name in ("obs", "next_obs"))
        return Batch(obs, next_obs, torch.where(continues, coded, ~coded), rows["reward"], continues.float())


class States(ReplayBuffer):
    """States of ``dynamics``, whole numbers in two bytes. Seed and time, from which only the environment itself takes
    its chance, are not kept and come back as zeros."""

    def __init__(self, capacity: int, members: int, dynamics: Any, device: torch.device):
        example_state, self.skip = self._example_state(dynamics)
        self.dtype = example_state.dtype
        super().__init__(self.layout(dynamics), capacity, members, device)

    @staticmethod
    def _example_state(dynamics: Any) -> tuple[Tensor, int]:
        """A state ``[K]``, and how many of its first columns are seed and time."""
        if hasattr(dynamics, "advance"):
            return torch.zeros(dynamics.state_size, dtype=torch.int64), 2
        return dynamics.initial(torch.zeros(1, 1, dtype=torch.int64))[0, 0], 0

    @classmethod
    def layout(cls, dynamics: Any) -> Columns:
        example_state, skip = cls._example_state(dynamics)
        # No number is larger than an environment has cells, 10,000 at most.
        return {
            "state": (
                (len(example_state) - skip,),
                example_state.dtype if example_state.is_floating_point() else torch.int16,
            )
        }

    def visit(self, state: Tensor) -> None:
        """Insert states ``[M, 1, K]``."""
        self.add(state=state[..., self.skip :])

    def batch(self, uniform: Tensor) -> Tensor:
        """States ``[M, B, K]`` by ``uniform [M, B]``."""
        return F.pad(self.sample(uniform)["state"].to(self.dtype), (self.skip, 0))
