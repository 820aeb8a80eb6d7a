"""Fits the networks of M members to given outputs, from which a search may start or of which it consists."""

import torch
from torch import Tensor

from models.mlp import Mlp
from models.optim import MemberAdam

_UPDATES, _LR, _BATCH = 3000, 3e-3, 512


@torch.no_grad()
def fit(mlp: Mlp, own: Tensor, inputs: Tensor, wanted: Tensor, lesson: tuple[int, float] | None = None) -> Tensor:
    """Fit parameters ``[M, P]`` of ``mlp`` so that ``inputs [M or 1, N, I]`` give ``wanted [M or 1, N, O]``.

    Starts from ``own [M, P]``. Adam minimises the mean squared error of batches of 512, with a learning rate that
    decays to zero. ``lesson`` is a number of updates on all rows and the initial learning rate.
    """
    own = own.clone()
    updates, lr = lesson or (_UPDATES, _LR)
    adam = MemberAdam(own, torch.full((len(own),), lr))
    generator = torch.Generator().manual_seed(0)
    x, aim = (each.expand(len(own), -1, -1).transpose(1, 2).contiguous() for each in (inputs, wanted))
    some, aimed, layers = x, aim, mlp.layers(own)  # views
    for update in range(updates):
        adam.lr.fill_(lr * (1 - update / updates))
        if lesson is None:
            rows = torch.randint(x.shape[2], (_BATCH,), generator=generator)
            some, aimed = x[:, :, rows], aim[:, :, rows]
        trace = mlp.forward(layers, some)
        adam.update(mlp.backward(layers, some, trace, (trace[-1] - aimed) * (2 / some.shape[2]))[0])
    return own
