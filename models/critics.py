"""Two critics Q(s, a) for each of M members, with targets and gradients by hand: what TD3 and SAC have in common.

Source: Fujimoto, van Hoof & Meger 2018, "Addressing Function Approximation Error in Actor-Critic Methods", arXiv
1802.09477, section 4.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from models.mlp import Mlp
from models.optim import MemberAdam
from models.state import like
from models.streams import Streams


class TwinCritics(nn.Module):
    """``sizes`` are those of one critic: observation and action together, hidden widths, 1.

    Pairs of observation and action come in columns, ``[M, O + A, B]``. The parameters of both critics of a member lie
    side by side, ``[M, 2 D]``, so that 2 M critics are the members of one network.
    """

    def __init__(self, sizes: Sequence[int], activation: str, streams: Streams, lr: Tensor):
        super().__init__()
        self.network = Mlp(sizes, activation)
        start = torch.cat([self.network.initial(streams), self.network.initial(streams)], 1)
        self.online = nn.Parameter(start, requires_grad=False)
        self.target = nn.Parameter(start.clone(), requires_grad=False)
        self.optimizer = MemberAdam(self.online, lr)
        self._views()

    def _views(self) -> None:
        size = self.network.size
        self._both, self._targets = (self.network.layers(flat.view(-1, size)) for flat in (self.online, self.target))
        self._first = self.network.layers(self.online[:, :size])

    def target_values(self, pairs: Tensor) -> Tensor:
        """The smaller of the two target values, ``[M, B]``."""
        values = self.network.forward(self._targets, _twice(pairs))[-1].view(len(pairs), 2, -1)
        return torch.minimum(values[:, 0], values[:, 1])

    def update(self, pairs: Tensor, goal: Tensor, learning: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """A gradient step of the members ``learning [M]`` (None: all) towards ``goal [M, B]``. Gives the loss ``[M]``,
        the sum of both critics' mean squared errors, and the mean of their values ``[M]``, from before the step."""
        x, members, batch = _twice(pairs), len(pairs), pairs.shape[2]
        trace = self.network.forward(self._both, x)
        values = trace[-1].view(members, 2, batch)
        error = values - goal.unsqueeze(1)
        gradient = (error * (2 / batch)).view(-1, 1, batch)
        found = self.network.backward(self._both, x, trace, gradient)[0].view(members, -1)
        self.optimizer.update(found, learning)
        return error.square().flatten(1).sum(1) / batch, values.flatten(1).mean(1)

    def first_slope(self, pairs: Tensor) -> Tensor:
        """The gradient of the first critic's mean value over the batch by ``pairs``, shaped as these."""
        trace = self.network.forward(self._first, pairs)
        share = torch.full_like(trace[-1], 1 / pairs.shape[2])
        return self.network.input_gradient(self._first, trace, share)

    def smaller(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """The smaller of the two values, ``[M, B]``, and the gradient of its mean over the batch by ``pairs``. Of equal
        values it is the first critic's."""
        members, _, batch = pairs.shape
        trace = self.network.forward(self._both, _twice(pairs))
        first, second = trace[-1].view(members, 2, batch).unbind(1)
        by_first = first <= second
        share = torch.stack([by_first, ~by_first], 1).float().mul_(1 / batch).view(-1, 1, batch)
        slopes = self.network.input_gradient(self._both, trace, share).view(members, 2, -1, batch)
        return torch.where(by_first, first, second), slopes[:, 0] + slopes[:, 1]

    def follow(self, tau: float, members: Tensor | None = None) -> None:
        """The targets of ``members [M]`` bool (None: all) take up the share ``tau`` of the critics."""
        follow(self.target, self.online, tau, members)

    def select(self, members: Tensor) -> None:
        """Go on with ``members`` (indices ``[M']``) only."""
        self.online = nn.Parameter(self.online[members], requires_grad=False)
        self.target = nn.Parameter(self.target[members], requires_grad=False)
        self.optimizer.select(self.online, members)
        self._views()

    def training_state(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_training_state(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(like(self.training_state(), state, "critics"))


def _twice(pairs: Tensor) -> Tensor:
    """``[M, F, B]`` as the inputs of both critics, ``[2 M, F, B]``."""
    return pairs.repeat_interleave(2, 0)


def follow(target: Tensor, online: Tensor, tau: float, members: Tensor | None = None) -> None:
    """``target [M, D]`` takes up the share ``tau`` of ``online``; of ``members [M]`` bool alone, None is all."""
    if members is None:
        target.lerp_(online, tau)
    else:
        target.copy_(torch.where(members.unsqueeze(1), target.lerp(online, tau), target))


def critic_bytes(size: int, hidden: Sequence[int], inputs: int, batch: int) -> int:
    """What the critics of a member take: ``size`` parameters each with targets, moments and gradients, and a batch."""
    return 2 * (28 * size + batch * (12 * sum(hidden) + 8 * inputs))
