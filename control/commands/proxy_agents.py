"""Settings of fresh agents that train on a proxy: the settings of its search, with the user's changes."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from control.cli.options import check_effects
from control.cli.parse import changes_of
from control.cli.settings import Settings, defaults_for, from_dict, ineffective
from control.loops.build import check_spaces, with_missing_features
from envs.make import spaces_of
from models.mixture import make_mixture, names_in, shared_settings
from models.proxies.files import Proxy, ProxyError
from models.registry import agent_class, config_classes, family, overridden_names, parse_agents
from models.settings import SettingError, field_types
from models.spaces import Spaces
from models.vocabulary import translate
from understudy.kinds import KINDS


def agents_for_proxy(settings: Settings, proxy: Proxy) -> dict[str, Any]:
    """Return implementation -> config for the agents that train on a proxy (a learned environment or reward). They are
    the agents of ``--agent``, by default the agents of the proxy's search. Configs have the hyperparameters of the
    search, with the user's changes (``settings.changed``). Raises SettingError if the agents cannot train on the proxy
    or if a change has no effect, and ProxyError if the environment has other spaces or the file is damaged."""
    spaces = _real_spaces(proxy)
    is_explicit = "agent" in settings.explicit_names
    names = settings.run.agent if is_explicit else proxy.description.get("settings", {}).get("agent", "DDQN")
    run_values: dict[str, Any] = {"implementation": proxy.implementation, "gamename": proxy.game, "agent": names}
    if is_explicit:
        from_dict(run_values)  # raises SettingError for wrong names of agents
    with _settings_of_file(proxy):  # ``names`` may be from the file
        implementations = parse_agents(names)
    changed = changes_of(settings, defaults_for(run_values)) if settings.changed else {}
    run_config = dataclasses.replace(settings.run, **run_values)
    setting_names = names_in(config_classes(implementations))  # config class -> field -> setting, such as lr -> PPO_lr
    agents: dict[str, Any] = {}
    for name in implementations:
        changed_fields: dict[str, Any] = {}
        for field, setting in setting_names[family(name).config].items():
            if setting in changed:
                changed_fields[field] = changed[setting]
            elif field in changed:  # ``lr`` changes all agents
                changed_fields[field] = changed[field]
        agents[name] = agent_settings(proxy, name, changed_fields)
        check_spaces(run_config, agent_class(name), spaces, name)
    _check_changes(dataclasses.replace(settings, run=run_config), proxy, spaces, agents, sorted(changed))
    return agents


def _check_changes(
    settings: Settings, proxy: Proxy, spaces: Spaces, agents: Mapping[str, Any], changed_names: Sequence[str]
) -> None:
    """Raise SettingError if one of the settings ``changed_names``, which the user has changed, has no effect on the
    ``agents`` (implementation -> config) that train on the proxy. ``spaces`` are the spaces of the real environment."""
    classes = config_classes(tuple(agents))
    names_of_agents: set[str] = set()
    for setting_of_field in names_in(classes).values():  # "lr" -> "PPO_lr"; the first changes all agents
        names_of_agents.update(setting_of_field, setting_of_field.values())
    joint_config = make_mixture(tuple((first_agent, agents[first_agent]) for first_agent, _ in classes))
    config = dataclasses.replace(proxy.config, retest_drawn=False)  # hyperparameters vary only if vary_hp is on
    evaluated = dataclasses.replace(settings, proxy=config, agent=joint_config)
    reasons = ineffective(with_missing_features(evaluated, spaces))
    shared_names = shared_settings(joint_config)
    without_effect: dict[str, str] = {}
    for name in changed_names:
        joint_names = shared_names.get(name, (name,))
        if name not in names_of_agents:
            without_effect[name] = " with --eval_agent of a proxy"
        elif reasons.keys() >= set(joint_names):
            without_effect[name] = f": {reasons[joint_names[0]]}"
    check_effects(without_effect)


def _real_spaces(proxy: Proxy) -> Spaces:
    """Return the observation and action spaces of the environment for which the proxy was learned. Raises ProxyError if
    this environment is unknown or has other spaces than the proxy."""
    try:
        real_spaces = spaces_of(proxy.game)
    except SettingError as error:  # the environment is unknown
        raise ProxyError(f"proxy {str(proxy.path)!r}: its {error}") from error
    for name in ("obs_shape", "actions", *KINDS[proxy.config.proxy].spaces):
        proxy_value, real_value = getattr(proxy.spaces, name), getattr(real_spaces, name)
        if proxy_value != real_value:
            problem = f"proxy {str(proxy.path)!r}: its {name} is {proxy_value}"
            raise ProxyError(f"{problem}; allowed with {proxy.game}: {real_value}")
    return real_spaces


def agent_settings(proxy: Proxy, name: str, changed: dict[str, Any]) -> Any:
    """Return the config of new agents of implementation ``name`` that train on the proxy. Its values are the defaults
    of the implementation, overridden by the hyperparameters in the proxy's search, and then by ``changed`` (field ->
    value). If ``changed`` switches ``vary_hp`` on without ``vary``, the implementation's default of ``vary`` holds, not
    the value in the search. Raises ProxyError for damaged settings in the file."""
    with _settings_of_file(proxy):
        values = _searched_settings(proxy, name)
        from_dict(values)  # raises an error for damaged settings
    if changed.get("vary_hp"):
        changed = {"vary": family(name).config().vary} | changed
    return from_dict(values | changed).agent


@contextlib.contextmanager
def _settings_of_file(proxy: Proxy) -> Iterator[None]:
    """Context manager for code that uses the settings in the file of ``proxy``. Exceptions in its block become a
    ProxyError, which says that the settings are damaged."""
    try:
        yield
    except Exception as error:  # wrong types and missing names can raise anything
        # The message of a SettingError names the wrong setting. For other exceptions, the message has only the class.
        reason = error if isinstance(error, SettingError) else type(error).__name__
        raise ProxyError(f"proxy {str(proxy.path)!r}: its description.settings are damaged ({reason})") from error


def _searched_settings(proxy: Proxy, name: str) -> dict[str, Any]:
    """Return setting -> value for new agents of implementation ``name``, from the settings of the search in the proxy's
    file. The content of the file is not checked, so this may raise any exception.

    If agents of the same family (algorithm) trained in the search, the result has their values, except for settings in
    which the implementations of the family differ. Otherwise it has the values of `_values_for_other_family`. It also
    has the settings that decide which others exist: of the proxy, the game and the implementations.
    """
    values = vars(proxy.config) | {"implementation": proxy.implementation, "gamename": proxy.game, "agent": name}
    file_settings = proxy.description.get("settings", {})
    searched_agents = parse_agents(file_settings.get("agent", "DDQN"))
    saved_names = names_in(config_classes(searched_agents))  # config class -> field -> name in the file, such as PPO_lr
    setting_names = {setting for setting_of_field in saved_names.values() for setting in setting_of_field.values()}
    saved_settings, _ = translate(file_settings, (), setting_names)  # without aliases
    config_class = family(name).config
    same_family = [agent for agent in searched_agents if family(agent).config is config_class]
    if same_family:
        # If no other implementation of the family trained in the search, all of its values are for ``name``.
        omitted = set() if same_family == [name] else overridden_names(name)
        for field, saved_name in saved_names[config_class].items():
            if saved_name in saved_settings and field not in omitted:
                values[field] = saved_settings[saved_name]
    elif len(saved_names) == 1:  # all agents of the search are of the same other family
        values |= _values_for_other_family(values, saved_settings, searched_agents[0])
    try:
        family(proxy.implementation).proxy_defaults(values, proxy.game)
    except SettingError:  # the preset does not allow these agents, but ``values`` already have its settings
        values.pop("preset", None)
    return values


def _values_for_other_family(
    choices: Mapping[str, Any], saved_settings: Mapping[str, Any], searched_agent: str
) -> dict[str, Any]:
    """Return field -> value for agents of another algorithm than the agents in the search: for the implementation
    ``choices["agent"]``, such as PPO, if the search had ``searched_agent``, such as DDQN. ``choices`` are the settings
    that decide which other settings exist.

    A field gets its value in the proxy's preset if ``searched_agent`` has no such field, or if the preset has another
    value for ``searched_agent``. Otherwise it gets its value in the search, if ``saved_settings`` have one.
    """
    name = choices["agent"]
    both_agents = {**choices, "agent": f"{searched_agent},{name}"}
    try:
        preset_values = family(choices["implementation"]).proxy_defaults(both_agents, choices["gamename"])
    except SettingError:  # the preset does not permit both agents
        preset_values = {}
    searched_fields = field_types(family(searched_agent).config)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(family(name).config):
        field_name = field.name
        preset_value = _preset_value(preset_values, name, field)
        is_in_preset = field_name in preset_values or f"{name}_{field_name}" in preset_values
        is_only_for_name = is_in_preset and field_name not in searched_fields
        if is_only_for_name or preset_value != _preset_value(preset_values, searched_agent, field):
            values[field_name] = preset_value
        elif field_name == "vary":  # without hyperparameters that the agents do not have
            varied = [item for item in saved_settings.get("vary", ()) if item in field.metadata["choices"]]
            if varied:
                values["vary"] = varied
        elif field_name in saved_settings:
            values[field_name] = saved_settings[field_name]
    return values


def _preset_value(preset_values: Mapping[str, Any], agent_name: str, field: "dataclasses.Field[Any]") -> Any:
    """Return the value of a ``field`` for the agent ``agent_name`` in a preset: the value with the prefix of an
    implementation of its family (``PPO_lr``), else the value for all agents (``lr``), else the field's default."""
    for implementation in family(agent_name).implementations:
        if f"{implementation}_{field.name}" in preset_values:
            return preset_values[f"{implementation}_{field.name}"]
    return preset_values.get(field.name, field.default)
