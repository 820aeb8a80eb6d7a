"""Rewards for novelty for M members: the intrinsic curiosity module (ICM) and random network distillation (RND).

    curiosity = curiosity_of(config, spaces, seeds)   # None without intrinsic rewards
    rewards = batch["reward"] + curiosity.rewards(batch["obs"], batch["action"], batch["next_obs"])

Each call also trains on its rows. ``next_obs`` is the observation after the action, even at the end of an episode, and
never the first observation of the next one. Terminations are ignored: they end returns, not novelty. Each member has
separate networks and statistics.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.intrinsic import Intrinsic
from models.layers import Dense, Network, dense
from models.losses import cross_entropy
from models.moments import Moments
from models.optim import MemberAdam
from models.spaces import Discrete, Spaces
from models.state import check_like
from models.streams import Streams

_BLOCKS = 4  # residual ones in the forward model


class Curiosity:
    """Base of both: one network that learns, with its Adam. ``lr`` is the setting of that name."""

    def __init__(
        self,
        config: Intrinsic,
        spaces: Spaces,
        seeds: Sequence[int],
        layers: list[Dense],
        lr: float,
    ):
        self.config, self.spaces = config, spaces
        self.network = Network(layers, Streams.from_name(seeds, "curiosity"))
        self.optimizer = MemberAdam(self.network.flat.detach(), torch.full((len(seeds),), lr))

    def rewards(self, obs: Tensor, action: Tensor, next_obs: Tensor, learning: Tensor | None = None) -> Tensor:
        """Rewards ``[M, B]`` for ``obs [M, B, O]``, ``action [M, B]`` or ``[M, B, A]``, ``next_obs [M, B, O]``. It
        learns from them first or afterwards; ``learning [M]`` bool are the members that do (None: all)."""
        raise NotImplementedError

    def _step(self, loss: Tensor, learning: Tensor | None) -> None:
        """One step of Adam by a loss ``[M]``."""
        (gradient,) = torch.autograd.grad(loss.sum(), self.network.flat)
        self.optimizer.update(gradient, learning)

    def tensors(self) -> dict[str, Tensor]:
        """State beside the optimiser, ``[M, ...]`` each."""
        return {"weights": self.network.flat.detach()}

    def state_dict(self) -> dict[str, Any]:
        return {**self.tensors(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        tensors = self.tensors()
        check_like(tensors, {name: value for name, value in state.items() if name != "optimizer"}, "curiosity")
        for name, value in tensors.items():
            value.copy_(state[name])
        self.optimizer.load_state_dict(state["optimizer"])

    def select(self, members: Tensor) -> None:
        """Go on with ``members`` (indices ``[M']``) only."""
        self.network.flat = nn.Parameter(self.network.flat.detach()[members])
        self.network.members = len(members)
        self.optimizer.select(self.network.flat.detach(), members)


class Icm(Curiosity):
    """Intrinsic curiosity module (Pathak et al. 2017) as the baseline of Ferreira et al. 2022.

    Features phi of observations are learned with an inverse model, which predicts the action from phi(s) and phi(s'),
    and a forward model, which predicts phi(s') from phi(s) and the action. The loss is ``(1 - beta) * inverse + beta *
    forward``; the forward model's gradient goes into the features too, as in the public code. The reward is
    ``eta`` times the mean squared error of the forward model, after the update.

    Networks as there: features O-h-h-f with LeakyReLU; inverse 2f-h-h-outputs with ReLU; forward [f, a]-h-h-f, four
    residual blocks ``x + L2([LeakyReLU(L1([x, a])), a])`` of width f, and f-h-f. Two actions are one number (0 or 1),
    more are one-hot, continuous ones are not transformed. The error of the inverse model is a cross entropy for
    discrete actions (with one logit for two actions) and a mean square for continuous ones.
    """

    def __init__(self, config: Intrinsic, spaces: Spaces, seeds: Sequence[int]):
        f, h, actions = config.icm_feature_dim, config.icm_hidden_size, spaces.actions
        self.choices = actions.n if isinstance(actions, Discrete) else 0
        a = actions.size if not isinstance(actions, Discrete) else actions.n if actions.n > 2 else 1
        super().__init__(
            config,
            spaces,
            seeds,
            [
                *_stack("features", spaces.obs_shape[0], h, h, f),
                *_stack("inverse", 2 * f, h, h, a),
                *_stack("before", f + a, h, h, f),
                *(Dense(f"block.{i}.{j}", f + a, f) for i in range(_BLOCKS) for j in range(2)),
                *_stack("after", f, h, f),
            ],
            config.icm_lr,
        )

    def rewards(self, obs: Tensor, action: Tensor, next_obs: Tensor, learning: Tensor | None = None) -> Tensor:
        action_vectors = self._action_vectors(action)
        with torch.enable_grad():
            inverse, error = self.errors(obs, action, action_vectors, next_obs)
            beta = self.config.icm_beta
            self._step((1 - beta) * inverse.mean(1) + beta * error.mean(1), learning)
        with torch.no_grad():
            return self.config.icm_eta * self.errors(obs, action, action_vectors, next_obs)[1]

    def errors(self, obs: Tensor, action: Tensor, action_vectors: Tensor, next_obs: Tensor) -> tuple[Tensor, Tensor]:
        """Of the inverse and of the forward model, ``[M, B]`` each; ``action_vectors`` is the action as the latter sees
        it."""
        parts = self.network.weights()
        layers = list(zip(parts[::2], parts[1::2], strict=True))
        features = _mlp(torch.cat((obs, next_obs), 1), layers[:3], F.leaky_relu)
        now, next_features = features.split(obs.shape[1], 1)
        predicted = _mlp(torch.cat((now, next_features), 2), layers[3:6], F.relu)
        x = _mlp(torch.cat((now, action_vectors), 2), layers[6:9], F.leaky_relu)
        for first, second in zip(layers[9:-2:2], layers[10:-2:2], strict=True):
            inner = F.leaky_relu(dense(torch.cat((x, action_vectors), 2), *first))
            x = x + dense(torch.cat((inner, action_vectors), 2), *second)
        error = (_mlp(x, layers[-2:], F.leaky_relu) - next_features).square().mean(2)
        if not self.choices:
            return (predicted - action).square().mean(2), error
        logits = predicted if self.choices > 2 else torch.cat((torch.zeros_like(predicted), predicted), 2)
        return cross_entropy(logits, action.long()), error

    def _action_vectors(self, action: Tensor) -> Tensor:
        """Actions as numbers, ``[M, B, a]``."""
        if not self.choices:
            return action
        if self.choices <= 2:
            return action.unsqueeze(2).float()
        # `F.one_hot` would look whether there are actions below 0.
        return (action.unsqueeze(2) == torch.arange(self.choices, device=action.device)).float()


class Rnd(Curiosity):
    """Random network distillation (Burda et al. 2019): how far a predictor is from a random network at ``next_obs``.

    Observations are standardised by a member's running mean and standard deviation, and clipped. The reward is the mean
    squared error before the update, divided by its running standard deviation, times ``rnd_scale``. (The paper divides
    by the standard deviation of discounted returns of such rewards, which a batch from a replay buffer does not have.)
    The target has the predictor's initialisation with other random numbers, and is never trained.
    """

    def __init__(self, config: Intrinsic, spaces: Spaces, seeds: Sequence[int]):
        layers = _stack("", spaces.obs_shape[0], *[config.rnd_hidden_size] * 2, config.rnd_feature_dim)
        super().__init__(config, spaces, seeds, layers, config.rnd_lr)
        self.target = Network(layers, Streams.from_name(seeds, "curiosity's target")).requires_grad_(False)
        self.obs_moments = Moments(len(seeds), spaces.obs_shape)
        self.error_moments = Moments(len(seeds), ())

    def rewards(self, obs: Tensor, action: Tensor, next_obs: Tensor, learning: Tensor | None = None) -> Tensor:
        self.obs_moments.add(next_obs, learning)
        clip = self.config.rnd_clip
        x = (
            ((next_obs - self.obs_moments.mean.unsqueeze(1)) / self.obs_moments.deviation().unsqueeze(1))
            .clamp(-clip, clip)
            .float()
        )
        with torch.enable_grad():
            predicted, true = (_through(network, x) for network in (self.network, self.target))
            error = (predicted - true).square().mean(2)
            self._step(error.mean(1), learning)
        error = error.detach()
        self.error_moments.add(error, learning)
        return self.config.rnd_scale * (error / self.error_moments.deviation().unsqueeze(1)).float()

    def tensors(self) -> dict[str, Tensor]:
        return {
            **super().tensors(),
            "target": self.target.flat.detach(),
            **{f"seen_{name}": value for name, value in self.obs_moments.state_dict().items()},
            **{f"paid_{name}": value for name, value in self.error_moments.state_dict().items()},
        }

    def select(self, members: Tensor) -> None:
        super().select(members)
        self.target.flat = nn.Parameter(self.target.flat.detach()[members], requires_grad=False)
        self.obs_moments.select(members)
        self.error_moments.select(members)


def curiosity_of(config: Intrinsic, spaces: Spaces, seeds: Sequence[int]) -> Curiosity | None:
    """The intrinsic reward that ``config.intrinsic`` names; None for none."""
    kinds = {"none": None, "icm": Icm, "rnd": Rnd}
    kind = kinds[config.intrinsic]
    return None if kind is None else kind(config, spaces, seeds)


def _stack(name: str, *sizes: int) -> list[Dense]:
    return [Dense(f"{name}.{i}", *pair) for i, pair in enumerate(pairwise(sizes))]


def _through(network: Network, x: Tensor) -> Tensor:
    parts = network.weights()
    return _mlp(x, list(zip(parts[::2], parts[1::2], strict=True)), F.leaky_relu)


def _mlp(x: Tensor, layers: Sequence[tuple[Tensor, Tensor]], activation: Any) -> Tensor:
    """``x [M, B, in]`` through layers with an activation between them."""
    for weight, bias in layers[:-1]:
        x = activation(dense(x, weight, bias))
    return dense(x, *layers[-1])
