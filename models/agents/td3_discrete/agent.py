"""TD3 for discrete actions, by a Gumbel-softmax, for M members in lockstep."""

import torch
from torch import Tensor, nn

from models.agents.td3 import agent as td3
from models.layers import exp
from models.losses import entropy
from models.spaces import Discrete
from models.streams import Draw, Streams

ANNEALED_TO, WITHIN = 0.05, 2000  # the final share of the temperature, and the number of updates until then [F]


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
        start = self.network.initial(streams)
        level = torch.tensor(self.config.gumbel_softmax_temp).log()
        start = torch.cat([start, level.expand(len(streams), 1)], 1)
        self.target_parameters = nn.Parameter(start.clone(), requires_grad=False)
        return start

    def _noise_spec(self) -> list[Draw]:
        batch = (self.updates_per_step, self.action_size, self.batch)
        gumbel_shapes = {"act_gumbel": (self.action_size, self.envs), "next_gumbel": batch, "gumbel": batch}
        return [*super()._noise_spec(), (Streams.gumbel, gumbel_shapes)]

    def temperature(self, weights: Tensor) -> Tensor:
        """Return the temperature ``[M, 1, 1]`` of actors with ``weights [M, D]``."""
        level = weights[:, -1].view(-1, 1, 1)
        if self.config.gumbel_temperature == "learned":
            return exp(level)
        start = torch.full_like(level, self.config.gumbel_softmax_temp)
        if self.config.gumbel_temperature == "fixed":
            return start
        done = (self.critics.optimizer.count.float() / WITHIN).clamp(max=1).view(-1, 1, 1)
        return start * (1 - (1 - ANNEALED_TO) * done)

    def _explore(self, outputs: Tensor) -> Tensor:
        soft, vectors = self._vectors(
            outputs, self.random_numbers["act_gumbel"], self.temperature(self.flat_parameters)
        )
        return torch.add(vectors.transpose(1, 2), self.random_numbers["explore"], alpha=self.config.action_std)

    def _vectors(self, outputs: Tensor, gumbel: Tensor, heat: Tensor) -> tuple[Tensor, Tensor]:
        """Return samples of the Gumbel-softmax and action vectors, ``[M, A, .]`` each. With ``gumbel_softmax_hard``,
        vectors are one-hot; otherwise the two are equal."""
        soft = gumbel_softmax(outputs, gumbel, heat)
        return soft, one_hot(soft, 1) if self.config.gumbel_softmax_hard else soft

    def _at_random(self) -> Tensor:
        return one_hot(self.random_numbers["random"], 2)

    def clip(self, vectors: Tensor) -> Tensor:
        return vectors.argmax(2)

    def play(self, outputs: Tensor, streams: Streams | None) -> Tensor:
        """Return logits ``[M, E, A]``, or vectors sampled as in training if there are ``streams``."""
        if streams is None:
            return outputs.transpose(1, 2)
        vectors = self._vectors(outputs, streams.gumbel(*outputs.shape[1:]), self.temperature(self.flat_parameters))[1]
        noise = streams.normal(*vectors.transpose(1, 2).shape[1:])
        return torch.add(vectors.transpose(1, 2), noise, alpha=self.config.action_std)

    def _target_action(self, outputs: Tensor, random_numbers: dict[str, Tensor]) -> Tensor:
        vectors = self._vectors(outputs, random_numbers["next_gumbel"], self.temperature(self.target_parameters))[1]
        return vectors + self._smoothing(random_numbers)

    def _slope(self, obs: Tensor, random_numbers: dict[str, Tensor]) -> Tensor:
        activations, heat = self.network.forward(self._actor, obs), self.temperature(self.flat_parameters)
        self.critics.latest["logits"] = activations[-1]
        soft, vectors = self._vectors(activations[-1], random_numbers["gumbel"], heat)
        policy_gradient = self.critics.q1_gradient(torch.cat([obs, vectors], 1))[:, self.obs_size :]
        gradient = softmax_slope(soft, policy_gradient.neg()) / heat
        of_network = self.network.backward(self._actor, obs, activations, gradient)[0]
        if self.config.gumbel_temperature == "learned":
            # z = (l + g) / T, so dz / d log T = -z. ``gradient`` is d loss / dz / T.
            of_level = -(gradient * (activations[-1] + random_numbers["gumbel"])).flatten(1).sum(1, keepdim=True)
        else:
            of_level = of_network.new_zeros(len(of_network), 1)
        return torch.cat([of_network, of_level], 1)

    def metrics(self) -> dict[str, Tensor]:
        """Return the metrics of TD3, and the entropy of actions without normal noise. It does not depend on the
        temperature: the argmax of logits plus Gumbel noise is a sample of their softmax (Jang et al. 2017, section
        2)."""
        logits = self.critics.latest.get("logits")
        nan_values = torch.full((self.members,), torch.nan)
        entropy_metrics = {"train/entropy": nan_values if logits is None else entropy(logits.transpose(1, 2))}
        return super().metrics() | self.mask_non_learners(entropy_metrics)


def gumbel_softmax(logits: Tensor, gumbel: Tensor, temperature: Tensor) -> Tensor:
    """Return ``softmax((logits + gumbel) / temperature)`` over the A actions, ``[M, A, B]`` (Jang et al. 2017, section
    2)."""
    logits = (logits + gumbel) / temperature
    powers = exp(logits - logits.amax(1, keepdim=True))
    return powers.div_(powers.sum(1, keepdim=True))


def softmax_slope(soft: Tensor, gradient: Tensor) -> Tensor:
    """Backpropagate through a softmax over A actions: from d loss / d ``soft`` to d loss / d scores."""
    return soft * (gradient - (soft * gradient).sum(1, keepdim=True))


def one_hot(values: Tensor, axis: int) -> Tensor:
    """Return 1 at the largest of ``values`` along ``axis`` (the first of several equal ones), 0 elsewhere."""
    best = values.argmax(axis, keepdim=True)
    return torch.zeros_like(values).scatter_(axis, best, 1.0)
