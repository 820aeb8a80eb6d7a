"""Reading and writing proxies: converts between files of `understudy` and settings with a vector ``[D]`` of weights."""

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
from models.settings import SettingError, check, field_types, nearest
from models.spaces import Continuous, Discrete, Spaces
from models.vocabulary import translate
from understudy import ProxyError
from understudy.files import file_error
from understudy.kinds import KINDS


@dataclass(frozen=True)
class Proxy:
    """One learned environment or reward."""

    path: Path
    config: Any  # settings of the search
    spaces: Spaces  # spaces of the real environment
    game: str  # the real environment
    parameters: Tensor  # [D], finite float32
    description: dict[str, Any]  # plain data, such as ``settings`` of the search and its agents, and ``scores``

    @property
    def implementation(self) -> str:
        return implementation_of(self.config.proxy)

    @property
    def networks(self) -> Parameters:
        return networks_of(self.config, self.spaces)


def networks_of(config: SearchConfig, spaces: Spaces) -> Any:
    """Return the architecture of the networks of a proxy with the settings ``config`` for an environment with
    ``spaces``: an object of the class ``Networks`` in the folder that defines the settings."""
    package = type(config).__module__.rpartition(".")[0]  # such as "models.proxies.reward"
    return importlib.import_module(f"{package}.networks").Networks(config, spaces)


def zero_parameters(config: SearchConfig, spaces: Spaces) -> tuple[Tensor, dict[str, Tensor]]:
    """Allocate the parameters ``[D]`` of one proxy, all zero. Return them, and views of them by their names in a file,
    such as ``reward.0.weight``. Writing to a view changes the parameters."""
    networks = networks_of(config, spaces)
    parameters = torch.zeros(networks.size)
    return parameters, networks.named_tensors(parameters)


def implementation_of(kind: str) -> str:
    """Return the ``--implementation`` that learns a ``kind`` of proxy: "SE" for "mdp" and "bandit", "RN" for
    "reward"."""
    for name, family_spec in implementations().items():
        proxy_setting = family_spec.config.__dataclass_fields__.get("proxy")
        if proxy_setting is not None and kind in proxy_setting.metadata["choices"]:
            return name
    raise KeyError(kind)


def save(
    path: str | Path,
    parameters: Tensor,
    *,
    config: SearchConfig,
    spaces: Spaces,
    game: str,
    description: Mapping[str, Any],
) -> None:
    """Write a proxy to a safetensors file at ``path`` by `understudy.save`, and raise its errors. The arguments are
    fields of `Proxy`. Raises ProxyError if the number of ``parameters [D]`` is wrong."""
    networks = networks_of(config, spaces)
    if parameters.shape != (networks.size,):
        raise file_error(Path(path), f"{list(parameters.shape)} parameters", f"[{networks.size}]")
    parameters = parameters.detach().cpu().float()
    settings = _settings_in_file(config)
    if settings.get("rn_evolve_scale"):  # readers of files know only rn_output_scale
        settings |= {"rn_output_scale": float(networks.output_scale(parameters[None])), "rn_evolve_scale": False}
    tensors = {name: layer.numpy() for name, layer in networks.named_tensors(parameters).items()}
    described_spaces = {
        "obs_shape": spaces.obs_shape,
        "actions": asdict(spaces.actions),
        "max_episode_steps": spaces.max_episode_steps,
        "max_return": spaces.max_return,
    }
    for name in KINDS[settings["proxy"]].spaces:  # more fields of ``spaces`` that a file of this kind has
        described_spaces[name] = getattr(spaces, name)
    understudy.save(path, tensors, game=game, spaces=described_spaces, config=settings, description=description)


def _settings_in_file(config: SearchConfig) -> dict[str, Any]:
    """Return the settings of ``config`` that are written to the file of a proxy, ``{name: value}``. Settings that older
    versions did not have (property ``later``) are left out at their default, so that the file is the same as before. A
    proxy that is fitted by supervised learning has no settings of a search, except those that all readers need."""
    settings = asdict(config)
    del settings["compiled"]  # has no effect on the proxy
    if settings.get("preset") == "supervised":
        without_effect = config.ineffective().keys()
        needed_by_readers = KINDS[settings["proxy"]].settings.keys()
        for name in without_effect - needed_by_readers:
            settings.pop(name, None)
    for field in fields(config):
        if field.metadata.get("later") and settings.get(field.name) == field.default:
            settings.pop(field.name, None)
    if settings.get("pairs"):  # readers of files know only table_size
        settings["table_size"] = settings["pairs"]
    return settings


def load(name_or_path: str | Path) -> Proxy:
    """Load a proxy: a file, the winner in the run folder of a search, or the name of a shipped proxy. Raises a
    ProxyError with the path if there is no usable proxy or if its settings are invalid."""
    file = understudy.load(name_or_path)
    config, spaces = _config_of(file), _spaces_of(file)
    try:
        check(config)
        if problem := config.validate():
            raise SettingError(problem)
        parameters, views = zero_parameters(config, spaces)
    except SettingError as error:
        raise ProxyError(f"proxy {str(file.path)!r}: its setting {error}") from error
    for name, view in views.items():  # fills ``parameters``
        view.copy_(torch.from_numpy(file.tensors[name]))
    return Proxy(file.path, config, spaces, file.game, parameters, file.description)


def _config_of(file: understudy.Proxy) -> Any:
    """Return the settings in the file of a proxy as an instance of ``Config``, the dataclass for proxies of its kind.
    Values are not checked. Raises ProxyError for a setting with an unknown name."""
    family_spec = implementations()[implementation_of(file.kind)]
    field_kinds = field_types(family_spec.config)
    try:
        values, _ = translate(file.config, (), field_kinds)  # replaces old names of settings
    except SettingError as error:
        raise ProxyError(f"proxy {str(file.path)!r}: {error}") from error
    for name, value in values.items():
        if name not in field_kinds:
            problem = f"its setting {name!r} is unknown{nearest(name, field_kinds)}"
            raise file_error(file.path, problem, "settings of a search")
        if isinstance(value, list):  # settings have tuples in place of lists
            values[name] = tuple(value)
    return family_spec.config(**values)


def _spaces_of(file: understudy.Proxy) -> Spaces:
    """Return the spaces of a file's real environment."""
    spaces, described_actions = file.spaces, file.spaces["actions"]
    actions: Discrete | Continuous
    if "n" in described_actions:
        actions = Discrete(described_actions["n"])
    else:
        actions = Continuous(tuple(described_actions["low"]), tuple(described_actions["high"]))
    return Spaces(
        tuple(spaces["obs_shape"]),
        actions,
        max_episode_steps=spaces["max_episode_steps"],
        max_return=spaces["max_return"],
        info=tuple(spaces.get("info", ())),
    )


def first_parameters(name_or_path: str, config: SearchConfig, spaces: Spaces, game: str) -> Tensor:
    """Load the proxy from which a search starts (setting ``start_from``), and return its parameters ``[D]``. The search
    has the settings ``config``, and its real environment is ``game`` with ``spaces``. Raises SettingError if the proxy
    is of another kind or environment, or has other shapes."""
    try:
        proxy = load(name_or_path)
    except ProxyError as error:
        raise SettingError(f"start_from: {error}", "start_from") from error
    line = f"start_from is {name_or_path!r}"
    if type(proxy.config) is not type(config):
        kind = getattr(config, "proxy", "proxy")
        raise SettingError(f"{line}, {proxy.config.proxy} of {proxy.game}; allowed: {kind} of {game}", "start_from")
    if proxy.game.partition(",")[0] != game.partition(",")[0]:
        raise SettingError(f"{line}, which is of {proxy.game}; allowed: a proxy of {game}", "start_from")
    parameters, tensors = zero_parameters(config, spaces)
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    proxy_tensors = proxy.networks.named_tensors(proxy.parameters)
    proxy_shapes = {name: list(tensor.shape) for name, tensor in proxy_tensors.items()}
    if shapes != proxy_shapes:
        raise SettingError(f"{line}, with tensors {proxy_shapes}; allowed here: {shapes}", "start_from")
    if len(parameters) == len(proxy.parameters):
        return proxy.parameters
    # With ``rn_evolve_scale`` the search has one more parameter than the proxy: the logarithm of the factor by which
    # ``rn_output_scale`` is multiplied.
    proxy_scale, scale = proxy.config.rn_output_scale, config.rn_output_scale  # type: ignore[attr-defined]
    if proxy_scale * scale <= 0:
        line = f"{line}, whose rn_output_scale is {proxy_scale:g}; allowed with rn_evolve_scale"
        raise SettingError(f"{line}: one of the sign of {scale:g}", "start_from")
    return torch.cat([proxy.parameters, torch.tensor([proxy_scale / scale]).log()])
