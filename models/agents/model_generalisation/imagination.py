"""Models that imagine rollouts: the environment itself, a model of observations, a model of latent states.

In shapes, M is the number of members, B the size of a batch, O the size of an observation, A the number of actions, and
T the number of steps of a rollout. ``T B`` is an axis with all steps, side by side.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.agents.model_generalisation.config import Config
from models.agents.model_generalisation.values import (
    ActionValues,
    Batch,
    Update,
    explore,
    make_network,
    make_optimizer,
    one_hot,
)
from models.layers import sigmoid
from models.losses import bit_nll, categorical_kl, gaussian_kl, gaussian_nll
from models.mlp import MlpNetwork
from models.optim import AdamW
from models.streams import Shapes, Streams
from understudy.policy import ONE_HOT

_SMALLEST_STD = 1e-6
Params = tuple[Tensor, ...]
"""Parameters of a distribution: log-probabilities, or means and standard deviations, ``[M, B, ...]``."""


def sample_classes(probability: Tensor, uniform: Tensor) -> Tensor:
    """Sample classes ``[...]`` int64 by inverting the cumulative distribution of ``probability [..., C]`` at ``uniform
    [...]`` in [0, 1). The class is the number of cumulative probabilities that are not above ``uniform``."""
    # Without the last cumulative probability, which rounding may leave below 1.
    cumulative = probability.cumsum(-1)[..., :-1]
    return (cumulative <= uniform.unsqueeze(-1)).sum(-1)


class Categorical:
    """``num_features`` categorical variables of ``feature_width`` classes, as one-hot vectors. Gradients pass through a
    sample as if it were the probabilities (straight-through estimator, Bengio et al. 2013)."""

    sample_noise = staticmethod(Streams.uniform)  # samples the noise of `sample`

    def __init__(self, config: Config):
        self.num_features, self.num_classes = config.num_features, config.feature_width
        self.num_outputs = self.size = self.num_features * self.num_classes
        self.mode: str | float = f"{ONE_HOT}{self.num_classes}"  # activation for the most likely latent

    def params(self, outputs: Tensor, encoder: bool) -> Params:
        """Return log-probabilities, a tuple of one tensor ``[M, B, num_features, num_classes]``, for a network's
        ``outputs``. ``encoder`` has no effect (see `Gaussian.params`)."""
        logits = outputs.unflatten(2, (self.num_features, self.num_classes))
        return (logits.log_softmax(3),)

    def sample(self, params: Params, noise: Tensor) -> Tensor:
        """Sample latents ``[M, B, size]`` by uniform ``noise [M, B, num_features]``, with gradients to ``params``."""
        (log_probability,) = params
        probability = log_probability.exp()
        category = sample_classes(probability.detach(), noise).unsqueeze(3)
        sample = torch.zeros_like(probability).scatter_(3, category, 1.0)
        if torch.is_grad_enabled():
            sample = sample + (probability - probability.detach())  # adds 0, with the gradient of the probability
        return sample.flatten(2)

    def kl(self, p: Params, q: Params) -> Tensor:
        """Return ``KL(p || q)`` summed over the variables, ``[M, B]`` in nats."""
        (log_p,), (log_q,) = p, q
        return categorical_kl(log_p, log_q, 3).sum(2)

    def kl_to_base(self, p: Params) -> Tensor:
        """Return ``KL(p || uniform distribution)`` summed over the variables, ``[M, B]`` in nats."""
        (log_p,) = p
        uniform_probability = torch.full_like(log_p, 1 / self.num_classes)
        return self.kl(p, (uniform_probability.log(),))


class Gaussian:
    """``num_features`` normal variables, sampled as mean + standard deviation * noise. If ``applies_tanh``, the latent
    is the tanh of these variables, but divergences are between the normal distributions."""

    sample_noise = staticmethod(Streams.normal)  # samples the noise of `sample`

    def __init__(self, config: Config):
        self.num_features = self.size = config.num_features
        self.num_outputs = 2 * self.num_features
        self.applies_tanh, self.min_std = config.latent_type == "tanh_gaussian", config.min_std
        # Activation that computes the most likely latent from the means; 1.0, a slope below 0, is the identity.
        self.mode: str | float = "tanh" if self.applies_tanh else 1.0
        self.std_activation = _STD_ACTIVATIONS[config.std_act]

    def params(self, outputs: Tensor, encoder: bool) -> Params:
        """Return means and standard deviations ``[M, B, num_features]`` for a network's ``outputs``. If the network is
        the ``encoder``, ``min_std`` is added to standard deviations."""
        mean, raw_std = outputs.split(self.num_features, 2)
        std = self.std_activation(raw_std).clamp(min=_SMALLEST_STD)
        return mean, std + self.min_std if encoder else std

    def sample(self, params: Params, noise: Tensor) -> Tensor:
        """Sample latents ``[M, B, size]`` by normal ``noise [M, B, num_features]``, with gradients to ``params``."""
        mean, std = params
        latent = mean + std * noise
        return latent.tanh() if self.applies_tanh else latent

    def kl(self, p: Params, q: Params) -> Tensor:
        """Return ``KL(p || q)`` summed over the variables, ``[M, B]`` in nats."""
        return gaussian_kl(*p, *q).sum(2)

    def kl_to_base(self, p: Params) -> Tensor:
        """Return ``KL(p || standard normal)`` summed over the variables, ``[M, B]`` in nats."""
        mean, std = p
        return self.kl(p, (torch.zeros_like(mean), torch.ones_like(std)))


_STD_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softplus": F.softplus,
    "sigmoid": sigmoid,
    "sigmoid2": lambda raw: 2 * sigmoid(raw / 2),
}


Noise = Any
"""Random numbers ``[M, *shape]`` for one call of a method, with its shape in `Imagination.noise_shapes`; None if it
needs none."""


@dataclass(frozen=True)
class ModelSpec:
    """Sizes and seeds from which a learned model is built, besides its settings."""

    obs_size: int
    num_actions: int
    has_bits: bool  # whether observations are bits, 0 or 1
    num_rollouts: int  # imagined rollouts per update
    seeds: list[int]  # seeds of the members
    device: torch.device


class Imagination(nn.Module):
    """Base class of models. A model encodes observations as inputs of the action values (`encode`), learns from a batch
    (`fit`), and imagines a rollout step by step (`begin`, `step`). The argument ``noise`` of these methods are their
    random numbers (`Noise`). An agent without a model uses this class, whose `encode` returns the observations."""

    sample_noise: Callable[..., Tensor] = staticmethod(Streams.uniform)  # samples the random numbers of the methods
    optimizer: AdamW | None = None  # None if there is nothing to learn

    def __init__(self, size: int):
        super().__init__()
        self.size = size  # number of inputs of the action values
        self.noise_shapes: Shapes = {}  # name of a method -> shape of the random numbers that it needs

    def encode(self, obs: Tensor, noise: Noise) -> Tensor:
        """Return the inputs of the action values ``[M, B, size]`` for observations ``[M, B, O]``."""
        return obs

    def fit(self, batch: Any, noise: Noise) -> dict[str, Tensor]:
        """Update the model once on a minibatch. Return its unweighted losses ``[M]`` by name, in nats."""
        return {}

    def begin(self, start: Any, noise: Noise) -> tuple[Any, Tensor]:
        """Return the first states of rollouts from the batch ``start``, and the inputs of the action values in them."""
        features = self.encode(start["obs"], noise)
        return features, features

    def step(self, state: Any, action: Tensor, noise: Noise) -> tuple[Any, Tensor, Any]:
        """Return the next state after ``action [M, B]``, the inputs of the action values in it, and a record of this
        step for `outcomes` (None if `outcomes` needs no records)."""
        raise NotImplementedError

    def outcomes(self, features: Tensor, action: Tensor, records: list[Any]) -> tuple[Tensor, Tensor]:
        """Return the rewards of all T steps, and the probabilities that the episode continues after them, ``[M, T B]``
        each. Learned models compute them once per rollout, from ``features [M, T B, size]`` and ``action [M, T B]``.
        The perfect model reads them from the T ``records`` of `step`."""
        raise NotImplementedError


class PerfectModel(Imagination):
    """The environment itself with new random events (Young et al. 2023, "perfect model"). ``dynamics`` is an
    `envs.tensor.ChanceDynamics` or a deterministic `Dynamics`, on the device of the states."""

    def __init__(self, dynamics: Any, obs_size: int, num_rollouts: int):
        super().__init__(obs_size)
        self.dynamics = dynamics
        num_chances = getattr(dynamics, "chances", 0)  # random numbers of one step; none if deterministic
        if num_chances:
            self.noise_shapes = {"step": (num_rollouts, num_chances)}

    def begin(self, start: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        return start, self.dynamics.observe(start)

    def step(self, state: Tensor, action: Tensor, noise: Noise) -> tuple[Tensor, Tensor, Any]:
        # Deterministic dynamics have no noise.
        result = self.dynamics.step(state, action) if noise is None else self.dynamics.advance(state, action, noise)
        next_state, reward, terminated, _ = result
        return next_state, self.dynamics.observe(next_state), (reward, terminated)

    def outcomes(self, features: Tensor, action: Tensor, records: list[Any]) -> tuple[Tensor, Tensor]:
        reward = torch.cat([step_reward for step_reward, _ in records], 1)
        terminated = torch.cat([step_terminated for _, step_terminated in records], 1)
        return reward, (~terminated).float()


class _LearnedModel(Imagination):
    """Base class of learned models, with two networks. ``reward`` predicts the mean of a normal distribution with
    standard deviation 1. ``termination`` predicts the logit of the probability that the episode continues. Both receive
    the inputs of the action values and a one-hot action."""

    optimizer: AdamW  # trains all networks of the model

    def __init__(self, config: Config, spec: ModelSpec, size: int):
        super().__init__(size)
        self.config, self.spec = config, spec
        self.reward = self.named_network("reward", size + spec.num_actions, 1)
        self.termination = self.named_network("termination", size + spec.num_actions, 1)
        self.loss_weights = {
            "reward": config.reward_weight,
            "termination": config.termination_weight,
            "obs": config.obs_prediction_weight,
            "kl": config.KL_prior_weight,
            "kl_posterior": config.KL_posterior_weight,
            "kl_base": config.posterior_entropy_weight,  # a constant minus the entropy
        }

    def named_network(self, name: str, inputs: int, outputs: int) -> MlpNetwork:
        """Build a network with ``inputs`` and ``outputs``. Its ``name`` chooses the streams of initial weights."""
        streams = Streams.from_name(self.spec.seeds, f"weights of {name}")
        return make_network(self.config, inputs, outputs, streams, self.spec.device)

    def with_action(self, x: Tensor, action: Tensor) -> Tensor:
        """Append the one-hot ``action [M, B]`` to ``x [M, B, X]``: ``[M, B, X + A]``."""
        return torch.cat((x, one_hot(action, self.spec.num_actions).to(x.dtype)), 2)

    def outcome_losses(self, x: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the losses ``[M, B]`` of predicted reward and termination; ``x`` is the result of `with_action`."""
        return {
            "reward": gaussian_nll(batch["reward"], self.reward(x)[..., 0]),
            "termination": bit_nll(self.termination(x)[..., 0], batch["continues"]),
        }

    def update_model(self, losses: dict[str, Tensor]) -> dict[str, Tensor]:
        """Make a gradient step on the weighted sum of ``losses {name: [M, B]}``. Return unweighted means ``[M]``."""
        means = {name: loss.mean(1) for name, loss in losses.items()}
        weighted_means = [self.loss_weights[name] * mean for name, mean in means.items() if self.loss_weights[name]]
        total: Any = sum(weighted_means) if weighted_means else 0 * means["reward"]  # 0 with a gradient
        # A loss of weight 0 gives its network zero gradients. Adam's moments and weight decay still act on it.
        params = list(self.parameters())
        grads = torch.autograd.grad(total.sum(), params, allow_unused=True, materialize_grads=True)
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        self.optimizer.step()
        return {name: mean.detach() for name, mean in means.items()}

    def outcomes(self, features: Tensor, action: Tensor, records: list[Any]) -> tuple[Tensor, Tensor]:
        x = self.with_action(features, action)
        return self.reward(x)[..., 0], sigmoid(self.termination(x)[..., 0])


class SimpleModel(_LearnedModel):
    """A model of observations. The network ``following`` predicts each number of the next observation independently:
    the logit of a bit, or the mean of a normal variable with standard deviation 1."""

    def __init__(self, config: Config, spec: ModelSpec):
        super().__init__(config, spec, spec.obs_size)
        self.following = self.named_network("next observation", self.size + spec.num_actions, self.size)
        self.optimizer = make_optimizer(config, list(self.parameters()), config.model_lr)
        self.sample_noise = Streams.uniform if spec.has_bits else Streams.normal
        self.noise_shapes = {"step": (spec.num_rollouts, self.size)}

    def fit(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        # Transitions that terminate do not count in the loss ``obs``.
        x = self.with_action(batch["obs"], batch["action"])
        nll = bit_nll if self.spec.has_bits else gaussian_nll
        obs_loss = nll(self.following(x), batch["next_obs"]).sum(2) * batch["continues"]
        return self.update_model(self.outcome_losses(x, batch) | {"obs": obs_loss})

    def step(self, state: Tensor, action: Tensor, noise: Noise) -> tuple[Tensor, Tensor, None]:
        """Sample the next observation. Return it twice: as the state, and as the inputs of the action values."""
        outputs = self.following(self.with_action(state, action))
        if not self.spec.has_bits:
            next_obs = outputs + noise
        else:
            # The original code uses the logit as if it were the probability, so bits are nearly deterministic.
            probability = outputs if self.config.logit_is_probability else sigmoid(outputs)
            next_obs = (noise < probability).to(outputs.dtype)
        return next_obs, next_obs, None


class LatentModel(_LearnedModel):
    """A model of latent states, with three networks: an encoder of observations, a predictor of the next latent
    (``following``), and a decoder, which only the loss uses. The inputs of the action values are sampled latents."""

    def __init__(self, config: Config, spec: ModelSpec):
        self.latents = Categorical(config) if config.latent_type == "categorical" else Gaussian(config)
        super().__init__(config, spec, self.latents.size)
        self.encoder = self.named_network("encoder", spec.obs_size, self.latents.num_outputs)
        self.following = self.named_network("next latent", self.size + spec.num_actions, self.latents.num_outputs)
        decoder_outputs = spec.obs_size * (2 if config.learn_obs_variance else 1)
        self.decoder = self.named_network("decoder", self.size, decoder_outputs)
        self.optimizer = make_optimizer(config, list(self.parameters()), config.model_lr)
        self.sample_noise = self.latents.sample_noise
        # Latents that each method samples in one call.
        rows = {"fit": config.batch_size, "begin": spec.num_rollouts, "step": spec.num_rollouts, "encode": 1}
        self.noise_shapes = {name: (count, self.latents.num_features) for name, count in rows.items()}

    def encode(self, obs: Tensor, noise: Noise) -> Tensor:
        params = self.latents.params(self.encoder(obs), encoder=True)
        return self.latents.sample(params, noise)

    def fit(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        encoder_outputs = self.encoder(torch.cat((batch["obs"], batch["next_obs"]), 1))  # one pass for both
        obs_outputs, next_obs_outputs = encoder_outputs.split(batch["action"].shape[1], 1)
        params = self.latents.params(obs_outputs, encoder=True)
        next_params = self.latents.params(next_obs_outputs, encoder=True)
        latent = self.latents.sample(params, noise)
        x = self.with_action(latent, batch["action"])
        losses = self.outcome_losses(x, batch)
        # Transitions that terminate do not count in this loss.
        losses["obs"] = self._obs_loss(self.decoder(latent), batch["obs"]) * batch["continues"]
        predicted_params = self.latents.params(self.following(x), encoder=False)
        # The same divergence twice, with different weights: the first trains the predictor, the second the encoder.
        losses["kl"] = self.latents.kl(_stop_gradient(next_params), predicted_params)
        losses["kl_posterior"] = self.latents.kl(next_params, _stop_gradient(predicted_params))
        if self.loss_weights["kl_base"]:
            losses["kl_base"] = self.latents.kl_to_base(params)
        means = self.update_model(losses)
        means.pop("kl_posterior")  # the same number as kl
        return means

    def step(self, state: Tensor, action: Tensor, noise: Noise) -> tuple[Tensor, Tensor, None]:
        """Sample the next latent. Return it twice: as the state, and as the inputs of the action values."""
        outputs = self.following(self.with_action(state, action))
        next_latent = self.latents.sample(self.latents.params(outputs, encoder=False), noise)
        return next_latent, next_latent, None

    def _obs_loss(self, outputs: Tensor, obs: Tensor) -> Tensor:
        """Return the negative log-likelihood ``[M, B]`` of ``obs [M, B, O]`` for ``outputs`` of the decoder: logits of
        bits, or means of numbers and, with ``learn_obs_variance``, the inverse softplus of standard deviations."""
        if self.spec.has_bits:
            return bit_nll(outputs, obs).sum(2)
        if not self.config.learn_obs_variance:
            return gaussian_nll(obs, outputs).sum(2)
        mean, raw_std = outputs.split(self.spec.obs_size, 2)
        return gaussian_nll(obs, mean, F.softplus(raw_std)).sum(2)


def _stop_gradient(params: Params) -> Params:
    """Return the parameters ``params`` of a distribution without gradient."""
    return tuple(param.detach() for param in params)


def imagined_update(values: ActionValues, model: Imagination, start: Any, random_numbers: dict[str, Tensor]) -> Update:
    """Play an imagined rollout of T steps from each of the states ``start`` by the exploring policy, and compute an
    update of the action values from all steps (Young et al. 2023, algorithm 1). The function changes nothing, has fixed
    shapes and never waits for the device, so that it can be compiled or captured as a graph."""
    config = values.config
    state, features = model.begin(start, random_numbers.get("begin"))
    exploration = random_numbers["imagined"].unbind(1)
    noise: Sequence[Noise] = [None] * config.rollout_length
    if "step" in random_numbers:
        noise = random_numbers["step"].unbind(1)
    features_by_step, activations_by_step, action_by_step, records = [features], [], [], []
    for step in range(config.rollout_length):
        activations = values.q_network.activations(features)  # a tensor per layer; the last is the action values
        action = explore(config, activations[-1], exploration[step])
        state, features, record = model.step(state, action, noise[step])
        features_by_step.append(features)
        activations_by_step.append(activations)
        action_by_step.append(action)
        records.append(record)
    # All steps side by side, [M, T B, ...]. The activations that chose the actions are also used for the gradient,
    # because the network changes only after the rollout.
    rollout_features = torch.cat(features_by_step[:-1], 1)
    next_features = torch.cat(features_by_step[1:], 1)
    rollout_activations = [torch.cat(layer, 1) for layer in zip(*activations_by_step, strict=True)]  # per layer
    rollout_action = torch.cat(action_by_step, 1)
    reward, continues = model.outcomes(rollout_features, rollout_action, records)
    next_q = values.bootstrap_value(next_features)
    td_target = torch.addcmul(reward, continues, next_q, value=config.discount)
    weight = None
    # The perfect model can end an episode even if ``episodic_env`` is off. Otherwise all weights are 1.
    if config.episodic_env or config.model == "perfect":
        # The probability that the episode has not ended before each step; it is 1 for the first step.
        continues_by_step = continues.unflatten(1, (config.rollout_length, -1))  # [M, T, B]
        first_step = torch.ones_like(continues_by_step[:, :1])
        weight = torch.cat((first_step, continues_by_step[:, :-1].cumprod(1)), 1).flatten(1)
    return values.td_update(td_target, rollout_features, rollout_activations, rollout_action, weight)
