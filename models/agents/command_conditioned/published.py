"""Weights of the published Upside-Down RL agents, by their own names."""

from collections.abc import Mapping

import torch
from torch import Tensor

from models.agents.command_conditioned.agent import Agent
from models.agents.command_conditioned.networks import BehaviorNetwork
from models.settings import SettingError

_PREFIX = "model."


@torch.no_grad()
def load_published(agent: Agent, state_dict: Mapping[str, Tensor]) -> None:
    """Copy the public code's weights, the ``state_dict`` of one of its checkpoints, into every member of ``agent``.

    They are called ``model.state_fc.0``, ``model.command_fc.0`` and ``model.output_fc.{0,2,4,6}``, ``.weight``
    ``[out, in]`` and ``.bias``. Neither commands nor their scales are among them: scales come from ``reward_scale``
    and ``horizon_scale``.
    Raises SettingError, and changes nothing, where a name is missing or unknown or a shape does not fit.
    """
    if not isinstance(agent.policy, BehaviorNetwork) or agent.trunk is not None:
        raise SettingError(
            f"network is {agent.config.network!r}; allowed with published weights: behavior, without an image trunk"
        )
    own = agent.policy.named_weights()
    theirs = {name.removeprefix(_PREFIX): value for name, value in state_dict.items() if name.startswith(_PREFIX)}
    if theirs.keys() != own.keys():
        name = sorted(theirs.keys() ^ own.keys())[0]
        problem = "is missing" if name in own else "fits no layer"
        raise SettingError(
            f"published weights: {_PREFIX}{name} {problem}; needed: {', '.join(own)}, each after {_PREFIX!r}"
        )
    for name, view in own.items():
        needed = tuple(view.shape[:0:-1])
        if tuple(theirs[name].shape) != needed:
            raise SettingError(
                f"published weights: {_PREFIX}{name} has shape {tuple(theirs[name].shape)}; needed: {needed}"
            )
    for name, view in own.items():
        view.copy_(theirs[name].T if theirs[name].dim() == 2 else theirs[name])
