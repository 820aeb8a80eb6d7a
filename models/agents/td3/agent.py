"""TD3 and DDPG for M members in lockstep."""

import torch
from torch import Tensor, nn

from models.critics import polyak_update
from models.off_policy import TwinCriticAgent
from models.streams import Streams


class Agent(TwinCriticAgent):
    """TD3: the TD target is ``r + discount * min Q_target(s', a')``, and a' is the target actor's action with clipped
    noise.

    After every ``policy_delay`` updates of a member's critics, the actor makes a step that raises the first critic's
    value, and all target networks are updated.

    Source: Fujimoto et al. 2018, algorithm 1.
    """

    per_member = (*TwinCriticAgent.per_member, "target_parameters")

    def _initial(self, streams: Streams) -> Tensor:
        """Return initial weights of the actor, ``[M, D]``. Also create the target actor, with the same weights."""
        weights = super()._initial(streams)
        self.target_parameters = nn.Parameter(weights.clone(), requires_grad=False)
        return weights

    def _update_views(self) -> None:
        super()._update_views()
        self._target_actor = self.network.layers(self.target_parameters[:, : self.network.size])

    def _explore(self, outputs: Tensor) -> Tensor:
        """Return action vectors ``[M, E, A]`` with noise, in [-1, 1], for the actor's ``outputs [M, A, E]``."""
        noise = self.random_numbers["explore"]
        return torch.add(outputs.transpose(1, 2).tanh(), noise, alpha=self.config.action_std).clamp(-1, 1)

    def play(self, outputs: Tensor, streams: Streams | None) -> Tensor:
        """Return action vectors ``[M, E, A]`` for ``outputs [M, A, E]``: greedy, or with noise from ``streams``."""
        vectors = outputs.transpose(1, 2).tanh()
        if streams is None:
            return vectors
        noise = streams.normal(*vectors.shape[1:])
        return torch.add(vectors, noise, alpha=self.config.action_std).clamp(-1, 1)

    def next_q(self, next_obs: Tensor, random_numbers: dict[str, Tensor]) -> Tensor:
        """Return ``min Q_target(s', a')`` for the target action a', ``next_obs [M, O, B] -> [M, B]``."""
        outputs = self.network.forward(self._target_actor, next_obs)[-1]
        target_action = self._target_action(outputs, random_numbers)
        return self.critics.target_values(torch.cat([next_obs, target_action], 1))

    def _target_action(self, outputs: Tensor, random_numbers: dict[str, Tensor]) -> Tensor:
        """Return the target actor's actions with clipped noise, from its network's ``outputs``, ``[M, A, B]`` both."""
        return outputs.tanh().add_(self._target_noise(random_numbers)).clamp_(-1, 1)

    def _target_noise(self, random_numbers: dict[str, Tensor]) -> Tensor:
        """Return clipped noise on the target action, ``[M, A, B]``, from the normal numbers ``next``."""
        max_noise = self.config.policy_std_clip
        return (random_numbers["next"] * self.config.policy_std).clamp_(-max_noise, max_noise)

    def improve(self, obs: Tensor, random_numbers: dict[str, Tensor], learning: Tensor | None) -> None:
        """Update actor and target networks on ``obs [M, O, B]``, in the members ``learning [M]`` bool (None: all) whose
        critics' number of updates is a multiple of ``policy_delay``."""
        is_due = self.critics.optimizer.count % self.config.policy_delay == 0
        if learning is not None:
            is_due = is_due & learning
        if not is_due.any():
            return
        active = None if is_due.all() else is_due  # None: all members
        self.optimizer.update(self._actor_gradient(obs, random_numbers), active)
        polyak_update(self.target_parameters, self.flat_parameters, self.config.tau, active)
        self.critics.update_targets(self.config.tau, active)

    def _actor_gradient(self, obs: Tensor, random_numbers: dict[str, Tensor]) -> Tensor:
        """Return the gradient ``[M, D]`` of the actor's loss on ``obs [M, O, B]``: the negative mean of the first
        critic's values of the actor's actions. ``random_numbers`` are for subclasses."""
        activations = self.network.forward(self._actor, obs)
        action = activations[-1].tanh()
        pair_gradient = self.critics.q1_gradient(torch.cat([obs, action], 1))
        action_gradient = pair_gradient[:, self.obs_size :].neg()
        output_gradient = torch.ops.aten.tanh_backward(action_gradient, action)
        gradient, _ = self.network.backward(self._actor, obs, activations, output_gradient)
        return gradient
