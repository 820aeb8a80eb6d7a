"""Trajectories, returns and advantages. Time is the first axis, ``[T, ...]``, except in `gae`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Trajectory:
    """T steps of M members in E environments. ``valid`` marks real steps; all others are padding. In rollouts of whole
    episodes, each environment has one episode: its first valid steps.

    Shapes: ``obs [T, M, E, *O]``, ``action [T, M, E(, A)]``, ``reward [T, M, E]`` float32,
    ``terminated``/``truncated``/``valid`` ``[T, M, E]`` bool. ``final_obs [M, E, *O]`` is the observation after each
    environment's last valid step. ``returns [M, E]`` are the undiscounted returns of the episodes, summed step by step:
    a sum over the padded axis would round depending on its length.
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
        """Number of steps of each episode, ``[M, E]`` int64."""
        return self.valid.sum(0)


def stack_padded(tensors: Sequence[Tensor], count: int) -> Tensor:
    """Stack one tensor ``[n, ...]`` per member, with differing n, to ``[M, count, ...]``, padded with zeros."""
    out = tensors[0].new_zeros(len(tensors), count, *tensors[0].shape[1:])
    for m, tensor in enumerate(tensors):
        out[m, : len(tensor)] = tensor
    return out


def discounted_returns(
    reward: Tensor, valid: Tensor, discount: float | Tensor, bootstrap: Tensor | None = None
) -> Tensor:
    """Return the reward-to-go ``G_t = r_t + discount * G_{t+1}`` along the first axis of ``reward [T, ...]``.

    ``valid [T, ...]`` bool marks the steps of the episode, which starts at t = 0; later steps give 0.
    ``bootstrap [...]`` is the value of the state after the last valid step (0 by default).
    """
    next_return = torch.zeros_like(reward[0]) if bootstrap is None else bootstrap
    return lambda_returns(reward, next_return.expand_as(reward), valid, discount, gae_lambda=1.0)


def lambda_returns(
    reward: Tensor, next_value: Tensor, valid: Tensor, discount: float | Tensor, gae_lambda: float
) -> Tensor:
    """Return TD(lambda) returns ``G_t = r_t + discount * [(1 - lambda) V_{t+1} + lambda G_{t+1}]`` along the first axis
    of ``reward [T, ...]``. lambda is ``gae_lambda``. Steps that are not ``valid`` give 0.

    ``next_value [T, ...]`` is V of the state after step t: 0 after termination, the value of the final observation
    after truncation. At the last valid step G_{t+1} is ``next_value`` too. Source: Sutton & Barto 2018, eq. 12.20.
    """
    returns: list[Tensor] = []  # from the last step to the first
    next_return, next_valid = torch.zeros_like(reward[0]), torch.zeros_like(valid[0])
    bootstrap_part = (1 - gae_lambda) * next_value
    for t in reversed(range(len(reward))):
        mixed = next_return if gae_lambda == 1 else bootstrap_part[t] + gae_lambda * next_return
        next_target = torch.where(next_valid, mixed, next_value[t])  # `next_value` after the last valid step
        next_valid = valid[t]
        next_return = torch.where(next_valid, reward[t] + discount * next_target, next_return)
        returns.append(next_return)
    return torch.stack(returns[::-1]).masked_fill(~valid, 0.0)


def gae(reward: Tensor, value: Tensor, next_value: Tensor, discount: Tensor, done: Tensor, gae_lambda: float) -> Tensor:
    """Return the advantages ``A_t = d_t + discount_t lambda A_{t+1}``, with TD errors ``d_t = r_t + discount_t
    V(s_{t+1}) - V(s_t)``, in rollouts ``[M, T, E]``, in which episodes may begin and end anywhere. lambda is
    ``gae_lambda``. The result is contiguous, so that later sums are rounded alike for any M.

    ``next_value`` is V of the observation after each step; if the episode ended (``done``), of its final observation.
    A_{t+1} counts as 0 at the end of an episode and after the last step. ``discount`` is 0 after termination.
    Values of 0 and a ``gae_lambda`` of 1 give Monte-Carlo returns. Source: Schulman et al. 2016, eq. 11 and 16.
    """
    td_error = reward + discount * next_value - value
    decay = (discount * gae_lambda).masked_fill(done, 0.0)
    advantages = torch.empty_like(td_error, memory_format=torch.contiguous_format)
    advantage = torch.zeros_like(td_error[:, 0])
    for t in reversed(range(td_error.shape[1])):
        advantage = td_error[:, t] + decay[:, t] * advantage
        advantages[:, t] = advantage
    return advantages
