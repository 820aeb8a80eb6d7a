"""`Settings`, all settings of a run, and their written form: a flat mapping of names to plain values. The written form
is for ``config.yaml`` in a run folder, for checkpoints and for ``--config``. Imports no torch."""

import dataclasses
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from control.cli.run_settings import COMMANDS, Command, RunConfig
from control.cli.words import Flag, Flags, command_flags, flags_of, pairs_of, read_values
from models.family import StepSchedule
from models.mixture import expand_shared, family_configs, shared_settings
from models.registry import config_of, default_config, families_of, family, family_parts, parse_agents, search_defaults
from models.settings import SettingError, field_types, names_with, nearest, raise_all
from models.vocabulary import translate

DECIDING = ("implementation", "gamename", "agent")  # the settings that decide which other settings exist


@dataclass(frozen=True)
class Settings:
    """All settings of a call of ``trainer.py``. A proxy is a synthetic environment or a reward network to learn."""

    run: RunConfig  # settings of every run
    # Config of the agent. With a proxy, config of the agents that train on it, which may be of several families
    # (`models.mixture`). None with ``--eval_agent``, because the checkpoint has it.
    agent: Any
    # Goals that the user chose for an agent that follows commands, such as ``{"return": 250.0}``.
    command: dict[str, float] = dataclasses.field(default_factory=dict)
    explicit_names: frozenset[str] = frozenset()  # settings that a flag or a file set; "command" is any command
    proxy: Any = None  # config of the proxy to learn; None if no proxy is learned
    # With ``--eval_agent``: flag -> words for settings of the checkpoint or proxy, which is not yet loaded.
    changed: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    # Properties that the environment does not have (`models.family.PARTS`); empty if it is not known yet.
    missing_features: frozenset[str] = frozenset()
    imports: tuple[str, ...] = ()  # modules of ``--import``
    subcommand: Any = None  # settings of a command other than training (`control.cli.run_settings.COMMANDS`), or None

    @property
    def configs(self) -> list[Any]:
        """The configs of the run, the command, the proxy and the agent, in this order, if they are not None."""
        return [part for part in (self.run, self.subcommand, self.proxy, self.agent) if part is not None]

    def value(self, name: str) -> Any:
        """Return the value of a setting. If several configs have the setting, the last of `configs` counts. Raises
        AttributeError for an unknown name."""
        for config in reversed(self.configs):
            if hasattr(config, name):
                return getattr(config, name)
        raise AttributeError(name)

    @property
    def families(self) -> list[str]:
        """Folder names of the families of implementation and agents (`families_of`)."""
        return families_of(self.run.implementation, self.run.agent)

    @property
    def total_steps(self) -> int | None:
        """Number of environment steps after which the run ends, or None. They are the steps of each seed or, with a
        proxy, the steps of all agents on proxies."""
        return self.value("total_steps")

    @property
    def epochs(self) -> int | None:
        """Number of epochs of the run (generations of a search), or None if only `total_steps` ends it. If an epoch has
        a fixed number of steps, `total_steps` limits the number of epochs."""
        if self.proxy is not None:
            return self.proxy.generations
        epochs: int | None = self.value("epochs")
        has_fixed_steps = family(self.run.implementation).learns_from == "steps"  # rather than episodes
        if self.total_steps is None or not has_fixed_steps:
            return epochs
        num_envs = self.agent.num_envs
        steps_per_env = math.ceil(self.schedule.steps_per_epoch / num_envs)  # number of steps in an epoch
        epochs_needed = math.ceil(self.total_steps / (steps_per_env * num_envs))
        return epochs_needed if epochs is None else min(epochs, epochs_needed)

    @property
    def schedule(self) -> StepSchedule:
        """Lengths of epochs and evaluations: the schedule in the agent's config, or else the settings of the run."""
        agent_schedule = getattr(self.agent, "schedule", None)
        if isinstance(agent_schedule, StepSchedule):
            return agent_schedule
        return StepSchedule(self.run.steps_per_epoch, self.run.eval_every, self.run.eval_episodes)

    def replace(self, **changes: Any) -> "Settings":
        """Return a copy with ``changes`` (setting -> value), such as ``lr=0.01`` or ``command={"return": 250}``. Other
        settings do not change, even if their defaults depend on the changed settings: for another implementation or
        environment use `from_dict`. Raises SettingError for unknown names and wrong values."""
        return self.with_values(convert_values(expand_shared(self.agent, changes), self.flags))

    @property
    def flags(self) -> dict[str, Flag]:
        """Name -> flag for the settings of all configs, and for ``command.return`` and the other goals of agents."""
        all_flags: dict[str, Flag] = {}
        for config in self.configs:
            all_flags |= flags_of(config)
        return all_flags | command_flags()

    def with_values(self, values: Mapping[str, Any]) -> "Settings":
        """Return a copy with ``values`` (setting -> value), which have the right types. Unknown names are ignored.
        Raises SettingError for a search with different values of target_return and solved_reward."""
        remaining = dict(values)
        if self.proxy is not None and remaining.get("target_return") is not None:
            # ``target_return`` of a search is another name for ``solved_reward``, and by default also ends the search.
            target_return, solved_reward = remaining["target_return"], remaining.get("solved_reward")
            if solved_reward not in (None, target_return):
                raise SettingError(f"target_return is {target_return}, but solved_reward is {solved_reward}; give one")
            remaining = {"quit_when_solved": True, **remaining, "solved_reward": target_return}
        configs: dict[str, Any] = {}
        for field_name in ("agent", "proxy", "subcommand", "run"):  # the first config that has a setting gets it
            config = getattr(self, field_name)
            changes = {name: remaining.pop(name) for name in field_types(type(config)) if name in remaining}
            if changes:
                configs[field_name] = dataclasses.replace(config, **changes)
        # Goals of an agent that follows commands, such as ``command.return``. None means that the agent chooses it.
        goals = {name.removeprefix("command."): value for name, value in remaining.items() if "command." in name}
        if goals:
            configs["command"] = {name: value for name, value in goals.items() if value is not None}
        return dataclasses.replace(self, **configs)


def as_dict(settings: Settings) -> dict[str, Any]:
    """Return setting -> value for all settings, as they are written to files: tuples become lists, and the value of
    ``command`` is a mapping. If several configs have a setting, the last of `Settings.configs` counts."""
    values: dict[str, Any] = {}
    for config in settings.configs:
        for field in dataclasses.fields(config):
            value = getattr(config, field.name)
            values[field.name] = list(value) if isinstance(value, tuple) else value
    values["command"] = dict(settings.command)
    return values


def default_settings(settings: Settings) -> dict[str, Any]:
    """Return setting -> default value for the implementation, environment, preset, proxy and agents of ``settings``."""
    values = as_dict(settings)
    deciding_names = {*DECIDING}.union(*(names_with(config, "chooses") for config in settings.configs))
    return as_dict(defaults_for({name: values[name] for name in deciding_names}))


def from_dict(values: Mapping[str, Any]) -> Settings:
    """Return the settings for ``values``, a mapping from names or aliases of settings to values. Missing settings have
    their defaults. If ``values`` have the flag of a command, such as ``plot``, the result has the settings of this
    command too. Raises SettingError for unknown names and wrong values."""
    # Implementation, game and agents are translated first, because these decide which other aliases exist.
    values, _ = translate(values, (), DECIDING)
    defaults = defaults_for(values)
    # Also names of settings that agents of several families share, such as ``lr``.
    setting_names = defaults.flags.keys() | shared_settings(defaults.agent).keys()
    # A width is an alias for a part of ``hidden_sizes``, and the other part, the depth, keeps its default.
    values, _ = translate(values, defaults.families, setting_names, lambda name: getattr(defaults.agent, name, None))
    return settings_with(defaults, convert_values(expand_shared(defaults.agent, values), defaults.flags))


def settings_with(defaults: Settings, values: Mapping[str, Any]) -> Settings:
    """Return ``defaults`` with other ``values`` (setting -> value), whose types and ranges are right. Raises
    SettingError for values that conflict, or if nothing ends the training."""
    run = defaults.run
    end_name = end_setting(run.implementation)  # "epochs", or the name of another setting
    if values.get("total_steps") is not None and end_name != "total_steps":
        values = {end_name: None, **values}  # so that its default does not end the training before ``total_steps``
    settings = defaults.with_values(values)
    configs = family_configs(settings.agent)
    if settings.proxy is not None:
        configs = [settings.proxy, *configs]
    errors = [SettingError(problem) for config in configs if (problem := config.validate())]
    if settings.value(end_name) is None and settings.total_steps is None:
        message = f"{end_name} and total_steps are null; allowed: an end of the training, one of them"
        errors.append(SettingError(message, end_name))
    raise_all(errors)
    return settings


def defaults_for(values: Mapping[str, Any]) -> Settings:
    """Return the default settings for the implementation, game, agents, preset and command in ``values`` (setting ->
    value). Other settings in ``values`` are ignored."""
    deciding_values = {name: values[name] for name in DECIDING if name in values}
    run = RunConfig(**convert_values(deciding_values, flags_of(RunConfig())))
    epochs = family(run.implementation).default_epochs
    if epochs is not None:
        run = dataclasses.replace(run, epochs=epochs)
    subcommand = subcommand_in(values)
    if family(run.implementation).learns_from != "evolution":
        return Settings(run, default_config(run.implementation, run.gamename, values), subcommand=subcommand)
    run = dataclasses.replace(run, agent=agents_of(run.implementation, run.gamename, values))
    agent, proxy = search_defaults(run.implementation, run.gamename, values, run.agent)
    return Settings(run, agent, proxy=proxy, subcommand=subcommand)


def subcommand_in(values: Mapping[str, Any]) -> Command | None:
    """Return the default settings of the command in ``values`` (setting -> value), such as `PlotConfig` for ``{"plot":
    ("exp_dir",)}``. None if there is no command. Raises SettingError if there are two."""
    names = [name for name in COMMANDS if values.get(name)]
    if len(names) > 1:
        raise SettingError(f"--{names[0]} and --{names[1]} exclude each other")
    return COMMANDS[names[0]]() if names else None


def agents_of(implementation: str, game: str, choices: Mapping[str, Any]) -> str:
    """Return the names of the agents that train on the proxy of an ``implementation``, such as ``DDQN,PPO``. They are
    ``choices["agent"]``, or else the default for the ``game`` and for the preset in ``choices``."""
    from envs.names import has_cells, is_continuous

    if "agent" in choices:
        return str(choices["agent"])
    return family(implementation).usual_agents(choices, is_continuous(game), has_cells(game))


def end_setting(implementation: str) -> str:
    """Return the name of the setting that ends a run of this implementation if ``total_steps`` is not set."""
    return replaced_settings(implementation).get("epochs", "epochs")


def convert_values(values: Mapping[str, Any], valid_flags: Flags) -> dict[str, Any]:
    """Return ``values`` (setting -> value), converted to the types of ``valid_flags`` like words of the command line.
    Raises SettingError for unknown names and wrong values."""

    def unknown_error(name: str) -> SettingError:
        return SettingError(f"{name} is unknown{nearest(name, valid_flags)}")

    typed_values, errors = read_values(dict(pairs_of(values)), valid_flags, unknown_error)
    raise_all(errors)
    return typed_values


def replaced_settings(implementation: str) -> dict[str, str]:
    """Return the settings of a run that this implementation does not use, each with the name of the setting to use
    instead, such as ``{"epochs": "generations"}``. The name is "" if there is none."""
    family_spec = family(implementation)
    replacements: dict[str, str] = {}
    for field in dataclasses.fields(RunConfig):
        replacement_by_loop = field.metadata["replaced"]  # such as {"episodes": "", "evolution": "inner_steps"}
        if family_spec.learns_from in replacement_by_loop:
            replacements[field.name] = replacement_by_loop[family_spec.learns_from]
    return {**replacements, **family_spec.replaced}


def ineffective(settings: Settings) -> dict[str, str]:
    """Return the hyperparameters that have no effect in combination with the other settings, each with the reason, such
    as ``{"conv_channels": "there are no images"}``. If the implementation learns a proxy (a synthetic environment or
    reward), they include hyperparameters that have no effect on any of the agents that train on it."""
    run, proxy, missing_features = settings.run, settings.proxy, settings.missing_features
    if proxy is None:
        return _ineffective_in_agent(settings.agent, missing_features)
    reasons: dict[str, str] = proxy.ineffective()
    agents = parse_agents(run.agent)
    # Agents of one family share their settings. ``setting_of_field`` maps a field of their config to its setting: "lr",
    # for example, to "PPO_lr" if there are agents of other families.
    for first_agent, setting_of_field, _ in family_parts(settings.agent, agents):
        reasons_by_agent: list[dict[str, str]] = []
        for name in agents:
            if family(name) is family(first_agent):
                config = config_of(settings.agent, name, agents)
                reasons_by_agent.append(_ineffective_in_agent(config, missing_features))
        for field, reason in reasons_by_agent[0].items():
            # With ``retest_drawn``, a search varies the settings in ``vary`` when it re-evaluates its best means.
            is_used_by_search = field == "vary" and proxy.retest_drawn
            is_unused_by_agents = all(field in reasons_of_agent for reasons_of_agent in reasons_by_agent)
            if is_unused_by_agents and not is_used_by_search:
                reasons[setting_of_field[field]] = reason
    return reasons


def _ineffective_in_agent(config: Any, missing_features: Collection[str]) -> dict[str, str]:
    """Return the fields of an agent's ``config`` that have no effect, each with the reason. ``missing_features`` are
    properties that the environment does not have, such as "images"."""
    reasons: dict[str, str] = config.ineffective()
    for field in dataclasses.fields(config):
        required_feature = field.metadata["only_with"]  # "" if the field has an effect in all environments
        if required_feature in missing_features:
            reasons[field.name] = f"there are no {required_feature}"
    if not getattr(config, "vary_hp", True):  # only agents that train on proxies have it
        reasons["vary"] = "vary_hp is off"
    return reasons


def effective_values(settings: Settings) -> dict[str, Any]:
    """Return setting -> value for the settings that describe a training run: `from_dict` restores the run from them.
    The result omits settings that have no effect, settings that only flags may set, settings of a subcommand such as
    --plot, and ends of the training that are None."""
    run, values = settings.run, as_dict(settings)
    omitted = {"resume", *replaced_settings(run.implementation), *ineffective(settings), *names_with(run, "by_flag")}
    omitted |= field_types(type(settings.subcommand)).keys()  # empty without a subcommand
    if not settings.command:
        omitted.add("command")
    omitted |= {name for name in (end_setting(run.implementation), "total_steps") if values[name] is None}
    return {name: value for name, value in values.items() if name not in omitted}


def to_yaml(settings: Settings) -> str:
    """Return the settings of a run (`effective_values`) as YAML. ``--config`` with this YAML repeats the run."""
    import yaml

    values = effective_values(settings)
    # The style None writes an innermost list in one line, such as [64, 64]. Without any list or mapping in ``values``,
    # it would write all settings in one line, which the style False does not.
    style = None if any(isinstance(value, (list, dict)) for value in values.values()) else False
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, default_flow_style=style, width=100)
