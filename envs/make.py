"""Make environments by name, and environments in which agents train on proxies."""

import functools
import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from envs.base import Environment
from envs.gymnasium_adapter import Converter, GymnasiumEnvironment, film_error
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
    """Make ``envs`` environments for each of ``members`` agents that train side by side, as one `Environment`. A tensor
    program (`envs.tensor.Dynamics`) takes the place of Gymnasium's environment if there is one. Raises SettingError for
    an unknown name, missing packages, or arguments that the environment does not take.

    :param name: value of ``--gamename``, such as "cartpole" or "procmaze,grid_size=5".
    :param num_workers: number of processes that step Gymnasium's environments. 1 means this process.
    :param render: make Gymnasium's environments in this process, with a method ``frame(member, env)`` for pictures. A
        seed starts a different episode in them than in the tensor program.
    :param time_limit: number of steps that replaces the environment's limit. 0 means no limit.
    :param device: device of the tensors. Only tensor programs can be on another device than the CPU.
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
        raise film_error(game, "it has no Gymnasium id")
    if num_workers > 1 and members * envs > 1 and not render:
        return ParallelEnvironment(game, members, envs, num_workers)
    return GymnasiumEnvironment(game, members, envs, render)


def spaces_of(name: str, time_limit: int | None = None) -> Spaces:
    """Return the spaces of the environment ``name``. Unless it is None, ``time_limit`` replaces its time limit."""
    environment = make_environment(name, 1, 1, time_limit=time_limit)
    environment.close()
    return environment.spaces


def converter_of(name: str) -> Converter:
    """Return the converter between the observations and actions of agents and of the environment ``name``."""
    environment = make_environment(name, 1, 1)
    environment.close()
    if isinstance(environment, GymnasiumEnvironment):
        return environment.converter
    return Converter.from_spaces(environment.spaces)


def make_dynamics(game: Game | str) -> Dynamics | None:
    """Return the tensor program of a game, which is cached, or None. Raises SettingError for an unknown name."""
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
    """Makes proxies of one kind (learned environments or rewards) for a real environment, and the environments in which
    agents train on them (`environment`). ``flat [M, D]`` are all D parameters of each of M proxies.

    ``envs/<kind>.py`` has a subclass of this name. Its constructor also sets ``parameters``, and it implements
    `initial` and `environment`. The other methods of this class are for kinds of which a search changes all parameters,
    and which cannot be made from a policy.
    """

    parameters: Parameters  # architecture of the networks

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
        """Raise the SettingError that `initial` would raise for these settings."""

    def ineffective(self) -> dict[str, str]:
        """Return the proxy's settings that have no effect with this real environment, ``{name: reason}``."""
        return {}

    def check_policy(self, source: str) -> bool:
        """Return whether `clone_policy` needs the action values of a policy, and not its actions. Raises SettingError
        if the settings allow no proxy from a policy; in the message, the policy is called ``source``."""
        line = f"start_from is {source!r}, a policy, but a proxy of this kind is made from none"
        raise SettingError(f"{line}; allowed: a proxy's file, run folder or name", "start_from")

    def clone_policy(self, policy: Callable[[Tensor], Tensor], episodes: Any, streams: Streams) -> Tensor:
        """Return parameters ``[M, D]`` of proxies that are made from a policy, one for each of M random ``streams``.
        ``policy`` maps observations ``[N, S]`` to actions or action values (`check_policy`). ``episodes`` is a
        `control.evolution.teachers.TeacherEpisodes`, whose methods ``states`` and ``returns`` play episodes of the
        policy."""
        raise NotImplementedError("a proxy of this kind is made from no policy")

    def searched_part(self, flat: Tensor) -> Tensor:
        """Return the numbers ``[K]`` that a search changes among the parameters ``flat [D]`` of a proxy."""
        return flat

    def with_searched_part(self, part: Tensor, template: Tensor) -> Tensor:
        """Return all parameters ``[..., D]`` of proxies from ``part [..., K]``, the numbers that a search changes (the
        inverse of `searched_part`). Other parameters are copied from ``template [D]``, another proxy."""
        return part

    def with_visited_states(self, flat: Tensor, get_obs: Callable[..., Tensor], scaled: bool) -> Tensor:
        """Return the parameters ``flat [D]`` of a proxy after its initial states are replaced by real states, if the
        settings ask for that. They are from episodes of the policy that the proxy's rewards define. If ``scaled``, the
        inputs of this policy are standardised anew, by these states.

        ``get_obs(act, count, limit)`` returns observations ``[count, S]`` from episodes of the policy ``act``, a
        function from observations ``[N, S]`` to actions. Episodes end after ``limit`` steps (None: the environment's
        limit)."""
        return flat

    def forward(self, flat: Tensor, *inputs: Any, **options: Any) -> Any:
        """Compute a step of the synthetic environment, or the reward, with parameters ``flat [1, D]`` on a batch of
        ``inputs``, for the LightningModule that learns proxies."""
        raise NotImplementedError("a proxy of this kind has no forward")


def proxy_factory(config: SearchConfig, game: str) -> ProxyFactory:
    """Return the object that makes proxies with the settings ``config`` for the real environment ``game``, from
    ``envs/<kind>.py``. The kind is the folder that defines the settings, ``models/proxies/<kind>/config.py``."""
    kind = type(config).__module__.split(".")[-2]  # "synthetic" in "models.proxies.synthetic.config"
    factory: ProxyFactory = importlib.import_module(f"envs.{kind}").ProxyFactory(config, game)
    return factory
