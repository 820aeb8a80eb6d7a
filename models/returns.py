"""Returns of trajectories, time first: ``[T, ...]``."""

import torch
from torch import Tensor


def discounted_returns(
    reward: Tensor, valid: Tensor, discount: float | Tensor, bootstrap: Tensor | None = None
) -> Tensor:
    """Reward-to-go ``G_t = r_t + discount * G_{t+1}`` along the first axis of ``reward [T, ...]``.

    ``valid [T, ...]`` bool marks the steps of the episode, which starts at t = 0; later steps give 0.
    ``bootstrap [...]`` is the value of the state after the last valid step (0 by default).
    """
    running = torch.zeros_like(reward[0]) if bootstrap is None else bootstrap
    out = torch.zeros_like(reward)
    for t in range(reward.shape[0] - 1, -1, -1):
        running = torch.where(valid[t], reward[t] + discount * running, running)
        out[t] = running
    return torch.where(valid, out, torch.zeros_like(out))


def lambda_returns(
    reward: Tensor, next_value: Tensor, valid: Tensor, discount: float | Tensor, trace: float | Tensor
) -> Tensor:
    """TD(lambda) returns ``G_t = r_t + discount * [(1 - trace) V_{t+1} + trace G_{t+1}]`` along the first axis.

    ``next_value [T, ...]`` is V of the state after step t: 0 after termination, the value of the final observation
    after truncation. At the last valid step G_{t+1} is that same value. Source: Sutton & Barto 2018, eq. 12.20.
    """
    out = torch.zeros_like(reward)
    running = torch.zeros_like(reward[0])
    following = torch.zeros_like(valid[0])
    for t in range(reward.shape[0] - 1, -1, -1):
        ahead = torch.where(following, (1 - trace) * next_value[t] + trace * running, next_value[t])
        running = torch.where(valid[t], reward[t] + discount * ahead, running)
        following = valid[t]
        out[t] = running
    return torch.where(valid, out, torch.zeros_like(out))
