"""Losses as pure functions, members first: ``[M, B, ...]`` in, ``[M, B]`` or ``[M]`` out, no reduction over members."""

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: Tensor, actions: Tensor) -> Tensor:
    """``-log softmax(logits)[action]``: ``logits [M, B, A]``, ``actions [M, B]`` int64 -> ``[M, B]``, in nats."""
    if logits.shape[:-1] != actions.shape:
        raise ValueError(f"logits {tuple(logits.shape)} do not fit actions {tuple(actions.shape)}")
    return F.cross_entropy(logits.flatten(0, 1), actions.flatten(), reduction="none").view_as(actions)


def squared_error(prediction: Tensor, target: Tensor) -> Tensor:
    """Squared error summed over the last axis: ``[M, B, A] x [M, B, A] -> [M, B]``."""
    if prediction.shape != target.shape:
        raise ValueError(f"prediction {tuple(prediction.shape)} does not fit target {tuple(target.shape)}")
    return (prediction - target).square().sum(-1)


def exponential_weights(values: Tensor, temperature: float, cap: float) -> Tensor:
    """Weights of reward-weighted regression ``min(exp(z / temperature), cap)``, z the values ``[M, B]`` standardised
    over B.

    Source: Kumar et al. 2019 (RCP), eq. 4, and its public code. Where all values are equal the deviation is zero and
    every weight is 1 (the public code gives NaN).
    """
    centred = values - values.mean(1, keepdim=True)
    deviation = values.std(1, keepdim=True) if values.shape[1] > 1 else torch.zeros_like(values)
    z = torch.where(deviation > 1e-8, centred / deviation.clamp_min(1e-8), torch.zeros_like(centred))
    return (z / temperature).exp().clamp(max=cap)
