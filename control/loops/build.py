"""Builds the loop of a run, with its agents and environments, from settings, and checks that they fit together."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import nn

from control.cli.colour import note
from control.cli.settings import RunConfig, Settings, as_dict, default_settings, ineffective
from control.loops.episodes import EpisodeLoop
from control.loops.loop import Loop
from control.loops.steps import Group, StepGroups, StepLoop
from control.storage.checkpoints import Checkpoint, CheckpointError
from envs.make import make_environment
from envs.names import GAMES
from envs.tensor import TensorEnvironment
from models.contract import Agent
from models.registry import agent_class, family, inner_agents
from models.settings import SettingError
from models.spaces import Discrete, Spaces
from models.state import StateError, check_like
from models.streams import Streams


def build_loop(settings: Settings) -> Loop:
    """Build the loop of a run, with open environments. Raises SettingError if agent, environment, command and machine
    do not fit together."""
    run, spaces = settings.run, spaces_of(settings.run.gamename)
    check_accelerator(run)
    check_spaces(run, agent_class(run.implementation), spaces)
    settings = in_spaces(settings, spaces)
    loop = _episodes(settings) if family(run.implementation).learns_from == "episodes" else _steps(settings)
    followed = loop.agents[0].commands_now()
    if unknown := ", ".join(f"command.{name}" for name in settings.command if name not in followed):
        loop.close()
        supported = ", ".join(followed) or "no command"
        raise SettingError(f"{unknown} has no effect: {run.implementation} here follows {supported}")
    return loop


def take_weights(agents: Sequence[Agent], checkpoint: Checkpoint) -> None:
    """Load the weights of a checkpoint into ``agents``, and nothing else. Raises CheckpointError if shapes differ."""
    module = nn.ModuleDict({"agents": nn.ModuleList(agents)})  # gives parameters the same names as `AgentModule`
    try:
        module.load_state_dict(check_like(module.state_dict(), checkpoint.content["state_dict"]))
    except StateError as error:
        run = checkpoint.settings.run
        raise CheckpointError(
            f"checkpoint {str(checkpoint.path)!r} is of {run.implementation} on {run.gamename}, whose networks are "
            "others; allowed: one with the same network settings, spaces and num_seeds"
        ) from error


def spaces_of(game: str, time_limit: int | None = None) -> Spaces:
    """Return the spaces of a game, from an environment that is opened and closed again. ``time_limit`` in steps
    replaces the game's limit."""
    environment = make_environment(game, 1, 1, time_limit=time_limit)
    environment.close()
    return environment.spaces


def check_spaces(run: RunConfig, agent: type[Agent], spaces: Spaces, name: str = "") -> None:
    """Raise SettingError if an agent cannot play the run's game. ``name`` is the agent's implementation if it is an
    inner agent; the error then suggests others."""
    acts = name or run.implementation
    if not isinstance(spaces.actions, agent.action_kinds):
        action_kind = type(spaces.actions).__name__.lower()
        supported = " or ".join(kind.__name__.lower() for kind in agent.action_kinds)
        if name:
            kinds = ((implementation, agent_class(implementation)) for implementation in inner_agents())
            alternatives = [
                implementation
                for implementation, kind in kinds
                if isinstance(spaces.actions, kind.action_kinds) and (spaces.one_hot or not kind.takes_cells_only)
            ]
            line = f"agent is {run.agent!r}, but {name} takes {supported} actions, and those of {run.gamename} are "
            line += action_kind
            raise SettingError(f"{line}; allowed: {', '.join(alternatives)}", "agent")
        raise SettingError(
            f"gamename is {run.gamename!r}, whose actions are {action_kind}; {acts} takes {supported} actions"
        )
    if spaces.is_image and not agent.takes_images:
        raise SettingError(f"gamename is {run.gamename!r}, which shows images; {acts} takes vectors of observations")
    if agent.takes_cells_only and not spaces.one_hot:
        raise SettingError(
            f"gamename is {run.gamename!r}, whose observations are no cells; {acts} takes one-hot observations"
        )


def aware_of(settings: Settings, spaces: Spaces) -> Settings:
    """Return a copy of ``settings`` with ``lacks``, the properties that the environment does not have."""
    actions = "continuous" if isinstance(spaces.actions, Discrete) else "discrete"
    lacks = frozenset({f"{actions} actions", *(() if spaces.is_image else ("images",))})
    return dataclasses.replace(settings, lacks=lacks)


def in_spaces(settings: Settings, spaces: Spaces, reasons: Mapping[str, str] | None = None) -> Settings:
    """Return the result of `aware_of`. Raises SettingError if the user chose a value other than the default for a
    setting that has no effect in this environment or that is in ``reasons`` (name -> reason)."""
    resolved = aware_of(settings, spaces)
    idle = ineffective(resolved) | dict(reasons or {})
    candidates = settings.explicit_names & idle.keys()
    for name in sorted(candidates - ineffective(settings).keys() if candidates else ()):
        if as_dict(settings)[name] != default_settings(settings)[name]:
            raise SettingError(f"--{name} has no effect on {settings.run.gamename}: {idle[name]}", name)
    return resolved


def device_of(run: RunConfig) -> torch.device:
    """Return the device for a run's ``accelerator``."""
    return torch.device("cuda" if run.accelerator == "gpu" else "cpu")


def check_accelerator(run: RunConfig) -> None:
    """Raise SettingError if the run's agents cannot learn on its accelerator, or the machine has none."""
    if run.accelerator == "cpu":
        return
    if run.accelerator not in family(run.implementation).accelerators:
        line = f"accelerator is {run.accelerator!r}; allowed for {run.implementation}: cpu"
        raise SettingError(line, "accelerator")
    if not torch.cuda.is_available():
        line = f"accelerator is {run.accelerator!r}, but torch {torch.__version__} finds no GPU; allowed here: cpu"
        raise SettingError(line, "accelerator")


def _episodes(settings: Settings) -> EpisodeLoop:
    run, schedule = settings.run, settings.agent.schedule
    workers, limit, timeout = run.num_workers, run.time_limit, run.step_timeout
    environment = partial(
        make_environment, run.gamename, run.num_seeds, num_workers=workers, time_limit=limit, step_timeout=timeout
    )
    training = environment(schedule.episodes)
    if training.spaces.max_episode_steps is None and limit is None:
        note(f"{run.gamename} has no time limit, so an episode may never end; --time_limit N cuts it")
    seeds = list(range(run.seed, run.seed + run.num_seeds))
    agent = agent_class(run.implementation)(settings.agent, training.spaces, seeds)
    # Evaluation has a separate environment if it needs more rows, because unused rows would cost time in training.
    evaluation = environment(run.eval_episodes) if run.eval_episodes > schedule.episodes else None
    agent.budget = settings.total_steps
    return EpisodeLoop(agent, training, schedule, run.gamename, run.eval_episodes, evaluation, settings.command)


def _steps(settings: Settings) -> StepGroups:
    run, config, schedule = settings.run, settings.agent, settings.schedule
    kind, seeds = agent_class(run.implementation), list(range(run.seed, run.seed + run.num_seeds))
    device = device_of(run)
    limits = [limit for limit in (schedule.eval_steps, run.time_limit) if limit is not None]
    partition, groups = kind.groups(config, seeds), []
    for positions in partition:
        group_seeds, workers = [seeds[m] for m in positions], max(1, run.num_workers // len(partition))
        environment = partial(
            make_environment,
            run.gamename,
            len(group_seeds),
            num_workers=workers,
            device=device,
            step_timeout=run.step_timeout,
        )
        training = environment(config.num_envs, time_limit=run.time_limit or (0 if schedule.endless else None))
        dynamics = training.on_device if isinstance(training, TensorEnvironment) else None
        if dynamics is None and kind.needs_dynamics(config):
            supported = ", ".join(game.name for game in GAMES.values() if game.dynamics)
            cannot = f"gamename is {run.gamename!r}, whose states cannot be copied"
            raise SettingError(f"{cannot}; allowed for {run.implementation}: {supported}", "gamename")
        world = {"dynamics": dynamics, "device": device} if kind.knows_dynamics else {}
        loop = StepLoop(
            kind(config, training.spaces, group_seeds, **world), training, Streams.from_name(group_seeds, "episodes")
        )
        evaluation = environment(schedule.eval_episodes, time_limit=min(limits, default=None))
        groups.append(Group(torch.tensor(positions), loop, evaluation))
    assert settings.epochs is not None  # an epoch has a number of steps
    return StepGroups(groups, seeds, schedule, settings.epochs, run.gamename)
