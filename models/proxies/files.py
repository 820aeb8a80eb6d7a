"""Reading and writing proxies for the trainer: converts between an `understudy` file and flat parameters with settings.
`understudy.files` defines and validates the format."""

import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import understudy
from models.proxies.contract import Parameters
from models.proxies.search import SearchConfig
from models.registry import implementations
from models.settings import SettingError, check, kinds, nearest
from models.spaces import Continuous, Discrete, Spaces
from models.vocabulary import translate
from understudy import ProxyError
from understudy.files import refused
from understudy.kinds import KINDS


@dataclass(frozen=True)
class Proxy:
    """One learned environment or reward. ``game`` is the real environment and ``spaces`` are its spaces. ``config``
    holds the settings of the search, ``parameters [D]`` are finite float32. ``description`` is plain data such as
    ``settings`` of the search and its agents, and ``scores``."""

    path: Path
    config: Any
    spaces: Spaces
    game: str
    parameters: Tensor
    description: dict[str, Any]

    @property
    def implementation(self) -> str:
        """Return the implementation that searches for this kind of proxy, such as SE."""
        return implementation_of(self.config.proxy)

    @property
    def networks(self) -> Parameters:
        """Return the architecture of ``parameters``."""
        return networks_of(self.config, self.spaces)


def networks_of(config: SearchConfig, spaces: Spaces) -> Any:
    """Return ``Networks(config, spaces)`` of the kind of proxy that ``config`` belongs to."""
    package = type(config).__module__.rpartition(".")[0]
    return importlib.import_module(f"{package}.networks").Networks(config, spaces)


def empty(config: SearchConfig, spaces: Spaces) -> tuple[Tensor, dict[str, Tensor]]:
    """Return parameters ``[D]`` of zeros, and views of them by their names in a file."""
    networks = networks_of(config, spaces)
    parameters = torch.zeros(networks.size)
    return parameters, networks.named_tensors(parameters)


def implementation_of(kind: str) -> str:
    """Return the implementation that searches for proxies of a kind (`understudy.kinds.KINDS`). Raises LookupError if
    there is none."""
    for name, family_spec in implementations().items():
        fields = getattr(family_spec.config, "__dataclass_fields__", {})
        if family_spec.learns_from == "evolution" and kind in fields["proxy"].metadata["choices"]:
            return name
    raise LookupError(kind)


def save(
    path: str | Path,
    parameters: Tensor,
    *,
    config: SearchConfig,
    spaces: Spaces,
    game: str,
    description: Mapping[str, Any],
) -> None:
    """Write one proxy with ``parameters [D]`` to ``path`` by `understudy.save`. Raises ProxyError if the number of
    parameters is wrong, and the errors of `understudy.save`."""
    networks = networks_of(config, spaces)
    if parameters.shape != (networks.size,):
        raise refused(Path(path), f"{list(parameters.shape)} parameters", f"[{networks.size}]")
    parameters = parameters.detach().cpu().float()
    limits: dict[str, Any] = {"max_episode_steps": spaces.max_episode_steps, "max_return": spaces.max_return}
    settings = asdict(config)
    del settings["compiled"]  # does not describe the proxy
    kind = KINDS[settings["proxy"]]
    if settings.get("preset") == "supervised":  # no search, so its settings say nothing
        idle = implementations()[implementation_of(settings["proxy"])].ineffective(config).keys() - kind.settings.keys()
        settings = {name: value for name, value in settings.items() if name not in idle}
    for field in fields(config):
        if field.metadata.get("later") and settings.get(field.name) == field.default:
            settings.pop(field.name, None)
    if settings.get("pairs"):  # readers know only table_size
        settings["table_size"] = settings["pairs"]
    limits |= {name: list(getattr(spaces, name)) for name in kind.spaces}
    if settings.get("rn_evolve_scale"):  # readers know only rn_output_scale
        settings |= {"rn_output_scale": float(networks.scaled(parameters[None])), "rn_evolve_scale": False}
    understudy.save(
        path,
        {name: layer.numpy() for name, layer in networks.named_tensors(parameters).items()},
        game=game,
        spaces={"obs_shape": list(spaces.obs_shape), "actions": asdict(spaces.actions)} | limits,
        config={name: list(value) if isinstance(value, tuple) else value for name, value in settings.items()},
        description=description,
    )


def load(name_or_path: str | Path) -> Proxy:
    """Load the proxy of a file, of a search's run folder, or with a shipped name. Raises ProxyError, one line with the
    path, if there is no usable proxy or if its settings are invalid."""
    file = understudy.load(name_or_path)
    family_spec = implementations()[implementation_of(file.kind)]
    field_kinds = kinds(family_spec.config)
    try:
        values, _ = translate(file.config, (), field_kinds, lambda name: None)
    except SettingError as error:
        raise ProxyError(f"proxy {str(file.path)!r}: {error}") from error
    for name in values:
        if name not in field_kinds:
            raise refused(
                file.path, f"its setting {name!r} is unknown{nearest(name, field_kinds)}", "settings of a search"
            )
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    config = family_spec.config(**plain)
    actions, limits = file.spaces["actions"], (file.spaces["max_episode_steps"], file.spaces["max_return"])
    kind = Discrete(actions["n"]) if "n" in actions else Continuous(tuple(actions["low"]), tuple(actions["high"]))
    info_names = tuple(file.spaces.get("info", ()))
    spaces = Spaces(
        tuple(file.spaces["obs_shape"]), kind, max_episode_steps=limits[0], max_return=limits[1], info=info_names
    )
    try:
        check(config)
        if problem := family_spec.validate(config):
            raise SettingError(problem)
        parameters, views = empty(config, spaces)
    except SettingError as error:
        raise ProxyError(f"proxy {str(file.path)!r}: its setting {error}") from error
    for name, view in views.items():
        view.copy_(torch.from_numpy(file.tensors[name]))
    return Proxy(file.path, config, spaces, file.game, parameters, file.description)


def first_parameters(name_or_path: str, config: SearchConfig, spaces: Spaces, game: str) -> Tensor:
    """Load the parameters ``[D]`` of another proxy, from which a search with these settings starts. Raises SettingError
    if its kind, shapes or environment differ. With ``rn_evolve_scale`` the last parameter is the logarithm of the
    proxy's output scale relative to the search's."""
    try:
        proxy = load(name_or_path)
    except ProxyError as error:
        raise SettingError(f"start_from: {error}", "start_from") from error
    networks = networks_of(config, spaces)
    line = f"start_from is {name_or_path!r}"
    if type(proxy.config) is not type(config):
        kind = getattr(config, "proxy", "proxy")
        raise SettingError(f"{line}, {proxy.config.proxy} of {proxy.game}; allowed: {kind} of {game}", "start_from")
    proxy_networks = networks_of(proxy.config, proxy.spaces)
    shapes = [
        {name: list(part.shape) for name, part in candidate.named_tensors(torch.zeros(candidate.size)).items()}
        for candidate in (networks, proxy_networks)
    ]
    if proxy.game.partition(",")[0] != game.partition(",")[0]:
        raise SettingError(f"{line}, which is of {proxy.game}; allowed: a proxy of {game}", "start_from")
    if shapes[0] != shapes[1]:
        raise SettingError(f"{line}, with tensors {shapes[1]}; allowed here: {shapes[0]}", "start_from")
    if networks.size == proxy_networks.size:
        return proxy.parameters
    proxy_scale, scale = proxy_networks.config.rn_output_scale, networks.config.rn_output_scale
    if proxy_scale * scale <= 0:
        line += (
            f", whose rn_output_scale is {proxy_scale:g}; allowed with rn_evolve_scale: one of the sign of {scale:g}"
        )
        raise SettingError(line, "start_from")
    factor = proxy_scale / scale
    return torch.cat([proxy.parameters, torch.tensor([factor]).log()])
