"""The interface between a search and its proxies: learned environments or rewards on which new agents train.

docs/how_to/proxy.md lists the files of a kind of proxy, with an example. D is the number of parameters of one proxy,
and ``flat [M, D]`` has all parameters of M proxies, a row for each.
"""

from typing import Protocol

from torch import Tensor

from models.contract import Policy
from models.streams import Streams


class Parameters(Protocol):
    """Architecture of a proxy's networks. It converts between the vector of all D = ``size`` parameters of a proxy and
    the weights of each network."""

    @property
    def size(self) -> int: ...

    def initial(self, streams: Streams) -> Tensor:
        """Return initial parameters ``[M, D]`` float32, one row per stream."""

    def split(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the parameters ``[M, n]`` of each network by name, as views of ``flat [M, D]``."""

    def named_tensors(self, flat: Tensor) -> dict[str, Tensor]:
        """Return weights ``[out, in]`` and biases ``[out]`` as views of ``flat [D]``, by their names in a file, such as
        ``reward.0.weight`` for layer 0 of the network ``reward``."""

    def target(self, flat: Tensor) -> Policy:
        """Return the policy of M members in which member m always takes the action with the highest reward of proxy m.
        ``flat [M, D]`` are the parameters of the proxies. Raises SettingError if their rewards define no policy."""


class Trainee(Protocol):
    """The agents that train on proxies: M members with E = ``envs`` environments each."""

    envs: int

    @property
    def members(self) -> int: ...

    def discounts(self) -> Tensor:
        """Return the discount of each member, ``[M]``."""
