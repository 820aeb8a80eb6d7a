"""What imagines: the world itself, a model of observations, a model of latent states.

Each says what the action values see (``[M, B, size]``), learns from a batch (`fit`), and advances an imagined rollout
step by step. Rewards and ends of the learned models depend on states and actions alone, so they are asked for once a
rollout, in `outcomes`, and not once a step.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from models.agents.model_generalisation.config import Config
from models.agents.model_generalisation.draws import Shapes
from models.agents.model_generalisation.latents import Parts, latents
from models.agents.model_generalisation.networks import adam, network, with_action
from models.agents.model_generalisation.replay import Batch
from models.layers import sigmoid
from models.losses import bit_nll, gaussian_nll
from models.mlp import MlpNetwork
from models.streams import Streams

Numbers = dict[str, Tensor]
"""Random numbers by name, of one update, or of one step of a rollout."""


@dataclass(frozen=True)
class Given:
    """What a learned model is made for: ``obs_size`` numbers or ``bits``, ``actions``, rollouts from ``starts`` rows of
    a batch, members ``seeds``."""

    obs_size: int
    actions: int
    bits: bool
    starts: int
    seeds: list[int]
    device: torch.device


def part(drawn: Numbers, when: str) -> Numbers:
    """The numbers of one moment by what they are for, of names ``<when> <what>``."""
    return {name.removeprefix(f"{when} "): value for name, value in drawn.items() if name.startswith(f"{when} ")}


class Imagination(Protocol):
    """``wanted`` are the random numbers, all of one ``kind`` of `Draws`: ``fit`` and ``begin`` an update, ``step`` a
    step of its rollouts, ``see`` an observation."""

    size: int
    kind: str
    wanted: dict[str, Shapes]

    def see(self, obs: Tensor, numbers: Numbers) -> Tensor:
        """What the action values see of observations ``[M, B, O]``."""
        ...

    def fit(self, batch: Batch, numbers: Numbers) -> dict[str, Tensor]:
        """One update of the model; its losses ``[M]`` by name, unweighted, in nats."""
        ...

    def begin(self, start: Any, numbers: Numbers) -> tuple[Any, Tensor]:
        """Rollouts from ``start``: what the model goes on from, and what is seen."""
        ...

    def step(self, state: Any, action: Tensor, numbers: Numbers) -> tuple[Any, Tensor, Any]:
        """The next of both after ``action [M, B]``, and what `outcomes` wants of this step."""
        ...

    def outcomes(self, seen: Tensor, action: Tensor, kept: list[Any]) -> tuple[Tensor, Tensor]:
        """Rewards, and probabilities that the episode goes on, of all T steps: ``[M, T B]`` each."""
        ...


def kept_of(dynamics: Any) -> tuple[Tensor, int]:
    """A state ``[K]`` of a world, and how many of its first columns need no remembering: seed and time, from which
    only the real world takes its chance."""
    if hasattr(dynamics, "advance"):
        return torch.zeros(dynamics.state_size, dtype=torch.int64), 2
    return dynamics.initial(torch.zeros(1, 1, dtype=torch.int64))[0, 0], 0


class Perfect(nn.Module):
    """The world itself, its chance drawn anew (Young et al. 2023, "perfect model"). ``dynamics`` is an
    `envs.tensor.ChanceDynamics`, or a `Dynamics` without chance, on the device of the states."""

    def __init__(self, config: Config, dynamics: Any, obs_size: int, starts: int):
        super().__init__()
        self.size, self.dynamics = obs_size, dynamics
        self.chances: int = getattr(dynamics, "chances", 0)
        self.kind = "uniform"
        self.wanted: dict[str, Shapes] = {"step": {"chance": (starts, self.chances)}} if self.chances else {}

    def see(self, obs: Tensor, numbers: Numbers) -> Tensor:
        return obs

    def fit(self, batch: Batch, numbers: Numbers) -> dict[str, Tensor]:
        return {}

    def begin(self, start: Tensor, numbers: Numbers) -> tuple[Tensor, Tensor]:
        """``start`` are states ``[M, B, K]``."""
        return start, self.dynamics.observe(start)

    def step(self, state: Tensor, action: Tensor, numbers: Numbers) -> tuple[Tensor, Tensor, Any]:
        if self.chances:
            state, reward, terminated, _ = self.dynamics.advance(state, action, numbers["chance"])
        else:
            state, reward, terminated, _ = self.dynamics.step(state, action)
        return state, self.dynamics.observe(state), (reward, terminated)

    def outcomes(self, seen: Tensor, action: Tensor, kept: list[Any]) -> tuple[Tensor, Tensor]:
        rewards, terminated = zip(*kept, strict=True)
        return torch.cat(rewards, 1), (~torch.cat(terminated, 1)).float()


class _Learned(nn.Module):
    """Heads of reward (the mean of a normal distribution of deviation 1) and of going on (a logit), on states seen and
    one-hot actions, and the step of the optimiser all the model's networks share."""

    def __init__(self, config: Config, given: Given, size: int):
        super().__init__()
        self.config, self.given, self.size = config, given, size
        self.reward = self.net("reward", size + given.actions, 1)
        self.termination = self.net("termination", size + given.actions, 1)

    def net(self, name: str, inputs: int, outputs: int) -> MlpNetwork:
        """A network with weights of its own stream."""
        streams = Streams.named(self.given.seeds, f"weights of {name}")
        return network(self.config, inputs, outputs, streams, self.given.device)

    def optimise(self) -> None:
        """Make the optimiser, when all networks are there."""
        self.optimizer = adam(self.config, list(self.parameters()), self.config.model_alpha)

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
            "termination": bit_nll(self.termination(x)[..., 0], batch.going_on),
        }

    @property
    def head_weights(self) -> dict[str, float]:
        return {"reward": self.config.reward_weight, "termination": self.config.termination_weight}

    def outcomes(self, seen: Tensor, action: Tensor, kept: list[Any]) -> tuple[Tensor, Tensor]:
        x = with_action(seen, action, self.given.actions)
        return self.reward(x)[..., 0], sigmoid(self.termination(x)[..., 0])


class Simple(_Learned):
    """A model of observations: each number of the next one by itself, a bit with its own probability, or a normal
    variable of deviation 1."""

    def __init__(self, config: Config, given: Given):
        super().__init__(config, given, given.obs_size)
        self.following = self.net("next observation", self.size + given.actions, self.size)
        self.optimise()
        self.kind = "uniform" if given.bits else "normal"
        self.wanted: dict[str, Shapes] = {"step": {"next": (given.starts, self.size)}}

    def see(self, obs: Tensor, numbers: Numbers) -> Tensor:
        return obs

    def fit(self, batch: Batch, numbers: Numbers) -> dict[str, Tensor]:
        x = with_action(batch.obs, batch.action, self.given.actions)
        losses = self.heads(x, batch)
        nll = bit_nll if self.given.bits else gaussian_nll
        losses["obs"] = nll(self.following(x), batch.next_obs).sum(2) * batch.going_on
        return self.descend(losses, self.head_weights | {"obs": self.config.obs_prediction_weight})

    def begin(self, start: Batch, numbers: Numbers) -> tuple[Tensor, Tensor]:
        return start.obs, start.obs

    def step(self, state: Tensor, action: Tensor, numbers: Numbers) -> tuple[Tensor, Tensor, None]:
        outputs, noise = self.following(with_action(state, action, self.given.actions)), numbers["next"]
        if not self.given.bits:
            state = outputs + noise
        else:
            # The original's draw takes the logit for the probability, which makes of it a threshold near 1/2.
            probability = outputs if self.config.logit_is_probability else sigmoid(outputs)
            state = (noise < probability).to(outputs.dtype)
        return state, state, None


class Latent(_Learned):
    """A model of latent states: an encoder of observations, a prediction of the next latent, a decoder that only
    teaches. Everybody sees draws, never means."""

    def __init__(self, config: Config, given: Given):
        self.latents = latents(config)
        super().__init__(config, given, self.latents.size)
        self.encoder = self.net("encoder", given.obs_size, self.latents.outputs)
        self.following = self.net("next latent", self.size + given.actions, self.latents.outputs)
        self.decoder = self.net("decoder", self.size, given.obs_size * (2 if config.learn_obs_variance else 1))
        self.optimise()
        features = self.latents.features
        self.kind = "normal" if self.latents.normal else "uniform"
        self.wanted: dict[str, Shapes] = {
            "fit": {"encoded": (config.batch_size, features)},
            "begin": {"start": (given.starts, features)},
            "step": {"next": (given.starts, features)},
            "see": {"seen": (1, features)},
        }

    def see(self, obs: Tensor, numbers: Numbers) -> Tensor:
        return self.latents.draw(self.latents.parts(self.encoder(obs), encoder=True), numbers["seen"])

    def fit(self, batch: Batch, numbers: Numbers) -> dict[str, Tensor]:
        both = self.encoder(torch.cat((batch.obs, batch.next_obs), 1))
        count = batch.action.shape[1]
        now, later = (self.latents.parts(half, encoder=True) for half in both.split(count, 1))
        latent = self.latents.draw(now, numbers["encoded"])
        x = with_action(latent, batch.action, self.given.actions)
        losses = self.heads(x, batch)
        losses["obs"] = self._nll(self.decoder(latent), batch.obs) * batch.going_on
        predicted = self.latents.parts(self.following(x), encoder=False)
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

    def begin(self, start: Batch, numbers: Numbers) -> tuple[Tensor, Tensor]:
        latent = self.see(start.obs, {"seen": numbers["start"]})
        return latent, latent

    def step(self, state: Tensor, action: Tensor, numbers: Numbers) -> tuple[Tensor, Tensor, None]:
        outputs = self.following(with_action(state, action, self.given.actions))
        state = self.latents.draw(self.latents.parts(outputs, encoder=False), numbers["next"])
        return state, state, None

    def _nll(self, outputs: Tensor, obs: Tensor) -> Tensor:
        if self.given.bits:
            return bit_nll(outputs, obs).sum(2)
        if not self.config.learn_obs_variance:
            return gaussian_nll(obs, outputs).sum(2)
        mean, raw = outputs.split(self.given.obs_size, 2)
        return gaussian_nll(obs, mean, torch.nn.functional.softplus(raw)).sum(2)


def _held(parts: Parts) -> Parts:
    """A distribution that no gradient goes into."""
    return tuple(each.detach() for each in parts)
