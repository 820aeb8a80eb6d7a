"""TD3 for discrete actions, by a Gumbel-softmax, for M members in lockstep."""

import torch
from torch import Tensor, nn

from models.agents.td3 import agent as td3
from models.layers import exp
from models.losses import entropy
from models.spaces import Discrete
from models.streams import Draw, Streams

# With ``gumbel_temperature="annealed"`` (Ferreira et al. 2022): the final temperature as a share of the initial one,
# and the number of updates until then.
FINAL_SHARE, ANNEALING_UPDATES = 0.05, 2000


class Agent(td3.Agent):
    """TD3 with an actor that outputs logits of A actions.

    An action vector is a sample of the Gumbel-softmax, length A, plus normal noise. The index of its largest number is
    the action in the environment. The critics' inputs are vectors; target actions are not clipped.

    Source: Ferreira et al. 2022 and its public code, which samples actions in tests too (``test_noise``); Jang, Gu &
    Poole 2017. If the temperature is learned, its logarithm is an additional weight of the actor, so that the
    temperature is always above 0.
    """

    action_kinds = (Discrete,)
    update_numbers = (*td3.Agent.update_numbers, "next_gumbel", "gumbel")

    def _initial(self, streams: Streams) -> Tensor:
        """Return initial weights of the actor, then the logarithm of the temperature: ``[M, D]``. Also create the
        target actor, with the same weights."""
        log_temperature = torch.tensor(self.config.gumbel_softmax_temp).log()
        weights = torch.cat([self.network.initial(streams), log_temperature.expand(len(streams), 1)], 1)
        self.target_parameters = nn.Parameter(weights.clone(), requires_grad=False)
        return weights

    def _noise_spec(self) -> list[Draw]:
        """Return the random numbers of TD3, and Gumbel noise on logits: of the action (``act_gumbel``) and, for each
        update, of the target actions (``next_gumbel``) and of the actor's actions (``gumbel``)."""
        acting, updating = (self.action_size, self.envs), (self.updates_per_step, self.action_size, self.batch)
        gumbel_shapes = {"act_gumbel": acting, "next_gumbel": updating, "gumbel": updating}
        return [*super()._noise_spec(), (Streams.gumbel, gumbel_shapes)]

    def temperature(self, weights: Tensor) -> Tensor:
        """Return the temperature ``[M, 1, 1]`` of actors with ``weights [M, D]``: fixed, learned or annealed."""
        log_temperature = weights[:, -1].view(-1, 1, 1)
        if self.config.gumbel_temperature == "learned":
            return exp(log_temperature)
        initial = torch.full_like(log_temperature, self.config.gumbel_softmax_temp)
        if self.config.gumbel_temperature == "fixed":
            return initial
        progress = (self.critics.optimizer.count.float() / ANNEALING_UPDATES).clamp(max=1).view(-1, 1, 1)
        return initial * (1 - (1 - FINAL_SHARE) * progress)

    def _explore(self, outputs: Tensor) -> Tensor:
        """Return sampled action vectors with normal noise ``[M, E, A]``, from logits ``outputs [M, A, E]``."""
        temperature = self.temperature(self.flat_parameters)
        _, vectors = self._sample_vectors(outputs, self.random_numbers["act_gumbel"], temperature)
        return torch.add(vectors.transpose(1, 2), self.random_numbers["explore"], alpha=self.config.action_std)

    def _sample_vectors(self, logits: Tensor, gumbel: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
        """Return samples of the Gumbel-softmax and action vectors, ``[M, A, .]`` each, from ``logits`` and ``gumbel``
        noise of the same shape. With ``gumbel_softmax_hard``, vectors are one-hot; otherwise they are the samples."""
        probs = gumbel_softmax(logits, gumbel, temperature)
        vectors = one_hot_argmax(probs, 1) if self.config.gumbel_softmax_hard else probs
        return probs, vectors

    def _random_vectors(self) -> Tensor:
        """Return uniformly random one-hot vectors ``[M, E, A]``."""
        return one_hot_argmax(self.random_numbers["random"], 2)

    def clip(self, vectors: Tensor) -> Tensor:
        """Return the environment's actions ``[M, E]`` int64, the argmax of each of the ``vectors [M, E, A]``."""
        return vectors.argmax(2)

    def play(self, outputs: Tensor, streams: Streams | None) -> Tensor:
        """Return vectors ``[M, E, A]`` for `clip`, from logits ``outputs [M, A, E]``: the logits themselves (greedy)
        or, if there are ``streams``, vectors sampled as in training."""
        if streams is None:
            return outputs.transpose(1, 2)
        gumbel, temperature = streams.gumbel(*outputs.shape[1:]), self.temperature(self.flat_parameters)
        _, vectors = self._sample_vectors(outputs, gumbel, temperature)
        vectors = vectors.transpose(1, 2)
        return torch.add(vectors, streams.normal(*vectors.shape[1:]), alpha=self.config.action_std)

    def _target_action(self, outputs: Tensor, random_numbers: dict[str, Tensor]) -> Tensor:
        """Return the target actor's action vectors with clipped noise, ``[M, A, B]``, from its logits ``outputs``."""
        temperature = self.temperature(self.target_parameters)
        _, vectors = self._sample_vectors(outputs, random_numbers["next_gumbel"], temperature)
        return vectors + self._target_noise(random_numbers)

    def _actor_gradient(self, obs: Tensor, random_numbers: dict[str, Tensor]) -> Tensor:
        """Return the gradient ``[M, D]`` of the actor's loss with respect to its weights and the logarithm of the
        temperature (0 unless it is learned), on ``obs [M, O, B]``. One-hot vectors have the gradient of the softmax
        (straight-through). Store the logits for `metrics`."""
        temperature = self.temperature(self.flat_parameters)
        activations = self.network.forward(self._actor, obs)
        logits, gumbel = activations[-1], random_numbers["gumbel"]
        self.critics.latest["logits"] = logits
        probs, vectors = self._sample_vectors(logits, gumbel, temperature)
        pair_gradient = self.critics.q1_gradient(torch.cat([obs, vectors], 1))
        action_gradient = pair_gradient[:, self.obs_size :].neg()
        logits_gradient = softmax_backward(probs, action_gradient) / temperature
        network_gradient, _ = self.network.backward(self._actor, obs, activations, logits_gradient)
        if self.config.gumbel_temperature == "learned":
            # z = (logits + gumbel) / T, so dz / d log T = -z, and d loss / dz = T d loss / d logits.
            temperature_gradient = -(logits_gradient * (logits + gumbel)).flatten(1).sum(1, keepdim=True)
        else:
            temperature_gradient = network_gradient.new_zeros(len(network_gradient), 1)
        return torch.cat([network_gradient, temperature_gradient], 1)

    def metrics(self) -> dict[str, Tensor]:
        """Return the metrics of TD3, and the entropy of actions without normal noise, ``{tag: [M]}``. The entropy does
        not depend on the temperature: the argmax of logits plus Gumbel noise is a sample of their softmax (Jang et al.
        2017, section 2)."""
        logits = self.critics.latest.get("logits")
        if logits is None:  # no update since the last call
            mean_entropy = torch.full((self.members,), torch.nan)
        else:
            mean_entropy = entropy(logits.transpose(1, 2))
        return super().metrics() | self.mask_non_learners({"train/entropy": mean_entropy})


def gumbel_softmax(logits: Tensor, gumbel: Tensor, temperature: Tensor) -> Tensor:
    """Return ``softmax((logits + gumbel) / temperature)`` over the A actions, ``[M, A, B]`` (Jang et al. 2017, section
    2)."""
    z = (logits + gumbel) / temperature
    exponentials = exp(z - z.amax(1, keepdim=True))
    return exponentials.div_(exponentials.sum(1, keepdim=True))


def softmax_backward(probs: Tensor, gradient: Tensor) -> Tensor:
    """Backpropagate through a softmax over axis 1, from ``gradient`` (d loss / d ``probs``) to d loss / d logits."""
    return probs * (gradient - (probs * gradient).sum(1, keepdim=True))


def one_hot_argmax(values: Tensor, axis: int) -> Tensor:
    """Return 1 at the largest of ``values`` along ``axis`` (the first of several equal ones), 0 elsewhere."""
    argmax = values.argmax(axis, keepdim=True)
    return torch.zeros_like(values).scatter_(axis, argmax, value=1.0)
