"""Twin critics Q(s, a) for each of M members, with target networks and gradients computed by hand, for TD3 and SAC.

Source: Fujimoto, van Hoof & Meger 2018, "Addressing Function Approximation Error in Actor-Critic Methods", arXiv
1802.09477, section 4.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from models.mlp import MLP, Layer
from models.optim import MemberAdam
from models.state import check_like
from models.streams import Streams


class TwinCritics(nn.Module):
    """Two critics with layers of ``sizes``: O + A (observation and action together), hidden widths, 1.

    Without ``twins`` the second critic exists, but is neither used nor trained. Pairs of observation and action are
    columns, ``[M, O + A, B]``. A member's critics are adjacent in memory, ``[M, 2 D]``, so that they also form 2 M
    networks ``[2 M, D]``.
    """

    def __init__(self, sizes: Sequence[int], activation: str, streams: Streams, lr: Tensor, twins: bool = True):
        super().__init__()
        self.twins = twins
        self.network = MLP(sizes, activation)
        start = torch.cat([self.network.initial(streams), self.network.initial(streams)], 1)
        self.flat_parameters = nn.Parameter(start, requires_grad=False)
        self.target_parameters = nn.Parameter(start.clone(), requires_grad=False)
        self.optimizer = MemberAdam(self.flat_parameters, lr)
        self.latest: dict[str, Tensor] = {}  # from the latest update, for metrics: values [M, 2, B], goal, gradient
        self._views()

    def _views(self) -> None:
        self._online = self.network.layers(self.flat_parameters.view(-1, self.network.size))
        self._targets = self.network.layers(self.target_parameters.view(-1, self.network.size))
        self._first = self.network.layers(self.flat_parameters[:, : self.network.size])

    def _forward(self, layers: list[Layer], pairs: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        """Run both critics on ``pairs``. Return their inputs ``[2 M, O + A, B]``, the trace of the forward pass, and
        their values ``[M, 2, B]``."""
        x = pairs.repeat_interleave(2, 0)  # a copy, even for M = 1
        activations = self.network.forward(layers, x)
        return x, activations, activations[-1].view(len(pairs), 2, -1)

    def target_values(self, pairs: Tensor) -> Tensor:
        """Return the smaller of both target networks' values, ``[M, B]``; without twins the first one's."""
        first, second = self._forward(self._targets, pairs)[2].unbind(1)
        return torch.minimum(first, second) if self.twins else first

    def update(self, pairs: Tensor, td_target: Tensor, learning: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Make a gradient step towards the TD target ``goal [M, B]``, in the members ``learning [M]`` bool (None: all).

        Return the loss ``[M]`` and the mean value ``[M]``, both from before the step. The loss is the sum of both
        critics' mean squared errors.
        """
        (x, activations, values), batch = self._forward(self._online, pairs), pairs.shape[2]
        error, active_values = values - td_target.unsqueeze(1), values
        if not self.twins:
            error[:, 1], active_values = 0.0, values[:, :1]
        of_values = (error * (2 / batch)).flatten(0, 1).unsqueeze(1)
        gradient = self.network.backward(self._online, x, activations, of_values)[0].view_as(self.flat_parameters)
        self.latest |= {"values": values, "td_target": td_target, "gradient": gradient}
        self.optimizer.update(gradient, learning)
        return error.square().flatten(1).sum(1) / batch, active_values.flatten(1).mean(1)

    def first_slope(self, pairs: Tensor) -> Tensor:
        """Return the gradient of the first critic's mean value over the batch with respect to ``pairs``."""
        activations = self.network.forward(self._first, pairs)
        self.latest["acted"] = activations[-1]
        share = torch.full_like(activations[-1], 1 / pairs.shape[2])
        return self.network.input_gradient(self._first, activations, share)

    def smaller(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the smaller of both values, ``[M, B]``, and the gradient of its mean over the batch with respect to
        ``pairs``. If both are equal, the gradient is the first critic's."""
        _, activations, values = self._forward(self._online, pairs)
        first, second = values.unbind(1)
        by_first = first <= second
        share = torch.stack([by_first, ~by_first], 1).float().mul_(1 / pairs.shape[2])
        slopes = self.network.input_gradient(self._online, activations, share.flatten(0, 1).unsqueeze(1))
        return torch.where(by_first, first, second), slopes.unflatten(0, (-1, 2)).sum(1)

    def follow(self, tau: float, members: Tensor | None = None) -> None:
        """Move the target networks of ``members [M]`` bool (None: all) towards the critics by the share ``tau``."""
        follow(self.target_parameters, self.flat_parameters, tau, members)

    def select(self, members: Tensor) -> None:
        """Keep only ``members`` (indices ``[M']``)."""
        self.flat_parameters = nn.Parameter(self.flat_parameters[members], requires_grad=False)
        self.target_parameters = nn.Parameter(self.target_parameters[members], requires_grad=False)
        self.optimizer.select(self.flat_parameters, members)
        self.latest.clear()
        self._views()

    def training_state(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_training_state(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(check_like(self.training_state(), state, "critics"))


def follow(target_parameters: Tensor, flat_parameters: Tensor, tau: float, members: Tensor | None = None) -> None:
    """Move ``target [M, D]`` towards ``flat_parameters`` by the share ``tau``, for ``members [M]`` bool (None: all)."""
    if members is None:
        target_parameters.lerp_(flat_parameters, tau)
    else:
        target_parameters.copy_(
            torch.where(members.unsqueeze(1), target_parameters.lerp(flat_parameters, tau), target_parameters)
        )
