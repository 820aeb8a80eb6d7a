"""Fits the networks of M members to given outputs, as the start of a search or as a part of it."""

import torch
from torch import Tensor

from models.mlp import MLP
from models.optim import MemberAdam

_UPDATES, _LR, _BATCH = 3000, 3e-3, 512


@torch.no_grad()
def fit(
    mlp: MLP, parameters: Tensor, inputs: Tensor, targets: Tensor, schedule: tuple[int, float] | None = None
) -> Tensor:
    """Fit ``mlp`` to map ``inputs [M or 1, N, I]`` to ``targets [M or 1, N, O]``. Return its parameters ``[M, P]``.

    Starts from a copy of ``parameters [M, P]``. Adam minimises the mean squared error, with a learning rate that decays
    linearly to zero. ``schedule`` is a number of updates on all N rows and the initial learning rate; None makes 3000
    updates on random batches of 512 rows.
    """
    parameters = parameters.clone()
    updates, lr = schedule or (_UPDATES, _LR)
    adam = MemberAdam(parameters, torch.full((len(parameters),), lr))
    generator = torch.Generator().manual_seed(0)
    x, aim = (values.expand(len(parameters), -1, -1).transpose(1, 2).contiguous() for values in (inputs, targets))
    batch_inputs, aimed, layers = x, aim, mlp.layers(parameters)  # views, so they follow every update
    for update in range(updates):
        adam.lr.fill_(lr * (1 - update / updates))
        if schedule is None:
            rows = torch.randint(x.shape[2], (_BATCH,), generator=generator)
            batch_inputs, aimed = x[:, :, rows], aim[:, :, rows]
        trace = mlp.forward(layers, batch_inputs)
        adam.update(mlp.backward(layers, batch_inputs, trace, (trace[-1] - aimed) * (2 / batch_inputs.shape[2]))[0])
    return parameters
