"""Twin critics Q(s, a) for each of M members, with target networks and gradients computed by hand, for TD3 and SAC.

Source: Fujimoto, van Hoof & Meger 2018, "Addressing Function Approximation Error in Actor-Critic Methods", arXiv
1802.09477, section 4.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from models.mlp import MLP, Layer
from models.optim import MemberAdam
from models.state import PerMember
from models.streams import Streams


class TwinCritics(nn.Module, PerMember):
    """Two critics Q(s, a) for each member. ``sizes`` are the inputs O + A (observation and action), hidden widths, 1.

    Without ``twins`` the second critic exists, but is neither used nor trained. Pairs of observation and action are
    columns, ``[M, O + A, B]``. A row of ``flat_parameters [M, 2 D]`` holds the first critic, then the second, so that
    it can be viewed as 2 M networks ``[2 M, D]``. ``lr [M]`` are learning rates.
    """

    per_member = ("optimizer", "target_parameters")

    def __init__(self, sizes: Sequence[int], activation: str, streams: Streams, lr: Tensor, twins: bool = True):
        super().__init__()
        self.twins = twins
        self.network = MLP(sizes, activation)
        start = torch.cat([self.network.initial(streams), self.network.initial(streams)], 1)
        self.flat_parameters = nn.Parameter(start, requires_grad=False)
        self.target_parameters = nn.Parameter(start.clone(), requires_grad=False)
        self.optimizer = MemberAdam(self.flat_parameters, lr)
        # From the latest update, for metrics: values [M, 2, B], td_target [M, B], gradient [M, 2 D], actor_values.
        self.latest: dict[str, Tensor] = {}
        self._update_views()

    def _update_views(self) -> None:
        """Set the layers of both critics, both targets and the first critic, as views of the current parameters."""
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
        _, _, values = self._forward(self._targets, pairs)
        first, second = values.unbind(1)
        return torch.minimum(first, second) if self.twins else first

    def update(self, pairs: Tensor, td_target: Tensor, learning: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Make a gradient step towards ``td_target [M, B]``, in the members ``learning [M]`` bool (None: all). Return
        the loss ``[M]``, the sum of both critics' mean squared errors, and the mean value ``[M]``, both from before the
        step. Store values, target and gradient in `latest`."""
        x, activations, values = self._forward(self._online, pairs)
        batch = pairs.shape[2]
        error = values - td_target.unsqueeze(1)
        if not self.twins:  # an error of 0 leaves the second critic as it is
            error[:, 1] = 0.0
        trained_values = values if self.twins else values[:, :1]
        value_gradient = (error * (2 / batch)).flatten(0, 1).unsqueeze(1)  # [2 M, 1, B]
        network_gradient, _ = self.network.backward(self._online, x, activations, value_gradient)  # [2 M, D]
        gradient = network_gradient.view_as(self.flat_parameters)
        self.latest |= {"values": values, "td_target": td_target, "gradient": gradient}
        self.optimizer.update(gradient, learning)
        return error.square().flatten(1).sum(1) / batch, trained_values.flatten(1).mean(1)

    def q1_gradient(self, pairs: Tensor) -> Tensor:
        """Return the gradient ``[M, O + A, B]`` of the first critic's mean value over the batch with respect to
        ``pairs``. Store the values in `latest` as ``actor_values [M, 1, B]``."""
        activations = self.network.forward(self._first, pairs)
        self.latest["actor_values"] = values = activations[-1]
        mean_gradient = torch.full_like(values, 1 / pairs.shape[2])
        return self.network.input_gradient(self._first, activations, mean_gradient)

    def min_q_gradient(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the smaller of both values, ``[M, B]``, and the gradient ``[M, O + A, B]`` of its mean over the batch
        with respect to ``pairs``. If both are equal, the gradient is the first critic's."""
        _, activations, values = self._forward(self._online, pairs)
        first, second = values.unbind(1)
        is_first = first <= second
        mean_gradient = torch.stack([is_first, ~is_first], 1).float().mul_(1 / pairs.shape[2])  # [M, 2, B]
        value_gradient = mean_gradient.flatten(0, 1).unsqueeze(1)  # [2 M, 1, B]
        gradient = self.network.input_gradient(self._online, activations, value_gradient)  # [2 M, O + A, B]
        return torch.where(is_first, first, second), gradient.unflatten(0, (-1, 2)).sum(1)

    def update_targets(self, tau: float, members: Tensor | None = None) -> None:
        """Move both target networks of ``members [M]`` bool (None: all) towards the critics by the share ``tau``."""
        polyak_update(self.target_parameters, self.flat_parameters, tau, members)

    def select(self, members: Tensor) -> None:
        super().select(members)  # includes ``optimizer.param``, the selected weights
        self.flat_parameters = nn.Parameter(self.optimizer.param, requires_grad=False)
        self.latest.clear()
        self._update_views()


def polyak_update(
    target_parameters: Tensor, flat_parameters: Tensor, tau: float, members: Tensor | None = None
) -> None:
    """Move ``target_parameters [M, D]`` in place: ``target <- (1 - tau) target + tau parameters``. Other members than
    ``members [M]`` bool (None: all) keep theirs."""
    if members is None:
        target_parameters.lerp_(flat_parameters, tau)
    else:
        moved = target_parameters.lerp(flat_parameters, tau)
        target_parameters.copy_(torch.where(members.unsqueeze(1), moved, target_parameters))
