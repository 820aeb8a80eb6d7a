"""TD3 and DDPG for M members (independent agents, one per seed) in lockstep. `models.off_policy` explains the other
letters in shapes."""

from typing import ClassVar

import torch
from torch import Tensor

from models.off_policy import TwinCriticAgent
from models.optim import polyak_update
from models.streams import Streams


class Agent(TwinCriticAgent):
    """TD3. The TD target is ``r + discount * min Q_target(s', a')``, and a' is the action of the target actor with
    clipped noise. After every ``policy_delay`` updates of a member's critics, the actor makes a gradient step that
    raises the first critic's value, and all target networks are updated. Source: Fujimoto et al. 2018, algorithm 1."""

    has_target_actor = True
    clips_target: ClassVar[bool] = True  # whether target actions are clipped to [-1, 1]

    def _explore(self, outputs: Tensor, random_numbers: dict[str, Tensor]) -> Tensor:
        return torch.add(outputs.tanh(), random_numbers["explore"], alpha=self.config.action_std).clamp(-1, 1)

    def evaluation_vectors(self, outputs: Tensor, streams: Streams | None) -> Tensor:
        if streams is None:
            return outputs.tanh()
        return self._explore(outputs, {"explore": streams.normal(*outputs.shape[1:])})

    def next_q(self, next_obs: Tensor, random_numbers: dict[str, Tensor]) -> Tensor:
        """Return ``min Q_target(s', a')`` for the target actor's action a' with clipped noise (target policy
        smoothing), ``next_obs [M, B, O] -> [M, B]``. ``random_numbers["next"] [M, A, B]`` are standard normal."""
        outputs, max_noise = self.actor(self.target_parameters, next_obs), self.config.policy_std_clip
        noise = random_numbers["next"].transpose(1, 2) * self.config.policy_std
        action = self._actions(outputs, random_numbers, is_target=True) + noise.clamp(-max_noise, max_noise)
        if self.clips_target:
            action = action.clamp(-1, 1)
        return self.critics.target_values(next_obs, action)

    def _actions(self, outputs: Tensor, random_numbers: dict[str, Tensor], is_target: bool = False) -> Tensor:
        """Convert the actor's ``outputs [M, B, A]`` to actions for the critics, ``[M, B, A]``. Discrete TD3, which
        overrides this method, also needs ``random_numbers``, and whether the target actor computed the outputs."""
        return outputs.tanh()

    def finish_update(self, obs: Tensor, random_numbers: dict[str, Tensor], mask: Tensor | None) -> None:
        is_due = self.critics.optimizer.count % self.config.policy_delay == 0
        if mask is not None:
            is_due = is_due & mask
        if not is_due.any():
            return
        updated_members = None if is_due.all() else is_due  # None: all members
        self.optimizer.zero_grad()
        self.actor_loss(obs, random_numbers).sum().backward()
        self.optimizer.step(updated_members)
        for networks in (self, self.critics):  # the actor, then the critics
            polyak_update(networks.target_parameters, networks.flat_parameters, self.config.tau, updated_members)

    def actor_loss(self, obs: Tensor, random_numbers: dict[str, Tensor]) -> Tensor:
        """Return ``-mean Q_1(s, pi(s))`` over ``obs [M, B, O]``, ``[M]``. Q_1 is the first critic, pi the actor."""
        action = self._actions(self.actor(self.flat_parameters, obs), random_numbers)
        return -self.critics(obs, action, count=1).squeeze(1).mean(1)

    def actor_metrics(self, obs: Tensor, random_numbers: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"policy_loss": self.actor_loss(obs, random_numbers)}
