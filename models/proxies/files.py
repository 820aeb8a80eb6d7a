"""Learned environments on disk for the trainer: the layers of an `understudy` file as one flat tensor, and its text as
our own settings. The format and its validation are `understudy.files`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import understudy
from models.proxies.synthetic.config import Config, validate
from models.proxies.synthetic.networks import Networks
from models.settings import SettingError, check, kinds, nearest
from models.spaces import Continuous, Discrete, Spaces
from understudy import ProxyError
from understudy.files import refused


@dataclass(frozen=True)
class Proxy:
    """One learned environment. ``game`` is the environment it was learned for, ``spaces`` are that one's, ``parameters
    [D]`` float32 are finite. ``description`` is plain data: ``settings`` of the search and its agents, ``scores``."""

    path: Path
    config: Config
    spaces: Spaces
    game: str
    parameters: Tensor
    description: dict[str, Any]

    @property
    def networks(self) -> Networks:
        """The architecture that ``parameters`` fill."""
        return Networks(self.config, self.spaces)


def save(
    path: str | Path, parameters: Tensor, *, config: Config, spaces: Spaces, game: str, description: Mapping[str, Any]
) -> None:
    """Write one learned environment, ``parameters [D]``, as `understudy.save` does, with its errors."""
    networks = Networks(config, spaces)
    if parameters.shape != (networks.size,):
        raise refused(Path(path), f"{list(parameters.shape)} parameters", f"[{networks.size}]")
    limits = {"max_episode_steps": spaces.max_episode_steps, "max_return": spaces.max_return}
    understudy.save(
        path, {name: layer.numpy() for name, layer in to_layers(networks, parameters.detach().cpu().float()).items()},
        game=game, spaces={"obs_shape": list(spaces.obs_shape), "actions": asdict(spaces.actions)} | limits,
        config=asdict(config), description=description,
    )  # fmt: skip


def load(name_or_path: str | Path) -> Proxy:
    """The learned environment of a file, of a search's folder, or of a shipped name. Raises ProxyError, one line with
    the path, where there is none that can be used, and for settings of the search that are none."""
    file = understudy.load(name_or_path)
    known = kinds(Config)
    for name in file.config:
        if name not in known:
            raise refused(file.path, f"its setting {name!r} is unknown{nearest(name, known)}", "settings of a search")
    config = Config(**file.config)
    try:
        check(config)
        if problem := validate(config):
            raise SettingError(problem)
    except SettingError as error:
        raise ProxyError(f"synthetic environment {str(file.path)!r}: its setting {error}") from error
    actions, limits = file.spaces["actions"], (file.spaces["max_episode_steps"], file.spaces["max_return"])
    kind = Discrete(actions["n"]) if "n" in actions else Continuous(tuple(actions["low"]), tuple(actions["high"]))
    spaces = Spaces(tuple(file.spaces["obs_shape"]), kind, max_episode_steps=limits[0], max_return=limits[1])
    networks = Networks(config, spaces)
    parameters = torch.zeros(networks.size)
    for name, view in to_layers(networks, parameters).items():
        view.copy_(torch.from_numpy(file.tensors[name]))
    return Proxy(file.path, config, spaces, file.game, parameters, file.description)


def to_layers(networks: Networks, flat: Tensor) -> dict[str, Tensor]:
    """Views of ``flat [D]`` under the names of the file: weights ``[out, in]`` and biases ``[out]``."""
    named = {}
    for part, own in networks.split(flat[None]).items():
        for i, (weight, bias) in enumerate(networks.parts[part].layers(own)):
            named[f"{part}.{i}.weight"], named[f"{part}.{i}.bias"] = weight[0], bias[0, :, 0]
    return named
