"""Learned environments on disk: safetensors files that hold nothing but numbers and text, so that opening one runs no
code.

One tensor per weight and per bias, named and laid out as ``torch.nn.Linear`` does. The metadata has one key,
``understudy``: JSON with ``format``, ``game``, ``spaces``, ``config``, ``description`` and ``networks``, which says in
words how to rebuild them (`understudy.layout`). The same environment gives the same bytes.
"""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors import numpy as safetensors_numpy

from understudy.layout import FORMAT, check, nearest, refused, shapes
from understudy.proxy import Proxy, ProxyError

SUFFIX = ".safetensors"
IN_RUN = "proxy.safetensors"  # what the folder of a search calls its winner
SHIPPED = Path(__file__).resolve().parent / "pretrained"

_KEY = "understudy"
_ALLOWED = f"a {SUFFIX} file of a synthetic environment"


def pretrained() -> dict[str, Path]:
    """The files that come with this package, by name (``cartpole-mdp``)."""
    return {path.stem: path for path in sorted(SHIPPED.glob(f"*{SUFFIX}"))}


def find(name_or_path: str | Path) -> Path:
    """The file of a path, of the folder of a search, or of a shipped name; what exists comes first. Raises ProxyError
    with the nearest name."""
    path, known = Path(name_or_path).expanduser(), pretrained()
    if path.is_file():
        return path
    if (path / IN_RUN).is_file():
        return path / IN_RUN
    if str(name_or_path) in known:
        return known[str(name_or_path)]
    beside = [str(other) for other in path.parent.glob(f"*{SUFFIX}") if other.is_file()]
    near = nearest(str(name_or_path), [*known, *beside])
    hint = f"{near} Allowed:" if near else "; allowed:"
    shipped = f", or one of {', '.join(known)}" if known else ""
    raise ProxyError(f"synthetic environment is {str(name_or_path)!r}{hint} a {SUFFIX} file{shipped}")


def load(name_or_path: str | Path) -> Proxy:
    """The learned environment of a file, of a search's folder, or of a shipped name. Raises ProxyError, one line with
    the path, where there is none that can be used."""
    path = find(name_or_path)
    try:
        with open(path, "rb") as file:
            start = file.read(4)
        if start == b"PK\x03\x04":
            raise refused(path, "it is a checkpoint", _ALLOWED)
        with safe_open(path, "np") as opened:
            header = _header(path, opened.metadata() or {})
            # Held against the settings before memory is taken for it.
            layers = {name: opened.get_slice(name) for name in opened.keys()}
            check(path, header, {name: (layer.get_dtype(), layer.get_shape()) for name, layer in layers.items()})
            tensors = {name: opened.get_tensor(name) for name in shapes(header["config"], header["spaces"])}
    except OSError as error:
        raise refused(path, f"cannot be read ({error.strerror or error})", _ALLOWED) from error
    except SafetensorError as error:
        raise refused(path, f"not a whole safetensors file ({error})", _ALLOWED) from error
    _check_finite(path, tensors)
    return Proxy(path, header["game"], header["spaces"], header["config"], header["description"], tensors)


def save(
    path: str | Path, tensors: Mapping[str, np.ndarray], *, game: str, spaces: dict[str, Any],
    config: dict[str, Any], description: Mapping[str, Any],
) -> None:  # fmt: skip
    """Write one learned environment; `Proxy` says what the parts are. ``path`` is the whole old file or the whole new
    one, whatever happens.

    ``description`` must be JSON; numbers in it that are not finite become null. Raises ProxyError, and writes nothing,
    where `load` would refuse the file; OSError where it cannot be written.
    """
    path, given = Path(path), {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    header = {"format": FORMAT, "game": game, "spaces": spaces, "config": config, "networks": _in_words(config),
              "description": _plain(description)}  # fmt: skip
    f32 = np.dtype(np.float32)
    check(path, header, {name: ("F32" if each.dtype == f32 else str(each.dtype), [*each.shape])
                         for name, each in given.items()})  # fmt: skip
    _check_finite(path, given)
    # One key: the library writes several in another order each time.
    _replace(path, safetensors_numpy.save(given, {_KEY: json.dumps(header, allow_nan=False)}))


def _header(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    try:
        header = json.loads(metadata[_KEY])
        header["format"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise refused(path, f"a safetensors file without {_KEY!r} metadata", "a file as `save` writes it") from error
    return header


def _check_finite(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    for name, tensor in tensors.items():
        if not np.isfinite(tensor).all():
            raise refused(path, f"tensor {name} holds numbers that are not finite", "finite numbers")


def _in_words(config: Mapping[str, Any]) -> str:
    slope = {"leakyrelu": 0.01, "prelu": 0.25}.get(config.get("proxy_activation_fn", ""))
    between = f"leaky ReLU of slope {slope} below zero" if slope else config.get("proxy_activation_fn")
    words = [f"Each network is torch.nn.Linear layers 0, 1, ... with {between} between them."]
    if config.get("proxy") == "mdp":
        words += [
            "Input of state, reward and done is the action (one-hot where discrete), then the state.",
            "state gives the next state, reward the reward, done above 0.5 ends the episode.",
        ]
    else:
        words.append(
            "Input of reward is the action (one-hot where discrete), then the state. Every step is an episode."
        )
    if config.get("proxy") == "bandit" or config.get("learned_reset"):
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
