"""Fits the networks of M members to given outputs, from which a search may start."""

import torch
from torch import Tensor

from models.mlp import Mlp
from models.optim import MemberAdam

_UPDATES, _LR, _BATCH = 3000, 3e-3, 512


@torch.no_grad()
def fit(mlp: Mlp, own: Tensor, inputs: Tensor, wanted: Tensor) -> Tensor:
    """Parameters ``[M, P]`` of ``mlp`` that give about ``wanted [N, O]`` for ``inputs [N, I]``; from ``own [M, P]``, by
    Adam on the mean squared error of batches of 512, with a step size that falls to zero."""
    own = own.clone()
    adam = MemberAdam(own, torch.full((len(own),), _LR))
    generator = torch.Generator().manual_seed(0)
    for update in range(_UPDATES):
        adam.lr.fill_(_LR * (1 - update / _UPDATES))
        rows = torch.randint(len(inputs), (_BATCH,), generator=generator)
        x = inputs[rows].T.expand(len(own), -1, -1).contiguous()
        layers = mlp.layers(own)
        trace = mlp.forward(layers, x)
        error = trace[-1] - wanted[rows].T
        adam.update(mlp.backward(layers, x, trace, error * (2 / _BATCH))[0])
    return own
