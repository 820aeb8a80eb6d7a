"""The networks of proxies (learned environments and rewards), and fits of M of them by supervised learning.

P is the number of parameters of each network, N of rows of data, I of inputs, O of outputs.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from models.mlp import LEAK, MLP, PRELU_SLOPE, Layer
from models.optim import MemberAdam
from models.proxies.search import NetworkConfig

_UPDATES = 4000  # number of updates of a fit, unless the caller chooses another number


class Scale(NamedTuple):
    """Mean and standard deviation by which the inputs or the outputs of a network are standardised."""

    center: Tensor  # [n]
    spread: Tensor  # [n]; 0 for numbers that do not vary, which are only centred

    def standardise(self, values: Tensor) -> Tensor:
        return (values - self.center) / self.spread.where(self.spread > 0, 1.0)


def make_mlp(config: NetworkConfig, inputs: int, outputs: int) -> MLP:
    """Return the architecture of a network with the hidden layers of ``config``, and with this number of ``inputs`` and
    ``outputs``. A search does not change the slope of prelu, so it is a leaky ReLU with prelu's initial slope."""
    hidden_sizes = [config.proxy_hidden_size] * config.proxy_hidden_layer
    sizes = [inputs, *hidden_sizes, outputs]
    if config.proxy_activation_fn == "prelu":
        return MLP(sizes, "leakyrelu", PRELU_SLOPE)
    return MLP(sizes, config.proxy_activation_fn, LEAK)


def named_layers(name: str, mlp: MLP, parameters: Tensor) -> dict[str, Tensor]:
    """Return weights ``[out, in]`` and biases ``[out]`` of the network ``name`` as views of its ``parameters [1, P]``,
    by their names in a file, such as ``reward.0.weight`` and ``reward.0.bias`` for layer 0 of "reward"."""
    tensors = {}
    for i, (weight, bias) in enumerate(mlp.layers(parameters)):  # [1, out, in], [1, out, 1]
        tensors[f"{name}.{i}.weight"], tensors[f"{name}.{i}.bias"] = weight[0], bias[0, :, 0]
    return tensors


def undo_scaling(layers: list[Layer], inputs: Scale, outputs: Scale) -> None:
    """Make a network that was fitted to standardised inputs and outputs map raw inputs to raw outputs. Its first and
    last layer are changed in place. ``inputs`` and ``outputs`` are the scales by which they were standardised."""
    first_weight, first_bias = layers[0]
    last_weight, last_bias = layers[-1]
    # W (x - center) / spread + b equals (W / spread) x + (b - (W / spread) center).
    first_weight.div_(inputs.spread)
    first_bias.sub_(first_weight @ inputs.center[:, None])
    last_weight.mul_(outputs.spread[:, None])
    last_bias.mul_(outputs.spread[:, None]).add_(outputs.center[:, None])


@torch.no_grad()
def fit(
    mlp: MLP,
    parameters: Tensor,
    inputs: Tensor,
    targets: Tensor,
    updates: int | None = None,
    lr: float = 3e-3,
    batch_size: int | None = 512,
    cross_entropy: bool = False,
) -> Tensor:
    """Fit the network ``mlp`` of M members to map ``inputs [M or 1, N, I]`` to ``targets [M or 1, N, O]``. Training
    starts from ``parameters [M, P]``, which are not changed. Return the fitted parameters ``[M, P]``.

    Adam minimises the squared error or, with ``cross_entropy``, the cross entropy between one-hot ``targets`` and the
    softmax of the outputs. It makes ``updates`` updates (None: 4000), each on a random batch of ``batch_size`` rows
    (None: all). The learning rate decays linearly from ``lr`` to zero.
    """
    updates = _UPDATES if updates is None else updates
    parameters = parameters.clone()
    members = len(parameters)
    adam = MemberAdam(parameters, torch.full((members,), lr))
    generator = torch.Generator().manual_seed(0)
    inputs = inputs.expand(members, -1, -1).transpose(1, 2).contiguous()  # [M, I, N]
    targets = targets.expand(members, -1, -1).transpose(1, 2).contiguous()  # [M, O, N]
    layers = mlp.layers(parameters)  # views, so they follow every update
    batch_inputs, batch_targets = inputs, targets
    for update in range(updates):
        adam.lr.fill_(lr * (1 - update / updates))
        if batch_size is not None:
            rows = torch.randint(inputs.shape[2], (batch_size,), generator=generator)
            batch_inputs, batch_targets = inputs[:, :, rows], targets[:, :, rows]
        trace = mlp.forward(layers, batch_inputs)
        # The gradient of the loss, a mean over the rows, with respect to the outputs ``trace[-1]``.
        if cross_entropy:
            output_gradient = (trace[-1].softmax(1) - batch_targets) / batch_inputs.shape[2]
        else:
            output_gradient = (trace[-1] - batch_targets) * (2 / batch_inputs.shape[2])
        gradient, _ = mlp.backward(layers, batch_inputs, trace, output_gradient)
        adam.update(gradient)
    return parameters
