"""Builds the loop of a run, with its agents and environments, from settings, and checks that they fit together.

The members of a run are independent agents, one per seed, that are trained together.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import nn

from control.cli.colour import note
from control.cli.settings import RunConfig, Settings, as_dict, default_settings, ineffective
from control.loops.episodes import EpisodeLoop
from control.loops.loop import Loop
from control.loops.steps import StepGroups
from control.storage.checkpoints import Checkpoint, CheckpointError
from envs.make import spaces_of
from envs.names import resolve
from models.contract import Agent
from models.registry import agent_class, family, inner_agents, parse_agents
from models.settings import HAS_NUMBA, SettingError
from models.spaces import Discrete, Spaces
from models.state import StateError, check_like


def build_loop(settings: Settings, for_training: bool = True) -> Loop:
    """Build the training loop of a run, with its agents and open environments. If not ``for_training``, as for
    evaluations, agents stay in torch. Raises SettingError if the agent does not fit the environment, the machine, or
    the goals in ``settings.command``."""
    run = settings.run
    spaces = spaces_of(run.gamename)
    check_accelerator(run)
    check_spaces(run, agent_class(run.implementation), spaces)
    settings = adapt_to_spaces(settings, spaces)
    loop: Loop
    if family(run.implementation).learns_from == "episodes":
        loop = EpisodeLoop(settings)
    else:
        loop = StepGroups(settings)
        loop.compiled = for_training and decide_compiled(settings, partial(_can_compile, loop))
        if loop.compiled:
            from control.loops.compiled_agent import use_machine_code  # imports Numba

            for group in loop.groups:
                use_machine_code(group, run.num_threads)
    command_names = loop.agents[0].command_names
    unknown_names = [f"command.{name}" for name in settings.command if name not in command_names]
    if unknown_names:
        loop.close()
        supported = ", ".join(command_names) or "no command"
        raise SettingError(f"{', '.join(unknown_names)} has no effect: {run.implementation} here follows {supported}")
    return loop


def _can_compile(loop: StepGroups) -> bool:
    """Return whether machine code supports the settings of all agents of ``loop``."""
    from control.loops.compiled import can_compile_agent  # imports Numba

    return all(can_compile_agent(group.agent) for group in loop.groups)


def take_weights(agents: Sequence[Agent], checkpoint: Checkpoint) -> None:
    """Load the weights of a checkpoint into ``agents``, and nothing else. Raises CheckpointError if shapes differ."""
    # Gives parameters the names that they have in checkpoints of `AgentModule`, such as "agents.0.flat_parameters".
    module = nn.ModuleDict({"agents": nn.ModuleList(agents)})
    try:
        module.load_state_dict(check_like(module.state_dict(), checkpoint.content["state_dict"]))
    except StateError as error:
        run = checkpoint.settings.run
        problem = f"is of {run.implementation} on {run.gamename}, whose networks are others"
        allowed = "one with the same network settings, spaces and num_seeds"
        raise CheckpointError(f"checkpoint {str(checkpoint.path)!r} {problem}; allowed: {allowed}") from error


def check_spaces(run: RunConfig, agent_type: type[Agent], spaces: Spaces, inner_agent: str = "") -> None:
    """Raise SettingError if an agent of class ``agent_type`` cannot play the run's game, which has these ``spaces``.
    ``inner_agent`` is the name of the agent if it trains on a learned environment or reward, else ""."""
    mismatch = _mismatch(agent_type, spaces, inner_agent or run.implementation)
    if not mismatch:
        return
    candidates = inner_agents() if inner_agent else ("PPO", "DDQN", "SAC")  # most environments suit PPO, DDQN or SAC
    capable = " or ".join(name for name in candidates if not _mismatch(agent_class(name), spaces, name))
    gym_id = resolve(run.gamename).gym_id  # the user may have typed it
    id_text = f" ({gym_id})" if gym_id != run.gamename else ""
    line = f"gamename is {run.gamename!r}{id_text}, {mismatch}"
    raise SettingError(f"{line}; try {capable}" if capable else line, "agent" if inner_agent else "")


def _mismatch(agent_type: type[Agent], spaces: Spaces, name: str) -> str:
    """Return why agents of class ``agent_type``, called ``name``, cannot play in ``spaces``, such as "whose actions are
    continuous; DDQN takes discrete actions". It is empty if they can."""
    if not isinstance(spaces.actions, agent_type.action_kinds):
        supported = " or ".join(kind.__name__.lower() for kind in agent_type.action_kinds)
        return f"whose actions are {type(spaces.actions).__name__.lower()}; {name} takes {supported} actions"
    if spaces.is_image and not agent_type.takes_images:
        return f"which shows images; {name} takes vectors of observations"
    if agent_type.takes_cells_only and not spaces.one_hot:
        return f"whose observations are no cells; {name} takes one-hot observations"
    return ""


def with_missing_features(settings: Settings, spaces: Spaces) -> Settings:
    """Return a copy of ``settings`` with the ``missing_features`` of an environment with these ``spaces``, such as
    ``{"images", "continuous actions"}``. Without these features, some settings have no effect."""
    missing_features = {"continuous actions" if isinstance(spaces.actions, Discrete) else "discrete actions"}
    if not spaces.is_image:
        missing_features.add("images")
    return dataclasses.replace(settings, missing_features=frozenset(missing_features))


def adapt_to_spaces(settings: Settings, spaces: Spaces, reasons: Mapping[str, str] | None = None) -> Settings:
    """Return ``settings`` with the ``missing_features`` of an environment with these ``spaces``. Raises SettingError if
    the user changed a setting that has an effect in other environments, but not here. ``reasons`` are further settings
    without effect in this environment, setting -> reason."""
    settings_here = with_missing_features(settings, spaces)
    reasons_here = {**ineffective(settings_here), **(reasons or {})}
    ineffective_only_here = reasons_here.keys() - ineffective(settings).keys()
    for name in sorted(settings.explicit_names & ineffective_only_here):
        if as_dict(settings)[name] != default_settings(settings)[name]:
            raise SettingError(f"--{name} has no effect on {settings.run.gamename}: {reasons_here[name]}", name)
    return settings_here


def check_accelerator(run: RunConfig) -> None:
    """Raise SettingError if the run's agents cannot learn on its accelerator, or the machine has none."""
    line = f"accelerator is {run.accelerator!r} (cuda)"
    if run.accelerator not in family(run.implementation).accelerators:
        raise SettingError(f"{line}; allowed for {run.implementation}: cpu", "accelerator")
    if run.accelerator == "gpu" and not torch.cuda.is_available():
        raise SettingError(f"{line}, but torch {torch.__version__} finds no GPU; allowed here: cpu", "accelerator")


def has_machine_code(settings: Settings) -> bool:
    """Return whether an agent of the run can train in machine code, at least with some values of its settings."""
    run = settings.run
    names = [run.implementation] if settings.proxy is None else parse_agents(run.agent)
    return any(family(name).has_machine_code for name in names)


def decide_compiled(settings: Settings, is_supported: Callable[[], bool]) -> bool:
    """Decide whether agents train in machine code: the setting ``compiled`` is on, Numba is installed, they have
    machine code, and ``is_supported()``, called only then, says that it supports their settings.

    Prints a note if Numba is missing, or if machine code cannot be cached. Raises SettingError if machine code is
    impossible, but the user, or the run to resume, switched ``compiled`` on."""
    is_explicit = "compiled" in settings.explicit_names  # set by the user or by the run to resume
    if not settings.value("compiled"):
        if has_machine_code(settings) and not HAS_NUMBA and not is_explicit:  # without Numba, the default is off
            note("training is many times as fast with Numba: pip install -c constraints.txt numba")
        return False
    if not HAS_NUMBA or not (has_machine_code(settings) and is_supported()):
        if is_explicit:
            agent = settings.run.implementation if settings.proxy is None else settings.run.agent
            problem = f"{agent} with these settings has no machine code" if HAS_NUMBA else "Numba is not installed"
            raise SettingError(f"compiled is true, but {problem}; allowed: false", "compiled")
        return False
    from models.machine import keeps_cache

    if keeps_cache() or is_explicit:
        return True
    note("the cache folder for machine code is not writable, so agents train in torch; --compiled compiles each time")
    return False
