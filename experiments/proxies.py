"""Load the learned environments and rewards that scripts examine, and watch agents in training on them. Imports torch,
which figure scripts avoid."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from control.commands.evaluate import proxy_or_checkpoint
from control.evolution.inner_loop import InnerLoop
from control.loops.steps import StepLoop
from envs.base import Environment
from models.proxies.files import Proxy
from models.settings import SettingError


def load_proxy(name: str, allowed: str) -> Proxy:
    """Load the proxy of a file, a run folder or a shipped name. Raises SettingError for an agent; its message names the
    ``allowed`` kinds of proxies."""
    proxy = proxy_or_checkpoint(name)
    if not isinstance(proxy, Proxy):
        raise SettingError(f"proxies is {name!r}, which is of an agent; allowed: {allowed}")
    return proxy


class Wrapper:
    """Wraps an environment; a subclass changes or records its steps."""

    def __init__(self, environment: Environment):
        self.environment = environment

    def __getattr__(self, name: str) -> Any:
        return getattr(self.environment, name)


class WrappedLoop(InnerLoop):
    """Trains agents on environments that ``wrap`` has wrapped; ``wrappers`` are those of all trainings."""

    def __init__(self, wrap: Callable[[Environment], Any], *args: Any) -> None:
        super().__init__(*args)
        self.wrap = wrap
        self.wrappers: list[Any] = []  # copies of this loop share the list

    def begin(self, proxies: Tensor | None, seeds: list[int]) -> StepLoop:
        loop = super().begin(proxies, seeds)
        self.wrappers.append(self.wrap(loop.environment))
        loop.environment = self.wrappers[-1]
        return loop
