"""`Settings`, all settings of a run, and their written form: a flat mapping of names to plain values, for
``config.yaml`` in a run folder, checkpoints and ``--config``. Imports no torch."""

import dataclasses
import os
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from control.cli.run_settings import COMMANDS, Command, RunConfig
from models.family import Family, StepSchedule, reasons_by_setting
from models.mixture import Mixture, expand_shared, shared_settings
from models.registry import agent_and_proxy_defaults, config_of, families_of, family, named_agents, split_by_family
from models.settings import Kind, SettingError, check, check_value, kinds, names_with, nearest, setting
from models.vocabulary import translate

RETURN_COMMANDS = {
    "return": setting(None, "return to command, in the environment's reward"),
    "horizon": setting(None, "steps to command", above=0),
    "advantage": setting(None, "advantage to command (RCP-A)"),
}
"""What ``--command.<name>`` may command of an agent, each a `COMMAND`; null leaves it to the agent."""
_FIRST = ("implementation", "gamename", "agent")  # they decide which settings there are
COMMAND = Kind(float, is_list=False, optional=True)


@dataclass(frozen=True)
class Settings:
    """All settings of one call of the command.

    ``subcommand`` has the settings of the command (`control.cli.run_settings.COMMANDS`), None for training. ``agent``
    is the ``config`` of the agent's family, None with ``--eval_agent``, because the checkpoint has it. ``proxy`` is the
    ``config`` of the proxy to learn, else None; ``agent`` then belongs to the inner agent, or to agents of several
    families (`models.mixture`). With ``--eval_agent``, ``changed`` holds hyperparameters of agents that train on a
    proxy, and parameters of the environment. ``command`` holds overrides only, such as ``{"return": 250.0}``.
    ``explicit_names`` are the names that a flag or file set (``"command"`` for any command). ``lacks`` has properties
    that a known environment lacks (`models.family.PARTS`). ``imports`` are the modules of ``--import``.
    """

    run: RunConfig
    agent: Any
    command: dict[str, float] = dataclasses.field(default_factory=dict)
    explicit_names: frozenset[str] = frozenset()
    proxy: Any = None
    changed: dict[str, Any] = dataclasses.field(default_factory=dict)
    lacks: frozenset[str] = frozenset()
    imports: tuple[str, ...] = ()
    subcommand: Any = None

    @property
    def configs(self) -> list[Any]:
        """The configs of the run, the command, the proxy and the agent, without those that are None."""
        return [part for part in (self.run, self.subcommand, self.proxy, self.agent) if part is not None]

    def value(self, name: str) -> Any:
        """The setting of that name that counts: the proxy's, the agent's or the run's."""
        return next(getattr(part, name) for part in self.configs[::-1] if hasattr(part, name))

    @property
    def total_steps(self) -> int | None:
        """Environment steps of each seed (with a proxy: of all agents on proxies) that end the run, or None."""
        return self.value("total_steps")

    @property
    def epochs(self) -> int | None:
        """Number of epochs: the proxy's generations, the agent's epochs if it has them, else the run's, limited by
        `total_steps` if an epoch has a fixed number of steps. None if only `total_steps` end the run."""
        if self.proxy is not None:
            return self.proxy.generations
        last = self.agent.epochs if hasattr(self.agent, "epochs") else self.run.epochs
        if self.total_steps is not None and family(self.run.implementation).learns_from == "steps":
            envs = self.agent.num_envs
            epochs_needed = -(-self.total_steps // (-(-self.schedule.steps_per_epoch // envs) * envs))
            last = epochs_needed if last is None else min(last, epochs_needed)
        return last

    @property
    def schedule(self) -> StepSchedule:
        """Lengths of epochs and evaluations: the agent's if its config has a `StepSchedule`, else the run's."""
        agent_schedule = getattr(self.agent, "schedule", None)
        if isinstance(agent_schedule, StepSchedule):
            return agent_schedule
        return StepSchedule(self.run.steps_per_epoch, self.run.eval_every, self.run.eval_episodes)

    def replace(self, **changes: Any) -> "Settings":
        """A copy with fields of any config, or ``command``, changed by name. Raises SettingError. Defaults are
        not chosen anew: for another implementation or environment use `from_dict`."""
        command = changes.pop("command", self.command)
        for name, value in command.items():
            if name not in RETURN_COMMANDS:
                raise SettingError(f"command.{name} is unknown; allowed: {', '.join(RETURN_COMMANDS)}")
            check_value(f"command.{name}", value, COMMAND, RETURN_COMMANDS[name].metadata)
        command = {name: float(value) for name, value in command.items() if value is not None}
        changes = expand_shared(self.agent, changes) if isinstance(self.agent, Mixture) else changes
        changes = _aimed(self.run, changes) if self.proxy is not None else changes
        by_part: dict[str, dict[str, Any]] = {}
        for name, value in changes.items():
            by_part.setdefault(self._owner(name), {})[name] = value
        parts = {part: build(getattr(self, part), values) for part, values in by_part.items()}
        return dataclasses.replace(self, command=command, **parts)

    def _owner(self, name: str) -> str:
        """The attribute whose config has the setting ``name``; "agent" for an unknown name."""
        having = [part for part in ("proxy", "agent", "run", "subcommand") if name in kinds(type(getattr(self, part)))]
        return having[0] if having else "agent"


def _aimed(run: RunConfig, changes: dict[str, Any]) -> dict[str, Any]:
    """Return ``changes`` of a search in which ``target_return`` becomes ``solved_reward``. It also ends the search once
    solved, unless ``changes`` set ``quit_when_solved``. Raises SettingError if the two rewards differ."""
    if changes.get("target_return") is None:
        return changes
    target, solved = build(run, {"target_return": changes["target_return"]}).target_return, changes.get("solved_reward")
    if solved not in (None, target):
        raise SettingError(f"target_return is {target}, but solved_reward is {solved}; give one")
    return {"quit_when_solved": True} | changes | {"solved_reward": target}


def as_dict(settings: Settings) -> dict[str, Any]:
    """The written form: flat, plain types only (tuples as lists), ``command`` a mapping."""
    values = {field.name: getattr(part, field.name) for part in settings.configs for field in dataclasses.fields(part)}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return plain | {"command": dict(settings.command)}


def default_settings(settings: Settings) -> dict[str, Any]:
    """The written form of the defaults of these agents in this environment, for the chosen preset and proxy."""
    run, values = settings.run, as_dict(settings)
    choices = {name: values[name] for part in settings.configs for name in names_with(part, "chooses")}
    agent, proxy = agent_and_proxy_defaults(run.implementation, run.gamename, choices, run.agent)
    subcommand = None if settings.subcommand is None else type(settings.subcommand)()
    return as_dict(Settings(RunConfig(), agent, proxy=proxy, subcommand=subcommand))


def from_dict(values: Mapping[str, Any]) -> Settings:
    """Settings from the written form, with defaults for missing ones; the flag of a command adds its settings.
    Alternative names are allowed. Raises SettingError."""
    values, _ = translate(values, (), _FIRST, lambda name: None)
    defaults = _defaults(values)
    setting_names = {name for part in defaults.configs for name in kinds(type(part))} | shared_settings(
        defaults.agent
    ).keys()
    families = families_of(defaults.run.implementation, defaults.run.agent)
    values, _ = translate(values, families, setting_names, lambda name: getattr(defaults.agent, name, None))
    return _completed(defaults, values)


def with_defaults(values: Mapping[str, Any]) -> Settings:
    """`from_dict` for settings that have our names. Raises SettingError."""
    return _completed(_defaults(values), values)


def _defaults(values: Mapping[str, Any]) -> Settings:
    """The default settings for the implementation, game, agents, preset and command in ``values``."""
    run = build(RunConfig(), {name: values[name] for name in _FIRST if name in values})
    run = dataclasses.replace(run, agent=agents_of(run.implementation, run.gamename, values))
    agent, proxy = agent_and_proxy_defaults(run.implementation, run.gamename, values, run.agent)
    return Settings(run, agent, proxy=proxy, subcommand=subcommand_in(values))


def _completed(defaults: Settings, values: Mapping[str, Any]) -> Settings:
    """Return ``defaults`` with ``values``, by our names. Raises SettingError if the values conflict."""
    end = end_of(defaults.run.implementation)
    values = {**values, "command": values.get("command") or {}}
    if values.get("total_steps") is not None and end != "total_steps":
        values.setdefault(end, None)  # the default of another end does not apply
    settings, run = defaults.replace(**values), defaults.run
    if settings.epochs is None and settings.total_steps is None:
        raise SettingError(f"{end} and total_steps are null; allowed: an end of the training, one of them", end)
    if settings.proxy is not None:
        validate(run.implementation, settings.proxy)
        for name, _, agent_config in split_by_family(settings.agent, named_agents(run.agent)):
            validate(name, agent_config)
    else:
        validate(run.implementation, settings.agent)
    return settings


def subcommand_in(values: Mapping[str, Any]) -> Command | None:
    """The default settings of the command whose flag is in ``values``. Raises SettingError for two commands."""
    names = [name for name in COMMANDS if values.get(name)]
    if len(names) > 1:
        raise SettingError(f"--{names[0]} and --{names[1]} exclude each other")
    return COMMANDS[names[0]]() if names else None


def agents_of(implementation: str, game: str, choices: Mapping[str, Any]) -> str:
    """Return the names of the agents that train on a proxy: ``choices["agent"]``, else the defaults for the preset in
    ``choices`` and the game."""
    from envs.names import is_continuous

    family_spec = family(implementation)
    if "agent" in choices or family_spec.learns_from != "evolution":
        return str(choices.get("agent", RunConfig.agent))
    return family_spec.usual_agents(choices, is_continuous(game))


def end_of(implementation: str) -> str:
    """Return the name of the setting that ends a run of this implementation if ``total_steps`` is not set."""
    family_spec = family(implementation)
    return family_spec.replaced.get("epochs", "generations" if family_spec.learns_from == "evolution" else "epochs")


def validate(implementation: str, config: Any) -> None:
    """Raise SettingError if settings of an implementation conflict."""
    if problem := family(implementation).validate(config):
        raise SettingError(problem)


def build(config: Any, values: Mapping[str, Any]) -> Any:
    """Return a copy of ``config`` with ``values``. Lists, paths and integers are converted to tuples, text and floats
    if the fields have these types. Raises SettingError for an unknown name or a value out of range."""
    field_kinds = kinds(type(config))
    for name in values:
        if name not in field_kinds:
            raise SettingError(f"{name} is unknown{nearest(name, field_kinds)}")
    config = dataclasses.replace(
        config, **{name: _typed(field_kinds[name].item, value) for name, value in values.items()}
    )
    check(config)
    return config


def _typed(item: type, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(_typed(item, element) for element in value)
    if item is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    # `check` refuses integers that are too large for a float.
    return float(value) if item is float and type(value) is int and abs(value) < 2**1000 else value


def replaced_in(implementation: str) -> dict[str, str]:
    """Return setting of a run that this implementation does not use -> its replacement, or ""."""
    family_spec = family(implementation)
    replacements = {field.name: field.metadata["replaced"] for field in dataclasses.fields(RunConfig)}
    by_kind = {name: of[family_spec.learns_from] for name, of in replacements.items() if family_spec.learns_from in of}
    return {**by_kind, **family_spec.replaced}


def ineffective(settings: Settings) -> dict[str, str]:
    """Return name -> reason, for settings of the family and the inner agents that have no effect in combination with
    the others."""
    run, family_spec = settings.run, family(settings.run.implementation)
    if settings.proxy is None:
        return _ineffective(family_spec, settings.agent, settings.lacks)
    reasons = dict(family_spec.ineffective(settings.proxy))
    # With ``retest_drawn``, a search varies the settings of ``vary`` at least when it evaluates its winner.
    agents, sample_all = named_agents(run.agent), settings.proxy.retest_drawn
    for first, called, _ in split_by_family(settings.agent, agents):
        kin = [config_of(settings.agent, name, agents) for name in agents if family(name) is family(first)]
        agent_reasons = [_ineffective(family(first), config, settings.lacks, sample_all) for config in kin]
        reasons |= {
            called[field]: reason
            for field, reason in agent_reasons[0].items()
            if all(field in other for other in agent_reasons)
        }
    return reasons


def _ineffective(of: Family, config: Any, lacks: Container[str], sample_all: bool = False) -> dict[str, str]:
    parts = {field.name: field.metadata["only_with"] for field in dataclasses.fields(config)}
    missing = {name: f"there are no {part}" for name, part in parts.items() if part in lacks}
    fixed = not (sample_all or getattr(config, "vary_hp", True))
    return dict(of.ineffective(config)) | missing | reasons_by_setting((fixed, ("vary",), "vary_hp is off"))


def acting(settings: Settings) -> dict[str, Any]:
    """The written form of a training run: without settings that only flags may set, without those of other commands,
    and without settings that have no effect. `from_dict` restores the same run."""
    run, names = settings.run, {"resume", *replaced_in(settings.run.implementation), *ineffective(settings)}
    names |= names_with(run, "by_flag") | set(kinds(type(settings.subcommand)) if settings.subcommand else ())
    if run.no_checkpoint:
        names.add("checkpoint_every")
    if not run.record:
        names.add("record_episodes")
    if run.recording_epoch_interval <= 0:
        names |= {"recording_epoch_interval", "record_n_rollouts_per_epoch"}
    values = as_dict(settings)
    names |= {name for name in (end_of(run.implementation), "total_steps") if values[name] is None}
    names |= {"command"} if not settings.command else set()
    return {name: value for name, value in values.items() if name not in names}


def to_yaml(settings: Settings) -> str:
    """Return the settings of a run (`acting`) as YAML. ``--config`` with this YAML repeats the run."""
    import yaml

    values = acting(settings)
    # With None PyYAML writes each list in one line, but a mapping without lists in one line too.
    style = None if any(isinstance(value, (list, dict)) for value in values.values()) else False
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, default_flow_style=style, width=100)
