"""Environments in which agents train on proxies, whatever the kind of proxy."""

import importlib
from typing import Protocol

from torch import Tensor

from envs.base import Environment
from models.proxies.contract import Parameters, Trainee
from models.proxies.search import SearchConfig
from models.spaces import Spaces


class Stages(Protocol):
    """One kind of proxy around one real environment.

    ``envs/<kind>.py`` has a class ``Stages`` of this form, which is made by ``Stages(config, game)``.
    """

    @property
    def spaces(self) -> Spaces:
        """The real environment's, which the agents are made for."""
        ...

    @property
    def parameters(self) -> Parameters: ...

    def stage(self, flat: Tensor, agent: Trainee) -> Environment:
        """An environment of ``agent.members`` members with ``agent.envs`` environments each, in which member m trains
        on the proxy ``flat[m]``, ``flat [M, D]``. A learned reward may take its discount from ``agent.config``."""
        ...


def stages_of(config: SearchConfig, game: str) -> Stages:
    """The `Stages` of a proxy's settings around the real environment ``game``. Settings in
    ``models/proxies/<kind>/config.py`` mean ``envs/<kind>.py``."""
    kind = type(config).__module__.split(".")[-2]
    found: Stages = importlib.import_module(f"envs.{kind}").Stages(config, game)
    return found
