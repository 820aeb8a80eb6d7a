"""Joint settings of agents from several families in one search, as one dataclass. Imports no torch.

If several families have a setting, the joint settings have a field for each of them: ``lr`` of DDQN and PPO becomes
``DDQN_lr`` and ``PPO_lr``. A setting of a single family keeps its name. A user's value of ``lr`` sets the fields of all
families that have it (`spread`).
"""

import dataclasses
import functools
import typing
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

Classes = tuple[tuple[str, type], ...]
"""The name of the first agent of each family, and the class of that family's settings."""


@dataclasses.dataclass(frozen=True)
class Mixture:
    """The base class of all joint settings. `make_mixture` creates a subclass for each combination of families."""

    classes: ClassVar[Classes]

    def __reduce__(self) -> Any:  # worker processes create the class again
        return make_mixture, (
            tuple((name, config) for (name, _), config in zip(self.classes, parts(self), strict=True)),
        )


def names_in(classes: Classes) -> dict[type, dict[str, str]]:
    """Return class of settings -> field -> name of this field in the joint settings of all ``classes``."""
    having = Counter(field.name for _, config_class in classes for field in dataclasses.fields(config_class))
    return {
        config_class: {
            field.name: field.name if having[field.name] == 1 else f"{name}_{field.name}"
            for field in dataclasses.fields(config_class)
        }
        for name, config_class in classes
    }


def make_mixture(configs: tuple[tuple[str, Any], ...]) -> Any:
    """Return the joint settings of several families, from pairs ``(name, settings)``. Settings of a single family are
    returned unchanged."""
    if len(configs) == 1:
        return configs[0][1]
    classes = tuple((name, type(config)) for name, config in configs)
    names = names_in(classes)
    values = {names[type(config)][field]: value for _, config in configs for field, value in vars(config).items()}
    return _class_of(classes)(**values)


@functools.cache
def _class_of(classes: Classes) -> type:
    fields: list[Any] = []
    for name, config_class in classes:
        hints = typing.get_type_hints(config_class)
        for field in dataclasses.fields(config_class):
            section = ": ".join(filter(None, [name, field.metadata.get("section")]))
            copied = dataclasses.field(default=field.default, metadata={**field.metadata, "section": section})
            fields.append((names_in(classes)[config_class][field.name], hints[field.name], copied))
    mixture_class = dataclasses.make_dataclass("Mixture", fields, bases=(Mixture,), frozen=True)
    mixture_class.classes = classes  # type: ignore[attr-defined]
    return mixture_class


def classes_of(config: Any) -> Classes:
    """Return the classes that ``config`` consists of. For settings of a single family, the name is empty."""
    return config.classes if isinstance(config, Mixture) else (("", type(config)),)


def parts(config: Any) -> list[Any]:
    """Split ``config`` into the settings of each family."""
    if not isinstance(config, Mixture):
        return [config]
    class_names = names_in(config.classes).items()
    return [
        config_class(**{field: getattr(config, name) for field, name in names.items()})
        for config_class, names in class_names
    ]


def shared(config: Any) -> dict[str, tuple[str, ...]]:
    """Return setting -> its names in ``config``, one for each family, for settings that several families have."""
    common_names: dict[str, tuple[str, ...]] = {}
    for names in names_in(classes_of(config)).values():
        for field, name in names.items():
            if field != name:
                common_names[field] = (*common_names.get(field, ()), name)
    return common_names


def spread(config: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` by names of fields of ``config``. A value of a shared setting applies to every family without a
    more specific value."""
    common_names, spread_values = shared(config), dict[str, Any]()
    for name, value in values.items():
        spread_values |= dict.fromkeys(common_names.get(name, (name,)), value)
    return spread_values | {name: value for name, value in values.items() if name not in common_names}
