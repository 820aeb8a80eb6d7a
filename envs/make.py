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


def make_environment(
    name: str,
    members: int,
    envs: int,
    num_workers: int = 1,
    render: bool = False,
    time_limit: int | None = None,
    device: torch.device = CPU,
) -> Environment:
    """Return ``members * envs`` environments of this ``name`` (`envs.names.resolve`), as one `Environment`.

    A tensor program (`envs.tensor.Dynamics`) takes the place of Gymnasium's environment if there is one. Only tensor
    programs can be on another ``device`` than the CPU. ``num_workers`` is the number of processes that step the
    environments, and 1 means this process. With ``render``, the environments are Gymnasium's, are stepped in this
    process, and have a method ``frame(member, env)``; a seed starts a different episode in them than in the tensor
    program. ``time_limit`` in steps replaces the environment's limit; 0 means no limit. Raises SettingError for an
    unknown name, missing packages, or arguments that the environment does not take.
    """
    game = resolve(name)
    if time_limit is not None:
        max_episode_steps = None if time_limit == 0 else time_limit
        game = replace(game, kwargs={**game.kwargs, "max_episode_steps": max_episode_steps})
    if time_limit == 0:  # a longer episode may exceed the game's bound on returns
        game = replace(game, max_return=None)
    dynamics = None if render else make_dynamics(game)
    if device != CPU and dynamics is None:
        raise SettingError(f"gamename is {name!r}: it is played on the CPU only, not on {device}", "gamename")
    if dynamics is not None:
        return TensorEnvironment(dynamics, members, envs, device=device)
    if not game.gym_id:  # a tensor program without a Gymnasium id
        raise SettingError(f"record: {game.name} cannot be drawn, since it has no Gymnasium id", "record")
    if num_workers > 1 and members * envs > 1 and not render:
        return ParallelEnvironment(game, members, envs, num_workers)
    return GymnasiumEnvironment(game, members, envs, render)


def spaces_of(name: str, time_limit: int | None = None) -> Spaces:
    """Return the spaces of the environment ``name``. ``time_limit`` replaces its time limit, unless it is None."""
    environment = make_environment(name, 1, 1, time_limit=time_limit)
    environment.close()
    return environment.spaces


def make_dynamics(game: Game | str) -> Dynamics | None:
    """Return the cached tensor program of a game, None if it has none. Raises SettingError for an unknown name."""
    game = resolve(game) if isinstance(game, str) else game
    return _cached_dynamics(game.dynamics, tuple(game.kwargs.items())) if game.dynamics else None


@functools.lru_cache(32)
def _cached_dynamics(class_path: str, arguments: tuple[tuple[str, Any], ...]) -> Dynamics:
    """Make a tensor program of the class ``module:class``, with the pairs ``(name, value)`` of ``arguments``. All
    callers share the result, because it has no state."""
    module, _, class_name = class_path.partition(":")
    dynamics_class = getattr(importlib.import_module(module), class_name)
    dynamics: Dynamics = dynamics_class(**dict(arguments))
    return dynamics


class ProxyFactory:
    """Makes proxies of one kind for a real environment, and the environments in which agents train on them
    (`environment`). ``flat [M, D]`` are all D parameters of each of M proxies.

    ``envs/<kind>.py`` has a subclass of this name. Its constructor also sets ``parameters``. It implements `initial`
    and `environment`. The other methods of this class are right for kinds that cannot be made from a policy, and whose
    parameters are all changed by a search.
    """

    parameters: Parameters

    def __init__(self, config: Any, game: str):
        """Store the settings of the search, and the ``spaces`` of the real environment ``game``. Raises SettingError if
        it cannot be made, or shows images."""
        self.config, self.game = config, game
        self.spaces = spaces_of(game)
        if self.spaces.is_image:
            line = f"gamename is {game!r}, which shows images; a proxy takes vectors of observations"
            raise SettingError(line, "gamename")

    def initial(self, streams: Streams) -> Tensor:
        """Return initial parameters ``[M, D]``, a row for each of M random streams, as the settings say."""
        raise NotImplementedError

    def environment(self, flat: Tensor, agent: Trainee) -> Environment:
        """Return an environment of ``agent.members`` members with ``agent.envs`` environments each. Member m trains on
        the proxy with the parameters ``flat[m]`` of ``flat [M, D]``. A learned reward uses ``agent.discounts()``."""
        raise NotImplementedError

    def check_start(self) -> None:
        """Raise the SettingError that `initial` would raise."""

    def ineffective(self) -> dict[str, str]:
        """Return the proxy's settings that have no effect with this real environment, ``{name: reason}``."""
        return {}

    def check_policy(self, source: str) -> bool:
        """Return whether a proxy that is made from the policy ``source`` needs its action values, not its actions.
        Raises SettingError if the settings do not allow a proxy from a policy."""
        line = f"start_from is {source!r}, a policy, but a proxy of this kind is made from none"
        raise SettingError(f"{line}; allowed: a proxy's file, run folder or name", "start_from")

    def clone_policy(self, policy: Callable[[Tensor], Tensor], episodes: Any, streams: Streams) -> Tensor:
        """Return parameters ``[M, D]`` that are made from a policy. ``policy`` maps observations ``[N, S]`` to actions
        or action values (`check_policy`). ``episodes`` is a `control.evolution.teachers.TeacherEpisodes`, whose methods
        ``states`` and ``returns`` play episodes of the policy."""
        raise NotImplementedError("a proxy of this kind is made from no policy")

    def searched_part(self, flat: Tensor) -> Tensor:
        """Return the numbers ``[K]`` that a search changes among the parameters ``flat [D]`` of a proxy."""
        return flat

    def with_searched_part(self, part: Tensor, template: Tensor) -> Tensor:
        """Return the parameters ``[..., D]`` of proxies with ``part [..., K]`` as their `searched_part`. All other
        parameters follow from it, or are equal to the parameters ``template [D]``."""
        return part

    def with_visited_states(self, flat: Tensor, get_obs: Callable[..., Tensor], scaled: bool) -> Tensor:
        """Return the parameters ``flat [D]`` of a proxy with its initial states replaced by states from episodes of its
        target policy, if the settings ask for that. If ``scaled``, the target's inputs are also scaled to mean 0 and
        variance 1 on these states.

        ``get_obs(act, count, limit)`` returns observations ``[count, S]`` from episodes of the policy ``act``, a
        function from observations ``[N, S]`` to actions. Episodes restart after ``limit`` steps (None: the
        environment's limit)."""
        return flat

    def forward(self, flat: Tensor, *inputs: Any, **options: Any) -> Any:
        """Compute a step of the synthetic environment, or the reward, with parameters ``flat [1, D]`` on a batch of
        ``inputs``, for the LightningModule that learns proxies."""
        raise NotImplementedError("a proxy of this kind has no forward")


def proxy_factory(config: SearchConfig, game: str) -> ProxyFactory:
    """Return the `ProxyFactory` of ``envs/<kind>.py`` for the real environment ``game``. The kind is the folder of the
    module that defines ``config``, ``models/proxies/<kind>/config.py``."""
    kind = type(config).__module__.split(".")[-2]  # "synthetic" of models.proxies.synthetic.config
    factory: ProxyFactory = importlib.import_module(f"envs.{kind}").ProxyFactory(config, game)
    return factory
