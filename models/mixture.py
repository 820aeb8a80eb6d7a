"""Joint settings of agents from several families in one search, as one dataclass. Imports no torch.

If several families have a setting, the joint settings have a field for each of them: ``lr`` of DDQN and PPO becomes
``DDQN_lr`` and ``PPO_lr``. A setting of a single family keeps its name. A user's value of ``lr`` sets the fields of all
families that have it (`expand_shared`).
"""

import dataclasses
import functools
import typing
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

Classes = tuple[tuple[str, type], ...]
"""For each family a pair: the name of its first agent, and the class of its settings."""


@dataclasses.dataclass(frozen=True)
class Mixture:
    """The base class of all joint settings. `make_mixture` creates a subclass for each combination of families."""

    classes: ClassVar[Classes]

    def __reduce__(self) -> Any:
        """Pickle as a call of `make_mixture`, because worker processes must create the class again."""
        agents = [agent for agent, _ in self.classes]
        configs = tuple(zip(agents, family_configs(self), strict=True))
        return make_mixture, (configs,)


def names_in(classes: Classes) -> dict[type, dict[str, str]]:
    """Return the names that the fields of ``classes`` have in their joint settings, as ``{class: {field: name}}``. The
    name of ``lr`` is ``lr``, or ``PPO_lr`` if several classes have a field ``lr``."""
    num_classes_with: Counter[str] = Counter()
    for _, config_class in classes:
        num_classes_with.update(field.name for field in dataclasses.fields(config_class))
    names: dict[type, dict[str, str]] = {}
    for agent, config_class in classes:
        names[config_class] = {}
        for field in dataclasses.fields(config_class):
            is_shared = num_classes_with[field.name] > 1
            names[config_class][field.name] = f"{agent}_{field.name}" if is_shared else field.name
    return names


def make_mixture(configs: tuple[tuple[str, Any], ...]) -> Any:
    """Return the joint settings of several families. ``configs`` has a pair for each: the name of its first agent, and
    its settings. Settings of a single family are returned unchanged."""
    if len(configs) == 1:
        _, config = configs[0]
        return config
    classes = tuple((agent, type(config)) for agent, config in configs)
    names = names_in(classes)
    values: dict[str, Any] = {}
    for _, config in configs:
        joint_names = names[type(config)]  # such as lr -> PPO_lr
        values |= {joint_names[field]: value for field, value in vars(config).items()}
    return _mixture_class(classes)(**values)


@functools.cache
def _mixture_class(classes: Classes) -> type:
    """Create the dataclass of joint settings, with the fields of all ``classes`` by their names in `names_in`. In
    ``--help``, the heading of a field's section begins with the family's first agent ("PPO: search")."""
    names = names_in(classes)
    fields: list[Any] = []  # tuples (name, type, field)
    for agent, config_class in classes:
        hints = typing.get_type_hints(config_class)
        for field in dataclasses.fields(config_class):
            family_section = field.metadata.get("section")
            section = f"{agent}: {family_section}" if family_section else agent
            joint_field = dataclasses.field(default=field.default, metadata={**field.metadata, "section": section})
            fields.append((names[config_class][field.name], hints[field.name], joint_field))
    mixture_class = dataclasses.make_dataclass("Mixture", fields, bases=(Mixture,), frozen=True)
    mixture_class.classes = classes  # type: ignore[attr-defined]
    return mixture_class


def family_configs(config: Any) -> list[Any]:
    """Split joint settings into the settings of each family. Settings of a single family are the only item."""
    if not isinstance(config, Mixture):
        return [config]
    configs = []
    for config_class, names in names_in(config.classes).items():
        values = {field: getattr(config, name) for field, name in names.items()}
        configs.append(config_class(**values))
    return configs


def shared_settings(config: Any) -> dict[str, tuple[str, ...]]:
    """Return the names in ``config`` of each setting that several families have: ``{"lr": ("DDQN_lr", "PPO_lr")}``."""
    if not isinstance(config, Mixture):
        return {}
    shared_names: dict[str, tuple[str, ...]] = {}
    for names in names_in(config.classes).values():
        for field, name in names.items():
            if name != field:  # the name has a prefix, because several families have this setting
                shared_names[field] = (*shared_names.get(field, ()), name)
    return shared_names


def expand_shared(config: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace settings in the user's ``values`` that several families have, such as ``lr``, by the fields of the joint
    settings ``config``: ``{"lr": 1, "PPO_lr": 2}`` becomes ``{"DDQN_lr": 1, "PPO_lr": 2}``. Other settings remain."""
    shared_names = shared_settings(config)
    all_values: dict[str, Any] = {}
    for name, value in values.items():
        field_names = shared_names.get(name, (name,))
        all_values |= dict.fromkeys(field_names, value)
    specific_values = {name: value for name, value in values.items() if name not in shared_names}
    return all_values | specific_values  # 2 for ``PPO_lr``, in whatever order the user set the two
