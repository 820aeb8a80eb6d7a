"""From a name to environments: `make_environment` is what everybody calls."""

from dataclasses import replace

from envs.base import Environment
from envs.gymnasium_adapter import GymnasiumEnvironment
from envs.names import resolve
from envs.probes import ProbeEnvironment
from envs.workers import ParallelEnvironment


def make_environment(
    name: str, members: int, envs: int, num_workers: int = 1, render: bool = False, time_limit: int | None = None
) -> Environment:
    """``members * envs`` environments of that name (see `envs.names.resolve`).

    ``num_workers`` processes step them, 1 meaning this one; probes are tensor programs and always stay here, as
    do environments made to ``render`` (those have ``frame(member, env)``). ``time_limit`` truncates their episodes
    after so many steps, in place of their own limit; probes keep theirs. Raises SettingError for a name that is
    unknown or an environment that cannot be had.
    """
    game = resolve(name)
    if time_limit is not None:
        game = replace(game, kwargs={**game.kwargs, "max_episode_steps": time_limit})
    if game.is_probe:
        return ProbeEnvironment(game.name, members, envs)
    if num_workers > 1 and members * envs > 1 and not render:
        return ParallelEnvironment(game, members, envs, num_workers)
    return GymnasiumEnvironment(game, members, envs, render)
