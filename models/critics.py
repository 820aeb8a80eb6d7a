"""Two critics Q(s, a) for each of M members, with targets and gradients by hand, for TD3 and SAC.

Source: Fujimoto, van Hoof & Meger 2018, "Addressing Function Approximation Error in Actor-Critic Methods", arXiv
1802.09477, section 4.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from models.mlp import Layer, Mlp
from models.optim import MemberAdam
from models.state import check_like
from models.streams import Streams


class TwinCritics(nn.Module):
    """Two critics, each with layers of ``sizes``: observation and action together, hidden widths, 1.

    Without ``twins`` the second critic exists, but is neither used nor trained.

    Pairs of observation and action come in columns, ``[M, O + A, B]``. The parameters of both critics of a member lie
    side by side, ``[M, 2 D]``, so that they are 2 M networks.
    """

    def __init__(self, sizes: Sequence[int], activation: str, streams: Streams, lr: Tensor, twins: bool = True):
        super().__init__()
        self.twins = twins
        self.network = Mlp(sizes, activation)
        start = torch.cat([self.network.initial(streams), self.network.initial(streams)], 1)
        self.online = nn.Parameter(start, requires_grad=False)
        self.target = nn.Parameter(start.clone(), requires_grad=False)
        self.optimizer = MemberAdam(self.online, lr)
        self.latest: dict[str, Tensor] = {}  # of the latest update: values [M, ., B], goals, the gradient [M, D]
        self._views()

    def _views(self) -> None:
        self._online = self.network.layers(self.online.view(-1, self.network.size))
        self._targets = self.network.layers(self.target.view(-1, self.network.size))
        self._first = self.network.layers(self.online[:, : self.network.size])

    def _forward(self, layers: list[Layer], pairs: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        """``pairs`` once for each critic, ``[2 M, O + A, B]``, the trace of a forward pass on them, and its values
        ``[M, 2, B]``."""
        x = pairs.repeat_interleave(2, 0)  # not a view of pairs, whatever M is
        trace = self.network.forward(layers, x)
        return x, trace, trace[-1].view(len(pairs), 2, -1)

    def target_values(self, pairs: Tensor) -> Tensor:
        """The smaller of the two target values, ``[M, B]``, or the first critic's."""
        first, second = self._forward(self._targets, pairs)[2].unbind(1)
        return torch.minimum(first, second) if self.twins else first

    def update(self, pairs: Tensor, goal: Tensor, learning: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """A gradient step of the members ``learning [M]`` (None: all) towards ``goal [M, B]``. Gives the loss ``[M]``,
        the sum of both critics' mean squared errors, and the mean of their values ``[M]``, from before the step."""
        (x, trace, values), batch = self._forward(self._online, pairs), pairs.shape[2]
        error, active_values = values - goal.unsqueeze(1), values
        if not self.twins:
            error[:, 1], active_values = 0.0, values[:, :1]
        of_values = (error * (2 / batch)).flatten(0, 1).unsqueeze(1)
        gradient = self.network.backward(self._online, x, trace, of_values)[0].view_as(self.online)
        self.latest |= {"values": values, "goal": goal, "gradient": gradient}
        self.optimizer.update(gradient, learning)
        return error.square().flatten(1).sum(1) / batch, active_values.flatten(1).mean(1)

    def first_slope(self, pairs: Tensor) -> Tensor:
        """The gradient of the first critic's mean value over the batch by ``pairs``, shaped as these."""
        trace = self.network.forward(self._first, pairs)
        self.latest["acted"] = trace[-1]
        share = torch.full_like(trace[-1], 1 / pairs.shape[2])
        return self.network.input_gradient(self._first, trace, share)

    def smaller(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """The smaller of the two values, ``[M, B]``, and the gradient of its mean over the batch by ``pairs``. Of equal
        values it is the first critic's."""
        _, trace, values = self._forward(self._online, pairs)
        first, second = values.unbind(1)
        by_first = first <= second
        share = torch.stack([by_first, ~by_first], 1).float().mul_(1 / pairs.shape[2])
        slopes = self.network.input_gradient(self._online, trace, share.flatten(0, 1).unsqueeze(1))
        return torch.where(by_first, first, second), slopes.unflatten(0, (-1, 2)).sum(1)

    def follow(self, tau: float, members: Tensor | None = None) -> None:
        """The targets of ``members [M]`` bool (None: all) take up the share ``tau`` of the critics."""
        follow(self.target, self.online, tau, members)

    def select(self, members: Tensor) -> None:
        """Go on with ``members`` (indices ``[M']``) only."""
        self.online = nn.Parameter(self.online[members], requires_grad=False)
        self.target = nn.Parameter(self.target[members], requires_grad=False)
        self.optimizer.select(self.online, members)
        self.latest.clear()
        self._views()

    def training_state(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_training_state(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(check_like(self.training_state(), state, "critics"))


def follow(target: Tensor, online: Tensor, tau: float, members: Tensor | None = None) -> None:
    """``target [M, D]`` takes up the share ``tau`` of ``online``; of ``members [M]`` bool alone, None is all."""
    if members is None:
        target.lerp_(online, tau)
    else:
        target.copy_(torch.where(members.unsqueeze(1), target.lerp(online, tau), target))
