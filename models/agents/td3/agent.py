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

    def _initial(self, streams: Streams) -> Tensor:
        start = super()._initial(streams)
        self.target_parameters = nn.Parameter(start.clone(), requires_grad=False)
        return start

    def _views(self) -> None:
        super()._views()
        self._target_actor = self.network.layers(self.target_parameters[:, : self.network.size])

    def _explore(self, outputs: Tensor) -> Tensor:
        noise = self.random_numbers["explore"]
        return torch.add(outputs.transpose(1, 2).tanh(), noise, alpha=self.config.action_std).clamp(-1, 1)

    def play(self, outputs: Tensor, streams: Streams | None) -> Tensor:
        vectors = outputs.transpose(1, 2).tanh()
        if streams is None:
            return vectors
        noise = streams.normal(*vectors.shape[1:])
        return torch.add(vectors, noise, alpha=self.config.action_std).clamp(-1, 1)

    def next_q(self, next_obs: Tensor, random_numbers: dict[str, Tensor]) -> Tensor:
        outputs = self.network.forward(self._target_actor, next_obs)[-1]
        return self.critics.target_values(torch.cat([next_obs, self._target_action(outputs, random_numbers)], 1))

    def _target_action(self, outputs: Tensor, random_numbers: dict[str, Tensor]) -> Tensor:
        """Return the target actor's actions with clipped noise, ``[M, A, B]``, from its network's ``outputs``."""
        return outputs.tanh().add_(self._smoothing(random_numbers)).clamp_(-1, 1)

    def _smoothing(self, random_numbers: dict[str, Tensor]) -> Tensor:
        """Return clipped noise on the target action, ``[M, A, B]``."""
        max_noise = self.config.policy_std_clip
        return (random_numbers["next"] * self.config.policy_std).clamp_(-max_noise, max_noise)

    def improve(self, obs: Tensor, random_numbers: dict[str, Tensor], learning: Tensor | None) -> None:
        due_members = self.critics.optimizer.count % self.config.policy_delay == 0
        due_members = due_members if learning is None else due_members & learning
        if not due_members.any():
            return
        active = None if due_members.all() else due_members
        self.optimizer.update(self._slope(obs, random_numbers), active)
        polyak_update(self.target_parameters, self.flat_parameters, self.config.tau, active)
        self.critics.update_targets(self.config.tau, active)

    def _slope(self, obs: Tensor, random_numbers: dict[str, Tensor]) -> Tensor:
        """Return the gradient ``[M, D]`` of the actor's loss, minus the mean value of its actions."""
        activations = self.network.forward(self._actor, obs)
        action = activations[-1].tanh()
        policy_gradient = self.critics.q1_gradient(torch.cat([obs, action], 1))[:, self.obs_size :]
        gradient = torch.ops.aten.tanh_backward(policy_gradient.neg(), action)
        return self.network.backward(self._actor, obs, activations, gradient)[0]

    def select(self, members: Tensor) -> None:
        self.target_parameters = nn.Parameter(self.target_parameters[members], requires_grad=False)
        super().select(members)
