"""Make environments by name, and environments in which agents train on proxies."""

import functools
import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from envs.base import Environment
from envs.gymnasium_adapter import GymnasiumEnvironment
from envs.names import Game, resolve
from envs.tensor import CPU, Dynamics, TensorEnvironment
from envs.workers import ParallelEnvironment
from models.proxies.contract import Parameters, Trainee
from models.proxies.search import SearchConfig
from models.settings import SettingError
from models.spaces import Spaces
from models.streams import Streams

_NO_LIMIT = -1  # for `gymnasium.make`, to which None means the environment's limit


def make_environment(
    name: str,
    members: int,
    envs: int,
    num_workers: int = 1,
    render: bool = False,
    time_limit: int | None = None,
    device: torch.device = CPU,
) -> Environment:
    """Return ``members * envs`` environments of that name (see `envs.names.resolve`).

    ``num_workers`` processes step them; 1 is this process. Tensor programs (environments with dynamics) and
    environments with ``render`` are always stepped in this process. With ``render`` environments have ``frame(member,
    env)`` and are always Gymnasium's, in which a seed starts a different episode than in a tensor program.
    ``time_limit`` in steps replaces the environment's limit; 0 means no limit. A ``device`` other
    than the CPU needs `envs.tensor.Dynamics`. Raises SettingError for an unknown name, missing packages, or arguments
    that the environment does not take.
    """
    game = _limited(name, time_limit)
    dynamics = None if render else _dynamics(game)
    if device != CPU and dynamics is None:
        raise SettingError(f"gamename is {name!r}: it is played on the CPU only, not on {device}", "gamename")
    if dynamics is not None:
        return TensorEnvironment(dynamics, members, envs, device=device)
    if not game.gym_id:  # a tensor program without a Gymnasium id
        raise SettingError(f"record: {game.name} cannot be drawn, since it has no Gymnasium id", "record")
    if num_workers > 1 and members * envs > 1 and not render:
        return ParallelEnvironment(game, members, envs, num_workers)
    return GymnasiumEnvironment(game, members, envs, render)


def make_dynamics(name: str, time_limit: int | None = None) -> Dynamics | None:
    """Return the game of that name as a tensor program, from a cache; None if there is none.

    ``time_limit`` in steps replaces the game's limit; 0 means none. Raises SettingError for an unknown name.
    """
    return _dynamics(_limited(name, time_limit))


def _limited(name: str, time_limit: int | None) -> Game:
    """Return the `Game` of a name with ``time_limit`` in its ``kwargs``: None keeps the game's limit, and 0, no limit,
    is stored as `_NO_LIMIT`."""
    game = resolve(name)
    if time_limit is None:
        return game
    # The bound on returns may depend on the time limit, so it does not hold without one.
    max_return = game.max_return if time_limit else None
    return replace(game, kwargs={**game.kwargs, "max_episode_steps": time_limit or _NO_LIMIT}, max_return=max_return)


def _dynamics(game: Game) -> Dynamics | None:
    return _cached_dynamics(game.dynamics, tuple(game.kwargs.items())) if game.dynamics else None


@functools.lru_cache(32)
def _cached_dynamics(class_path: str, arguments: tuple[tuple[str, Any], ...]) -> Dynamics:
    """Make the dynamics ``module:class`` with the constructor's ``arguments``. They are cached, because they have no
    state, and a search makes several environments in each generation."""
    module, _, class_name = class_path.partition(":")
    dynamics_class, parameters = getattr(importlib.import_module(module), class_name), dict(arguments)
    unlimited = parameters.get("max_episode_steps") == _NO_LIMIT
    if unlimited:
        del parameters["max_episode_steps"]
    dynamics: Dynamics = dynamics_class(**parameters)
    if unlimited and dynamics.spaces.max_episode_steps is not None:  # the class has a default limit
        dynamics.spaces = replace(dynamics.spaces, max_episode_steps=None, max_return=None)
    return dynamics


class Stages:
    """Base class of one kind of proxy around one real environment. Its methods are for kinds that cannot be cloned from
    a policy and have only searched parameters.

    ``envs/<kind>.py`` has a subclass of this name, constructed by ``Stages(config, game)``. It implements `initial` and
    `stage`.
    """

    spaces: Spaces  # of the real environment, for which agents are built
    parameters: Parameters

    def initial(self, streams: Streams) -> Tensor:
        """Return initial parameters ``[M, D]``, one row per random stream, as the settings say."""
        raise NotImplementedError

    def stage(self, flat: Tensor, agent: Trainee) -> Environment:
        """Return an environment of ``agent.members`` members with ``agent.envs`` environments each, in which member m
        trains on the proxy ``flat[m]`` of ``flat [M, D]``. A learned reward uses ``agent.discounts()``."""
        raise NotImplementedError

    def check_start(self) -> None:
        """Raise the SettingError that `initial` would raise."""

    def ineffective(self) -> dict[str, str]:
        """Return the proxy's settings that have no effect around this environment, as name -> reason."""
        return {}

    def check_policy(self, source: str) -> bool:
        """Return whether a proxy cloned from the policy ``source`` needs its action values instead of its actions.
        Raises SettingError if the settings do not allow a proxy from a policy."""
        line = f"start_from is {source!r}, a policy, but a proxy of this kind is made from none"
        raise SettingError(f"{line}; allowed: a proxy's file, run folder or name", "start_from")

    def cloned_from_policy(self, policy: Callable[[Tensor], Tensor], episodes: Any, streams: Streams) -> Tensor:
        """Return parameters ``[M, D]`` made from a policy and its ``episodes``, whose methods ``states`` and
        ``returns`` play new ones (`control.evolution.teachers.TeacherEpisodes`). ``policy`` maps observations
        ``[N, S]`` to its actions or action values (`check_policy`)."""
        raise NotImplementedError("a proxy of this kind is made from no policy")

    def searched_part(self, flat: Tensor) -> Tensor:
        """Return the part ``[K]`` of parameters ``[D]`` that a search changes. Its strategy sees nothing else."""
        return flat

    def with_searched_part(self, searched: Tensor, template: Tensor) -> Tensor:
        """Return parameters ``[..., D]`` with the searched part ``searched [..., K]``. The other parameters are derived
        from it, or are equal to ``template [D]``."""
        return searched

    def with_visited_states(self, flat: Tensor, get_obs: Callable[..., Tensor], scaled: bool) -> Tensor:
        """Return parameters ``flat [D]`` with initial states replaced by states from episodes of the proxy's target
        policy, if the settings ask for that. ``get_obs(act, count, limit)`` returns observations ``[count, S]`` from
        episodes of the policy ``act``, a function from observations ``[N, S]`` to actions. They restart after ``limit``
        steps; None means the environment's limit. With ``scaled`` the target's inputs also get mean 0 and variance 1 on
        these states."""
        return flat

    def forward(self, flat: Tensor, *inputs: Any, **options: Any) -> Any:
        """Compute the proxy ``flat [1, D]`` on a batch: a step of a synthetic environment, or the payment of a learned
        reward. The LightningModule that learns proxies has it as its ``forward``."""
        raise NotImplementedError("a proxy of this kind has no forward")


def stages_of(config: SearchConfig, game: str) -> Stages:
    """Return the `Stages` of a proxy's settings around the real environment ``game``. The settings' module,
    ``models/proxies/<kind>/config.py``, determines ``envs/<kind>.py``."""
    kind = type(config).__module__.split(".")[-2]
    stages: Stages = importlib.import_module(f"envs.{kind}").Stages(config, game)
    return stages
