"""Intrinsic rewards for novelty for M members (independent agents): the intrinsic curiosity module (ICM) and random
network distillation (RND).

    curiosity = build_curiosity(config, spaces, seeds)   # None without intrinsic rewards
    rewards = batch["reward"] + curiosity.rewards(batch["obs"], batch["action"], batch["next_obs"])

Each call of `rewards` also trains on its arguments. ``next_obs`` is the observation after the action, at the end of an
episode the final observation. Each member has separate networks and statistics.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from models.intrinsic import Intrinsic
from models.layers import Dense, Network, dense
from models.losses import cross_entropy
from models.moments import Moments
from models.optim import MemberAdam
from models.spaces import Discrete, Spaces
from models.state import Stateful
from models.streams import Streams

_BLOCKS = 4  # residual blocks in the forward model


class Curiosity(Stateful):
    """Base class of intrinsic rewards by a network of ``layers``, trained by Adam with the learning rate ``lr``."""

    saved: ClassVar[tuple[str, ...]] = ("weights", "optimizer")

    def __init__(self, config: Intrinsic, seeds: Sequence[int], layers: list[Dense], lr: float):
        self.config = config
        self.network = Network(layers, Streams.from_name(seeds, "curiosity"))
        self.weights = self.network.flat.detach()  # [M, D], shares the memory of the network
        self.optimizer = MemberAdam(self.weights, torch.full((len(seeds),), lr))

    def rewards(self, obs: Tensor, action: Tensor, next_obs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return intrinsic rewards ``[M, B]`` of transitions ``obs [M, B, O]``, ``action [M, B]`` or ``[M, B, A]``,
        ``next_obs [M, B, O]``. Also train the networks of the members ``mask [M]`` bool (None: all) on them."""
        raise NotImplementedError

    def _step(self, loss: Tensor, mask: Tensor | None) -> None:
        """Make one step of Adam on ``loss [M]``, in the members ``mask [M]`` bool (None: all)."""
        (gradient,) = torch.autograd.grad(loss.sum(), self.network.flat)
        self.optimizer.update(gradient, mask)


class Icm(Curiosity):
    """Intrinsic curiosity module (ICM, Pathak et al. 2017), as in the baseline of Ferreira et al. 2022.

    Three networks are trained together. One computes features phi of observations. The inverse model predicts the
    action from phi(s) and phi(s'). The forward model predicts phi(s') from phi(s) and the action. The loss is ``(1 -
    beta) * inverse error + beta * forward error``, and also trains the features, as in the public code. The reward is
    ``eta`` times the mean squared error of the forward model after the update.

    The layers are the baseline's, with observations of size O, h hidden units, f features, and actions of size a:

    - features: O-h-h-f with LeakyReLU;
    - inverse model: 2f-h-h-a with ReLU;
    - forward model: [f, a]-h-h-f, four residual blocks ``x + L2([LeakyReLU(L1([x, a])), a])`` of width f, then f-h-f.

    Two actions are the number 0 or 1 (a = 1), more actions are one-hot. The inverse error is the cross entropy for
    discrete actions, otherwise the mean squared error.
    """

    def __init__(self, config: Intrinsic, spaces: Spaces, seeds: Sequence[int]):
        num_features, hidden, actions = config.icm_feature_dim, config.icm_hidden_size, spaces.actions
        self.num_actions, action_size = 0, spaces.action_size  # 0: continuous actions
        if isinstance(actions, Discrete):
            self.num_actions = actions.n
            action_size = actions.n if actions.n > 2 else 1  # two actions are one number
        layers = [
            *_dense_layers("features", spaces.obs_shape[0], hidden, hidden, num_features),
            *_dense_layers("inverse", 2 * num_features, hidden, hidden, action_size),
            *_dense_layers("before", num_features + action_size, hidden, hidden, num_features),
        ]
        for block in range(_BLOCKS):  # a block has two layers
            for i in range(2):
                layers.append(Dense(f"block.{block}.{i}", num_features + action_size, num_features))
        layers += _dense_layers("after", num_features, hidden, num_features)
        super().__init__(config, seeds, layers, config.icm_lr)

    def rewards(self, obs: Tensor, action: Tensor, next_obs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Update the three networks once. Return ``icm_eta`` times the forward model's error after the update."""
        action_vectors = self._action_vectors(action)
        with torch.enable_grad():
            inverse_error, forward_error = self.errors(obs, action, action_vectors, next_obs)
            beta = self.config.icm_beta
            self._step((1 - beta) * inverse_error.mean(1) + beta * forward_error.mean(1), mask)
        with torch.no_grad():
            _, forward_error = self.errors(obs, action, action_vectors, next_obs)
            return self.config.icm_eta * forward_error

    def errors(self, obs: Tensor, action: Tensor, action_vectors: Tensor, next_obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the errors of the inverse model and of the forward model on B transitions, ``[M, B]`` each.
        ``action_vectors [M, B, a]`` is ``action`` as input of the forward model (`_action_vectors`)."""
        layers = self.network.weights()
        feature_layers, inverse_layers = layers[:3], layers[3:6]
        # The forward model: three layers before the residual blocks, two in each block, and two after them.
        layers_before, block_layers, layers_after = layers[6:9], layers[9:-2], layers[-2:]
        both_features = _mlp(torch.cat((obs, next_obs), 1), feature_layers, F.leaky_relu)  # [M, 2 B, f]
        features, next_features = both_features.split(obs.shape[1], 1)
        predicted_action = _mlp(torch.cat((features, next_features), 2), inverse_layers, F.relu)
        x = _mlp(torch.cat((features, action_vectors), 2), layers_before, F.leaky_relu)
        for first, second in zip(block_layers[::2], block_layers[1::2], strict=True):  # residual blocks
            inner = F.leaky_relu(dense(torch.cat((x, action_vectors), 2), *first))
            x = x + dense(torch.cat((inner, action_vectors), 2), *second)
        predicted_features = _mlp(x, layers_after, F.leaky_relu)
        forward_error = (predicted_features - next_features).square().mean(2)
        if not self.num_actions:  # continuous actions
            return (predicted_action - action).square().mean(2), forward_error
        logits = predicted_action
        if self.num_actions <= 2:  # the network has only a logit of action 1; action 0 has logit 0
            logits = torch.cat((torch.zeros_like(logits), logits), 2)
        return cross_entropy(logits, action.long()), forward_error

    def _action_vectors(self, action: Tensor) -> Tensor:
        """Return actions as the forward model's input, ``[M, B, a]``: continuous actions unchanged, two actions as one
        number, more actions as one-hot vectors."""
        if not self.num_actions:
            return action
        if self.num_actions <= 2:
            return action.unsqueeze(2).float()
        # Not `F.one_hot`, which takes time to check for actions below 0.
        return (action.unsqueeze(2) == torch.arange(self.num_actions, device=action.device)).float()


class Rnd(Curiosity):
    """Random network distillation (Burda et al. 2019). A predictor learns the outputs of a random target network, and
    its error at ``next_obs`` is the reward.

    Observations are standardised by running moments, and clipped. The reward is ``rnd_scale`` times the mean squared
    error before the update, divided by the running standard deviation of this error. (The paper divides by the standard
    deviation of discounted returns, but a batch from a replay buffer has no returns.) The target network is never
    trained, and so follows from the seeds.
    """

    saved = (*Curiosity.saved, "obs_moments", "error_moments")

    def __init__(self, config: Intrinsic, spaces: Spaces, seeds: Sequence[int]):
        hidden = config.rnd_hidden_size
        layers = _dense_layers("", spaces.obs_shape[0], hidden, hidden, config.rnd_feature_dim)
        super().__init__(config, seeds, layers, config.rnd_lr)
        self.target_network = Network(layers, Streams.from_name(seeds, "curiosity's target")).requires_grad_(False)
        self.obs_moments = Moments(len(seeds), spaces.obs_shape)
        self.error_moments = Moments(len(seeds), ())

    def rewards(self, obs: Tensor, action: Tensor, next_obs: Tensor, mask: Tensor | None = None) -> Tensor:
        self.obs_moments.add(next_obs, mask)
        mean, deviation = self.obs_moments.mean.unsqueeze(1), self.obs_moments.deviation().unsqueeze(1)
        clip = self.config.rnd_clip
        x = ((next_obs - mean) / deviation).clamp(-clip, clip).float()
        with torch.enable_grad():
            prediction = _mlp(x, self.network.weights(), F.leaky_relu)
            target = _mlp(x, self.target_network.weights(), F.leaky_relu)
            error = (prediction - target).square().mean(2)
            self._step(error.mean(1), mask)
        error = error.detach()
        self.error_moments.add(error, mask)
        return self.config.rnd_scale * (error / self.error_moments.deviation().unsqueeze(1)).float()


def build_curiosity(config: Intrinsic, spaces: Spaces, seeds: Sequence[int]) -> Curiosity | None:
    """Return the intrinsic reward ``config.intrinsic`` ("icm" or "rnd"), None for "none"."""
    if config.intrinsic == "icm":
        return Icm(config, spaces, seeds)
    return Rnd(config, spaces, seeds) if config.intrinsic == "rnd" else None


def _dense_layers(name: str, *sizes: int) -> list[Dense]:
    """Return the layers ``<name>.0``, ``<name>.1``, ... with ``sizes``: inputs, widths of hidden layers, outputs."""
    return [Dense(f"{name}.{i}", inputs, outputs) for i, (inputs, outputs) in enumerate(pairwise(sizes))]


def _mlp(x: Tensor, layers: Sequence[tuple[Tensor, Tensor]], activation: Any) -> Tensor:
    """Run a network on ``x [M, B, in]``. ``layers`` are weights ``[M, in, out]`` and biases ``[M, out]``."""
    for weight, bias in layers[:-1]:
        x = activation(dense(x, weight, bias))
    return dense(x, *layers[-1])
