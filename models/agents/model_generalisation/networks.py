"""The networks of the family and their optimiser; one-hot actions, draws of classes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from models.agents.model_generalisation.config import Config
from models.layers import BLOCK, Truncated
from models.mlp import MlpNetwork
from models.optim import AdamW
from models.streams import Streams


def network(config: Config, inputs: int, outputs: int, streams: Streams, device: torch.device) -> MlpNetwork:
    """``[M, B, inputs] -> [M, B, outputs]`` with the family's hidden layers.

    Rows of parameters are whole vector blocks: Adam's kernel rounds the last elements of an array otherwise than those
    before, and a member's last elements lie elsewhere in company.
    """
    hidden = [config.num_hidden_units] * config.num_hidden_layers
    return MlpNetwork((inputs, *hidden, outputs), config.activation, streams, Truncated, BLOCK).to(device)


def adam(config: Config, params: Sequence[Tensor], step_size: float) -> AdamW:
    """The family's optimiser of ``params``, whose settings other than the learning rate are those of all."""
    return AdamW(params, step_size, (config.b1_adam, config.b2_adam), config.eps_adam, config.wd_adam)


def with_action(x: Tensor, action: Tensor, actions: int) -> Tensor:
    """``x [M, B, X]`` with ``action [M, B]`` as one-hot numbers after it, ``[M, B, X + A]``."""
    return torch.cat((x, one_hot(action, actions).to(x.dtype)), 2)


def one_hot(action: Tensor, actions: int) -> Tensor:
    """``[M, B]`` int64 to ``[M, B, A]`` bool."""
    return action.unsqueeze(2) == torch.arange(actions, device=action.device)


def pick(probability: Tensor, uniform: Tensor) -> Tensor:
    """Draws of classes: ``probability [..., C]``, ``uniform [...]`` in [0, 1) -> ``[...]`` int64. The inverse of the
    distribution function, so that a draw takes one number."""
    # The last class takes what rounding leaves over.
    return (probability.cumsum(-1)[..., :-1] <= uniform.unsqueeze(-1)).sum(-1)
