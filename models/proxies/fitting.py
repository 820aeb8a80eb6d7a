"""Fits the networks of M members to given outputs, as the start of a search or as a part of it."""

import torch
from torch import Tensor

from models.mlp import MLP
from models.optim import MemberAdam

_UPDATES, _LR, _BATCH = 4000, 3e-3, 512


@torch.no_grad()
def fit(
    mlp: MLP,
    parameters: Tensor,
    inputs: Tensor,
    targets: Tensor,
    schedule: tuple[int, float] | None = None,
    cross_entropy: bool = False,
    updates: int | None = None,
) -> Tensor:
    """Fit ``mlp`` to map ``inputs [M or 1, N, I]`` to ``targets [M or 1, N, O]``. Return its parameters ``[M, P]``.

    Starts from a copy of ``parameters [M, P]``. Adam minimises the squared error or, with ``cross_entropy``, the cross
    entropy between one-hot ``targets`` and the softmax of the outputs. The learning rate decays linearly to zero.
    ``schedule`` is a number of updates on all N rows and the initial learning rate; None means ``updates`` (by default
    4000) on random batches of 512 rows, from 3e-3. The batches do not depend on the run's seed.
    """
    parameters = parameters.clone()
    updates, lr = schedule or (updates or _UPDATES, _LR)
    adam = MemberAdam(parameters, torch.full((len(parameters),), lr))
    generator = torch.Generator().manual_seed(0)
    inputs = inputs.expand(len(parameters), -1, -1).transpose(1, 2).contiguous()  # [M, I, N]
    targets = targets.expand(len(parameters), -1, -1).transpose(1, 2).contiguous()  # [M, O, N]
    layers = mlp.layers(parameters)  # views, so they follow every update
    batch_inputs, batch_targets = inputs, targets
    for update in range(updates):
        adam.lr.fill_(lr * (1 - update / updates))
        if schedule is None:
            rows = torch.randint(inputs.shape[2], (_BATCH,), generator=generator)
            batch_inputs, batch_targets = inputs[:, :, rows], targets[:, :, rows]
        trace = mlp.forward(layers, batch_inputs)
        if cross_entropy:
            output_gradient = (trace[-1].softmax(1) - batch_targets) / batch_inputs.shape[2]
        else:
            output_gradient = (trace[-1] - batch_targets) * (2 / batch_inputs.shape[2])
        gradient, _ = mlp.backward(layers, batch_inputs, trace, output_gradient)
        adam.update(gradient)
    return parameters
