"""Losses as pure functions, from ``[M, B, ...]`` to ``[M, B]`` or ``[M]``: M members (independent agents) are trained
together, so no loss is reduced over members. B is the number of examples of a member."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


def cross_entropy(logits: Tensor, actions: Tensor) -> Tensor:
    """Return ``-log softmax(logits)[action]`` in nats: ``logits [M, B, A]``, ``actions [M, B]`` int64 -> ``[M, B]``."""
    _check_shape("actions", actions, logits[..., 0])
    return F.cross_entropy(logits.flatten(0, 1), actions.flatten(), reduction="none").view_as(actions)


def squared_error(prediction: Tensor, target: Tensor) -> Tensor:
    """Return the squared error, summed over the last axis: ``[M, B, A] x [M, B, A] -> [M, B]``."""
    _check_shape("targets", target, prediction)
    return (prediction - target).square().sum(-1)


def pinball_loss(quantiles: Tensor, targets: Tensor, levels: Tensor) -> Tensor:
    """Return the loss of predicted quantiles, the mean over Q levels of ``max(level * e, (level - 1) * e)`` with errors
    ``e = target - quantile``: ``quantiles [M, B, Q]``, ``targets [M, B]``, ``levels [Q]`` in (0, 1) -> ``[M, B]``. It
    is smallest at the quantiles of the targets (Koenker & Bassett 1978, "Regression Quantiles")."""
    _check_shape("targets", targets, quantiles[..., 0])
    error = targets.unsqueeze(-1) - quantiles
    return torch.maximum(levels * error, (levels - 1) * error).mean(-1)


def exponential_weights(values: Tensor, temperature: float, cap: float) -> Tensor:
    """Return the weights ``min(exp(z / temperature), cap)`` of B experiences in reward-weighted regression, ``[M, B]``.
    z are the ``values [M, B]``, standardised over B. Source: Kumar et al. 2019 (RCP), eq. 4, and its public code. If
    all values are equal, every weight is 1 (in the public code, NaN)."""
    differences = values - values.mean(1, keepdim=True)
    # The standard deviation of a single value would be NaN.
    deviation = values.std(1, keepdim=True) if values.shape[1] > 1 else torch.zeros_like(values)
    # Below 1e-8, deviations are rounding errors of equal values.
    z = torch.where(deviation > 1e-8, differences / deviation.clamp_min(1e-8), torch.zeros_like(differences))
    return (z / temperature).exp().clamp(max=cap)


def mean(values: Tensor, mean_weight: Tensor | None = None) -> Tensor:
    """Return the mean of ``values`` over B, ``[M, B] -> [M]``. If the batch has padding, ``mean_weight [M, B]`` is 0
    for padding and 1/N for N experiences, and the mean is the sum of ``values * mean_weight``."""
    if mean_weight is None:
        return values.mean(1)
    _check_shape("mean_weight", mean_weight, values)
    return (values * mean_weight).sum(1)


def policy_gradient(logits: Tensor, actions: Tensor, weights: Tensor, mean_weight: Tensor | None = None) -> Tensor:
    """Return the policy-gradient loss ``-mean(weight * log softmax(logits)[action])``: ``logits [M, B, A]``, ``actions
    [M, B]`` int64, ``weights [M, B]`` -> ``[M]``. The weights, such as returns-to-go or advantages, get no gradient
    (Williams 1992; Sutton & Barto 2018, section 13.3). ``mean_weight`` is as in `mean`."""
    _check_shape("weights", weights, actions)
    return mean(weights.detach() * cross_entropy(logits, actions), mean_weight)


def entropy_loss(logits: Tensor, beta: float, mean_weight: Tensor | None = None) -> Tensor:
    """Return the loss that rewards exploration, ``-beta * mean(H / ln A)``: ``logits [M, B, A] -> [M]`` in [-beta, 0].
    H is the entropy of ``softmax(logits)`` and ln A its maximum (Mnih et al. 2016, section 4, without the division).
    ``mean_weight`` is as in `mean`."""
    log_p = logits.log_softmax(-1)
    entropies = -(log_p.exp() * log_p).sum(-1)
    max_entropy = math.log(logits.shape[-1]) or 1.0  # a divisor, so not 0 if there is one action
    return -beta * mean(entropies / max_entropy, mean_weight)


def categorical_entropy(logits: Tensor) -> Tensor:
    """Return the entropy of ``softmax(logits)`` in nats, ``[M, B, A] -> [M, B]``."""
    return -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)


def explained_variance(values: Tensor, returns: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return how well ``values`` predict ``returns``, ``1 - Var(returns - values) / Var(returns)`` over the last axis:
    ``[..., B] -> [...]``, NaN if all returns are equal. ``weight [..., B]`` is 0 for padding (None: equal weights).
    The first number must not be padding, because `_variance` subtracts the first value from all values."""
    total_variance = _variance(returns, weight)
    unexplained_part = _variance(returns - values, weight) / total_variance
    return (1 - unexplained_part).masked_fill(total_variance == 0, torch.nan)


def _variance(values: Tensor, weight: Tensor | None) -> Tensor:
    """Return the population variance over the last axis, with weights that need not sum to 1 (None: equal)."""
    differences = values - values[..., :1]  # so that equal values have variance 0 exactly
    if weight is None:
        return differences.var(-1, correction=0)
    normalized_weight = weight / weight.sum(-1, keepdim=True)
    weighted_mean = (differences * normalized_weight).sum(-1, keepdim=True)
    return ((differences - weighted_mean).square() * normalized_weight).sum(-1)


def value_loss(values: Tensor, returns: Tensor, delta: float, mean_weight: Tensor | None = None) -> Tensor:
    """Return a critic's loss ``delta * mean((value - return)^2)``: ``values [M, B], returns [M, B] -> [M]``. Returns
    get no gradient. ``delta`` is the coefficient of the loss, ``mean_weight`` is as in `mean`."""
    _check_shape("values", values, returns)
    return delta * mean((values - returns.detach()).square(), mean_weight)


def td_target(reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """Return the TD target ``r + discount * V(s')``, all ``[M, B]``. ``discount`` must be 0 after termination."""
    _check_shape("next values", next_value, reward)
    return reward + discount * next_value


def td_loss(q: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared TD error ``mean((Q - target)^2)``, ``[..., B] -> [...]``. The target gets no gradient."""
    return (q - target.detach()).square().mean(-1)


def temperature_loss(log_alpha: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """Return SAC's loss of the temperature, ``-log alpha * mean(log pi(a|s) + target entropy)``: ``log_alpha [M]``,
    ``log_prob [M, B]`` -> ``[M]``. No gradient flows into the log-probabilities. Source: Haarnoja et al. 2018, arXiv
    1812.05905, eq. 18, with log alpha instead of alpha as in the authors' code."""
    return -log_alpha * (log_prob.detach() + target_entropy).mean(-1)


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """Return PPO's loss ``-mean(min(ratio * A, clamp(ratio, 1 - clip, 1 + clip) * A))``, ``[M, B] -> [M]``. A is the
    advantage, and ``ratio`` is pi(a|s) / pi_old(a|s). Source: Schulman et al. 2017, eq. 7."""
    _check_shape("advantages", advantage, ratio)
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean(1)


def clipped_value_loss(values: Tensor, returns: Tensor, old_values: Tensor, clip: float | None) -> Tensor:
    """Return PPO's loss of the critic, the mean squared error of values, ``[M, B] -> [M]``. With ``clip``, the error is
    the larger one of the value and of the value clipped to [old value - clip, old value + clip]. Source: Huang et al.
    2022, "The 37 Implementation Details of PPO", 9."""
    _check_shape("returns", returns, values)
    squared_error = (values - returns).square()
    if clip is not None:
        clipped_values = old_values + (values - old_values).clamp(-clip, clip)
        squared_error = torch.maximum(squared_error, (clipped_values - returns).square())
    return squared_error.mean(1)


def approximate_kl(ratio: Tensor, log_ratio: Tensor) -> Tensor:
    """Return ``mean(r - 1 - log r)``, ``[M, B] -> [M]``: an estimate of the KL divergence between two policies, by the
    ratios r of their probabilities (Schulman 2020, "Approximating KL divergence")."""
    return (ratio - 1 - log_ratio).mean(1)


def standardize(values: Tensor) -> Tensor:
    """Return ``values [M, B]`` with mean 0 and sample standard deviation 1 over B; unchanged if B is 1."""
    batch_size = values.shape[1]
    if batch_size == 1:
        return values
    differences = values - values.mean(1, keepdim=True)
    # `Tensor.std` would round depending on the number of members.
    deviation = (differences.square().sum(1, keepdim=True) / (batch_size - 1)).sqrt()
    return differences / (deviation + 1e-8)


def _check_shape(name: str, value: Tensor, reference: Tensor) -> None:
    """Raise ValueError about ``name`` unless both tensors have the same shape. torch might broadcast other shapes."""
    if value.shape != reference.shape:
        raise ValueError(f"{name} {tuple(value.shape)} do not fit {tuple(reference.shape)}")


def bit_nll(logits: Tensor, bits: Tensor) -> Tensor:
    """Return the binary cross-entropy ``-log p(bit)`` in nats, elementwise, for ``bits`` 0.0 or 1.0 and logits."""
    # The formula max(l, 0) - l b + log(1 + e^-|l|) for logit l and bit b cannot overflow. max(l, 0) is computed as
    # (l + |l|) / 2, because the gradient of a clamp at l = 0 would be 1 - b, not the correct 1/2 - b.
    abs_logits = logits.abs()
    return 0.5 * (logits + abs_logits) - logits * bits + (-abs_logits).exp().log1p()


def transition_losses(
    predicted_state: Tensor,
    predicted_reward: Tensor,
    end_logit: Tensor,
    next_state: Tensor,
    reward: Tensor,
    is_end: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return three scalar losses of a model of transitions: the mean squared errors of next states ``[B, S]`` and of
    rewards ``[B, 1]``, and the binary cross-entropy, in nats, of whether an episode ends ``[B, 1]``."""
    _check_shape("states", predicted_state, next_state)
    _check_shape("rewards", predicted_reward, reward)
    _check_shape("ends", end_logit, is_end)
    state_loss, reward_loss = F.mse_loss(predicted_state, next_state), F.mse_loss(predicted_reward, reward)
    return state_loss, reward_loss, bit_nll(end_logit, is_end).mean()


def gaussian_nll(values: Tensor, mean: Tensor, deviation: Tensor | None = None) -> Tensor:
    """Return the negative log-likelihood ``-log N(value; mean, deviation)`` elementwise, including the constant ``ln(2
    pi) / 2``. The standard deviation is 1 by default."""
    if deviation is None:
        return HALF_LOG_TWO_PI + 0.5 * (values - mean).square()
    return HALF_LOG_TWO_PI + deviation.log() + 0.5 * ((values - mean) / deviation).square()


def categorical_kl(log_p: Tensor, log_q: Tensor, class_axis: int) -> Tensor:
    """Return ``KL(p || q)`` in nats from log-probabilities of classes along ``class_axis``, which is summed over."""
    return (log_p.exp() * (log_p - log_q)).sum(class_axis)


def gaussian_kl(mean_p: Tensor, deviation_p: Tensor, mean_q: Tensor, deviation_q: Tensor) -> Tensor:
    """Return ``KL(p || q)`` of one-dimensional normal distributions in nats, elementwise."""
    second_moment = deviation_p.square() + (mean_p - mean_q).square()  # second moment of p around the mean of q
    return deviation_q.log() - deviation_p.log() + 0.5 * (second_moment / deviation_q.square() - 1)
