"""Stand-ins on disk: safetensors files that hold nothing but numbers and text, so that opening one runs no code.

One tensor a layer, named and laid out as ``torch.nn.Linear`` does: ``state.0.weight [out, in]``,
``state.0.bias [out]``, ``state.1.weight`` and so on for the networks ``state``, ``reward``, ``done`` and ``initial``,
those the kind has. The metadata has one key, ``understudy``: JSON with ``format``, ``game``, ``spaces``, ``config``,
``description`` and ``networks``, which says in words how to rebuild them. The same stand-in gives the same bytes.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors import torch as safetensors_torch
from torch import Tensor

from models.mlp import LEAK, PRELU_SLOPE
from models.proxies.shipped import SUFFIX, pretrained
from models.proxies.synthetic.config import Config
from models.proxies.synthetic.networks import Networks
from models.settings import SettingError, UserError, check, closest, kinds, nearest
from models.spaces import Continuous, Discrete, Spaces

FORMAT = 1
IN_RUN = "proxy.safetensors"  # what a search's folder calls its winner

_KEY = "understudy"


class ProxyError(UserError):
    """A stand-in that is not there, or a file that holds none that can be used."""


@dataclass(frozen=True)
class Proxy:
    """One learned environment. ``game`` is what it stands in for, ``spaces`` are the real environment's, ``parameters
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
    """Write one stand-in, ``parameters [D]``. ``path`` is the whole old file or the whole new one, whatever happens.

    ``description`` must be JSON; numbers in it that are not finite become null. Raises ProxyError, and writes nothing,
    where ``parameters`` are not finite or their number is wrong; OSError where the file cannot be written.
    """
    path, networks = Path(path), Networks(config, spaces)
    if parameters.shape != (networks.size,):
        raise _refused(path, f"{list(parameters.shape)} parameters", f"[{networks.size}]")
    if not parameters.isfinite().all():
        raise _refused(path, "parameters that are not finite", "finite numbers")
    header = {
        "format": FORMAT,
        "game": game,
        "spaces": _spaces_as_dict(spaces),
        "config": asdict(config),
        "networks": _in_words(config),
        "description": _plain(description),
    }
    layers = _layers(networks, parameters.detach().to("cpu", torch.float32))
    tensors = {name: layer.contiguous() for name, layer in layers.items()}
    # One key: the library writes several in another order each time.
    _replace(path, safetensors_torch.save(tensors, {_KEY: json.dumps(header, allow_nan=False)}))


def load(path: str | Path) -> Proxy:
    """The stand-in of a file. Raises ProxyError, one line with the path, where it holds none that can be used."""
    path = Path(path)
    try:
        with open(path, "rb") as file:
            start = file.read(4)
        if start == b"PK\x03\x04":
            raise _refused(path, "it is a checkpoint", f"a {SUFFIX} file of a stand-in")
        with safe_open(path, "pt") as opened:
            header = _header(path, opened.metadata() or {})
            config, spaces = _config(path, header["config"]), _spaces(path, header["spaces"])
            parameters = _parameters(path, opened, Networks(config, spaces))
    except FileNotFoundError as error:
        raise _refused(path, "there is no such file", f"a {SUFFIX} file of a stand-in") from error
    except OSError as error:
        raise _refused(path, f"cannot be read ({error.strerror or error})", f"a {SUFFIX} file of a stand-in") from error
    except SafetensorError as error:
        raise _refused(path, f"not a whole safetensors file ({error})", f"a {SUFFIX} file of a stand-in") from error
    return Proxy(path, config, spaces, header["game"], parameters, header["description"])


def find(name_or_path: str | Path) -> Path:
    """The file of a stand-in: a path, a search's folder, or the name of a shipped one; what exists comes first.

    Raises ProxyError with the nearest name."""
    path, known = Path(name_or_path).expanduser(), pretrained()
    if path.is_file():
        return path
    if (path / IN_RUN).is_file():
        return path / IN_RUN
    if str(name_or_path) in known:
        return known[str(name_or_path)]
    beside = [str(other) for other in path.parent.glob(f"*{SUFFIX}")] if path.parent.is_dir() else []
    near = closest(str(name_or_path), [*known, *beside])
    hint = f"; did you mean '{near}'? Allowed:" if near else "; allowed:"
    shipped = f", or one of {', '.join(known)}" if known else ""
    raise ProxyError(f"stand-in is {str(name_or_path)!r}{hint} a {SUFFIX} file{shipped}")


def _refused(path: Path, what: str, allowed: str) -> ProxyError:
    return ProxyError(f"stand-in {str(path)!r}: {what}; allowed: {allowed}")


# -- tensors -----------------------------------------------------------------------------------------------------------


def _layers(networks: Networks, flat: Tensor) -> dict[str, Tensor]:
    """Views of ``flat [D]`` under the names of the file: weights ``[out, in]`` and biases ``[out]``."""
    named = {}
    for part, own in networks.split(flat[None]).items():
        for i, (weight, bias) in enumerate(networks.parts[part].layers(own)):
            named[f"{part}.{i}.weight"], named[f"{part}.{i}.bias"] = weight[0], bias[0, :, 0]
    return named


def _shapes(networks: Networks) -> Iterator[tuple[str, list[int]]]:
    for part, network in networks.parts.items():
        for i, ((outputs, inputs), _) in enumerate(network.shapes):
            yield f"{part}.{i}.weight", [outputs, inputs]
            yield f"{part}.{i}.bias", [outputs]


def _parameters(path: Path, opened: Any, networks: Networks) -> Tensor:
    """``[D]`` from the file's layers, every one held against the architecture before memory is taken for it."""
    expected, found = dict(_shapes(networks)), set(opened.keys())
    for name in sorted(expected.keys() - found):
        raise _refused(path, f"tensor {name} is missing", f"all of {', '.join(expected)}")
    for name in sorted(found - expected.keys()):
        raise _refused(path, f"tensor {name} is unknown{nearest(name, expected)}", ", ".join(expected))
    for name, shape in expected.items():
        layer = opened.get_slice(name)
        if (layer.get_shape(), layer.get_dtype()) != (shape, "F32"):
            raise _refused(path, f"tensor {name} is {layer.get_dtype()} {layer.get_shape()}", f"F32 {shape}")
    flat = torch.zeros(networks.size)
    for name, view in _layers(networks, flat).items():
        view.copy_(opened.get_tensor(name))
        if not view.isfinite().all():
            raise _refused(path, f"tensor {name} holds numbers that are not finite", "finite numbers")
    return flat


# -- text --------------------------------------------------------------------------------------------------------------


def _header(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    try:
        header = json.loads(metadata[_KEY])
        version = header["format"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _refused(path, f"a safetensors file without {_KEY!r} metadata", "a stand-in of this project") from error
    if version != FORMAT:
        raise _refused(path, f"its format is {version!r}", str(FORMAT))
    for name, kind in {"game": str, "spaces": dict, "config": dict, "description": dict}.items():
        if not isinstance(header.get(name), kind):
            raise _refused(path, f"its {name} is missing or damaged", f"a {name} as `save` writes it")
    settings = header["description"].get("settings", {})
    if not isinstance(settings, dict) or not isinstance(settings.get("agent", ""), str):
        raise _refused(path, "its description.settings are damaged", "a mapping as `save` writes it")
    return header


def _config(path: Path, values: Mapping[str, Any]) -> Config:
    known = kinds(Config)
    for name in values:
        if name not in known:
            raise _refused(path, f"its setting {name!r} is unknown{nearest(name, known)}", ", ".join(known))
    config = Config(**values)
    try:
        check(config)
    except SettingError as error:
        raise ProxyError(f"stand-in {str(path)!r}: its setting {error}") from error
    return config


def _spaces_as_dict(spaces: Spaces) -> dict[str, Any]:
    actions = asdict(spaces.actions)
    limits = {"max_episode_steps": spaces.max_episode_steps, "max_return": spaces.max_return}
    return {"obs_shape": list(spaces.obs_shape), "actions": actions} | limits


def _spaces(path: Path, values: Mapping[str, Any]) -> Spaces:
    try:
        (size,), limit, best = values["obs_shape"], values["max_episode_steps"], values["max_return"]
        actions = _actions(values["actions"])
        count = actions.n if isinstance(actions, Discrete) else actions.size
        if min(size, count, 1 if limit is None else limit) < 1 or not all(isinstance(n, int) for n in (size, count)):
            raise ValueError("a size below 1")
        return Spaces((size,), actions, max_episode_steps=limit, max_return=best)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise _refused(path, f"its spaces are damaged: {json.dumps(values)}", "spaces as `save` writes them") from error


def _actions(values: Mapping[str, Any]) -> Discrete | Continuous:
    if "n" in values:
        return Discrete(values["n"])
    bounds = list(zip(values["low"], values["high"], strict=True))
    if not all(math.isfinite(low) and low < high < math.inf for low, high in bounds):
        raise ValueError("bounds that are none")
    return Continuous(tuple(low for low, _ in bounds), tuple(high for _, high in bounds))


def _in_words(config: Config) -> str:
    slope = {"leakyrelu": LEAK, "prelu": PRELU_SLOPE}.get(config.proxy_activation_fn)
    name = "leaky ReLU" if slope else config.proxy_activation_fn
    between = f"{name} of slope {slope} below zero" if slope else name
    words = [f"Each network is torch.nn.Linear layers 0, 1, ... with {between} between them."]
    if config.proxy == "mdp":
        words += [
            "Input of state, reward and done is the action (one-hot where discrete), then the state.",
            "state gives the next state, reward the reward, done above 0.5 ends the episode.",
        ]
    else:
        words.append(
            "Input of reward is the action (one-hot where discrete), then the state. Every step is an episode."
        )
    if config.proxy == "bandit" or config.learned_reset:
        words.append("initial turns standard normal noise into a first state.")
    return " ".join(words)


def _plain(value: Any) -> Any:
    """The same with null for numbers that are not finite, which JSON does not have."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
