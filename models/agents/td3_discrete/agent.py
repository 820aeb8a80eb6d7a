"""TD3 for discrete actions, by a Gumbel-softmax, for M members (independent agents, one per seed) in lockstep.
`models.off_policy` explains the other letters in shapes."""

import torch
from torch import Tensor

from models.agents.td3 import agent as td3
from models.layers import exp
from models.losses import categorical_entropy
from models.spaces import Discrete
from models.streams import Draw, Streams

# With ``gumbel_temperature="annealed"`` (Ferreira et al. 2022): the final temperature divided by the initial
# temperature, and the number of updates after which the final temperature is reached.
FINAL_SHARE, ANNEALING_UPDATES = 0.05, 2000


class Agent(td3.Agent):
    """TD3 with an actor that outputs logits of A actions.

    An action vector is a sample of the Gumbel-softmax, of length A, plus normal noise. The index of its largest number
    is the action in the environment. The critics receive vectors as actions. Target actions are not clipped.

    Source: Ferreira et al. 2022 and its public code, which samples actions in tests too (``test_noise``); Jang, Gu &
    Poole 2017. If the temperature is learned, its logarithm is an additional weight of the actor, so that the
    temperature is always above 0.
    """

    action_kinds = (Discrete,)
    clips_target = False
    log_setting = "gumbel_softmax_temp"
    random_number_names = (*td3.Agent.random_number_names, "next_gumbel", "gumbel")
    metric_names = (*td3.Agent.metric_names, "entropy")

    def _noise_draws(self) -> list[Draw]:
        """Return the random numbers of a step: TD3's, then three kinds of Gumbel noise, which is added to logits. The
        noise ``act_gumbel`` samples actions in the environment. In each update, ``next_gumbel`` samples the target
        actor's actions, and ``gumbel`` samples the actor's."""
        act_shape = (self.action_size, self.envs)
        update_shape = (self.updates_per_step, self.action_size, self.batch_size)
        gumbel_shapes = {"act_gumbel": act_shape, "next_gumbel": update_shape, "gumbel": update_shape}
        return [*super()._noise_draws(), (Streams.gumbel, gumbel_shapes)]

    def temperature(self, weights: Tensor) -> Tensor:
        """Return the temperature ``[M, 1, 1]`` of actors with ``weights [M, D]``: fixed, learned or annealed."""
        log_temperature = weights[:, -1].view(-1, 1, 1)
        if self.config.gumbel_temperature == "learned":
            return exp(log_temperature)
        initial = torch.full_like(log_temperature, self.config.gumbel_softmax_temp)
        if self.config.gumbel_temperature == "fixed":
            return initial
        progress = (self.critics.optimizer.count.float() / ANNEALING_UPDATES).clamp(max=1).view(-1, 1, 1)
        return initial * (1 - (1 - FINAL_SHARE) * progress)  # falls linearly to this share of ``initial``

    def _explore(self, outputs: Tensor, random_numbers: dict[str, Tensor]) -> Tensor:
        vectors = self._sample_vectors(outputs, random_numbers["act_gumbel"], self.flat_parameters)
        return torch.add(vectors, random_numbers["explore"], alpha=self.config.action_std)

    def _sample_vectors(self, logits: Tensor, gumbel: Tensor, weights: Tensor) -> Tensor:
        """Sample action vectors ``[M, B, A]`` from the Gumbel-softmax of ``logits [M, B, A]``, by the standard Gumbel
        noise ``gumbel [M, A, B]``. The actor's ``weights [M, D]`` include the temperature. With
        ``gumbel_softmax_hard``, vectors are one-hot, but have the gradient of soft vectors (straight-through)."""
        probs = ((logits + gumbel.transpose(1, 2)) / self.temperature(weights)).softmax(2)
        if not self.config.gumbel_softmax_hard:
            return probs
        return one_hot_argmax(probs.detach()) + (probs - probs.detach())  # adds 0, with the gradient of ``probs``

    def _random_vectors(self) -> Tensor:
        return one_hot_argmax(self.random_numbers["random"])

    def clip(self, vectors: Tensor) -> Tensor:
        """Return the environment's actions ``[M, E]`` int64, the argmax of each of the ``vectors [M, E, A]``."""
        return vectors.argmax(2)

    def evaluation_vectors(self, outputs: Tensor, streams: Streams | None) -> Tensor:
        if streams is None:
            return outputs
        gumbel = streams.gumbel(self.action_size, outputs.shape[1])  # [M, A, E]
        normal = streams.normal(*outputs.shape[1:])
        return self._explore(outputs, {"act_gumbel": gumbel, "explore": normal})

    def _actions(self, outputs: Tensor, random_numbers: dict[str, Tensor], is_target: bool = False) -> Tensor:
        if is_target:
            return self._sample_vectors(outputs, random_numbers["next_gumbel"], self.target_parameters)
        return self._sample_vectors(outputs, random_numbers["gumbel"], self.flat_parameters)

    def actor_metrics(self, obs: Tensor, random_numbers: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the metrics of TD3, and the entropy of actions without normal noise, ``{name: [M]}``. The temperature
        has no effect on it: the argmax of logits plus Gumbel noise is a sample of their softmax (Jang et al. 2017)."""
        logits = self.actor(self.flat_parameters, obs)
        return super().actor_metrics(obs, random_numbers) | {"entropy": categorical_entropy(logits).mean(1)}


def one_hot_argmax(values: Tensor) -> Tensor:
    """Return 1 at the largest of ``values`` along the last axis (the first if several are equal), 0 elsewhere."""
    return torch.zeros_like(values).scatter_(-1, values.argmax(-1, keepdim=True), value=1.0)
