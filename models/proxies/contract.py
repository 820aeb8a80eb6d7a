"""The interface between a search and its proxies: learned environments or rewards that fresh agents train on.

A kind of proxy is a folder here and a file of the same name in ``envs/``. Its ``config.py`` has ``Config``, which
derives from `models.proxies.search.SearchConfig` and adds what the proxy is, and ``FAMILY`` (`models.family.Family`,
``learns_from="evolution"``); its ``networks.py`` has ``Networks(config, spaces)``, for M proxies at once, which are
`Parameters`; ``envs/<kind>.py`` has ``Stages``, which is `envs.make.Stages`: it puts agents and proxies together in an
environment. ``control/reports/<kind>.py`` has ``picture``, which draws a winner. `understudy.kinds.KINDS` has a record
of it for all readers of files: its settings, the shapes of its tensors, and its words.
D is the number of parameters of one proxy.
"""

from typing import Any, Protocol

import torch
from torch import Tensor

from models.contract import Policy
from models.streams import Streams


class Parameters(Protocol):
    """The parameters of a kind of proxy, flat. ``size`` is D."""

    @property
    def size(self) -> int: ...

    def initial(self, streams: Streams) -> Tensor:
        """First parameters ``[M, D]`` float32, one row a stream."""

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Views ``[M, *]`` of ``flat [M, D]``, one for each network by name. TensorBoard shows their histograms."""

    def named_tensors(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of ``flat [D]`` as the file has them: weights ``[out, in]`` and biases ``[out]`` of layer i of a part,
        ``reward.0.weight``."""

    def target(self, flat: Tensor) -> Policy:
        """The policy that each reward of ``flat [M, D]`` defines. Raises SettingError if this kind defines none."""
        ...


class Trainee(Protocol):
    """The agents that train on proxies: M members with E = ``envs`` environments each, and their settings."""

    envs: int
    device: torch.device

    @property
    def members(self) -> int: ...

    @property
    def config(self) -> Any: ...

    def discounts(self) -> Tensor:
        """``[M]``."""
        ...
