"""What imagines: the environment itself, a model of observations, a model of latent states.

Each encodes observations to what the action values see (``[M, B, size]``), learns from a batch (`fit`), and advances an
imagined rollout step by step. Rewards and ends of the learned models depend on states and actions alone, so they are
asked for once a rollout, in `outcomes`, and not once a step.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from models.agents.model_generalisation.config import Config
from models.agents.model_generalisation.experience import Batch
from models.agents.model_generalisation.latents import Params, latents
from models.agents.model_generalisation.networks import adam, network, with_action
from models.layers import sigmoid
from models.losses import bit_nll, gaussian_nll
from models.mlp import MlpNetwork
from models.optim import AdamW
from models.streams import Shapes, Streams

Noise = Tensor | None
"""Random numbers ``[M, ...]`` of one call, shaped as `Imagination.noise` says; None where it needs none."""


@dataclass(frozen=True)
class ModelSpec:
    """What a learned model is made for: ``obs_size`` numbers or ``bits``, ``actions``, rollouts from ``starts`` rows of
    a batch, members ``seeds``."""

    obs_size: int
    actions: int
    bits: bool
    starts: int
    seeds: list[int]
    device: torch.device


class Imagination(Protocol):
    """``noise`` has the shapes of the random numbers by the method that needs them, all drawn by ``draw``.
    ``optimizer`` is None where nothing is learned."""

    size: int
    draw: Callable[..., Tensor]
    noise: Shapes
    optimizer: AdamW | None

    def encode(self, obs: Tensor, noise: Noise) -> Tensor:
        """What the action values see of observations ``[M, B, O]``."""
        ...

    def fit(self, batch: Any, noise: Noise) -> dict[str, Tensor]:
        """One update of the model; its losses ``[M]`` by name, unweighted, in nats."""
        ...

    def begin(self, start: Any, noise: Noise) -> tuple[Any, Tensor]:
        """Rollouts from ``start``: what the model goes on from, and what is seen."""
        ...

    def step(self, state: Any, action: Tensor, noise: Noise) -> tuple[Any, Tensor, Any]:
        """The next of both after ``action [M, B]``, and what `outcomes` wants of this step."""
        ...

    def outcomes(self, seen: Tensor, action: Tensor, kept: list[Any]) -> tuple[Tensor, Tensor]:
        """Rewards, and probabilities that the episode continues, of all T steps: ``[M, T B]`` each."""
        ...


class Perfect(nn.Module):
    """The environment itself, its chance drawn anew (Young et al. 2023, "perfect model"). ``dynamics`` is an
    `envs.tensor.ChanceDynamics`, or a `Dynamics` without chance, on the device of the states."""

    draw = staticmethod(Streams.uniform)
    optimizer = None

    def __init__(self, dynamics: Any, obs_size: int, starts: int):
        super().__init__()
        self.size, self.dynamics = obs_size, dynamics
        self.chances: int = getattr(dynamics, "chances", 0)
        self.noise: Shapes = {"step": (starts, self.chances)} if self.chances else {}

    def encode(self, obs: Tensor, noise: Noise) -> Tensor:
        return obs

    def fit(self, batch: Tensor, noise: Noise) -> dict[str, Tensor]:
        return {}

    def begin(self, start: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """``start`` are states ``[M, B, K]``."""
        return start, self.dynamics.observe(start)

    def step(self, state: Tensor, action: Tensor, noise: Noise) -> tuple[Tensor, Tensor, Any]:
        if self.chances:
            state, reward, terminated, _ = self.dynamics.advance(state, action, noise)
        else:
            state, reward, terminated, _ = self.dynamics.step(state, action)
        return state, self.dynamics.observe(state), (reward, terminated)

    def outcomes(self, seen: Tensor, action: Tensor, kept: list[Any]) -> tuple[Tensor, Tensor]:
        rewards, terminated = zip(*kept, strict=True)
        return torch.cat(rewards, 1), (~torch.cat(terminated, 1)).float()


class _Learned(nn.Module):
    """Heads of reward (the mean of a normal distribution of standard deviation 1) and of continuing (a logit), on
    states seen and one-hot actions, and the step of the optimiser all the model's networks share."""

    optimizer: AdamW

    def __init__(self, config: Config, spec: ModelSpec, size: int):
        super().__init__()
        self.config, self.spec, self.size = config, spec, size
        self.reward = self.net("reward", size + spec.actions, 1)
        self.termination = self.net("termination", size + spec.actions, 1)

    def net(self, name: str, inputs: int, outputs: int) -> MlpNetwork:
        """A network with weights of its own stream."""
        streams = Streams.named(self.spec.seeds, f"weights of {name}")
        return network(self.config, inputs, outputs, streams, self.spec.device)

    def descend(self, losses: dict[str, Tensor], weights: dict[str, float]) -> dict[str, Tensor]:
        """One step down the weighted sum of ``losses [M, B]``; their means ``[M]``."""
        means = {name: loss.mean(1) for name, loss in losses.items()}
        total = sum(weights[name] * mean for name, mean in means.items() if weights[name])
        total = total if isinstance(total, Tensor) else 0 * means["reward"]
        # A weight of zero leaves a network without gradient: its moments fade and its weights decay all the same.
        grads = torch.autograd.grad(total.sum(), self.optimizer.params, allow_unused=True, materialize_grads=True)
        self.optimizer.update(grads)
        return {name: mean.detach() for name, mean in means.items()}

    def heads(self, x: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Losses of the heads, ``[M, B]``; ``x`` has the action."""
        return {
            "reward": gaussian_nll(batch.reward, self.reward(x)[..., 0]),
            "termination": bit_nll(self.termination(x)[..., 0], batch.continues),
        }

    @property
    def head_weights(self) -> dict[str, float]:
        return {"reward": self.config.reward_weight, "termination": self.config.termination_weight}

    def outcomes(self, seen: Tensor, action: Tensor, kept: list[Any]) -> tuple[Tensor, Tensor]:
        x = with_action(seen, action, self.spec.actions)
        return self.reward(x)[..., 0], sigmoid(self.termination(x)[..., 0])


class Simple(_Learned):
    """A model of observations: each number of the next one by itself, a bit with its own probability, or a normal
    variable of standard deviation 1."""

    def __init__(self, config: Config, spec: ModelSpec):
        super().__init__(config, spec, spec.obs_size)
        self.following = self.net("next observation", self.size + spec.actions, self.size)
        self.optimizer = adam(config, list(self.parameters()), config.model_alpha)
        self.draw: Callable[..., Tensor] = Streams.uniform if spec.bits else Streams.normal
        self.noise: Shapes = {"step": (spec.starts, self.size)}

    def encode(self, obs: Tensor, noise: Noise) -> Tensor:
        return obs

    def fit(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        x = with_action(batch.obs, batch.action, self.spec.actions)
        losses = self.heads(x, batch)
        nll = bit_nll if self.spec.bits else gaussian_nll
        losses["obs"] = nll(self.following(x), batch.next_obs).sum(2) * batch.continues
        return self.descend(losses, self.head_weights | {"obs": self.config.obs_prediction_weight})

    def begin(self, start: Batch, noise: Noise) -> tuple[Tensor, Tensor]:
        return start.obs, start.obs

    def step(self, state: Tensor, action: Tensor, noise: Noise) -> tuple[Tensor, Tensor, None]:
        assert noise is not None
        outputs = self.following(with_action(state, action, self.spec.actions))
        if not self.spec.bits:
            state = outputs + noise
        else:
            # The original's draw takes the logit for the probability, which makes of it a threshold near 1/2.
            probability = outputs if self.config.logit_is_probability else sigmoid(outputs)
            state = (noise < probability).to(outputs.dtype)
        return state, state, None


class Latent(_Learned):
    """A model of latent states: an encoder of observations, a prediction of the next latent, a decoder that only
    teaches. Action values see draws of latents, never means."""

    def __init__(self, config: Config, spec: ModelSpec):
        self.latents = latents(config)
        super().__init__(config, spec, self.latents.size)
        self.encoder = self.net("encoder", spec.obs_size, self.latents.outputs)
        self.following = self.net("next latent", self.size + spec.actions, self.latents.outputs)
        self.decoder = self.net("decoder", self.size, spec.obs_size * (2 if config.learn_obs_variance else 1))
        self.optimizer = adam(config, list(self.parameters()), config.model_alpha)
        features = self.latents.features
        self.draw: Callable[..., Tensor] = Streams.normal if self.latents.normal else Streams.uniform
        self.noise: Shapes = {
            "fit": (config.batch_size, features), "begin": (spec.starts, features), "step": (spec.starts, features),
            "encode": (1, features),
        }  # fmt: skip

    def encode(self, obs: Tensor, noise: Noise) -> Tensor:
        assert noise is not None
        return self.latents.draw(self.latents.params(self.encoder(obs), encoder=True), noise)

    def fit(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        assert noise is not None
        both = self.encoder(torch.cat((batch.obs, batch.next_obs), 1))
        count = batch.action.shape[1]
        now, later = (self.latents.params(half, encoder=True) for half in both.split(count, 1))
        latent = self.latents.draw(now, noise)
        x = with_action(latent, batch.action, self.spec.actions)
        losses = self.heads(x, batch)
        losses["obs"] = self._nll(self.decoder(latent), batch.obs) * batch.continues
        predicted = self.latents.params(self.following(x), encoder=False)
        # One divergence, two gradients: the prediction's and the encoder's, each with the other held fast.
        losses["kl"] = self.latents.kl(_held(later), predicted)
        losses["kl_posterior"] = self.latents.kl(later, _held(predicted))
        config = self.config
        if config.posterior_entropy_weight:
            losses["kl_base"] = self.latents.kl_to_base(now)
        weights = {
            "obs": config.obs_prediction_weight, "kl": config.KL_prior_weight,
            "kl_posterior": config.KL_posterior_weight, "kl_base": config.posterior_entropy_weight,
        }  # fmt: skip
        means = self.descend(losses, self.head_weights | weights)
        means.pop("kl_posterior")  # the same number as kl
        return means

    def begin(self, start: Batch, noise: Noise) -> tuple[Tensor, Tensor]:
        latent = self.encode(start.obs, noise)
        return latent, latent

    def step(self, state: Tensor, action: Tensor, noise: Noise) -> tuple[Tensor, Tensor, None]:
        assert noise is not None
        outputs = self.following(with_action(state, action, self.spec.actions))
        state = self.latents.draw(self.latents.params(outputs, encoder=False), noise)
        return state, state, None

    def _nll(self, outputs: Tensor, obs: Tensor) -> Tensor:
        if self.spec.bits:
            return bit_nll(outputs, obs).sum(2)
        if not self.config.learn_obs_variance:
            return gaussian_nll(obs, outputs).sum(2)
        mean, raw = outputs.split(self.spec.obs_size, 2)
        return gaussian_nll(obs, mean, torch.nn.functional.softplus(raw)).sum(2)


def _held(params: Params) -> Params:
    """A distribution that no gradient goes into."""
    return tuple(each.detach() for each in params)
