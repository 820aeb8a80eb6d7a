"""Fits reward networks to given values of states, as where a search may start."""

import torch
from torch import Tensor

from models.optim import MemberAdam
from models.proxies.reward.networks import Networks

_UPDATES, _LR, _BATCH = 3000, 3e-3, 512


@torch.no_grad()
def fit(networks: Networks, flat: Tensor, states: Tensor, wanted: Tensor) -> Tensor:
    """Parameters ``[M, D]`` whose phi, without its output scale, is about ``wanted [N]`` of ``states [N, S]``; from
    ``flat [M, D]``, by Adam on the mean squared error of batches of 512."""
    config, mlp = networks.config, networks.parts["reward"]
    own = flat[:, : networks.inner].clone()
    if config.rn_input_center:
        states = states - torch.tensor(config.rn_input_center)
    if config.rn_input_spread:
        states = states / torch.tensor(config.rn_input_spread)
    adam = MemberAdam(own, torch.full((len(own),), _LR))
    generator = torch.Generator().manual_seed(0)
    for update in range(_UPDATES):
        adam.lr.fill_(_LR * (1 - update / _UPDATES))
        rows = torch.randint(len(states), (_BATCH,), generator=generator)
        x = states[rows].T.expand(len(own), -1, -1).contiguous()
        layers = mlp.layers(own)
        trace = mlp.forward(layers, x)
        error = trace[-1] - wanted[rows]
        adam.update(mlp.backward(layers, x, trace, error * (2 / _BATCH))[0])
    return torch.cat([own, flat[:, networks.inner :]], 1)
