"""From a name to environments: `make_environment` is what everybody calls."""

import importlib
from dataclasses import replace

from envs.base import Environment
from envs.gymnasium_adapter import GymnasiumEnvironment
from envs.names import Game, resolve
from envs.probes import ProbeEnvironment
from envs.tensor import Dynamics, TensorEnvironment
from envs.workers import ParallelEnvironment


def make_environment(
    name: str, members: int, envs: int, num_workers: int = 1, render: bool = False, time_limit: int | None = None
) -> Environment:
    """``members * envs`` environments of that name (see `envs.names.resolve`).

    ``num_workers`` processes step them, 1 meaning this one; probes and games with dynamics are tensor programs and
    always stay here, as do environments made to ``render``. Those have ``frame(member, env)`` and are always
    Gymnasium's, whose episodes start elsewhere from the same seeds than those of tensor programs. ``time_limit``
    truncates episodes after so many steps, in place of their own limit; probes keep theirs. Raises SettingError for a
    name that is unknown or an environment that cannot be had.
    """
    game = _limited(name, time_limit)
    if game.is_probe:
        return ProbeEnvironment(game.name, members, envs)
    dynamics = None if render else _dynamics(game)
    if dynamics is not None:
        return TensorEnvironment(dynamics, members, envs)
    if num_workers > 1 and members * envs > 1 and not render:
        return ParallelEnvironment(game, members, envs, num_workers)
    return GymnasiumEnvironment(game, members, envs, render)


def make_dynamics(name: str, time_limit: int | None = None) -> Dynamics | None:
    """The game of that name as a tensor program, None where it has no such form (probes have none either).

    ``time_limit`` in steps replaces its own. Raises SettingError for an unknown name.
    """
    return _dynamics(_limited(name, time_limit))


def _limited(name: str, time_limit: int | None) -> Game:
    game = resolve(name)
    if time_limit is None:
        return game
    return replace(game, kwargs={**game.kwargs, "max_episode_steps": time_limit})


def _dynamics(game: Game) -> Dynamics | None:
    if not game.dynamics:
        return None
    module, _, of_class = game.dynamics.partition(":")
    return getattr(importlib.import_module(module), of_class)(**game.kwargs)
