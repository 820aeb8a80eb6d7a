"""TD3 and DDPG for M members (independent agents, one per seed) in lockstep. `models.off_policy` explains the other
letters in shapes."""

import torch
from torch import Tensor, nn

from models.off_policy import TwinCriticAgent
from models.optim import polyak_update
from models.streams import Streams


class Agent(TwinCriticAgent):
    """TD3. The TD target is ``r + discount * min Q_target(s', a')``, and a' is the action of the target actor with
    clipped noise. After every ``policy_delay`` updates of the critics of a member, the actor makes a gradient step that
    raises the value of the first critic, and all target networks are updated. Source: Fujimoto et al. 2018, algorithm
    1."""

    def _initial_weights(self, streams: Streams) -> Tensor:
        """Return initial weights of the actor. Also create the target actor, with the same weights."""
        weights = super()._initial_weights(streams)
        self.target_parameters = nn.Parameter(weights.clone(), requires_grad=False)
        return weights

    def _explore(self, outputs: Tensor, random_numbers: dict[str, Tensor]) -> Tensor:
        """Return action vectors ``[M, E, A]`` with noise, in [-1, 1], for the actor's ``outputs [M, E, A]``."""
        return torch.add(outputs.tanh(), random_numbers["explore"], alpha=self.config.action_std).clamp(-1, 1)

    def evaluation_vectors(self, outputs: Tensor, streams: Streams | None) -> Tensor:
        if streams is None:
            return outputs.tanh()
        return self._explore(outputs, {"explore": streams.normal(*outputs.shape[1:])})

    def next_q(self, next_obs: Tensor, random_numbers: dict[str, Tensor]) -> Tensor:
        """Return ``min Q_target(s', a')`` for the target action a', ``next_obs [M, B, O] -> [M, B]``."""
        outputs = self.actor(self.target_parameters, next_obs)
        return self.critics.target_values(next_obs, self._target_action(outputs, random_numbers))

    def _target_action(self, outputs: Tensor, random_numbers: dict[str, Tensor]) -> Tensor:
        """Return the target actor's actions with clipped noise, ``[M, B, A]``, for ``outputs [M, B, A]``."""
        return (outputs.tanh() + self._target_noise(random_numbers)).clamp(-1, 1)

    def _target_noise(self, random_numbers: dict[str, Tensor]) -> Tensor:
        """Return clipped noise on the target action, ``[M, B, A]``, from the normal numbers ``next [M, A, B]``."""
        max_noise = self.config.policy_std_clip
        noise = random_numbers["next"].transpose(1, 2) * self.config.policy_std
        return noise.clamp(-max_noise, max_noise)

    def update_actor(self, obs: Tensor, random_numbers: dict[str, Tensor], learning: Tensor | None) -> None:
        """Update actor and target networks of members whose critics have made a multiple of ``policy_delay``
        updates."""
        is_due = self.critics.optimizer.count % self.config.policy_delay == 0
        if learning is not None:
            is_due = is_due & learning
        if not is_due.any():
            return
        updated_members = None if is_due.all() else is_due  # None: all members
        self.optimizer.zero_grad()
        self.actor_loss(obs, random_numbers).sum().backward()
        self.optimizer.step(updated_members)
        polyak_update(self.target_parameters, self.flat_parameters, self.config.tau, updated_members)
        self.critics.update_targets(self.config.tau, updated_members)

    def actor_loss(self, obs: Tensor, random_numbers: dict[str, Tensor]) -> Tensor:
        """Return ``-mean Q_1(s, pi(s))`` over ``obs [M, B, O]``, ``[M]``. Q_1 is the first critic, pi the actor."""
        action = self._action(obs, random_numbers)
        return -self.critics.first_values(obs, action).mean(1)

    def _action(self, obs: Tensor, random_numbers: dict[str, Tensor]) -> Tensor:
        """Return the actor's action vectors, ``obs [M, B, O] -> [M, B, A]``. ``random_numbers`` are for subclasses."""
        return self.actor(self.flat_parameters, obs).tanh()

    def actor_metrics(self, obs: Tensor, random_numbers: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"policy_loss": self.actor_loss(obs, random_numbers)}
