"""Load proxies (learned environments and rewards), and watch agents in training on them. Imports torch."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from control.commands.evaluate import proxy_or_checkpoint
from control.evolution.inner_loop import InnerLoop, Outcome
from control.loops.steps import StepLoop
from envs.base import Environment
from models.proxies.files import Proxy
from models.registry import default_config, family
from models.settings import SettingError


def load_proxy(name: str, allowed: str) -> Proxy:
    """Load the proxy of a file, a run folder or a shipped name. Raises SettingError for an agent, with ``allowed``
    kinds."""
    proxy = proxy_or_checkpoint(name)
    if not isinstance(proxy, Proxy):
        raise SettingError(f"proxies is {name!r}, which is of an agent; allowed: {allowed}")
    return proxy


def train_and_test(
    proxy: Proxy, kind: str, agent_config: Any, seeds: Sequence[int], real: bool = False, steps: int | None = None
) -> Outcome:
    """Train fresh agents side by side, one for each of ``seeds``, and test each in ten episodes of the real
    environment. They have the implementation ``kind`` and train on ``proxy`` or, if ``real``, on the real environment.
    The number of ``steps`` is by default the number that ``proxy`` is meant for."""
    config = dataclasses.replace(proxy.config, test_episodes=10, test_limit=None)
    loop = InnerLoop(config, kind, agent_config, proxy.game)
    parameters = None if real else proxy.parameters.expand(len(seeds), -1)
    return loop.run(parameters, seeds, inner_steps=steps or config.steps_in_use, inner_rule="budget")


# Algorithm -> games for which it had defaults when results were measured.
_GAMES_WITH_DEFAULTS = {
    "PPO": ("cartpole", "lunarlander", "pendulum"),
    "TD3": ("mountaincar-continuous",),
    "SAC": ("mountaincar-continuous",),
}


def settings_on_task(kind: str, game: str) -> Any:
    """Return the default settings of agents of the implementation ``kind`` on the real environment ``game``, without
    the later defaults, which are for longer trainings or take less time."""
    if game in _GAMES_WITH_DEFAULTS.get(kind, ()):
        return default_config(kind, game)
    config = default_config(kind, game if kind in ("QLearning", "SARSA") else "")
    return dataclasses.replace(config, **family(kind).defaults_on_proxies)


class Wrapper:
    """Wraps an environment; a subclass changes or records its steps."""

    def __init__(self, environment: Environment):
        self.environment = environment

    def __getattr__(self, name: str) -> Any:
        return getattr(self.environment, name)


class WrappedLoop(InnerLoop):
    """Trains agents on environments in wrappers, which ``wrap(environment)`` makes. ``wrappers`` are the wrappers of
    all trainings. ``args`` are the arguments of `InnerLoop`."""

    def __init__(self, wrap: Callable[[Environment], Any], *args: Any) -> None:
        super().__init__(*args)
        self.wrap = wrap
        self.wrappers: list[Any] = []  # copies of this loop share the list

    def begin(self, proxies: Tensor | None, seeds: list[int]) -> StepLoop:
        loop = super().begin(proxies, seeds)
        self.wrappers.append(self.wrap(loop.environment))
        loop.environment = self.wrappers[-1]
        return loop
