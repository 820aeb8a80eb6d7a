"""Replay buffers: transitions, with bits stored as bytes, or states of the environment."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from models.replay import Columns, ReplayBuffer


@dataclass
class Batch:
    """A minibatch of B transitions of each of M members."""

    obs: Tensor  # [M, B, O]
    next_obs: Tensor  # [M, B, O]
    action: Tensor  # [M, B] int64
    reward: Tensor  # [M, B]
    continues: Tensor  # [M, B] float32, 0 after termination, otherwise 1


class Transitions(ReplayBuffer):
    """A replay buffer of transitions. Bits are stored as bytes, so a transition with bits takes 2 O + 7 bytes: two
    observations, 4 for the reward, 2 for the action, 1 for ``continues``."""

    @staticmethod
    def layout(obs_size: int, num_actions: int, bits: bool) -> Columns:
        """Return shape and dtype of each column, by name. An observation is ``obs_size`` numbers, or as many bits if
        ``bits``."""
        obs = ((obs_size,), torch.bool if bits else torch.float32)
        action = ((), torch.int16 if num_actions <= 32_768 else torch.int64)  # int16 reaches up to 32,767
        return {
            "obs": obs,
            "next_obs": obs,
            "reward": ((), torch.float32),
            "action": action,
            "continues": ((), torch.bool),
        }

    def batch(self, uniform: Tensor) -> Batch:
        """Sample a minibatch by ``uniform [M, B]`` in [0, 1)."""
        rows = self.sample(uniform)
        obs, next_obs = rows["obs"].float().contiguous(), rows["next_obs"].float().contiguous()
        return Batch(obs, next_obs, rows["action"].long(), rows["reward"], rows["continues"].float())


class States(ReplayBuffer):
    """A replay buffer of the states of ``dynamics``. Integers are stored in two bytes. If ``dynamics`` has a method
    ``advance``, seed and time of a state are not stored and are 0 in a batch, because the random numbers of imagined
    steps are arguments of ``advance``."""

    def __init__(self, capacity: int, members: int, dynamics: Any, device: torch.device):
        if hasattr(dynamics, "advance"):
            state_size, self.dtype = dynamics.state_size, torch.int64
            self.num_skipped = 2  # number of first columns that are not stored: seed and time
        else:
            example_state = dynamics.initial(torch.zeros(1, 1, dtype=torch.int64))[0, 0]
            state_size, self.dtype = len(example_state), example_state.dtype
            self.num_skipped = 0
        # No whole number in a state exceeds the environment's number of cells, which is at most 10,000.
        stored_dtype = self.dtype if self.dtype.is_floating_point else torch.int16
        columns = {"state": ((state_size - self.num_skipped,), stored_dtype)}
        super().__init__(columns, capacity, members, device)

    def visit(self, state: Tensor) -> None:
        """Insert states ``[M, 1, K]``."""
        self.add(state=state[..., self.num_skipped :])

    def batch(self, uniform: Tensor) -> Tensor:
        """Sample states ``[M, B, K]`` by ``uniform [M, B]`` in [0, 1). Seed and time are 0 if they are not stored."""
        state = self.sample(uniform)["state"].to(self.dtype)
        return F.pad(state, (self.num_skipped, 0))
