"""Fits reward networks to values of states, as initial means of a search."""

import torch
from torch import Tensor

from models.proxies import fitting
from models.proxies.reward.networks import Networks


def fit(networks: Networks, flat: Tensor, states: Tensor, wanted: Tensor) -> Tensor:
    """Parameters ``[M, D]`` whose phi, without its output scale, is about ``wanted [N]`` of ``states [N, S]``; from
    ``flat [M, D]`` (`models.proxies.fitting.fit`)."""
    config = networks.config
    if config.rn_output == "symexp":
        wanted = wanted.sign() * wanted.abs().log1p()
    if config.rn_input_center:
        states = states - torch.tensor(config.rn_input_center)
    if config.rn_input_spread:
        states = states / torch.tensor(config.rn_input_spread)
    own = fitting.fit(networks.parts["reward"], flat[:, : networks.inner], states[None], wanted[None, :, None])
    return torch.cat([own, flat[:, networks.inner :]], 1)
