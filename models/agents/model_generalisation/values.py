"""Action values, their target network and their step towards given goals."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.agents.model_generalisation.config import Config
from models.agents.model_generalisation.networks import adam, network, one_hot
from models.streams import Streams


class ActionValues(nn.Module):
    """Q of M members on what they see, ``[M, B, size] -> [M, B, A]``, with the target network and the optimiser."""

    def __init__(self, config: Config, size: int, actions: int, seeds: Sequence[int], device: torch.device):
        super().__init__()
        self.config, self.actions = config, actions
        self.online = network(config, size, actions, Streams.named(seeds, "weights of values"), device)
        self.target = nn.Parameter(self.online.flat.detach().clone(), requires_grad=False)
        self.optimizer = adam(config, [self.online.flat], config.Q_alpha)

    def forward(self, seen: Tensor) -> Tensor:
        return self.online(seen)

    def copy_to_target(self) -> None:
        """Let the target network be as the online one is now."""
        self.target.copy_(self.online.flat)

    def later(self, seen: Tensor) -> Tensor:
        """What goals count on after a step, ``[M, B, size] -> [M, B]``: the best value by the target network, or, with
        ``double_DQN``, its value of what the online network finds best."""
        values = self.online.trace(seen, self.target if self.config.use_target else None)[-1]
        if not self.config.double_DQN:
            return values.amax(2)
        return values.gather(2, self(seen).argmax(2, keepdim=True)).squeeze(2)

    def towards(
        self, goal: Tensor, seen: Tensor, trace: list[Tensor], action: Tensor, weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The loss ``mean(weight (Q(seen)[action] - goal)^2)`` ``[M]`` and its gradient ``[M, D]``, for ``goal``,
        ``action`` and ``weight`` ``[M, B]``; ``trace`` is what ``online.trace`` gave for ``seen``. The mean divides by
        B whatever the weights are."""
        taken = one_hot(action, self.actions).float()
        error = (trace[-1] * taken).sum(2) - goal
        weighted = error if weight is None else error * weight
        of_values = taken * (weighted * (2 / action.shape[1])).unsqueeze(2)
        return (weighted * error).mean(1), self.online.gradient(seen, trace, of_values)[0]
