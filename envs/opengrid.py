"""OpenGrid as a tensor program: a grid without walls whose goal is always the bottom right cell.

From the code of Young, Ramesh, Kirsch & Schmidhuber 2023, "The Benefits of Model-Based Generalization in Reinforcement
Learning". Starts and events come from `envs.seeded`, not from JAX's stream: the same seed starts elsewhere there.
"""

import torch
from torch import Tensor

from envs.gridworld import GOAL, POSITION, GridWorld
from envs.seeded import uniform


class OpenGrid(GridWorld):
    """Episodes start at a uniform cell, possibly the goal. The observation is ``[grid_size, grid_size]`` flattened, 1
    where the player is and 0 elsewhere. The chance of an event is 0.1 over the grid's side."""

    channels = 1

    @staticmethod
    def event_chance(grid_size: int) -> float:
        return 0.1 / grid_size

    def initial(self, seeds: Tensor) -> Tensor:
        seeds = seeds.to(torch.int64)
        position = (uniform(seeds, 1)[..., 0] * self.cells).long()
        return torch.stack((seeds, torch.zeros_like(seeds), position, torch.full_like(seeds, self.cells - 1)), -1)

    def observe(self, state: Tensor) -> Tensor:
        seen = torch.zeros(*state.shape[:-1], *self.spaces.obs_shape, device=state.device)
        return seen.scatter_(-1, state[..., POSITION:GOAL], 1.0)
