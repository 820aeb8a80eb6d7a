"""Trajectories, returns and advantages. Time is the first axis, ``[T, ...]``, except in `gae`.

M is the number of members (independent agents, one per seed), E of environments of each, T of steps. ``*O`` is the
shape of an observation, A the size of a continuous action.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Trajectory:
    """T steps of M members (independent agents) in E environments. In rollouts of whole episodes, each environment has
    one episode, with padding after its end."""

    obs: Tensor  # [T, M, E, *O]
    action: Tensor  # [T, M, E] or [T, M, E, A]
    reward: Tensor  # [T, M, E] float32
    terminated: Tensor  # [T, M, E] bool
    truncated: Tensor  # [T, M, E] bool
    valid: Tensor  # [T, M, E] bool, True for real steps, False for padding
    final_obs: Tensor  # [M, E, *O], observation after the last valid step
    # [M, E], undiscounted returns of the episodes. They are summed step by step, because the rounding of a sum over the
    # padded axis would depend on its length.
    returns: Tensor

    @property
    def lengths(self) -> Tensor:
        """Number of steps of each episode, ``[M, E]`` int64."""
        return self.valid.sum(0)


def stack_padded(tensors: Sequence[Tensor], count: int) -> Tensor:
    """Stack M tensors ``[n, ...]``, with different lengths n, to ``[M, count, ...]``, padded with zeros."""
    out = tensors[0].new_zeros(len(tensors), count, *tensors[0].shape[1:])
    for m, tensor in enumerate(tensors):
        out[m, : len(tensor)] = tensor
    return out


def discounted_returns(
    reward: Tensor, valid: Tensor, discount: float | Tensor, bootstrap: Tensor | None = None
) -> Tensor:
    """Return the returns-to-go ``G_t = r_t + discount * G_{t+1}``, ``[T, ...]``, of episodes that start at t = 0, with
    ``reward [T, ...]``. ``valid [T, ...]`` bool is True for steps, and False for padding after the end. There,
    the result is 0. ``bootstrap [...]`` is the value of the state after the last valid step, 0 by default."""
    next_return = torch.zeros_like(reward[0]) if bootstrap is None else bootstrap
    # With lambda = 1, `lambda_returns` uses these values only at the last valid step.
    return lambda_returns(reward, next_return.expand_as(reward), valid, discount, gae_lambda=1.0)


def lambda_returns(
    reward: Tensor, next_value: Tensor, valid: Tensor, discount: float | Tensor, gae_lambda: float
) -> Tensor:
    """Return TD(lambda) returns ``G_t = r_t + discount * [(1 - lambda) V_{t+1} + lambda G_{t+1}]``, ``[T, ...]``.
    Source: Sutton & Barto 2018, eq. 12.20. At the last step of an episode, G_{t+1} is V_{t+1}.

    :param reward: Rewards r_t, ``[T, ...]``. The first axis is time, and each other index is one episode.
    :param next_value: V_{t+1}, ``[T, ...]``: 0 after termination, the value of the final observation after truncation.
    :param valid: True for steps of the episode, False for the padding after it, ``[T, ...]`` bool. Padding returns 0.
    :param discount: A number, or a tensor that broadcasts to ``[...]``.
    :param gae_lambda: lambda, in [0, 1]. With 1, ``next_value`` is used only at the last step.
    """
    returns: list[Tensor] = []  # returns of steps, beginning with the last step
    next_return, next_valid = torch.zeros_like(reward[0]), torch.zeros_like(valid[0])
    bootstrap_part = (1 - gae_lambda) * next_value
    for t in reversed(range(len(reward))):
        mixture = next_return if gae_lambda == 1 else bootstrap_part[t] + gae_lambda * next_return
        next_target = torch.where(next_valid, mixture, next_value[t])  # no valid step follows the last step
        current_return = torch.where(valid[t], reward[t] + discount * next_target, next_return)
        returns.append(current_return)
        next_return, next_valid = current_return, valid[t]
    return torch.stack(returns[::-1]).masked_fill(~valid, 0.0)


def next_values(value: Tensor, final_value: Tensor, is_last: Tensor) -> Tensor:
    """Return the value of the state after each step, ``[T, ...]``: the ``value [T, ...]`` of the next step, or
    ``final_value`` after the steps ``is_last [T, ...]`` bool. Padding has arbitrary values."""
    return torch.where(is_last, final_value, value.roll(-1, 0))


def gae(reward: Tensor, value: Tensor, next_value: Tensor, discount: Tensor, done: Tensor, gae_lambda: float) -> Tensor:
    """Return the advantages ``A_t = d_t + discount_t lambda A_{t+1}`` (generalised advantage estimation) of rollouts
    ``[M, T, E]``, in which episodes may begin and end at any step. d_t is the TD error ``r_t + discount_t V(s_{t+1}) -
    V(s_t)``. ``value`` is V(s_t), and ``next_value`` is V(s_{t+1}), at the end of an episode (``done``) the value of
    its final observation. ``discount`` is 0 after termination. A_{t+1} is 0 at the end of an episode and after the
    last step. Source: Schulman et al. 2016, eq. 11 and 16."""
    td_error = reward + discount * next_value - value
    decay = (discount * gae_lambda).masked_fill(done, 0.0)
    # Contiguous for any layout of the inputs. So sums over the advantages have the same order, and the same rounding,
    # for any number of members.
    advantages = torch.empty_like(td_error, memory_format=torch.contiguous_format)
    advantage = torch.zeros_like(td_error[:, 0])
    for t in reversed(range(td_error.shape[1])):
        advantage = td_error[:, t] + decay[:, t] * advantage
        advantages[:, t] = advantage
    return advantages
