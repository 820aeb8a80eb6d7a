"""Fits the networks of M members to given outputs, from which a search may start or of which it consists."""

import torch
from torch import Tensor

from models.mlp import Mlp
from models.optim import MemberAdam

_BATCH = 512


@torch.no_grad()
def fit(mlp: Mlp, own: Tensor, inputs: Tensor, wanted: Tensor, updates: int = 3000, lr: float = 3e-3) -> Tensor:
    """Parameters ``[M, P]`` of ``mlp`` that give about ``wanted [M or 1, N, O]`` for ``inputs [M or 1, N, I]``; from
    ``own [M, P]``, by so many updates of Adam on the mean squared error of 512 rows at random, or of all where they are
    no more, with a step size that falls from ``lr`` to zero."""
    own = own.clone()
    adam = MemberAdam(own, torch.full((len(own),), lr))
    generator = torch.Generator().manual_seed(0)
    x, aim = (each.expand(len(own), -1, -1).transpose(1, 2).contiguous() for each in (inputs, wanted))
    count = min(x.shape[2], _BATCH)
    some, aimed, layers = x, aim, mlp.layers(own)  # views
    for update in range(updates):
        adam.lr.fill_(lr * (1 - update / updates))
        if x.shape[2] > count:
            rows = torch.randint(x.shape[2], (count,), generator=generator)
            some, aimed = x[:, :, rows], aim[:, :, rows]
        trace = mlp.forward(layers, some)
        adam.update(mlp.backward(layers, some, trace, (trace[-1] - aimed) * (2 / count))[0])
    return own
