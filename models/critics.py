"""Twin critics Q(s, a) for each of M members (independent agents), with target networks, for TD3 and SAC.

Source: Fujimoto, van Hoof & Meger 2018, "Addressing Function Approximation Error in Actor-Critic Methods", arXiv
1802.09477, section 4.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.mlp import MLP
from models.optim import MemberAdam, polyak_update
from models.state import PerMember
from models.streams import Streams


class TwinCritics(nn.Module, PerMember):
    """Two critics Q(s, a) for each member. ``sizes`` are the number of inputs O + A (observation and action), the
    widths of the hidden layers, and 1. ``lr [M]`` are learning rates.

    D is the number of weights of a critic. A row of ``flat_parameters [M, 2 D]`` holds the weights of the first critic,
    then of the second one, so that all of them can be viewed as 2 M networks ``[2 M, D]``. Without ``twins`` the second
    critic exists, but is neither used nor trained.
    """

    per_member = ("optimizer", "target_parameters")

    def __init__(self, sizes: Sequence[int], activation: str, streams: Streams, lr: Tensor, twins: bool = True):
        super().__init__()
        self.twins = twins
        self.network = MLP(sizes, activation)
        initial_weights = torch.cat([self.network.initial(streams), self.network.initial(streams)], 1)
        self.flat_parameters = nn.Parameter(initial_weights, requires_grad=False)
        self.target_parameters = nn.Parameter(initial_weights.clone(), requires_grad=False)
        self.optimizer = MemberAdam(self.flat_parameters, lr)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return the values of K critics, ``[M, K, B]``, for ``obs [M, B, O]`` and ``action [M, B, A]``. K is 2, or 1
        without ``twins``."""
        return self._values(self.flat_parameters, obs, action, 2 if self.twins else 1)

    def first_values(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return the values of the first critic, ``[M, B]``."""
        return self._values(self.flat_parameters, obs, action, 1).squeeze(1)

    def target_values(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return the smaller value of both target networks, ``[M, B]``, or the value of the first without ``twins``."""
        return min_values(self._values(self.target_parameters, obs, action, 2 if self.twins else 1))

    def _values(self, flat: Tensor, obs: Tensor, action: Tensor, count: int) -> Tensor:
        """Return the values of the first ``count`` critics, ``[M, count, B]``, with parameters ``flat [M, 2 D]``."""
        # Critics are members of ``network``: the first critic of member 0, the second one of member 0, and so on.
        pair = torch.cat([obs, action], 2).repeat_interleave(count, 0)  # [M * count, B, O + A]
        weights = flat[:, : count * self.network.size].reshape(-1, self.network.size)  # [M * count, D]
        return self.network(weights, pair).view(len(flat), count, -1)

    def update_targets(self, tau: float, members: Tensor | None = None) -> None:
        """Move the target networks of ``members [M]`` bool (None: all) towards the critics (`polyak_update`)."""
        polyak_update(self.target_parameters, self.flat_parameters, tau, members)

    def select(self, members: Tensor) -> None:
        super().select(members)  # includes ``optimizer.param``, the selected weights
        assert isinstance(self.optimizer.param, nn.Parameter)
        self.flat_parameters = self.optimizer.param


def min_values(values: Tensor) -> Tensor:
    """Return the smaller of the values of K = 2 critics, or the values of K = 1 critic, ``[M, K, B] -> [M, B]``."""
    if values.shape[1] == 1:
        return values[:, 0]
    return torch.minimum(values[:, 0], values[:, 1])
