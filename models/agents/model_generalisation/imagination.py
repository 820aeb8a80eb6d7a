"""Models that imagine rollouts: the environment itself, a model of observations, a model of latent states.

Shapes: M members, B rows of a batch, O numbers of an observation, A actions, T steps of a rollout.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.agents.model_generalisation.config import Config
from models.agents.model_generalisation.experience import Batch
from models.agents.model_generalisation.latents import Params, latents
from models.agents.model_generalisation.values import ActionValues, Update, adam, explore, network, one_hot
from models.layers import sigmoid
from models.losses import bit_nll, gaussian_nll
from models.mlp import MlpNetwork
from models.optim import AdamW
from models.streams import Shapes, Streams

Noise = Tensor | None
"""Random numbers ``[M, ...]`` of one call, shaped as `Imagination.noise` says; None where it needs none."""


@dataclass(frozen=True)
class ModelSpec:
    """Sizes of a learned model. Observations have ``obs_size`` numbers, or bits if ``bits``; ``starts`` rollouts start
    in each update; ``seeds`` are the members' seeds."""

    obs_size: int
    actions: int
    bits: bool
    starts: int
    seeds: list[int]
    device: torch.device


class Imagination(nn.Module):
    """Encodes observations as inputs of the action values, learns from a batch (`fit`), and advances an imagined
    rollout step by step. This base class has no model: inputs are the observations, of ``size`` numbers.

    ``noise`` maps a method's name to the shape of the random numbers that it needs; ``sample`` samples them.
    ``optimizer`` is None if there is nothing to learn.
    """

    draw: Callable[..., Tensor] = staticmethod(Streams.uniform)
    optimizer: AdamW | None = None

    def __init__(self, size: int):
        super().__init__()
        self.size = size
        self.noise: Shapes = {}

    def encode(self, obs: Tensor, noise: Noise) -> Tensor:
        """Return the inputs of the action values ``[M, B, size]`` for observations ``[M, B, O]``."""
        return obs

    def fit(self, batch: Any, noise: Noise) -> dict[str, Tensor]:
        """Update the model once. Return its unweighted losses ``[M]`` by name, in nats."""
        return {}

    def begin(self, start: Any, noise: Noise) -> tuple[Any, Tensor]:
        """Return the first state of rollouts from the batch ``start``, and the inputs of the action values there."""
        features = self.encode(start.obs, noise)
        return features, features

    def step(self, state: Any, action: Tensor, noise: Noise) -> tuple[Any, Tensor, Any]:
        """Return the state and the inputs after ``action [M, B]``, and a record of this step for `outcomes`."""
        raise NotImplementedError

    def outcomes(self, features: Tensor, action: Tensor, records: list[Any]) -> tuple[Tensor, Tensor]:
        """Return the rewards of all T steps and the probabilities that the episode continues, ``[M, T B]`` each.
        Learned models compute them once per rollout, from ``features [M, T B, size]`` and ``action [M, T B]``."""
        raise NotImplementedError


class Perfect(Imagination):
    """The environment itself with new random events (Young et al. 2023, "perfect model"). ``dynamics`` is an
    `envs.tensor.ChanceDynamics` or a deterministic `Dynamics`, on the device of the states."""

    def __init__(self, dynamics: Any, obs_size: int, starts: int):
        super().__init__(obs_size)
        self.dynamics = dynamics
        if chances := getattr(dynamics, "chances", 0):
            self.noise = {"step": (starts, chances)}

    def begin(self, start: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """Start from states ``[M, B, K]``."""
        return start, self.dynamics.observe(start)

    def step(self, state: Tensor, action: Tensor, noise: Noise) -> tuple[Tensor, Tensor, Any]:
        moved = self.dynamics.step(state, action) if noise is None else self.dynamics.advance(state, action, noise)
        state, reward, terminated, _ = moved
        return state, self.dynamics.observe(state), (reward, terminated)

    def outcomes(self, features: Tensor, action: Tensor, records: list[Any]) -> tuple[Tensor, Tensor]:
        rewards, terminated = zip(*records, strict=True)
        return torch.cat(rewards, 1), (~torch.cat(terminated, 1)).float()


class _Learned(Imagination):
    """Base class of learned models: heads for the reward (mean of a normal distribution with standard deviation 1) and
    for the logit of continuing. Their inputs are the inputs of the action values and a one-hot action. ``optimizer``
    updates all of the model's networks, and ``weights`` are the losses' weights by name."""

    optimizer: AdamW

    def __init__(self, config: Config, spec: ModelSpec, size: int):
        super().__init__(size)
        self.config, self.spec = config, spec
        self.reward = self.net("reward", size + spec.actions, 1)
        self.termination = self.net("termination", size + spec.actions, 1)
        self.weights = {
            "reward": config.reward_weight,
            "termination": config.termination_weight,
            "obs": config.obs_prediction_weight,
            "kl": config.KL_prior_weight,
            "kl_posterior": config.KL_posterior_weight,
            "kl_base": config.posterior_entropy_weight,
        }

    def net(self, name: str, inputs: int, outputs: int) -> MlpNetwork:
        """Build a network with initial weights from the random stream of its ``name``."""
        streams = Streams.from_name(self.spec.seeds, f"weights of {name}")
        return network(self.config, inputs, outputs, streams, self.spec.device)

    def with_action(self, x: Tensor, action: Tensor) -> Tensor:
        """Append the one-hot ``action [M, B]`` to ``x [M, B, X]``: ``[M, B, X + A]``."""
        return torch.cat((x, one_hot(action, self.spec.actions).to(x.dtype)), 2)

    def heads(self, x: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the losses ``[M, B]`` of the heads; ``x`` is the result of `with_action`."""
        return {
            "reward": gaussian_nll(batch.reward, self.reward(x)[..., 0]),
            "termination": bit_nll(self.termination(x)[..., 0], batch.continues),
        }

    def update_model(self, losses: dict[str, Tensor]) -> dict[str, Tensor]:
        """Take one gradient step on the weighted sum of ``losses [M, B]``. Return their means ``[M]``."""
        means = {name: loss.mean(1) for name, loss in losses.items()}
        total = sum(self.weights[name] * mean for name, mean in means.items() if self.weights[name])
        total = total if isinstance(total, Tensor) else 0 * means["reward"]
        # A loss of weight 0 gives its network zero gradients. Adam's moments and weight decay still act on it.
        grads = torch.autograd.grad(total.sum(), self.optimizer.params, allow_unused=True, materialize_grads=True)
        self.optimizer.update(grads)
        return {name: mean.detach() for name, mean in means.items()}

    def outcomes(self, features: Tensor, action: Tensor, records: list[Any]) -> tuple[Tensor, Tensor]:
        x = self.with_action(features, action)
        return self.reward(x)[..., 0], sigmoid(self.termination(x)[..., 0])


class Simple(_Learned):
    """A model of observations. It predicts each number of the next observation independently: the probability of a bit,
    or the mean of a normal variable with standard deviation 1."""

    def __init__(self, config: Config, spec: ModelSpec):
        super().__init__(config, spec, spec.obs_size)
        self.following = self.net("next observation", self.size + spec.actions, self.size)
        self.optimizer = adam(config, list(self.parameters()), config.model_lr)
        self.draw = Streams.uniform if spec.bits else Streams.normal
        self.noise = {"step": (spec.starts, self.size)}

    def fit(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        x = self.with_action(batch.obs, batch.action)
        nll = bit_nll if self.spec.bits else gaussian_nll
        of_obs = nll(self.following(x), batch.next_obs).sum(2) * batch.continues
        return self.update_model(self.heads(x, batch) | {"obs": of_obs})

    def step(self, state: Tensor, action: Tensor, noise: Noise) -> tuple[Tensor, Tensor, None]:
        assert noise is not None
        outputs = self.following(self.with_action(state, action))
        if not self.spec.bits:
            state = outputs + noise
        else:
            # The original code takes the logit for the probability, so a bit is nearly deterministic.
            probability = outputs if self.config.logit_is_probability else sigmoid(outputs)
            state = (noise < probability).to(outputs.dtype)
        return state, state, None


class Latent(_Learned):
    """A model of latent states: an encoder of observations, a predictor of the next latent, and a decoder that serves
    only the loss. Inputs of the action values are sampled latents, never means."""

    def __init__(self, config: Config, spec: ModelSpec):
        self.latents = latents(config)
        super().__init__(config, spec, self.latents.size)
        self.encoder = self.net("encoder", spec.obs_size, self.latents.outputs)
        self.following = self.net("next latent", self.size + spec.actions, self.latents.outputs)
        self.decoder = self.net("decoder", self.size, spec.obs_size * (2 if config.learn_obs_variance else 1))
        self.optimizer = adam(config, list(self.parameters()), config.model_lr)
        self.draw = Streams.normal if self.latents.normal else Streams.uniform
        rows = {"fit": config.batch_size, "begin": spec.starts, "step": spec.starts, "encode": 1}
        self.noise = {name: (count, self.latents.features) for name, count in rows.items()}

    def encode(self, obs: Tensor, noise: Noise) -> Tensor:
        assert noise is not None
        return self.latents.sample(self.latents.params(self.encoder(obs), encoder=True), noise)

    def fit(self, batch: Batch, noise: Noise) -> dict[str, Tensor]:
        assert noise is not None
        encoder_outputs = self.encoder(torch.cat((batch.obs, batch.next_obs), 1))
        halves = encoder_outputs.split(batch.action.shape[1], 1)
        now, next_params = (self.latents.params(half, encoder=True) for half in halves)
        latent = self.latents.sample(now, noise)
        x = self.with_action(latent, batch.action)
        losses = self.heads(x, batch)
        losses["obs"] = self._nll(self.decoder(latent), batch.obs) * batch.continues
        predicted = self.latents.params(self.following(x), encoder=False)
        # One divergence with two weights: first the predictor's gradient, then the encoder's.
        losses["kl"] = self.latents.kl(_stop_gradient(next_params), predicted)
        losses["kl_posterior"] = self.latents.kl(next_params, _stop_gradient(predicted))
        if self.weights["kl_base"]:
            losses["kl_base"] = self.latents.kl_to_base(now)
        means = self.update_model(losses)
        means.pop("kl_posterior")  # the same number as kl
        return means

    def step(self, state: Tensor, action: Tensor, noise: Noise) -> tuple[Tensor, Tensor, None]:
        assert noise is not None
        outputs = self.following(self.with_action(state, action))
        state = self.latents.sample(self.latents.params(outputs, encoder=False), noise)
        return state, state, None

    def _nll(self, outputs: Tensor, obs: Tensor) -> Tensor:
        if self.spec.bits:
            return bit_nll(outputs, obs).sum(2)
        if not self.config.learn_obs_variance:
            return gaussian_nll(obs, outputs).sum(2)
        mean, raw = outputs.split(self.spec.obs_size, 2)
        return gaussian_nll(obs, mean, F.softplus(raw)).sum(2)


def _stop_gradient(params: Params) -> Params:
    """Return a distribution's parameters without gradient."""
    return tuple(param.detach() for param in params)


def imagined(values: ActionValues, model: Imagination, start: Any, random_numbers: dict[str, Tensor]) -> Update:
    """Imagine a rollout of T steps from each row of ``start`` by the exploring policy, and compute the update from all
    steps. A step is weighted by the probability that its episode lasted until then (Young et al. 2023, algorithm 1).
    ``random_numbers`` are the random numbers by name (`Agent.numbers_of_update`).

    It changes nothing, has fixed shapes and never waits for the device, so it can be compiled or captured as a graph.
    """
    config = values.config
    state, features = model.begin(start, random_numbers.get("begin"))
    choices, noise = (
        random_numbers["imagined"].unbind(1),
        random_numbers["step"].unbind(1) if "step" in random_numbers else None,
    )
    every_seen, traces, actions, records = [features], [], [], []
    for step in range(config.rollout_length):
        trace = values.q_network.activations(features)
        action = explore(config, trace[-1], choices[step])
        state, features, outcome = model.step(state, action, None if noise is None else noise[step])
        every_seen.append(features)
        traces.append(trace)
        actions.append(action)
        records.append(outcome)
    # The loss reuses the policy's forward passes, because the values change only after the rollout.
    step_features, traces_together = (
        torch.cat(every_seen[:-1], 1),
        [torch.cat(acts, 1) for acts in zip(*traces, strict=True)],
    )
    rollout_actions = torch.cat(actions, 1)
    reward, continues = model.outcomes(step_features, rollout_actions, records)
    next_q = values.bootstrap_value(torch.cat(every_seen[1:], 1))
    td_target = torch.addcmul(reward, continues, next_q, value=config.discount)
    weight = None
    # The perfect model can end an episode even if ``episodic_env`` is off. Otherwise all weights are 1.
    if config.episodic_env or config.model == "perfect":
        steps = continues.unflatten(1, (config.rollout_length, -1))
        weight = torch.cat((torch.ones_like(steps[:, :1]), steps[:, :-1].cumprod(1)), 1).flatten(1)
    return values.td_update(td_target, step_features, traces_together, rollout_actions, weight)
