"""What acting in environments leaves behind."""

from dataclasses import dataclass

from torch import Tensor


@dataclass
class Trajectory:
    """T steps of M members in E environments. ``valid`` marks real steps; in whole-episode rollouts an episode is the
    leading valid steps of its column.

    ``obs [T, M, E, *O]``, ``action [T, M, E(, A)]``, ``reward [T, M, E]`` float32,
    ``terminated``/``truncated``/``valid`` ``[T, M, E]`` bool, ``final_obs [M, E, *O]`` the observation after each
    column's last valid step, ``returns [M, E]`` the undiscounted return of each episode, summed step by step (a sum
    over a padded axis would round by its length).
    """

    obs: Tensor
    action: Tensor
    reward: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    final_obs: Tensor
    returns: Tensor

    @property
    def lengths(self) -> Tensor:
        """Steps of each episode, ``[M, E]`` int64."""
        return self.valid.sum(0)
