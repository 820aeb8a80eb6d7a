"""`Settings`, all settings of a run, and their written form: a flat mapping of names to plain values. The written form
is for ``config.yaml`` in a run folder, for checkpoints and for ``--config``. Imports no torch."""

import dataclasses
import os
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from control.cli.run_settings import COMMANDS, Command, RunConfig
from models.family import Family, StepSchedule, reasons_by_setting
from models.mixture import Mixture, expand_shared, shared_settings
from models.registry import agent_and_proxy_defaults, config_of, families_of, family, parse_agents, split_by_family
from models.settings import Kind, SettingError, check, check_value, kinds, names_with, nearest, raise_all, setting
from models.vocabulary import translate

RETURN_COMMANDS = {
    "return": setting(None, "return to command, in the environment's reward"),
    "horizon": setting(None, "steps to command", above=0),
    "advantage": setting(None, "advantage to command (RCP-A)"),
    "rank": setting(None, "rank to command (preset ranks of UDRL)", above=0, below=1),
}
"""Settings ``--command.<name>`` for agents that follow commands. With null the agent chooses the command."""
REMOVED = ("display", "step_timeout")  # settings that only older files have; they are ignored
_DECIDING = ("implementation", "gamename", "agent")  # which other settings exist depends on these
COMMAND = Kind(float, is_list=False, optional=True)  # the type of these settings


@dataclass(frozen=True)
class Settings:
    """All settings of one call of ``trainer.py``.

    ``run`` has the settings of every run. ``subcommand`` has the settings of a command other than training
    (`control.cli.run_settings.COMMANDS`), None for training. ``agent`` is the config of the agent's family. It is None
    with ``--eval_agent``, because the checkpoint has it. ``proxy`` is the config of the proxy to learn, None without
    one. With a proxy, ``agent`` is for the agents that train on it, also for several families (`models.mixture`).

    ``command`` has the commands to the agent that the user chose, such as ``{"return": 250.0}``. ``explicit_names`` are
    the settings that a flag or a file set, with ``"command"`` for any command. With ``--eval_agent``, ``changed`` has
    the changed hyperparameters of agents that train on a proxy, and the changed parameters of the environment.
    ``lacks`` are properties that the environment does not have (`models.family.PARTS`); they are empty if it is not
    known yet. ``imports`` are the modules of ``--import``.
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
        """The configs of the run, the command, the proxy and the agent, in this order, without those that are None."""
        return [part for part in (self.run, self.subcommand, self.proxy, self.agent) if part is not None]

    def value(self, name: str) -> Any:
        """Return the value of a setting. If several configs have it, the last of `configs` counts: the agent's before
        the proxy's, and the proxy's before the run's."""
        configs = (self.agent, self.proxy, self.subcommand, self.run)
        return next(getattr(config, name) for config in configs if hasattr(config, name))

    @property
    def total_steps(self) -> int | None:
        """Environment steps of each seed (with a proxy: of all agents on proxies) that end the run, or None."""
        return self.value("total_steps")

    @property
    def epochs(self) -> int | None:
        """Number of epochs of the run, or None if only `total_steps` end it. With a proxy: its generations. If an epoch
        has a fixed number of steps, `total_steps` limit the number of epochs."""
        if self.proxy is not None:
            return self.proxy.generations
        last = self.agent.epochs if hasattr(self.agent, "epochs") else self.run.epochs
        if self.total_steps is not None and family(self.run.implementation).learns_from == "steps":
            envs = self.agent.num_envs
            steps_per_env = -(-self.schedule.steps_per_epoch // envs)  # rounded up, as is the number of epochs
            epochs_needed = -(-self.total_steps // (steps_per_env * envs))
            last = epochs_needed if last is None else min(last, epochs_needed)
        return last

    @property
    def schedule(self) -> StepSchedule:
        """Lengths of epochs and evaluations: the agent's schedule if its config has one, else the run's."""
        agent_schedule = getattr(self.agent, "schedule", None)
        if isinstance(agent_schedule, StepSchedule):
            return agent_schedule
        return StepSchedule(self.run.steps_per_epoch, self.run.eval_every, self.run.eval_episodes)

    def replace(self, **changes: Any) -> "Settings":
        """Return a copy with the settings in ``changes``. The name of a setting tells which config it belongs to.
        ``command`` is a mapping of commands to values, such as ``{"return": 250}``. Raises SettingError. Defaults are
        not chosen anew: for another implementation or environment use `from_dict`."""
        command = _checked_command(changes.pop("command", self.command))
        changes = expand_shared(self.agent, changes) if isinstance(self.agent, Mixture) else changes
        changes = _with_solved_reward(self.run, changes) if self.proxy is not None else changes
        parts = {name: getattr(self, name) for name in ("proxy", "agent", "run", "subcommand")}
        changes_of_part: dict[str, dict[str, Any]] = {}
        for name, value in changes.items():
            owners = (part for part, config in parts.items() if name in kinds(type(config)))
            # Unknown names go to the agent, whose `build` raises an error.
            changes_of_part.setdefault(next(owners, "agent"), {})[name] = value
        configs = {part: build(parts[part], values) for part, values in changes_of_part.items()}
        return dataclasses.replace(self, command=command, **configs)


def _checked_command(command: Mapping[str, Any]) -> dict[str, float]:
    """Return the command as floats, without None. Raises SettingError for an unknown name or a bad value."""
    allowed = ", ".join(RETURN_COMMANDS)
    unknown_names = [name for name in command if name not in RETURN_COMMANDS]
    raise_all([SettingError(f"command.{name} is unknown; allowed: {allowed}") for name in unknown_names])
    for name, value in command.items():
        check_value(f"command.{name}", value, COMMAND, RETURN_COMMANDS[name].metadata)
    return {name: float(value) for name, value in command.items() if value is not None}


def _with_solved_reward(run: RunConfig, changes: dict[str, Any]) -> dict[str, Any]:
    """Return ``changes`` of a search. If they set ``target_return``, ``solved_reward`` gets the same value, and
    ``quit_when_solved`` becomes True unless it is set. Raises SettingError if ``changes`` set two different rewards."""
    if changes.get("target_return") is None:
        return changes
    target_return = build(run, {"target_return": changes["target_return"]}).target_return  # as a valid number
    solved_reward = changes.get("solved_reward")
    if solved_reward not in (None, target_return):
        raise SettingError(f"target_return is {target_return}, but solved_reward is {solved_reward}; give one")
    return {"quit_when_solved": True} | changes | {"solved_reward": target_return}


def as_dict(settings: Settings) -> dict[str, Any]:
    """Return the written form of settings: one mapping from names of settings to values of plain types. Tuples become
    lists, and ``command`` is a mapping. If several configs have a setting, the last of `Settings.configs` counts."""
    values: dict[str, Any] = {}
    for config in settings.configs:
        values |= {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return plain | {"command": dict(settings.command)}


def default_settings(settings: Settings) -> dict[str, Any]:
    """Return setting -> default value for the implementation, environment, preset, proxy and agents of ``settings``."""
    values = as_dict(settings)
    choices = {name: values[name] for part in settings.configs for name in names_with(part, "chooses")}
    return as_dict(defaults_for({name: values[name] for name in _DECIDING} | choices))


def from_dict(values: Mapping[str, Any]) -> Settings:
    """Return the settings for ``values``, a mapping of names or aliases of settings. Missing settings have their
    defaults, and the flag of a command adds its settings. Raises SettingError."""
    values, _ = translate(values, (), _DECIDING)
    defaults = defaults_for(values)
    setting_names = {name for part in defaults.configs for name in kinds(type(part))}
    setting_names |= shared_settings(defaults.agent).keys()
    families = families_of(defaults.run.implementation, defaults.run.agent)
    values, _ = translate(values, families, setting_names, lambda name: getattr(defaults.agent, name, None))
    return settings_with(values)


def settings_with(values: Mapping[str, Any]) -> Settings:
    """Return the default settings for the implementation, game, agents, preset and command in ``values``, changed to
    ``values``, a mapping of names of settings. Raises SettingError for conflicts, or if nothing ends the training."""
    defaults = defaults_for(values)
    run = defaults.run
    end_name = end_setting(run.implementation)  # "epochs", or the name of another setting
    values = {**values, "command": values.get("command") or {}}
    if values.get("total_steps") is not None and end_name != "total_steps":
        values.setdefault(end_name, None)  # else its default might end the training before ``total_steps``
    settings = defaults.replace(**values)
    if settings.epochs is None and settings.total_steps is None:
        line = f"{end_name} and total_steps are null; allowed: an end of the training, one of them"
        raise SettingError(line, end_name)
    configs = {run.implementation: settings.agent if settings.proxy is None else settings.proxy}
    if settings.proxy is not None:
        configs |= {name: config for name, _, config in split_by_family(settings.agent, parse_agents(run.agent))}
    problems = [family(name).validate(config) for name, config in configs.items()]
    raise_all([SettingError(problem) for problem in problems if problem])
    return settings


def defaults_for(values: Mapping[str, Any]) -> Settings:
    """Return the default settings for the implementation, game, agents, preset and command in ``values``, which may
    have other settings too."""
    run = build(RunConfig(), {name: values[name] for name in _DECIDING if name in values})
    run = dataclasses.replace(run, agent=agents_of(run.implementation, run.gamename, values))
    agent, proxy = agent_and_proxy_defaults(run.implementation, run.gamename, values, run.agent)
    return Settings(run, agent, proxy=proxy, subcommand=subcommand_in(values))


def check_exclusive(flag_names: Sequence[str]) -> None:
    """Raise SettingError if ``flag_names`` are several flags. The message names the first two."""
    if len(flag_names) > 1:
        raise SettingError(f"--{flag_names[0]} and --{flag_names[1]} exclude each other")


def subcommand_in(values: Mapping[str, Any]) -> Command | None:
    """Return the default settings of the command whose flag ``values`` has, or None. Raises SettingError for two."""
    names = [name for name in COMMANDS if values.get(name)]
    check_exclusive(names)
    return COMMANDS[names[0]]() if names else None


def agents_of(implementation: str, game: str, choices: Mapping[str, Any]) -> str:
    """Return the names of the agents that train on a proxy, such as ``DDQN,PPO``: ``choices["agent"]``, or else the
    default for the game and the preset in ``choices``. If ``implementation`` learns no proxy, they are not used."""
    from envs.names import is_continuous

    family_spec = family(implementation)
    if "agent" in choices or family_spec.learns_from != "evolution":
        return str(choices.get("agent", RunConfig.agent))
    return family_spec.usual_agents(choices, is_continuous(game))


def end_setting(implementation: str) -> str:
    """Return the name of the setting that ends a run of this implementation if ``total_steps`` is not set."""
    family_spec = family(implementation)
    return family_spec.replaced.get("epochs", "generations" if family_spec.learns_from == "evolution" else "epochs")


def build(config: Any, values: Mapping[str, Any]) -> Any:
    """Return a copy of ``config`` with ``values``. Lists become tuples, paths become text, and integers become floats
    if the field is a float. Raises SettingError for an unknown name or a value out of range."""
    field_kinds = kinds(type(config))
    unknown_names = [name for name in values if name not in field_kinds]
    raise_all([SettingError(f"{name} is unknown{nearest(name, field_kinds)}") for name in unknown_names])
    typed_values = {name: _convert_to_field_type(field_kinds[name].item, value) for name, value in values.items()}
    config = dataclasses.replace(config, **typed_values)
    check(config)
    return config


def _convert_to_field_type(item: type, value: Any) -> Any:
    """Return ``value`` for a field whose items have the type ``item``: lists as tuples, paths as text, integers as
    floats. Other values are returned unchanged."""
    if isinstance(value, list | tuple):
        return tuple(_convert_to_field_type(item, element) for element in value)
    if item is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    # `check` refuses integers that are too large for a float.
    return float(value) if item is float and type(value) is int and abs(value) < 2**1000 else value


def replaced_in(implementation: str) -> dict[str, str]:
    """Return setting -> replacement for settings of a run that this implementation does not use. The replacement is the
    name of the setting to use instead, or "" if there is none."""
    family_spec, replacements = family(implementation), {}
    for field in dataclasses.fields(RunConfig):
        replacement_of = field.metadata["replaced"]  # ``learns_from`` of families without the setting -> replacement
        if family_spec.learns_from in replacement_of:
            replacements[field.name] = replacement_of[family_spec.learns_from]
    return replacements | dict(family_spec.replaced)


def ineffective(settings: Settings) -> dict[str, str]:
    """Return setting -> reason for settings of the implementation, and of the agents that train on its proxy, that have
    no effect in combination with the other settings. If several agents share a setting, because they are of one family,
    it must have no effect for any of them."""
    family_spec = family(settings.run.implementation)
    if settings.proxy is None:
        return _agent_reasons(family_spec, settings.agent, settings.lacks)
    reasons = dict(family_spec.ineffective(settings.proxy))
    agents = parse_agents(settings.run.agent)
    # With ``retest_drawn``, a search varies the settings in ``vary`` at least when it re-evaluates its best means.
    sample_all = settings.proxy.retest_drawn
    for first_agent, name_of_field, _ in split_by_family(settings.agent, agents):
        agent_family = family(first_agent)
        configs = [config_of(settings.agent, name, agents) for name in agents if family(name) is agent_family]
        all_reasons = [_agent_reasons(agent_family, config, settings.lacks, sample_all) for config in configs]
        for field, reason in all_reasons[0].items():
            if all(field in reasons_of_agent for reasons_of_agent in all_reasons):
                reasons[name_of_field[field]] = reason
    return reasons


def _agent_reasons(family_spec: Family, config: Any, lacks: Container[str], sample_all: bool = False) -> dict[str, str]:
    """Return field -> reason for fields of one agent's ``config`` that have no effect. ``lacks`` are properties that
    the environment does not have. If ``sample_all``, hyperparameters vary also without ``vary_hp``."""
    required_part = {field.name: field.metadata["only_with"] for field in dataclasses.fields(config)}
    missing = {name: f"there are no {part}" for name, part in required_part.items() if part in lacks}
    is_fixed = not (sample_all or getattr(config, "vary_hp", True))  # only inner agents have ``vary_hp``
    return dict(family_spec.ineffective(config)) | missing | reasons_by_setting((is_fixed, ("vary",), "vary_hp is off"))


def effective_values(settings: Settings) -> dict[str, Any]:
    """Return setting -> value for a training run, from which `from_dict` restores the same run. Settings that have no
    effect, settings that only flags may set and settings of other commands are left out."""
    run, values = settings.run, as_dict(settings)
    omitted = {"resume", *replaced_in(run.implementation), *ineffective(settings), *names_with(run, "by_flag")}
    omitted |= kinds(type(settings.subcommand)).keys()
    if not settings.command:
        omitted.add("command")
    omitted |= {name for name in (end_setting(run.implementation), "total_steps") if values[name] is None}
    return {name: value for name, value in values.items() if name not in omitted}


def to_yaml(settings: Settings) -> str:
    """Return the settings of a run (`effective_values`) as YAML. ``--config`` with this YAML repeats the run."""
    import yaml

    values = effective_values(settings)
    # With None, PyYAML writes each list in one line. It also writes a mapping without lists in one line.
    style = None if any(isinstance(value, (list, dict)) for value in values.values()) else False
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, default_flow_style=style, width=100)
